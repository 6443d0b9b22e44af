"""Nested tuples, lists and dicts as a flat list of leaves and a hashable structure.

>>> leaves, tree = flatten({"b": 2, "a": (1, [3])})
>>> leaves, unflatten(tree, [10, 30, 20])
([1, 3, 2], {'a': (10, [30]), 'b': 20})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

LEAF = "leaf"


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
        return kind, keys, tuple(_walk(value[key], leaves) for key in keys)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, tuple(_walk(item, leaves) for item in value)
    leaves.append(value)
    return LEAF


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """The value of which `flatten` gave this structure, with these leaves."""
    return _build(tree, iter(leaves))


def _build(tree: Any, leaves: Iterator[Any]) -> Any:
    if tree == LEAF:
        return next(leaves)
    kind = tree[0]
    if kind is dict:
        return {key: _build(item, leaves) for key, item in zip(tree[1], tree[2])}
    items = [_build(item, leaves) for item in tree[1]]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
