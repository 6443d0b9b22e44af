"""Nested tuples, lists and dicts as a flat list of leaves and a hashable structure.

>>> leaves, tree = flatten({"b": 2, "a": (1, [3])})
>>> leaves, unflatten(tree, [10, 30, 20])
([1, 3, 2], {'b': 20, 'a': (10, [30])})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

LEAF = "leaf"


@dataclass(frozen=True)
class _Dict:
    """A dict: its keys sorted, with what is under them; ``order`` is how it lists them, which makes no difference."""

    keys: tuple[Any, ...]
    items: tuple[Any, ...]
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
        return _Dict(keys, tuple(_walk(value[key], leaves) for key in keys), tuple(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, tuple(_walk(item, leaves) for item in value)
    leaves.append(value)
    return LEAF


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """The value of which `flatten` gave this structure, with these leaves."""
    return _build(tree, iter(leaves))


def spelled(tree: Any) -> str:
    """The structure as a message names it, each leaf three dots.

    >>> spelled(flatten((1, {"a": [2, 3]}))[1])
    "(..., {'a': [..., ...]})"
    """
    return repr(unflatten(tree, repeat(...))).replace(repr(...), "...")


def _build(tree: Any, leaves: Iterator[Any]) -> Any:
    if tree == LEAF:
        return next(leaves)
    if isinstance(tree, _Dict):
        found = {key: _build(item, leaves) for key, item in zip(tree.keys, tree.items)}
        return {key: found[key] for key in tree.order}
    kind = tree[0]
    items = [_build(item, leaves) for item in tree[1]]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
