"""Slices of an index that a whole network shares: all steps for some of its entries, then for the next ones.

Where an index is a batch of several products and the result has it, nothing in one entry of it needs another one. So what
steps hand to each other is as small as the slice: it stays in the cache of a core, where values of all entries go to a
cache that cores share, or to memory, and come back. And threads take slices of their own, with nothing to wait for.

The network is planned for one slice. Its steps are emitted once for each slice, with operands and the result at their own
places, and intermediates at the same ones again. What does not have the index is computed before, once. An index that
ends within a slice has its last entries computed twice: the last slice begins earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import Any, Iterator, Sequence

from .. import cost
from ..kernels.cpu import abi
from ..kernels.cpu.units import LINE
from ..machine_memory import cache_of_level
from ..plan import Index, Step
from ..records import changed
from ..views import dense_strides
from . import arena
from .beside import BATCH_LENGTH, long_batch
from .gemm_cost import SHARED_RATE
from .operations import Operation, OperationList, Value, itemsize
from .request import PlanRequest
from .strands import MOST_SECONDS

LEAST = 6  # slices: a few times what the cache of a core holds is in the one that cores share without them
STRANDS = 2  # for each thread: one that comes late takes fewer
MOST_STEPS = 1024  # of all slices together: each is a row, and is made while planning
ROW_SECONDS = 6e-7  # what a row takes besides its work: it begins with cold tables, and its tiles fill up anew


def least_gain(cache: int) -> float:
    """Of the time in which values are in the cache of a core, what slices have to gain to be worth it, by the bytes of that
    cache; 0: not known. A core with less than a megabyte loses more than is predicted without slices: what does not fit it
    and counts as near (docs/performance.md#slices-of-small-caches).

    >>> least_gain(512 << 10), least_gain(2 << 20), least_gain(0)
    (0.14, 0.27, 0.27)
    """
    return 0.14 if 0 < cache < 1 << 20 else 0.27


GAIN = least_gain(cache_of_level(2))


@dataclass(kw_only=True, eq=False)
class Slices:
    """``listed``: the operations of one slice. ``starts``: the first entry of each slice; ``strands``: how many slices each
    of the strands does, one after the other (`planners.strands`); ``span``: bytes of each strand's memory."""

    index: Index
    listed: OperationList
    starts: tuple[int, ...]
    strands: tuple[int, ...]
    span: int = 0

    def mark(self) -> None:
        """Operations that have the index come behind the others, and are one thread's."""
        operations = self.listed.operations
        for operation in operations:
            operation.strand = int(self.index in operation.output.term)
        self.listed.operations = sorted(operations, key=lambda operation: operation.strand)  # stable

    def allocate(self, lifetimes: list[arena.Lifetime]) -> tuple[dict[int, int], int]:
        """Offsets of what is computed once, and behind it of what each strand has of its own: those of the first."""
        once, at_once = arena.allocate([each for each in lifetimes if not each.strand])
        own, self.span = arena.allocate([each for each in lifetimes if each.strand])
        return once | {key: at_once + offset for key, offset in own.items()}, at_once + self.span * len(self.strands)

    def steps(self, builder: Any) -> Iterator[Iterator[Step]]:
        """Of each strand, drawn up by a `build.PlanBuilder` one at a time."""
        places = _Places(builder, self)
        ends = list(accumulate(self.strands))
        for strand, (end, count) in enumerate(zip(ends, self.strands)):
            yield self._strand(builder, places, strand, range(end - count, end))

    def _strand(self, builder: Any, places: "_Places", strand: int, numbers: Sequence[int]) -> Iterator[Step]:
        for number in numbers:
            places.move(self.starts[number], strand * self.span)
            for operation in self.listed.operations:
                if operation.strand:
                    for step in builder._emit(operation):
                        yield changed(step, block=(number, len(self.starts)))
        places.move(0, 0)


class _Places:
    """Where the values of a plan lie for the first slice, and how to move them to those of others."""

    def __init__(self, builder: Any, slices: Slices) -> None:
        self.builder, self.packed = builder, dict(builder.pack_places)
        operations = [operation for operation in slices.listed.operations if operation.strand]
        self.own = {id(operation) for operation in operations}
        written = {value.memory.number for operation in operations for value in operation.outputs}
        self.moved = []  # value, offset, bytes of an entry of the index, whether it has memory in each strand
        for value in slices.listed.values:
            if value.memory.kind != "arena":
                axis = value.axes.get(slices.index)
                self.moved.append((value, value.offset, 0 if axis is None else axis.stride, 0))
            elif value.memory.number in written:
                self.moved.append((value, value.offset, 0, 1))

    def move(self, entry: int, behind: int) -> None:
        """To the slice that begins with ``entry``, in a strand whose memory lies so many bytes behind that of the first."""
        for value, offset, stride, own in self.moved:
            value.offset = offset + entry * stride + own * behind
        for key, (kept, offset) in self.packed.items():
            if key[0] in self.own:
                self.builder.pack_places[key] = kept, offset + behind


def find_slices(listed: OperationList, machine: cost.Machine) -> Slices | None:
    """The slices of a network, where they are predicted to pay."""
    request = listed.request
    longest = max([listed.sizes[i] for i in listed.out_term], default=0)
    if not is_plain(request) or len(listed.operations) < 3 or longest < LEAST * BATCH_LENGTH:
        return None
    index = long_batch(listed)
    if index is None or request.expr.output.count(index) != 1:
        return None
    inside = [operation for operation in listed.operations if index in operation.output.term]
    size, count = listed.sizes[index], _count(listed, inside, index, machine)
    if count < LEAST:
        return None
    length = _length(listed, inside, index, ceil(size / count))
    starts = tuple([min(at, size - length) for at in range(0, size, length)])
    seconds = sum([near_seconds(listed, each, machine) for each in inside])
    if _gain(listed, inside, index, len(starts), machine) < GAIN * seconds:
        return None
    if request.threads > 1 and seconds > MOST_SECONDS * len(starts):
        return None
    return slices_of(listed, index, length, starts, _strands(len(starts), request.threads, seconds, alone=size % length > 0))


def is_plain(request: PlanRequest) -> bool:
    """Whether a request is one of those that may be cut into slices."""
    return request.fuse and request.layouts == "solve" and not (request.constants or request.scaled or request.same)


def slices_of(
    listed: OperationList, index: Index, length: int, starts: tuple[int, ...], strands: tuple[int, ...]
) -> Slices:
    """Slices of ``length`` entries."""
    smaller = OperationList(_of_a_slice(listed, index, length), listed.compute)
    smaller.build()
    return Slices(index=index, listed=smaller, starts=starts, strands=strands)


def _count(listed: OperationList, inside: Sequence[Operation], index: Index, machine: cost.Machine) -> int:
    """How many slices there are, for what a step has of intermediates to fit the cache of a core; each is long enough for
    lanes to run along it."""
    largest = max([sum([listed.nbytes(v) for v in _between(each, index)]) for each in inside])
    most = min(listed.sizes[index] // BATCH_LENGTH, MOST_STEPS // len(inside))
    count = ceil(largest / machine.cache_bytes)
    return min(count, most) if count <= 2 * most else 1


def _between(operation: Operation, index: Index) -> list[Value]:
    """The intermediates with the index."""
    return [each for each in (*operation.inputs, operation.output) if each.kind == "arena" and index in each.term]


def _length(listed: OperationList, inside: Sequence[Operation], index: Index, length: int) -> int:
    """Whole lines, where they are longer than that: lanes may run along the index, and no two threads write one line."""
    unit = LINE // min([itemsize(each.output.dtype) for each in inside])
    return -(-length // unit) * unit if length > unit else length


def near_seconds(listed: OperationList, operation: Operation, machine: cost.Machine) -> float:
    """Of an operation whose values are in the cache of a core."""
    flops, moved = listed.work(operation)
    return max(flops / machine.peak.get(listed.compute, 1e9), moved / machine.cache_bandwidth)


def _gain(
    listed: OperationList, inside: Sequence[Operation], index: Index, count: int, machine: cost.Machine
) -> float:
    """Seconds that intermediates take less which do not leave the cache, but for what slices take more: rows, and the
    operands without the index, which are read or packed again."""
    saved, again = 0, 0
    for operation in inside:
        for value in (*operation.inputs, operation.output):
            if index not in value.term:
                again += listed.nbytes(value)
            elif value.kind == "arena" and listed.nbytes(value) > machine.cache_bytes // 2:
                saved += listed.nbytes(value)
    nearer = saved * (1 / SHARED_RATE - 1 / max(machine.cache_bandwidth, 2 * SHARED_RATE))
    return nearer - (count - 1) * (again / machine.cache_bandwidth + ROW_SECONDS * len(inside))


def _strands(count: int, threads: int, seconds: float, alone: bool) -> tuple[int, ...]:
    """Slices of each strand. ``alone``: the last two have entries in common, and are one strand's."""
    if threads == 1:
        return (count,)
    strands = min(max(STRANDS * threads, ceil(seconds / MOST_SECONDS)), count)
    found = [count // strands + (number >= strands - count % strands) for number in range(strands)]
    if alone and found[-1] == 1:
        found[-2:] = [2]
    return tuple(found)


def _of_a_slice(listed: OperationList, index: Index, length: int) -> PlanRequest:
    """The request for one slice: its operands and its result are parts of the whole ones."""
    request, expr = listed.request, listed.request.expr
    whole = listed.sizes[index]
    shapes = [
        tuple([length if i == index and size == whole else size for i, size in zip(term, shape)])
        for term, shape in zip(expr.inputs, expr.shapes)
    ]
    lengths = tuple([length if i == index else size for i, size in expr.sizes.items()])
    smaller = replace(expr, shapes=tuple(shapes), lengths=lengths)
    return replace(request, expr=smaller, out_strides=strides_of_output(request))


def strides_of_output(request: PlanRequest) -> tuple[int, ...]:
    """Bytes per axis of the whole result."""
    if request.out_strides is not None:
        return request.out_strides
    return dense_strides(request.expr.output_shape, itemsize(request.dtype))


def table_bytes(steps: Sequence[Step]) -> int:
    """Bytes of rows and of their tables, which those of all slices have in common."""
    words = 8 * abi.STEP_WORDS
    tables = {id(step.args.tables): step.args.nbytes - words for step in steps}
    return sum(tables.values()) + words * len(steps)
