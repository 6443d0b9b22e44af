"""Calls that begin with a native function: with constants, with options, in other forms; and what must not begin with it."""

import gc

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import fastcall

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="the entry knows no such Python or NumPy")

RNG = np.random.default_rng(0)
CHAIN = "ij,jk,kl->il"


def matrices(count: int = 3, dtype="float64") -> list[np.ndarray]:
    return [RNG.integers(-4, 5, (5, 5)).astype(dtype) for _ in range(count)]


def is_builtin(function) -> bool:
    return type(function).__name__ == "builtin_function_or_method"


# ---- compiled ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constants", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
def test_a_call_with_constants_is_one_builtin(constants):
    arrays = matrices()
    f = engine.compile(CHAIN, *arrays, constants=constants)
    given = [array for position, array in enumerate(arrays) if position not in constants]
    expected = np.einsum(CHAIN, *arrays)
    out = np.empty((5, 5))
    for _ in range(4):
        assert np.array_equal(f(*given), expected)
        assert f(*given, out=out) is out and np.array_equal(out, expected)
    assert is_builtin(f._entry) and is_builtin(f._into)
    for wrong in (arrays if given != arrays else [], [*given, arrays[0]]):
        if wrong:
            with pytest.raises(engine.EngineValueError, match=f"takes {len(given)} arrays, {len(wrong)} were given"):
                f(*wrong)
    assert np.array_equal(f(*[array.tolist() for array in given]), expected)
    assert np.array_equal(f(*[np.asfortranarray(array) for array in given]), expected)
    assert np.array_equal(f(*given, alpha=2.0, beta=1.0, out=out), 3 * expected)


def test_constants_live_as_long_as_what_was_made_of_them():
    a, b, c = matrices()
    f = engine.compile(CHAIN, (5, 5), b, c, constants=[1, 2])
    expected = np.einsum(CHAIN, a, b, c)
    f(a)
    entry = f._entry
    b[:], c[:] = 0, 0
    del f
    gc.collect()
    assert np.array_equal(entry(a), expected)


def test_an_output_over_a_constant_of_the_caller():
    """The constant is a copy, so what it was made of may be written."""
    a, b, c = matrices()
    f = engine.compile(CHAIN, a, b, c, constants=[1])
    expected = np.einsum(CHAIN, a, b, c)
    for _ in range(4):
        assert np.array_equal(f(a, c, out=b), expected)
    for _ in range(3):
        into = c.copy()
        assert np.array_equal(f(a, into, out=into), expected)


def test_a_repeated_variable_beside_constants():
    a, b, _ = matrices()
    text = "ab,bc,cd,de->ae"
    f = engine.compile(text, a, b, a, b, constants=[1, 3])
    for _ in range(3):
        assert np.array_equal(f(a, a), np.einsum(text, a, b, a, b))
        assert np.array_equal(f(b, a), np.einsum(text, b, b, a, b))


@pytest.mark.parametrize("order", ["F", "A", "K"])
def test_compiled_calls_in_another_memory_order(order):
    a, b, c = map(np.asfortranarray, matrices())
    f = engine.compile("ij,jk,lk->lij", a, b, c, order=order)
    for _ in range(3):
        result = f(a, b, c)
        assert np.array_equal(result, np.einsum("ij,jk,lk->lij", a, b, c))
        assert result.flags.f_contiguous == (order != "K") and result.flags.owndata
    assert is_builtin(f._entry)
    assert f(a, b.copy(order="C"), c).flags.c_contiguous == (order != "F")


def test_memory_order_of_large_results():
    a, b = np.ones((600, 20)), np.ones((20, 700))
    f = engine.compile("ij,jk->ik", a, b, order="F")
    for _ in range(3):
        result = f(a, b)
        assert result.flags.f_contiguous and (result == 20).all()


@pytest.mark.parametrize("alpha", [2.0, -0.5, 0.0, 3, 1j])
def test_compiled_factors(alpha):
    a, b, c = matrices(dtype="complex128" if alpha == 1j else "float64")
    expected = np.einsum(CHAIN, a, b, c)
    f = engine.compile(CHAIN, a, b, c, alpha=alpha, constants=[1])
    g = engine.compile(CHAIN, a, b, c, alpha=alpha, beta=2.0)
    out = np.full((5, 5), np.nan, a.dtype)
    for _ in range(4):
        assert np.array_equal(f(a, c), alpha * expected)
        assert np.array_equal(f(a, c, out=out), alpha * expected)
        assert np.array_equal(g(a, b, c, out=out), (alpha + 2 * alpha) * expected)
        assert np.array_equal(f(a, c, alpha=-2.0), -2 * expected)
        with pytest.raises(engine.EngineValueError, match="beta=2.0 adds to out="):
            g(a, b, c)
    assert is_builtin(f._entry) and is_builtin(f._into) and is_builtin(g._into)


def test_factors_that_do_not_fit_are_refused_in_each_call():
    a, b, c = matrices(dtype="int64")
    f = engine.compile(CHAIN, a, b, c, alpha=0.5)
    for _ in range(3):
        with pytest.raises(engine.EngineTypeError, match="alpha=0.5 does not fit dtype int64"):
            f(a, b, c)
        assert np.array_equal(f(a * 1.0, b * 1.0, c * 1.0), 0.5 * np.einsum(CHAIN, a, b, c))
