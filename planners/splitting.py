"""Splitting a long sum between threads: a product with a small output and a large K becomes a batch of products.

One summed index is cut in two, (piece, rest). The pieces are a batch index of the product, whose tasks then pack
disjoint parts of both operands, and a `sum` step adds the partial products. Results are the same in every run: the
order of the additions is the plan's, not the threads'.
"""

from __future__ import annotations

import math
from typing import Iterable, Mapping

from ..plan import Axis, Index

TASKS_PER_THREAD = 4  # as many tasks as a GEMM wants: a thread that is late gives its share to the others
_PARTIAL_BYTES = 2 << 20  # of all partial products: they stay in the shared cache
LEAST_TERMS = 1 << 24  # shorter products are done before splitting pays
_LEAST_SIDE = 32
# Writing and adding the partial products moves at most this share of the elements that the operands have.
_TRAFFIC = 8


def pieces_of_k(
    left: Mapping[Index, Axis],
    right: Mapping[Index, Axis],
    kept: Iterable[Index],
    *,
    itemsize: int,
    threads: int,
) -> tuple[Index, int] | None:
    """Index to cut and number of pieces; None where the product has enough tasks without, or no size divides.

    ``left``, ``right``: axes of operands whose layouts are known; ``kept``: indices of the output.
    """
    if threads == 1:
        return None
    sizes = {i: axis.size for i, axis in (*left.items(), *right.items())}
    if math.prod(sizes.values()) < LEAST_TERMS:
        return None
    kept = set(kept)
    summed = [i for i in left if i in right and i not in kept]
    rows, columns = (kept & left.keys()) - right.keys(), (kept & right.keys()) - left.keys()
    sides = [math.prod(sizes[i] for i in side) for side in (rows, columns)]
    batch = math.prod(sizes[i] for i in kept if i in left and i in right)
    out, k = batch * math.prod(sides), math.prod(sizes[i] for i in summed)
    least, most = TASKS_PER_THREAD * threads, 4 * TASKS_PER_THREAD * threads
    if batch >= least or min(sides) < _LEAST_SIDE or out * k < LEAST_TERMS:
        return None
    for index in sorted(summed, key=lambda i: -min(abs(left[i].stride), abs(right[i].stride))):
        count = next((p for p in range(least, most + 1) if sizes[index] % p == 0), 0)
        small = count * out * itemsize <= _PARTIAL_BYTES and _TRAFFIC * count * out <= k * sum(sides)
        if count and small:
            return index, count
    return None


def cut(axes: Mapping[Index, Axis], index: Index, piece: Index, count: int) -> dict[Index, Axis]:
    """The axes with ``index`` cut into ``count`` pieces, named ``piece``; ``index`` keeps what is within one."""
    whole = axes[index]
    rest = whole.size // count
    return {
        piece: Axis.strided(piece, count, whole.stride * rest),
        **{i: axis if i != index else Axis.strided(i, rest, whole.stride) for i, axis in axes.items()},
    }
