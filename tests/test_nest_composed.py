"""Lines of a large output that are put together from rows of a box: where they begin and end, what is read for them."""

from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_case import MOVED, Case, check_between_guards, permutations

from einsum_engine.kernels import move_boxes, nest_moves
from einsum_engine.kernels.cpu import composed, nest_abi
from einsum_engine.kernels.isa import ISAS as ALL
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower


ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

# By what they are: (size, stride of the output, of the input) of float32, lengths of runs that boxes are made for.
CASES = {
    "adjacent rows, a run has several": (((33, 4, 4), (50, 132, 33 * 80 * 4), (80, 132 * 50, 132)), (256, 64)),
    "rows of a line": (((16, 4, 4), (9, 64, 64 * 77), (77, 64 * 9, 64)), (1024, 64)),
    "runs of one row": (((301, 4, 4), (7, 1204, 1204 * 11), (11, 1204 * 7, 1204)), (256, 256)),
    "tiles, a run is one row": (((331, 4, 232), (58, 1324, 4)), (512, 64)),
    "tiles, a run has several rows": (((23, 4, 137 * 60), (137, 92, 4), (15, 92 * 137, 548)), (4096, 1024)),
    "tiles, less than one along a row": (((17, 4, 6572), (31, 68, 212), (53, 2108, 4)), (1024, 256)),
    "a smaller last box": (((1100, 4, 7588), (1897, 4400, 4)), (512, 256)),
    "boxes that have some of a row twice": (((37, 4, 2356), (19, 148, 124), (31, 2812, 4)), (512, 16)),
    "boxes that have some rows twice": (((31, 4, 4), (19, 124, 3844), (31, 2356, 124)), (512, 16)),
    "boxes along the input between those of a run": (((70, 4, 16384), (33, 280, 4), (2, 9240, 132)), (64, 64)),
}


def _problem(dims, name: str = "float32") -> NestProblem:
    return NestProblem(op="copy", dims=tuple((*dim, 0) for dim in dims), out=name, a=name)


@pytest.fixture
def boxes(monkeypatch):
    """Problem of a case, in the boxes that it is about."""

    def of(case: str) -> NestProblem:
        dims, runs = CASES[case]
        monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
        for others in ("lower_strips", "lower_lines"):
            monkeypatch.setattr(nest_moves, others, lambda *_: [])
        for name, length in zip(("LONG_OUT", "LONG_IN", "DENSE_IN"), (*runs, runs[1])):
            monkeypatch.setattr(move_boxes, name, (length,))
        return _problem(dims)

    return of


@ISAS
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_runs_begin_and_end_anywhere_in_a_line(isa, case, threads, boxes):
    problem = boxes(case)
    assert nest_abi.N_ROWS in lower(problem, 2).rows[0].words
    for shift in (0, 4, 20, 63, 1):
        Case(problem=problem, shift=shift, threads=threads).check(isa)


@ISAS
@RANDOM
@given(
    case=permutations(),
    shortest=st.sampled_from([1, 24, 64]),
    runs=st.sampled_from([(64, 64), (256, 64), (1024, 256), (8192, 1024)]),
)
def test_rows_of_any_length(isa, case, shortest, runs):
    """Also such as a line has several of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_moves, "STREAM_BYTES", 0)
        patch.setattr(nest_moves, "ROW_BYTES", shortest)
        for others in ("lower_strips", "lower_lines"):
            patch.setattr(nest_moves, others, lambda *_: [])
        for name, length in zip(("LONG_OUT", "LONG_IN", "DENSE_IN"), (*runs, runs[1])):
            patch.setattr(move_boxes, name, (length,))
        case.check(isa)


@ISAS
@pytest.mark.parametrize("flush", [("start", "end"), ("end", "start"), ("end", "end")], ids="-".join)
@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("case", [case for case, (dims, _) in CASES.items() if prod(d[0] for d in dims) < 1 << 18])
def test_nothing_outside_the_operands_is_touched(isa, name, case, flush, boxes):
    """Output and input lie against pages that must not be read or written, the one begins within a line where the other
    begins with a page."""
    item = np.dtype(name).itemsize
    dims = tuple((dim[0], dim[1] // 4 * item, dim[2] // 4 * item) for dim in boxes(case).dims)
    check_between_guards(_problem(dims, name), flush, isa)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_read_where_they_lie(threads, boxes):
    adjacent = lower(boxes("adjacent rows, a run has several"), threads).rows[0].words
    assert adjacent[nest_abi.N_ROWS] and nest_abi.N_ROWS_J not in adjacent
    tiles = lower(boxes("tiles, a run has several rows"), threads).rows[0].words
    assert tiles[nest_abi.N_ROWS] and tiles[nest_abi.N_ROWS_J]


def test_rows_in_scratch_begin_with_lines_and_fall_into_different_sets(boxes):
    row = lower(boxes("tiles, a run has several rows")).rows[0]
    start, count = row.words[nest_abi.N_ROWS_J] // 8, row.words[nest_abi.N_J]
    places = row.tables[nest_abi.N_TABLE][start : start + count]
    steps = set(np.diff(places).tolist())
    assert len(steps) == 1 and (step := steps.pop()) % 128 == 64 and step >= 4 * row.words[nest_abi.N_O]
    end = row.words[nest_abi.N_OUT_STAGE] + int(places[-1]) + step
    assert end <= row.scratch and row.words[nest_abi.N_OWN_PLACE] >= end


def test_where_lines_are_not_put_together(boxes):
    """Rows of less than a line."""
    short = (9, 4, 4), (50, 36, 36 * 80), (80, 36 * 50, 36)
    boxes("rows of a line")
    assert nest_abi.N_ROWS not in lower(_problem(short), 2).rows[0].words
    assert nest_abi.N_ROWS in lower(boxes("tiles, a run is one row")).rows[0].words


@pytest.mark.parametrize("isa", ALL.values(), ids=ALL)
def test_instruction_sets_that_put_lines_together(isa):
    assert composed.composes(isa) == (isa.vector_bits == 512)
