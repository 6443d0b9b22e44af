"""Results of maps that take the memory of what the map reads."""

from __future__ import annotations

from .groups import FusedGroup, written
from .places import MemoryView
from .regions import ProgramSchedule


def share_memory(schedule: ProgramSchedule) -> None:
    """A result of a map that is written whole takes the memory of an operand of its shape and dtype that nobody reads
    later, so that a chain of steps works in one place; both are memory that the schedule made."""
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for step in schedule.steps:
        for place in (*step.inputs, *written(step)):
            last[id(place.memory)] = step.at
        for place in written(step):
            first.setdefault(id(place.memory), step.at)
    for step in schedule.steps:
        if not isinstance(step, FusedGroup) or step.axes is not None:
            continue
        for store in step.stores:
            new = store.place.memory
            begins = id(new) in schedule.made and first[id(new)] == step.at
            if not begins or new.kind not in ("arena", "output") or new.source or not store.place.whole:
                continue
            reads = (read for read in step.inputs if id(read.memory) in schedule.made)
            old = next((read for read in reads if _replaced(read, store.place, step, last)), None)
            if old is not None:
                old.memory.source = new
                last[id(new)] = max(last[id(new)], last[id(old.memory)])


def _replaced(read: MemoryView, new: MemoryView, step: FusedGroup, last: dict[int, int]) -> bool:
    """Whether ``new`` may take the memory that is read."""
    old = read.memory
    if old.kind != "arena" or old.source or old is new.memory or last[id(old)] != step.at or old.dtype != new.dtype:
        return False
    if not read.whole or read.view.shape != new.view.shape:
        return False
    others = [place for place in (*step.inputs, *written(step)) if place.memory is old]
    return all(place.same(read) for place in others) and not any(store.place.memory is old for store in step.stores)
