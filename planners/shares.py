"""Tasks of a large product of unequal size: large ones first, small ones last, so that threads are done together.

Equal blocks leave the last thread alone with a whole one: 43 panels in blocks of 6 are 24 and 19 panels for two threads, and
where one thread is late, the other waits for up to a block. Here each task has a part of what is left (guided
self-scheduling; Polychronopoulos and Kuck, 1987), and the last ones are cut along columns. Each task costs something: it
begins with a B that is not in its cache, and one that has a part of the columns packs its A again. So a few ways to cut are
drawn up, and the one with which the last of the threads is done first is taken.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from typing import Iterator, NamedTuple

START_BYTES = 4 << 10  # of packed A that a thread computes with while it starts a task
PACKED_COLUMNS = 26  # that are computed while a panel of A is packed
LATE = 0.15  # of the largest of the last tasks, by which threads are done at different times
PARTS = (1, 2, 3)  # of what is left that a task has, by all threads
PIECES = (1, 2, 4)  # of a task along columns
MOST_TASKS = 256

Share = tuple[int, int, int, int]


class Cost(NamedTuple):
    """Of a task, in units of computing with a panel: to start it with all columns, and to pack a panel."""

    start: float
    pack: float


@lru_cache(maxsize=64)
def uneven_shares(
    *, panels: int, columns: int, nr: int, grain: int, most: int, threads: int, panel_bytes: int, packs: bool
) -> tuple[Share, ...]:
    """First panel, end, first column and end of each task, in the order in which they are taken.

    ``grain``: panels that stay together; ``most``: panels that a task may have; ``panel_bytes``: of one packed panel and one
    block of K; ``packs``: whether tasks pack A.

    >>> shares = uneven_shares(panels=7, columns=600, nr=6, grain=1, most=3, threads=2, panel_bytes=90000, packs=True)
    >>> shares[:3], shares[3:]
    (((0, 3, 0, 600), (3, 5, 0, 600), (5, 6, 0, 300)), ((5, 6, 300, 600), (6, 7, 0, 300), (6, 7, 300, 600)))
    """
    cost = Cost(START_BYTES / panel_bytes, PACKED_COLUMNS / columns if packs else 0.0)

    def seconds(shares: tuple[Share, ...]) -> float:
        each = [_seconds(share, columns, cost) for share in shares]
        return makespan(each, threads) + LATE * max(each[-threads:])

    return min(_ways(panels, columns, nr, grain, most, threads), key=seconds)


def _ways(panels: int, columns: int, nr: int, grain: int, most: int, threads: int) -> Iterator[tuple[Share, ...]]:
    for parts in PARTS:
        blocks = list(_guided(panels, grain, most, parts * threads))
        for pieces in PIECES:
            for cut in (threads, 2 * threads) if pieces > 1 else (0,):
                whole = max(0, len(blocks) - cut)
                last = [share for block in blocks[whole:] for share in _pieces(block, columns, nr, pieces)]
                yield (*((*block, 0, columns) for block in blocks[:whole]), *last)


def _guided(panels: int, grain: int, most: int, parts: int) -> Iterator[tuple[int, int]]:
    """First panel and end of blocks that have a share of the panels left each.

    >>> list(_guided(12, 1, 4, 4))
    [(0, 3), (3, 6), (6, 8), (8, 9), (9, 10), (10, 11), (11, 12)]
    """
    start = 0
    while start < panels:
        share = max(-(-(panels - start) // parts), -(-panels // MOST_TASKS))
        stop = min(start + min(-(-share // grain) * grain, max(grain, most - most % grain)), panels)
        yield start, stop
        start = stop


def _pieces(block: tuple[int, int], columns: int, nr: int, pieces: int) -> Iterator[Share]:
    """The block, its columns cut into pieces of whole tiles."""
    step = -(-(-(-columns // pieces)) // nr) * nr
    for start in range(0, columns, step):
        yield *block, start, min(start + step, columns)


def _seconds(share: Share, columns: int, cost: Cost) -> float:
    first, end, left, right = share
    return (end - first + cost.start) * (right - left) / columns + (end - first) * cost.pack


def makespan(tasks: list[float], threads: int) -> float:
    """When the last thread is done, if each takes the next task when it is done with one.

    >>> makespan([3, 3, 2, 1, 1], 2)
    5
    """
    done = [0] * threads
    for task in tasks:
        heapq.heapreplace(done, done[0] + task)
    return max(done)
