"""The guard family on the Python side: a call fails where a bool is true."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cpu import abi
from .cpu import guard_abi as ga
from .row import Operand, Row, operand_words


@dataclass(frozen=True, kw_only=True)
class GuardProblem:
    """``code``: a key of `failures.FAILURES`. ``operands``: the bool, twice: nothing is written."""

    code: int
    operands: tuple[Operand, Operand]
    bytes: int = 1
    flops: int = 0
    text: str = "guard"

    def placed(self, operands: tuple[Operand, Operand]) -> "GuardProblem":
        return replace(self, operands=operands)

    def lower(self, threads: int = 1) -> tuple[Row, ...]:
        """The row of the step table."""
        words = {**operand_words(*self.operands), ga.G_CODE: self.code}
        return (Row(words=words, kernels={abi.FN: "guard"}),)
