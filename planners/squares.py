"""Squares of K: for operands that run along different summed indices, as in `dac,bcd->ba`.

In the order of one of them, the other would be packed element by element, each from a line of its own that has left the
cache before its next element is wanted. In squares, so many terms of one index by a line of the other, a block of K
reads both by lines: B in rows, A across them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from ..kernels.cpu.units import LINE
from .sides import LEFT, RIGHT, Dim, cut, largest_divisor

LEAST = 8  # terms of a row
FEW_TERMS = 4  # of a line of B within a block of K, for which the line comes again from beyond the cache of a core
CORE_BYTES = 512 << 10  # of lines of B, which stay in that cache from block to block


@dataclass(frozen=True, kw_only=True)
class Squares:
    """``row``: the terms along B, fastest; ``across``: those along A, of which a block has ``depth``, a line; ``turns``: of the
    loop over K outside, fastest first."""

    row: Dim
    across: Dim
    depth: int
    turns: tuple[Dim, ...]

    @property
    def kc(self) -> int:
        """Terms of a block of K."""
        return self.row.size * self.depth

    def lines(self, items: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Offsets, from the first term of a block, of the lines that each lane of A and of B has of it. A line of A may begin
        in the block before, which has asked for it: the one in which it ends is new."""
        of_a = self.row.table(LEFT) + (self.depth - 1) * items[LEFT]
        length = self.row.size * items[RIGHT]
        in_row = np.append(np.arange(0, length - items[RIGHT], LINE), length - items[RIGHT])
        rows = self.across.table(RIGHT)[: self.depth]
        return of_a, (rows[:, None] + in_row).ravel()


def squares_of_k(
    dims: Sequence[Dim], columns: int, *, items: tuple[int, int], item: int, most: int, entries: int
) -> Squares | None:
    """How K goes in squares of up to ``most`` terms; None where both operands run along one index, or sizes do not divide.

    ``dims``: of K; ``columns``: of B; ``items``: bytes of an element of A and of B, ``item``: of what is computed with;
    ``entries``: of a table.
    """
    row = next((dim for dim in dims if dim.stride(RIGHT) == items[RIGHT]), None)
    across = next((dim for dim in dims if dim.stride(LEFT) == items[LEFT]), None)
    depth = LINE // item
    if row is None or across is None or row is across or row.tables or across.tables or across.size < depth:
        return None
    if across.size * FEW_TERMS < most or columns * across.size * LINE <= CORE_BYTES:
        return None
    near, *rows = cut(row, largest_divisor(row.size, most // depth))
    if not LEAST <= near.size <= most // depth:
        return None
    deep, *later = cut(across, largest_divisor(across.size, entries // near.size))
    if deep.size < depth or near.size * deep.size > entries:
        return None
    others = [dim for dim in dims if dim is not row and dim is not across]
    return Squares(row=near, across=deep, depth=depth, turns=(*rows, *later, *others))
