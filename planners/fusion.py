"""From the equations of a program to steps: connected maps, casts, selects, views and reductions become one.

Equations are taken in order. A map joins a step before it whose loops have its shape, where all that it needs is
computed in that step or before, and where it has something in common with it; else it begins a step of its own. A value
is stored when somebody outside of its step asks for it, once. Accesses are places in memory, not steps.

An assign writes to the memory of the version before where it may (`placing`), in a step after all steps that read that
part. Else the old version is copied.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import prod
from typing import Any, Callable, Iterator

import numpy as np

from ..buildup import chains
from ..dtypes import name_of
from ..expr import parse
from ..ir import Atom, Eqn, Literal, Program, Var
from ..kernels.fused_structure import STORED, Graph
from ..ops import OPS
from ..views import View
from . import divisors, indexed, reductions
from .groups import Contraction, FusedGroup, Member, Ref, Scheduled, Stored, written
from .operations import Value, itemsize
from .places import MemoryView, strided_axes
from .placing import END, Done, Move, Placing
from .reductions import SMALL
from .request import NotLowered
from .scalars import apply, reduced

CHEAP = ("add", "sub", "mul", "neg", "abs", "min", "max", "cast", "copy", "select")
CHEAP_OPERATIONS = 3  # of such, up to which a large value is computed twice


class Schedule(Placing):
    """The steps of ``program``. ``places``: those of its inputs and constants; the others as for `Placing`.

    Afterwards ``steps`` are in order, ``results`` are values of kind ``output`` of the results with memory of their
    own, None for the others.
    """

    def __init__(
        self,
        program: Program,
        places: list[MemoryView],
        homes: list[MemoryView | None],
        values: list[Value],
        numbers: Iterator[int],
    ) -> None:
        super().__init__(program, homes, values, numbers)
        self.steps: list[Scheduled] = []
        self.results: list[Value | None] = []
        self.home: dict[int, FusedGroup] = {}
        self.scalars: dict[int, Literal] = {}  # values that are one number everywhere
        self.inverses: dict[int, Var] = {}  # of divisors, by their numbers
        self.inverted = divisors.wanted(program)
        self.extra = count(-1, -1)  # numbers of values that no equation makes
        given = [*program.inputs, *(var for var, _ in program.consts)]
        for var, place in zip(given, places, strict=True):
            self.settle(var, place, -1)
        # value -> the memory where it belongs
        self.goals = {
            atom.number: home
            for atom, home in zip(program.outputs, homes)
            if isinstance(atom, Var) and home is not None
        }
        self.begun = {  # writes build up an array from here on, in new memory
            chain[0].outputs[0].number for chain in chains(program) if chain[-1].outputs[0].number not in self.goals
        }

    def run(self) -> None:
        divisors.invert(self, (*self.program.inputs, *(var for var, _ in self.program.consts)))
        for at, eqn in enumerate(self.program.eqns):
            self.position = at
            try:
                self.lower(eqn)
                divisors.invert(self, eqn.outputs)
            except NotLowered as why:
                raise NotLowered(f"{eqn}: {why}" + (f" ({eqn.where})" if eqn.where else "")) from None
        self.position = END
        self.finish()
        self.order = tuple(self.steps)  # by the numbers that they have now

    def lower(self, eqn: Eqn) -> None:
        kind = OPS[eqn.op].kind
        if kind == "map" or eqn.op == "copy":
            self.map(eqn)
        elif eqn.op in reductions.MAPS:
            self.reduce(eqn)
        elif (found := _HANDLERS.get(eqn.op)) is not None:
            found(self, eqn)
        else:
            raise NotLowered(f"there is no kernel for the primitive {eqn.op} yet")

    # -- values and memory
    def place(self, atom: Atom, apart: MemoryView | None = None) -> MemoryView:
        """Where a value lies. One that was not stored yet is from now on, and not where storing it to ``apart`` as well
        would write over it."""
        if self.is_number(atom):
            place = self.new(atom.shape, atom.dtype)
            self.last_ready = self.write(atom, place)
            self.moved(atom, place, self.last_ready, "")
            return place
        if atom.number not in self.places:
            group = self.home[atom.number]
            place = self.written_to(group, atom, apart)
            if place is None:
                place = self.goal(group, atom, apart) or self.new(atom.shape, atom.dtype)
                group.stores.append(_store(group, atom.number, place))
            self.settle(atom, place, group.at)
        self.last_ready = self.ready[atom.number]
        return self.places[atom.number]

    def written_to(self, group: FusedGroup, atom: Var, apart: MemoryView | None) -> MemoryView | None:
        """Where a value was assigned to, and still is."""
        for store in group.stores:
            if store.ref != atom.number or not store.assigned or store.place.view.shape != atom.shape:
                continue
            if _written_over(store.place, apart):
                continue
            others = [place for step in self.steps[group.at :] for place in written(step) if place is not store.place]
            if not any(place.overlaps(store.place) for place in others) and not self.written_before(atom, store.place):
                return store.place
        return None

    def written_before(self, atom: Var, place: MemoryView) -> bool:
        """Whether an equation may write to a place before ``atom``, which would lie there, is read for the last time."""
        last = max(at for at, *_ in self.uses[atom.number])
        roots = {self.places[var.number].view for var in self.inside[place.memory.number]}
        for eqn in self.program.eqns[min(self.position, END) + 1 : last]:
            for root in roots if eqn.op == "assign" else ():
                if root.shape == eqn.outputs[0].shape:
                    part = MemoryView(place.memory, root).part(eqn.named["view"])
                    if part is None or part.overlaps(place):
                        return True
        return False

    def goal(self, group: FusedGroup, atom: Var, apart: MemoryView | None) -> MemoryView | None:
        """The memory in which a value belongs in the end, if it can be written there at once: what lies there may be
        another operand of the equation that needs the value, or a result that is still to be stored."""
        home = self.goals.get(atom.number)
        if home is None or atom.number in group.over or _written_over(home, apart):
            return None
        if not self.overwritable(home, home, now=True) or not group.may_write(home):
            return None
        return None if any(_touches(step, home) for step in self.steps[group.at :] if step is not group) else home

    def written_over(self, group: FusedGroup) -> bool:
        """Whether a group reads what its values are to be written over, which excludes reductions."""
        homes = [self.goals[number] for number in group.members if number in self.goals]
        return any(read.overlaps(home) for read in group.inputs for home in homes)

    # -- groups
    def candidate(self, shape: tuple[int, ...], atoms: list[Atom], fits: Callable[[FusedGroup], bool]) -> FusedGroup:
        """The step of loops of this shape that a computation on ``atoms`` joins; a new one where none fits."""
        best, most = None, 0.0
        for step in self.steps:
            if not isinstance(step, FusedGroup) or step.shape != shape or not step.room(len(atoms)):
                continue
            if not all(self.within(step, atom) for atom in atoms):
                continue
            near = sum(2.0 * self.is_member(step, atom) + self.is_read(step, atom) for atom in atoms)
            if not near and prod(shape) <= SMALL:
                near = 0.5
            if near >= most and near and fits(step):
                best, most = step, near
        if best is None:
            best = FusedGroup(at=len(self.steps), shape=shape)
            self.steps.append(best)
        return best

    def join(self, shape: tuple[int, ...], atoms: tuple[Atom, ...]) -> None:
        """Makes the steps one in which operands of a map are computed, as far as nothing is written in between."""
        groups = {self.home[atom.number] for atom in atoms if isinstance(atom, Var) and self.only_computed(atom)}
        first, *others = sorted(groups, key=lambda group: group.at) or [None]
        for other in others:
            if first.shape == other.shape == shape and self.may_join(first, other):
                for number in first.take(other):
                    if self.home[number] is other:
                        self.home[number], self.ready[number] = first, first.at

    def only_computed(self, atom: Var) -> bool:
        """Whether a value is a map's, and lies nowhere."""
        home = self.home.get(atom.number)
        return home is not None and atom.number not in self.places and atom.number in home.members

    def may_join(self, first: FusedGroup, other: FusedGroup) -> bool:
        """Whether a step that nobody waits for can be computed in one before."""
        if other.stores or other.over or not first.room(len(other.inputs) + len(other.members)):
            return False
        late = [place for step in self.steps[first.at : other.at] for place in written(step)]
        return not any(read.overlaps(place) for read in other.inputs for place in late)

    def is_member(self, group: FusedGroup, atom: Atom) -> bool:
        return isinstance(atom, Var) and atom.number in group.members

    def is_read(self, group: FusedGroup, atom: Atom) -> bool:
        place = self.places.get(atom.number) if isinstance(atom, Var) else None
        return place is not None and any(read.memory is place.memory for read in group.inputs)

    def within(self, group: FusedGroup, atom: Atom) -> bool:
        """Whether a value is computed in a group, or can be read there."""
        if isinstance(atom, Literal) or self.is_member(group, atom) or atom.number in self.scalars:
            return True
        if self.ready[atom.number] >= group.at:
            return False
        place = self.places.get(atom.number)
        return place is None or group.may_read(place.broadcast(group.shape))

    def ref(self, group: FusedGroup, atom: Atom, target: MemoryView | None = None) -> Ref:
        """A value as an operand of a member, or to be stored to ``target``."""
        if isinstance(atom, Literal):
            return atom
        if atom.number in self.scalars:
            return self.scalars[atom.number]
        if atom.number in group.members or self.again(group, atom, target):
            return atom.number
        return group.read(self.place(atom, target).broadcast(group.shape))

    def again(self, group: FusedGroup, atom: Var, target: MemoryView | None = None) -> bool:
        """Computes a value once more, where that takes less than to write and to read it: from one large operand, which
        nobody has written since, nor does the group when it stores the value to ``target``, by a few operations that take
        no time."""
        home = self.home.get(atom.number)
        if home is None or atom.number in self.places or home.shape != group.shape or prod(home.shape) <= SMALL:
            return False
        found = home.needs(atom.number)
        places = [ref for member in found.values() for ref in member.args if isinstance(ref, MemoryView)]
        large = {id(place.memory) for place in places if 0 not in place.view.strides}
        cheap = 0 < len(found) <= CHEAP_OPERATIONS and all(member.op in CHEAP for member in found.values())
        if not cheap or len(large) > 1 or not group.room(len(places) + len(found)):
            return False
        late = [place for step in self.steps[home.at :] for place in written(step)]
        if any(place.overlaps(other) for place in places for other in late):
            return False
        if target is not None and any(place.overlaps(target) and not place.same(target) for place in places):
            return False
        if not all(group.may_read(place) for place in places):
            return False
        for number, member in found.items():
            args = tuple(group.read(ref) if isinstance(ref, MemoryView) else ref for ref in member.args)
            group.members.setdefault(number, Member(op=member.op, args=args, dtype=member.dtype))
        return True

    # -- equations
    def map(self, eqn: Eqn) -> None:
        (var,) = eqn.outputs
        self.check(eqn)
        self.computed(var, *divisors.quotient(self, eqn))

    def computed(self, var: Var, op: str, atoms: tuple[Atom, ...]) -> None:
        """A value that is a map, in the step that suits it."""
        self.join(var.shape, atoms)
        group = self.candidate(var.shape, list(atoms), lambda group: True)
        self.member(group, var, op, atoms)

    def member(self, group: FusedGroup, var: Var, op: str, atoms: tuple[Atom, ...]) -> None:
        refs = tuple(self.ref(group, atom) for atom in atoms)
        group.members[var.number] = Member(op=op, args=refs, dtype=name_of(var.dtype))
        self.home[var.number], self.ready[var.number] = group, group.at

    def check(self, eqn: Eqn) -> None:
        """`NotLowered` where no kernel has this map on these dtypes."""
        if eqn.op == "pow" and eqn.inputs[0].dtype.kind in "iu":
            indexed.guard_power(self, eqn)
        _check_map(eqn.op, tuple([atom.dtype for atom in eqn.inputs]), eqn.outputs[0].dtype)

    def reduce(self, eqn: Eqn) -> None:
        (atom,), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
        name = name_of(atom.dtype)
        if name in STORED:
            raise NotLowered(f"{eqn.op} of {atom.dtype}")
        graph = Graph((name,))
        reduced(graph, eqn.op, 0)
        if atom.dtype == var.dtype and reductions.few(self, atom, axes):
            reductions.unrolled(self, eqn)
            return
        group = self.candidate(atom.shape, [atom], lambda group: group.may_reduce(axes) and not self.written_over(group))
        group.axes = axes
        group.over[var.number] = (self.ref(group, atom), eqn.op)
        self.home[var.number], self.ready[var.number] = group, group.at

    def access(self, eqn: Eqn) -> None:
        (atom,), (var,), view = eqn.inputs, eqn.outputs, eqn.named["view"]
        scalar = atom if isinstance(atom, Literal) else self.scalars.get(atom.number)
        if scalar is not None:
            self.scalars[var.number] = scalar
            return
        found = self.place(atom).part(view)
        ready = self.ready[atom.number]
        if found is None:
            copy = self.new(atom.shape, atom.dtype)
            ready = self.write(atom, copy)
            self.moved(atom, copy, ready, f"{var} is no single view of its memory")
            found = copy.part(view)
        self.settle(var, found, ready)
        self.done[var.number] = Done("view")

    def einsum(self, eqn: Eqn) -> None:
        (var,) = eqn.outputs
        target = parse(eqn.named["subscripts"], [atom.shape for atom in eqn.inputs]).output
        if len(set(target)) != len(target):
            raise NotLowered("an index is repeated in the result")
        inputs, made = [self.place(atom) for atom in eqn.inputs], var
        if var.dtype.name in STORED:  # computed in float32, and rounded by a map, which may be an epilogue
            made = Var(next(self.extra), var.shape, np.dtype("float32"))
        out = self.new(made.shape, made.dtype)
        if 0 in var.shape or any(0 in place.view.shape for place in inputs):
            self.settle(made, out, self.write(Literal.of(0, made.dtype), out))
        else:
            self.steps.append(Contraction(at=len(self.steps), eqn=eqn, inputs=inputs, output=out))
            self.settle(made, out, len(self.steps) - 1)
        if made is not var:
            self.map(Eqn("cast", (made,), (var,), (("dtype", var.dtype),), eqn.where))

    def assign(self, eqn: Eqn) -> None:
        (root, value), (var,), view = eqn.inputs, eqn.outputs, eqn.named["view"]
        done = self.done[var.number] = Done("write")
        if var.number in self.begun:
            place, ready = self.new(var.shape, var.dtype), -1
            done.kind = "begin"
        else:
            place = self.place(root)  # stored, if it was not yet
            ready = self.last_ready
        target = place.part(view)
        if view.size and (target is None or not self.cleared(place, target)):
            why = self.refusal(place, target, root)
            place, ready = self.renewed(var, root, done, "" if view.covers(prod(var.shape)) else why)
            target = place.part(view)
        own = self.place_of(value)
        if own is not None and view.size and own.same(target):
            ready = max(ready, self.ready[value.number])  # it was made there
            done.kind = "done"
        elif view.size:
            done.by.append(self.write(value, target))
        done.target = target
        self.settle(var, place, max(ready, *done.by, -1))

    def renewed(self, var: Var, root: Atom, done: Done, why: str) -> tuple[MemoryView, int]:
        """Memory of its own for a new version of ``root``, which is copied there for a reason, if one is given."""
        place = self.new(var.shape, var.dtype)
        done.kind, done.why = "fresh" if why else "begin", why
        if why:
            done.by.append(self.write(root, place))
        return place, max(done.by, default=-1)

    def is_number(self, atom: Atom) -> bool:
        """Whether a value is one number everywhere."""
        return isinstance(atom, Literal) or atom.number in self.scalars

    def write(self, atom: Atom, target: MemoryView) -> int:
        """Stores a value, broadcast, to ``target``, behind all steps that touch it; the number of the step."""
        shape = target.view.shape

        def fits(group: FusedGroup) -> bool:
            if not group.may_write(target):
                return False
            return not any(_touches(step, target) for step in self.steps[group.at :] if step is not group)

        if isinstance(atom, Var) and atom.number in self.home and atom.shape != shape:
            self.place(atom)  # before a step is looked for: it is read from memory
        own = self.places.get(atom.number) if isinstance(atom, Var) else None
        if own is not None and _written_over(own.broadcast(shape), target):
            atom = self.aside(atom)
        group = self.candidate(shape, [atom], fits)
        group.stores.append(Stored(ref=self.ref(group, atom, target), place=target, assigned=True))
        return group.at

    def aside(self, atom: Var) -> Var:
        """A copy of a value, in memory of its own."""
        var, place = Var(next(self.extra), atom.shape, atom.dtype), self.new(atom.shape, atom.dtype)
        self.settle(var, place, self.write(atom, place))
        self.done[var.number] = Done("view")
        self.moved(atom, place, self.ready[var.number], "it is read while it is written")
        return var

    def concatenate(self, eqn: Eqn) -> None:
        (var,), axis = eqn.outputs, eqn.named["axis"]
        out, start, done = self.new(var.shape, var.dtype), 0, Done("compute")
        for atom in eqn.inputs:
            stop = start + atom.shape[axis]
            part = View.whole(var.shape).index((slice(None),) * axis + (slice(start, stop),))
            done.by.append(self.write(atom, out.part(part)))
            start = stop
        self.settle(var, out, max(done.by))
        self.done[var.number] = done

    def pad(self, eqn: Eqn) -> None:
        (atom, value), (var,) = eqn.inputs, eqn.outputs
        out = self.new(var.shape, var.dtype)
        key = tuple(slice(before, before + n) for n, (before, _) in zip(atom.shape, eqn.named["widths"]))
        inner = out.part(View.whole(var.shape).index(key))
        done = self.done[var.number] = Done("compute", [self.write(value, out), self.write(atom, inner)])
        self.settle(var, out, max(done.by))

    # -- results
    def finish(self) -> None:
        """Results get memory of their own, or the memory where they belong."""
        for atom, home in zip(self.program.outputs, self.homes):
            self.results.append(self.result(atom) if home is None else None)
            own = self.results[-1]
            self.left_at.append(home or MemoryView(own, View.whole(atom.shape, itemsize(own.dtype))))
        self.write_back()

    def result(self, atom: Atom) -> Value:
        if isinstance(atom, Var) and atom.number not in self.scalars:
            place = self.place(atom)
            memory = place.memory
            if memory.kind == "arena" and place.whole:
                memory.kind = "output"
                memory.term, memory.axes = strided_axes(place.view.shape, place.view.strides)
                return memory
        place = self.new(atom.shape, atom.dtype, "output")
        self.left(atom, place, "it has memory of its own")
        return place.memory

    def left(self, atom: Atom, place: MemoryView, why: str) -> None:
        """Writes a result where it belongs."""
        computed = isinstance(atom, Var) and atom.number in self.home and atom.number not in self.places
        at = self.write(atom, place)
        if computed and atom.number not in self.places:
            self.settle(atom, place, at)
        else:
            self.moved(atom, place, at, why)

    def moved(self, atom: Atom, place: MemoryView, at: int, why: str) -> None:
        """Takes down that a step copies a value, or fills in a number."""
        number = self.scalars.get(atom.number) if isinstance(atom, Var) else atom
        why = "it is read from memory" if number else why
        self.moves.append(Move(atom=number or atom, place=place, at=at, why=why))

    def write_back(self) -> None:
        """Results that were not written where they belong are copied there at the end, none over another that is
        still to be copied: that waits, or, where all wait for each other, goes by memory of its own."""
        late: list[tuple[Atom, MemoryView]] = []
        for atom, home in zip(self.program.outputs, self.homes):
            place = self.place_of(atom)
            if home is not None and home.view.size and (place is None or not place.same(home)):
                late.append((atom, home))
        while late:
            sources = [self.place_of(atom) for atom, _ in late]
            free = (at for at, (_, home) in enumerate(late) if not _needed_by_others(sources, at, home))
            at = next(free, None)
            if at is None:
                late[0] = (self.aside(late[0][0]), late[0][1])
            else:
                self.left(*late.pop(at), "its memory was not free when it was computed")


@lru_cache(maxsize=1024)
def _check_map(op: str, dtypes: tuple[np.dtype, ...], dtype: np.dtype) -> None:
    """`NotLowered` where no kernel has this map; once for all equations like it."""
    apply(Graph(tuple([each.name for each in dtypes])), op, list(range(len(dtypes))), dtype.name)


def _store(group: FusedGroup, number: int, place: MemoryView) -> Stored:
    """The store of a value of the group."""
    if number in group.over:
        ref, reduce = group.over[number]
        return Stored(ref=ref, place=place, reduce=reduce)
    return Stored(ref=number, place=place)


def _needed_by_others(sources: list[MemoryView | None], at: int, home: MemoryView) -> bool:
    return any(other != at and place is not None and place.overlaps(home) for other, place in enumerate(sources))


def _written_over(place: MemoryView, target: MemoryView | None) -> bool:
    """Whether elements of a place are not what they were while they are stored to ``target`` one after the other."""
    return target is not None and place.overlaps(target) and not place.same(target)


def _touches(step: Scheduled, target: MemoryView) -> bool:
    return any(place.overlaps(target) for place in (*step.inputs, *written(step)))


_HANDLERS: dict[str, Any] = {
    "access": Schedule.access,
    "einsum": Schedule.einsum,
    "assign": Schedule.assign,
    "concatenate": Schedule.concatenate,
    "pad": Schedule.pad,
    "sort": indexed.sort,
    "argsort": indexed.sort,
    "random_bits": indexed.random,
    "random_uniform": indexed.random,
    "gather": indexed.gather,
    "scatter": indexed.scatter,
    "scatter_add": indexed.scatter,
}
