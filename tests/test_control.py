"""`cond` and `while_loop`, traced and not, with writes to arrays around them; functions that NumPy lacks."""

import math

import numpy as np
import pytest
from test_trace import A, assert_same, assert_traced

import einsum_engine as engine


def branches_write(a, flag):
    row = a[1]

    def yes():
        a[0] = 5
        row[1:] += 1
        return row.sum()

    total = engine.cond(flag, yes, lambda: a[2, 0] * 1.0)
    return total, row * 1, a.T[0] + 0


def loop_writes(a, n):
    row = a[1]

    def body(state):
        i, x = state
        a[i] += x
        row[0] -= 1
        return i + 1, x * 2

    i, x = engine.while_loop(lambda state: state[0] < n, body, (np.int64(0), np.float64(1.0)))
    return i, x, row * 1


def loop_in_branch(a, flag):
    def yes():
        def body(x):
            a[:, 1] *= 0.5
            return x + 1

        return engine.while_loop(lambda x: x < a[0, 0] + 3, body, np.float64(0))

    return engine.cond(flag, yes, lambda: a.sum())


@pytest.mark.parametrize("flag", [np.True_, np.False_])
def test_a_part_at_a_traced_place_in_branches(flag):
    def function(a, i, flag):
        row = a[i]

        def yes():
            row[1:] += 1
            a[i] *= 2

        def no():
            a[0] = row

        engine.cond(flag, lambda: yes() or np.int64(0), lambda: no() or np.int64(0))
        return engine.while_loop(lambda n: n < 3, lambda n: (yes() or n) + row[0] * 0 + 1, np.float64(0)), row * 1

    assert_traced(function, A, np.int64(1), flag)


@pytest.mark.parametrize("flag", [np.True_, np.False_])
@pytest.mark.parametrize("function", [branches_write, loop_in_branch])
def test_cond(function, flag):
    jitted = assert_traced(function, A, flag)
    assert [eqn.op for eqn in jitted.program(A, flag).eqns].count("cond") == 1


@pytest.mark.parametrize("n", [0, 1, 3])
def test_while_loop_that_writes(n):
    jitted = assert_traced(loop_writes, A, np.int64(n))
    (loop,) = (eqn for eqn in jitted.program(A, np.int64(n)).eqns if eqn.op == "while")
    assert loop.named["carried"] == 3, "the state and the root that is written"


def test_the_state_is_copied():
    def function(a):
        def body(s):
            s += 1
            return s

        return engine.while_loop(lambda s: s.sum() < 30, body, a), a * 1

    assert_traced(function, A)
    eager = A.copy()
    engine.while_loop(lambda s: s.sum() < 30, lambda s: s.__iadd__(1), eager)
    assert np.array_equal(eager, A)


def test_structures_of_state():
    def function(a):
        start = {"x": a, "n": (np.int64(0), [a[0]])}
        return engine.while_loop(
            lambda s: s["n"][0] < 3, lambda s: {"x": s["x"] * 2, "n": (s["n"][0] + 1, [s["x"][1]])}, start
        )

    assert_traced(function, A)


ERRORS = {
    "shapes": (lambda a: engine.cond(a[0, 0] > 0, lambda: a, lambda: a[0]), ["return (float64[3,4]) and (float64[4])"]),
    "structures": (lambda a: engine.cond(a[0, 0] > 0, lambda: a, lambda: (a,)), ["different structures: ... and (...,)"]),
    "predicate": (lambda a: engine.cond(a > 0, lambda: a, lambda: a), ["the predicate is bool[3,4], not bool[]"]),
    "test": (lambda a: engine.while_loop(lambda s: s > 0, lambda s: s, a), ["the test returns bool[3,4]"]),
    "body": (lambda a: engine.while_loop(lambda s: s > 0, lambda s: s * 1.5, np.int64(1)), ["(int64[]) into (float64[])"]),
    "body's structure": (lambda a: engine.while_loop(lambda s: s[0] > 0, lambda s: s * 2, [a[0, 0]]), ["[...]", "[..., ...]"]),
    "test writes": (lambda a: engine.while_loop(lambda s: a.fill(0) or s > 0, lambda s: s, a[0, 0]), ["the test writes"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_refusals(name):
    function, texts = ERRORS[name]
    with pytest.raises(engine.EngineError) as caught:
        engine.jit(function)(A.copy())
    assert [text for text in (*texts, f", {__file__}:") if text not in str(caught.value)] == []


# -- functions that NumPy lacks ----------------------------------------------------------------------------------------
FUNCTIONS = {
    "erf": (engine.erf, np.vectorize(math.erf)),
    "sigmoid": (engine.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "rsqrt": (engine.rsqrt, lambda x: 1 / np.sqrt(x)),
    "logsumexp": (engine.logsumexp, lambda x: np.log(np.exp(x).sum())),
    "of rows": (lambda x: engine.logsumexp(x, -1, True), lambda x: np.log(np.exp(x).sum(-1, keepdims=True))),
    "where": (lambda x: engine.where(x > 1, x, 0), lambda x: np.where(x > 1, x, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_functions_that_numpy_lacks(name, dtype):
    function, definition = FUNCTIONS[name]
    x = (A + 1).astype(dtype)
    assert_traced(function, x)
    np.testing.assert_allclose(function(x), definition(x), rtol=1e-5 if dtype == "float32" else 1e-12)


def test_logsumexp_of_infinities():
    x = np.array([[-np.inf, -np.inf], [1e4, 1e4], [np.inf, 0]])
    with np.errstate(divide="ignore"):
        assert_same(np.array([-np.inf, 1e4 + np.log(2), np.inf]), engine.logsumexp(x, 1))


def test_erf_refuses_complex_values():
    with pytest.raises(engine.EngineTypeError, match="dtype complex128, not a real floating-point one"):
        engine.erf(A + 1j)
    with pytest.raises(engine.EngineTypeError, match=r"erf, .*test_control.py"):
        engine.jit(lambda x: engine.erf(x))(A + 1j)


def test_random_numbers_depend_on_the_key_alone():
    def function(key):
        one, two = engine.random_key(key, 0), engine.random_key(key, 1)
        return engine.random_normal(one, (3,)), engine.random_uniform(two, (2, 2), "f4"), engine.random_bits(key, (5,))

    key = engine.random_key(2**63 + 5)
    assert key.dtype == np.uint32 and key.shape == (2,)
    assert_traced(function, key)
    assert not np.array_equal(engine.random_key(key, 0), engine.random_key(key, 1))
