"""Which map of an operand is made by the product that reads it: block by block, in the scratch memory of each worker
(`kernels.prologue`), so that what it computes is never in memory.

Maps are those of a program before an einsum, and the element-wise products of an einsum before one that sums (`joined`).

That saves a write and a read of the operand. It costs more to read what the map reads: in blocks of the product, not in
order, a few rows of all lanes at a time on the lanes side, a few whole rows on the other side, how much more depends on the
core. With many columns a product would rather read its operand packed, or in larger blocks. So it pays where the map
reads fewer bytes than it computes, as weights of a byte do, or where columns are few (docs/performance-fused.md). An
operand of less than a cache is read again for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Sequence

from .. import cost
from ..kernels.cpu import abi, cores
from ..kernels.epilogue import nested
from ..kernels.gemm import GemmProblem
from ..kernels.isa import ISA
from ..kernels.prologue import StagedMap, StageTables
from ..kernels.row import Operand
from ..kernels.tiles import ITEMSIZE, tiles
from ..records import changed
from .gemm import GemmPlan
from .gemm_cost import moved_seconds, product_seconds
from .gemm_work import GemmWork
from .groups import Contraction, FusedGroup, bytes_of, written
from .memo import Planned
from .operations import Operation, OperationList, itemsize
from .places import MemoryView
from .sides import LEFT, RIGHT

MOST_COLUMNS = 8  # of a tile: each reads B in a stream of its own
TERM = 2e-12  # seconds, of each term of a product: a block is read from L2, where it was packed, or by fewer columns
PIECE = 5e-9  # of each run of the map
LEAST = 0.05  # of the predicted time of the product, to be gained at least


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

    def seconds(self, machine: cost.Machine) -> float:
        """What it is predicted to add to the time of the product: bytes that this does not move."""
        added = max(0, self._moved)
        return added / machine.bandwidth(added)

    def work(self, plan: GemmPlan) -> GemmWork:
        """Of the product, which goes by the blocks that are made and packs none of them."""
        p, is_a = self.tables.p, self.tables.is_a
        a_mode, b_mode = plan.work.pack_modes
        modes, in_place = (None if is_a else a_mode, b_mode if is_a else None), plan.work.in_place or not is_a
        return plan.work._replace(nr=p.nr, kc=p.kc, blocks=p.blocks, pack_modes=modes, in_place=in_place)

    def _plan(self, plan: GemmPlan) -> GemmPlan:
        first, second = plan.describe
        shown = ("staged", second) if self.tables.is_a != plan.swapped else (first, "staged")
        made = changed(plan, problem=self.tables.problem, describe=shown, work=self.work(plan))
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
    readers = [(o, at) for o in operations for at, value in enumerate(o.inputs) if value.memory is place.memory]
    if len(readers) != 1:
        return "several operations read it"
    operation, at = readers[0]
    if operation.kind != "gemm" or len(operation.parts) != 1 or not isinstance(operation.parts[0].part.plan, GemmPlan):
        return "what reads it is not one GEMM"
    part, store = operation.parts[0].part, group.stores[0].place
    problem, item = part.plan.problem, itemsize(place.dtype)
    if operation.mixed or ITEMSIZE[problem.dtype] != item or not nested(store.view.shape, store.view.strides, item):
        return "a GEMM computes with other elements"
    side = abi.STAGED_A if (at == 0) != part.plan.swapped else abi.STAGED_B
    if (problem.a_mode if side == abi.STAGED_A else problem.b_mode) == "panels":
        return "it is packed by a step before"
    places = tuple(group.needed())
    described = StagedMap(
        structure=group.problem().structure,
        shape=group.shape,
        strides=tuple(each.view.strides for each in (store, *places)),
        side=side,
        nr=_columns(problem, isa),
        threads=part.plan.threads if part.plan.parallel else 1,
    )
    tables = StageTables(problem, described, part.shifts[LEFT if at == 0 else RIGHT])
    if not tables.fits:
        return "it is widened, or lanes are not adjacent"
    found = Staged(group=group, tables=tables, places=places)
    return _slower(found, operation.parts[0], isa, machine) or (operation, found)


def _columns(p: GemmProblem, isa: ISA) -> int:
    """Of the tile, as high as the problem's."""
    found = [nr for mv, nr in tiles(isa, p.dtype) if mv == p.mv and nr <= min(p.nr, MOST_COLUMNS)]
    return max(found, default=p.nr)


def _slower(found: Staged, product: Planned, isa: ISA, machine: cost.Machine) -> str:
    """Why a step of its own is predicted to be faster; nothing where it is not."""
    tables, plan, core = found.tables, product.part.plan, cores.here()
    if tables.repeated > 1:
        return "it would be computed more than once"
    result, read = bytes_of(found.group.stores[0].place), sum(map(bytes_of, found.places))
    gain = 2 * min(result / machine.memory_bandwidth, moved_seconds(result))  # of one that is written and read
    gain -= ((core.stage_lanes if tables.is_a else core.stage_columns) - 1) * read / machine.memory_bandwidth
    gain -= PIECE * prod(tables.e.shape) / tables.run
    gain += product_seconds(plan.work, isa, machine) - product_seconds(found.work(plan), isa, machine)
    p = tables.p
    if not tables.is_a or p.a_mode == "pack":
        gain -= TERM * p.outer_total * p.panels * p.mr * len(p.tn_c) * len(p.tk_b) * len(p.tko_b)
    return "" if gain > LEAST * product.times.total else "it takes longer than a step before"
