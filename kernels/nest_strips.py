"""Permutations in strips, which go from registers to memory as whole lines, without boxes in scratch (`cpu.strips`).

As many rows of the input as a line of the output has elements are few enough for hardware to follow, each in order to
its end; the lines of a tile may leave past the caches in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Iterator, Sequence

import numpy as np

from .cpu import abi, cores
from .cpu import nest_abi as na
from .cpu.units import LINE, PAGE
from .move_boxes import L1_WAYS
from .nest_boxes import OUT, A, Group, take, without
from .nest_problem import Dim
from .nest_rows import FAR_BYTES, RowBuilder
from .row import Row

ITEM_SIZES = (4, 8, 16)  # bytes: of smaller elements a line would take more rows than hardware follows
# Bytes, at least, of a run of the output, both ends of which are stored by mask, and of a run of the input: less than a
# line and a half is mostly tiles that are not full. From these on strips are faster than boxes.
LONG_OUT, LONG_IN = 900, 96
# Strips that join runs of the output: bytes of one, at least, since tiles are mostly empty below, and at most, since longer ones
# have few ends; entries of J; boxes for each task, at least; what they are worth beside others whose tiles are as full.
JOINED_LEAST, JOINED_OUT, JOINED_J, JOINED_BOXES, JOINED_WORTH = 3 * LINE, 4 << 10, 1024, 8, 0.75
# Those that write a run at once: sizes of elements, of which a few lines are no more rows than hardware follows; bytes of a run.
SHORT_SIZES, SHORT_BYTES = (8, 16), range(na.SHORT_LEAST * LINE + 1, na.SHORT_LINES * LINE + 1)
JOINED_LINES = 3  # in scratch for each entry of J (`cpu.strips_joined`)
CARRIED_IN = 14 * LINE  # of a run of the input, where boxes go along the output so that they leave each other ends of runs
# Of a run of the input where no line is shifted: rows of it are whole pages apart, as boxes do as well otherwise, and
# long enough for hardware to follow them.
PAGED_IN = 2048
CROWDED_IN = 4096  # and where lines are shifted and rows fall into few cache sets: lines are loaded twice
# Strips of whole lines: entries of J, at least, since tiles are mostly empty below, and where a run is one line, since a strip
# takes longer to begin; what they are worth beside others whose tiles are as full.
WHOLE_J, WHOLE_LINE_J, WHOLE_WORTH = 5, 16, 1.25
# And of such an output that begins within a line: entries of J for each that begins or ends with a part of a line, at least, where
# runs are not long.
WITHIN_J = 16
MOST_O = 4096  # entries of O in its table
AHEAD_BYTES = 8 << 10  # of what is read before lines that are asked for, at least a strip
AHEAD_MOST = 256 << 10  # and where strips come back to what continues their rows, at most
BESIDE_IN, BESIDE_KEPT = PAGE, 128 << 10
BORDERS = 2  # so many times fewer tasks than of other copies: both sides of a border in a run store parts of lines
ONE = (1, 0, 0, 0)


def lower_strips(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> list[Row]:
    """Rows of a copy of ``dims`` in strips, none where boxes do as well or better for all outputs.

    They do nothing where the output does not begin as their word N_STRIPS says. Where several could, those of whole lines do.
    """
    runs, fast = contiguous(dims, OUT, item), contiguous(dims, A, item)
    if item not in ITEM_SIZES:
        return []
    sides, few = _sides(runs, fast, item, cores.here().strips_join), -(-tasks // BORDERS)
    row = _lower(dims, item, shifts, few, nbytes, sides)
    if row is None and sides.joined:
        sides = _sides(runs, fast, item, False)
        row = _lower(dims, item, shifts, few, nbytes, sides)
    rows = [] if row is None else [row]
    whole = _sides_of_lines(runs, fast, item)
    if cores.here().strips_whole and (row is None or whole.full * WHOLE_WORTH >= sides.full):
        row = _lower(dims, item, shifts, tasks, nbytes, whole)
        rows += [] if row is None else [row]
    return rows


def _lower(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int, sides: "Sides") -> Row | None:
    if not sides.o:
        return None
    o, left = cut_along(sides.o, _entries(item))
    j, rest = take(sides.j, JOINED_J) if sides.joined else take(sides.j, cores.here().strips_j, LINE // item)
    outer = sorted(left + rest + without(without(dims, sides.o), sides.j), key=lambda d: abs(d[1 + A]))
    links = _links(o, j, item) if sides.joined else None
    carried = _carried(o, j, outer, item) if links else None
    if carried:
        outer = carried.outer
    beside = ONE if sides.joined else _beside(o, j, outer, item)
    builder = RowBuilder(o, j, without(outer, [beside]), shifts)
    boxes, strips = builder.boxes // o.chunks[0], -(-o.total // _entries(item))
    back = joined_back(o, j, item) if sides.whole else 0
    outputs = _of_lines(item, o, j, outer, back) if sides.whole else _outputs(item, o, j, outer)
    kept = 0 if sides.whole else max(cores.here().strip_lines + 1, sides.joined * JOINED_LINES) * beside[0]
    if sides.whole:
        builder.words[na.N_STRIPS_BACK] = back
    builder.words |= {na.N_BESIDE: beside[0], na.N_BESIDE_OUT: beside[1 + OUT], na.N_BESIDE_A: beside[1 + A]}
    if sides.joined:
        if not links or boxes < JOINED_BOXES * tasks:
            return None
        words = {na.N_STRIPS_NEXT: links[0], na.N_STRIPS_BEFORE: links[1]}
        if carried:
            words |= {na.N_STRIPS_ON: carried.on, na.N_STRIPS_FROM: carried.come}
            builder.words[na.N_STRIPS_ROW] = carried.row
        builder.words |= {word: builder.vector(vector) for word, vector in words.items()}
        outputs |= na.STRIPS_JOINED
        strips = 1  # of tasks: all of a box, since what begins a run is kept until that is complete which it continues
    if not outputs:
        return None
    # narrower vectors join nothing: runs that they would write are not for what writes joined ones alone
    short = outputs == na.STRIPS_JOINED and _at_once(o, j, links, carried, item)
    if sides.joined and not short and item * o.total < JOINED_LEAST:
        return None
    builder.kernels[abi.FN] = f"nest_{'whole' if sides.whole else 'short' if short else 'strips'}_{item}"
    builder.words |= {
        na.N_BOXES: boxes,
        na.N_A_O: _table(builder, o, item, back) if sides.whole else builder.vector(o.offsets(A)),
        na.N_OUT_J: builder.vector(j.offsets(OUT)),
        na.N_STRIPS: outputs,
        na.N_STRIPS_AHEAD: _ahead(o, j, item),
        na.N_STRIPS_ENDS: int(o.dims[0][1 + A] != item * j.total),
        na.N_KEPT: builder.reserve(kept * LINE * j.count),
    }
    return builder.row(min(tasks, boxes * strips), nbytes)


def _beside(o: Group, j: Group, outer: Sequence[Dim], item: int) -> Dim:
    """The loop over boxes that strips go through side by side: that which continues what a strip reads in one piece, where this is
    short and would be gone on with late, so that the core reads ahead from one to the next."""
    run = item * j.total
    piece = contiguous([d for d in o.dims if d[0] > 1], A, run)
    read = run * prod(d[0] for d in piece)
    found = next((d for d in outer if d[1 + A] == read), ONE)
    last = max((o.dims.index(d) for d in piece), default=0)
    rows = prod(d[0] for d in o.dims[:last] if d not in piece)
    fits = read <= BESIDE_IN and found[0] * j.count * LINE <= BESIDE_KEPT and rows <= _entries(item)
    return found if fits and j.chunks == ONE and cores.here().strips_beside else ONE


def _links(o: Group, j: Group, item: int) -> tuple[np.ndarray, np.ndarray] | None:
    """For each entry of J, which one continues its run of the output and which one it continues, -1: none; None where few do,
    or a run of the input is short."""
    begin = j.offsets(OUT)
    links = _matched(begin, begin + item * o.total)
    if 2 * np.count_nonzero(links[0] >= 0) < begin.size or item * j.total < _long_in(o, True):
        return None
    return links


def _at_once(o: Group, j: Group, links: tuple[np.ndarray, np.ndarray], carried: "Carried | None", item: int) -> bool:
    """Whether a run is so short that it is written at once, what continues it comes later (`cpu.strips_short`), and rows are so
    long that nothing is asked for."""
    entries = np.arange(links[0].size)
    later = np.all((links[0] < 0) | (links[0] > entries)) and (carried is None or np.all(carried.on <= entries))
    return bool(later) and item in SHORT_SIZES and item * o.total in SHORT_BYTES and not _ahead(o, j, item)


def _matched(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each end, which one begins there, and the other way round; -1: none."""
    order = np.argsort(begin)
    at = order[np.minimum(np.searchsorted(begin, end, sorter=order), begin.size - 1)]
    following, before = np.where(begin[at] == end, at, -1), np.full_like(at, -1)
    found = np.flatnonzero(following >= 0)
    before[following[found]] = found
    return following, before


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Loops over boxes of which ``row`` of the odometer continues runs: which entries of J of the next box continue this one's
    (`on`) and which of the one before they continue (`come`)."""

    outer: list[Dim]
    row: int
    on: np.ndarray
    come: np.ndarray


def _carried(o: Group, j: Group, outer: list[Dim], item: int) -> Carried | None:
    """Loops over boxes, first the one that continues most runs, if there is one that may come first: rows of the input that go
    on in the box that would be next are not to be short."""
    begin, most, found = j.offsets(OUT), 0, None
    loops = outer if item * j.count >= CARRIED_IN else outer[:1]
    for dim in [j.chunks] if j.chunks[0] > 1 else loops:
        on, come = _matched(begin, begin + item * o.total - dim[1 + OUT])
        if dim[0] > 1 and (count := np.count_nonzero(on >= 0)) > most:
            most, first = count, [] if dim is j.chunks else [dim]
            found = Carried(outer=[*first, *without(outer, first)], row=1 + len(first), on=on, come=come)
    return found


def _long_in(o: Group, joined: bool) -> int:
    return CROWDED_IN if o.dims[0][1 + A] % (PAGE // 2) == 0 else _shortest_in(joined)


def _shortest_in(joined: bool) -> int:
    return LONG_IN if joined else min(LONG_IN, cores.here().strips_in)


def _entries(item: int) -> int:
    """Entries of O in a strip."""
    return cores.here().strip_lines * LINE // item


def _outputs(item: int, o: Group, j: Group, outer: Sequence[Dim]) -> int:
    """Bits of N_STRIPS: for which outputs strips are faster than boxes."""
    far = item * o.total * j.total * prod(d[0] for d in outer) >= FAR_BYTES
    paged = far and o.dims[0][1 + A] % PAGE == 0 and item * j.count >= PAGED_IN
    long = item * o.total >= LONG_OUT and item * j.total >= _long_in(o, False)
    found = na.STRIPS_LINES * (paged and whole_lines(item, o, j, outer)) | na.STRIPS_ANY * long
    crowded = min(LINE // item, o.dims[0][0]) > L1_WAYS and o.dims[0][1 + A] % PAGE == 0
    return found | na.STRIPS_CROWDED * (found > 0 and crowded)


def _of_lines(item: int, o: Group, j: Group, outer: Sequence[Dim], back: int) -> int:
    """Bits of N_STRIPS for strips of whole lines (`cpu.strips_whole`)."""
    least = WHOLE_LINE_J if item * o.total == LINE else WHOLE_J
    if j.count < least or not whole_lines(item, o, j, outer):
        return 0
    return na.STRIPS_WHOLE | na.STRIPS_WITHIN * few_parts(o, j, back, -(-LONG_OUT // item))


def few_parts(o: Group, j: Group, back: int, long: int) -> bool:
    """Whether few lines are stored in parts, of an output that begins within one: runs are ``long``, or continue each other."""
    return o.total >= long or back > 0 and j.count >= WITHIN_J * back


def joined_back(o: Group, j: Group, item: int) -> int:
    """How many entries of J after the one that it continues in the output each comes, but for the first ones; 0: that is not so."""
    *within, last = j.dims
    joined = last[0] > 1 and last[1 + OUT] == item * o.total and o.chunks == ONE
    return prod(d[0] for d in within) if joined else 0


def _table(builder: RowBuilder, o: Group, item: int, back: int) -> int:
    """Offset vector of the rows of O, and in front of it those of the last entries of what each run continues."""
    entries, offsets = LINE // item, o.offsets(A)
    chunk, at = np.divmod(np.arange(o.total - entries, o.total), o.count)
    before = offsets[at] + chunk * o.chunks[1 + A] - item * back
    return builder.vector(np.concatenate([before, offsets])) + 8 * entries


def whole_lines(item: int, o: Group, j: Group, outer: Sequence[Dim]) -> bool:
    """Whether all runs of an output that begins with a line are whole lines."""
    return o.total * item % LINE == 0 and not any(d[1 + OUT] % LINE for d in (*j.dims, j.chunks, *outer))


def _ahead(o: Group, j: Group, item: int) -> int:
    """Strips between what is read and what is asked for: one, where the core itself reads ahead of long rows; else few, but where
    others are read between rows that continue each other, so many that a row is asked for just before the one is read that it
    continues (docs/performance-memory.md#asked-early). 0: nothing is asked for, since all rows are long."""
    size, row, far, core = _entries(item), item * j.total, 1, cores.here()
    if core.rows_followed:
        return int(core.asks_for_rows(row))
    near = max(1, AHEAD_BYTES // (LINE * j.count))
    for dim in o.dims:
        if dim[1 + A] == row:
            back = -(-(far + size // 2) // size)
            return max(near, back) if back * size * row <= AHEAD_MOST else near
        far *= dim[0]
    return near


def contiguous(dims: list[Dim], operand: int, item: int) -> list[Dim]:
    """The loops along which an operand is contiguous, the fastest first."""
    by_stride, found, run = {d[1 + operand]: d for d in reversed(dims)}, [], item
    while (dim := by_stride.get(run)) is not None:
        found.append(dim)
        run *= dim[0]
    return found


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Loops of O and J, and whether what continues a run of O is in J, so that runs are ``joined``, or all are ``whole`` lines;
    ``full``: how full their tiles are."""

    o: list[Dim]
    j: list[Dim]
    full: float = 0.0
    joined: bool = False
    whole: bool = False


def _sides(runs: list[Dim], fast: list[Dim], item: int, join: bool) -> Sides:
    """Loops of the output's and the input's chain, each of which ends where the other has its loop.

    Long runs of both are best, and such as leave few tiles that are not full; of those that are long enough for strips, if
    there are any.
    """
    best, found, size = (False, 0.0), Sides(o=[], j=[]), LINE // item
    for o, j, no, nj in pairs(runs, fast):
        # the first vector of a run and its last belong to several strips
        joined = join and len(o) < len(runs) and runs[len(o)] in j and _entries(item) < no
        joined = joined and (JOINED_LEAST <= item * no <= JOINED_OUT or item in SHORT_SIZES and item * no in SHORT_BYTES)
        long = (joined or item * no >= LONG_OUT) and item * nj >= _shortest_in(joined)
        full = JOINED_WORTH * _filled(no, -no % size, nj, size) if joined else _filled(no, 2 * size, nj, size)
        if (long, full) > best:
            best, found = (long, full), Sides(o=o, j=j, full=full, joined=joined)
    return found


def _sides_of_lines(runs: list[Dim], fast: list[Dim], item: int) -> Sides:
    """The same for runs that are whole lines: tiles are as full as can be."""
    found, size = Sides(o=[], j=[]), LINE // item
    for o, j, no, nj in pairs(runs, fast):
        full = _filled(no, -no % _entries(item), nj, size)
        if item * no % LINE == 0 and full > found.full:
            found = Sides(o=o, j=j, full=full, whole=True)
    return found


def pairs(runs: list[Dim], fast: list[Dim]) -> Iterator[tuple[list[Dim], list[Dim], int, int]]:
    """Beginnings of both chains that have no loop in common, and the entries of each."""
    for m in range(1, len(runs) + 1):
        for n in range(1, len(fast) + 1):
            if any(d in runs[:m] for d in fast[:n]):
                break
            yield runs[:m], fast[:n], prod(d[0] for d in runs[:m]), prod(d[0] for d in fast[:n])


def _filled(no: int, ends: int, nj: int, size: int) -> float:
    """How full tiles are: of O beside ``ends``, of J in tiles of ``size``, the longer the better."""
    return no / (no + ends) * nj / (-(-nj // size) * size) * nj / (nj + size / 2)


def cut_along(runs: list[Dim], size: int) -> tuple[Group, list[Dim]]:
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
