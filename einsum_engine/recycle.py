"""Large results in recycled, aligned memory.

The pages of a fresh large array are faulted in one by one, which takes longer than filling them. So the memory of a
large result goes back to a bounded pool when the last array that uses it dies, and the next result of about that
size takes it, warm. EINSUM_ENGINE_POOL_BYTES bounds the pool (0: off); it lets go of its memory when the machine runs
short. Results are aligned to cache lines, so that kernels can store past the caches, and begin with a page, or where an
array that is read beside them begins within one. So loads are ahead of the stores of a loop: one that has the last 12
bits of its address in common with a store before it waits for that store, and for all that is computed for it (exp of
64 MB: 9.3 against 5 ms, where NumPy's array began 16 bytes after a page and the result 64 bytes).

Taking and giving costs 20 µs, as much as many a network. So there is one *common arena* besides, of a fixed address,
in which plans compute one at a time: a word says whether it is in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from typing import Sequence

import numpy as np

from . import config

ALIGNMENT = 64
PAGE = 4096  # bytes
SMALLEST = 1 << 20  # bytes; smaller results come from NumPy
COMMON_BYTES = 16 << 20  # of the common arena; pages that no plan has touched take no memory
_SLACK = 8  # a buffer up to 1/8 larger than asked for will do
_LOW_MEMORY = 0.1  # share of the machine's memory below which nothing is kept
_CHECK_SECONDS = 0.05  # between two looks at the memory that is left, which take 80 µs


class _Holder:
    """Owns one buffer while arrays use it; gives it to the pool when they are gone."""

    def __init__(self, memory: np.ndarray, start: int, nbytes: int, pool: "ResultPool"):
        self._memory, self._pool = memory, pool
        self.__array_interface__ = {"data": (start, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._pool.give(self._memory)


def place_in_page(beside: Sequence[int]) -> int:
    """Where in its page a result begins: at the line of the address that most bytes lie before, up to the next one.

    >>> place_in_page([]), place_in_page([8208]), place_in_page([100, 4096 + 300, 3000])
    (0, 0, 2944)
    """
    places = sorted({address % PAGE for address in beside}) or [0]
    before = [place - last for last, place in zip([places[-1] - PAGE, *places], places)]
    return places[before.index(max(before))] // ALIGNMENT * ALIGNMENT


class ResultPool:
    """Free buffers, least recently used first. Safe under threads."""

    def __init__(self) -> None:
        self._free: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.RLock()  # __del__ may run while the same thread is inside
        self._bytes = 0
        self._looked = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes held for reuse."""
        return self._bytes

    def take(self, nbytes: int, beside: Sequence[int] = ()) -> np.ndarray:
        """Aligned memory of ``nbytes`` as a uint8 array, whose death gives it back. MemoryError if there is none.

        ``beside``: addresses of what is read while it is written."""
        memory = self._find(nbytes + 2 * PAGE)
        if memory is None:
            try:
                memory = np.empty(nbytes + 2 * PAGE, np.uint8)
            except MemoryError:
                self.clear()
                memory = np.empty(nbytes + 2 * PAGE, np.uint8)
        start = -(-memory.ctypes.data // PAGE) * PAGE + place_in_page(beside)
        return np.asarray(_Holder(memory, start, nbytes, self))

    def _find(self, nbytes: int) -> np.ndarray | None:
        with self._lock:
            for key, memory in reversed(self._free.items()):  # what came back last is in cache
                if nbytes <= memory.nbytes <= nbytes + nbytes // _SLACK:
                    del self._free[key]
                    self._bytes -= memory.nbytes
                    return memory
        return None

    def give(self, memory: np.ndarray) -> None:
        """Keeps a buffer for reuse, within the bound; the oldest ones go first."""
        limit = config.get("EINSUM_ENGINE_POOL_BYTES")
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _CHECK_SECONDS:
                self._looked = now
                if _memory_is_low():
                    self.clear()
                    return
            if memory.nbytes > limit:
                return
            self._free[id(memory)] = memory
            self._bytes += memory.nbytes
            while self._bytes > limit:
                _, oldest = self._free.popitem(last=False)
                self._bytes -= oldest.nbytes

    def clear(self) -> None:
        """Lets go of all buffers."""
        with self._lock:
            self._free.clear()
            self._bytes = 0


def _memory_is_low() -> bool:
    try:
        with open("/proc/meminfo", "rb") as file:  # bytes: at exit of the interpreter there are no codecs any more
            fields = dict(line.split(b":", 1) for line in file)
        available, total = (int(fields[name].split()[0]) for name in (b"MemAvailable", b"MemTotal"))
    except (OSError, KeyError, ValueError):
        return False
    return available < _LOW_MEMORY * total


class CommonArena:
    """Memory for the intermediates of one call at a time, and the word that is 1 while it is in use."""

    def __init__(self) -> None:
        self.memory = np.empty(COMMON_BYTES + ALIGNMENT, np.uint8)
        self.lock = np.zeros(1, np.int64)


results = ResultPool()
_common: CommonArena | None = None


def common(nbytes: int) -> CommonArena | None:
    """The common arena, None where ``nbytes`` do not fit or nothing is to be kept between calls."""
    global _common
    if nbytes > min(COMMON_BYTES, config.get("EINSUM_ENGINE_POOL_BYTES")):
        return None
    with results._lock:
        try:
            _common = _common or CommonArena()
        except MemoryError:
            return None
    return _common


def _forked() -> None:
    """The child's locks may have been held by a thread that it does not have."""
    results._lock = threading.RLock()
    if _common is not None:
        _common.lock[0] = 0


os.register_at_fork(after_in_child=_forked)


def large(
    shape: tuple[int, ...], dtype: np.dtype, order: str, nbytes: int, beside: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """An uninitialised array in recycled memory; ``beside``: arrays that are read while it is written."""
    read = [array.__array_interface__["data"][0] for array in beside if array.nbytes >= nbytes]
    return results.take(nbytes, read).view(dtype).reshape(shape, order=order)
