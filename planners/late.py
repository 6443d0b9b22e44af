"""A map that is written over what it reads: each row is stored after the next one is computed.

NumPy computes all of `u[1:-1] = f(u[:-2], u[2:])` before it stores anything. So the program has two steps, one that
computes into memory of its own and one that copies. Where no row needs any but its neighbours, two rows in scratch do
for that memory, in one pass; where operands are the array itself, a row or a few elements away, one row does, and each
vector is loaded once (`Structure.near`). Tasks take rows that lie together; the first and the last of each, which its
neighbours read, are computed before, kept, and stored in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, Sequence

from ..kernels.fused import Dim, FusedProblem
from ..kernels.fused_structure import goes_near
from ..kernels.nest_rows import share
from ..kernels.row import Operand
from .groups import FusedGroup, FusedPlan
from .operations import Value, itemsize

SHORTEST, LONGEST = 2 << 10, 64 << 10  # bytes of a row: beginning one takes as long as some vectors; two stay in L2
FEWEST = 8  # rows of a task
TASKS = 2  # for each thread: rows at their ends take steps of their own


@dataclass(frozen=True, kw_only=True)
class Late:
    """Both steps as they were (``group`` and ``plan`` of the one that computes, ``copy`` and ``copied`` of the other),
    the memory between them, how many tasks share the rows, and `Structure.near`, () where the kernel finds none."""

    group: FusedGroup
    plan: FusedPlan
    copy: FusedGroup
    copied: FusedPlan
    between: Value
    tasks: int
    near: tuple[tuple[int, int] | None, ...]

    def parts(self) -> Iterator[tuple[FusedGroup, FusedPlan]]:
        """What is done instead, in order."""
        rows = self.plan.problem.dims[0][0]
        tasks, many = self.tasks, rows // self.tasks
        # of each task the first row and the last; and rows that are left over: (first, step, how many, where between)
        edges = [(0, many, tasks, 0), (many - 1, many, tasks, tasks), (tasks * many, 1, rows % tasks, 2 * tasks)]
        edges = [edge for edge in edges if edge[2]] if tasks > 1 else []
        self.between.nbytes = (2 * tasks + rows % tasks) * self.plan.problem.dims[0][1] if edges else 0
        for edge in edges:
            yield self.group, self._part(self.plan, *edge, output=0)
        yield self.copy, self._inner(many)
        for edge in edges:
            yield self.copy, self._part(self.copied, *edge, output=1)

    def _part(self, plan: FusedPlan, first: int, step: int, count: int, place: int, output: int) -> FusedPlan:
        """These rows of a step; operand ``output`` has them one after the other, from ``place`` on."""
        problem = plan.problem
        (rows, *strides), *others = problem.dims
        steps = [stride if x == output else stride * step for x, stride in enumerate(strides)]
        starts = [stride * (place if x == output else first) for x, stride in enumerate(strides)]
        made = replace(problem, dims=((count, *steps), *others), operands=_moved(problem.operands, starts))
        return replace(plan, problem=made, temporary_bytes=0, share=count / rows)

    def _inner(self, many: int) -> FusedPlan:
        """All other rows, where they belong."""
        problem = self.plan.problem
        there, here = self.copied.problem, problem.operands[1:]
        (rows, *_), (columns, *_) = problem.dims
        down, along = ((each[1], *dim[2:]) for each, dim in zip(there.dims, problem.dims))
        operands = (there.operands[0], *here)
        dims: tuple[Dim, ...] = ((columns, *along), (rows, *down))
        if self.tasks > 1:
            dims = (dims[0], (many - 2, *down), (self.tasks, *(many * stride for stride in down)))
            operands = _moved(operands, down)
        # slots are numbers of operands: the output is the copy's, which is number 0 there, too
        structure = replace(problem.structure, near=self.near)
        made = FusedProblem(structure=structure, dims=dims, operands=operands, late=True)
        memory = (self.copied.memory[0], *self.plan.memory[1:])
        return replace(self.plan, problem=made, memory=memory, share=(rows - 2 * self.tasks * (self.tasks > 1)) / rows)


def _moved(operands: Sequence[Operand], shifts: Sequence[int]) -> tuple[Operand, ...]:
    return tuple(Operand(slot=o.slot, offset=o.offset + shift) for o, shift in zip(operands, shifts))


def late(
    run: list[FusedGroup], plans: list[FusedPlan], alone: dict[int, tuple], threads: int, large: bool = True
) -> Late | None:
    """Of a step that computes and one that copies, if they can be done so. ``alone``: memory, by id, that nobody else
    has (`blocking.folds`). What is not ``large`` stays in cache between two steps: one is better if it loads each row
    once."""
    if len(run) != 2 or any(len(group.stores) != 1 or group.axes is not None for group in run):
        return None
    (group, copy), (plan, copied) = run, plans
    between = group.stores[0].place
    value = between.memory.memory
    reads = copy.needed()
    if id(value) not in alone or copied.problem.structure.nodes or not reads or not reads[0].same(between):
        return None
    if not _near(plan.problem, copied.problem, group, copy):
        return None
    rows = plan.problem.dims[0][0]
    tasks = min(share(plan.problem.bytes, threads), TASKS * threads, rows // FEWEST)
    near = _neighbours(plan.problem, copied.problem, group, copy)
    if near and not goes_near(replace(plan.problem.structure, near=near)):
        near = ()
    if not (near or large):
        return None
    return Late(group=group, plan=plan, copy=copy, copied=copied, between=value, tasks=max(1, tasks), near=near)


def _near(problem: FusedProblem, there: FusedProblem, group: FusedGroup, copy: FusedGroup) -> bool:
    """Whether both are long rows, and what is read where a row is written lies in that row and its neighbours."""
    if len(problem.dims) != 2 or len(there.dims) != 2:
        return False
    (_, down, _), (columns, along, _) = there.dims
    target = copy.stores[0].place
    nbytes = columns * itemsize(target.dtype)
    if along != itemsize(target.dtype) or not SHORTEST <= nbytes <= min(LONGEST, down):
        return False
    for number, place in enumerate(group.needed(), 1):
        downward, onward = (dim[1 + number] for dim in problem.dims)
        if onward not in (0, itemsize(place.dtype)) or downward < 0:
            return False
        if place.memory.memory is not target.memory.memory:
            continue
        far = place.view.offset - target.view.offset
        if downward != down or not nbytes - 2 * down <= far <= 2 * down - nbytes:
            return False
    return True


def _neighbours(problem: FusedProblem, there: FusedProblem, group: FusedGroup, copy: FusedGroup) -> tuple:
    """`Structure.near` of the step: where the inputs lie beside what is written; () where the kernel finds them not."""
    (_, down, _), (columns, _, _) = there.dims
    target = copy.stores[0].place
    item = itemsize(target.dtype)
    near: list[tuple[int, int] | None] = []
    for number, place in enumerate(group.needed(), 1):
        if place.memory.memory is not target.memory.memory:
            near.append(None)
            continue
        far = place.view.offset - target.view.offset
        row = round(far / down)
        element, rest = divmod(far - row * down, item)
        if rest or problem.dims[1][1 + number] != item:
            return ()
        near.append((row, element))
    shifts = [place[1] for place in near if place is not None] + [0]
    # what is stored in one row is not read of another that is computed at once
    return tuple(near) if (columns + max(shifts) - min(shifts)) * item <= down else ()
