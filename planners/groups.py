"""The steps of a program before they are lowered: fused groups of maps and reductions, and contractions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Iterable, Union

from ..ir import Eqn, Literal
from ..kernels.fused import FusedProblem, Graph, Operand, temp_bytes
from ..kernels.fused_structure import MAX_OPERANDS
from ..kernels.fused import lower as lower_fused
from ..kernels.row import Row
from ..ops import OPS
from .operations import Value, itemsize
from .order import Order
from .places import MemoryView
from .scalars import apply, literal, reduced
from .single import SingleStep

Ref = Union[int, MemoryView, Literal]  # a value computed in the group, by number; what is read; a scalar


@dataclass(frozen=True, kw_only=True)
class Member:
    """A value that a group computes for every point of its loops: a primitive, and what it is applied to."""

    op: str
    args: tuple[Ref, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A value that a group writes; ``reduce``: the primitive by which it is reduced over the group's axes."""

    ref: Ref
    place: MemoryView
    reduce: str = ""
    assigned: bool = False  # to a place that is given: it may be stored a second time


@dataclass(eq=False)
class FusedGroup:
    """Maps over loops of one shape, in one step: what is computed, read and written.

    ``at``: number of the step. ``axes``: those over which it reduces, None where it reduces nothing. ``over``: for each
    value that is a reduction, what is reduced and how. ``inputs`` are places broadcast to the shape. ``row``: the axis
    over which members that are reductions reduce: they are one number for each row (`over`).
    """

    at: int
    shape: tuple[int, ...]
    members: dict[int, Member] = field(default_factory=dict)
    over: dict[int, tuple[Ref, str]] = field(default_factory=dict)
    inputs: list[MemoryView] = field(default_factory=list)
    stores: list[Stored] = field(default_factory=list)
    axes: tuple[int, ...] | None = None
    row: int | None = None

    # -- what may be added
    def room(self, inputs: int) -> bool:
        """Whether so many more inputs and one more value leave the kernel within its number of operands."""
        others = len(self.inputs) + len(self.members) + len(self.over) + inputs
        if others + len(self.stores) < MAX_OPERANDS:
            return True
        return others + sum(store.assigned for store in self.stores) < MAX_OPERANDS

    def may_read(self, place: MemoryView) -> bool:
        """What is written in place is read at the same points, and in a group without reductions."""
        return all(_beside(place, store.place) and self._in_place(place, store.place) for store in self.stores)

    def may_write(self, place: MemoryView) -> bool:
        if any(store.place.overlaps(place) for store in self.stores):
            return False
        return all(_beside(read, place) and self._in_place(read, place) for read in self.inputs)

    def may_reduce(self, axes: tuple[int, ...]) -> bool:
        if self.axes is not None:
            return self.axes == axes
        return not any(read.overlaps(store.place) for read in self.inputs for store in self.stores)

    def _in_place(self, read: MemoryView, written: MemoryView) -> bool:
        return self.axes is None or not read.overlaps(written)

    # -- adding
    def read(self, place: MemoryView) -> MemoryView:
        """The input that is this place, added where there is none yet."""
        for known in self.inputs:
            if known.same(place):
                return known
        self.inputs.append(place)
        return place

    def take(self, other: FusedGroup) -> list[int]:
        """All that another group computes, which stores nothing, from now on is computed here; the values."""
        taken = list(other.members)
        for number, member in other.members.items():
            args = tuple(self.read(ref) if isinstance(ref, MemoryView) else ref for ref in member.args)
            self.members.setdefault(number, Member(op=member.op, args=args, dtype=member.dtype))
        other.members, other.inputs = {}, []
        return taken

    def needs(self, number: int) -> dict[int, Member]:
        """The members that a value depends on, operands first, and itself; nothing for a reduction."""
        member = self.members.get(number)
        if member is None:
            return {}
        found: dict[int, Member] = {}
        for ref in member.args:
            if isinstance(ref, int):
                found |= self.needs(ref)
        return {**found, number: member}

    # -- lowering
    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(store.place.memory for store in self.stores))

    def problem(self) -> FusedProblem:
        """The fused problem, its operands placed within their memory: slots are positions in ``operands``."""
        reads = self.needed()
        graph = Graph(tuple(place.dtype for place in reads))
        values = self._values(graph, reads)
        outputs = []
        for store in self.stores:
            value = values(store.ref)
            outputs.append(reduced(graph, store.reduce, value) if store.reduce else value)
        places = [*(store.place for store in self.stores), *reads]
        dims = []
        for axis, size in sorted(enumerate(self.shape), key=lambda each: each[0] != self.row):
            if size == 1:
                continue
            strides = [self._store_stride(store, axis) for store in self.stores]
            dims.append((size, *strides, *(place.view.strides[axis] for place in reads)))
        operands = tuple(Operand(slot=at, offset=place.view.offset) for at, place in enumerate(places))
        return FusedProblem(structure=graph.structure(*outputs), dims=tuple(dims), operands=operands)

    def operands(self) -> list[Value]:
        """The memory of the problem's operands: what is stored, then what is read."""
        return [place.memory for place in self.places()]

    def places(self) -> list[MemoryView]:
        """Where the problem's operands are: what is stored, then what is read."""
        return [*(store.place for store in self.stores), *self.needed()]

    def needed(self) -> list[MemoryView]:
        """The inputs that what is stored depends on."""
        return self.followed()[0]

    def used(self) -> set[int]:
        """The members that what is stored depends on."""
        return self.followed()[1]

    def followed(self) -> tuple[list[MemoryView], set[int]]:
        """The inputs and the members that what is stored depends on."""
        members, found = self.members, set()
        seen: set[int] = set()
        left: list[Ref] = [store.ref for store in self.stores]
        while left:
            ref = left.pop()
            if isinstance(ref, int):
                if ref not in seen:
                    seen.add(ref)
                    left += members[ref].args
            elif isinstance(ref, MemoryView):
                found.add(id(ref))
        return [place for place in self.inputs if id(place) in found], seen

    def _values(self, graph: Graph, reads: list[MemoryView]):
        known = {id(place): at for at, place in enumerate(reads)}

        def value(ref: Ref) -> int:
            if isinstance(ref, Literal):
                return literal(graph, ref.value)
            if isinstance(ref, MemoryView):
                return known[id(ref)]
            if ref not in made:
                member = self.members[ref]
                args = [value(arg) for arg in member.args]
                if member.op in OPS and OPS[member.op].kind == "reduce":
                    made[ref] = graph.over(*reduced(graph, member.op, args[0]))
                else:
                    made[ref] = apply(graph, member.op, args, member.dtype)
            return made[ref]

        made: dict[int, int] = {}
        return value

    def _store_stride(self, store: Stored, axis: int) -> int:
        if not store.reduce:
            return store.place.view.strides[axis]
        if axis in self.axes:
            return 0
        return store.place.view.strides[axis - sum(a < axis for a in self.axes)]

    def text(self) -> str:
        """What it computes, as a line of `explain`."""
        names = [member.op for number, member in self.members.items() if member.op != "copy"]
        kinds = [store.reduce for store in self.stores if store.reduce]
        copies = ["copy"] if not names and not kinds else []
        shown = [*names, *kinds, *copies]
        return " ".join(shown if len(shown) <= 6 else [*shown[:4], "...", shown[-1], f"({len(shown)})"])


def _beside(read: MemoryView, written: MemoryView) -> bool:
    return not read.overlaps(written) or read.same(written)


@dataclass(eq=False)
class Contraction:
    """An einsum: its equation, and the places that it reads and writes; ``then``: the map behind it that may be its
    epilogue."""

    at: int
    eqn: Eqn
    inputs: list[MemoryView]
    output: MemoryView
    order: Order | None = None  # where it is an einsum of several
    then: FusedGroup | None = None

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output.memory,)


@dataclass(eq=False)
class Region:
    """A branch or a loop, as a step among others: the places around it that it reads and writes, and what is done.

    ``flag`` is the truth value that decides, as it is when the region is reached (``before`` makes it): in a branch
    ``then`` is done or ``otherwise``, in a loop ``then`` for as long as it holds, which makes it again.
    """

    at: int
    kind: str  # if, while
    inputs: list[MemoryView]
    homes: list[MemoryView]
    flag: MemoryView
    before: list[Scheduled]
    then: list[Scheduled]
    otherwise: list[Scheduled]

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(home.memory for home in self.homes)


Scheduled = Union[FusedGroup, Contraction, SingleStep, Region]


def written(step: Scheduled) -> Iterable[MemoryView]:
    """The places that a step writes, of those that other steps know."""
    if isinstance(step, Region):
        return step.homes
    return [store.place for store in step.stores] if isinstance(step, FusedGroup) else [step.output]


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedPlan:
    """A fused problem whose operands get their places when the arena is laid out; slots are numbers of operands."""

    problem: FusedProblem
    memory: tuple[Value, ...]
    temporary_bytes: int
    text: str
    axes: tuple[int, ...]
    share: float = 1.0  # of the group's loops
    streams: bool = False  # it writes parts of what is large, and is not read soon

    def rows(self, temp: Operand, threads: int) -> tuple[Row, ...]:
        operands = tuple(
            Operand(slot=value.slot, offset=value.offset + operand.offset)
            for value, operand in zip(self.memory, self.problem.operands)
        )
        placed = replace(self.problem, operands=operands)
        return lower_fused(placed, threads, temp if self.temporary_bytes else None, self.streams)

    def block(self, start: int, stop: int, threads: int, streams: bool, places: dict[int, int] | None = None) -> FusedPlan:
        """The part of it that is these entries of the first loop, which has more than one.

        ``places``: for memory (by id) that holds a few blocks only, the entry at which this one lies there.
        """
        part = block(self.problem, 0, start, stop)
        strides = self.problem.dims[0][1:]
        shifts = [((places or {}).get(id(value.memory), start) - start) * s for value, s in zip(self.memory, strides)]
        operands = tuple(Operand(slot=o.slot, offset=o.offset + shift) for o, shift in zip(part.operands, shifts))
        part = replace(part, operands=operands)
        share = self.share * (stop - start) / self.problem.dims[0][0]
        return replace(self, problem=part, temporary_bytes=temp_bytes(part, threads), share=share, streams=streams)

    @property
    def flops(self) -> int:
        """One for each operation at each point."""
        return len(self.problem.structure.nodes) * self.problem.elements


def fused_plan(group: FusedGroup, threads: int, problem: FusedProblem | None = None) -> FusedPlan:
    """The plan of a group's step; ``problem``: its own, where that is known already."""
    problem = problem or group.problem()
    return FusedPlan(
        problem=problem,
        memory=tuple(group.operands()),
        temporary_bytes=temp_bytes(problem, threads),
        text=group.text(),
        axes=group.axes or (),
    )


def moved(group: FusedGroup) -> int:
    """Bytes that a group reads and writes."""
    return sum(bytes_of(place) for place in (*written(group), *group.inputs))


def bytes_of(place: MemoryView) -> int:
    """Bytes of a place's elements, each counted once."""
    return itemsize(place.dtype) * prod(n for n, s in zip(place.view.shape, place.view.strides) if s)


def block(problem: FusedProblem, axis: int, start: int, stop: int) -> FusedProblem:
    """The part of a problem that is entries ``start`` to ``stop`` of loop ``axis``."""
    dims = list(problem.dims)
    _, *strides = dims[axis]
    dims[axis] = (stop - start, *strides)
    pairs = zip(problem.operands, strides)
    operands = tuple(Operand(slot=each.slot, offset=each.offset + start * stride) for each, stride in pairs)
    return FusedProblem(structure=problem.structure, dims=tuple(dims), operands=operands)
