"""What branches and loop bodies take and return: no more than they need.

- An operand that is a literal, or stands twice, becomes known inside.
- A result that both branches take unchanged from one operand is that operand; a carried value that the body returns
  unchanged is no longer carried, but a plain input. So a root that a region does not write costs nothing.
- A root of which a region reads and writes only a part goes in as that part: an access before the region and, where it
  is written, an assign after it. The part is the view in which all others lie, or else the range from the first
  element to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ..ir import Atom, Eqn, Literal, Program, Var
from ..views import View
from .edit import Rewriter, has_regions, in_regions, renumbered, with_params


def regions(program: Program) -> Program:
    """The program with the operands and results of its conds and whiles made fewer and smaller."""
    if not any(map(has_regions, program.eqns)):
        return program
    edit = Rewriter(program)
    for given in program.eqns:
        eqn = in_regions(edit.renamed(given), regions)
        if eqn.op == "cond":
            eqn = _same_results(_known_operands(eqn), edit)
        elif eqn.op == "while":
            eqn = _known_operands(_unchanged(eqn, edit))
        _narrowed(eqn, edit) if eqn.op in ("cond", "while") else edit.keep(eqn)
    return edit.finish()


# -- operands and results ----------------------------------------------------------------------------------------------
def _bound(program: Program, known: dict[int, Atom]) -> Program:
    """The program with some inputs (by position) replaced by literals or by others of its inputs."""
    edit = Rewriter(program)
    for at, atom in known.items():
        edit.put(program.inputs[at], atom)
    for eqn in program.eqns:
        edit.keep(edit.renamed(eqn))
    inputs = [var for at, var in enumerate(program.inputs) if at not in known]
    return renumbered(inputs, [edit.now(atom) for atom in program.outputs], edit.eqns, program.consts)


def _known_operands(eqn: Eqn) -> Eqn:
    """Literals, and operands that stand twice, put into the programs."""
    skip = 1 if eqn.op == "cond" else 0
    fixed = range(eqn.named.get("carried", 0), len(eqn.inputs) - skip)
    first: dict[Atom, int] = {}
    twice: dict[int, int] = {}
    literals: dict[int, Literal] = {}
    for at in fixed:
        atom = eqn.inputs[skip + at]
        if isinstance(atom, Literal):
            literals[at] = atom
        elif first.setdefault(atom, at) != at:
            twice[at] = first[atom]
    if not twice and not literals:
        return eqn
    for name, program in eqn.programs():
        known = {**literals, **{at: program.inputs[other] for at, other in twice.items()}}
        eqn = with_params(eqn, **{name: _bound(program, known)})
    kept = [atom for at, atom in enumerate(eqn.inputs) if at < skip or at - skip not in {**literals, **twice}]
    return replace(eqn, inputs=tuple(kept))


def _same_results(eqn: Eqn, edit: Rewriter) -> Eqn:
    """Results of a cond that do not depend on the branch, or stand twice, taken out."""
    true, false = eqn.named["true"], eqn.named["false"]
    inputs = {(a, b): atom for a, b, atom in zip(true.inputs, false.inputs, eqn.inputs[1:])}
    first: dict[tuple[Atom, Atom], Var] = {}
    kept = []
    for at, (pair, out) in enumerate(zip(zip(true.outputs, false.outputs), eqn.outputs)):
        if pair in inputs:
            edit.put(out, inputs[pair])
        elif isinstance(pair[0], Literal) and pair[0] == pair[1]:
            edit.put(out, pair[0])
        elif first.setdefault(pair, out) != out:
            edit.put(out, first[pair])
        else:
            kept.append(at)
    if len(kept) == len(eqn.outputs):
        return eqn
    eqn = with_params(eqn, **{name: _returning(program, kept) for name, program in eqn.programs()})
    return replace(eqn, outputs=tuple(eqn.outputs[at] for at in kept))


def _returning(program: Program, outputs: Sequence[int]) -> Program:
    return replace(program, outputs=tuple(program.outputs[at] for at in outputs))


def _unchanged(eqn: Eqn, edit: Rewriter) -> Eqn:
    """Carried values of a while that its body returns as they are, made plain inputs."""
    body, count = eqn.named["body"], eqn.named["carried"]
    still = [at for at in range(count) if body.outputs[at] == body.inputs[at]]
    if not still:
        return eqn
    moved = [at for at in range(count) if at not in still]
    for at in still:
        edit.put(eqn.outputs[at], eqn.inputs[at])
    order = [*moved, *still, *range(count, len(eqn.inputs))]
    programs = {
        name: replace(program, inputs=tuple(program.inputs[at] for at in order)) for name, program in eqn.programs()
    }
    programs["body"] = _returning(programs["body"], moved)
    for name, program in programs.items():
        programs[name] = renumbered(program.inputs, program.outputs, program.eqns, program.consts)
    eqn = with_params(eqn, carried=len(moved), **programs)
    return replace(eqn, inputs=tuple(eqn.inputs[at] for at in order), outputs=tuple(eqn.outputs[at] for at in moved))


# -- roots of which a region needs a part ------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Family:
    """The versions of an input inside one program: what is read and written of them, and the outputs they are."""

    members: frozenset[int]
    views: tuple[View, ...]
    outputs: frozenset[int]


def _family(program: Program, at: int) -> _Family | None:
    """The versions of input ``at``; None where one of them is used whole."""
    members, views = {program.inputs[at].number}, []
    for eqn in program.eqns:
        used = [place for place, atom in enumerate(eqn.inputs) if isinstance(atom, Var) and atom.number in members]
        if not used:
            continue
        if used != [0] or eqn.op not in ("access", "assign"):
            return None
        views.append(eqn.named["view"])
        if eqn.op == "assign":
            members.add(eqn.outputs[0].number)
    outputs = {k for k, atom in enumerate(program.outputs) if isinstance(atom, Var) and atom.number in members}
    return _Family(frozenset(members), tuple(views), frozenset(outputs))


def _hull(views: Sequence[View], size: int) -> View | None:
    """A view in which all lie, if it is not the whole root of ``size`` elements: one of them, or a range."""
    bounds = [view.bounds() for view in views if view.size]
    if not bounds:
        return None
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    around = View((high - low + 1,), (1,), low)
    for hull in (*sorted(dict.fromkeys(views), key=lambda view: -view.size), around):
        if hull.size < size and hull.injective() and all(view.within(hull) is not None for view in views):
            return hull
    return None


def _narrowed(eqn: Eqn, edit: Rewriter) -> None:
    """Keep the equation, with parts of roots in the place of roots where it needs no more."""
    skip, carried = (1, None) if eqn.op == "cond" else (0, eqn.named["carried"])
    later: list[Eqn] = []
    for at, root in enumerate(eqn.inputs[skip:]):
        if isinstance(root, Literal):
            continue
        families = {name: _family(program, at) for name, program in eqn.programs()}
        written = _written(families, at, carried)
        if written is None:
            continue
        views = [view for family in families.values() for view in family.views]
        hull = _hull(views, prod(root.shape))
        if hull is None:
            continue
        (operand,) = edit.emit("access", (root,), eqn.where, view=hull)
        inputs = list(eqn.inputs)
        inputs[skip + at] = operand
        changed = {name: _on_part(program, families[name], hull) for name, program in eqn.programs()}
        eqn = replace(with_params(eqn, **changed), inputs=tuple(inputs))
        outer = list(eqn.outputs)
        for k in written:
            outer[k] = edit.var(hull.shape, root.dtype)
            params = (("view", hull),)
            later.append(Eqn("assign", (root, outer[k]), (eqn.outputs[k],), params, eqn.where))
        eqn = replace(eqn, outputs=tuple(outer))
    for made in (eqn, *later):
        edit.keep(made)


def _written(families: dict[str, _Family | None], at: int, carried: int | None) -> list[int] | None:
    """The results that are versions of an input in all branches, or in the body; None where it cannot be narrowed."""
    if any(family is None for family in families.values()):
        return None
    if carried is None:
        one, two = (family.outputs for family in families.values())
        return sorted(one) if one == two else None
    if families["test"].outputs or families["body"].outputs != ({at} if at < carried else set()):
        return None
    return sorted(families["body"].outputs)


def _on_part(program: Program, family: _Family, hull: View) -> Program:
    """The program with the part ``hull`` in the place of a root, for all versions of it."""

    def small(atom: Atom) -> Atom:
        if isinstance(atom, Var) and atom.number in family.members:
            return Var(atom.number, hull.shape, atom.dtype)
        return atom

    eqns = []
    for eqn in program.eqns:
        if isinstance(first := next(iter(eqn.inputs), None), Var) and first.number in family.members:
            eqn = with_params(eqn, view=eqn.named["view"].within(hull))
        inputs, outputs = tuple(map(small, eqn.inputs)), tuple(map(small, eqn.outputs))
        eqns.append(replace(eqn, inputs=inputs, outputs=outputs))
    return replace(
        program,
        inputs=tuple(map(small, program.inputs)),
        outputs=tuple(map(small, program.outputs)),
        eqns=tuple(eqns),
    )
