"""How often a kernel goes over a row whose elements depend on all of it: what each pass needs, and what it leaves.

Softmax is ``e = exp(x - max); e / sum`` with the maximum and the sum of a row: three passes. A value is computed again
in each pass that needs it, unless it takes longer than to store and to load it: then it is *kept*.

>>> from .fused_structure import Graph
>>> g = Graph(("float32",))
>>> e = g.op("exp", g.op("sub", 0, g.over(0, "max")))
>>> found = passes(g.structure(g.op("div", e, g.over(e, "sum"))))
>>> found.wanted, found.kept, sorted(found.numbers), found.dearest, found.between
(((0,), (3,), (5,)), (3,), [1, 4], 1, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .fused_structure import Structure, cost_of

KEPT = 4  # the cost from which a value is kept: a division
TOGETHER = 4  # rows that are gone over at once
LONG_ROW = 256  # bytes, up to which they are: longer ones are read in order, which is what hardware foresees


@dataclass(frozen=True, kw_only=True)
class Passes:
    """``wanted``: of each pass, the values that are reduced in it, or stored in the last; ``known``: of each value, how
    many passes are over when it can be computed; ``numbers``: values that are one number for a row, whatever the inputs
    are; ``kept``: values that a pass leaves to others; ``computed``: the values of each pass, kept ones loaded;
    ``dearest``: the pass that computes most, in which memory has least to do; ``between``: of those that neither come
    first, and wait for memory, nor last, and store, where there are such."""

    wanted: tuple[tuple[int, ...], ...]
    known: tuple[int, ...]
    numbers: frozenset[int]
    kept: tuple[int, ...]
    computed: tuple[tuple[int, ...], ...]
    loaded: tuple[tuple[int, ...], ...]
    dearest: int
    between: int


@lru_cache(maxsize=1024)
def passes(s: Structure) -> Passes:
    """Of a structure with reductions over its rows."""
    first = len(s.inputs)
    known, numbers = [0] * first, set()
    wanted: list[set[int]] = [set()]
    for value, node in enumerate(s.nodes, first):
        known.append(max((known[a] for a in node.args), default=0) + (node.op == "over"))
        if node.op == "over" or all(a in numbers for a in node.args):
            numbers.add(value)
        if node.op == "over":
            wanted += [set() for _ in range(known[value] + 1 - len(wanted))]
            wanted[known[value] - 1] |= set(node.args)
    wanted[-1] |= {out.value for out in s.outputs if out.value not in numbers}
    moving = [()] * first + [tuple([a for a in node.args if a not in numbers]) for node in s.nodes]
    dear = {v for v in _needed(moving, set().union(*wanted) - numbers, set()) if price(s, v) >= KEPT}
    before: set[int] = set()
    computed, loaded = [], []
    for each in wanted:
        values = _needed(moving, each - numbers, dear & before)
        computed.append(tuple(sorted(values)))
        loaded.append(tuple(sorted(values & dear & before)))
        before |= values
    kept = sorted(set().union(*map(set, loaded)))
    prices = [sum(price(s, value) for value in {*all_} - {*there}) for all_, there in zip(computed, loaded, strict=True)]
    return Passes(
        wanted=tuple(tuple(sorted(each)) for each in wanted),
        known=tuple(known),
        numbers=frozenset(numbers),
        kept=tuple(kept),
        computed=tuple(computed),
        loaded=tuple(loaded),
        dearest=_dearest(prices, range(len(prices))),
        between=_dearest(prices, range(1, len(prices) - 1)),
    )


def _dearest(prices: list[int], passes: range) -> int:
    """The last one of those that cost most; where there are none, of all."""
    return max(passes or range(len(prices)), key=lambda number: (prices[number], number))


def price(s: Structure, value: int) -> int:
    """About how many instructions a vector of a value takes, once its arguments are there."""
    op = s.nodes[value - len(s.inputs)].op if value >= len(s.inputs) else ""
    return cost_of(op)


def _needed(moving: list[tuple[int, ...]], wanted: set[int], there: set[int]) -> set[int]:
    """The values with an element for each of the row that ``wanted`` ones depend on, down to those that are there.
    ``moving``: such arguments of each value."""
    found, left = set(wanted), list(wanted)
    while left:
        value = left.pop()
        if value not in there:
            fresh = [a for a in moving[value] if a not in found]
            found.update(fresh)
            left += fresh
    return found
