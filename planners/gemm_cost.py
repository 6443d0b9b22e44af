"""Predicted time of one GEMM with its packing: what the layout solver compares options by.

Counts vector operations of the loops as they will run (padding and edges included), and turns them into seconds at the
machine's FMA rate. The weights are cycles, measured on a core with 512-bit vectors: each from contractions where that
part is most of the time, as `docs/performance.md` lists them.
"""

from __future__ import annotations

import math

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.gemm import PackProblem
from ..kernels.isa import ISA
from ..kernels.cpu.units import LINE
from .gemm_work import GemmWork

TILE = 20.0  # cycles: to start and end a tile
STORE = 1.0  # a whole vector of C
PARTIAL = 6.0  # a vector of C that goes through the stack
MOVE = 4.0  # a run of a scattered column of C
CLOSE = 5.0  # a vector of lanes that are put together with those of the next columns
ACROSS = 14.0  # a vector that waits in cache and is turned round with those of the group
FAR = 8.0  # what a run adds that leaves most of its line of a large C to other tiles
SCATTERED_B = 1.2  # a broadcast from a B that is read in place, far from cache
PACK_RATE = {abi.LANES_RUN: 22e9, abi.K_RUN: 17e9, abi.PANEL_RUN: 17e9, abi.SCATTERED: 3e9}  # bytes read a second
PAGED = 1.7  # times as long where rows lie at distances of whole pages, which share cache sets
IN_PLACE_RATE = 60e9  # of lanes that are read where they are and used once, beside the FMAs
CACHE_BYTES = 1 << 20
SHARED_BYTES, SHARED_RATE = 8 << 20, 40e9  # what a cache that cores share holds of it, and bytes a second from there
MEMORY_RATE = 20e9  # bytes a second, of what goes to memory or comes from there


def product_seconds(w: GemmWork, isa: ISA, machine: cost.Machine) -> float:
    """Seconds on one thread, packing by the tasks included."""
    nbytes = w.outer * w.rows * w.columns * tile_table.ITEMSIZE[w.dtype]  # of the result
    # One larger than the caches is on its way to memory beside the arithmetic.
    rate = _vector_rate(w.dtype, isa, machine)
    return _cycles(w, isa, nbytes, machine.in_flight) / rate + _packed_by_tasks(w) + moved_seconds(nbytes)


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
    fmas = panels * w.mv * padded * w.k * parts / share
    beside = math.sqrt(tile_table.units(isa, w.dtype, in_flight))
    tiles = panels * (padded // w.nr) * blocks * TILE
    # A broadcast from a B that is not in cache is a line for each step of K.
    reads_of_b = panels * padded * w.k * SCATTERED_B if w.far_b else 0.0
    return fmas + beside * tiles + beside * blocks * _stores(w, isa, nbytes) + beside * reads_of_b


def _stores(w: GemmWork, isa: ISA, nbytes: int) -> float:
    """Cycles to write C, of ``nbytes``, once."""
    whole, runs, scattered = w.stored
    unused = max(0.0, 1 - w.chunk * tile_table.ITEMSIZE[w.dtype] / LINE) if nbytes > CACHE_BYTES else 0.0
    if w.across:
        elements = tile_table.elements(isa, w.dtype)
        return w.outer * w.columns * w.panels * w.mv * ACROSS * elements / min(w.across, elements)
    if w.close:
        others = (w.rows - whole * w.mr) / tile_table.elements(isa, w.dtype)
        return w.outer * w.columns * (whole * w.mv * STORE + others * CLOSE)
    partial = runs * w.mv * PARTIAL + (w.panels - whole - runs) * w.mv * STORE
    moves = scattered / w.chunk * tile_table.moves(isa, w.dtype, w.chunk) * (MOVE + FAR * unused)
    return w.outer * w.columns * (whole * w.mv * STORE + partial + moves)


def _packed_by_tasks(w: GemmWork) -> float:
    """Seconds that tasks spend on packing, or on reading in place what would be packed."""
    a_mode, b_mode = w.pack_modes
    seconds, nbytes = 0.0, w.outer * w.k * tile_table.ITEMSIZE[w.dtype]
    if w.across:
        seconds += nbytes * w.panels * w.mr / IN_PLACE_RATE
    if a_mode is not None:
        slower = PAGED if w.paged else 1.0
        seconds += nbytes * w.panels * w.mr * -(-w.columns // w.blocks[2]) / PACK_RATE[a_mode] * slower
    if b_mode is not None:
        seconds += nbytes * w.columns * -(-w.panels // w.blocks[1]) / PACK_RATE[b_mode]
    return seconds


def pack_seconds(p: PackProblem) -> float:
    """Seconds of a packing step; a copy that leaves the caches is written to memory and read again."""
    loops = math.prod(count for count, *_ in p.outer)
    nbytes = loops * len(p.valid) * p.width * len(p.tk) * tile_table.ITEMSIZE[p.dtype]
    return nbytes / PACK_RATE[p.mode] + 2 * moved_seconds(nbytes)
