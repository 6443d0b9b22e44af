"""What the steps of an operation say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..records import changed, quick
from .operations import PARTS
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
