"""What NumPy's ufuncs, their methods and `out=` do to traced arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .ir import Literal
from .op_rules import loop_dtypes
from .ops import BY_UFUNC
from .trace import (
    HANDLERS,
    Tracer,
    apply_map,
    as_tracer,
    cast_atom,
    complete,
    emit,
    fresh,
    given_dtype,
    lift,
    weak,
)
from .trace_memory import result_memory
from .trace_store import apply_select, check_mask, finish, reduced_in, store
from .views import View, normal_axes

# Comparison -> what it says of (array element, integer that is larger than any element can be).
_BEYOND: dict[np.ufunc, bool] = {
    np.equal: False,
    np.not_equal: True,
    np.less: True,
    np.less_equal: True,
    np.greater: False,
    np.greater_equal: False,
}
_REDUCTIONS = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "reduce_max",
    np.minimum: "reduce_min",
    np.logical_and: "all",
    np.logical_or: "any",
}


def handle_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__array_ufunc__` of a tracer."""
    out = kwargs.pop("out", None)
    if method == "__call__":
        return complete(_call)(ufunc, inputs, out, **kwargs) if kwargs else _call(ufunc, inputs, out)
    if method in ("accumulate", "reduceat") or (method == "reduce" and ufunc not in _REDUCTIONS):
        return complete(HANDLERS[method])(ufunc, *inputs, out=None if out is None else out[0], **kwargs)
    if method == "reduce":
        return complete(reduce_ufunc)(ufunc, *inputs, out=None if out is None else out[0], **kwargs)
    if method == "at" and ufunc in (np.add, np.subtract):
        target, key, value = inputs
        return _add_at(target, key, np.negative(value) if ufunc is np.subtract else value)
    if method == "outer" and ufunc.nin == 2:
        left, right = (as_tracer(x) for x in inputs)
        return _call(ufunc, (left.derive(lambda v: v.expand(range(v.ndim, v.ndim + right.ndim))), right), out, **kwargs)
    raise EngineTypeError(f"np.{ufunc.__name__}.{method} is not supported in a traced function")


def _call(
    ufunc: np.ufunc, inputs: tuple[Any, ...], out: Any, dtype: Any = None, casting: str = "same_kind", where: Any = True
) -> Any:
    if ufunc in _EXPANDED:
        if dtype is not None or casting != "same_kind":
            loop = loop_dtypes(ufunc, tuple(map(given_dtype, inputs)), dtype and np.dtype(dtype), casting)
            inputs = tuple(as_tracer(x).astype(wide, copy=False) for x, wide in zip(inputs, loop))
        result = _EXPANDED[ufunc](*inputs)
    elif ufunc in BY_UFUNC:
        result = compare_beyond(ufunc, inputs) if ufunc in _BEYOND and dtype is None else None
        result = apply_map(ufunc, *inputs, dtype=dtype, casting=casting) if result is None else result
    else:
        raise EngineTypeError(f"np.{ufunc.__name__} is not supported in a traced function")
    if out is None:
        if where is not True:
            raise EngineValueError("where= without out= leaves elements undefined: use engine.where")
        return result
    results = result if isinstance(result, tuple) else (result,)
    stored = tuple(store(target, value, casting, where) for target, value in zip(out, results, strict=True))
    return stored if isinstance(result, tuple) else stored[0]


def compare_beyond(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Tracer | None:
    """A comparison with a Python integer that the other dtype does not hold: NumPy compares exactly."""
    for at, (number, other) in enumerate((inputs, inputs[::-1])):
        dtype = given_dtype(other)
        if type(number) is not int or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
            continue
        info = np.iinfo(dtype)
        if info.min <= number <= info.max:
            return None
        flips = (at == 0) != (number < info.min)  # the number on the left, or below every element
        holds = _BEYOND[ufunc] if ufunc in (np.equal, np.not_equal) else _BEYOND[ufunc] != flips
        literal = Literal.of(holds, np.dtype(bool))
        shape = np.shape(other)
        return fresh(emit("access", literal, view=View.whole(()).broadcast(shape)) if shape else literal)
    return None


# -- ufuncs that are several maps --------------------------------------------------------------------------------------
def _reciprocal(x: Any) -> Tracer:
    if given_dtype(x).kind not in "fc":
        raise EngineTypeError(f"np.reciprocal of {given_dtype(x)} is not supported in a traced function: divide")
    found = apply_map(np.true_divide, 1, x)
    if found.dtype.kind != "c":
        return found
    found = apply_select(np.equal(x, 0), complex(np.nan, np.nan), found)  # division says infinity
    return found if found.shape else found[()]


def _wide(dtype: np.dtype) -> np.dtype:
    """float16 is computed in float32, and rounded once."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _not_nan(ufunc: np.ufunc) -> Callable[[Any, Any], Tracer]:
    """`np.fmax`, `np.fmin`: of a NaN and a number, the number; of two NaN the first."""

    def found(x: Any, y: Any) -> Tracer:
        best = ufunc(x, y)
        if best.dtype.kind not in "fc":
            return best
        x, y = (as_tracer(v).astype(best.dtype, copy=False) for v in (x, y))
        best = apply_select(np.isnan(y), x, apply_select(np.isnan(x), y, best))
        return best if best.shape else best[()]

    return found


def _scaled(ufunc: np.ufunc, factor: float) -> Callable[[Any], Tracer]:
    def found(x: Any) -> Tracer:
        dtype = loop_dtypes(ufunc, (given_dtype(x),))[0]
        wide = _wide(dtype)
        return np.multiply(as_tracer(x).astype(wide, copy=False), wide.type(factor)).astype(dtype, copy=False)

    return found


def _float_power(x: Any, y: Any) -> Tracer:
    dtype = loop_dtypes(np.float_power, (given_dtype(x), given_dtype(y)))[0]
    return apply_map(np.power, as_tracer(x).astype(dtype, copy=False), as_tracer(y).astype(dtype, copy=False))


def _modf(x: Any) -> tuple[Tracer, Tracer]:
    x = as_tracer(x).astype(loop_dtypes(np.modf, (given_dtype(x),))[0], copy=False)
    whole = np.trunc(x)
    return np.copysign(apply_select(np.isinf(x), whole.dtype.type(0), x - whole), x), whole


def _positive(x: Any) -> Tracer:
    dtype = loop_dtypes(np.positive, (given_dtype(x),))[0]  # not of bool
    return fresh(emit("copy", lift(x, dtype)))


def _square(x: Any) -> Tracer:
    x = x.astype(loop_dtypes(np.square, (x.dtype,))[0], copy=False)  # bool becomes int8
    return apply_map(np.multiply, x, x)


def _fabs(x: Any) -> Tracer:
    return apply_map(np.absolute, x, dtype=np.fabs.resolve_dtypes((given_dtype(x), None))[1])


def _clip(x: Any, low: Any, high: Any) -> Tracer:
    return np.minimum(np.maximum(x, low), high)


def _logaddexp(ufunc: np.ufunc, power: np.ufunc, factor: float) -> Callable[[Any, Any], Tracer]:
    """The larger one, and a logarithm of 1 and what the smaller one adds; ``factor`` times the natural one."""

    def found(x: Any, y: Any) -> Tracer:
        dtype = loop_dtypes(ufunc, (given_dtype(x), given_dtype(y)))[0]
        x, y = (as_tracer(v).astype(dtype, copy=False) for v in (x, y))
        high, low = np.maximum(x, y), np.minimum(x, y)
        gap = apply_select(np.equal(high, low), 0.0, np.subtract(low, high))  # equal infinities
        more = np.log1p(power(gap))
        return np.add(high, more if factor == 1 else np.multiply(more, dtype.type(factor)))

    return found


def matmul(left: Any, right: Any) -> Tracer:
    """`np.matmul`, as an einsum."""
    left, right = as_tracer(left), as_tracer(right)
    if not left.ndim or not right.ndim:
        raise EngineValueError(f"matmul of a scalar: shapes {left.shape} and {right.shape}")
    if left.shape[-1] != right.shape[-2 if right.ndim > 1 else -1]:
        raise EngineValueError(f"matmul of shapes {left.shape} and {right.shape}: the summed axes differ")
    one, two = ("...ij" if left.ndim > 1 else "j"), ("...jk" if right.ndim > 1 else "j")
    out = "..." + ("i" if left.ndim > 1 else "") + ("k" if right.ndim > 1 else "")
    return apply_einsum(f"{one},{two}->{out if '.' in one + two else ''}", left, right)


def apply_einsum(subscripts: str, *operands: Any, dtype: Any = None) -> Tracer:
    """`np.einsum` with explicit or implicit output."""
    wanted = np.result_type(*(given_dtype(x) for x in operands)) if dtype is None else np.dtype(dtype)
    atoms = [cast_atom(lift(x), wanted) for x in operands]
    return fresh(emit("einsum", *atoms, subscripts=subscripts.replace(" ", "")))


_EXPANDED: dict[np.ufunc, Callable[..., Any]] = {
    np.square: _square,
    np.fmax: _not_nan(np.maximum),
    np.fmin: _not_nan(np.minimum),
    np.float_power: _float_power,
    np.modf: _modf,
    **{f: _scaled(f, np.pi / 180) for f in (np.deg2rad, np.radians)},
    **{f: _scaled(f, 180 / np.pi) for f in (np.rad2deg, np.degrees)},
    np.reciprocal: _reciprocal,
    np.positive: _positive,
    np.fabs: _fabs,
    np.divmod: lambda x, y: (apply_map(np.floor_divide, x, y), apply_map(np.remainder, x, y)),
    np.logaddexp: _logaddexp(np.logaddexp, np.exp, 1),
    np.logaddexp2: _logaddexp(np.logaddexp2, np.exp2, 1 / log(2)),
    np.matmul: matmul,
    **{
        getattr(np, name, None): lambda x, y, text=text, left=left: apply_einsum(
            text, np.conjugate(x) if left and given_dtype(x).kind == "c" else x, y
        )
        for name, text, left in (
            ("vecdot", "...i,...i->...", True),
            ("matvec", "...ij,...j->...i", False),
            ("vecmat", "...i,...ij->...j", True),
        )
    },
}


# -- reductions --------------------------------------------------------------------------------------------------------
def reduce_ufunc(
    ufunc: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = np._NoValue,
    where: Any = True,
) -> Any:
    """``ufunc.reduce``, for the ufuncs that have a reduction among the primitives."""
    x = as_tracer(x) if isinstance(x, (Tracer, np.ndarray)) else stacked(x)
    if ufunc not in (np.logical_and, np.logical_or):  # whose loops end in bool, of any dtype
        dtype = reduced_in(x.dtype, dtype, out)
    if ufunc in (np.add, np.multiply):
        x = x.astype(accumulator(x.dtype) if dtype is None else dtype, copy=False)
    elif dtype is not None:
        x = x.astype(dtype, copy=False)
    first = None if initial is np._NoValue else initial
    if where is not True:
        check_mask(where)
        if ufunc.identity is None and first is None:
            raise EngineValueError(f"np.{ufunc.__name__}.reduce with where= needs initial=: nothing is neutral")
        scalar = x.dtype.type(ufunc.identity if first is None else first)
        x = apply_select(where, x, scalar if ufunc.identity is None else x.dtype.type(ufunc.identity))
    if first is not None and ufunc.identity is None and x.size == 0:
        row = np.add.reduce(np.zeros(x.shape, bool), axis=axis, keepdims=keepdims)
        return finish(fresh(lift(np.full_like(row, first, dtype=x.dtype))), out, "unsafe")
    result = reduce_axes(_REDUCTIONS[ufunc], x, axis, bool(keepdims))
    return finish(result if first is None else ufunc(result, result.dtype.type(first)), out, "unsafe")


def stacked(x: Any) -> Tracer:
    """A list of traced arrays, as NumPy's functions take one for an array."""
    return np.stack([as_tracer(part) for part in x]) if isinstance(x, (list, tuple)) else as_tracer(x)


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which NumPy sums: integers no narrower than the machine's."""
    if dtype.kind in "bi" and dtype.itemsize <= np.dtype(np.intp).itemsize:
        return np.dtype(np.intp)
    return np.dtype(np.uintp) if dtype.kind == "u" else dtype


def reduce_axes(name: str, x: Tracer, axis: Any, keepdims: bool) -> Tracer:
    """The reduction ``name`` over ``axis`` (None: all axes; an int or several)."""
    number = not x.ndim and axis in (0, -1)  # NumPy lets a number have an axis here
    every = range(x.ndim) if axis is None or number else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted(normal_axes([operator.index(a) for a in every], x.ndim, x.shape)))
    if not axes:  # of a scalar, or over no axis: an elementwise identity
        truth = name in ("any", "all")
        return fresh(cast_atom(x.read(), np.dtype(bool)) if truth and x.dtype != bool else emit("copy", x.read()))
    atom = emit(name, x.read(), axes=axes)
    keep = [i for i in range(x.ndim) if i not in axes]
    result = fresh(atom, result_memory(atom.shape, atom.dtype.itemsize, [x.memory], keep))
    return keep_dims(result, axes) if keepdims else result


def keep_dims(result: Tracer, axes: tuple[int, ...]) -> Tracer:
    """The result of a reduction with axes of size 1 where it reduced."""
    found = result.derive(lambda view: view.expand(axes))
    found.scalar = False
    return found


def _add_at(target: Any, key: Any, value: Any) -> None:
    if not isinstance(target, Tracer):
        raise EngineTypeError("np.add.at into an array that is not traced: pass it as an argument")
    kind, loop = target.dtype.kind, loop_dtypes(np.add, (target.dtype, given_dtype(value)))[-1]
    if (kind in "iu" and loop.kind in "fc") or (kind == "b" and loop.kind != "b"):
        raise EngineTypeError(f"sums of {loop}, each cast to {target.dtype}, are not supported in a traced function")
    HANDLERS["add_at"](target, key, value, add=True)


HANDLERS["ufunc"] = handle_ufunc


# -- operators that NumPy's scalars have, and in-place operators, which scalars do not have ----------------------------
def _in_place(ufunc: np.ufunc) -> Callable[[Tracer, Any], Any]:
    def method(self: Tracer, other: Any) -> Any:
        return ufunc(self, other) if self.scalar else ufunc(self, other, out=(self,))

    return method


def quick_power(base: Tracer, exponent: Any, out: Tracer | None = None) -> Any:
    """``base ** exponent``; of an array and a Python number as NumPy's operator: by square, sqrt or reciprocal."""
    kind, ufunc = base.dtype.kind, np.power
    if not base.scalar and weak(exponent) and kind in "biufc":
        if exponent == 2 and (kind in "fc" or type(exponent) is int):
            ufunc = np.square
        elif exponent in (0.5, -1) and kind in "fc":
            ufunc = np.sqrt if exponent == 0.5 else np.reciprocal
    operands = (base, exponent) if ufunc is np.power else (base,)
    return ufunc(*operands) if out is None else ufunc(*operands, out=(out,))


Tracer.__pow__ = quick_power  # type: ignore[assignment, method-assign]
for _name, _ufunc in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "matmul": np.matmul,
}.items():
    setattr(Tracer, f"__i{_name}__", _in_place(_ufunc))
Tracer.__ipow__ = lambda self, other: quick_power(self, other, None if self.scalar else self)  # type: ignore[assignment]
