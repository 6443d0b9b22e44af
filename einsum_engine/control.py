"""`cond` and `while_loop`: control flow that depends on data, traced or run at once.

>>> import numpy as np
>>> import einsum_engine as engine
>>> engine.while_loop(lambda i: i < 100, lambda i: i * 2, np.int64(3))
np.int64(192)
>>> @engine.jit
... def safe_log(x):
...     return engine.cond(np.all(x > 0), lambda x: np.log(x), lambda x: np.zeros_like(x), x)
>>> safe_log(np.array([1.0, -1.0]))
array([0., 0.])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import numpy as np

from . import trace_index as trace_index
from . import trace_contract as trace_contract
from . import trace_elements as trace_elements
from . import trace_grids as trace_grids
from . import trace_methods as trace_methods
from . import trace_products as trace_products
from . import trace_sums as trace_sums
from .avals import Aval
from .errors import EngineTypeError, EngineValueError
from .ir import Atom, Program
from .trace import Scope, Root, cast_atom, current, emit_all, scoped, fresh, lift, tracing
from .trace_lines import located
from .trees import flatten, unflatten


def cond(predicate: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any) -> Any:
    """``true(*operands)`` where the predicate holds, else ``false(*operands)``; only that branch is run.

    Traced, both must return the same structure, shapes and dtypes; they may use and write arrays around them, and
    what they return, if it is not None, is a copy.
    Raises, traced, `EngineTypeError` for another structure or a predicate that is no single truth value,
    `EngineValueError` for another shape or dtype; not traced, what ``if predicate`` raises.

    >>> cond(2 > 1, lambda x: x + 1, lambda x: x - 1, 10)
    11
    """
    if not tracing():
        return true(*operands) if predicate else false(*operands)
    with located("cond", predicate):
        flag = cast_atom(lift(predicate), np.dtype(bool))
        scopes = [_branch(function, operands) for function in (true, false)]
        (one, tree), (two, other) = scopes[0][1:], scopes[1][1:]
        if tree != other:
            raise EngineTypeError(f"the branches return different structures: {_spelled(tree)} and {_spelled(other)}")
        _check_same("the branches return", "and", [x.aval for x in one], [x.aval for x in two])
        roots = list(dict.fromkeys(root for scope, *_ in scopes for root in scope.captured))
        written = list(dict.fromkeys(root for scope, *_ in scopes for root in scope.mutated if root in roots))
        programs = [_program(scope, [], roots, [*atoms, *_versions(scope, written)]) for scope, atoms, _ in scopes]
        outer = current()
        inputs = [flag, *(outer.version(root) for root in roots)]
        results = emit_all("cond", *inputs, true=programs[0], false=programs[1])
        _take_back(outer, written, results[len(one) :])
        return _whole(tree, [fresh(var) for var in results[: len(one)]])


def _branch(function: Callable[..., Any], operands: tuple[Any, ...]) -> tuple[Scope, list[Atom], Any]:
    """A scope in which ``function`` ran, the values it returned, and their structure."""
    with scoped(Scope(current())) as scope:
        leaves, tree = _parts(function(*operands))
        return scope, [lift(leaf) for leaf in leaves], tree


def _parts(value: Any) -> tuple[list[Any], Any]:
    """The arrays in what a branch or body returned, and the structure around them, of which None is part."""
    leaves, tree = flatten(value)
    blanks = tuple(leaf is None for leaf in leaves)
    return [leaf for leaf in leaves if leaf is not None], (tree, blanks)


def _whole(structure: Any, parts: Iterable[Any]) -> Any:
    """The value that `_parts` took apart, with other arrays."""
    tree, blanks = structure
    rest = iter(parts)
    return unflatten(tree, [None if blank else next(rest) for blank in blanks])


def _spelled(structure: Any) -> str:
    """The structure as a message names it, each array three dots.

    >>> _spelled(_parts((1, {"a": [2, None]}))[1])
    "(..., {'a': [..., None]})"
    """
    return repr(_whole(structure, repeat(...))).replace(repr(...), "...")


def _versions(scope: Scope, roots: list[Root]) -> list[Atom]:
    with scoped(scope):
        return [scope.version(root) for root in roots]


def _program(scope: Scope, first: list[Any], roots: list[Root], outputs: list[Atom]) -> Program:
    """The program of a scope that takes ``first`` and then every root, used or not."""
    unused = [root for root in roots if root not in scope.captured]
    for root in unused:
        scope.captured[root] = scope.builder.input(Aval(root.shape, root.dtype))
    return scope.builder.finish([*first, *(scope.captured[root] for root in roots)], outputs)


def _take_back(outer: Scope, roots: list[Root], versions: tuple[Atom, ...]) -> None:
    """Roots that a region has written hold what it leaves."""
    for root, version in zip(roots, versions, strict=True):
        outer.update(root, version)


def _check_same(what: str, word: str, one: list[Aval], two: list[Aval]) -> None:
    if one != two:
        raise EngineValueError(f"{what} ({', '.join(map(str, one))}) {word} ({', '.join(map(str, two))})")


def while_loop(test: Callable[..., Any], body: Callable[..., Any], state: Any) -> Any:
    """``state`` after ``state = body(state)`` for as long as ``test(state)`` holds.

    ``state`` is an array or nested tuples, lists and dicts of arrays, which are copied first. Traced, the body must
    return the same structure, shapes and dtypes; it may write arrays around it in place, the test may not.
    Raises, traced, `EngineTypeError` for another structure, `EngineValueError` for another shape or dtype.

    >>> while_loop(lambda x: x < 100, lambda x: x * 2, 7)
    112
    """
    if not tracing():
        leaves, tree = flatten(state)
        state = unflatten(tree, [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])
        while test(state):
            state = body(state)
        return state
    leaves, tree = _parts(state)
    with located("while_loop", *leaves):
        start = [lift(leaf) for leaf in leaves]
        outer = current()
        tested, tested_first, (flag,), _ = _region(test, start, tree)
        bodied, bodied_first, made, made_tree = _region(body, start, tree)
        if any(root in tested.captured for root in tested.mutated):
            raise EngineValueError("the test writes an array of the function around it")
        if made_tree != tree:
            raise EngineTypeError(f"the body takes {_spelled(tree)} and returns another structure: {_spelled(made_tree)}")
        _check_same("the body turns", "into", [x.aval for x in start], [x.aval for x in made])
        written = [root for root in bodied.mutated if root in bodied.captured]
        both = dict.fromkeys([*written, *bodied.captured, *tested.captured])
        roots = list(both)
        one = _program(tested, tested_first, roots, [_truth(tested, flag)])
        two = _program(bodied, bodied_first, roots, [*made, *_versions(bodied, written)])
        inputs = [*start, *(outer.version(root) for root in roots)]
        carried = len(start) + len(written)
        results = emit_all("while", *inputs, test=one, body=two, carried=carried)
        _take_back(outer, written, results[len(start) :])
        return _whole(tree, [fresh(var) for var in results[: len(start)]])


def _truth(scope: Scope, atom: Atom) -> Atom:
    if atom.shape:
        raise EngineTypeError(f"the test returns {atom.aval}, not one truth value: reduce it with np.any or np.all")
    with scoped(scope):
        return cast_atom(atom, np.dtype(bool))


def _region(function: Callable[..., Any], start: list[Atom], tree: Any) -> tuple[Scope, list[Any], list[Atom], Any]:
    """A scope in which ``function`` ran on a new state, the inputs of that state, and what it returned."""
    with scoped(Scope(current())) as scope:
        first = [scope.builder.input(atom.aval) for atom in start]
        leaves, made_tree = _parts(function(_whole(tree, [fresh(var) for var in first])))
        return scope, first, [lift(leaf) for leaf in leaves], made_tree
