"""Plans contractions that need no packing because of how their operands lie.

A *dot* sums along a dimension that is contiguous in both operands and has few rows or columns; a *batched* product
runs its lanes along a batch dimension that is contiguous in all three tensors; *small* products are many matrices of
a few elements. `plan_unpacked` walks the table of these and returns the first that is the right one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

from ..kernels import batched as batched_family
from ..kernels import dot as dot_family
from ..kernels import small as small_family
from ..kernels import tiles as tile_table
from ..kernels.batched import BatchedProblem
from ..kernels.dot import DotProblem
from ..kernels.gemm import Operand
from ..kernels.isa import ISA
from ..kernels.row import Row
from ..kernels.small import SmallProblem
from ..plan import Index
from .contraction import BinaryContraction
from .sides import LEFT, OUT, RIGHT, Dim, flat_table, fuse, make_dim, total

PARALLEL_TERMS = 1 << 17  # fewer terms are done before a second thread is awake
_MAX_RUNS = 1 << 16  # entries of a table of K
_TINY_TERMS = 128  # terms of a product up to which it is not worth looking at how K runs
_NOWHERE = Operand(slot=0, offset=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class UnpackedPlan:
    """A problem of one of these families whose operands get their places when the arena is laid out."""

    family: str
    problem: DotProblem | BatchedProblem | SmallProblem
    isa: ISA
    threads: int
    exchanged: bool = False  # the second operand is the problem's left one

    @property
    def temporary_bytes(self) -> int:
        return dot_family.temp_bytes(self.problem, self.threads) if self.family == "dot" else 0

    def rows(self, places: Mapping[str, Operand]) -> tuple[Row, ...]:
        left, right = ("b", "a") if self.exchanged else ("a", "b")
        placed = replace(self.problem, a=places[left], b=places[right], c=places["out"])
        if self.family == "dot":
            return dot_family.lower(placed, self.threads, places["temp"])
        family = batched_family if self.family == "batched" else small_family
        return (family.lower(placed, self.isa, self.threads),)


def plan_unpacked(c: BinaryContraction, isa: ISA, threads: int) -> UnpackedPlan | None:
    """The row of another family that computes ``c``; None where GEMM is the right family or a layout is still free."""
    if c.left is None or c.right is None:
        return None
    view, other = _View(c), _View(c.swapped())
    if not view.linear:
        return None
    for family, plan, exchanged in _FAMILIES:
        problem = plan(other if exchanged else view, isa, threads)
        if problem is not None:
            return UnpackedPlan(family=family, problem=problem, isa=isa, threads=threads, exchanged=exchanged)
    return None


class _View:
    """The dimension groups of a contraction, slow to fast, fused."""

    def __init__(self, c: BinaryContraction):
        self.c = c
        self.axes = {LEFT: c.left, RIGHT: c.right, OUT: c.out}
        self.item = tile_table.ITEMSIZE[c.dtype]

    @property
    def linear(self) -> bool:
        return all(axis.linear for axes in self.axes.values() for axis in axes.values())

    def dims(self, indices: tuple[Index, ...], tensors: tuple[int, ...], order_by: int) -> list[Dim]:
        axes = self.axes
        ordered = sorted(indices, key=lambda i: -abs(axes[order_by][i].stride))
        return fuse([make_dim(i, self.c.sizes[i], {t: axes[t][i] for t in tensors}) for i in ordered])

    @property
    def batch(self) -> list[Dim]:
        return self.dims(self.c.batch, (LEFT, RIGHT, OUT), OUT)

    @property
    def m(self) -> list[Dim]:
        return self.dims(self.c.m, (LEFT, OUT), OUT)

    @property
    def n(self) -> list[Dim]:
        return self.dims(self.c.n, (RIGHT, OUT), OUT)

    @property
    def k(self) -> list[Dim]:
        return self.dims(self.c.k, (LEFT, RIGHT), LEFT)

    def contiguous(self, dim: Dim, tensors: tuple[int, ...]) -> bool:
        return all(dim.stride(t) == self.item for t in tensors)


def _dot(view: _View, isa: ISA, threads: int) -> DotProblem | None:
    c, k = view.c, view.k
    run = k[-1].size
    if not view.contiguous(k[-1], (LEFT, RIGHT)) or total(k) // run > _MAX_RUNS:
        return None
    batch, m, n = view.batch, view.m, view.n
    if not dot_family.fits(isa, c.dtype, m=total(m), n=total(n), k=total(k), run=run):
        return None
    rows = not m and not n and bool(batch)
    return DotProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=() if rows else _outer(batch),
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
        parallel=_parallel(threads, batch, m, n, k),
    )


def _batched(view: _View, isa: ISA, threads: int) -> BatchedProblem | None:
    c, batch, k = view.c, view.batch, view.k
    if not batch or not view.contiguous(batch[-1], (LEFT, RIGHT, OUT)) or total(k) > _MAX_RUNS:
        return None
    m, n = view.m, view.n
    if not batched_family.fits(isa, c.dtype, lanes=batch[-1].size, m=total(m), n=total(n), k=total(k)):
        return None
    return BatchedProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=_outer(batch[:-1]),
        lanes=batch[-1].size,
        tm_a=flat_table(m, LEFT),
        tm_c=flat_table(m, OUT),
        tn_b=flat_table(n, RIGHT),
        tn_c=flat_table(n, OUT),
        tk_a=flat_table(k, LEFT),
        tk_b=flat_table(k, RIGHT),
        conj_a=c.conj_left,
        conj_b=c.conj_right,
        parallel=_parallel(threads, batch, m, n, k),
    )


def _small(view: _View, isa: ISA, threads: int) -> SmallProblem | None:
    batch, m, n, k = view.batch, view.m, view.n, view.k
    if not batch or len(m) > 1 or len(n) != 1 or len(k) != 1:
        return None
    if n[0].stride(OUT) != view.item:
        return None
    c, strided, rows = view.c, n[0].stride(RIGHT) != view.item, total(m)
    if not small_family.fits(isa, c.dtype, products=total(batch), m=rows, n=n[0].size, k=k[0].size, strided=strided):
        return None
    products = batch[-1]
    return SmallProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=_outer(batch[:-1]),
        t=products.size,
        t_strides=tuple(products.stride(t) for t in (LEFT, RIGHT, OUT)),
        m=rows,
        m_strides=(m[0].stride(LEFT), m[0].stride(OUT)) if m else (0, 0),
        n=n[0].size,
        k=k[0].size,
        k_strides=(k[0].stride(LEFT), k[0].stride(RIGHT)),
        n_stride=n[0].stride(RIGHT) if strided else None,
        conj_a=c.conj_left,
        conj_b=c.conj_right,
        parallel=_parallel(threads, batch, m, n, k),
    )


def _outer(batch: list[Dim]) -> tuple:
    return ((total(batch), *(flat_table(batch, t) for t in (LEFT, RIGHT, OUT))),) if batch else ()


def _parallel(threads: int, *groups: list[Dim]) -> bool:
    terms = 1
    for dims in groups:
        terms *= total(dims)
    return threads > 1 and terms > PARALLEL_TERMS


def _tiny(view: _View, isa: ISA, threads: int) -> SmallProblem | None:
    problem = _small(view, isa, threads)
    return problem if problem is not None and problem.m * problem.n * problem.k <= _TINY_TERMS else None


# Family, planner, operands exchanged: the first that plans a contraction runs it.
_FAMILIES = (
    ("small", _tiny, False),
    ("small", _tiny, True),
    ("dot", _dot, False),
    ("batched", _batched, False),
    ("small", _small, False),
    ("small", _small, True),
)
