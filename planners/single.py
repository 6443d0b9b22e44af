"""Steps of a program that are one kernel of their own: no map joins them, and they stand in order as einsums do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..kernels.row import Operand, Row
from .operations import Value
from .places import MemoryView


@dataclass(eq=False)
class SingleStep:
    """``problem``: what the kernel does, as data, its operands placed within the memory of ``output``, then ``inputs``:
    slots are positions in these. It has ``placed``, ``lower``, ``flops``, ``bytes`` and ``text``. ``updates``: the
    output is read, too. ``axes``: none, as no step reduces here."""

    at: int
    family: str
    inputs: list[MemoryView]
    output: MemoryView
    problem: Any
    updates: bool = False
    axes: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.output.view.shape

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.output.memory,)

    def plan(self) -> SinglePlan:
        return SinglePlan(
            problem=self.problem,
            memory=(self.output.memory, *(place.memory for place in self.inputs)),
            family=self.family,
            updates=self.updates,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SinglePlan:
    """A problem whose operands get their places when the arena is laid out."""

    problem: Any
    memory: tuple[Value, ...]
    family: str
    updates: bool
    temporary_bytes: int = 0

    def rows(self, temp: Operand, threads: int) -> tuple[Row, ...]:
        placed = tuple(
            Operand(slot=value.slot, offset=value.offset + operand.offset)
            for value, operand in zip(self.memory, self.problem.operands, strict=True)
        )
        return self.problem.placed(placed).lower(threads)

    @property
    def text(self) -> str:
        return self.problem.text

    @property
    def flops(self) -> int:
        return self.problem.flops

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What is read, each value once."""
        read = self.memory if self.updates else self.memory[1:]
        return tuple(dict.fromkeys(read))


def operands(*places: MemoryView) -> tuple[Operand, ...]:
    """Places as operands of a problem: slots are their positions."""
    return tuple(Operand(slot=slot, offset=place.view.offset) for slot, place in enumerate(places))
