"""Offsets of intermediates in one arena, where buffers whose lifetimes overlap never share bytes; the scratch memory behind them."""

from __future__ import annotations

from bisect import insort
from operator import itemgetter
from typing import Iterable, NamedTuple

from ..kernels.cpu.units import LINE, PAGE
from ..plan import Step

ALIGNMENT = 64
FEW = 128  # buffers: up to so many, each is compared with all
SPANS = 64  # at most: a buffer is listed in each that it lives in
ENDLESS = 1 << 62  # steps
_key, _nbytes = itemgetter(0), itemgetter(1)  # of a lifetime


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
    width, count = _spans(lifetimes)
    # what is live in each span: start, end, first step, last step, strand; in this order
    spans: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(count)]
    offsets: dict[int, int] = {}
    for item in sorted(sorted(lifetimes, key=_key), key=_nbytes, reverse=True):  # stable: by key among equals
        size, begin, end, strand = -(-item.nbytes // ALIGNMENT) * ALIGNMENT, item.first, item.last, item.strand
        near = spans[begin // width : end // width + 1]
        start = 0
        for low, high, first, last, other in near[0] if len(near) == 1 else sorted(set().union(*near)):
            if (first <= end and begin <= last) or 0 < other != strand > 0:
                if start + size <= low:
                    break
                if high > start:
                    start = high
        placed = start, start + size, begin, end, strand
        for span in near:
            insort(span, placed)
        offsets[item.key] = start
    total = max([high for span in spans for _, high, *_ in span])
    return dict(sorted(offsets.items())), total


def _spans(lifetimes: list[Lifetime]) -> tuple[int, int]:
    """Steps of a span, and how many spans there are: of many buffers few live together, and only those are compared. What
    a strand writes meets that of all others, whenever it is live."""
    if len(lifetimes) <= FEW or any([item.strand for item in lifetimes]):
        return ENDLESS, 1
    steps = 1 + max([item.last for item in lifetimes])
    width = -(-steps // SPANS)
    return width, -(-steps // width)


def worker_scratch(steps: Iterable[Step], threads: int) -> int:
    """Bytes from the scratch memory of one worker to that of the next: whole lines and, between two at work, a page.

    A processor that goes through its own to the end brings the lines behind it as well, as far as the page; were they
    another's, they would go from one to the other and back all the time (docs/performance-memory.md#between-workers).
    """
    rows = [step.args for step in steps]
    scratch = -(-max([row.scratch for row in rows], default=0) // LINE) * LINE
    apart = threads > 1 and any([row.scratch and row.tasks > 1 for row in rows])
    return scratch + PAGE if apart else scratch
