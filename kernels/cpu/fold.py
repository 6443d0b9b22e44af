"""Sums of the elements of vectors, of several vectors at once."""

from __future__ import annotations

from typing import Callable

from .emit import Fn, Val

Add = Callable[[Val, Val], Val]


def fold(f: Fn, add: Add, vectors: list[Val], elems: int, parts: int = 1) -> list[Val]:
    """Vectors that begin with the sums of the ``elems`` elements of each of ``vectors``, in their order: one, or where
    there are more vectors than elements, a power of two of them with ``elems`` sums each.

    An element has ``parts`` machine lanes. Halves of two vectors are added at once, so that n sums of n elements cost
    n - 1 additions; the order of the additions is the same for every position.
    """
    groups, width = vectors + [vectors[-1]] * (power_of_two(len(vectors)) - len(vectors)), elems
    while len(groups) > 1 and width > 1:
        groups = [_halved(f, add, x, y, width, elems, parts) for x, y in zip(groups[0::2], groups[1::2])]
        width //= 2
    while width > 1:
        groups = [_halved(f, add, x, x, width, elems, parts) for x in groups]
        width //= 2
    return groups


def _halved(f: Fn, add: Add, x: Val, y: Val, width: int, elems: int, parts: int) -> Val:
    """x and y hold sums still spread over ``width`` elements each; the result those of both, over half as many. Those of
    y lie behind those of x."""
    starts = range(0, elems, width)
    low = [s + e for s in starts for e in range(width // 2)]
    high = [s + e + width // 2 for s in starts for e in range(width // 2)]
    if x is y:
        low, high = low + low, high + high
    else:
        low, high = (half + [elems + e for e in half] for half in (low, high))
    return add(*(f.shuffle(x, y, [e * parts + p for e in half for p in range(parts)]) for half in (low, high)))


def power_of_two(n: int) -> int:
    """The least power of two that is not less than n."""
    return 1 << (n - 1).bit_length()
