"""View tuples (shape, strides, offset) over the elements of a root that lies in C order.

A view of a view is a view of the root: every operation here composes. Strides and offset count elements of the root.

>>> a = View.whole((3, 4, 5))
>>> print(a.index((slice(None), slice(1, 4, 2), slice(None))))
([3,2,5],[20,10,1],5)
>>> a.index(1).index(2) == a.index((1, 2))
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np

from .errors import EngineAxisError, EngineIndexError, EngineTypeError, EngineValueError

EXACT_WORK = 1_000_000  # steps of the exact overlap test, after which two views count as overlapping
EXACT_SIZE = 1 << 16  # elements up to which a view with unusual strides is searched for repeated elements


@lru_cache(maxsize=2048)
def dense_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Strides in C order, ``item`` that of the last axis; every access is compared with those of its root.

    >>> dense_strides((2, 3), 8)
    (24, 8)
    """
    strides, step = [], item
    for size in reversed(shape):
        strides.append(step)
        step *= int(size)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """Element ``i`` of the view is element ``offset + sum(i * strides)`` of the root."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise EngineValueError(f"a view of shape {self.shape} needs as many strides, not {self.strides}")

    @staticmethod
    def whole(shape: Iterable[int], item: int = 1) -> View:
        """The root itself; ``item`` is the stride of its last axis."""
        return _whole(tuple(shape), item)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        shape, strides = (",".join(map(str, part)) for part in (self.shape, self.strides))
        return f"([{shape}],[{strides}],{self.offset})"

    # -- what makes a view of a view ---------------------------------------------------------------------------------
    def index(self, key: Any) -> View:
        """Basic indexing: integers, slices with any steps, None, Ellipsis.

        Raises `EngineIndexError` naming axis, index and shape.

        >>> View.whole((5,)).index(slice(None, None, -2))
        View(shape=(3,), strides=(-2,), offset=4)
        """
        shape, strides, offset, axis = [], [], self.offset, 0
        for item in self._full_key(key if isinstance(key, tuple) else (key,)):
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[axis], self.strides[axis]
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                count = len(range(start, stop, step))
                shape.append(count)
                strides.append(stride * step)
                offset += stride * start if count else 0
            else:
                offset += stride * _place(item, size, axis, self.shape)
            axis += 1
        return View(tuple(shape), tuple(strides), offset)

    def _full_key(self, key: tuple[Any, ...]) -> list[Any]:
        used = sum(item is not None and item is not Ellipsis for item in key)
        if used > self.ndim:
            raise EngineIndexError(f"{used} indices for {self.ndim} axes of shape {self.shape}")
        dots = [at for at, item in enumerate(key) if item is Ellipsis]
        if len(dots) > 1:
            raise EngineIndexError("an index can only have a single ellipsis ('...')")
        at = dots[0] if dots else len(key)
        return [*key[:at], *[slice(None)] * (self.ndim - used), *key[at + 1 :]]

    def transpose(self, axes: Sequence[int] | None = None) -> View:
        """The axes in another order; reversed without ``axes``."""
        order = tuple(range(self.ndim))[::-1] if axes is None else normal_axes(axes, self.ndim, self.shape)
        if len(order) != self.ndim:
            raise EngineValueError(f"axes {tuple(axes or ())} do not name the {self.ndim} axes of shape {self.shape}")
        return View(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def expand(self, axes: Sequence[int]) -> View:
        """New axes of size 1, at these places of the result."""
        ndim = self.ndim + len(axes)
        places = normal_axes(axes, ndim, self.shape)
        rest = iter(zip(self.shape, self.strides))
        pairs = [(1, 0) if i in places else next(rest) for i in range(ndim)]
        return View(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), self.offset)

    def squeeze(self, axes: Sequence[int] | None = None) -> View:
        """Without the axes of size 1, or without those named, which must have size 1."""
        if axes is None:
            axes = [i for i, n in enumerate(self.shape) if n == 1]
        gone = normal_axes(axes, self.ndim, self.shape)
        for axis in gone:
            if self.shape[axis] != 1:
                raise EngineValueError(f"axis {axis} of shape {self.shape} has size {self.shape[axis]}, not 1")
        keep = [i for i in range(self.ndim) if i not in gone]
        return View(tuple(self.shape[i] for i in keep), tuple(self.strides[i] for i in keep), self.offset)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> View:
        """The diagonal of two axes as a new last axis, as `np.diagonal`."""
        one, two = normal_axes((axis1, axis2), self.ndim, self.shape)
        rows, columns = self.shape[one], self.shape[two]
        down, right = max(-offset, 0), max(offset, 0)
        count = max(min(rows - down, columns - right), 0)
        start = down * self.strides[one] + right * self.strides[two] if count else 0
        keep = [i for i in range(self.ndim) if i not in (one, two)]
        shape = (*(self.shape[i] for i in keep), count)
        strides = (*(self.strides[i] for i in keep), self.strides[one] + self.strides[two])
        return View(shape, strides, self.offset + start)

    def broadcast(self, shape: Sequence[int]) -> View:
        """Stride 0 along new axes and along axes of size 1 that become longer."""
        shape, extra = tuple(shape), len(shape) - self.ndim
        own = self.shape
        if shape == own:
            return self
        if extra < 0 or any(n not in (1, m) for n, m in zip(own, shape[extra:])):
            raise EngineValueError(f"shape {own} does not broadcast to {shape}")
        tail = [0 if n == 1 != m else s for n, m, s in zip(own, shape[extra:], self.strides)]
        return View(shape, (*(0,) * extra, *tail), self.offset)

    def windows(
        self, axes: Sequence[int], sizes: Sequence[int], steps: Sequence[int], dilations: Sequence[int]
    ) -> View:
        """Windows along ``axes``: those axes count windows, new last axes run through one.

        >>> print(View.whole((8,)).windows([0], [3], [2], [1]))
        ([3,3],[2,1],0)
        """
        shape, strides, inner = list(self.shape), list(self.strides), []
        axes = normal_axes(axes, self.ndim, self.shape)
        for axis, size, step, dilation in zip(axes, sizes, steps, dilations, strict=True):
            span = (size - 1) * dilation + 1
            if size < 1 or step < 1 or dilation < 1 or span > shape[axis]:
                raise EngineValueError(
                    f"windows of {size} elements {dilation} apart, every {step}, do not fit axis {axis} of {self.shape}"
                )
            inner.append((size, strides[axis] * dilation))
            shape[axis] = (shape[axis] - span) // step + 1
            strides[axis] *= step
        shape += [size for size, _ in inner]
        return View(tuple(shape), (*strides, *(stride for _, stride in inner)), self.offset)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same elements in C order under another shape of the same size; None where that is no view."""
        if prod(shape) != self.size:
            raise EngineValueError(f"shape {self.shape} has {self.size} elements, shape {tuple(shape)} {prod(shape)}")
        return self.then(View.whole(shape))

    def then(self, inner: View) -> View | None:
        """``inner``, a view of this view's elements in C order, as a view of the root; None where it is none.

        Each stride of ``inner`` moves by a fixed step along every axis of this view, or somewhere it carries from
        one axis into the next, and then the places have no constant stride.

        >>> View.whole((4, 6)).transpose().then(View((3,), (4,), 1))
        View(shape=(3,), strides=(1,), offset=6)
        """
        if inner.size == 0:
            return View(inner.shape, (0,) * inner.ndim, self.offset)
        axes = self._merged()
        sizes = [size for size, _ in axes]
        start = _digits(inner.offset, sizes)
        low, high, strides = list(start), list(start), []
        for size, stride in zip(inner.shape, inner.strides):
            after = _digits(inner.offset + stride, sizes) if size > 1 else start
            step = [a - b for a, b in zip(after, start)]
            for axis, move in enumerate(step):
                low[axis] += min(move * (size - 1), 0)
                high[axis] += max(move * (size - 1), 0)
            strides.append(sum(move * stride for move, (_, stride) in zip(step, axes)))
        if any(a < 0 for a in low) or any(b >= size for b, size in zip(high, sizes)):
            return None
        return View(inner.shape, tuple(strides), self.offset + sum(d * stride for d, (_, stride) in zip(start, axes)))

    def _merged(self) -> list[tuple[int, int]]:
        """(size, stride) of the axes, neighbours that form one linear axis merged."""
        axes: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides):
            if size == 1:
                continue
            if axes and axes[-1][1] == size * stride:
                axes[-1] = (axes[-1][0] * size, stride)
            else:
                axes.append((size, stride))
        return axes or [(1, 0)]

    # -- questions ---------------------------------------------------------------------------------------------------
    def bounds(self) -> tuple[int, int]:
        """The smallest offset of an element and the largest, of a view that is not empty."""
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        return self.offset + sum(min(s, 0) for s in spans), self.offset + sum(max(s, 0) for s in spans)

    def fits(self, size: int) -> bool:
        """Whether every element lies in a root of ``size`` elements."""
        if self.size == 0:
            return True
        low, high = self.bounds()
        return low >= 0 and high < size

    def is_whole(self, shape: Sequence[int]) -> bool:
        """Whether this is a root of that shape, in its order."""
        return self.shape == tuple(shape) and self.is_contiguous() and self.offset == 0

    def is_contiguous(self, item: int = 1) -> bool:
        """Whether the elements are adjacent and in C order, strides being counted in units of ``1 / item``."""
        dense = dense_strides(self.shape, item)
        if self.strides == dense or self.size == 0:
            return True
        return all([n == 1 or s == t for n, s, t in zip(self.shape, self.strides, dense)])

    def offsets(self) -> np.ndarray:
        """Offset of every element, int64, with the shape of the view."""
        found = np.full(self.shape, self.offset, dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides)):
            table = np.arange(size, dtype=np.int64) * stride
            found += table.reshape(-1, *(1,) * (self.ndim - axis - 1))
        return found

    def injective(self) -> bool:
        """Whether no two indices name one element.

        Exact for views that slices, transposes, diagonals and broadcasts make, and for any of up to `EXACT_SIZE`
        elements; a larger one whose strides interleave counts as not injective.
        """
        reach = 0
        for stride, size in sorted((abs(s), n) for n, s in zip(self.shape, self.strides) if n > 1):
            if stride <= reach:
                return self.size == 0 or (self.size <= EXACT_SIZE and np.unique(self.offsets()).size == self.size)
            reach += stride * (size - 1)
        return True

    def covers(self, size: int) -> bool:
        """Whether every element of a root of ``size`` elements is in the view (once)."""
        return self.size == size and self.fits(size) and self.injective()

    def overlaps(self, other: View) -> bool:
        """Whether two views of one root share an element.

        Solved exactly, in integers (NumPy's bounded Diophantine solver); conservative, True, only where that takes
        more than `EXACT_WORK` steps.

        >>> a = View.whole((10,))
        >>> a.index(slice(0, None, 2)).overlaps(a.index(slice(1, None, 2)))
        False
        """
        if self.size == 0 or other.size == 0:
            return False
        if self.offset == other.offset:
            return True
        (low, high), (first, last) = self.bounds(), other.bounds()
        if high < first or last < low:
            return False
        try:
            return bool(np.shares_memory(_fake(self), _fake(other), max_work=EXACT_WORK))
        except np.exceptions.TooHardError:
            return True

    def within(self, outer: View) -> View | None:
        """This view as one of the elements of ``outer`` in C order, so that ``outer.then`` of it is this view again.

        None where an element is not in ``outer`` or the places there have no constant strides; for an ``outer`` whose
        strides interleave, sometimes None although there is one.

        >>> View((2,), (4,), 3).within(View((2, 4), (8, 1), 1))
        >>> View((2,), (2,), 9).within(View((2, 4), (8, 1), 1))
        View(shape=(2,), strides=(2,), offset=4)
        """
        if self.size == 0:
            return View(self.shape, (0,) * self.ndim, 0)
        axes = outer._merged()
        start = _solved(axes, self.offset - outer.offset)
        if outer.size == 0 or start is None:
            return None
        low, high, strides = list(start), list(start), []
        steps = View.whole(size for size, _ in axes).strides
        for size, stride in zip(self.shape, self.strides):
            after = start if size == 1 else _solved(axes, self.offset + stride - outer.offset)
            if after is None:
                return None
            move = [a - b for a, b in zip(after, start)]
            for axis, by in enumerate(move):
                low[axis] += min(by * (size - 1), 0)
                high[axis] += max(by * (size - 1), 0)
            strides.append(sum(by * step for by, step in zip(move, steps)))
        if any(a < 0 for a in low) or any(b >= size for b, (size, _) in zip(high, axes)):
            return None
        return View(self.shape, tuple(strides), sum(d * step for d, step in zip(start, steps)))

    def contains(self, other: View) -> bool:
        """Whether every element of ``other`` is one of this view.

        Exact where `within` finds a view and up to `EXACT_SIZE` elements; beyond, no.
        """
        if other.size == 0 or other.within(self) is not None:
            return True
        if not self.overlaps(other) or max(self.size, other.size) > EXACT_SIZE:
            return False
        return bool(np.isin(other.offsets(), self.offsets()).all())

    def canonical(self) -> View:
        """The same elements under the same indices; equal for two views of which that holds."""
        if self.size == 0:
            return View(self.shape, (0,) * self.ndim, 0)
        if 1 not in self.shape:
            return self
        return View(self.shape, tuple(0 if n == 1 else s for n, s in zip(self.shape, self.strides)), self.offset)

    def of(self, array: np.ndarray) -> np.ndarray:
        """The view of a NumPy array whose elements lie in C order: shares its memory."""
        if not array.flags.c_contiguous:
            raise EngineValueError(f"a view is over elements in C order; strides are {array.strides}")
        item = array.dtype.itemsize
        if self.size == 0:
            return np.empty(self.shape, array.dtype)
        flat = array.reshape(-1)
        shifted = flat[self.offset :] if self.offset else flat
        return np.lib.stride_tricks.as_strided(shifted, self.shape, [s * item for s in self.strides])


def _fake(view: View) -> np.ndarray:
    """An array of bytes with these strides at an address that is never read."""
    interface = {
        "data": ((1 << 46) + view.offset, True),
        "shape": view.shape,
        "strides": view.strides,
        "typestr": "|u1",
        "version": 3,
    }
    return np.asarray(AtAddress(interface))


class AtAddress:
    """What NumPy makes an array of, which keeps ``owner``. No class is made for each: classes are parts of cycles, and
    would keep it until these are looked for, which large arrays give no reason for."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: Any = None) -> None:
        self.__array_interface__, self.owner = interface, owner


def _solved(axes: list[tuple[int, int]], number: int) -> list[int] | None:
    """Indices of (size, stride) axes at which the offset is ``number``: the greatest strides take what they can."""
    digits = [0] * len(axes)
    rest = number - sum((size - 1) * stride for size, stride in axes if stride < 0)
    for axis in sorted(range(len(axes)), key=lambda i: -abs(axes[i][1])):
        size, stride = axes[axis]
        if stride == 0:
            if size > 1:
                return None
            continue
        digit = min(rest // abs(stride), size - 1)
        if digit < 0:
            return None
        rest -= digit * abs(stride)
        digits[axis] = digit if stride > 0 else size - 1 - digit
    return None if rest else digits


def _digits(number: int, sizes: list[int]) -> list[int]:
    """``number`` in mixed radix; the first digit takes what is beyond, negative numbers too."""
    digits = []
    for size in reversed(sizes[1:]):
        number, digit = divmod(number, size)
        digits.append(digit)
    return [number, *reversed(digits)]


def _place(item: Any, size: int, axis: int, shape: tuple[int, ...]) -> int:
    try:
        number = as_int(item)
    except TypeError:
        raise EngineTypeError(f"index {item!r} of axis {axis} is no integer, slice, None or ellipsis") from None
    if not -size <= number < size:
        raise EngineIndexError(f"index {number} is out of bounds for axis {axis} with size {size} of shape {shape}")
    return number % size


@lru_cache(maxsize=2048)
def _whole(shape: tuple[int, ...], item: int) -> View:
    """`View.whole`: one object for all that are equal, which are many."""
    return View(tuple(map(int, shape)), dense_strides(shape, item), 0)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """`np.broadcast_shapes`, which takes at most 32 axes, of shapes of any rank.

    >>> broadcast_shapes((3, 1), (), (1, 4), (0, 1, 1))
    (0, 3, 4)
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if found[axis] == 1:
                found[axis] = size
            elif size not in (1, found[axis]):
                raise EngineValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(found)


def normal_axis(axis: Any, ndim: int, shape: tuple[int, ...]) -> int:
    """``axis`` in 0 .. ndim - 1, or `EngineAxisError`."""
    number = as_int(axis)
    if not -ndim <= number < ndim:
        raise EngineAxisError(f"axis {number} is out of bounds for {ndim} axes, shape {shape}")
    return number % ndim


def normal_axes(axes: Sequence[int], ndim: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = tuple(normal_axis(axis, ndim, shape) for axis in axes)
    if len(set(found)) != len(found):
        raise EngineValueError(f"axes {tuple(axes)} of shape {shape} name one axis twice")
    return found
