"""Nested tuples, lists and dicts as a flat list of leaves and a hashable structure.

>>> leaves, tree = flatten({"b": 2, "a": (1, [3])})
>>> leaves, unflatten(tree, [10, 30, 20])
([1, 3, 2], {'b': 20, 'a': (10, [30])})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

LEAF = "leaf"


@dataclass(frozen=True)
class _Dict:
    """A dict: its keys sorted, with what is under them; ``order`` is how it lists them, which makes no difference.
    ``exact``: the keys, so that 1 and True differ."""

    exact: tuple[Any, ...]
    items: tuple[Any, ...]
    keys: tuple[Any, ...] = field(compare=False)
    order: tuple[Any, ...] = field(compare=False)


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves, dicts by sorted keys, and the structure around them."""
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def _walk(value: Any, leaves: list[Any]) -> Any:
    kind = type(value)
    if kind in (tuple, list):
        return kind, tuple(_walk(item, leaves) for item in value)
    if kind is dict:
        keys = tuple(sorted(value, key=repr))
        return _Dict(exactly(keys), tuple(_walk(value[key], leaves) for key in keys), keys, tuple(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, tuple(_walk(item, leaves) for item in value)
    leaves.append(value)
    return LEAF


def exactly(value: Any) -> Any:
    """A key that is equal for equal values of the same types only, all the way down; what is in other classes than
    those of Python's numbers and containers, and of dataclasses, is compared as they compare it.

    >>> exactly((1, frozenset([2]))) == exactly((True, frozenset([2]))), (1,) == (True,)
    (False, True)
    """
    kind = type(value)
    if kind in (int, bool, float, complex, slice):
        return kind, repr(value)  # by which 0.0 and -0.0 differ, and NaN is one value
    if isinstance(value, (tuple, frozenset)):
        return kind, (frozenset if isinstance(value, frozenset) else tuple)(map(exactly, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, part.name) for part in fields(value) if part.compare)
        return kind, value, tuple(exactly(part) for part in parts if getattr(type(part), "__hash__", None))
    return kind, value


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """The value of which `flatten` gave this structure, with these leaves."""
    return _build(tree, iter(leaves))


def _build(tree: Any, leaves: Iterator[Any]) -> Any:
    if tree == LEAF:
        return next(leaves)
    if isinstance(tree, _Dict):
        found = {key: _build(item, leaves) for key, item in zip(tree.keys, tree.items)}
        return {key: found[key] for key in tree.order}
    kind = tree[0]
    items = [_build(item, leaves) for item in tree[1]]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
