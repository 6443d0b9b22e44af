"""Steps that follow each other go through their rows in blocks: what one leaves, the next finds in the cache.

Groups whose loops have the same first axis, kept in all of them, are taken together where each row of what they write
is read by the same row alone. The step table then goes from block to block, and within a block from step to step.
"""

from __future__ import annotations

from math import prod
from typing import Iterable

from ..kernels.nest_rows import STREAM_BYTES
from .groups import FusedGroup, Scheduled, written
from .operations import itemsize
from .places import MemoryView

SHARE = 0.5  # of the cache, for all that a block reads and writes
MOST_BLOCKS = 256


def runs(steps: list[Scheduled]) -> list[list[Scheduled]]:
    """The steps, those together that may be worked through in blocks."""
    found: list[list[Scheduled]] = []
    for step in steps:
        if found and _blockable([*found[-1], step]):
            found[-1].append(step)
        else:
            found.append([step])
    return found


def rows_of_a_block(groups: list[FusedGroup], cache_bytes: int) -> int:
    """How many rows a block has; all where the groups fit the cache as they are, or blocks would be too many."""
    count = groups[0].shape[0]
    memory: dict[int, int] = {}
    for group in groups:
        for place in _places(group):
            nbytes = itemsize(place.dtype) * prod(n for n, s in zip(place.view.shape, place.view.strides) if s)
            memory[id(place.memory.memory)] = max(nbytes, memory.get(id(place.memory.memory), 0))
    total = sum(memory.values())
    if len(groups) < 2 or total <= cache_bytes:
        return count
    blocks = -(-total // int(SHARE * cache_bytes))
    return -(-count // min(blocks, MOST_BLOCKS))


def leaves(group: FusedGroup, run: list[FusedGroup]) -> bool:
    """Whether a group writes what does not fit in cache, and what no group of the run touches besides."""
    own = [store.place.memory.memory for store in group.stores]
    others = {id(place.memory.memory) for other in run if other is not group for place in _places(other)}
    return all(value.nbytes >= STREAM_BYTES and id(value) not in others for value in own)


def _places(group: FusedGroup) -> Iterable[MemoryView]:
    return (*written(group), *group.inputs)


def _blockable(steps: list[Scheduled]) -> bool:
    if not all(isinstance(step, FusedGroup) for step in steps):
        return False
    counts = {step.shape[:1] for step in steps}
    if len(counts) != 1 or counts == {()} or 0 in (step.shape[0] for step in steps):
        return False
    if any(0 in step.shape or 0 in (step.axes or ()) for step in steps):
        return False
    memories = {id(place.memory.memory) for step in steps for place in written(step)}
    places = [place for step in steps for place in _places(step) if id(place.memory.memory) in memories]
    return all(_by_rows([place for place in places if id(place.memory.memory) == memory]) for memory in memories)


def _by_rows(places: list[MemoryView]) -> bool:
    """Whether each row of places in one memory has elements in common with the same row of the others alone."""
    stride = places[0].view.strides[0]
    lows, highs = [], []
    for place in places:
        view = place.view
        spans = [(n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:])]
        lows.append(view.offset + sum(min(s, 0) for s in spans))
        highs.append(view.offset + sum(max(s, 0) for s in spans) + itemsize(place.dtype))
    return all(place.view.strides[0] == stride for place in places) and max(highs) - min(lows) <= abs(stride)
