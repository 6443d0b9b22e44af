"""Gather, scatter and scatter_add in the plan of a program: which memory they read and write.

A scatter writes the memory of the version before it, as an assign does, where that may be written and nobody reads it
later; else a copy of it. Indices are int64 in memory: others are cast by a map.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..ir import Atom, Eqn, Var
from ..kernels.indexed import IndexArray, IndexedProblem
from ..kernels.random import RandomProblem
from ..kernels.sort import DTYPES as SORTED
from ..kernels.sort import SortProblem
from ..op_rules import INDEX
from .places import MemoryView
from .request import NotLowered
from .single import SingleStep, operands

if TYPE_CHECKING:
    from .fusion import Schedule


def gather(schedule: Schedule, eqn: Eqn) -> None:
    """The result lies as its operand does, the indices' axes in the place of the first one that they index."""
    (atom, *indices), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
    source = schedule.place(atom)
    arrays = index_places(schedule, indices)
    out = _in_order_of(schedule, var, source, axes)
    problem = _problem("gather", source, out, arrays, axes)
    add(schedule, var, "indexed", [source, *arrays], out, problem)


def scatter(schedule: Schedule, eqn: Eqn) -> None:
    """Of the new version: the old one, written in place or copied first."""
    (root, value, *indices), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
    place = schedule.place(root)
    if not schedule.overwritable(place, place):
        place = schedule.new(var.shape, var.dtype)
        schedule.write(root, place, -1)
    arrays = [apart(schedule, atom, place) for atom in _as_indices(schedule, indices)]
    rest = tuple(n for axis, n in enumerate(var.shape) if axis not in axes)
    dense = apart(schedule, value, place).broadcast((*_broadcast(arrays), *rest))
    problem = _problem(eqn.op, place, dense, arrays, axes)
    add(schedule, var, "indexed", [dense, *arrays], place, problem, updates=True)


def random(schedule: Schedule, eqn: Eqn) -> None:
    """Words of the key's stream, or uniform numbers made of them."""
    (key,), (var,) = eqn.inputs, eqn.outputs
    source, out = schedule.place(key), schedule.new(var.shape, var.dtype)
    stream = eqn.named.get("stream", 0 if eqn.op == "random_bits" else 1)
    problem = RandomProblem(
        dtype=var.dtype.name,
        count=prod(var.shape),
        stream=stream,
        key_step=source.view.strides[0],
        operands=operands(out, source),
    )
    add(schedule, var, "random", [source], out, problem)


def sort(schedule: Schedule, eqn: Eqn) -> None:
    """Lines along an axis, or their indices, in ascending order."""
    (atom,), (var,), axis = eqn.inputs, eqn.outputs, eqn.named["axis"]
    if atom.dtype.name not in SORTED:
        raise NotLowered(f"there is no kernel for {eqn.op} of {atom.dtype}")
    source, out = schedule.place(atom), schedule.new(var.shape, var.dtype)
    loops = tuple(zip(var.shape, source.view.strides, out.view.strides))
    axis %= max(len(loops), 1)
    problem = SortProblem(
        dtype=atom.dtype.name,
        order=eqn.op == "argsort",
        line=loops[axis],
        lines=tuple(loop for at, loop in enumerate(loops) if at != axis and loop[0] != 1),
        operands=operands(out, source),
    )
    add(schedule, var, "sort", [source], out, problem)


def add(
    schedule: Schedule,
    var: Var,
    family: str,
    inputs: list[MemoryView],
    output: MemoryView,
    problem: object,
    updates: bool = False,
) -> None:
    """Appends a step that makes a value."""
    step = SingleStep(
        at=len(schedule.steps), family=family, inputs=inputs, output=output, problem=problem, updates=updates
    )
    schedule.steps.append(step)
    schedule.settle(var, output, step.at)


def apart(schedule: Schedule, atom: Atom, target: MemoryView) -> MemoryView:
    """Where a value lies that is read while ``target`` is written; a copy of it where it lies there."""
    place = schedule.place(atom)
    return schedule.place(schedule.aside(atom)) if place.overlaps(target) else place


def index_places(schedule: Schedule, indices: list[Atom]) -> list[MemoryView]:
    return [schedule.place(atom) for atom in _as_indices(schedule, indices)]


def _as_indices(schedule: Schedule, indices: list[Atom]) -> list[Atom]:
    found = []
    for atom in indices:
        if atom.dtype != INDEX:
            var = Var(next(schedule.extra), atom.shape, INDEX)
            group = schedule.candidate(var.shape, [atom], lambda group: True)
            schedule.member(group, var, "cast", (atom,))
            atom = var
        found.append(atom)
    return found


def _broadcast(arrays: list[MemoryView]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(place.view.shape for place in arrays))


def _in_order_of(schedule: Schedule, var: Var, source: MemoryView, axes: tuple[int, ...]) -> MemoryView:
    """Memory for a gather's result: the axes of the source that stay are where they were before the indexed ones."""
    rest = [axis for axis in range(len(source.view.shape)) if axis not in axes]
    width = len(var.shape) - len(rest)
    before = sum(axis < axes[0] for axis in rest)
    order = [*range(width, width + before), *range(width), *range(width + before, len(var.shape))]
    memory = schedule.new(tuple(var.shape[axis] for axis in order), var.dtype)
    back = sorted(range(len(order)), key=order.__getitem__)
    return MemoryView(memory.memory, memory.view.transpose(back))


def _problem(
    op: str, indexed: MemoryView, dense: MemoryView, arrays: list[MemoryView], axes: tuple[int, ...]
) -> IndexedProblem:
    shape, strides = indexed.view.shape, indexed.view.strides
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    named = _broadcast(arrays)
    wide = [place.broadcast(named) for place in arrays]
    order = (dense, indexed) if op == "gather" else (indexed, dense)
    return IndexedProblem(
        op=op,
        dtype=indexed.dtype,
        arrays=tuple(IndexArray(size=shape[axis], step=strides[axis]) for axis in axes),
        loops=tuple(
            (n, dense.view.strides[at], *(place.view.strides[at] for place in wide)) for at, n in enumerate(named)
        ),
        rest=tuple((shape[a], strides[a], dense.view.strides[len(named) + at]) for at, a in enumerate(rest)),
        operands=operands(*order, *wide),
    )
