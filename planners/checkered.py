"""Maps over the two colours of a checkerboard, the second of which reads what the first wrote, in one pass.

Gauss-Seidel in two colours has two steps, each of which reads the whole array and writes half of it; or four, where the
colours have not as many elements in odd rows as in even ones. All are done in one pass, the second colour a row behind
the first, as far as there are pairs of rows and of columns. Tasks take pairs of rows that lie together. Between two
tasks lies a pair that neither of them has: its first colour, which both tasks read, is computed before, and its second
colour afterwards. So are those of pairs that are left over, and of a last row and a last column that have no other of
their pair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator

from ..kernels.fused import FusedProblem
from ..kernels.fused_structure import Output, Point, Structure, goes_checkered, row_reach
from ..kernels.nest_rows import share
from ..kernels.row import Operand
from .blocking import runs
from .groups import FusedGroup, FusedPlan, Scheduled, Stored, fused_plan
from .late import FEWEST, LONGEST
from .operations import itemsize

SHORTEST = 256  # bytes of a row: in steps of their own, colours take vectors apart that they put together again
TASKS = 1  # for each thread: pairs between them take steps of their own
COLOURS = 4  # of a checkerboard that is every second element of every second row, with either colour in both rows

Part = tuple[int, int, int]  # of a loop: its first entry, the step from one to the next, and how many


@dataclass(frozen=True, kw_only=True)
class Checkered:
    """The steps as they were, what they are together, ``rows`` and ``columns`` that all of them have, and how many tasks
    share the rows. ``first``: step and output of the first colour from which the others are counted; ``second``: the
    first step of the second colour."""

    groups: tuple[FusedGroup, ...]
    plans: tuple[FusedPlan, ...]
    structure: Structure
    rows: int
    columns: int
    first: tuple[int, int]
    second: int
    tasks: int

    def parts(self) -> Iterator[tuple[FusedGroup, FusedPlan]]:
        """What is done instead, in order."""
        steps = list(zip(self.groups, self.plans, strict=True))
        for group, plan in steps[: self.second]:
            yield from ((group, part) for part in self._edges(plan))
        yield self.groups[-1], self._inner()
        for group, plan in steps[self.second :]:
            yield from ((group, part) for part in self._edges(plan))

    @property
    def _many(self) -> int:
        """Pairs of a task."""
        return (self.rows + 1) // self.tasks - 1

    @property
    def _ahead(self) -> int:
        """Pairs before the first task. Those that are left over lie there: the caller, who does what comes after, takes
        that task, while the last rows are in another core's cache."""
        return (self.rows + 1) % self.tasks

    def _edges(self, plan: FusedPlan) -> Iterator[FusedPlan]:
        """Of one step, all that tasks leave over."""
        many, ahead, (rows, columns) = self._many, self._ahead, (dim[0] for dim in plan.problem.dims)
        every = ahead - 1 if ahead else many  # from one pair to the next, a task lies between
        single = (every, many + 1, -(-(rows - every) // (many + 1))), (0, 1, columns)
        first_rows = (0, 1, every if ahead else 0), (0, 1, columns)
        last_columns = (ahead, 1, self.rows - ahead), (self.columns, 1, columns - self.columns)
        for down, along in (single, first_rows, last_columns):
            if down[2] > 0 and along[2]:
                yield _part(plan, down, along)

    def _inner(self) -> FusedPlan:
        """All pairs of all tasks."""
        number, many, (step, output) = self.structure.operands, self._many, self.first
        plan = self.plans[step]
        (rows, down, *_), (_, along, *_) = plan.problem.dims
        at = plan.problem.operands[output].offset + self._ahead * down
        dims = [(self.columns, *[along] * number), (many, *[down] * number)]
        if self.tasks > 1:
            dims.append((self.tasks, *[(many + 1) * down] * number))
        # operands are the array, all of them: its kernel knows where they lie
        operands = tuple(Operand(slot=slot, offset=at) for slot in range(number))
        made = FusedProblem(structure=self.structure, dims=tuple(dims), operands=operands, late=True)
        target, read = self.plans[-1].memory[0], plan.memory[output]
        return replace(plan, problem=made, memory=(target, *[read] * (number - 1)), share=many * self.tasks / rows)


def checkered_runs(steps: list[Scheduled], threads: int) -> Iterator[tuple[list[Scheduled], Checkered | None]]:
    """The steps, those together that are a checkerboard, or else may be worked through in blocks (`blocking.runs`)."""
    others: list[Scheduled] = []
    at = 0
    while at < len(steps):
        board = _board(steps[at : at + COLOURS], threads)
        if board is None:
            others.append(steps[at])
            at += 1
            continue
        yield from ((run, None) for run in runs(others))
        yield list(board.groups), board
        others = []
        at += len(board.groups)
    yield from ((run, None) for run in runs(others))


def _board(steps: list[Scheduled], threads: int) -> Checkered | None:
    """The checkerboard that begins with the first of these steps."""
    run: list[FusedGroup] = []
    stores: list[Stored] = []
    for step in steps:
        if len(stores) == COLOURS or not isinstance(step, FusedGroup) or step.axes is not None:
            break
        run.append(step)
        stores += step.stores
    if len(stores) != COLOURS or len({id(store.place.memory.memory) for store in stores}) > 1:
        return None
    return checkered(run, [fused_plan(group, threads) for group in run], threads)


def checkered(run: list[FusedGroup], plans: list[FusedPlan], threads: int) -> Checkered | None:
    """Of steps that can be done so."""
    stages = [stage for stage, group in enumerate(run) for _ in group.stores]
    second = stages[COLOURS // 2]
    if stages[COLOURS // 2 - 1] == second:
        return None
    offset, *first = min(
        (store.place.view.offset, step, n)
        for step, group in enumerate(run[:second])
        for n, store in enumerate(group.stores)
    )
    target = run[first[0]].stores[first[1]].place
    item = itemsize(target.dtype)
    if not _alike(run, plans, target.memory.memory, item):
        return None
    rows, columns = (min(plan.problem.dims[n][0] for plan in plans) for n in (0, 1))
    pair = plans[0].problem.dims[0][1]
    points = _points(run, plans, second, offset, pair // 2, item)
    if not points:
        return None
    structure = replace(points[0].structure, points=tuple(points[1:]))
    if not goes_checkered(structure):
        return None
    low, high = (pick(row_reach(points, row)[n] for row in (0, 1)) for n, pick in enumerate((min, max)))
    if (high - low + 2 * columns - 1) * item > pair // 2:
        return None
    tasks = min(share(sum(plan.problem.bytes for plan in plans[:second]), threads), TASKS * threads, rows // FEWEST)
    return Checkered(
        groups=tuple(run),
        plans=tuple(plans),
        structure=structure,
        rows=rows,
        columns=columns,
        first=(first[0], first[1]),
        second=second,
        tasks=max(1, tasks),
    )


def _alike(run: list[FusedGroup], plans: list[FusedPlan], memory: object, item: int) -> bool:
    """Whether all operands of all steps are elements two apart of the same array, in long rows two apart, as many in all
    steps or one more."""
    every = [plan.problem.dims for plan in plans]
    if any(len(dims) != 2 for dims in every):
        return False
    (_, pair, *_), (_, along, *_) = every[0]
    for sizes in ([dims[n][0] for dims in every] for n in (0, 1)):
        if max(sizes) > min(sizes) + 1:
            return False
    rows, columns = (min(dims[n][0] for dims in every) for n in (0, 1))
    if along != 2 * item or pair % 2 or rows < FEWEST or not SHORTEST <= columns * along <= LONGEST:
        return False
    strides = {stride for dims in every for stride in zip(*(dim[1:] for dim in dims), strict=True)}
    return strides == {(pair, along)} and all(
        place.memory.memory is memory for group in run for place in group.places()
    )


def _part(plan: FusedPlan, rows: Part, columns: Part) -> FusedPlan:
    """These rows and columns of a step."""
    problem, parts = plan.problem, (rows, columns)
    (size, *down), (length, *along) = problem.dims
    operands = tuple(
        Operand(slot=o.slot, offset=o.offset + sum(part[0] * stride for part, stride in zip(parts, strides)))
        for o, strides in zip(problem.operands, zip(down, along), strict=True)
    )
    dims = tuple((count, *(s * step for s in strides)) for (_, step, count), strides in zip(parts, (down, along)))
    share = rows[2] * columns[2] / (size * length)
    return replace(plan, problem=replace(problem, dims=dims, operands=operands), share=share)


def _points(
    run: list[FusedGroup], plans: list[FusedPlan], second: int, start: int, down: int, item: int
) -> list[Point]:
    """What the steps write, the place at ``start`` first; none where it does not lie in whole rows and elements."""
    points = []
    for step, (group, plan) in enumerate(zip(run, plans, strict=True)):
        for number, store in enumerate(group.stores):
            structure, inputs = _single(plan.problem.structure, number)
            at = store.place.view.offset
            near = [_apart(place.view.offset - at, down, item) for n, place in enumerate(group.needed()) if n in inputs]
            place = _apart(at - start, down, item)
            if place is None or None in near:
                return []
            structure = replace(structure, near=tuple(near))
            points.append(Point(row=place[0], element=place[1], stage=int(step >= second), structure=structure))
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
