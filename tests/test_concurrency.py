"""Python threads, forks, process pools and Ctrl-C through the public calls. The thread pool itself: `test_pool`."""

import multiprocessing
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import calls
import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import api, executor, recycle
from einsum_engine.kernels.cpu import pool
from einsum_engine.kernels.isa import active_isa

THREADS = 8


@pytest.fixture(autouse=True)
def _fresh():
    engine.clear_cache()
    calls.calls()  # not while threads are measured


def _at_once(work, *arguments) -> list:
    """Results of ``work`` in as many threads as there are arguments, all of which start at the same time."""
    barrier = threading.Barrier(len(arguments[0]))

    def started(*given):
        barrier.wait(60)
        return work(*given)

    with ThreadPoolExecutor(len(arguments[0])) as threads:
        return list(threads.map(started, *arguments))


# -- threads -------------------------------------------------------------------------------------------------------
def test_different_calls_of_einsum_in_8_threads():
    assert _at_once(calls.einsum_all, range(THREADS)) == [calls.COUNT] * THREADS
    assert _at_once(calls.einsum_all, range(THREADS)) == [calls.COUNT] * THREADS  # plans are known by now


def test_the_same_calls_in_the_same_order_in_8_threads():
    """Everything is made by several threads at the same moment."""
    assert _at_once(calls.einsum_all, [0] * THREADS) == [calls.COUNT] * THREADS


def test_different_compiled_calls_in_8_threads():
    assert _at_once(calls.compile_all, range(THREADS)) == [calls.COUNT] * THREADS


def test_a_full_cache_of_plans_in_8_threads(monkeypatch):
    """Plans are thrown out while other threads look them up."""
    for name in ("_contractors", "_entries", "_into_entries"):
        monkeypatch.setattr(api, name, type(getattr(api, name))(20))
    assert _at_once(calls.einsum_all, range(THREADS), [300] * THREADS) == [300] * THREADS


def _kinds(call: calls.Call, number: int) -> list[np.ndarray]:
    """The operands in one of several layouts."""
    a, b = call.operands
    changes = (
        np.array,
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.repeat(x, 2, -1)[..., ::2],
        lambda x: x.astype(x.dtype.newbyteorder()),
    )
    return [changes[number % 5](a), changes[number // 5 % 5](b)]


@pytest.mark.parametrize("size", [6, 150])
def test_one_compiled_object_shared_by_8_threads(size):
    """Operands of 25 layouts, with and without ``out``, planned while others run; the larger one on several threads."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(float) for shape in ((size, size + 1), (size + 1, size + 2)))
    call = calls.Call("ij,jk->ik", (a, b), a @ b)
    f = engine.compile("ij,jk->ik", a, b, threads=3)

    def work(seed: int) -> int:
        order = random.Random(seed)
        for _ in range(200):
            operands = _kinds(call, order.randrange(25))
            if order.random() < 0.3:
                out = np.full((2 * size, size + 2), np.nan)[:: order.choice((2, -2))]
                assert f(*operands, out=out) is out
                calls.check(call, out)
            else:
                calls.check(call, f(*operands))
        return 200

    assert _at_once(work, range(THREADS)) == [200] * THREADS


def test_constants_shared_by_8_threads():
    """They are packed once, whoever comes first; what an unpickled copy packs is right too."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-3, 4, (40, 40)).astype(float) for _ in range(3))
    for _ in range(10):
        f = engine.compile("ij,jk,kl->il", a, b, c, constants=[1, 2])
        twin = f.__reduce__()[0](*f.__reduce__()[1])
        call = calls.Call("ij,jk,kl->il", (a,), a @ b @ c)
        assert _at_once(calls.call_shared, [(each, call, 20) for each in (f, twin) * 4]) == [20] * THREADS


def test_several_threads_write_into_parts_of_one_array():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (THREADS, 30, 40)).astype(float), rng.integers(-3, 4, (40, 50)).astype(float)
    out = np.full((30, THREADS, 50), np.nan)

    def work(part: int) -> None:
        for _ in range(50):
            engine.einsum("ij,jk->ik", a[part], b, out=out[:, part])

    _at_once(work, range(THREADS))
    assert np.array_equal(out, np.einsum("tij,jk->itk", a, b))


def test_caches_are_cleared_while_threads_run():
    stop = threading.Event()

    def clear() -> None:
        while not stop.is_set():
            engine.clear_cache()
            time.sleep(0.001)

    other = threading.Thread(target=clear)
    other.start()
    try:
        assert _at_once(calls.einsum_all, range(4), [300] * 4) == [300] * 4
    finally:
        stop.set()
        other.join()


# -- processes -----------------------------------------------------------------------------------------------------
AFTER_FORK = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import calls
from concurrent.futures import ThreadPoolExecutor

def everybody(work, count):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8), [count] * 8)) == [count] * 8

def child():
    everybody(calls.einsum_all, calls.COUNT)
    everybody(calls.compile_all, 125)

large = calls._call("ab,bc->ac", "float64", [(300, 301), (301, 302)], 0)
shared = calls.engine.compile("ab,bc->ac", *large.operands, threads=3)
calls.call_shared((shared, large, 3))
if sys.argv[2] != "first":
    everybody(calls.einsum_all, 200)
busy = threading.Event()
def keep_busy():
    while not busy.is_set():
        calls.einsum_all(1, 20)
        calls.call_shared((shared, large, 1))
others = [threading.Thread(target=keep_busy) for _ in range(2 if sys.argv[2] == "busy" else 0)]
for other in others:
    other.start()
for _ in range(3 if others else 1):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            calls.call_shared((shared, large, 3))  # compiled by the parent
            child() if not others else everybody(calls.einsum_all, 125)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
busy.set()
for other in others:
    other.join()
everybody(calls.einsum_all, 200)
print("right")
"""


@pytest.mark.parametrize("parent", ["first", "warm", "busy"])
def test_8_threads_after_a_fork(parent):
    """In the child of a parent that has computed on several threads, has many plans, or computes during the fork."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", AFTER_FORK, str(Path(__file__).parent), parent],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_process_pool_executor(method):
    """Compiled objects travel as arguments and results do."""
    calls.einsum_all(0, 50)
    rng = np.random.default_rng(0)
    operands = tuple(rng.integers(-3, 4, (200, 200)).astype(float) for _ in range(3))
    call = calls.Call("ij,jk,kl->il", operands[:1], operands[0] @ operands[1] @ operands[2])
    f = engine.compile("ij,jk,kl->il", *operands, constants=[1, 2], threads=2)
    calls.check(call, f(*call.operands))
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as processes:
        work = [processes.submit(calls.call_shared, (f, call, 5)) for _ in range(4)]
        work += [processes.submit(calls.einsum_all, seed, 200) for seed in range(4)]
        products = processes.map(engine.einsum, ["ij,jk->ik"] * 4, operands[:1] * 4, operands[1:2] * 4)
        assert [future.result(timeout=120) for future in work] == [5] * 4 + [200] * 4
        for product in products:
            assert np.array_equal(product, operands[0] @ operands[1])
    calls.check(call, f(*call.operands))


# -- Ctrl-C --------------------------------------------------------------------------------------------------------
INTERRUPTED = """
import os, signal, sys, threading, time, numpy as np, einsum_engine as engine
threads, into = int(sys.argv[1]), sys.argv[2] == "out"
count, size = 300, 500
matrices = [np.roll(np.eye(size), number, axis=1) for number in range(count)]
terms = ",".join(f"{chr(0x4e00 + n)}{chr(0x4e01 + n)}" for n in range(count))
f = engine.compile(f"{terms}->{chr(0x4e00)}{chr(0x4e00 + count)}", *matrices, optimize=False, threads=threads)
out = np.full((size, size), 7.0)
options = {"out": out} if into else {}
small = engine.compile("ij,jk->ik", (3, 4), (4, 5))
def seconds():
    start = time.monotonic()
    try:
        f(*matrices, **options)
    except KeyboardInterrupt:
        return -1, time.monotonic() - start
    return 1, time.monotonic() - start
def interrupted(part):
    # a call that is interrupted ends before its time: a slice of 50 ms and a step after the signal
    whole = seconds()[1]
    def interrupt():
        time.sleep(part * whole)
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        sign, taken = seconds()
        thread.join()
    except KeyboardInterrupt:
        return False  # the call was over already
    return sign < 0 and taken < 0.8 * whole
for part in (0.1, 0.2):
    # Other programs run on this machine too: one of several calls shows it.
    print(any(interrupted(part) for _ in range(8)))
    assert (small(np.ones((3, 4)), np.ones((4, 5))) == 4).all()
    assert engine.einsum("ij,ij->", matrices[0], matrices[0]) == size
assert np.array_equal(f(*matrices, **options), np.roll(np.eye(size), sum(range(count)), axis=1))
print("right")
"""


def _heed_interrupts() -> None:
    """In the child: a shell's background jobs ignore SIGINT, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("threads", "into"), [(1, "fresh"), (2, "out")])
def test_ctrl_c_stops_a_long_call_between_steps(threads, into):
    arguments = [sys.executable, "-c", INTERRUPTED, str(threads), into]
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=250, check=False, preexec_fn=_heed_interrupts
    )
    assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stdout + done.stderr
    assert done.stdout == "True\nTrue\nright\n"


def test_ctrl_c_ends_a_program_as_python_does():
    code = (
        "import numpy as np, einsum_engine as engine\n"
        "a = np.eye(600); f = engine.compile(','.join(chr(0x4e00 + n) + chr(0x4e01 + n) for n in range(30)),"
        " *[a] * 30, optimize=False)\n"
        "print('started', flush=True)\n"
        "while True: f(*[a] * 30)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", code], **pipes, preexec_fn=_heed_interrupts)
    try:
        assert child.stdout.readline() == "started\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt"), errors


# --- signal handlers that call what they interrupt ---------------------------------------------------------------
def _ends(work):
    """Its result, in a thread: what waits for itself would wait for ever."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for itself, or has failed"
    return found[0]


def _interrupted(monkeypatch, owner, name, handler):
    """``handler`` runs once, within a call of what ``owner`` has under that name."""
    inner, runs = getattr(owner, name), []

    def outer(*args):
        if not runs:
            runs.append(1)
            runs.append(handler())
        return inner(*args)

    monkeypatch.setattr(owner, name, outer)
    return runs


def test_a_jitted_function_within_its_own_look_up():
    class Key:
        def __hash__(self):
            return hash(float(jitted(np.ones(2))))

    jitted = engine.jit(lambda x, key=None: x.sum(), cache=1)
    with pytest.warns(UserWarning, match="traced for more than 1"):
        assert _ends(lambda: [jitted(np.ones(3), Key()) for _ in range(3)]) == [3, 3, 3]


def test_constants_are_frozen_within_themselves(monkeypatch):
    a, b, c = np.random.default_rng(0).random((3, 20, 20))
    f = engine.compile("ij,jk,kl->il", a, b, c, constants=[1, 2], optimize=[(1, 2), (0, 1)])
    runs = _interrupted(monkeypatch, executor, "lower", lambda: f(a))
    found = _ends(lambda: f(a))
    assert np.allclose(found, a @ b @ c) and np.array_equal(runs[1], found)


def test_the_common_arena_is_made_within_itself(monkeypatch):
    monkeypatch.setattr(recycle, "_common", {})
    runs = _interrupted(monkeypatch, recycle, "CommonArena", lambda: recycle.common(64, "other"))
    assert _ends(lambda: recycle.common(64, "other")) is runs[1] is recycle.common(64, "other")


def test_the_pool_grows_within_itself(monkeypatch):
    found, started = pool.Pool(active_isa()), []
    monkeypatch.setattr(pool.Pool, "_start", lambda self, index: (started.append(index), self.grow(3)))
    _ends(lambda: found.grow(3) or True)
    assert started == [0, 1, 2] and not found.growing
