"""Predicted time of one GEMM with its packing: what the layout solver compares options by.

Counts vector operations of the loops as they will run (padding and edges included), and turns them into seconds at the
machine's FMA rate. The weights are cycles, measured on a core with 512-bit vectors: each from contractions where that
part is most of the time, as `docs/performance.md` lists them.
"""

from __future__ import annotations

import math

import numpy as np

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.gemm import GemmProblem, PackProblem
from ..kernels.isa import ISA
from .gemm import IN_PLACE_BYTES

TILE = 20.0  # cycles: to start and end a tile
STORE = 1.0  # a whole vector of C
PARTIAL = 6.0  # a vector of C that goes through the stack
MOVE = 4.0  # a run of a scattered column of C
FAR = 8.0  # what a run adds that leaves most of its line of a large C to other tiles
LINE = 64
SCATTERED_B = 1.2  # a broadcast from a B that is read in place, far from cache
PACK_RATE = {abi.LANES_RUN: 22e9, abi.K_RUN: 17e9, abi.PANEL_RUN: 17e9, abi.SCATTERED: 3e9}  # bytes read a second
CACHE_BYTES = 1 << 20
MEMORY_RATE = 20e9  # bytes a second, of what is written to memory and read again


def product_seconds(p: GemmProblem, isa: ISA, machine: cost.Machine) -> float:
    """Seconds on one thread, packing by the tasks included."""
    return _cycles(p, isa) / _vector_rate(p, isa, machine) + _packed_by_tasks(p) + _written(p)


def _vector_rate(p: GemmProblem, isa: ISA, machine: cost.Machine) -> float:
    """Vector FMAs a second: a complex one counts 8 operations an element and takes two."""
    operations = (4 if p.dtype in tile_table.COMPLEX else 2) * tile_table.elements(isa, p.dtype)
    return machine.peak.get(p.dtype, 1e9) / operations


def _cycles(p: GemmProblem, isa: ISA) -> float:
    parts = 2 if p.dtype in tile_table.COMPLEX else 1
    panels, columns, k = p.outer_total * p.panels, len(p.tn_b), len(p.tk_a) * len(p.tko_a)
    padded = -(-columns // p.nr) * p.nr
    blocks = -(-k // p.kc)
    fmas = panels * p.mv * padded * k * parts / tile_table.efficiency(isa, p.dtype, (p.mv, p.nr))
    tiles = panels * (padded // p.nr) * blocks * TILE
    return fmas + tiles + blocks * _stores(p, isa, columns) + _reads_of_b(p, panels * padded * k)


def _stores(p: GemmProblem, isa: ISA, columns: int) -> float:
    """Cycles to write C once."""
    adjacent = p.run != 0
    whole = np.count_nonzero((p.valid == p.mr) & adjacent)
    runs = np.count_nonzero(adjacent) - whole
    scattered = 0 if whole + runs == p.panels else int(np.add.reduce(p.valid[~adjacent]))
    run = max(1, min(p.chunk, tile_table.elements(isa, p.dtype)))
    unused = max(0.0, 1 - run * tile_table.ITEMSIZE[p.dtype] / LINE) if _result_bytes(p) > CACHE_BYTES else 0.0
    partial = runs * p.mv * PARTIAL + (p.panels - whole - runs) * p.mv * STORE
    moves = scattered / run * (MOVE + FAR * unused)
    return p.outer_total * columns * (whole * p.mv * STORE + partial + moves)


def _reads_of_b(p: GemmProblem, broadcasts: int) -> float:
    """Cycles lost to a B that is read in place, a line for each step of K, and does not stay in cache."""
    item = tile_table.ITEMSIZE[p.dtype]
    nbytes = len(p.tn_b) * len(p.tk_b) * len(p.tko_b) * item
    along_k = len(p.tk_b) > 1 and p.tk_b[1] - p.tk_b[0] == item
    return broadcasts * SCATTERED_B if p.b_mode == "direct" and nbytes > IN_PLACE_BYTES and not along_k else 0.0


def _packed_by_tasks(p: GemmProblem) -> float:
    """Seconds that tasks spend on packing."""
    item, k = tile_table.ITEMSIZE[p.dtype], len(p.tk_a) * len(p.tko_a)
    _, panel_tasks, column_tasks = p.tasks
    a = p.outer_total * p.panels * p.mr * k * item * column_tasks if p.a_mode == "pack" else 0
    b = p.outer_total * len(p.tn_b) * k * item * panel_tasks if p.b_mode == "pack" else 0
    return a / PACK_RATE[p.pack_mode] + b / PACK_RATE[p.b_pack_mode]


def pack_seconds(p: PackProblem) -> float:
    """Seconds of a packing step; a copy that leaves the caches is written to memory and read again."""
    loops = math.prod(count for count, *_ in p.outer)
    nbytes = loops * len(p.valid) * p.width * len(p.tk) * tile_table.ITEMSIZE[p.dtype]
    return nbytes / PACK_RATE[p.mode] + (2 * nbytes / MEMORY_RATE if nbytes > CACHE_BYTES else 0.0)


def _written(p: GemmProblem) -> float:
    """Seconds that a result larger than the caches takes on its way to memory, beside the arithmetic."""
    nbytes = _result_bytes(p)
    return nbytes / MEMORY_RATE if nbytes > CACHE_BYTES else 0.0


def _result_bytes(p: GemmProblem) -> int:
    return p.outer_total * p.rows * len(p.tn_b) * tile_table.ITEMSIZE[p.dtype]
