"""Which register tile a GEMM uses, and whether several dimensions fill its panels."""

from __future__ import annotations

import sys
from functools import lru_cache
from math import prod

from ..kernels import tiles as tile_table
from ..kernels.cpu.units import LINE
from ..kernels.isa import ISA
from .gemm_access import FEW_PANELS, L1_BYTES, block_of_k
from .sides import panel_rows

TILE_COST = 12.0  # vector FMAs that starting and ending a tile costs
SCATTER_COST = 3.0  # per scattered element stored, against one vector FMA
RUN_COST = 4.0  # per scattered run of half a vector or a quarter
CLOSE_COST = 0.3  # per element of a column that leaves together with the next ones
PART_COST = 24.0  # per line of a large C that tiles of one line store in two parts, each of which waits for what is there
MOST_COLUMNS = 16  # of a tile whose columns are stored one by one: more are streams that hardware loses
STORED_TERMS = 16  # up to which storing C takes longer than computing it
PACKED_COST = 12.0  # of a vector of A that comes from memory and is packed, against one vector FMA
FAR_PANEL = 1.005  # times as long, or more, where a panel of B finds no room in L1 beside A: each tile reads it from L2
EXTEND_COST = 150.0  # of lanes from several dimensions, where those of the fastest alone would be stored as they are
ALIKE = 1 + 1e-9  # works that differ by less are one but for rounding: the first tile of the table wins
_ONE_BY_ONE = ((SCATTER_COST, 0.0),)


@lru_cache(maxsize=4096)
def choose_tile(
    isa: ISA,
    dtype: str,
    rows: tuple[int, ...],
    columns: int,
    terms: int,
    contiguous: bool,
    across: bool = False,
    most: int = MOST_COLUMNS,
    close: bool = False,
    in_place: bool = False,
    together: int = 1,
    goes_on: int = 0,
    in_flight: int = 0,
    there: int = 0,
    anywhere: bool = False,
) -> tuple[tuple[int, int], bool]:
    """The tile of the least cost, and whether its panels hold more than the fastest of the dimensions ``rows``.

    ``contiguous``: the fastest one is contiguous in C. Costs are vector operations per batch: FMAs at the tile's
    efficiency, starting each tile, stores. ``across``: only tiles that hold all columns; (0, 0): none does. ``most``: columns
    of a tile, otherwise. ``close``: each column begins where the fastest dimension of the one before ends. ``in_place``:
    so the columns are read. ``together``: so many of the fastest dimensions are one run in C; ``goes_on``: pieces of so many
    entries of the next one go on with that run, 0: none. ``in_flight`` as in `tiles.efficiency`. ``there``: an A from memory
    lies in panels of so many lanes, which few columns read there; of others they are packed. ``anywhere``: columns of C,
    which goes past the caches, begin anywhere in a line.
    """
    best, best_cost = ((0, 0), False), float("inf")
    run = prod(rows[:together])
    scattered = _scattered(isa, dtype, run) if contiguous else _ONE_BY_ONE
    total, parted = prod(rows), anywhere and isa.vector_bits == 8 * LINE
    least, most = (columns, sys.maxsize) if across else (1, most)
    for tile, width, work in _fastest(isa, dtype, in_place, in_flight, columns, terms, least, most):
        if -(-total // width) * work >= best_cost:  # with panels that are all full, and stores for nothing
            continue
        for extend in (False, True) if len(rows) > 1 and rows[0] * 2 <= width and not across else (False,):
            padded, box, taken = panel_rows(rows, width, extend)
            panels = padded // width
            if close and box % rows[0] == 0 and columns > 1 and not box == width == rows[0]:
                cost = panels * (work + columns * box * CLOSE_COST)
            elif taken <= together or (taken == together + 1 and goes_on % (box // run) == 0 < goes_on):
                cost = panels * (work + columns * (tile[0] if contiguous else box * SCATTER_COST))
            else:
                cost = min([panels * (work + columns * box * each) + besides for each, besides in scattered])
            if there and (box != there or -(-columns // tile[1]) > FEW_PANELS):
                cost += panels * tile[0] * terms * PACKED_COST
            if parted and tile[0] == 1 and box < rows[0]:
                cost += panels * columns * PART_COST
            if cost < best_cost:
                best, best_cost = (tile, extend), cost
    return best


def most_columns(dtype: str, apart: int, terms: int) -> int:
    """Columns of a tile, at most, of a C that goes past the caches, of which so many lie ``apart`` (`cache_sets.columns_apart`). With
    AVX2 all tiles of complex numbers that have two are parts of lines, and take longer to store than three are waited for."""
    known = apart > 1 and terms <= STORED_TERMS and dtype not in tile_table.COMPLEX
    return min(apart, MOST_COLUMNS) if known else MOST_COLUMNS


def _near_columns(dtype: str, terms: int) -> int:
    """Columns of a panel of B that stays in L1 while tiles run.

    >>> [_near_columns(dtype, 1024) for dtype in ("float32", "float64", "complex64", "complex128")]
    [17, 12, 12, 8]
    """
    item = tile_table.ITEMSIZE[dtype]
    return L1_BYTES // (block_of_k(terms, item) * item)


def _scattered(isa: ISA, dtype: str, run: int) -> tuple[tuple[float, float], ...]:
    """What an element costs whose column is stored in runs of a fast dimension of size ``run``, and what the product
    costs besides; the least of several ways counts. Runs of a vector or more are no reason to fill panels from several
    dimensions."""
    lanes = tile_table.elements(isa, dtype)
    part = next((size for size in (lanes // 2, lanes // 4) if size > 1 and run % size == 0), 1)
    chunk = tile_table.chunk(isa, dtype, run, part)
    if run >= lanes or chunk == 1:
        return _ONE_BY_ONE
    pieces = tile_table.moves(isa, dtype, chunk)
    in_runs = RUN_COST * pieces / chunk + 1 / lanes, EXTEND_COST
    return (in_runs,) if pieces == 1 else (in_runs, *_ONE_BY_ONE)


@lru_cache(maxsize=1024)
def _fastest(
    isa: ISA, dtype: str, in_place: bool, in_flight: int, columns: int, terms: int, least: int, most: int
) -> tuple[tuple[tuple[int, int], int, float], ...]:
    """Of the tiles of each width, with ``least`` to ``most`` columns, the one of the least work, or several alike: it, the
    lanes of its panels, and the work for a panel. How rows are cut and stored depends on the width alone."""
    near = _near_columns(dtype, terms)
    found, fastest = [], {}
    for tile, nr, width, cycles in _tiles(isa, dtype, in_place, in_flight, least, most):
        blocks = -(-columns // nr)
        # With few panels of B, where A comes from counts for more.
        far = FAR_PANEL if nr > near and blocks > FEW_PANELS else 1.0
        run = tile_table.columns_run(isa, dtype, tile, columns, in_place, in_flight)
        work = tile[0] * run * terms * cycles * far + blocks * TILE_COST
        found.append((tile, width, work))
        if width not in fastest or work < fastest[width]:
            fastest[width] = work
    return tuple([each for each in found if each[2] <= fastest[each[1]] * ALIKE])


@lru_cache(maxsize=256)
def _tiles(
    isa: ISA, dtype: str, in_place: bool, in_flight: int, least: int, most: int
) -> tuple[tuple[tuple[int, int], int, int, float], ...]:
    """Each tile of ``least`` to ``most`` columns, its columns, the lanes of its panels, and what one of its vector multiply-adds
    costs."""
    parts, lanes = 2 if dtype in tile_table.COMPLEX else 1, tile_table.elements(isa, dtype)
    return tuple(
        (tile, nr, mv * lanes, parts / tile_table.efficiency(isa, dtype, tile, in_place, in_flight))
        for tile in tile_table.tiles(isa, dtype)
        for mv, nr in [tile]
        if least <= nr <= most
    )
