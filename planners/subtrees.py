"""Better orders by parts: parts of an order's tree are replaced by the cheapest of their kind.

Subtree reconfiguration, after J. Gray and S. Kourtis, "Hyper-optimized tensor network contraction" (2021): a step of
the order and the dearest of those that it needs are a small network of their own, of up to `PARTS` tensors, whose best
order is found by an exact search. In some milliseconds a greedy order of 20 operands becomes the best one, or nearly.
"""

from __future__ import annotations

from typing import Any

from .exact import Budget, Masks, Network, OutOfBudget, Weigh, best_connected_order, tree_of
from .problem import Found, Problem

PARTS = (8, 12)  # tensors of a part, one after the other while there is budget; a search of 8 takes a millisecond
PAIRS_OF_A_PART = 16  # what looking at a part counts at least
ENOUGH = 0.97  # of the cost: less is no gain in time, which layouts decide then
WORTH = 0.01  # of the cost of all steps: parts that cost less are left as they are


class _Tree:
    """A tree by sets of operands (bit masks): into which two each is split."""

    def __init__(self, problem: Problem, found: Found):
        self.masks = Masks(problem.terms, problem.output, problem.search_sizes)
        self.network = Network(self.masks)
        self.weigh: Weigh | None = problem.weigh
        self.split: dict[int, tuple[int, int]] = {}
        self.tried: set[tuple[int, ...]] = set()  # parts that have the best order already
        self.least = 0.0  # cost of a part that is worth a search
        self.kept: dict[int, int] = {1 << n: self.network.alone(n) for n in range(problem.count)}
        sets = [1 << number for number in range(problem.count)]
        for left, right in found.ids:
            sets.append(self.join(sets[left], sets[right]))

    def join(self, left: int, right: int) -> int:
        """Make ``left`` and ``right`` a node, and return it."""
        node = left | right
        self.split[node] = left, right
        if node not in self.kept:
            self.kept[node] = self.network.join(node, self.kept[left], self.kept[right])
        return node

    def cost(self, node: int) -> float:
        """Of the step that makes a node."""
        left, right = (self.kept[part] for part in self.split[node])
        keep, space, product = self.kept[node], left | right, self.masks.product
        if self.weigh is None:
            return product(space) if space == keep else 2 * product(space)
        return self.weigh(product(left), product(right), product(keep), product(space), space != keep)

    def nodes(self) -> list[int]:
        """The steps of the tree, the dearest first."""
        todo, found = [max(self.split)], []
        while todo:
            node = todo.pop()
            if node in self.split:
                found.append(node)
                todo += self.split[node]
        costs = {node: self.cost(node) for node in found}
        self.least = WORTH * sum(costs.values())
        return sorted(found, key=lambda node: (-costs[node], node))

    def part(self, node: int, most: int) -> tuple[list[int], float]:
        """At most ``most`` tensors whose part ends with ``node``, and what its steps cost: dear ones are taken first."""
        tensors, cost = list(self.split[node]), self.cost(node)
        while len(tensors) < most:
            made = [tensor for tensor in tensors if tensor in self.split]
            if not made:
                break
            dearest = max(made, key=lambda tensor: (self.cost(tensor), tensor))
            tensors.remove(dearest)
            tensors += self.split[dearest]
            cost += self.cost(dearest)
        return tensors, cost

    def improve(self, node: int, most: int, limit: int | None, budget: Budget) -> bool:
        """Whether there was a cheaper order of the part that ends with ``node``, which it has now."""
        budget.spend(PAIRS_OF_A_PART)
        tensors, cost = self.part(node, most)
        if len(tensors) < 3 or cost < self.least or (key := tuple(sorted(tensors))) in self.tried:
            return False
        self.tried.add(key)
        terms = [_bits(self.kept[tensor]) for tensor in tensors]
        sizes, output = self.masks.sizes, _bits(self.kept[node])
        best = best_connected_order(terms, output, sizes, cap=cost, limit=limit, budget=budget, weigh=self.weigh)
        if best is None:
            return False
        before = dict(self.split)
        self._take(best, tensors)
        if self._cost_of(node, set(tensors)) < cost:
            return True
        self.split = before
        return False

    def _take(self, tree: Any, tensors: list[int]) -> int:
        """Split as ``tree``, nested pairs of numbers of ``tensors``, says."""
        if isinstance(tree, int):
            return tensors[tree]
        return self.join(self._take(tree[0], tensors), self._take(tree[1], tensors))

    def _cost_of(self, node: int, tensors: set[int]) -> float:
        return 0 if node in tensors else self.cost(node) + sum(self._cost_of(x, tensors) for x in self.split[node])


def _bits(mask: int) -> tuple[int, ...]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def improved_by_parts(problem: Problem, found: Found, budget: Budget) -> Found:
    """``found`` with better subtrees, until none is found or the budget is spent; never one that costs more."""
    tree = _Tree(problem, found)
    try:
        for most in PARTS:
            while any(tree.improve(node, most, problem.limit, budget) for node in tree.nodes()):
                budget.spend(problem.count)  # of looking at all nodes again
    except OutOfBudget:
        pass
    best = problem.found_tree(tree_of(lambda node: tree.split[node][0], max(tree.split)))
    return best if best.cost < ENOUGH * found.cost else found
