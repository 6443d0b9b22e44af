"""Contractions in parts, so that no table grows with a tensor.

A table has an entry for each element of a dimension, unless the kernel steps along it. A long dimension becomes two
loops with short tables where its length has a divisor. Where it has none (a prime), the contraction is planned in two
parts: as much of it as has one, and the rest. Only between short dimensions is that worth it: beside long ones,
each entry of a table addresses much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Iterator, Mapping

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.isa import ISA
from ..plan import Axis, Index
from ..records import lazy, quick
from .contraction import BinaryContraction
from .gemm import GemmPlan, plan_gemm
from .nests import NestPlan
from .operations import PARTS
from .sides import LEFT, OUT, RIGHT, SPLIT_ABOVE, Dim, divisor, fused_dims
from .unpacked import UnpackedPlan, choose

_UNSHIFTED: Mapping[int, int] = {LEFT: 0, RIGHT: 0, OUT: 0}
SLENDER = 4096  # bytes that an element of a long dimension addresses, at least, for a table of it to weigh nothing


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One part of an operation, mostly the whole.

    ``shifts``: bytes from the first element of each tensor to the first of the part; ``share``: of the operation's
    work; ``contraction``: what is left of it, None for the whole.
    """

    plan: GemmPlan | UnpackedPlan | NestPlan
    shifts: Mapping[int, int] = field(default_factory=lambda: _UNSHIFTED)
    share: float = 1.0
    contraction: BinaryContraction | None = None

    @lazy
    def temporaries(self) -> tuple[tuple[str, int], ...]:
        """Side and bytes of each packed copy and temporary: memory that its steps need besides values."""
        plan = self.plan
        if plan.__class__ is not GemmPlan:
            return (("temporary", plan.temporary_bytes),) if plan.temporary_bytes else ()
        sides = ("left", plan.pack_left), ("right", plan.pack_right)
        return tuple([(name, side.nbytes) for name, side in sides if side is not None])


def plan_parts(c: BinaryContraction, isa: ISA, threads: int, machine: cost.Machine) -> tuple[Part, ...]:
    """Chooses families and problems for ``c``, mostly one; every size, stride and dtype is served."""
    if c.tail is not None:
        return tuple(part for piece in _with_tail(c) for part in _placed(*piece, isa, threads, machine))
    choice = choose(c, isa)
    long = next(_long_dims(c), None)
    if long is not None and (choice is None or long.indices[0] not in choice.along.indices):
        return tuple(part for piece in _halves(c, long) for part in _placed(*piece, isa, threads, machine))
    return (Part(plan=plan_gemm(c, isa, threads, machine) if choice is None else choice.plan(threads, machine)),)


def is_slender(c: BinaryContraction) -> bool:
    """Whether some dimension is so long, and the others so short, that a table of it would weigh."""
    return any(
        c.sizes[index] > SPLIT_ABOVE and _bytes_along(c, tensors, c.sizes[index]) < SLENDER
        for indices, tensors in _groups(c)
        for index in indices
    )


def _groups(c: BinaryContraction) -> tuple[tuple[tuple[Index, ...], tuple[int, ...]], ...]:
    """Indices of each dimension type, and the tensors that have them."""
    return (c.batch, (LEFT, RIGHT, OUT)), (c.m, (LEFT, OUT)), (c.n, (RIGHT, OUT)), (c.k, (LEFT, RIGHT))


def _bytes_along(c: BinaryContraction, tensors: tuple[int, ...], size: int) -> int:
    """Bytes that an element of a dimension of ``tensors`` addresses."""
    terms = {LEFT: (*c.batch, *c.m, *c.k), RIGHT: (*c.batch, *c.n, *c.k), OUT: (*c.batch, *c.m, *c.n)}
    elements = sum(prod(c.sizes[i] for i in terms[tensor]) for tensor in tensors)
    return elements // size * tile_table.ITEMSIZE[c.dtype]


def _long_dims(c: BinaryContraction) -> Iterator[Dim]:
    """Fused dimensions that have no divisor and whose tables would weigh."""
    if prod(map(c.sizes.__getitem__, c.names)) <= SPLIT_ABOVE:
        return
    axes = {LEFT: c.left, RIGHT: c.right, OUT: c.out}
    size = c.sizes.__getitem__
    for indices, tensors in _groups(c):
        if prod(map(size, indices)) <= SPLIT_ABOVE or any(axes[t] is None for t in tensors):
            continue
        ordered = sorted(indices, key=lambda i: -abs(axes[tensors[0]][i].stride))
        for dim in fused_dims(ordered, c.sizes, [(t, axes[t]) for t in tensors]):
            short = dim.size <= SPLIT_ABOVE or divisor(dim.size) or dim.tables
            if not short and _bytes_along(c, tensors, dim.size) < SLENDER:
                yield dim


def _halves(c: BinaryContraction, dim: Dim) -> Iterator[tuple[BinaryContraction, Mapping[int, int], float]]:
    """``c`` up to a multiple of what a table holds along ``dim``, and the rest, which is added where ``dim`` is summed.

    With the shifts of each, and its share of the work."""
    head = dim.size - dim.size % SPLIT_ABOVE
    for start, size in ((0, head), (head, dim.size - head)):
        later = start > 0 and OUT not in dim.strides
        piece = replace(_resized(c, dim, size), accumulate=c.accumulate or later)
        yield piece, {t: start * dim.strides.get(t, 0) for t in (LEFT, RIGHT, OUT)}, size / dim.size


def _with_tail(c: BinaryContraction) -> Iterator[tuple[BinaryContraction, Mapping[int, int], float]]:
    """``c`` without its tail, and what adds that to the results of the first piece; as `_halves`."""
    piece, index, size = c.tail
    before = c.sizes[piece] * c.sizes[index]
    yield replace(c, tail=None), _UNSHIFTED, before / (before + size)
    left, right, out = (
        {i: axis if i != index else Axis.strided(i, size, axis.stride) for i, axis in axes.items() if i != piece}
        for axes in (c.left, c.right, c.out)
    )
    batch = tuple(i for i in c.batch if i != piece)
    shifts = {t: c.sizes[piece] * axes[piece].stride for t, axes in ((LEFT, c.left), (RIGHT, c.right))}
    tail = replace(
        c, batch=batch, sizes={**c.sizes, index: size}, left=left, right=right, out=out, accumulate=True, tail=None
    )
    yield tail, {**shifts, OUT: 0}, size / (before + size)


def _resized(c: BinaryContraction, dim: Dim, size: int) -> BinaryContraction:
    """``c`` with one index of another size in place of those of ``dim``."""
    label = dim.indices[0] if len(dim.indices) == 1 else "".join(str(i) for i in dim.indices if i != PARTS)

    def indices(old: tuple[Index, ...]) -> tuple[Index, ...]:
        rest = tuple(i for i in old if i not in dim.indices)
        return (*rest, label) if len(rest) < len(old) else old

    def axes(old: Mapping[Index, Axis], tensor: int) -> Mapping[Index, Axis]:
        if tensor not in dim.strides:
            return old
        kept = {i: axis for i, axis in old.items() if i not in dim.indices}
        return kept | {label: Axis.strided(label, size, dim.strides[tensor])}

    groups = {name: indices(getattr(c, name)) for name in ("batch", "m", "n", "k")}
    tensors = {name: axes(getattr(c, name), t) for name, t in (("left", LEFT), ("right", RIGHT), ("out", OUT))}
    return replace(c, sizes={**c.sizes, label: size}, **groups, **tensors)


def _placed(
    c: BinaryContraction, shifts: Mapping[int, int], share: float, isa: ISA, threads: int, machine: cost.Machine
) -> Iterator[Part]:
    """The parts of a half, as parts of the whole."""
    for part in plan_parts(c, isa, threads, machine):
        yield replace(
            part,
            shifts={tensor: shift + shifts[tensor] for tensor, shift in part.shifts.items()},
            share=part.share * share,
            contraction=part.contraction or c,
        )
