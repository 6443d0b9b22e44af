"""Permutations of rows that are whole lines, of which the output and the input have the same (`cpu.strips_lines`)."""

from __future__ import annotations

from typing import Iterator

from .cpu import abi, cores
from .cpu import nest_abi as na
from .cpu.units import LINE
from .nest_boxes import OUT, A, take, without
from .nest_problem import Dim
from .nest_rows import RowBuilder
from .nest_strips import contiguous, cut_along, few_parts, joined_back, pairs, whole_lines
from .row import Row

MOST_LINES = 2  # of a row: longer ones are copied in boxes as quickly
# Lines of a run of the output, at least, and of one both ends of which are stored by mask; bytes of a run of the input, at least,
# and how many of them take as long as to begin one.
LEAST_OUT, ALONE_OUT, LEAST_IN, BEGIN_IN = 16, 128, 256, 256


def lower_lines(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> list[Row]:
    """The row of a copy of ``dims``, none where it has no such rows, or boxes do as well."""
    runs, fast = contiguous(dims, OUT, item), contiguous(dims, A, item)
    if not cores.here().strips_whole or not runs or runs[:1] != fast[:1]:
        return []
    row = item * runs[0][0]
    found = max(_sides(runs[1:], fast[1:], row), default=None) if row % LINE == 0 and row <= MOST_LINES * LINE else None
    if found is None:
        return []
    _, m, n = found
    inner = [(row // LINE, LINE, LINE, 0)] if row > LINE else []
    o, left = cut_along([*inner, *runs[1 : m + 1]], na.SIDE_LINES)
    j, rest = take(fast[1 : n + 1], cores.here().strips_j)
    others = without(without(dims[1:], runs[1 : m + 1]), fast[1 : n + 1])
    outer = sorted(left + rest + others, key=lambda d: abs(d[1 + A]))
    if not whole_lines(LINE, o, j, outer):
        return []
    back = joined_back(o, j, LINE)
    builder = RowBuilder(o, j, outer, shifts)
    builder.kernels[abi.FN] = "nest_lines"
    builder.words |= {
        na.N_BOXES: builder.boxes // o.chunks[0],
        na.N_A_O: builder.vector(o.offsets(A)),
        na.N_OUT_J: builder.vector(j.offsets(OUT)),
        na.N_STRIPS: na.STRIPS_WHOLE | na.STRIPS_OF_LINES * few_parts(o, j, back, ALONE_OUT),
        na.N_STRIPS_BACK: back,
        na.N_STRIPS_AHEAD: int(cores.here().asks_for_rows(row * j.total)),
        na.N_STRIPS_PITCH: row,
        na.N_BESIDE: 1,
    }
    strips = -(-o.total // na.SIDE_LINES)
    return [builder.row(min(tasks, builder.words[na.N_BOXES] * strips), nbytes)]


def _sides(runs: list[Dim], fast: list[Dim], row: int) -> Iterator[tuple[float, int, int]]:
    """How many loops O and J may have, each with how much of the time is not for ends."""
    for o, j, rows, entries in pairs(runs, fast):
        lines, read = rows * row // LINE, entries * row
        if lines >= LEAST_OUT and read >= LEAST_IN:
            yield lines / (lines + 2) * read / (read + BEGIN_IN), len(o), len(j)
