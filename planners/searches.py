"""The searches for a contraction order that this package runs itself, some of them on opt_einsum's functions.

Random numbers come from generators with a seed, never from the global one. Work is bounded by counts, which repeat,
unless the user bounds the time.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from time import monotonic
from typing import Any

from .exact import FULL_OPERANDS, Budget, OutOfBudget, best_connected_order, best_order
from .greedy import greedy_ids
from .problem import Found, Problem
from .steps import SplitStep
from .subtrees import improved_by_parts

OUTER_OPERANDS = 14  # up to so many, `optimal` looks at every tree
CONNECTED_OPERANDS = 16  # up to so many, `auto` and `auto_hq` try for the best connected order
PAIRS = 3_000_000  # partial orders that an exact search looks at before it gives up: some seconds
SEARCH_RATE = 2e10  # flop/s of a contraction against which `auto` weighs the time of a search
SECONDS_PER_PAIR = 1e-6
LEAST_PAIRS, MOST_PAIRS = 20_000, 1_000_000  # of an exact search within `auto`, of all operands or of parts
SECONDS_PER_OPERAND = 100e-6  # of one greedy search
AUTO_WORK = 10_000  # operands times trials of a greedy search within `auto`: about a second
SHARES = (0.1, 4.0)  # of `greedy_ids`, over which trials are spread
TEMPERATURES = (0.001, 1.0)
BRANCH_WORK = 200_000  # pairs weighed and sizes looked up by a branching search before it is stopped
BRANCH_OPERANDS = 200  # a branching search recurses once per operand


def greedy(problem: Problem, note: str = "") -> Found:
    """opt_einsum's greedy order."""
    from opt_einsum.paths import ssa_greedy_optimize

    terms, output, sizes = problem.spelled(range(len(problem.sizes)))
    # Frozen sets of small integers are walked in an order that does not change between processes.
    ids = ssa_greedy_optimize([frozenset(term) for term in terms], frozenset(output), sizes)
    return problem.found([tuple(step) for step in ids], note)


def own_greedy(problem: Problem, **chance: Any) -> Found:
    """A greedy order of our own, quick for thousands of operands and for indices that many of them share."""
    return problem.found(greedy_ids(problem.terms, problem.output, problem.search_sizes, **chance))


def random_greedy(problem: Problem, trials: int, *, size_first: bool = False, start: Found | None = None) -> Found:
    """The best of ``trials`` greedy orders; the first, or ``start``, is without chance.

    Best means the least cost, or the smallest ``largest`` with ``size_first``; an order over the problem's limit
    loses against one within it. ``max_time`` ends the search after the trial that passes it.
    """

    def rank(found: Found) -> tuple[int, float, float]:
        over = int(problem.limit is not None and found.largest > problem.limit)
        return (over, found.largest, found.cost) if size_first else (over, found.cost, found.largest)

    chosen = start or greedy(problem)
    done = 1
    while done < trials:
        if problem.deadline is not None and monotonic() > problem.deadline:
            return chosen.noted(f"stopped by max_time after {done} of {trials} trials")
        random = Random((problem.seed << 32) + done)
        share = random.uniform(*SHARES)
        temperature = exp(random.uniform(*map(log, TEMPERATURES)))
        chosen = min(chosen, own_greedy(problem, share=share, temperature=temperature, random=random), key=rank)
        done += 1
    return chosen


def trivial(problem: Problem) -> Found | None:
    """The only order of one or two operands."""
    if problem.count > 2:
        return None
    return problem.found([(0,)] if problem.count == 1 else [(0, 1)])


def best(problem: Problem) -> Found | None:
    """The cheapest order of few operands within the problem's limit; None where there is none."""
    if problem.count <= 2:
        return trivial(problem)
    tree = best_order(
        problem.terms, problem.output, problem.search_sizes, limit=problem.limit, weigh=problem.weigh
    )
    return None if tree is None else problem.found_tree(tree)


def quick(problem: Problem) -> Found:
    """A good order at once: the cheapest one of few operands, a greedy one of many."""
    if problem.count > FULL_OPERANDS:
        return own_greedy(problem)
    return best(problem) or best(problem.replace(limit=None))  # type: ignore[return-value]


def split_by(problem: Problem) -> SplitStep:
    """A function that plans the n-ary steps of a path for ``problem``."""
    return lambda terms, output: list(quick(problem.replace(terms=tuple(terms), output=output)).ids)


def left_to_right(problem: Problem) -> Found:
    """Operands 0 and 1, their result with operand 2, and so on: what is written is what runs."""
    if problem.count <= 2:
        return trivial(problem)  # type: ignore[return-value]
    first = problem.count
    return problem.found([(0, 1), *((first + step, step + 2) for step in range(first - 2))])


def _improved(problem: Problem, start: Found, budget: Budget) -> Found | None:
    """The best connected order if it is cheaper than ``start``; None where there is none."""
    sizes = problem.search_sizes
    cap = problem.replace(sizes=sizes).found(start.ids).cost
    tree = best_connected_order(
        problem.terms, problem.output, sizes, cap=cap, limit=problem.limit, budget=budget, weigh=problem.weigh
    )
    found = None if tree is None else problem.found_tree(tree)
    return found if found and found.cost < start.cost else None


def dp(problem: Problem) -> Found:
    """The cheapest order without outer products in a connected part, or a greedy one where that takes too long.

    Outer products rarely pay. ``max_time`` replaces the bound on the work.
    """
    if problem.count <= 2:
        return trivial(problem)  # type: ignore[return-value]
    start = greedy(problem)
    try:
        return _improved(problem, start, problem.budget(PAIRS)) or start
    except OutOfBudget as stop:
        return start.noted(f"{stop}: greedy")


def optimal(problem: Problem) -> Found:
    """The cheapest order of all, up to `OUTER_OPERANDS` operands; beyond, and out of time, what `dp` finds."""
    if problem.count <= 2:
        return trivial(problem)  # type: ignore[return-value]
    if problem.count > OUTER_OPERANDS:
        found = dp(problem)
        return found.noted(found.note or "without outer products")
    try:
        tree = best_order(
            problem.terms, problem.output, problem.search_sizes, budget=problem.budget(PAIRS), weigh=problem.weigh
        )
    except OutOfBudget as stop:
        return greedy(problem, note=f"{stop}: greedy")
    return problem.found_tree(tree)


FOREIGN_FLOPS = 10**9  # above, importing opt_einsum for its greedy order as a second opinion pays


def auto(problem: Problem) -> Found:
    """The cheapest order of few operands; of more, a quick one, improved for about as long as the contraction takes."""
    if problem.count <= FULL_OPERANDS:
        return quick(problem)
    start = own_greedy(problem)
    seconds = min(start.flops, 10**15) / SEARCH_RATE
    pairs = min(max(int(seconds / SECONDS_PER_PAIR), LEAST_PAIRS), MOST_PAIRS)
    if problem.count <= CONNECTED_OPERANDS:
        try:
            return _improved(problem, start, Budget(pairs, problem.deadline)) or start
        except OutOfBudget:
            pass
    if start.flops > FOREIGN_FLOPS:
        start = min(start, greedy(problem), key=lambda found: found.cost)
    trials = int(min(64, AUTO_WORK / problem.count, seconds / (problem.count * SECONDS_PER_OPERAND)))
    if trials > 1:
        start = random_greedy(problem, trials, start=start).noted("")
    return improved_by_parts(problem, start, Budget(pairs, problem.deadline))


def auto_hq(problem: Problem) -> Found:
    """The cheapest order where an exact search is quick, else the best of 128 random greedy ones."""
    if problem.count <= 12:
        return optimal(problem)
    if problem.count <= CONNECTED_OPERANDS:
        return dp(problem)
    return improved_by_parts(problem, random_greedy(problem, 128), Budget(MOST_PAIRS, problem.deadline))


class _WatchedSizes(dict):
    """Sizes by index that stop a search which looks them up too often, or for too long."""

    def __init__(self, sizes: dict[int, int], budget: Budget):
        super().__init__(sizes)
        self._budget = budget

    def __getitem__(self, index: int) -> int:
        self._budget.spend(1)
        return super().__getitem__(index)


def branch(problem: Problem, branches: int | None) -> Found:
    """opt_einsum's branching search: tries the ``branches`` most promising pairs at each step, or all.

    Its time is exponential in the operands: stopped after a while, it gives the best order so far.
    """
    from opt_einsum.paths import BranchBound

    if problem.count > BRANCH_OPERANDS:
        return greedy(problem, note=f"greedy: over {BRANCH_OPERANDS} operands")
    budget = problem.budget(BRANCH_WORK)

    def memory_removed(size12: int, size1: int, size2: int, *_: Any) -> int:
        budget.spend(1)
        return size12 - size1 - size2

    terms, output, sizes = problem.spelled(range(len(problem.sizes)))
    search = BranchBound(nbranch=branches, cost_fn=memory_removed)  # type: ignore[arg-type]
    note = ""
    try:
        search([frozenset(term) for term in terms], frozenset(output), _WatchedSizes(sizes, budget), None)
    except OutOfBudget as stop:
        note = str(stop)
    if "ssa_path" not in search.best:
        return greedy(problem, note=f"{note}: greedy")
    return problem.found([tuple(step) for step in search.best["ssa_path"]], note)
