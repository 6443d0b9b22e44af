"""The storage table of a plan: what was decided for every value, with the places that memory got in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..ir import Var
from ..storage import Memory, Moved, Place, StorageRow, StorageTable
from .groups import Contraction, FusedGroup
from .operations import Value, itemsize
from .places import MemoryView
from .placing import Done
from .regions import ProgramSchedule


def storage_of(builder: Any, spans: Sequence[range]) -> StorageTable:
    """The table of what a `programs.ProgramBuilder` built. ``spans``: the steps of each operation."""
    at = {id(operation): number for number, operation in enumerate(builder.list.operations)}
    did = {
        step: tuple(dict.fromkeys(n for each in found for n in spans[at[id(each)]]))
        for step, found in builder.did.items()
    }
    lives = {key: (spans[first].start, spans[builder.dies[key]].stop - 1) for key, first in builder.born.items()}
    inputs = len(builder.program.inputs)
    kinds = [*(("input", n) for n in range(inputs)), *(("const", n) for n in range(len(builder.given) - inputs))]
    numbers = {id(value): kind for value, kind in zip(builder.values, kinds)}
    numbers |= {id(value): ("result", number) for number, value in enumerate(builder.fresh)}
    return _TableMaker(did, lives, numbers).table(builder.schedule)


class _TableMaker:
    """Makes the table of a schedule. ``did``: the plan's steps of each of its steps, by id; ``lives``: first and last
    step of memory, by number of its value; ``numbers``: kind and number of the plan's inputs, constants and results, by
    id of their values."""

    def __init__(
        self,
        did: Mapping[int, tuple[int, ...]],
        lives: Mapping[int, tuple[int, int]],
        numbers: Mapping[int, tuple[str, int]],
    ) -> None:
        self.did, self.lives, self.numbers = did, lives, numbers
        self.memory: list[Memory] = []
        self.known: dict[int, int] = {}

    def table(self, schedule: ProgramSchedule) -> StorageTable:
        """The table of a program, complete with its memory."""
        found = self.part(schedule)
        return _with_memory(found, tuple(self.memory))

    def part(self, schedule: ProgramSchedule) -> StorageTable:
        """The table of a program, without memory."""
        program = schedule.program
        given = (*program.inputs, *(var for var, _ in program.consts))
        places = tuple(self.place(schedule.was.get(var.number) or schedule.places[var.number]) for var in given)
        computed = self.computed(schedule)
        values = [(eqn.op, var) for eqn in program.eqns for var in eqn.outputs]
        extra = {var.number: var for inside in schedule.inside.values() for var in inside if var.number < 0}
        extra = {n: var for n, var in extra.items() if n not in schedule.done or schedule.done[n].kind != "view"}
        values += [("", extra[number]) for number in sorted(extra, reverse=True)]
        rows = tuple(self.row(schedule, op, var, computed) for op, var in values)
        moved = tuple(
            Moved(atom=each.atom, place=self.place(each.place), steps=self.steps(schedule, [each.at]), why=each.why)
            for each in schedule.moves
        )
        results = tuple(self.place(place) for place in schedule.left_at)
        return StorageTable(program=program, memory=(), given=places, rows=rows, moved=moved, results=results)

    def row(self, schedule: ProgramSchedule, op: str, var: Var, computed: Mapping[int, list[int]]) -> StorageRow:
        place = schedule.was.get(var.number) or schedule.places.get(var.number)
        tables = tuple((name, self.part(each)) for name, each in schedule.tables.get(var.number, ()))
        done = schedule.done.get(var.number)
        if done is None and var.number in schedule.scalars:
            done = Done("number")
        elif done is None and place is None:
            by = computed.get(var.number, [])
            done = Done("fused" if by else "unused", by)
        elif done is None:
            done = Done("compute", [schedule.ready[var.number]])
        steps = self.steps(schedule, done.by)
        hidden = place is None or place.memory.memory.slot < 0 or not stored(place) or self.passed_on(schedule, done)
        kind = done.kind
        if place is not None and hidden and kind == "compute":
            kind = "fused" if steps else "unused"
        return StorageRow(
            var=var,
            op=op,
            kind=kind,
            place=None if hidden else self.place(place),
            steps=steps,
            target=None if done.target is None or hidden else self.place(done.target),
            why=done.why,
            tables=tables,
        )

    def passed_on(self, schedule: ProgramSchedule, done: Done) -> bool:
        """Whether a value is that of a contraction whose epilogue, in the same steps, writes over it block by block."""
        step = schedule.order[done.by[0]] if len(done.by) == 1 and done.by[0] >= 0 else None
        then = step.then if isinstance(step, Contraction) else None
        if then is None or not set(self.did.get(id(then), ())) <= set(self.did[id(step)]):
            return False
        return any(store.place.memory.memory is step.output.memory.memory for store in then.stores)

    def steps(self, schedule: ProgramSchedule, numbers: list[int]) -> tuple[int, ...]:
        """The plan's steps of steps of the schedule, by number."""
        found = {step for at in numbers if at >= 0 for step in self.did.get(id(schedule.order[at]), ())}
        return tuple(sorted(found))

    @staticmethod
    def computed(schedule: ProgramSchedule) -> dict[int, list[int]]:
        """Value -> the steps that compute it on the way to what they store."""
        found: dict[int, list[int]] = {}
        for at, step in enumerate(schedule.order):
            for number in step.used() if isinstance(step, FusedGroup) else ():
                found.setdefault(number, []).append(at)
        return found

    # -- memory
    def place(self, place: MemoryView) -> Place:
        value, item = place.memory.memory, itemsize(place.dtype)
        number = self.known.get(id(value))
        if number is None:
            number = self.known[id(value)] = len(self.memory)
            self.memory.append(self.found(value))
        return Place(number, place.view, item)

    def found(self, value: Value) -> Memory:
        kind, of = self.numbers.get(id(value), ("arena", 0))
        first, last = self.lives.get(value.number, (0, 0))
        size = itemsize(value.dtype) * prod(axis.size for axis in value.axes.values())
        return Memory(
            kind=kind,
            dtype=value.dtype,
            of=of,
            slot=value.slot,
            offset=value.offset,
            nbytes=value.nbytes,
            first=first,
            last=last,
            blocks=kind == "arena" and value.nbytes < size,
        )


def stored(place: MemoryView) -> bool:
    """Whether a value has memory at all: the result of a product with an epilogue may have none."""
    return not place.view.size or place.memory.memory.nbytes > 0


def _with_memory(table: StorageTable, memory: tuple[Memory, ...]) -> StorageTable:
    rows = []
    for row in table.rows:
        inner = tuple((name, _with_memory(each, memory)) for name, each in row.tables)
        rows.append(replace(row, tables=inner) if inner else row)
    return replace(table, rows=tuple(rows), memory=memory)
