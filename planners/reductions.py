"""Reductions of a few entries in the plan of a program: as maps of these, which join the steps around them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..ir import Atom, Eqn, Var
from ..views import View
from .placing import Done

Schedule = Any  # `fusion.Schedule`, which imports this module

SMALL = 4096  # elements of a step's loops up to which maps that share nothing are put together
FEW = 4  # entries

# Primitive -> the map of two values that does the same.
MAPS = {
    "sum": "add",
    "prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "any": "bit_or",
    "all": "bit_and",
}
_BOOLEAN = {"reduce_max": "any", "reduce_min": "all"}


def few(schedule: Schedule, atom: Atom, axes: tuple[int, ...]) -> bool:
    """Whether a reduction of memory has so few entries, and so many results, that it is better done as maps."""
    size = prod(atom.shape[axis] for axis in axes)
    if not 1 < size <= FEW or prod(atom.shape) <= SMALL * size:
        return False
    return not schedule.is_number(atom) and atom.number in schedule.places


def unrolled(schedule: Schedule, eqn: Eqn) -> None:
    """The reduction as maps of its entries, two by two."""
    (atom,), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
    op = _BOOLEAN.get(eqn.op, eqn.op) if atom.dtype == bool else eqn.op
    whole, parts = View.whole(atom.shape), []
    for entry in np.ndindex(*(atom.shape[axis] for axis in axes)):
        at = dict(zip(axes, entry))
        index = tuple(at.get(axis, slice(None)) for axis in range(whole.ndim))
        parts.append(Var(next(schedule.extra), var.shape, var.dtype))
        schedule.settle(parts[-1], schedule.places[atom.number].part(whole.index(index)), schedule.ready[atom.number])
        schedule.done[parts[-1].number] = Done("view")
    while len(parts) > 1:
        one = var if len(parts) == 2 else Var(next(schedule.extra), var.shape, var.dtype)
        pair = (parts.pop(0), parts.pop(0))
        schedule.member(schedule.candidate(var.shape, list(pair), lambda group: True), one, MAPS[op], pair)
        parts.append(one)
