"""What `jit` makes is a function for those who look at it: methods, arguments, results, names."""

import inspect

import numpy as np
import pytest

import einsum_engine as engine

A = np.arange(12.0).reshape(3, 4)


class Model:
    scale = 2

    @engine.jit
    def call(self, x, shift=1):
        """Scales."""
        return x * self.scale + shift


def test_bound_methods_are_methods():
    model = Model()
    assert np.array_equal(model.call(A), A * 2 + 1)
    assert model.call == model.call and model.call.__self__ is model and model.call.__doc__ == "Scales."
    assert str(inspect.signature(model.call)) == "(x, shift=1)"
    assert "mul" in model.call.explain()


def test_only_functions_are_jitted():
    for wrong in (3, "f", A):
        with pytest.raises(TypeError, match=f"jit of a {type(wrong).__name__}: expected a function"):
            engine.jit(wrong)
    assert repr(engine.jit(np.sin)) == f"jit({np.sin!r})"
