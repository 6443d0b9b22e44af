"""Branches and loops of a program as rows of its one step table.

The programs of a `cond` or `while` are scheduled like the program around them, with the same memory: their inputs are
places in it, their results have a *home* there. A home is the place of the operand, where nobody reads that later (a
carried array is then written in place), or else memory of its own, to which a loop copies its operand first.

    while                              cond
    0   rows of the test               0  branch to 3 unless it holds
    1   branch to 4 unless it holds    1    rows of one branch
    2     rows of body and next test   2    jump to 4
    3     jump to 1                    3    rows of the other
    4   ...                            4  ...

The test of the next turn is put behind the body as one program, so that its maps join the steps of the body.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Iterable, Iterator, Sequence

from ..ir import Atom, Const, Eqn, Literal, Program, Var
from ..kernels.cpu import abi
from ..kernels.row import Row, blocks_row
from ..ops import WRITES
from .chains import chained
from .fusion import Schedule
from .groups import Contraction, Region, Scheduled
from .operations import Operation, Value
from .places import MemoryView
from .placing import PINNED

Pass = Callable[[Program], Program]


class ProgramSchedule(Schedule):
    """A `Schedule` of a program that may have branches and loops.

    ``pinned``: inputs whose memory somebody reads afterwards, as the next turn of a loop does. ``within``: itself and
    those of the programs inside; ``made``: the memory that it made itself, by id.
    """

    def __init__(
        self,
        program: Program,
        places: list[MemoryView],
        homes: list[MemoryView | None],
        values: list[Value],
        numbers: Iterator[int],
        pinned: Iterable[int] = (),
    ) -> None:
        program, self.orders = chained(program)
        self.made: set[int] = set()
        self.within_it: list[ProgramSchedule] = [self]
        self.tables: dict[int, list[tuple[str, ProgramSchedule]]] = {}  # of branches and loops, by their first result
        super().__init__(program, places, homes, values, numbers)
        for at in pinned:
            self.uses.setdefault(program.inputs[at].number, []).append((PINNED, None, None))

    def run(self) -> None:
        super().run()
        for step in self.steps:
            if isinstance(step, Contraction):
                step.order = self.orders.get(step.eqn.outputs[0].number)

    def new(self, *args, **more) -> MemoryView:
        place = super().new(*args, **more)
        self.made.add(id(place.memory))
        return place

    def lower(self, eqn: Eqn) -> None:
        if eqn.op == "cond":
            self.branch(eqn)
        elif eqn.op == "while":
            self.loop(eqn)
        else:
            super().lower(eqn)

    def branch(self, eqn: Eqn) -> None:
        """A `cond`: each result is left in the memory of the operand that it is a version of, if it can be."""
        flag, *places = [self.place(atom) for atom in eqn.inputs]
        pairs, homes = _pairs(eqn), []
        for at, var in enumerate(eqn.outputs):
            own = places[pairs[at]] if at in pairs else None
            if own is None or any(own.overlaps(home) for home in homes) or not self.cleared(own, own):
                own = self.destination(var, homes)
            homes.append(own)
        kept = [place is self.place_of(atom) for place, atom in zip(places, eqn.inputs[1:])]  # not put aside just now
        pinned = [at for at, place in enumerate(places) if kept[at] and not any(place.same(home) for home in homes)]
        then, otherwise = (self.inner(eqn.named[name], places, homes, pinned) for name in ("true", "false"))
        self.region(eqn, "if", [flag, *places], homes, flag, {"true": then, "false": otherwise})

    def loop(self, eqn: Eqn) -> None:
        """A `while`: carried values stay where they are, if nobody needs what is there, or are copied first."""
        count, homes, copied = eqn.named["carried"], [], []
        given = [self.place(atom) for atom in eqn.inputs]
        fixed = given[count:]
        for atom, var, own in zip(eqn.inputs, eqn.outputs, given):
            if any(own.overlaps(other) for other in (*homes, *fixed)) or not self.cleared(own, own):
                own = self.destination(var, [*homes, *given])
                copied.append((atom, own))
            homes.append(own)
        for atom, own in copied:
            why = "the loop starts from it, and it is read later or is not written"
            self.moved(atom, own, self.write(atom, own), why)
        flag = self.new((), _BOOL)
        test, places = eqn.named["test"], [*homes, *fixed]
        before = self.inner(test, places, [flag], range(len(places)))
        turn = _turn(eqn.named["body"], test, count)
        then = self.inner(turn, places, [*homes, flag], range(count, len(places)))
        self.region(eqn, "while", places, homes, flag, {"test": before, "body and test": then})

    def destination(self, var: Var, others: list[MemoryView]) -> MemoryView:
        """Memory for a result: where it belongs, or the part of an array to which it is assigned, if that can be
        written now and is none of the others; or new one."""
        for home in (self.goals.get(var.number), *self.assigned(var)):
            if home is not None and self.overwritable(home, home) and not any(home.overlaps(other) for other in others):
                return home
        return self.new(var.shape, var.dtype)

    def assigned(self, var: Var) -> Iterator[MemoryView]:
        """The parts of arrays to which a value is assigned as it is."""
        for eqn in self.program.eqns[self.position + 1 :]:
            if eqn.op == "assign" and eqn.inputs[1] == var and (root := self.place_of(eqn.inputs[0])) is not None:
                part = root.part(eqn.named["view"])
                if part is not None and part.view.shape == var.shape:
                    yield part

    def inner(
        self, program: Program, places: list[MemoryView], homes: list[MemoryView], pinned: Iterable[int]
    ) -> ProgramSchedule:
        """The schedule of a program whose inputs and results lie in memory of this one."""
        schedule = ProgramSchedule(program, places, homes, self.values, self.numbers, pinned)
        schedule.run()
        self.within_it += schedule.within_it
        return schedule

    def region(
        self,
        eqn: Eqn,
        kind: str,
        inputs: list[MemoryView],
        homes: list[MemoryView],
        flag: MemoryView,
        inside: dict[str, ProgramSchedule],
    ) -> None:
        at, steps = len(self.steps), [each.steps for each in inside.values()]
        before, then, otherwise = ([], *steps) if kind == "if" else (*steps, [])
        self.steps.append(
            Region(
                at=at, kind=kind, inputs=inputs, homes=homes, flag=flag, before=before, then=then, otherwise=otherwise
            )
        )
        for var, home in zip(eqn.outputs, homes):
            self.settle(var, home, at)
        self.tables[eqn.outputs[0].number] = list(inside.items())


_BOOL = Literal.of(True, "bool").dtype


def _pairs(eqn: Eqn) -> dict[int, int]:
    """Result of a cond -> the operand of which it is a version in both branches."""
    found: dict[int, int] = {}
    for at, (one, two) in enumerate(zip(*(_versions(program) for _, program in eqn.programs()))):
        if one is not None and one == two and one not in found.values():
            found[at] = one
    return found


def _versions(program: Program) -> list[int | None]:
    """For each result the input of which it is a version, by writes, or None."""
    root = {var.number: at for at, var in enumerate(program.inputs)}
    for eqn in program.eqns:
        pairs = {0: 0} if eqn.op in WRITES else {}
        if eqn.op == "while":
            pairs = {at: at for at in range(eqn.named["carried"])}
        elif eqn.op == "cond":
            pairs = {at: other + 1 for at, other in _pairs(eqn).items()}
        for at, other in pairs.items():
            atom = eqn.inputs[other]
            if isinstance(atom, Var) and atom.number in root:
                root[eqn.outputs[at].number] = root[atom.number]
    return [root.get(atom.number) if isinstance(atom, Var) else None for atom in program.outputs]


# -- programs of programs ----------------------------------------------------------------------------------------------
def _first_free(program: Program) -> int:
    """A number from which on no value of the program is numbered."""
    given = (*program.inputs, *(var for var, _ in program.consts), *(v for eqn in program.eqns for v in eqn.outputs))
    return 1 + max((var.number for var in given), default=-1)


def _turn(body: Program, test: Program, count: int) -> Program:
    """The body, and behind its results the test of them. Neither holds constants: see `lifted`."""
    shift = _first_free(body)
    now: dict[int, Atom] = {}
    for at, var in enumerate(test.inputs):
        now[var.number] = body.outputs[at] if at < count else body.inputs[at]

    def renamed(atom: Atom) -> Atom:
        if isinstance(atom, Literal):
            return atom
        return now.setdefault(atom.number, replace(atom, number=shift + atom.number))

    eqns = [
        replace(eqn, inputs=tuple(map(renamed, eqn.inputs)), outputs=tuple(map(renamed, eqn.outputs)))
        for eqn in test.eqns
    ]
    outputs = (*body.outputs, renamed(test.outputs[0]))
    return Program(inputs=body.inputs, outputs=outputs, eqns=(*body.eqns, *eqns))


def lifted(program: Program, change: Pass) -> Program:
    """The program with constants of its programs, to which ``change`` is done first, as constants of its own."""
    consts = list(program.consts)
    known = {const: var for var, const in consts}
    free, eqns = _first_free(program), []
    for eqn in program.eqns:
        if not eqn.programs():
            eqns.append(eqn)
            continue
        inner = {name: change(each) for name, each in eqn.programs()}
        held = list(dict.fromkeys(const for each in inner.values() for _, const in each.consts))
        for const in held:
            if const not in known:
                known[const] = Var(free, const.shape, const.dtype)
                consts.append((known[const], const))
                free += 1
        params = eqn.named | {name: _taking(each, held) for name, each in inner.items()}
        inputs = (*eqn.inputs, *(known[const] for const in held))
        eqns.append(replace(eqn, inputs=inputs, params=tuple(sorted(params.items()))))
    return replace(program, eqns=tuple(eqns), consts=tuple(consts))


def _taking(program: Program, held: Sequence[Const]) -> Program:
    """The program with constants as further inputs."""
    own = {const: var for var, const in program.consts}
    free = _first_free(program)
    more = [own.get(const) or Var(free + at, const.shape, const.dtype) for at, const in enumerate(held)]
    return replace(program, inputs=(*program.inputs, *more), consts=())


# -- rows --------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Control(Operation):
    """A row that leads to another: ``target`` is the number of that operation. ``flag``: where a branch looks.
    ``blocks``: how many blocks of ``rows`` operations each lie behind it, which threads share."""

    what: str = ""
    target: int = -1
    flag: MemoryView | None = None
    blocks: int = 0
    rows: int = 0

    @property
    def kernel(self) -> str:
        return "blocks" if self.blocks else "jump" if self.flag is None else "branch"

    @property
    def outputs(self) -> tuple[Value, ...]:
        return ()

    @property
    def constant(self) -> bool:
        return False

    def row(self, target: int) -> Row:
        """``target``: a row."""
        if self.blocks:
            return blocks_row(range(1, self.blocks * self.rows + 2, self.rows), target, abi.IN_BANDS)
        if self.flag is None:
            return Row(words={abi.KIND: abi.JUMP, abi.NEXT: target}, tasks=0)
        memory = self.flag.memory.memory
        offset = self.flag.memory.offset + self.flag.view.offset
        words = {abi.A_SLOT: memory.slot, abi.A_OFFSET: offset}
        return Row(words={abi.KIND: abi.BRANCH, abi.NEXT: target, **words}, tasks=0)

    def text(self, target: int) -> str:
        """A line of `explain`."""
        return f"{self.what} {target}"


@dataclass(eq=False)
class Rows:
    """The control flow of a list of operations: how deep each lies, and the loops, inner ones first."""

    operations: list[Operation]
    lay: Callable[[list[Scheduled]], None]
    depth: int = 0

    def __post_init__(self) -> None:
        self.loops: list[tuple[int, int]] = []  # number of the branch and of the jump back
        self.depths: dict[int, int] = {}  # of operations, by id

    def region(self, region: Region) -> None:
        """Append the operations of a region, by ``lay`` those of its steps."""
        self.lay(region.before)
        branch = self.control("while, else to" if region.kind == "while" else "if, else to", region.flag)
        start = len(self.operations) - 1
        self.inside(region.then)
        if region.kind == "while":
            self.control("again from", None, start, 1)
            self.loops.append((start, len(self.operations) - 1))
        elif region.otherwise:
            jump = self.control("end, to", None, -1, 1)
            branch.target = len(self.operations)
            self.inside(region.otherwise)
            jump.target = len(self.operations)
            return
        branch.target = len(self.operations)

    def inside(self, steps: list[Scheduled]) -> None:
        self.depth += 1
        first = len(self.operations)
        self.lay(steps)
        for operation in self.operations[first:]:
            self.depths.setdefault(id(operation), self.depth)
        self.depth -= 1

    @contextmanager
    def shared(self, blocks: int, rows: int) -> Iterator[None]:
        """The operations that are added are so many blocks of rows, which threads share."""
        made = self.control(f"{blocks} blocks, then", None)
        made.blocks, made.rows = blocks, rows
        first = len(self.operations)
        yield
        for operation in self.operations[first:]:
            self.depths[id(operation)] = self.depth + 1
        made.target = len(self.operations)

    def control(self, what: str, flag: MemoryView | None, target: int = -1, deeper: int = 0) -> Control:
        inputs = () if flag is None else (flag.memory,)
        made = Control("control", inputs, None, what=what, target=target, flag=flag)
        self.operations.append(made)
        self.depths[id(made)] = self.depth + deeper
        return made

    def stretch(self, born: dict[int, int], dies: dict[int, int]) -> None:
        """What a loop reads of before lives until its end: the next turn reads it again."""
        for start, stop in self.loops:
            for number, first in born.items():
                if first < start <= dies.get(number, first) < stop:
                    dies[number] = stop
