"""Plans contractions that need no packing because of how their operands lie.

A *dot* sums along a dimension that is contiguous in both operands and has few rows or columns; a *batched* product
runs its lanes along a batch dimension that is contiguous in all three tensors, or in all but a small one, of which it
reads a copy (so does a dot with a vector whose terms lie in another order); *small* products are many matrices of a few elements,
or one of few columns and many rows, where a small operand may be a copy, too. `choose` walks the table of these and returns the
first that is the right one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Callable, Mapping

from .. import cost
from ..kernels import batched as batched_family
from ..kernels import dot as dot_family
from ..kernels import small as small_family
from ..kernels import tiles as tile_table
from ..kernels.batched import BatchedProblem
from ..kernels.cpu.units import LINE
from ..kernels.dot import DotProblem
from ..kernels.gemm import Operand
from ..kernels.isa import ISA
from ..kernels.loops import LEVELS, Loops
from ..kernels.row import Row
from ..kernels.small import SmallProblem
from ..records import changed, lazy, quick
from .beside import Copied, beside, columns_beside, in_order
from .contraction import BinaryContraction
from .matrices import Matrices, in_loops, is_tall
from .nests import NestPlan, lowered
from .sides import LEFT, OUT, RIGHT, Dim, cut, flat_table, largest_divisor, levels, total
from .splitting import FEW_ROWS

PEAK_SHARE = 0.3  # that these products have of the machine's peak, in the middle
_MAX_RUNS = 1 << 16  # entries of a table of K
_MOST_ROWS = 4096  # of lanes in the operands of one product, 256 KB of whole cache lines
_MOST_VECTORS = 8192  # in the operands and the result of one, 512 KB
_GATE = 16  # elements of a matrix that is applied to a large operand with few adjacent elements in each piece
_GATE_BYTES = 1 << 14  # of the large operand at least
_GATE_ROWS = 8
_GATE_ROW, _FEWEST = 8 << 10, 16  # bytes of a piece of a row, or down to one part in so many
_MOST_COPIED = 1 << 19  # bytes of a copy in which each element is used once
_TINY_TERMS = 128  # terms of a product up to which it is not worth looking at how K runs
_NOWHERE = Operand(slot=0, offset=0)
_Shared = Callable[[list[Dim], list[Dim], list[Dim], list[Dim]], bool]


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class UnpackedPlan:
    """A problem of one of these families whose operands get their places when the arena is laid out."""

    family: str
    problem: DotProblem | BatchedProblem | SmallProblem
    isa: ISA
    threads: int
    exchanged: bool = False  # the second operand is the problem's left one
    copy: NestPlan | None = None  # of an operand, into temporary memory, where it is read from
    copied_bytes: int = 0

    @property
    def temporary_bytes(self) -> int:
        partial = dot_family.temp_bytes(self.problem, self.threads) if self.family == "dot" else 0
        return self.copied_bytes + partial

    @property
    def copied(self) -> int:
        """Number of the operand of the contraction that is copied: the problem's left one, of small products the right one."""
        return int(self.exchanged != (self.family == "small"))

    def copies(self, places: Mapping[str, Operand]) -> list[Row]:
        """Rows to run before."""
        return [] if self.copy is None else self.copy.rows({"out": places["temp"], "a": places["ab"[self.copied]]})

    def rows(self, places: Mapping[str, Operand]) -> tuple[Row, ...]:
        operands = ["a", "b"]
        if self.copy is not None:
            operands[self.copied] = "temp"
        left, right = reversed(operands) if self.exchanged else operands
        placed = changed(self.problem, a=places[left], b=places[right], c=places["out"])
        if self.family == "dot":
            temp = places["temp"]
            return dot_family.lower(placed, self.threads, Operand(slot=temp.slot, offset=temp.offset + self.copied_bytes))
        family = batched_family if self.family == "batched" else small_family
        return (family.lower(placed, self.isa, self.threads),)


def choose(c: BinaryContraction, isa: ISA) -> Choice | None:
    """The family that computes ``c``; None where GEMM is the right one, a layout is still free, or an operand is of
    another dtype: these families read in place."""
    if c.left is None or c.right is None or c.left_dtype or c.right_dtype:
        return None
    asks = _asks(c)
    if not asks:
        return None
    straight, swapped = _View(c, isa), None
    if not straight.linear:
        return None
    for row in _FAMILIES:
        if row.asks not in asks:
            continue
        if row.exchanged and swapped is None:
            swapped = _View(c.swapped, isa)
        view = swapped if row.exchanged else straight
        if row.fits(view, isa):
            found = Choice(row=row, view=view, isa=isa)
            return (_choose_columns(c, isa) if c.batch and found.gathers else None) or found
    if "order" in asks and (choice := _choose_in_order(c, isa)) is not None:
        return choice
    if "beside" in asks and (choice := _choose_beside(c, isa)) is not None:
        return choice
    return _choose_columns(c, isa) if c.batch and ("columns" in asks or "rows" in asks) else None


def _choose_in_order(c: BinaryContraction, isa: ISA) -> Choice | None:
    """The dot family with a copy of the vector."""
    copied = in_order(c.swapped if c.m else c) if bool(c.m) != bool(c.n) else None
    if copied is None or not _dot_fits(view := _View(copied.contraction, isa), isa):
        return None
    return Choice(row=replace(_DOT, exchanged=bool(c.m)), view=view, isa=isa, copied=copied)


def _choose_beside(c: BinaryContraction, isa: ISA) -> Choice | None:
    """The batched family with a copy of the small operand."""
    lanes = tile_table.elements(isa, c.dtype)
    for exchanged in (False, True):
        copied = beside(c.swapped if exchanged else c, lanes)
        if copied is None or not _batched_fits(view := _View(copied.contraction, isa), isa):
            continue
        if copied.nbytes > _MOST_COPIED and not (c.m or c.n):
            continue  # of corresponding elements: a fused kernel turns tiles round on its way (`weighted`)
        if isa.masks or view.batch[-1].size >= lanes:  # else most is done element by element
            return Choice(row=replace(_BATCHED, exchanged=exchanged), view=view, isa=isa, copied=copied)
    return None


def _choose_columns(c: BinaryContraction, isa: ISA) -> Choice | None:
    """The small family with a copy of the small operand, whose columns are adjacent there."""
    lanes = tile_table.elements(isa, c.dtype)
    for exchanged in (True, False):
        copied = columns_beside(c if exchanged else c.swapped, lanes)
        if copied is None or not _small_fits(view := _View(copied.contraction.swapped, isa), isa):
            continue
        if not view.matrices.passes_caches(view.item):
            return Choice(row=replace(_SMALL, exchanged=exchanged), view=view, isa=isa, copied=copied)
    return None


def _asks(c: BinaryContraction) -> list[str]:
    """What families ask for and ``c`` has, by single indices, before dimensions are fused: ``run``, a sum along adjacent
    elements; of a batch or a gate ``columns`` or ``rows``, whichever are adjacent in the result; ``lanes``, a batch that
    is adjacent in all tensors; ``beside``, one that is in the result; of a vector ``order``, terms that are adjacent in the
    rows that it is multiplied with."""
    item = tile_table.ITEMSIZE[c.dtype]
    left, right, out = c.left, c.right, c.out
    found = ["run"] if any([left[i].stride == item == right[i].stride for i in c.k]) else []
    if c.batch or is_gate(c) or is_tall(c):
        sides = (("columns", c.n), ("rows", c.m), ("beside", c.batch))
        found += [name for name, indices in sides if item in [out[i].stride for i in indices]]
        if "beside" in found and any([left[i].stride == item == right[i].stride == out[i].stride for i in c.batch]):
            found.append("lanes")
    if bool(c.m) != bool(c.n):
        rows = left if c.m else right
        if any([rows[i].stride == item for i in c.k]):
            found.append("order")
    return found


def is_gate(c: BinaryContraction) -> bool:
    """Whether a few numbers on one side are applied to all of a large operand on the other."""
    size = c.sizes.__getitem__
    k = prod(map(size, c.k))
    if k > _GATE:  # as most
        return False
    m, n = prod(map(size, c.m)), prod(map(size, c.n))
    few, many = min(m, n) * k, max(m, n)
    return 0 < few <= _GATE and many * k * tile_table.ITEMSIZE[c.dtype] >= _GATE_BYTES


class _View:
    """The dimension groups of a contraction, slow to fast, fused."""

    def __init__(self, c: BinaryContraction, isa: ISA):
        self.c, self.isa = c, isa
        self.axes = {LEFT: c.left, RIGHT: c.right, OUT: c.out}
        self.item = tile_table.ITEMSIZE[c.dtype]

    @lazy
    def linear(self) -> bool:
        return all([axis.tile >= axis.size for axes in self.axes.values() for axis in axes.values()])

    @property
    def batch(self) -> list[Dim]:
        return self.c.dims[0]

    @property
    def m(self) -> list[Dim]:
        return self.c.dims[1]

    @property
    def n(self) -> list[Dim]:
        return self.c.dims[2]

    @property
    def k(self) -> list[Dim]:
        return self.c.dims[3]

    @lazy
    def loops_outside(self) -> tuple[list[Dim], list[Dim], list[Dim]]:
        """Dimensions (slow to fast) that a batched product loops over outside, and those of M and N.

        With all of them, the rows of lanes of one product might not fit a cache, where there is no blocking; and what
        is read once is best read in its own order.
        """
        outer, sides, terms = self.batch[:-1], [self.m, self.n], max(1, total(self.k))
        most = _MOST_ROWS // terms
        while True:
            rows, columns = total(sides[0]), total(sides[1])
            if rows + columns <= most and (rows + columns) * terms + rows * columns <= _MOST_VECTORS:
                break
            wide, other = int(columns >= rows), min(rows, columns)
            found = _cut_outside(sides[wide], min(most - other, (_MOST_VECTORS - other * terms) // (terms + other)))
            if found is None:
                break
            outside, sides[wide] = found
            outer = [*outer, outside]
        for i, wide in enumerate(sides):
            if not sides[1 - i] and len(wide) > 1 and wide[-1].size >= FEW_ROWS:
                outer, sides[i] = [*outer, *wide[:-1]], wide[-1:]
        return sorted(outer, key=lambda dim: -abs(dim.stride(self._largest) or 0)), *sides

    @lazy
    def _largest(self) -> int:
        sizes = {LEFT: (self.m, self.k), RIGHT: (self.n, self.k), OUT: (self.m, self.n)}
        return max(sizes, key=lambda tensor: total([*sizes[tensor][0], *sizes[tensor][1]]))

    @lazy
    def matrices(self) -> Matrices | None:
        """The products of a batch; without one, those of one small matrix with all pieces of a large operand."""
        products, m, n, k = self.batch, self.m, self.n, self.k
        if not products and is_gate(self.c):
            if total(n) > total(m):
                row, *turns = self._cut_row(n[-1], total(m), total(k))
                products, n = [*n[:-1], *turns], [row]
            elif n and n[-1].stride(RIGHT) == self.item:
                inner, *turns = _rows_of_gate(m[-1], total(k))
                products, m, n = [*n[:-1], *m[:-1], *turns], [inner], n[-1:]
        tall = not products and is_tall(self.c)
        if not (products or tall) or len(n) != 1 or n[0].stride(OUT) != self.item or not k:
            return None
        found = Matrices(products=products, m=m, n=n[0], k=k)
        return in_loops(found, self.c.dtype, self.isa, self.c.accumulate) if self.batch or tall else found

    def _cut_row(self, row: Dim, m: int, k: int) -> list[Dim]:
        """A row of a large operand as pieces, whole lines where it is, of which those of four terms are in the first cache
        together; as it is where rows and terms are not written out, or a vector is a line, since a GEMM has such rows."""
        most, unit, dtype = _GATE_ROW // self.item, LINE // self.item, self.c.dtype
        if row.size <= most or self.isa.vector_bits >= 8 * LINE:
            return [row]
        if not small_family.is_written_out(self.isa, dtype, m=m, n=row.size, k=k):
            return [row]
        unit = 1 if row.size % unit else unit
        piece = unit * largest_divisor(row.size // unit, most // unit)
        return cut(row, piece if piece <= most <= _FEWEST * piece else row.size)

    def contiguous(self, dim: Dim, tensors: tuple[int, ...]) -> bool:
        return all(dim.stride(t) == self.item for t in tensors)


# -- dot ---------------------------------------------------------------------------------------------------------
def _dot_fits(view: _View, isa: ISA) -> bool:
    k = view.k
    run = k[-1].size
    if not view.contiguous(k[-1], (LEFT, RIGHT)) or total(k) // run > _MAX_RUNS:
        return False
    return dot_family.fits(isa, view.c.dtype, m=total(view.m), n=total(view.n), k=total(k), run=run)


def _dot(view: _View, shared: _Shared) -> DotProblem:
    c, batch, m, n, k = view.c, view.batch, view.m, view.n, view.k
    parallel = shared(batch, m, n, k)
    rows = not m and not n and bool(batch)
    if rows:
        batch, m = [], batch  # row i of A goes with row i of B
    (outer_m, m), (outer_n, n) = _split_off(m), _split_off(n)
    return DotProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=_loops(levels(batch, LEVELS - len(outer_m) - len(outer_n)) + outer_n + outer_m),
        tm_a=flat_table(m, LEFT),
        tm_c=flat_table(m, OUT),
        tn_b=flat_table(m if rows else n, RIGHT),
        tn_c=flat_table(n, OUT),
        rows=rows,
        k=total(k),
        run=k[-1].size,
        tk_a=flat_table(k[:-1], LEFT),
        tk_b=flat_table(k[:-1], RIGHT),
        conj_a=c.conj_left,
        conj_b=c.conj_right,
        accumulate=c.accumulate,
        parallel=parallel,
    )


def _split_off(dims: list[Dim]) -> tuple[list[list[Dim]], list[Dim]]:
    """What is looped outside, as one loop or none, and what a short table holds."""
    *outer, inner = levels(dims, 2) or [[]]
    return outer, inner


# -- batched -----------------------------------------------------------------------------------------------------
def _batched_fits(view: _View, isa: ISA) -> bool:
    batch, k = view.batch, total(view.k)
    if not batch or not view.contiguous(batch[-1], (LEFT, RIGHT, OUT)) or k > _MAX_RUNS:
        return False
    _, m, n = view.loops_outside
    return batched_family.fits(isa, view.c.dtype, lanes=batch[-1].size, m=total(m), n=total(n), k=k)


def _cut_outside(dims: list[Dim], most: int) -> tuple[Dim, list[Dim]] | None:
    """The slowest dimension or part of it, and the rest: at most ``most`` values where that can be."""
    if not dims:
        return None
    slow, *rest = dims
    room = most // total(rest)
    inner, *turns = cut(slow, largest_divisor(slow.size, room) if room > 1 else slow.size)
    if turns:
        return turns[0], [inner, *rest]
    return (slow, rest) if rest else None


def _batched(view: _View, shared: _Shared) -> BatchedProblem:
    c, batch, k = view.c, view.batch, view.k
    outer, m, n = view.loops_outside
    return BatchedProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=_loops(levels(outer, LEVELS)),
        lanes=batch[-1].size,
        tm_a=flat_table(m, LEFT),
        tm_c=flat_table(m, OUT),
        tn_b=flat_table(n, RIGHT),
        tn_c=flat_table(n, OUT),
        tk_a=flat_table(k, LEFT),
        tk_b=flat_table(k, RIGHT),
        conj_a=c.conj_left,
        conj_b=c.conj_right,
        accumulate=c.accumulate,
        parallel=shared(batch, view.m, view.n, k),
    )


# -- small -------------------------------------------------------------------------------------------------------
def _rows_of_gate(rows: Dim, k: int) -> list[Dim]:
    """Rows of a large operand as matrices of few rows: as many as terms where there is a kernel for that."""
    inner = k if rows.size % k == 0 else largest_divisor(rows.size, _GATE_ROWS)
    return cut(rows, inner)


def _small_fits(view: _View, isa: ISA) -> bool:
    found = view.matrices
    if found is None:
        return False
    m, n, k = total(found.m), found.n, total(found.k)
    columns = found.lie(view.c.dtype)
    if (len(found.m) > 1 or len(found.k) > 1) and not found.are_pairs(view.c.dtype, isa, view.c.accumulate):
        return False
    apart = all(abs(dim.stride(LEFT)) >= LINE for dim in (*found.m, *found.k))
    sizes = {"products": total(found.products), "m": m, "n": n.size, "k": k}
    return small_family.fits(isa, view.c.dtype, **sizes, columns=columns, apart=apart)


def _tiny_fits(view: _View, isa: ISA) -> bool:
    return total([*view.m, *view.n, *view.k]) <= _TINY_TERMS and _small_fits(view, isa)


def _small(view: _View, shared: _Shared) -> SmallProblem:
    c, found = view.c, view.matrices
    *outer, products = found.products
    m, n, k = found.m, found.n, found.k
    return SmallProblem(
        dtype=c.dtype,
        a=_NOWHERE,
        b=_NOWHERE,
        c=_NOWHERE,
        outer=_loops(levels(outer, LEVELS)),
        t=products.size,
        t_strides=tuple(products.stride(t) or 0 for t in (LEFT, RIGHT, OUT)),
        m=total(m),
        m_strides=(m[-1].stride(LEFT), m[-1].stride(OUT)) if m else (0, 0),
        m_half=(m[0].stride(LEFT), m[0].stride(OUT)) if len(m) > 1 else None,
        n=n.size,
        k=total(k),
        k_strides=(k[-1].stride(LEFT), k[-1].stride(RIGHT)),
        k_half=(k[0].stride(LEFT), k[0].stride(RIGHT)) if len(k) > 1 else None,
        n_stride=None if n.stride(RIGHT) == view.item else n.stride(RIGHT),
        conj_a=c.conj_left,
        conj_b=c.conj_right,
        accumulate=c.accumulate,
        parallel=shared(found.products, m, [n], k),
    )


# -- all of them -------------------------------------------------------------------------------------------------
def _loops(groups: list[list[Dim]]) -> Loops:
    return tuple((total(dims), *(flat_table(dims, t) for t in (LEFT, RIGHT, OUT))) for dims in groups)


def _is_shared(
    dtype: str, threads: int, machine: cost.Machine, batch: list[Dim], m: list[Dim], n: list[Dim], k: list[Dim]
) -> bool:
    """Whether threads share a batch of products of these dimensions."""
    products, rows, columns, terms = [total(dims) for dims in (batch, m, n, k)]
    nbytes = products * (rows * terms + terms * columns + rows * columns) * tile_table.ITEMSIZE[dtype]
    multiplied = products * rows * columns * terms / (PEAK_SHARE * machine.terms(dtype))
    return machine.is_shared(max(multiplied, nbytes / machine.bandwidth(nbytes)), threads)


@dataclass(frozen=True, kw_only=True)
class _Family:
    """``asks``: one of what `_asks` finds; ``along``: the dimension that the kernel steps along, of which there is no
    table."""

    name: str
    asks: str
    fits: Callable[[_View, ISA], bool]
    problem: Callable[[_View, _Shared], DotProblem | BatchedProblem | SmallProblem]
    along: Callable[[_View], Dim]
    exchanged: bool = False


def _last_batch(view: _View) -> Dim:
    return view.batch[-1]


def _last_product(view: _View) -> Dim:
    return view.matrices.products[-1]


_DOT = _Family(name="dot", asks="run", fits=_dot_fits, problem=_dot, along=lambda view: view.k[-1])
_BATCHED = _Family(name="batched", asks="lanes", fits=_batched_fits, problem=_batched, along=_last_batch)
_SMALL = _Family(name="small", asks="columns", fits=_small_fits, problem=_small, along=_last_product)
# The first that fits a contraction runs it.
_FAMILIES = (
    _Family(name="small", asks="columns", fits=_tiny_fits, problem=_small, along=_last_product),
    _Family(name="small", asks="rows", fits=_tiny_fits, problem=_small, along=_last_product, exchanged=True),
    _DOT,
    _BATCHED,
    _SMALL,
    replace(_SMALL, asks="rows", exchanged=True),
)


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A family for a contraction."""

    row: _Family
    view: _View
    isa: ISA
    copied: Copied | None = None

    @property
    def gathers(self) -> bool:
        """Whether columns are read one by one, for every 8 rows again."""
        found = self.view.matrices if self.row.name == "small" else None
        return found is not None and found.gathers(self.view.c.dtype, self.isa)

    @property
    def along(self) -> Dim:
        """The dimension that its kernel steps along."""
        return self.row.along(self.view)

    def plan(self, threads: int, machine: cost.Machine) -> UnpackedPlan:
        copied = self.copied
        return UnpackedPlan(
            family=self.row.name,
            problem=self.row.problem(self.view, partial(_is_shared, self.view.c.dtype, threads, machine)),
            isa=self.isa,
            threads=threads,
            exchanged=self.row.exchanged,
            copy=None if copied is None else lowered(copied.copy, threads),
            copied_bytes=0 if copied is None else copied.nbytes,
        )
