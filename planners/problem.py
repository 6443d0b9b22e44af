"""What a search for a contraction order gets and gives: `Problem` and `Found`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Mapping, Sequence

from ..expr import letters
from ..plan import Index
from ..records import lazy, quick
from .exact import Budget, Weigh
from .objective import Objective
from .steps import Term, binary_ids, check_path, show, to_positions, totals, tree_to_ids


@quick
@dataclass(frozen=True, kw_only=True)
class Found:
    """An order: ``ids`` of binary steps, with what it costs. ``note`` says where it is not what the name promises.

    ``cost`` is what the search minimises: ``flops``, or nanoseconds of the problem's objective.
    """

    ids: tuple[tuple[int, ...], ...]
    flops: int
    largest: int
    cost: float
    note: str = ""

    def noted(self, note: str) -> "Found":
        """The same order with another note."""
        return replace(self, note=note)


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One search. Indices are numbers by first appearance, so that nothing depends on the hashes of names.

    ``sizes[i]`` is the size of index ``i``; ``names[i]`` what the user calls it. ``limit`` is in elements of the
    largest intermediate, ``max_time`` in seconds and ``deadline`` the moment (`time.monotonic`) at which it ends.
    ``objective`` is what the search minimises, None for flops.
    """

    terms: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[Index, ...]
    limit: int | None = None
    max_time: float | None = None
    deadline: float | None = None
    seed: int = 0
    text: str = ""
    objective: Objective = None

    @classmethod
    def of(
        cls,
        terms: Sequence[Term],
        output: Term,
        sizes: Mapping[Index, int],
        *,
        limit: int | None = None,
        max_time: float | None = None,
        seed: int = 0,
        text: str = "",
        objective: Objective = None,
    ) -> "Problem":
        """The problem of an expression; a repeated index within one term counts once."""
        numbers: dict[Index, int] = {}
        rows = tuple([tuple(dict.fromkeys([numbers.setdefault(i, len(numbers)) for i in term])) for term in terms])
        return cls(
            terms=rows,
            output=tuple([numbers.setdefault(index, len(numbers)) for index in output]),
            sizes=tuple([int(sizes[index]) for index in numbers]),
            names=tuple(numbers),
            limit=limit,
            max_time=max_time,
            deadline=None if max_time is None else monotonic() + max_time,
            seed=seed,
            text=text,
            objective=objective,
        )

    @property
    def count(self) -> int:
        return len(self.terms)

    @lazy
    def expression(self) -> str:
        """The expression for messages, as the user wrote it where that is known."""
        names = self.names
        return self.text or show(
            [tuple(names[index] for index in term) for term in self.terms],
            tuple(names[index] for index in self.output),
        )

    @lazy
    def search_sizes(self) -> tuple[int, ...]:
        """Sizes for searches: 0 counts as 1, since cost functions of others take logarithms."""
        return tuple(max(size, 1) for size in self.sizes)

    @lazy
    def output_elements(self) -> int:
        result = 1
        for index in self.output:
            result *= self.sizes[index]
        return result

    @lazy
    def letters(self) -> tuple[str, ...]:
        """A single letter per index, the user's where it is one: searches of others expect strings."""
        return tuple(letters(self.names).values())

    def spelled(self, symbols: Sequence[Any]) -> tuple[tuple[tuple[Any, ...], ...], tuple[Any, ...], dict[Any, int]]:
        """Terms, output (each index once) and sizes with ``symbols`` for the indices, for searches of others."""
        terms = tuple(tuple(symbols[index] for index in term) for term in self.terms)
        output = tuple(symbols[index] for index in dict.fromkeys(self.output))
        return terms, output, dict(zip(symbols, self.search_sizes))

    def budget(self, pairs: int) -> Budget:
        """What a search may spend: ``pairs``, or the time where the user bounds that."""
        return Budget(deadline=self.deadline) if self.deadline is not None else Budget(pairs)

    def found(self, ids: Sequence[tuple[int, ...]], note: str = "") -> Found:
        """An order in binary steps, with its cost at the true sizes."""
        flops, largest = totals(self.terms, self.output, self.sizes, ids)
        cost = flops
        if self.objective is not None:
            cost = self.objective.of(self.terms, self.output, self.sizes, ids)
        return Found(ids=tuple(ids), flops=flops, largest=largest, cost=cost, note=note)

    @property
    def weigh(self) -> Weigh | None:
        """What a step costs where not flops are minimised."""
        return None if self.objective is None else self.objective.pair

    def found_tree(self, tree: Any) -> Found:
        return self.found(tree_to_ids(tree, self.count))

    def found_path(self, path: Any, split: Any, note: str = "") -> Found:
        """A checked path in positions; its n-ary steps are planned by ``split``."""
        ids = check_path(path, self.count, self.expression)
        if self.count == 1:
            ids = [(0,)]
        return self.found(binary_ids(self.terms, self.output, ids, split), note)

    def replace(self, **changes: Any) -> "Problem":
        """A copy with some fields changed."""
        return replace(self, **changes)

    def path(self, found: Found) -> tuple[tuple[int, ...], ...]:
        return to_positions(found.ids, self.count)
