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


# ---- einsum ------------------------------------------------------------------------------------------------------

OPTIONS = {
    "a name": dict(optimize="greedy"),
    "a path": dict(optimize=[(0, 1), (0, 1)]),
    "a path of tuples": dict(optimize=((1, 2), (0, 1))),
    "a path of numpy": dict(optimize=["einsum_path", (0, 1), (0, 1)]),
    "a dtype": dict(dtype=np.float64),
    "a dtype and a path": dict(dtype=np.float64, optimize=[[0, 1], [0, 1]]),
    "conj": dict(conj=[0, 2]),
    "an order": dict(order="F"),
    "a limit": dict(memory_limit="8GiB"),
    "a factor": dict(alpha=2.0),
    "a factor of numpy": dict(alpha=np.float64(2)),
}


@pytest.fixture
def general(monkeypatch):
    """The calls of `einsum` that were not a builtin's."""
    seen = []
    way = engine.api._einsum
    monkeypatch.setattr(engine.api, "_einsum", lambda *call: seen.append(call) or way(*call))
    engine.clear_cache()
    return seen


@pytest.mark.parametrize("name", OPTIONS)
def test_a_third_call_with_options_is_one_builtin(general, name):
    arrays, options = matrices(), OPTIONS[name]
    expected = np.einsum(CHAIN, *arrays) * options.get("alpha", 1)
    for _ in range(4):
        assert np.array_equal(engine.einsum(CHAIN, *arrays, **options), expected)
    assert len(general) == 2
    out = np.empty_like(expected)
    for _ in range(4):
        assert engine.einsum(CHAIN, *arrays, out=out, **options) is out
        assert np.array_equal(out, expected)
    assert len(general) == 4


@pytest.mark.parametrize("output", [[[0, 3]], []])
def test_a_third_call_with_lists_of_indices_is_one_builtin(general, output):
    a, b, c = matrices()
    for options in ({}, {"optimize": [(0, 1), (0, 1)]}):
        del general[:]
        for _ in range(4):
            result = engine.einsum(a, [0, 1], b, [1, 2], c, (2, 3), *output, **options)
            assert np.array_equal(result, np.einsum(CHAIN, a, b, c))
        assert len(general) == 2
    assert np.array_equal(engine.einsum(a, [0, 1], b, [1, 2], c, (2, 3), [3, 0]), np.einsum("ij,jk,kl->li", a, b, c))


def test_lists_as_operands_are_read_and_then_handed_to_the_builtin():
    engine.clear_cache()
    a, b, c = matrices()
    f = engine.compile(CHAIN, a, b, c)
    for _ in range(4):
        assert np.array_equal(engine.einsum(CHAIN, a, b.tolist(), c), np.einsum(CHAIN, a, b, c))
        assert np.array_equal(f(a.tolist(), b, c), np.einsum(CHAIN, a, b, c))
        total = engine.einsum("ij,ij->", a, b.tolist())
        assert type(total) is np.float64 and total == (a * b).sum()
    with pytest.raises(engine.EngineValueError, match="index 'j' is 5 in operand 0 axis 1 but 2 in operand 1 axis 0"):
        engine.einsum(CHAIN, a, [[1.0] * 5] * 2, c)


def test_each_factor_has_its_own():
    a, b, c = matrices()
    expected, out = np.einsum(CHAIN, a, b, c), np.zeros((5, 5))
    for _ in range(3):
        for alpha in (2.0, 2, -2.0, np.float64(-1), 1j * 0 + 3, True):
            for _ in range(3):
                assert np.array_equal(engine.einsum(CHAIN, a, b, c, alpha=alpha), alpha * expected)
        for _ in range(3):
            before = out.copy()
            engine.einsum(CHAIN, a, b, c, alpha=2.0, beta=0.5, out=out)
            assert np.allclose(out, 2 * expected + before / 2)
    for _ in range(3):
        for alpha in (0.0, -0.0):
            for _ in range(3):
                result = engine.einsum("i,i->i", np.ones(3), np.ones(3), alpha=alpha)
                assert np.array_equal(np.signbit(result), [np.signbit(alpha)] * 3)


BAD = (
    (dict(conj=(0,)), dict(conj=(0.0,)), engine.EngineTypeError),
    (dict(conj=0), dict(conj=0.0), engine.EngineTypeError),
    (dict(optimize=[(0, 1), (0, 1)]), dict(optimize=[(0, 1), b"01"]), engine.EngineError),
    (dict(conj=[np.int64(0)]), dict(conj=[b"\0" * 8]), engine.EngineTypeError),
    (dict(strict=True), dict(strict=1), engine.EngineTypeError),
    (dict(alpha=1), dict(alpha="1"), engine.EngineTypeError),
    (dict(beta=0.0), dict(beta=1.0), engine.EngineValueError),
    (dict(order="F"), dict(order="f", nothing=1), engine.EngineTypeError),
)


@pytest.mark.parametrize("good,bad,kind", BAD)
def test_what_is_wrong_stays_wrong_after_what_is_equal(good, bad, kind):
    arrays = matrices()
    for _ in range(3):
        engine.einsum(CHAIN, *arrays, **good)
        with pytest.raises(kind):
            engine.einsum(CHAIN, *arrays, **bad)


def test_wrong_lists_of_indices_stay_wrong():
    a, b, _ = matrices()
    bad = (
        ([0, 1], b, [1.0, 2]), ([0, 1], b, [1, 2], None), ([0, 1], b), ([0, 1], b, [1, 2], [0, 2], [0]),
        (np.array([0, 1.0]), b, [1, 2]), ([0, 1], b, [1, 2, 3]),
    )  # fmt: skip
    for _ in range(3):
        assert np.array_equal(engine.einsum(a, [0, 1], b, [1, 2]), a @ b)
        assert np.array_equal(engine.einsum(a, np.array([0, 1]), b, [1, 2]), a @ b)
        for rest in bad:
            with pytest.raises(engine.EngineError):
                engine.einsum(a, *rest)
