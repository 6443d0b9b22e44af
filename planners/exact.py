"""Exact searches for the contraction order, over subsets of the operands as bit masks.

`best_order` looks at every binary tree, outer products included; it is meant for up to about a dozen operands.
`best_connected_order` skips outer products of connected parts, which sparse networks of some dozen operands allow.
Both minimise flops, or the costs that ``weigh`` gives to steps, and among equals the elements written; both can be
held to a largest intermediate.
"""

from __future__ import annotations

import heapq
from math import inf
from time import monotonic
from typing import Any, Callable, Sequence

# Cost of a step from elements of its operands and its result, points of its index space, and whether it sums.
Weigh = Callable[[int, int, int, int, bool], float]
FULL_OPERANDS = 8  # every tree of so many operands is searched in a few milliseconds
CHECK_EVERY = 2048  # pairs between two looks at the clock


class OutOfBudget(Exception):
    """The search was stopped; the message says by what."""


class Budget:
    """What a search may spend: pairs of partial orders looked at, and time. Counted work repeats, time does not."""

    def __init__(self, pairs: int | None = None, deadline: float | None = None):
        self.pairs = pairs
        self.deadline = deadline
        self._spent = 0
        self._look = 0

    def spend(self, pairs: int) -> None:
        """Count ``pairs``; `OutOfBudget` where the bound is passed."""
        self._spent += pairs
        if self.pairs is not None and self._spent > self.pairs:
            raise OutOfBudget(f"stopped after {self.pairs} pairs")
        if self.deadline is not None and self._spent >= self._look:
            self._look = self._spent + CHECK_EVERY
            if monotonic() > self.deadline:
                raise OutOfBudget("stopped by max_time")


class Masks:
    """Terms as bit masks over their indices, with the products of sizes that a search asks for again and again."""

    def __init__(self, terms: Sequence[Sequence[int]], output: Sequence[int], sizes: Sequence[int]):
        self.terms = [sum(1 << index for index in set(term)) for term in terms]
        self.output = sum(1 << index for index in set(output))
        self.sizes = sizes
        self._products: dict[int, int] = {0: 1}

    def product(self, mask: int) -> int:
        """The product of the sizes of the indices in ``mask``."""
        found = self._products.get(mask)
        if found is None:
            found, rest = 1, mask
            while rest:
                low = rest & -rest
                found *= self.sizes[low.bit_length() - 1]
                rest ^= low
            self._products[mask] = found
        return found

    def above_all(self, weigh: Weigh | None = None) -> float:
        """A cost that no order reaches: of flops an infinity that adds to integers of any length."""
        everything = self.output
        for term in self.terms:
            everything |= term
        points = self.product(everything)
        if weigh is not None:
            return len(self.terms) * weigh(points, points, points, points, True)
        return 4 * len(self.terms) * points + 1


def _kept(masks: Masks) -> list[int]:
    """For every subset of the terms: the indices that its contraction has."""
    count = len(masks.terms)
    union = [0] * (1 << count)
    for subset in range(1, 1 << count):
        low = subset & -subset
        union[subset] = union[subset ^ low] | masks.terms[low.bit_length() - 1]
    return [mask & (masks.output | other) for mask, other in zip(union, reversed(union))]


def tree_of(left_part: Callable[[int], int], subset: int) -> Any:
    """Nested pairs of operand numbers of ``subset``, where ``left_part`` tells how a subset is split."""
    needed, todo = [], [subset]
    while todo:
        part = todo.pop()
        needed.append(part)
        if part & (part - 1):
            left = left_part(part)
            todo += [left, part ^ left]
    nodes: dict[int, Any] = {}
    for part in reversed(needed):  # parts come after all that contain them
        left = part & (part - 1) and left_part(part)
        nodes[part] = (nodes[left], nodes[part ^ left]) if left else part.bit_length() - 1
    return nodes[subset]


def best_order(
    terms: Sequence[Sequence[int]],
    output: Sequence[int],
    sizes: Sequence[int],
    *,
    limit: int | None = None,
    budget: Budget | None = None,
    weigh: Weigh | None = None,
) -> Any:
    """The cheapest binary tree of all, as nested pairs; None where every one has an intermediate over ``limit``.

    ``sizes[i]`` is the size of index ``i``; ``weigh`` the cost of a step, flops where it is None. Time is
    proportional to 3**operands.
    """
    masks = Masks(terms, output, sizes)
    product = masks.product
    kept = _kept(masks)
    full = len(kept) - 1
    infinite = masks.above_all() if weigh is None else inf
    flops: list[float] = [0] * (full + 1)
    written = [0] * (full + 1)
    split = [0] * (full + 1)
    for subset in range(3, full + 1):
        rest = subset & (subset - 1)
        if not rest:
            continue
        keep = kept[subset]
        elements = product(keep)
        best, best_written, best_left = infinite, 0, 0
        if budget:
            budget.spend(1 << rest.bit_count())
        if limit is None or elements <= limit:
            right = rest
            while right:
                left = subset ^ right
                cost = flops[left] + flops[right]
                if cost <= best:
                    space = kept[left] | kept[right]
                    if weigh is None:
                        cost += product(space) if space == keep else 2 * product(space)
                    else:
                        read = product(kept[left]), product(kept[right])
                        cost += weigh(*read, elements, product(space), space != keep)
                    write = written[left] + written[right]
                    if cost < best or (cost == best and write < best_written):
                        best, best_written, best_left = cost, write, left
                right = (right - 1) & rest
        flops[subset], written[subset], split[subset] = best, best_written + elements, best_left
    return None if not split[full] and full & (full - 1) else tree_of(split.__getitem__, full)


class Network:
    """Terms of one search without outer products: who shares which index, and how indices disappear."""

    def __init__(self, masks: Masks):
        self.masks = masks
        self.owners: dict[int, int] = {}  # index bit -> subset of the terms that have it
        for number, term in enumerate(masks.terms):
            while term:
                low = term & -term
                self.owners[low] = self.owners.get(low, 0) | 1 << number
                term ^= low
        everywhere = (1 << len(masks.terms)) - 1
        # An index of the output or of every term joins no two parts: it stays to the end.
        self.links = sum(b for b, own in self.owners.items() if not b & masks.output and own != everywhere)

    def components(self) -> list[int]:
        """Subsets of the terms that are connected through shared indices, in the order of their first term."""
        found: list[int] = []
        todo = (1 << len(self.masks.terms)) - 1
        while todo:
            part, border = 0, todo & -todo
            while border:
                low = border & -border
                part |= low
                reach, links = 0, self.masks.terms[low.bit_length() - 1] & self.links
                while links:
                    bit = links & -links
                    reach |= self.owners[bit]
                    links ^= bit
                border = (border | reach) & ~part
            found.append(part)
            todo &= ~part
        return found

    def join(self, subset: int, left: int, right: int) -> int:
        """Indices of the contraction of two parts with indices ``left`` and ``right`` into ``subset``."""
        keep = left | right
        shared = left & right & ~self.masks.output
        while shared:
            bit = shared & -shared
            if not self.owners[bit] & ~subset:
                keep ^= bit
            shared ^= bit
        return keep

    def alone(self, number: int) -> int:
        """Indices of one term after those that nothing else has are summed over."""
        keep = rest = self.masks.terms[number]
        while rest:
            bit = rest & -rest
            if self.owners[bit] == 1 << number and not bit & self.masks.output:
                keep ^= bit
            rest ^= bit
        return keep


# One partial order: flops, elements written, indices of its result, left part of its last step.
_Part = tuple[float, int, int, int]


def _search_component(
    network: Network, part: int, cap: float, limit: int | None, budget: Budget, weigh: Weigh | None
) -> dict[int, _Part]:
    """Best orders of the connected subsets of ``part`` that cost at most ``cap``; has ``part`` itself if one exists."""
    product = network.masks.product
    count = part.bit_count()
    best: dict[int, _Part] = {}
    # By number of terms, then by index: the subsets whose result has that index.
    buckets: list[dict[int, list[int]]] = [{} for _ in range(count + 1)]

    def publish(level: int, subset: int) -> None:
        links = best[subset][2] & network.links
        while links:
            bit = links & -links
            buckets[level].setdefault(bit, []).append(subset)
            links ^= bit

    members: list[list[int]] = [[] for _ in range(count + 1)]
    rest = part
    while rest:
        low = rest & -rest
        best[low] = (0, 0, network.alone(low.bit_length() - 1), 0)
        publish(1, low)
        members[1].append(low)
        rest ^= low

    for level in range(2, count + 1):
        found: dict[int, _Part] = {}
        for less in range(1, level // 2 + 1):
            budget.spend(1)
            if not buckets[level - less]:
                continue
            for small in members[less]:
                small_cost, small_written, small_keep, _ = best[small]
                links = small_keep & network.links
                while links:
                    bit = links & -links
                    links ^= bit
                    others = buckets[level - less].get(bit, ())
                    budget.spend(len(others) + 1)
                    for large in others:
                        if small & large or (2 * less == level and small > large):
                            continue
                        cost, written, keep, _ = best[large]
                        if small_keep & keep & network.links & (bit - 1):
                            continue  # seen through an earlier index
                        cost += small_cost
                        subset = small | large
                        known = found.get(subset)
                        if cost > cap or (known is not None and cost >= known[0]):
                            continue
                        result = network.join(subset, small_keep, keep)
                        space = small_keep | keep
                        elements = product(result)
                        if weigh is None:
                            cost += product(space) if space == result else 2 * product(space)
                        else:
                            cost += weigh(product(small_keep), product(keep), elements, product(space), space != result)
                        if cost > cap:
                            continue
                        if limit is not None and elements > limit:
                            continue
                        written += small_written + elements
                        if known is None or (cost, written) < known[:2]:
                            found[subset] = (cost, written, result, small)
        best.update(found)
        members[level] = sorted(found)
        for subset in members[level]:
            publish(level, subset)
    return best


def _component_tree(
    network: Network, part: int, cap: float, limit: int | None, budget: Budget, weigh: Weigh | None
) -> Any:
    """The best tree of one component and the indices of its result, or None. The cap grows until a tree is found."""
    if not part & (part - 1):
        number = part.bit_length() - 1
        return number, network.alone(number)
    masks = network.masks
    # Every operand is read once, so no order is cheaper than its largest operand.
    elements = max(masks.product(network.alone(n)) for n in range(len(masks.terms)) if part >> n & 1)
    bound = elements if weigh is None else weigh(elements, 1, 1, elements, False)
    while True:
        bound = min(bound, cap)
        best = _search_component(network, part, bound, limit, budget, weigh)
        if part in best:
            return tree_of(lambda subset: best[subset][3], part), best[part][2]
        if bound >= cap:
            return None
        bound *= 16


def best_connected_order(
    terms: Sequence[Sequence[int]],
    output: Sequence[int],
    sizes: Sequence[int],
    *,
    cap: float | None = None,
    limit: int | None = None,
    budget: Budget | None = None,
    weigh: Weigh | None = None,
) -> Any:
    """The cheapest tree without outer products inside a connected part; None where none meets ``cap`` and ``limit``.

    ``cap`` is a known cost that the order need not exceed, in flops or what ``weigh`` counts. Parts that share
    no summed index are searched apart and their results multiplied, smallest first.
    """
    masks = Masks(terms, output, sizes)
    network = Network(masks)
    cap = masks.above_all(weigh) if cap is None else cap
    trees = []
    for part in network.components():
        found = _component_tree(network, part, cap, limit, budget or Budget(), weigh)
        if found is None:
            return None
        trees.append(found)
    heap = [(masks.product(keep), number, tree, keep) for number, (tree, keep) in enumerate(trees)]
    heapq.heapify(heap)
    number = len(trees)
    while len(heap) > 1:
        _, _, left, left_keep = heapq.heappop(heap)
        _, _, right, right_keep = heapq.heappop(heap)
        keep = left_keep | right_keep  # indices that parts share stay until the last step
        heapq.heappush(heap, (masks.product(keep), number, (left, right), keep))
        number += 1
    return heap[0][2]
