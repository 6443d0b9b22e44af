"""Which maps of a contraction's result are its epilogue: done on each block of the result while that is in cache.

Two decisions, one before and one after the contraction is planned:

`paired` looks at steps. A contraction and the first step that reads its result become neighbours, where that step is a
map of it, element by element, and no step between them is in the way. What the map writes must not be what the
contraction reads, since other blocks are read later.

`epilogue` looks at the product that computes the result. Its tasks call the map where it is a single GEMM (or parts of
one, none of which adds to another), where entries follow from its tables, and where lanes come in runs along which every
operand of the map runs, or is one element. Otherwise the map stays a step, and the reason is given.

The result itself is not stored where nobody else reads it, unless it lies in the memory that the map writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Sequence

from ..kernels.epilogue import SCRATCH_BYTES, Epilogue, EpilogueTables, lower, nested
from ..kernels.gemm import GemmProblem
from ..kernels.row import Operand, Row
from ..kernels.tiles import ITEMSIZE
from .gemm import GemmPlan
from .groups import Contraction, FusedGroup, Scheduled, written
from .operations import Operation, Value, itemsize
from .parts import Part
from .places import MemoryView
from .sides import OUT

SHORTEST_RUN = 8  # lanes that operands run along together, on average: below, a step of its own is faster


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

    def row(self, number: int, out: Operand, a: Operand, b: Operand) -> Row:
        """Of part ``number``, once the arena is laid out."""
        starts = [Operand(slot=p.memory.slot, offset=p.memory.offset + p.view.offset) for p in self.places]
        return lower(self.tables[number], starts, a, b, out)

    @property
    def flops(self) -> int:
        e = self.tables[0].e
        return len(e.structure.nodes) * e.elements

    @property
    def moved(self) -> int:
        """Bytes that it adds to what the product moves; C is written by the one or by the other."""
        c = self.tables[0].e.c
        added = sum(_nbytes(place) for number, place in enumerate(self.places) if number not in c)
        return added - (0 if self.stored else _nbytes(self.places[c[0]]))

    @property
    def reads(self) -> tuple[Value, ...]:
        """Memory that it reads, besides C."""
        outputs, c = len(self.group.stores), self.tables[0].e.c
        return tuple(
            dict.fromkeys(p.memory for n, p in enumerate(self.places) if n >= outputs and n not in c)
        )


def _nbytes(place: MemoryView) -> int:
    return itemsize(place.dtype) * prod(n for n, s in zip(place.view.shape, place.view.strides) if s)


def epilogue(contraction: Contraction, operation: Operation, kept: bool) -> Fused | str:
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
    shared = memory.source is not None or any(store.place.memory is memory for store in group.stores)
    plain = Epilogue(
        structure=group.problem().structure,
        shape=group.shape,
        strides=tuple(place.view.strides for place in places),
        c=c,
        view=places[c[0]].view.strides,
    )
    tables = [_tables(plain, problem, part, memory, kept or shared) for problem, part in zip(problems, parts)]
    if not all(each.fits for each in tables):
        return "entries of the result do not follow from its tables"
    if min(each.run for each in tables) < SHORTEST_RUN:
        return "an operand does not run along the lanes"
    stored = not tables[0].e.scratch
    if any(each.e.scratch == stored for each in tables):
        tables = [EpilogueTables(each.p, replace(each.e, scratch=False), each.shift) for each in tables]
        stored = True
    return Fused(group=group, tables=tuple(tables), places=places, stored=stored)


def _tables(e: Epilogue, problem: GemmProblem, part: Part, memory: Value, stored: bool) -> EpilogueTables:
    """With C in scratch memory, where it need not be stored and is not too large for that."""
    found = EpilogueTables(problem, replace(e, scratch=not stored), part.shifts[OUT])
    if not stored and found.scratch_bytes > SCRATCH_BYTES:
        return EpilogueTables(problem, e, part.shifts[OUT])
    return found
