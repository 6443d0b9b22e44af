"""Where the time of a case goes: our plan with each step measured, in a run beside the timed ones."""

from __future__ import annotations

import time
from statistics import median_low
from typing import Any, Sequence

PARTS = ("kernel", "packing", "unpacking")
_CALLS = 7
_SECONDS = 1.0  # no further call after so many


def measure(compiled: Any, arrays: Sequence[Any]) -> list[dict[str, float]]:
    """Seconds of each step in `PARTS`, in the call of median time among a few.

    ``compiled`` was made with ``profile=True`` and runs one plan. Without steps of ours the list is empty.
    """
    compiled(*arrays)  # finds its memory
    if not compiled.profiles:
        return []
    calls = []
    end = time.perf_counter() + _SECONDS
    while len(calls) < _CALLS and (not calls or time.perf_counter() < end):
        ((_, before),) = compiled.profiles
        compiled(*arrays)
        ((_, after),) = compiled.profiles
        calls.append(after.since(before))
    middle = median_low([call.seconds for call in calls])
    chosen = next(call for call in calls if call.seconds == middle)
    return [{part: getattr(step, part) for part in PARTS} for step in chosen.steps]


def shares(profile: Sequence[dict[str, float]]) -> dict[str, float]:
    """Fraction of the time of all steps in each part.

    >>> shares([{"kernel": 1.0, "packing": 2.0}, {"kernel": 1.0}])
    {'kernel': 0.5, 'packing': 0.5, 'unpacking': 0.0}
    """
    sums = {part: sum(step.get(part, 0.0) for step in profile) for part in PARTS}
    total = sum(sums.values())
    return {part: seconds / total if total else 0.0 for part, seconds in sums.items()}
