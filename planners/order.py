"""The contraction order of an expression: `find_order`, under limits of memory and time.

An order is a list of binary steps in opt_einsum's convention: each step names two places in the list of tensors
that are left, takes them out and appends the result. A single operand has the one step ``(0,)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from math import isfinite, prod
from numbers import Real
from typing import Any, ClassVar, Hashable, Iterator, Sequence

from ..errors import EngineTypeError, EngineValueError
from ..expr import quoted
from ..records import Later, quick
from .exact import Budget, OutOfBudget, best_connected_order
from .foreign import HYPER_METHODS, check_installed, cotengra_hyper, is_tree, object_search, tree_search
from .objective import objective
from .optimizers import (
    Optimizer,
    get_optimizer,
    optimizers,
    register_optimizer,
    registry_version,
    unregister_optimizer,
)
from .problem import Found, Problem
from .searches import best, random_greedy, split_by, trivial
from .steps import Path, Sizes, Term, check_path, reduction_cost, show, shown, step_cost, to_positions, totals

__all__ = [
    "Order", "find_order", "leaner_orders", "optimize_key", "step_cost",
    "Optimizer", "get_optimizer", "optimizers", "register_optimizer", "registry_version", "unregister_optimizer",
]  # fmt: skip

KNOWN_OPERANDS = 64  # up to so many, what a path means is kept
_STEPS = {tuple, list}
LIMIT_OPERANDS = 12  # up to so many, all orders are searched for one within a memory limit
LIMIT_PAIRS = 1_000_000
LIMIT_TRIALS, LIMIT_WORK = 64, 20_000  # trials of a random search, and at most this over the operands
LIMIT_HYPER_TRIALS, LIMIT_HYPER_WORK = 16, 3_000


@quick
@dataclass(frozen=True, kw_only=True)
class Order:
    """A contraction order in binary steps.

    ``path`` is in opt_einsum's convention. ``flops`` counts real additions and multiplications of a real
    contraction (`step_cost`); ``largest`` is the number of elements of the largest intermediate, the output
    included. ``optimizer`` names what found it, and says in brackets where it is not what that name promises.
    """

    LATER: ClassVar[tuple[str, ...]] = ("flops", "largest")

    path: Path
    flops: int
    largest: int
    optimizer: str


def find_order(
    terms: Sequence[Term],
    output: Term,
    sizes: Sizes,
    *,
    optimize: Any = "auto",
    memory_limit: int | str | None = None,
    max_time: float | None = None,
    seed: int = 0,
    text: str = "",
    minimize: Any = "flops",
) -> Order:
    """The order in which to contract ``terms`` (the indices of each operand) into ``output``.

    ``optimize`` is True or ``"auto"``; False (left to right); a name of `optimizers()`; a path as opt_einsum has
    it, or as NumPy has it (``["einsum_path", (0, 1), ...]``); a pair of name and memory limit, as in NumPy; an
    optimiser object of opt_einsum or cotengra, or one with their interface; a cotengra ``ContractionTree``.
    ``minimize`` is ``"flops"``, ``"time"`` (what the engine predicts for float64) or a `TimeObjective`; a search that
    knows only its own measure says so in the order's ``optimizer``.
    ``memory_limit`` is in elements of the largest intermediate (``"max_input"``: of the largest operand). An order
    over it is replaced by one within it; where none is found, `EngineValueError` gives the numbers. ``max_time``, in
    seconds, bounds the search as the table of optimisers says. The same arguments and ``seed`` give the same order,
    except where the time ran out. ``text`` is the expression that messages name.

    >>> find_order([("i", "j"), ("j", "k"), ("k",)], ("i",), {"i": 10, "j": 20, "k": 30})
    Order(path=((1, 2), (0, 1)), flops=1600, largest=20, optimizer='auto')
    """
    if not terms:
        raise EngineValueError(f"{quoted(text or show(terms, output))} has no operands")
    limit = _checked_limit(memory_limit, terms, sizes)
    if isinstance(optimize, (list, tuple)) and _is_name_with_limit(optimize):
        optimize, number = optimize
        own_limit = _checked_limit(int(number), terms, sizes)
        limit = own_limit if limit is None else min(limit, limit if own_limit is None else own_limit)
    max_time, goal = _checked_time(max_time), objective(minimize)
    if len(terms) <= 2 and (optimize is True or isinstance(optimize, str)):
        name = "auto" if optimize is True else get_optimizer(optimize).name
        order = _only_order(terms, output, sizes, name)
        if limit is None or order.largest <= limit:
            return order
    known = None if limit is not None or goal is not None else _known_path(optimize, len(terms))
    if known is not None:
        ids, path = known
        found = _Totals(tuple(terms), output, sizes, ids)  # few ask
        return Order(path=path, flops=found, largest=found, optimizer="path")
    problem = Problem.of(
        terms, output, sizes, limit=limit, max_time=max_time, seed=seed, text=text, objective=goal
    )
    name, found = _search(problem, optimize)
    if limit is not None and found.largest > limit:
        found = _within_limit(problem, found, name)
    return _order(problem, found, name)


def optimize_key(optimize: Any) -> Hashable | None:
    """What a cache may look an order up by, besides the expression: None where a search must run each time.

    Optimiser objects have a state, or chance, of their own, so nothing found through them is kept.
    """
    if optimize is None or isinstance(optimize, (bool, str)):
        return (optimize, registry_version()) if isinstance(optimize, str) else optimize is not False
    if isinstance(optimize, Order):
        return optimize.path
    try:
        steps = optimize.get_path() if is_tree(optimize) else optimize
        key = tuple(step if isinstance(step, (str, int, float)) else tuple(step) for step in steps)
        hash(key)
    except TypeError:
        return None
    return key


def leaner_orders(
    terms: Sequence[Term],
    output: Term,
    sizes: Sizes,
    *,
    below: int,
    max_time: float | None = None,
    seed: int = 0,
    minimize: Any = "flops",
) -> Iterator[Order]:
    """Orders with ever smaller largest intermediates, each below the one before it and the first ``<= below``.

    For a plan that must fit into memory: try each until one does. Each is the cheapest found within its limit.
    """
    problem = Problem.of(
        terms, output, sizes, limit=below, max_time=_checked_time(max_time), seed=seed, objective=objective(minimize)
    )
    while problem.limit >= problem.output_elements:  # type: ignore[operator]
        found = next((each for each in _lean_searches(problem) if each.largest <= problem.limit), None)
        if found is None:
            return
        yield _order(problem, found, "memory limit")
        problem = problem.replace(limit=found.largest - 1)


# ---- what optimize= is ----------------------------------------------------------------------------------------


def _search(problem: Problem, optimize: Any) -> tuple[str, Found]:
    """The name of what ``optimize`` is, and the order that it gives."""
    if optimize is None or isinstance(optimize, bool) or type(optimize).__name__ == "bool_":
        optimize = "left-to-right" if optimize is not None and not optimize else "auto"
    if isinstance(optimize, str):
        row = get_optimizer(optimize)
        found = trivial(problem)
        if found is None and row.needs:
            check_installed(row.needs, row.name)
        if found is None:
            found = row.search(problem)
            if problem.objective is not None and not row.timed:
                found = found.noted("; ".join(filter(None, (found.note, "not by time"))))
        return row.name, found
    if isinstance(optimize, Order):
        optimize = optimize.path
    if isinstance(optimize, (list, tuple)):
        steps = optimize[1:] if len(optimize) and optimize[0] == "einsum_path" else optimize
        return "path", problem.found_path(steps, split_by(problem))
    name = type(optimize).__name__
    if is_tree(optimize):
        return name, tree_search(problem, optimize)
    if not isinstance(optimize, type) and (callable(optimize) or hasattr(optimize, "search")):
        return getattr(optimize, "__name__", name), trivial(problem) or object_search(problem, optimize)
    hint = "; it is a class, give an instance" if isinstance(optimize, type) else ""
    raise EngineTypeError(
        f"optimize={shown(optimize)} for {quoted(problem.expression)}: expected True, False, a name, a path such as"
        f" [(0, 1), (0, 1)], an optimiser or a contraction tree, not {name}{hint}"
    )


def _is_name_with_limit(optimize: Sequence[Any]) -> bool:
    """Whether ``optimize`` is NumPy's pair of a name and a limit in elements."""
    return (
        len(optimize) == 2
        and isinstance(optimize[0], str)
        and optimize[0] != "einsum_path"
        and isinstance(optimize[1], Real)
    )


def _checked_limit(limit: int | str | None, terms: Sequence[Term], sizes: Sizes) -> int | None:
    if limit is None:
        return None
    if limit == "max_input":
        return max(prod(sizes[index] for index in term) for term in terms)
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise EngineTypeError(
            f"memory_limit={limit!r}: expected a number of elements of the largest intermediate, 'max_input' or None"
        )
    number = limit.__index__()
    if number < 1 and number != -1:
        raise EngineValueError(f"memory_limit={number}: expected at least 1 element, or -1 for no limit")
    return None if number == -1 else number


def _checked_time(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise EngineTypeError(f"max_time={seconds!r}: expected a number of seconds, not {type(seconds).__name__}")
    if not seconds > 0:
        raise EngineValueError(f"max_time={seconds!r}: expected a positive number of seconds")
    return float(seconds) if isfinite(seconds) else None


def _only_order(terms: Sequence[Term], output: Term, sizes: Sizes, name: str) -> Order:
    """The order of one or two operands, without the machinery: `einsum` needs it at once."""
    if len(terms) == 1:
        flops, elements = reduction_cost(terms[0], output, sizes)
        return Order(path=((0,),), flops=flops, largest=elements, optimizer=name)
    flops, _ = step_cost(terms[0], terms[1], output, sizes)
    return Order(path=((0, 1),), flops=flops, largest=prod([sizes[index] for index in output]), optimizer=name)


def _known_path(path: Any, count: int) -> tuple[Path, Path] | None:
    """Ids and positions of a path in binary steps that was given; None where it has to be looked at more closely."""
    if not isinstance(path, (list, tuple)) or not 2 < count <= KNOWN_OPERANDS or len(path) != count - 1:
        return None
    plain = set(map(type, path)) <= _STEPS and set(map(len, path)) == {2}
    if not plain or set(map(type, chain.from_iterable(path))) != {int}:
        return None
    return _binary_path(tuple(map(tuple, path)), count)


class _Totals(Later):
    """`totals` of a path, where they are asked for."""

    __slots__ = ("of",)

    def __init__(self, *of: Any) -> None:
        self.of = of

    @property
    def flops(self) -> int:
        return totals(*self.of)[0]

    @property
    def largest(self) -> int:
        return totals(*self.of)[1]


@lru_cache(maxsize=256)
def _binary_path(path: Path, count: int) -> tuple[Path, Path] | None:
    try:
        ids = tuple(check_path(path, count, ""))
    except EngineValueError:
        return None  # the message names the expression
    return ids, to_positions(ids, count)


def _order(problem: Problem, found: Found, name: str) -> Order:
    note = f" ({found.note})" if found.note else ""
    return Order(path=problem.path(found), flops=found.flops, largest=found.largest, optimizer=name + note)


# ---- memory limits --------------------------------------------------------------------------------------------


def _lean_searches(problem: Problem) -> Iterator[Found]:
    """Orders of searches for small intermediates, quick ones first; all that exist are seen for few operands."""
    if problem.count <= LIMIT_OPERANDS:
        found = best(problem)
        if found is not None:
            yield found
        return
    try:
        tree = best_connected_order(
            problem.terms, problem.output, problem.search_sizes,
            limit=problem.limit, budget=Budget(LIMIT_PAIRS, problem.deadline), weigh=problem.weigh,
        )  # fmt: skip
        if tree is not None:
            yield problem.found_tree(tree)
    except OutOfBudget:
        pass
    yield random_greedy(problem, min(LIMIT_TRIALS, LIMIT_WORK // problem.count + 1), size_first=True)
    row = get_optimizer("hyper-size")
    try:
        check_installed(row.needs, row.name)
    except EngineValueError:
        return  # it is the last search anyway
    trials = min(LIMIT_HYPER_TRIALS, LIMIT_HYPER_WORK // problem.count + 1)
    yield cotengra_hyper(problem, HYPER_METHODS, trials=trials, minimize="size")


def _within_limit(problem: Problem, over: Found, name: str) -> Found:
    """An order whose intermediates fit, instead of ``over``; `EngineValueError` with the numbers where none does."""
    limit = problem.limit or 0
    where = quoted(problem.expression)
    if problem.output_elements > limit:
        raise EngineValueError(
            f"memory_limit={limit} elements cannot be met for {where}: the result alone has {problem.output_elements}"
        )
    smallest = over.largest
    for found in _lean_searches(problem):
        if found.largest <= limit:
            return found.noted(f"{name} had a largest intermediate of {over.largest} elements")
        smallest = min(smallest, found.largest)
    if problem.count <= LIMIT_OPERANDS:
        smallest = _smallest(problem, over)
    claim = "any order has" if problem.count <= LIMIT_OPERANDS else "the leanest order found has"
    raise EngineValueError(
        f"memory_limit={limit} elements cannot be met for {where}: {claim} an intermediate of {smallest} elements or"
        " more, and slicing is not available yet"
    )


def _smallest(problem: Problem, found: Found) -> int:
    """The largest intermediate of the leanest order there is, of few operands."""
    for _ in count():
        leaner = best(problem.replace(limit=found.largest - 1))
        if leaner is None:
            break
        found = leaner
    return found.largest
