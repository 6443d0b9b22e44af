"""Searches that other packages bring: opt_einsum's and cotengra's tables, cotengrust, optimiser objects, trees."""

from __future__ import annotations

import inspect
import random
import threading
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Callable, Iterator

from ..errors import EngineTypeError, EngineValueError
from ..expr import quoted
from ..locks import anew
from .greedy import greedy_ids
from .problem import Found, Problem
from .searches import SHARES, TEMPERATURES, split_by
from .steps import shown

_lock = anew(globals(), "_lock", threading.RLock)


def check_installed(package: str, wanted_by: str) -> None:
    """Import a package that an optimiser needs; `EngineValueError` where that fails."""
    try:
        import_module(package)
    except ImportError as error:
        raise EngineValueError(
            f"optimize={wanted_by!r} needs the package {package}, which cannot be imported: {error}"
        ) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run with the global random generator seeded, which these packages draw from, and put its state back."""
    with _lock:
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


# ---- names in the tables of others ----------------------------------------------------------------------------


def opt_einsum_search(problem: Problem, name: str) -> Found:
    """The search that opt_einsum knows as ``name``, unchanged and run to its end."""
    paths = import_module("opt_einsum.paths")
    try:
        function = paths.get_path_fn(name)
    except KeyError as error:
        raise EngineValueError(f"optimize='opt_einsum:{name}': opt_einsum has no such name. {error.args[0]}") from None
    own = getattr(function, "__module__", "").startswith("opt_einsum")
    terms, output, sizes = problem.spelled(range(len(problem.sizes)) if own else problem.letters)
    with seeded(problem.seed):
        path = function([frozenset(term) for term in terms], frozenset(output), sizes, None)
    return problem.found_path(path, split_by(problem))


def cotengra_search(problem: Problem, name: str) -> Found:
    """The search that cotengra knows as preset ``name``, unchanged and run to its end."""
    cotengra = import_module("cotengra")
    terms, output, sizes = problem.spelled(problem.letters)
    with seeded(problem.seed):
        try:
            path = cotengra.array_contract_path(terms, output, sizes, optimize=name, canonicalize=False, cache=False)
        except KeyError as error:
            raise EngineValueError(f"optimize='cotengra:{name}': cotengra has no such preset ({error})") from None
    return problem.found_path(path, split_by(problem))


# ---- cotengra's optimisers with seeds, and cotengrust ---------------------------------------------------------

HYPER_GREEDY = "einsum-engine-greedy"
HYPER_METHODS = (HYPER_GREEDY, "labels")


def _greedy_trial(inputs: Any, output: Any, size_dict: dict[str, int], share: float, temperature: float) -> Any:
    """A tree for cotengra's hyper-optimiser by our greedy search: unlike its own, a seed settles what it finds."""
    cotengra = import_module("cotengra")
    number = {letter: position for position, letter in enumerate(size_dict)}
    ids = greedy_ids(
        [[number[letter] for letter in term] for term in inputs],
        [number[letter] for letter in output],
        list(size_dict.values()),
        share=share,
        temperature=temperature,
        random=random.Random(random.getrandbits(64)),
    )
    return cotengra.ContractionTree.from_path(inputs, output, size_dict, ssa_path=ids)


def cotengra_hyper(
    problem: Problem, methods: tuple[str, ...], *, trials: int = 128, minimize: str = ""
) -> Found:
    """cotengra's hyper-optimiser in this process: the best tree of ``trials``, or of those that fit ``max_time``.

    ``minimize`` is a name that cotengra knows, by default what the problem minimises.
    """
    cotengra = import_module("cotengra")
    import_module("cotengra.hyperoptimizers.hyper").register_hyper_function(
        HYPER_GREEDY,
        _greedy_trial,
        {
            "share": {"type": "FLOAT", "min": SHARES[0], "max": SHARES[1]},
            "temperature": {"type": "FLOAT_EXP", "min": TEMPERATURES[0], "max": TEMPERATURES[1]},
        },
    )
    terms, output, sizes = problem.spelled(problem.letters)
    search = cotengra.HyperOptimizer(
        methods=list(methods),
        max_repeats=trials,
        max_time=problem.max_time,
        minimize=minimize or problem.objective or "flops",
        parallel=False,
        optlib="random",
        seed=problem.seed,
        on_trial_error="raise",
    )
    with seeded(problem.seed):
        tree = search.search(terms, output, sizes)
    done = len(search.scores)
    note = "" if done >= trials else f"stopped by max_time after {done} of {trials} trials"
    return problem.found_path(tree.get_path(), split_by(problem), note)


def cotengra_optimizer(problem: Problem, kind: str, **options: Any) -> Found:
    """An order by one of cotengra's optimiser classes."""
    cotengra = import_module("cotengra")
    terms, output, sizes = problem.spelled(problem.letters)
    with seeded(problem.seed):
        path = getattr(cotengra, kind)(**options)(terms, output, sizes)
    return problem.found_path(path, split_by(problem))


def cotengra_optimal(problem: Problem) -> Found:
    """cotengra's exact search; instead of times it minimises the larger of multiplications and weighed writes."""
    goal = problem.objective
    if goal is None:
        return cotengra_optimizer(problem, "OptimalOptimizer")
    return cotengra_optimizer(problem, "OptimalOptimizer", minimize=goal.get_dynamic_programming_minimize())


def cotengra_random_greedy(problem: Problem, trials: int) -> Found:
    """The best of cotengra's random greedy trees."""
    return cotengra_optimizer(
        problem, "RandomGreedyOptimizer", max_repeats=trials, seed=problem.seed, parallel=False
    )


def cotengrust_search(problem: Problem, function: str, *, trials: int = 0) -> Found:
    """An order by one of cotengrust's functions; ``trials`` for the random one."""
    cotengrust = import_module("cotengrust")
    terms, output, sizes = problem.spelled(problem.letters)
    if trials:
        path, _ = getattr(cotengrust, function)(terms, output, sizes, ntrials=trials, seed=problem.seed)
    else:
        path = getattr(cotengrust, function)(terms, output, sizes)
    return problem.found_path([tuple(step) for step in path], split_by(problem))


# ---- objects ---------------------------------------------------------------------------------------------------


def is_tree(value: Any) -> bool:
    """Whether ``value`` is a contraction tree as cotengra has them."""
    return hasattr(value, "get_path") and not hasattr(value, "search") and not isinstance(value, type)


def tree_search(problem: Problem, tree: Any) -> Found:
    """The order of a tree. The indices that it slices are contracted whole, with a warning: slices come later."""
    name = type(tree).__name__
    count = getattr(tree, "N", problem.count)
    if count != problem.count:
        raise EngineValueError(
            f"optimize= is a {name} of {count} operands, but {quoted(problem.expression)} has {problem.count}"
        )
    found = problem.found_path(tree.get_path(), split_by(problem))
    if not getattr(tree, "sliced_inds", None):
        return found
    warnings.warn(
        f"{name} for {quoted(problem.expression)} slices {len(tree.sliced_inds)} indices: slicing is not available"
        f" yet, so its order is run unsliced, with a largest intermediate of {found.largest} elements; cotengra goes"
        " through the slices itself with tree.contract(arrays, backend='einsum_engine')",
        stacklevel=2,
    )
    return found.noted("unsliced")


def object_search(problem: Problem, optimizer: Any) -> Found:
    """An order by an object with opt_einsum's or cotengra's interface, or a function of that signature.

    ``optimizer.search(inputs, output, size_dict)`` gets tuples of letters and returns a tree or a path;
    ``optimizer(inputs, output, size_dict, memory_limit)`` gets frozen sets of letters and returns a path. Either may
    take ``max_time`` and ``seed`` as keywords, or have an attribute ``max_time``, which is set for the search.
    """
    search = getattr(optimizer, "search", None)
    terms, output, sizes = problem.spelled(problem.letters)
    if search is not None:
        arguments: list[Any] = [terms, output, sizes]
    else:
        search = optimizer
        arguments = [[frozenset(term) for term in terms], frozenset(output), sizes]
        if _accepts(search, 4):
            arguments.append(problem.limit)
    keywords = {} if not _has_keyword(search, "seed") else {"seed": problem.seed}
    with _max_time_set(problem, optimizer, search, keywords):
        result = search(*arguments, **keywords)
    if is_tree(result):
        return tree_search(problem, result)
    if not isinstance(result, (list, tuple)):
        raise EngineTypeError(
            f"optimiser {type(optimizer).__name__} returned {shown(result)} for {quoted(problem.expression)}:"
            " expected a path or a tree"
        )
    return problem.found_path(result, split_by(problem))


def _parameters(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return None


def _accepts(function: Callable[..., Any], positional: int) -> bool:
    signature = _parameters(function)
    if signature is None:
        return True
    try:
        signature.bind(*range(positional))
    except TypeError:
        return False
    return True


def _has_keyword(function: Callable[..., Any], name: str) -> bool:
    signature = _parameters(function)
    return signature is not None and name in signature.parameters


@contextmanager
def _max_time_set(problem: Problem, optimizer: Any, search: Callable[..., Any], keywords: dict) -> Iterator[None]:
    """Give ``max_time`` to the search by its keyword or its attribute; an error where it takes neither."""
    if problem.max_time is None:
        yield
    elif _has_keyword(search, "max_time"):
        keywords["max_time"] = problem.max_time
        yield
    elif hasattr(optimizer, "max_time"):
        before = optimizer.max_time
        optimizer.max_time = problem.max_time
        try:
            yield
        finally:
            optimizer.max_time = before
    else:
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise EngineValueError(
            f"max_time={problem.max_time!r} cannot bound optimiser {name}: it takes no max_time and has no such"
            " attribute"
        )
