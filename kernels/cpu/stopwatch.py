"""What a timed kernel counts: ticks of its worker in all, in packing and in storing results (`abi.SPLIT_TOTAL` to
`SPLIT_UNPACKING`, at `CTX_SPLIT`).

Timed kernels are built beside the others, under names of their own, when somebody profiles: the ordinary ones hold no
trace of this. Their arithmetic is the same, and so is every bit of what they compute.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from . import abi
from .emit import Fn, Val


class Stopwatch:
    """Adds what parts of a kernel take to words of the worker at ``counters``; None: emits nothing."""

    def __init__(self, f: Fn, counters: Val | None) -> None:
        self._f, self.counters = f, counters

    @classmethod
    def of_worker(cls, f: Fn, ctx: Val, worker: Val, timed: bool) -> "Stopwatch":
        """For a task function: the counters of ``worker``, where the kernel is a timed one."""
        if not timed:
            return cls(f, None)
        return cls(f, f.word(ctx, abi.CTX_SPLIT) + worker * (8 * abi.SPLIT_WORDS))

    @contextmanager
    def part(self, word: int) -> Iterator[None]:
        """``with stopwatch.part(abi.SPLIT_PACKING): ...`` emits code whose ticks are added to that word."""
        if self.counters is None:
            yield
            return
        f, at = self._f, self.counters + 8 * word
        started = f.ticks()
        yield
        f.store(f.word(at) + (f.ticks() - started), at, align=8)
