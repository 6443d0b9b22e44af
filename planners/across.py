"""Lanes along A: a draft in which the lanes side is read in place, and C is unpacked across panels.

The lanes of a product run along what is fastest in its output, as a rule, and a known A that runs along other rows is
packed on the way. Where A has more terms than B has columns, that moves more elements than C has. Here lanes run along
A, so that it is read in place, each line once where one tile holds all columns; panels that follow each other are
adjacent in C, and `kernels.cpu.unpack` turns round what groups of them have computed.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

import numpy as np

from ..kernels.cpu.units import PAGE
from .contraction import BinaryContraction
from .runs import chain
from .sides import LEFT, OUT, Dim

FAR_TERMS = 512  # bytes between terms of A up to which hardware follows
LEAST_RUN = 8  # panels that are adjacent in C, and lanes that A runs along
SETS = 1 << 16  # bytes: what lies pages apart shares a few sets of each cache; at such distances, of those of a core
LEAST_TERMS, MOST_TERMS = 28, 384  # fewer do not pay for unpacking, more are not one block of K
MOST_COLUMNS = 24  # of the widest tile
FILLED = 0.6  # of a block of (panel, lane) that is turned round
WAITING_BYTES = 256 << 10  # of tiles, beside A in L2
MOST_ADJACENT = 48  # panels
MOST_BYTES = 1 << 62


def worth_drawing(c: BinaryContraction) -> bool:
    """Whether such a draft may be had, from the indices alone: that of the output's fastest index, with lanes along its
    operand, which has another one fastest."""
    rows, columns, axes = c.m, c.n, c.left
    terms = prod([c.sizes[i] for i in c.k])
    if c.out is None or not c.m or not c.n or not LEAST_TERMS <= terms <= MOST_TERMS:
        return False
    fast = min(c.out, key=lambda i: abs(c.out[i].stride) if c.sizes[i] > 1 else MOST_BYTES)
    if fast in c.n:
        rows, columns, axes = c.n, c.m, c.right
    if axes is None or fast not in rows or prod([c.sizes[i] for i in columns]) > MOST_COLUMNS:
        return False
    nearest = min(axes, key=lambda i: abs(axes[i].stride) if c.sizes[i] > 1 else MOST_BYTES)
    return nearest in rows and nearest != fast


def lanes_along_a(
    dims: Sequence[Dim], terms: Sequence[Dim], left: int, item: int, block: int
) -> list[Dim] | None:
    """Lanes, the panels that are adjacent in C, and the other rows; None where A runs along C, or in short runs.

    ``dims``: rows, fastest in C first; ``terms``: what is summed; ``left``, ``item``: bytes of an element of A and of C;
    ``block``: panels and lanes that are turned round together.
    """
    first = next((dim for dim in dims if dim.stride(LEFT) == left), None)
    if first is None or first is dims[0] or dims[0].stride(OUT) != item or dims[0].stride(LEFT) is None:
        return None
    if any(dim.size >= LEAST_RUN and (dim.stride(LEFT) or 0) % PAGE == 0 for dim in terms):
        return None
    if dims[0].stride(LEFT) % SETS == 0:
        return None
    lanes, rest = chain(first, [dim for dim in dims[1:] if dim is not first], LEFT, OUT, block)
    run, rest = chain(dims[0], rest, OUT, LEFT, block)
    apart = lanes.table(OUT)[:2]
    if min(lanes.size, run.size) < LEAST_RUN or ((apart[-1] - apart[0]) % PAGE == 0 and not _packs_badly(dims, terms)):
        return None
    return [lanes, run, *rest]


def _packs_badly(dims: Sequence[Dim], terms: Sequence[Dim]) -> bool:
    """Whether packing would read short pieces far apart from rows at distances of whole pages: worse than to write so."""
    far = all(abs(dim.stride(LEFT) or 0) > FAR_TERMS for dim in terms)
    return far and (dims[0].stride(LEFT) or 0) % PAGE == 0


def group_of(cuts: int, run: int, tile: int, block: int) -> tuple[int, int]:
    """Panels beside each other in A and adjacent in C whose tiles, of so many bytes, wait together.

    All that are beside, of ``cuts``, so that A is read in runs as long as it has; (0, 0) where too few of ``run`` would
    be adjacent.

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
