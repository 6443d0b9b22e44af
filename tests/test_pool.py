"""The thread pool: shares and workers, many callers at once, forks, process pools, and silence while idle."""

import ctypes
import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache
from itertools import product

import numpy as np
import plan_cases
import pytest
from test_walker import Table

import einsum_engine as engine
from einsum_engine import executor, recycle
from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi, entry_abi, library, pool, pool_abi

HOST = isa.active_isa()
_Walk = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)

# equation, sizes: some with parallel rows, some far too small for them
CASES = (
    ("mk,kn->mn", dict(m=257, k=130, n=190)),
    ("mk,nk->nm", dict(m=96, k=300, n=101)),
    ("bmk,bkn->bmn", dict(b=33, m=40, k=24, n=35)),
    ("mkb,nbk->bmn", dict(b=34, m=40, k=21, n=35)),
    ("ab,ca,dc->db", dict(a=70, b=130, c=64, d=90)),
    ("mk,kn->mn", dict(m=5, k=3, n=4)),
    ("ab,ca,dc->db", dict(a=3, b=4, c=5, d=6)),
)


@pytest.fixture(autouse=True)
def _entries_whatever_the_arena(monkeypatch):
    """The arena of eight workers is one that is recycled, and such plans have no entry otherwise."""
    monkeypatch.setattr(executor, "_KEPT_BYTES", 1 << 40)


@lru_cache(maxsize=None)
def _case(number: int, threads: int, dtype: str = "float32"):
    """Bound plan, its entry, operands and the exact result."""
    equation, sizes = CASES[number]
    operands = plan_cases.operands(equation, sizes, dtype, seed=number)
    exact = np.einsum(equation, *[a.astype(np.int64) for a in operands], optimize=True)
    native = executor.bind(plan_cases.plan(equation, operands, threads=threads))
    return native, native.entry, operands, exact


def _call(number: int, threads: int, by_entry: bool) -> None:
    native, entry, operands, exact = _case(number, threads)
    result = entry(*operands) if by_entry and entry is not None else NotImplemented
    if result is NotImplemented:  # another thread may be in the entry
        result = np.full(exact.shape, np.nan, native.plan.dtype)
        native.run(operands, result)
    if not np.array_equal(result, exact):
        raise AssertionError(f"{CASES[number]}, threads={threads}, entry {by_entry}: {(result != exact).sum()} wrong")


def _calls(seed: int, count: int, threads: tuple[int, ...] = (1, 2, 3)) -> int:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        _call(int(rng.integers(len(CASES))), int(rng.choice(threads)), bool(rng.integers(2)))
    return count


@pytest.mark.parametrize("threads", range(1, 9))
@pytest.mark.parametrize("number", range(len(CASES)))
def test_any_number_of_threads(number, threads):
    for by_entry in (False, True):
        for _ in range(5):
            _call(number, threads, by_entry)


def test_some_cases_are_parallel():
    parallel = [_case(n, 2)[0]._parallel for n in range(len(CASES))]
    assert any(parallel) and not all(parallel)


def _walk(table: Table, threads: int, helpers: int | None = None) -> None:
    table.context[abi.CTX_POOL] = pool.address(HOST, threads if helpers is None else helpers + 1)
    table.context[abi.CTX_THREADS] = threads
    assert table.walk(_Walk(library.address("walk", HOST))) == -1


def _parallel(action, tasks: int, parallel: int = abi.IN_TURN) -> Table:
    """One parallel row whose callback gets (share, worker)."""
    table = Table()
    task = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(lambda ctx, step, share, worker: action(share, worker))
    table.keep.append(task)
    table.add(abi.RUN, FN=ctypes.cast(task, ctypes.c_void_p).value, NTASKS=tasks, PARALLEL=parallel)
    table.add(abi.STOP)
    return table


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_shares_run_at_once_on_workers_of_their_own(threads):
    meeting, seen = threading.Barrier(threads), []

    def action(share, worker):
        meeting.wait(60)
        seen.append((share, worker, threading.get_ident()))

    _walk(_parallel(action, threads), threads)
    shares, workers, idents = map(set, zip(*seen))
    assert len(seen) == threads
    assert shares == workers == set(range(threads)) and len(idents) == threads


@pytest.mark.parametrize("threads, tasks", [(2, 8), (3, 10), (4, 4), (5, 7)])
def test_in_bands_each_worker_has_tasks_side_by_side(threads, tasks):
    """As long as all keep up: here nobody begins a task before each has begun one."""
    least = tasks // threads
    meeting, seen = threading.Barrier(threads), [[] for _ in range(threads)]

    def action(share, worker):
        if len(seen[worker]) < least:
            meeting.wait(60)
        seen[worker].append(share)

    _walk(_parallel(action, tasks, abi.IN_BANDS), threads)
    starts = [worker * tasks // threads for worker in range(threads)]
    assert [shares[:least] for shares in seen] == [list(range(start, start + least)) for start in starts]
    assert sorted(sum(seen, [])) == list(range(tasks))


def test_what_a_late_worker_leaves_of_its_band_is_done_by_others():
    seen, done, begun = [], threading.Event(), threading.Event()

    def action(share, worker):
        seen.append(share)
        if share == 4:  # the first of the helper, which stays with it until all others are done
            begun.set()
            assert done.wait(60)
        elif share == 0:
            assert begun.wait(60)
        elif len(seen) == 8:
            done.set()

    _walk(_parallel(action, 8, abi.IN_BANDS), 2)
    assert [share for share in seen if share != 4] == [0, 1, 2, 3, 5, 6, 7]


def test_every_share_runs_once_and_workers_stay_below_the_thread_count():
    """Also where helpers of a job before, for more threads, wake up only now: scratch is as many as the threads."""
    before = Table()  # so short that most helpers come too late for it
    nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    before.add(abi.RUN, FN=nothing, NTASKS=64, PARALLEL=abi.IN_BANDS)
    before.add(abi.STOP)
    for threads, parallel in [*product((2, 3), (abi.IN_TURN, abi.IN_BANDS))] * 25:
        seen = []
        _walk(before, 64)
        _walk(_parallel(lambda share, worker: seen.append((share, worker)), 60, parallel), threads, helpers=63)
        assert sorted(share for share, _ in seen) == list(range(60))
        assert {worker for _, worker in seen} <= set(range(threads))


def test_who_finds_the_pool_taken_runs_alone():
    seen = []

    def inner():
        _walk(_parallel(lambda share, worker: seen.append((share, worker)), 5), 3)

    def outer(share, worker):
        if share == 0:
            other = threading.Thread(target=inner)
            other.start()
            other.join(60)

    _walk(_parallel(outer, 2), 2)
    assert seen == [(share, 0) for share in range(5)]


def test_many_python_threads_at_once():
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(_calls, range(8), [200] * 8)) == [200] * 8


def _in_child(work) -> None:
    """Runs ``work`` in a forked child; AssertionError unless it ends well within a minute."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"child ended with status {status}"
            return
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("by_entry", [False, True])
def test_a_forked_child_computes(by_entry):
    _calls(0, 50)

    def child():
        for number in range(len(CASES)):
            for threads in (1, 2, 3):
                _call(number, threads, by_entry)
        _in_child(lambda: _calls(1, 20))  # and a child of its own

    _in_child(child)
    _calls(1, 50)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_entry_in_a_forked_child_has_helpers():
    """The entry hands its first call on, so that the pool gets threads there; then it is quick again."""
    native, call, operands, exact = _case(0, 3)
    assert native._parallel and np.array_equal(call(*operands), exact)

    def child():
        assert pool._pool.words[pool_abi.POOL_WORKERS] == 0
        assert call(*operands) is NotImplemented
        native.run(operands, np.empty(exact.shape, native.plan.dtype))
        assert pool._pool.words[pool_abi.POOL_WORKERS] == 2
        assert np.array_equal(call(*operands), exact)

    _in_child(child)
    assert np.array_equal(call(*operands), exact)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_what_other_threads_hold_at_a_fork_is_free_in_the_child():
    """An entry that is in use, the common arena, and the lock under which constants are packed."""
    _, call, operands, exact = _case(5, 1)
    matrices, out = [np.eye(20), np.ones((20, 20)), np.ones((20, 20))], np.empty((20, 20))
    plan = engine.compile("ij,jk,kl->il", *matrices, constants=[1, 2], optimize=[(1, 2), (0, 1)]).plan
    packed = executor.bind(plan)  # at its first call
    call.__self__[entry_abi.E_LOCK] = 1  # the record: another thread is in the entry
    common = recycle.common(1, "float64")
    common.lock[0] = 1
    try:
        with executor._freezing:
            assert call(*operands) is NotImplemented

            def child():
                assert np.array_equal(call(*operands), exact)
                assert not common.lock[0]
                packed.run(matrices, out)
                assert (out == 20).all()

            _in_child(child)
            assert common.lock[0]
    finally:
        call.__self__[entry_abi.E_LOCK] = 0
        common.lock[0] = 0
    assert np.array_equal(call(*operands), exact)
    packed.run(matrices, out)
    assert (out == 20).all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_calls():
    """Whatever the other threads of the parent were doing, a child with threads of its own is right."""
    stop, right = threading.Event(), []

    def caller(seed):
        while not stop.is_set():
            _calls(seed, 5)
        right.append(seed)

    _calls(0, 1)  # what NumPy imports late is there: a child forked while a thread imports waits for it for ever
    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(3)]
    for thread in callers:
        thread.start()
    try:
        for seed in range(10):
            _in_child(lambda: _calls(seed, 20))
    finally:
        stop.set()
        for thread in callers:
            thread.join()
    assert sorted(right) == [0, 1, 2], "a wrong result ends the thread that got it"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_process_pool(method):
    _calls(0, 10)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as processes:
        assert sum(processes.map(_calls, range(4), [25] * 4)) == 100


def test_an_idle_pool_takes_no_time():
    for number in range(len(CASES)):
        _call(number, 8, False)
    assert any(_idle_share() < 0.1 for _ in range(5))


def _idle_share() -> float:
    """CPU time of this process over time, while it sleeps."""
    time.sleep(0.05)
    wall, used = time.monotonic(), time.process_time()
    time.sleep(0.5)
    return (time.process_time() - used) / (time.monotonic() - wall)
