"""NumPy's products of traced arrays, `np.dot` to `np.linalg.multi_dot`, windows of one along another, and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .trace import Tracer, as_tracer, implements
from .trace_shapes import flattened, several, unscalar
from .trace_store import finish_alike, store
from .trace_ufuncs import apply_einsum, keep_dims
from .views import normal_axes


# -- products ----------------------------------------------------------------------------------------------------------
@implements(np.tensordot)
def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    return unscalar(_contracted(a, b, axes))


def _contracted(a: Any, b: Any, axes: Any) -> Tracer:
    a, b = as_tracer(a), as_tracer(b)
    if isinstance(axes, int):
        axes = (range(a.ndim - axes, a.ndim), range(axes))
    left = normal_axes(several(axes[0]) if not isinstance(axes[0], range) else axes[0], a.ndim, a.shape)
    right = normal_axes(several(axes[1]) if not isinstance(axes[1], range) else axes[1], b.ndim, b.shape)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise EngineValueError(f"axes {left} of shape {a.shape} and {right} of shape {b.shape} have other sizes")
    names = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    one = names[: a.ndim]
    rest = iter(names[a.ndim :])
    two = ["" if i in right else next(rest) for i in range(b.ndim)]
    for i, j in zip(left, right):
        two[j] = one[i]
    out = [x for i, x in enumerate(one) if i not in left] + [x for j, x in enumerate(two) if j not in right]
    return apply_einsum(f"{one},{''.join(two)}->{''.join(out)}", a, b)


@implements(np.dot)
def _dot(a: Any, b: Any, out: Any = None) -> Any:
    a, b = as_tracer(a), as_tracer(b)
    if a.ndim and b.ndim:
        return finish_alike(_contracted(a, b, ((a.ndim - 1,), (max(b.ndim - 2, 0),))), out)
    scaled = np.multiply(a, b)  # which is all that NumPy does of integers; numbers that BLAS knows, as those of a product
    return finish_alike(scaled, out) if scaled.dtype.kind in "fc" else store(out, scaled, "same_kind", True)


@implements(np.inner)
def _inner(a: Any, b: Any) -> Any:
    a, b = as_tracer(a), as_tracer(b)
    return _contracted(a, b, ((a.ndim - 1,), (b.ndim - 1,))) if a.ndim and b.ndim else np.multiply(a, b)


@implements(np.outer)
def _outer(a: Any, b: Any, out: Any = None) -> Any:
    return store(out, apply_einsum("i,j->ij", flattened(as_tracer(a)), flattened(as_tracer(b))), "same_kind", True)


@implements(np.vdot)
def _vdot(a: Any, b: Any) -> Any:
    a, b = as_tracer(a), as_tracer(b)
    return apply_einsum("i,i->", flattened(a.conj()), flattened(b))


@implements(np.cross)
def _cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    x, y = np.moveaxis(as_tracer(a), axisa, 0), np.moveaxis(as_tracer(b), axisb, 0)
    if len(x) != 3 or len(y) != 3:
        raise EngineTypeError(f"np.cross of vectors of {len(x)} and {len(y)} elements is not supported: only 3")
    parts = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return np.stack(parts, axis=axisc)


@implements(np.convolve)
def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Windows of the padded longer operand, times the shorter one reversed."""
    a, v = as_tracer(a), as_tracer(v)
    a, v = (v, a) if v.size > a.size else (a, v)
    size, width = a.size, v.size
    if a.ndim != 1 or v.ndim != 1 or not width:
        raise EngineValueError(f"np.convolve takes two arrays of one axis, not empty: shapes {a.shape} and {v.shape}")
    spread = {"full": (width - 1, width - 1), "same": (width // 2, (width - 1) // 2), "valid": (0, 0)}.get(mode)
    if spread is None:
        raise EngineValueError(f"mode={mode!r}: 'full', 'same' or 'valid'")
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, spread[::1]) if size else a, width)
    return windows @ v[::-1]


@implements(np.correlate)
def _correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    a, v = as_tracer(a), as_tracer(v)
    if v.size > a.size:  # its other end is cut, where an end is
        return _correlate(v, a, mode)[::-1].conj()
    return _convolve(a, v.conj()[::-1], mode)


@implements(np.linalg.matrix_power)
def _matrix_power(a: Any, n: int) -> Any:
    if n < 0:
        raise EngineTypeError("np.linalg.matrix_power with a negative power is not supported in a traced function")
    found, square = None, a
    while n:
        if n & 1:
            found = square if found is None else found @ square
        n >>= 1
        square = square @ square if n else square
    if found is None:
        return np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape) + np.zeros_like(a)
    return found


@implements(np.linalg.multi_dot)
def _multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """One contraction, whose order the planner finds."""
    parts = [as_tracer(x) for x in arrays]
    if len(parts) < 2:
        raise EngineValueError(f"{len(parts)} arrays: np.linalg.multi_dot takes two or more")
    names = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(parts) + 1]
    terms = [names[i : i + 2] for i in range(len(parts))]
    if parts[0].ndim == 1:
        terms[0] = names[1]
    if parts[-1].ndim == 1:
        terms[-1] = names[len(parts) - 1]
    ends = (names[0] if parts[0].ndim > 1 else "") + (names[-1] if parts[-1].ndim > 1 else "")
    return finish_alike(np.einsum(f"{','.join(terms)}->{ends}", *parts), out)


# -- by the names of `np.linalg` ---------------------------------------------------------------------------------------
@implements(np.linalg.cross)
def _linalg_cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return np.cross(x1, x2, axis=axis)


@implements(np.linalg.tensordot)
def _tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    return np.tensordot(x1, x2, axes=axes)


@implements(np.linalg.trace)
def _trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return np.trace(x, offset, -2, -1, dtype)


@implements(np.linalg.diagonal)
def _diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return np.diagonal(x, offset, -2, -1)


@implements(np.linalg.matmul)
def _matmul(x1: Any, x2: Any, /) -> Any:
    return np.matmul(x1, x2)


@implements(np.linalg.matrix_transpose)
def _matrix_transpose(x: Any, /) -> Any:
    return np.matrix_transpose(x)


@implements(np.linalg.outer)
def _outer(x1: Any, x2: Any, /) -> Any:
    return np.outer(x1, x2)


@implements(np.linalg.vecdot)
def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return np.sum(np.conjugate(as_tracer(x1)) * x2, axis=axis)


# -- norms -------------------------------------------------------------------------------------------------------------
@implements(np.linalg.norm)
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The root of the sum of squares; of vectors also the norms 0, 1 and infinity."""
    ndim = np.ndim(x) if axis is None else np.size(axis)
    if ord not in {1: (None, 0, 1, 2, np.inf, -np.inf), 2: (None, "fro")}.get(ndim, (None,)):
        raise EngineTypeError(f"ord={ord!r} over {ndim} axes is not supported in a traced function")
    x = as_tracer(x)
    x = x.astype(np.float64, copy=False) if x.dtype.kind in "biu" else x
    if ord == 0:
        return np.sum(np.not_equal(x, 0).astype(x.real.dtype), axis, None, None, keepdims)
    if ord in (1, np.inf, -np.inf):
        return {1: np.sum, np.inf: np.max, -np.inf: np.min}[ord](np.absolute(x), axis=axis, keepdims=keepdims)
    return np.sqrt(np.sum(np.real(x * np.conjugate(x)) if x.dtype.kind == "c" else x * x, axis, None, None, keepdims))


@implements(np.linalg.matrix_norm)
def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return np.linalg.norm(x, ord, (-2, -1), keepdims)


@implements(np.linalg.vector_norm)
def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    found = np.linalg.norm(x if axis is not None else flattened(x), ord, 0 if axis is None else axis)
    return keep_dims(found, tuple(range(x.ndim)) if axis is None else (axis,)) if keepdims else found
