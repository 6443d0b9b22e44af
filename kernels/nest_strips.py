"""Permutations in strips, which go from registers to memory as whole lines, without boxes in scratch (`cpu.strips`).

As many rows of the input as a line of the output has elements are few enough for hardware to follow, each in order to
its end; the lines of a tile may leave past the caches in any order.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Sequence

import numpy as np

from .cpu import abi, cores
from .cpu import nest_abi as na
from .cpu.units import LINE, PAGE
from .nest_boxes import OUT, A, Group, take, without
from .nest_problem import Dim
from .nest_rows import FAR_BYTES, RowBuilder
from .row import Row

ITEM_SIZES = (4, 8, 16)  # bytes: of smaller elements a line would take more rows than hardware follows
# Bytes, at least, of a run of the output, both ends of which are stored by mask, and of a run of the input: less than a
# line and a half is mostly tiles that are not full. From these on strips are faster than boxes.
LONG_OUT, LONG_IN = 900, 96
# Strips that join runs of the output do so up to so many bytes of one: longer ones have few ends. Boxes for each task, at least.
JOINED_OUT, JOINED_BOXES = 8 << 10, 8
# Of a run of the input where no line is shifted: rows of it are whole pages apart, as boxes do as well otherwise, and
# long enough for hardware to follow them.
PAGED_IN = 2048
CROWDED_IN = 4096  # and where lines are shifted and rows fall into few cache sets: lines are loaded twice
MOST_O, MOST_J = 4096, 2048  # entries of O in its table, of J in a strip
AHEAD_BYTES = 8 << 10  # of what is read before lines that are asked for, at least a strip
SHORT_IN = 3 * LINE  # bytes of rows that end before hardware follows many
AHEAD_MOST = 256 << 10  # and where strips come back to what continues their rows, at most
BORDERS = 2  # so many times fewer tasks than of other copies: both sides of a border in a run store parts of lines
ONE = (1, 0, 0, 0)


def lower_strips(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> Row | None:
    """Row of a copy of ``dims`` in strips, or None where boxes do as well or better for all outputs.

    It does nothing where the output does not begin as its word N_STRIPS says.
    """
    runs, fast = _sides(_chain(dims, OUT, item), _chain(dims, A, item), item)
    if item not in ITEM_SIZES or not runs:
        return None
    o, left = _along(runs, _entries(item))
    j, rest = take(fast, MOST_J, LINE // item)
    outer = sorted(left + rest + without(without(dims, runs), fast), key=lambda d: abs(d[1 + A]))
    builder, tasks = RowBuilder(o, j, outer, shifts), -(-tasks // BORDERS)
    boxes, strips = builder.boxes // o.chunks[0], -(-o.total // _entries(item))
    links = _links(o, j, item) if _joins(o.total, item) and boxes >= JOINED_BOXES * tasks else None
    outputs = _outputs(item, o, j, outer) | (links is not None and na.STRIPS_JOINED)
    if not outputs:
        return None
    builder.kernels[abi.FN] = f"nest_strips_{item}"
    builder.words |= {
        na.N_BOXES: boxes,
        na.N_A_O: builder.vector(o.offsets(A)),
        na.N_OUT_J: builder.vector(j.offsets(OUT)),
        na.N_STRIPS: outputs,
        na.N_STRIPS_AHEAD: _ahead(o, j, item),
        na.N_KEPT: builder.reserve((cores.here().strip_lines + 1) * LINE * j.count),
    }
    if links is not None:
        words = (na.N_STRIPS_NEXT, na.N_STRIPS_BEFORE)
        builder.words |= {word: builder.vector(link) for word, link in zip(words, links, strict=True)}
        strips = 1  # of tasks: all of a box, since what begins a run is kept until that is complete which it continues
    return builder.row(min(tasks, boxes * strips), nbytes)


def _joins(entries: int, item: int) -> bool:
    """Whether strips join runs of so many entries of the output, if there are some that continue each other in J: their first
    vector and their last belong to several strips."""
    return cores.here().strips_join and _entries(item) < entries <= min(MOST_O, JOINED_OUT // item)


def _links(o: Group, j: Group, item: int) -> tuple[np.ndarray, np.ndarray] | None:
    """For each entry of J, which one continues its run of the output and which one it continues, -1: none; None where few do,
    or a run of the input is short."""
    begin = j.offsets(OUT)
    order = np.argsort(begin)
    at = np.minimum(np.searchsorted(begin, begin + item * o.total, sorter=order), begin.size - 1)
    following = np.where(begin[order[at]] == begin + item * o.total, order[at], -1)
    found = np.flatnonzero(following >= 0)
    if 2 * found.size < begin.size or item * j.total < _long_in(o, item):
        return None
    before = np.full_like(following, -1)
    before[following[found]] = found
    return following, before


def _long_in(o: Group, item: int) -> int:
    return CROWDED_IN if o.dims[0][1 + A] % (PAGE // 2) == 0 else LONG_IN


def _entries(item: int) -> int:
    """Entries of O in a strip."""
    return cores.here().strip_lines * LINE // item


def _outputs(item: int, o: Group, j: Group, outer: Sequence[Dim]) -> int:
    """Bits of N_STRIPS: for which outputs strips are faster than boxes."""
    far = item * o.total * j.total * prod(d[0] for d in outer) >= FAR_BYTES
    lines = o.total * item % LINE == 0 and not any(d[1 + OUT] % LINE for d in (*j.dims, j.chunks, *outer))
    paged = lines and far and o.dims[0][1 + A] % PAGE == 0 and item * j.count >= PAGED_IN
    long = item * o.total >= LONG_OUT and item * j.total >= _long_in(o, item)
    return na.STRIPS_LINES * paged | na.STRIPS_ANY * long


def _ahead(o: Group, j: Group, item: int) -> int:
    """Strips between what is read and what is asked for: few, but where others are read between rows that continue each
    other, so many that a row is asked for just before the one is read that it continues (docs/performance-memory.md#asked-early).
    0: nothing is asked for, where the core follows all rows that are read by turns."""
    size, row, far, followed = _entries(item), item * j.total, 1, cores.here().rows_followed
    near = max(1, AHEAD_BYTES // (LINE * j.count))
    for dim in o.dims:
        if dim[1 + A] == row:
            if far <= followed or followed and row > SHORT_IN:
                return 0
            back = -(-(far + size // 2) // size)
            return max(near, back) if back * size * row <= AHEAD_MOST else near
        far *= dim[0]
    return 0 if followed else near


def _chain(dims: list[Dim], operand: int, item: int) -> list[Dim]:
    """The loops along which an operand is contiguous, the fastest first."""
    by_stride, found, run = {d[1 + operand]: d for d in reversed(dims)}, [], item
    while (dim := by_stride.get(run)) is not None:
        found.append(dim)
        run *= dim[0]
    return found


def _sides(runs: list[Dim], fast: list[Dim], item: int) -> tuple[list[Dim], list[Dim]]:
    """Loops of O and J: of the output's and the input's chain, each of which ends where the other has its loop.

    Long runs of both are best, and such as leave few tiles that are not full; of those that are long enough for strips, if any are."""
    best, found, size = (False, 0.0), ([], []), LINE // item
    for m in range(1, len(runs) + 1):
        for n in range(1, len(fast) + 1):
            if any(d in runs[:m] for d in fast[:n]):
                break
            no, nj = (prod(d[0] for d in part) for part in (runs[:m], fast[:n]))
            joined = _joins(no, item) and m < len(runs) and runs[m] in fast[:n]
            long = (joined or item * no >= LONG_OUT) and item * nj >= LONG_IN
            ends = -no % (2 * size) if joined else 2 * size
            score = long, no / (no + ends) * nj / (-(-nj // size) * size) * nj / (nj + size / 2)
            if score > best:
                best, found = score, (runs[:m], fast[:n])
    return found


def _along(runs: list[Dim], size: int) -> tuple[Group, list[Dim]]:
    """O, where it is long in chunks of whole strips of ``size`` entries, and what is left of ``runs``."""
    taken, count = [], 1
    for number, (entries, *strides) in enumerate(runs):
        if count * entries > MOST_O:
            unit = size // gcd(size, count)
            part = MOST_O // count // unit * unit
            if part == 0:
                return Group(dims=tuple(taken), total=count, chunks=ONE), runs[number:]
            chunks = -(-entries // part), *(part * s for s in strides)
            return Group(dims=(*taken, (part, *strides)), total=count * entries, chunks=chunks), runs[number + 1 :]
        taken.append((entries, *strides))
        count *= entries
    return Group(dims=tuple(taken), total=count, chunks=ONE), []
