"""Products whose result is turned round in a step of its own: a transposition of whole lines costs less than what it saves.

- A result that has a batch index fastest, or behind a run of a few bytes, of operands that do not: a matrix product does
  one of the batch after the other, and each stores a few bytes of every line. With the batch outside, matrices are stored
  as they are (`batch_outside`).
- A large operand that has a batch index fastest, and a result that does not: each product reads a few bytes of every line.
  With the batch fastest in the result, too, lanes run along it, and the other operand is copied so (`batch_inside`).
- A long sum of a large operand whose fastest index the result has elsewhere: what is summed would be packed element by
  element, to have the small result in order (`as_it_lies`).
"""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Mapping

from ..plan import Axis, Index
from . import shared_lines
from .across import MOST_TERMS

Axes = Mapping[Index, Axis]

LEAST_BYTES = 1 << 17  # of a result that is stored with the batch outside: smaller ones stay in the cache of a core
LEAST_LARGE = 1 << 19  # of a large operand for whose sake a result is turned round
SHORT_RUN = 8  # bytes of a result behind which a batch index is as good as fastest
MOST_STORED = 128  # terms of a sum: for more, how results are stored matters little
MOST_ALONG = 128  # terms for which lanes along a batch have room for their operands
MOST_USES = 4  # of each element of the large operand: for more, to pack it is little
SMALL_RESULT = 16  # times as small as the large operand, in the order of which a result is stored


def term_of_product(left: Axes, right: Axes, out: Axes, item: int, lanes: int) -> tuple[Index, ...] | None:
    """Indices of a product's result as it should be stored, slow to fast, before it is turned round; None where it may as
    well be stored as ``out`` has them. ``item``: bytes of an element; ``lanes``: elements of a vector.

    >>> def axes(term, sizes):
    ...     strides = [4 * prod(sizes[j] for j in term[n + 1 :]) for n in range(len(term))]
    ...     return {i: Axis.strided(i, sizes[i], stride) for i, stride in zip(term, strides)}
    >>> sizes = dict(b=20, m=64, n=48, k=6)
    >>> term_of_product(axes("mbk", sizes), axes("bkn", sizes), axes("mnb", sizes), 4, 16)
    ('b', 'm', 'n')
    >>> term_of_product(axes("mbk", sizes), axes("bkn", sizes), axes("mbn", sizes), 4, 16) is None
    True
    """
    terms = prod(axis.size for i, axis in left.items() if i not in out)
    found = batch_outside(left, right, out, item) if terms <= MOST_STORED else None
    if found is None and terms <= MOST_ALONG:
        found = batch_inside(left, right, out, item, lanes)
    if found is None and terms > MOST_TERMS:
        found = as_it_lies(left, right, out, item)
    return found


def batch_outside(left: Axes, right: Axes, out: Axes, item: int) -> tuple[Index, ...] | None:
    """The batch first; the others stay in their order, so that the transposition moves as long runs as there are."""
    order = _fast_to_slow(out)
    batch = [i for i in order if i in left and i in right]
    rows, columns = [i for i in order if i not in right], [i for i in order if i not in left]
    if not batch or not rows or not columns or _elements(out) * item < LEAST_BYTES:
        return None
    run = item * prod(out[i].size for i in order[: order.index(batch[0])])
    if run > max(SHORT_RUN, item) or _lanes_along(batch[0], left, right, out, item):
        return None
    return (*reversed(batch), *[i for i in reversed(order) if i not in batch])


def batch_inside(left: Axes, right: Axes, out: Axes, item: int, lanes: int) -> tuple[Index, ...] | None:
    """The batch last, as the large operand has it."""
    small, large = sorted((left, right), key=_elements)
    order = _fast_to_slow(large)
    batch = [i for i in order if i in small and i in out]
    if not batch or order[0] != batch[0] or _fast_to_slow(out)[0] == batch[0]:
        return None
    run = max(shared_lines.adjacent(large, takewhile(batch.__contains__, order), item)) // item
    if 2 * run < lanes or _elements(large) * item < LEAST_LARGE:
        return None
    uses = prod(axis.size for i, axis in small.items() if i in out and i not in large)
    if uses > MOST_USES or not (small[batch[0]].stride == item or _copied(small, large, out)):
        return None
    return (*[i for i in reversed(_fast_to_slow(out)) if i not in batch], *reversed(batch))


def as_it_lies(left: Axes, right: Axes, out: Axes, item: int) -> tuple[Index, ...] | None:
    """The indices of the large operand in its order, behind those of the small one; without a batch."""
    small, large = sorted((left, right), key=_elements)
    order = _fast_to_slow(large)
    if any(i in small and i in out for i in large) or order[0] not in out:
        return None
    first, fastest = order[0], _fast_to_slow(out)[0]
    if fastest == first or fastest in small:
        return None
    if large[first].stride != item or _elements(out) * SMALL_RESULT > _elements(large):
        return None
    if _elements(large) * item < LEAST_LARGE:
        return None
    kept = [i for i in order if i in out]
    return (*[i for i in reversed(_fast_to_slow(out)) if i not in kept], *reversed(kept))


def _lanes_along(batch: Index, left: Axes, right: Axes, out: Axes, item: int) -> bool:
    """Whether lanes may run along a batch index: it is fastest in both operands and the result, or in one operand beside a
    small one, of which there may be a copy (`beside`)."""
    if out[batch].stride != item:
        return False
    along = [axes for axes in (left, right) if axes[batch].stride == item]
    if len(along) != 1:
        return len(along) == 2
    other = right if along[0] is left else left
    return _elements(along[0]) * item >= shared_lines.LEAST_BYTES and _copied(other, along[0], out)


def _copied(small: Axes, large: Axes, out: Axes) -> bool:
    """Whether a copy of an operand is little beside the other one, or for each product of the batch."""
    each = prod(axis.size for i, axis in small.items() if not (i in large and i in out))
    return shared_lines.worth_copying(_elements(small), _elements(large), each)


def _elements(axes: Axes) -> int:
    return prod(axis.size for axis in axes.values())


def _fast_to_slow(axes: Axes) -> list[Index]:
    return sorted(axes, key=lambda i: abs(axes[i].stride))
