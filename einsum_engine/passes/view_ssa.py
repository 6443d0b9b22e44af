"""Fewer accesses and assigns: each value is read where it was made, and written once.

Tracing has lowered views to `access` of the latest version of a root and writes to `assign` of the next one (the RFC's
pass-up and pass-down). Here what that says twice goes, by exact analysis of the view tuples:

- an access of an access is one, of the whole is the value; of a part of a concatenate that one operand gives, it is of
  that operand; of an assign it is an access of what was written where it lies inside, and of the version before where the
  two do not overlap;
- writes to disjoint parts that together write everything start from zeros, whatever they started from: nothing of that
  is left;
- an assign of the whole root is the value, in the order of the root; one that writes all that an earlier one wrote
  starts from the version before that; one that writes what stands there already is nothing;
- a copy is the value, since values do not change; but one of a version that is written in place later stays: it can be
  taken before the write, by the step that needs it.

An access that overlaps a write without lying inside stays. So does one of an access where the places have no constant
strides. `View.overlaps`, `within` and `contains` say where they are conservative.
"""

from __future__ import annotations

from math import prod

from ..buildup import chains
from ..ir import Atom, Eqn, Literal, Program, Var
from ..ops import OPS, WRITES
from ..views import View, broadcast_shapes
from .edit import Rewriter, in_regions


def view_ssa(program: Program) -> Program:
    """The program with accesses and assigns simplified, those of branches and loop bodies too."""
    return _Views(program).run()


class _Views:
    def __init__(self, program: Program) -> None:
        self.edit = Rewriter(program)
        self.reads: dict[tuple[Atom, View], Atom] = {}
        self.written = {
            atom.number
            for eqn in program.eqns
            for atom in (eqn.inputs[:1] if eqn.op in WRITES else eqn.inputs if eqn.programs() else ())
            if isinstance(atom, Var)
        }
        roots = {var.number for eqn in program.eqns if not _fills(eqn) for var in eqn.outputs}
        self.begun = {  # versions from which on writes build up an array whose root is not needed
            chain[0].outputs[0].number for chain in chains(program) if _number(chain[0].inputs[0]) in roots
        }

    def is_written(self, *atoms: Atom) -> bool:
        """Whether one of the values is a version from which an equation makes another."""
        return any(isinstance(atom, Var) and atom.number in self.written for atom in atoms)

    def run(self) -> Program:
        for given in self.edit.program.eqns:
            eqn = in_regions(self.edit.renamed(given), view_ssa)
            if eqn.op == "access":
                self.edit.put(eqn.outputs[0], self.read(eqn.inputs[0], eqn.named["view"], eqn))
            elif eqn.op == "copy" and not self.is_written(given.inputs[0], eqn.inputs[0]):
                self.edit.put(eqn.outputs[0], eqn.inputs[0])
            elif eqn.op == "assign":
                self.assign(eqn)
            elif OPS[eqn.op].kind == "map":
                self.edit.keep(self.unbroadcast(eqn))
            else:
                self.edit.keep(eqn)
        return self.edit.finish()

    # -- reading
    def read(self, atom: Atom, view: View, eqn: Eqn) -> Atom:
        """The value of ``access atom``, emitted where it is not there yet; the result of ``eqn``, if possible."""
        atom, view = self.resolved(atom, view)
        if view.is_whole(atom.shape):
            return atom
        key = (atom, view.canonical())
        if key not in self.reads:
            if eqn.op == "access" and eqn.inputs[0] == atom and eqn.named["view"] == view:
                self.edit.keep(eqn)
                self.reads[key] = eqn.outputs[0]
            else:
                (self.reads[key],) = self.edit.emit("access", (atom,), eqn.where, view=view)
        return self.reads[key]

    def resolved(self, atom: Atom, view: View) -> tuple[Atom, View]:
        """The earliest value, and its view, that holds the same elements."""
        while isinstance(atom, Var) and atom.number in self.edit.defs:
            eqn = self.edit.defs[atom.number]
            step = None
            if eqn.op == "access":
                found = eqn.named["view"].then(view)
                step = None if found is None else (eqn.inputs[0], found)
            elif eqn.op == "assign":
                step = self.through_assign(eqn, view)
            elif eqn.op == "concatenate":
                step = through_concatenate(eqn, view)
            if step is None:
                break
            atom, view = step
        return atom, view

    def through_assign(self, eqn: Eqn, view: View) -> tuple[Atom, View] | None:
        (root, value), written = eqn.inputs, eqn.named["view"]
        if not written.overlaps(view):
            return root, view
        inner = view.within(written)
        found = None if inner is None else spread(value, written.shape).then(inner)
        return None if found is None else (value, found)

    # -- writing
    def assign(self, eqn: Eqn) -> None:
        (root, value), view, out = eqn.inputs, eqn.named["view"], eqn.outputs[0]
        if out.number in self.begun:
            zero, nowhere = Literal.of(0, root.dtype), View.whole(()).broadcast(root.shape)
            (root,) = self.edit.emit("access", (zero,), eqn.where, view=nowhere)
        while (before := self.written_over(root, view)) is not None:
            root = before
        value = self.before_broadcast(value, view.shape)
        if self.stands_there(root, value, view):
            self.edit.put(out, root)
        elif (atom := self.all_written(root, value, view, eqn)) is not None:
            self.edit.put(out, atom)
        else:
            self.edit.keep(Eqn("assign", (root, value), eqn.outputs, eqn.params, eqn.where))

    def written_over(self, root: Atom, view: View) -> Atom | None:
        """The version before ``root``, where all that made it one is written over by ``view``."""
        made = self.edit.defs.get(root.number) if isinstance(root, Var) else None
        if made is None or made.op != "assign" or not view.contains(made.named["view"]):
            return None
        return made.inputs[0]

    def stands_there(self, root: Atom, value: Atom, view: View) -> bool:
        """Whether the elements of the view are ``value`` already."""
        if view.size == 0:
            return True
        if value.shape != view.shape:
            return False
        (one, first), (two, second) = self.resolved(root, view), self.resolved(value, View.whole(value.shape))
        return one == two and first.canonical() == second.canonical()

    def all_written(self, root: Atom, value: Atom, view: View, eqn: Eqn) -> Atom | None:
        """The new version, where nothing of the old one is left and the value is a view of it."""
        if not view.covers(prod(root.shape)):
            return None
        places = View.whole(root.shape).within(view)
        found = None if places is None else spread(value, view.shape).then(places)
        return None if found is None else self.read(value, found, eqn)

    # -- operands that broadcast by themselves
    def before_broadcast(self, atom: Atom, shape: tuple[int, ...]) -> Atom:
        """What ``atom`` is a broadcast of, if it broadcasts to ``shape`` as well."""
        made = self.edit.defs.get(atom.number) if isinstance(atom, Var) else None
        if made is None or made.op != "access":
            return atom
        source, view = made.inputs[0], made.named["view"]
        if len(source.shape) > len(shape) or not broadcasts(source.shape, view.shape):
            return atom
        return source if spread(source, view.shape).canonical() == view.canonical() else atom

    def unbroadcast(self, eqn: Eqn) -> Eqn:
        """A map whose operands are not broadcast before, where others give the result its shape."""
        inputs, shape = list(eqn.inputs), eqn.outputs[0].shape
        for at, atom in enumerate(eqn.inputs):
            source = self.before_broadcast(atom, shape)
            if source is atom:
                continue
            others = [*inputs[:at], source, *inputs[at + 1 :]]
            if broadcast_shapes(*(other.aval.shape for other in others)) == shape:
                inputs = others
        return eqn if tuple(inputs) == eqn.inputs else Eqn(eqn.op, tuple(inputs), eqn.outputs, eqn.params, eqn.where)


def through_concatenate(eqn: Eqn, view: View) -> tuple[Atom, View] | None:
    """The operand in which all of ``view``, of the result, lies, and its view."""
    axis, start = eqn.named["axis"], 0
    for atom in eqn.inputs:
        stop = start + atom.shape[axis]
        part = View.whole(eqn.outputs[0].shape).index((slice(None),) * axis + (slice(start, stop),))
        if part.overlaps(view):
            found = view.within(part)
            return None if found is None else (atom, found)
        start = stop
    return None


def _number(atom: Atom) -> int:
    return atom.number if isinstance(atom, Var) else -1


def _fills(eqn: Eqn) -> bool:
    """Whether an equation repeats a number."""
    return eqn.op == "access" and isinstance(eqn.inputs[0], Literal)


def spread(atom: Var | Literal, shape: tuple[int, ...]) -> View:
    """The view of ``atom`` that broadcasts it to ``shape``."""
    return View.whole(atom.shape).broadcast(shape)


def broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether ``shape`` broadcasts to ``wide``."""
    return len(shape) <= len(wide) and all(n in (1, m) for n, m in zip(shape[::-1], wide[::-1]))
