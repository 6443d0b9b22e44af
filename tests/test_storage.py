"""Storage tables: which copies are left, and that running by the table, in place, gives what the program means."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import body_of, check_many, check_storage, draw_case, make_inputs, replay
from test_control import branches_write, loop_in_branch, loop_writes
from test_trace import A, aliases, by_index, view_example, with_out

import einsum_engine as engine
from einsum_engine.passes import allocate, storage_run
from einsum_engine.passes.storage import Place
from einsum_engine.views import View


def table_of(function, *arrays, passes=None):
    """The table of a jitted function, checked by running it."""
    jitted = engine.jit(function, passes=passes)
    table = jitted.storage(*arrays)
    check_storage(jitted.program(*arrays), table)
    return table


def kinds(table):
    return [action.kind for action in table.actions]


# -- copies that NumPy's semantics force, and no others ----------------------------------------------------------------
def test_view_example_copies_nothing():
    table = table_of(view_example, A)
    assert table.copies() == [] and kinds(table) == ["view", "view", "compute", "compute", "done", "compute"]
    assert table.show().splitlines() == [
        "@0: float64[12] input 0",
        "@1: float64[4] temp 2..5",
        "@2: float64[12] output 0",
        "view %1 @0([4],[1],4)",
        "view %2 @0([4],[1],8)",
        "compute %3 @1([4],[1],0)",
        "compute %4 @0([4],[1],8)",
        "done %5 @0([3,4],[4,1],0) to @0([4],[1],8)",
        "compute %6 @2([3,4],[4,1],0)",
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
    "swap rows": (swap_rows, (A,), ["%1: the memory of %0 is written while %1 is needed"]),
    "shift": (shift, (A,), ["%1: the memory of %0 is written while %1 is needed"]),
    "update": (update, (A,), []),  # the sum needs memory of its own, as in NumPy
    "red and black": (red_black, (LINE,), []),
    "several": (several, (A,), []),
    "kept": (kept, (A,), ["%1: the memory of %0 is written while %1 is needed"]),
    "not written": (not_written, (A,), ["%1: %0 is in memory that is not written (input)"]),
    "shared": (shared, (A,), []),
    "cache": (cache_write, (A, np.int64(1)), []),
    "loop": (by_loop, (A, N), []),
    "branch": (by_branch, (A, N), ["result 0 %1: it has memory of its own"]),
    "state": (state, (A, N), ["%3: the loop starts from %0, which is not written or is read later"]),
    "boxes": (offset2bbox, (A, A[::-1] * 0.5), []),
    "partly": (partly, (A,), ["%4: %1 is a broadcast"]),
    "read between": (read_between, (A,), ["%4: %1 is a broadcast"]),
    "built twice": (built_twice, (A,), []),
    "argument": (lambda a: a, (A,), []),
    "twice": (lambda a: (a * 2,) * 2, (A,), []),
    "view": (lambda a: a[1:] + 0, (A,), []),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_that_are_left(name):
    function, arrays, wanted = COPIES[name]
    assert table_of(function, *arrays).copies() == wanted


def test_what_is_built_up_is_computed_in_place():
    table = table_of(offset2bbox, A, A * 0.5)
    assert "fresh" not in kinds(table) and kinds(table).count("done") == 1, "the last two columns"
    assert [slot.kind for slot in table.slots].count("output") == 1


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
    (loop,) = (action for action in table.actions if action.tables)
    body = loop.tables[0]
    assert any(place == Place(0, View((8,), (1,), 0)) for place in loop.places)
    assert body.returns[1].copied is False and table.slots[0].kind == "input"


@pytest.mark.parametrize("passes", [(), None])
@pytest.mark.parametrize("function", [view_example, aliases, by_index, with_out])
def test_functions_by_their_table(function, passes):
    table_of(function, A, passes=passes)


@pytest.mark.parametrize("function, more", [(branches_write, np.True_), (loop_writes, N), (loop_in_branch, np.True_)])
def test_regions_by_their_table(function, more):
    jitted = engine.jit(function)
    for passes in ((), None):
        table = engine.jit(function, passes=passes).storage(A, more)
        memory = [A.copy(), np.asarray(more).copy()]
        eager = A.copy()
        wanted = function(eager, more)
        found = storage_run.run(table, memory)
        for one, two in zip(np.atleast_1d(np.asarray(wanted, dtype=object)), found):
            assert np.array_equal(one, two)
        assert np.array_equal(eager, memory[0])
    assert jitted.program(A, more).check()


@pytest.mark.parametrize("function", [view_example, aliases, by_index, with_out, shift, red_black])
def test_inputs_in_another_order(function):
    """The memory of an array whose axes are swapped, every other element of it."""
    jitted = engine.jit(function)
    program = jitted.program(A)
    written = [(0, at) for at, result in enumerate(jitted.storage(A).returns) if result.target.slot == 0]
    table = allocate.storage(program, written, [View((3, 4), (2, 6), 0)])
    memory = np.zeros(23)
    array = np.lib.stride_tricks.as_strided(memory, (3, 4), (16, 48))
    array[...] = A
    wanted = program.eval(A)
    for one, two in zip(wanted, storage_run.run(table, [memory]), strict=True):
        np.testing.assert_array_equal(one, two)
    assert all(np.array_equal(array, wanted[at]) for _, at in written) and not memory[1::2].any()


def test_results_that_swap_their_memory():
    def function(a, b):
        a[...], b[...] = b * 1, a * 1

    table = table_of(function, A, A + 1)
    assert [result.copied for result in table.returns] == [False, True] or table.copies()
    one, two = A.copy(), A + 1
    storage_run.run(table, [one, two])
    assert np.array_equal(one, A + 1) and np.array_equal(two, A)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_tables_of_random_programs_as_traced(data):
    """`check_case` runs the tables of optimised programs; here those of programs full of needless accesses."""
    case = draw_case(lambda options: data.draw(st.sampled_from(list(options))))
    jitted, arrays = engine.jit(body_of(case), passes=()), make_inputs(case["inputs"])
    try:
        with np.errstate(all="ignore"):
            check_storage(jitted.program(*arrays), jitted.storage(*arrays))
    except engine.EngineValueError as error:
        assert "NumPy would share its memory" in str(error)
    except Exception as error:
        error.add_note(f"replay with: {replay(case)}")
        raise


# -- that a wrong table is found ---------------------------------------------------------------------------------------
WRONG = {
    "liveness": ("needed", lambda self, place, at: set()),
    "operands": ("beside", lambda self, eqn, target: True),
    "rights": ("writable", lambda self, place: True),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_found(name, monkeypatch):
    method, wrong = WRONG[name]
    monkeypatch.setattr(allocate._Walk, method, wrong)
    with pytest.raises((AssertionError, engine.EngineError, ValueError)):
        for function, arrays, _ in COPIES.values():
            table_of(function, *arrays)
        check_many(range(300))


def test_lifetimes_that_end_too_early_are_found():
    jitted = engine.jit(lambda a: np.exp(a) + np.sin(a) * 2)
    table = jitted.storage(A)
    short = [replace(slot, last=slot.first) if slot.kind == "temp" else slot for slot in table.slots]
    with pytest.raises(AssertionError, match="NumPy has"):
        check_storage(table.program, replace(table, slots=tuple(short)))


def test_an_operand_in_the_way_is_an_error():
    table = engine.jit(update).storage(A)
    target = next(action.target for action in table.actions if action.target is not None)
    actions = [replace(a, places=(target,)) if a.kind == "compute" else a for a in table.actions]
    with pytest.raises(engine.EngineProgramError, match="lets an operand overlap what is written: %3.* = add"):
        storage_run.run(replace(table, actions=tuple(actions)), [A.copy()])


def test_inputs_have_to_lie_in_c_order():
    with pytest.raises(engine.EngineValueError, match="input 0 has to be float64.12. in C order"):
        storage_run.run(engine.jit(update).storage(A), [np.asfortranarray(A)])
