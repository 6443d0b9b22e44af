"""Passes: what is left of accesses and assigns; random programs keep their meaning, with each pass alone too."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import check_case, check_many, draw_case, replay
from test_trace import A, aliases, assert_same, at_traced_places, by_index, view_example, with_out

import einsum_engine as engine
from einsum_engine.avals import Aval
from einsum_engine.ir import Builder, Literal, Var
from einsum_engine.passes.dead import dead
from einsum_engine.passes.merge import merge
from einsum_engine.passes.pipeline import LOWERING, PASSES, optimised
from einsum_engine.passes.regions import regions
from einsum_engine.passes.view_ssa import view_ssa
from einsum_engine.views import View

F8 = np.dtype("float64")
I8 = np.dtype("int64")


def left(function, *arrays, passes=None):
    """Access and assign equations after the passes, as text."""
    program = engine.jit(function, passes=passes).program(*arrays).check()
    return [str(eqn).split(" = ")[1] for eqn in program.eqns if eqn.op in ("access", "assign", "copy")]


# -- the examples of the RFC -------------------------------------------------------------------------------------------
def test_view_example_reads_two_rows_and_writes_one():
    assert left(view_example, A) == [
        "access %0 {view=([4],[1],4)}",
        "access %0 {view=([4],[1],8)}",
        "assign %0 %4 {view=([4],[1],8)}",
    ]


def test_views_of_views_are_one_access():
    x = np.arange(60.0).reshape(3, 4, 5)
    assert left(lambda a: a[:, 1:4:2, :] * 2, x) == ["access %0 {view=([3,2,5],[20,10,1],5)}"]
    assert left(lambda a: a[1][2] * 2, x) == left(lambda a: a[1, 2] * 2, x) == ["access %0 {view=([5],[1],30)}"]
    assert left(lambda a: a[1].copy()[2] * 2, x) == ["access %0 {view=([5],[1],30)}"]


def test_views_of_results_are_not_read_through_their_root():
    def function(a):
        b = a * 2
        b[1] = a[0]
        c = b.T
        c[:, 0] += 1
        return b[2].sum(), b[1, 2], c[0, 0]

    assert left(function, A) == [
        "access %1 {view=([4],[1],0)}",  # b[0], to add 1
        "access %1 {view=([4],[1],8)}",  # b[2] was never written
        "access %0 {view=([],[],2)}",  # b[1, 2] is a[0, 2]
        "access %3 {view=([],[],0)}",  # b[0, 0] is what was added
    ]


# -- rule by rule ------------------------------------------------------------------------------------------------------
def set_whole(a):
    b = a * 2
    b[...] = a + 1
    return b


def set_transposed(a):
    b = (a * 2).reshape(4, 3)
    b.T[...] = a
    return b


def set_twice(a):
    a[1, 1:] = 3
    a[1:] = 4


def set_itself(a):
    row = a[1]
    a[0] = 5
    a[1] = row
    a[2] = a[2]


def set_broadcast(a):
    a[...] = a[0].sum()


def set_nothing(a):
    a[2:1] = 7
    a[5:] += 1


RULES = {
    "whole": (set_whole, []),
    "transposed": (set_transposed, ["access %0 {view=([4,3],[1,4],0)}"]),
    "twice": (set_twice, ["assign %0 4.0:float64 {view=([2,4],[4,1],4)}"]),
    "itself": (set_itself, ["assign %0 5.0:float64 {view=([4],[1],0)}"]),
    "broadcast": (set_broadcast, ["access %0 {view=([4],[1],0)}", "access %2 {view=([3,4],[0,0],0)}"]),
    "nothing": (set_nothing, []),
    "operand": (lambda a: np.broadcast_to(a.sum(0), (3, 4)) + a, []),
    "same": (lambda a: a[0] * 2 + a[:1].reshape(-1) * 3, ["access %0 {view=([4],[1],0)}"]),
    "dead": (lambda a: (a[1], a[0] * 2)[1], ["access %0 {view=([4],[1],0)}"]),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    function, wanted = RULES[name]
    assert left(function, A) == wanted
    eager, given = A.copy(), A.copy()
    assert_same(function(eager), engine.jit(function)(given))
    assert_same(eager, given)


def test_a_read_that_overlaps_a_write_partly_stays():
    def function(a):
        a[1] = 2
        return a[:2] * 1

    assert left(function, A) == ["assign %0 2.0:float64 {view=([4],[1],4)}", "access %1 {view=([2,4],[4,1],0)}"]


def test_a_copy_of_what_is_written_stays():
    def function(a):
        b = a.copy()
        a[0] = 1
        return b

    assert "copy %0" in left(function, A) and left(lambda a: a.copy() * 2, A) == []


def test_equations_that_say_the_same_are_one():
    program = engine.jit(lambda a: np.exp(a) + np.exp(a) * np.exp(a.T).T).program(A)
    assert [eqn.op for eqn in program.eqns].count("exp") == 2, "of a and of its transpose"
    make = Builder()
    (two,) = make.emit("add", (Literal.of(1, F8), Literal.of(1, F8)))
    (count,) = make.emit("iota", (), size=5, dtype=I8)
    (cast,) = make.emit("cast", (count,), dtype=F8)
    (found,) = make.emit("mul", (cast, two))
    program = dead(merge(make.finish([], [found]))).check()
    assert [eqn.op for eqn in program.eqns] == ["iota", "mul"] and program.eqns[1].inputs[1] == Literal.of(2, F8)
    assert program.eval()[0].tolist() == [0, 2, 4, 6, 8]


# -- branches and loops ------------------------------------------------------------------------------------------------
def loop_of_a_row(a, n):
    row = a[1]

    def body(i):
        row[1:] += a[1, 0]
        return i + 1

    return engine.while_loop(lambda i: i < n, body, np.int64(0))


def test_a_loop_carries_the_part_that_it_writes():
    program = engine.jit(loop_of_a_row).program(A, np.int64(3)).check()
    (loop,) = (eqn for eqn in program.eqns if eqn.op == "while")
    assert [var.shape for var in loop.outputs] == [(), (4,)]
    assert left(loop_of_a_row, A, np.int64(3)) == ["access %0 {view=([4],[1],4)}", "assign %0 %4 {view=([4],[1],4)}"]


def test_a_root_that_a_region_only_reads_is_an_input():
    def function(a, n):
        def body(state):
            i, x = state
            a[0] = a[0].copy()
            return i + 1, x + a[0, 0]

        return engine.while_loop(lambda s: s[0] < n, body, (np.int64(0), np.float64(0)))

    program = engine.jit(function).program(A, np.int64(3)).check()
    (loop,) = (eqn for eqn in program.eqns if eqn.op == "while")
    assert loop.named["carried"] == 2 and [atom.shape for atom in loop.inputs] == [(), (), (), ()]
    assert len(program.outputs) == 3 and program.outputs[2] == program.inputs[0]


def test_results_that_do_not_depend_on_the_branch():
    def function(a, flag):
        def yes():
            a[0] = 1
            return a[1].sum(), np.float64(2), a

        def no():
            return a[1].sum() * 2, np.float64(2), a

        return engine.cond(flag, yes, no)[:2]

    program = engine.jit(function).program(A, np.True_).check()
    (branch,) = (eqn for eqn in program.eqns if eqn.op == "cond")
    assert [var.shape for var in branch.outputs] == [(), (8,)] and program.outputs[1] == Literal.of(2, F8)


def test_carried_values_that_nobody_needs_go():
    def function(n, x):
        def body(s):
            return s[0] + 1, s[1] * 2, s[2] + s[1], s[3] - 1

        return engine.while_loop(lambda s: s[0] < n, body, (np.int64(0), x, x, x))[2]

    program = engine.jit(function).program(np.int64(4), np.float64(1)).check()
    (loop,) = program.eqns
    assert len(loop.outputs) == 3 and len(loop.named["body"].eqns) == 3
    assert engine.jit(function)(np.int64(4), np.float64(1)) == 16


def test_passes_alone_on_a_region():
    make = Builder()
    flag, x = make.input(Aval((), np.dtype(bool))), make.input(Aval((3,), F8))
    inner = Builder()
    one, two = inner.input(Aval((3,), F8)), inner.input(Aval((3,), F8))
    (total,) = inner.emit("add", (one, two))
    (row,) = inner.emit("access", (total,), view=View((2,), (1,), 1))
    branch = inner.finish([one, two], [row, total])
    results = make.emit("cond", (flag, x, x), true=branch, false=branch)
    program = make.finish([flag, x], [results[0]]).check()
    after = dead(regions(program)).check()
    assert len(after.eqns[0].inputs) == 2 and len(after.eqns[0].outputs) == 1
    assert view_ssa(program) == program == replace(program)
    for choice in (np.True_, np.False_):
        assert_same(program.eval(choice, np.arange(3.0)), after.eval(choice, np.arange(3.0)))


# -- meaning -----------------------------------------------------------------------------------------------------------
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_each_pass_alone_keeps_the_meaning_of_random_programs(data):
    case = draw_case(lambda options: data.draw(st.sampled_from(list(options))))
    try:
        for name in PASSES:
            check_case(case, (name,))
    except Exception as error:
        error.add_note(f"with the pass {name} alone; replay with: {replay(case)}")
        raise


@pytest.mark.parametrize("function", [view_example, aliases, by_index, with_out])
@pytest.mark.parametrize("passes", [(), *((name,) for name in PASSES), None])
def test_functions_with_passes(function, passes):
    eager, given = A.copy(), A.copy()
    jitted = engine.jit(function, passes=passes)
    assert_same(function(eager), jitted(given))
    assert_same(eager, given)
    assert jitted.program(given) == engine.jit(function, passes=passes).program(given)


def test_traced_places_with_passes():
    eager, given = A.copy(), A.copy()
    assert_same(at_traced_places(eager, np.int64(1)), engine.jit(at_traced_places)(given, np.int64(1)))
    assert_same(eager, given)


def test_passes_end():
    program = engine.jit(aliases, passes=()).program(A)
    found, stages = optimised(program)
    assert stages and optimised(found) == (found, []) and optimised(program, ()) == (program, [])


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_that_changes_nothing_makes_no_equation_again(name):
    found, _ = optimised(engine.jit(lambda a: np.tanh(a[1:] * 2) + a.sum(), passes=()).program(A))
    again = PASSES[name](found)
    assert again == found and all(one is two for one, two in zip(again.eqns, found.eqns, strict=True))


# -- that each is worth it ---------------------------------------------------------------------------------------------
def brightened(a):
    """Of what is written, the second line reads what the first one wrote."""
    a[1:-1] = a[1:-1] * 2
    a[1:-1] = np.sqrt(a[1:-1] + 1)


def counted_up(a):
    """A loop that needs one row of a copy: that alone is copied."""
    found, b = a[0] + a[2:].sum(), a.copy()

    def body(i):
        b[1] += 1
        return i + 1

    engine.while_loop(lambda i: i < 3, body, np.int64(0))
    return b[1] * found


def standardised(a):
    """The mean is named twice, once by `std`."""
    return (a - a.mean(0)) / a.std(0)


def half_of_a_state(a):
    """Of a loop's three results one is needed, which needs one of the others."""

    def body(state):
        i, x, y, z = state
        return i + 1, x * 2, y + x, z - 1

    return engine.while_loop(lambda state: state[0] < 3, body, (np.int64(0), a, a, a))[2]


def layer(a):
    return np.tanh(a @ a)


EARNS = {
    "views": brightened,
    "regions": counted_up,
    "merge": standardised,
    "dead": half_of_a_state,
    "epilogues": layer,
}


@pytest.mark.parametrize("name", EARNS)
def test_without_a_pass_more_bytes_are_moved(name):
    assert set(EARNS) == {*PASSES, *LOWERING}
    array = np.random.default_rng(0).random((512, 512))
    others = [each for each in EARNS if each != name]
    every, without = (engine.jit(EARNS[name], passes=passes).plan(array) for passes in (None, others))
    assert every.bytes_moved < 0.9 * without.bytes_moved
    assert every.seconds < without.seconds


# -- that a wrong pass is found ----------------------------------------------------------------------------------------
WRONG = {
    "nothing overlaps": ("overlaps", lambda self, other: False),
    "bounds do not reach": ("overlaps", lambda self, other: self.offset == other.offset),
    "everything is inside": ("contains", lambda self, other: True),
    "inside by shape": ("within", lambda self, outer: View.whole(self.shape) if self.size <= outer.size else None),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_overlap_is_found(name, monkeypatch):
    method, wrong = WRONG[name]
    monkeypatch.setattr(View, method, wrong)
    with pytest.raises((AssertionError, engine.EngineError)):
        check_many(range(200))


def test_a_forgotten_use_is_found(monkeypatch):
    def first(atoms):
        return {atom.number for atom in atoms[:1] if isinstance(atom, Var)}

    monkeypatch.setitem(dead.__globals__, "_numbers", first)
    with pytest.raises((AssertionError, engine.EngineError, KeyError)):
        check_many(range(50))


# -- what the user sees ------------------------------------------------------------------------------------------------
def test_explain_shows_all_five_operations_and_the_stages():
    def function(a):
        c = a[2].copy()
        c += a[1][1:3].sum()
        a[1:][0] = c
        return a[0] * 1

    text = engine.jit(function).explain(A)
    for part in (
        *(
            "view root0 %0 ([2],[1],5)",
            "copy root",
            "link root0 -> ([4],[1],4), version %",
            "= access %0",
            "= assign %0",
        ),
        *("as it was traced:", "after the pass 'views':", "storage:", "copies:", "test_passes.py:"),
    ):
        assert part in text, part
    parts = ("link root0", "as it was traced", "after the pass", "storage:", "copies:")
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_explain_shows_links_in_regions():
    text = engine.jit(loop_of_a_row).explain(A, np.int64(2))
    inside = text[text.index("in body of") :]
    assert "    copy root0" in inside and inside.index("copy root0") < inside.index("as it was traced")


@pytest.mark.parametrize(
    "passes, text", [(("frob",), "there is no pass 'frob': passes are views, "), ("views", "is a string")]
)
def test_wrong_names_of_passes(passes, text):
    with pytest.raises(engine.EngineValueError, match=text):
        engine.jit(lambda a: a, passes=passes)
