"""What each pass is worth: ours with one switched off, beside ours twice, in rounds of their own.

Passes are worth a few percent, so the measure is made for small differences: all run on the same arguments and take
turns call by call, without peers (`timing.alternate`). What the plans do, steps and bytes, is beside the time and the
same in each run. A plan that is the very one of ours is not timed: its ratio is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from .figures import Figure, geometric_mean
from .run import AGAIN, OURS, Settings
from .timing import Candidate, alternate

_WIDTH = 16  # of a column


@dataclass(frozen=True, kw_only=True)
class Without:
    """A plan without a pass. ``factor``: its time over ours, None where ``same``, that is, where it is our plan;
    ``steps``, bytes ``moved`` by them, ``peak`` bytes at a time."""

    steps: int
    moved: int
    peak: int
    same: bool
    factor: float | None = None


def measure(jitted: Mapping[str, Any], arrays: Sequence[Any], settings: Settings) -> dict[str, Without]:
    """Of `OURS`, what it is; of `AGAIN`, the noise; of all others, what they are beside it."""
    plans = {name: each.plan(*arrays) for name, each in jitted.items()}
    rows = {name: _rows(plan) for name, plan in plans.items()}
    same = {name: name != AGAIN and each == rows[OURS] for name, each in rows.items()}
    timed = {name: each for name, each in jitted.items() if name == OURS or not same[name]}
    factors = _factors(timed, arrays, settings)
    return {
        name: Without(
            steps=len(plan.steps),
            moved=plan.bytes_moved,
            peak=plan.peak_bytes,
            same=same[name],
            factor=factors.get(name),
        )
        for name, plan in plans.items()
    }


def _rows(plan: Any) -> list[tuple]:
    """All that a walker is given, but for addresses."""
    return [
        (row.words, row.kernels, row.tasks, step.places, {word: table.tobytes() for word, table in row.tables.items()})
        for step in plan.steps
        for row in [step.args]
    ]


def _factors(functions: Mapping[str, Any], arrays: Sequence[Any], settings: Settings) -> dict[str, float]:
    """Times over the mean of ours and ours again; of the latter over ours."""
    args = tuple(array.copy() for array in arrays)
    candidates = [Candidate(name=name, function=each, args=args) for name, each in functions.items()]
    alternate(candidates, settings.budget, settings.settle)
    low = {each.name: each.low for each in candidates}
    ours, again = low.pop(OURS), low.pop(AGAIN)
    return {AGAIN: again / ours, **{name: 2 * each / (ours + again) for name, each in low.items()}}


def figures(table: str, results: Sequence[Mapping[str, Without]]) -> list[Figure]:
    """Means of time and bytes without each pass over all cases, 1 where the plan is the same."""
    found = []
    for name in [name for name in (results[0] if results else ()) if name not in (OURS, AGAIN)]:
        times = [each[name].factor or 1.0 for each in results]
        moved = [each[name].moved / each[OURS].moved for each in results]
        for what, values in (("time", times), ("bytes moved", moved)):
            title = f"without pass {name} / ours, {what}, geometric mean"
            found.append(Figure(table=table, name=title, value=geometric_mean(values), unit="x"))
    return found


# -- as text ----------------------------------------------------------------------------------------------------------


def header(passes: Sequence[str]) -> str:
    """Titles of the columns of `cells`."""
    return _columns(["plan", "again", *(f"-{name}" for name in passes)]) if passes else ""


def cells(found: Mapping[str, Without], passes: Sequence[str]) -> str:
    """Steps and bytes of ours, and its time again; without each pass time, steps and bytes, ``=`` for our plan."""
    if not passes or OURS not in found:
        return _columns(["-"] * (2 + len(passes))) if passes else ""
    ours = found[OURS]
    texts = [f"{ours.steps} {ours.moved / 1e6:.1f}MB", f"{found[AGAIN].factor:.2f}"]
    return _columns([*texts, *(_cell(found[name], ours) for name in passes)])


def _columns(texts: Sequence[str]) -> str:
    return "".join(f" {text:>{_WIDTH}}" for text in texts)


def _cell(one: Without, ours: Without) -> str:
    return "=" if one.same else f"{one.factor:.2f} {one.steps} x{one.moved / ours.moved:.2f}"
