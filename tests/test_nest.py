"""Copies, products and sums over random strided nests, on every instruction set that this machine runs."""

from collections import Counter
from dataclasses import replace
from math import prod

import nest_case
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_case import MOVED, Case, case_of, item_of, permutations, spaces

from einsum_engine.errors import EngineValueError
from einsum_engine.kernels import move_boxes, nest_boxes, nest_moves, nest_rows, nest_sums
from einsum_engine.kernels.cpu import abi, cores, nest_abi
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

MULTIPLIED = [(name,) * 3 for name in ("float32", "complex64", "int8", "bool", "float16")]
MULTIPLIED += [("complex64", "float32", "complex64"), ("float32", "uint8", "bfloat16")]
SUMMED = [(name, name) for name in ("float32", "complex128", "int16", "bool", "bfloat16")]
SUMMED += [("uint32", "uint8"), ("float64", "float16"), ("complex64", "float32")]
MIXED = [("float16", "float32"), ("complex64", "float64"), ("int8", "complex64")]


@st.composite
def copies(draw, dtypes) -> Case:
    a, out = draw(dtypes)
    dims = draw(spaces((item_of(out), item_of(a))))
    problem = NestProblem(op="copy", dims=dims, out=out, a=a)
    return case_of(draw, problem)


@ISAS
@RANDOM
@given(case=copies(st.sampled_from([(name, name) for name in MOVED])))
def test_copy(isa, case):
    case.check(isa)


@ISAS
@RANDOM
@given(case=copies(st.sampled_from(MIXED)))
def test_copy_converts(isa, case):
    case.check(isa)


@st.composite
def products(draw) -> Case:
    out, a, b = draw(st.sampled_from(MULTIPLIED))
    dims = draw(spaces(tuple(map(item_of, (out, a, b)))))
    flags = {name: draw(st.booleans()) for name in ("conj_a", "conj_b", "accumulate")}
    problem = NestProblem(op="mul", dims=dims, out=out, a=a, b=b, **flags)
    return case_of(draw, problem)


@ISAS
@RANDOM
@given(case=products())
def test_mul(isa, case):
    case.check(isa)


@ISAS
@RANDOM
@given(case=products(), row=st.sampled_from([0, 512]))
def test_mul_past_the_caches(isa, case, row):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_rows, "STREAM_BYTES", 0)
        patch.setattr(nest_rows, "STREAM_ROW", row)
        patch.setattr(nest_boxes, "CACHE_BYTES", 0)
        case.check(isa)


@ISAS
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("shift", [0, 4, 16, 1])
def test_long_rows_of_products_past_the_caches(isa, dtype, shift, monkeypatch):
    monkeypatch.setattr(nest_rows, "STREAM_BYTES", 0)
    item = item_of(dtype)
    dims = ((1033, item, item, 0), (3, 1040 * item, 0, item))
    case = Case(NestProblem(op="mul", dims=dims, out=dtype, a=dtype, b=dtype), shift=shift)
    assert lower(case.problem).rows[0].words[nest_abi.N_FLAGS] & nest_abi.STREAM
    case.check(isa)


@st.composite
def sums(draw) -> Case:
    out, a = draw(st.sampled_from(SUMMED))
    dims = draw(spaces((item_of(out), item_of(a)), summed=True, limit=8_000))
    flags = {name: draw(st.booleans()) for name in ("conj_a", "accumulate")}
    problem = NestProblem(op="sum", dims=dims, out=out, a=a, **flags)
    return case_of(draw, problem)


@ISAS
@RANDOM
@given(case=sums())
def test_sum(isa, case):
    case.check(isa)


@ISAS
@pytest.mark.parametrize("name", ["int8", "float16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("times", [2, 3, 4])
@pytest.mark.parametrize("mode", ["MOVE_SEVERAL", "MOVE_WEAVE"])
def test_entries_of_one_element_and_of_several_rows(isa, name, times, mode):
    """The fastest loop is not one of an input, or its slowest one: long rows, short ones, and pieces of a box."""
    item = item_of(name)
    for length in (1, 5, 8, 37, 1500):
        row = times * item
        apart = 0 if mode == "MOVE_SEVERAL" else 6 * item * length + 64
        step = row * length
        dims = ((times, item, item, apart), (length, row, row, item), (3, step + item, step, 2 * item * length))
        problem = NestProblem(op="mul", dims=dims, out=name, a=name, b=name)
        words = lower(problem).rows[0].words
        if times == 2 and length > 1:
            assert words[nest_abi.N_B_MODE] == nest_abi.STAGED + getattr(nest_abi, mode)
            assert words[nest_abi.N_B_RUN] == row
        for threads in (1, 3):
            Case(problem, seed=length, threads=threads, shift=1).check(isa)
        Case(NestProblem(op="copy", dims=tuple((n, o, b, 0) for n, o, _, b in dims), out=name, a=name)).check(isa)


@ISAS
@pytest.mark.parametrize("name", ["int8", "float16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("apart", [0, 1 << 16], ids=["several", "woven"])
def test_results_past_the_caches_of_several_and_woven_entries(isa, name, apart, monkeypatch):
    """In small boxes, which begin and end anywhere in a line."""
    monkeypatch.setattr(nest_rows, "STREAM_BYTES", 0)
    monkeypatch.setattr(nest_rows, "FAR_BYTES", 0)
    item = item_of(name)
    for length in (129, 1037, 5000):
        dims = ((2, item, item, apart), (length, 2 * item, 2 * item, item), (2, 1 << 18, 1 << 18, 1 << 17))
        problem = NestProblem(op="mul", dims=dims, out=name, a=name, b=name)
        words = lower(problem).rows[0].words
        if item >= 4 and length > 1000:
            assert words[nest_abi.N_FLAGS] & nest_abi.STREAM
            assert words[nest_abi.N_O] * words[nest_abi.N_J] * item <= nest_rows.PAST_BYTES
        for threads, shift in ((1, 0), (3, 1)):
            Case(problem, seed=length, threads=threads, shift=shift).check(isa)


@ISAS
@RANDOM
@given(case=permutations(), longest=st.sampled_from([64, 256, 1024, 8192]), box=st.sampled_from([4096, 1 << 17]))
def test_copy_past_the_caches(isa, case, longest, box):
    """Large outputs are written in whole lines, wherever their lines begin, from boxes that may continue each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_moves, "STREAM_BYTES", 0)
        patch.setattr(move_boxes, "LONG_OUT", (longest,))
        patch.setattr(move_boxes, "BOX_BYTES", box)
        case.check(isa)


@ISAS
@RANDOM
@given(case=permutations(), runs=st.sampled_from([(64, 64), (256, 128), (512, 1024)]))
def test_copy_past_the_caches_of_runs_that_are_fetched(isa, case, runs):
    """As if all runs of the input fell into the same cache sets: boxes are moved from a copy of them, where they can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest_moves, "STREAM_BYTES", 0)
        patch.setattr(move_boxes, "WAYS", 0)
        for name, length in zip(("FETCHED_OUT", "FETCHED_IN"), runs):
            patch.setattr(move_boxes, name, length)
        case.check(isa)


@ISAS
@pytest.mark.parametrize(
    ("dtype", "dims"),
    [
        ("float32", ((32, 4, 1 << 20, 0), (64, 128, 4, 0), (6, 8192, 256, 0))),  # runs of several loops
        ("float32", ((28, 4, 1 << 20, 0), (40, 112, 1 << 14, 0), (96, 4480, 4, 0))),  # boxes continue runs
        ("int8", ((24, 1, 1 << 20, 0), (1024, 24, 1, 0), (8, 24 << 10, 1024, 0))),  # runs end within a loop
        ("complex128", ((20, 16, 1 << 20, 0), (128, 320, 16, 0))),
    ],
)
def test_runs_of_the_input_at_large_powers_of_two_are_fetched(isa, dtype, dims, monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    problem = NestProblem(op="copy", dims=dims, out=dtype, a=dtype)
    apart = tuple((size, out, a + 4096 * (a >= 1 << 20), 0) for size, out, a, _ in dims)
    far, near = (lower(each).rows[0].words for each in (problem, replace(problem, dims=apart)))
    assert nest_abi.N_FETCH not in near and far[nest_abi.N_FETCH] > 16
    Case(problem=problem, shift=4, threads=2).check(isa)


def test_copy_past_the_caches_by_tiles_elements_and_rows(monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    words = {}
    for name, dims in {
        "tiles": ((999, 4, 2400, 0), (600, 3996, 4, 0)),
        "elements": ((999, 4, 8, 0), (2, 3996, 4, 0)),
        "runs": ((33, 4, 4, 0), (50, 132, 33 * 80 * 4, 0), (80, 132 * 50, 132, 0)),
        "rows": ((2999, 4, 4, 0), (50, 11996, 12096, 0)),
    }.items():
        words[name] = lower(NestProblem(op="copy", dims=dims, out="float32", a="float32")).rows[0].words
    modes = {name: each.get(nest_abi.N_A_MODE, 0) - nest_abi.STAGED for name, each in words.items()}
    assert modes == {"tiles": nest_abi.MOVE_TILE, "elements": nest_abi.MOVE_GATHER, "runs": 0, "rows": -2}
    assert all(each[nest_abi.N_JOINED] for each in words.values())
    own = words["tiles"][nest_abi.N_OWN]
    assert own % 64 == 0 and own == 4 * words["tiles"][nest_abi.N_O] and words["tiles"][nest_abi.N_O_TOTAL] == 999


WHOLE = ((331, 4, 232, 0), (58, 1324, 4, 0))
JOINED = ((5, 4, 3288, 0), (137, 20, 4, 0), (3, 2740, 1096, 0), (2, 8220, 548, 0))
BYTES = tuple((size, out // 4, a // 4, 0) for size, out, a, _ in JOINED)
ENDS = ((19, 4, 6572, 0), (31, 76, 212, 0), (53, 2356, 4, 0))
PAGES = ((70, 4, 16384, 0), (33, 280, 4, 0), (2, 9240, 132, 0))


@ISAS
@pytest.mark.parametrize("shift", [0, 4, 20])
@pytest.mark.parametrize(
    ("dims", "runs", "own", "step"),
    [
        (WHOLE, (64, 64), 64, 4),
        (WHOLE, (512, 64), 448, 4),
        (ENDS, (64, 64), 76, 4),  # whole loops that the next loop continues
        (PAGES, (64, 64), 64, 5),
        (JOINED, (256, 4), 160, 1),
        (BYTES, (40, 1), 0, 1),
    ],
)
def test_boxes_leave_the_unfinished_line_of_a_run_to_the_next_one(isa, shift, dims, runs, own, step, monkeypatch):
    """Runs, and tasks, begin and end anywhere in a line. Boxes of a run have whole lines or, where the input runs along
    the same loop, any bytes from a line on; less would not always reach the next line. Boxes along the input come
    between, if what all of them leave fits in cache and each task has several of a run."""
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    for name, length in zip(("LONG_OUT", "LONG_IN", "DENSE_IN"), (*runs, runs[1])):
        monkeypatch.setattr(move_boxes, name, (length,))
    name = "int8" if dims is BYTES else "float32"
    problem = NestProblem(op="copy", dims=dims, out=name, a=name)
    words = lower(problem).rows[0].words
    assert (words[nest_abi.N_OWN], words[nest_abi.N_OWN_STEP]) == (own, step)
    for threads in (1, 3):
        Case(problem=problem, shift=shift, threads=threads).check(isa)


def test_boxes_along_a_run_follow_each_other_where_others_would_leave_too_much_or_tasks_are_short(monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    for name, length in (("LONG_OUT", 256), ("LONG_IN", 64), ("DENSE_IN", 64)):
        monkeypatch.setattr(move_boxes, name, (length,))
    dims = ((300, 4, 4848, 0), (1212, 1200, 4, 0))
    problem = NestProblem(op="copy", dims=dims, out="float32", a="float32")
    one, few = (lower(problem, threads).rows[0].words for threads in (1, 3))
    assert one[nest_abi.N_OWN_STEP] > 1 == few[nest_abi.N_OWN_STEP]
    monkeypatch.setattr(move_boxes, "LEFT_BYTES", 64 * 1216)  # a line for each row of the output, in whole boxes
    assert lower(problem).rows[0].words[nest_abi.N_OWN_STEP] > 1
    monkeypatch.setattr(move_boxes, "LEFT_BYTES", 64 * 1216 - 1)
    assert lower(problem).rows[0].words[nest_abi.N_OWN_STEP] == 1


@ISAS
def test_copy_past_the_caches_ends_with_a_smaller_box(isa, monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    problem = NestProblem(op="copy", dims=((1100, 4, 7588, 0), (1897, 4400, 4, 0)), out="float32", a="float32")
    words = lower(problem).rows[0].words
    assert words[nest_abi.N_J] % 16 == 0 < words[nest_abi.N_J_TOTAL] % words[nest_abi.N_J]
    Case(problem=problem, shift=4).check(isa)


def test_copy_past_the_caches_asks_for_each_line_once(monkeypatch):
    """Of runs of the input that follow each other, those of later boxes ask for what those of earlier ones leave."""
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    row = lower(NestProblem(op="copy", dims=((4096, 4, 960, 0), (240, 16384, 4, 0)), out="float32", a="float32")).rows[0]
    start, count = row.words[nest_abi.N_AHEAD] // 8, row.words[nest_abi.N_AHEAD_COUNT]
    asked = row.tables[nest_abi.N_TABLE][start : start + count]
    box = np.add.outer(np.arange(row.words[nest_abi.N_O]) * 960, np.arange(row.words[nest_abi.N_J]) * 4)
    assert row.words[nest_abi.N_O] > 1 and sorted(set(asked // 64)) == sorted(set(asked // 64) & set((box // 64).flat))
    assert len(set(asked)) == row.words[nest_abi.N_O] * -(-4 * row.words[nest_abi.N_J] // 64)


@pytest.mark.parametrize(("row", "asks"), [(1000, True), (1024, True), (1056, False)])
def test_boxes_ask_for_no_runs_that_the_core_follows(row, asks, monkeypatch):
    monkeypatch.setattr(nest_moves, "STREAM_BYTES", 0)
    monkeypatch.setattr(cores, "here", lambda: replace(cores.PLAIN, rows_followed=4096))
    dims = ((row, 4, 4, 0), (70, 4 * row, 60 * 4 * row, 0), (60, 280 * row, 4 * row, 0))
    words = lower(NestProblem(op="copy", dims=dims, out="float32", a="float32")).rows[0].words
    assert (words.get(nest_abi.N_AHEAD_COUNT, 0) > 0) == asks


def test_boxes_whose_rows_push_each_other_out_of_the_first_cache_cost_that(monkeypatch):
    """``edacb`` of 15 x 49 x 5 x 72 x 32: five pieces of its input are 2304 and 9216 bytes from each other."""
    dims = [(49, 4, 46080, 0), (5, 196, 9216, 0), (15, 980, 2257920, 0), (72, 14700, 128, 0), (32, 1058400, 4, 0)]
    boxes = move_boxes.Boxes(dims, 4, 512, 64)
    rows = (np.arange(5)[:, None] * 9216 + np.arange(49) * 46080).ravel()
    together = max(Counter(rows % 4096 // 64).values())
    assert together > move_boxes.L1_WAYS and boxes.parts == {dims[0]: 49, dims[1]: 5, dims[4]: 32}
    lines = 4 * prod(d[0] for d in dims) / 64
    assert boxes.crowding() == pytest.approx(lines * move_boxes.CROWD_NS * (1 - move_boxes.L1_WAYS / together))
    assert move_boxes.Boxes(dims[::-1], 4, 64, 64).crowding() == 0
    assert move_boxes.best_boxes(dims, 4).parts.get(dims[1], 1) == 1
    monkeypatch.setattr(move_boxes, "CROWD_NS", 0)
    assert move_boxes.best_boxes(dims, 4).parts[dims[1]] == 5


def test_runs_of_one_line_cost_more_where_boxes_go_along_the_output(monkeypatch):
    dims = [(96, 8, 12480, 0), (1560, 768, 8, 0), (28, 1198080, 1198080, 0)]
    long, across = dims[0], dims[1]
    assert move_boxes.best_boxes(dims, 8).parts == {long: 96, across: 24}
    monkeypatch.setattr(move_boxes, "LONE_NS", 0)
    assert move_boxes.best_boxes(dims, 8).parts == {long: 96, across: 8}


def lines_of_threads(row, threads: int) -> list[set[int]]:
    """The lines of the result that each thread writes if each does its band of the tasks; the result begins with a line."""
    table, word, boxes = row.tables[nest_abi.N_TABLE], row.words, row.words[nest_abi.N_BOXES]
    odometer = table[: 4 * word[nest_abi.N_RANK]].reshape(-1, 4)
    place, found = np.zeros(boxes, np.int64), [set() for _ in range(threads)]
    along, across = (word[nest_abi.N_O], word[nest_abi.N_O_TOTAL]), (word[nest_abi.N_J], word[nest_abi.N_J_TOTAL])
    o, j = (table[word[at] // 8 :][: n[0]] for at, n in ((nest_abi.N_OUT_O, along), (nest_abi.N_OUT_J, across)))
    for box in range(boxes):
        digits, rest = [], box
        for size in odometer[:, 0]:
            digits.append(rest % size)
            rest //= size
        parts = [part[: total - digit * n] for part, (n, total), digit in zip((o, j), (along, across), digits)]
        lines = np.add.outer(*parts).ravel() + np.dot(digits, odometer[:, 1])
        task = next(t for t in range(row.tasks) if box < (t + 1) * boxes // row.tasks)
        found[next(t for t in range(threads) if task < (t + 1) * row.tasks // threads)] |= set((lines // LINE).tolist())
    return found


TRANSPOSED = [((n, 8, 8 * n, 0), (n, 8 * n, 8, 0)) for n in (128, 136, 200, 256, 300)]
TRANSPOSED.append(((16, 8, 8 << 12, 0), (16, 8 << 4, 8 << 8, 0), (16, 8 << 8, 8 << 4, 0), (16, 8 << 12, 8, 0)))


@pytest.mark.parametrize("dims", TRANSPOSED, ids=lambda dims: dims[0][0])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_write_rows_of_their_own(dims, threads):
    """A line that two of them write goes from core to core."""
    (row,) = lower(NestProblem(op="copy", dims=dims, out="float64", a="float64"), threads).rows
    found = lines_of_threads(row, threads)
    assert row.words[abi.PARALLEL] and all(found) and len(set().union(*found)) == prod(d[0] for d in dims) // 8
    assert sum(map(len, found)) - len(set().union(*found)) < threads


def test_rows_of_a_loop_between_are_not_shared():
    """`abc->cba`, in which rows of b are side by side and no lines: threads share one piece of c at most."""
    dims = ((52, 8, 8 * 2850, 0), (10, 8 * 52, 8 * 285, 0), (285, 8 * 520, 8, 0))
    for threads in (2, 4):
        (row,) = lower(NestProblem(op="copy", dims=dims, out="float64", a="float64"), threads).rows
        found = lines_of_threads(row, threads)
        assert sum(map(len, found)) - len(set().union(*found)) <= (threads - 1) * row.words[nest_abi.N_J]


def test_threads_would_write_the_same_lines_else(monkeypatch):
    monkeypatch.setattr(nest_moves, "_for_threads", lambda dims, item, o, j, outer, threads: (o, j, outer))
    (row,) = lower(NestProblem(op="copy", dims=TRANSPOSED[0], out="float64", a="float64"), 2).rows
    rows = [{line // 16 for line in lines} for lines in lines_of_threads(row, 2)]
    assert len(rows[0] & rows[1]) == 128  # and so the same lines, where the result begins within one


@pytest.mark.parametrize("shape", [(128, 128), (256, 256), (5, 20000), (3, 10000), (1009, 31)])
@pytest.mark.parametrize("threads", [2, 3, 8, 64])
def test_boxes_that_threads_share_keep_whole_tiles(shape, threads, monkeypatch):
    """However many threads there are: rows of one element, or a few, take twice as long and more."""
    (rows, columns), found = shape, []
    dims = ((columns, 8, 8 * rows, 0), (rows, 8 * columns, 8, 0))
    problem = NestProblem(op="copy", dims=dims, out="float64", a="float64")
    for chosen in (nest_moves._for_threads, lambda dims, item, o, j, outer, threads: (o, j, outer)):
        monkeypatch.setattr(nest_moves, "_for_threads", chosen)
        (row,) = lower(problem, threads).rows
        found.append((row.words[nest_abi.N_O], row.words[nest_abi.N_J]))
    assert found[0][0] == found[1][0] and found[0][1] >= min(16, found[1][1])


@pytest.mark.parametrize("op", ["copy", "mul", "sum"])
def test_tasks_and_empty_problems(op):
    b = "float64" if op == "mul" else ""
    inner = 0 if op == "sum" else 8
    small = NestProblem(op=op, dims=((10, 8, 8, 8),), out="float64", a="float64", b=b)
    assert [row.tasks for row in lower(small, 8).rows] == [1]
    large = NestProblem(op=op, dims=((4096, 8 * 512, 8, 8), (512, inner, 8 * 4096, 0)), out="float64", a="float64", b=b)
    assert lower(large, 1).rows[0].tasks == 1
    assert 4 <= lower(large, 4).rows[0].tasks <= 16
    empty = NestProblem(op=op, dims=((0, 8, 8, 8), (5, inner, 8, 0)), out="float64", a="float64", b=b)
    assert lower(empty).rows == ()


def test_problems_that_make_no_sense():
    with pytest.raises(EngineValueError, match="operation 'max' is none of copy, mul, sum"):
        NestProblem(op="max", dims=(), out="float32", a="float32")
    with pytest.raises(EngineValueError, match="dtype 'float8' is none of"):
        NestProblem(op="copy", dims=(), out="float8", a="float32")
    with pytest.raises(EngineValueError, match="output has stride 0 in the loop of size 3"):
        NestProblem(op="mul", dims=((3, 0, 4, 4),), out="float32", a="float32", b="float32")
    with pytest.raises(EngineValueError, match="'sum' takes neither swap_a nor scaled"):
        NestProblem(op="sum", dims=(), out="float32", a="float32", scaled=True)


@ISAS
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "float16"])
def test_sum_over_short_runs(isa, dtype, threads):
    """Few adjacent outputs: several of them are kept side by side before they are added."""
    item = item_of(dtype)
    for run, count, rest in ((3, 320, 5), (2, 1000, 1), (5, 97, 4), (3, 9600, 2)):
        pitch = run * item
        dims = ((run, item, item, 0), (count, 0, pitch, 0), (rest, pitch, pitch * count, 0))
        for dims in (dims, (*dims, (7, 0, rest * pitch * count, 0)), ((run, -item, item, 0), *dims[1:])):
            problem = NestProblem(op="sum", dims=dims, out=dtype, a=dtype, accumulate=True)
            Case(problem, seed=run, threads=threads).check(isa)


@ISAS
@pytest.mark.parametrize("out, a", [("float32", "float32"), ("complex64", "complex64"), ("float16", "float16")])
def test_sum_of_rows_in_order(isa, out, a, monkeypatch):
    """One pair of rows, a row more, less and more than a chain of 16 pairs, ends of rows that are no whole vectors, several
    boxes of rows, of which the last may have one."""
    monkeypatch.setattr(nest_sums, "FAR_BYTES", 0)
    item = item_of(a)
    shapes = [(77, 2, {}), (130, 15, {"accumulate": True}), (96, 49, {"conj_a": True}), (67, 1600, {})]
    shapes += [(80, 3, {}), (65, 32, {}), (66, 35, {"accumulate": True}), (70, 513, {}), (70, 1025, {"accumulate": True})]
    for columns, rows, flags in shapes:
        pitch = columns * item
        dims = ((columns, item_of(out), item, 0), (rows, 0, pitch, 0), (3, columns * item_of(out), rows * pitch, 0))
        case = Case(NestProblem(op="sum", dims=dims, out=out, a=a, **flags), seed=rows, threads=1 + rows % 2)
        assert lower(case.problem, case.threads).rows[0].words[nest_abi.N_FLAGS] & nest_abi.IN_ORDER
        case.check(isa)


@ISAS
@pytest.mark.parametrize("rows", [16, 17, 4096])
def test_error_of_a_sum_of_rows_in_order_is_small(isa, rows, monkeypatch):
    monkeypatch.setattr(nest_sums, "FAR_BYTES", 0)
    case = Case(NestProblem(op="sum", dims=((64, 4, 4, 0), (rows, 0, 256, 0)), out="float32", a="float32"))
    operands = case.operands()
    operands[1].view[...] = np.random.default_rng(1).random((64, rows))
    case.run(isa, operands)
    exact = operands[1].view.astype(np.float64).sum(axis=1)
    assert (np.abs(operands[0].view.ravel() - exact) / exact).max() < 10 * np.finfo(np.float32).eps


@ISAS
def test_sum_of_nothing_is_zero(isa):
    for dims in (((0, 0, 4, 0),), ((8, -4, 4, 0), (0, 0, 32, 0)), ((40, 4, 4, 0), (0, 0, 160, 0), (3, 0, 8, 0))):
        for accumulate in (False, True):
            problem = NestProblem(op="sum", dims=dims, out="float32", a="float32", accumulate=accumulate)
            Case(problem, seed=3).check(isa)


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
@pytest.mark.parametrize("columns", [1, 16])
def test_error_of_a_long_sum_is_small(isa, dtype, columns):
    """All of one sign, so that the relative error is that of the summation: a few roundings, not one per term."""
    rows, out = 20_000, "float32" if dtype == "float16" else dtype
    dims = ((rows, 0, columns * item_of(dtype), 0), (columns, item_of(out), item_of(dtype), 0))
    case = Case(NestProblem(op="sum", dims=dims, out=out, a=dtype), threads=4)
    operands = case.operands()
    terms = np.random.default_rng(1).random((rows, columns))
    operands[1].view[...] = terms
    case.run(isa, operands)
    exact = operands[1].view.real.astype(np.float64).sum(axis=0)
    error = np.abs(operands[0].view.real.astype(np.float64).ravel() - exact) / exact
    assert error.max() < 20 * np.finfo(np.float32).eps


@ISAS
def test_element_wise_work_in_place(isa):
    """An input may be the output."""
    for dims in (((37, 4, 4, 4),), ((5, 4, 4, 4), (70, 24, 24, 24)), ((9, 40, 40, 40), (13, 400, 400, 400))):
        problem = NestProblem(op="mul", dims=dims, out="float32", a="float32", b="float32")
        case = Case(problem)
        operands = case.operands()
        expected = operands[0].view * operands[2].view
        case.run(isa, [operands[0], operands[0], operands[2]])
        np.testing.assert_array_equal(operands[0].view, expected)


@ISAS
def test_the_check_can_fail(isa, monkeypatch):
    """A kernel that skips the last element, and one that swaps the operands' loops, are caught."""
    problem = NestProblem(op="copy", dims=((7, 4, 28, 0), (7, 28, 4, 0)), out="float32", a="float32")
    right = nest_case.lower
    for wrong in (((6, 4, 28, 0), (7, 28, 4, 0)), ((7, 4, 4, 0), (7, 28, 28, 0)), ((8, 4, 28, 0), (7, 28, 4, 0))):
        monkeypatch.setattr(nest_case, "lower", lambda p, threads: right(replace(p, dims=wrong), threads))  # noqa: B023
        with pytest.raises(AssertionError):
            Case(problem, seed=3).check(isa)
