"""Arrays of other libraries and devices beside traced ones."""

from __future__ import annotations

import numpy as np
import pytest

import einsum_engine as engine


class Elsewhere:
    """An array that claims to be in the memory of a GPU."""

    shape, dtype = (3,), np.dtype("float64")
    __cuda_array_interface__ = {"shape": (3,)}

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise BufferError


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("np.add", lambda a: a + Elsewhere()),
        ("np.multiply", lambda a: np.multiply(Elsewhere(), a)),
        ("np.where", lambda a: np.where(a > 0, a, Elsewhere())),
        ("np.concatenate", lambda a: np.concatenate([a, Elsewhere()])),
        ("assignment to an index", lambda a: a.__setitem__(slice(None), Elsewhere())),
        ("einsum", lambda a: engine.einsum("i,i->", a, Elsewhere())),
    ],
)
def test_devices_that_are_mixed_name_operation_line_and_shapes(name, function):
    with pytest.raises(engine.EngineTypeError) as caught:
        engine.jit(function)(np.ones(3))
    text = str(caught.value)
    assert text.startswith(f"{name}, {__file__}:")
    assert "an operand is a Elsewhere of shape (3,) on a CUDA device: traced arrays are in CPU memory" in text


class Nowhere(Elsewhere):
    """One for whose device DLPack has no number, as torch's "meta"."""

    device = "meta"

    def __dlpack_device__(self):
        raise ValueError


def test_a_device_without_a_number_has_its_name():
    with pytest.raises(engine.EngineTypeError, match=r"^np.add, .* a Nowhere of shape \(3,\) on a meta device"):
        engine.jit(lambda a: a + Nowhere())(np.ones(3))
    with pytest.raises(engine.EngineTypeError, match=r"argument 0 is a Nowhere of shape \(3,\) on a meta device"):
        engine.jit(np.sum)(Nowhere())


def test_an_argument_on_a_device_is_refused():
    with pytest.raises(engine.EngineTypeError, match=r"argument 1 is a Elsewhere of shape \(3,\) on a CUDA device"):
        engine.jit(lambda a, b: a + b)(np.ones(3), Elsewhere())
