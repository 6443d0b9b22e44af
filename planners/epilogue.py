"""Which maps of a contraction's result are its epilogue: done on each block of the result while that is in cache.

Two decisions, one before and one after the contraction is planned:

`paired` looks at steps. A contraction and the first step that reads its result become neighbours, where that step is a
map of it, element by element, and no step between them is in the way. What the map writes must not be what the
contraction reads, since other blocks are read later.

`epilogue` looks at the product that computes the result. Its tasks call the map where it is a single GEMM (or parts of
one, none of which adds to another), where entries follow from its tables, and where lanes come in runs along which every
operand of the map runs, or is one element. It does where that is predicted to take less: short runs cost more than to
write the result and to read it again, and an operand that does not fit in cache is read faster in long rows. Otherwise
the map stays a step, and the reason is given.

Where nobody else reads the result it is not stored. It lies where the map writes, or, if that has another dtype or is
memory of an operand, or is so large that it is written past the caches, in the scratch memory of the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Sequence

from .. import cost
from ..kernels.epilogue import SCRATCH_BYTES, Epilogue, EpilogueTables, lower, nested
from ..kernels.fused import FusedProblem, normalise
from ..kernels.gemm import GemmProblem
from ..kernels.nest_rows import STREAM_BYTES
from ..kernels.row import Operand, Row
from ..kernels.tiles import ITEMSIZE
from .gemm import GemmPlan
from .groups import Contraction, FusedGroup, Scheduled, bytes_of, written
from .operations import Operation, OperationList, Value, itemsize
from .parts import Part
from .places import MemoryView
from .sides import OUT

PIECE_SECONDS = 5e-9  # what a run of lanes in a column takes beside its elements
MOVED_SECONDS = 5e-10  # of an element that a step of its own moves to scratch, where operands do not run along its rows
FAR_PIECE = 8 << 10  # bytes: an operand that comes from memory in shorter pieces is read faster by a step of its own


# -- before planning: neighbours -------------------------------------------------------------------------------------
def paired(steps: Sequence[Scheduled]) -> list[Scheduled]:
    """The steps, each contraction in front of the map that may become its epilogue (`Contraction.then`), where there is
    one; ``at`` says the order again."""
    found, taken = list(steps), set()
    for step in reversed(steps):
        if not isinstance(step, Contraction):
            continue
        group = _first_reader(found, step)
        if isinstance(group, FusedGroup) and id(group) not in taken and maps(step, group):
            if _put_together(found, step, group):
                step.then = group
                taken.add(id(group))
    for at, step in enumerate(found):
        step.at = at
    return found


def _first_reader(steps: list[Scheduled], contraction: Contraction) -> Scheduled | None:
    start = steps.index(contraction) + 1
    memory = contraction.output.memory
    return next((s for s in steps[start:] if any(p.memory is memory for p in (*s.inputs, *written(s)))), None)


def maps(contraction: Contraction, group: FusedGroup) -> bool:
    """Whether a group maps the contraction's result, whole and element by element, and writes nothing that it reads."""
    reads = [place for place in group.needed() if place.memory is contraction.output.memory]
    if not reads or group.axes is not None or group.over or not group.stores or not contraction.output.whole:
        return False
    one, places = reads[0], written(group)
    view, item = one.view, itemsize(one.dtype)
    whole = view.offset == 0 and view.size * item == one.memory.nbytes and nested(view.shape, view.strides, item)
    if not whole or not view.size or any(place.view.size != view.size for place in places):
        return False
    if not all(read.same(one) for read in reads):
        return False
    if any(place.memory is one.memory and not place.same(one) for place in places):
        return False
    return not any(place.overlaps(operand) for place in places for operand in contraction.inputs)


def _put_together(steps: list[Scheduled], contraction: Contraction, group: FusedGroup) -> bool:
    """Moves the contraction behind what lies between it and the group, or the group before it."""
    start, stop = steps.index(contraction), steps.index(group)
    between = steps[start + 1 : stop]
    if not any(_overlap(written(step), contraction.inputs) for step in between):
        steps.insert(stop - 1, steps.pop(start))
        return True
    reads = [place for place in group.inputs if place.memory is not contraction.output.memory]
    for step in between:
        if _overlap(written(step), reads) or _overlap((*step.inputs, *written(step)), written(group)):
            return False
    steps.insert(start + 1, steps.pop(stop))
    return True


def _overlap(some: Sequence[MemoryView], others: Sequence[MemoryView]) -> bool:
    return any(a.overlaps(b) for a in some for b in others)


# -- after planning: the product ---------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class Fused:
    """A product with its epilogue. ``tables``: for each part; ``places``: of the epilogue's operands; ``stored``: C has
    memory."""

    group: FusedGroup
    tables: tuple[EpilogueTables, ...]
    places: tuple[MemoryView, ...]
    stored: bool

    def row(self, number: int, out: Operand, inputs: Callable[[GemmProblem], GemmProblem]) -> Row:
        """Of part ``number``, once the arena is laid out; ``inputs`` says where a problem's are."""
        starts = [Operand(slot=p.memory.slot, offset=p.memory.offset + p.view.offset) for p in self.places]
        return lower(self.tables[number], starts, out, inputs)

    @property
    def flops(self) -> int:
        e = self.tables[0].e
        return len(e.structure.nodes) * e.elements

    @property
    def moved(self) -> int:
        """Bytes that it adds to what the product moves, which counts C: where C has no memory of its own, it is not."""
        c = self.tables[0].e.c
        added = sum(bytes_of(place) for number, place in enumerate(self.places) if number not in c)
        memory = self.places[c[0]].memory
        over = any(place.memory is memory.source for place in written(self.group))
        return added if self.stored and not over else added - bytes_of(self.places[c[0]])

    def seconds(self, machine: cost.Machine) -> float:
        """What it is predicted to add: bytes that the product does not move."""
        added = max(0, self.moved)
        return added / machine.bandwidth(added)

    def taken_by(self, operation: Operation, listed: OperationList) -> None:
        """The operation of a list, which is the product, does this besides."""
        flops, moved = listed.work(operation)
        operation.more, operation.beside = self.group.outputs, (*operation.beside, *self.reads)
        operation.work = flops + self.flops, moved + self.moved

    @property
    def reads(self) -> tuple[Value, ...]:
        """Memory that it reads, besides C."""
        outputs, c = len(self.group.stores), self.tables[0].e.c
        return tuple(
            dict.fromkeys(p.memory for n, p in enumerate(self.places) if n >= outputs and n not in c)
        )


def epilogue(contraction: Contraction, operation: Operation, kept: bool, machine: cost.Machine) -> Fused | str:
    """The product that ``operation`` is, which computes the contraction's result, with its epilogue; or why there is none.

    ``kept``: the result is read by others, too.
    """
    group, memory = contraction.then, contraction.output.memory
    parts = [each.part for each in operation.parts]
    if operation.kind != "gemm" or not all(isinstance(part.plan, GemmPlan) for part in parts):
        return "the result is not that of a GEMM"
    problems = [part.plan.problem for part in parts]
    if operation.mixed or ITEMSIZE[problems[0].dtype] != itemsize(memory.dtype):
        return "a GEMM computes real and imaginary parts"
    places = tuple(group.places())
    c = tuple(number for number, place in enumerate(places) if place.memory is memory)
    fused = group.problem()
    plain = Epilogue(
        structure=fused.structure,
        shape=group.shape,
        strides=tuple(place.view.strides for place in places),
        c=c,
        view=places[c[0]].view.strides,
        stream=max(place.view.size * itemsize(place.dtype) for place in written(group)) >= STREAM_BYTES,
    )
    stored = kept or any(place.memory is memory for place in written(group))
    if memory.source is not None and not plain.stream:
        stored = True  # in the memory of what is made of it
    tables = [_tables(plain, problem, part, stored) for problem, part in zip(problems, parts)]
    if any(each.e.scratch != tables[0].e.scratch for each in tables):
        tables = [_tables(plain, problem, part, True) for problem, part in zip(problems, parts)]
    if not all(each.fits for each in tables):
        return "entries of the result do not follow from its tables"
    why = _slower(fused, places, tables, machine)
    return why or Fused(group=group, tables=tuple(tables), places=places, stored=not tables[0].e.scratch)


def _slower(
    problem: FusedProblem, places: Sequence[MemoryView], tables: Sequence[EpilogueTables], machine: cost.Machine
) -> str:
    """Why a step of its own is predicted to be faster; nothing where it is not."""
    e = tables[0].e
    run = min(each.run for each in tables)
    for number in range(len(e.structure.outputs), len(places)):
        nbytes = bytes_of(places[number])
        if number not in e.c and nbytes > machine.cache_bytes and run * itemsize(places[number].dtype) < FAR_PIECE:
            return "an operand comes from memory in short pieces"
    row = max((dim[0] for dim in normalise(problem).dims[:1]), default=1)
    pieces = sum(each.pieces for each in tables) * PIECE_SECONDS
    pieces -= min(e.elements // row * PIECE_SECONDS, e.elements * MOVED_SECONDS)
    nbytes = bytes_of(places[e.c[0]])
    if pieces > machine.step_seconds + nbytes / machine.bandwidth(nbytes):
        return "operands run along few lanes together"
    return ""


def _tables(e: Epilogue, problem: GemmProblem, part: Part, stored: bool) -> EpilogueTables:
    """With C in scratch memory, unless it is ``stored`` or too large for that."""
    if not stored:
        found = EpilogueTables(problem, replace(e, scratch=True), part.shifts[OUT])
        if found.scratch_bytes <= SCRATCH_BYTES:
            return found
    return EpilogueTables(problem, replace(e, stream=False), part.shifts[OUT])
