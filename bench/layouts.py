"""Layouts of intermediates, ours against ours: a column for each policy of ``compile(layouts=...)``.

The candidates of a case run in alternation on the same path. Candidates whose plans are equal are timed once. Cases
without intermediates, and those where all candidates are one plan, have nothing to compare and are named as such.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

from ..errors import EngineError
from . import cases as case_table
from .cases import Case, case_from_data
from .check import make_reference
from .figures import geometric_mean
from .report import format_seconds
from .run import Settings
from .steps import parse
from .timing import Candidate, compare

SOLVED = "solve"
CANDIDATES = ("natural", "merged", "panels", "nested", SOLVED)
NEAR = 1.05  # the solver's pick is good where it takes at most so many times the best candidate's time


@dataclass(kw_only=True)
class LayoutResult:
    """One case: seconds of each candidate, measured and predicted; ``same`` names the candidate that has its plan.

    ``skipped`` says why there is nothing to compare, ``wrong`` which candidates computed something wrong.
    """

    case: Case
    key: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""

    def __post_init__(self) -> None:
        self.key = self.key or self.case.key

    @property
    def best(self) -> str | None:
        """The fastest candidate; the solver's pick where that is the same plan."""
        if not self.seconds:
            return None
        return min((SOLVED, *CANDIDATES), key=lambda name: self.seconds[name])

    @property
    def loss(self) -> float | None:
        """Time of the solver's pick over that of the best candidate: 1 where it is the best."""
        return None if self.best is None else self.seconds[SOLVED] / self.seconds[self.best]


def run(
    cases: Sequence[Case],
    engine: Any,
    settings: Settings,
    on_result: Callable[[LayoutResult], None] = lambda result: None,
    progress: Callable[[Iterable[Case]], Iterable[Case]] = iter,
) -> list[LayoutResult]:
    """Compare the candidates of each case; ``engine`` is the module with the public API."""
    results = []
    for case in progress(cases):
        result = run_case(case, engine, settings)
        results.append(result)
        on_result(result)
    return results


def run_case(case: Case, engine: Any, settings: Settings) -> LayoutResult:
    """One case; a failure of ours is a wrong result."""
    result = LayoutResult(case=case)
    if len(case.shapes) < 3:
        result.skipped = "no intermediates"
        return result
    try:
        _compare(result, engine, settings)
    except (EngineError, MemoryError) as error:
        result.wrong.append(f"{type(error).__name__}" if case.external else f"{type(error).__name__}: {error}")
    return result


def _compare(result: LayoutResult, engine: Any, settings: Settings) -> None:
    case, arrays = result.case, tuple(case_table.operands(result.case))
    path = None if case.path is None else list(case.path)
    compiled: dict[str, Any] = {}
    for name in (SOLVED, *CANDIDATES[:-1]):
        more = {} if path is None else {"optimize": path}
        compiled[name] = engine.compile(case.expr, *arrays, threads=settings.threads, layouts=name, **more)
        path = path or list(compiled[name].plan.path)  # searched once
    result.predicted = {name: compiled[name].plan.seconds for name in CANDIDATES}
    result.same = _equal_plans(compiled)
    different = [name for name in compiled if name not in result.same]
    if len(different) == 1:
        result.skipped = "all candidates are one plan"
        return
    result.wrong = _wrong(case, path, arrays, {name: compiled[name] for name in different})
    settings = settings.warmed(sum(array.nbytes for array in arrays) + compiled[SOLVED].plan.output_bytes)
    timed = [Candidate(name=name, function=compiled[name], args=arrays) for name in different]
    compare(timed, always=different, budget=settings.budget, settle=settings.settle)
    measured = {each.name: each.median for each in timed}
    result.seconds = {name: measured[result.same.get(name, name)] for name in CANDIDATES}


def _equal_plans(compiled: dict[str, Any]) -> dict[str, str]:
    """Candidate -> an earlier one with the same buffers and steps."""
    first: dict[str, Any] = {}
    same = {}
    for name, each in compiled.items():
        made = (each.plan.buffers, each.plan.steps)
        earlier = next((other for other, plan in first.items() if plan == made), None)
        if earlier is None:
            first[name] = made
        else:
            same[name] = earlier
    return same


def _wrong(case: Case, path: Any, arrays: Sequence[Any], compiled: dict[str, Any]) -> list[str]:
    reference = make_reference(parse(case.expr, case.shapes), tuple(map(tuple, path)), arrays, case.dtype)
    wrong = []
    for name, call in compiled.items():
        verdict = reference.verdict(reference.judge(call(*arrays)), None)
        if not verdict.passed:
            wrong.append(f"{name}: {verdict.reason}" if not case.external else name)
    return wrong


# -- as text -----------------------------------------------------------------------------------------------------


def header() -> str:
    """The line of column titles for `line`."""
    columns = "".join(f" {name:>9}" for name in CANDIDATES)
    return f"{'case':<40} {'dtype':<10}{columns} {'best':>9} {'solve / best':>13}"


def line(result: LayoutResult) -> str:
    """One case on one line; ``=`` marks a candidate whose plan is the solver's pick."""
    start = f"{result.case.name[:40]:<40} {result.case.dtype:<10}"
    if result.skipped:
        return f"{start} skipped: {result.skipped}"
    if result.wrong:
        start = f"{start} FAIL ({'; '.join(result.wrong)})"
    if not result.seconds:
        return start
    columns = "".join(f" {_time(result, name):>9}" for name in CANDIDATES)
    return f"{start}{columns} {result.best:>9} {result.loss:>13.2f}"


def _time(result: LayoutResult, name: str) -> str:
    return ("=" if result.same.get(name) == SOLVED else "") + format_seconds(result.seconds[name])


def summary_lines(results: Sequence[LayoutResult]) -> list[str]:
    """Per family: time of each candidate over the solver's pick, how often each is best, how good the pick is."""
    compared = [each for each in results if each.seconds]
    others, each_name = ("".join(f" {name:>8}" for name in names) for names in (CANDIDATES[:-1], CANDIDATES))
    titles = f"{'time / that of solve, geometric mean':<36} {'cases':>5}{others}  best in{each_name}"
    lines = [f"{titles}  solve within {NEAR - 1:.0%}"]
    families = list(dict.fromkeys(each.case.family for each in compared))
    for title in (*families, *(["all"] if len(families) > 1 else [])):
        inside = [each for each in compared if title in ("all", each.case.family)]
        means = [geometric_mean(each.seconds[name] / each.seconds[SOLVED] for each in inside) for name in CANDIDATES]
        wins = [sum(each.best == name for each in inside) for name in CANDIDATES]
        near = sum(each.loss <= NEAR for each in inside)
        lines.append(
            f"{title:<36} {len(inside):>5}" + "".join(f" {mean:>8.2f}" for mean in means[:-1])
            + "         " + "".join(f" {count:>8}" for count in wins) + f"  {near} of {len(inside)}"
        )  # fmt: skip
    skipped = [each for each in results if each.skipped]
    for reason in dict.fromkeys(each.skipped for each in skipped):
        lines.append(f"{sum(each.skipped == reason for each in skipped)} skipped: {reason}")
    return lines


# -- as data -----------------------------------------------------------------------------------------------------


def to_json(result: LayoutResult) -> dict[str, Any]:
    """One case as plain data; of an external one names and figures only."""
    case = result.case
    data: dict[str, Any] = {name: getattr(case, name) for name in ("family", "name", "dtype", "values")}
    if not case.external:
        data |= {"expr": case.expr, "shapes": [list(shape) for shape in case.shapes]}
    measured = {name: getattr(result, name) for name in _COPIED}
    return data | measured | {"best": result.best, "loss": result.loss}


_COPIED = ("key", "seconds", "predicted", "same", "wrong", "skipped")


def from_json(data: dict[str, Any]) -> LayoutResult:
    """What `to_json` made of a result; an external case has no expression any more."""
    return LayoutResult(case=case_from_data(data), **{name: data[name] for name in _COPIED})
