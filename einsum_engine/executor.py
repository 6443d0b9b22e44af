"""Runs a `Plan`: lowers it to the native step table once, then every call is one native call.

`bind` lays out the step table, the offset vectors and the addresses of the kernels; a `NativePlan` owns them. Each
concurrent call borrows a *frame*: context words, base addresses and an arena for intermediates. Frames are kept
for the next call, so a steady stream of calls allocates nothing but results.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import time
from collections import deque
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np

from . import fastcall, recycle
from .dtypes import as_numpy
from .errors import EngineMemoryError, EngineTypeError
from .kernels import isa as isa_table
from .kernels import registry
from .kernels.failures import failure
from .kernels.cpu import abi, library, pool
from .kernels.tiles import TIMED
from .locks import anew
from .expr import Index, Term
from .plan import Plan, Step
from .profile import Profile

_WALK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_SLICE_NS = 50_000_000  # a long plan returns to Python between steps this often, so that signals are seen
_LONG_SECONDS = 0.02
_TINY_SECONDS = 3e-6  # below, releasing the GIL costs more than it frees
_ALIGNMENT = 64
_STOP = struct.pack(f"{abi.STEP_WORDS}q", *[abi.STOP if word == abi.KIND else 0 for word in range(abi.STEP_WORDS)])
_PLACES = struct.Struct("6q")  # of the operands of a row
_KEPT_BYTES = 256 << 10  # arenas up to this size stay with their plan, larger ones are shared with other plans
_SCALED_BYTES = 4 << 10  # the same of entries with factors, of which one plan may have many
NO_CONSTANTS: Mapping[int, np.ndarray] = MappingProxyType({})
_UNSCALED = np.array([1.0, 0.0, 0.0, 0.0])  # real and imaginary part of alpha and of beta
# One for all plans: what depends on constants is computed by one thread at a time, and by its signal handlers within.
_freezing = anew(globals(), "_freezing", threading.RLock)


def bind(plan: Plan) -> "NativePlan":
    """Lowers ``plan`` and resolves its kernels (from memory, disk, or by compiling each once per machine)."""
    return NativePlan(plan)


class NativePlan:
    """A plan with addresses. Safe to call from several threads at once."""

    profile: Profile | None = None  # of all calls so far, where they are measured
    written: tuple[int, ...] = ()  # operands that the plan writes, of which the entry must know

    def __init__(self, plan: Plan):
        self.plan = plan
        self._isa = isa_table.get(plan.isa)
        steps = [step for step in plan.steps if not step.once]
        self._rows, self._table_address = lower(steps, self._isa)
        self._constants: np.ndarray | None = None
        self._walk = _function(library.address("walk", self._isa))
        self._frames: deque[_Frame] = deque(maxlen=4)
        self._scratch = plan.worker_scratch
        self._parallel = plan.threads > 1 and any([step.args.packed.parallel for step in steps])
        self._seconds = plan.seconds
        self._long = self._seconds > _LONG_SECONDS
        families = {step.family for step in plan.steps}
        # jumps back: nobody knows how long they take
        self._loops = "control" in families and _jumps_back(self._rows)
        self._may_fail = not families.isdisjoint(_failing())

    def run(self, arrays: Sequence[np.ndarray], out: np.ndarray, alpha: complex = 1, beta: complex = 0) -> None:
        """Computes into ``out``; ``arrays`` and ``out`` have exactly the shapes, strides and dtypes of the request.

        EngineMemoryError names the bytes of the arena when it cannot be had.
        """
        addresses = [address(a) for a in arrays]
        if self.plan.constant_bytes and self._constants is None:
            self.freeze(addresses)
        frame = self._borrow()
        bases = frame.bases
        bases[: len(addresses)] = addresses
        bases[len(addresses)] = address(out)
        frame.set_scalars(alpha, beta)
        try:
            self._go(frame, arrays)
            error = failure(frame.context) if self._may_fail else None
        finally:
            frame.rest()
            self._frames.append(frame)
        if error is not None:
            raise error

    @property
    def entry(self) -> Callable | None:
        """`make_entry` for all arrays of the request."""
        return self.make_entry()

    def make_entry(
        self,
        constants: Mapping[int, np.ndarray] = NO_CONSTANTS,
        order: str | None = None,
        alpha: complex = 1,
        beta: complex = 0,
    ) -> Callable | None:
        """A builtin for exactly the arrays of the request, NotImplemented for any others: ``f(*arrays)`` returns a fresh
        result in C order, or, where the request has ``out_strides``, ``f(*arrays, out)`` returns ``out``.

        ``constants``, arrays by position, are no arguments: they are what was planned for, and stay where they lie, in
        memory that no argument shares.
        ``order``, C or F, makes a fresh result in that order although the request has strides. ``alpha`` and ``beta``
        are those of all calls; others than 1 and 0 need a plan that is scaled.
        Of a program, ``arrays`` are what comes before its first result: inputs, constants, the other results.

        None where there is none: a plan so long that it returns to Python between steps, an arena that is larger than
        the common one, dtypes that are not NumPy's own, another Python or NumPy than the entry knows.
        """
        plan, request = self.plan, self.plan.request
        out_strides = request.out_strides if order is None else None
        nbytes = math.prod(plan.expr.output_shape) * as_numpy(plan.dtype).itemsize
        large = out_strides is None and nbytes >= recycle.SMALLEST and recycle.results.ready()
        if self._long or request.byteswapped or not _numpy_only(plan):
            return None
        if plan.constant_bytes and self._constants is None:
            return None
        nbytes = plan.arena_bytes - plan.constant_bytes
        own = _SCALED_BYTES if request.scaled else _KEPT_BYTES
        common = recycle.common(nbytes, _kind(plan)) if nbytes > own else None
        if nbytes > _KEPT_BYTES and common is None:
            return None
        frame = self._frame(common)
        frame.context[abi.CTX_POOL] = self._pool_address()
        frame.set_scalars(alpha, beta)
        for position, array in constants.items():
            frame.bases[position] = address(array)
        count = len(plan.expr.inputs)
        given = [position for position in range(count) if position not in constants]
        return fastcall.make_entry(
            isa=self._isa,
            dtypes=[np.dtype(request.dtypes[position]) for position in given],
            shapes=[plan.expr.shapes[position] for position in given],
            strides=[request.strides[position] for position in given],
            out_dtype=np.dtype(plan.dtype),
            out_shape=plan.expr.output_shape,
            out_strides=out_strides,
            out_order=order or "C",
            places=[frame.context_address + 8 * (abi.CTX_WORDS + position) for position in (*given, count)],
            context=frame.context_address,
            table=self._table_address,
            lock=0 if common is None else address(common.lock),
            # a helper thread that is only starting needs the GIL before it can take its share
            release_gil=self._parallel or self._loops or self._seconds > _TINY_SECONDS,
            written=[given.index(position) for position in self.written],
            handler=recycle.results.handler if large else None,
            pool=fastcall.place(recycle.results.words) if large else 0,
            keep=(frame, self._rows, plan, common, tuple(constants.values())),
        )

    def profiles(self) -> Iterator[tuple[Plan, Profile]]:
        """The plan and what was measured, where calls are and there were some."""
        if self.profile is not None and self.profile.calls:
            yield self.plan, self.profile

    def _go(self, frame: "_Frame", arrays: Sequence[np.ndarray]) -> None:
        self._run_rows(frame, self._table_address)

    def _run_rows(self, frame: "_Frame", table: int) -> None:
        context = frame.context
        context[abi.CTX_POOL] = self._pool_address()
        row = 0
        while row >= 0:
            if self._long:
                context[abi.CTX_DEADLINE] = time.monotonic_ns() + _SLICE_NS
            row = self._walk(frame.context_address, table, row)

    def _pool_address(self) -> int:
        return pool.address(self._isa, self.plan.threads) if self._parallel else 0

    def _borrow(self) -> "_Frame":
        try:
            frame = self._frames.pop()
        except IndexError:
            return self._frame()
        frame.take_memory()
        return frame

    def _frame(self, common: recycle.CommonArena | None = None) -> "_Frame":
        frame = _Frame(self.plan, self._scratch, self._constants, None if common is None else common.memory)
        frame.context[abi.CTX_SLICE] = _SLICE_NS if self._loops else 0
        return frame

    def freeze(self, addresses: Sequence[int]) -> None:
        """Runs the steps that depend on constant operands alone, once; their results are kept with the plan.

        ``addresses``: base addresses of all operands, of which only those of constants are read.
        """
        with _freezing:
            if self._constants is not None or not self.plan.constant_bytes:
                return
            memory = pool.aligned_words(-(-self.plan.constant_bytes // 8))
            steps = [s for s in self.plan.steps if s.once]
            rows, table = lower(steps, self._isa)
            frame = _Frame(self.plan, self._scratch, memory)
            frame.bases[: len(addresses)] = addresses
            self._walk(frame.context_address, table, 0)
            del rows
            if self._constants is None:
                self._constants = memory


class _Frame:
    """What one call at a time needs: context, base addresses, alpha and beta, arena (``memory``: that of others too)."""

    def __init__(self, plan: Plan, scratch: int, constants: np.ndarray | None, memory: np.ndarray | None = None):
        operands = len(plan.expr.inputs)
        self._plan, self._scratch, self._constants = plan, scratch * plan.threads, constants
        self._nbytes = plan.arena_bytes - plan.constant_bytes
        self._memory: np.ndarray | None = None
        words = np.zeros(abi.CTX_WORDS + operands + 4, np.int64)
        self.context, self.bases = words[: abi.CTX_WORDS], words[abi.CTX_WORDS :]
        self.scalars = _UNSCALED.copy()
        self.bases[operands + 2] = fastcall.place(self.scalars)
        if constants is not None:
            self.bases[operands + 3] = address(constants)
        self.context_address = fastcall.place(words)
        self.context[abi.CTX_BASES] = self.context_address + 8 * abi.CTX_WORDS
        self.context[abi.CTX_SCRATCH_STRIDE] = scratch
        self.context[abi.CTX_THREADS] = plan.threads
        self.context[abi.CTX_CLOCK] = _clock()
        if memory is None:
            self.take_memory()
        else:
            self._place(memory)

    def take_memory(self) -> None:
        """Has an arena afterwards; EngineMemoryError names the bytes where there is no memory for one."""
        if self._memory is None:
            self._place(self._fresh())

    def _fresh(self) -> np.ndarray:
        try:
            if self._nbytes > _KEPT_BYTES:
                return recycle.arena(self._nbytes, _kind(self._plan))
            return np.zeros(self._nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise EngineMemoryError(
                f"{self._plan.expr.eq!r}: no memory for {self._plan.arena_bytes} bytes of intermediates and scratch "
                f"(peak_bytes of this plan: {self._plan.peak_bytes})"
            ) from None

    def _place(self, memory: np.ndarray) -> None:
        self._memory = memory
        start = -(-fastcall.place(memory) // _ALIGNMENT) * _ALIGNMENT
        self.bases[len(self._plan.expr.inputs) + 1] = start
        self.context[abi.CTX_SCRATCH] = start + self._nbytes - self._scratch

    def rest(self) -> None:
        """Between calls: a large arena is there for other plans."""
        if self._nbytes > _KEPT_BYTES:
            self._memory = None

    def set_scalars(self, alpha: complex, beta: complex) -> None:
        self.scalars[:] = (alpha.real, alpha.imag, beta.real, beta.imag)


@lru_cache(maxsize=8)
def _function(walk: int) -> Callable[[int, int, int], int]:
    """The walker at an address, mostly the same one: ctypes takes longer to make it than for a call."""
    return _WALK(walk)


@cache
def _failing() -> frozenset[str]:
    """Families whose kernels may find an error."""
    return frozenset(name for name, family in registry.FAMILIES.items() if family.fails)


def _jumps_back(rows: np.ndarray) -> bool:
    jumps = rows[:, abi.KIND] == abi.JUMP
    return bool((jumps & (rows[:, abi.NEXT] < np.arange(len(rows)))).any())


@cache
def _clock() -> int:
    """Address of clock_gettime."""
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value


def address(array: np.ndarray) -> int:
    """Address of the first element."""
    return array.__array_interface__["data"][0]


def _kind(plan: Plan) -> str:
    return recycle.kind_of([*plan.request.dtypes, plan.dtype])


def _numpy_only(plan: Plan) -> bool:
    """NumPy's own dtypes, whose descriptors are singletons."""
    return "bfloat16" not in (*plan.request.dtypes, plan.dtype)


def lower(steps: Sequence[Step], isa: isa_table.ISA, timed: bool = False) -> tuple[np.ndarray, int]:
    """The step table (one row of `abi.STEP_WORDS` per step and a STOP row), and the address of the first row.

    ``timed``: with kernels that count where their time goes, in families that have them.
    Offset vectors stay where the rows of the plan have them: what is shared by many plans is there once.
    """
    length = 8 * (len(steps) + 1) * abi.STEP_WORDS
    raw = np.empty((length + _ALIGNMENT) // 8, np.int64)
    base = fastcall.place(raw)
    skip = -base % _ALIGNMENT  # a row is whole cache lines
    table = raw[skip // 8 : (skip + length) // 8]
    words, at = memoryview(table), 0
    words.cast("B")[:] = b"".join([*[step.args.packed.words for step in steps], _STOP])
    for step in steps:
        args = step.args
        for word, name in args.kernels.items():
            words[at + word] = library.address(name, isa)
        if timed and step.family != "control" and registry.FAMILIES[step.family].timed:
            words[at + abi.FN] = library.address(args.kernels[abi.FN] + TIMED, isa)
        if step.places:
            _PLACES.pack_into(words, 8 * (at + abi.OUT_SLOT), *step.places)
        at += abi.STEP_WORDS
    return table.reshape(-1, abi.STEP_WORDS), base + skip


def run_reference(plan: Plan, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The plan's contractions with `np.einsum`, in the plan's order: none of its steps, layouts and kernels.

    A sum that needs another result dtype is converted at the end, as the plan does. alpha is 1 and beta 0.
    """
    expr, request = plan.expr, plan.request
    if len(arrays) != len(expr.inputs):
        raise EngineTypeError(f"{expr.eq!r} takes {len(expr.inputs)} operands, {len(arrays)} given")
    if 0 in expr.sizes.values():
        return np.zeros(expr.output_shape, plan.dtype)
    if request is None:
        raise EngineTypeError(f"a plan in {plan.dtype} has no reference: NumPy computes it")
    conjugated = [np.conjugate(each) if n in request.conj else each for n, each in enumerate(arrays)]
    values = [_squeezed(each.astype(plan.compute_dtype), term) for each, term in zip(conjugated, expr.inputs)]
    result = np.zeros(expr.output_shape, plan.dtype)
    out, wanted = _squeezed(result, expr.output)
    for positions in request.order.path:
        taken = [values.pop(position) for position in sorted(positions, reverse=True)]
        later = {*wanted, *[index for _, term in values for index in term]}
        kept = tuple(dict.fromkeys(index for _, term in taken for index in term if index in later))
        values.append((_contracted(taken, kept), kept))
    out[...] = _contracted(values, wanted)
    return result


def _contracted(values: list[tuple[np.ndarray, Term]], output: Term) -> np.ndarray:
    numbers: dict[Index, int] = {}
    pairs = [each for value, term in values for each in (value, [numbers.setdefault(i, len(numbers)) for i in term])]
    return np.einsum(*pairs, [numbers[index] for index in output])


def _squeezed(array: np.ndarray, term: Term) -> tuple[np.ndarray, Term]:
    """View without size-1 axes, of repeated indices their diagonal, and the indices that it has."""
    kept: dict = {}
    for axis, index in enumerate(term):
        if array.shape[axis] != 1:
            kept.setdefault(index, []).append(axis)
    strides = tuple(sum(array.strides[a] for a in axes) for axes in kept.values())
    shape = tuple(array.shape[axes[0]] for axes in kept.values())
    return np.lib.stride_tricks.as_strided(array, shape, strides), tuple(kept)
