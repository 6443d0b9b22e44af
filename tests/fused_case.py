"""Runs structures of fused kernels on arrays, for tests."""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

import numpy as np

from einsum_engine.kernels import launch
from einsum_engine.kernels.fused import FusedProblem, Graph, Operand, Structure, lower
from einsum_engine.kernels.isa import ISA


# Operations whose results have the bits of NumPy's, or, of complex numbers, of its formulas
EXACT = set("floor ceil trunc round copysign heaviside nextafter signbit neg sign conj real imag isnan isinf".split())
EXACT |= set("not invert bitwise_count add sub mul div floordiv mod fmod min max eq ne lt le gt ge and or xor".split())
EXACT |= set("shl shr gcd lcm sqrt inverse".split())


@lru_cache(maxsize=4096)
def single(op: str, dtypes: tuple[str, ...], reduce: str = "") -> Structure:
    """One operation of inputs of these dtypes (``cast`` to the second of two)."""
    if op == "cast":
        g = Graph(dtypes[:1])
        return g.structure((g.cast(0, dtypes[1]), reduce))
    g = Graph(dtypes)
    return g.structure((g.op(op, *range(len(dtypes))) if op else 0, reduce))


def problem_of(structure: Structure, outputs: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> FusedProblem:
    """All arrays have one axis per loop; an axis of size 1 where others are longer is broadcast, or reduced."""
    arrays = [*outputs, *inputs]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    strides = [[s if n == size else 0 for s, n, size in zip(a.strides, a.shape, shape, strict=True)] for a in arrays]
    dims = tuple((size, *(s[axis] for s in strides)) for axis, size in enumerate(shape))
    operands = tuple(Operand(slot=slot, offset=0) for slot in range(len(arrays)))
    return FusedProblem(structure=structure, dims=dims, operands=operands)


def run(isa: ISA, structure: Structure, outputs: Sequence[np.ndarray], inputs: Sequence[np.ndarray], threads: int = 1):
    """Writes ``outputs``; the rows that did."""
    rows = lower(problem_of(structure, outputs, inputs), threads)
    launch.run(rows, [a.__array_interface__["data"][0] for a in (*outputs, *inputs)], isa)
    return rows


def apply(isa: ISA, op: str, *inputs: np.ndarray, out: str = "") -> np.ndarray:
    """One operation, into a new array."""
    dtypes = tuple(a.dtype.name for a in inputs)
    structure = single(op, (*dtypes, out) if op == "cast" else dtypes)
    result = np.empty(np.broadcast_shapes(*(a.shape for a in inputs)), structure.stored[0])
    run(isa, structure, [result], inputs)
    return result
