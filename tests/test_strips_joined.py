"""Strips of runs of the output that continue each other: in J, in the box that follows, or in what is nobody's."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from nest_case import Case, check_between_guards

from einsum_engine.kernels import nest_moves, nest_strips
from einsum_engine.kernels.cpu import abi, cores, nest_abi
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower
from einsum_engine.kernels.nest_boxes import Group
from einsum_engine.kernels.nest_strips import ONE

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
WIDE = pytest.mark.parametrize("isa", [isa for isa in host_isas() if isa.vector_bits == 512], ids=lambda isa: isa.name)
FLUSH = pytest.mark.parametrize("flush", [("start", "end"), ("end", "start"), ("end", "end")], ids="-".join)
# Runs of whole lines are not left to strips that join nothing.
JOINS = replace(next(core for core in cores.MAKERS.values() if core.strips_join), strips_whole=False)

# Sizes, their order in the output, entries of J at most, the odometer's row along which boxes continue each other.
CASES = {
    "all that is continued is in J": ((3, 61, 37), (0, 2, 1), 1024, 2),
    "nothing goes on in another box": ((61, 37), (1, 0), 1024, 0),
    "in the box that follows": ((23, 58, 13, 18), (3, 0, 2, 1), 1024, 2),
    "in the next piece of J": ((3, 67, 120), (0, 2, 1), 30, 2),
    "in the next piece of J, of which the last is smaller": ((3, 67, 127), (0, 2, 1), 30, 1),
    "the last strip has one entry": ((3, 65, 37), (0, 2, 1), 1024, 2),
    "the last strip is whole": ((3, 96, 37), (0, 2, 1), 1024, 2),
    "a line less an entry": ((3, 47, 37), (0, 2, 1), 1024, 2),
    "a line and an entry": ((3, 49, 37), (0, 2, 1), 1024, 2),
    "every run begins with a line": ((3, 48, 37), (0, 2, 1), 1024, 2),
    "J has one tile that is not full": ((40, 53, 3, 5), (3, 0, 2, 1), 1024, 2),
}
# Bytes of a run that is written at once.
RUNS = (136, 144, 176, 192, 208, 240, 248, 256)


def _dims(sizes, order, item: int):
    """Loops of a permutation, as a problem has them: the output's strides ascend."""
    a = [item * prod(sizes[n + 1 :]) for n in range(len(sizes))]
    out = {axis: item * prod(sizes[x] for x in order[at + 1 :]) for at, axis in enumerate(order)}
    return tuple(sorted(((size, out[n], a[n], 0) for n, size in enumerate(sizes)), key=lambda d: d[1]))


@pytest.fixture
def problem(monkeypatch):
    """Problem of a case, with rows scaled so that strips of every element have as many rows."""
    monkeypatch.setattr(cores, "here", lambda: JOINS)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    for name in ("LONG_IN", "JOINED_BOXES", "JOINED_LEAST", "CARRIED_IN", "CROWDED_IN"):
        monkeypatch.setattr(nest_strips, name, 0)
    monkeypatch.setattr(nest_strips, "LONG_OUT", 1 << 40)

    def of(case: str, name: str = "float32") -> NestProblem:
        sizes, order, most, _ = CASES[case]
        monkeypatch.setattr(nest_strips, "JOINED_J", most)
        return NestProblem(op="copy", dims=_dims(sizes, order, np.dtype(name).itemsize), out=name, a=name)

    return of


@ISAS
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_lines_that_two_runs_share(isa, name, case, threads, problem):
    made = problem(case, name)
    words = lower(made, threads).rows[1].words
    assert words[nest_abi.N_STRIPS] & nest_abi.STRIPS_JOINED
    assert words.get(nest_abi.N_STRIPS_ROW, 0) == CASES[case][3]
    item = np.dtype(name).itemsize
    for within in (0, item, 64 - item, 3):  # bytes of a line before the output, which boxes write where elements have some
        Case(problem=made, within=(within, item), threads=threads).check(isa)


@pytest.fixture
def short(problem, monkeypatch):
    """Problem of runs of so many bytes, or an element more, ``inside`` of which follow each other in J, and these in the boxes."""
    problem("all that is continued is in J")
    monkeypatch.setattr(nest_strips, "JOINED_OUT", 256)
    monkeypatch.setattr(cores, "here", lambda: replace(JOINS, suffix=".short", rows_followed=1))

    def of(nbytes: int, name: str, inside: int = 5) -> NestProblem:
        item = np.dtype(name).itemsize
        sizes = (3, -(-nbytes // item), inside, 37)
        return NestProblem(op="copy", dims=_dims(sizes, (3, 0, 2, 1), item), out=name, a=name)

    return of


@ISAS
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("nbytes", RUNS)
def test_runs_that_are_written_at_once(isa, nbytes, name, threads, short):
    made, item = short(nbytes, name), np.dtype(name).itemsize
    row = lower(made, threads).rows[1]
    assert row.kernels[abi.FN] == f"nest_short_{item}" and row.words[nest_abi.N_STRIPS] == nest_abi.STRIPS_JOINED
    for within in (0, item, 32, 64 - item, 3):
        Case(problem=made, within=(within, item), threads=threads).check(isa)


@ISAS
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("sizes", "most"), [((3, 25, 7, 11), 22), ((3, 25, 7, 11), 44), ((3, 32, 127), 30), ((5, 18, 127), 30)])
def test_runs_at_once_of_a_smaller_last_piece_of_j(isa, sizes, most, threads, short, monkeypatch):
    """What continues an entry there is in no box, or in the next one."""
    monkeypatch.setattr(nest_strips, "JOINED_J", most)
    order = (3, 0, 2, 1) if len(sizes) == 4 else (0, 2, 1)
    made = NestProblem(op="copy", dims=_dims(sizes, order, 8), out="float64", a="float64")
    row = lower(made, threads).rows[1]
    assert row.words[nest_abi.N_J_TOTAL] % row.words[nest_abi.N_J]
    assert row.kernels[abi.FN] == "nest_short_8"
    for within in (0, 8, 56):
        Case(problem=made, within=(within, 8), threads=threads).check(isa)


@WIDE
@FLUSH
@pytest.mark.parametrize("name", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("nbytes", RUNS)
def test_nothing_outside_is_touched_at_once(isa, nbytes, name, flush, short):
    check_between_guards(short(nbytes, name), flush, isa, which=1)


def test_which_runs_are_written_at_once(short, monkeypatch):
    monkeypatch.setattr(nest_strips, "JOINED_OUT", 264)
    kernel = lambda made: lower(made, 2).rows[1].kernels[abi.FN]  # noqa: E731
    assert kernel(short(256, "float64")) == "nest_short_8"
    assert kernel(short(264, "float64")) == "nest_strips_8"  # more than four lines
    assert kernel(short(256, "float32")) == "nest_strips_4"  # 64 rows
    assert kernel(short(136, "float64")) == "nest_short_8"
    monkeypatch.setattr(nest_strips, "JOINED_LEAST", 129)
    assert len(lower(short(128, "float64"), 2).rows) == 1  # of two lines: in boxes alone
    monkeypatch.setattr(cores, "here", lambda: JOINS)
    assert kernel(short(200, "float64")) == "nest_strips_8"  # rows are asked for
    monkeypatch.setattr(nest_strips, "JOINED_LEAST", 201)
    assert len(lower(short(200, "float64"), 2).rows) == 1


def test_what_continues_an_entry_that_is_written_at_once_comes_later(monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: JOINS)
    o, j = Group(dims=((25, 8, 9360),), total=25, chunks=ONE), Group(dims=((1170, 200, 8),), total=1170, chunks=ONE)
    later, sooner = (np.array([1, 2, -1]), np.array([-1, 0, 1])), (np.array([-1, 0, 1]), np.array([1, 2, -1]))
    assert nest_strips._at_once(o, j, later, None, 8) and not nest_strips._at_once(o, j, sooner, None, 8)
    carried = nest_strips.Carried(outer=[], row=2, on=np.array([-1, -1, 0]), come=np.array([2, -1, -1]))
    assert nest_strips._at_once(o, j, later, carried, 8)
    # the entry whose place it would wait in is not read yet
    assert not nest_strips._at_once(o, j, later, replace(carried, on=np.array([1, -1, -1])), 8)


@ISAS
@pytest.mark.parametrize("case", CASES)
def test_strips_of_one_line_join_runs_as_well(isa, case, problem, monkeypatch):
    """No maker's cores have that today."""
    monkeypatch.setattr(cores, "here", lambda: replace(JOINS, suffix=".joined", strip_lines=1))
    made = problem(case)
    assert lower(made, 2).rows[1].words[nest_abi.N_STRIPS] & nest_abi.STRIPS_JOINED
    for within in (0, 4, 60):
        Case(problem=made, within=(within, 4), threads=2).check(isa)


@WIDE
@FLUSH
@pytest.mark.parametrize("name", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_outside_the_operands_is_touched(isa, name, case, flush, problem):
    """Strips of smaller vectors join nothing, and boxes write these outputs."""
    check_between_guards(problem(case, name), flush, isa, which=1)


@pytest.mark.parametrize("case", CASES)
def test_boxes_belong_to_one_task(case, problem):
    """No task begins between two strips that leave something to each other."""
    row = lower(problem(case), 1000).rows[1]
    assert row.tasks <= row.words[nest_abi.N_BOXES]


@pytest.mark.parametrize("case", CASES)
def test_what_continues_what(case, problem):
    row = lower(problem(case), 2).rows[1]
    places = [row.words[word] // 8 for word in (nest_abi.N_OUT_J, nest_abi.N_STRIPS_NEXT, nest_abi.N_STRIPS_BEFORE)]
    begin, following, before = (row.tables[nest_abi.N_TABLE][at : at + row.words[nest_abi.N_J]] for at in places)
    nbytes = 4 * row.words[nest_abi.N_O_TOTAL]
    assert any(following >= 0)
    for entry, other in enumerate(following):
        assert other == next((n for n, at in enumerate(begin) if at == begin[entry] + nbytes), -1)
        assert other < 0 or before[other] == entry
    assert np.count_nonzero(before >= 0) == np.count_nonzero(following >= 0)


def test_runs_that_few_continue_are_not_joined():
    o = Group(dims=((50, 4, 400),), total=50, chunks=ONE)
    two = Group(dims=((40, 10000, 4), (2, 200, 160)), total=80, chunks=ONE)
    assert nest_strips._links(o, two, 4) is not None
    none = Group(dims=((80, 10000, 4),), total=80, chunks=ONE)
    assert nest_strips._links(o, none, 4) is None
    short = Group(dims=((7, 10000, 4), (2, 200, 28)), total=14, chunks=ONE)
    assert nest_strips._links(o, short, 4) is None  # 56 bytes of the input


def test_boxes_go_along_the_output_where_rows_of_the_input_are_long():
    o, following, other = Group(dims=((50, 4, 936),), total=50, chunks=ONE), (24, 2600, 1404000, 0), (25, 62400, 56160, 0)
    j = Group(dims=((18, 62400 * 25, 4), (13, 200, 72)), total=234, chunks=ONE)
    carried = nest_strips._carried(o, j, [other, following], 4)
    assert carried.outer == [following, other] and carried.row == 2
    assert np.count_nonzero(carried.on >= 0) == np.count_nonzero(carried.come >= 0) == 18
    few = Group(dims=((6, 62400 * 25, 4), (13, 200, 24)), total=78, chunks=ONE)
    assert nest_strips._carried(o, few, [other, following], 4) is None
    assert nest_strips._carried(o, few, [following, other], 4).outer == [following, other]  # which it does anyway
