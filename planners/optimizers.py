"""The table of optimisers: what ``optimize=`` may name. One row each; users add rows with `register_optimizer`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from ..errors import EngineTypeError, EngineValueError
from . import foreign, searches
from .problem import Found, Problem

RUNS_ON = "runs to its end"


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """A row: a name and its search, other names for it, what ``max_time=`` does to it, the package that it needs.

    ``timed``: ``minimize="time"`` changes what it finds; other searches know flops or memory alone.
    """

    name: str
    search: Callable[[Problem], Found]
    summary: str
    max_time: str = RUNS_ON
    aliases: tuple[str, ...] = ()
    needs: str = ""
    timed: bool = False


def _row(name: str, search: Callable[[Problem], Found], summary: str, **fields: Any) -> Optimizer:
    return Optimizer(name=name, search=search, summary=summary, **fields)


_STOPS = "stops, best so far"
_GREEDY = "stops, greedy order instead"
_BUILT_IN = (
    _row(
        "auto", searches.auto, "exact for few operands; for many greedy, improved while that pays", max_time=_STOPS,
        timed=True,
    ),
    _row(
        "auto-hq", searches.auto_hq, "exact up to 16 operands, else the best of 128 random greedy", max_time=_STOPS,
        timed=True,
    ),
    _row("optimal", searches.optimal, "every tree, up to 14 operands; beyond as dp", max_time=_GREEDY, timed=True),
    _row(
        "dp", searches.dp, "cheapest order without outer products", max_time=_GREEDY,
        aliases=("dynamic-programming",), timed=True,
    ),
    _row(
        "greedy", searches.greedy, "the pair that frees most memory, again and again",
        aliases=("eager", "opportunistic"),
    ),
    _row(
        "random-greedy", partial(searches.random_greedy, trials=32), "best of 32 random greedy", max_time=_STOPS,
        timed=True,
    ),
    _row("random-greedy-128", partial(searches.random_greedy, trials=128), "best of 128", max_time=_STOPS, timed=True),
    _row("branch-all", partial(searches.branch, branches=None), "tries all likely pairs", max_time=_STOPS),
    _row("branch-2", partial(searches.branch, branches=2), "tries the 2 likeliest pairs", max_time=_STOPS),
    _row("branch-1", partial(searches.branch, branches=1), "takes the likeliest pair", max_time=_STOPS),
    _row("left-to-right", searches.left_to_right, "the operands in the order in which they are written"),
    _row(
        "hyper", partial(foreign.cotengra_hyper, methods=foreign.HYPER_METHODS),
        "cotengra's hyper-optimiser, 128 trials", max_time=_STOPS, needs="cotengra", timed=True,
    ),
    _row(
        "hyper-greedy", partial(foreign.cotengra_hyper, methods=(foreign.HYPER_GREEDY,)),
        "the same with greedy trees alone", max_time=_STOPS, needs="cotengra", timed=True,
    ),
    _row(
        "hyper-size", partial(foreign.cotengra_hyper, methods=foreign.HYPER_METHODS, minimize="size"),
        "the same for the smallest intermediates", max_time=_STOPS, needs="cotengra",
    ),
    _row(
        "cotengra-greedy", partial(foreign.cotengra_optimizer, kind="GreedyOptimizer"),
        "cotengra's greedy search", needs="cotengra",
    ),
    _row(
        "cotengra-optimal", foreign.cotengra_optimal,
        "cotengra's exact search, exponential time", needs="cotengra", timed=True,
    ),
    _row(
        "cotengra-random-greedy", partial(foreign.cotengra_random_greedy, trials=128),
        "cotengra's best of 128 random greedy", needs="cotengra",
    ),
    _row(
        "cotengrust-greedy", partial(foreign.cotengrust_search, function="optimize_greedy"),
        "greedy, in native code", needs="cotengrust",
    ),
    _row(
        "cotengrust-optimal", partial(foreign.cotengrust_search, function="optimize_optimal"),
        "exact, in native code, exponential time", needs="cotengrust",
    ),
    _row(
        "cotengrust-random-greedy",
        partial(foreign.cotengrust_search, function="optimize_random_greedy_track_flops", trials=128),
        "best of 128 random greedy, in native code", needs="cotengrust",
    ),
)
# Any name of these packages' own tables, as in "opt_einsum:branch-2" or "cotengra:hyper-kahypar".
PREFIXES = {"opt_einsum": foreign.opt_einsum_search, "cotengra": foreign.cotengra_search}

_table: dict[str, Optimizer] = {name: row for row in _BUILT_IN for name in (row.name, *row.aliases)}
_version = 0


def normalize(name: str) -> str:
    """The form in which names are compared: lower case, hyphens.

    >>> normalize(" Random_Greedy ")
    'random-greedy'
    """
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def registry_version() -> int:
    """A number that changes whenever the table does: part of the key of everything that was found through a name."""
    return _version


def optimizers() -> tuple[Optimizer, ...]:
    """The rows of the table, in the order in which they were added, aliases once."""
    return tuple(dict.fromkeys(_table.values()))


def get_optimizer(name: str) -> Optimizer:
    """The row of a name or alias; `EngineValueError` lists the valid ones."""
    row = _table.get(name) or _table.get(normalize(name))
    if row is not None:
        return row
    package, colon, inner = name.strip().partition(":")
    if colon and package in PREFIXES and inner:
        return _row(
            f"{package}:{inner}", partial(PREFIXES[package], name=inner), f"{inner} of {package}", needs=package
        )
    raise EngineValueError(
        f"unknown optimiser {name!r}; valid names are {', '.join(_table)}, and any of opt_einsum's or cotengra's own"
        " after 'opt_einsum:' or 'cotengra:'"
    )


def register_optimizer(name: str, optimizer: Any, *, summary: str = "") -> Optimizer:
    """Make ``optimize=name`` mean ``optimizer``, for this process.

    ``optimizer`` is a function ``(inputs, output, size_dict, memory_limit) -> path``, an opt_einsum
    ``PathOptimizer``, or an object with ``search(inputs, output, size_dict) -> tree or path``; it may take
    ``max_time`` and ``seed`` as keywords. Inputs are frozen sets of letters for functions, tuples for ``search``.
    A name that is taken (case, ``_`` and ``-`` do not count) is an `EngineValueError`.

    >>> _ = register_optimizer("Last first", lambda inputs, output, sizes: [
    ...     (n - 2, n - 1) for n in range(len(inputs), 1, -1)])
    >>> get_optimizer("last_first").name
    'last-first'
    >>> unregister_optimizer("last-first")
    """
    global _version
    if not isinstance(name, str):
        raise EngineTypeError(f"register_optimizer: the name {name!r} is a {type(name).__name__}, not a string")
    key = normalize(name)
    if not key or ":" in key or "," in key:
        raise EngineValueError(f"register_optimizer: {name!r} is no name: it is empty or has a colon or a comma")
    if key in _table:
        raise EngineValueError(f"register_optimizer: {name!r} is taken by the optimiser {_table[key].name!r}")
    if isinstance(optimizer, type) or not (callable(optimizer) or hasattr(optimizer, "search")):
        raise EngineTypeError(
            f"register_optimizer({name!r}): {optimizer!r} is no function (inputs, output, size_dict, memory_limit) and"
            " no object with search(inputs, output, size_dict)"
        )
    search = partial(foreign.object_search, optimizer=optimizer)
    row = _row(key, search, summary or "registered by the user", max_time="passed on")
    _table[key] = row
    _version += 1
    return row


def unregister_optimizer(name: str) -> None:
    """Take back a name that `register_optimizer` added; `EngineValueError` for any other."""
    global _version
    key = normalize(name)
    if key not in _table or _table[key] in _BUILT_IN:
        raise EngineValueError(f"unregister_optimizer: {name!r} was not registered by register_optimizer")
    del _table[key]
    _version += 1
