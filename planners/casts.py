"""Operands of another dtype than is computed in: converted by a step before, or on the way into packed panels.

A cast is a copy operation on an input. Products that read in place need it; a GEMM packs, and packing widens for
nothing (`kernels.packs`), so that the operand is read once, in its own width. Of a small operand a GEMM rather reads a
copy in place than packs it.
"""

from __future__ import annotations

from math import prod
from typing import Mapping

from ..kernels import packs
from ..plan import Axis, Index
from .layout import dense_axes
from .operations import Operation, Value, itemsize

SMALL_BYTES = 32 << 10  # of the converted operand: it stays in the L1 cache


def foldable(cast: Operation, sizes: Mapping[Index, int]) -> bool:
    """Whether packing had better do what ``cast`` does: widen a large operand in native byte order."""
    (source,), target = cast.inputs, cast.output
    large = prod(sizes[i] for i in target.term) * itemsize(target.dtype) > SMALL_BYTES
    return large and packs.widens(source.dtype, target.dtype) and not source.swapped_bytes


def fold(cast: Operation, operation: Operation) -> None:
    """``operation`` reads the input of ``cast`` instead of its output."""
    (source,), target = cast.inputs, cast.output
    source.conj = target.conj
    operation.inputs = tuple(source if value is target else value for value in operation.inputs)
    operation.work = None  # it reads another dtype


def axes_like(value: Value, axes: Mapping[Index, Axis], sizes: Mapping[Index, int]) -> dict[Index, Axis]:
    """Dense axes of ``value`` in the order of those of another tensor, which has all its indices."""
    return dense_axes(sorted(value.term, key=lambda i: abs(axes[i].stride)), sizes, itemsize(value.dtype))
