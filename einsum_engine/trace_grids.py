"""NumPy's functions that make, join, cut and move traced arrays, in terms of views, writes and `np.concatenate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from .avals import known_dtype
from .errors import EngineTypeError, EngineValueError
from .ir import Atom
from .trace import Tracer, as_tracer, cast_atom, current, emit, fresh, implements, lift
from .trace_functions import full
from .trace_shapes import expand_dims, flattened, laid_out, reshape, several, sizes_of, unscalar
from .trace_store import select_dtype
from .views import broadcast_shapes, normal_axis


# -- arrays that are made: `np.zeros(shape, like=x)` of a traced x -----------------------------------------------------
def _filled(value: int) -> Callable[..., Any]:
    def found(shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None) -> Any:
        wanted, sizes = known_dtype(dtype or np.float64, "the result"), sizes_of(shape)
        return full(sizes, wanted.type(value), wanted, laid_out(order, sizes, wanted.itemsize))

    return found


implements(np.zeros, np.empty)(_filled(0))
implements(np.ones)(_filled(1))


@implements(np.full)
def _full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None) -> Any:
    value, sizes = as_tracer(fill_value), sizes_of(shape)
    wanted = known_dtype(dtype or value.dtype, "the result")
    return full(sizes, value, wanted, laid_out(order, sizes, wanted.itemsize))


def _constant(make: Any) -> None:
    def found(*args: Any, **kwargs: Any) -> Any:
        return fresh(current().const(make(*args, **kwargs)))

    implements(make)(found)


for _make in (np.arange, np.eye, np.identity, np.tri):
    _constant(_make)


def _converted(copies: bool | None) -> Callable[..., Any]:
    """Nested lists of traced values are stacked; an array stays as it is, unless it is copied by the default."""

    def found(object: Any, dtype: Any = None, order: Any = "K", *, device: Any = None, copy: Any = copies) -> Any:
        made = unscalar(_joined(object))
        order = "K" if order == "A" and not copy else order  # where NumPy copies for an order, "A" asks for none
        return made.astype(dtype or made.dtype, order=order, copy=bool(copy) and made is object)

    return found


implements(np.array)(_converted(True))
implements(np.asarray, np.asanyarray)(_converted(None))


def _joined(item: Any) -> Tracer:
    return np.stack([_joined(part) for part in item]) if isinstance(item, (list, tuple)) else as_tracer(item)


@implements(np.linspace)
def _linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    if num < 0:
        raise EngineValueError(f"num={num}: a line has 0 samples or more")
    wide = select_dtype(start, stop, float(num))
    start, stop = (fresh(lift(x, wide)).astype(wide, copy=False) for x in (start, stop))
    gaps = num - 1 if endpoint else num
    gap = stop - start
    step = gap / gaps if gaps > 0 else np.full_like(gap, np.nan)
    found = np.arange(num, dtype=wide.type(0).real.dtype).reshape((num,) + (1,) * gap.ndim)
    found = found * (step if gaps > 0 else gap) + start
    if endpoint and num > 1:
        found[-1] = stop
    found = np.moveaxis(found, 0, axis).astype(dtype or wide, copy=False)
    return (found, step) if retstep else found


@implements(np.meshgrid)
def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise EngineValueError(f"indexing={indexing!r}: 'xy' or 'ij'")
    places = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        places[:2] = [1, 0]
    parts = [
        reshape(as_tracer(x), (1,) * at + (-1,) + (1,) * (len(xi) - 1 - at), copy=True) for x, at in zip(xi, places)
    ]
    if sparse:
        return tuple(parts)
    shape = broadcast_shapes(*(part.shape for part in parts))
    return tuple(np.broadcast_to(part, shape).copy() for part in parts)


@implements(np.diagflat)
def _diagflat(v: Any, k: int = 0) -> Any:
    return np.diag(flattened(v), k)


@implements(np.fill_diagonal)
def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    if wrap or (a.ndim > 2 and len(set(a.shape)) > 1) or a.ndim < 2:
        raise EngineTypeError(f"np.fill_diagonal of shape {a.shape}, wrap={wrap} is not supported in a traced function")
    count = min(a.shape)
    a[(np.arange(count),) * a.ndim] = val if np.ndim(val) == 0 else np.ravel(val)[:count]


# -- joining -----------------------------------------------------------------------------------------------------------
@implements(np.append)
def _append(arr: Any, values: Any, axis: Any = None) -> Any:
    return np.concatenate((as_tracer(arr), as_tracer(values)), axis=axis)


def _joined_parts(arr: Any, axis: Any) -> tuple[Tracer, int]:
    x = as_tracer(arr)
    return (flattened(x), 0) if axis is None else (x, normal_axis(axis, x.ndim, x.shape))


@implements(np.delete)
def _delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    x, axis = _joined_parts(arr, axis)
    kept = np.delete(np.arange(x.shape[axis]), obj)
    found = np.take(x, kept, axis=axis)
    found.memory = laid_out("A", found.shape, found.itemsize, x)
    return found


@implements(np.insert)
def _insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    if not isinstance(obj, int):
        raise EngineTypeError("np.insert takes one fixed place in a traced function")
    x, axis = _joined_parts(arr, axis)
    size = x.shape[axis]
    if not -size <= obj <= size:
        raise EngineValueError(f"place {obj} is out of bounds for axis {axis} with size {size} of shape {x.shape}")
    row = fresh(lift(values, x.dtype)).astype(x.dtype, copy=False)
    row = np.broadcast_to(row, (*x.shape[:axis], *x.shape[axis + 1 :])) if row.ndim < x.ndim else row
    row = expand_dims(row, axis) if row.ndim < x.ndim else np.moveaxis(row, 0, axis)
    before = (slice(None),) * axis
    at = obj % size if obj < 0 else obj
    return np.concatenate([x[(*before, slice(0, at))], row, x[(*before, slice(at, None))]], axis=axis)


@implements(np.column_stack)
def _column_stack(tup: Any) -> Any:
    parts = [as_tracer(x) for x in tup]
    return np.concatenate([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in parts], axis=1)


@implements(np.dstack)
def _dstack(tup: Any) -> Any:
    return np.concatenate([_deep(as_tracer(x)) for x in tup], axis=2)


def _deep(x: Tracer) -> Tracer:
    return x if x.ndim > 2 else expand_dims(x, {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[x.ndim])


@implements(np.block)
def _block(arrays: Any) -> Any:
    depth, ndim = _depth(arrays)
    return _blocks(arrays, depth, max(depth, ndim))


def _depth(item: Any) -> tuple[int, int]:
    if not isinstance(item, list):
        return 0, np.ndim(item)
    found = [_depth(part) for part in item]
    if len({depth for depth, _ in found}) != 1:
        raise EngineValueError("the lists of np.block are not of one depth")
    return found[0][0] + 1, max(ndim for _, ndim in found)


def _blocks(item: Any, depth: int, ndim: int) -> Tracer:
    if depth == 0:
        x = as_tracer(item)
        return expand_dims(x, tuple(range(ndim - x.ndim))) if x.ndim < ndim else x
    return np.concatenate([_blocks(part, depth - 1, ndim) for part in item], axis=-depth)


@implements(np.kron)
def _kron(a: Any, b: Any) -> Any:
    a, b = as_tracer(a), as_tracer(b)
    if not a.ndim or not b.ndim:
        return np.multiply(a, b)
    ndim = max(a.ndim, b.ndim)
    one, two = (1,) * (ndim - a.ndim) + a.shape, (1,) * (ndim - b.ndim) + b.shape
    left = reshape(a, tuple(n for size in one for n in (size, 1)))
    right = reshape(b, tuple(n for size in two for n in (1, size)))
    return reshape(left * right, tuple(n * m for n, m in zip(one, two)))


# -- cutting, turning --------------------------------------------------------------------------------------------------
@implements(np.hsplit)
def _hsplit(ary: Any, indices_or_sections: Any) -> Any:
    return np.split(ary, indices_or_sections, 0 if ary.ndim == 1 else 1)


@implements(np.vsplit)
def _vsplit(ary: Any, indices_or_sections: Any) -> Any:
    return np.split(ary, indices_or_sections, 0)


@implements(np.dsplit)
def _dsplit(ary: Any, indices_or_sections: Any) -> Any:
    return np.split(ary, indices_or_sections, 2)


@implements(*(f for f in [getattr(np, "unstack", None)] if f is not None))  # since NumPy 2.1
def _unstack(x: Any, /, *, axis: int = 0) -> Any:
    before = (slice(None),) * normal_axis(axis, x.ndim, x.shape)
    return tuple(x[(*before, i)] for i in range(x.shape[axis]))


@implements(*(f for f in [getattr(np, "astype", None)] if f is not None))  # since NumPy 2.1
def _astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    return x.astype(dtype, copy=copy)


@implements(np.resize)
def _resize(a: Any, new_shape: Any) -> Any:
    """The elements again and again."""
    sizes, flat = sizes_of(new_shape), flattened(as_tracer(a))
    if min(sizes, default=0) < 0:
        raise EngineValueError(f"shape {sizes} has a negative size")
    count = prod(sizes)
    again = np.tile(flat, -(-count // flat.size)) if flat.size else np.zeros(count, a.dtype, like=flat)
    return reshape(again[:count], sizes)


@implements(np.tril_indices_from)
def _tril_indices_from(arr: Any, k: int = 0) -> Any:
    return np.tril_indices(arr.shape[-2], k, arr.shape[-1])


@implements(np.triu_indices_from)
def _triu_indices_from(arr: Any, k: int = 0) -> Any:
    return np.triu_indices(arr.shape[-2], k, arr.shape[-1])


@implements(np.fft.fftshift)
def _fftshift(x: Any, axes: Any = None) -> Any:
    return _half_rolled(x, axes, 1)


@implements(np.fft.ifftshift)
def _ifftshift(x: Any, axes: Any = None) -> Any:
    return _half_rolled(x, axes, -1)


def _half_rolled(x: Tracer, axes: Any, sign: int) -> Any:
    axes = tuple(range(x.ndim)) if axes is None else several(axes)
    return np.roll(x, tuple(sign * (x.shape[axis] // 2) for axis in axes), axes)


@implements(np.rollaxis)
def _rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    axis = normal_axis(axis, a.ndim, a.shape)
    start += a.ndim if start < 0 else 0
    return np.moveaxis(a, axis, start - (axis < start))


@implements(np.fliplr)
def _fliplr(m: Any) -> Any:
    return m[:, ::-1]


@implements(np.flipud)
def _flipud(m: Any) -> Any:
    return m[::-1, ...]


@implements(np.rot90)
def _rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    one, two = (normal_axis(axis, m.ndim, m.shape) for axis in axes)
    if k % 4 == 0:
        return m[(...,)]
    if k % 4 == 2:
        return np.flip(m, (one, two))
    return np.swapaxes(np.flip(m, two), one, two) if k % 4 == 1 else np.flip(np.swapaxes(m, one, two), two)


# -- padding with what is there ----------------------------------------------------------------------------------------
@implements(np.pad)
def _pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    if isinstance(pad_width, dict):
        widths = [pad_width.get(i, pad_width.get(i - array.ndim, 0)) for i in range(array.ndim)]
        pad_width = [np.broadcast_to(width, 2) for width in widths]
    widths = np.broadcast_to(np.asarray(pad_width, dtype=np.intp), (array.ndim, 2)).tolist()
    if mode in ("edge", "wrap", "reflect", "symmetric"):
        return _ordered(array, padded(array, widths, mode).read())
    if mode != "constant":
        raise EngineTypeError(f"mode={mode!r} is not supported in a traced function")
    if np.ndim(constant_values):
        raise EngineTypeError("several constant_values are not supported in a traced function: np.pad axis by axis")
    value = cast_atom(lift(constant_values, array.dtype), array.dtype)
    return _ordered(array, emit("pad", array.read(), value, widths=tuple((b, e) for b, e in widths)))


def _ordered(array: Tracer, atom: Atom) -> Tracer:
    """A padded array, in Fortran order where the array is in that order alone, as `np.pad` leaves it."""
    found = fresh(atom, laid_out("A", atom.shape, array.itemsize, array))
    found.scalar = False
    return found


def padded(array: Tracer, widths: Sequence[tuple[int, int]], mode: str) -> Tracer:
    """`np.pad` by elements of the array: the places along each axis are fixed, so slices and repeats join.

    >>> _places(4, 2, 3, "reflect"), _places(4, 5, 0, "symmetric")
    ([2, 1, 0, 1, 2, 3, 2, 1, 0], [3, 3, 2, 1, 0, 0, 1, 2, 3])
    """
    found = array.astype(array.dtype)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            places = _places(array.shape[axis], before, after, mode)
            parts = [found[(slice(None),) * axis + (cut,)] for cut in _runs(places)]
            found = np.concatenate(parts, axis=axis)
    return found


def _places(size: int, before: int, after: int, mode: str) -> list[int]:
    """The element that stands at each place of a padded axis."""
    return np.pad(np.arange(size), (before, after), mode).tolist()  # type: ignore[call-overload]


def _runs(places: list[int]) -> list[slice]:
    """Slices that name the places in order."""
    runs: list[list[int]] = []
    for place in places:
        last = runs[-1] if runs else []
        step = place - last[-1] if last else 0
        if last and abs(step) == 1 and (len(last) == 1 or last[-1] - last[-2] == step):
            last.append(place)
        else:
            runs.append([place])
    return [_cut(run) for run in runs]


def _cut(run: list[int]) -> slice:
    if len(run) == 1 or run[1] > run[0]:
        return slice(run[0], run[-1] + 1)
    return slice(run[0], run[-1] - 1 if run[-1] else None, -1)
