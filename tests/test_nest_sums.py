"""Sums whose results are turned round, and of runs so short that several are added at once."""

from __future__ import annotations

import numpy as np
import pytest
from nest_case import Case, item_of

from einsum_engine.kernels.cpu import nest_abi as na
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
DTYPES = ["int8", "bool", "float16", "float32", "float64", "complex64", "complex128"]


def words(case: Case) -> dict[int, int]:
    return lower(case.problem, case.threads).rows[0].words


def turned(dtype: str, shape: tuple[int, int, int], **flags) -> NestProblem:
    """`dab->ba` of a d x a x b array."""
    item, (d, a, b) = item_of(dtype), shape
    dims = ((a, item, b * item, 0), (b, a * item, item, 0), (d, 0, a * b * item, 0))
    return NestProblem(op="sum", dims=dims, out=dtype, a=dtype, **flags)


@ISAS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_are_turned_round_by_tiles(isa, dtype, threads):
    """Boxes that are whole and end early along either side, more boxes of terms than one; added to what is there."""
    for shape, flags in (
        ((3, 70, 133), {}),
        ((2, 32, 128), {"accumulate": True}),
        ((5, 33, 129), {"conj_a": True}),
        ((600, 37, 64), {"accumulate": True}),
    ):
        case = Case(turned(dtype, shape, **flags), seed=shape[1], threads=threads)
        if threads == 1:
            assert words(case)[na.N_R_MODE] == na.SUM_COLUMNS
            assert words(case)[na.N_OUT_MODE] == na.STAGED + na.MOVE_TILE
        case.check(isa)


@ISAS
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows_too_short_for_a_tile_go_to_their_places_one_by_one(isa, dtype):
    """O is the whole run of the input then, also beyond what would be a side of the tile."""
    for shape in ((4, 300, 3), (4, 41, 5), (9, 1, 7), (2, 200, 2)):
        for flags in ({}, {"accumulate": True}):
            case = Case(turned(dtype, shape, **flags), seed=shape[1])
            assert words(case)[na.N_OUT_MODE] != na.STAGED + na.MOVE_TILE
            case.check(isa)


def test_shares_of_a_sum_lie_as_the_input_does():
    """Threads that share what is summed add rows as they lie; the sum of their shares is turned round."""
    problem = turned("float64", (20000, 30, 20))
    first, last = lower(problem, 2).rows
    assert first.words[na.N_OUT_MODE] == na.CONTIGUOUS
    assert last.words[na.N_OUT_MODE] != na.CONTIGUOUS


def rows(dtype: str, count: int, length: int, times: int, **flags) -> NestProblem:
    """`tcl->c`: sums of ``times`` runs each."""
    item = item_of(dtype)
    dims = ((length, 0, item, 0), (count, item, length * item, 0), (times, 0, count * length * item, 0))
    return NestProblem(op="sum", dims=dims, out=dtype, a=dtype, **flags)


@ISAS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("times", [1, 3])
def test_short_runs_are_added_several_at_once(isa, dtype, times):
    """Lengths around whole vectors and parts of one; results that are whole groups, some more, and less than one."""
    least = 32 // item_of(dtype) + 1
    for length in (least, least + 1, 2 * least - 2, 2 * least - 1, 2 * least, 4 * least + 3, 512 // item_of(dtype)):
        for count in (8, 29, 5):
            case = Case(rows(dtype, count, length, times, accumulate=bool(count % 2)), seed=length)
            assert words(case)[na.N_FLAGS] & na.SHORT_RUNS
            case.check(isa)


def test_longer_and_shorter_runs_are_not():
    assert not words(Case(rows("float32", 29, 129, 1)))[na.N_FLAGS] & na.SHORT_RUNS
    assert words(Case(rows("float32", 29, 8, 1)))[na.N_R_MODE] == na.SUM_STAGED_COLUMNS
    assert words(Case(rows("float32", 29, 8, 2)))[na.N_R_MODE] == na.SUM_ROWS


@ISAS
@pytest.mark.parametrize("length", [9, 100])
def test_error_of_short_runs_is_small(isa, length):
    case = Case(rows("float32", 64, length, 1))
    operands = case.operands()
    operands[1].view[...] = np.random.default_rng(1).random(operands[1].view.shape)
    case.run(isa, operands)
    exact = operands[1].view.astype(np.float64).sum(axis=0).ravel()
    assert (np.abs(operands[0].view.ravel() - exact) / exact).max() < 4 * np.finfo(np.float32).eps


def runs(dtype: str, shape: tuple[int, int, int]) -> NestProblem:
    """`abc->b` of an a x b x c array."""
    item, (a, b, c) = item_of(dtype), shape
    dims = ((b, item, c * item, 0), (a, 0, b * c * item, 0), (c, 0, item, 0))
    return NestProblem(op="sum", dims=dims, out=dtype, a=dtype)


@ISAS
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_of_more_sums_than_tasks_are_divided_by_their_sums(isa, dtype):
    """Each thread adds up whole sums then; of fewer sums each has a share of what is summed, however it is cut."""
    long = 2_800_000 // item_of(dtype) // (15 * 140)
    case = Case(runs(dtype, (15, 140, long)), seed=3, threads=2)
    assert [row.tasks for row in lower(case.problem, 2).rows] == [8]
    case.check(isa)
    for shape in ((15 * 20, 7, long), (3, 7, 100 * long)):
        case = Case(runs(dtype, shape), seed=4, threads=2)
        first, last = lower(case.problem, 2).rows
        assert first.tasks == 4 and last.tasks == 1
        case.check(isa)


@ISAS
def test_rows_of_few_sums_in_several_places_are_shared(isa):
    """`abcd->ad`: a box has rows of all places, so that tasks divide the terms of all of them."""
    dims = ((4, 56, 8 * 30 * 200 * 7, 0), (7, 8, 8, 0), (30, 0, 8 * 200 * 7, 0), (200, 0, 56, 0))
    case = Case(NestProblem(op="sum", dims=dims, out="float64", a="float64"), seed=5, threads=2)
    assert lower(case.problem, 2).rows[0].tasks == 4
    case.check(isa)


@ISAS
def test_loops_that_are_the_same_are_both_summed(isa):
    """Elements of the input share memory: two summed loops along its runs."""
    for length in (9, 12, 100):
        dims = ((length, 0, 4, 0), (length, 0, 4, 0), (11, 4, 8 * length, 0))
        Case(NestProblem(op="sum", dims=dims, out="float32", a="float32"), seed=length).check(isa)
