"""Permutations by tiles that go from registers to memory as whole lines, without boxes in scratch.

Rows of the input at distances of whole pages fall into few cache sets: most of the lines of a box are gone before its
tiles read them. As many rows as a line of the output has elements are few enough for hardware to follow, each in order
to its end, and a tile of them is whole lines of the output, which may leave past the caches in any order.
"""

from __future__ import annotations

from math import prod

from .cpu import abi
from .cpu import nest_abi as na
from .cpu.units import LINE, PAGE
from .nest_boxes import OUT, A, chain, take, without
from .nest_problem import Dim
from .nest_rows import FAR_BYTES, RowBuilder
from .row import Row

RUN_BYTES = 4096  # of the input in a row of a box, at most: their places in the output are read beside them
SHORTEST = 2048  # bytes: shorter runs end before hardware follows them
SMALLEST = 4  # bytes of an element: of smaller ones a line would take more rows than hardware follows


def lower_past(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> Row | None:
    """Row of a copy of ``dims`` into an output that begins with a line; it does nothing where the output does not.

    None where boxes do as well (what they read of a small input stays in the shared cache), lines of the output hold
    more than a run of it, or the input's runs are short.
    """
    entries = LINE // item
    if item < SMALLEST or dims[0][0] % entries or any(d[1] % LINE for d in dims[1:]):
        return None
    if dims[0][1 + A] % PAGE or item * prod(d[0] for d in dims) < FAR_BYTES:
        return None
    o, left = take(dims[:1], entries)
    fast = chain(dims[1:], A, item)
    j, rest = take(fast, RUN_BYTES // item)
    if item * j.count < SHORTEST or j.chunks[0] > 1:
        return None
    outer = sorted(left + rest + without(dims[1:], fast), key=lambda d: abs(d[1 + A]))
    builder = RowBuilder(o, j, outer, shifts)
    builder.kernels |= {abi.FN: "nest_copy", na.N_A_MOVE: f"nest_move_{item}"}
    builder.words |= {
        na.N_A_MODE: na.STAGED + na.MOVE_PAST,
        na.N_OUT_J: builder.vector(j.offsets(OUT)),
        na.N_A_O: builder.vector(o.offsets(A)),
        na.N_A_J: builder.vector(j.offsets(A)),
        na.N_LINES: na.ONLY_LINES,
    }
    return builder.row(min(tasks, builder.boxes), nbytes)
