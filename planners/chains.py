"""Einsums of einsums as one contraction with the same steps, so that what lies between them is laid out by the solver.

>>> from ..ir import Aval, Builder
>>> import numpy as np
>>> build = Builder()
>>> a, b, c = (build.input(Aval((4, 4), np.dtype(float))) for _ in range(3))
>>> (x,) = build.emit("einsum", (a, b), subscripts="ij,jk->ik")
>>> (y,) = build.emit("einsum", (c, x), subscripts="ki,ij->jk")
>>> found, orders = chained(build.finish([a, b, c], [y]))
>>> print(found.eqns[0])
%4: float64[4,4] = einsum %2 %0 %1 {subscripts='ab,bc,cd->da'}
>>> [order.path for order in orders.values()]
[((1, 2), (0, 1))]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from ..expr import Expr, letters, parse, spelled
from ..ir import Atom, Eqn, Program, Var
from ..ops import OPS, WRITES
from .order import Order, find_order

MOST_OPERANDS = 16  # of a contraction that einsums are put together to
Ids = tuple[tuple[int, ...], ...]  # the steps of an order: operands by number, then results


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """A contraction: its operands, what their indices are called, and its steps."""

    atoms: tuple[Atom, ...]
    terms: tuple[tuple, ...]
    output: tuple
    steps: Ids
    flops: int
    largest: int


def chained(program: Program) -> tuple[Program, dict[int, Order]]:
    """The program with einsums put into the one einsum that reads them, and orders by number of their results."""
    uses = Counter(atom.number for eqn in program.eqns for atom in eqn.inputs if isinstance(atom, Var))
    uses.update(atom.number for atom in program.outputs if isinstance(atom, Var))
    open_chains: dict[int, _Chain] = {}  # by number of the result, those that may still be put into another
    eqns: list[Eqn] = []
    places: dict[int, int] = {}
    orders: dict[int, Order] = {}
    for eqn in program.eqns:
        if eqn.op in WRITES or OPS[eqn.op].kind == "control":
            open_chains.clear()  # operands are not read later than they were, behind a write
        if not _is_plain(eqn):
            eqns.append(eqn)
            continue
        (var,) = eqn.outputs
        found = _chain(eqn)
        for atom in eqn.inputs:
            inner = open_chains.get(atom.number) if isinstance(atom, Var) else None
            if inner is None or uses[atom.number] != 1 or len(found.atoms) + len(inner.atoms) > MOST_OPERANDS + 1:
                continue
            found = _put(found, found.atoms.index(atom), inner)
            eqns[places.pop(atom.number)] = None
            orders.pop(atom.number, None)
        if len(found.atoms) != len(eqn.inputs) or found.atoms != eqn.inputs:
            eqn, orders[var.number] = _equation(eqn, found)
        open_chains[var.number], places[var.number] = found, len(eqns)
        eqns.append(eqn)
    if not orders:
        return program, {}
    return replace(program, eqns=tuple(eqn for eqn in eqns if eqn is not None)), orders


def _is_plain(eqn: Eqn) -> bool:
    """Whether an equation is an einsum that kernels run, in the dtype of its operands."""
    if eqn.op != "einsum" or eqn.outputs[0].dtype.name in ("float16", "bfloat16"):
        return False
    if any(0 in atom.shape for atom in eqn.inputs):
        return False
    output = parsed(eqn.named["subscripts"], tuple(atom.shape for atom in eqn.inputs)).output
    return len(set(output)) == len(output)


@lru_cache(maxsize=512)
def parsed(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> Expr:
    """`parse`, remembered."""
    return parse(subscripts, shapes)


@lru_cache(maxsize=512)
def order_of(expr: Expr) -> Order:
    """The order of an expression of its own."""
    return find_order([tuple(dict.fromkeys(term)) for term in expr.inputs], expr.output, expr.sizes, text=expr.text)


def _chain(eqn: Eqn) -> _Chain:
    expr = parsed(eqn.named["subscripts"], tuple(atom.shape for atom in eqn.inputs))
    order = order_of(expr)
    name = eqn.outputs[0].number
    steps, current = [], list(range(len(eqn.inputs)))
    for group in order.path:
        chosen = [current.pop(place) for place in sorted(group, reverse=True)][::-1]
        current.append(len(eqn.inputs) + len(steps))
        steps.append(tuple(chosen))
    return _Chain(
        atoms=eqn.inputs,
        terms=tuple(tuple((name, index) for index in term) for term in expr.inputs),
        output=tuple((name, index) for index in expr.output),
        steps=tuple(steps),
        flops=order.flops,
        largest=order.largest,
    )


def _put(outer: _Chain, place: int, inner: _Chain) -> _Chain:
    """``inner`` instead of the operand of ``outer`` at ``place``: its steps come first."""
    kept = [at for at in range(len(outer.atoms)) if at != place]
    count = len(kept) + len(inner.atoms)
    names = dict(zip(inner.output, outer.terms[place]))
    mine = {at: len(kept) + at for at in range(len(inner.atoms))}
    mine |= {len(inner.atoms) + at: count + at for at in range(len(inner.steps))}
    result = count + len(inner.steps) - 1 if inner.steps else mine[0]
    others = {old: new for new, old in enumerate(kept)} | {place: result}
    others |= {len(outer.atoms) + at: count + len(inner.steps) + at for at in range(len(outer.steps))}
    steps = [tuple(mine[i] for i in step) for step in inner.steps]
    steps += [tuple(others[i] for i in step) for step in outer.steps]
    terms = [outer.terms[at] for at in kept] + [tuple(names.get(i, i) for i in term) for term in inner.terms]
    return _Chain(
        atoms=(*(outer.atoms[at] for at in kept), *inner.atoms),
        terms=tuple(terms),
        output=outer.output,
        steps=tuple(steps),
        flops=outer.flops + inner.flops,
        largest=max(outer.largest, inner.largest),
    )


def _equation(eqn: Eqn, found: _Chain) -> tuple[Eqn, Order]:
    numbers = {index: at for at, index in enumerate(dict.fromkeys(chain(*found.terms, found.output)))}
    letter = letters(numbers.values())
    subscripts = spelled(found.terms, found.output, {index: letter[at] for index, at in numbers.items()})
    path, current = [], list(range(len(found.atoms)))
    for at, step in enumerate(found.steps):
        group = tuple(sorted(current.index(number) for number in step))
        current = [number for number in current if number not in step] + [len(found.atoms) + at]
        path.append(group)
    order = Order(path=tuple(path), flops=found.flops, largest=found.largest, optimizer="as written")
    return replace(eqn, inputs=found.atoms, params=(("subscripts", subscripts),)), order
