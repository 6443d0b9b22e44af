"""Blocks of a matrix that few rows of another one are multiplied by, as it is.

A product of a few rows, the lanes of one to three panels, reads each element of its B that often and no more. Packing such a
B, from beyond the cache of a core, takes as long as half of the arithmetic, and nothing is computed while its lines come. Read
in place, column by column, each line is waited for: those of a strip are as far apart as rows are. So tiles go through B in
blocks of a few columns and terms, for which the first cache has room for the panels of A and the second one for two blocks:
while one is computed with, the first tile of a strip asks, before each term, for the same place of the next
(docs/performance-batches.md#column-blocks).
"""

from __future__ import annotations

from typing import NamedTuple

from ..kernels import tiles as tile_table
from ..kernels.cpu import cores
from ..kernels.cpu.units import LINE
from ..kernels.isa import ISA
from ..machine_memory import block_bytes
from .gemm_tables import LEAST_EVEN, GemmTables
from .sides import LEFT, OUT, RIGHT, run_along, total

NEAR_BYTES = block_bytes(24 << 10, level=1)  # of the panels of A and a strip of B, in a block of terms
BLOCK_BYTES = block_bytes(32 << 10, level=2)  # of a block of B
LEAST_BYTES = block_bytes(128 << 10, level=2)  # of all of B: less is there soon enough
MOST_PANELS = 3  # of A: more of them are worth a packed B
COLUMNS_A_LANE = 4  # from which on packing lanes costs little
LONG_ROW = 1 << 10  # bytes from one row to the next: hardware follows shorter ones, which are read to the end at once
PIECES, PIECE_BYTES = 4, 256  # for each thread that shares a product, at least; of a row, in each


class ColumnBlock(NamedTuple):
    """Terms and columns of a block."""

    terms: int
    columns: int


def blocks_in_columns(isa: ISA) -> bool:
    """Whether tiles ask so (`cpu.coming.Spread`): those of other vectors and cores were not measured."""
    return cores.here().spreads(isa.vector_bits)


def column_block(*, lanes: int, columns: int, nr: int, terms: int, item: int, threads: int) -> ColumnBlock:
    """The blocks of a B of ``columns`` and ``terms``, all of about one size, for panels of so many ``lanes`` together.

    >>> column_block(lanes=24, columns=404, nr=4, terms=480, item=8, threads=1)
    ColumnBlock(terms=96, columns=44)
    """
    most = max(NEAR_BYTES // (lanes * item + LINE), 1)
    block = -(-terms // -(-terms // most))
    shared = min(PIECES * threads, columns * item // PIECE_BYTES) if threads > 1 else 1
    pieces = max(-(-columns // max(BLOCK_BYTES // (block * item), nr)), shared)
    return ColumnBlock(block, -(-(-(-columns // pieces)) // nr) * nr)


class ColumnBlocks(GemmTables):
    """Which products go through B so, once panels are cut."""

    isa: ISA
    threads: int
    n_total: int
    k_total: int
    column_block: ColumnBlock | None = None

    def _from_afar(self) -> bool:
        """Whether B is one matrix of a layout that is known, mostly beyond the cache of a core, and tiles ask for what they read."""
        c = self.c
        if RIGHT not in self.known or c.right_dtype or c.constant_right or not blocks_in_columns(self.isa):
            return False
        if self.group[0] or self.b_dims or self.n_outer or self.k_outer or self.squares is not None:
            return False
        even = len(self.k_dims) == 1 and self.k_total >= LEAST_EVEN  # tables ask for nothing
        return even and self.n_total * self.k_total * self.item >= LEAST_BYTES

    def _in_long_rows(self) -> bool:
        """Whether its rows are contiguous, so that it may go in column blocks, each of which adds to C."""
        if self.c.accumulate or not self._from_afar():
            return False
        return run_along(self.n_dims, RIGHT, self.items[RIGHT]) == self.n_total

    def _few_panels(self) -> bool:
        return self.panels.count <= MOST_PANELS and not self.panels.outer

    def _tile_of_c(self) -> tuple[int, int] | None:
        """The tile as wide as the panels in which C lies, where other tiles would scatter lanes for each block. None: the one that
        was chosen is as wide, or there is none, or no block."""
        if len(self.m_dims) != 1 or len(self.m_dims[0].indices) != 1 or not self._in_long_rows():
            return None
        axis, lanes = self.known[OUT][self.m_dims[0].indices[0]], tile_table.elements(self.isa, self.c.dtype)
        if axis.linear or axis.stride != self.item or axis.tile == self.panels.width or axis.size > MOST_PANELS * axis.tile:
            return None
        fitting = [tile for tile in tile_table.tiles(self.isa, self.c.dtype) if tile[0] * lanes == axis.tile]
        return max([tile for tile in fitting if tile[1] * self.item <= LINE], key=lambda tile: tile[1], default=None)

    def _in_column_blocks(self) -> ColumnBlock | None:
        """The blocks of B, where panels are few and their lanes adjacent in C; None: it is read, or packed, otherwise."""
        if not self._few_panels() or self.nr * self.item > LINE or not self._in_long_rows() or self.stored("panels")[2]:
            return None
        if self.c.left is None and (not self.c.panels_left or self._nested() is not None):
            return None  # A is no panels, or those of blocks of its own
        threads = self.threads if self._parallel else 1
        sizes = {"columns": self.n_total, "nr": self.nr, "terms": self.k_total, "item": self.item}
        return column_block(lanes=self.panels.count * self.mr, threads=threads, **sizes)

    def _asks_for_columns(self) -> bool:
        """Whether tiles of a packed A would ask for columns of B that are contiguous, and those of an A in place would not. Where
        threads share a moment's work, a step that packs for all costs more (`_brief`)."""
        if not tile_table.follows((self.mv, self.nr)) or not self._few_panels() or self._brief:
            return False
        return self.n_total >= COLUMNS_A_LANE * self.panels.padded and self._along_k(RIGHT) and self._from_afar()

    def _has_far_rows(self) -> bool:
        """Whether A is a matrix whose rows are too far apart for hardware, so that each line of a panel would be waited for: it is
        packed, or column blocks of the other orientation read it."""
        if len(self.k_dims) != 1 or self.b_dims or not blocks_in_columns(self.isa):
            return False
        whole = run_along(self.m_dims, LEFT, self.items[LEFT]) == total(self.m_dims)
        return whole and abs(self.k_dims[0].stride(LEFT)) >= LONG_ROW
