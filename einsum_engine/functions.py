"""What NumPy lacks, for arrays and in traced functions: erf, sigmoid, rsqrt, logsumexp, where, random numbers.

>>> import numpy as np
>>> import einsum_engine as engine
>>> engine.erf(np.array([0.0, 0.5])).round(4)
array([0.    , 0.5205])
>>> key = engine.random_key(7)
>>> engine.random_uniform(key, (2, 3)).shape
(2, 3)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import control as control
from .avals import Aval, known_dtype
from .errors import EngineTypeError, EngineValueError
from .ops import OPS
from .trace import Tracer, apply_map, as_tracer, emit, fresh, given_dtype, lift, tracing
from .trace_lines import located

_SPLIT = 3  # the Philox stream of `random_key(key)`: no other primitive draws from it


def _map(name: str, x: Any) -> Any:
    """A floating-point map of the table; integers become what `np.exp` makes of them."""
    with located(name, x):
        if isinstance(x, Tracer):
            return apply_map(np.exp, x, name=name)
        dtype = np.exp.resolve_dtypes((np.asarray(x).dtype, None))[0]
        array = np.asarray(x, dtype=dtype)
        OPS[name].rule(Aval(array.shape, array.dtype))
        return OPS[name].numpy(array)[()]


def erf(x: Any) -> Any:
    """The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to x.

    >>> float(erf(0.5).round(4))
    0.5205
    """
    return _map("erf", x)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without overflow.

    >>> sigmoid(np.array([-1000.0, 0.0]))
    array([0. , 0.5])
    """
    return _map("sigmoid", x)


def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``.

    >>> float(rsqrt(4))
    0.5
    """
    return _map("rsqrt", x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """``np.where(condition, x, y)``: both are computed, elements are chosen.

    >>> where(np.array([True, False]), 1, 2)
    array([1, 2])
    """
    return np.where(condition, x, y)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """``log(sum(exp(x)))`` over ``axis``, the largest element subtracted before; -inf where all elements are.

    >>> float(logsumexp(np.array([1000.0, 1000.0])).round(4))
    1000.6931
    """
    high = np.max(x, axis=axis, keepdims=True)
    high = np.where(np.isfinite(high), high, given_dtype(high).type(0))
    total = np.log(np.sum(np.exp(x - high), axis=axis, keepdims=True)) + high
    if keepdims:
        return total
    found = np.squeeze(total, axis=tuple(range(np.ndim(x))) if axis is None else axis)
    return found[()] if found.ndim == 0 else found


# -- random numbers ----------------------------------------------------------------------------------------------------
def random_key(seed: Any, index: int = 0) -> Any:
    """A key (uint32, shape (2,)) from an integer below 2**64, or the ``index``-th key that another key gives.

    The same key gives the same numbers: use each key once, and take new ones from it where several are needed.
    Raises `EngineValueError` for a negative ``index``.

    >>> random_key(7), random_key(random_key(7), 1)
    (array([7, 0], dtype=uint32), array([ 698849000, 2576041488], dtype=uint32))
    """
    if not isinstance(seed, (int, np.integer)):
        with located("random_key", seed):
            if operator.index(index) < 0:
                raise EngineValueError(f"index={index}: keys are counted from 0")
            bits = _random("random_bits", seed, (2 * index + 2,), stream=_SPLIT)
            return bits[2 * index :]
    number = int(seed) % 2**64
    return np.array([number & 0xFFFFFFFF, number >> 32], dtype=np.uint32)


def random_bits(key: Any, shape: Sequence[int]) -> Any:
    """Uniform uint32 words: Philox-4x32-10 (Salmon et al., 2011) at counters 0, 1, ... of the key.

    >>> random_bits(random_key(7), 2)
    array([4099963437, 3221879260], dtype=uint32)
    """
    return _random("random_bits", key, shape)


def random_uniform(key: Any, shape: Sequence[int], dtype: Any = np.float64) -> Any:
    """Uniform in [0, 1), with 24 (float32) or 53 (float64) random bits.

    >>> random_uniform(random_key(7), 2, "float32").round(4)
    array([0.495 , 0.1717], dtype=float32)
    """
    return _random("random_uniform", key, shape, dtype=dtype)


def random_normal(key: Any, shape: Sequence[int], dtype: Any = np.float64) -> Any:
    """Standard normal, by the method of Box and Muller.

    >>> random_normal(random_key(7), 2).round(4)
    array([-1.8927,  2.0552])
    """
    return _random("random_normal", key, shape, dtype=dtype)


def _random(name: str, key: Any, shape: Sequence[int], **params: Any) -> Any:
    sizes = (shape,) if isinstance(shape, (int, np.integer, Tracer)) else tuple(shape)
    with located(name, key):
        if any(isinstance(size, Tracer) for size in sizes):
            raise EngineTypeError("shapes are fixed: a size cannot be traced")
        sizes = tuple([operator.index(size) for size in sizes])
        if "dtype" in params:
            params["dtype"] = known_dtype(params["dtype"], "the result")
        if tracing():
            return fresh(emit(name, lift(as_tracer(key)), shape=sizes, **params))
        key = np.asarray(key)
        OPS[name].rule(Aval(key.shape, key.dtype), shape=sizes, **params)
        found = OPS[name].numpy(key, shape=sizes, **params)
        return found if sizes else found[()]
