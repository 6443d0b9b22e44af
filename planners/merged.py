"""A draft of the layout solver: a free operand is the matrix that its product reads, in plain strides instead of panels.

What writes it stores longer runs, and may lie better in cache; what reads it does so in place or packs it, as it would an
operand of the plan. The predicted times of products are those of operands whose rows come as fast as panels do. How they come is
added here, since it is what decides between the two (docs/performance.md#merged-matrices).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..kernels import tiles as tile_table
from ..kernels.cpu.units import LINE, PAGE
from .contraction import Axes, BinaryContraction, slow_to_fast
from .gemm import GemmPlan
from .gemm_access import L1_BYTES, ROWS_AT_ONCE, SET_LINES
from .gemm_cost import CACHE_BYTES
from .layout import dense_axes
from .memo import Planned
from .operations import Value, itemsize

LEAST_BYTES = 2 * L1_BYTES  # smaller ones are asked for in rows anyway
FAR = 4e-9  # seconds a row of a panel that comes from beyond L2, of more rows than hardware follows
CROWDED = 1.5e-9  # a line of one besides, where rows share so few cache sets that they drive each other out
AGAIN = 0.6e-9  # a line of these, each further time that it is read in place
IN_ROWS, IN_ROWS_BYTES = -0.8e-9, 16 << 20  # a line of few rows at once: several streams from memory, where panels are one
UNSURE = 0.04  # of the product, that it has to save: smaller differences are not predicted


class Merged(NamedTuple):
    """The operand, its axes, and bytes from one row of lanes to the next."""

    value: Value
    axes: Axes
    row: int


def merged_matrix(c: BinaryContraction, value: Value) -> Merged:
    """[batch][k][lanes] of ``value``, the lanes side of ``c``: lanes as they lie in the output, K as in the other operand where
    that is known."""
    side, other = (c.n, c.left) if c.lanes_on_right else (c.m, c.right)
    item = itemsize(value.dtype)
    lanes, batch = slow_to_fast(side, c.out), slow_to_fast(c.batch, c.out)
    k = c.k if other is None else slow_to_fast(c.k, other)
    axes = dense_axes((*lanes[::-1], *k[::-1], *batch[::-1]), c.sizes, item)
    return Merged(value, axes, item * math.prod([c.sizes[i] for i in side]))


def merged_seconds(each: Planned, row: int) -> float:
    """What is added to the predicted time of a product that reads a merged matrix, ``row`` bytes from row to row; below 0 where
    that is faster than to read panels."""
    total, plan = each.times.total, each.part.plan
    return max(UNSURE * total + (_reading(plan, row) if isinstance(plan, GemmPlan) else 0.0), -total)


def _reading(plan: GemmPlan, row: int) -> float:
    """Seconds that lanes take longer to come in rows than in panels."""
    w = plan.work
    visits = w.outer * w.panels * w.k  # of a row by a panel
    lines = visits * -(-w.mr * tile_table.ITEMSIZE[w.dtype] // LINE)
    if w.kc == ROWS_AT_ONCE < w.k:
        return IN_ROWS * lines if lines * LINE > IN_ROWS_BYTES else 0.0
    rows, seconds = min(w.k, w.kc), 0.0
    crowded = rows * math.gcd(PAGE, row) >= SET_LINES * PAGE
    if lines * LINE > CACHE_BYTES and (rows > ROWS_AT_ONCE or crowded):
        seconds += FAR * visits + CROWDED * crowded * lines
    if crowded and w.pack_modes[0] is None:
        seconds += AGAIN * lines * (-(-w.columns // w.nr) - 1)
    return seconds
