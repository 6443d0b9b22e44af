"""Arrays that are built up by assigns to disjoint parts, one after the other, until nothing of the root is left."""

from __future__ import annotations

from math import prod

from .ir import Eqn, Program, Var


def chains(program: Program) -> list[tuple[Eqn, ...]]:
    """The assigns that build up an array each, in order. Only the next of them reads the version that one makes.

    So the root of the first need not have any elements, unless the last belongs in its memory.
    """
    if not any([eqn.op == "assign" for eqn in program.eqns]):
        return []
    users: dict[int, list[tuple[Eqn, int]]] = {}
    for eqn in program.eqns:
        for operand, atom in enumerate(eqn.inputs):
            if isinstance(atom, Var):
                users.setdefault(atom.number, []).append((eqn, operand))
    returned = {atom.number for atom in program.outputs if isinstance(atom, Var)}
    seen: set[int] = set()  # versions within chains
    found = []
    for eqn in program.eqns:
        if eqn.op != "assign" or eqn.outputs[0].number in seen:
            continue
        if chain := _chain(eqn, users, returned):
            seen.update(each.outputs[0].number for each in chain)
            found.append(chain)
    return found


def _chain(eqn: Eqn, users: dict[int, list[tuple[Eqn, int]]], returned: set[int]) -> tuple[Eqn, ...]:
    """The assigns from this one to that which writes the last elements; nothing if they do not get so far."""
    chain, views, size = [eqn], [eqn.named["view"]], prod(eqn.outputs[0].shape)
    if not all(view.injective() for view in views):
        return ()
    while sum(view.size for view in views) < size:
        number = eqn.outputs[0].number
        if number in returned or len(users.get(number, ())) != 1:
            return ()
        ((eqn, operand),) = users[number]
        if eqn.op != "assign" or operand != 0:
            return ()
        view = eqn.named["view"]
        if not view.injective() or any(view.overlaps(other) for other in views):
            return ()
        chain.append(eqn)
        views.append(view)
    return tuple(chain)
