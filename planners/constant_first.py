"""Orders for calls in which some operands never change: what depends on those alone is computed once.

The searches count every step. Here an order counts what each call does: where tensors that never change are connected,
they are contracted with each other first, and what is left is searched anew. In a chain of matrices with one variable two
steps of a call remain, one if it is at an end. That order is taken where it saves a third of what a call does, unless it
needs more memory or takes more than it saves in `CALLS` calls. It is all or nothing: what is connected is one tensor, or
stays as it was.
"""

from __future__ import annotations

from math import prod
from typing import Any, Collection, Iterable, Sequence

from .objective import Objective, objective
from .order import Order, find_order
from .steps import Sizes, Tensors, Term, check_path, to_positions, totals, walk

CALLS = 1000  # within which constant products have to pay
WORTH = 0.67  # of the work of a call: where less was saved, layouts decided, and six of seven calls took longer
STEP_FLOPS = 1000  # that a step counts besides its own, which are few where tensors are small
NOTE = " (constants first)"

Ids = list[tuple[int, ...]]


def constants_first(
    order: Order,
    terms: Sequence[Term],
    output: Term,
    sizes: Sizes,
    constants: Collection[int],
    *,
    optimize: Any,
    limited: bool,
    minimize: Any = "flops",
) -> Order:
    """``order``, or one of which calls have less to do; ``constants`` are the operands that never change.

    ``optimize`` and ``minimize`` are what ``order`` was searched with; ``limited``: intermediates have to be as small as
    those of ``order``, not only as the largest operand.

    >>> terms, sizes = [("i", "j"), ("j", "k"), ("k", "l")], dict(i=2, j=30, k=30, l=2)
    >>> order = find_order(terms, ("i", "l"), sizes)
    >>> constants_first(order, terms, ("i", "l"), sizes, (1, 2), optimize="auto", limited=False).path
    ((1, 2), (0, 1))
    """
    groups = [group for group in _connected(terms, constants) if len(group) > 1]
    if not groups or len(constants) == len(terms):
        return order
    ids = _ids(terms, output, sizes, groups, optimize=optimize, minimize=minimize)
    flops, largest = totals(terms, output, sizes, ids)
    most = max(order.largest, 0 if limited else max(prod([sizes[index] for index in term]) for term in terms))
    if largest > most:
        return order
    goal = objective(minimize)
    before = _work(terms, output, sizes, check_path(order.path, len(terms), ""), constants, goal)
    after = _work(terms, output, sizes, ids, constants, goal)
    if after[0] > WORTH * before[0] or after[1] - before[1] > CALLS * (before[0] - after[0]):
        return order
    return Order(path=to_positions(ids, len(terms)), flops=flops, largest=largest, optimizer=order.optimizer + NOTE)


def _connected(terms: Sequence[Term], constants: Iterable[int]) -> list[list[int]]:
    """The constants in groups that share indices with no other group."""
    groups: list[tuple[set, list[int]]] = []
    for number in constants:
        indices, members = set(terms[number]), [number]
        apart = []
        for other in groups:
            if indices.isdisjoint(other[0]):
                apart.append(other)
            else:
                indices, members = indices | other[0], other[1] + members
        groups = [*apart, (indices, members)]
    return [sorted(members) for _, members in groups]


def _ids(terms: Sequence[Term], output: Term, sizes: Sizes, groups: list[list[int]], **search: Any) -> Ids:
    """The order in ids that makes one tensor of each group, and then the result."""
    left, ids = Tensors(terms, output), []

    def contract(members: Sequence[int], result: Term) -> None:
        order = find_order([left.terms[member] for member in members], result, sizes, **search)
        now = list(members)
        for step in check_path(order.path, len(members), ""):
            if len(step) == 2:
                ids.append((now[step[0]], now[step[1]]))
                now.append(left.contract(ids[-1])[0])

    for group in groups:
        contract(group, left.kept(group))
    contract(list(left.terms), output)
    return ids


def _work(
    terms: Sequence[Term], output: Term, sizes: Sizes, ids: Ids, constants: Collection[int], goal: Objective
) -> tuple[float, float]:
    """What the steps of each call cost, by what is minimised, and what those cost that are done once."""
    fixed, each, once = set(constants), 0.0, 0.0
    for number, step in enumerate(walk(terms, output, sizes, ids), len(terms)):
        cost = STEP_FLOPS + step.flops if goal is None else goal.of(step.inputs, step.result, sizes, [(0, 1)])
        if fixed.issuperset(step.ids):
            fixed.add(number)
            once += cost
        else:
            each += cost
    return each, once
