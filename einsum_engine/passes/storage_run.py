"""A program run by its `StorageTable`: NumPy, on buffers that are really written in place: the proof of a table.

It is strict: memory starts as garbage and becomes garbage again after its last use, and what the table must not allow,
an operand that overlaps the result of its equation, is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import EngineProgramError, EngineValueError
from ..ir import Atom, Const, Eqn, Var
from ..ops import OPS
from ..views import View
from .storage import Action, Place, Slot, StorageTable

GARBAGE = 0xA5


def run(table: StorageTable, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of a program on ``arrays`` (the memory of each input, in C order), written where the table says so.

    A result that belongs in the memory of an input is a view of that array.
    Raises `EngineProgramError` where the table allows a result to overlap an operand that is still read.
    """
    for position, (place, array) in enumerate(zip(table.inputs, arrays, strict=True)):
        slot = table.slots[place.slot]
        if not array.flags.c_contiguous or array.dtype != slot.dtype or array.size != slot.size:
            given = f"{array.dtype}{list(array.shape)} with strides {array.strides}"
            raise EngineValueError(f"input {position} has to be {slot.dtype}[{slot.size}] in C order, not {given}")
    return _Run(table, [array.reshape(-1) for array in arrays]).results()


class _Run:
    def __init__(self, table: StorageTable, given: Sequence[np.ndarray]) -> None:
        """``given``: the memory of the inputs, or of all slots around."""
        self.table = table
        self.memory = [self._memory(slot, given) for slot in table.slots]
        self.places: dict[int, Place] = {var.number: at for var, at in zip(table.program.inputs, table.inputs)}
        for at, slot in enumerate(table.slots):
            if slot.kind == "const" and isinstance(slot.data, Const):
                self.places[slot.of] = Place(at, View.whole(slot.data.shape))

    @staticmethod
    def _memory(slot: Slot, given: Sequence[np.ndarray]) -> np.ndarray:
        if slot.kind in ("input", "outer"):
            return given[slot.of]
        if slot.kind == "const":
            data = slot.data.array if isinstance(slot.data, Const) else np.array([slot.data.value], slot.dtype)
            return data.reshape(-1)
        made = np.empty(slot.size, slot.dtype)
        made.view(np.uint8)[...] = GARBAGE
        return made

    def at(self, place: Place) -> np.ndarray:
        return place.view.of(self.memory[place.slot])

    def value(self, atom: Atom) -> np.ndarray:
        return self.at(self.places[atom.number]) if isinstance(atom, Var) else np.asarray(atom.value)

    def results(self) -> tuple[np.ndarray, ...]:
        for at, (eqn, action) in enumerate(zip(self.table.program.eqns, self.table.actions)):
            self.step(eqn, action)
            for var, place in zip(eqn.outputs, action.places):
                self.places[var.number] = place
            for slot, memory in zip(self.table.slots, self.memory):
                if slot.kind == "temp" and slot.last == at:
                    memory.view(np.uint8)[...] = GARBAGE
        return self.returned()

    def returned(self) -> tuple[np.ndarray, ...]:
        returns = self.table.returns
        aside = {at: self.at(one.source).copy() for at, one in enumerate(returns) if one.staged}
        for fresh in (True, False):  # copies to memory of their own first
            for at, one in enumerate(returns):
                if one.copied and fresh == (self.table.slots[one.target.slot].kind == "output"):
                    self.at(one.target)[...] = aside.get(at, self.at(one.source))
        return tuple(self.at(one.target) for one in returns)

    def step(self, eqn: Eqn, action: Action) -> None:
        if action.kind in ("view", "done"):
            return
        if eqn.op in ("cond", "while"):
            return self.region(eqn, action)
        target = self.at(action.places[0])
        values = [self.value(atom) for atom in eqn.inputs]
        if action.kind == "write" and eqn.op == "assign":
            target = self.at(action.target)
            self.check(eqn, [values[1]], target)
            target[...] = values[1]
            return
        if action.kind == "write":
            self.check(eqn, values[1:], target)
        else:
            free = OPS[eqn.op].kind == "map"
            self.check(eqn, [x for x in values if not (free and same(x, target))], target)
        found = OPS[eqn.op].numpy(*values, **eqn.named)
        target[...] = found

    def check(self, eqn: Eqn, operands: Sequence[np.ndarray], target: np.ndarray) -> None:
        if any(np.shares_memory(operand, target) for operand in operands):
            raise EngineProgramError(f"the storage table lets an operand overlap what is written: {eqn}")

    def region(self, eqn: Eqn, action: Action) -> None:
        tables = dict(zip((name for name, _ in eqn.programs()), action.tables))
        if eqn.op == "cond":
            _Run(tables["true" if self.value(eqn.inputs[0]) else "false"], self.memory).results()
            return
        start = [self.value(eqn.inputs[at]) for at in action.starts]
        for at, value in zip(action.starts, start):
            self.check(eqn, [value], self.at(action.places[at]))
            self.at(action.places[at])[...] = value
        while _Run(tables["test"], self.memory).results()[0]:
            _Run(tables["body"], self.memory).results()


def same(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two arrays are the same elements under the same indices."""
    steps = [[s for n, s in zip(x.shape, x.strides) if n > 1] for x in (one, two)]
    return one.shape == two.shape and steps[0] == steps[1] and one.ctypes.data == two.ctypes.data
