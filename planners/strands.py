"""Parts of a network that do not wait for each other, each done by one thread, all at the same time.

Threads share the tasks of a step, and meet behind it. A step of 100 µs gains little by that: its tasks have edges of their
own, each thread packs for itself, and what one has written, the other reads from a cache that is not its own. Two
subtrees of a contraction order need nothing of each other. Here a subtree may become a *strand*: a thread takes it as one
task, and goes through its steps alone. What is above the strands is shared as before.

Which subtrees are strands is decided by predicted times, before layouts: from the root on, the longest of the subtrees is
replaced by those of its operands, as long as that brings the end nearer.
"""

from __future__ import annotations

import heapq
from itertools import count
from operator import itemgetter
from typing import Iterator, Mapping, Sequence

from .. import cost
from ..kernels.nest_rows import PARALLEL_BYTES
from .operations import Operation, OperationList
from .shares import makespan

# What a step of a network takes besides its part where threads share it, in meetings: its tasks have edges of their own, and
# what other cores wrote is fetched from them.
MEETINGS = 15
GAIN = 0.1  # of the predicted time, for strands to be worth it
LEAST_SECONDS = 2e-4  # a plan that takes less has none: a thread that comes late may bring nothing
MOST_SECONDS = 2e-2  # of a strand: the walker looks up between steps, not within a strand
PEAK_SHARE = 0.67  # of the rates that steps are predicted by, which those of some microseconds reach
STRANDS = 8  # for each thread, at most


def find_strands(listed: OperationList, machine: cost.Machine, seconds: Mapping[int, float]) -> int:
    """Numbers the operations of each strand, from 1 on, and puts strands in front, the longest first: how many there are.

    ``seconds``: predicted for each operation, by its id."""
    roots = strands_of(listed, machine, seconds)
    makers = _makers(listed.operations)
    for number, root in enumerate(roots, 1):
        for operation in _subtree(root, makers):
            operation.strand = number
    if roots:
        listed.operations = sorted(listed.operations, key=lambda each: each.strand or len(roots) + 1)  # stable
    return len(roots)


def strands_of(listed: OperationList, machine: cost.Machine, seconds: Mapping[int, float]) -> list[Operation]:
    """The last operations of the strands, the longest first; none where they do not pay."""
    threads, operations = listed.request.threads, listed.operations
    if threads == 1 or len(operations) < 3 or listed.request.constants:  # packed copies of constants are made once
        return []
    apart = {number: shared_seconds(each, threads, machine) for number, each in seconds.items()}
    shared = sum(apart.values())
    if shared < LEAST_SECONDS or not _is_tree(operations):
        return []
    least, roots = min(_cuts(operations, seconds, apart, threads), key=itemgetter(0), default=(shared, []))
    return roots if least <= (1 - GAIN) * shared and len(roots) > 1 else []


def leave_alone(listed: OperationList, machine: cost.Machine, seconds: Mapping[int, float]) -> None:
    """Marks the operations that one thread does: those of strands, and those with which others would help for less time than
    they take to fetch operands from the core that has just written them. (In the next call that core writes into lines which
    the others have by then, which takes as long again.)

    No more has to be fetched than a core's cache is taken to hold: what it wrote before that is where all find it.

    What is known to be written by one core are results of operations that only move, and are too short to be shared: parts of
    what threads write together go to the same threads for the most part."""
    threads = listed.request.threads
    written: set[int] = set()
    for operation in listed.operations if threads > 1 else ():
        predicted = seconds[id(operation)]
        fetched = sum([listed.nbytes(value) for value in operation.inputs if value.number in written])
        saved = predicted / PEAK_SHARE * (1 - 1 / threads)
        fetching = machine.fetching_seconds(min(fetched, machine.cache_bytes))
        operation.alone = bool(operation.strand) or fetching > saved
        if operation.kind != "gemm" and not operation.output.constant:
            short = listed.work(operation)[1] < PARALLEL_BYTES or not machine.is_shared(predicted, threads, cost.WORTH_MOVING)
            if short or operation.alone:
                written.add(operation.output.number)


def _is_tree(operations: Sequence[Operation]) -> bool:
    """Whether each value is read once."""
    read = [value.number for operation in operations for value in operation.inputs if value.kind == "arena"]
    plain = all(value.source is None for operation in operations for value in operation.inputs)
    return plain and len(set(read)) == len(read)


def _makers(operations: Sequence[Operation]) -> dict[int, Operation]:
    """By number of the value."""
    return {operation.output.number: operation for operation in operations}


def shared_seconds(seconds: float, threads: int, machine: cost.Machine) -> float:
    """Seconds of a step of a network that takes ``seconds`` on one thread, on all of them."""
    return min(seconds, seconds / threads + MEETINGS * machine.meeting_seconds)


def _cuts(
    operations: Sequence[Operation], seconds: Mapping[int, float], apart: Mapping[int, float], threads: int
) -> Iterator[tuple[float, list[Operation]]]:
    """Predicted seconds, and the last operations of the strands, the longest first; from the root down. ``apart``: seconds of
    operations that all threads share."""
    makers, order = _makers(operations), count()
    whole: dict[int, float] = {}  # of the subtree that ends with an operation
    for operation in operations:
        before = [whole[id(makers[v.number])] for v in operation.inputs if v.number in makers]
        whole[id(operation)] = seconds[id(operation)] + sum(before)
    above, heap = 0.0, [(-whole[id(operations[-1])], next(order), operations[-1])]
    while heap and len(heap) <= STRANDS * threads:
        longest = -heap[0][0]
        if longest <= MOST_SECONDS:
            ordered = sorted(heap)
            yield above + makespan([-time for time, _, _ in ordered], threads), [each for _, _, each in ordered]
        _, _, operation = heapq.heappop(heap)
        above += apart[id(operation)]
        for value in operation.inputs:
            maker = makers.get(value.number)
            if maker is not None:
                heapq.heappush(heap, (-whole[id(maker)], next(order), maker))


def _subtree(root: Operation, makers: dict[int, Operation]) -> Iterator[Operation]:
    """An operation and all that it needs."""
    stack = [root]
    while stack:
        operation = stack.pop()
        yield operation
        stack += [makers[value.number] for value in operation.inputs if value.number in makers]
