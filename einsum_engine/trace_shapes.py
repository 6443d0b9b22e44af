"""What NumPy's functions that make views do to traced arrays: reshape, transpose, squeeze, broadcast, windows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .trace import MISSED, Tracer, as_tracer, emit, fresh, implements
from .trace_memory import result_memory
from .views import View, broadcast_shapes, normal_axes, normal_axis


@implements(np.shape)
def _shape(a: Any) -> Any:
    return a.shape


@implements(np.ndim)
def _ndim(a: Any) -> Any:
    return a.ndim


@implements(np.size)
def _size(a: Any, axis: Any = None) -> Any:
    return a.size if axis is None else a.shape[axis]


def new_shape(shape: Any, size: int) -> tuple[int, ...]:
    """A shape with at most one -1 made complete for ``size`` elements."""
    given = tuple(operator.index(n) for n in (shape if isinstance(shape, (tuple, list, np.ndarray)) else (shape,)))
    sizes = list(given)
    holes = [i for i, n in enumerate(sizes) if n == -1]
    rest = prod(n for n in sizes if n != -1)
    if len(holes) == 1 and rest and size % rest == 0:
        sizes[holes[0]] = size // rest
    if min(sizes, default=0) < 0 or prod(sizes) != size:
        raise EngineValueError(f"cannot reshape {size} elements into shape {given}")
    return tuple(sizes)


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, copy: Any = None) -> Any:
    """A view where NumPy makes one. Where that view is none of the root, a copy that must not be written."""
    sizes = new_shape(shape, a.size)
    if order == "F":
        return reshape(a.T, sizes[::-1], copy=copy).T
    if order != "C":
        raise EngineTypeError(f"order={order!r} of a reshape is not supported in a traced function")
    memory, view = a.memory.reshape(sizes), a.part.reshape(sizes)
    if memory is None or copy:
        if copy is False:
            raise EngineValueError(f"shape {a.shape} cannot become {sizes} without a copy")
        return _copied(a, sizes)
    if view is not None and not a.scalar:
        return a.derive(lambda v: memory if v is a.memory else view)
    if a.scalar:
        return _copied(a, sizes)
    found = _copied(a, sizes)
    found.locked = MISSED
    a.root.locked = a.root.locked or MISSED
    return found


def _copied(a: Tracer, sizes: tuple[int, ...]) -> Tracer:
    found = fresh(emit("copy", a.read()))
    found.scalar = False
    return found.derive(lambda v: v.reshape(sizes))


def flattened(a: Tracer) -> Tracer:
    """All elements in C order, to be read: a view where there is one. Nothing has to share memory with it, so what a
    reshape that NumPy's caller could see must refuse is no matter here."""
    return reshape(a, -1, copy=True if a.part.reshape((a.size,)) is None else None)


@implements(np.ravel)
def _ravel(a: Any, order: str = "C") -> Any:
    if order == "F":
        return _ravel(a.T)
    flat = order == "C" and a.memory.is_contiguous(a.itemsize)
    return reshape(a, -1) if flat else reshape(a, -1, order, copy=True)


@implements(np.transpose, np.permute_dims)
def _transpose(a: Any, axes: Any = None) -> Any:
    return a.derive(lambda view: view.transpose(axes))


@implements(np.matrix_transpose)
def _matrix_transpose(x: Any) -> Any:
    return _swapaxes(x, -1, -2)


@implements(np.swapaxes)
def _swapaxes(a: Any, axis1: Any, axis2: Any) -> Any:
    order = list(range(a.ndim))
    one, two = normal_axis(axis1, a.ndim, a.shape), normal_axis(axis2, a.ndim, a.shape)
    order[one], order[two] = two, one
    return _transpose(a, order)


@implements(np.moveaxis)
def _moveaxis(a: Any, source: Any, destination: Any) -> Any:
    one, two = (x if isinstance(x, Sequence) else (x,) for x in (source, destination))
    one, two = normal_axes(one, a.ndim, a.shape), normal_axes(two, a.ndim, a.shape)
    order = [i for i in range(a.ndim) if i not in one]
    for place, axis in sorted(zip(two, one, strict=True)):
        order.insert(place, axis)
    return _transpose(a, order)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape that is given as NumPy takes one."""
    return tuple(operator.index(size) for size in several(shape))


def several(axis: Any) -> tuple[int, ...]:
    """One axis or several as a tuple."""
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


@implements(np.squeeze)
def _squeeze(a: Any, axis: Any = None) -> Any:
    return a.derive(lambda view: view.squeeze(None if axis is None else several(axis)))


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    """New axes of size 1."""
    x = unscalar(a)
    return x.derive(lambda view: view.expand(several(axis)))


def unscalar(a: Tracer) -> Tracer:
    """A scalar as an array of rank 0, of its own."""
    if not a.scalar:
        return a
    found = fresh(emit("copy", a.read()))
    found.scalar = False
    return found


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any) -> Any:
    """A view that cannot be written."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return unscalar(array).derive(lambda view: view.broadcast(sizes), locked="it is a broadcast view, read-only")


@implements(np.broadcast_arrays)
def _broadcast_arrays(*args: Any) -> Any:
    shape = broadcast_shapes(*(np.shape(x) for x in args))
    return tuple(broadcast_to(as_tracer(x), shape) for x in args)


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """A read-only view."""
    locked = "np.diagonal gives a read-only view"
    return a.derive(lambda view: view.diagonal(offset, axis1, axis2), locked=locked)


@implements(np.flip)
def _flip(m: Any, axis: Any = None) -> Any:
    axes = range(m.ndim) if axis is None else normal_axes(several(axis), m.ndim, m.shape)
    return m[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(m.ndim))]


@implements(np.lib.stride_tricks.sliding_window_view)
def _sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    if writeable:
        raise EngineValueError("windows overlap: they cannot be written")
    sizes = several(window_shape)
    axes = tuple(range(x.ndim)) if axis is None else several(axis)
    ones = (1,) * len(sizes)
    return x.derive(lambda view: view.windows(axes, sizes, ones, ones), locked="windows are a read-only view")


@implements(np.copy)
def _copy(a: Any, order: str = "K") -> Any:
    return unscalar(copied(a, order))


def copied(a: Tracer, order: str | None = "C") -> Tracer:
    """Memory of its own, in the order that NumPy would choose."""
    found = fresh(emit("copy", a.read()), laid_out(order, a.shape, a.itemsize, a))
    found.scalar = a.scalar
    return found


def laid_out(order: str | None, shape: tuple[int, ...], item: int, like: Tracer | None = None) -> View:
    """How NumPy lays out a new array in this order; "K" (or None) and "A" go by the array that it is ``like``."""
    if order not in ("C", "F", "A", "K", None):
        raise EngineValueError(f"order={order!r}: 'C', 'F', 'A' or 'K'")
    if like is not None and order in ("K", None):
        kept = [View(shape, like.memory.strides)] if len(shape) == like.ndim else []
        return result_memory(shape, item, kept)
    fortran = order == "F" or (order == "A" and like is not None and only_fortran(like))
    return View.whole(shape[::-1], item).transpose(None) if fortran else View.whole(shape, item)


def only_fortran(a: Tracer) -> bool:
    """Whether memory is in Fortran order, and not in C order as well."""
    turned = a.memory.transpose(None)
    return turned.is_contiguous(a.itemsize) and not a.memory.is_contiguous(a.itemsize)
