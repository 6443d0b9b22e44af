"""Random calls of `einsum` and `compile` against an oracle that has no einsum in it; networks; operands of rank 40.

A failure ends with the command that replays it. More examples: TEST_EXAMPLES=100000 pytest tests/test_random_einsum.py
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import dense
import numpy as np
import opt_einsum
import oracle
import pytest
import random_cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_cases import Case, Operand, draw_case

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels.isa import host_isas
from einsum_engine.planners.build import build_plan

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 0))
RANDOM = settings(
    max_examples=EXAMPLES or 300,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def cases(draw):
    return draw_case(lambda choices: draw(st.sampled_from(choices)))


@RANDOM
@given(case=cases())
@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_random_calls(case):
    random_cases.run(case)


# -- the machinery of this test ------------------------------------------------------------------------------------
def _seeded(seed: int, **more) -> Case:
    return draw_case(random.Random(seed).choice, **more)


def test_cases_cover_what_they_should():
    drawn = [_seeded(seed) for seed in range(500)]
    options = set().union(*(case.options for case in drawn))
    assert options == {"conj", "order", "threads", "optimize", "dtype", "casting", "accumulate", "alpha", "beta"}
    assert {operand.dtype for case in drawn for operand in case.operands} == set(random_cases.DTYPES)
    assert {size for case in drawn for size in case.sizes.values()} >= set(random_cases.SIZES)
    assert {len(case.inputs) for case in drawn} == set(range(1, 7))
    assert {case.spelling for case in drawn} == {"explicit", "implicit", "interleaved"}
    arrays = [operand.make() for case in drawn for operand in case.operands if len(operand.shape) > 1]
    assert any(min(array.strides) < 0 for array in arrays) and any(0 in array.strides for array in arrays)
    assert any(stride % array.itemsize for array in arrays for stride in array.strides)
    for flag in ("aligned", "writeable", "c_contiguous"):
        assert {getattr(array.flags, flag) for array in arrays} == {True, False}
    assert any(not array.dtype.isnative for array in arrays)
    assert any(case.out is not None and case.out.steps for case in drawn)
    assert any(len(set(case.output)) < len(case.output) for case in drawn)


@pytest.mark.parametrize("dtype", random_cases.KERNEL_DTYPES)
def test_the_oracle_agrees_with_plain_loops(dtype):
    for seed in range(12):
        case = _seeded(seed, dtypes=[dtype], sizes=(1, 2, 3, 5), points=300, operands=4)
        case = Case(inputs=case.inputs, output="".join(dict.fromkeys(case.output)), operands=case.operands)
        arrays = [operand.make() for operand in case.operands]
        expected = dense.expect(case, arrays)
        widest = {"f": np.float64, "c": np.complex128}.get(dense.kind_of(expected.dtype), expected.dtype)
        answer = oracle.einsum(case.expression, *[array.astype(widest) for array in arrays])
        oracle.check(np.asarray(expected.value, widest), answer, context=random_cases.replay(case))


@pytest.mark.parametrize("dtype", random_cases.DTYPES)
def test_a_wrong_element_is_found(dtype):
    operands = tuple(Operand(shape=shape, dtype=dtype, seed=seed) for seed, shape in enumerate(((3, 4), (4, 5))))
    case = Case(inputs=("ab", "bc"), output="ac", operands=operands)
    arrays = [operand.make() for operand in operands]
    expected = dense.expect(case, arrays)
    result = engine.einsum("ab,bc->ac", *arrays)
    dense.check(result, expected)
    for wrong in (~result if dtype == "bool" else -result, result.T.copy(), result.astype(object)):
        with pytest.raises(AssertionError):
            dense.check(wrong, expected)
    result[1, 2] = ~result[1, 2] if dtype == "bool" else result[1, 2] + 1
    with pytest.raises(AssertionError, match=r"1 of 15 elements are wrong; at \(1, 2\)"):
        dense.check(result, expected)


def test_a_failure_says_how_to_replay_it(monkeypatch):
    case = next(case for case in map(_seeded, range(100)) if not case.compiled and 0 not in case.sizes.values())
    assert Case.from_json(case.to_json()) == case
    monkeypatch.setattr(engine, "einsum", lambda *operands, **options: np.zeros(99))
    with pytest.raises(AssertionError) as caught:
        random_cases.run(case)
    (note,) = caught.value.__notes__
    assert note.startswith("replay: python tests/random_cases.py '{")
    arguments = [sys.executable, "tests/random_cases.py", case.to_json()]
    done = subprocess.run(arguments, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stderr


# -- networks ------------------------------------------------------------------------------------------------------
LARGEST = 1 << 16  # elements of an intermediate


@lru_cache(maxsize=None)
def _network(seed: int):
    """Terms of integers, output and sizes: indices in one to five operands, most of size 2, as an order allows."""
    while True:
        rng = random.Random(seed)
        terms = [[] for _ in range(rng.randrange(8, 40))]
        sizes = {index: rng.choice((1, 2, 2, 2, 2, 3)) for index in range(rng.randrange(20, 70))}
        for index in sizes:
            for position in rng.sample(range(len(terms)), rng.choice((1, 2, 2, 2, 3, 5))):
                terms[position].append(index)
        used = sorted(set().union(*terms))
        output = rng.sample(used, rng.randrange(6))
        for term in terms:
            rng.shuffle(term)
            if term and rng.random() < 0.1:
                term.append(rng.choice(term))  # a diagonal
        shapes = [tuple(sizes[index] for index in term) for term in terms]
        if max(map(len, terms)) <= 14:
            named = ["".join(opt_einsum.get_symbol(index) for index in term) for term in (*terms, output)]
            equation = ",".join(named[:-1]) + "->" + named[-1]
            path, info = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="greedy")
            if info.largest_intermediate <= LARGEST:
                return equation, terms, output, shapes, path
        seed += 1000


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float64", "complex128", "float16"])
@pytest.mark.parametrize("seed", range(5))
def test_networks_with_hyperedges(seed, dtype):
    """Whole numbers, so that any order of contraction has the same sums; NumPy contracts in its own way."""
    equation, terms, output, shapes, path = _network(seed)
    rng = np.random.default_rng(seed)
    low, high = {"bool": (0, 2), "float16": (0, 2), "int64": (1, 3)}.get(dtype, (-1, 2))  # int64 may wrap, as NumPy does
    if dtype == "float16":
        # One entry per operand, so that sums stay small.
        arrays = [np.zeros(shape) for shape in shapes]
        for array in arrays:
            array[tuple(rng.integers(0, 2, array.ndim) % np.array(array.shape, int))] = 1
        arrays = [array.astype(dtype) for array in arrays]
    else:
        arrays = [rng.integers(low, high, shape).astype(dtype) for shape in shapes]
    wide = [array.astype(np.float64 if dtype == "float16" else dtype) for array in arrays]
    expected = opt_einsum.contract(equation, *wide, optimize=path, backend="numpy")
    if dtype in ("float64", "complex128"):
        assert np.max(np.abs(expected), initial=0) < 2**50
    pairs = [item for pair in zip(arrays, terms) for item in pair]
    for result in (
        engine.einsum(equation, *arrays),
        engine.einsum(*pairs, output, optimize="greedy"),
        engine.einsum(equation, *arrays, optimize=path, order="F"),
        engine.compile(equation, *arrays, constants=range(0, len(arrays), 2))(*arrays[1::2]),
    ):
        assert result.dtype == dtype and np.array_equal(result, expected), equation


@pytest.mark.parametrize("dtype, close", [("float32", 1e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("seed", range(5))
def test_networks_with_hyperedges_have_plans_with_every_instruction_set(seed, isa, dtype, close):
    """Panels of other widths than those of the machine's own cut short indices elsewhere. No term is negative, so that
    relative errors are those of sums."""
    equation, terms, output, shapes, path = _network(seed)
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in shapes]
    expected = opt_einsum.contract(equation, *[array.astype("float64") for array in arrays], optimize=path, backend="numpy")
    for optimize in ("greedy", path):
        request = engine.compile(equation, *arrays, optimize=optimize).plan.request
        out = np.empty(expected.shape, dtype)
        bind(build_plan(replace(request, isa=isa.name))).run(arrays, out)
        np.testing.assert_allclose(out, expected, rtol=close)


# -- rank 40 -------------------------------------------------------------------------------------------------------
def _rank_40(seed: int, dtype: str):
    """All axes of size 2, over a few bytes: any two elements may share memory."""
    rng = np.random.default_rng(seed)
    memory = oracle.random(rng, (64,), dtype, exact=True)
    strides = rng.integers(-1, 2, 40) * memory.itemsize
    start = memory[-int(strides[strides < 0].sum()) // memory.itemsize :]
    return np.lib.stride_tricks.as_strided(start, (2,) * 40, strides)


@pytest.mark.parametrize("dtype", ["int64", "float32", "complex64"])
def test_operands_of_rank_40_and_size_2(dtype):
    a, b = _rank_40(1, dtype), _rank_40(2, dtype)
    rng = random.Random(3)
    terms = []
    for letters in ("abcdefghijkl", "ghijklmnopqr"):
        term = list(letters) + rng.choices(letters, k=28)
        rng.shuffle(term)
        terms.append("".join(term))
    for expression in (f"{terms[0]}->abcdef", f"{terms[0]},{terms[1]}->abcmno", f"{terms[0]},{terms[1]},ab->cr"):
        operands = [a, b, a[(0,) * 38]][: expression.count(",") + 1]
        assert np.array_equal(engine.einsum(expression, *operands), np.einsum(expression, *operands)), expression


def _thin(rng: random.Random, letters: str, wide: str) -> tuple[str, tuple[int, ...]]:
    term = rng.sample(letters, len(letters))
    return "".join(term), tuple(2 if letter in wide else 1 for letter in term)


@pytest.mark.parametrize("dtype", ["int8", "float64", "complex64"])
def test_results_of_rank_40(dtype):
    """40 axes of which 16 have size 2."""
    rng = random.Random(4)
    letters = [opt_einsum.get_symbol(i) for i in range(44)]
    wide = rng.sample(letters[:40], 16)
    x, shape_x = _thin(rng, letters[:40], wide)
    output, shape = _thin(rng, letters[:40], wide)
    a = oracle.random(np.random.default_rng(5), shape_x, dtype, exact=True)
    moved = engine.einsum(f"{x}->{output}", a, copy=True)
    assert moved.shape == shape and np.array_equal(moved, np.einsum(f"{x}->{output}", a))
    gate = oracle.random(np.random.default_rng(6), (2, 3), dtype, exact=True)
    other = output.replace(wide[0], letters[43])
    expression = f"{x},{wide[0]}{letters[43]}->{other}"
    assert np.array_equal(engine.einsum(expression, a, gate), np.einsum(expression, a, gate))


# -- what random calls have found ----------------------------------------------------------------------------------
def test_options_that_cannot_be_hashed_at_every_call():
    a, out = np.ones((3, 3)), np.empty((3, 3))
    for _ in range(4):
        assert np.array_equal(engine.einsum("ab,bc->ac", a, a, conj=[0]), a @ a)
        assert np.array_equal(engine.einsum("ab,bc->ac", a, a, conj=[0], out=out), a @ a)


def test_extended_precision_does_not_overflow_between_narrow_operands():
    small, medium = np.array([200], np.uint8), np.array([60000], np.uint16)
    for dtype in (np.longdouble, np.clongdouble, object):
        assert engine.einsum("a,a,a->a", small, medium, np.ones(1, dtype)) == 12_000_000


def test_sums_in_extended_precision():
    a = np.array([1e16, 1, -1e16] * 4)
    exact = engine.einsum("a->", a, accumulate="longdouble")
    assert exact == 4 and exact.dtype == np.float64


def test_repeated_output_index_in_extended_precision():
    a = np.arange(3, dtype=np.longdouble)
    assert np.array_equal(engine.einsum("a,a->aa", a, a), np.diag(a * a))
    empty = engine.einsum("aabc,d->dcba", np.ones((0, 0, 8, 17), np.clongdouble), np.ones(16, np.clongdouble))
    assert empty.shape == (16, 17, 8, 0)
