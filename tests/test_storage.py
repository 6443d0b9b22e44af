"""Storage tables: which copies are left, and that plans do what their tables say, no more and no less."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_calls import copy_of
from random_programs import body_of, draw_case, make_inputs, replay
from random_regions import arguments, draw, function_of
from stored import check_storage
from test_control import branches_write, loop_in_branch, loop_writes
from test_trace import A, aliases, by_index, view_example, with_out

import einsum_engine as engine
from einsum_engine.bench import program_numpy
from einsum_engine.bench.cases import VIEWS, WHOLE
from einsum_engine.bench.program_cases import programs
from einsum_engine.storage import Place
from einsum_engine.views import View


def table_of(function, *arrays, passes=None):
    """The table of a jitted function, held against what its plan does."""
    return check_storage(engine.jit(function, passes=passes), *map(copy_of, map(np.asarray, arrays)))


def kinds(table):
    return [row.kind for row in table.rows]


# -- copies that NumPy's semantics force, and no others ----------------------------------------------------------------
def test_view_example_copies_nothing():
    """The RFC's example: two rows are read where they are, one is written where it is, by the step that computes it."""
    table = table_of(view_example, A)
    assert table.copies() == [] and kinds(table) == ["view", "view", "compute", "fused", "write", "compute"]
    assert table.show().splitlines() == [
        "@0: input 0: float64, 96 bytes",
        "@1: arena from 0: float64, 32 bytes, steps 0 to 1",
        "@2: result 0: float64, 96 bytes",
        "view %1 @0([4],[1],4)",
        "view %2 @0([4],[1],8)",
        "compute %3 @1([4],[1],0) by step 0",
        "fused %4 by step 0",
        "write %5 @0([3,4],[4,1],0) to @0([4],[1],8) by step 0",
        "compute %6 @2([3,4],[4,1],0) by step 1",
        "return 0 @2([3,4],[4,1],0)",
        "return 1 @0([3,4],[4,1],0)",
    ]


def swap_rows(a):
    row = a[0].copy()
    a[0] = a[1]
    a[1] = row


def shift(a):
    a[1:] = a[:-1]


def update(a):
    a[1:] += a[:-1]


def red_black(a):
    a[1:-1:2] = (a[:-2:2] + a[2::2]) * 0.5
    a[2:-1:2] = (a[1:-2:2] + a[3::2]) * 0.5


def several(a):
    b = a * 2
    b[0] = 1
    b[1] *= b[2]
    b.T[1] += 3
    return b


def kept(a):
    b = a.copy()
    a[0] = 0
    return a.sum() + b.sum()


def not_written(a):
    b = a.copy()
    b[0] = 0
    return b


def shared(a):
    x = a[0] * 2
    a[1] = x
    a[1] += 1
    return x


def cache_write(a, i):
    a[i] = a[0] * 2
    return a.sum()


def by_loop(a, n):
    def body(i):
        a[1] += a[0]
        return i + 1

    return engine.while_loop(lambda i: i < n, body, np.int64(0))


def by_branch(a, n):
    return engine.cond(n > 1, lambda: a[0].fill(3) or n, lambda: a[0, 1:].fill(4) or n)


def state(a, n):
    return engine.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (np.int64(0), a))[1]


def offset2bbox(source, offset):
    """Boxes (top, left, bottom, right) moved and scaled by offsets."""
    size = source[:, 2:] - source[:, :2]
    centre = source[:, :2] + 0.5 * size
    moved = offset[:, :2] * size + centre
    half = np.exp(offset[:, 2:]) * size * 0.5
    boxes = np.zeros_like(offset)
    boxes[:, 0::4] = (moved - half)[:, :1]
    boxes[:, 1::4] = (moved - half)[:, 1:]
    boxes[:, 2:] = moved + half
    return boxes


def partly(a):
    b = np.zeros_like(a)
    b[0] = a[0] * 2
    b[2] = a[1] * 2
    return b


def read_between(a):
    b = np.zeros_like(a)
    b[0] = a[0] * 2
    s = b.sum()
    b[1:] = a[1:] * 2
    return b, s


def built_twice(a):
    b = np.zeros_like(a)
    row = a[0] * 2
    b[0] = row
    b[1:] = a[1:] * 2
    b[0] += 1
    return b, row


LINE = np.arange(9.0)
N = np.int64(3)
COPIES = {
    "swap rows": (swap_rows, (A,), ["%1: its memory is written while it is needed"]),
    "shift": (shift, (A,), ["%1: it is read while it is written"]),
    "update": (update, (A,), []),  # the sum needs memory of its own, as in NumPy
    "red and black": (red_black, (LINE,), []),
    "several": (several, (A,), []),
    "kept": (kept, (A,), []),  # its sum is taken before the write
    "not written": (not_written, (A,), ["%1: %0 is in memory that is not written (input)"]),
    "shared": (shared, (A,), []),
    "cache": (cache_write, (A, np.int64(1)), []),
    "loop": (by_loop, (A, N), []),
    "branch": (by_branch, (A, N), ["%1: it has memory of its own"]),
    "state": (state, (A, N), ["%0: the loop starts from it, and it is read later or is not written"]),
    "boxes": (offset2bbox, (A, A[::-1] * 0.5), []),
    "partly": (partly, (A,), []),
    "read between": (read_between, (A,), []),
    "built twice": (built_twice, (A,), []),
    "argument": (lambda a: a, (A,), []),
    "twice": (lambda a: (a * 2,) * 2, (A,), []),
    "view": (lambda a: a[1:] + 0, (A,), []),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_are_left(name):
    function, arrays, wanted = COPIES[name]
    assert table_of(function, *arrays).copies() == wanted


def test_what_is_in_the_way_is_copied_rather_than_all():
    """Two rows of a large array change places: one of them is copied, by a few kilobytes, and nothing else."""
    array = np.random.default_rng(0).random((1000, 1000))
    assert engine.jit(swap_rows).plan(array).bytes_moved < 10 * array[0].nbytes


def test_a_loop_copies_the_row_that_is_kept():
    def function(a, n):
        row = a[0].copy()

        def body(i):
            a[1] += a[0]
            a[0] *= 2
            return i + 1

        engine.while_loop(lambda i: i < n, body, np.int64(0))
        return row + a[2]

    table = table_of(function, A, N)
    assert table.copies() == ["%2: its memory is written while it is needed"], table
    assert table.memory[table.row(table.program.eqns[0].outputs[0]).place.memory].nbytes == A[0].nbytes


def test_what_is_built_up_is_computed_in_place():
    table = table_of(offset2bbox, A, A * 0.5)
    assert "fresh" not in kinds(table) and kinds(table).count("begin") == 1
    assert [memory.kind for memory in table.memory].count("result") == 1


@pytest.mark.parametrize("name", ["view_example", "offset2bbox"])
def test_what_is_left_of_the_examples_of_the_rfc(name):
    """No access is a step, and every assign is done by the step that computes its value; nothing else is forced."""
    (case,) = (case for case in programs((VIEWS,)) if case.function == name)
    table = engine.jit(program_numpy.function(case)).storage(*program_numpy.arguments(case))
    assert table.copies() == [] and table.moved == ()
    for eqn in table.program.eqns:
        row = table.row(eqn.outputs[0])
        if eqn.op == "access":
            assert row.kind in ("view", "number") and row.steps == ()
        elif eqn.op == "assign":
            assert row.kind in ("begin", "write") and row.steps == table.row(eqn.inputs[1]).steps


def test_accesses_and_assigns_of_offset2bbox():
    """Four parts of the arguments are read, three parts of the result written; half of a sum goes to two of them."""
    eqns = [eqn for eqn in engine.jit(offset2bbox).program(A, A).eqns if eqn.op in ("access", "assign")]
    reads = [str(eqn.inputs[0]) for eqn in eqns if eqn.op == "access"]
    assert reads == ["%0", "%0", "%1", "%1", "0.0:float64", "%15", "%15"]
    assert [str(eqn.named["view"]) for eqn in eqns if eqn.op == "assign"] == [
        "([3,1],[4,4],0)",
        "([3,1],[4,4],1)",
        "([3,2],[4,1],2)",
    ]


def test_a_loop_writes_in_place_inside_an_array():
    table = table_of(by_loop, A, N)
    assert table.memory[0].kind == "input" and table.row(table.program.eqns[1].outputs[1]).kind == "compute"
    (loop,) = (row for row in table.rows if row.tables)
    _, body = loop.tables[1]
    assert body.results[1] == Place(0, View((8,), (8,), 0), 8) and "write" in kinds(body)


def test_a_branch_leaves_its_result_where_that_is_assigned():
    table = table_of(by_branch, A, N)
    inner = [each for row in table.rows for _, each in row.tables]
    assert [each.results for each in inner] == [(Place(0, View((4,), (8,), 0), 8),)] * 2
    assert kinds(table)[-1] == "done"


# -- what tables say is what plans do ----------------------------------------------------------------------------------
@pytest.mark.parametrize("passes", [(), None])
@pytest.mark.parametrize("function", [view_example, aliases, by_index, with_out])
def test_functions(function, passes):
    table_of(function, A, passes=passes)


@pytest.mark.parametrize("function, more", [(branches_write, np.True_), (loop_writes, N), (loop_in_branch, np.True_)])
def test_regions(function, more):
    for passes in ((), None):
        table_of(function, A, more, passes=passes)


@pytest.mark.parametrize("function", [view_example, aliases, by_index, with_out, shift, red_black])
def test_inputs_in_another_order(function):
    """The memory of an array whose axes are swapped, every other element of it; and backwards."""
    memory = np.zeros(24)
    array = np.lib.stride_tricks.as_strided(memory, (3, 4), (16, 48))
    array[...] = A
    table_of(function, array)
    table_of(function, array[::-1, ::-1])


def test_results_that_swap_their_memory():
    def function(a, b):
        a[...], b[...] = b * 1, a * 1

    table_of(function, A, A + 1)


LONG = ("jacobi_sweep", "red_black_sweep", "peps_boundary")  # many steps over much memory take long to watch
SMALL = [case for case in programs((VIEWS, WHOLE)) if case.function not in LONG]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_programs_of_the_bench(case):
    check_storage(engine.jit(program_numpy.function(case)), *program_numpy.arguments(case))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    """As they were traced, full of needless accesses, and after the passes."""
    case = draw_case(lambda options: data.draw(st.sampled_from(list(options))))
    for passes in ((), None):
        try:
            with np.errstate(all="ignore"):
                check_storage(engine.jit(body_of(case), passes=passes), *make_inputs(case["inputs"]))
        except engine.EngineValueError as error:
            assert "NumPy would share its memory" in str(error)
        except Exception as error:
            error.add_note(f"replay with: {replay(case)}")
            raise


@pytest.mark.parametrize("seed", range(10))
def test_random_branches_and_loops(seed):
    function = function_of(draw(random.Random(seed), 2))
    check_storage(engine.jit(function, passes=() if seed % 4 == 1 else None), *arguments(seed))


def test_what_is_interpreted_has_no_table():
    jitted = engine.jit(lambda a: np.sort(a) + 1)
    assert jitted.storage(A + 1j) is None and "storage:" not in jitted.explain(A + 1j)


# -- that a wrong table is found ---------------------------------------------------------------------------------------
def changed(table, kind, change):
    """The table with the first row of a kind changed."""
    at = kinds(table).index(kind)
    rows = [*table.rows[:at], change(table.rows[at]), *table.rows[at + 1 :]]
    return replace(table, rows=tuple(row for row in rows if row is not None))


def elsewhere(place):
    return Place(place.memory, replace(place.view, offset=place.view.offset + place.item), place.item)


WRONG = {
    "computed elsewhere": (update, "compute", lambda row: replace(row, place=elsewhere(row.place))),
    "written elsewhere": (update, "write", lambda row: replace(row, target=elsewhere(row.target))),
    "by another step": (update, "write", lambda row: replace(row, steps=(0,))),
    "in place": (not_written, "fresh", lambda row: replace(row, kind="write")),
    "not in place": (update, "write", lambda row: replace(row, kind="fresh")),
    "no step": (update, "compute", lambda row: replace(row, kind="fused", place=None)),
    "a view": (swap_rows, "copy", lambda row: replace(row, kind="view", steps=())),
    "another view": (view_example, "view", lambda row: replace(row, place=elsewhere(row.place))),
    "computed there": (by_branch, "done", lambda row: replace(row, target=elsewhere(row.target))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_found(name):
    function, kind, change = WRONG[name]
    arrays = (A.copy(), N) if function is by_branch else (A.copy(),)
    jitted = engine.jit(function)
    wrong = changed(jitted.storage(*arrays), kind, change)
    with pytest.raises((AssertionError, ValueError)):
        check_storage(jitted, *arrays, table=wrong)


@pytest.mark.parametrize("end", ["kept too short", "left out"])
def test_wrong_memory_and_copies_are_found(end):
    jitted = engine.jit(shift)
    table = jitted.storage(A)
    if end == "left out":
        wrong = replace(table, moved=())
    else:
        wrong = replace(table, memory=tuple(replace(each, offset=each.offset + 64) for each in table.memory))
    with pytest.raises((AssertionError, ValueError)):
        check_storage(jitted, A.copy(), table=wrong)
