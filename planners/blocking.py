"""Steps that follow each other go through their rows in blocks: what one leaves, the next finds in the cache.

Groups whose loops have the same first axis, kept in all of them, are taken together where rows of what they write meet
near rows alone. The step table then goes from block to block, and within a block from step to step. A step that reads
or writes a few rows beside its own stays some blocks behind: as many as it takes for each element to be touched in the
order of the steps (skewing; Wolfe, *Loop skewing: the wavefront method revisited*, 1986). What is made and read row by
row within the run alone has memory for the blocks between the two, which are used in turn.
"""

from __future__ import annotations

from math import prod
from typing import Iterable, NamedTuple

from ..kernels.cpu.units import LINE
from ..kernels.nest_rows import STREAM_BYTES
from .groups import FusedGroup, Scheduled, bytes_of, written
from .operations import Value, itemsize
from .places import MemoryView

SHARE = 0.5  # of the cache, for all that a block reads and writes
LEAST = 0.25  # of the cache, that what several steps touch has, for blocks to pay
MOST_BLOCKS = 256
FOLDED = 8  # part of what a run touches, that blocks of several threads have memory of their own for
FARTHEST = 8  # part of the rows by which steps may be apart, all together


def runs(steps: list[Scheduled]) -> list[list[Scheduled]]:
    """The steps, those together that may be worked through in blocks."""
    found: list[list[Scheduled]] = []
    for step in steps:
        if found and _blockable([*found[-1], step]):
            found[-1].append(step)
        else:
            found.append([step])
    return found


def lags(run: list[FusedGroup], rows: int) -> list[int]:
    """How many blocks of so many rows each step stays behind."""
    distances = _distances(run)
    assert distances is not None
    found = [0] * len(run)
    for (before, after), distance in sorted(distances.items(), key=lambda each: each[0][1]):
        found[after] = max(found[after], found[before] + -(-distance // rows))
    return found


def folds(run: list[FusedGroup], behind: list[int], others: Iterable[Scheduled]) -> dict[int, tuple[Value, int, int]]:
    """Memory that needs to hold a few blocks only, by id: how many, and bytes of a row. Nobody else may have it."""
    found: dict[int, tuple[Value, int, int]] = {}
    elsewhere = {id(place.memory.memory) for step in others for place in (*written(step), *step.inputs)}
    for memory, touches in _touches(run).items():
        value = touches[0].place.memory.memory
        pitch = touches[0].stride
        if value.kind != "arena" or memory in elsewhere or pitch <= 0:
            continue
        if {touch.rows(pitch) for touch in touches} == {(0, 0)}:
            steps = [behind[touch.step] for touch in touches]
            found[memory] = value, max(steps) - min(steps) + 1, pitch
    return found


def independent(run: list[FusedGroup], others: Iterable[Scheduled]) -> bool:
    """Whether threads may each go through blocks of their own: no step touches rows beside its own, and what could be
    folded is little, so that each block has memory of its own."""
    own = sum(run[0].shape[0] * pitch for _, _, pitch in folds(run, [0] * len(run), others).values())
    return _row_by_row(run) and own * FOLDED <= sum(_memory(run)[0].values())


def _row_by_row(run: list[FusedGroup]) -> bool:
    """Whether steps that share memory, of which one writes there, touch the same row of it. One that is a row behind, as
    `a[:-1] -= b` behind `a[1:] += c`, has its rows in the order of the steps (`lags` has 0 for it), but the first of them
    lies in the block before."""
    for touches in _touches(run).values():
        rows = {row for touch in touches for row in touch.rows(abs(touch.stride))}
        if len(rows) > 1 and len({touch.step for touch in touches}) > 1:
            return False
    return True


def rows_of_a_block(groups: list[FusedGroup], cache_bytes: int, threads: int = 1, shared: bool = False) -> int:
    """How many rows a block has; all where the groups fit the cache as they are, or blocks would be too many.

    ``shared``: a block is one thread's, and threads have about as many; else all threads share each.
    """
    count = groups[0].shape[0]
    memory, touched = _memory(groups)
    cache_bytes *= 1 if shared else threads
    total = sum(memory.values())
    both = sum(nbytes for value, nbytes in memory.items() if len(touched[value]) > 1)
    if len(groups) < 2 or total <= cache_bytes or both <= LEAST * cache_bytes:
        return count
    blocks = -(-total // int(SHARE * cache_bytes))
    if shared:
        blocks = -(-blocks // threads) * threads
    return -(-count // min(blocks, MOST_BLOCKS))


def _memory(groups: list[FusedGroup]) -> tuple[dict[int, int], dict[int, set[int]]]:
    """By memory: bytes that are touched, and by which groups."""
    memory: dict[int, int] = {}
    touched: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        for place in _places(group):
            memory[id(place.memory.memory)] = max(_reached(place), memory.get(id(place.memory.memory), 0))
            touched.setdefault(id(place.memory.memory), set()).add(number)
    return memory, touched


def _reached(place: MemoryView) -> int:
    """Bytes of the cache that its elements take: whole lines."""
    moving = [(n, abs(s)) for n, s in zip(place.view.shape, place.view.strides) if s]
    span = itemsize(place.dtype) + sum((n - 1) * s for n, s in moving)
    return min(span, LINE * prod(n for n, _ in moving))


def firsts(run: list[FusedGroup], folded: Iterable[int]) -> list[int]:
    """Bytes that each group is the first of the run to read, or to write: they come from memory, and go there once.
    Memory (by id, ``folded``) that holds a few blocks stays in cache."""
    found, touched, changed = [], set(folded), set(folded)
    for group in run:
        reads, writes = _largest(group.inputs), _largest(written(group))
        found.append(sum(n for memory, n in reads.items() if memory not in touched))
        found[-1] += sum(n for memory, n in writes.items() if memory not in changed)
        touched |= reads.keys() | writes.keys()
        changed |= writes.keys()
    return found


def _largest(places: Iterable[MemoryView]) -> dict[int, int]:
    """By memory: bytes of the place in it that has most."""
    found: dict[int, int] = {}
    for place in places:
        found[id(place.memory.memory)] = max(bytes_of(place), found.get(id(place.memory.memory), 0))
    return found


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
    distances = _distances(steps)
    return distances is not None and sum(distances.values()) <= steps[0].shape[0] // FARTHEST


class _Touch(NamedTuple):
    """A place that a step of a run reads or writes."""

    step: int
    place: MemoryView
    writes: bool

    @property
    def stride(self) -> int:
        return self.place.view.strides[0]

    def rows(self, pitch: int) -> tuple[int, int]:
        """The rows of its memory, ``pitch`` bytes each, that the first row of the step touches: first and last."""
        view = self.place.view
        low = high = view.offset
        for size, stride in zip(view.shape[1:], view.strides[1:]):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        return low // pitch, (high + itemsize(self.place.dtype) - 1) // pitch


def _touches(run: list[FusedGroup]) -> dict[int, list[_Touch]]:
    """By memory, of all that the run writes."""
    found: dict[int, list[_Touch]] = {}
    for number, step in enumerate(run):
        for places, writes in ((written(step), True), (step.inputs, False)):
            for place in places:
                found.setdefault(id(place.memory.memory), []).append(_Touch(number, place, writes))
    return {memory: each for memory, each in found.items() if any(touch.writes for touch in each)}


def _distances(run: list[FusedGroup]) -> dict[tuple[int, int], int] | None:
    """For steps of which one has to touch rows before the other: how many rows the first must be ahead.

    None where that is not a number of rows: in one memory, strides of the rows differ, or are 0.
    """
    found: dict[tuple[int, int], int] = {}
    for touches in _touches(run).values():
        pitch = touches[0].stride
        if not pitch or any(touch.stride != pitch for touch in touches):
            return None
        bounds = [touch.rows(abs(pitch)) for touch in touches]
        for one, (low, high) in zip(touches, bounds):
            for two, (lowest, highest) in zip(touches, bounds):
                if one.step < two.step and (one.writes or two.writes):
                    key = one.step, two.step
                    found[key] = max(found.get(key, 0), highest - low if pitch > 0 else high - lowest)
    return found
