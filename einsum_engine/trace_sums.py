"""NumPy's functions along an axis for traced arrays: running sums, differences, means, order, and linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import EngineIndexError, EngineTypeError, EngineValueError
from .op_rules import loop_dtypes
from .trace import HANDLERS, Tracer, as_tracer, implements
from .trace_functions import counted, full
from .trace_shapes import flattened, reshape, several
from .trace_store import finish, reduced_in
from .trace_ufuncs import accumulator, keep_dims, stacked
from .views import normal_axes, normal_axis

# Ufuncs that are associative: results may be combined in any order.
_ASSOCIATIVE = (
    *(np.add, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_and, np.logical_or, np.logical_xor),
    *(np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.logaddexp, np.logaddexp2, np.hypot, np.gcd, np.lcm),
)
SEGMENTS = 256  # of a reduceat, each a few equations


# -- running sums ------------------------------------------------------------------------------------------------------
def scan(ufunc: np.ufunc, x: Tracer) -> Tracer:
    """Running results along axis 0, of an associative ufunc, by the scan of pairs: 2 n operations in 2 log n steps.

    Pairs are combined, the scan of those gives every second result, and one more operation the ones between
    (R. E. Ladner, M. J. Fischer: Parallel Prefix Computation, 1980).
    """
    size = x.shape[0]
    if size < 2:
        return x.astype(x.dtype)
    pairs = scan(ufunc, ufunc(x[: size // 2 * 2 : 2], x[1::2]))
    found = np.zeros_like(x)
    found[0] = x[0]
    found[1::2] = pairs
    if size > 2:
        found[2::2] = ufunc(pairs[: (size - 1) // 2], x[2::2])
    return found


def _checked(ufunc: np.ufunc, method: str) -> None:
    if ufunc not in _ASSOCIATIVE:
        raise EngineTypeError(f"np.{ufunc.__name__}.{method} is not supported in a traced function")


def _accumulate(ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    _checked(ufunc, "accumulate")
    x = stacked(array)
    axis = normal_axis(axis, x.ndim, x.shape)
    if dtype is None and ufunc in (np.logical_and, np.logical_or, np.logical_xor):
        dtype = bool
    dtype = reduced_in(x.dtype, dtype, out)
    if dtype is None and ufunc in (np.add, np.multiply):
        dtype = accumulator(x.dtype)
    found = scan(ufunc, np.moveaxis(x.astype(dtype or x.dtype, copy=False), axis, 0))
    found = np.moveaxis(found, 0, axis)
    return finish(found.copy("K") if axis else found, out, "unsafe")


def _cumulative(ufunc: np.ufunc) -> Callable[..., Any]:
    def found(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x = as_tracer(a)
        x, axis = (flattened(x), 0) if axis is None or (not x.ndim and axis in (0, -1)) else (x, axis)
        return _accumulate(ufunc, x, axis, dtype, out)

    return found


implements(np.cumsum)(_cumulative(np.add))
implements(np.cumprod)(_cumulative(np.multiply))


def _cumulative_with_initial(ufunc: np.ufunc) -> Callable[..., Any]:
    """As the array API has it: one axis, which may begin with what is neutral."""

    def found(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False) -> Any:
        if axis is None and x.ndim != 1:
            raise EngineValueError(f"shape {x.shape} has {x.ndim} axes: axis= says along which")
        axis = normal_axis(0 if axis is None else axis, x.ndim, x.shape)
        made = _accumulate(ufunc, x, axis, reduced_in(x.dtype, dtype, out))
        if include_initial:
            first = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), made.dtype.type(ufunc.identity), made.dtype)
            made = np.concatenate([first, made], axis=axis)
        return finish(made, out, "unsafe")

    return found


for _name, _ufunc in (("cumulative_sum", np.add), ("cumulative_prod", np.multiply)):
    if hasattr(np, _name):  # since NumPy 2.1
        implements(getattr(np, _name))(_cumulative_with_initial(_ufunc))


def _cumulative_without_nan(ufunc: np.ufunc) -> Callable[..., Any]:
    cumulative = _cumulative(ufunc)

    def found(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x = as_tracer(a)
        x = np.where(np.isnan(x), x.dtype.type(ufunc.identity), x) if x.dtype.kind in "fc" else x
        return cumulative(x, axis, dtype, out)

    return found


implements(np.nancumsum)(_cumulative_without_nan(np.add))
implements(np.nancumprod)(_cumulative_without_nan(np.multiply))


def _reduceat(ufunc: np.ufunc, array: Any, indices: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    x = stacked(array)
    axis = normal_axis(axis, x.ndim, x.shape)
    if isinstance(indices, Tracer) or len(indices) > SEGMENTS:
        raise EngineTypeError(f"reduceat takes at most {SEGMENTS} fixed indices in a traced function")
    if wrong := [index for index in indices if not 0 <= index < x.shape[axis]]:
        raise EngineIndexError(f"index {wrong[0]} is out of bounds for axis {axis} with size {x.shape[axis]}")
    before, parts, dtype = (slice(None),) * axis, [], reduced_in(x.dtype, dtype, out)
    for low, high in zip(indices, [*indices[1:], x.shape[axis]]):
        row = x[(*before, slice(low, max(high, low + 1)))]
        parts.append(ufunc.reduce(row, axis=axis, dtype=dtype))
    return finish(np.stack(parts, axis=axis), out, "unsafe")


def _reduce(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> Any:
    """A reduction that is no primitive: halves are combined."""
    x = stacked(array)
    axis = normal_axis(axis if axis is not None or x.ndim != 1 else 0, x.ndim, x.shape)
    dtype = reduced_in(x.dtype, dtype, out)
    wide = loop_dtypes(ufunc, (x.dtype, x.dtype))[-1] if dtype is None else np.dtype(dtype)
    if ufunc in (np.subtract, np.true_divide) and x.shape[axis]:
        rest = np.moveaxis(x.astype(wide, copy=False), axis, 0)
        found = ufunc(rest[0], (np.sum if ufunc is np.subtract else np.prod)(rest[1:], axis=0, dtype=rest.dtype))
    else:
        _checked(ufunc, "reduce")
        floats = ufunc in (np.logaddexp, np.logaddexp2, np.hypot)
        rest = np.moveaxis(x if dtype is None and not floats else x.astype(wide, copy=False), axis, 0)
        if not len(rest):
            if ufunc.identity is None:
                raise EngineValueError(f"shape {x.shape} has no element along axis {axis}, and nothing is neutral")
            return finish(full(rest.shape[1:], rest.dtype.type(ufunc.identity), rest.dtype), out, "unsafe")
        while len(rest) > 1:
            half = len(rest) // 2
            more = [rest[2 * half :]] if len(rest) % 2 else []
            made = ufunc(rest[:half], rest[half : 2 * half])
            rest = np.concatenate([made, *more]) if more else made
        found = ufunc(rest[0], rest[0]) if ufunc in (np.logical_and, np.logical_or) else rest[0]
    return finish(keep_dims(found, (axis,)) if keepdims else found, out, "unsafe")


HANDLERS.update({"accumulate": _accumulate, "reduceat": _reduceat, "reduce": _reduce})


# -- differences, integrals, means -------------------------------------------------------------------------------------
@implements(np.ediff1d)
def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    x = flattened(ary)
    ends = [() if end is None else (np.ravel(end).astype(x.dtype),) for end in (to_begin, to_end)]
    made = x[1:] - x[:-1]
    return np.concatenate([*ends[0], made, *ends[1]]) if ends[0] or ends[1] else made


@implements(np.trapezoid)
def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    rows = np.moveaxis(as_tracer(y), axis, 0)
    gaps: Any = dx
    if x is not None:
        places = as_tracer(x)
        flat = places.ndim == 1
        gaps = np.diff(places) if flat else np.diff(np.moveaxis(places, axis, 0), axis=0)
        gaps = reshape(gaps, (-1,) + (1,) * (rows.ndim - 1)) if flat else gaps
    return np.sum(gaps * (rows[1:] + rows[:-1]) / 2.0, axis=0)


@implements(np.gradient)
def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Central differences inside, of order ``edge_order`` at the ends; spacings are numbers or coordinates."""
    every = range(f.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [normal_axis(i, f.ndim, f.shape) for i in every]
    steps = list(varargs) * len(axes) if len(varargs) == 1 else list(varargs) or [1.0] * len(axes)
    if len(steps) != len(axes):
        raise EngineTypeError(f"{len(varargs)} spacings for {len(axes)} axes of shape {f.shape}")
    f = f.astype(np.float64) if f.dtype.kind in "iu" else f
    found = [_slope(f, at, step, edge_order) for at, step in zip(axes, steps)]
    return found[0] if len(axes) == 1 else tuple(found)


def _slope(f: Tracer, axis: int, step: Any, edge_order: int) -> Tracer:
    rows = np.moveaxis(f, axis, 0)
    if len(rows) < edge_order + 1 or edge_order not in (1, 2):
        raise EngineValueError(f"edge_order={edge_order} of axis {axis} with size {len(rows)}")
    found = np.zeros_like(rows)
    if np.ndim(step):
        gaps = np.diff(step).astype(f.dtype)
        one, two = (reshape(as_tracer(part), (-1,) + (1,) * (rows.ndim - 1)) for part in (gaps[:-1], gaps[1:]))
        found[1:-1] = (
            -two / (one * (one + two)) * rows[:-2]
            + (two - one) / (one * two) * rows[1:-1]
            + one / (two * (one + two)) * rows[2:]
        )
        first, last = gaps[:2], gaps[-2:][::-1]
    else:
        found[1:-1] = (rows[2:] - rows[:-2]) / (2.0 * step)
        first = last = [step, step]
    for at, direction, near in ((0, 1, first), (-1, -1, last)):
        a, b = rows[at], rows[at + direction]
        if edge_order == 1:
            found[at] = (b - a if direction > 0 else a - b) / near[0]
        else:
            c, one, two = rows[at + 2 * direction], near[0], near[1]
            value = -(2 * one + two) / (one * (one + two)) * a + (one + two) / (one * two) * b
            found[at] = (value - one / (two * (one + two)) * c) * direction
    return np.moveaxis(found, 0, axis)


@implements(np.ptp)
def _ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    high = np.max(a, axis=axis, out=out, keepdims=keepdims)
    return np.subtract(high, np.min(a, axis=axis, keepdims=keepdims), out=out)


def _spread(a: Any, axis: Any, dtype: Any, out: Any, ddof: float, keepdims: bool, correction: Any) -> Any:
    if correction is not None and ddof:
        raise EngineValueError("ddof= and correction= are two names of one number")
    x = as_tracer(a)
    dtype = np.float64 if x.dtype.kind in "biu" and dtype is None else dtype  # of the sums; of complex numbers real
    gap = x - np.mean(x, axis=axis, dtype=dtype, keepdims=True)
    square = np.real(gap * np.conjugate(gap)) if gap.dtype.kind == "c" else gap * gap
    total, count = np.sum(square, axis, dtype, out, keepdims), max(counted(x, axis) - (correction or ddof), 0)
    return total / count if out is None else np.true_divide(total, count, out=total, casting="unsafe")


@implements(np.var)
def _var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: Any = None,
) -> Any:
    return _spread(a, axis, dtype, out, ddof, keepdims, correction)


@implements(np.std)
def _std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: Any = None,
) -> Any:
    return np.sqrt(_spread(a, axis, dtype, out, ddof, keepdims, correction), out=out)


@implements(np.average)
def _average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    x = as_tracer(a)
    if weights is None:
        found = np.mean(x, axis=axis, keepdims=keepdims)
        total: Any = full(found.shape, found.dtype.type(x.size // max(found.size, 1)), found.dtype)
    else:
        w = as_tracer(weights)
        wide = np.result_type(x.dtype, w.dtype, "f8") if x.dtype.kind in "biu" else np.result_type(x.dtype, w.dtype)
        if w.shape != x.shape:
            if w.ndim != 1 or not isinstance(axis, int) or len(w) != x.shape[axis]:
                raise EngineValueError(f"weights of shape {w.shape} for axis {axis} of shape {x.shape}")
            w = np.moveaxis(reshape(w, (-1,) + (1,) * (x.ndim - 1)), 0, axis)
        total = np.sum(w, axis=axis, dtype=wide, keepdims=keepdims)
        found = np.sum(np.multiply(x, w, dtype=wide), axis=axis, keepdims=keepdims) / total
    return (found, np.broadcast_to(total, found.shape).copy() if found.shape else total) if returned else found


@implements(np.cov)
def _cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None) -> Any:
    x = as_tracer(m)
    if max(x.ndim, np.ndim(y)) > 2:
        raise EngineValueError("np.cov takes at most two axes")
    x = x.astype(np.result_type(x.dtype, np.float64), copy=False)
    x = x if x.ndim == 2 else reshape(x, (1, -1))
    x = x.T if not rowvar and x.shape[0] != 1 else x
    if y is not None:
        other = as_tracer(y)
        other = other if other.ndim == 2 else reshape(other, (1, -1))
        x = np.concatenate([x, other if rowvar or other.shape[0] == 1 else other.T])
    gap = x - np.mean(x, axis=1, keepdims=True)
    made = gap @ np.conjugate(gap.T) / max(x.shape[1] - ((0 if bias else 1) if ddof is None else ddof), 0)
    return np.squeeze(made) if made.size > 1 else np.squeeze(made)[...]


@implements(np.corrcoef)
def _corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    made = _cov(x, y, rowvar)
    if made.ndim == 0:
        return made / made
    size = np.sqrt(np.real(np.diagonal(made)))
    made = made / size[:, None] / size
    return np.clip(made, -1, 1) if made.dtype.kind == "f" else made


# -- order -------------------------------------------------------------------------------------------------------------
def _ordered(x: Tracer, axis: Any) -> tuple[Tracer, tuple[int, ...]]:
    """The elements in order, along the first axis, and the axes that they lie along in ``x``."""
    if x.dtype.kind not in "iuf":
        raise EngineTypeError(f"quantiles of {x.dtype} have no meaning: real numbers have an order and a mean")
    axes = normal_axes(range(x.ndim) if axis is None else several(axis), x.ndim, x.shape)
    kept = [at for at in range(x.ndim) if at not in axes]
    rows = reshape(x.transpose((*axes, *kept)), (counted(x, axes), *(x.shape[at] for at in kept)), copy=True)
    if not len(rows):
        raise EngineValueError(f"shape {x.shape} has no element along axis {axis}")
    return np.sort(rows, axis=0), tuple(axes)


def _quantiles(a: Any, q: Any, axis: Any, keepdims: bool) -> Any:
    """Linear interpolation between the sorted elements, `np.quantile`'s default; NaN where an element is."""
    x, whole = as_tracer(a), np.asarray(q).dtype.kind in "iu"  # integers 0 and 1 name an element
    if x.dtype.kind in "iuf" and not whole:
        x = x.astype(np.result_type(x, np.float64) if np.ndim(q) or x.dtype.kind in "iu" else x.dtype, copy=False)
    rows, axes = _ordered(x, axis)
    parts = []
    for place in np.ravel(q).tolist():
        if not 0 <= place <= 1:
            raise EngineValueError(f"a quantile {place} is not between 0 and 1")
        low = int(place * (len(rows) - 1))
        rest, high = place * (len(rows) - 1) - low, min(low + 1, len(rows) - 1)
        gap = rows[high] - rows[low]
        value = rows[low] + gap * rest if rest < 0.5 else rows[high] - gap * (1 - rest)
        parts.append(_unless_nan(rows[low] if whole else value, rows, axes, keepdims))
    found = np.stack(parts) if np.ndim(q) else parts[0]
    return reshape(found, (*np.shape(q), *found.shape[np.ndim(q) > 0 :])) if found.shape else found[()]


def _unless_nan(value: Tracer, rows: Tracer, axes: tuple[int, ...], keepdims: bool) -> Tracer:
    """``value``, or NaN where there is one, last in order."""
    value = np.where(np.isnan(rows[-1]), rows[-1], value) if rows.dtype.kind == "f" else value
    return keep_dims(value, axes) if keepdims else value


@implements(np.median)
def _median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The mean of the one or two elements in the middle: others may be infinite."""
    x = as_tracer(a)
    if not counted(x, axis):
        return np.mean(x, axis, out=out, keepdims=keepdims)  # NaN, of shapes without one
    rows, axes = _ordered(x.astype(np.float64) if x.dtype == bool else x, axis)
    wide = None if rows.dtype.kind in "iu" else reduced_in(rows.dtype, None, out)
    middle = np.mean(rows[(len(rows) - 1) // 2 : len(rows) // 2 + 1], axis=0, dtype=wide)
    found = _unless_nan(middle, rows, axes, keepdims)
    return finish(found if found.shape else found[()], out, "unsafe")


@implements(np.quantile)
def _quantile(a: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _quantiles(a, q, axis, keepdims)


@implements(np.percentile)
def _percentile(a: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _quantiles(a, np.true_divide(q, 100), axis, keepdims)


@implements(np.searchsorted)
def _searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    """The number of elements that are less, or not greater: each of ``v`` is compared with all of ``a``."""
    a, v = as_tracer(a), as_tracer(v)
    if "c" in a.dtype.kind + v.dtype.kind:
        raise EngineTypeError(f"{a.dtype} and {v.dtype} are not compared in a traced function: real numbers are")
    if side not in ("left", "right") or a.ndim != 1:
        raise EngineValueError(f"side={side!r}: 'left' or 'right'; the sorted array has one axis, not shape {a.shape}")
    wide = v[..., None] if v.ndim else v
    below = _before(a, wide) if side == "left" else ~_before(wide, a)
    return np.sum(below, axis=-1, dtype=np.intp)


def _before(x: Tracer, y: Tracer) -> Tracer:
    """Whether x comes before y in sorted arrays: NaN comes last."""
    less = np.less(x, y)
    return less | (np.isnan(y) & ~np.isnan(x)) if y.dtype.kind == "f" else less


@implements(np.digitize)
def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    return _searchsorted(bins, x, "left" if right else "right")
