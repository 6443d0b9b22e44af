"""Large results and arenas in recycled, aligned memory.

The pages of a fresh large array are faulted in one by one, which takes longer than filling them. So the memory of a
large result goes back to a bounded pool when the last array that uses it dies, and the next result of about that
size takes it, warm. Arenas have a pool of their own: who switches off that of results, because they are written into
``out=`` or kept, still computes in warm memory. EINSUM_ENGINE_POOL_BYTES and EINSUM_ENGINE_ARENA_BYTES bound the pools
(0: off); they let go of their memory when the machine or the control group runs short. They look at that when a result
has died and when new memory was taken, no thread does besides: `clear_cache` lets go of what an idle process holds.

Results are aligned to cache lines, so that kernels can store past the caches, and begin with a page, or where an
array that is read beside them begins within one. So loads are ahead of the stores of a loop: one that has the last 12
bits of its address in common with a store before it waits for that store, and for all that is computed for it (exp of
64 MB: 9.3 against 5 ms, where NumPy's array began 16 bytes after a page and the result 64 bytes).

A pool is a memory handler of NumPy's, in generated code (`kernels.cpu.result_memory`): a native entry takes a result from
it in 0.5 µs, and its death gives it back without Python. Where there are no entries there are no pools.

There is a *common arena* besides for each kind of numbers, of a fixed address, in which plans compute one at a time: a word
says whether it is in use.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
from contextlib import suppress
from typing import Iterable, Sequence

import numpy as np

from . import config, fastcall, machine_memory
from .errors import EngineValueError
from .kernels.cpu import library, result_abi as words
from .kernels.isa import active_isa
from .locks import anew
from .records import lazy

ALIGNMENT = 64
SMALLEST = 1 << 20  # bytes; smaller results come from NumPy
COMMON_BYTES = 16 << 20  # of the common arena; pages that no plan has touched take no memory
_LOW_MEMORY = 0.1  # share of the memory there is below which nothing is kept
_KINDS = {"float32": "float32", "complex64": "float32", "float64": "float64", "complex128": "float64"}
_MARKS = {"float32": 1, "float64": 2, "other": 3}  # of an arena, in front of it: whose numbers it holds
_HANDLER_VERSION = 1  # of the struct


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C API."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")],
    ]


_making = anew(globals(), "_making", threading.RLock)


class BufferPool:
    """Free buffers, the least recently used first, of as many bytes as the configuration's ``option`` says. Safe under
    threads. ``zeros``: new ones are zeros, not those that come back."""

    def __init__(self, option: str = "EINSUM_ENGINE_POOL_BYTES", zeros: bool = False) -> None:
        self._option, self._zeros = option, zeros

    @lazy
    def words(self) -> np.ndarray | None:
        """The words that the native functions work on; None where there is no pool."""
        with _making:  # by one thread: what is made never goes
            return self.__dict__["words"] if "words" in self.__dict__ else self._make_words()

    def _make_words(self) -> np.ndarray | None:
        if not fastcall.available():
            return None
        found = _immortal(np.zeros(words.R_WORDS, np.int64))
        theirs = _Handler.from_address(_pointer(fastcall.default_handler(), _NAME))
        libc = ctypes.CDLL(None)
        for word, value in {
            words.R_MALLOC: theirs.calloc if self._zeros else theirs.malloc,
            words.R_FREE: theirs.free,
            words.R_ALLOCATOR: theirs.context or 0,
            words.R_CLOCK: _address(libc.clock_gettime),
            words.R_COPY: _address(libc.memcpy),
            words.R_SET: _address(libc.memset),
            words.R_PENDING: _address(ctypes.pythonapi.Py_AddPendingCall),
            words.R_LOOK: _address(ctypes.pythonapi.PyObject_IsTrue),
            words.R_LOOKER: id(_immortal(_Looker(self))),
        }.items():
            found[word] = value
        atexit.register(self._stop_looking)
        return found

    @lazy
    def handler(self) -> object:
        """The capsule by which NumPy knows the functions. Arrays may die when all modules are gone: it never does."""
        with _making:
            return self.__dict__["handler"] if "handler" in self.__dict__ else self._make_handler()

    def _make_handler(self) -> object:
        names = ("malloc", "calloc", "realloc", "free")
        functions = [library.address(f"results_{name}", active_isa()) for name in names]
        struct = _immortal(_Handler(b"einsum_engine", _HANDLER_VERSION, self.words.ctypes.data, *functions))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return _immortal(new(ctypes.addressof(struct), _NAME, None))

    @property
    def nbytes(self) -> int:
        """Bytes held for reuse."""
        return 0 if self.words is None else int(self.words[words.R_BYTES])

    def ready(self) -> bool:
        """Whether there is a pool; its bound is what the configuration says now."""
        if self.words is None:
            return False
        self.words[words.R_LIMIT] = limit = config.get(self._option)
        if self.words[words.R_BYTES] > limit:
            self.clear()
        return True

    def take(
        self,
        shape: tuple[int, ...] | int,
        dtype: np.dtype | type = np.uint8,
        order: str = "C",
        beside: Sequence[int] = (),
    ) -> np.ndarray:
        """An uninitialised array whose memory comes from the pool and goes back to it. MemoryError if there is none.

        ``beside``: addresses of what is read while it is written."""
        if not self.ready():
            return (np.zeros if self._zeros else np.empty)(shape, dtype, order)
        beside = beside[: words.MOST_BESIDE]
        self.words[words.R_BESIDE : words.R_BESIDE + len(beside)] = beside
        self.words[words.R_BESIDE_COUNT] = len(beside)
        old = fastcall.set_handler(self.handler)
        try:
            return np.empty(shape, dtype, order)
        finally:
            fastcall.set_handler(old)

    def clear(self) -> None:
        """Lets go of all buffers."""
        if self.__dict__.get("words") is not None:  # what was never made holds none
            _CLEAR(library.address("results_clear", active_isa()))(self.words.ctypes.data)

    def look(self) -> None:
        """Lets go of all buffers if memory is short, and has the bound that the configuration says now.

        It runs between any two lines of the program, which are not told of a value that cannot be read: the next plan is.
        """
        with suppress(EngineValueError):
            self.ready()
        if machine_memory.share_left() < _LOW_MEMORY:
            self.clear()

    def _stop_looking(self) -> None:
        self.words[[words.R_NEXT_LOOK, words.R_NEXT_NEW]] = np.iinfo(np.int64).max

    def forked(self) -> None:
        """The child's word may be that of a thread that it does not have."""
        if self.__dict__.get("words") is not None:
            self.words[[words.R_LOCK, words.R_BESIDE_COUNT]] = 0


class _Looker:
    """Has its pool look when asked for its truth: ``PyObject_IsTrue`` takes one argument and says 0, or -1 and what was
    raised, as pending calls must. A callback of ctypes would print what is raised, and Ctrl-C within it be lost."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def __bool__(self) -> bool:
        self._pool.look()
        return False


_NAME = b"mem_handler"
_CLEAR = ctypes.PYFUNCTYPE(None, ctypes.c_int64)


def _immortal(owner):
    """What native code has the address of until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    return owner


def _address(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


def _pointer(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


class CommonArena:
    """Memory for the intermediates of one call at a time, and the word that is 1 while it is in use."""

    def __init__(self) -> None:
        self.memory = np.zeros(COMMON_BYTES + ALIGNMENT, np.uint8)
        self.lock = np.zeros(1, np.int64)


results = BufferPool()
arenas = BufferPool("EINSUM_ENGINE_ARENA_BYTES", zeros=True)
_common: dict[str, CommonArena] = {}  # by `kind_of` their plans
_lock = anew(globals(), "_lock", threading.RLock)  # a signal handler may run within


def kind_of(dtypes: Iterable[str]) -> str:
    """Of the numbers in an arena, by the dtypes of a plan: "float32", "float64", or "other" for all others and mixed ones.

    Panels have lanes that nothing is written to and kernels compute with. What they hold never reaches a result, but a
    multiply-add with a denormal number takes over a hundred cycles. Zeros and what plans of the same kind have left are no
    such numbers; parts of addresses are, and integers, and halves of longer floating point numbers.

    >>> kind_of(["float32", "complex64"]), kind_of(["complex128"]), kind_of(["float32", "float64"]), kind_of(["int64"])
    ('float32', 'float64', 'other', 'other')
    """
    kinds = {_KINDS.get(dtype, "other") for dtype in dtypes}
    return kinds.pop() if len(kinds) == 1 else "other"


def arena(nbytes: int, kind: str) -> np.ndarray:
    """Memory for intermediates of one kind that begins with a line: zeros, or what another of that kind has left. MemoryError
    if there is none."""
    memory = arenas.take(nbytes + 2 * ALIGNMENT)
    last = memory[:8].view(np.int64)  # of a new one 0
    if last[0] not in (0, mark := _MARKS[kind]):
        memory[:] = 0
    last[0] = mark
    return memory[-fastcall.place(memory) % ALIGNMENT + ALIGNMENT :]


def common(nbytes: int, kind: str) -> CommonArena | None:
    """The common arena of a kind, None where ``nbytes`` do not fit or nothing is to be kept between calls."""
    if nbytes > min(COMMON_BYTES, config.get("EINSUM_ENGINE_ARENA_BYTES")):
        return None
    with _lock:
        try:
            made = _common.get(kind) or CommonArena()  # meanwhile a signal handler may have made one, which counts
        except MemoryError:
            return None
        return _common.setdefault(kind, made)


def _forked() -> None:
    """What another thread of the parent was in is free again: that thread is not in the child."""
    results.forked()
    arenas.forked()
    for found in _common.values():
        found.lock[0] = 0


os.register_at_fork(after_in_child=_forked)


def large(shape: tuple[int, ...], dtype: np.dtype, order: str, beside: Sequence[np.ndarray] = ()) -> np.ndarray:
    """An uninitialised array in recycled memory; ``beside``: arrays that are read while it is written."""
    nbytes = dtype.itemsize * math.prod(shape)
    read = [array.__array_interface__["data"][0] for array in beside if array.nbytes >= nbytes]
    return results.take(shape, dtype, order, read)
