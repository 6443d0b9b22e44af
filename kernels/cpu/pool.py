"""The process's thread pool: memory, semaphores and the Python threads that serve it.

Threads are started on demand and sleep while idle. A forked child starts with an empty pool.
"""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

from ...locks import anew
from ..isa import ISA
from . import library, pool_abi as pa

_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
# Of a helper's semaphore before it sleeps, about a millisecond: a core that slept is back later than a short call ends.
_POLLS = 100_000
_lock = anew(globals(), "_lock", threading.RLock)  # a signal handler may run within
_pool: "Pool | None" = None


def aligned_words(count: int, alignment: int = 64) -> np.ndarray:
    """Zeroed int64 array whose first byte is aligned."""
    raw = np.zeros(count + alignment // 8, np.int64)
    skip = (-raw.__array_interface__["data"][0] % alignment) // 8
    return raw[skip : skip + count]


class Pool:
    """Pool memory and its threads; ``address`` goes into the context of every call that may use it."""

    def __init__(self, isa: ISA):
        self.isa = isa
        self.words = aligned_words(pa.POOL_WORDS)
        self.address = self.words.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for word, name in (
            (pa.POOL_SEM_WAIT, "sem_wait"),
            (pa.POOL_SEM_TRYWAIT, "sem_trywait"),
            (pa.POOL_SEM_POST, "sem_post"),
            (pa.POOL_YIELD, "sched_yield"),
        ):
            self.words[word] = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        self.words[pa.POOL_SPIN] = _POLLS
        self.growing = False
        self._init_semaphore = libc.sem_init

    def _semaphore(self, word: int) -> None:
        self._init_semaphore(ctypes.c_void_p(self.address + 8 * word), 0, 0)

    def grow(self, workers: int) -> None:
        """At least ``workers`` helper threads (the caller is one more)."""
        workers = min(workers, pa.MAX_WORKERS)
        with _lock:
            if self.growing:  # a signal handler in the midst of this: it takes the helpers that there are
                return
            self.growing = True
            try:
                for index in range(int(self.words[pa.POOL_WORKERS]), workers):
                    self._semaphore(pa.POOL_LINES + pa.LINE_WORDS * (index + 1))
                    self._start(index)
                    self.words[pa.POOL_WORKERS] = index + 1
            finally:
                self.growing = False

    def _start(self, index: int) -> None:
        loop = _WORKER(library.address("worker_loop", self.isa))
        memory = self.words  # the thread keeps the pool's memory alive

        def serve() -> None:
            loop(memory.ctypes.data, index)

        threading.Thread(target=serve, name=f"einsum-engine-{index}", daemon=True).start()


def address(isa: ISA, threads: int) -> int:
    """Address of the pool with at least ``threads - 1`` helpers; 0 for one thread."""
    global _pool
    if threads <= 1:
        return 0
    if _pool is None:
        with _lock:
            made = _pool or Pool(isa)  # meanwhile a signal handler may have made one, which counts
            _pool = _pool or made
    if _pool.words[pa.POOL_WORKERS] < threads - 1:
        _pool.grow(threads - 1)
    return _pool.address


def _forked() -> None:
    """The child has none of the threads: the pool's memory stays (calls know its address), emptied of workers."""
    if _pool is not None:
        _pool.growing = False
        _pool.words[pa.POOL_WORKERS] = 0
        for word in (pa.POOL_BUSY, pa.POOL_OPEN, pa.POOL_ACTIVE):
            _pool.words[word] = 0


os.register_at_fork(after_in_child=_forked)
