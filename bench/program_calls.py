"""What a call of a jitted function costs besides its steps: small calls, and a function that is new."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import startup
from .cases import CALLS
from .figures import Figure
from .run import Settings
from .timing import Candidate, compare

_OUTSIDE, _NEW_SECONDS, _CACHED_SECONDS = 0.05, 1.5, 20e-3
# Rows of 512: the first call is all overhead, the second takes more than 100 us.
_ROWS, _WIDTH = (1, 4096), 512
_OPERATIONS = 50


def three_operations(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Arithmetic on whole arrays."""
    return (a + b) * c - a


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Rows (n, k) without their mean, over their deviation, scaled and shifted (k)."""
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + shift


def calls(engine: Any, settings: Settings) -> list[Figure]:
    """Three operations on 16 elements beside NumPy; the part of a longer call that does not grow with its arrays; the
    native calls of each."""
    make = partial(Figure, table=CALLS)
    small = tuple(np.full((4, 4), value) for value in (1.0, 2.0, 3.0))
    functions = {"numpy": three_operations, "jitted": engine.jit(three_operations)}
    seconds = timed({name: (function, small) for name, function in functions.items()}, settings)
    row = np.ones(_WIDTH)
    normed = {str(rows): (engine.jit(layer_norm), (np.ones((rows, _WIDTH)), row, row)) for rows in _ROWS}
    one, many = timed(normed, settings).values()
    native = max(native_calls(*each) for each in ((functions["jitted"], small), *normed.values()))
    return [
        make(name="jitted, 3 operations on 16 elements", value=seconds["jitted"], unit="s"),
        make(
            name="3 operations on 16 elements, NumPy / jitted",
            value=seconds["numpy"] / seconds["jitted"],
            unit="x",
            asked=1.0,
        ),
        make(
            name=f"jitted layer norm of {many * 1e6:.0f} us: a call with one row over it",
            value=one / many,
            unit="%",
            asked=_OUTSIDE,
            most=True,
        ),
        make(name="native calls of a jitted function's call", value=float(native), unit="x", asked=1.0, most=True),
    ]


def native_calls(function: Callable[..., Any], args: Sequence[Any]) -> int:
    """How many compiled functions a call enters, as the interpreter counts them: Python's builtins are some too."""
    found = 0

    def count(frame: Any, event: str, called: Any) -> None:
        nonlocal found
        found += event == "c_call" and called is not sys.setprofile

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return found


def new_function() -> list[Figure]:
    """Tracing, planning and the first call of a function of 50 operations, in a fresh process."""
    times = startup.measure_function(_OPERATIONS)
    asked = {"cold": _NEW_SECONDS, "warm": _CACHED_SECONDS}
    words = {"cold": "new", "warm": "on disk"}
    return [
        Figure(
            table=CALLS,
            name=f"a function of {_OPERATIONS} operations, traced, compiled and called, kernels {words[name]}",
            value=times[name]["first_call"],
            unit="s",
            asked=asked[name],
            most=True,
        )
        for name in ("cold", "warm")
    ]


def timed(functions: dict[str, tuple[Any, tuple[Any, ...]]], settings: Settings) -> dict[str, float]:
    """Median seconds of a call of each function with its arguments, in alternation."""
    for function, args in functions.values():
        function(*args)  # traced, planned and compiled before it is timed
    candidates = [Candidate(name=name, function=each, args=args) for name, (each, args) in functions.items()]
    compare(candidates, always=tuple(functions), budget=settings.budget, settle=settings.settle)
    return {candidate.name: candidate.median for candidate in candidates}
