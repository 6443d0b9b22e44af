"""The sort family on the Python side: lines of an operand sorted, or the indices that sort them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .cpu import abi
from .cpu import sort_abi as sa
from .cpu.storage import STORAGES
from .nest_rows import PARALLEL_BYTES, share
from .row import Operand, Row, operand_words

ITEMS = (1, 2, 4, 8)
DTYPES = tuple(name for name, row in STORAGES.items() if row.parts == 1)
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
PASSES = 8  # over an element, about


@dataclass(frozen=True, kw_only=True)
class SortProblem:
    """``line``: elements of a line, strides in the operand and in the output; ``lines``: loops over lines, the same.
    ``order``: the indices (int64) instead of the elements. ``operands``: the output, the operand."""

    dtype: str
    order: bool
    line: tuple[int, int, int]
    lines: tuple[tuple[int, int, int], ...]
    operands: tuple[Operand, Operand]

    @property
    def item(self) -> int:
        return STORAGES[self.dtype].itemsize

    @property
    def elements(self) -> int:
        return self.line[0] * prod(loop[0] for loop in self.lines)

    @property
    def bytes(self) -> int:
        return PASSES * (self.item + 8 * self.order) * self.elements

    @property
    def flops(self) -> int:
        return 0

    @property
    def text(self) -> str:
        """As `explain` shows it."""
        return "argsort" if self.order else "sort"

    def placed(self, operands: tuple[Operand, Operand]) -> "SortProblem":
        return replace(self, operands=operands)

    def lower(self, threads: int = 1) -> tuple[Row, ...]:
        """The row of the step table; none where there are no elements."""
        if not self.elements:
            return ()
        count = prod(loop[0] for loop in self.lines)
        each = -(-count // min(count, share(self.bytes, threads)))
        tasks = -(-count // each)
        row = STORAGES[self.dtype]
        sign = 1 << (row.bits - 1)
        signed, floating = row.kind in "ifhB", row.floating
        words = {
            **operand_words(*self.operands),
            abi.PARALLEL: abi.IN_BANDS * (tasks > 1 and self.bytes >= PARALLEL_BYTES),
            sa.S_COUNT: self.line[0],
            sa.S_FROM: self.line[1],
            sa.S_TO: self.line[2],
            sa.S_RANK: len(self.lines),
            sa.S_LINES: count,
            sa.S_SHARE: each,
            sa.S_SIGN: -sign if signed else 0,
            sa.S_FLOAT: -floating,
            sa.S_INFINITY: _INFINITY.get(self.dtype, -1),
        }
        keys, indices = sa.scratch(self.line[0], self.item, self.order)
        table = np.array(self.lines or [(1, 0, 0)], np.int64).ravel()
        kernels = {abi.FN: f"{self.text}_{self.item}"}
        return (
            Row(words=words, tables={sa.S_TABLE: table}, kernels=kernels, scratch=2 * (keys + indices), tasks=tasks),
        )


def names() -> tuple[str, ...]:
    """All kernels that `SortProblem.lower` may name."""
    return tuple(f"{op}_{item}" for op in ("sort", "argsort") for item in ITEMS)
