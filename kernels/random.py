"""The random family on the Python side: the words of a key's stream, as integers or uniform numbers.

The definition is in NumPy: `op_numpy.random_bits` and `random_uniform`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cpu import abi
from .cpu import random_abi as ra
from .nest_rows import PARALLEL_BYTES, share
from .row import Operand, Row, operand_words

ITEMS = {"uint32": 4, "float32": 4, "float64": 8}
OPERATIONS = 30  # of a word


@dataclass(frozen=True, kw_only=True)
class RandomProblem:
    """``count`` elements, contiguous; ``stream``: third word of the counters; ``key_step``: bytes between the words of
    the key. ``operands``: the output, the key."""

    dtype: str
    count: int
    stream: int
    key_step: int
    operands: tuple[Operand, Operand]

    @property
    def bytes(self) -> int:
        return self.count * ITEMS[self.dtype]

    @property
    def flops(self) -> int:
        return self.bytes // 4 * OPERATIONS

    @property
    def text(self) -> str:
        """As `explain` shows it."""
        return "random"

    def placed(self, operands: tuple[Operand, Operand]) -> "RandomProblem":
        return replace(self, operands=operands)

    def lower(self, threads: int = 1) -> tuple[Row, ...]:
        """The row of the step table; none where there are no elements."""
        if not self.count:
            return ()
        blocks = -(-self.bytes // 16)
        each = -(-blocks // (ra.WIDEST * share(4 * self.bytes, threads))) * ra.WIDEST
        tasks = -(-blocks // each)
        words = {
            **operand_words(*self.operands),
            abi.PARALLEL: abi.IN_BANDS * (tasks > 1 and 4 * self.bytes >= PARALLEL_BYTES),
            ra.R_COUNT: self.count,
            ra.R_STREAM: self.stream,
            ra.R_KEY_STEP: self.key_step,
            ra.R_SHARE: each,
        }
        return (Row(words=words, kernels={abi.FN: f"random_{self.dtype}"}, tasks=tasks),)


def names() -> tuple[str, ...]:
    """All kernels that `RandomProblem.lower` may name."""
    return tuple(f"random_{dtype}" for dtype in ITEMS)
