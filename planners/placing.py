"""Where the values of a program lie while its steps are found, who reads them later, and what may be written over.

Memory may be written where it is memory of the plan, or of an input that the program writes for its caller, and where
nobody reads the overwritten part later on, by the order of the equations: an access counts with its view only, an
assign not with the part that it writes; both are exact, by `View.overlaps`. What is decided here is kept as it is
decided (`done`, `moves`), and shown as the storage table of the plan (`planners/storage`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Iterator

import numpy as np

from ..dtypes import name_of
from ..ir import Atom, Program, Var
from ..views import View
from .operations import Value, itemsize
from .places import MemoryView, strided_value

END = 1 << 40  # the position of what a program returns
PINNED = END + 1  # of what others read, in its place, after the program


@dataclass
class Done:
    """What is done for a value: ``kind`` as in `einsum_engine.storage`, ``by`` numbers of steps that write it."""

    kind: str
    by: list[int] = field(default_factory=list)
    target: MemoryView | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A value, or a number, that is copied (filled in) though no equation says so: where to, by which step, and why."""

    atom: Atom
    place: MemoryView
    at: int
    why: str


class Placing(ABC):
    """The memory of a program's values. ``homes``: for each result the place where it belongs, or None; memory in which
    one lies may be written. ``values``: all that have memory, to which it adds its own, with ``numbers``."""

    def __init__(
        self, program: Program, homes: list[MemoryView | None], values: list[Value], numbers: Iterator[int]
    ) -> None:
        self.program, self.homes = program, homes
        self.values, self.numbers = values, numbers
        self.places: dict[int, MemoryView] = {}
        self.ready: dict[int, int] = {}  # number of the step that a value is there after
        self.inside: dict[int, list[Var]] = {}  # number of a value with memory -> what lies there
        self.writable = {id(home.memory) for home in homes if home is not None}
        self.done: dict[int, Done] = {}
        self.moves: list[Move] = []
        self.was: dict[int, MemoryView] = {}  # where a value was computed before it was put aside
        self.left_at: list[MemoryView] = []  # where each result is in the end
        self.position = -1
        # equation, the view that is read (None: all), the part of it that is not (None: nothing)
        self.uses: dict[int, list[tuple[int, View | None, View | None]]] = {}
        for at, eqn in enumerate(program.eqns):
            view = eqn.named["view"] if eqn.op == "access" else None
            for operand, atom in enumerate(eqn.inputs):
                unread = eqn.named["view"] if eqn.op == "assign" and operand == 0 else None
                if isinstance(atom, Var):
                    self.uses.setdefault(atom.number, []).append((at, view, unread))
        for atom in program.outputs:
            if isinstance(atom, Var):
                self.uses.setdefault(atom.number, []).append((END, None, None))

    def settle(self, var: Var, place: MemoryView, ready: int) -> None:
        """Says where a value lies, and after which step."""
        self.places[var.number] = place
        self.ready[var.number] = ready
        self.inside.setdefault(place.memory.number, []).append(var)

    def new(self, shape: tuple[int, ...], dtype: np.dtype, kind: str = "arena") -> MemoryView:
        """Memory of its own in C order."""
        name = name_of(np.dtype(dtype))
        view = View.whole(shape, itemsize(name))
        value = strided_value(next(self.numbers), shape, view.strides, name, kind)
        self.values.append(value)
        if kind == "arena":
            self.writable.add(id(value))
        return MemoryView(value, view)

    def place_of(self, atom: Atom) -> MemoryView | None:
        """Where a value lies, if it was stored."""
        return self.places.get(atom.number) if isinstance(atom, Var) else None

    # -- what may be written
    def overwritable(self, place: MemoryView, target: MemoryView, *, now: bool = False) -> bool:
        """Whether nobody reads the elements of ``target``, a part of ``place``, later (or ``now``), and they may be
        written."""
        return self.may_change(place, target) and not self.readers(target, now=now)

    def may_change(self, place: MemoryView, target: MemoryView) -> bool:
        """Whether memory may be written at all."""
        return id(place.memory) in self.writable and place.view.injective() and target.view.injective()

    def readers(self, target: MemoryView, *, now: bool = False) -> list[Var]:
        """The values in this memory that are read later (or ``now``), where ``target`` is."""
        first = self.position if now else self.position + 1
        return [var for var in self.inside.get(target.memory.number, ()) if self.read_from(first, var, target)]

    def read_from(self, first: int, var: Var, target: MemoryView) -> bool:
        """Whether an equation from number ``first`` on reads a value where ``target`` is."""
        own = self.places[var.number]
        for at, view, unread in self.uses.get(var.number, ()):
            part = own if view is None else own.part(view) or own
            if at >= first and part.overlaps(target) and not _within(target, own, unread):
                return True
        return False

    def cleared(self, place: MemoryView, target: MemoryView) -> bool:
        """Whether ``target``, a part of ``place``, may be written now. What is read there later is copied out of the
        way, where that is no more than all of ``place``."""
        if self.overwritable(place, target):
            return True
        found = self.readers(target)
        pinned = any(at == PINNED for var in found for at, *_ in self.uses[var.number])
        size = sum(self.places[var.number].view.size for var in found)
        if pinned or not self.may_change(place, target) or size > place.view.size:
            return False
        for var in found:
            self.put_aside(var)
        return True

    def put_aside(self, var: Var) -> None:
        """A value gets memory of its own, to which it is copied; what lies there by then is read there from now on."""
        old, copy = self.places[var.number], self.new(var.shape, var.dtype)
        ready = self.write(var, copy)
        done, why = self.done.get(var.number), "its memory is written while it is needed"
        if done is not None and done.kind == "view":
            self.done[var.number] = Done("copy", [ready], why=why)
        else:
            self.done.setdefault(var.number, Done("compute", [self.ready[var.number]]))
            self.was.setdefault(var.number, old)
            self.moves.append(Move(atom=var, place=copy, at=ready, why=why))
        self.inside[old.memory.number].remove(var)
        self.settle(var, copy, ready)

    def refusal(self, place: MemoryView, target: MemoryView | None, root: Atom) -> str:
        """Why ``target``, a part of ``place`` where ``root`` lies, is not written."""
        if target is None:
            return f"the view of {root} is no view of its memory"
        if id(place.memory) not in self.writable:
            return f"{root} is in memory that is not written ({place.memory.kind})"
        if not place.view.injective() or not target.view.injective():
            return f"{root} is a broadcast"
        return f"{', '.join(map(str, self.readers(target)))} is read there"

    @abstractmethod
    def write(self, atom: Atom, target: MemoryView) -> int:
        """Stores a value, broadcast, to ``target``; the number of the step."""


def _within(target: MemoryView, place: MemoryView, part: View | None) -> bool:
    """Whether ``target`` lies in a part of a place, and in no other part of it: elements of a broadcast are one."""
    found = place.part(part) if part is not None and place.view.injective() else None
    return found is not None and found.view.contains(target.view)
