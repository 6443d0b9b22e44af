"""Convolution and pooling: windowed views, then an einsum or a reduction. For arrays and in traced functions.

>>> import numpy as np
>>> x, w = np.arange(16.0).reshape(1, 1, 4, 4), np.ones((1, 1, 2, 2))
>>> convolution(x, w, steps=2)
array([[[[10., 18.],
         [42., 50.]]]])
>>> max_pool(x, 2)
array([[[[ 5.,  7.],
         [13., 15.]]]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import control as control
from .errors import EngineValueError
from .trace import Tracer
from .trace_lines import located
from .views import View

_SPACE = "stuvwxyz"  # index letters of places, and of places in a window: capitals


def windows(x: Any, sizes: Any, steps: Any = 1, dilations: Any = 1) -> Any:
    """Windows along the last axes of ``x`` as a read-only view: (..., places in space, places in the window)."""
    count = len(sizes) if isinstance(sizes, Sequence) else np.ndim(x) - 2
    axes = tuple(range(np.ndim(x) - count, np.ndim(x)))
    with located("windows", x):
        sizes, steps, dilations = (_each(value, count) for value in (sizes, steps, dilations))
        if isinstance(x, Tracer):
            return x.derive(lambda view: view.windows(axes, sizes, steps, dilations), locked="windows are read-only")
        x = np.asarray(x)
        view = View(x.shape, x.strides).windows(axes, sizes, steps, dilations)
        return np.lib.stride_tricks.as_strided(x, view.shape, view.strides, writeable=False)


def _each(value: Any, count: int) -> tuple[int, ...]:
    found = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(found) != count:
        raise EngineValueError(f"{value} does not give one number for each of {count} axes of space")
    return found


def _padded(x: Any, padding: Any, count: int, value: Any) -> Any:
    pairs = padding if isinstance(padding, Sequence) else (padding,) * count
    pairs = [pair if isinstance(pair, Sequence) else (pair, pair) for pair in pairs]
    if not any(map(any, pairs)):
        return x
    return np.pad(x, [(0, 0)] * (np.ndim(x) - count) + [tuple(p) for p in pairs], constant_values=value)


def convolution(x: Any, w: Any, steps: Any = 1, padding: Any = 0, dilations: Any = 1) -> Any:
    """Cross-correlation, as in neural networks: x (batch, channels, *space), w (out channels, channels, *window).

    ``padding``: zeros on both sides of each axis of space, or a pair per axis.
    """
    count = np.ndim(x) - 2
    with located("convolution", x, w):
        if count < 1 or np.ndim(w) != count + 2 or np.shape(x)[1] != np.shape(w)[1]:
            raise EngineValueError(f"convolution of shape {np.shape(x)} with {np.shape(w)}: ranks or channels differ")
        view = windows(_padded(x, padding, count, 0), np.shape(w)[2:], steps, dilations)
        space, inside = _SPACE[:count], _SPACE[:count].upper()
        return np.einsum(f"nc{space}{inside},kc{inside}->nk{space}", view, w)


def max_pool(x: Any, sizes: Any, steps: Any = None, padding: Any = 0) -> Any:
    """The largest element of each window of x (batch, channels, *space); windows adjoin unless ``steps`` says more."""
    kind = x.dtype.kind
    lowest = False if kind == "b" else np.iinfo(x.dtype).min if kind in "iu" else -np.inf
    with located("max_pool", x):
        return np.max(_pooled(x, sizes, steps, padding, lowest), axis=tuple(range(np.ndim(x), 2 * np.ndim(x) - 2)))


def mean_pool(x: Any, sizes: Any, steps: Any = None, padding: Any = 0) -> Any:
    """The mean of each window, zeros of the padding counted."""
    with located("mean_pool", x):
        return np.mean(_pooled(x, sizes, steps, padding, 0), axis=tuple(range(np.ndim(x), 2 * np.ndim(x) - 2)))


def _pooled(x: Any, sizes: Any, steps: Any, padding: Any, value: Any) -> Any:
    count = np.ndim(x) - 2
    if count < 1:
        raise EngineValueError(f"shape {np.shape(x)} has no axes of space behind batch and channels")
    return windows(_padded(x, padding, count, value), _each(sizes, count), sizes if steps is None else steps)
