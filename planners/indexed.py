"""Gather, scatter and scatter_add in the plan of a program: which memory they read and write.

A scatter writes the memory of the version before it, as an assign does, where that may be written and nobody reads it
later; else a copy of it. Indices are int64 in memory: others are cast by a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..ir import Atom, Eqn, Literal, Var
from ..kernels.cpu.abi import NEGATIVE_POWER
from ..kernels.guard import GuardProblem
from ..kernels.indexed import IndexArray, IndexedProblem
from ..kernels.random import RandomProblem
from ..kernels.sort import DTYPES as SORTED
from ..kernels.sort import SortProblem
from ..op_rules import BOOL, INDEX
from ..views import broadcast_shapes
from .places import MemoryView
from .placing import Done
from .request import NotLowered
from .single import SingleStep, operands

Schedule = Any  # `fusion.Schedule`, which imports this module


def gather(schedule: Schedule, eqn: Eqn) -> None:
    """The result lies as its operand does, the indices' axes in the place of the first one that they index."""
    (atom, *indices), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
    source, left = _fixed(schedule.place(atom), indices, axes)
    arrays = [schedule.place(_int64(schedule, index.atom)) for index in left]
    out = _in_order_of(schedule, var, source, [index.axis for index in left])
    problem = _problem("gather", source, out, arrays, left)
    add(schedule, var, "indexed", [source, *arrays], out, problem)


def scatter(schedule: Schedule, eqn: Eqn) -> None:
    """Of the new version: the old one, written in place or copied first."""
    (root, value, *indices), (var,), axes = eqn.inputs, eqn.outputs, eqn.named["axes"]
    place = schedule.place(root)
    done = schedule.done[var.number] = Done("write")
    if not schedule.cleared(place, place):
        place, _ = schedule.renewed(var, root, done, schedule.refusal(place, place, root))
    target, left = _fixed(place, indices, axes)
    arrays = [_apart(schedule, _int64(schedule, index.atom), target) for index in left]
    rest = tuple(target.view.shape[axis] for axis in _others(target, left))
    dense = _apart(schedule, value, target).broadcast((*_broadcast(arrays), *rest))
    problem = _problem(eqn.op, target, dense, arrays, left)
    done.target = place
    done.by.append(len(schedule.steps))
    add(schedule, var, "indexed", [dense, *arrays], target, problem, whole=place)


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


def guard_power(schedule: Schedule, eqn: Eqn) -> None:
    """A step that fails where an exponent is negative, which NumPy does not allow of integers."""
    exponent, size = eqn.inputs[1], prod(eqn.outputs[0].shape)
    if exponent.dtype.kind != "i" or not size or (isinstance(exponent, Literal) and exponent.value >= 0):
        return
    found = Var(next(schedule.extra), exponent.shape, BOOL)
    schedule.map(Eqn("lt", (exponent, Literal.of(0, exponent.dtype)), (found,)))
    if found.shape:
        some = Var(next(schedule.extra), (), BOOL)
        schedule.reduce(Eqn("any", (found,), (some,), (("axes", tuple(range(len(found.shape)))),)))
        found = some
    place = schedule.place(found)
    problem = GuardProblem(code=NEGATIVE_POWER, operands=operands(place, place))
    schedule.steps.append(
        SingleStep(at=len(schedule.steps), family="guard", inputs=[place], output=place, problem=problem)
    )


def add(
    schedule: Schedule,
    var: Var,
    family: str,
    inputs: list[MemoryView],
    output: MemoryView,
    problem: object,
    whole: MemoryView | None = None,
) -> None:
    """Appends a step that makes a value; ``whole``: of which it writes the output, a part."""
    step = SingleStep(
        at=len(schedule.steps), family=family, inputs=inputs, output=output, problem=problem, updates=whole is not None
    )
    schedule.steps.append(step)
    schedule.settle(var, output if whole is None else whole, step.at)


def _apart(schedule: Schedule, atom: Atom, target: MemoryView) -> MemoryView:
    """Where a value lies that is read while ``target`` is written; a copy of it where it lies there."""
    place = schedule.place(atom)
    return schedule.place(schedule.aside(atom)) if place.overlaps(target) else place


@dataclass(frozen=True, kw_only=True)
class _Index:
    """An index array, the axis that it is of, and its number among those of the equation."""

    atom: Atom
    axis: int
    number: int


def _fixed(place: MemoryView, indices: list[Atom], axes: tuple[int, ...]) -> tuple[MemoryView, list[_Index]]:
    """The part of a place that indices which are numbers choose, and the other indices of that, at least one."""
    shape = place.view.shape
    chosen = {
        axis: int(atom.value)
        for axis, atom in zip(axes, indices)
        if isinstance(atom, Literal) and -shape[axis] <= atom.value < shape[axis]
    }
    if len(chosen) == len(axes):
        chosen.pop(axes[0])
    part = place.view.index(tuple(chosen.get(axis, slice(None)) for axis in range(len(shape))))
    left = [
        _Index(atom=indices[number], axis=axis - sum(gone < axis for gone in chosen), number=number)
        for number, axis in enumerate(axes)
        if axis not in chosen
    ]
    return MemoryView(place.memory, part), left


def _int64(schedule: Schedule, atom: Atom) -> Atom:
    if atom.dtype == INDEX:
        return atom
    var = Var(next(schedule.extra), atom.shape, INDEX)
    schedule.map(Eqn("cast", (atom,), (var,)))
    return var


def _others(place: MemoryView, left: list[_Index]) -> list[int]:
    """The axes that have no index array."""
    axes = {index.axis for index in left}
    return [axis for axis in range(len(place.view.shape)) if axis not in axes]


def _broadcast(arrays: list[MemoryView]) -> tuple[int, ...]:
    return broadcast_shapes(*(place.view.shape for place in arrays))


def _in_order_of(schedule: Schedule, var: Var, source: MemoryView, axes: list[int]) -> MemoryView:
    """Memory for a gather's result: the axes of the source that stay are where they were before the indexed ones."""
    rest = [axis for axis in range(len(source.view.shape)) if axis not in axes]
    width = len(var.shape) - len(rest)
    before = sum(axis < axes[0] for axis in rest)
    order = [*range(width, width + before), *range(width), *range(width + before, len(var.shape))]
    memory = schedule.new(tuple(var.shape[axis] for axis in order), var.dtype)
    back = sorted(range(len(order)), key=order.__getitem__)
    return MemoryView(memory.memory, memory.view.transpose(back))


def _problem(
    op: str, indexed: MemoryView, dense: MemoryView, arrays: list[MemoryView], left: list[_Index]
) -> IndexedProblem:
    shape, strides = indexed.view.shape, indexed.view.strides
    named = _broadcast(arrays)
    wide = [place.broadcast(named) for place in arrays]
    order = (dense, indexed) if op == "gather" else (indexed, dense)
    others = _others(indexed, left)
    return IndexedProblem(
        op=op,
        dtype=indexed.dtype,
        arrays=tuple(IndexArray(size=shape[i.axis], step=strides[i.axis], axis=i.number) for i in left),
        loops=tuple(
            (n, dense.view.strides[at], *(place.view.strides[at] for place in wide)) for at, n in enumerate(named)
        ),
        rest=tuple((shape[a], strides[a], dense.view.strides[len(named) + at]) for at, a in enumerate(others)),
        operands=operands(*order, *wide),
    )
