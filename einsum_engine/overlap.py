"""Arguments of a call that share memory: who does, and the memory around them as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import EngineValueError
from .views import AtAddress, View


def overlapping(arrays: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions of arrays that share memory, each sorted, by first position."""
    group = list(range(len(arrays)))
    for one in range(len(arrays)):
        for two in range(one + 1, len(arrays)):
            if (
                isinstance(arrays[one], np.ndarray)
                and isinstance(arrays[two], np.ndarray)
                and _share(arrays[one], arrays[two])
            ):
                old, new = group[two], group[one]
                group = [new if number == old else number for number in group]
    found: dict[int, list[int]] = {}
    for at, number in enumerate(group):
        found.setdefault(number, []).append(at)
    return tuple(tuple(members) for members in found.values())


def _share(one: np.ndarray, two: np.ndarray) -> bool:
    if not np.may_share_memory(one, two):
        return False
    try:
        return bool(np.shares_memory(one, two, max_work=100_000))
    except np.exceptions.TooHardError:
        return True


def repeats(array: Any) -> bool:
    """Whether elements of an array that can be written are one element of memory, as `as_strided` makes them."""
    if not isinstance(array, np.ndarray) or array.flags.c_contiguous or not array.flags.writeable:
        return False
    item = array.itemsize
    whole = all(stride % item == 0 for stride in array.strides)
    return whole and not View(array.shape, tuple(stride // item for stride in array.strides)).injective()


def _turned(array: Any) -> bool:
    """Whether views of the memory of an array may be none of its elements in C order."""
    if not isinstance(array, np.ndarray) or array.ndim < 2 or array.flags.c_contiguous:
        return False
    return all(stride % array.itemsize == 0 for stride in array.strides)


def is_alone(arrays: Sequence[Any], group: tuple[int, ...], ordered: bool = False) -> bool:
    """Whether the only array of a group is an input by itself: neither others nor its own elements share its memory.

    ``ordered``: nor would views of its memory be lost.
    """
    return len(group) == 1 and not repeats(arrays[group[0]]) and not (ordered and _turned(arrays[group[0]]))


def span_of(arrays: Sequence[Any], group: tuple[int, ...]) -> tuple[int, int, tuple[View, ...]]:
    """(lowest address, number of elements, views) of the memory that holds all arrays of a group."""
    members = [np.asarray(arrays[at]) for at in group]
    bounds = [np.lib.array_utils.byte_bounds(member) for member in members]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    item, views = members[0].itemsize, []
    for at, member in zip(group, members):
        offset = member.__array_interface__["data"][0] - low
        if member.dtype != members[0].dtype or offset % item or any(s % item for s in member.strides):
            number = max(1, group.index(at))
            first, other = members[0], members[number]
            raise EngineValueError(
                f"array arguments {group[0]} and {group[number]} share memory, but not as elements of one array "
                f"(dtypes {first.dtype} and {other.dtype}, strides of {first.strides} and {other.strides} bytes), and "
                "the function writes its arguments: pass a copy"
            )
        views.append(View(member.shape, tuple(s // item for s in member.strides), offset // item))
    return low, (high - low) // item, tuple(views)


def members_of(arrays: list[Any], group: tuple[int, ...], ordered: bool) -> tuple[tuple[int, ...], list[View]]:
    """Shape of the root in which the arrays of a group lie, and their views."""
    if is_alone(arrays, group, ordered):
        shape = np.shape(arrays[group[0]])
        return shape, [View.whole(shape)]
    _, size, views = span_of(arrays, group)
    return (size,), list(views)


def memory_of(arrays: list[Any], group: tuple[int, ...]) -> np.ndarray:
    """The memory around the arrays of a group as one array."""
    low, size, _ = span_of(arrays, group)
    members = [arrays[at] for at in group]
    return at_address(members, low, (size,), (members[0].itemsize,))


def at_address(owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Memory of ``owner`` (an array, or several) with another shape and other strides; keeps the owner alive."""
    array = owner[0] if isinstance(owner, list) else owner
    interface = {**array.__array_interface__, "data": (address, not array.flags.writeable)}
    interface |= {"shape": shape, "strides": strides}
    found = np.asarray(AtAddress(interface, owner))
    found.dtype = array.dtype  # the interface has no word for bfloat16
    return found
