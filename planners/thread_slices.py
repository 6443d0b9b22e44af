"""Slices of an index of the result, one for each thread: threads share a whole network and not its steps.

Threads that share the tasks of a step meet behind it, read what the other one has written from a cache that is not their
own, and leave steps of a few microseconds to one of them. What has one half of an index of the result needs nothing of the
other half. So each thread may do all steps for a part of that index, and meet the others once, at the end; what does not
have the index is computed before. The slices themselves are those of `slices`.

A single product is shared by its tasks. Of a network which index, and whether, is decided from predicted times, before there
are layouts: what a step computes, what it moves, and what it moves again because an operand does not have the index and is
read and packed for each slice.
"""

from __future__ import annotations

from math import ceil
from operator import itemgetter
from typing import Iterator, NamedTuple

from .. import cost
from ..kernels.cpu.units import LINE, PAGE
from ..plan import Index
from .operations import Operation, OperationList, Value, itemsize
from .slices import ROW_SECONDS, Slices, is_plain, near_seconds, slices_of, strides_of_output
from .strands import MOST_SECONDS, shared_seconds, strands_of

LEAST_SECONDS = 4e-5  # a plan that takes less ends before another thread has begun
GAIN = 0.05  # of the predicted time, for slices to be worth it,
GAIN_RATE = 200.0  # and so much more of it for each second that one thread takes: threads share long steps well
MOST_OUTSIDE = 0.2  # of one thread's time, that is spent on what does not have the index
MOVED = 3e-10  # seconds an element that a step reads or writes: packed or stored, in runs as short as networks have
REMOTE = 4e-11  # a byte of what lies between two steps, in caches of cores whose threads share them
PART = 1.25  # times as long, for each entry, of a product of fewer rows or columns than without slices
MIXED = 3e-10  # a byte of a result of whose pages threads write parts: lines that one core asks for early are another's
START = 8  # meetings, until another thread has begun and was met
LEAST_LENGTH = 2  # entries of a slice
SLICES = 2  # for each thread, at most


class _Work(NamedTuple):
    """Of an operation: seconds of arithmetic on one thread; of its values the indices, elements, and indices whose slices cut
    what is read together; bytes that go from core to core where threads share it."""

    near: float
    values: tuple[tuple[frozenset[Index], float, frozenset[Index]], ...]
    between: float

    def seconds(self, index: Index | None = None, count: int = 1) -> float:
        """Of one of ``count`` slices of an index, on one thread. What is cut takes as long for each of them."""
        moved = sum([size / count if index in term and index not in cut else size for term, size, cut in self.values])
        part = index is not None and any([index not in term for term, _, _ in self.values])
        return (PART if part else 1.0) * (self.near / count + MOVED * moved)

    def shared(self, threads: int, machine: cost.Machine) -> float:
        """With its tasks shared by threads, where it is long enough for that."""
        alone = self.seconds()
        shared = shared_seconds(alone, threads, machine)
        return shared + (REMOTE * self.between if shared < alone else 0.0)


def find_thread_slices(listed: OperationList, machine: cost.Machine) -> Slices | None:
    """The slices of a network that threads share, where they are predicted to pay."""
    threads, operations = listed.request.threads, listed.operations
    products = sum([operation.kind == "gemm" for operation in operations])
    if threads == 1 or products < 2 or not is_plain(listed.request) or _is_short(listed, machine):
        return None
    works = [_work(listed, each, machine) for each in operations]
    alone = [each.seconds() for each in works]
    if sum(alone) < LEAST_SECONDS:
        return None
    found = list(_candidates(listed, works, alone, machine))
    if not found:
        return None
    least, index, count, inside = min(found, key=itemgetter(0))
    whole, shared = sum(alone), sum([each.shared(threads, machine) for each in works])
    if least > (1 - GAIN - GAIN_RATE * whole) * shared or inside > MOST_SECONDS * count:
        return None
    if strands_of(listed, machine, listed.rooflines(machine)):
        return None
    length = listed.sizes[index] // count
    return slices_of(listed, index, length, tuple(range(0, length * count, length)), (1,) * count)


def _is_short(listed: OperationList, machine: cost.Machine) -> bool:
    """Whether a plan takes less than LEAST_SECONDS in any case, as most do: nothing else is made for it."""
    flops, moved = map(sum, zip(*map(listed.work, listed.operations)))
    rate = 1 / machine.cache_bandwidth + MOVED / itemsize(listed.compute)
    return flops / machine.peak.get(listed.compute, 1e9) + moved * rate < LEAST_SECONDS


def _work(listed: OperationList, operation: Operation, machine: cost.Machine) -> _Work:
    values, near = (*operation.inputs, operation.output), 2 * machine.cache_bytes
    found = [(frozenset(each.term), each.size / itemsize(each.dtype), _cut(each, near)) for each in values]
    between = sum([each.size for each in values if each.kind == "arena" and each.size <= near])
    return _Work(near_seconds(listed, operation, machine), tuple(found), between)


def _cut(value: Value, near: int) -> frozenset[Index]:
    """Indices of an operand of the plan whose slices cut its runs, or its pages where it has more than ``near`` bytes."""
    if value.kind != "input":
        return frozenset()
    item, least = itemsize(value.dtype), PAGE if value.size > near else 0
    steps = {index: (abs(axis.stride), axis.size // 2) for index, axis in value.axes.items()}
    return frozenset([index for index, (step, half) in steps.items() if step <= item or step * half < least])


def _candidates(
    listed: OperationList, works: list[_Work], alone: list[float], machine: cost.Machine
) -> Iterator[tuple[float, Index, int, float]]:
    """Predicted seconds, index and number of slices, and the seconds of what is sliced on one thread."""
    threads = listed.request.threads
    for index, near in _runs_of_output(listed):
        size = listed.sizes[index]
        within = [index in operation.output.term for operation in listed.operations]
        outside = sum([work.shared(threads, machine) for work, yes in zip(works, within) if not yes])
        inside = sum([time for time, yes in zip(alone, within) if yes])
        if inside < (1 - MOST_OUTSIDE) * sum(alone):
            continue
        for count in range(2, min(SLICES * threads, size // LEAST_LENGTH) + 1):
            run = near * (size // count)
            if size % count == 0 and run >= LINE:
                each = sum([work.seconds(index, count) + ROW_SECONDS for work, yes in zip(works, within) if yes])
                stored = MIXED * listed.operations[-1].output.size if run < PAGE else 0.0
                yield outside + START * machine.meeting_seconds + stored + ceil(count / threads) * each, index, count, inside


def _runs_of_output(listed: OperationList) -> Iterator[tuple[Index, int]]:
    """Indices that the result has once, and bytes from one entry to the next: two threads write no line both."""
    expr = listed.request.expr
    for index, stride in zip(expr.output, strides_of_output(listed.request)):
        if index in listed.sizes and expr.output.count(index) == 1:
            yield index, abs(stride)
