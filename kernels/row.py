"""One row of the step table before it has addresses: what a family's lowering returns to the executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, NamedTuple

import numpy as np

from ..records import changed, quick
from .cpu import abi


class Operand(NamedTuple):
    """Where an operand of a row starts: slot of the base address and byte offset."""

    slot: int
    offset: int


def operand_words(out: Operand, a: Operand, b: Operand | None = None) -> dict[int, int]:
    """The words of a row that say where its operands are."""
    words = {abi.OUT_SLOT: out.slot, abi.OUT_OFFSET: out.offset, abi.A_SLOT: a.slot, abi.A_OFFSET: a.offset}
    if b is not None:
        words[abi.B_SLOT], words[abi.B_OFFSET] = b.slot, b.offset
    return words


@quick
@dataclass(frozen=True, kw_only=True)
class Row:
    """``words``: plain int64 words by position (`cpu.abi`); ``tables``: offset vectors (int64, bytes) whose address
    goes into a word; ``kernels``: names of compiled functions whose address goes into a word (``FN`` included);
    ``scratch``: bytes per worker; ``tasks``: independent shares."""

    words: Mapping[int, int]
    tables: Mapping[int, np.ndarray] = field(default_factory=dict)
    kernels: Mapping[int, str] = field(default_factory=dict)
    scratch: int = 0
    tasks: int = 1

    def placed(self, out: Operand, a: Operand, b: Operand | None = None) -> "Row":
        """The row with operands at other places."""
        words = {**self.words, **operand_words(out, a, b)}
        return changed(self, words=words)
