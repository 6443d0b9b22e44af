"""Plans contractions whose summed dimension is contiguous in both operands and that have few rows or columns: dots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

import numpy as np

from ..kernels import dot as dot_family
from ..kernels import tiles as tile_table
from ..kernels.dot import DotProblem
from ..kernels.gemm import Operand
from ..kernels.isa import ISA
from ..kernels.row import Row
from .gemm import BinaryContraction
from .sides import LEFT, OUT, RIGHT, Dim, flat_table, fuse, make_dim, total

PARALLEL_TERMS = 1 << 17  # fewer terms are done before a second thread is awake
_MAX_RUNS = 1 << 16  # runs of K in a table


@dataclass(frozen=True, kw_only=True, eq=False)
class DotPlan:
    """A dot problem whose operands get their places when the arena is laid out."""

    problem: DotProblem
    threads: int

    @property
    def temporary_bytes(self) -> int:
        return dot_family.temp_bytes(self.problem, self.threads)

    def rows(self, places: Mapping[str, Operand]) -> tuple[Row, ...]:
        placed = replace(self.problem, a=places["a"], b=places["b"], c=places["out"])
        return dot_family.lower(placed, self.threads, places["temp"])


def plan_dot(c: BinaryContraction, isa: ISA, threads: int) -> DotPlan | None:
    """The dot that computes ``c``; None where another family is the right one or an operand has no layout yet."""
    if c.left is None or c.right is None:
        return None
    axes = {LEFT: c.left, RIGHT: c.right, OUT: c.out}
    if any(not axis.linear for tensor in (LEFT, RIGHT) for axis in axes[tensor].values()):
        return None

    def dims(indices, tensors, order_by) -> list[Dim]:
        ordered = sorted(indices, key=lambda i: -abs(axes[order_by][i].stride))
        return fuse([make_dim(i, c.sizes[i], {t: axes[t][i] for t in tensors}) for i in ordered])

    item = tile_table.ITEMSIZE[c.dtype]
    k = dims(c.k, (LEFT, RIGHT), LEFT)
    run = k[-1].size
    if k[-1].stride(LEFT) != item or k[-1].stride(RIGHT) != item or total(k) // run > _MAX_RUNS:
        return None
    batch = dims(c.batch, (LEFT, RIGHT, OUT), OUT)
    m, n = dims(c.m, (LEFT, OUT), OUT), dims(c.n, (RIGHT, OUT), OUT)
    if not dot_family.fits(isa, c.dtype, m=total(m), n=total(n), k=total(k), run=run):
        return None
    rows = not m and not n and bool(batch)
    nowhere = Operand(slot=0, offset=0)
    return DotPlan(
        problem=DotProblem(
            dtype=c.dtype,
            a=nowhere,
            b=nowhere,
            c=nowhere,
            outer=_outer(batch) if not rows else (),
            tm_a=flat_table(batch if rows else m, LEFT),
            tm_c=flat_table(batch if rows else m, OUT),
            tn_b=flat_table(batch if rows else n, RIGHT),
            tn_c=flat_table(n, OUT),
            rows=rows,
            k=total(k),
            run=run,
            tk_a=flat_table(k[:-1], LEFT),
            tk_b=flat_table(k[:-1], RIGHT),
            conj_a=c.conj_left,
            conj_b=c.conj_right,
            parallel=threads > 1 and _terms(batch, m, n, k) > PARALLEL_TERMS,
        ),
        threads=threads,
    )


def _outer(batch: list[Dim]) -> tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]:
    if not batch:
        return ()
    return ((total(batch), *(flat_table(batch, t) for t in (LEFT, RIGHT, OUT))),)


def _terms(*groups: list[Dim]) -> int:
    terms = 1
    for dims in groups:
        terms *= total(dims)
    return terms
