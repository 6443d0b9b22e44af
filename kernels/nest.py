"""The nest family on the Python side: element-wise work and sums over any strided iteration space, as data.

A `NestProblem` is a set of nested loops, in any order, over one output and one or two inputs:

    copy   out[...] = cast(a[...])           out += with ``accumulate``, alpha * cast(a) + beta * out with ``scaled``
    mul    out[...] = a[...] * b[...]        out += with ``accumulate``
    sum    out[...] = sum of a[...]          over the loops in which out has stride 0

`lower` turns it into rows of the step table. Nothing is compiled per problem: kernels depend on dtypes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cpu.storage import STORAGES
from .nest_moves import is_move, lower_move
from .nest_problem import Dim, NestProblem, normalise, reference
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
    (['nest_copy', 'nest_move_4'], 1)
    """
    shifts, dims = normalise(problem)
    if any(d[0] == 0 for d in dims if problem.op != "sum" or d[1]):
        return Lowered(rows=(), operands=())
    problem = replace(problem, dims=dims)
    if problem.op == "sum" and any(d[1] == 0 for d in dims):
        return _lower_sum(problem, shifts, threads)
    if problem.op == "sum":
        problem = replace(problem, op="copy")
    if is_move(problem):
        rows = lower_move(problem, shifts, threads)
        return Lowered(rows=rows, operands=(("out", "a", ""),) * len(rows))
    row, names = lower_elementwise(problem, shifts, threads)
    return Lowered(rows=(row,), operands=(names,))


def _lower_sum(problem: NestProblem, shifts: Dim, threads: int) -> Lowered:
    row, partial = lower_sum(problem, shifts, threads)
    if partial is None:
        return Lowered(rows=(row,), operands=(("out", "a", ""),))
    # Shares of the sum lie in ``partial``, which the second row sums.
    second = NestProblem(
        op="sum", dims=partial.dims, out=problem.out, a=STORAGES[problem.out].compute, accumulate=problem.accumulate
    )
    last, _ = lower_sum(replace(second, dims=normalise(second)[1]), (0, shifts[1], 0, 0), 1, last=True)
    return Lowered(rows=(row, last), operands=(("temp", "a", ""), ("out", "temp", "")), temp_bytes=partial.nbytes)
