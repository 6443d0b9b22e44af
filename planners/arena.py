"""Offsets of intermediates in one arena: buffers whose lifetimes overlap never share bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..records import quick

ALIGNMENT = 64


@quick
@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer of ``nbytes`` that is live from step ``first`` to step ``last``, both included."""

    key: int
    nbytes: int
    first: int
    last: int


def allocate(lifetimes: list[Lifetime]) -> tuple[dict[int, int], int]:
    """Offset of each buffer and the size of the arena, in bytes; first fit, largest first.

    >>> allocate([Lifetime(key=0, nbytes=64, first=0, last=1), Lifetime(key=1, nbytes=64, first=2, last=3)])
    ({0: 0, 1: 0}, 64)
    """
    if not lifetimes:
        return {}, 0
    placed: list[tuple[int, int, Lifetime]] = []  # start, end, lifetime
    offsets: dict[int, int] = {}
    for item in sorted(lifetimes, key=lambda l: (-l.nbytes, l.key)):
        size = -(-item.nbytes // ALIGNMENT) * ALIGNMENT
        start = 0
        for low, high, other in sorted((p for p in placed if _overlap(p[2], item)), key=lambda p: p[:2]):
            if start + size <= low:
                break
            start = max(start, high)
        placed.append((start, start + size, item))
        offsets[item.key] = start
    total = max((high for _, high, _ in placed), default=0)
    return dict(sorted(offsets.items())), total


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last
