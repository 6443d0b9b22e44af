"""What a call costs besides arithmetic: small calls, cached plans, planning, a fresh process."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
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
# Plans of shapes that were not met before, in bursts around these sizes: some to load kernels, then those that count.
_SIZES = (4, 3, 5)
_UNTIMED, _TIMED = 3, 9

# Two cases that are one network with its dimensions in other orders: the slower takes at most so much longer.
_VARIANTS = (("network 0", "network 3 (0 permuted)"), ("network 1", "network 4 (1 permuted, mended)"))
_VARIANT_FACTOR = 1.1

# Name, number of 2x2 matrices in the product, those that are constant: a call with them takes at most so much of one without.
_CONSTANT = (
    ("2x2 by 2x2, the second constant", 2, (1,)),
    ("20 matrices of 2x2, all but one constant", 20, tuple(n for n in range(20) if n != 7)),
)
_CONSTANT_FACTOR = 1.05

# Options of a product of two 2x2 matrices, and whether NumPy is given them too: compiled, and what `einsum` takes more.
_OPTIONS = (
    ({"order": "F"}, True),
    ({"alpha": 2.0}, False),
    ({"optimize": [(0, 1)]}, False),
    ({"optimize": "greedy"}, False),
)
_OPTION_SECONDS = 1.5e-6

_STEP_SECONDS = 100e-6
_NEW_SECONDS = 2e-3
_EXTRA_SECONDS = 1e-6


def measure(engine: Any, settings: Settings, progress: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> list[Figure]:
    """All figures of this table; ``engine`` is the module with the public API."""
    expressions = _expressions()
    planned = [_Planning(name=name, expr=expressions[name]) for name in _PLANNED]
    first, second, third = ([partial(each.burst, engine, settings, size) for each in planned] for size in _SIZES)
    parts: list[Callable[[], list[Figure]]] = [
        *first,
        partial(_small_calls, engine, settings),
        *(partial(_with_constants, engine, settings, *each) for each in _CONSTANT),
        *(partial(_with_options, engine, settings, *each) for each in _OPTIONS),
        partial(_cached_plan, engine, settings, "network 0", expressions["network 0"]),
        *second,
        *(partial(_variants, engine, settings, size) for size in ("small", "large")),
        partial(program_calls.calls, engine, settings),
        *third,
        *(each.figures for each in planned),
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


def _with_constants(
    engine: Any, settings: Settings, name: str, count: int, constants: tuple[int, ...]
) -> list[Figure]:
    letters = [chr(ord("a") + number) for number in range(count + 1)]
    expr = ",".join(map("".join, zip(letters, letters[1:]))) + f"->{letters[0]}{letters[-1]}"
    arrays = tuple(np.eye(2) + number for number in range(count))
    given = tuple(array for number, array in enumerate(arrays) if number not in constants)
    make = partial(engine.compile, expr, *arrays, threads=settings.threads)
    functions = {"without": (make(), arrays), "with": (make(constants=constants), given)}
    seconds = program_calls.timed(functions, settings)
    return [
        _figure(f"{name}: compiled", seconds["with"]),
        _figure(f"{name}: call with constants / without", seconds["with"] / seconds["without"], "x", _CONSTANT_FACTOR),
    ]


def _with_options(engine: Any, settings: Settings, options: dict[str, Any], numpy: bool) -> list[Figure]:
    arrays = (np.arange(4.0).reshape(2, 2), np.ones((2, 2)))
    functions = {
        "compiled": engine.compile(_SMALLEST, *arrays, threads=settings.threads, **options),
        "einsum": partial(engine.einsum, _SMALLEST, **options),
        "numpy": partial(np.einsum, _SMALLEST, **options if numpy else {}),
    }
    seconds = _timed(functions, arrays, settings)
    text = ", ".join(f"{name}={value!r}" for name, value in options.items())
    name = f"2x2 by 2x2 with {text}"
    return [
        _figure(f"{name}, np.einsum / compiled", seconds["numpy"] / seconds["compiled"], "x", 1.0, most=False),
        _figure(f"{name}, einsum over compiled", seconds["einsum"] - seconds["compiled"], asked=_OPTION_SECONDS),
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


@dataclass(kw_only=True)
class _Planning:
    """Planning of one expression with the path given, of shapes that are new each time, and the first calls of such plans.

    A plan takes a millisecond, and a machine is fast or slow for seconds: so shapes come in bursts that lie apart, those of
    each burst around another size, so that what one has seen is as new to the next.
    """

    name: str
    expr: str
    plans: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    steps: int = 0

    def burst(self, engine: Any, settings: Settings, size: int) -> list[Figure]:
        """Times of plans and first calls in shapes around ``size``; no figures yet."""
        dtypes = ["float32"] * (1 + self.expr.count(","))
        path = [tuple(step) for step in engine.compile(self.expr, *_shapes(self.expr, size, 0), dtypes=dtypes).plan.path]
        self.steps = len(path)
        for number in range(1, 1 + _UNTIMED + _TIMED):
            shapes = _shapes(self.expr, size, number)
            make = partial(
                engine.compile, self.expr, *shapes, dtypes=dtypes, optimize=path, threads=settings.threads
            )
            arrays = [np.ones(shape, np.float32) for shape in shapes]
            seconds, compiled = seconds_of(make)
            first, _ = seconds_of(partial(compiled, *arrays))
            if number > _UNTIMED:
                self.plans.append(seconds)
                self.calls.append(first)
        return []

    def figures(self) -> list[Figure]:
        """Medians over all bursts."""
        plan, call = statistics.median(self.plans), statistics.median(self.calls)
        name = f"{self.name}, planning of a step ({self.steps} steps)"
        found = [_figure(name, plan / self.steps, asked=_STEP_SECONDS)]
        if self.expr.count(",") == 4:
            title = f"{self.name} (5 operands) in a new shape, compile and first call"
            found.append(_figure(title, plan + call, asked=_NEW_SECONDS))
        return found


def _shapes(expr: str, size: int, number: int) -> tuple[tuple[int, ...], ...]:
    """Shapes that differ for every ``number``: the first indices are longer than ``size`` by the bits of it."""
    terms = tuple(expr.partition("->")[0].split(","))
    expression: Expression = parse(expr, [(2,) * len(term) for term in terms])
    sizes = {index: size + (number >> bit & 1) if bit < 8 else 2 for bit, index in enumerate(expression.sizes)}
    return tuple(tuple(sizes[index] for index in term) for term in terms)


def _fresh_process() -> list[Figure]:
    times = startup.measure()
    warm, cold = times["warm"], times["cold"]
    return [
        _figure("fresh process: import alone", warm["import"], asked=0.4),
        _figure("fresh process: from nothing to the first result, warm cache", warm["total"], asked=0.7),
        _figure("fresh process: first einsum, empty cache", cold["first_call"], asked=5.0),
    ]
