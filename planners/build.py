"""`build_plan`: the whole way from a request to a `Plan`.

1. operations on values (`operations`), in execution order, each done once (`sharing`);
2. layouts, backwards: the output's is known, and the planner of each operation lays out its free operands;
3. an arena offset for each intermediate and packed copy, by lifetime;
4. one step per row of the step table, forwards.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, groupby
from math import prod
from operator import attrgetter
from typing import Any, Iterable, Iterator

from .. import cost
from ..dtypes import DTYPES
from ..kernels import isa as isa_table
from ..kernels.cpu import abi
from ..kernels.gemm import GemmProblem, Operand, PackProblem, lower
from ..kernels.row import Row, blocks_row
from ..plan import Plan, Step
from ..records import changed, partly
from .arena import Lifetime, allocate, worker_scratch
from .gemm import GemmPlan
from .joining import give_products, join
from .layouts import LayoutSolver
from .memo import Times
from .nests import NestPlan
from .operations import Operation, OperationList, Value, itemsize
from .parts import Part
from .request import PlanRequest
from .sharing import share
from .shown import PlanShown, ProductShown, StepShown, described, term_text
from .sides import LEFT, OUT, RIGHT
from .slices import Slices, find_slices, table_bytes
from .strands import find_strands, leave_alone
from .thread_slices import find_thread_slices
from .unpacked import UnpackedPlan
from .weighted import sum_weighted
from .work import Work

__all__ = ["PlanRequest", "build_plan"]

FEW_SLICES = 16  # in which products are fused sums, which have a table for each


def compute_dtype(request: PlanRequest) -> str:
    """The dtype that kernels compute in: that of the result or of `accumulate`, as the kernels know it."""
    return DTYPES[request.accumulate or request.dtype].compute


def build_plan(request: PlanRequest, machine: cost.Machine | None = None) -> Plan:
    """The plan of one request on ``machine`` (of the request's instruction set; None: a typical one); deterministic.

    Source: the reverse pass and the fixed-block layout of intermediates follow M. Koch, "Compiling the Einstein
    summation convention to LIBXSMM library calls" (2023), section 5; separable blocks and packing are this engine's.
    """
    return PlanBuilder(request, machine).build()


def lay_out(
    listed: OperationList, isa: isa_table.ISA, machine: cost.Machine, whole: bool = False
) -> tuple[OperationList, Slices | None]:
    """Joins operations, gives all values layouts and all operations parts, and products what they do besides. ``whole``:
    they are a plan of their own, and may be cut into strands or slices. The operations as they are planned, and the slices
    that these are one of."""
    request = listed.request
    slices = (find_slices(listed, machine) or find_thread_slices(listed, machine)) if whole else None
    if slices is not None:
        listed = slices.listed
    if request.fuse:
        join(listed, machine)
    seconds = listed.rooflines(machine)
    if slices is not None:
        slices.mark()
    elif whole and request.fuse:
        find_strands(listed, machine, seconds)
    leave_alone(listed, machine, seconds)
    LayoutSolver(listed, isa, machine, seconds).solve()
    if request.fuse:
        if slices is None or len(slices.starts) <= FEW_SLICES:
            sum_weighted(listed, isa)
        give_products(listed, isa, machine)
    return listed, slices


class PlanBuilder:
    slices: Slices | None = None  # where the operations are those of one slice

    def __init__(self, request: PlanRequest, machine: cost.Machine | None):
        self.request = request
        self.isa = isa_table.get(request.isa)
        self.compute = compute_dtype(request)
        self.list = OperationList(request, self.compute)
        self.machine = machine or _typical(self.isa)
        self.steps: list[Step] = []

    def build(self) -> Plan:
        self._draw_up()
        for value in self.list.values:
            value.nbytes = value.nbytes or value.size
        arena, kept = self._allocate()
        self.position = {id(value): number for number, value in enumerate(self.list.values)}
        operations = self.list.operations
        if self.slices is None and any([operation.strand for operation in operations]):
            groups = groupby([each for each in operations if each.strand], attrgetter("strand"))
            self._emit_strands(chain.from_iterable(map(self._emit, each)) for _, each in groups)
        for operation in operations:
            if not operation.strand:
                for step in self._emit(operation):  # one at a time: each is numbered by those before it
                    self.steps.append(step)
        if self.slices is not None:
            self._emit_strands(self.slices.steps(self))
        return self._plan(arena, kept)

    def _draw_up(self) -> None:
        """Operations in execution order, with layouts for all values and parts for all operations."""
        self.list.build()
        if self.request.same and not share(self.list):
            self.request = replace(self.request, same=())
        self.list, self.slices = lay_out(self.list, self.isa, self.machine, whole=True)

    # -- memory ----------------------------------------------------------------------------------------------
    def _allocate(self) -> tuple[int, int]:
        """Places intermediates, packed copies and temporaries; bytes of the arena and of what constants leave.

        What depends on constants alone is computed once and kept: it lives in a slot of its own, to the end.
        """
        born, dies, kept_on = {}, {}, set()
        regions: dict[bool, list[Lifetime]] = {False: [], True: []}
        # by ids of the operation and of the part that ask for it, and side
        self.pack_places: dict[tuple[int, int, str], tuple[bool, int]] = {}
        packs: dict[int, tuple[int, int, str]] = {}
        forever = len(self.list.operations)
        for number, operation in enumerate(self.list.operations):
            constant = operation.constant
            for value in operation.outputs:
                place = value.number if value.source is None else value.memory.number
                born.setdefault(place, number)
                dies[place] = number
            for value in (*operation.inputs, *operation.beside) if operation.beside else operation.inputs:
                place = value.number if value.source is None else value.memory.number
                dies[place] = number
                if value.constant and not constant:
                    kept_on.add(place)
            for each in operation.parts:
                for side, nbytes in each.part.temporaries:
                    key = -1 - len(packs)
                    packs[key] = (id(operation), id(each.part), side)
                    kept = self._packs_once(operation, each.part, side)
                    last = forever if kept and not constant else number
                    regions[kept].append(Lifetime(key, nbytes, number, last, operation.strand))
        dies |= dict.fromkeys(kept_on, forever)
        self._stretch(born, dies)
        placed = [value for value in self.list.values if value.kind == "arena" and value.source is None]
        for value in placed:
            first = born.get(value.number, 0)  # what has no elements is written by nobody
            last, strand = dies.get(value.number, first), self.list.operations[first].strand
            regions[value.constant].append(Lifetime(value.number, value.nbytes, first, last, strand))
        sizes = {}
        for kept, lifetimes in regions.items():
            place = allocate if self.slices is None or kept else self.slices.allocate
            offsets, sizes[kept] = place(lifetimes)
            if not lifetimes:
                continue
            slot = self._slot(kept)
            for value in placed:
                if value.number in offsets:
                    value.slot, value.offset = slot, offsets[value.number]
            self.pack_places |= {packs[key]: (kept, offsets[key]) for key in packs if key in offsets}
        for value in self.list.values:
            if value.source is not None:
                value.slot, value.offset = value.memory.slot, value.memory.offset + value.shift
        return sizes[False], sizes[True]

    def _stretch(self, born: dict[int, int], dies: dict[int, int]) -> None:
        """What has to live longer than by the order of the operations; both by number of the value."""

    def _slot(self, kept: bool) -> int:
        """Slots after the operands: output, arena, alpha and beta, what constants leave."""
        return len(self.request.expr.inputs) + (3 if kept else 1)

    def _packs_once(self, operation: Operation, part: Part, side: str) -> bool:
        if operation.constant or side == "temporary":
            return operation.constant
        x, y = operation.inputs
        return (x if (side == "left") != part.plan.swapped else y).constant

    def _place(self, operation: Operation, part: Part, side: str) -> Operand:
        kept, offset = self.pack_places.get((id(operation), id(part), side), (False, 0))
        return Operand(slot=self._slot(kept), offset=offset)

    def _output_names(self) -> dict[int, str]:
        """By number of the value, where they are not all called ``out``."""
        return {}

    # -- steps, forwards -------------------------------------------------------------------------------------
    def _emit(self, operation: Operation) -> Iterable[Step]:
        if operation.kind == "gemm" and len(operation.parts) == 1 and not (self.list.epilogues or self.list.prologues):
            plan = operation.parts[0].part.plan
            if plan.__class__ is GemmPlan and plan.pack_left is None and plan.pack_right is None:
                return (self._product(operation, plan, operation.parts[0].times),)
        return self._emit_parts(operation)

    def _emit_strands(self, strands: Iterable[Iterable[Step]]) -> None:
        """The steps of all strands, behind one that hands them out; of a single thread there is one strand."""
        steps, first, starts = self.steps, len(self.steps), []
        if self.request.threads > 1:
            steps.append(self._control_step(blocks_row((1,), 1), "blocks"))
        for strand in strands:
            starts.append(len(steps) - first)
            for step in strand:
                steps.append(changed(step, depth=1, seconds=step.seconds / self.request.threads))
        if self.request.threads > 1:
            row = blocks_row((*starts, len(steps) - first), len(steps))
            text = f"{len(starts)} strands, then {len(steps)}"
            steps[first] = changed(steps[first], expr=text, tasks=len(starts), args=row)

    def _control_step(self, row: Row, kernel: str, inputs: tuple[int, ...] = ()) -> Step:
        """A step that says which steps are next; where these are is not known yet."""
        return self._made(
            Work(expr="", dims={}, flops=0, moved=0),
            row,
            family="control",
            kernel=kernel,
            tile=(),
            inputs=inputs,
            output=-1,
            layouts=(),
            seconds=self.machine.step_seconds,
        )

    def _product(self, operation: Operation, plan: GemmPlan, times: Times) -> Step:
        """The only step of a product, as most have: what `_emit_gemm` yields where nothing is packed before."""
        (x, y), out, row = operation.inputs, operation.output, plan.row
        a, b = (y, x) if plan.swapped else (x, y)
        flops, moved = self.list.work(operation)
        sizes = self._owner(operation).sizes
        return partly(
            Step,
            ProductShown(operation.inputs, out, plan.describe, sizes, self.position, plan.tile, row),
            number=len(self.steps),
            family="gemm",
            flops=flops,
            bytes_moved=moved,
            seconds=self._time(times.product, row),
            once=out.constant,
            args=row,
            places=(out.slot, out.offset, a.slot, a.offset, b.slot, b.offset),
        )

    def _emit_parts(self, operation: Operation) -> Iterator[Step]:
        shown, (flops, moved) = self._shown(operation), self.list.work(operation)
        whole = Work(expr=shown, dims=shown, flops=flops, moved=moved)
        if operation.kind == "fused":
            yield from self._emit_fused(operation, operation.parts[0].part, whole)
            return
        for each in operation.parts:
            part = each.part
            work = whole if part.contraction is None else whole.share(part)
            if isinstance(part.plan, GemmPlan):
                yield from self._emit_gemm(operation, part, work, each.times)
            else:
                yield from self._emit_rows(operation, part, work, each.times)

    def _emit_fused(
        self, operation: Operation, part: Part, work: Work, alone: bool = False, cold: int = 0
    ) -> Iterator[Step]:
        """Of a `groups.FusedPlan`, or of what has rows as it has. ``alone``: others run steps like it at the same time;
        ``cold``: bytes of a block that no step of the blocks has touched before."""
        share = 1 if alone or operation.alone else self.request.threads
        for row in part.plan.rows(self._place(operation, part, "temporary"), share):
            threads = self.request.threads if alone else self._threads(row)
            seconds = cost.seconds(work.flops, work.moved, self.compute, self.machine, threads, cold)
            yield self._step(operation, work, row, operation.kind, (), (), seconds)
            work, cold = changed(work, flops=0, moved=0), 0  # later rows combine what the first left

    def _emit_rows(self, operation: Operation, part: Part, work: Work, times: Times | None) -> Iterator[Step]:
        plan: NestPlan | UnpackedPlan = part.plan
        family = plan.family if isinstance(plan, UnpackedPlan) else operation.kind
        places = {
            "temp": self._place(operation, part, "temporary"),
            "b": Operand(slot=len(self.request.expr.inputs) + 2, offset=0),  # alpha and beta of a scaled copy
        }
        for name, value, tensor in zip(("out", "a", "b"), (operation.output, *operation.inputs), (OUT, LEFT, RIGHT)):
            places[name] = Operand(slot=value.slot, offset=value.offset + part.shifts[tensor])
        if isinstance(plan, UnpackedPlan):
            yield from self._emit_copies(operation, plan, places, work)
        for row in plan.rows(places):
            if times is None:
                seconds = cost.seconds(work.flops, work.moved, self.compute, self.machine, self._threads(row))
            else:
                seconds = self._time(times.total, row)
            yield self._step(operation, work, row, family, (), (), seconds)
            work = changed(work, flops=0, moved=0)  # later rows add up what the first left

    def _emit_copies(self, operation: Operation, plan: UnpackedPlan, places: dict, work: Work) -> Iterator[Step]:
        value = operation.inputs[plan.copied]
        for row in plan.copies(places):
            copying = changed(work, expr=f"copy {term_text(value.term)}", flops=0, moved=2 * self.list.nbytes(value))
            place = self.position[id(value)]
            yield self._made(
                copying,
                row,
                family="copy",
                kernel=row.kernels[abi.FN],
                tile=(),
                inputs=(place,),
                output=self.position[id(operation.output)],
                layouts=StepShown((value,), ("strided",)),
                once=operation.constant,
                seconds=cost.seconds(0, copying.moved, self.compute, self.machine, self._threads(row)),
            )

    def _emit_gemm(self, operation: Operation, part: Part, work: Work, times: Times) -> Iterator[Step]:
        plan: GemmPlan = part.plan
        places, widened, output = [], 0, operation.output
        (x, y), shifts = operation.inputs, part.shifts
        left, right = ("left", x, LEFT, plan.pack_left), ("right", y, RIGHT, plan.pack_right)
        if plan.swapped:
            left, right = ("left", y, RIGHT, plan.pack_left), ("right", x, LEFT, plan.pack_right)
        for side, value, tensor, pack in (left, right):
            place = Operand(value.slot, value.offset + shifts[tensor])
            if pack is not None:
                source, place, problem = place, self._place(operation, part, side), pack.problem
                nbytes = self.list.nbytes(value)
                copied = nbytes // itemsize(problem.source) * itemsize(problem.dtype)
                widened += copied - nbytes
                packing = changed(work, moved=nbytes + copied)
                seconds = self._time(times.left if side == "left" else times.right, pack.row)
                at = (*place, *source, 0, 0)  # it reads one operand
                yield self._step_of_pack(operation, packing, pack.row, at, value, problem, seconds)
            places.append(place)
        row, at = self._row(operation, part, Operand(output.slot, output.offset + shifts[OUT]), *places)
        seconds = self._time(times.product, row)
        work = changed(work, moved=work.moved + round(widened * work.scale)) if widened else work
        step = self._step(operation, work, row, "gemm", plan.tile, plan.describe, seconds, at)
        found, before = self.list.epilogues.get(id(operation)), self.list.prologues.get(id(operation))
        if found is None and before is None:
            yield step
        else:
            yield self._with_maps(operation, step, found, before)

    def _row(
        self, operation: Operation, part: Part, out: Operand, a: Operand, b: Operand
    ) -> tuple[Row, tuple[int, ...]]:
        """Of a product, with its epilogue where it has one, and the places of its operands where it does not know them."""
        found, before = self.list.epilogues.get(id(operation)), self.list.prologues.get(id(operation))
        if found is None and before is None:
            return part.plan.row, (*out, *a, *b)
        inputs = partial(_read, a=a, b=b) if before is None else partial(before.place, a=a, b=b)
        if found is None:
            return lower(inputs(replace(part.plan.problem, c=out))), ()
        number = next(at for at, each in enumerate(operation.parts) if each.part is part)
        return found.row(number, out, inputs), ()

    def _with_maps(self, operation: Operation, step: Step, found: Any, before: Any) -> Step:
        """The step of a product with its epilogue and prologue says what these do, read and write."""
        made = () if before is None else before.group.outputs  # which is nowhere as a whole
        read = [value for value in operation.inputs if value not in made and value.source not in made]
        inputs = tuple([self.position[id(value)] for value in (*read, *operation.beside)])
        output = self.position[id(operation.more[0])] if found is not None else step.output
        values = [self.list.values[place] for place in (*inputs, output)]
        layouts = described(values, step.layouts[len(step.inputs) + 1 :])
        expr, seconds = step.expr, step.seconds
        if before is not None:
            expr, seconds = f"{before.group.text()} + {expr}", seconds + before.seconds(self.machine)
        if found is not None:
            expr = f"{expr} + {found.group.text()}"
            seconds += found.seconds(self.machine) * (step.flops / max(1, self.list.work(operation)[0]))
        return changed(step, expr=expr, inputs=inputs, output=output, layouts=layouts, seconds=seconds)

    def _step(
        self,
        operation: Operation,
        work: Work,
        row: Row,
        family: str,
        tile: tuple,
        modes: tuple,
        seconds: float,
        places: tuple[int, ...] = (),
    ) -> Step:
        values, position = (*operation.inputs, operation.output), self.position
        *inputs, output = [position[id(value)] for value in values]
        return Step(
            number=len(self.steps),
            expr=work.expr,
            family=family,
            kernel=row.kernels[abi.FN],
            tile=tile,
            inputs=tuple(inputs),
            output=output,
            dims=work.dims,
            layouts=StepShown(values, modes),
            flops=work.flops,
            bytes_moved=work.moved,
            seconds=seconds,
            tasks=row.tasks,
            once=operation.constant,
            args=row,
            places=places,
        )

    def _step_of_pack(
        self,
        operation: Operation,
        work: Work,
        row: Row,
        places: tuple[int, ...],
        packed: Value,
        problem: PackProblem,
        seconds: float,
    ) -> Step:
        place = self.position[id(packed)]
        return self._made(
            changed(work, expr=f"pack {term_text(packed.term)}", flops=0, moved=round(work.moved * work.scale)),
            row,
            family="pack",
            kernel=problem.kernel,
            tile=(problem.width,),
            inputs=(place,),
            output=self.position[id(operation.output)],
            layouts=StepShown((packed,), (f"panels{problem.width}",)),
            once=packed.constant,
            seconds=seconds,
            places=places,
        )

    def _made(self, work: Work, row: Row, **more) -> Step:
        return Step(
            number=len(self.steps),
            expr=work.expr,
            dims=work.dims,
            flops=work.flops,
            bytes_moved=work.moved,
            tasks=row.tasks,
            args=row,
            **more,
        )

    def _time(self, seconds: float, row: Row) -> float:
        """Of a step that takes so many seconds on one thread."""
        threads, machine = self._threads(row), self.machine
        return seconds / threads + machine.step_seconds + (machine.meeting_seconds if threads > 1 else 0.0)

    def _threads(self, row: Row) -> int:
        return max(1, min(self.request.threads, row.tasks)) if row.packed.parallel else 1

    def _shown(self, operation: Operation) -> StepShown:
        """What is shown of a step that is a whole operation."""
        return StepShown((*operation.inputs, operation.output), sizes=self._owner(operation).sizes)

    def _owner(self, operation: Operation) -> OperationList:
        """The list that knows the indices of an operation."""
        return self.list

    def _plan(self, arena: int, kept: int) -> Plan:
        steps = tuple(self.steps)
        scratch = worker_scratch(steps, self.request.threads)
        tables = sum([s.args.nbytes for s in steps]) if self.slices is None else table_bytes(steps)
        tables += 8 * abi.STEP_WORDS
        return Plan(
            expr=self.request.expr,
            path=self._path(),
            buffers=PlanShown(self.list.values, self._output_names()),
            steps=steps,
            dtype=self.request.dtype,
            compute_dtype=self.compute,
            isa=self.isa.name,
            threads=self.request.threads,
            flops=sum([s.flops for s in steps]),
            bytes_moved=sum([s.bytes_moved for s in steps]),
            output_bytes=0 if self.request.out_strides is not None else self._output_bytes(),
            arena_bytes=arena + scratch * self.request.threads + kept,
            constant_bytes=kept,
            worker_scratch=scratch,
            call_seconds=self.machine.call_seconds,
            table_bytes=tables,
            request=self.request,
        )

    def _path(self) -> tuple[tuple[int, ...], ...]:
        return self.request.order.path

    def _output_bytes(self) -> int:
        return itemsize(self.request.dtype) * prod(self.request.expr.output_shape)


def _read(problem: GemmProblem, a: Operand, b: Operand) -> GemmProblem:
    return replace(problem, a=a, b=b)


@lru_cache(maxsize=8)
def _typical(isa: isa_table.ISA) -> cost.Machine:
    return cost.typical_machine(isa.name, isa.vector_bits, isa.fma)
