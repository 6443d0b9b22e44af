"""Offsets of intermediates in one arena: buffers whose lifetimes overlap never share bytes."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

ALIGNMENT = 64


class Lifetime(NamedTuple):
    """A buffer of ``nbytes`` that is live from step ``first`` to step ``last``, both included; ``strand``: the strand that
    writes it, beside which the others run (`strands`), 0: none."""

    key: int
    nbytes: int
    first: int
    last: int
    strand: int = 0


def allocate(lifetimes: list[Lifetime]) -> tuple[dict[int, int], int]:
    """Offset of each buffer and the size of the arena, in bytes; first fit, largest first.

    >>> allocate([Lifetime(key=0, nbytes=64, first=0, last=1), Lifetime(key=1, nbytes=64, first=2, last=3)])
    ({0: 0, 1: 0}, 64)
    """
    if not lifetimes:
        return {}, 0
    placed: list[tuple[int, int, int, int, int]] = []  # start, end, first step, last step, strand; in this order
    offsets: dict[int, int] = {}
    for item in sorted(lifetimes, key=lambda l: (-l.nbytes, l.key)):
        size, begin, end, strand = -(-item.nbytes // ALIGNMENT) * ALIGNMENT, item.first, item.last, item.strand
        start = 0
        for low, high, first, last, other in placed:
            if (first <= end and begin <= last) or 0 < other != strand > 0:
                if start + size <= low:
                    break
                if high > start:
                    start = high
        insort(placed, (start, start + size, begin, end, strand))
        offsets[item.key] = start
    total = max([high for _, high, *_ in placed])
    return dict(sorted(offsets.items())), total
