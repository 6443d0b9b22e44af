"""Runs a plan and measures it: how long each step takes, and how much of that is packing and unpacking."""

from __future__ import annotations

import threading
from typing import Any, Sequence

import numpy as np

from .executor import NativePlan, address, lower
from .kernels.cpu import abi, pool
from .locks import anew
from .plan import Plan, Step
from .profile import Profile, StepTime, part_of

_adding = anew(globals(), "_adding", threading.RLock)  # one for all plans: a call adds its times in a moment


class ProfiledPlan(NativePlan):
    """A plan whose calls are measured.

    Each call computes everything twice, into the same arrays: with kernels that count where their time goes, which are
    slower, for the proportions within a step; then with the ordinary ones, for the result and the time of each step.
    Operands that the plan writes are what they were when the second time begins.
    """

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self._steps = [step for step in plan.steps if not step.once]
        self._counting, self._counting_address = lower(self._steps, self._isa, timed=True)
        self._parts = [part_of(step, plan.steps) for step in self._steps]
        self.profile = Profile.nothing(plan)

    def make_entry(self, *more: Any, **options: Any) -> None:
        """There is none: every call is to be measured."""
        return None

    def _go(self, frame: Any, arrays: Sequence[np.ndarray]) -> None:
        before = [(arrays[at], arrays[at].copy()) for at in self.written]
        ticks = self._count(frame)
        for array, elements in before:
            array[...] = elements
        if frame.context[abi.CTX_ERROR]:
            return  # the caller raises it
        rows = pool.aligned_words(self._rows.size).reshape(self._rows.shape)
        rows[:] = self._rows  # a call at the same time adds up in its own
        frame.context[abi.CTX_PROFILE] = 1
        self._run_rows(frame, address(rows))
        times = [StepTime()] * len(self.plan.steps)
        for step, part, row, counted in zip(self._steps, self._parts, rows, ticks):
            times[step.number] = _split(int(row[abi.TICKS]) * 1e-9, counted, part)
        with _adding:
            self.profile = self.profile.with_call(times)

    def _count(self, frame: Any) -> np.ndarray:
        """The `abi.SPLIT_WORDS` counters of each row, of all workers together."""
        counters = pool.aligned_words(self.plan.threads * abi.SPLIT_WORDS).reshape(-1, abi.SPLIT_WORDS)
        sums = np.zeros((len(self._counting), abi.SPLIT_WORDS), np.int64)
        context, table, row = frame.context, self._counting_address, 0
        context[abi.CTX_POOL] = self._pool_address()
        context[abi.CTX_SPLIT], context[abi.CTX_DEADLINE] = address(counters), 1  # long ago: back after each row
        while row >= 0:
            if row < len(self._steps) and (self._adds(self._steps[row]) or self._steps[row].kernel == "blocks"):
                row += 1  # what is behind a row of blocks is measured row by row
                continue
            counters[:] = 0
            following = self._walk(frame.context_address, table, row)
            sums[row] += counters.sum(axis=0)
            row = following
        context[abi.CTX_DEADLINE] = 0
        return sums

    def _adds(self, step: Step) -> bool:
        """Whether it may add to the output, which can happen only once."""
        return self.plan.request.scaled and self.plan.buffers[step.output].kind == "output"


def _split(seconds: float, counted: np.ndarray, part: str) -> StepTime:
    """``seconds`` of a step as its counters say, or all of it in ``part`` where its kernel has none."""
    total, packing, unpacking = (int(counted[at]) for at in (abi.SPLIT_TOTAL, abi.SPLIT_PACKING, abi.SPLIT_UNPACKING))
    if not total:
        return StepTime(**{part: seconds})
    tick = seconds / total
    return StepTime(kernel=max(total - packing - unpacking, 0) * tick, packing=packing * tick, unpacking=unpacking * tick)
