"""What a call costs besides arithmetic: small calls, cached plans, planning, a fresh process."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, Callable, Iterable

import numpy as np

from . import program_calls, startup
from .cases import CALLS, operands, thesis_cases
from .figures import Figure
from .run import Settings
from .steps import Expression, parse
from .timing import seconds_of

_SMALLEST = "ij,jk->ik"
_PLANNED = ("network 0", "network 1", "network 2")
_SIZE = 4
# Plans of shapes that were not met before: some to load kernels, then those that count.
_UNTIMED, _TIMED = 3, 9

# Two cases that are one network with its dimensions in other orders: the slower takes at most so much longer.
_VARIANTS = (("network 0", "network 3 (0 permuted)"), ("network 1", "network 4 (1 permuted, mended)"))
_VARIANT_FACTOR = 1.1

_STEP_SECONDS = 100e-6
_NEW_SECONDS = 2e-3
_EXTRA_SECONDS = 1e-6


def measure(engine: Any, settings: Settings, progress: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> list[Figure]:
    """All figures of this table; ``engine`` is the module with the public API."""
    expressions = _expressions()
    parts: list[Callable[[], list[Figure]]] = [
        partial(_small_calls, engine, settings),
        partial(_cached_plan, engine, settings, "network 0", expressions["network 0"]),
        *(partial(_planning, engine, settings, name, expressions[name]) for name in _PLANNED),
        *(partial(_variants, engine, settings, size) for size in ("small", "large")),
        partial(program_calls.calls, engine, settings),
        _fresh_process,
        program_calls.new_function,
    ]
    return [figure for part in progress(parts) for figure in part()]


def _expressions() -> dict[str, str]:
    return {case.name: case.expr for case in thesis_cases() if case.family == "thesis_networks_small"}


def _figure(name: str, value: float, unit: str = "s", asked: float | None = None, most: bool = True) -> Figure:
    return Figure(table=CALLS, name=name, value=value, unit=unit, asked=asked, most=most)


def _small_calls(engine: Any, settings: Settings) -> list[Figure]:
    arrays = (np.arange(4.0).reshape(2, 2), np.ones((2, 2)))
    seconds = _timed(
        {
            "compiled": engine.compile(_SMALLEST, *arrays, threads=settings.threads),
            "einsum": partial(engine.einsum, _SMALLEST),
            "numpy": partial(np.einsum, _SMALLEST),
        },
        arrays,
        settings,
    )
    return [
        _figure("2x2 by 2x2, compiled", seconds["compiled"]),
        _figure("2x2 by 2x2, np.einsum / compiled", seconds["numpy"] / seconds["compiled"], "x", 1.0, most=False),
        _figure("2x2 by 2x2, einsum over compiled", seconds["einsum"] - seconds["compiled"], asked=_EXTRA_SECONDS),
    ]


def _cached_plan(engine: Any, settings: Settings, name: str, expr: str) -> list[Figure]:
    shapes = [(2,) * len(term) for term in expr.partition("->")[0].split(",")]
    arrays = tuple(np.ones(shape, np.float32) for shape in shapes)
    compiled = engine.compile(expr, *arrays, threads=settings.threads)
    seconds = _timed({"compiled": compiled, "einsum": partial(engine.einsum, expr)}, arrays, settings)
    extra = seconds["einsum"] - seconds["compiled"]
    return [
        _figure(f"{name}, compiled", seconds["compiled"]),
        _figure(f"{name}, einsum over compiled", extra, asked=_EXTRA_SECONDS),
    ]


def _variants(engine: Any, settings: Settings, size: str) -> list[Figure]:
    """Permuted variants of a network in alternation: cases of a run are minutes apart, and so is the machine."""
    cases = {case.name: case for case in thesis_cases() if case.family == f"thesis_networks_{size}"}
    found = []
    for pair in _VARIANTS:
        functions = {}
        for name in pair:
            arrays = tuple(operands(cases[name]))
            functions[name] = engine.compile(cases[name].expr, *arrays, threads=settings.threads), arrays
        times = program_calls.timed(functions, settings).values()
        name = f"permuted variants, {size}: {' and '.join(pair)}, slower / faster"
        found.append(_figure(name, max(times) / min(times), "x", _VARIANT_FACTOR))
    return found


def _timed(functions: dict[str, Callable[..., Any]], arrays: tuple[Any, ...], settings: Settings) -> dict[str, float]:
    return program_calls.timed({name: (function, arrays) for name, function in functions.items()}, settings)


def _planning(engine: Any, settings: Settings, name: str, expr: str) -> list[Figure]:
    """Planning with the path given, of shapes that are new each time, and the first call of such a plan."""
    path = [tuple(step) for step in engine.compile(expr, *_shapes(expr, 0), dtypes=_dtypes(expr)).plan.path]
    plans, calls = [], []
    for number in range(1, 1 + _UNTIMED + _TIMED):
        shapes = _shapes(expr, number)
        make = partial(engine.compile, expr, *shapes, dtypes=_dtypes(expr), optimize=path, threads=settings.threads)
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        seconds, compiled = seconds_of(make)
        plans.append(seconds)
        calls.append(seconds_of(partial(compiled, *arrays))[0])
    plan, call = (statistics.median(each[_UNTIMED:]) for each in (plans, calls))
    found = [_figure(f"{name}, planning of a step ({len(path)} steps)", plan / len(path), asked=_STEP_SECONDS)]
    if expr.count(",") == 4:
        title = f"{name} (5 operands) in a new shape, compile and first call"
        found.append(_figure(title, plan + call, asked=_NEW_SECONDS))
    return found


def _shapes(expr: str, number: int) -> tuple[tuple[int, ...], ...]:
    """Shapes that differ for every ``number``: the first indices are longer by the bits of it."""
    terms = tuple(expr.partition("->")[0].split(","))
    expression: Expression = parse(expr, [(2,) * len(term) for term in terms])
    sizes = {index: _SIZE + (number >> bit & 1) if bit < 8 else 2 for bit, index in enumerate(expression.sizes)}
    return tuple(tuple(sizes[index] for index in term) for term in terms)


def _dtypes(expr: str) -> list[str]:
    return ["float32"] * (1 + expr.count(","))


def _fresh_process() -> list[Figure]:
    times = startup.measure()
    warm, cold = times["warm"], times["cold"]
    return [
        _figure("fresh process: import alone", warm["import"], asked=0.4),
        _figure("fresh process: from nothing to the first result, warm cache", warm["total"], asked=0.7),
        _figure("fresh process: first einsum, empty cache", cold["first_call"], asked=5.0),
    ]
