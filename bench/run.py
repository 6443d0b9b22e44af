"""Runs the benchmark: each case against every peer, judged, timed and held against its limit.

`run_case` does one case and returns a `CaseResult`; `run` does all of them under one progress bar.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from ..dtypes import as_numpy
from ..errors import EngineError, EngineTypeError
from . import cases as case_table
from . import profiles
from .cases import Case
from .check import Finding, Reference, Verdict, draws, make_reference
from .copies import copies
from .limits import LimitNow, Roof, share, voids, work_of
from .peers import Call, Peer, Task, TooSlow, Unsupported
from .steps import parse, walk
from .timing import (
    QUICK,
    Candidate,
    TimeBudget,
    WarmMemory,
    against,
    compare,
    fraction,
    seconds_of,
    wait_until_idle,
    wake_cores,
)

OURS = "einsum_engine"
AGAIN = "einsum_engine again"
# A peer that is known to take this many times the fastest one so far is not run; nor one that takes minutes.
_FAR = 5
_LONGEST_CALL = 60.0
# Slower peers do not decide who is fastest with out= either.
_OUT_CONTENDER = 5
_LIMIT_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made. ``budget`` bounds the timing of one case; ``settle`` waits between candidates."""

    threads: int
    budget: TimeBudget = TimeBudget()
    settle: Callable[[], Any] = wait_until_idle

    @classmethod
    def quick(cls, threads: int) -> "Settings":
        """Shorter samples: for a look, not for figures to keep."""
        return cls(threads=threads, budget=QUICK)

    def warmed(self, nbytes: int) -> "Settings":
        """For calls on ``nbytes`` of operands and results: cores are awake, and twice as much free memory resident."""
        warm = WarmMemory(2 * nbytes)

        def settle() -> None:
            warm()
            self.settle()
            wake_cores(self.threads)

        return replace(self, settle=settle)


@dataclass(kw_only=True)
class PeerResult:
    """One peer on one case: median seconds of ``samples`` and the path it was on, or why there is none.

    ``at_least`` are the seconds that a peer would have taken which was not waited for.
    """

    seconds: float | None = None
    samples: int | None = None
    variant: str | None = None
    at_least: float | None = None
    out_seconds: float | None = None
    error: float | None = None
    reason: str | None = None


@dataclass(kw_only=True)
class CaseResult:
    """Everything measured on one case; times in seconds, errors relative to ``|A||B|``.

    ``work`` is what the limit is made of: flops and bytes of each step. ``profile``: seconds of each step of our plan by
    part (`profiles.PARTS`), in a call that was measured beside the timed ones. ``share`` is of the best limit of the run,
    ``share_beside`` of the limit in alternation with ours. ``key`` is that of the case, also where the
    case was read from a file that does not hold all of it. ``copy_seconds`` is the fastest copy of an operand into memory
    written before, beside ``out_seconds``; ``copy_share`` that copy over ours, in rounds of both.
    """

    case: Case
    key: str = ""
    seconds: float | None = None
    again: float | None = None
    out_seconds: float | None = None
    copy_seconds: float | None = None
    copy_share: float | None = None
    peers: dict[str, PeerResult] = field(default_factory=dict)
    best: str | None = None
    work: list[tuple[int, int]] = field(default_factory=list)
    limit: float | None = None
    share: float | None = None
    share_beside: float | None = None
    void: list[str] = field(default_factory=list)
    error: float | None = None
    bound: float | None = None
    verdict: Verdict = Verdict(passed=False, reason="not run")
    planning: dict[str, float] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    profile: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = self.key or self.case.key

    @property
    def ratio(self) -> float | None:
        """Best peer over ours: above 1 the engine is faster."""
        if self.best is None or self.seconds is None:
            return None
        best = self.peers[self.best].seconds
        return None if best is None else best / self.seconds

    @property
    def out_ratio(self) -> float | None:
        """The same where everybody writes into ``out=``."""
        times = [peer.out_seconds for peer in self.peers.values() if peer.out_seconds is not None]
        return min(times) / self.out_seconds if times and self.out_seconds else None

    @property
    def noise(self) -> float | None:
        """Ours against ours: how far two equal things were apart, as a ratio of at least 1."""
        if self.seconds is None or self.again is None:
            return None
        return max(self.seconds / self.again, self.again / self.seconds)


def run(
    cases: Sequence[Case],
    engine: Any,
    peers: Sequence[Peer],
    settings: Settings,
    roof: Roof,
    on_result: Callable[[CaseResult], None] = lambda result: None,
    progress: Callable[[Iterable[Case]], Iterable[Case]] = iter,
) -> list[CaseResult]:
    """Run ``cases`` one after the other; ``on_result`` sees each as soon as it is there.

    ``engine`` is the module with the public API. Limits and shares are those of the whole run in the end.
    """
    results = []
    for case in progress(cases):
        result = run_case(case, engine, peers, settings, roof)
        results.append(result)
        on_result(result)
    for result in results:
        hold_against(result, roof)
    return results


def run_case(case: Case, engine: Any, peers: Sequence[Peer], settings: Settings, roof: Roof) -> CaseResult:
    """One case: plan, first call, check, timing, limit. A failure of ours is a FAIL with its message."""
    result = CaseResult(case=case)
    try:
        _run_case(result, engine, peers, settings, roof)
    except (EngineError, MemoryError) as error:
        result.verdict = Verdict(passed=False, reason=f"{type(error).__name__}: {error}")
    return result


def _run_case(result: CaseResult, engine: Any, peers: Sequence[Peer], settings: Settings, roof: Roof) -> None:
    case = result.case
    expression = parse(case.expr, case.shapes)
    arrays = tuple(case_table.operands(case))
    try:
        compiled = _compile(case, engine, settings, result)
        first, ours = seconds_of(lambda: compiled(*arrays))
    except Exception as error:  # the other cases still count
        result.verdict = Verdict(passed=False, reason=f"{type(error).__name__}: {error}")
        return
    result.planning["first_call"] = first

    path = tuple(tuple(step) for step in compiled.plan.path)
    task = Task(expression=expression, arrays=arrays, path=path, dtype=case.dtype, threads=settings.threads)
    reference = make_reference(expression, path, arrays, case.dtype)
    finding = _fresh(reference.judge(ours), ours, arrays)
    elements = sum(array.size for array in task.arrays) + math.prod(reference.shape)
    settings = settings.warmed(elements * reference.dtype.itemsize)

    calls, findings, apart = _prepare(peers, task, (reference, ours), settings, result)
    finding = finding if apart is None else replace(finding, complaint=finding.complaint or apart)
    del ours
    fastest = _time(compiled, task, calls, settings, result)
    _time_out(compiled, task, calls, reference, settings, result, engine)
    _judge(compiled, task, calls, (reference, finding, findings), fastest, settings, result)
    _hold_against_limit(task, roof, settings, result)
    if result.share is not None:
        ours = Candidate(name=OURS, function=compiled, args=task.arrays)
        now = LimitNow(roof, result.work, task.dtype)
        result.share_beside = against(ours, now, budget=settings.budget.half(), settle=settings.settle)
    settings.settle()
    result.profile = profiles.measure(_maker(case, engine, settings)(optimize=list(path), profile=True), arrays)


def _compile(case: Case, engine: Any, settings: Settings, result: CaseResult) -> Any:
    make = _maker(case, engine, settings)
    if case.path is None:
        result.planning["with_search"], compiled = seconds_of(make)
        result.planning["path_given"], _ = seconds_of(lambda: make(optimize=list(compiled.plan.path)))
    else:
        result.planning["path_given"], compiled = seconds_of(lambda: make(optimize=list(case.path or ())))
    plan = compiled.plan
    result.plan = {
        "flops": plan.flops,
        "bytes_moved": plan.bytes_moved,
        "peak_bytes": plan.peak_bytes,
        "kernels": [step.kernel for step in plan.steps],
    }
    if any("reference" in step.kernel or "reference" in step.family for step in plan.steps):
        result.marks.append("reference kernel")
    return compiled


def _maker(case: Case, engine: Any, settings: Settings) -> Callable[..., Any]:
    dtypes = [case.dtype] * len(case.shapes)
    return partial(engine.compile, case.expr, *case.shapes, dtypes=dtypes, threads=settings.threads)


def _fresh(finding: Finding, ours: Any, arrays: Sequence[np.ndarray]) -> Finding:
    array = np.asarray(ours)
    complaint = None
    if not array.flags.c_contiguous:
        complaint = "the result is not C-contiguous"
    elif array.ndim and any(np.may_share_memory(array, operand) for operand in arrays):
        complaint = "the result shares memory with an operand"
    return finding if complaint is None else finding.merge(Finding(error=0.0, everywhere=0.0, complaint=complaint))


_Calls = dict[str, list[Call]]


def _prepare(
    peers: Sequence[Peer], task: Task, known: tuple[Reference, Any], settings: Settings, result: CaseResult
) -> tuple[_Calls, dict[str, Finding], str | None]:
    """Calls of every peer that can run the task and gets it right, and what was found of each.

    Each is run once. One that is known to be far slower than the fastest so far is not run. The last value is what is
    wrong with our result beside the first right one, where the reference does not cover everything.
    """
    reference, ours = known
    allowed = [peer for peer in peers if result.case.peers is None or peer.name in result.case.peers]
    result.peers = {peer.name: PeerResult() for peer in allowed}
    calls: _Calls = {}
    findings: dict[str, Finding] = {}
    apart = None
    for peer in sorted(allowed, key=lambda each: each.loops):
        row = result.peers[peer.name]
        fastest = min((call.first for made in calls.values() for call in made), default=math.inf)
        patience = min(_LONGEST_CALL, max(settings.budget.long, _FAR * fastest))
        try:
            for trial in peer.trials(replace(task, patience=patience), settings.settle):
                found = reference.judge(whole := trial.call.to_numpy(trial.result))
                if not (verdict := reference.verdict(found, None)).passed:
                    row.reason = f"wrong: {verdict.reason}"
                    continue
                if not calls:
                    apart = reference.beside(ours, whole)
                calls.setdefault(peer.name, []).append(replace(trial.call, first=trial.seconds))
                findings[f"{peer.name} {trial.call.variant}"] = found
        except TooSlow as error:
            row.reason, row.at_least = str(error), error.seconds
        except Unsupported as error:
            row.reason = str(error)
    return calls, findings, apart


def _time(compiled: Any, task: Task, calls: _Calls, settings: Settings, result: CaseResult) -> str | None:
    """Fill the fresh-result times; returns the key of the fastest call."""
    candidates = {
        f"{name} {call.variant}": Candidate(
            name=f"{name} {call.variant}", function=call.function, args=call.args, first=call.first
        )
        for name, made in calls.items()
        for call in made
    }
    ours = Candidate(name=OURS, function=compiled, args=task.arrays)
    again = Candidate(name=AGAIN, function=compiled, args=task.arrays)
    compare(
        [ours, *candidates.values(), again],
        always=(OURS, AGAIN),
        equal=(OURS, AGAIN),
        budget=settings.budget,
        settle=settings.settle,
    )
    result.seconds, result.again = ours.median, again.median
    for name, made in calls.items():
        variant = min((call.variant for call in made), key=lambda each: candidates[f"{name} {each}"].median)
        row, candidate = result.peers[name], candidates[f"{name} {variant}"]
        row.variant, row.seconds, row.samples = variant, candidate.median, len(candidate.samples)
    if not calls:
        return None
    result.best = min(calls, key=lambda name: result.peers[name].seconds or math.inf)
    return f"{result.best} {result.peers[result.best].variant}"


def _time_out(
    compiled: Any,
    task: Task,
    calls: _Calls,
    reference: Reference,
    settings: Settings,
    result: CaseResult,
    engine: Any,
) -> None:
    """Times with ``out=``: ours, each peer that takes it, on the path that was its faster one, and copies."""
    out = np.empty(task.expression.output_shape, dtype=reference.dtype)
    into = partial(compiled, out=out)
    ours = Candidate(name=OURS, function=into, args=task.arrays, first=_writes(into, task.arrays, out, reference))
    if not ours.first:
        result.marks.append("wrong with out=")
        return
    others = {}
    chosen = {
        name: next(call for call in made if call.variant == result.peers[name].variant) for name, made in calls.items()
    }
    able = {name: call for name, call in chosen.items() if call.with_out is not None}
    fastest = min((_seconds(result, name) for name in able), default=0.0)
    longest = max(settings.budget.long / 10, _OUT_CONTENDER * fastest)
    for name, call in able.items():
        function = call.with_out(out) if call.with_out and _seconds(result, name) <= longest else None
        if function is not None and (first := _writes(function, call.args, out, reference)):
            others[name] = Candidate(name=name, function=function, args=call.args, first=first)
    copied = copies(task.arrays[0], engine, task.threads, out) if result.case.copied else []
    compare([ours, *others.values(), *copied], always=(OURS,), budget=settings.budget.half(), settle=settings.settle)
    result.out_seconds = ours.median
    if copied:
        result.copy_seconds = min(copy.median for copy in copied)
        result.copy_share = fraction(ours, copied, budget=settings.budget, settle=settings.settle)
    for name, candidate in others.items():
        result.peers[name].out_seconds = candidate.median


def _seconds(result: CaseResult, name: str) -> float:
    seconds = result.peers[name].seconds
    return math.inf if seconds is None else seconds


def _writes(function: Callable[..., Any], args: tuple[Any, ...], out: np.ndarray, reference: Reference) -> float:
    """Seconds of the call if it fills ``out`` with a right result; 0 if not, or if the library refuses."""
    out.fill(0)
    try:
        seconds, _ = seconds_of(lambda: function(*args))
    except Exception:
        return 0.0
    return seconds if reference.verdict(reference.judge(out), None).passed else 0.0


def _judge(
    compiled: Any,
    task: Task,
    calls: _Calls,
    known: tuple[Reference, Finding, dict[str, Finding]],
    fastest: str | None,
    settings: Settings,
    result: CaseResult,
) -> None:
    """PASS or FAIL beside the fastest peer, over several draws where the output has few components.

    Where time does not allow them, the peers' largest error stands for the fastest one's: it may have been lucky.
    """
    reference, finding, findings = known
    peer = None if fastest is None else findings[fastest]
    call = next((each for name, made in calls.items() for each in made if f"{name} {each.variant}" == fastest), None)
    deadline = time.perf_counter() + settings.budget.seconds
    for seed in range(1, draws(task.expression)):
        if time.perf_counter() > deadline:
            peer = functools.reduce(Finding.merge, findings.values(), peer) if peer is not None else None
            break
        arrays = tuple(case_table.operands(result.case, seed=seed))
        drawn = make_reference(task.expression, task.path, arrays, task.dtype)
        finding = finding.merge(drawn.judge(compiled(*arrays)))
        if call is not None and peer is not None:
            peer = peer.merge(drawn.judge(call.to_numpy(call.function(*map(call.convert, arrays)))))
    result.error, result.bound = finding.error, reference.bound
    result.verdict = reference.verdict(finding, peer)
    if "wrong with out=" in result.marks and result.verdict.passed:
        result.verdict = Verdict(passed=False, reason="wrong with out=")
    if result.best is not None and peer is not None:
        result.peers[result.best].error = peer.error


def _hold_against_limit(task: Task, roof: Roof, settings: Settings, result: CaseResult) -> None:
    """Fill limit and share; where a time is above the limit, the limit is measured again."""
    itemsize = as_numpy(task.dtype).itemsize
    work = work_of(walk(task.expression, task.path), task.dtype, itemsize)
    settings.settle()
    try:
        roof.refresh(work, task.dtype)
    except EngineTypeError:  # a dtype handed to NumPy: no peak of ours bounds it
        return
    result.work = work
    for _ in range(_LIMIT_TRIES):
        hold_against(result, roof)
        assert result.limit is not None and result.seconds is not None
        if not result.void and not voids(result.limit, result.seconds):
            break
        settings.settle()
        roof.again(work, task.dtype)
    hold_against(result, roof)


def hold_against(result: CaseResult, roof: Roof) -> None:
    """Limit, share and what is above the limit, by all that ``roof`` knows by now."""
    if not result.work or result.seconds is None:
        return
    result.limit = roof.limit(result.work, result.case.dtype)
    result.share = share(result.limit, result.seconds)
    result.void = [
        name for name, peer in result.peers.items() if peer.seconds is not None and voids(result.limit, peer.seconds)
    ]
