"""Where the values of a program live: a table beside it, which says what is written in place and what is copied.

A *slot* is memory of a fixed number of elements, a *place* a view of one. The result of an equation has the place that
its `Action` gives:

| action | meaning |
|---|---|
| ``view`` | nothing is done: an access that reads the memory of its root |
| ``copy`` | an access whose elements are copied, since that memory is written while they are still needed |
| ``write`` | an assign (scatter) in place: the value is written to its view of the root's memory, nothing else |
| ``done`` | an assign in place whose value was computed where it belongs: nothing is done |
| ``fresh`` | an assign (scatter) to a copy of the root, which is needed later or must not be written |
| ``compute`` | everything else: computed into the place, which may be a part of a root that is written next |

A write at one equation is allowed where no value whose elements it overlaps is read later; both are exact, by the uses
of each value (an access counts with its view only) and by `View.overlaps`. An operand may overlap the result of its
equation only if the equation is a map and both are the same view, or if it is a cond, which sees to it inside.

The memory of inputs is written where a result belongs there (``written``), of constants never. Results that belong
nowhere get slots of their own. Branches and loop bodies have tables of their own, in which the slots of operands are
``outer``: so they write the memory around them in place, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..ir import Atom, Const, Eqn, Literal, Program
from ..ops import WRITES
from ..views import View

END = 1 << 40  # the position of uses after the last equation


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Memory for ``size`` elements of one dtype.

    ``kind``: ``input`` (number ``of``), ``const`` (an array or scalar, ``data``; of value number ``of`` if positive),
    ``outer`` (slot ``of`` of the table around), ``output`` (handed to the caller as result ``of``) or ``temp``.
    ``first`` and ``last``: the equations of its first write and last use; -1 is before all, their number after all.
    """

    kind: str
    size: int
    dtype: np.dtype
    of: int = 0
    data: Const | Literal | None = None
    first: int = -1
    last: int = -1

    def __str__(self) -> str:
        number = f" {self.of}" if self.kind in ("input", "outer", "output") else ""
        span = f" {self.first}..{self.last}" if self.kind == "temp" else ""
        return f"{self.dtype}[{self.size}] {self.kind}{number}{span}"


@dataclass(frozen=True)
class Place:
    """A view of the elements of a slot."""

    slot: int
    view: View

    def overlaps(self, other: Place) -> bool:
        """Whether the two share an element."""
        return self.slot == other.slot and self.view.overlaps(other.view)

    def same(self, other: Place) -> bool:
        """Whether the two name the same elements under the same indices."""
        return self.slot == other.slot and self.view.canonical() == other.view.canonical()

    def part(self, view: View) -> Place | None:
        """``view``, of the elements in C order, as a place; None where it is none."""
        found = self.view.then(view)
        return None if found is None else Place(self.slot, found)

    def __str__(self) -> str:
        return f"@{self.slot}{self.view}"


@dataclass(frozen=True, kw_only=True)
class Action:
    """What is done for one equation: ``kind`` (see the module), the places of its results, and why it copies, if so.

    ``target``: for ``write`` and ``done``, the elements that are written. ``tables``: those of the equation's programs,
    in the order of `Eqn.programs`. ``starts``: for a while, which carried values are copied to their places first.
    """

    kind: str
    places: tuple[Place, ...]
    why: str = ""
    target: Place | None = None
    tables: tuple[StorageTable, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Return:
    """A result: where its value is, where it belongs, and whether it is copied there (``why`` says for what reason).

    ``staged``: the value lies in memory to which another result is copied, so it is copied aside before any of that.
    """

    source: Place
    target: Place
    copied: bool = False
    staged: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class StorageTable:
    """The table of a program: its slots, the places of its inputs, one action per equation, its results."""

    program: Program
    slots: tuple[Slot, ...]
    inputs: tuple[Place, ...]
    actions: tuple[Action, ...]
    returns: tuple[Return, ...]

    def place(self, atom: Atom) -> Place | None:
        """Where a value lives; None for a literal."""
        return None if isinstance(atom, Literal) else self.places()[atom.number]

    def places(self) -> dict[int, Place]:
        """The places of all values by their numbers."""
        found = {var.number: place for var, place in zip(self.program.inputs, self.inputs)}
        for at, slot in enumerate(self.slots):
            if slot.kind == "const" and isinstance(slot.data, Const):
                found[slot.of] = Place(at, View.whole(slot.data.shape))
        for eqn, action in zip(self.program.eqns, self.actions):
            found |= {var.number: place for var, place in zip(eqn.outputs, action.places)}
        return found

    def copies(self) -> list[str]:
        """What is copied that no equation computes, and why. Literals do not count."""
        return list(self._copies(""))

    def _copies(self, inside: str) -> Iterator[str]:
        for eqn, action in zip(self.program.eqns, self.actions):
            if action.kind in ("copy", "fresh"):
                yield f"{inside}{eqn.outputs[0]}: {action.why}"
            for at in action.starts:
                if isinstance(eqn.inputs[at], Literal):
                    continue
                yield f"{inside}{eqn.outputs[at]}: the loop starts from {eqn.inputs[at]}, {action.why}"
            for (name, _), table in zip(eqn.programs(), action.tables):
                yield from table._copies(f"{inside}{eqn.outputs[0]}.{name} ")
        for at, result in enumerate(self.returns):
            if result.copied and not isinstance(self.slots[result.source.slot].data, Literal):
                yield f"{inside}result {at} {self.program.outputs[at]}: {result.why}"

    def show(self) -> str:
        """Slots, then an action per equation, then the results; deterministic."""
        return "\n".join(self._lines())

    __str__ = show

    def _lines(self) -> Iterator[str]:
        for at, slot in enumerate(self.slots):
            yield f"@{at}: {slot}"
        for eqn, action in zip(self.program.eqns, self.actions):
            target = "" if action.target is None else f" to {action.target}"
            why = f"  # {action.why}" if action.why else ""
            yield f"{action.kind} {', '.join(f'{v} {p}' for v, p in zip(eqn.outputs, action.places))}{target}{why}"
            for (name, _), table in zip(eqn.programs(), action.tables):
                yield f"  {name}:"
                yield from (f"    {line}" for line in table._lines())
        for at, result in enumerate(self.returns):
            copied = f", copied to {result.target}  # {result.why}" if result.copied else ""
            yield f"return {at} {result.source}{copied}"


def region_pairs(eqn: Eqn) -> dict[int, int]:
    """Result -> operand (position among the inputs of its programs) in whose memory a region may leave it.

    Of a while, each carried value; of a cond, a result that is a version of one operand in both branches: the operand,
    or what assigns and scatters make of it.
    """
    if eqn.op == "while":
        return {at: at for at in range(eqn.named["carried"])}
    found: dict[int, int] = {}
    one, two = (versions(program) for _, program in eqn.programs())
    for at in range(len(eqn.outputs)):
        if one[at] is not None and one[at] == two[at] and one[at] not in found.values():
            found[at] = one[at]
    return found


def versions(program: Program) -> list[int | None]:
    """For each output, the position of the input of which it is a version, or None."""
    root = {var.number: at for at, var in enumerate(program.inputs)}
    for eqn in program.eqns:
        if eqn.op in WRITES and not isinstance(eqn.inputs[0], Literal) and eqn.inputs[0].number in root:
            root[eqn.outputs[0].number] = root[eqn.inputs[0].number]
        elif eqn.op in ("cond", "while"):
            skip = eqn.op == "cond"
            for at, other in region_pairs(eqn).items():
                operand = eqn.inputs[other + skip]
                if not isinstance(operand, Literal) and operand.number in root:
                    root[eqn.outputs[at].number] = root[operand.number]
    return [None if isinstance(atom, Literal) else root.get(atom.number) for atom in program.outputs]


def whole_slot(view: View, size: int) -> bool:
    """Whether a view is all of a slot, in C order."""
    return view.size == size and view.is_contiguous() and (view.offset == 0 or size == 0)
