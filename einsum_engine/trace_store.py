"""Where the results of functions go in a traced function: choices between elements, ``out=``, ``where=``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .trace import Tracer, cast_atom, emit, fresh, given_dtype, lift, memories, weak
from .trace_memory import result_memory
from .views import broadcast_shapes


# -- choices between elements ------------------------------------------------------------------------------------------
def apply_select(condition: Any, x: Any, y: Any) -> Tracer:
    """`np.where` of three operands."""
    dtype = select_dtype(x, y)
    atoms = [cast_atom(lift(condition), np.dtype(bool))]
    atoms += [cast_atom(lift(value, dtype), dtype) for value in (x, y)]
    atom = emit("select", *atoms)
    found = fresh(atom, result_memory(atom.shape, dtype.itemsize, memories(condition, x, y)))
    found.scalar = False
    return found


def write_where(target: Tracer, condition: Any, value: Any, casting: str = "unsafe") -> None:
    """Write ``value`` to the elements for which the condition holds."""
    check_mask(condition)
    target.check_distinct()
    target.write(apply_select(condition, value, target), casting)


def check_mask(condition: Any) -> None:
    """Raises `EngineTypeError` where an argument ``where=`` is no array of truth values."""
    if given_dtype(condition) != bool:
        raise EngineTypeError(f"where= has dtype {given_dtype(condition)}, not bool: compare, or use .astype(bool)")


def select_dtype(*values: Any) -> np.dtype:
    """The dtype of several choices, Python numbers being weak (bool: not)."""
    return np.result_type(*(value if weak(value) else given_dtype(value) for value in values))


# -- out= --------------------------------------------------------------------------------------------------------------
def store(target: Any, value: Tracer, casting: str, where: Any) -> Any:
    """``value`` written to the ``out=`` argument ``target`` of a ufunc, which it is broadcast to; ``value`` if None."""
    if target is None:
        return value
    _check_traced(target)
    if value.ndim > target.ndim or target.shape != broadcast_shapes(target.shape, value.shape):
        raise EngineValueError(f"non-broadcastable output operand with shape {target.shape}, result {value.shape}")
    _check_cast(value.dtype, target, casting)
    target.write(value) if where is True else write_where(target, where, value.astype(target.dtype))
    return target


def finish(result: Tracer, out: Any, casting: str = "same_kind") -> Any:
    """The result of a function with an argument ``out``, which has exactly the result's shape."""
    target = destination(out)
    if target is None:
        return result
    if target.shape != result.shape:
        raise EngineValueError(f"out= has shape {target.shape}, the result has shape {result.shape}")
    _check_cast(result.dtype, target, casting)
    target.write(result)
    return target


def finish_alike(result: Tracer, out: Any) -> Any:
    """As `finish`, of a product of matrices: ``out`` has the result's dtype too, and lies in C order."""
    target = destination(out)
    if target is not None and target.dtype != result.dtype:
        raise EngineValueError(f"out= has dtype {target.dtype}, the result has {result.dtype}: they must be the same")
    if target is not None and not target.memory.is_contiguous(target.itemsize):
        raise EngineValueError("out= does not lie in C order in memory, which a product of matrices needs")
    return finish(result, target)


def destination(out: Any) -> Tracer | None:
    """The array that the argument ``out`` names; a ufunc's is a tuple."""
    if isinstance(out, tuple):
        if len(out) != 1:
            raise EngineTypeError(f"out= has {len(out)} arrays for one result")
        (out,) = out
    if out is not None:
        _check_traced(out)
    return out


def reduced_in(given: np.dtype, dtype: Any, out: Any) -> Any:
    """The dtype that a reduction of ``given`` computes in; None is its own choice. NumPy lets ``out`` take part in it,
    and casts the result by the rule "unsafe"."""
    target = destination(out)
    return np.result_type(given, target.dtype) if dtype is None and target is not None else dtype


def _check_traced(target: Any) -> None:
    if not isinstance(target, Tracer):
        raise EngineTypeError(
            "out= is an array that is not traced: it would be written while tracing only; pass it as an argument, or "
            "make it by np.zeros_like(x, shape=...) or np.zeros(..., like=x) of a traced x"
        )


def _check_cast(dtype: np.dtype, target: Tracer, casting: str) -> None:
    if not np.can_cast(dtype, target.dtype, casting):
        raise EngineTypeError(f"cannot cast the result from {dtype} to {target.dtype} with rule {casting!r}")
