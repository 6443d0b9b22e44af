"""Small matrices applied to a large tensor, such as gates to a state vector: exact results, in one pass."""

import random
from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import isa
from einsum_engine.planners.build import build_plan

DTYPES = ("float32", "float64", "complex64", "complex128", "int16", "int64")
QUBITS = 14


def whole(rng, shape, dtype):
    """Small integers, so that sums are exact whatever their order."""
    values = rng.integers(-3, 4, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-3, 4, shape)
    return values.astype(dtype)


def gate(choose, places, rank, *, ordered=True):
    """Expression that applies a gate to indices of a state, which stay where they were."""
    state = "abcdefghijklmnop"[:rank]
    out, old, new = list(state), "", ""
    for number, place in enumerate(places):
        old, new = old + state[place], new + "ABC"[number]
        out[place] = "ABC"[number]
    matrix = old + new if ordered else "".join(choose.sample(old + new, len(old + new)))
    return f"{state},{matrix}->{''.join(out)}"


def check(expression, state, matrix, **options):
    f = engine.compile(expression, state, matrix, **options)
    operands = [x.conj() if i in options.get("conj", ()) else x for i, x in enumerate((state, matrix))]
    np.testing.assert_array_equal(f(state, matrix), np.einsum(expression, *operands, optimize=True), f.explain())
    return f


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", range(QUBITS))
def test_one_qubit(place, dtype):
    rng = np.random.default_rng(place)
    expression = gate(random, [place], QUBITS)
    f = check(expression, whole(rng, (2,) * QUBITS, dtype), whole(rng, (2, 2), dtype))
    assert len(f.plan.steps) == 1
    if place >= QUBITS - 3 and dtype in ("float32", "float64", "complex64", "complex128"):
        assert f.plan.steps[0].family == "small" and f.plan.steps[0].kernel.endswith("_2x2")


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("places", [(12, 13), (10, 12), (9, 13), (13, 4), (11, 0), (0, 13)])
def test_two_qubits(places, dtype):
    rng = np.random.default_rng(sum(places))
    state, matrix = whole(rng, (2,) * QUBITS, dtype), whole(rng, (2,) * 4, dtype)
    f = check(gate(random, places, QUBITS), state, matrix)
    assert len(f.plan.steps) == 1
    if min(places) > 8 and places != (9, 13):
        assert f.plan.steps[0].kernel.endswith("_4x4"), f.explain()


@pytest.mark.parametrize("seed", range(60))
def test_any_gate(seed):
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    rank = choose.randint(7, 11)
    sizes = [choose.choice((1, 2, 3, 4, 5)) for _ in range(rank)]
    places = choose.sample(range(rank), choose.choice((1, 2, 3)))
    expression = gate(choose, places, rank, ordered=False)
    known = dict(zip(expression, sizes)) | {letter: choose.choice((2, 3, 4)) for letter in "ABC"}
    state_term, matrix_term = expression.split("->")[0].split(",")
    dtype = choose.choice(DTYPES)
    state, matrix = (whole(rng, [known[i] for i in term], dtype) for term in (state_term, matrix_term))
    conj = choose.choice([(), (0,), (1,)])
    check(expression, state, matrix, conj=conj, threads=choose.choice((1, 2)))


@pytest.mark.parametrize("out_order", ["C", "F"])
@pytest.mark.parametrize("step", [-1, 2])
def test_strided_states_and_results(step, out_order):
    rng = np.random.default_rng(0)
    state, matrix = whole(rng, (2048, 2, 2, 8), "float64")[::1, :, :, ::step], whole(rng, (2, 2), "float64")
    out = np.zeros((2048, 2, 2, state.shape[3]), order=out_order)
    check("abcd,ce->abed", state, matrix)
    engine.einsum("abcd,ce->abed", state, matrix, out=out)
    np.testing.assert_array_equal(out, np.einsum("abcd,ce->abed", state, matrix))


def test_accumulated():
    rng = np.random.default_rng(0)
    state, matrix, out = (whole(rng, shape, "float32") for shape in ((4096, 2, 3), (2, 2), (4096, 2, 3)))
    expected = 2 * np.einsum("abc,bd->adc", state, matrix) + 3 * out
    engine.einsum("abc,bd->adc", state, matrix, out=out, alpha=2.0, beta=3.0)
    np.testing.assert_array_equal(out, expected)


def test_not_finite_elements_stay_where_they_are():
    state = np.ones((4096, 2, 2), np.float32)
    state[5, 1, 0], state[9, 0, 1] = np.nan, np.inf
    eye = np.eye(2, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.einsum("abc,bd->adc", state, eye)
    assert np.isnan(expected).sum() == 3 and np.isinf(expected).sum() == 1
    np.testing.assert_array_equal(engine.einsum("abc,bd->adc", state, eye), expected)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set(row, dtype):
    rng = np.random.default_rng(2)
    state = whole(rng, (2,) * QUBITS, dtype)
    for places in ((0,), (QUBITS - 3,), (QUBITS - 1,), (4, 9), (QUBITS - 1, QUBITS - 2), (QUBITS - 2, 0)):
        expression, matrix = gate(random, places, QUBITS), whole(rng, (2,) * (2 * len(places)), dtype)
        plan = build_plan(replace(engine.compile(expression, state, matrix).plan.request, isa=row.name))
        out = np.empty_like(state)
        bind(plan).run([state, matrix], out)
        np.testing.assert_array_equal(out, np.einsum(expression, state, matrix, optimize=True), f"{places} {plan}")
