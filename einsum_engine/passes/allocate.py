"""Makes the `StorageTable` of a program: one walk over its equations, each placed with all later uses known.

Where a write in place is forbidden only by accesses that were left as views, or by values that were computed where they
are to be written, and those are not more than the root, they get memory of their own: the walk starts again with that
known. So `d = a[1].copy(); a[1] = 0` copies a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from ..buildup import chains
from ..ir import Atom, Eqn, Program, Var
from ..ops import OPS, WRITES
from ..views import View
from .storage import END, Action, Place, Return, Slot, StorageTable, region_pairs, whole_slot

# Value -> (equation, the view of it that is read (None: all), the view that is not (None: nothing)).
Uses = dict[int, list[tuple[int, View | None, View | None]]]


def storage(
    program: Program, written: Iterable[tuple[int, int]] = (), views: Sequence[View] | None = None
) -> StorageTable:
    """The table of a program of its own. ``written``: pairs of an input and the result that belongs in its memory.

    ``views``: how each input lies in its memory, counted in elements from the lowest address; in C order if not given.
    Every input has memory of its own: arguments that overlap are views of one input.
    """
    found = [View.whole(var.shape) for var in program.inputs] if views is None else views
    inputs = [Place(at, view) for at, view in enumerate(found)]
    sizes = [view.bounds()[1] + 1 if view.size else 0 for view in found]
    slots = [Slot(kind="input", size=sizes[at], dtype=var.dtype, of=at) for at, var in enumerate(program.inputs)]
    return _table(program, slots, inputs, {output: inputs[at] for at, output in written}, frozenset())


def _table(
    program: Program, slots: Sequence[Slot], inputs: Sequence[Place], targets: dict[int, Place], pinned: frozenset[int]
) -> StorageTable:
    apart: set[int] = set()
    while True:
        walk = _Walk(program, slots, inputs, targets, pinned, apart)
        try:
            return walk.run()
        except _Again as again:
            apart |= again.apart


class _Again(Exception):
    """Start again, with more values in memory of their own."""

    def __init__(self, apart: set[int]) -> None:
        super().__init__(apart)
        self.apart = apart


class _Walk:
    def __init__(
        self,
        program: Program,
        slots: Sequence[Slot],
        inputs: Sequence[Place],
        targets: dict[int, Place],
        pinned: frozenset[int],
        apart: set[int],
    ) -> None:
        self.program, self.inputs, self.targets, self.apart = program, tuple(inputs), targets, apart
        self.slots = list(slots)
        self.places: dict[int, Place] = {}
        self.inside: dict[int, list[int]] = {}  # slot -> the values in it
        self.movable: set[int] = set()  # views, and values computed where they are to be written
        self.users: dict[int, list[tuple[int, int]]] = {}  # value -> (equation, operand)
        self.uses: Uses = {}
        for var, place in zip(program.inputs, inputs):
            self.put(var, place)
        for at in pinned:
            self.uses.setdefault(program.inputs[at].number, []).append((END, None, None))
        for var, const in program.consts:
            self.slots.append(Slot(kind="const", size=prod(var.shape), dtype=var.dtype, of=var.number, data=const))
            self.put(var, Place(len(self.slots) - 1, View.whole(var.shape)))
        for at, eqn in enumerate(program.eqns):
            view = eqn.named["view"] if eqn.op == "access" else None
            for operand, atom in enumerate(eqn.inputs):
                unread = eqn.named["view"] if eqn.op == "assign" and operand == 0 else None
                if isinstance(atom, Var):
                    self.uses.setdefault(atom.number, []).append((at, view, unread))
                    self.users.setdefault(atom.number, []).append((at, operand))
        for atom in program.outputs:
            if isinstance(atom, Var):
                self.uses.setdefault(atom.number, []).append((END, None, None))

        self.goals = self.found_goals()
        self.built: dict[int, Place] = {}  # versions of roots that writes build up, placed before the first of them
        for chain in chains(program):
            if chain[-1].outputs[0].number not in self.goals:
                self.built |= dict.fromkeys((eqn.outputs[0].number for eqn in chain), self.new(chain[0].outputs[0]))

    def put(self, var: Var, place: Place) -> None:
        self.places[var.number] = place
        self.inside.setdefault(place.slot, []).append(var.number)

    def run(self) -> StorageTable:
        actions = []
        for at, eqn in enumerate(self.program.eqns):
            action = self.action(at, eqn)
            for var, place in zip(eqn.outputs, action.places):
                self.put(var, place)
            actions.append(action)
        returns = self.returns()
        self.spans(actions, returns)
        return StorageTable(
            program=self.program,
            slots=tuple(self.slots),
            inputs=self.inputs,
            actions=tuple(actions),
            returns=tuple(returns),
        )

    def action(self, at: int, eqn: Eqn) -> Action:
        if eqn.op in ("access", "view", "copy"):
            return self.access(at, eqn)
        if eqn.op in WRITES:
            return self.write(at, eqn)
        if eqn.op in ("cond", "while"):
            return self.region(at, eqn)
        return Action(kind="compute", places=tuple(self.result(at, eqn, var) for var in eqn.outputs))

    # -- places
    def place(self, atom: Atom) -> Place:
        """Where an operand is; a literal gets a slot that holds it."""
        if isinstance(atom, Var):
            return self.places[atom.number]
        for at, slot in enumerate(self.slots):
            if slot.data == atom:
                return Place(at, View.whole(()))
        self.slots.append(Slot(kind="const", size=1, dtype=atom.dtype, of=-1, data=atom))
        return Place(len(self.slots) - 1, View.whole(()))

    def new(self, var: Var, kind: str = "temp", of: int = 0) -> Place:
        """A slot of its own."""
        self.slots.append(Slot(kind=kind, size=prod(var.shape), dtype=var.dtype, of=of))
        return Place(len(self.slots) - 1, View.whole(var.shape))

    def writable(self, place: Place) -> bool:
        """Whether the program may write these elements at all."""
        if not place.view.injective():
            return False
        if self.slots[place.slot].kind == "temp":
            return True
        return any(t.slot == place.slot and t.view.contains(place.view) for t in self.targets.values())

    def needed(self, place: Place, at: int) -> set[int]:
        """The values that are read after equation ``at`` from elements of ``place``."""
        found = set()
        for number in self.inside.get(place.slot, ()):
            own = self.places[number]
            for use, view, unread in self.uses.get(number, ()):
                if use > at and self.reads(own, view).overlaps(place) and not self.covers(own, unread, place):
                    found.add(number)
                    break
        return found

    @staticmethod
    def reads(place: Place, view: View | None) -> Place:
        part = None if view is None else place.part(view)
        return place if part is None else part

    @staticmethod
    def covers(place: Place, unread: View | None, other: Place) -> bool:
        """Whether ``other`` lies in a part of a place."""
        part = None if unread is None else place.part(unread)
        return part is not None and part.view.contains(other.view)

    def result(self, at: int, eqn: Eqn, var: Var) -> Place:
        """Where a result is computed: where it belongs in the end, if that can be written now, or a slot of its own."""
        found = self.goals.get(var.number)
        direct = found is None and var.number not in self.apart
        found = self.destination(var) if direct else found
        if found is None or found.view.shape != var.shape or not self.writable(found):
            return self.new(var)
        if self.needed(found, at) or not self.beside(eqn, found):
            return self.new(var)
        if direct:
            self.movable.add(var.number)
        return found

    def beside(self, eqn: Eqn, target: Place) -> bool:
        """Whether the operands allow that a result is written to ``target`` while they are read."""
        if eqn.op == "cond":
            return True
        for atom in eqn.inputs:
            own = self.places[atom.number] if isinstance(atom, Var) else None
            if own is not None and own.overlaps(target) and not (OPS[eqn.op].kind == "map" and own.same(target)):
                return False
        return True

    def destination(self, var: Var) -> Place | None:
        """Where a value is written by an assign to a root that has its place already."""
        for at, operand in self.users.get(var.number, ()):
            eqn = self.program.eqns[at]
            root = eqn.inputs[0]
            if eqn.op == "assign" and operand == 1 and isinstance(root, Var) and root.number in self.places:
                base = self.places[root.number]
                if base.view.injective():
                    return base.part(eqn.named["view"])
            if eqn.op == "assign" and operand == 1 and eqn.outputs[0].number in self.built:
                return self.built[eqn.outputs[0].number].part(eqn.named["view"])
        return None

    def found_goals(self) -> dict[int, Place]:
        """The memory in which results belong, for them and for the versions before them."""
        outputs = self.program.outputs
        goals: dict[int, Place] = {}
        for output, target in self.targets.items():
            if isinstance(outputs[output], Var):
                goals.setdefault(outputs[output].number, target)
        returned = {atom.number for atom in outputs if isinstance(atom, Var)}
        for eqn in reversed(self.program.eqns):
            skip = eqn.op == "cond"
            pairs = {0: 0} if eqn.op in WRITES else region_pairs(eqn) if eqn.op in ("cond", "while") else {}
            for output, other in pairs.items():
                root, made = eqn.inputs[other + skip], eqn.outputs[output]
                if isinstance(root, Var) and made.number in goals and root.number not in returned:
                    goals.setdefault(root.number, goals[made.number])
        return goals

    # -- accesses and writes
    def access(self, at: int, eqn: Eqn) -> Action:
        (atom,), (var,) = eqn.inputs, eqn.outputs
        place = self.place(atom)
        part = place if eqn.op == "copy" else place.part(eqn.named["view"])
        if part is not None and var.number not in self.apart:
            self.movable.add(var.number)
            return Action(kind="view", places=(part,))
        why = f"the memory of {atom} is written while {var} is needed" if part is not None else "no single view"
        return Action(kind="copy", places=(self.result(at, eqn, var),), why=why)

    def write(self, at: int, eqn: Eqn) -> Action:
        root, value, *_ = eqn.inputs
        built = self.built.get(eqn.outputs[0].number)
        base = built or self.place(root)
        target = base.part(eqn.named["view"]) if eqn.op == "assign" else base
        if eqn.op == "assign" and target is not None and isinstance(value, Var) and self.place(value).same(target):
            return Action(kind="done", places=(base,), target=target)
        why = self.obstacle(at, eqn, base, target)
        if not why or built is not None and self.place(root) != built:
            return Action(kind="write", places=(base,), target=target)
        return Action(kind="fresh", places=(self.result(at, eqn, eqn.outputs[0]),), why=why)

    def obstacle(self, at: int, eqn: Eqn, base: Place, target: Place | None) -> str:
        """Why an equation cannot write in place, or ""; raises `_Again` where copying some accesses helps."""
        root = eqn.inputs[0]
        if target is None:
            return f"the view of {root} is no view of its memory"
        if target.view.size == 0:
            return ""
        if not base.view.injective():
            return f"{root} is a broadcast"
        if not self.writable(target):
            kind = self.slots[base.slot].kind
            return f"{root} is in memory that is not written ({kind})"
        needed = self.needed(target, at)
        for atom in eqn.inputs[1:]:
            if isinstance(atom, Var) and self.places[atom.number].overlaps(target):
                needed.add(atom.number)
        if not needed:
            return ""
        if needed <= self.movable and sum(self.places[number].view.size for number in needed) <= base.view.size:
            raise _Again(needed)
        return f"{', '.join(f'%{number}' for number in sorted(needed))} is read there"

    # -- branches and loops
    def region(self, at: int, eqn: Eqn) -> Action:
        operands = [self.place(atom) for atom in (eqn.inputs[1:] if eqn.op == "cond" else eqn.inputs)]
        pairs, targets = region_pairs(eqn), []
        for output, var in enumerate(eqn.outputs):
            own = operands[pairs[output]] if output in pairs else None
            if own is None or not self.in_region(at, eqn, own, operands, targets):
                own = self.result(at, eqn, var)
                if any(own.overlaps(other) for other in targets):
                    own = self.new(var)
            targets.append(own)
        if eqn.op == "cond":
            tables = [self.inner(program, operands, targets, frozenset()) for _, program in eqn.programs()]
            return Action(kind="compute", places=tuple(targets), tables=tuple(tables))
        count = eqn.named["carried"]
        starts = tuple(k for k in range(count) if not operands[k].same(targets[k]))
        inside = [*targets, *operands[count:]]
        fixed = frozenset(range(count, len(operands)))
        tables = [
            self.inner(program, inside, targets if name == "body" else [], fixed) for name, program in eqn.programs()
        ]
        why = "which is not written or is read later" if starts else ""
        return Action(kind="compute", places=tuple(targets), tables=tuple(tables), starts=starts, why=why)

    def in_region(self, at: int, eqn: Eqn, own: Place, operands: list[Place], targets: list[Place]) -> bool:
        """Whether a region may leave a result in the memory ``own`` of one of its operands."""
        if not self.writable(own) or any(own.overlaps(other) for other in targets) or self.needed(own, at):
            return False
        fixed = operands[eqn.named["carried"] :] if eqn.op == "while" else []
        return not any(own.overlaps(other) for other in fixed)

    def inner(
        self, program: Program, operands: Sequence[Place], targets: Sequence[Place], pinned: frozenset[int]
    ) -> StorageTable:
        """The table of a program inside, whose slots are those around it as far as it uses them."""
        used = sorted({place.slot for place in (*operands, *targets)})
        slots = [Slot(kind="outer", size=self.slots[n].size, dtype=self.slots[n].dtype, of=n) for n in used]

        def seen(place: Place) -> Place:
            return Place(used.index(place.slot), place.view)

        wanted = {output: seen(place) for output, place in enumerate(targets)}
        return _table(program, slots, [seen(place) for place in operands], wanted, pinned)

    # -- results and lifetimes
    def returns(self) -> list[Return]:
        found: list[Return] = []
        taken: set[int] = set()
        for output, atom in enumerate(self.program.outputs):
            source = self.place(atom)
            target = self.targets.get(output)
            if target is None:
                slot = self.slots[source.slot]
                own = slot.kind == "temp" and whole_slot(source.view, slot.size) and source.slot not in taken
                if own:
                    taken.add(source.slot)
                    self.slots[source.slot] = replace(slot, kind="output", of=output)
                    found.append(Return(source=source, target=source))
                    continue
                target = self.new(Var(-1, atom.shape, atom.dtype), "output", output)
                found.append(Return(source=source, target=target, copied=True, why="it has memory of its own"))
            elif source.same(target):
                found.append(Return(source=source, target=target))
            else:
                why = "its memory was not free when it was computed"
                found.append(Return(source=source, target=target, copied=True, why=why))
        return [self.staged(at, found) for at in range(len(found))]

    def staged(self, at: int, found: list[Return]) -> Return:
        """Copies to given memory come last; one whose source they would overwrite is copied aside before."""
        one = found[at]
        if not one.copied or at not in self.targets:
            return one
        others = (found[k].target for k in self.targets if found[k].copied)
        return replace(one, staged=any(one.source.overlaps(target) for target in others))

    def spans(self, actions: list[Action], returns: list[Return]) -> None:
        """Put first write and last use into the slots."""
        end = len(self.program.eqns)
        first, last = [end] * len(self.slots), [-1] * len(self.slots)
        for at, (eqn, action) in enumerate(zip(self.program.eqns, actions)):
            for var, place in zip(eqn.outputs, action.places):
                uses = [use for use, *_ in self.uses.get(var.number, ())]
                first[place.slot] = min(first[place.slot], at)
                last[place.slot] = max(last[place.slot], at, *(min(use, end) for use in uses))
        for result in returns:
            last[result.source.slot] = last[result.target.slot] = end
        for number, slot in enumerate(self.slots):
            span = (first[number], last[number]) if slot.kind in ("temp", "output") else (-1, end)
            self.slots[number] = replace(slot, first=span[0], last=span[1])
