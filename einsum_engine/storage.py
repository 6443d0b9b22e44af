"""Where the values of a program live, as its plan has it: what is written in place, what is copied, by which steps.

A `StorageTable` decides nothing: planners write down in it what they did (`planners/storage`). It has the memory of a
plan, a row for each value of the program, the copies that no equation asks for, and where the results are left.

| kind | what is done for the value |
|---|---|
| ``compute`` | its steps compute it, into the place that is given |
| ``fused`` | its steps compute it on the way to others: it is never in memory |
| ``view`` | nothing: its elements are read where they are |
| ``copy`` | its steps copy elements that are written where they are while they are needed |
| ``write`` | an assign or scatter in place: its steps write the target, a part of the version before |
| ``done`` | an assign in place whose value was computed where it belongs: nothing |
| ``begin`` | an assign to new memory, of which it writes the target; nothing of the root is needed |
| ``fresh`` | an assign (scatter) to a copy of the root, for the reason that is given |
| ``number`` | nothing: it is one number, which steps know |
| ``unused`` | nothing: no step needs it |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .ir import Atom, Program, Var
from .views import View


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory that values lie in: ``nbytes`` from ``offset`` (bytes) of slot ``slot`` of the plan.

    ``kind``: ``input``, ``const`` or ``result`` (number ``of``), or ``arena``, which the plan uses again after step
    ``last``. ``blocks``: it holds a few blocks of rows at a time, so a value is never there as a whole.
    """

    kind: str
    dtype: str
    of: int
    slot: int
    offset: int
    nbytes: int
    first: int
    last: int
    blocks: bool = False

    def __str__(self) -> str:
        if self.kind != "arena":
            return f"{self.kind} {self.of}: {self.dtype}, {self.nbytes} bytes"
        where = f"arena from {self.offset}: {self.dtype}, {self.nbytes} bytes"
        return f"{where}, steps {self.first} to {self.last}" + (", in blocks" if self.blocks else "")


@dataclass(frozen=True)
class Place:
    """Elements of a memory, by number: a view of its bytes, of ``item`` bytes each."""

    memory: int
    view: View
    item: int

    def __str__(self) -> str:
        """In elements, where the strides are whole ones."""
        shape, strides, item = self.view.shape, self.view.strides, self.item
        if any(number % item for number in (*strides, self.view.offset)):
            return f"@{self.memory}{self.view} bytes"
        return f"@{self.memory}{View(shape, tuple(s // item for s in strides), self.view.offset // item)}"

    def part(self, view: View) -> Place | None:
        """``view``, of the elements in C order, as a place; None where it is none."""
        found = self.view.then(view)
        return None if found is None else Place(self.memory, found, self.item)


@dataclass(frozen=True, kw_only=True)
class StorageRow:
    """What is done for a value; ``steps``: numbers of the plan's steps that do it. See the module.

    ``tables``: of a cond or while, names and tables of its programs; a value that planners add has no equation, and a
    negative number.
    """

    var: Var
    op: str
    kind: str
    place: Place | None
    steps: tuple[int, ...] = ()
    target: Place | None = None
    why: str = ""
    tables: tuple[tuple[str, StorageTable], ...] = ()

    def __str__(self) -> str:
        where = "" if self.place is None else f" {self.place}"
        target = "" if self.target is None else f" to {self.target}"
        return f"{self.kind} {self.var}{where}{target}{_by(self.steps)}" + (f"  # {self.why}" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A value that is copied to a place (a number that is filled in) though no equation says so, and why."""

    atom: Atom
    place: Place
    steps: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        kind = "copy" if isinstance(self.atom, Var) else "fill"
        return f"{kind} {self.atom} to {self.place}{_by(self.steps)}  # {self.why}"


@dataclass(frozen=True, kw_only=True)
class StorageTable:
    """The table of a program, as it was planned. ``given``: where its inputs and constants are; ``results``: where each
    output is left. Branches and loop bodies have
    tables of their own (`StorageRow.tables`), with the same ``memory``."""

    program: Program
    memory: tuple[Memory, ...]
    given: tuple[Place, ...]
    rows: tuple[StorageRow, ...]
    moved: tuple[Moved, ...]
    results: tuple[Place, ...]

    def row(self, var: Var) -> StorageRow:
        """What is done for a value."""
        return next(row for row in self.rows if row.var == var)

    def places(self) -> dict[int, Place]:
        """Where values lie, by number."""
        given = [*self.program.inputs, *(var for var, _ in self.program.consts)]
        found = {var.number: place for var, place in zip(given, self.given)}
        return found | {row.var.number: row.place for row in self.rows if row.place is not None}

    def tables(self) -> Iterator[StorageTable]:
        """This one, and those of its branches and loops."""
        yield self
        for row in self.rows:
            for _, table in row.tables:
                yield from table.tables()

    def copies(self) -> list[str]:
        """What is copied that no equation computes, and why. Numbers do not count."""
        return list(self._copies(""))

    def _copies(self, inside: str) -> Iterator[str]:
        yield from (f"{inside}{move.atom}: {move.why}" for move in self.moved if isinstance(move.atom, Var))
        for row in self.rows:
            if row.kind in ("copy", "fresh"):
                yield f"{inside}{row.var}: {row.why}"
            for name, table in row.tables:
                yield from table._copies(f"{inside}{row.var}.{name} ")

    def show(self) -> str:
        """Memory, then a line per value, copies, results; deterministic."""
        return "\n".join([*(f"@{at}: {memory}" for at, memory in enumerate(self.memory)), *self._lines()])

    __str__ = show

    def _lines(self) -> Iterator[str]:
        for row in self.rows:
            yield str(row)
            for name, table in row.tables:
                yield f"  {name}:"
                yield from (f"    {line}" for line in table._lines())
        yield from map(str, self.moved)
        yield from (f"return {at} {place}" for at, place in enumerate(self.results))


def _by(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    several = len(steps) > 2 and steps == tuple(range(steps[0], steps[-1] + 1))
    return f" by step {f'{steps[0]} to {steps[-1]}' if several else ', '.join(map(str, steps))}"
