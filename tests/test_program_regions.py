"""Branches and loops in plans: what they compute, that it is one native call, in place, and that Ctrl-C stops them."""

import re
import signal

import numpy as np
import pytest
import random_regions
from program_calls import assert_like_numpy
from random_regions import check_many

import einsum_engine as engine
from einsum_engine import executor
from einsum_engine.ir import Program
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import programs, regions
from einsum_engine.profiler import ProfiledPlan

A = np.arange(12.0).reshape(3, 4)


def steps_of(jitted, *arrays):
    return [step.expr for step in jitted.plan(*arrays).steps]


def counted(turns, body, *state):
    """``state`` after so many turns of ``body(turn, *state)``, which returns a tuple."""
    step = lambda s: (s[0] + 1, *body(*s))  # noqa: E731
    return engine.while_loop(lambda s: s[0] < turns, step, (np.int64(0), *state))[1:]


# -- what is computed --------------------------------------------------------------------------------------------------
def newton(x, n):
    return counted(n, lambda turn, y: ((y + x / y) / 2,), x + 1)[0]


def power_iteration(a, n):
    def body(turn, x, norm):
        y = np.einsum("ij,j->i", a[:, 1:], x)
        norm = np.sqrt(np.einsum("i,i->", y, y))
        return y / norm, norm

    return counted(n, body, a[0, 1:] + 1, np.float64(0))


def einsums_of_einsums(a, n):
    b = np.tanh(a)
    return counted(n, lambda turn, x: (np.einsum("ij,jk,kl->il", x, b.T @ b, b.T @ a) * 0.01,), a)


def nested(a, n):
    def inner(turn, x):
        a[1] += x[0]
        return (x * 0.5 + turn,)

    def outer(turn, x):
        (x,) = counted(turn, inner, x)
        (x,) = counted(2, inner, x[::-1])
        return (x,)

    return counted(n, outer, a[0])[0], a.sum()


def recurrence(a, n):
    return counted(n, lambda turn, x, y: (y, x + 2 * y), a[0], a[1])


def rotation(a, n):
    return counted(n, lambda turn, x, y, z: (y, z, x), a[0], a[1], a[2])


def stencil(a, n):
    def body(turn, x):
        new = x.copy()
        new[1:-1] = (x[:-2] + x[2:]) / 2
        return (new,)

    return counted(n, body, a[:, 0])[0]


def writes_of_the_caller(a, n):
    row = a[1]

    def body(turn):
        a[0] += row
        row[1:] = a[2, 1:] * 2
        a[2] -= turn
        return ()

    counted(n, body)
    return row * 1


def branch_in_loop(a, n):
    def body(turn, x):
        return (engine.cond(x[0] > 3, lambda: x - a[0], lambda: x * 2 + np.arange(4)),)

    return counted(n, body, a[1])[0]


def loop_in_branch(a, n):
    def yes():
        return counted(n, lambda turn, x: (x + a[1] * turn,), a[0])[0]

    return engine.cond(n > 1, yes, lambda: a[0] * -1), engine.cond(a[0, 0] > n, lambda: a[0], lambda: a[1])


def one_of_two(a, n):
    """Both branches return the same array: one writes it."""

    def yes():
        a[0] = 7
        return a.sum()

    b = a * 2
    total = engine.cond(n > 1, yes, lambda: a[2].sum())
    return total + b[0, 1], b


def constants(a, n):
    weights = np.linspace(0, 1, 4)
    inner = lambda x: x * weights + np.arange(4)  # noqa: E731
    return counted(n, lambda turn, x: (engine.cond(turn > 0, lambda: inner(x), lambda: inner(-x)),), a[0])[0]


def fixed_beside_carried(a, n):
    """The loop reads one row of what it writes another of, and writes a copy of that row."""
    b = a * 2
    x, y = b[0], b[1]

    def body(turn, x):
        z = y.copy()
        z[0] += 1
        return (x + z,)

    return counted(n, body, x)[0]


def results_that_are_operands(a, n):
    return counted(n, lambda turn, x, y: (x, x), a, a * 2), engine.cond(n > 0, lambda: a, lambda: a)


FUNCTIONS = [
    *(newton, power_iteration, einsums_of_einsums, nested, recurrence, rotation, stencil, writes_of_the_caller),
    *(branch_in_loop, loop_in_branch, one_of_two, constants, fixed_beside_carried, results_that_are_operands),
]


def check_function(function, n):
    """Results, arguments and types are NumPy's, in a first call and by the native entry."""
    flat = lambda a, n: tuple(leaf * 1 for leaf in engine.trees.flatten(function(a, n))[0])  # noqa: E731
    assert_like_numpy(flat, A.copy(), np.int64(n))


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function, threads, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    for n in (3, 0, 1, 2):
        check_function(function, n)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), ()])
def test_few_elements(shape):
    def function(x, n):
        y = x * 1
        z = counted(n, lambda turn, z: (z + y,), x)[0]
        w = engine.cond(n > 1, lambda: z * 2, lambda: x)
        return z * 1, w * 1, counted(n, lambda turn, t: (t + np.sum(w),), np.float64(0))[0]

    for n in (0, 2):
        assert_like_numpy(function, np.full(shape, 1.5), np.int64(n))


def test_large_steps_on_two_threads(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")
    a = np.random.default_rng(0).random((300, 300)) / 300
    body = lambda turn, x: (np.tanh(x @ a) + x * 0.5,)  # noqa: E731
    plan = assert_like_numpy(lambda a, n: counted(n, body, a)[0], a, np.int64(5)).plan(a, np.int64(5))
    assert any(step.args.words.get(abi.PARALLEL) for step in plan.steps if step.depth)


def test_random_regions():
    assert check_many(range(8)) > 5


def test_a_failure_says_how_to_run_it_alone(monkeypatch):
    monkeypatch.setattr(random_regions, "small", lambda x: x.no_such_name)
    with pytest.raises(AttributeError) as caught:
        check_many(range(20, 40))
    seed = re.search(r"replay with: python tests/random_regions.py 1 (\d+)", "".join(caught.value.__notes__))[1]
    with pytest.raises(AttributeError):
        check_many(range(int(seed), int(seed) + 1))


@pytest.mark.parametrize(
    "owner, name, wrong, function",
    [
        (regions.Rows, "stretch", lambda self, born, dies: None, power_iteration),
        (regions.ProgramSchedule, "overwritable", lambda self, place, target: True, recurrence),
        (regions, "PINNED", -(1 << 50), fixed_beside_carried),  # nothing is pinned
    ],
)
def test_wrong_plans_are_found(owner, name, wrong, function, monkeypatch):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        check_function(function, 2)


# -- rows and memory ---------------------------------------------------------------------------------------------------
def test_the_rows_of_a_loop_and_of_a_branch():
    x = np.array([2.0, 9.0])
    text = engine.jit(newton).explain(x, np.int64(3))
    steps = engine.jit(newton).plan(x, np.int64(3)).steps
    assert [(step.depth, step.expr) for step in steps] == [
        *((0, "add"), (0, "copy"), (0, "lt"), (0, "while, else to 7")),
        *((1, "add lt"), (1, "div add div"), (1, "again from 3")),
    ]
    assert "    div add div" in text and "one turn of each loop" in text
    both = engine.jit(lambda x: engine.cond(x[0] > 1, lambda: np.exp(x), lambda: np.log(x)))
    assert steps_of(both, x) == ["gt", "if, else to 4", "exp", "end, to 5", "log"]


def test_a_call_is_one_native_call(monkeypatch):
    walks = []
    run_rows = executor.NativePlan._run_rows
    monkeypatch.setattr(executor.NativePlan, "_run_rows", lambda *args: walks.append(1) or run_rows(*args))
    monkeypatch.setattr(Program, "eval", lambda *args: pytest.fail("interpreted"))
    jitted = engine.jit(nested)
    for _ in range(3):
        jitted(A.copy(), np.int64(2))
    assert walks == [1]  # the first; the native entry takes the others


def test_a_loop_that_writes_a_row_touches_that_row_alone():
    def function(a, n):
        def body(turn):
            a[3] += 1
            return ()

        counted(n, body)
        return a[0, 0] * 1

    a = np.zeros((1000, 1000))
    plan = assert_like_numpy(function, a, np.int64(3)).plan(a, np.int64(3))
    assert plan.bytes_moved < 3 * 8000 and plan.arena_bytes < 1000


def test_what_is_exchanged_is_not_copied_aside():
    steps = [step for step in engine.jit(recurrence).plan(A, np.int64(3)).steps if step.depth]
    assert len(steps) == 3 and steps[-1].kernel == "jump"  # the counter with its test, x and y together, the jump


def test_a_broadcast_of_which_a_loop_writes_one_element_keeps_the_others():
    def function(a):
        b = np.zeros(2, a.dtype) + a
        b[...] = a

        def body(turn):
            b[:1] *= 2
            return turn + 1

        engine.while_loop(lambda turn: turn < 2, body, np.int64(0))
        a += a  # so that the loop may write the memory of a
        return b

    np.testing.assert_array_equal(engine.jit(function)(np.array([-3.0])), [-12.0, -3.0])


def test_what_a_loop_reads_again_keeps_its_memory():
    def function(a, n):
        b = np.exp(a)  # read at the start of each turn
        return counted(n, lambda turn, x: (np.tanh(np.tanh(x + b) @ b.T) @ a,), a)[0]

    plan = assert_like_numpy(function, A / 10, np.int64(4)).plan(A, np.int64(4))
    assert plan.arena_bytes


def test_a_profile_counts_all_turns():
    x = np.linspace(1, 2, 5)
    plan = engine.jit(newton).plan(x, np.int64(500))

    def counts_all() -> bool:
        nonlocal profiled
        profiled, out = ProfiledPlan(plan), np.empty(5)
        profiled.run([x, np.array(500), *programs.constants(plan.request.program.program)], out)
        assert np.allclose(out, np.sqrt(x))
        once, turns = (profiled.profile.steps[at].seconds for at in (0, 5))
        return turns > 20 * once

    profiled = None
    assert any(counts_all() for _ in range(50)), "a single turn may be interrupted, but not every time"
    assert "measured times are of all turns" in engine.explain.explain(plan, profiled.profile)


def test_a_body_without_a_kernel_is_interpreted():
    jitted = engine.jit(lambda a, n: counted(n, lambda turn, x: (np.sort(x) + 1,), a[0])[0])
    a = A * 0.1j
    assert jitted.plan(a, np.int64(2)) is None and "= while" in (text := jitted.explain().split("no plan: ")[1])
    assert "= sort" in text and "no kernel for sort of complex128" in text
    assert np.array_equal(jitted(a, np.int64(2)), np.sort(a[0]) + 2)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("calls", [0, 3])
def test_an_endless_loop_is_interrupted(calls):
    """In the first call, by the way through Python, and where the native entry is used."""
    jitted = engine.jit(lambda x, n: counted(n, lambda turn, x: (x * 0.5 + 1,), x)[0])
    x = np.ones(4)
    for _ in range(calls):
        jitted(x, np.array(2))
    assert bool(jitted._quick) == bool(calls)

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            jitted(x, np.array(1 << 62))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.array_equal(jitted(x, np.array(3)), np.full(4, 1.875))
