"""Predicted time of one GEMM with its packing: what the layout solver compares options by.

Counts vector operations of the loops as they will run (padding and edges included), and turns them into seconds at the
machine's FMA rate. The weights are cycles, fitted to the times of products with random dimensions on cores with 512-bit
vectors (`docs/performance-planning.md`).
"""

from __future__ import annotations

import math

import numpy as np

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.gemm import PackProblem
from ..kernels.isa import ISA
from ..kernels.cpu.units import LINE
from ..machine_memory import block_bytes
from .gemm_work import GemmWork
from .operations import itemsize

OUTER = 48.0  # cycles: to begin an outer iteration
TILE = 32.0  # to start and end a tile
STORE = 1.5  # a whole vector of C
PARTIAL = 2.5  # a vector of C that is stored by mask
MOVE = 4.0  # a run of a scattered column of C
CLOSE = 5.0  # a vector of lanes that are put together with those of the next columns
ACROSS = 10.0  # a vector that waits in cache and is turned round with those of the group
CROWDED = 6.0  # times as long where lanes share few sets of L1, so that each run waits for its line
FAR = 8.0  # what a run adds that leaves most of its line of a C beyond the shared cache to other tiles
SCATTERED_B = 1.2  # a broadcast from a B that is read in place, far from cache
NARROW_B = 2.0  # the columns of a tile in a row of a B that is read in place, in short rows: lines of the second cache
# A vector that is packed, and what it adds over the length of the run along which packing goes.
PACK = {abi.LANES_RUN: (7.0, 64.0), abi.K_RUN: (7.5, 12.0), abi.PANEL_RUN: (5.0, 32.0)}
GATHER = 1.35  # an element that is packed by itself
PACKED_PANEL = 25.0  # to begin a panel that is packed
LONG_RUN = 32  # lengths from here on make no difference
PAGED = 1.7  # times as long where rows lie at distances of whole pages, which share cache sets
IN_PLACE_RATE = 60e9  # of lanes that are read where they are and used once, beside the FMAs
CACHE_BYTES = block_bytes(1 << 20, level=2)
SHARED_BYTES, SHARED_RATE = 8 << 20, 40e9  # what a cache that cores share holds of it, and bytes a second from there
MEMORY_RATE = 20e9  # bytes a second, of what goes to memory or comes from there


def product_seconds(w: GemmWork, isa: ISA, machine: cost.Machine) -> float:
    """Seconds on one thread, packing by the tasks included."""
    nbytes = w.outer * w.rows * w.columns * tile_table.ITEMSIZE[w.dtype]  # of the result
    # One larger than the caches is on its way to memory beside the arithmetic.
    cycles = _cycles(w, isa, nbytes, machine.in_flight) + _packed_by_tasks(w, isa, machine.in_flight)
    return cycles / _vector_rate(w.dtype, isa, machine) + _read_in_place(w) + moved_seconds(nbytes)


def moved_seconds(nbytes: int) -> float:
    """Seconds that an operand or a result takes on its way between a core and wherever it fits."""
    if nbytes <= CACHE_BYTES:
        return 0.0
    return nbytes / (SHARED_RATE if nbytes <= SHARED_BYTES else MEMORY_RATE)


def _vector_rate(dtype: str, isa: ISA, machine: cost.Machine) -> float:
    """Vector FMAs a second: a complex one counts 8 operations an element and takes two."""
    operations = (4 if dtype in tile_table.COMPLEX else 2) * tile_table.elements(isa, dtype)
    return machine.peak.get(dtype, 1e9) / operations


def _cycles(w: GemmWork, isa: ISA, nbytes: int, in_flight: int) -> float:
    """In vector FMAs at their peak rate. Where there are twice as many units as the weights were measured with, what is beside
    the FMAs is faster, too, but not by two (`docs/performance.md`)."""
    parts = 2 if w.dtype in tile_table.COMPLEX else 1
    panels = w.outer * w.panels
    padded = -(-w.columns // w.nr) * w.nr
    blocks = -(-w.k // w.kc)
    share = tile_table.efficiency(isa, w.dtype, (w.mv, w.nr), w.in_place, in_flight)
    run = tile_table.columns_run(isa, w.dtype, (w.mv, w.nr), w.columns, w.in_place, in_flight)
    fmas = panels * w.mv * run * w.k * parts / share
    beside = _beside(isa, w.dtype, in_flight)
    tiles = panels * (padded // w.nr) * blocks * TILE + w.outer * OUTER
    # A broadcast from a B that is not in cache is a line for each step of K.
    reads_of_b = panels * padded * w.k * SCATTERED_B if w.far_b else 0.0
    reads_of_b += panels * w.waits_b
    reads_of_b += w.outer * (padded // w.nr) * w.k * NARROW_B if w.narrow else 0.0
    return fmas + beside * tiles + beside * blocks * _stores(w, isa, nbytes) + beside * reads_of_b


def _stores(w: GemmWork, isa: ISA, nbytes: int) -> float:
    """Cycles to write C, of ``nbytes``, once."""
    whole, runs, scattered = w.stored
    unused = max(0.0, 1 - w.chunk * tile_table.ITEMSIZE[w.dtype] / LINE) if nbytes > SHARED_BYTES else 0.0
    if w.across:
        elements = tile_table.elements(isa, w.dtype)
        return w.outer * w.columns * w.panels * w.mv * ACROSS * elements / min(w.across, elements)
    if w.close:
        others = (w.rows - whole * w.mr) / tile_table.elements(isa, w.dtype)
        return w.outer * w.columns * (whole * w.mv * STORE + others * CLOSE)
    partial = runs * w.mv * PARTIAL + (w.panels - whole - runs) * w.mv * STORE
    each = MOVE * (CROWDED if w.crowded else 1) + FAR * unused
    moves = scattered / w.chunk * tile_table.moves(isa, w.dtype, w.chunk) * each
    return w.outer * w.columns * (whole * w.mv * STORE + partial + moves)


def _beside(isa: ISA, dtype: str, in_flight: int) -> float:
    """Vector FMAs at their peak rate in a cycle of what is beside them."""
    return math.sqrt(tile_table.units(isa, dtype, in_flight))


def _packed_by_tasks(w: GemmWork, isa: ISA, in_flight: int) -> float:
    """In vector FMAs at their peak rate."""
    (a_mode, b_mode), (a_run, b_run) = w.pack_modes, w.pack_runs
    cycles, elements = 0.0, w.outer * w.k  # of a lane or column
    panels = w.outer * -(-w.k // w.kc)  # of one panel or column of panels
    if a_mode is not None:
        again, each = -(-w.columns // w.blocks[2]), _packed(a_mode, a_run, isa, w.dtype)
        each *= PAGED if w.paged[0] else 1.0
        cycles += w.panels * again * (elements * w.mr * each + panels * PACKED_PANEL)
    if b_mode is not None:
        again, each = -(-w.panels // w.blocks[1]), _packed(b_mode, b_run, isa, w.dtype)
        each *= PAGED if w.paged[1] else 1.0
        cycles += again * (elements * w.columns * each + panels * -(-w.columns // w.nr) * PACKED_PANEL)
    return cycles * _beside(isa, w.dtype, in_flight)


def _packed(mode: int, run: int, isa: ISA, dtype: str) -> float:
    """Cycles for an element of an operand that is packed."""
    if mode == abi.SCATTERED:
        return GATHER
    vector, short = PACK[mode]
    return (vector + short / min(run, LONG_RUN)) / tile_table.elements(isa, dtype)


def _read_in_place(w: GemmWork) -> float:
    """Seconds that lanes along A take which are used once, beside the FMAs."""
    lanes = w.outer * w.panels * w.mr if w.across else 0
    return lanes * w.k * tile_table.ITEMSIZE[w.dtype] / IN_PLACE_RATE


def pack_seconds(p: PackProblem, isa: ISA, machine: cost.Machine) -> float:
    """Seconds of a packing step; a copy that leaves the caches is written to memory and read again."""
    panels = math.prod(count for count, *_ in p.outer) * len(p.valid)
    elements = panels * p.width * len(p.tk)
    cycles = elements * _packed(p.mode, _run(p), isa, p.dtype) + panels * PACKED_PANEL
    seconds = cycles * _beside(isa, p.dtype, machine.in_flight) / _vector_rate(p.dtype, isa, machine)
    return seconds + 2 * moved_seconds(elements * tile_table.ITEMSIZE[p.dtype])


def _run(p: PackProblem) -> int:
    """Length of the run along which a step packs, as far as it matters."""
    if p.mode == abi.K_RUN:
        places = p.tk[:LONG_RUN]
    else:
        places = p.lanes[: LONG_RUN * p.width : p.width] if p.mode == abi.PANEL_RUN else p.lanes[: p.width]
    apart = np.flatnonzero(places[1:] - places[:-1] != itemsize(p.source))
    return 1 + int(apart[0]) if apart.size else len(places)
