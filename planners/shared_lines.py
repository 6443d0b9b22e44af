"""Sums along cache lines that a batch shares: a product whose lanes run along what it sums, and a sum of those lanes.

Where the fastest index of a large operand is summed and short, and a batch index lies behind it, a line of memory has
terms of several products of the batch. A matrix product does one of these at a time, and comes back for the rest of
each line, element by element. With the summed index kept, as one more of the batch, the batched family reads whole
lines in the order in which they lie (`beside` copies the small operand into it), and a `sum` step adds the lanes.
"""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Collection, Iterable, Mapping

from ..kernels.isa import ISA
from ..kernels.cpu.units import LINE
from ..kernels.tiles import COMPLEX, ITEMSIZE
from ..plan import Axis, Index

LEAST_BYTES = 1 << 14  # of the large operand, at least
SMALL_SHARE = 8  # how many times as many elements it has as what is moved besides: the small one, and the lanes
COPIED = 24  # elements of a product's operand that are copied in less time than a product by itself takes to begin
MOST_ROWS = 1024  # of lanes in the small operand of one product, 64 KB of whole lines: L2 keeps them beside the others


def lanes_of_sum(
    small: Mapping[Index, Axis], large: Mapping[Index, Axis], kept: Collection[Index], dtype: str, isa: ISA
) -> tuple[Index, ...]:
    """The summed indices of a product along which lanes run; none where a matrix product reads whole lines as well.

    ``small``, ``large``: axes of the operands, of ``dtype``; ``kept``: indices of the output.
    """
    item = ITEMSIZE[dtype]
    order = sorted(large, key=lambda i: abs(large[i].stride))
    summed = tuple(takewhile(lambda i: i in small and i not in kept, order))
    if not summed or len(summed) == len(order):
        return ()
    if isa.vector_bits < 8 * LINE and any(small[i].stride == item for i in summed):
        return ()  # a dot product, whose vectors are as long as the runs
    batch = order[len(summed)]
    beside = adjacent(large, (*summed, batch), item)
    if batch not in small or not 2 * beside[-2] <= LINE <= beside[-1]:
        return ()
    sizes = {i: axis.size for axes in (small, large) for i, axis in axes.items()}
    elements, copied, lanes = (prod(sizes[i] for i in indices) for indices in (large, small, {*kept, *summed}))
    share = SMALL_SHARE * (2 if dtype in COMPLEX else 1)  # twice the arithmetic for each byte
    if elements * item < LEAST_BYTES or max(copied, lanes) * share > elements:
        return ()
    rows = prod(sizes[i] for i in small if i not in summed and not (i in large and i in kept))
    return summed if rows <= MOST_ROWS else ()


def worth_copying(small: int, large: int, each: int) -> bool:
    """Whether a copy of an operand of ``small`` is little beside a ``large`` one, both in elements or in bytes, or of so few
    elements for each product."""
    return small * SMALL_SHARE <= large or each <= COPIED


def adjacent(axes: Mapping[Index, Axis], order: Iterable[Index], item: int) -> list[int]:
    """Bytes that lie side by side along the first index, the first two, and so on; 0 from where there are gaps."""
    run, found = item, []
    for index in order:
        run = run * axes[index].size if axes[index].stride == run else 0
        found.append(run)
    return found
