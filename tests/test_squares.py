"""Squares of K, where operands run along different summed indices: when, which lines, and that the result is right."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import gemm_access, layouts, operations, squares
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.sides import LEFT, RIGHT, Dim
from einsum_engine.planners.squares import squares_of_k

LINE = 64


@pytest.fixture
def always(monkeypatch):
    """Squares of small operands too, whose lines are asked for."""
    monkeypatch.setattr(squares, "FEW_TERMS", 1 << 20)
    monkeypatch.setattr(squares, "CORE_BYTES", 0)
    for name in ("FETCHED_BYTES", "FETCHED_FOR"):
        monkeypatch.setattr(gemm_access, name, 0)
    for name in ("WORTH_SECONDS", "WORTH_KNOWN", "WORTH_FLIP"):  # lanes on the other side have none
        monkeypatch.setattr(layouts, name, math.inf)
    monkeypatch.setattr(operations, "LEAST_OPERANDS", math.inf)  # no sum is cut into pieces
    with made_anew():
        yield


def _row(text, sizes, dtype="float32", threads=1):
    shapes = [tuple(sizes[i] for i in term) for term in text.split("->")[0].split(",")]
    steps = engine.compile(text, *shapes, dtypes=dtype, threads=threads).plan.steps
    (found,) = [step.args for step in steps if step.family == "gemm"]
    return found


@pytest.mark.parametrize(
    "dtype, text, changed, kc",
    [
        ("float32", "dac,bcd->ba", {}, 24 * 16),
        ("float64", "dac,bcd->ba", {}, 28 * 8),
        ("complex64", "adc,cbd->ba", {}, 28 * 8),
        ("float32", "dac,bcd->ba", dict(d=97 * 2), None),  # no rows: 2 and 97 are its divisors
        ("float32", "dac,bcd->ba", dict(c=80), None),  # a line of B serves several terms of a block
        ("float32", "dac,bcd->ba", dict(b=40), None),  # lines of B stay in L2
        ("float32", "dac,bdc->ba", {}, None),  # both run along c
        ("float32", "dca,bcd->ba", {}, None),  # A runs along its lanes
    ],
)
def test_when_k_goes_in_squares(dtype, text, changed, kc):
    row = _row(text, dict(a=168, b=160, c=168, d=168) | changed, dtype)
    assert (abi.G_LINES_A in row.tables) == (kc is not None)
    assert kc is None or row.words[abi.G_KC] == kc


def _dim(size, left, right):
    return Dim(("k",), size, {LEFT: left, RIGHT: right}, {})


@pytest.mark.parametrize("item", [4, 8])
@pytest.mark.parametrize("row, across", [(24, 168), (56, 100), (40, 131)])
def test_all_lines_of_a_block_are_asked_for(item, row, across):
    """Wherever lanes begin in a line. Of A those in which a block ends: it begins in one that the block before asked for."""
    dims = [_dim(row, 7000 * item, item), _dim(across, item, 1300 * item)]
    found = squares_of_k(dims, 1 << 20, items=(item, item), item=item, most=384, entries=8192)
    of_a, of_b = found.lines((item, item))
    for begin in range(0, LINE, item):
        first = begin + np.arange(found.depth)[:, None] * item + np.arange(found.row.size) * 7000 * item
        behind = found.depth * item  # the block after
        asked = {*((begin + of_a) // LINE), *((begin + of_a + behind) // LINE)}
        assert set(((first + behind) // LINE).ravel()) <= asked
        rows = begin + np.arange(found.depth)[:, None] * 1300 * item + np.arange(found.row.size) * item
        assert set((rows // LINE).ravel()) == set((begin + of_b) // LINE)


def test_long_dimensions_are_cut():
    dims = [_dim(96, 4000, 4), _dim(1000, 4, 8000), _dim(3, 1 << 20, 1 << 22)]
    found = squares_of_k(dims, 1000, items=(4, 4), item=4, most=384, entries=8192)
    assert (found.row.size, found.across.size, found.kc) == (24, 250, 384)
    assert [dim.size for dim in found.turns] == [4, 4, 3]
    offsets = [sorted(_offsets(dims, side)) for side in (LEFT, RIGHT)]
    assert offsets == [sorted(_offsets([found.row, found.across, *found.turns], side)) for side in (LEFT, RIGHT)]
    assert squares_of_k([dims[0], _dim(997, 4, 8000)], 1000, items=(4, 4), item=4, most=384, entries=8192) is None


def _offsets(dims, side):
    found = np.zeros(1, np.int64)
    for dim in dims:
        found = (found[:, None] + dim.table(side)).ravel()
    return found.tolist()


# Ends of squares and turns that are not whole, a summed index more, a batch, few rows and columns, lanes on either side.
CASES = {
    "turns": ("dac,bcd->ba", dict(a=37, b=25, c=70, d=48)),
    "ragged": ("adc,cbd->ba", dict(a=35, b=9, c=77, d=40)),
    "other lanes": ("dac,bcd->ab", dict(a=20, b=34, c=80, d=72)),
    "one more": ("dxac,bxcd->ba", dict(a=33, b=20, c=66, d=72, x=3)),
    "a batch": ("xdac,xbcd->xba", dict(a=18, b=30, c=68, d=72, x=5)),
}


def _placed(name, dtype):
    """Operands that end, and begin, where memory ends."""
    text, sizes = CASES[name]
    rng = np.random.default_rng(3)
    terms = zip(text.split("->")[0].split(","), ("end", "start"))
    return text, [
        oracle.place(rng.integers(0, 4, [sizes[i] for i in term]).astype(dtype), flush) for term, flush in terms
    ]


def _expected(text, arrays):
    return np.einsum(text, *(x.astype("f8") for x in arrays), optimize=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "int16", "int8"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_results(always, name, dtype, threads):
    text, arrays = _placed(name, dtype)
    f = engine.compile(text, *arrays, threads=threads)
    if dtype not in ("int16", "int8"):  # with half-empty vectors, the other side may have the lanes
        assert any(abi.G_LINES_A in step.args.tables for step in f.plan.steps if step.family == "gemm")
    expected = _expected(text, arrays)
    assert np.array_equal(f(*arrays), expected.astype("i8").astype(dtype) if "int" in dtype else expected)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_every_instruction_set(always, row, dtype):
    for name in ("turns", "other lanes"):
        text, arrays = _placed(name, dtype)
        request = engine.compile(text, *arrays, threads=1).plan.request
        expected = _expected(text, arrays)
        out = np.empty(expected.shape, dtype)
        bind(build_plan(replace(request, isa=row.name))).run(arrays, out)
        assert np.array_equal(out, expected), name


def test_two_threads_share_a_long_sum():
    """Pieces of K go in squares, too."""
    row = _row("dac,bcd->ba", dict(a=168, b=160, c=168, d=168), threads=2)
    assert abi.G_LINES_A in row.tables and row.words[abi.G_KC] == 21 * 16
