"""Index arrays, extremes, sorting and powers in jitted functions: plans, held against NumPy and the interpreter."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_calls import assert_like_numpy, copy_of

import einsum_engine as engine
from einsum_engine.op_numpy import argmax
from einsum_engine.planners import expand

RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def put(x, i, v):
    x[i] = v
    return x.sum()


def put_part(x, i, v):
    x[1:, i] += v
    x[0, i] = x[1, i][::-1]
    x[i[0]] *= 2
    return x[:, i], x[1, i, None]


def add_up(x, i, v):
    np.add.at(x, i, v)
    return x * 2


def from_itself(x, i):
    x[i] = x[::-1][: i.size]
    np.add.at(x, x[i] % 5, x[i])
    return x


def kept(x, i):
    old = x.copy()
    x[i] = 7
    return old - x


def pairs(x, i, j):
    return x[i[:, None], j], x[i, :, j], x[2, i], x[-1, :, j]


def along(x, i):
    return np.take_along_axis(x, np.argsort(x, axis=1, kind="stable"), axis=1), np.take(x, i, axis=0)


X, PLACES = np.arange(35.0).reshape(5, 7), np.array([3, 0, -2, 3])
CUBE = np.arange(4 * 5 * 6).reshape(4, 5, 6)


@pytest.mark.parametrize(
    "function, arrays",
    [
        (put, [X, PLACES, np.array(2.0)]),
        (put, [X[::-1, ::-2], PLACES, np.arange(16.0).reshape(4, 4)]),
        (put, [X.T.copy().T, PLACES, np.arange(7.0)]),
        (put, [np.zeros((5, 0)), PLACES, np.zeros((4, 0))]),
        (put_part, [X, PLACES, np.array(0.5)]),
        (add_up, [X, PLACES, np.arange(28.0).reshape(4, 7)]),
        (add_up, [np.arange(7, dtype=np.uint8), PLACES, np.array(200, np.uint8)]),
        (add_up, [np.ones(5, np.float16), PLACES, np.arange(4, dtype=np.float16)]),
        (from_itself, [np.arange(6), np.array([1, 5, 1])]),
        (kept, [X, PLACES]),
        (pairs, [CUBE, np.array([1, 3, -4]), np.array([0, -1, 3])]),
        (pairs, [CUBE[::-1, :, ::-1], np.array([1, 1, 1]), np.array([0, 0, 0])]),
        (along, [np.sin(X), np.array([[0, 1], [-1, 4]])]),
    ],
)
def test_like_numpy(function, arrays):
    assert_like_numpy(function, *arrays)


@RANDOM
@given(st.data())
def test_any_index_is_the_interpreters(data):
    """Results, errors with their text, and that a failed call leaves nothing behind."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    axes = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(1, len(shape)))]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.integers(-9, 9, shape).astype(data.draw(st.sampled_from(["int8", "float32", "complex128"])))
    places = data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    wide = data.draw(st.integers(0, 1))  # some are out of range
    index = [rng.integers(-shape[a] - wide, max(shape[a], 1) + wide, places) for a in axes]
    key = [slice(None)] * len(shape)

    def function(x, *index):
        for axis, each in zip(axes, index):
            key[axis] = each
        found = x[tuple(key)]
        np.add.at(x, tuple(key), found)
        x[tuple(key)] = found[..., ::-1] if found.ndim else found
        return found, x

    jitted = engine.jit(function)
    program = jitted.program(x, *index)
    assert jitted.plan(x, *index) is not None
    for _ in range(3):
        mine = copy_of(x)
        try:
            wanted = program.eval(x, *index)
        except IndexError as error:
            with pytest.raises(IndexError) as caught:
                jitted(mine, *index)
            assert str(caught.value) == str(error)
        else:
            for one, two in zip(wanted, jitted(mine, *index)):
                assert np.array_equal(one, two)


def test_an_error_is_numpys_in_every_call_and_thread():
    x, good, bad = np.arange(40_000.0), np.arange(30_000), np.arange(30_000)
    bad[[17, 29_000]] = 40_000, -40_001
    jitted = engine.jit(lambda x, i: x[i] + 1)
    seen = []

    def call():
        for _ in range(5):
            assert np.array_equal(jitted(x, good), x[good] + 1)
            with pytest.raises(IndexError, match="index 40000 is out of bounds for axis 0 with size 40000"):
                jitted(x, bad)
            seen.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 15


def test_a_scatter_with_a_bad_index_writes_nothing():
    jitted, x = engine.jit(put), np.zeros((5, 7))
    for _ in range(3):
        with pytest.raises(IndexError, match="index 5 is out of bounds for axis 0 with size 5"):
            jitted(x, np.array([1, 5, 2]), np.float64(3))
        assert not x.any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint64", "bool", "float16"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_extremes_are_the_first(dtype, name):
    x = np.random.default_rng(3).integers(0, 4, (3, 40, 5)).astype(dtype)
    if x.dtype.kind == "f":
        x[1, 5:, 2], x[2, 7] = np.nan, -np.inf
    for axis in (None, 1):
        assert_like_numpy(lambda x: getattr(np, name)(x, axis=axis), x)
    assert_like_numpy(lambda x: getattr(np, name)(x, axis=1), x[:, ::-2])


def test_a_long_axis_has_places_made_of_two(monkeypatch):
    monkeypatch.setattr(expand, "LONGEST_IOTA", 20)
    x = np.sin(np.arange(1001.0))
    assert_like_numpy(lambda x: (np.argmax(x), x + np.arange(1001)), x)
    assert argmax(x, axis=0) == np.argmax(x)


@pytest.mark.parametrize("base", ["int8", "int64", "uint8"])
def test_integer_powers_refuse_negative_exponents(base):
    x, e = np.arange(6).astype(base), np.arange(6).astype("int8")
    jitted = engine.jit(np.power)
    assert jitted.plan(x, e) is not None
    for exponent in (e, e[::-1].copy(), np.zeros(6, np.int8)):
        assert np.array_equal(jitted(x, exponent), np.power(x, exponent))
    e[4] = -1
    if np.result_type(x, e).kind == "i":
        for _ in range(3):
            with pytest.raises(ValueError, match="Integers to negative integer powers are not allowed."):
                jitted(x, e)
    assert jitted(x[:0], e[:0]).size == 0


@pytest.mark.parametrize("function", [np.sum, np.prod, np.max, np.min, np.any])
def test_reductions_of_halves_are_at_least_numpys(function):
    x = (np.random.default_rng(5).standard_normal((20, 30)) / 4 + 1).astype(np.float16)
    jitted = engine.jit(lambda x: function(x, axis=1))
    assert jitted.plan(x) is not None
    found, exact = jitted(x), function(x.astype(np.float64), axis=1)
    assert found.dtype == function(x, axis=1).dtype
    np.testing.assert_allclose(found.astype(float), exact.astype(float), rtol=2**-10)


def test_in_branches_and_loops():
    @engine.jit
    def function(x, i, n):
        def body(state):
            turn, total = state
            x[i] += total[turn % 3]
            np.add.at(x, np.argsort(x, kind="stable")[:2], 1)
            return turn + 1, np.sort(total * 2 - x[:3])[::-1]

        _, total = engine.while_loop(lambda state: state[0] < n, body, (np.int64(0), np.arange(3.0)))
        return total, engine.cond(total[0] > 0, lambda: x[i].sum(), lambda: x[i[0]] * np.argmax(x))

    x, i, n = np.arange(6.0), np.array([1, 1, 5]), np.int64(3)
    assert function.plan(x, i, n) is not None
    for _ in range(3):
        mine = x.copy()
        *wanted, left = function.program(x, i, n).eval(x, i, n)
        for one, two in zip(wanted, function(mine, i, n), strict=True):
            assert np.array_equal(one, two)
        assert np.array_equal(mine, left)
        with pytest.raises(IndexError, match="index 6 is out of bounds for axis 0 with size 6"):
            function(mine, np.array([1, 6, 2]), n)
