"""Splitting a long sum between threads: a product with a small output and a large K becomes a batch of products.

One summed index is cut in two, (piece, rest). The pieces are a batch index of the product, whose tasks then pack
disjoint parts of both operands, and a `sum` step adds the partial products. Results are the same in every run: the
order of the additions is the plan's, not the threads'.

A product of corresponding elements whose result has rows of less than a line is cut the other way: a few terms that lie
behind each other number the pieces, so that vectors run along them and the row.

One whose operands run along different summed indices keeps one of them, too: a sum of both would have nothing to turn round.

A size need not have a divisor: what is left behind all pieces, the *tail*, is added to the first partial product by a
further part of the step (`parts`).
"""

from __future__ import annotations

import math
from typing import Iterable, Mapping, NamedTuple, Sequence

from ..kernels.cpu.units import LINE
from ..plan import Axis, Index

TASKS_PER_THREAD = 4  # as many tasks as a GEMM wants: a thread that is late gives its share to the others
_PARTIAL_BYTES = 2 << 20  # of all partial products: they stay in the shared cache
# Products with less of both are done before splitting pays: terms times bytes of an element, and bytes of both operands.
LEAST_WORK, LEAST_BYTES = 5 << 20, 1 << 20
ROWS_BYTES = 1 << 20  # of both operands of a product of corresponding elements that is summed by a fused kernel
LEAST_OPERANDS = 1 << 17  # bytes of both operands of a product that is looked at
# A side of fewer entries is streamed past: rows of the other operand are tasks enough, if they are long, or so many.
_FEW, _ROWS_EACH, _MOST_ROWS = 32, 16, 2048
SLENDER = 0.5  # of the elements of a vector, at most, that correspond to one element of another operand (`weighted`)
FEW_ROWS = 4  # of a matrix that are worth a turn of the loops outside, or a copy of a vector in their order (`beside`)
TILE = 16  # entries of either side of what is turned round, at least
_WHOLE_LINES = 16  # a piece with a tail behind it has a multiple of so many entries, which may lie side by side
# Writing and adding the partial products moves at most this share of the elements that the operands have.
_TRAFFIC = 8


class SumCut(NamedTuple):
    """How a sum is cut: summed indices that number pieces as a ``whole``, and one ``index`` in ``count`` pieces of
    ``length`` entries, with ``tail`` entries behind the last; ``inner``: entries of a piece are ``count`` apart."""

    whole: tuple[Index, ...]
    count: int
    index: Index = ""
    length: int = 0
    tail: int = 0
    inner: bool = False


def pieces_of_k(
    left: Mapping[Index, Axis],
    right: Mapping[Index, Axis],
    kept: Iterable[Index],
    *,
    itemsize: int,
    threads: int,
    free: bool = False,
) -> SumCut | None:
    """How to cut the sum of a product; None where that has enough tasks without.

    ``left``, ``right``: axes of operands; ``free``: one of them is an intermediate, so that there is no tail; ``kept``:
    indices of the output.
    """
    if threads == 1:
        return None
    sizes = {i: axis.size for i, axis in (*left.items(), *right.items())}
    kept = set(kept)
    summed = [i for i in left if i in right and i not in kept]
    rows, columns = (kept & left.keys()) - right.keys(), (kept & right.keys()) - left.keys()
    sides = [math.prod(sizes[i] for i in side) for side in (rows, columns)]
    batch = math.prod(sizes[i] for i in kept if i in left and i in right)
    out, k = batch * math.prod(sides), math.prod(sizes[i] for i in summed)
    elements = batch * k * sum(sides)
    least = TASKS_PER_THREAD * threads
    if batch >= least or max(sides) == 1 or out * k * itemsize < LEAST_WORK and elements * itemsize < LEAST_BYTES:
        return None  # dot products are shared by their kernels
    if min(sides) < _FEW:
        large = left if sides[0] > sides[1] else right
        along_k = min(large, key=lambda i: abs(large[i].stride)) in summed
        if max(sides) > (_ROWS_EACH * min(sides) if along_k else _MOST_ROWS):
            return None
    most = min(_PARTIAL_BYTES // (out * itemsize), elements // (_TRAFFIC * out))
    order = sorted(summed, key=lambda i: -min(abs(left[i].stride), abs(right[i].stride)))
    cuts = [_cut_evenly(index, sizes[index], least, tail=not free) for index in order]
    cuts.append(_cut_whole(order, sizes, least))
    return next((found for found in cuts if found is not None and found.count <= most), None)


def _cut_whole(order: Sequence[Index], sizes: Mapping[Index, int], least: int) -> SumCut | None:
    """The first indices of ``order`` that number ``least`` pieces; None where that would be far more."""
    count = 1
    for at, index in enumerate(order[:-1]):  # one is left to be summed
        count *= sizes[index]
        if count >= least:
            return SumCut(tuple(order[: at + 1]), count) if count <= 8 * least else None
    return None


def _cut_evenly(index: Index, size: int, least: int, *, tail: bool) -> SumCut | None:
    """``least`` pieces or up to four times as many, without a tail where there is a divisor; None for a short index."""
    count = next((p for p in range(least, 4 * least + 1) if size % p == 0), 0)
    if count:
        return SumCut((), count, index, size // count)
    length = size // least
    if length < _WHOLE_LINES or not tail:
        return None
    length -= length % _WHOLE_LINES
    return SumCut((), least, index, length, size - least * length)


def cut(axes: Mapping[Index, Axis], found: SumCut, piece: Index) -> dict[Index, Axis]:
    """The axes with the index cut into pieces, named ``piece``; the index keeps what is within one."""
    _, count, index, length, _, inner = found
    step = axes[index].stride
    apart, near = (step, step * count) if inner else (step * length, step)
    return {
        piece: Axis.strided(piece, count, apart),
        **{i: axis if i != index else Axis.strided(i, length, near) for i, axis in axes.items()},
    }


def pieces_of_a_line(left: Mapping[Index, Axis], right: Mapping[Index, Axis], kept: Iterable[Index], *, itemsize: int) -> SumCut | None:
    """How to cut the sum of a product of corresponding elements, so that a row of the result and the pieces are a line or
    more in both operands; None where a row is, or where they do not lie so."""
    if left.keys() != right.keys():
        return None
    orders = [sorted(axes, key=lambda i: abs(axes[i].stride)) for axes in (left, right)]
    kept, whole, run = set(kept), [], itemsize
    for index, other in zip(*orders):
        size = left[index].size
        if index != other or left[index].stride != run or right[index].stride != run:
            return None
        if index in kept and whole or index not in kept and run == itemsize:  # a dot product
            return None
        if index not in kept:
            need = -(-LINE // run)
            if size > 4 * need:
                count = next((p for p in range(need, 4 * need + 1) if size % p == 0), 0)
                return SumCut(tuple(whole), count, index, size // count, inner=True) if count else None
            whole.append(index)
        run *= size
        if run >= LINE:
            return SumCut(tuple(whole), 1) if whole else None
    return None


def pieces_of_tiles(
    left: Mapping[Index, Axis], right: Mapping[Index, Axis], kept: Sequence[Index], *, rows: float = 1
) -> SumCut | None:
    """How to cut the sum of a product of corresponding elements that lie along different summed indices: the one along
    which the larger operand runs (or the second one) numbers pieces, so that tiles are turned round while the sum goes along
    the other; without it, each element would be read from a line of its own. ``rows``: of the larger one, at most, that
    correspond to one element of the other. The pieces are a `TILE`-th of that operand at most."""
    left, right = sorted((left, right), key=len)
    if not left or not left.keys() <= right.keys():
        return None
    near, far = (min(axes, key=lambda i: abs(axes[i].stride)) for axes in (left, right))
    if near == far or near in kept or far in kept or min(left[near].size, right[far].size) < TILE:
        return None
    apart = right.keys() - left.keys()
    each = math.prod([right[i].size for i in apart])
    if not apart <= set(kept) or each > rows or (each >= FEW_ROWS and not left.keys() & set(kept)):
        return None
    return SumCut((far,), left[far].size)
