"""Runs of a large output that tiles put where they are in its lines, a few rows at a time."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_case import MOVED, Case, check_between_guards, permutations

from einsum_engine.kernels import move_boxes, nest_moves
from einsum_engine.kernels.cpu import codegen, cores, dense, generators, nest_abi
from einsum_engine.kernels.isa import ISAS as ALL
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
CORES = [cores.PLAIN, *cores.MAKERS.values()]
STORES = next(row for row in CORES if row.dense_rows)

# (size, stride of the output, of the input) of float32, lengths of runs that boxes are made for, rows of a run in a box.
CASES = {
    "one run a box": (((23, 4, 137 * 60), (137, 92, 4), (15, 92 * 137, 548)), (4096, 1024), 137),
    "several runs, the input goes on": (((18, 4, 540), (15, 72, 4), (31, 1080, 9720), (9, 33480, 60)), (1024, 512), 15),
    "other boxes between those of a run": (
        ((18, 4, 1620), (15, 72, 4), (31, 1080, 29160), (9, 33480, 60), (3, 301320, 540)),
        (1024, 512),
        15,
    ),
    "rows of one line": (((16, 4, 68), (17, 64, 4), (29, 1088, 1088)), (1024, 64), 17),
    "rows of two lines": (((32, 4, 68), (17, 128, 4), (29, 2176, 2176)), (512, 64), 17),
    "a run has more rows than the input": (((19, 4, 504), (5, 76, 4), (21, 380, 24), (13, 7980, 9576)), (8192, 64), 105),
    "rows of less than a line": (((12, 4, 137 * 60), (137, 48, 4), (15, 48 * 137, 548)), (4096, 1024), 137),
    "rows of a few entries": (((5, 4, 137 * 60), (137, 20, 4), (15, 20 * 137, 548)), (4096, 1024), 137),
    "rows of a quarter of a line": (((4, 4, 137 * 60), (137, 16, 4), (15, 16 * 137, 548)), (4096, 1024), 137),
    "boxes that have some rows twice": (((31, 4, 76), (19, 124, 4), (31, 2356, 2356)), (512, 16), 7),
}


def _problem(dims, name: str = "float32") -> NestProblem:
    return NestProblem(op="copy", dims=tuple((*dim, 0) for dim in dims), out=name, a=name)


@pytest.fixture(params=[64, 1024, 4096])
def boxes(request, monkeypatch):
    """Problem of a case, in the boxes that it is about, of which so many bytes are moved before they are stored."""
    monkeypatch.setattr(cores, "here", lambda: STORES)

    def of(case: str, name: str = "float32") -> NestProblem:
        dims, runs, _ = CASES[case]
        monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
        monkeypatch.setattr(nest_moves, "DENSE_TURN", request.param)
        for others in ("lower_strips", "lower_lines"):
            monkeypatch.setattr(nest_moves, others, lambda *_: [])
        for setting, length in zip(("LONG_OUT", "LONG_IN", "DENSE_IN"), (*runs, runs[1])):
            monkeypatch.setattr(move_boxes, setting, (length,))
        item = np.dtype(name).itemsize
        return _problem([(dim[0], dim[1] // 4 * item, dim[2] // 4 * item) for dim in dims], name)

    return of


@ISAS
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_runs_begin_and_end_anywhere_in_a_line(isa, case, threads, boxes):
    problem = boxes(case)
    words = lower(problem, 2).rows[0].words
    assert words[nest_abi.N_TURN] and words[nest_abi.N_JOINED] == CASES[case][2]
    assert (words[nest_abi.N_OWN_STEP] > 1) == (case == "other boxes between those of a run")
    assert (words[nest_abi.N_OWN_ROWS] < words[nest_abi.N_JOINED]) == (case == "boxes that have some rows twice")
    for shift in (0, 4, 20, 63, 1):
        Case(problem=problem, shift=shift, threads=threads).check(isa)


@ISAS
@RANDOM
@given(
    case=permutations(),
    longest=st.sampled_from([64, 128]),
    turn=st.sampled_from([64, 1024]),
    runs=st.sampled_from([(64, 64), (256, 64), (1024, 256), (8192, 1024)]),
)
def test_rows_of_any_length(isa, case, longest, turn, runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "here", lambda: STORES)
        patch.setattr(nest_moves, "STREAM_BYTES", 0)
        patch.setattr(nest_moves, "ROW_BYTES", 1)
        patch.setattr(move_boxes, "DENSE_BYTES", longest)
        patch.setattr(nest_moves, "DENSE_TURN", turn)
        for others in ("lower_strips", "lower_lines"):
            patch.setattr(nest_moves, others, lambda *_: [])
        for setting, length in zip(("LONG_OUT", "LONG_IN", "DENSE_IN"), (*runs, runs[1])):
            patch.setattr(move_boxes, setting, (length,))
        case.check(isa)


@ISAS
@pytest.mark.parametrize("flush", [("start", "end"), ("end", "start"), ("end", "end")], ids="-".join)
@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("case", CASES)
def test_nothing_outside_the_operands_is_touched(isa, name, case, flush, boxes):
    """Output and input lie against pages that must not be read or written, the one begins within a line where the other
    begins with a page."""
    check_between_guards(boxes(case, name), flush, isa)


def test_scratch_holds_a_run_that_begins_anywhere_in_a_line(boxes):
    for case, (dims, _, joined) in CASES.items():
        row = lower(boxes(case)).rows[0]
        end = row.words[nest_abi.N_OUT_STAGE] + joined * dims[0][0] * 4 + 2 * 64
        assert end <= row.scratch
        assert (place := row.words.get(nest_abi.N_OWN_PLACE, end)) >= end or place < row.words[nest_abi.N_OUT_STAGE]


def test_turns_have_whole_tiles_of_one_run_of_the_input(boxes):
    for case in CASES:
        words = lower(boxes(case)).rows[0].words
        joined, run, turn = words[nest_abi.N_JOINED], words[nest_abi.N_A_RUN], words[nest_abi.N_TURN]
        assert turn == joined if run % joined else turn % 16 == 0


def test_boxes_of_short_rows_go_along_the_input(monkeypatch):
    """Rows of 48 bytes, runs of 160 bytes of the input that go on for 2080, and runs of the output that do not in the same box."""
    dims = (12, 4, 2770560), (40, 48, 4), (9, 1920, 307840), (4, 17280, 2080), (13, 69120, 160), (37, 898560, 8320)
    for core in CORES:
        monkeypatch.setattr(cores, "here", lambda: core)
        words = lower(_problem(dims), 2).rows[0].words
        assert (words[nest_abi.N_A_RUN] == 40 * 13) == core.dense_rows == (words.get(nest_abi.N_TURN, 0) > 0)


def test_rows_of_more_than_two_lines_begin_with_lines(boxes):
    boxes("rows of two lines")
    longer = (33, 4, 17 * 4), (17, 132, 4), (29, 17 * 132, 17 * 132)
    words = lower(_problem(longer), 2).rows[0].words
    assert words[nest_abi.N_ROWS_J] and nest_abi.N_TURN not in words


@pytest.mark.parametrize("row", CORES, ids=[row.suffix or "plain" for row in CORES])
@pytest.mark.parametrize("isa", ALL.values(), ids=ALL)
def test_who_stores_rows_so(isa, row, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: row)
    assert dense.stores_dense(isa) == (row.dense_rows and isa.vector_bits == 512)


@pytest.mark.parametrize("row", CORES, ids=[row.suffix or "plain" for row in CORES])
def test_lines_that_are_put_together_ask_for_a_box_to_come(row, monkeypatch):
    """Places at which only AVX-512 stores lines ask in addition to those of other instruction sets."""
    monkeypatch.setattr(cores, "here", lambda: row)
    text = codegen.assembly(generators.build("nest_copy", ALL["avx512"]), ALL["avx512"])
    others = codegen.assembly(generators.build("nest_copy", ALL["avx2"]), ALL["avx2"]).count("prefetch")
    assert text.count("prefetch") > others
