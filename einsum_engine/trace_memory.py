"""The memory order that NumPy would choose for a result."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .views import View


def numpy_memory(array: np.ndarray) -> View:
    """Shape and strides of an array, in bytes."""
    return View(array.shape, array.strides)


def result_memory(shape: tuple[int, ...], item: int, operands: list[View], axes: list[int] | None = None) -> View:
    """How NumPy lays out the result of a ufunc (order "K"); ``axes``: those of one operand that a reduction keeps."""
    whole = View.whole(shape, item)
    views = [view for view in operands if view.ndim > 1]
    if len(shape) < 2 or 0 in shape or all(view.is_contiguous(abs(view.strides[-1]) or 1) for view in views):
        return whole
    given = tuple([(view.shape, view.strides) for view in views])
    return _chosen(shape, item, given, None if axes is None else tuple(axes))


@lru_cache(maxsize=1024)
def _chosen(
    shape: tuple[int, ...],
    item: int,
    operands: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
    axes: tuple[int, ...] | None,
) -> View:
    """What NumPy's iterator chooses for operands of these shapes and strides; it takes as long as a few operations."""
    views = [View(*operand) for operand in operands]
    dummies = [_dummy(view) for view in views]
    places = [list(range(view.ndim) if axes is None else axes) for view in views]
    places = [[-1] * (len(shape) - len(at)) + at for at in places]
    flags = [["readonly"]] * len(views) + [["writeonly", "allocate"]]
    small = tuple(min(n, 2) for n in shape)
    kinds = [None] * len(views) + [np.dtype("u1")]
    found = np.nditer(
        [*dummies, None], ["zerosize_ok"], flags, kinds, order="K", op_axes=[*places, None], itershape=small
    ).operands[-1]
    strides, step = [0] * len(shape), item
    for axis in sorted(range(len(shape)), key=lambda i: (found.strides[i], shape[i] > 1, -i)):
        strides[axis] = step
        step *= shape[axis]
    return View(shape, tuple(strides), 0)


def _dummy(view: View) -> np.ndarray:
    """An array of at most two elements an axis whose strides compare like those of ``view``; nothing reads it."""
    ranks = {stride: rank for rank, stride in enumerate(sorted({0, *(abs(s) for s in view.strides)}))}
    strides = [ranks[abs(s)] for s in view.strides]
    buffer = np.zeros(1 + sum(strides), np.uint8)
    return np.lib.stride_tricks.as_strided(buffer, [min(n, 2) for n in view.shape], strides)
