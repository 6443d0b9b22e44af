"""Two maps over the two colours of a checkerboard, the second of which reads what the first wrote, in one pass.

Gauss-Seidel in two colours has two steps, each of which reads the whole array and writes half of it. Both are done in
one pass, the second one a row behind the first. Tasks take pairs of rows that lie together. Between two tasks lie two
pairs that neither of them has: their first colour, which both tasks read, is computed before, and their second colour
afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator

from ..kernels.fused import FusedProblem
from ..kernels.fused_structure import Output, Point, Structure, goes_checkered, row_reach
from ..kernels.nest_rows import share
from ..kernels.row import Operand
from .groups import FusedGroup, FusedPlan
from .late import FEWEST, LONGEST, SHORTEST
from .operations import itemsize

TASKS = 1  # for each thread: pairs at their ends take steps of their own


@dataclass(frozen=True, kw_only=True)
class Checkered:
    """Both steps as they were, what they are together, and how many tasks share the pairs of rows. ``first``: the
    output of the first step from which the others are counted."""

    groups: tuple[FusedGroup, FusedGroup]
    plans: tuple[FusedPlan, FusedPlan]
    structure: Structure
    first: int
    tasks: int

    def parts(self) -> Iterator[tuple[FusedGroup, FusedPlan]]:
        """What is done instead, in order."""
        rows, many = self.plans[0].problem.dims[0][0], self._many()
        # between tasks, the last pair of one and the first of the next: (first, step, how many); and what is left over
        edges = [(many + n, many + 2, self.tasks - 1) for n in (0, 1)]
        done = self.tasks * (many + 2) - 2
        edges = [edge for edge in (*edges, (done, 1, rows - done)) if edge[2]]
        for edge in edges:
            yield self.groups[0], self._part(self.plans[0], *edge)
        yield self.groups[1], self._inner(many)
        for edge in edges:
            yield self.groups[1], self._part(self.plans[1], *edge)

    def _many(self) -> int:
        """Pairs of a task."""
        return (self.plans[0].problem.dims[0][0] - 2 * (self.tasks - 1)) // self.tasks

    def _part(self, plan: FusedPlan, first: int, step: int, count: int) -> FusedPlan:
        problem = plan.problem
        (rows, *strides), *others = problem.dims
        operands = tuple(
            Operand(slot=o.slot, offset=o.offset + first * stride)
            for o, stride in zip(problem.operands, strides, strict=True)
        )
        dims = ((count, *(stride * step for stride in strides)), *others)
        return replace(plan, problem=replace(problem, dims=dims, operands=operands), share=count / rows)

    def _inner(self, many: int) -> FusedPlan:
        """All other pairs."""
        plan, number = self.plans[0], self.structure.operands
        (rows, down, *_), (columns, along, *_) = plan.problem.dims
        at = plan.problem.operands[self.first].offset
        dims = [(columns, *[along] * number), (many, *[down] * number)]
        if self.tasks > 1:
            dims.append((self.tasks, *[(many + 2) * down] * number))
        # operands are the array, all of them: its kernel knows where they lie
        operands = tuple(Operand(slot=slot, offset=at) for slot in range(number))
        made = FusedProblem(structure=self.structure, dims=tuple(dims), operands=operands, late=True)
        target, read = self.plans[1].memory[0], plan.memory[self.first]
        return replace(plan, problem=made, memory=(target, *[read] * (number - 1)), share=many * self.tasks / rows)


def checkered(run: list[FusedGroup], plans: list[FusedPlan], threads: int) -> Checkered | None:
    """Of two steps that can be done so."""
    if len(run) != 2 or any(len(group.stores) != 2 or group.axes is not None for group in run):
        return None
    offsets = [store.place.view.offset for store in run[0].stores]
    first = offsets.index(min(offsets))
    target = run[0].stores[first].place
    item = itemsize(target.dtype)
    if not _alike(run, plans, target.memory.memory, item):
        return None
    (rows, pair, *_), (columns, *_) = plans[0].problem.dims
    points = _points(run, plans, target.view.offset, pair // 2, item)
    if not points:
        return None
    structure = replace(points[0].structure, points=tuple(points[1:]))
    if not goes_checkered(structure):
        return None
    low, high = (pick(row_reach(points, row)[n] for row in (0, 1)) for n, pick in enumerate((min, max)))
    if (high - low + 2 * columns - 1) * item > pair // 2:
        return None
    tasks = min(share(plans[0].problem.bytes, threads), TASKS * threads, rows // FEWEST)
    groups, both = (run[0], run[1]), (plans[0], plans[1])
    return Checkered(groups=groups, plans=both, structure=structure, first=first, tasks=max(1, tasks))


def _alike(run: list[FusedGroup], plans: list[FusedPlan], memory: object, item: int) -> bool:
    """Whether all operands of both are elements two apart of the same array, in as many long rows two apart."""
    dims = plans[0].problem.dims
    if len(dims) != 2 or any([dim[0] for dim in plan.problem.dims] != [dim[0] for dim in dims] for plan in plans):
        return False
    (rows, pair, *_), (columns, along, *_) = dims
    if along != 2 * item or pair % 2 or rows < FEWEST or not SHORTEST <= columns * along <= LONGEST:
        return False
    strides = {stride for plan in plans for stride in zip(*(dim[1:] for dim in plan.problem.dims), strict=True)}
    return strides == {(pair, along)} and all(
        place.memory.memory is memory for group in run for place in group.places()
    )


def _points(run: list[FusedGroup], plans: list[FusedPlan], start: int, down: int, item: int) -> list[Point]:
    """What both steps write, the place at ``start`` first; none where it does not lie in whole rows and elements."""
    points = []
    for stage, (group, plan) in enumerate(zip(run, plans, strict=True)):
        for number, store in enumerate(group.stores):
            structure, inputs = _single(plan.problem.structure, number)
            at = store.place.view.offset
            near = [_apart(place.view.offset - at, down, item) for n, place in enumerate(group.needed()) if n in inputs]
            place = _apart(at - start, down, item)
            if place is None or None in near:
                return []
            structure = replace(structure, near=tuple(near))
            points.append(Point(row=place[0], element=place[1], stage=stage, structure=structure))
    return sorted(points, key=lambda point: (point.stage, point.row, point.element))


def _apart(nbytes: int, down: int, item: int) -> tuple[int, int] | None:
    """A distance in rows and elements."""
    row = round(nbytes / down)
    element, rest = divmod(nbytes - row * down, item)
    return None if rest else (row, element)


def _single(structure: Structure, number: int) -> tuple[Structure, list[int]]:
    """One output of a structure, and the inputs that it needs."""
    first, wanted = len(structure.inputs), {structure.outputs[number].value}
    for at in reversed(range(len(structure.nodes))):
        if first + at in wanted:
            wanted.update(structure.nodes[at].args)
    order = {old: new for new, old in enumerate(sorted(wanted))}
    nodes = (structure.nodes[old - first] for old in order if old >= first)
    inputs = [old for old in order if old < first]
    return Structure(
        inputs=tuple(structure.inputs[old] for old in inputs),
        nodes=tuple(replace(node, args=tuple(order[a] for a in node.args)) for node in nodes),
        outputs=(Output(value=order[structure.outputs[number].value]),),
    ), inputs
