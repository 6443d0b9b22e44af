"""The walker: one native call runs a step table, alone or with the pool's threads.

The pool is plain memory (`POOL_*` words) shared by generated code and the Python threads that lend themselves to
`worker_loop`. One caller at a time owns it; whoever finds it taken runs its tasks alone, so any number of Python
threads may call at once and never more than the pool's threads work on one plan. Workers sleep on a semaphore;
after a job they poll it for about a millisecond, because the next step of the same plan follows at once.

A caller never waits for a helper that has not started: on a busy machine it does the work itself.

Which thread runs a task never changes a result: tasks write disjoint bytes and are cut by the plan, not by load. Tasks
that lie side by side in memory are taken in bands (`abi.IN_BANDS`): each thread begins with those that it had in the
call before, whose lines lie in caches of its own, and then takes what others have left.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi, pool_abi as pa
from .emit import I8, I32, I64, Fn, Val, Var

_CLOCK_MONOTONIC = 1
TURNS = 16  # jumps between two looks at the clock, which takes as long as a small row


def build_walker(module: ir.Module, name: str, isa: ISA) -> None:
    """``int64 walk(ctx, table, first)``: runs rows from ``first``; -1 at the end, or where a step has
    failed, else the row to go on with."""
    dispatch = _build_dispatch(module)
    f = Fn(module, name, [I64] * 3, I64)
    ctx, table, first = f.args
    index, result = Var(f, first), f.var(-1)
    deadline = f.word(ctx, abi.CTX_DEADLINE)
    profile = f.word(ctx, abi.CTX_PROFILE)
    time = f.stack(16)
    slice_ = f.word(ctx, abi.CTX_SLICE)
    started, turns = f.var(0), f.var(0)
    with f.if_(slice_.ne(0)):
        started.set(_now(f, ctx, time))
    with f.while_() as leave:
        row = table + index.get() * (8 * abi.STEP_WORDS)
        kind = f.word(row, abi.KIND)
        leave(kind.eq(abi.STOP))
        following = Var(f, index.get() + 1)
        late = f.var(0)
        # rows of blocks that are measured run one after the other, here
        blocks = kind.eq(abi.BLOCKS) & profile.eq(0)
        with f.if_else(kind.eq(abi.RUN) | blocks) as (run, control):
            with run:
                _run_row(f, ctx, row, dispatch, profile, time)
                with f.if_(blocks):
                    following.set(f.word(row, abi.NEXT))
            with control:
                _control_row(f, ctx, row, kind, following)
                with f.if_(kind.eq(abi.JUMP) & slice_.ne(0)):
                    turns.add(1)
                    with f.if_((turns.get() & (TURNS - 1)).eq(0)):
                        spent = _now(f, ctx, time) - started.get()
                        late.set(Val(f, f.b.zext((spent > slice_).v, I64)))
        index.set(following.get())
        leave(f.word(ctx, abi.CTX_ERROR).ne(0))
        with f.if_(deadline.ne(0)):
            late.set(Val(f, f.b.zext((_now(f, ctx, time) > deadline).v, I64)))
        with f.if_(late.get().ne(0)):
            result.set(index.get())
        leave(late.get().ne(0))
    f.ret(result.get())


def _now(f: Fn, ctx: Val, time: Val) -> Val:
    """CLOCK_MONOTONIC in nanoseconds."""
    f.call(f.word(ctx, abi.CTX_CLOCK), [f.const(I32, _CLOCK_MONOTONIC), time], I32)
    return f.word(time) * 1_000_000_000 + f.word(time, 1)


def _run_row(f: Fn, ctx: Val, row: Val, dispatch: Fn, profile: Val, time: Val) -> None:
    started = f.var(0)
    with f.if_(profile.ne(0)):
        started.set(_now(f, ctx, time))
    tasks = Var(f, f.word(row, abi.NTASKS))
    extent = f.word(row, abi.EXTENT)
    with f.if_(extent.ne(0)):
        tasks.set(f.word(extent))
    pool = f.word(ctx, abi.CTX_POOL)
    shared = pool.ne(0) & f.word(row, abi.PARALLEL).ne(abi.ALONE) & (tasks.get() > 1)
    with f.if_else(shared) as (then, otherwise):
        with then:
            f.call(dispatch, [pool, ctx, row, tasks.get()])
        with otherwise:
            _run_alone(f, ctx, row, tasks.get())
    with f.if_(profile.ne(0)):
        spent = _now(f, ctx, time) - started.get()
        f.store(f.word(row, abi.TICKS) + spent, row + 8 * abi.TICKS)


def _run_alone(f: Fn, ctx: Val, row: Val, tasks: Val) -> None:
    fn = f.word(row, abi.FN)
    with f.range(0, tasks) as t:
        f.call(fn, [ctx, row, t, f.i64(0)])


def build_blocks(module: ir.Module, name: str, isa: ISA) -> None:
    """``void blocks(ctx, step, task, worker)``, the task function of a BLOCKS row: all tasks of the rows of one block, in
    order. The rows of all blocks are behind it."""
    f = Fn(module, name, [I64] * 4)
    ctx, step, task, worker = f.args
    starts = f.word(step, abi.BLOCK_STARTS)
    with f.range(f.word(starts, task), f.word(starts, task + 1)) as number:
        row = step + number * (8 * abi.STEP_WORDS)
        fn = f.word(row, abi.FN)
        with f.range(0, f.word(row, abi.NTASKS)) as t:
            f.call(fn, [ctx, row, t, worker])
    f.ret()


def _control_row(f: Fn, ctx: Val, row: Val, kind: Val, following: Var) -> None:
    """JUMP goes to NEXT; BRANCH does when the int64 at EXTENT, or without one the byte of operand A, is 0; LOOP
    decrements the int64 at EXTENT and goes to NEXT while positive."""
    cell, target = f.word(row, abi.EXTENT), f.word(row, abi.NEXT)
    with f.if_(kind.eq(abi.JUMP)):
        following.set(target)
    with f.if_(kind.eq(abi.BRANCH)):
        value = f.var(0)
        with f.if_else(cell.ne(0)) as (word, byte):
            with word:
                value.set(f.word(cell))
            with byte:
                base = f.word(f.word(ctx, abi.CTX_BASES), f.word(row, abi.A_SLOT))
                value.set(f.convert(f.load(I8, base + f.word(row, abi.A_OFFSET)), "sext", I64))
        with f.if_(value.get().eq(0)):
            following.set(target)
    with f.if_(kind.eq(abi.LOOP)):
        left = Var(f, f.word(cell) - 1)
        f.store(left.get(), cell)
        with f.if_(left.get() > 0):
            following.set(target)


def _build_dispatch(module: ir.Module) -> Fn:
    """Share the tasks of a row with the pool; alone if another caller has it."""
    f = Fn(module, "dispatch", [I64] * 4, internal=True)
    pool, ctx, row, tasks = f.args
    with f.if_else(f.atomic_swap(pool + 8 * pa.POOL_BUSY, 1).ne(0)) as (taken, free):
        with taken:
            _run_alone(f, ctx, row, tasks)
        with free:
            helpers = f.min(f.min(f.word(ctx, abi.CTX_THREADS) - 1, f.word(pool, pa.POOL_WORKERS)), tasks - 1)
            bands = f.select(f.word(row, abi.PARALLEL).eq(abi.IN_BANDS), helpers + 1, f.i64(1))
            for shift, value in enumerate((ctx, row, tasks, helpers, bands)):
                f.store(value, pool + 8 * (pa.POOL_JOB + shift))
            with f.range(0, bands) as band:
                f.atomic_store(0, _line(pool, band) + 8 * pa.LINE_TAKEN)
            f.atomic_store(1, pool + 8 * pa.POOL_OPEN)
            with f.range(0, helpers) as helper:
                _semaphore(f, pool, pa.POOL_SEM_POST, _line(pool, helper + 1))
            _take_tasks(f, pool, f.i64(0))
            f.atomic_store(0, pool + 8 * pa.POOL_OPEN)
            _await_helpers(f, pool)
            f.atomic_store(0, pool + 8 * pa.POOL_BUSY)
    f.ret()
    return f


def _await_helpers(f: Fn, pool: Val) -> None:
    """Wait for the helpers that joined. One that has not woken up is not waited for: it finds the job closed."""
    polls = f.var(0)
    with f.while_() as leave:
        leave(f.atomic_load(pool + 8 * pa.POOL_ACTIVE).eq(0))
        polls.add(1)
        with f.if_(polls.get() > f.word(pool, pa.POOL_SPIN) >> 5):
            f.call(f.word(pool, pa.POOL_YIELD), [], I32)


def _line(pool: Val, worker: Val) -> Val:
    """What belongs to one worker; the caller is number 0."""
    return pool + 8 * pa.POOL_LINES + worker * (8 * pa.LINE_WORDS)


def _semaphore(f: Fn, pool: Val, function: int, semaphore: Val) -> Val:
    return f.call(f.word(pool, function), [semaphore], I32)


def _take_tasks(f: Fn, pool: Val, worker: Val) -> None:
    """Those of the worker's own band, then what is left of each other one."""
    ctx, row, tasks, _, bands = (f.word(pool, pa.POOL_JOB + i) for i in range(5))
    fn = f.word(row, abi.FN)
    with f.range(0, bands) as turn:
        band = (worker + turn) % bands
        first, last = band * tasks // bands, (band + 1) * tasks // bands
        with f.while_() as leave:
            t = first + f.atomic_add(_line(pool, band) + 8 * pa.LINE_TAKEN, 1)
            leave(t >= last)
            f.call(fn, [ctx, row, t, worker])


def _wait(f: Fn, pool: Val, semaphore: Val) -> None:
    """Poll for a while, then sleep; interrupted sleeps are resumed."""
    polls, got = f.var(0), f.var(0)
    with f.while_() as leave:
        leave(got.get().ne(0) | (polls.get() >= f.word(pool, pa.POOL_SPIN)))
        with f.if_(_semaphore(f, pool, pa.POOL_SEM_TRYWAIT, semaphore).eq(0)):
            got.set(1)
        polls.add(1)
    with f.while_() as leave:
        leave(got.get().ne(0))
        with f.if_(_semaphore(f, pool, pa.POOL_SEM_WAIT, semaphore).eq(0)):
            got.set(1)


def build_worker_loop(module: ir.Module, name: str, isa: ISA) -> None:
    """``void worker_loop(pool, worker)``: serve jobs until POOL_QUIT is set."""
    f = Fn(module, name, [I64] * 2)
    pool, worker = f.args
    with f.while_() as leave:
        _wait(f, pool, _line(pool, worker + 1))
        leave(f.atomic_load(pool + 8 * pa.POOL_QUIT).ne(0))
        # joining comes before looking: a caller that closes the job afterwards waits for this helper
        f.atomic_add(pool + 8 * pa.POOL_ACTIVE, 1)
        with f.if_(f.atomic_load(pool + 8 * pa.POOL_OPEN).ne(0)):
            # woken for an earlier job of more threads, it has no scratch in this one
            with f.if_(worker < f.word(pool, pa.POOL_JOB + 3)):
                _take_tasks(f, pool, worker + 1)
        f.atomic_add(pool + 8 * pa.POOL_ACTIVE, -1)
    f.ret()
