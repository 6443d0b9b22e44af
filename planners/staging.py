"""Which map of an operand is made by the product that reads it: block by block, in the scratch memory of each worker
(`kernels.prologue`), so that what it computes is never in memory.

That saves a write and a read of the operand. It costs more to read what the map reads: in blocks of the product, not in
order, a few rows of all lanes at a time on the lanes side, a few whole rows on the other side. There, a product with many
columns would rather read its operand in larger blocks. So it pays where the map reads fewer bytes than it computes, as
weights of a byte do, or where columns are few.

Measured, one thread, float32, steps apart and as one: `x @ (w.astype("float32") * scale)` of int8 w, 4096 x 4096 and 8 rows
of x, takes 7.4 and 5.5 ms, 64 rows 30.6 and 25.9; 1024 x 1024 and 64 rows 2.0 and 1.4. `exp(a) @ b` of 1024 x 1024 x 16 takes
1.06 and 0.66 ms. Of float32, `x @ exp(w)` takes the same either way (8.3 and 8.8 ms), and `exp(a) @ b` with 64 columns is
slower (1.7 and 1.9): both stay steps. An operand of less than a cache is read again for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Sequence

from .. import cost
from ..kernels.cpu import abi
from ..kernels.epilogue import nested
from ..kernels.gemm import GemmProblem
from ..kernels.isa import ISA
from ..kernels.prologue import StagedMap, StageTables
from ..kernels.row import Operand
from ..kernels.tiles import ITEMSIZE, tiles
from ..records import changed
from .gemm import GemmPlan
from .groups import Contraction, FusedGroup, bytes_of, written
from .operations import Operation, OperationList, itemsize
from .places import MemoryView
from .sides import LEFT, RIGHT

MOST_COLUMNS = 8  # of a tile: each reads B in a stream of its own
LANES_SIDE = 3.0  # times as long as in order takes what the map reads, where it makes the lanes side
OTHER_SIDE = 1.5
TERM = 6e-12  # seconds: what a product of few lanes and a staged B takes more, for each of its terms
PIECE = 5e-9  # of each run of the map
LEAST = 0.03  # of the predicted time of the product, to be gained at least


@dataclass(frozen=True, kw_only=True, eq=False)
class Staged:
    """A product with the map of one operand; ``places``: of what the map reads."""

    group: FusedGroup
    tables: StageTables
    places: tuple[MemoryView, ...]

    def place(self, problem: GemmProblem, a: Operand, b: Operand) -> GemmProblem:
        """The problem, its inputs where they are, once the arena is laid out."""
        starts = [Operand(p.memory.slot, p.memory.offset + p.view.offset) for p in self.places]
        return self.tables.place(problem, a, b, starts)

    @property
    def _moved(self) -> int:
        """Bytes that it reads, less those of the operand."""
        return sum(map(bytes_of, self.places)) - bytes_of(self.group.stores[0].place)

    def taken_by(self, operation: Operation, listed: OperationList) -> None:
        """The operation of a list, which is the product, does this besides."""
        flops, moved = listed.work(operation)
        e = self.tables.e
        operation.work = flops + len(e.structure.nodes) * prod(e.shape), moved + self._moved
        operation.beside = (*operation.beside, *dict.fromkeys(place.memory for place in self.places))
        (each,) = operation.parts
        operation.parts = (each._replace(part=replace(each.part, plan=self._plan(each.part.plan))),)

    def _plan(self, plan: GemmPlan) -> GemmPlan:
        first, second = plan.describe
        shown = ("staged", second) if self.tables.is_a != plan.swapped else (first, "staged")
        work = plan.work._replace(nr=self.tables.p.nr)
        made = changed(plan, problem=self.tables.problem, describe=shown, work=work)
        made.__dict__.pop("row", None)  # of the problem that was planned
        return made


def worth_a_look(group: FusedGroup, machine: cost.Machine) -> bool:
    """Whether what a map computes is too large to stay in cache."""
    return bytes_of(group.stores[0].place) > machine.cache_bytes


def narrow(group: FusedGroup) -> bool:
    """Whether a map reads half of the bytes that it computes, or less."""
    return 2 * sum(map(bytes_of, group.needed())) <= bytes_of(group.stores[0].place)


def free_to_wait(contraction: Contraction, group: FusedGroup) -> bool:
    """Whether nothing that a map reads is written by the contraction, or by what may be its epilogue: the map is
    computed beside these."""
    written_by = [contraction.output, *(written(contraction.then) if contraction.then is not None else ())]
    return not any(place.overlaps(read) for place in written_by for read in group.needed())


def staged(
    group: FusedGroup, place: MemoryView, operations: Sequence[Operation], isa: ISA, machine: cost.Machine
) -> tuple[Operation, Staged] | str:
    """The one of ``operations`` that reads ``place``, with the map ``group`` that computes it; or why the map is a step."""
    readers = [(o, at) for o in operations for at, value in enumerate(o.inputs) if value.source is place.memory]
    if len(readers) != 1:
        return "several operations read it"
    operation, at = readers[0]
    if operation.kind != "gemm" or len(operation.parts) != 1 or not isinstance(operation.parts[0].part.plan, GemmPlan):
        return "what reads it is not one GEMM"
    part, store = operation.parts[0].part, group.stores[0].place
    problem, item = part.plan.problem, itemsize(place.dtype)
    if operation.mixed or ITEMSIZE[problem.dtype] != item or not nested(store.view.shape, store.view.strides, item):
        return "a GEMM computes with other elements"
    places = tuple(group.needed())
    described = StagedMap(
        structure=group.problem().structure,
        shape=group.shape,
        strides=tuple(each.view.strides for each in (store, *places)),
        side=abi.STAGED_A if (at == 0) != part.plan.swapped else abi.STAGED_B,
        nr=_columns(problem, isa),
    )
    tables = StageTables(problem, described, part.shifts[LEFT if at == 0 else RIGHT])
    if not tables.fits:
        return "it is packed by a step before, or lanes are not adjacent"
    found = Staged(group=group, tables=tables, places=places)
    return _slower(found, operation.parts[0].times.total, machine) or (operation, found)


def _columns(p: GemmProblem, isa: ISA) -> int:
    """Of the tile, as high as the problem's."""
    found = [nr for mv, nr in tiles(isa, p.dtype) if mv == p.mv and nr <= min(p.nr, MOST_COLUMNS)]
    return max(found, default=p.nr)


def _slower(found: Staged, product: float, machine: cost.Machine) -> str:
    """Why a step of its own is predicted to be faster; nothing where it is not."""
    tables, p = found.tables, found.tables.p
    if tables.repeated > 1:
        return "it would be computed more than once"
    result, read = bytes_of(found.group.stores[0].place), sum(map(bytes_of, found.places))
    gain = (2 * result - ((LANES_SIDE if tables.is_a else OTHER_SIDE) - 1) * read) / machine.memory_bandwidth
    gain -= PIECE * prod(tables.e.shape) / tables.run
    if not tables.is_a:
        gain -= TERM * p.outer_total * p.panels * p.mr * len(p.tn_c) * len(p.tk_b) * len(p.tko_b)
    return "" if gain > LEAST * product else "it takes longer than a step before"
