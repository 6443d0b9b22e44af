"""Products as many matrices of few rows, for the small family: which rows one of them has, and in which order they come.

Rows that are many, or several dimensions, as tensor networks have them, are some of one dimension in each matrix, and loops around
it; a GEMM would begin anew for each product of a batch, with tiles of few columns and terms, which mostly begin and end. Where the
batch runs along the lines of A (``ceb,bed->cbd``), a product has an element of each line, and the next one the next: matrices have
so few rows then that the first cache keeps their lines until the batch has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..kernels import small, tiles as tile_table
from ..kernels.cpu.units import LINE
from ..kernels.isa import ISA
from .cache_sets import stay_near
from .contraction import BinaryContraction
from .sides import LEFT, OUT, RIGHT, Dim, cut, largest_divisor, total

ROWS, LEAST_ROWS = 8, 4  # that a kernel sums side by side; of a part of a dimension
VECTORS = 3  # in a row: of more a GEMM takes less, or as much
TERMS = 24  # of a sum: the same
TALL_COLUMNS, TALL_ROWS = 32, 128  # of a product without a batch, at most and at least
TURNED_LANES = 8  # elements of a vector, from which on turning columns round pays


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Dimensions of many small products, slow to fast: C[t, m, n] = sum_k A[t, m, k] B[t, k, n], t being `products`."""

    products: list[Dim]
    m: list[Dim]
    n: Dim
    k: list[Dim]

    def lie(self, dtype: str) -> str:
        """How columns lie in B, as `small.columns_of` says it."""
        terms = self.k[0].stride(RIGHT) if len(self.k) == 1 else None
        return small.columns_of(dtype, self.n.stride(RIGHT), terms)

    def are_pairs(self, dtype: str, isa: ISA, accumulate: bool) -> bool:
        """Whether rows and terms are four each, as one dimension or two of 2, and a kernel has them written out."""
        four = all([total(dims) == 4 and len(dims) <= 2 for dims in (self.m, self.k)])
        strided = bool(self.lie(dtype))
        return four and small.is_written_out(isa, dtype, m=4, n=self.n.size, k=4, strided=strided, accumulate=accumulate)

    def is_far(self, item: int) -> bool:
        """Whether the result is larger than the caches."""
        return total([*self.products, *self.m]) * self.n.size * item > small.FAR_BYTES

    def passes_caches(self, item: int) -> bool:
        """Whether it is, and rows are whole lines, which a GEMM stores past them."""
        return self.n.size * item % LINE == 0 and self.is_far(item)

    def gathers(self, dtype: str, isa: ISA) -> bool:
        """Whether columns are read one by one, as they are neither adjacent in B nor turned round."""
        _, kind = self.columns(dtype, isa)
        return kind == "s"

    def columns(self, dtype: str, isa: ISA) -> tuple[int, str]:
        """As `small.at_once` has it, of 8 rows."""
        return small.at_once(isa, dtype, m=ROWS, n=self.n.size, k=total(self.k), columns=self.lie(dtype))


def is_tall(c: BinaryContraction) -> bool:
    """Whether a matrix of few columns and terms is applied to many rows, which may be taken as a batch of shorter ones."""
    m, n, k = (prod([c.sizes[i] for i in indices]) for indices in (c.m, c.n, c.k))
    return not c.batch and 0 < min(m, n) <= TALL_COLUMNS and max(m, n) >= TALL_ROWS and 0 < k <= TERMS


def in_loops(found: Matrices, dtype: str, isa: ISA, accumulate: bool = False) -> Matrices:
    """``found`` with rows of one dimension, or of a part of it; the rest are loops. As it is where a GEMM takes less, or as much:
    rows would be many vectors, or columns gathered one by one for each of these, or lines read again for each of their elements."""
    item = tile_table.ITEMSIZE[dtype]
    if not found.m or len(found.k) != 1 or found.passes_caches(item) or not _few_vectors(found, dtype, isa):
        return found
    if found.are_pairs(dtype, isa, accumulate):
        return found
    if len(found.m) == 1 and found.m[0].size <= small.LARGEST and not _reads_again(found, item):
        return found
    ways = [_with_rows(found, item, *part) for part in _parts(found)]
    best = max(ways, key=lambda way: _worth(way, item), default=found)
    return found if _reads_again(best, item) else best


def _few_vectors(found: Matrices, dtype: str, isa: ISA) -> bool:
    """Whether rows are few vectors, read as they lie in B, or one that is turned round; without a batch half a vector to less than
    two, of elements for which that was faster."""
    width, kind = found.columns(dtype, isa)
    if kind == "t":
        return found.n.size <= width and tile_table.elements(isa, dtype) >= TURNED_LANES
    if not found.products:
        lanes = tile_table.elements(isa, dtype)
        return kind == "" and lanes <= 2 * found.n.size < 4 * width and tile_table.ITEMSIZE[dtype] <= 8
    return kind == "" and found.n.size <= VECTORS * width and total(found.k) <= TERMS


def _reads_again(found: Matrices, item: int) -> bool:
    """Whether products that follow each other read the same lines of A, of which the first cache has no room for those of one."""
    rows, terms = ([(dim.size, dim.stride(LEFT) or 0) for dim in dims] for dims in (found.m, found.k))
    beside = any([0 < abs(dim.stride(LEFT) or 0) < LINE for dim in found.products])
    return beside and all([abs(step) >= LINE for _, step in rows]) and not stay_near([*rows, *terms], item=item)


def _parts(found: Matrices) -> list[list[Dim]]:
    """The rows of one matrix, and what is left of their dimension, in each way that there is, unless there would be few."""
    ways = []
    for dim in found.m:
        if dim.size <= small.LARGEST:
            ways.append([dim])
        for most in (small.LARGEST, ROWS):
            rows = largest_divisor(dim.size, most)
            if LEAST_ROWS <= rows <= most < dim.size:
                ways.append(cut(dim, rows))
    return ways


def _with_rows(found: Matrices, item: int, rows: Dim, *turns: Dim) -> Matrices:
    """Matrices of these rows; other dimensions and the ``turns`` of this one are loops. What is read once is best read in its own
    order, and a larger result that goes to memory is best written so; along the last of the loops a kernel steps."""
    others = [dim for dim in found.m if dim.indices != rows.indices]
    tensor = _followed(found, item)
    products = sorted([*found.products, *others, *turns], key=lambda dim: -abs(dim.stride(tensor) or 0))
    return Matrices(products=products, m=[rows], n=found.n, k=found.k)


def _followed(found: Matrices, item: int) -> int:
    """The tensor in whose order the loops go."""
    return OUT if found.is_far(item) and found.n.size > total(found.k) else LEFT


def _worth(way: Matrices, item: int) -> tuple[bool, int, int, int]:
    """The most of these is the best: no line is read again; rows that are summed side by side; all of a dimension; rows near each
    other."""
    rows = way.m[0]
    near = -abs(rows.stride(_followed(way, item)) or 0)
    return not _reads_again(way, item), min(rows.size, ROWS), -len(way.products), near
