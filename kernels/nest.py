"""The nest family on the Python side: element-wise work and sums over any strided iteration space, as data.

A `NestProblem` is a set of nested loops, in any order, over one output and one or two inputs:

    copy   out[...] = cast(a[...])                 out += with ``accumulate``, alpha * cast(a) + beta * out with ``scaled``
    mul    out[...] = a[...] * b[...]              out += with ``accumulate``
    sum    out[...] = sum of a[...]                over the loops in which out has stride 0

`lower` turns it into rows of the step table. Nothing is compiled per problem: kernels depend on dtypes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cpu.storage import STORAGES
from .nest_problem import Dim, NestProblem, reference
from .nest_rows import lower_elementwise
from .nest_sums import lower_sum
from .row import Row

__all__ = ["Lowered", "NestProblem", "lower", "normalise", "reference"]


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
