"""Lanes along A: a draft in which the lanes side is read in place, and C is unpacked across panels.

The lanes of a product run along what is fastest in its output, as a rule, and a known A that runs along other rows is
packed on the way. Where A has more terms than B has columns, that moves more elements than C has. Here lanes run along
A, so that it is read in place, each line once where one tile holds all columns; panels that follow each other are
adjacent in C, and `kernels.cpu.unpack` turns round what groups of them have computed.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from .sides import LEFT, OUT, Dim, cut

LONG_ENOUGH = 512  # lanes, or panels that are adjacent in C
PAGE = 4096  # bytes: lanes of C at distances of whole pages share a set of each cache
LEAST_RUN = 4  # panels of a group, and lanes that A runs along, for this to be worth drawing up
FILLED = 0.6  # of a block of (panel, lane) that is turned round
WAITING_BYTES = 256 << 10  # of tiles, beside A in L2
MOST_ADJACENT = 48


def lanes_along_a(dims: Sequence[Dim], left: int, item: int, block: int) -> list[Dim] | None:
    """Lanes, the panels that are adjacent in C, and the other row dimensions; None where A runs along C, or in short runs.

    ``dims``: rows, fastest in C first; ``left``, ``item``: bytes of an element of A and of C; ``block``: panels of a group.
    """
    first = next((dim for dim in dims if dim.stride(LEFT) == left), None)
    if first is None or first is dims[0] or dims[0].stride(OUT) != item or dims[0].stride(LEFT) is None:
        return None
    lanes, rest = _chain(first, [dim for dim in dims[1:] if dim is not first], LEFT, OUT, block)
    run, rest = _chain(dims[0], rest, OUT, LEFT, block)
    apart = lanes.table(OUT)[:2]
    short = min(lanes.size, run.size) < LEAST_RUN
    return None if short or (apart[-1] - apart[0]) % PAGE == 0 else [lanes, run, *rest]


def group_of(cuts: int, run: int, tile: int, block: int) -> tuple[int, int]:
    """Panels beside each other in A and adjacent in C whose tiles, of so many bytes, wait together: all that are beside,
    of ``cuts``, so that A is read in runs as long as it has; (0, 0) where too few of ``run`` would be adjacent.

    >>> group_of(3, 48, 1536, 16), group_of(11, 168, 1536, 16), group_of(30, 480, 1536, 16)
    ((3, 48), (11, 14), (0, 0))
    """
    most = min(MOST_ADJACENT, WAITING_BYTES // (cuts * tile), run)
    adjacent = next((size for size in range(most, 0, -1) if run % size == 0), 0)
    return (cuts, adjacent) if adjacent >= min(run, block * FILLED) else (0, 0)


def in_groups(rest: int, cuts: int, run: int, group: tuple[int, int]) -> np.ndarray:
    """Numbers of the panels, (rest, cuts, run), group after group; in a group the adjacent ones are slowest."""
    beside, adjacent = group
    shape = (rest, cuts // beside, beside, run // adjacent, adjacent)
    return np.arange(rest * cuts * run).reshape(shape).transpose(0, 1, 3, 4, 2).ravel()


def _chain(first: Dim, others: list[Dim], along: int, other: int, block: int) -> tuple[Dim, list[Dim]]:
    """``first`` and the dimensions that go on where it ends in the tensor ``along``, as one, until ``block`` divides its
    size or it is long enough, and what is left."""
    found, rest = first, list(others)
    while found.size % block:
        pitch = found.strides[along] * found.size
        slow = next((dim for dim in rest if dim.stride(along) == pitch and not dim.tables), None)
        size = 0 if slow is None else _part(slow.size, found.size, block)
        if slow is None or not size:
            break
        at = rest.index(slow)
        slow, *rest[at : at + 1] = cut(slow, size)
        table = (slow.table(other)[:, None] + found.table(other)[None, :]).ravel()
        found = Dim(slow.indices + found.indices, slow.size * found.size, {along: found.strides[along]}, {other: table})
    return found, rest


def _part(size: int, times: int, block: int) -> int:
    """The least divisor of ``size`` that makes whole blocks of ``times``, or the largest of moderate length; 0: none."""
    fitting = [part for part in range(2, size + 1) if size % part == 0 and part * times <= LONG_ENOUGH]
    return next((part for part in fitting if part * times % block == 0), fitting[-1] if fitting else 0)
