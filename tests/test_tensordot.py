"""tensordot and transpose as NumPy has them, and all calls with arrays of PyTorch and JAX."""

from importlib.util import find_spec

import numpy as np
import pytest

import einsum_engine as engine

RNG = np.random.default_rng(0)


def random(*shape, dtype="float64"):
    real = RNG.standard_normal(shape)
    return (real + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)


# ---- tensordot, transpose ------------------------------------------------------------------------------------------

TENSORDOTS = [
    *(((3, 4), (4, 5), 1), ((3, 4), (3, 4), 2), ((2, 3), (4, 5), 0), ((3, 4, 5), (4, 3, 2), ([1, 0], [0, 1]))),
    *(((3, 4, 5), (4, 3, 2), ((0, 1), (1, 0))), ((3, 4), (5, 4), (1, 1)), ((3, 4), (5, 4), ([-1], [-1]))),
    *(((2, 3), (4,), ((), ())), ((), (3,), 0), ((), (), 0), ((3,), (3,), 1), ((3, 4), (4, 5), (np.array([1]), [0]))),
    *(((0, 3), (3, 2), 1), ((3, 0), (0, 2), 1), ((3, 4), (4, 5), np.int64(1))),
]


@pytest.mark.parametrize("left, right, axes", TENSORDOTS, ids=str)
def test_tensordot(left, right, axes):
    for dtypes in (("float64", "float64"), ("int8", "int8"), ("float32", "complex64"), ("bool", "bool")):
        a, b = (np.abs(random(*shape) * 2).astype(dtype) for shape, dtype in zip((left, right), dtypes))
        expected = np.tensordot(a, b, axes)
        for result in (engine.tensordot(a, b, axes), engine.tensordot(a, b, axes=axes), engine.tensordot(a, b, axes)):
            assert type(result) is np.ndarray and result.dtype == expected.dtype
            assert result.shape == expected.shape and np.allclose(result, expected)


@pytest.mark.parametrize(
    "left, right, axes, message",
    [
        ((3, 4), (5, 6), 1, "axis 1 of operand 0 has size 4, axis 0 of operand 1 has 5"),
        ((3, 1), (5, 6), 1, "axis 1 of operand 0 has size 1, axis 0 of operand 1 has 5"),
        ((3, 4), (4, 5), 3, "axes=3"),
        ((3, 4), (4, 5), ([0, 1], [0]), "2 axes of operand 0 meet 1"),
        ((3, 4), (4, 5), ([2], [0]), r"operand 0 of shape \(3, 4\) has no axis 2"),
        ((3, 3), (3, 3), ([0, 0], [0, 1]), "twice"),
        ((3, 4), (4, 5), "ab", "axes='ab'"),
    ],
)
def test_tensordot_errors(left, right, axes, message):
    with pytest.raises(engine.EngineError, match=message):
        engine.tensordot(np.ones(left), np.ones(right), axes)


def test_transpose():
    a = random(2, 3, 4)
    for axes in (None, (0, 1, 2), (2, 0, 1), [1, 2, 0], (-1, 0, 1)):
        result = engine.transpose(a, axes)
        assert np.array_equal(result, np.transpose(a, axes)) and np.shares_memory(result, a)
    assert engine.transpose([[1, 2], [3, 4]]).tolist() == [[1, 3], [2, 4]]
    with pytest.raises(engine.EngineValueError, match=r"axes=\(0, 0, 1\) of an array of shape \(2, 3, 4\)"):
        engine.transpose(a, (0, 0, 1))


# ---- arrays of other libraries -------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch():
    import torch

    a, b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)
    close = lambda x, y: torch.allclose(x, y, rtol=1e-4, atol=1e-5)  # noqa: E731
    for _ in range(3):
        result = engine.einsum("ij,jk->ik", a, b)
        assert isinstance(result, torch.Tensor) and close(result, a @ b)
        assert close(engine.einsum("ij,jk->ik", a.conj(), b), a.conj() @ b)
        assert close(engine.einsum("ij,jk->ik", a.conj(), b, conj=(0, 1)), a @ b.conj())
        assert close(engine.tensordot(a.conj(), b, 1), a.conj() @ b)
    f = engine.compile("ij,jk->ik", a, b)
    assert close(f(a, b), a @ b) and close(f(a.mH.mT, b), a.conj() @ b)
    out = torch.zeros(3, 5, dtype=torch.complex64)
    assert f(a, b, out=out) is out and close(out, a @ b)
    assert engine.einsum("ij,ij->", a, a).shape == () and isinstance(engine.einsum("ij,ij->", a, a), torch.Tensor)
    assert engine.transpose(torch.ones(2, 3), (1, 0)).shape == (3, 2)
    half = torch.ones(3, 3, dtype=torch.bfloat16)
    assert engine.einsum("ij,jk->ik", half, half).dtype == torch.bfloat16
    with pytest.raises(engine.EngineTypeError, match="requires grad"):
        engine.einsum("ij->i", torch.ones(2, 2, requires_grad=True))
    g = engine.compile("ij,jk->ik", (3, 4), b, dtypes=["complex64", None], constants=[1])
    assert close(g(a), a @ b)


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax():
    import jax
    import jax.numpy as jnp

    a, b = jnp.ones((3, 4)), jnp.arange(20.0).reshape(4, 5)
    result = engine.einsum("ij,jk->ik", a, b)
    assert isinstance(result, jax.Array) and jnp.allclose(result, a @ b)
    assert isinstance(engine.transpose(a, (1, 0)), jax.Array)
    with pytest.raises(engine.EngineTypeError, match="tracer"):
        jax.jit(lambda x: engine.einsum("ij,jk->ik", x, b))(a)
    with pytest.raises(engine.EngineTypeError, match="immutable"):
        engine.einsum("ij,jk->ik", a, b, out=jnp.zeros((3, 5)))
