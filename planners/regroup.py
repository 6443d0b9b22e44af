"""Chains of one operation whose order makes no difference: operands of few elements are combined first.

NumPy takes `(columns & rows) & other_rows` as it is written, and broadcasts first. Bitwise operations, and sums and
products of integers, which wrap around, give the same bits in any order. So what does not depend on all loops of a
chain is combined before, in a step of its own, and not for every element. Floats stay as they are written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from math import prod

from ..ir import Atom, Eqn, Program, Var
from ..ops import OPS, WRITES
from ..views import broadcast_shapes
from .expand import Build
from .reductions import SMALL

MOST = 16  # operands of a chain
_KINDS = {  # of dtypes on which an operation may be regrouped
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), "biu"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), "b"),
    **dict.fromkeys(("add", "mul", "min", "max"), "iu"),
}


@lru_cache(maxsize=256)
def regrouped(program: Program) -> Program:
    """The program with such chains regrouped where that saves more than `SMALL` elements.

    >>> import numpy as np
    >>> from ..ir import Aval, Builder
    >>> build = Builder()
    >>> a, b, c = (build.input(Aval(shape, np.dtype(bool))) for shape in ((1, 99, 99), (99, 1, 99), (99, 1, 99)))
    >>> (x,) = build.emit("bit_and", (a, b))
    >>> found = regrouped(build.finish([a, b, c], build.emit("bit_and", (x, c))))
    >>> print(*(f"{eqn.outputs[0].shape} {eqn}" for eqn in found.check().eqns), sep="; ")
    (99, 1, 99) %5: bool[99,1,99] = bit_and %1 %2; (99, 99, 99) %4: bool[99,99,99] = bit_and %0 %5
    """
    found = _chains(program)
    if not found:
        return program
    gone = {number for _, links in found.values() for number in links}
    numbers = [var.number for var in (*program.inputs, *(var for var, _ in program.consts))]
    numbers += [var.number for eqn in program.eqns for var in eqn.outputs]
    build = Build(1 + max(numbers))
    for eqn in program.eqns:
        number = eqn.outputs[0].number if eqn.outputs else -1
        build.where = eqn.where
        if number in found:
            _combine(build, eqn, found[number][0])
        elif number not in gone:
            build.eqns.append(eqn)
    return replace(program, eqns=tuple(build.eqns))


def _chains(program: Program) -> dict[int, tuple[list[Atom], list[int]]]:
    """By number of the last result of a chain that is worth it: what is combined, and the results in between."""
    uses = Counter(atom.number for eqn in program.eqns for atom in eqn.inputs if isinstance(atom, Var))
    uses.update(atom.number for atom in program.outputs if isinstance(atom, Var))
    chains: dict[int, tuple[str, list[Atom], list[int]]] = {}
    for eqn in program.eqns:
        if eqn.op in WRITES or OPS[eqn.op].kind == "control":
            # operands are not read later than they were, behind a write
            chains = {number: ("", *chain[1:]) for number, chain in chains.items()}
        if not _is_link(eqn):
            continue
        atoms: list[Atom] = []
        links: list[int] = []
        for atom in eqn.inputs:
            op, inner, between = chains.get(_number(atom), ("", [], []))
            if op == eqn.op and uses[atom.number] == 1:
                atoms += inner
                links += [*between, atom.number]
                del chains[atom.number]
            else:
                atoms.append(atom)
        chains[eqn.outputs[0].number] = eqn.op, atoms, links
    shapes = {eqn.outputs[0].number: eqn.outputs[0].shape for eqn in program.eqns if eqn.outputs}
    return {
        number: (atoms, links)
        for number, (_, atoms, links) in chains.items()
        if links and len(atoms) <= MOST and _saves(atoms, [shapes[n] for n in (*links, number)])
    }


def _number(atom: Atom) -> int:
    return atom.number if isinstance(atom, Var) else -1


def _is_link(eqn: Eqn) -> bool:
    if len(eqn.inputs) != 2 or eqn.params or len(eqn.outputs) != 1:
        return False
    dtypes = {atom.dtype for atom in (*eqn.inputs, *eqn.outputs)}
    return len(dtypes) == 1 and dtypes.pop().kind in _KINDS.get(eqn.op, "")


def _saves(atoms: list[Atom], made: list[tuple[int, ...]]) -> bool:
    """Whether a chain that computes arrays of these shapes computes fewer elements when it is regrouped."""
    shapes, now = [atom.shape for atom in atoms], 0
    while len(shapes) > 1:
        *pair, shape = _next(shapes)
        shapes = [*(each for at, each in enumerate(shapes) if at not in pair), shape]
        now += prod(shape)
    return now + SMALL < sum(map(prod, made))


def _next(shapes: list[tuple[int, ...]]) -> tuple[int, int, tuple[int, ...]]:
    """The two, of several, whose combination has the fewest elements, and its shape."""
    pairs = ((i, j, broadcast_shapes(shapes[i], shapes[j])) for j in range(len(shapes)) for i in range(j))
    return min(pairs, key=lambda pair: prod(pair[2]))


def _combine(build: Build, eqn: Eqn, atoms: list[Atom]) -> None:
    atoms = list(atoms)
    while len(atoms) > 1:
        i, j, _ = _next([atom.shape for atom in atoms])
        rest = [atom for at, atom in enumerate(atoms) if at not in (i, j)]
        atoms = [*rest, build(eqn.op, atoms[i], atoms[j], out=None if rest else eqn.outputs[0])]
