"""The nest family on the Python side: element-wise work and sums over any strided iteration space, as data.

A `NestProblem` is a set of nested loops, in any order, over one output and one or two inputs:

    copy   out[...] = cast(a[...])                 out += with ``accumulate``, alpha * cast(a) + beta * out with ``scaled``
    mul    out[...] = a[...] * b[...]              out += with ``accumulate``
    sum    out[...] = sum of a[...]                over the loops in which out has stride 0

`lower` turns it into rows of the step table. Nothing is compiled per problem: kernels depend on dtypes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..errors import EngineValueError
from .cpu.storage import STORAGES
from .nest_boxes import Dim, lower_elementwise, lower_sum
from .row import Row

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
            raise EngineValueError(f"nest operation {self.op!r}: the output has stride 0 in the loop of size {bad[0][0]}")

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


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """Rows to run in order. ``operands``: for each row, what its output, first and second input are: ``"out"``,
    ``"a"``, ``"b"``, ``"temp"`` or ``""``; whoever places operands fills the slot and offset words accordingly.
    ``temp_bytes`` of temporary memory (8-byte aligned) are needed from the first row to the last."""

    rows: tuple[Row, ...]
    operands: tuple[tuple[str, str, str], ...]
    temp_bytes: int = 0


def lower(problem: NestProblem, threads: int = 1) -> Lowered:
    """Rows of the step table for a problem, cut into tasks for ``threads`` threads (one task where it is small).

    There are no rows where the output has no elements, and two where several tasks share the sum of a small output.

    >>> row = lower(NestProblem(op="copy", dims=((5, 4, 8, 0),), out="float32", a="float32")).rows[0]
    >>> list(row.kernels.values()), row.tasks
    (['nest_copy_4'], 1)
    """
    shifts, dims = normalise(problem)
    if any(d[0] == 0 for d in dims if problem.op != "sum" or d[1]):
        return Lowered(rows=(), operands=())
    problem = replace(problem, dims=dims)
    if problem.op == "sum" and any(d[1] == 0 for d in dims):
        return _lower_sum(problem, shifts, threads)
    if problem.op == "sum":
        problem = replace(problem, op="copy")
    row, names = lower_elementwise(problem, shifts, threads)
    return Lowered(rows=(row,), operands=(names,))


def _lower_sum(problem: NestProblem, shifts: Dim, threads: int) -> Lowered:
    row, partial = lower_sum(problem, shifts, threads)
    if partial is None:
        return Lowered(rows=(row,), operands=(("out", "a", ""),))
    # Tasks add up shares of the sum into ``partial``: (tasks, outputs), which the second row sums.
    second = NestProblem(
        op="sum", dims=partial.dims, out=problem.out, a=STORAGES[problem.out].compute, accumulate=problem.accumulate
    )
    last, _ = lower_sum(replace(second, dims=normalise(second)[1]), (0, *shifts[1:2], 0, 0), 1)
    return Lowered(rows=(row, last), operands=(("temp", "a", ""), ("out", "temp", "")), temp_bytes=partial.nbytes)


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
    return tuple(shifts), tuple(_fuse(dims))


def _fuse(dims: list[Dim]) -> list[Dim]:
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


# -- reference -----------------------------------------------------------------------------------------------------
def reference(
    problem: NestProblem, out: np.ndarray, a: np.ndarray, b: np.ndarray | None = None, *, alpha=1, beta=0
) -> None:
    """The same with NumPy: operands are arrays with one axis per loop, in the order of ``problem.dims``.

    An axis along which an operand has stride 0 may have size 1. ``out`` is written in place.
    """
    compute = numpy_dtype(STORAGES[problem.out].compute)
    first = a.byteswap() if problem.swap_a else a
    value = first.astype(compute)
    value = value.conj() if problem.conj_a else value
    summed = tuple(i for i, d in enumerate(problem.dims) if d[0] != 1 and d[1] == 0)
    shape = tuple(d[0] for d in problem.dims)
    if problem.op == "mul":
        second = b.astype(compute)
        value = value * (second.conj() if problem.conj_b else second)
    elif problem.op == "sum":
        wide = np.broadcast_to(value, shape)
        add = np.logical_or.reduce if problem.out == "bool" else np.add.reduce
        value = add(wide, axis=summed, dtype=compute, keepdims=True) if summed else wide
    if problem.scaled:
        kept = beta * out.astype(compute) if beta else 0
        value = alpha * value + kept
    elif problem.accumulate:
        value = (out.astype(compute) | value) if problem.out == "bool" else out.astype(compute) + value
    elif problem.op == "copy" and not problem.conj_a:
        value = first
    out[...] = np.broadcast_to(value, out.shape).astype(out.dtype)


def numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
