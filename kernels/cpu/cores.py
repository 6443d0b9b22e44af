"""What kernels do otherwise on the cores of some makers: a row for each. Nothing here loads LLVM.

An instruction set does not say how long its instructions take, nor how far ahead a core reads by itself
(docs/performance-fused.md#cores).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..isa import host_maker


@dataclass(frozen=True, kw_only=True)
class Core:
    """``suffix``: of the files of kernels that are made for it.

    ``ahead``: bytes in front of its loads that a loop over large arrays asks for, and one over rows for rows that come;
    0: it asks for nothing.
    ``blocks_ask``: before each tile of a product its share of the block is asked for that is packed next.
    ``tiles_ask``: of a permutation past the caches, tiles ask for what a box to come reads; else stores past the caches do,
    if one stores a line.
    ``strip_lines``: of the output, adjacent ones, that a permutation in strips stores for each entry of J
    (docs/performance-memory.md#pairs-of-lines).
    ``strips_join``: strips of runs of the output that continue each other write the lines which two of them share.
    ``strips_beside``: strips go through boxes side by side that continue what each of them reads
    (docs/performance-memory.md#beside).
    ``strips_whole``: runs of whole lines are written in strips that shift nothing, and rows of a line or two in strips of lines
    (docs/performance-memory.md#whole-strips, #within-lines, #lines).
    ``strips_in``: bytes of a run of the input, from which on a permutation in strips is faster than one in boxes, if runs of
    the output are long (docs/performance-memory.md#beside).
    ``strips_j``: entries of J in a strip, at most: what is kept of each, one to three lines, is to stay in the second cache.
    ``rows_followed``: bytes of a row of the input, of more than which the core itself reads ahead: strips and boxes of permutations
    ask for the lines of others, strips one strip early (docs/performance-memory.md#cold); 0: both ask for all.
    ``dense_rows``: tiles put short rows of a box where they are in lines of the output; else they begin with lines, and lines
    are put together from them.
    ``columns_ask``: of a B that a product reads in place from memory, a tile asks for the next columns between its
    terms; else before them, and waits.
    ``columns_spread``: of one whose terms are adjacent and columns long, tiles of vectors of 32 bytes ask for them in turns of several
    terms, the first tiles of a strip for a share each, if they ask for nothing else (docs/performance-memory.md#columns-spread).
    ``turns_ask``: while a small product of a batch is computed, what the next one reads and writes is asked for, a few lines at
    a time, and its result stored through the caches; and the next block of panels of an A that comes from beyond the cache of a
    core (docs/performance-batches.md#next-turn, #next-panels).
    ``columns_in_place``: bytes of a float32 or float64 B whose columns run along K, up to which a product reads it in place, if
    several panels use it (docs/performance-batches.md#columns-in-place); 0: as others.
    ``rows_near``: of an A that a product reads in place, tiles ask for rows so many terms before their use, into the first
    cache, most of them in place of those of a later panel, into the second (docs/performance.md#rows-near); 0: for these alone.
    ``lanes_load``: time from one vector of packed A to the next, as they come from L2, in multiply-adds of a core that has
    two units for them.
    ``stage_lanes``, ``stage_columns``: times as long as in order takes what a map reads, if a product makes an operand by it,
    block by block, on the side of the lanes or on the other one (docs/performance-fused.md#staged-products).
    ``slow_divider``: a quotient that need not be rounded right takes less time by products, and most of those by a number
    of their row."""

    suffix: str = ""
    ahead: int = 0
    blocks_ask: bool = True
    tiles_ask: bool = False
    strip_lines: int = 1
    strips_join: bool = False
    strips_beside: bool = False
    strips_whole: bool = False
    strips_in: int = 96
    strips_j: int = 2048
    rows_followed: int = 0
    dense_rows: bool = False
    columns_ask: bool = False
    columns_spread: bool = True
    turns_ask: bool = False
    columns_in_place: int = 0
    rows_near: int = 0
    lanes_load: float = 2.6
    stage_lanes: float = 3.0
    stage_columns: float = 1.5
    slow_divider: bool = False

    def asks_for_rows(self, nbytes: int) -> bool:
        """Whether strips and boxes ask for rows of so many bytes."""
        return not self.rows_followed or nbytes <= self.rows_followed

    def spreads(self, vector_bits: int) -> bool:
        """Whether tiles with vectors of so many bits ask for columns and blocks of B in loops of their own (`coming.Spread`)."""
        return vector_bits == 256 and self.columns_spread and not (self.columns_ask or self.turns_ask)


PLAIN = Core()
# By what a processor says of its maker. The others are what was measured on AuthenticAMD.
MAKERS = {
    "GenuineIntel": Core(
        suffix=".intel",
        ahead=2048,
        blocks_ask=False,
        tiles_ask=True,
        strip_lines=2,
        strips_join=True,
        strips_beside=True,
        strips_whole=True,
        strips_in=32,
        strips_j=4096,
        rows_followed=4096,
        dense_rows=True,
        columns_ask=True,
        columns_spread=False,
        turns_ask=True,
        columns_in_place=160 << 10,
        rows_near=12,
        lanes_load=4.2,
        stage_lanes=1.2,
        stage_columns=1.2,
        slow_divider=True,
    )
}


@cache
def here() -> Core:
    """Whose kernels are made now."""
    return MAKERS.get(host_maker(), PLAIN)
