"""What the steps of an operation say of it, and the memory that they need besides its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..records import changed, quick
from .gemm import GemmPlan
from .operations import PARTS, Operation
from .parts import Part


@quick
@dataclass(frozen=True, kw_only=True)
class Work:
    """What the steps of an operation, or of a part of it, say of it; ``scale``: the part's share of the work."""

    expr: Any  # these two may come later
    dims: Any
    flops: int
    moved: int
    scale: float = 1.0

    def share(self, part: Part) -> "Work":
        c = part.contraction
        groups = {"B": c.batch, "M": c.m, "N": c.n, "K": c.k}
        return changed(
            self,
            dims={kind: tuple((i, c.sizes[i]) for i in indices if i != PARTS) for kind, indices in groups.items()},
            flops=round(self.flops * part.share),
            moved=round(self.moved * part.share),
            scale=part.share,
        )


def temporaries(operation: Operation) -> list[tuple[Part, str, int]]:
    """Part, side and bytes of each packed copy and temporary."""
    found = []
    for each in operation.parts:
        part, plan = each.part, each.part.plan
        if plan.__class__ is not GemmPlan:
            if plan.temporary_bytes:
                found.append((part, "temporary", plan.temporary_bytes))
            continue
        if plan.pack_left is not None:
            found.append((part, "left", plan.pack_left.nbytes))
        if plan.pack_right is not None:
            found.append((part, "right", plan.pack_right.nbytes))
    return found
