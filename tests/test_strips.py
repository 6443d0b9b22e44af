"""Permutations in strips: every output is written by strips or by boxes, and only where there is something to write."""

from dataclasses import replace
from itertools import product
from math import prod

import nest_case
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_case import Case, check_between_guards, written_by_tasks

from einsum_engine.kernels import nest_lines, nest_moves, nest_strips
from einsum_engine.kernels.cpu import abi, cores, nest_abi, strips
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower
from einsum_engine.kernels.nest_boxes import Group
from einsum_engine.kernels.nest_strips import ONE

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
ROWS_OF_CORES = [cores.PLAIN, *cores.MAKERS.values()]
WHOLE = next(core for core in ROWS_OF_CORES if core.strips_whole)
CORES = pytest.mark.parametrize("here", ROWS_OF_CORES, ids=lambda core: core.suffix or "plain")


@ISAS
@CORES
@pytest.mark.parametrize("within", [(0, 0), (0, 16), (0, 60), (0, 3), (16, 0), (4, 8), (1, 0), (48, 16)])
@pytest.mark.parametrize(
    ("dtype", "dims"),
    [
        ("float32", ((32, 4, 12288, 0), (1024, 128, 4, 0))),  # all lines are whole
        ("float32", ((16, 4, 8192, 0), (1001, 64, 4, 0))),
        ("int32", ((16, 4, 1 << 14, 0), (60, 64, 4, 0), (64, 3840, 240, 0))),  # runs of two loops, cut
        ("complex64", ((24, 8, 8192, 0), (512, 192, 8, 0), (3, 98304, 24 * 8192, 0))),
        ("complex128", ((4, 16, 8192, 0), (300, 64, 16, 0))),
        ("float32", ((301, 4, 148, 0), (37, 1204, 4, 0))),  # lines begin anywhere
        ("float32", ((7, 4, 260, 0), (41, 28, 1824, 0), (64, 1148, 4, 0), (3, 73472, 75000, 0))),  # strips of two loops
        ("float64", ((5003, 8, 136, 0), (17, 40024, 8, 0))),  # two chunks of O
        ("int64", ((130, 8, 17600, 0), (2200, 1040, 8, 0))),  # two chunks of J
        ("complex128", ((61, 16, 400, 0), (25, 976, 16, 0))),
    ],
)
def test_strips_write_lines_of_outputs_that_boxes_leave_to_them(isa, here, dtype, dims, within, monkeypatch):
    """Of the two rows one writes all of an output, the other nothing."""
    monkeypatch.setattr(cores, "here", lambda: here)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "FAR_BYTES", 0)
    monkeypatch.setattr(nest_strips, "LONG_OUT", 0)
    monkeypatch.setattr(nest_strips, "CROWDED_IN", 0)
    problem = NestProblem(op="copy", dims=dims, out=dtype, a=dtype)
    for threads in (1, 3):
        assert _written_by_one(isa, problem, within, threads, monkeypatch) & nest_abi.STRIPS_ANY


@ISAS
@pytest.mark.parametrize("within", [(0, 0), (0, 16), (16, 0), (4, 8), (1, 0)])
def test_strips_of_whole_lines_alone_leave_other_outputs_to_boxes(isa, within, monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "FAR_BYTES", 0)
    monkeypatch.setattr(nest_strips, "LONG_OUT", 1 << 40)
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    problem = NestProblem(op="copy", dims=((32, 8, 12288, 0), (1024, 256, 8, 0)), out="float64", a="float64")
    for threads in (1, 3):
        assert _written_by_one(isa, problem, within, threads, monkeypatch) == nest_abi.STRIPS_LINES


@ISAS
@pytest.mark.parametrize("within", [(0, 0), (0, 16), (16, 0), (4, 8), (1, 0)])
@pytest.mark.parametrize(
    ("dtype", "dims"),
    [
        ("float32", ((32, 4, 200, 0), (50, 128, 4, 0), (41, 6400, 6400, 0))),  # two lines, side by side in the input
        ("float32", ((16, 4, 336, 0), (84, 64, 4, 0), (7, 5376, 37632, 0), (7, 37632, 5376, 0))),  # one
        ("int64", ((16, 8, 72, 0), (9, 128, 8, 0), (7, 8064, 1152, 0), (7, 1152, 8064, 0))),
        ("complex64", ((24, 8, 48, 0), (6, 192, 8, 0), (90, 1152, 1152, 0))),  # three
        ("complex128", ((4, 16, 336, 0), (21, 64, 16, 0), (33, 1344, 1344, 0))),
        ("float32", ((24, 4, 1480, 0), (10, 96, 148, 0), (37, 960, 4, 0), (5, 35520, 35520, 0))),  # runs of two loops
        ("float64", ((5008, 8, 136, 0), (17, 40064, 8, 0))),  # two chunks of O
        ("float64", ((40, 8, 16800, 0), (2100, 320, 8, 0))),  # two chunks of J
    ],
)
def test_runs_of_whole_lines_are_in_strips_that_shift_nothing(isa, within, dtype, dims, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    problem = NestProblem(op="copy", dims=dims, out=dtype, a=dtype)
    for threads in (1, 3):
        assert _written_by_one(isa, problem, within, threads, monkeypatch) & nest_abi.STRIPS_WHOLE


@pytest.mark.parametrize("isa", [isa for isa in host_isas() if strips.shifts_lines(isa)], ids=lambda isa: isa.name)
@pytest.mark.parametrize("flush", [("start", "end"), ("end", "start")], ids="-".join)
@pytest.mark.parametrize("name", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize("e", [5, 7, 8, 13, 17])
@pytest.mark.parametrize("entries", [0, 1, 3])
def test_strips_of_whole_lines_touch_nothing_else(isa, entries, e, lines, name, flush, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "WHOLE_LINE_J", 0)
    monkeypatch.setattr(nest_strips, "WITHIN_J", 0)
    item, run = np.dtype(name).itemsize, 64 * lines
    dims = ((run // item, item, e * item, 0), (e, run, item, 0), (9, run * e, run * e, 0))
    problem = NestProblem(op="copy", dims=dims, out=name, a=name)
    assert [row.kernels[abi.FN] for row in lower(problem, 2).rows[1:]][-1] == f"nest_whole_{item}"
    check_between_guards(problem, flush, isa, which=-1, within=item * entries)


CONTINUED = {
    # what continues a run of the output is the next entry of J, one some entries on, and in no entry of a box
    "next": ((16, 4, 336, 0), (84, 64, 4, 0), (9, 5376, 5376, 0)),
    "later": ((16, 4, 336, 0), (7, 9216, 4, 0), (12, 64, 28, 0), (9, 768, 5376, 0)),
    "chunks": ((16, 4, 16384, 0), (4096, 64, 4, 0), (3, 262144, 262144, 0)),
    "never": ((304, 4, 140, 0), (7, 1216, 4, 0), (5, 25536, 28, 0), (3, 8512, 42560, 0)),
    "long": ((8192, 4, 68, 0), (17, 32768, 4, 0)),
}


@ISAS
@pytest.mark.parametrize("within", [(0, 0), (4, 8), (16, 0), (60, 4), (61, 0)])
@pytest.mark.parametrize("dims", CONTINUED.values(), ids=CONTINUED)
def test_runs_of_whole_lines_may_begin_within_a_line(isa, dims, within, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "WITHIN_J", 2)
    problem = NestProblem(op="copy", dims=dims, out="float32", a="float32")
    for threads in (1, 3):
        assert _written_by_one(isa, problem, within, threads, monkeypatch) & nest_abi.STRIPS_WITHIN


def test_which_runs_continue_each_other_within_a_box(monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "WITHIN_J", 2)
    made = {what: lower(NestProblem(op="copy", dims=dims, out="float32", a="float32"), 2) for what, dims in CONTINUED.items()}
    rows = {what: rows.rows[-1] for what, rows in made.items()}
    assert {row.kernels[abi.FN] for row in rows.values()} == {"nest_whole_4"}
    backs = {what: row.words[nest_abi.N_STRIPS_BACK] for what, row in rows.items()}
    assert backs == {"next": 1, "later": 7, "chunks": 1, "never": 0, "long": 0}
    monkeypatch.setattr(nest_strips, "WITHIN_J", 16)
    few = NestProblem(op="copy", dims=CONTINUED["later"], out="float32", a="float32")
    assert lower(few, 2).rows[-1].words[nest_abi.N_STRIPS] == nest_abi.STRIPS_WHOLE  # 7 of 84 begin runs that nothing continues


def _rows_of_lines(item: int, lines: int, sizes: tuple[int, int, int], order: str = "acbz") -> tuple:
    """``zabcr`` of rows r of so many lines, permuted so that the ``order``, the fastest first, comes behind them."""
    row, extents, dims = 64 * lines, dict(zip("abcz", (*sizes, 2))), {}
    for operand in (order, "cbaz"):
        step = row
        for name in operand:
            dims[name] = (*dims.get(name, (extents[name],)), step)
            step *= extents[name]
    return ((row // item, item, item, 0), *((*dim, 0) for dim in dims.values()))


@ISAS
@pytest.mark.parametrize("within", [(0, 0), (4, 8), (16, 0), (60, 4), (61, 0), (1, 1)])
@pytest.mark.parametrize("name", ["int8", "float32", "complex128"])
@pytest.mark.parametrize(
    ("lines", "sizes"), [(1, (16, 3, 5)), (1, (163, 2, 2)), (1, (61, 1, 40)), (2, (17, 2, 7)), (2, (40, 130, 1)), (1, (32, 7, 8))]
)
@pytest.mark.parametrize("order", ["acbz", "abcz", "aczb"])
def test_rows_of_whole_lines_are_in_strips_of_lines(isa, order, name, lines, sizes, within, monkeypatch):
    core = replace(WHOLE, strips_j=32)
    monkeypatch.setattr(cores, "here", lambda: core)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "MOST_O", 64)
    monkeypatch.setattr(nest_lines, "ALONE_OUT", 0)
    dims = _rows_of_lines(np.dtype(name).itemsize, lines, sizes, order)
    problem = NestProblem(op="copy", dims=dims, out=name, a=name)
    for threads in (1, 3):
        assert _written_by_one(isa, problem, within, threads, monkeypatch) & nest_abi.STRIPS_OF_LINES


@pytest.mark.parametrize(("order", "back"), [("acbz", 1), ("abcz", 7), ("aczb", 0)])
def test_which_rows_of_lines_continue_each_other(order, back, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)

    def words(a: int, b: int) -> dict[int, int]:
        problem = NestProblem(op="copy", dims=_rows_of_lines(4, 1, (a, b, 7), order), out="float32", a="float32")
        (row,) = [row for row in lower(problem, 2).rows if row.kernels[abi.FN] == "nest_lines"]
        return row.words

    assert words(17, 40)[nest_abi.N_STRIPS_BACK] == back
    # short runs, both ends of which are stored by mask, are left to boxes where they do not begin with a line
    assert words(17, 40)[nest_abi.N_STRIPS] == nest_abi.STRIPS_WHOLE | nest_abi.STRIPS_OF_LINES * (back > 0)
    assert words(128, 40)[nest_abi.N_STRIPS] == nest_abi.STRIPS_WHOLE | nest_abi.STRIPS_OF_LINES
    few = nest_abi.STRIPS_OF_LINES * (order == "acbz")
    assert words(17, 3)[nest_abi.N_STRIPS] == nest_abi.STRIPS_WHOLE | few


@pytest.mark.parametrize("isa", [isa for isa in host_isas() if strips.shifts_lines(isa)], ids=lambda isa: isa.name)
@pytest.mark.parametrize("flush", [("start", "end"), ("end", "start")], ids="-".join)
@pytest.mark.parametrize("sizes", [(16, 3, 5), (17, 2, 7), (31, 9, 1), (32, 2, 4)])
@pytest.mark.parametrize("within", [0, 4, 60])
def test_strips_of_lines_touch_nothing_else(isa, within, sizes, flush, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: WHOLE)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_lines, "ALONE_OUT", 0)
    for lines, order in product((1, 2), ("acbz", "abcz", "aczb")):
        problem = NestProblem(op="copy", dims=_rows_of_lines(4, lines, sizes, order), out="float32", a="float32")
        assert lower(problem, 2).rows[-1].kernels[abi.FN] == "nest_lines"
        check_between_guards(problem, flush, isa, which=-1, within=within)


def _written_by_one(isa, problem, within, threads, monkeypatch) -> int:
    """Checks that of the rows of boxes and of strips the right one writes all of the output, and the others nothing; which
    outputs strips write."""
    case = Case(problem=problem, within=within, threads=threads)
    rows = lower(problem, threads)
    what = rows.rows[0].words[nest_abi.N_STRIPS]
    assert len(rows.rows) > 1 and all(row.words[nest_abi.N_STRIPS] == what for row in rows.rows)
    writer = _writer(isa, what, within[0], np.dtype(problem.out).itemsize)
    assert sum(row.kernels[abi.FN].split("_")[1] in writer for row in rows.rows) == 1
    for row in rows.rows:
        monkeypatch.setattr(nest_case, "lower", lambda *_: replace(rows, rows=(row,), operands=rows.operands[:1]))
        if row.kernels[abi.FN].split("_")[1] in writer:
            case.check(isa)
        else:
            operands = case.operands()
            before = operands[0].memory.copy()
            case.run(isa, operands)
            assert (operands[0].memory == before).all()
    return what


def _writer(isa, what: int, begin: int, item: int) -> tuple[str, ...]:
    """Which kernels write an output that begins so many bytes into a line."""
    whole = nest_abi.STRIPS_WITHIN if begin % 64 else nest_abi.STRIPS_WHOLE
    within = what & whole and begin % item == 0
    if strips.shifts_lines(isa) and (within or what & nest_abi.STRIPS_OF_LINES and begin % strips.LANE == 0):
        return ("whole", "lines")
    if not strips.shifts_lines(isa) and what & nest_abi.STRIPS_CROWDED:
        return ("copy",)
    joined = nest_abi.STRIPS_JOINED if strips.joins_runs(isa) else 0
    others = what & (nest_abi.STRIPS_ANY | joined) and begin % item == 0
    return ("strips", "short") if others or what & nest_abi.STRIPS_LINES and begin % 64 == 0 else ("copy",)


@ISAS
@pytest.mark.parametrize("within", [(0, 0), (4, 16), (2, 0)])
@pytest.mark.parametrize("threads", [1, 2])
def test_boxes_write_where_rows_of_a_tile_have_no_room_in_the_first_cache(isa, within, threads, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    for name in ("FAR_BYTES", "LONG_OUT"):
        monkeypatch.setattr(nest_strips, name, 0)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    for step, crowded in ((4096, nest_abi.STRIPS_CROWDED), (4096 + 64, 0)):
        problem = NestProblem(op="copy", dims=((37, 4, step, 0), (1024, 4 * 37, 4, 0)), out="float32", a="float32")
        what = _written_by_one(isa, problem, within, threads, monkeypatch)
        assert what & nest_abi.STRIPS_ANY and what & nest_abi.STRIPS_CROWDED == crowded
        monkeypatch.setattr(nest_case, "lower", lower)


@ISAS
@CORES
@given(data=st.data())
def test_strips_of_random_permutations(isa, here, data):
    sizes = data.draw(st.lists(st.integers(2, 40), min_size=2, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    dtype = data.draw(st.sampled_from(["float32", "float64", "complex128"]))
    item = np.dtype(dtype).itemsize
    if data.draw(st.booleans()):  # runs of whole lines
        sizes[order[-1]] = 64 // item * data.draw(st.integers(1, 3))
    a = [item * prod(sizes[n + 1 :]) for n in range(len(sizes))]
    out = {axis: item * prod(sizes[x] for x in order[at + 1 :]) for at, axis in enumerate(order)}
    dims = tuple((size, out[n], a[n], 0) for n, size in enumerate(sizes))
    within = item * data.draw(st.integers(0, 64 // item)), item * data.draw(st.integers(0, 64 // item))
    with pytest.MonkeyPatch.context() as patch:
        core = replace(here, strips_j=data.draw(st.sampled_from([32, 2048])))
        patch.setattr(cores, "here", lambda: core)
        patch.setattr(nest_moves, "STREAM_BYTES", 0)
        for name in ("LONG_OUT", "LONG_IN", "CROWDED_IN"):
            patch.setattr(nest_strips, name, 0)
        patch.setattr(nest_strips, "MOST_O", data.draw(st.sampled_from([64, 4096])))
        patch.setattr(nest_strips, "JOINED_BOXES", 0)
        choices = {"JOINED_LEAST": [0, 192], "JOINED_J": [32, 1024], "JOINED_WORTH": [0.75, 9], "CARRIED_IN": [0, 1 << 30]}
        for name, values in choices.items():
            patch.setattr(nest_strips, name, data.draw(st.sampled_from(values)))
        patch.setattr(nest_strips, "WITHIN_J", data.draw(st.sampled_from([0, 16])))
        patch.setattr(nest_strips, "BESIDE_IN", data.draw(st.sampled_from([0, 1 << 20])))
        problem = NestProblem(op="copy", dims=dims, out=dtype, a=dtype)
        Case(problem=problem, within=within, threads=data.draw(st.integers(1, 3))).check(isa)


@pytest.mark.parametrize("isa", [isa for isa in host_isas() if strips.shifts_lines(isa)], ids=lambda isa: isa.name)
@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("dims", "name"),
    [
        (((330, 4, 400, 0), (100, 1320, 4, 0)), "nest_strips_4"),
        (((320, 4, 400, 0), (100, 1280, 4, 0)), "nest_whole_4"),
        (_rows_of_lines(4, 1, (320, 53, 1))[:-1], "nest_lines"),  # z left out: its boxes would even it out
    ],
)
def test_tasks_write_as_much_though_one_chunk_of_j_is_smaller(isa, dims, name, tasks, monkeypatch):
    core = replace(WHOLE, strips_j=32)
    monkeypatch.setattr(cores, "here", lambda: core)
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_strips, "CROWDED_IN", 0)
    problem = NestProblem(op="copy", dims=dims, out="float32", a="float32")
    (row,) = [row for row in lower(problem).rows if row.kernels[abi.FN] == name]
    written = written_by_tasks(problem, row, tasks, isa)
    strip = 32 * 32 * (16 if name == "nest_lines" else 1)  # entries: a task begins with one of them
    assert max(np.abs(written - np.mean(written))) <= strip


def _beside(name: str, d: int, e: int) -> NestProblem:
    """``abcde->acebd``: strips read rows of e and what follows along d, and then c goes on."""
    item, (a, b, c) = np.dtype(name).itemsize, (2, 41, 5)
    loops = [(d, 1, e), (b, d, c * d * e), (e, b * d, 1), (c, e * b * d, d * e), (a, c * e * b * d, b * c * d * e)]
    dims = tuple((size, item * out, item * read, 0) for size, out, read in loops)
    return NestProblem(op="copy", dims=dims, out=name, a=name)


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: next(core for core in ROWS_OF_CORES if core.strips_beside))
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    for name in ("LONG_OUT", "LONG_IN", "CROWDED_IN", "JOINED_OUT"):
        monkeypatch.setattr(nest_strips, name, 0)


@ISAS
@pytest.mark.parametrize("name", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(("d", "e"), [(3, 4), (11, 5), (4, 8), (7, 13), (2, 17), (5, 37)])
def test_boxes_that_go_on_where_one_ends_have_a_strip_in_turn(isa, name, d, e, beside):
    made, item = _beside(name, d, e), np.dtype(name).itemsize
    words = lower(made, 3).rows[1].words
    assert words[nest_abi.N_BESIDE] == 5 and words[nest_abi.N_BESIDE_A] == item * d * e
    assert words[nest_abi.N_BOXES] == 2
    for within in (0, item, 32, 64 - item):
        for threads in (1, 3):
            Case(problem=made, within=(within, item), threads=threads).check(isa)


@ISAS
@pytest.mark.parametrize("flush", [("start", "end"), ("end", "start")], ids="-".join)
@pytest.mark.parametrize("name", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("e", [2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 17])
def test_tiles_of_any_width_touch_nothing_else(isa, e, name, flush, beside):
    check_between_guards(_beside(name, 3, e), flush, isa, which=1)


def test_which_boxes_are_beside_each_other(beside, monkeypatch):
    boxes = lambda made: lower(made, 2).rows[1].words[nest_abi.N_BESIDE]  # noqa: E731
    assert boxes(_beside("float32", 11, 37)) == 5
    assert boxes(_beside("float32", 32, 37)) == 1  # what is read in one piece is longer than a page
    monkeypatch.setattr(nest_strips, "BESIDE_KEPT", 5 * 64 * 37 - 1)
    assert boxes(_beside("float32", 11, 37)) == 1  # what is kept of all does not stay near
    monkeypatch.undo()
    item, o = 4, Group(dims=((33, 4, 65536), (3, 132, 148)), total=99, chunks=ONE)
    j, following = Group(dims=((37, 4096, 4),), total=37, chunks=ONE), (5, 1 << 20, 444, 0)
    monkeypatch.setattr(cores, "here", lambda: next(core for core in ROWS_OF_CORES if core.strips_beside))
    assert nest_strips._beside(o, j, [following], item) == ONE  # a strip has rows that lie far apart alone
    assert nest_strips._beside(replace(o, dims=o.dims[::-1]), j, [following], item) == following
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    assert nest_strips._beside(replace(o, dims=o.dims[::-1]), j, [following], item) == ONE


@CORES
def test_which_permutations_are_in_strips(here, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: here)

    def outputs(dims, dtype="float32"):
        rows = lower(NestProblem(op="copy", dims=dims, out=dtype, a=dtype)).rows
        return rows[1].words[nest_abi.N_STRIPS] if len(rows) > 1 else 0

    both, shifted = nest_abi.STRIPS_LINES | nest_abi.STRIPS_ANY, nest_abi.STRIPS_ANY
    alone = nest_abi.STRIPS_WHOLE if here.strips_whole else 0  # outputs that begin with a line
    whole = alone | nest_abi.STRIPS_WITHIN if here.strips_whole else 0
    crowded = nest_abi.STRIPS_CROWDED
    assert outputs(((4096, 4, 16384, 0), (4096, 16384, 4, 0))) == both | whole | crowded
    assert outputs(((4096, 8, 16384, 0), (2048, 32768, 8, 0)), "float64") == both | whole  # eight rows of a tile have room
    assert outputs(((4096, 4, 16388, 0), (4096, 16384, 4, 0))) == shifted | whole
    assert outputs(((4100, 4, 16384, 0), (4096, 16400, 4, 0))) == shifted | crowded  # lines of the output hold parts of two runs
    assert outputs(((8200, 4, 4096, 0), (1024, 32800, 4, 0))) == shifted | crowded
    assert outputs(((16384, 4, 2048, 0), (512, 65536, 4, 0))) == whole  # rows of the input are short, and crowded
    assert outputs(((8150, 4, 4116, 0), (1029, 32600, 4, 0))) == shifted
    joined = nest_abi.STRIPS_JOINED if here.strips_join else 0
    assert outputs(((200, 4, 4116, 0), (1029, 800, 4, 0), (40, 823200, 823200, 0))) == joined  # short runs of the output
    assert outputs(((200, 4, 4116, 0), (1029, 800, 4, 0), (3, 823200, 823200, 0))) == 0  # and few boxes
    assert outputs(((33, 4, 4116, 0), (1029, 132, 4, 0), (80, 135828, 135828, 0))) == 0  # and each in one strip
    assert outputs(((32, 4, 4116, 0), (1029, 128, 4, 0), (80, 131712, 131712, 0))) == whole
    # and of the input, though some cores read shorter ones in strips
    assert outputs(((400000, 4, 80, 0), (20, 1600000, 4, 0))) == whole | (shifted if here.strips_in <= 80 else 0)
    assert outputs(((1200000, 4, 28, 0), (7, 4800000, 4, 0))) == whole
    assert outputs(((32, 4, 200, 0), (50, 128, 4, 0), (2000, 6400, 6400, 0))) == whole
    assert outputs(((32, 4, 20, 0), (5, 128, 4, 0), (40000, 640, 640, 0))) == alone
    assert outputs(((32, 4, 16, 0), (4, 128, 4, 0), (40000, 512, 512, 0))) == 0  # tiles are mostly empty
    assert outputs(((16, 4, 64, 0), (16, 64, 4, 0), (20000, 1024, 1024, 0))) == whole
    assert outputs(((16, 4, 60, 0), (15, 64, 4, 0), (20000, 960, 960, 0))) == 0  # and more strips to begin
    # runs of one dimension are parts of lines, and of two lines of which each has half of a tile
    assert outputs(((52, 4, 112, 0), (4, 208, 28, 0), (84, 832, 135408, 0), (69, 69888, 1932, 0), (7, 4822272, 4, 0))) == joined
    assert outputs(((31, 4, 200, 0), (50, 124, 4, 0), (4100, 6200, 6200, 0))) == 0  # parts of lines
    assert outputs(((32, 4, 200, 0), (50, 128, 4, 0), (4000, 6404, 6400, 0))) == 0
    assert outputs(((4096, 2, 16384, 0), (8192, 8192, 2, 0)), "float16") == 0  # 32 rows for a line
    # 90 entries of the output are too few, so that what continues the input is not J's but continues O, or joins what is J's
    assert outputs(((90, 4, 16352, 0), (146, 360, 112, 0), (23, 52560, 1471680, 0), (28, 1208880, 4, 0))) == (joined or shifted)
    assert outputs(((4100, 4, 16384, 0), (4096, 16384 + 128, 4, 0))) == shifted | crowded  # lines an even number of lines apart
    assert outputs(((4100, 4, 16384, 0), (4096, 16384 + 64, 4, 0))) == shifted | crowded


@pytest.mark.parametrize(
    ("dims", "ahead"),
    [
        # rows of 232 bytes, one behind the other: 8 KB of strips
        (((263, 8, 232, 0), (29, 2104, 8, 0)), 4),
        # each is continued 55 rows later, which are 7 strips: when it is read, that is asked for
        (((55, 8, 61016, 0), (263, 440, 232, 0), (29, 115720, 8, 0)), 8),
        (((39, 4, 34472, 0), (62, 156, 556, 0), (139, 9672, 4, 0)), 3),
        # so late that much else would be read in between
        (((230, 8, 6960, 0), (10, 1840, 1392, 0), (174, 18400, 8, 0)), 1),
    ],
)
def test_strips_ask_for_what_continues_the_rows_that_are_read(dims, ahead, monkeypatch):
    o, j = (Group(dims=part, total=prod(d[0] for d in part), chunks=ONE) for part in (dims[:-1], dims[-1:]))
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    assert nest_strips._ahead(o, j, dims[0][1]) == ahead


@pytest.mark.parametrize(("row", "ahead"), [(29, 1), (512, 1), (513, 0), (4000, 0)])
def test_strips_ask_for_no_rows_that_the_core_follows(row, ahead, monkeypatch):
    o, j = Group(dims=((48, 8, 16 * row, 0),), total=48, chunks=ONE), Group(dims=((row, 384, 8, 0),), total=row, chunks=ONE)
    monkeypatch.setattr(cores, "here", lambda: replace(cores.PLAIN, rows_followed=4096))
    assert nest_strips._ahead(o, j, 8) == ahead


@pytest.mark.parametrize(("apart", "ends"), [(29 * 4, 0), (29 * 4 + 4, 1), (4160, 1)])
def test_strips_ask_for_the_end_of_a_row_where_the_next_is_elsewhere(apart, ends, monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    problem = NestProblem(op="copy", dims=((1200, 4, apart, 0), (29, 4800, 4, 0)), out="float32", a="float32")
    assert lower(problem).rows[1].words[nest_abi.N_STRIPS_ENDS] == ends
