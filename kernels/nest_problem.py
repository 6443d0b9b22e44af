"""The nest family's problem as data, and what it means: the same with NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..dtypes import as_numpy
from ..errors import EngineValueError
from .cpu.storage import STORAGES

Dim = tuple[int, int, int, int]  # size, bytes from one entry to the next in out, a, b
OPERATIONS = ("copy", "mul", "sum")


@dataclass(frozen=True, kw_only=True)
class NestProblem:
    """Loops and operands of one copy, product or sum.

    ``dims``: ``(size, stride_out, stride_a, stride_b)`` of each loop, in any order; strides in bytes, of any sign; 0
    broadcasts an input, and in the output of a sum marks a summed loop. ``out``, ``a``, ``b``: dtype names
    (`cpu.storage`). ``conj_a``, ``conj_b``: conjugate the operand. ``swap_a``: the bytes of a's elements are in the
    other order (copy only). ``accumulate``: add to what out holds. ``scaled`` (copy only): operand b holds four
    float64 re(alpha), im(alpha), re(beta), im(beta), read when the plan runs; out is not read where beta is 0.

    Arithmetic is done in the compute dtype of ``out``; the operands are converted to it as `numpy.ndarray.astype` does.

    >>> NestProblem(op="copy", dims=((3, 16, 8, 0), (2, 8, 24, 0)), out="float64", a="float64").elements
    6
    """

    op: str
    dims: tuple[Dim, ...]
    out: str
    a: str
    b: str = ""
    conj_a: bool = False
    conj_b: bool = False
    swap_a: bool = False
    accumulate: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.op not in OPERATIONS:
            raise EngineValueError(f"nest operation {self.op!r} is none of {', '.join(OPERATIONS)}")
        for name in (self.out, self.a, *([self.b] if self.op == "mul" else [])):
            if name not in STORAGES:
                raise EngineValueError(f"nest dtype {name!r} is none of {', '.join(STORAGES)}")
        if self.op != "copy" and (self.swap_a or self.scaled):
            raise EngineValueError(f"nest operation {self.op!r} takes neither swap_a nor scaled")
        if self.op != "sum" and (bad := [d for d in self.dims if d[0] > 1 and d[1] == 0]):
            size = bad[0][0]
            raise EngineValueError(f"nest operation {self.op!r}: the output has stride 0 in the loop of size {size}")

    @property
    def elements(self) -> int:
        """Points of the iteration space."""
        return prod(d[0] for d in self.dims)

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtypes of the output and the inputs."""
        return (self.out, self.a, self.b) if self.op == "mul" else (self.out, self.a)

    @property
    def bytes(self) -> int:
        """Bytes of all operands, each element counted once: what memory has to move at least."""
        total = 0
        for position, name in enumerate(self.operands):
            total += STORAGES[name].itemsize * prod(d[0] for d in self.dims if d[1 + position])
        return total

    @property
    def flops(self) -> int:
        """Multiplications and additions of real numbers, where the dtype is a floating one."""
        if self.op == "copy":
            return 0
        complex_ = STORAGES[self.out].parts == 2
        adds = 2 if complex_ else 1
        return self.elements * (adds if self.op == "sum" else 6 if complex_ else 1)


def normalise(problem: NestProblem) -> tuple[Dim, tuple[Dim, ...]]:
    """``(shifts, dims)``: the same iteration space in as few loops as possible, the output's fastest loop first.

    Loops of size 1 are dropped, loops in which the output runs backwards are reversed (``shifts`` says by how many
    bytes operands start later: ``(0, out, a, b)``), and loops that continue each other in all operands become one.

    >>> normalise(NestProblem(op="copy", dims=((2, 12, 12, 0), (3, 4, 4, 0)), out="float32", a="float32"))[1]
    ((6, 4, 4, 0),)
    """
    shifts = [0, 0, 0, 0]
    dims = []
    unary = problem.op != "mul"
    for size, *strides in problem.dims:
        if unary:
            strides[2] = 0
        if size == 1:
            continue
        if next((s for s in strides if s), 0) < 0 and size:
            for i, stride in enumerate(strides):
                shifts[1 + i] += stride * (size - 1)
            strides = [-s for s in strides]
        dims.append((size, *strides))
    dims.sort(key=lambda d: tuple(map(abs, d[1:])))
    return tuple(shifts), tuple(fuse(dims))


def fuse(dims: list[Dim]) -> list[Dim]:
    """Loops that continue each other in all operands made one, in place."""
    first = 0
    while first < len(dims):
        size, *strides = dims[first]
        after = tuple(size * s for s in strides)
        for other, dim in enumerate(dims):
            if other != first and dim[1:] == after and size:
                dims[first] = (size * dim[0], *strides)
                del dims[other]
                first -= other < first
                break
        else:
            first += 1
    return dims


def reference(
    problem: NestProblem, out: np.ndarray, a: np.ndarray, b: np.ndarray | None = None, *, alpha=1, beta=0
) -> None:
    """The same with NumPy: operands are arrays with one axis per loop, in the order of ``problem.dims``.

    An axis along which an operand has stride 0 may have size 1. ``out`` is written in place.
    """
    compute = as_numpy(STORAGES[problem.out].compute)
    first = a.byteswap() if problem.swap_a else a
    value = _astype(first, compute)
    value = value.conj() if problem.conj_a else value
    summed = tuple(i for i, d in enumerate(problem.dims) if d[0] != 1 and d[1] == 0)
    shape = tuple(d[0] for d in problem.dims)
    if problem.op == "mul":
        second = _astype(b, compute)
        value = value * (second.conj() if problem.conj_b else second)
    elif problem.op == "sum":
        wide = np.broadcast_to(value, shape)
        add = np.logical_or.reduce if problem.out == "bool" else np.add.reduce
        value = add(wide, axis=summed, dtype=compute, keepdims=True) if summed else wide
    if problem.scaled:
        value = alpha * value
        value = value + beta * out.astype(compute) if beta else value
    elif problem.accumulate:
        value = (out.astype(compute) | value) if problem.out == "bool" else out.astype(compute) + value
    elif problem.op == "copy" and not problem.conj_a:
        value = first
    out[...] = _astype(np.broadcast_to(value, out.shape), out.dtype)


def _astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    real = array.dtype.kind == "c" and dtype.kind not in "cb"
    return (array.real if real else array).astype(dtype)
