"""Shape and dtype rules of the primitives: `Aval` of the operands and parameters to the tuple of result `Aval`.

A rule raises `EngineValueError` or `EngineTypeError` with both values; who calls it knows the equation or source line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from . import expr
from .avals import Aval
from .errors import EngineTypeError, EngineValueError
from .views import View, broadcast_shapes, normal_axes, normal_axis

Avals = tuple[Aval, ...]
Rule = Callable[..., Avals]

BOOL, INDEX, KEY = np.dtype(bool), np.dtype(np.intp), np.dtype(np.uint32)


# -- maps --------------------------------------------------------------------------------------------------------------
def _broadcast(avals: tuple[Aval, ...]) -> tuple[int, ...]:
    """The shape to which those of the operands broadcast."""
    return broadcast_shapes(*(aval.shape for aval in avals))


def _dtypes(avals: tuple[Aval, ...]) -> str:
    return ", ".join(str(aval.dtype) for aval in avals)


@lru_cache(maxsize=4096)
def loop_dtypes(
    ufunc: np.ufunc, given: tuple[Any, ...], result: np.dtype | None = None, casting: str = "same_kind"
) -> tuple[np.dtype, ...]:
    """The dtypes in which NumPy runs ``ufunc``: of its operands, then of its results.

    ``given``: one dtype per operand; the types int, float and complex stand for Python scalars, which are weak.
    ``result`` asks for the loop with that result, as the argument ``dtype=`` of a ufunc; ``casting`` is the rule by which
    operands go to the loop's dtypes.

    >>> loop_dtypes(np.add, (np.dtype("float32"), float))
    (dtype('float32'), dtype('float32'), dtype('float32'))
    """
    wanted = {} if result is None else {"signature": (None,) * ufunc.nin + (result,) * ufunc.nout}
    try:
        return ufunc.resolve_dtypes((*given, *(None,) * ufunc.nout), **wanted, casting=casting)
    except (TypeError, ValueError):
        names = ", ".join(item.__name__ if isinstance(item, type) else str(item) for item in given)
        asked = "" if result is None else f" with dtype={result}"
        asked += "" if casting == "same_kind" else f" with casting={casting!r}"
        raise EngineTypeError(f"np.{ufunc.__name__} has no meaning for {names}{asked}") from None


def elementwise(ufunc: np.ufunc) -> Rule:
    """Broadcast shapes; the operands already have the dtypes of NumPy's loop."""

    def rule(*avals: Aval) -> Avals:
        given = tuple(aval.dtype for aval in avals)
        *needed, result = loop_dtypes(ufunc, given)
        if tuple(needed) != given:
            raise EngineTypeError(
                f"operands have dtypes {_dtypes(avals)}: cast to {', '.join(map(str, needed))}"
            )
        return (Aval(_broadcast(avals), result),)

    return rule


def floating(x: Aval) -> Avals:
    """One operand of a real floating-point dtype; the result is like it."""
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        raise EngineTypeError(f"the operand has dtype {x.dtype}, not a real floating-point one")
    return (x,)


def component(x: Aval) -> Avals:
    """Real or imaginary part."""
    return (Aval(x.shape, np.empty(0, x.dtype).real.dtype),)


def cast(x: Aval, *, dtype: np.dtype) -> Avals:
    return (Aval(x.shape, np.dtype(dtype)),)


def select(condition: Aval, x: Aval, y: Aval) -> Avals:
    if condition.dtype != BOOL:
        raise EngineTypeError(f"the condition has dtype {condition.dtype}, not bool")
    if x.dtype != y.dtype:
        raise EngineTypeError(f"the choices have dtypes {x.dtype} and {y.dtype}: cast both")
    return (Aval(_broadcast((condition, x, y)), x.dtype),)


# -- reductions and contractions ---------------------------------------------------------------------------------------
def reduction(*, empty: bool, result: np.dtype | None = None) -> Rule:
    """The axes ``axes`` (sorted, at least one) go. ``empty``: a reduction of no elements has a value."""

    def rule(x: Aval, *, axes: tuple[int, ...]) -> Avals:
        if tuple(sorted(normal_axes(axes, x.ndim, x.shape))) != axes or not axes:
            raise EngineValueError(f"axes {axes} of shape {x.shape} are not sorted, not from 0 up, or none")
        if not empty and any(x.shape[axis] == 0 for axis in axes):
            raise EngineValueError(f"shape {x.shape} has no element along axes {axes}, and nothing is neutral")
        return (Aval(tuple(n for i, n in enumerate(x.shape) if i not in axes), result or x.dtype),)

    return rule


def arg_reduction(x: Aval, *, axis: int) -> Avals:
    axis = normal_axis(axis, x.ndim, x.shape)
    if x.shape[axis] == 0:
        raise EngineValueError(f"shape {x.shape} has no element along axis {axis}")
    return (Aval(x.shape[:axis] + x.shape[axis + 1 :], INDEX),)


def einsum(*operands: Aval, subscripts: str) -> Avals:
    found = expr.parse(subscripts, [operand.shape for operand in operands])
    if len({operand.dtype for operand in operands}) > 1:
        raise EngineTypeError(f"operands have dtypes {_dtypes(operands)}: cast to one")
    return (Aval(found.output_shape, operands[0].dtype),)


# -- views -------------------------------------------------------------------------------------------------------------
def access(root: Aval, *, view: View) -> Avals:
    if not isinstance(view, View):
        raise EngineTypeError(f"view {view!r} is a {type(view).__name__}, not a View")
    if not view.fits(root.size):
        raise EngineValueError(f"view {view} leaves the {root.size} elements of its root, shape {root.shape}")
    return (Aval(view.shape, root.dtype),)


def copy(x: Aval) -> Avals:
    return (x,)


def assign(root: Aval, value: Aval, *, view: View) -> Avals:
    access(root, view=view)
    if not view.injective():
        raise EngineValueError(f"view {view} names an element twice: it cannot be written")
    _same_dtype(root, value)
    _fits(value, view.shape)
    return (root,)


def _same_dtype(root: Aval, value: Aval) -> None:
    if root.dtype != value.dtype:
        raise EngineTypeError(f"a value of dtype {value.dtype} is written to dtype {root.dtype}: cast it")


def _fits(value: Aval, shape: tuple[int, ...]) -> None:
    tail = shape[len(shape) - value.ndim :] if value.ndim <= len(shape) else ()
    if value.ndim > len(shape) or any(n not in (1, m) for n, m in zip(value.shape, tail)):
        raise EngineValueError(f"a value of shape {value.shape} does not broadcast to shape {shape}")


# -- elements named by arrays ------------------------------------------------------------------------------------------
def gather(x: Aval, *indices: Aval, axes: tuple[int, ...]) -> Avals:
    axes_found = normal_axes(axes, x.ndim, x.shape)
    if axes_found != axes or len(axes) != len(indices) or not axes:
        raise EngineValueError(f"{len(indices)} index arrays for axes {axes} of shape {x.shape}")
    for index in indices:
        if index.dtype.kind not in "iu":
            raise EngineTypeError(f"an index array has dtype {index.dtype}, not an integer one")
    rest = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return (Aval(_broadcast(indices) + rest, x.dtype),)


def scatter(x: Aval, value: Aval, *indices: Aval, axes: tuple[int, ...]) -> Avals:
    (target,) = gather(x, *indices, axes=axes)
    _same_dtype(x, value)
    _fits(value, target.shape)
    return (x,)


# -- shapes ------------------------------------------------------------------------------------------------------------
def concatenate(*parts: Aval, axis: int) -> Avals:
    if not parts:
        raise EngineValueError("no parts, whose shape and dtype the result would have")
    first = parts[0]
    axis = normal_axis(axis, first.ndim, first.shape)
    for part in parts[1:]:
        if part.ndim != first.ndim or any(n != m for i, (n, m) in enumerate(zip(part.shape, first.shape)) if i != axis):
            raise EngineValueError(f"shapes {first.shape} and {part.shape} differ beside axis {axis}")
        if part.dtype != first.dtype:
            raise EngineTypeError(f"parts have dtypes {_dtypes(parts)}: cast to one")
    size = sum(part.shape[axis] for part in parts)
    return (Aval((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype),)


def pad(x: Aval, value: Aval, *, widths: tuple[tuple[int, int], ...]) -> Avals:
    if len(widths) != x.ndim or any(min(pair) < 0 for pair in widths):
        raise EngineValueError(f"widths {widths} do not give two counts from 0 for each axis of shape {x.shape}")
    _same_dtype(x, value)
    _fits(value, ())
    return (Aval(tuple(n + before + after for n, (before, after) in zip(x.shape, widths)), x.dtype),)


def iota(*, size: int, dtype: np.dtype) -> Avals:
    if size < 0:
        raise EngineValueError(f"size {size} is negative")
    return (Aval((size,), np.dtype(dtype)),)


def sort(x: Aval, *, axis: int) -> Avals:
    normal_axis(axis, x.ndim, x.shape)
    return (x,)


def argsort(x: Aval, *, axis: int) -> Avals:
    normal_axis(axis, x.ndim, x.shape)
    return (Aval(x.shape, INDEX),)


# -- control -----------------------------------------------------------------------------------------------------------
def _takes(program: Any, operands: Avals, name: str) -> None:
    wanted = tuple(var.aval for var in program.inputs)
    if wanted != operands:
        raise EngineValueError(f"{name} takes ({', '.join(map(str, wanted))}), not ({', '.join(map(str, operands))})")


def cond(predicate: Aval, *operands: Aval, true: Any, false: Any) -> Avals:
    if predicate != Aval((), BOOL):
        raise EngineTypeError(f"the predicate is {predicate}, not bool[]: reduce it with np.any or np.all")
    _takes(true, operands, "the true branch")
    _takes(false, operands, "the false branch")
    one, two = (tuple(atom.aval for atom in program.outputs) for program in (true, false))
    if one != two:
        raise EngineValueError(f"the branches return ({', '.join(map(str, one))}) and ({', '.join(map(str, two))})")
    return one


def while_(*values: Aval, test: Any, body: Any, carried: int) -> Avals:
    _takes(test, values, "the test")
    _takes(body, values, "the body")
    if tuple(atom.aval for atom in test.outputs) != (Aval((), BOOL),):
        raise EngineTypeError(f"the test returns {', '.join(str(atom.aval) for atom in test.outputs)}, not bool[]")
    made, held = tuple(atom.aval for atom in body.outputs), values[:carried]
    if made != held:
        raise EngineValueError(f"the body turns ({', '.join(map(str, held))}) into ({', '.join(map(str, made))})")
    return made


# -- random numbers ----------------------------------------------------------------------------------------------------
def _drawn(key: Aval, shape: tuple[int, ...], dtype: np.dtype) -> Avals:
    if key != Aval((2,), KEY):
        raise EngineTypeError(f"a key is uint32[2], not {key}")
    if any(size < 0 for size in shape):
        raise EngineValueError(f"shape {shape} has a negative size")
    return (Aval(tuple(shape), np.dtype(dtype)),)


def random_bits(key: Aval, *, shape: tuple[int, ...], stream: int = 0) -> Avals:
    return _drawn(key, shape, KEY)


def random_uniform(key: Aval, *, shape: tuple[int, ...], dtype: np.dtype, stream: int = 1) -> Avals:
    return random_float(key, shape=shape, dtype=dtype)


def random_float(key: Aval, *, shape: tuple[int, ...], dtype: np.dtype) -> Avals:
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise EngineTypeError(f"random numbers have dtype float32 or float64, not {dtype}")
    return _drawn(key, shape, dtype)
