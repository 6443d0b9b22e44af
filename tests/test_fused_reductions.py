"""Reductions in fused kernels: alone, beside what is stored, and shared by tasks."""

import fused_case
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fused import ISAS, SHAPES, SIZES, check

from einsum_engine.kernels import fused, fused_boxes, fused_reduced, launch
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels import isa as isa_table
from einsum_engine.kernels.cpu import abi, fused_abi
from einsum_engine.kernels.cpu import nest_abi as na

REDUCED = [
    ("sum", "float32"),
    ("prod", "int8"),
    ("max", "float64"),
    ("min", "uint16"),
    ("any", "bool"),
    ("all", "bool"),
]
REDUCED += [("sum", "complex64"), ("sum", "int64"), ("max", "int32")]


@ISAS
@pytest.mark.parametrize("reduce, dtype", REDUCED)
@settings(SHAPES, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 9999), shape=SIZES, threads=st.sampled_from([1, 4]))
def test_reductions(isa, reduce, dtype, data, seed, shape, threads):
    reduced = tuple(sorted(data.draw(st.sets(st.integers(0, max(0, len(shape) - 1))))) if shape else ())
    structure = fused_case.single("", (dtype,), reduce)
    check(isa, structure, seed, tuple(shape), reduced, threads)


@ISAS
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (1000, 3), (67, 131), (5, 9000), (9000, 5), (300, 200)])
def test_map_and_reductions_together(isa, axis, shape, threads):
    """What softmax does: exp(x - m) is stored, and its sum."""
    g = fs.Graph(("float32", "float32"))
    e = g.op("exp", g.op("sub", 0, 1))
    structure = g.structure(e, (e, "sum"), (0, "max"))
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype("f")
    m = x.max(axis, keepdims=True)
    out = [np.full(shape, np.nan, "f"), np.full_like(m, np.nan), np.full_like(m, np.nan)]
    rows = fused_case.run(isa, structure, out, [x, m], threads)
    assert rows[0].tasks > 1 or threads == 1 or min(shape) < 64 or x.size < 40_000
    exact = np.exp((x - m).astype(float))
    np.testing.assert_allclose(out[0], exact, rtol=4e-7)
    np.testing.assert_allclose(out[1], exact.sum(axis, keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(out[2], m)


@ISAS
@pytest.mark.parametrize("reduced, shape", [((0,), (100_003,)), ((0,), (9001, 67)), ((0, 2), (300, 5, 131))])
def test_tasks_share_a_reduction(isa, reduced, shape):
    """Two results at once, with partial results in guarded memory."""
    g = fs.Graph(("float32", "float32"))
    structure = g.structure((g.op("mul", 0, 1), "sum"), (0, "max"))
    check(isa, structure, 3, shape, reduced, threads=4)
    inputs = [np.ones(shape, "f") for _ in range(2)]
    outputs = [np.empty([1 if n in reduced else size for n, size in enumerate(shape)], "f") for _ in range(2)]
    problem = fused_case.problem_of(structure, outputs, inputs)
    assert fused.temp_bytes(problem, 1) == 0 < fused.temp_bytes(problem, 4)
    first, second = fused.lower(problem, 4, fused.Operand(slot=4, offset=0))
    assert first.tasks > 1 and first.words[fused_abi.U_SHARE] and second.tasks == 1


@ISAS
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("reduced, shape", [((0,), (100_003,)), ((0,), (9001, 67)), ((0, 2), (300, 5, 131)), ((0,), (12, 70_001))])
def test_tasks_that_share_a_reduction_store_their_own_parts(isa, reduced, shape, order):
    """What is stored lies beside partial results in the row, before them or after; only these are one for each task."""
    g = fs.Graph(("float32", "float32"))
    outputs = [(g.op("mul", 0, 1), "sum"), (0, "max"), g.op("sub", 0, 1)]
    structure = g.structure(*(outputs[n] for n in order))
    check(isa, structure, 3, shape, reduced, threads=4)
    kept = [1 if n in reduced else size for n, size in enumerate(shape)]
    made = [np.empty(shape if outputs[n] == outputs[2] else kept, "f") for n in order]
    problem = fused_case.problem_of(structure, made, [np.ones(shape, "f") for _ in range(2)])
    rows = fused.lower(problem, 4, fused.Operand(slot=5, offset=0))
    assert rows[0].tasks > 1 and len(rows) == (1 if 70_001 in shape else 2)  # so many results are a task's own anyway


@ISAS
@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(40, 5, 33), (7, 300, 18), (300, 40, 9), (3, 64, 2000), (9, 4, 700)])
def test_operands_that_lie_across_each_other(isa, order, shape, dtype):
    """Small integers, of which no order of the sum changes the result; each index is kept once."""
    rng = np.random.default_rng(0)
    one, two = rng.integers(-2, 3, (2, *shape)).astype(dtype)
    two = two.transpose(order).copy().transpose(np.argsort(order))
    for axis in range(3):
        summed = tuple({0, 1, 2} - {axis})
        out = (one * two).sum(summed, keepdims=True, dtype=dtype)
        found = np.empty_like(out)
        fused_case.run(isa, _product(dtype), [found], [one, two], 2)
        np.testing.assert_array_equal(found, out)


@ISAS
def test_loops_that_are_the_same_are_each_reduced(isa):
    """Elements of the operands share memory: two reduced loops with the same strides, along O and beside it."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (60, 160)).astype("f8")
    one = np.lib.stride_tricks.sliding_window_view(x, 40, axis=1)[:, :40]
    two = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(x.T), 40, axis=0)[:60].transpose(1, 0, 2)[:, :40]
    for left, right in ((one, two), (one, one)):
        exact = (left * right).sum((1, 2), keepdims=True)
        for threads in (1, 2):
            found = np.empty_like(exact)
            fused_case.run(isa, _product("float64"), [found], [left, right], threads)
            np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("kept, rows", [(400, 400), (10, 10), (256, 5000)])
def test_what_lies_across_is_turned_round_by_tiles(kept, rows):
    """Of a result along rows of the second operand; with the rows of the first in a box, which stays in the L1 cache."""
    one, two = np.zeros((3, kept, rows)), np.zeros((rows, 3, kept)).transpose(1, 2, 0)
    (row,) = fused.lower(fused_case.problem_of(_product("float64"), [np.zeros((1, kept, 1))], [one, two]))
    found = row.tables[fused_abi.U_TABLE][: 3 * fused_abi.O_WORDS].reshape(3, -1)
    assert list(found[:, fused_abi.O_MODE]) == [na.CONTIGUOUS, na.STAGED + na.MOVE_TILE, na.CONTIGUOUS]
    assert row.words[fused_abi.U_O] <= fused_reduced.TURNED and found[1, fused_abi.O_RUN] > 1
    assert row.words[fused_abi.U_O] * row.words[fused_abi.U_J] * 8 <= fused_boxes.STAGED_BYTES


@ISAS
@pytest.mark.parametrize("kept, staged", [((2, 17), True), ((3, 100), True), ((64, 100), False), ((1, 17), True)])
def test_few_columns_of_several_tasks_are_added_apart(isa, kept, staged):
    """In scratch: lines that two tasks add to, row after row, would go to and fro between cores."""
    outer, count = kept
    shape = (outer, 200_000 // outer // count, count)
    x = np.random.default_rng(0).integers(-2, 3, shape).astype("f")
    out = np.empty((outer, 1, count), "f")
    (row, *_) = fused_case.run(isa, _product("float32"), [out], [x, x], 2)
    np.testing.assert_array_equal(out, (x * x).sum(1, keepdims=True))
    check(isa, _product("float32"), 7, shape, (1,), threads=2)  # with memory for parts of what tasks share
    assert (row.tables[fused_abi.U_TABLE][fused_abi.O_MODE] >= na.STAGED) == staged
    assert row.tasks > 1 or outer == 1, "a box of results is shared where there is memory for parts of it"


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("kept", [1, 5, 16, 67, 131])
def test_results_of_boxes_are_added_up(isa, dtype, kept):
    """Several results for each column, whole vectors and less than one, with one task and with several."""
    g = fs.Graph((dtype, dtype))
    structure = g.structure((g.op("mul", 0, 1), "sum"), (0, "min"), (g.op("add", 0, 1), "sum"))
    for threads in (1, 3):
        check(isa, structure, 5, (200_000 // kept, kept), (0,), threads)
        check(isa, _product(dtype), 5, (3, 70_000 // kept, kept), (1,), threads)


@ISAS
@pytest.mark.parametrize("last", [1, 2])
def test_sums_of_many_rows_have_few_roundings(isa, last):
    """A box of rows has sums of its own; one sum for all rows would have an error of a hundred epsilons."""
    rows = np.random.default_rng(0).uniform(0.5, 1, (100_000, 50, last)).astype("f")
    out = np.empty((1, 50, last), "f")
    (row,) = fused_case.run(isa, _product("float32"), [out], [rows, rows])
    assert row.words[fused_abi.U_MODE] == fused_abi.COLUMNS
    np.testing.assert_allclose(out[0], (rows.astype(float) ** 2).sum(0), rtol=16 * np.finfo("f").eps)


def test_few_rows_have_one_sum():
    for shape, parts in (((100, 5000), 0), ((5000, 100), 1)):
        for dtype in ("float32", "int32"):
            out, x = np.zeros((1, shape[1]), dtype), np.zeros(shape, dtype)
            (row,) = fused.lower(fused_case.problem_of(_product(dtype), [out], [x, x]))
            assert row.words[fused_abi.U_MODE] == fused_abi.COLUMNS
            assert row.words[fused_abi.U_PARTS] == (parts and dtype == "float32")


@ISAS
def test_a_zero_stays_one_beside_products_that_overflow(isa):
    """A product has no parts: that of one box is 0, that of another infinite."""
    g = fs.Graph(("float32",))
    rows, out = np.full((5000, 100), 3.0, "f"), [np.empty((1, 100), "f") for _ in range(2)]
    rows[0] = 0
    fused_case.run(isa, g.structure((0, "prod"), (0, "sum")), out, [rows])
    np.testing.assert_array_equal(out[0], 0)
    np.testing.assert_array_equal(out[1], 4999 * 3.0)


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
@pytest.mark.parametrize("short, long", [(2, 7), (3, 360), (5, 1), (31, 300), (4, 3000)])
@pytest.mark.parametrize("beside", ["same", "one", "across"])
def test_short_rows_go_on_while_results_lie_across(isa, dtype, short, long, beside):
    """Both loops are a row, of which each result is put where it belongs; an operand that does not go on ends it."""
    rng = np.random.default_rng(short)
    x = rng.integers(-3, 4, (4, long, short)).astype(dtype)
    other = {"same": x.shape, "one": (4, 1, 1), "across": (4, long, 1)}[beside]
    y = rng.integers(-3, 4, other).astype(dtype)
    for threads in (1, 3):
        room = np.full(short * long + 64, 99, dtype)
        out = room[32:-32].reshape(short, long).T[None]
        (row,) = fused_case.run(isa, _product(dtype), [out], [x, y], threads)
        np.testing.assert_array_equal(out[0], (x * y).sum(0, dtype=dtype))
        assert (room[:32] == 99).all() and (room[-32:] == 99).all()
    if long == 360:
        assert (row.words[fused_abi.U_O] == short * long) == (beside != "across") and row.words[fused_abi.U_MODE] == fused_abi.COLUMNS


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int8"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("shape", [(3, 70, 90), (5, 300, 301), (2, 4, 1000), (7, 257, 5), (1, 33, 65)])
def test_results_of_operands_that_lie_across_each_other(isa, shape, reduce, dtype):
    """Boxes along both kept loops, to which each turn of the third one adds, up to the ends of operands; results along either."""
    rng = np.random.default_rng(0)
    turns, rows, columns = shape
    g = fs.Graph((dtype, dtype))
    structure = g.structure((g.op("mul", 0, 1), reduce))
    for flush in ("start", "end"):
        x = oracle.place(rng.integers(-3, 4, (turns, rows, columns)).astype(dtype), flush)
        y = oracle.place(rng.integers(-3, 4, (turns, columns, rows)).astype(dtype), flush).transpose(0, 2, 1)
        exact = (x * y).sum(0, dtype=dtype) if reduce == "sum" else (x * y).max(0)
        for order, threads in (((0, 1), 1), ((1, 0), 1), ((0, 1), 3), ((1, 0), 3)):
            room = np.full(rows * columns + 64, 99, dtype)
            out = room[32:-32].reshape([(rows, columns)[n] for n in order]).transpose(order)
            (row,) = fused_case.run(isa, structure, [out[None]], [x, y], threads)
            np.testing.assert_array_equal(out, exact)
            assert (room[:32] == 99).all() and (room[-32:] == 99).all()
            crossed = turns > 1 and min(rows, columns) >= 8
            assert not crossed or row.words[fused_abi.U_MODE] == fused_abi.MAP and row.words[fused_abi.U_REDUCED_BOXES] == turns


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int16"])
@pytest.mark.parametrize("shape", [(400, 18, 45), (1000, 17, 16), (60, 100, 70)])
def test_tasks_share_turns_of_results_that_lie_across(isa, shape, dtype):
    """Where one box has all results, in guarded memory of each task; of others, each has boxes of its own."""
    rng = np.random.default_rng(0)
    turns, rows, columns = shape
    x = rng.integers(-3, 4, (turns, rows, columns)).astype(dtype)
    y = rng.integers(-3, 4, (turns, columns, rows)).astype(dtype).transpose(0, 2, 1)
    out = np.empty((1, columns, rows), dtype).transpose(0, 2, 1)
    problem = fused_case.problem_of(_product(dtype), [out], [x, y])
    room = oracle.guarded(fused.temp_bytes(problem, 4))
    temp = fused.Operand(slot=3, offset=0) if len(room) else None
    made = fused.lower(problem, 4, temp)
    launch.run(made, [a.__array_interface__["data"][0] for a in (out, x, y, room)], isa)
    np.testing.assert_array_equal(out, (x * y).sum(0, dtype=dtype, keepdims=True))
    shared = rows * columns * out.itemsize <= fused_reduced.CROSSED * fused_boxes.STAGED_BYTES
    assert made[0].words[fused_abi.U_MODE] == fused_abi.MAP and bool(made[0].words[fused_abi.U_SHARE]) == shared == bool(len(room))
    assert made[0].tasks > 1 and made[0].words[fused_abi.U_KEPT_BOXES] >= made[0].tasks or shared


@pytest.mark.parametrize("short", [(3, 2, 328, 3), (7, 10, 251, 1), (2, 3, 152, 12)])
def test_short_rows_are_weighed_against_others(short):
    """Of operands that run along short loops, each along its own: rows go along a long one, and both are staged."""
    one, two, long, turns = short
    x = np.zeros((turns, two, long, one)).transpose(0, 2, 3, 1)
    y = np.zeros((turns, one, long, two)).transpose(0, 2, 1, 3)
    (row,) = fused.lower(fused_case.problem_of(_product("float64"), [np.zeros((1, 1, one, two))], [x, y]))
    assert row.words[fused_abi.U_O] == long and row.words[fused_abi.U_MODE] == fused_abi.ROWS


def test_tasks_have_lines_of_their_own_where_results_lie_across():
    """Rows go on only if the loops that are left put what tasks store into other lines."""
    x, out = np.zeros((5, 7, 43, 30), "c8"), np.zeros((30, 43, 7), "c8").transpose(2, 1, 0)[None]
    for threads, count in ((1, 3870), (2, 30)):
        (row,) = fused.lower(fused_case.problem_of(_product("complex64"), [out], [x, x]), threads)
        assert row.words[fused_abi.U_O] == count


def test_no_elements_are_predicted_to_take_no_time():
    x = np.zeros((0, 4, 5), "f")
    assert fused.seconds(fused_case.problem_of(_product("float32"), [np.zeros((1, 4, 5), "f")], [x, x])) == 0


@pytest.mark.parametrize("loops, staged", [((5, 16, 17, 100), True), ((40, 40, 90, 9), False)])
def test_few_results_that_lie_across_are_added_apart(loops, staged):
    """In scratch: lines that two tasks add to, turn after turn, would go to and fro between cores."""
    kept, rows, columns, turns = loops
    x = np.random.default_rng(0).integers(-2, 3, (kept, turns, rows, columns)).astype("f")
    y = np.random.default_rng(1).integers(-2, 3, (kept, turns, columns, rows)).astype("f").transpose(0, 1, 3, 2)
    out = np.empty((rows, kept, columns), "f").transpose(1, 0, 2)[:, None]
    (row, *_) = fused_case.run(isa_table.host_isas()[0], _product("float32"), [out], [x, y], 2)
    np.testing.assert_array_equal(out, (x * y).sum(1, keepdims=True))
    assert row.words[fused_abi.U_MODE] == fused_abi.MAP and row.tasks > 1
    assert (row.tables[fused_abi.U_TABLE][fused_abi.O_MODE] >= na.STAGED) == staged


def test_short_reductions_are_shared_by_what_they_take():
    """Rows of few entries take longer than their bytes say."""
    for width, shared in ((4, True), (4096, False)):
        x, out = np.zeros((60_000 // width, 1, width), "f"), np.zeros((60_000 // width, 1, 1), "f")
        (row,) = fused.lower(fused_case.problem_of(_product("float32"), [out], [x, x]), 2)
        assert bool(row.words[abi.PARALLEL]) == shared


def test_what_is_stored_beside_results_has_no_boxes_of_both():
    """Each turn stores other elements of it."""
    g = fs.Graph(("float32", "float32"))
    structure = g.structure((g.op("mul", 0, 1), "sum"), g.op("add", 0, 1))
    for turns in (5, 400):
        x, y = np.ones((turns, 70, 90), "f"), np.full((turns, 90, 70), 2, "f").transpose(0, 2, 1)
        for stored in (np.zeros((turns, 70, 90), "f"), np.zeros((90, 70, turns), "f").T):
            out = [np.empty((1, 70, 90), "f"), stored]
            (row,) = fused_case.run(isa_table.host_isas()[0], structure, out, [x, y])
            assert row.words[fused_abi.U_MODE] != fused_abi.MAP
            assert (out[0] == 2 * turns).all() and (out[1] == 3).all()


@pytest.mark.parametrize("kept", [40, 258])
def test_results_along_rows_are_boxes_for_all_tasks(kept):
    x, out = np.zeros((kept, 600_000 // kept)), np.zeros((kept, 1))
    (row,) = fused.lower(fused_case.problem_of(_product("float64"), [out], [x, x]), 2)
    assert row.tasks >= 4


def _product(dtype: str) -> fs.Structure:
    g = fs.Graph((dtype, dtype))
    return g.structure((g.op("mul", 0, 1), "sum"))
