"""Which map of an operand is the prologue of a contraction: both go through the operand's rows in blocks, so that what
the map computes is read while it is in cache, and is never there as a whole.

A block of rows is large enough for the product to pack it as it packs any operand, and the other operand is packed once
for each block. That pays where the product has few columns, so that a pass through memory is most of its time; where it
has many, the map and its result are a few percent of it, and stay steps of their own.

Measured, float32, one thread: `exp(a) @ b` of 4096 x 4096 x 8 takes 27 ms as a whole and 13 in blocks, 4096 x 4096 x 64 takes
80 and 27, 2048 x 2048 x 256 the same either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Container, Sequence

from .. import cost
from ..kernels.row import Operand
from ..views import View
from .chains import parsed
from .groups import Contraction, FusedGroup, FusedPlan, Scheduled, written
from .operations import Value
from .places import MemoryView

LARGE = 8  # times the cache: what is computed in blocks is larger
BLOCK = 2  # times the cache: a block
FEWEST_ROWS = 64  # of a block, for the product to have whole tiles
MOST_BLOCKS = 32  # each is planned, and counts its tables
MOST_COLUMNS = 64  # of the result, for each row


@dataclass(frozen=True, kw_only=True, eq=False)
class Prologue:
    """A map and the contraction that alone reads it, in blocks of so many rows; ``position``: of the operand that it
    is; ``axis``: of the result, along which the rows are."""

    group: FusedGroup
    contraction: Contraction
    position: int
    axis: int
    rows: int

    @property
    def starts(self) -> range:
        return range(0, self.group.shape[0], self.rows)

    def map(self, plan: FusedPlan, start: int, threads: int) -> FusedPlan:
        """Rows from ``start`` on, written to the beginning of the map's memory."""
        part = plan.block(start, self._stop(start), threads, False)
        first, *others = part.problem.operands
        operands = (Operand(slot=first.slot, offset=plan.problem.operands[0].offset), *others)
        return replace(part, problem=replace(part.problem, operands=operands))

    def product(self, start: int) -> Contraction:
        """The contraction of these rows."""
        c, count = self.contraction, self._stop(start) - start
        inputs = list(c.inputs)
        inputs[self.position] = _rows(inputs[self.position], 0, 0, count)
        return Contraction(at=c.at, eqn=c.eqn, inputs=inputs, output=_rows(c.output, self.axis, start, count))

    def _stop(self, start: int) -> int:
        return min(start + self.rows, self.group.shape[0])

    def shrink(self) -> None:
        """The map's memory holds a block from now on."""
        memory = self.contraction.inputs[self.position].memory
        memory.nbytes = memory.nbytes // self.group.shape[0] * self.rows


def _rows(place: MemoryView, axis: int, start: int, count: int) -> MemoryView:
    view = place.view
    shape = (*view.shape[:axis], count, *view.shape[axis + 1 :])
    return MemoryView(place.memory, View(shape, view.strides, view.offset + start * view.strides[axis]))


def prologue(
    contraction: Contraction,
    steps: Sequence[Scheduled],
    values: Sequence[Value],
    made: Container[int],
    machine: cost.Machine,
    threads: int,
) -> Prologue | None:
    """The prologue of a contraction of two operands, if it has one. All values are given, for what they share; ``made``:
    memory, by id, that nobody but the steps knows of."""
    if len(contraction.inputs) != 2:
        return None
    for position, place in enumerate(contraction.inputs):
        group = maker(place, contraction, steps, values)
        axis = _row_axis(contraction, position)
        if group is None or axis is None or id(place.memory) not in made or place.memory.nbytes < LARGE * machine.cache_bytes:
            continue
        count = group.shape[0]
        rows = max(FEWEST_ROWS, BLOCK * machine.cache_bytes * threads // max(1, place.memory.nbytes // count))
        rows = max(rows, -(-count // MOST_BLOCKS))
        if rows < count and contraction.output.view.size <= MOST_COLUMNS * count:
            return Prologue(group=group, contraction=contraction, position=position, axis=axis, rows=rows)
    return None


def maker(
    place: MemoryView, contraction: Contraction, steps: Sequence[Scheduled], values: Sequence[Value]
) -> FusedGroup | None:
    """The map that writes an operand, whole and for nobody else, in a step just before the contraction."""
    memory, at = place.memory, next(n for n, step in enumerate(steps) if step is contraction)
    group = steps[at - 1] if at else None
    if not isinstance(group, FusedGroup) or group.axes is not None or group.over or len(group.stores) != 1:
        return None
    store = group.stores[0].place
    if store.memory is not memory or not store.whole or not store.same(place) or store.view.shape != place.view.shape:
        return None
    if memory.kind != "arena" or memory.source is not None or any(value.source is memory for value in values):
        return None
    others = [step for step in steps if step is not group]
    touched = [p for step in others for p in (*step.inputs, *written(step)) if p.memory is memory]
    return group if len(touched) == 1 and len(group.shape) > 1 else None


def _row_axis(contraction: Contraction, position: int) -> int | None:
    """The axis of the result that is the first one of an operand; None where that is summed, or in the other one too."""
    shapes = tuple(place.view.shape for place in contraction.inputs)
    expr = parsed(contraction.eqn.named["subscripts"], shapes)
    term, other = expr.inputs[position], expr.inputs[1 - position]
    index = term[0] if term else None
    if index is None or term.count(index) != 1 or index in other or expr.output.count(index) != 1:
        return None
    return expr.output.index(index)
