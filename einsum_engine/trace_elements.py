"""NumPy's functions of single elements that are a few of its ufuncs, for traced arrays: choices, NaN, angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .op_rules import INDEX
from .trace import Tracer, as_tracer, emit, fresh, given_dtype, implements, lift
from .trace_shapes import flattened, unscalar
from .trace_store import apply_select, destination, finish, select_dtype, store, write_where
from .views import normal_axis


# -- choice ------------------------------------------------------------------------------------------------------------
@implements(np.select)
def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise EngineValueError(f"{len(condlist)} conditions, but {len(choicelist)} choices")
    wanted = select_dtype(*choicelist, default)
    found: Any = fresh(lift(default, wanted)).astype(wanted)
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        found = apply_select(condition, choice, found)
    return found


@implements(np.clip)
def _clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None) -> Any:
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise EngineValueError("the bounds are a_min and a_max, or min and max: not both")
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    x = a = as_tracer(a)
    if a.dtype.kind in "iu":  # a Python integer that the dtype does not hold may be a bound that nothing reaches
        info = np.iinfo(a.dtype)
        low = None if type(low) is int and low <= info.min else low
        high = None if type(high) is int and high >= info.max else high
    x = x if low is None else np.maximum(x, low)
    x = x if high is None else np.minimum(x, high)
    return store(out, x if x is not a else a.copy(), "same_kind", True)


@implements(np.choose)
def _choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    if mode != "raise" or out is not None:
        raise EngineTypeError("np.choose takes neither mode= nor out= in a traced function")
    parts, index = [choices[i] for i in range(len(choices))], as_tracer(a)
    if index.dtype.kind not in "biu":
        raise EngineTypeError(f"np.choose takes integers, not {index.dtype}")
    # where no choice has that number, taking the numbers themselves is an error of the call, as any bad index
    index = np.take(np.arange(len(parts), like=index), np.where(index < 0, len(parts), index.astype(np.int64)))
    return _select([np.equal(index, i) for i in range(len(parts) - 1)], parts[:-1], parts[-1])


@implements(np.piecewise)
def _piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Every function of all elements: conditions choose among the results, the last one that holds counts."""
    conditions = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise EngineValueError(f"{len(conditions)} conditions, but {len(funclist)} functions")
    made = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    found = np.zeros_like(x)
    found.write(made[len(conditions)] if len(made) > len(conditions) else 0)
    for condition, value in zip(conditions, made):
        np.copyto(found, value, casting="unsafe", where=condition)
    return found


@implements(np.compress)
def _compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Of a condition that is known: what is taken has a shape before the function runs."""
    if isinstance(condition, Tracer):
        raise EngineTypeError("a traced condition of np.compress is not supported: nobody knows how many of it hold")
    return np.take(a, np.flatnonzero(condition), axis, out)


@implements(np.extract)
def _extract(condition: Any, arr: Any) -> Any:
    return _compress(condition if isinstance(condition, Tracer) else np.ravel(condition), arr)


@implements(np.isin)
def _isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    """Each is compared with all."""
    element, every = as_tracer(element), np.ravel(as_tracer(test_elements))
    found = np.any(np.equal(element[..., None], every), axis=-1)
    return unscalar(~found if invert else found)


@implements(np.put)
def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if mode != "raise" or np.ndim(v) > np.ndim(ind) or (np.ndim(v) and np.shape(v) != np.shape(ind)):
        raise EngineTypeError(f"np.put takes one value or as many as places: shapes {np.shape(v)} and {np.shape(ind)}")
    a.flat[ind] = v


@implements(np.take_along_axis)
def _take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    x, key = _along_axis(as_tracer(arr), indices, axis)
    return x[key]


@implements(np.put_along_axis)
def _put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    if not isinstance(arr, Tracer):
        raise EngineTypeError("np.put_along_axis into an array that is not traced: pass it as an argument")
    if axis is None:
        arr.flat[indices] = values
        return
    x, key = _along_axis(arr, indices, axis)
    x[key] = values


def _along_axis(x: Tracer, indices: Any, axis: Any) -> tuple[Tracer, tuple[Any, ...]]:
    """The array, or all of its elements in a row, and the key of the elements that ``indices`` name along an axis."""
    x, axis = (flattened(x), 0) if axis is None else (x, normal_axis(axis, x.ndim, x.shape))
    places = indices if isinstance(indices, Tracer) else np.asarray(indices)
    if places.ndim != x.ndim:
        raise EngineValueError(f"indices of shape {places.shape} have not as many axes as shape {x.shape}")
    key: list[Any] = [places] * x.ndim
    for i, size in enumerate(x.shape):
        if i != axis:
            steps = fresh(emit("iota", size=size, dtype=INDEX))
            key[i] = steps.derive(lambda v, i=i: v.expand([j for j in range(x.ndim) if j != i]))
    return x, tuple(key)


@implements(np.putmask)
def _putmask(a: Any, /, mask: Any, values: Any) -> None:
    if np.ndim(values) and np.shape(values) != a.shape:
        raise EngineTypeError(f"np.putmask of shape {a.shape} takes one value, or as many: shape {np.shape(values)}")
    write_where(a, as_tracer(mask).astype(bool, copy=False), values)


# -- NaN, closeness, kinds ---------------------------------------------------------------------------------------------
@implements(np.nan_to_num)
def _nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if x.dtype.kind == "c":
        raise EngineTypeError("np.nan_to_num of a complex array is not supported in a traced function")
    found = x.astype(x.dtype)
    if x.dtype.kind == "f":
        info, kind = np.finfo(x.dtype), x.dtype.type
        high, low = (kind(end if value is None else value) for end, value in ((info.max, posinf), (info.min, neginf)))
        found = np.where(np.isnan(x), kind(nan), np.where(np.equal(x, np.inf), high, np.where(x == -np.inf, low, x)))
    if not copy:
        x.write(found)
        return x
    return found if found.shape else found[()]


def _without_nan(reduce: Any, filler: float) -> Callable[..., Any]:
    def found(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        x = as_tracer(a)
        x = np.where(np.isnan(x), x.dtype.type(filler), x) if x.dtype.kind in "fc" else x
        return reduce(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    return found


implements(np.nansum)(_without_nan(np.sum, 0))
implements(np.nanprod)(_without_nan(np.prod, 1))


def _extreme(reduce: Any, filler: float) -> Callable[..., Any]:
    def found(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        x = as_tracer(a)
        if x.dtype.kind not in "fc":
            return reduce(x, axis=axis, out=out, keepdims=keepdims)
        nan = np.isnan(x)
        # of complex numbers both parts: the imaginary one decides among equal real parts
        least = x.dtype.type(filler if x.dtype.kind == "f" else complex(filler, filler))
        best = reduce(np.where(nan, least, x), axis=axis, keepdims=keepdims)
        best = np.where(np.all(nan, axis=axis, keepdims=keepdims), x.dtype.type(np.nan), best)
        best = best if best.ndim else best[()]
        return finish(best, out, "unsafe")

    return found


implements(np.nanmax)(_extreme(np.max, -np.inf))
implements(np.nanmin)(_extreme(np.min, np.inf))


@implements(np.nanmean)
def _nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    x = as_tracer(a)
    if x.dtype.kind not in "fc":
        return np.mean(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)
    target = destination(out)
    if target is not None and target.dtype.kind not in "fc":
        raise EngineTypeError(f"out= has dtype {target.dtype}, which holds no mean of {x.dtype} without elements")
    count = np.sum(~np.isnan(x), axis=axis, keepdims=keepdims, dtype=np.intp)
    total = np.nansum(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)
    return np.true_divide(total, count.astype(total.dtype.type(0).real.dtype), out=out, casting="unsafe")


@implements(np.isclose)
def _isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """``|a - b| <= atol + rtol |b|`` where b is finite; else whether they are equal."""
    a, b = as_tracer(a), as_tracer(b)
    b = b.astype(np.float64) if b.dtype.kind in "biu" else b
    near = np.less_equal(abs(a - b), atol + rtol * abs(b)) & np.isfinite(b) | np.equal(a, b)
    return near | (np.isnan(a) & np.isnan(b)) if equal_nan else near


@implements(np.allclose)
def _allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """A traced bool: NumPy gives Python's."""
    return np.all(_isclose(a, b, rtol, atol, equal_nan))


@implements(np.array_equal)
def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """A traced bool where the shapes are equal."""
    if np.shape(a1) != np.shape(a2):
        return False
    same = np.equal(a1, a2)
    return np.all(same | (np.isnan(a1) & np.isnan(a2)) if equal_nan else same)


@implements(np.array_equiv)
def _array_equiv(a1: Any, a2: Any) -> Any:
    """A traced bool where the shapes are broadcast together."""
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))
    except ValueError:
        return False
    return np.all(np.equal(a1, a2))


@implements(np.iscomplexobj)
def _iscomplexobj(x: Any) -> bool:
    return x.dtype.kind == "c"


@implements(np.isrealobj)
def _isrealobj(x: Any) -> bool:
    return x.dtype.kind != "c"


@implements(np.isreal)
def _isreal(x: Any) -> Any:
    return np.equal(np.imag(x), 0)


@implements(np.iscomplex)
def _iscomplex(x: Any) -> Any:
    return np.not_equal(np.imag(x), 0)


def _signed(x: Any) -> Any:
    if given_dtype(x).kind == "c":
        raise EngineTypeError(f"{given_dtype(x)} has no sign: infinite numbers are neither positive nor negative")
    return x


@implements(np.isposinf)
def _isposinf(x: Any, out: Any = None) -> Any:
    return np.equal(_signed(x), np.inf, out=out)


@implements(np.isneginf)
def _isneginf(x: Any, out: Any = None) -> Any:
    return np.equal(_signed(x), -np.inf, out=out)


# -- numbers -----------------------------------------------------------------------------------------------------------
@implements(np.angle)
def _angle(z: Any, deg: bool = False) -> Any:
    found = np.arctan2(np.imag(z), np.real(z)) if z.dtype.kind == "c" else np.arctan2(0, z)
    return found * (180 / np.pi) if deg else found


@implements(np.sinc)
def _sinc(x: Any) -> Any:
    x = np.multiply(x, np.pi)
    found = np.where(x == 0, x.dtype.type(1), np.sin(x) / np.where(x == 0, x.dtype.type(1), x))
    return found if found.shape else found[()]


@implements(np.fix)
def _fix(x: Any, out: Any = None) -> Any:
    return np.trunc(x, out=out)


@implements(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    """By Horner's rule."""
    coefficients = p if isinstance(p, Tracer) else np.asarray(p)
    found = np.zeros_like(as_tracer(x))
    for i in range(coefficients.shape[0]):
        found = found * x + coefficients[i]
    return found


@implements(np.vander)
def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    if x.ndim != 1:
        raise EngineValueError(f"np.vander takes one axis, not shape {x.shape}")
    count = x.shape[0] if N is None else N
    wide = np.result_type(x.dtype, np.intp)
    powers = [np.ones_like(x, dtype=wide)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    return np.stack(powers[:count] if increasing else powers[:count][::-1], axis=-1)


@implements(np.interp)
def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if period is not None:
        raise EngineTypeError("period= of np.interp is not supported in a traced function")
    x, xp, fp = (as_tracer(v).astype(np.float64, casting="safe", copy=False) for v in (x, xp, fp))
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise EngineValueError(f"xp and fp have one axis of one size, not 0: shapes {xp.shape} and {fp.shape}")
    last = xp.shape[0] - 1
    at = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, max(last - 1, 0))
    after = np.minimum(at + 1, last)
    slope = (fp[after] - fp[at]) / (xp[after] - xp[at])
    found = slope * (x - xp[at]) + fp[at]
    back = slope * (x - xp[after]) + fp[after]  # as NumPy has it, from the other knot where one is not finite
    back = np.where(np.isnan(back) & np.equal(fp[at], fp[after]), fp[at], back)
    found = np.where(np.equal(x, xp[at]), fp[at], np.where(np.isnan(found), back, found))
    found = np.where(x > xp[last], fp[last] if right is None else right, np.where(x == xp[last], fp[last], found))
    found = np.where(x < xp[0], fp[0] if left is None else left, found)
    found = np.where(np.isnan(x), x, found)
    return found if found.shape else found[()]
