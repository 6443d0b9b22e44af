"""What NumPy's functions do to traced arrays: reductions, choice, joining, products; views are in `trace_shapes`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .avals import known_dtype
from .errors import EngineTypeError, EngineValueError
from .ir import Literal
from .trace import Tracer, as_tracer, cast_atom, emit, fresh, implements, lift, weak
from .trace_memory import result_memory
from .trace_shapes import diagonal, expand_dims, flattened, laid_out, new_shape, reshape, several, unscalar
from .trace_store import apply_select, destination, finish, select_dtype, write_where
from .trace_ufuncs import keep_dims, reduce_ufunc
from .views import View, normal_axes, normal_axis


# -- reductions --------------------------------------------------------------------------------------------------------
@implements(np.sum)
def _sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    return reduce_ufunc(np.add, a, axis, dtype, out, keepdims, initial, where)


@implements(np.prod)
def _prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    return reduce_ufunc(np.multiply, a, axis, dtype, out, keepdims, initial, where)


@implements(np.max, np.amax)
def _max(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    return reduce_ufunc(np.maximum, a, axis, None, out, keepdims, initial, where)


@implements(np.min, np.amin)
def _min(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    return reduce_ufunc(np.minimum, a, axis, None, out, keepdims, initial, where)


@implements(np.any)
def _any(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    return reduce_ufunc(np.logical_or, a, axis, None, out, keepdims, None, where)


@implements(np.all)
def _all(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
    return reduce_ufunc(np.logical_and, a, axis, None, out, keepdims, None, where)


def _arg(name: str) -> Callable[..., Any]:
    def found(a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        x = as_tracer(a)
        ndim = x.ndim
        if axis is None or (not ndim and axis in (0, -1)):  # NumPy lets a number have an axis here
            x, axis = flattened(x), 0
            axes = tuple(range(ndim))
        else:
            axis = normal_axis(axis, ndim, x.shape)
            axes = (axis,)
        result = fresh(emit(name, x.read(), axis=axis))
        target = destination(out)
        if target is not None and not np.can_cast(target.dtype, np.intp, "safe"):
            raise EngineTypeError(f"out= has dtype {target.dtype}, which {np.dtype(np.intp)} cannot be written back to")
        return finish(keep_dims(result, axes) if keepdims and ndim else result, target, "unsafe")

    return found


implements(np.argmax)(_arg("argmax"))
implements(np.argmin)(_arg("argmin"))


@implements(np.count_nonzero)
def _count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _sum(as_tracer(a).astype(bool), axis, None, None, keepdims)


def counted(x: Tracer, axis: Any) -> int:
    """How many elements a reduction along ``axis`` combines."""
    every = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return prod(x.shape[i] for i in normal_axes(list(every), x.ndim, x.shape))


@implements(np.mean)
def _mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    """Sum and division: integers in float64; float16 in float32, rounded once."""
    x = as_tracer(a)
    wide, final = dtype, np.dtype(dtype or x.dtype)
    if dtype is None and x.dtype.kind in "biu":
        wide = final = np.dtype(np.float64)
    elif dtype is None and x.dtype == np.float16:
        wide = np.dtype(np.float32)
    total = _sum(x, axis, wide, out, keepdims, None, where)  # which NumPy divides where it is stored
    count: Any = counted(x, axis)
    if where is not True:
        count = _sum(np.broadcast_to(as_tracer(where), x.shape), axis, np.intp, None, keepdims).astype(total.real.dtype)
    if out is not None:
        return np.true_divide(total, count, out=total, casting="unsafe")
    return (total / count).astype(final, copy=False)


# -- choice and elements -----------------------------------------------------------------------------------------------
@implements(np.where)
def _where(condition: Any, x: Any, y: Any) -> Any:
    return apply_select(condition, x, y)


@implements(np.round, np.around)
def _round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    x = as_tracer(a)
    if x.dtype.kind in "iub":
        if decimals < 0:
            raise EngineTypeError("np.round of integers to tens is not supported in a traced function")
        found = x.astype(np.float16) if x.dtype == bool else x.copy()
        return finish(found if found.shape else found[()], out)
    if decimals == 0:
        return finish(np.rint(x), out)
    scale = 10.0 ** abs(decimals)
    there, back = (np.multiply, np.true_divide) if decimals > 0 else (np.true_divide, np.multiply)
    moved = finish(there(x, scale), out)  # where there is an array for the result, NumPy rounds in that
    return back(np.rint(moved, out=out), scale, out=out)


@implements(np.real)
def _real(val: Any) -> Any:
    return val.real


@implements(np.imag)
def _imag(val: Any) -> Any:
    return val.imag


@implements(np.take)
def _take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    x = as_tracer(a)
    x, axis = (flattened(x), 0) if axis is None else (x, normal_axis(axis, x.ndim, x.shape))
    index = indices if isinstance(indices, Tracer) else np.asarray(indices)
    if mode == "clip":
        index = np.clip(index, 0, x.shape[axis] - 1)
    elif mode == "wrap":
        index = np.remainder(index, x.shape[axis])
    elif mode != "raise":
        raise EngineValueError(f"mode={mode!r}: 'raise', 'wrap' or 'clip'")
    found = x[(slice(None),) * axis + (index,)]
    if found.root is x.root or axis:
        found = found.copy()
    found.memory = View.whole(found.shape, found.itemsize)  # in C order, however operands lie
    target = destination(out)
    if target is not None and not np.can_cast(target.dtype, x.dtype, "safe"):
        raise EngineTypeError(f"out= has dtype {target.dtype}, which does not fit {x.dtype} that is taken from")
    return finish(found, target, "unsafe")


@implements(np.sort)
def _sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    return _sorted("sort", a, axis, kind, order, stable)


@implements(np.argsort)
def _argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    return _sorted("argsort", a, axis, kind, order, stable)


def _sorted(name: str, a: Any, axis: Any, kind: Any, order: Any, stable: Any) -> Tracer:
    np.sort(np.empty(0), kind=kind, order=order, stable=stable)  # NumPy's errors; the one sort that there is, is stable
    x = as_tracer(a)
    x = flattened(x) if name == "argsort" and not x.ndim else x  # as NumPy has it, of argsort alone
    x, axis = (flattened(x), 0) if axis is None else (x, normal_axis(axis, x.ndim, x.shape))
    memory = result_memory(x.shape, x.itemsize, [x.memory]) if name == "sort" else None
    return fresh(emit(name, x.read(), axis=axis), memory)


# -- joining and making ------------------------------------------------------------------------------------------------
@implements(np.concatenate)
def _concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    parts = [as_tracer(x) for x in arrays]
    if axis is None:
        parts, axis = [flattened(x) for x in parts], 0
    target = destination(out)
    wanted = np.result_type(*(x.dtype for x in parts)) if dtype is None else np.dtype(dtype)
    if target is not None:
        if dtype is not None:
            raise EngineTypeError("np.concatenate takes one of out= and dtype=, not both")
        wanted = target.dtype
    for x in parts:
        if not np.can_cast(x.dtype, wanted, casting):
            raise EngineTypeError(f"cannot cast from {x.dtype} to {wanted} with casting rule {casting!r}")
    axis = normal_axis(axis, parts[0].ndim, parts[0].shape)
    atom = emit("concatenate", *(cast_atom(x.read(), wanted) for x in parts), axis=axis)
    views = [x.memory for x in parts if x.size]
    return finish(fresh(atom, result_memory(atom.shape, wanted.itemsize, views)), target)


@implements(np.stack)
def _stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    return _concatenate([expand_dims(as_tracer(x), axis) for x in arrays], axis, out, dtype=dtype, casting=casting)


def _at_least(x: Tracer, ndim: int) -> Tracer:
    return x if x.ndim >= ndim else expand_dims(x, tuple(range(ndim - x.ndim)))


@implements(np.vstack)
def _vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    return _concatenate([_at_least(as_tracer(x), 2) for x in tup], 0, dtype=dtype, casting=casting)


@implements(np.hstack)
def _hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    parts = [_at_least(as_tracer(x), 1) for x in tup]
    return _concatenate(parts, 0 if parts[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@implements(np.atleast_1d)
def _atleast_1d(*arys: Any) -> Any:
    return _one_or_all([_at_least(as_tracer(x), 1) for x in arys])


@implements(np.atleast_2d)
def _atleast_2d(*arys: Any) -> Any:
    return _one_or_all([_at_least(as_tracer(x), 2) for x in arys])


@implements(np.atleast_3d)
def _atleast_3d(*arys: Any) -> Any:
    """The new axes of a row are around it, that of a matrix is the last one."""
    return _one_or_all([x if x.ndim > 2 else expand_dims(_at_least(x, 2), 2) for x in map(as_tracer, arys)])


def _one_or_all(found: list[Tracer]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


@implements(np.tile)
def _tile(A: Any, reps: Any) -> Any:
    """A copy of a broadcast view."""
    counts = several(reps)
    x = _at_least(unscalar(as_tracer(A)), len(counts))
    counts = (1,) * (x.ndim - len(counts)) + counts
    wide = x.derive(lambda view: view.expand(range(0, 2 * view.ndim, 2)))
    wide = wide.derive(lambda view: view.broadcast([n for pair in zip(counts, x.shape) for n in pair]))
    return reshape(wide, tuple(n * m for n, m in zip(counts, x.shape)), copy=True)


@implements(np.repeat)
def _repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    if isinstance(repeats, Tracer):
        raise EngineTypeError("np.repeat takes counts that are no traced arrays: they decide the shape of the result")
    x = as_tracer(a)
    x, axis = (flattened(x), 0) if axis is None else (x, normal_axis(axis, x.ndim, x.shape))
    if np.size(repeats) != 1:
        return np.take(x, np.repeat(np.arange(x.shape[axis]), repeats), axis=axis)
    (repeats,) = np.ravel(repeats).astype(np.intp, casting="safe").tolist()
    wide = expand_dims(x, axis + 1)
    wide = wide.derive(lambda view: view.broadcast((*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]), copy=True)


@implements(np.diff)
def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    x = as_tracer(a)
    if n < 0:
        raise EngineValueError(f"n={n}: differences are taken 0 times or more")
    axis = normal_axis(axis, x.ndim, x.shape)
    if prepend is not None or append is not None:
        row = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        ends = [
            [] if v is None else [v if np.ndim(v) else np.broadcast_to(as_tracer(v), row)] for v in (prepend, append)
        ]
        x = _concatenate([*ends[0], x, *ends[1]], axis)
    before = (slice(None),) * axis
    for _ in range(n):
        change = np.not_equal if x.dtype == bool else np.subtract
        x = change(x[(*before, slice(1, None))], x[(*before, slice(None, -1))])
    return x


@implements(np.split)
def _split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _parts(ary, indices_or_sections, axis, uneven=False)


@implements(np.array_split)
def _array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _parts(ary, indices_or_sections, axis, uneven=True)


def _parts(ary: Tracer, indices_or_sections: Any, axis: int, uneven: bool) -> list[Tracer]:
    axis = normal_axis(axis, ary.ndim, ary.shape)
    size, cuts = ary.shape[axis], indices_or_sections
    if not isinstance(cuts, (tuple, list, np.ndarray)):
        if cuts < 1:
            raise EngineValueError(f"{cuts} parts: an array is cut into one or more")
        if size % cuts and not uneven:
            raise EngineValueError(f"axis {axis} of size {size} does not divide into {cuts} equal parts")
        cuts = [size // cuts * i + min(i, size % cuts) for i in range(1, cuts)]
    edges = [0, *map(operator.index, cuts), size]
    before = (slice(None),) * axis
    return [ary[(*before, slice(low, high))] for low, high in zip(edges, edges[1:])]


def full(shape: tuple[int, ...], value: Any, dtype: np.dtype, memory: View | None = None) -> Tracer:
    """A new array of one value, or of an array of them: a copy of what is broadcast. It lies in ``memory``."""
    atom = cast_atom(lift(value, dtype if weak(value) else None), dtype)
    filled = emit("access", atom, view=View.whole(atom.shape).broadcast(shape)) if shape != atom.shape else atom
    found = fresh(emit("copy", filled), memory)
    found.scalar = False
    return found


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> Tracer:
    """A new array of zeros."""
    return full(shape, Literal.of(0, dtype).value, dtype)


def _like(value: Any) -> Callable[..., Any]:
    def found(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
        wanted = known_dtype(dtype or a.dtype, "the result")
        return _full_like(a, wanted.type(value), wanted, order, subok, shape)

    return found


implements(np.zeros_like, np.empty_like)(_like(0))
implements(np.ones_like)(_like(1))


@implements(np.full_like)
def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    wanted = known_dtype(dtype or a.dtype, "the result")
    sizes = a.shape if shape is None else new_shape(shape, prod(several(shape)))
    return full(sizes, fill_value, wanted, laid_out(order, sizes, wanted.itemsize, a))


@implements(np.copyto)
def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Tracer):
        raise EngineTypeError("np.copyto into an array that is not traced: pass it as an argument")
    dst.write(src, casting) if where is True else write_where(dst, where, src, casting)


@implements(np.tril)
def _tril(m: Any, k: int = 0) -> Any:
    mask = np.tri(*m.shape[-2:], k=k, dtype=bool)
    return apply_select(mask, m, m.dtype.type(0))


@implements(np.triu)
def _triu(m: Any, k: int = 0) -> Any:
    mask = np.tri(*m.shape[-2:], k=k - 1, dtype=bool)
    return apply_select(mask, m.dtype.type(0), m)


@implements(np.trace)
def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    return _sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)


@implements(np.diag)
def _diag(v: Any, k: int = 0) -> Any:
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise EngineValueError(f"np.diag takes one or two axes, shape {v.shape}")
    size = v.shape[0] + abs(k)
    found = zeros((size, size), v.dtype)
    target = found.derive(lambda view: view.diagonal(k))
    target.write(v)
    return found


@implements(np.roll)
def _roll(a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return reshape(_roll(flattened(a), shift, 0), a.shape)
    shifts, axes = several(shift), several(axis)
    pairs = list(
        zip(shifts * len(axes) if len(shifts) == 1 else shifts, axes * len(shifts) if len(axes) == 1 else axes)
    )
    counts = [0] * a.ndim
    for count, at in pairs:
        counts[normal_axis(at, a.ndim, a.shape)] += count
    found = np.empty_like(a)
    cuts = [(_moved(count % n, n) if n else ((slice(0), slice(0)),)) for count, n in zip(counts, a.shape)]
    for places in product(*cuts):
        found[tuple(to for to, _ in places)] = a[tuple(at for _, at in places)]
    return found


def _moved(count: int, size: int) -> tuple[tuple[slice, slice], ...]:
    """Where the parts of an axis go that is rolled by ``count``, and where they lie."""
    if not count:
        return ((slice(None), slice(None)),)
    return (slice(count, None), slice(None, size - count)), (slice(None, count), slice(size - count, None))


# -- dtypes ------------------------------------------------------------------------------------------------------------
@implements(np.result_type)
def _result_type(*args: Any) -> Any:
    return select_dtype(*(fresh_dtype(x) for x in args))


def fresh_dtype(x: Any) -> Any:
    """What `np.result_type` is asked with for an argument that may be a dtype or traced."""
    return np.empty(0, x.dtype) if isinstance(x, Tracer) else np.empty(0, x) if isinstance(x, (type, np.dtype)) else x
