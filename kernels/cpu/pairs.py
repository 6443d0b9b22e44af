"""Steps of K whose products are instructions of their own, two by two."""

from __future__ import annotations

from typing import Callable

from ..isa import ISA
from .emit import Fn, Val, Var


def in_pairs(isa: ISA, dtype: str) -> bool:
    """Whether products are instructions of their own, and come in pairs. With narrower vectors there are too few
    registers for it."""
    return isa.vector_bits == 512 and dtype in ("int16", "int32", "int64")


class Pairs:
    """A step of K in the order of two products, the two sums of the pair before, two products: taken in turn, one by one, sums
    keep units that multiply from products. Each product loads its own column, which it can repeat itself: an instruction that does
    it once for all rows, between products and sums, would put the pairs out of turn. Rows are loaded one after the other, as
    few registers are left beside so many products."""

    def __init__(self, f: Fn, row: Callable[[Val, int], Val], column: Callable[[Val, int], Val]):
        """``row(at, i)`` and ``column(at, j)`` load from addresses."""
        self.f, self.row, self.column = f, row, column

    def emit(self, slots: list[list[Var]], at: list[Val]) -> None:
        """``slots[i][j]`` += row i * column j, for all of them, an even number; ``at``: addresses of rows and of columns."""
        rows: dict[int, Val] = {}
        waiting: list[tuple[Var, Val]] = []  # products whose sums come later
        places = [(i, j) for i, line in enumerate(slots) for j in range(len(line))]
        for pair in zip(places[::2], places[1::2], strict=True):
            if len(waiting) > 2:
                at = self._sum(waiting[:2], at)
                waiting = waiting[2:]
            for i, j in pair:
                if i not in rows:
                    rows[i] = self.row(at[0], i)
                waiting.append((slots[i][j], rows[i] * self.column(at[1], j)))
            together = self.f.together([product for _, product in waiting])
            waiting = [(slot, product) for (slot, _), product in zip(waiting, together, strict=True)]
        for slot, product in waiting:
            slot.set(product + slot.get())

    def _sum(self, parts: list[tuple[Var, Val]], at: list[Val]) -> list[Val]:
        """Later products, which load from the addresses that it gives, wait for these sums."""
        tied = self.f.together([*(product + slot.get() for slot, product in parts), *at])
        for (slot, _), value in zip(parts, tied):
            slot.set(value)
        return tied[len(parts) :]
