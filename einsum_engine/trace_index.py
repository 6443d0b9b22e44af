"""Indexing of traced arrays: views, elements at traced places, index arrays, masks."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .errors import EngineIndexError, EngineTypeError, EngineValueError
from .ir import Atom, Literal
from .op_rules import INDEX
from .trace import HANDLERS, Picked, Tracer, as_tracer, cast_atom, current, emit, fresh, lift, memories, whole_root
from .trace_masked import HINT, Masked, put, take
from .trace_memory import result_memory
from .trace_shapes import unscalar
from .trace_store import write_where
from .views import View, broadcast_shapes


def get_item(array: Tracer, key: Any) -> Any:
    """``array[key]``."""
    if isinstance(key, Tracer) and key.dtype == bool and key.ndim and key.shape == array.shape[: key.ndim]:
        return take(array, key)
    parts = _parts(array, key)
    if not _advanced(parts):
        if array.scalar and parts:  # NumPy makes an array of the scalar first
            array = unscalar(array)
        found = array.derive(lambda view: view.index(tuple(parts)))
        if all(isinstance(part, int) for part in parts) and not found.shape:
            return fresh(found.read())  # NumPy gives a scalar: a copy of the element as it is now
        return found
    placed = _place(array, parts)
    dots = any(part is Ellipsis for part in parts)
    if placed.picks_one:
        picked = Picked(placed.view, placed.indices, placed.axes)
        return whole_root(picked, placed.view.locked) if picked.shape or dots else fresh(current().version(picked))
    result = fresh(emit("gather", placed.view.read(), *placed.indices, axes=placed.axes), _gathered(placed, parts))
    if dots:
        result.scalar = False
    return result.derive(placed.to_numpy) if placed.front else result


def set_item(array: Tracer, key: Any, value: Any) -> None:
    """``array[key] = value``."""
    if isinstance(key, Tracer) and key.dtype == bool:
        return put(array, key, value) if isinstance(value, Masked) else _set_masked(array, key, value)
    parts = _parts(array, key)
    if _advanced(parts):
        if not _is_written_back(array, parts, value):
            scatter_into(array, key, value)
        return
    target = array.derive(lambda view: view.index(tuple(parts)))
    if isinstance(value, Tracer) and value.root is target.root and value.part == target.part:
        return  # `a[i] += x` has written already, and now stores the view in itself
    target.locked = array.locked
    if not target.shape and not array.scalar:
        target.scalar = False
    target.write(value)


def scatter_into(array: Tracer, key: Any, value: Any, add: bool = False) -> None:
    """Write ``value`` to, or add it to, the elements at index arrays; of equal places the last counts, or all."""
    array.check_writable()
    parts = _parts(array, key)
    if not _advanced(parts):
        target = array.derive(lambda view: view.index(tuple(parts)))
        target.scalar = False
        return target.write(np.add(target, value) if add else value)
    placed = _place(array, parts)
    view = placed.view
    view.check_distinct()
    shape = broadcast_shapes(*(atom.shape for atom in placed.indices))
    rest = tuple(n for i, n in enumerate(view.shape) if i not in placed.axes)
    source = as_tracer(value) if not isinstance(value, (int, float, complex)) else fresh(lift(value, array.dtype))
    source = source.astype(array.dtype, copy=False)
    while not add and source.ndim > len(shape + rest) and source.shape[0] == 1:  # as `Tracer.write`
        source = source.derive(lambda v: v.squeeze([0]))
    if placed.front and source.ndim:
        numpy_shape = placed.to_numpy(View.whole(shape + rest)).shape
        if source.ndim > len(numpy_shape):
            raise EngineValueError(f"a value of shape {source.shape} does not broadcast to shape {numpy_shape}")
        source = source.derive(lambda v: placed.from_numpy(v.broadcast(numpy_shape)))
    op = "scatter_add" if add else "scatter"
    view.write_atom(emit(op, view.read(), source.read(), *placed.indices, axes=placed.axes))


def _set_masked(array: Tracer, mask: Tracer, value: Any) -> None:
    if mask.shape != array.shape[: mask.ndim]:
        raise EngineIndexError(f"a mask of shape {mask.shape} does not fit the leading axes of shape {array.shape}")
    if np.ndim(value) > array.ndim - mask.ndim:
        raise EngineValueError(
            "a masked assignment takes one value for all places: as many as the mask has depends on data; "
            "use engine.where"
        )
    wide = mask.derive(lambda view: view.expand(range(view.ndim, array.ndim)))
    source = fresh(lift(value, array.dtype)) if isinstance(value, (int, float, complex)) else as_tracer(value)
    write_where(array, wide, source.astype(array.dtype, copy=False))


# -- keys --------------------------------------------------------------------------------------------------------------
def _parts(array: Tracer, key: Any) -> list[Any]:
    """The key with one entry per axis (and None): ints, slices, index arrays, integers that are traced; and Ellipsis,
    where it stands for no axis: NumPy's result of rank 0 is an array then."""
    parts = [_part(item) for item in (key if isinstance(key, tuple) else (key,))]
    widths = [0 if item is None or item is Ellipsis else item[1] if isinstance(item, tuple) else 1 for item in parts]
    used = sum(widths)
    if used > array.ndim:
        raise EngineIndexError(f"{used} indices for {array.ndim} axes of shape {array.shape}")
    if used < array.ndim and not any(item is Ellipsis for item in parts):
        parts.append(Ellipsis)
    found: list[Any] = []
    for item in parts:
        if item is Ellipsis:
            if any(other is Ellipsis for other in found):
                raise EngineIndexError("an index can only have a single ellipsis ('...')")
            found += [slice(None)] * (array.ndim - used) or [Ellipsis]
        elif isinstance(item, tuple):
            mask = item[0]
            axis = sum(part is not None and part is not Ellipsis for part in found)
            if mask.shape != array.shape[axis : axis + mask.ndim]:
                raise EngineIndexError(f"a mask of shape {mask.shape} does not fit axis {axis} of shape {array.shape}")
            found += mask.nonzero()
        else:
            found.append(item)
    return found


def _part(item: Any) -> Any:
    """An int, a slice, None, Ellipsis, an integer array (traced or not), or (constant mask, its rank)."""
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        return slice(*(_bound(bound) for bound in (item.start, item.stop, item.step)))
    if isinstance(item, Tracer):
        if item.dtype == bool:
            raise EngineTypeError(HINT)
        if item.dtype.kind not in "iu":
            raise EngineIndexError(f"an index array has dtype {item.dtype}, not an integer one")
        return item
    array = np.asarray(item)
    if array.dtype == bool and not array.ndim:
        raise EngineIndexError(f"{item} is no index of a traced array: None adds an axis, [:0] empties one")
    if array.dtype == bool:
        return (array, array.ndim)
    if array.ndim == 0 and array.dtype.kind in "iu" and not isinstance(item, np.ndarray):
        return int(array)  # of an array of rank 0, as of any other, NumPy's result is a copy
    if array.dtype.kind not in "iu" and array.size:
        raise EngineIndexError(f"{item!r:.100} is no index: integers, slices, None, ellipsis, arrays of integers are")
    return array.astype(np.intp)


def _bound(bound: Any) -> Any:
    if isinstance(bound, Tracer):
        raise EngineTypeError("a slice with a traced bound: shapes are fixed; use np.take with traced indices")
    return bound


def _advanced(parts: list[Any]) -> bool:
    return any(isinstance(part, (np.ndarray, Tracer)) for part in parts)


class _Placed:
    """An advanced index as gather needs it: a view that the basic part of the key makes, index arrays for ``axes``.

    ``front``: the index axes stand at axis ``front`` of NumPy's result; gather puts them first.
    """

    def __init__(self, view: Tracer, axes: tuple[int, ...], indices: tuple[Atom, ...], front: int, one: bool) -> None:
        self.view, self.axes, self.indices, self.front, self.picks_one = view, axes, indices, front, one
        self.width = len(broadcast_shapes(*(atom.shape for atom in indices)))

    def to_numpy(self, view: View) -> View:
        """From gather's order of axes to NumPy's."""
        width, front = self.width, self.front
        order = [*range(width, width + front), *range(width), *range(width + front, view.ndim)]
        return view.transpose(order)

    def from_numpy(self, view: View) -> View:
        """From NumPy's order of axes to gather's."""
        width, front = self.width, self.front
        order = [*range(front, front + width), *range(front), *range(front + width, view.ndim)]
        return view.transpose(order)


def _place(array: Tracer, parts: list[Any]) -> _Placed:
    """Integers count as index arrays beside index arrays; the rest of the key makes a view."""
    basic, axes, indices, places = [], [], [], []
    axis, source = 0, 0
    for at, part in enumerate(parts):
        if isinstance(part, (int, np.ndarray, Tracer)):
            size = array.shape[source]
            indices.append(_index_atom(part, size, source, array.shape))
            axes.append(axis)
            places.append(at)
            basic.append(slice(None))
        else:
            basic.append(part)
        source += part is not None and part is not Ellipsis
        axis += part is not Ellipsis
    view = array.derive(lambda v: v.index(tuple(basic)))
    adjacent = places == list(range(places[0], places[0] + len(places)))
    one = all(not atom.shape for atom in indices) and all(
        isinstance(part, int) or (isinstance(part, Tracer) and part.scalar)
        for part in parts
        if isinstance(part, (int, np.ndarray, Tracer))
    )
    return _Placed(view, tuple(axes), tuple(indices), axes[0] if adjacent and not one else 0, one)


def _gathered(placed: _Placed, parts: list[Any]) -> View:
    """How NumPy lays out what an index picks, the axes of the index first: as the index arrays lie where there are no
    other axes, else these are in C order and the others as in the operand."""
    item, view = placed.view.itemsize, placed.view.memory
    shape = broadcast_shapes(*(atom.shape for atom in placed.indices))
    kept = [axis for axis in range(view.ndim) if axis not in placed.axes]
    if not kept:
        arrays = [part for part in parts if isinstance(part, (np.ndarray, Tracer))]
        return result_memory(shape, item, memories(*arrays))
    sizes, strides = (tuple(each[axis] for axis in kept) for each in (view.shape, view.strides))
    inner = result_memory(sizes, item, [View(sizes, strides)])
    outer = View.whole(shape, prod(sizes) * item)
    return View((*shape, *sizes), (*outer.strides, *inner.strides))


def _index_atom(part: Any, size: int, axis: int, shape: tuple[int, ...]) -> Atom:
    if isinstance(part, Tracer):
        return cast_atom(part.read(), INDEX)
    array = np.asarray(part)
    wrong = array[(array < -size) | (array >= size)]
    if wrong.size:
        raise EngineIndexError(f"index {wrong[0]} is out of bounds for axis {axis} with size {size} of shape {shape}")
    return Literal.of(int(array), INDEX) if array.ndim == 0 else current().const(array.astype(np.intp))


def _is_written_back(array: Tracer, parts: list[Any], value: Any) -> bool:
    """Whether ``value`` is the very part of ``array`` that it is stored to: `a[i] += x` has written it already."""
    if not isinstance(value, Tracer) or not isinstance(value.root, Picked):
        return False
    placed, root = _place(array, parts), value.root
    same = root.base.root is array.root and root.base.part == placed.view.part
    return same and root.places() == placed.indices and root.axes == placed.axes and value.part.is_whole(root.shape)


HANDLERS.update({"get": get_item, "set": set_item, "add_at": scatter_into})
