"""Measured time of a plan's steps: kernel, packing and unpacking. Data, and which part a step belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence

from .plan import Plan, Step

PARTS = ("kernel", "packing", "unpacking")
_CONTRACTIONS = ("gemm", "dot", "batched", "small")
_MOVES = ("copy", "pack")


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step: arithmetic, operands brought into the order of a kernel, results put where they go.

    Inside a step that does several of these, the split is that of the time of its workers.
    """

    kernel: float = 0.0
    packing: float = 0.0
    unpacking: float = 0.0

    @property
    def seconds(self) -> float:
        """All of the step."""
        return self.kernel + self.packing + self.unpacking

    def scaled(self, factor: float) -> StepTime:
        """Every part times ``factor``."""
        return StepTime(**{part: getattr(self, part) * factor for part in PARTS})

    def plus(self, other: StepTime, factor: float = 1.0) -> StepTime:
        """The sum of this and ``factor`` times the other."""
        return StepTime(**{part: getattr(self, part) + factor * getattr(other, part) for part in PARTS})


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Sums over ``calls`` calls, one entry per step of the plan; a step that runs once for all calls has zeros."""

    calls: int
    steps: tuple[StepTime, ...]

    @classmethod
    def nothing(cls, plan: Plan) -> Profile:
        """Before the first call."""
        return cls(calls=0, steps=(StepTime(),) * len(plan.steps))

    @property
    def seconds(self) -> float:
        """All calls, without what a call does before and after its steps."""
        return sum(step.seconds for step in self.steps)

    def share(self, part: str) -> float:
        """Fraction of the time in ``kernel``, ``packing`` or ``unpacking``; 0 where nothing was measured."""
        return sum(getattr(step, part) for step in self.steps) / self.seconds if self.seconds else 0.0

    def with_call(self, steps: Iterable[StepTime]) -> Profile:
        """This and one call more."""
        return Profile(calls=self.calls + 1, steps=tuple(a.plus(b) for a, b in zip(self.steps, steps, strict=True)))

    def since(self, earlier: Profile) -> Profile:
        """What came after ``earlier``, a profile of the same plan."""
        steps = tuple(a.plus(b, -1.0) for a, b in zip(self.steps, earlier.steps, strict=True))
        return Profile(calls=self.calls - earlier.calls, steps=steps)

    def mean(self) -> Profile:
        """One call on average."""
        return Profile(calls=1, steps=tuple(step.scaled(1 / max(self.calls, 1)) for step in self.steps))


def part_of(step: Step, steps: Sequence[Step]) -> str:
    """What the time of ``step`` is spent on where the step does not count itself; ``steps``: all of its plan.

    A step that only moves elements is packing if it makes panels, or a contraction reads what it leaves, else unpacking
    if it moves what a contraction left. A plan that does nothing else, such as a transposition, is a kernel of its own.
    """
    if step.family not in _MOVES:
        return "kernel"
    if step.family == "pack" or _leads_to_contraction(step, steps):
        return "packing"
    return "unpacking" if _comes_from_contraction(step, steps) else "kernel"


def _leads_to_contraction(step: Step, steps: Sequence[Step]) -> bool:
    readers = [other for other in steps if other.number > step.number and step.output in other.inputs]
    return any(
        other.family in _CONTRACTIONS or (other.family in _MOVES and _leads_to_contraction(other, steps))
        for other in readers
    )


def _comes_from_contraction(step: Step, steps: Sequence[Step]) -> bool:
    makers = [other for other in steps if other.number < step.number and other.output in step.inputs]
    return any(
        other.family in _CONTRACTIONS or (other.family in _MOVES and _comes_from_contraction(other, steps))
        for other in makers
    )
