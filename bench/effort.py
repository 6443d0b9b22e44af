"""How long one loop over all indices takes at least: measured on a part of the loop.

`np.einsum` without a path runs one such loop on one thread, so its time grows with the number of iterations. The part
has fewer iterations of the outermost indices and all of the inner ones, on the same memory; its time in proportion,
over `_OPTIMISM` for all that the whole loop may do better, is the estimate.
"""

from __future__ import annotations

import math
import time
from typing import Sequence

import numpy as np

from .steps import Expression

# Iterations of the loop that is run; loops of no more than a few times as many are not estimated.
_TRIAL = 4_000_000
_SHORT = 4
_OPTIMISM = 3.0
_TRIES = 2


def least_loop_seconds(expression: Expression, arrays: Sequence[np.ndarray]) -> float:
    """Seconds that `np.einsum` takes at least for one loop over all indices; 0 where that is short.

    >>> from .steps import parse
    >>> least_loop_seconds(parse("ij,jk->ik", [(4, 5), (5, 6)]), [np.ones((4, 5)), np.ones((5, 6))])
    0.0
    """
    eq = expression.ascii_eq()
    if eq is None or expression.loop_size <= _SHORT * _TRIAL:
        return 0.0
    sizes = smaller_sizes(expression)
    parts = [array[tuple(slice(sizes[index]) for index in term)] for array, term in zip(arrays, expression.terms)]
    best = min(_seconds(eq, parts) for _ in range(_TRIES))
    return best * (expression.loop_size / math.prod(sizes.values())) / _OPTIMISM


def smaller_sizes(expression: Expression) -> dict[str, int]:
    """Sizes of all indices for a loop of at most `_TRIAL` iterations.

    From the outermost index on, which is the first of the output, they are cut to two, and if need be to one.
    """
    sizes = dict(expression.sizes)
    order = dict.fromkeys(expression.output + "".join(expression.terms))
    for least in (2, 1):
        for index in order:
            others = math.prod(sizes.values()) // sizes[index]
            sizes[index] = min(sizes[index], max(least, _TRIAL // max(others, 1)))
    return sizes


def _seconds(eq: str, arrays: Sequence[np.ndarray]) -> float:
    start = time.perf_counter()
    np.einsum(eq, *arrays)
    return time.perf_counter() - start
