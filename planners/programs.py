"""The plan of a program: the same `Plan`, step table and arena as those of an einsum.

1. steps: fused groups and contractions, and where every value lies (`fusion`);
2. a result of a step takes the memory of what the step reads point by point, and nobody reads later;
3. each contraction is drawn up like an einsum of its own (order, operations, layouts), its operands and its result
   being places in the memory of the program's values;
4. arena and rows, as for an einsum (`build`).

Slots: inputs, then constants, then results but for the first, then as for an einsum: the first result, the arena, ...
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Iterator

import numpy as np

from .. import cost
from ..ir import Const, Program, Var
from ..kernels import isa as isa_table
from ..plan import Plan, Step
from ..records import changed
from ..views import View
from .blocking import firsts, folds, independent, lags, leaves, rows_of_a_block, runs
from .epilogue import Fused, epilogue, paired
from .checkered import Checkered, checkered_runs
from .build import PlanBuilder, compute_dtype, lay_out
from .expand import expanded
from .divisors import divide
from .groups import Contraction, FusedGroup, FusedPlan, Region, Scheduled, fused_plan, moved
from .late import Late, late
from .memo import Planned
from .operations import Operation, OperationList, Value
from .over import over_rows
from .parts import Part
from .places import MemoryView, strided_value
from .program_request import CallRequest, ProgramRequest, einsum_request
from .prologue import Prologue, maker, prologue
from .regroup import regrouped
from .regions import Control, ProgramSchedule, Rows, lifted
from .reuse import share_memory
from .sharing import share
from .single import SingleStep
from .staging import Staged, free_to_wait, narrow, staged, worth_a_look
from .storage import storage_of
from .work import Work


def build_program(request: ProgramRequest, machine: cost.Machine | None = None) -> Plan:
    """The plan of a program on ``machine``; `NotLowered` where there is none, with the equation and the reason."""
    return ProgramBuilder(request, machine).build()


def constants(program: Program) -> tuple[np.ndarray, ...]:
    """The arrays that a call of the program's plan takes behind the inputs."""
    return tuple(const.array for _, const in with_iotas(program).consts)


@lru_cache(maxsize=256)
def with_iotas(program: Program) -> Program:
    """The program as it is planned: what is `expanded`, chains `regrouped`, and its iotas as constants."""
    program = lifted(regrouped(expanded(program)), with_iotas)
    found, kept = [], []
    for eqn in program.eqns:
        if eqn.op == "iota":
            dtype = np.dtype(eqn.named["dtype"])
            found.append((eqn.outputs[0], Const.of(np.arange(eqn.named["size"]).astype(dtype))))
        else:
            kept.append(eqn)
    return replace(program, eqns=tuple(kept), consts=(*program.consts, *found)) if found else program


class _List:
    """The operations of all steps, and their values."""

    def __init__(self, compute: str) -> None:
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.owners: dict[int, OperationList] = {}  # id of an operation of a contraction -> the list that it is of
        self.groups: dict[int, FusedGroup | SingleStep] = {}  # id of an operation that is one of these
        self.blocks: dict[int, tuple[int, int]] = {}  # of an operation in blocks: number and how many there are
        self.alone: set[int] = set()  # ids of operations of blocks that threads share: each is run by one
        self.cold: dict[int, int] = {}  # by id of an operation of a block: bytes that no block's steps touched before
        self.epilogues: dict[int, Fused] = {}  # id of a product -> what it does besides
        self.prologues: dict[int, Staged] = {}
        self.numbers: Iterator[int] = count()
        self.compute = compute

    def add(self, value: Value) -> Value:
        value.number = next(self.numbers)
        self.values.append(value)
        return value

    def nbytes(self, value: Value) -> int:
        return value.nbytes

    def work(self, operation: Operation) -> tuple[int, int]:
        group = self.groups.get(id(operation))
        if group is not None:
            plan = operation.parts[0].part.plan
            return plan.flops, round(moved(group) * plan.share) if operation.kind == "fused" else plan.problem.bytes
        return self.owners[id(operation)].work(operation)


class ProgramBuilder(PlanBuilder):
    """A `PlanBuilder` whose operations come from the equations of a program."""

    def __init__(self, request: ProgramRequest, machine: cost.Machine | None) -> None:
        self.program = with_iotas(request.program)
        self.wanted = request
        self.isa = isa_table.get(request.isa)
        self.machine = machine or cost.typical_machine(self.isa.name, self.isa.vector_bits, self.isa.fma)
        self.steps: list[Step] = []
        self.given = [*self.program.inputs, *(var for var, _ in self.program.consts)]
        floats = [var.dtype.name for var in self.given if var.dtype.kind in "fc"]
        self.compute = floats[0] if floats else "float32"
        self.list = _List(self.compute)
        self.rows = Rows(self.list.operations, self._lay)
        self.scheduled: list[Scheduled] = []  # the steps of all programs, those of branches and loops too
        self.firsts: dict[int, int] = {}  # by id of an operation the first of its steps
        self.jumps: dict[int, Control] = {}  # by number of the step
        self.did: dict[int, list[Operation]] = {}  # id of a scheduled step -> its operations

    # -- operations ------------------------------------------------------------------------------------------
    def _draw_up(self) -> None:
        inputs = [self._input(at, var) for at, var in enumerate(self.given)]
        places = [_whole(var, value) for var, value in zip(self.given, inputs, strict=True)]
        homes = dict((output, places[at]) for at, output in self.wanted.written)
        wanted = [homes.get(at) for at in range(len(self.program.outputs))]
        schedule = ProgramSchedule(self.program, places, wanted, list(inputs), count(len(inputs)))
        schedule.run()
        self.schedule = schedule
        self.fresh = [value for value in schedule.results if value is not None]
        self.request = CallRequest(self.wanted, self.program, self.fresh)
        for value in schedule.values:
            self.list.add(value)
        for at, value in enumerate(self.fresh):
            value.slot = len(self.given) + at - 1 if at else self._first_slot()
        self.values = schedule.values
        self.made = {id(each.steps): each.made for each in schedule.within_it}
        self.scheduled = [step for each in schedule.within_it for step in each.steps]
        for each in schedule.within_it:
            self._arrange(each)
            share_memory(each)
        self._lay(schedule.steps)
        used = {id(value.memory) for o in self.list.operations for value in (*o.inputs, *o.outputs, *o.beside)}
        self.list.values = [v for v in self.list.values if v.kind != "arena" or v.source or id(v) in used]

    def _arrange(self, schedule: ProgramSchedule) -> None:
        """Steps that write nothing go; contractions get in front of what may be their epilogue."""
        steps = schedule.steps
        divide(steps)
        for step in steps:
            if isinstance(step, FusedGroup):
                step.stores = [store for store in step.stores if store.place.view.size]
        steps[:] = [step for step in steps if not isinstance(step, FusedGroup) or step.stores]
        if self.wanted.epilogues:
            steps[:] = paired(steps)

    def _lay(self, steps: list[Scheduled]) -> None:
        """Operations of steps, in order."""
        made = self.made[id(steps)] if steps else set()
        drawn: dict[int, list[Operation]] = {}
        done: set[int] = set()  # maps that are an epilogue or a prologue
        for step in steps:
            if isinstance(step, Contraction):
                drawn[id(step)] = self._drawn(step, steps, made, done)
        left = [step for step in steps if id(step) not in done]
        for run, board in checkered_runs(left, self.wanted.threads):
            if board is not None:
                self._instead(run, board)
            elif isinstance(run[0], Region):
                start = len(self.list.operations)
                self.rows.region(run[0])
                self.did[id(run[0])] = self.list.operations[start:]
            elif isinstance(run[0], Contraction):
                self.list.operations += drawn[id(run[0])]
                self.did[id(run[0])] = drawn[id(run[0])]
            elif isinstance(run[0], SingleStep):
                self._single(run[0])
            else:
                self._fused(run)

    def _stretch(self, born: dict[int, int], dies: dict[int, int]) -> None:
        self.rows.stretch(born, dies)
        self.born, self.dies = born, dies

    def _first_slot(self) -> int:
        """Of the first result."""
        return len(self.given) + max(len(self.fresh) - 1, 0)

    def _input(self, at: int, var: Var) -> Value:
        item = var.dtype.itemsize
        inputs = len(self.program.inputs)
        strides = self.wanted.strides[at] if at < inputs else View.whole(var.shape, item).strides
        value = strided_value(at, var.shape, strides, var.dtype.name, "input")
        value.slot = at
        return value

    def _fused(self, run: list[FusedGroup]) -> None:
        """Groups that are worked through in blocks of rows, mostly a single one as a whole."""
        if self._over_rows(run):
            return
        count, threads = run[0].shape[0] if len(run) > 1 else 1, self.wanted.threads
        others = [step for step in self.scheduled if step not in run]
        shared = threads > 1 and len(run) > 1 and independent(run, others)
        rows = rows_of_a_block(run, self.machine.cache_bytes, threads, shared) if len(run) > 1 else 1
        plans = [fused_plan(group, threads) for group in run]
        blocks = -(-count // rows)
        behind = lags(run, rows) if blocks > 1 else [0] * len(run)
        alone = folds(run, behind, others) if len(run) > 1 else {}
        folded = alone if blocks > 1 else {}
        if over := late(run, plans, alone, threads, blocks > 1):
            self._instead(run, over)
            return
        for value, several, pitch in () if shared else folded.values():
            value.nbytes = min(value.nbytes, several * rows * pitch)
        with self.rows.shared(blocks, len(run)) if shared and blocks > 1 else nullcontext():
            first = firsts(run, folded) if blocks > 1 else [0] * len(run)
            for turn in range(blocks + max(behind)):
                for group, plan, lag, cold in zip(run, plans, behind, first):
                    number = turn - lag
                    if not 0 <= number < blocks:
                        continue
                    part, start = plan, number * rows
                    if blocks > 1:
                        kept = {} if shared else folded
                        places = {memory: number % several * rows for memory, (_, several, _) in kept.items()}
                        streams, stop = leaves(group, run), min(start + rows, count)
                        part = plan.block(start, stop, 1 if shared else threads, streams, places)
                    operation = self._map(group, part)
                    self.did.setdefault(id(group), []).append(operation)
                    self.list.blocks[id(operation)] = (number, blocks)
                    self.list.cold[id(operation)] = round(cold * part.share)
                    if shared and blocks > 1:
                        self.list.alone.add(id(operation))
                    self.list.operations.append(operation)

    def _instead(self, run: list[FusedGroup], over: Late | Checkered) -> None:
        """What is done in one pass instead of several."""
        for group, part in over.parts():
            operation = self._map(group, part)
            for each in run if part.problem.late else [group]:
                self.did.setdefault(id(each), []).append(operation)
            self.list.operations.append(operation)

    def _over_rows(self, run: list[FusedGroup]) -> bool:
        """Whether groups, or most of them, are one that goes over each row as often as it takes; all are drawn up."""
        found = over_rows(run, self.scheduled)
        if found is None:
            return False
        part, together, problem = found
        for each in runs(run[: part.start]):
            self._fused(each)
        operation = self._map(together, fused_plan(together, self.wanted.threads, problem))
        self.did |= {id(group): [operation] for group in run[part]}
        self.list.operations.append(operation)
        for each in runs(run[part.stop :]):
            self._fused(each)
        return True

    def _drawn(self, step: Contraction, steps: list[Scheduled], made: set[int], done: set[int]) -> list[Operation]:
        """The operations of an einsum, and of maps that it does besides, which are ``done`` from now on. ``made``: memory,
        by id, that nobody but these steps knows of."""
        reads = self._maps_before(step, steps, made, done)
        operations = self._staged(step, reads, done) if any(narrow(group) for group, _ in reads) else None
        if operations is None and self.wanted.epilogues:
            before = prologue(step, steps, self.values, made, self.machine, self.wanted.threads)
            if before is not None and id(before.group) not in done:
                done.add(id(before.group))
                found = list(self._in_blocks(before))
                self.did[id(before.group)] = [each for each in found if id(each) in self.list.groups]
                return found
        operations = operations or self._staged(step, reads, done) or self._contraction(step)
        if step.then is not None and self._epilogue(step, operations[-1], steps, made):
            done.add(id(step.then))
            self.did[id(step.then)] = operations[-1:]
        return operations

    def _in_blocks(self, before: Prologue) -> Iterator[Operation]:
        """A map and the contraction of what it computes, block by block."""
        plan = fused_plan(before.group, self.wanted.threads)
        count = len(before.starts)
        products = [before.product(start) for start in before.starts]
        before.shrink()
        for number, (start, product) in enumerate(zip(before.starts, products)):
            part = before.map(plan, start, self.wanted.threads)
            for operation in (self._map(before.group, part), *self._contraction(product)):
                self.list.blocks[id(operation)] = (number, count)
                yield operation

    def _map(self, group: FusedGroup, plan: FusedPlan) -> Operation:
        inputs = tuple(dict.fromkeys(plan.memory[len(group.stores) :]))
        operation = Operation("fused", inputs, group.outputs[0], more=group.outputs[1:])
        operation.parts = (Planned(part=Part(plan=plan)),)
        self.list.groups[id(operation)] = group
        return operation

    def _single(self, step: SingleStep) -> None:
        plan = step.plan()
        operation = Operation(step.family, plan.inputs, step.output.memory)
        operation.parts = (Planned(part=Part(plan=plan)),)
        self.list.groups[id(operation)] = step
        self.list.operations.append(operation)
        self.did[id(step)] = [operation]

    def _contraction(self, step: Contraction) -> list[Operation]:
        """Draws up an einsum; its operands and its result are values whose memory is that of the program's."""
        request = einsum_request(step, self.wanted, step.order)
        listed = OperationList(request, compute_dtype(request))
        listed.build()
        if request.same:
            share(listed)
        listed, self.slices = lay_out(listed, self.isa, self.machine, whole=self.scheduled == [step])
        for value in listed.values:
            if value.kind in ("input", "output"):
                place = step.inputs[value.slot] if value.kind == "input" else step.output
                value.source, value.shift, value.kind = place.memory, place.view.offset, place.memory.kind
            value.nbytes = value.nbytes or listed.nbytes(value)
            self.list.add(value)
        for operation in listed.operations:
            self.list.owners[id(operation)] = listed
        self.list.epilogues |= listed.epilogues
        self.list.prologues |= listed.prologues
        return listed.operations

    def _maps_before(
        self, step: Contraction, steps: list[Scheduled], made: set[int], done: set[int]
    ) -> list[tuple[FusedGroup, MemoryView]]:
        """Large maps of operands that nobody else reads, and the operands."""
        if not self.wanted.epilogues or len(step.inputs) != 2:
            return []
        found = [(maker(place, step, steps, self.values), place) for place in step.inputs if id(place.memory) in made]
        found = [(group, place) for group, place in found if group is not None and id(group) not in done]
        return [each for each in found if worth_a_look(each[0], self.machine) and free_to_wait(step, each[0])]

    def _staged(
        self, step: Contraction, reads: list[tuple[FusedGroup, MemoryView]], done: set[int]
    ) -> list[Operation] | None:
        """The operations of an einsum whose product makes an operand itself; None where none does."""
        known = len(self.list.values)
        operations = self._contraction(step) if reads else []
        for group, place in reads:
            found = staged(group, place, operations, self.isa, self.machine)
            if isinstance(found, str):
                continue
            operation, before = found
            before.taken_by(operation, self._owner(operation))
            self.list.prologues[id(operation)] = before
            place.memory.nbytes = 0
            done.add(id(group))
            self.did[id(group)] = [operation]
            return operations
        del self.list.values[known:]
        return None

    def _epilogue(self, step: Contraction, operation: Operation, steps: list[Scheduled], made: set[int]) -> bool:
        """Makes the map behind an einsum the epilogue of its last operation, if it can be."""
        result = step.output.memory
        others = [each for each in steps if each is not step and each is not step.then]
        kept = result.kind != "arena" or id(result) not in made
        kept = kept or any(place.memory is result for each in others for place in each.inputs)
        found = "it has one" if operation.more else epilogue(step, operation, kept, self.machine)
        if isinstance(found, str):
            return False
        self.list.epilogues[id(operation)] = found
        found.taken_by(operation, self.list.owners[id(operation)])
        if not found.stored:
            result.nbytes, result.source = 0, None
        return True

    # -- what differs from an einsum -------------------------------------------------------------------------
    def _owner(self, operation: Operation) -> OperationList:
        return self.list.owners[id(operation)]

    def _emit(self, operation: Operation) -> Iterator[Step]:
        self.firsts.setdefault(id(operation), len(self.steps))
        depth = self.rows.depths.get(id(operation), 0)
        for step in self._control(operation) if isinstance(operation, Control) else self._plain(operation):
            yield changed(step, depth=depth) if depth else step

    def _control(self, operation: Control) -> Iterator[Step]:
        """A step that leads to another, whose number is not known yet."""
        self.jumps[len(self.steps)] = operation
        inputs = tuple(self.position[id(value)] for value in operation.inputs)
        yield self._control_step(operation.row(0), operation.kernel, inputs)

    def _plain(self, operation: Operation) -> Iterator[Step]:
        if id(operation) not in self.list.groups:
            self.compute = self.list.owners[id(operation)].compute
            for step in super()._emit(operation):
                yield changed(step, block=self.list.blocks.get(id(operation), (0, 1)))
            return
        part = operation.parts[0].part
        flops, nbytes = self.list.work(operation)
        work = Work(expr=part.plan.text, dims=_axes_of(self.list.groups[id(operation)]), flops=flops, moved=nbytes)
        alone, cold = id(operation) in self.list.alone, self.list.cold.get(id(operation), 0)
        for step in self._emit_fused(operation, part, work, alone, cold):
            yield changed(step, block=self.list.blocks.get(id(operation), (0, 1)))

    def _output_names(self) -> dict[int, str]:
        places = {id(fresh): place for place, fresh in enumerate(self.fresh)}
        found = {value.number: places.get(id(value.memory), 0) for value in self.list.values}
        return {number: f"out{place}" for number, place in found.items() if place}

    def _path(self) -> tuple[tuple[int, ...], ...]:
        return ()

    def _output_bytes(self) -> int:
        return sum(value.nbytes for value in self.fresh)

    def _plan(self, arena: int, kept: int) -> Plan:
        spans = self._spans()
        for number, jump in self.jumps.items():
            step, target = self.steps[number], spans[jump.target].start if jump.target < len(spans) else len(self.steps)
            self.steps[number] = changed(step, expr=jump.text(target), args=jump.row(target))
        # a result that is handed in is memory of the call, too
        return changed(super()._plan(arena, kept), output_bytes=self._output_bytes(), storage=storage_of(self, spans))

    def _spans(self) -> list[range]:
        """The steps of each operation. Those of operations that are done slice by slice are all steps of the slices."""
        operations = self.list.operations
        firsts = [self.firsts[id(operation)] for operation in operations]
        if self.slices is None:
            return list(map(range, firsts, [*firsts[1:], len(self.steps)]))
        once = sum(not operation.strand for operation in operations)
        sliced = range(firsts[once], len(self.steps))
        return [*map(range, firsts[:once], firsts[1 : once + 1]), *[sliced] * (len(operations) - once)]


def _axes_of(group: FusedGroup) -> dict:
    """The axes of a fused group by dimension type: kept or summed."""
    axes = group.axes or ()
    kept = tuple((f"x{a}", n) for a, n in enumerate(group.shape) if a not in axes)
    return {"B": kept, "M": (), "N": (), "K": tuple((f"x{a}", group.shape[a]) for a in axes)}


def _whole(var: Var, value: Value) -> MemoryView:
    """All of an input or constant."""
    return MemoryView(value, View(var.shape, tuple(value.axes[index].stride for index in value.term)))
