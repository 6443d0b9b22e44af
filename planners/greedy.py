"""A greedy search for the contraction order, with chance where wanted, in time almost linear in the operands.

The next pair is the one with the least ``result / share - (left + right) * share``, in elements: how much memory it
takes more than its operands, where ``share`` says how much the operands count. Sizes are kept as logarithms, so that
no size of a network overflows.
"""

from __future__ import annotations

import heapq
from math import log, log2
from random import Random
from typing import Sequence

CROWD = 16  # an index of more tensors than this suggests no pairs: all of them would be too many


def _score(result: float, left: float, right: float, share: float) -> float:
    """Monotone in ``2**result / share - (2**left + 2**right) * share``, and logarithmic in it, as chance needs."""
    top = max(result, left, right)
    value = 2.0 ** (result - top) / share - (2.0 ** (left - top) + 2.0 ** (right - top)) * share
    if value == 0.0:
        return 0.0
    size = top + log2(abs(value))
    # Near zero the logarithm changes its sign; a straight line keeps the order.
    size = size + 1.0 if size > 0.0 else 2.0**size
    return size if value > 0.0 else -size


class _Search:
    """The state of one search: indices of every tensor left, tensors of every index, a heap of candidate pairs."""

    def __init__(
        self,
        terms: Sequence[Sequence[int]],
        output: Sequence[int],
        sizes: Sequence[int],
        share: float,
        temperature: float,
        random: Random | None,
    ):
        self.output = frozenset(output)
        self.logs = [log2(size) for size in sizes]
        self.share = share
        self.temperature = temperature
        self.random = random
        self.ids: list[tuple[int, int]] = []
        self.owners: dict[int, dict[int, None]] = {}
        for number, term in enumerate(terms):
            for index in term:
                self.owners.setdefault(index, {})[number] = None
        self.terms: dict[int, frozenset[int]] = {}
        self.elements: dict[int, float] = {}  # as logarithms
        self.heap: list[tuple[float, int, int]] = []
        self.next = len(terms)
        for number, term in enumerate(terms):
            stay = frozenset(index for index in term if len(self.owners[index]) > 1 or index in self.output)
            self.terms[number] = stay
            self.elements[number] = sum(self.logs[index] for index in stay)

    def _shared(self, left: int, right: int) -> tuple[float, list[int]]:
        """Elements of the contraction of two tensors, as a logarithm, and the indices that it sums."""
        result = self.elements[left] + self.elements[right]
        summed = []
        for index in self.terms[left] & self.terms[right]:
            result -= self.logs[index]
            if len(self.owners[index]) == 2 and index not in self.output:
                result -= self.logs[index]
                summed.append(index)
        return result, summed

    def contract(self, left: int, right: int) -> int:
        """Contract two tensors; the number of the result."""
        number = self.next
        self.next += 1
        self.elements[number], summed = self._shared(left, right)
        term = (self.terms.pop(left) | self.terms.pop(right)).difference(summed)
        for index in term:
            owners = self.owners[index]
            owners.pop(left, None)
            owners.pop(right, None)
            owners[number] = None
        self.terms[number] = term
        self.ids.append((left, right))
        return number

    def suggest(self, number: int, after: int = -1) -> None:
        """Put the pairs of a tensor with its neighbours on the heap; only neighbours numbered over ``after``."""
        neighbours: dict[int, None] = {}
        for index in self.terms[number]:
            owners = self.owners[index]
            if len(owners) <= CROWD:
                neighbours.update(owners)
        for other in neighbours:
            if other == number or other <= after:
                continue
            score = _score(self._shared(number, other)[0], self.elements[number], self.elements[other], self.share)
            if self.random is not None:
                # Gumbel noise: the least of the disturbed scores is a draw from their Boltzmann distribution.
                score += self.temperature * log(-log(self.random.random() or 1e-300))
            heapq.heappush(self.heap, (score, min(number, other), max(number, other)))

    def merge_equal(self) -> None:
        """Multiply tensors with the same indices element by element: it costs nothing that comes back later."""
        seen: dict[frozenset[int], int] = {}
        for number in list(self.terms):
            while (other := seen.pop(self.terms[number], None)) is not None:
                number = self.contract(other, number)
            seen[self.terms[number]] = number

    def run(self) -> None:
        """Contract along shared indices while there are any."""
        for number in list(self.terms):
            self.suggest(number, after=number)
        while self.heap:
            _, left, right = heapq.heappop(self.heap)
            if left in self.terms and right in self.terms:
                self.suggest(self.contract(left, right))

    def finish(self) -> None:
        """Contract what is left, smallest tensors first."""
        rest = [(self.elements[number], number) for number in self.terms]
        heapq.heapify(rest)
        while len(rest) > 1:
            _, left = heapq.heappop(rest)
            _, right = heapq.heappop(rest)
            number = self.contract(left, right)
            heapq.heappush(rest, (self.elements[number], number))


def greedy_ids(
    terms: Sequence[Sequence[int]],
    output: Sequence[int],
    sizes: Sequence[int],
    *,
    share: float = 1.0,
    temperature: float = 0.0,
    random: Random | None = None,
) -> list[tuple[int, int]]:
    """The steps of a greedy order, in ids. With ``random``, chance of the strength ``temperature`` takes part.

    ``sizes[i]``, at least 1, is the size of index ``i``.

    >>> greedy_ids([(0, 1), (1, 2), (2, 3)], (0, 3), [2, 9, 9, 2])
    [(0, 1), (2, 3)]
    """
    search = _Search(terms, output, sizes, share, temperature, random)
    search.merge_equal()
    search.run()
    search.finish()
    return search.ids
