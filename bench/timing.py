"""Timing: candidates in alternation in one process, medians, and waiting until other libraries are idle.

A sample is a run of enough calls to last `SAMPLE_SECONDS`, after a quarter as many that are not timed; its value is the
time of one call. Shorter samples measured how fast a sleeping core wakes up, and not the steady state. Rounds visit the
candidates in a shuffled order, the same in every run, so that neither drift of the machine nor what one leaves to the
next favours anyone. Who cannot win is not waited for.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import random
import statistics
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Callable, Iterator, Sequence

SAMPLE_SECONDS = 10e-3
# A candidate this much slower than the fastest gets a few samples only; where all that is known is an earlier call,
# which may have been slower than the others, this much.
_CONTENDER, _UNSURE = 1.5, 3.0
_FEW_SAMPLES = 3
_SHORT_SECONDS = 0.2e-3  # of a sample where candidates alternate: the clock takes a few thousandths of it
_AWAKE_SECONDS = 10e-3
_LONGEST_WAIT = 0.5
_LEAST_WARM, _MOST_WARM, _WARM_EVERY, _PAGE = 1 << 24, 1 << 30, 1.0, 4096
# The CPU time of a thread that runs on another core is brought up to date by the clock tick only, every 4 or 10 ms.
_POLL_SECONDS = 20e-3
# A candidate whose earlier call took this many times the fastest's, and long, is not called again.
_HOPELESS = 10
# Comparisons of long calls may end earlier than after all rounds: (share of the budget that is used up, rounds).
_EARLY_ENDS = ((1.5, 2), (3.0, 1))
# Where the fastest candidate that is always sampled and the fastest other one are within this of each other, those near
# them get more samples, as long as so many budgets last: a comparison of two samples each is chance.
_CLOSE, _DECIDING_BUDGETS = 1.3, 12
# As long as one thing that is timed twice differs from itself by more than this, all near the fastest get more samples,
# for so many budgets more: what decides is how noisy a case is, not who is ahead.
_EQUAL, _EQUAL_BUDGETS = 1.05, 3
# Calls shorter than this are repeated once untimed after a switch: each finds its own data in cache, its threads awake.
_WARM_SECONDS = 50e-3


@dataclass(kw_only=True)
class Candidate:
    """One thing to time: ``function(*args)``; ``first`` are the seconds of a call that was made before. A ``measure``
    is what others are held against, as a copy of as many bytes: always sampled, and nobody's rival."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    first: float | None = None
    measure: bool = False
    samples: list[float] = field(default_factory=list)
    calls: int = 1

    @property
    def median(self) -> float:
        """Median seconds of one call."""
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        """Seconds of one call of which a tenth of the samples are shorter: other programs make a call longer, never
        shorter."""
        return sorted(self.samples)[len(self.samples) // 10]


@dataclass(frozen=True, kw_only=True)
class TimeBudget:
    """Bounds of one comparison: seconds overall, and numbers of rounds among the contenders.

    ``long`` are the seconds of a call that nobody waits for twice if it cannot win; ``deciding`` the samples that those
    have at least who are close to each other; ``equalising`` the rounds more where one thing differs from itself.
    """

    seconds: float = 3.0
    least_rounds: int = 5
    most_rounds: int = 25
    long: float = 1.0
    deciding: int = 7
    equalising: int = 25

    def half(self) -> "TimeBudget":
        """Half the time, the same numbers of rounds."""
        return replace(self, seconds=self.seconds / 2)


QUICK = TimeBudget(seconds=0.6, least_rounds=3, most_rounds=9, long=0.3, deciding=0, equalising=0)


def time_calls(candidate: Candidate, calls: int) -> float:
    """Seconds of one call, over ``calls`` calls in a row."""
    function, args = candidate.function, candidate.args
    start = time.perf_counter()
    for _ in repeat(None, calls):
        function(*args)
    return (time.perf_counter() - start) / calls


def wait_until_idle(longest: float = _LONGEST_WAIT) -> bool:
    """Sleep until no thread of this process burns CPU time (pools spin for a while after a call).

    Returns False if they still do after ``longest`` seconds.
    """
    deadline = time.perf_counter() + longest
    while True:
        start, busy = time.perf_counter(), time.process_time()
        time.sleep(_POLL_SECONDS)
        elapsed = time.perf_counter() - start
        if time.process_time() - busy < 0.25 * elapsed:
            return True
        if time.perf_counter() > deadline:
            return False


def wake_cores(threads: int, seconds: float = _AWAKE_SECONDS) -> None:
    """Keep ``threads`` cores busy for a moment, outside any library that is measured.

    A virtual core that was idle for a tenth of a second is back only milliseconds after a thread is given to it, and
    until then its thread shares the core of the caller: a call of 10 ms on two threads takes 16. All candidates alike
    find their cores awake.
    """
    deadline, block = time.perf_counter() + seconds, bytes(1 << 18)

    def work() -> None:
        while time.perf_counter() < deadline:
            hashlib.sha256(block)  # without the interpreter lock

    helpers = [threading.Thread(target=work) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()


class WarmMemory:
    """Keeps free memory of the system resident: some is taken, touched and given back, at most once a second.

    A hypervisor takes pages away that were free for a few seconds, and the next to allocate pays for their return: up
    to twenty times what a page costs otherwise. Whom it meets is chance, and it meets fresh results only. ``nbytes``
    is what a call is expected to allocate; little is not worth the time.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = min(nbytes, _MOST_WARM, _free_memory() // 4) if nbytes >= _LEAST_WARM else 0
        self._touched = -math.inf

    def __call__(self) -> None:
        if not self._nbytes or time.perf_counter() - self._touched < _WARM_EVERY:
            return
        import numpy as np

        np.empty(self._nbytes, np.uint8)[::_PAGE] = 0
        self._touched = time.perf_counter()


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not tell
        return _MOST_WARM


def compare(
    candidates: Sequence[Candidate],
    *,
    always: Sequence[str] = (),
    equal: Sequence[str] = (),
    budget: TimeBudget = TimeBudget(),
    settle: Callable[[], Any] = wait_until_idle,
) -> None:
    """Fill ``samples`` of all candidates, in alternation.

    Those named in ``always``, measures, and those near the fastest of the others are sampled in every round until the
    budget is used up; each candidate gets at least one sample, and clearly slower ones a few where they are affordable. An
    earlier call counts as a sample where a candidate cannot win, and where such calls alone would use the budget up.
    Those named in ``equal`` are one thing under several names: while their medians are apart, rounds go on.
    """
    start = time.perf_counter()
    tight = sum(each.first or 0.0 for each in candidates) > budget.seconds
    with _without_gc():
        for candidate in candidates:
            if candidate.first is not None and (tight or _is_hopeless(candidate, candidates, budget)):
                candidate.samples.append(candidate.first)
            else:
                _probe(candidate, settle)
        for number in range(budget.most_rounds):
            if _is_over(number, time.perf_counter() - start, budget):
                break
            chosen = [each for each in candidates if _is_due(each, candidates, always, budget)]
            _round(number, chosen, settle)
        for number in range(budget.deciding):
            chosen = _undecided(candidates, always, budget.deciding)
            if not chosen or time.perf_counter() - start > _DECIDING_BUDGETS * budget.seconds:
                break
            _round(number, chosen, settle)
        start = time.perf_counter()
        for number in range(budget.equalising):
            if not _differs(candidates, equal) or time.perf_counter() - start > _EQUAL_BUDGETS * budget.seconds:
                break
            _round(number, [each for each in candidates if _is_due(each, candidates, always, budget)], settle)


def alternate(candidates: Sequence[Candidate], budget: TimeBudget, settle: Callable[[], Any] = wait_until_idle) -> None:
    """Fill ``samples`` of candidates that differ by little and share their data, for `Candidate.low`.

    They take turns as fast as they can, in shuffled rounds, mostly with a single call, until the time is used up. A
    call of less than a millisecond is then rarely interrupted, and all find the same core, awake, at the same clock.
    Beside nine other processes on two cores, repeated so, the ratio of two plans of 0.4 ms was the same within 0.002;
    by medians of longer samples it went from 0.8 to 1.3.
    """
    settle()
    with _without_gc():
        for each in candidates:
            each.calls = max(1, int(_SHORT_SECONDS / max(min(time_calls(each, 1) for _ in range(_FEW_SAMPLES)), 1e-9)))
        end, number = time.perf_counter() + budget.seconds, 0
        while number < budget.least_rounds or time.perf_counter() < end:
            for each in random.Random(number).sample(list(candidates), len(candidates)):
                each.samples.append(time_calls(each, each.calls))
            number += 1


def against(
    candidate: Candidate,
    limit: Callable[[], float],
    *,
    budget: TimeBudget = TimeBudget(),
    settle: Callable[[], Any] = wait_until_idle,
) -> float:
    """What ``limit()`` says over the time of a call of ``candidate``: the median over samples that lie between two
    limits each, so that what changes slowly falls out. Nobody else runs meanwhile, so nobody is waited for."""
    parts: list[float] = []
    with _without_gc():
        _probe(candidate, settle)
        start, before = time.perf_counter(), limit()
        while len(parts) < budget.most_rounds:
            if len(parts) >= budget.least_rounds and time.perf_counter() - start > budget.seconds:
                break
            _sample(candidate)
            after = limit()
            parts.append((before + after) / 2 / candidate.samples[-1])
            before = after
    return statistics.median(parts)


def fraction(
    candidate: Candidate,
    measures: Sequence[Candidate],
    *,
    budget: TimeBudget = TimeBudget(),
    settle: Callable[[], Any] = wait_until_idle,
) -> float:
    """The fastest of ``measures`` over ``candidate``, all of which were compared before: the median over rounds, in each of
    which all who may be the fastest have a sample.

    A hypervisor moves processors to and from each other's memory controller within seconds: a copy then takes half as
    long, or twice. A median of each alone may be of one time for the copy, and of the other for what is held against it.
    """
    fastest = min(each.median for each in measures)
    near = [each for each in measures if each.median <= _CLOSE * fastest]
    parts: list[float] = []
    with _without_gc():
        start = time.perf_counter()
        while len(parts) < budget.most_rounds:
            if len(parts) >= budget.least_rounds and time.perf_counter() - start > budget.seconds:
                break
            _round(len(parts), [candidate, *near], settle)
            parts.append(min(each.samples[-1] for each in near) / candidate.samples[-1])
    return statistics.median(parts)


def _round(number: int, chosen: Sequence[Candidate], settle: Callable[[], Any]) -> None:
    # In a fixed cycle, the same one would always find what the same neighbour left in caches and cores: of seven
    # copies of ours behind other libraries, the last was a seventh faster than the first.
    for candidate in random.Random(number).sample(list(chosen), len(chosen)):
        settle()
        _sample(candidate)


def _undecided(candidates: Sequence[Candidate], always: Sequence[str], enough: int) -> list[Candidate]:
    """Those whose order a few samples do not tell, as long as they have few."""
    ours = [each for each in candidates if each.name in always]
    rivals = _rivals(candidates, always)
    if not ours or not rivals:
        return []
    best, rival = (min(each.median for each in group) for group in (ours, rivals))
    near = [*ours, *(each for each in rivals if each.median <= _CLOSE * rival)]
    few = min(len(each.samples) for each in near) < enough
    near += [each for each in candidates if each.measure]
    return near if few and max(best, rival) <= _CLOSE * min(best, rival) else []


def _differs(candidates: Sequence[Candidate], equal: Sequence[str]) -> bool:
    medians = [each.median for each in candidates if each.name in equal]
    return len(medians) > 1 and max(medians) > _EQUAL * min(medians)


def _rivals(candidates: Sequence[Candidate], always: Sequence[str]) -> list[Candidate]:
    return [each for each in candidates if not each.measure and each.name not in always]


def _is_over(rounds: int, elapsed: float, budget: TimeBudget) -> bool:
    if any(elapsed > share * budget.seconds and rounds >= enough for share, enough in _EARLY_ENDS):
        return True
    return elapsed > budget.seconds and rounds >= budget.least_rounds


def _is_hopeless(candidate: Candidate, candidates: Sequence[Candidate], budget: TimeBudget) -> bool:
    if candidate.first is None or candidate.first < budget.long:
        return False
    return candidate.first > _HOPELESS * min(each.first for each in candidates if each.first is not None)


def _probe(candidate: Candidate, settle: Callable[[], Any]) -> None:
    """Choose the number of calls of a sample; the probe itself counts as a sample where one call is long."""
    settle()
    seconds = time_calls(candidate, 1)
    while seconds * candidate.calls < SAMPLE_SECONDS:
        needed = int(SAMPLE_SECONDS / max(seconds, 1e-9)) + 1
        candidate.calls = min(max(needed, candidate.calls + 1), 10 * candidate.calls)
        seconds = time_calls(candidate, candidate.calls)
    candidate.samples.append(seconds)


def _sample(candidate: Candidate) -> None:
    if candidate.samples[-1] * candidate.calls < _WARM_SECONDS:
        time_calls(candidate, max(1, candidate.calls // 4))
    seconds = time_calls(candidate, candidate.calls)
    if seconds * candidate.calls < SAMPLE_SECONDS / 2:
        # Others had the processor when calls were counted: such short samples would measure how cores wake up, each time.
        candidate.calls = int(SAMPLE_SECONDS / max(seconds, 1e-9)) + 1
        seconds = time_calls(candidate, candidate.calls)
    candidate.samples.append(seconds)


def _is_due(candidate: Candidate, candidates: Sequence[Candidate], always: Sequence[str], budget: TimeBudget) -> bool:
    if candidate.measure or candidate.name in always:
        return True
    factor = _UNSURE if candidate.samples == [candidate.first] else _CONTENDER
    if candidate.median <= factor * min(each.median for each in _rivals(candidates, always)):
        return True
    return len(candidate.samples) < _FEW_SAMPLES and candidate.median * candidate.calls < budget.seconds / 20


@contextmanager
def _without_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Time of one call and its result, for things that happen once: planning, a first call."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result
