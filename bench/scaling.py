"""What a second thread and an awkward size do: ours alone, in alternation with itself."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterable, Sequence

from .cases import SCALING, Case, operands, tccg_cases, uniform_shapes
from .figures import Figure, geometric_mean
from .run import Settings
from .timing import Candidate, compare

_PRODUCT = "ij,jk->ik"
_CHAIN = "ab,ca,dc->db"
# Where arithmetic bounds the time by far.
_BOUND = (
    (_PRODUCT, 2048, "float32"),
    (_PRODUCT, 2048, "float64"),
    (_PRODUCT, 1024, "complex64"),
    (_PRODUCT, 1024, "complex128"),
    (_CHAIN, 1536, "float32"),
)
_TCCG = ("tccg 20", "tccg 30")
_PRIMES = (503, 521, 751, 997, 1021)
_MULTIPLE = 16
_THREADS_FACTOR, _PRIME_FACTOR = 1.8, 0.9


def measure(
    engine: Any,
    settings: Settings,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    peak: Callable[[int], float] | None = None,
) -> list[Figure]:
    """All figures of this table; ``peak(threads)`` is the FMA peak in float32, for comparison."""
    parts: list[Callable[[], Figure]] = []
    if settings.threads > 1:
        parts += [partial(_threads, engine, settings, case) for case in bound_cases()]
    parts += [partial(_prime, engine, settings, prime, dtype) for dtype in ("float32", "float64") for prime in _PRIMES]
    found = [part() for part in progress(parts)]
    if settings.threads > 1 and peak is not None:
        found.append(_figure(f"FMA peak, 1 to {settings.threads} threads", peak(settings.threads) / peak(1), None))
    return found + _means(found)


def bound_cases() -> list[Case]:
    """Cases that arithmetic bounds."""
    cases = [
        Case(family=SCALING, name=f"{expr} {size}", expr=expr, shapes=uniform_shapes(expr, size), dtype=dtype)
        for expr, size, dtype in _BOUND
    ]
    return cases + [case for case in tccg_cases() if case.name.startswith(_TCCG) and case.dtype == "float32"]


def _figure(name: str, value: float | None, asked: float | None) -> Figure:
    return Figure(table=SCALING, name=name, value=value, unit="x", asked=asked)


def _threads(engine: Any, settings: Settings, case: Case) -> Figure:
    arrays = operands(case)
    one, all_ = (
        Candidate(
            name=str(threads),
            function=engine.compile(case.expr, *arrays, threads=threads),
            args=tuple(arrays),
        )
        for threads in (1, settings.threads)
    )
    _alternate([one, all_], settings)
    asked = _THREADS_FACTOR if settings.threads == 2 else None
    return _figure(f"{case.name} {case.dtype}, 1 to {settings.threads} threads", one.median / all_.median, asked)


def _prime(engine: Any, settings: Settings, prime: int, dtype: str) -> Figure:
    near = nearest_multiple(prime)
    candidates = []
    for size in (prime, near):
        shapes = uniform_shapes(_PRODUCT, size)
        case = Case(family=SCALING, name=f"gemm {size}", expr=_PRODUCT, shapes=shapes, dtype=dtype)
        arrays = operands(case)
        function = engine.compile(_PRODUCT, *arrays, threads=settings.threads)
        candidates.append(Candidate(name=case.name, function=function, args=tuple(arrays)))
    _alternate(candidates, settings)
    rates = [size**3 / each.median for size, each in zip((prime, near), candidates)]
    return _figure(f"gemm {prime} {dtype}, GFLOP/s over those of {near}", rates[0] / rates[1], _PRIME_FACTOR)


def nearest_multiple(size: int) -> int:
    """The multiple of 16 that is nearest to ``size``.

    >>> nearest_multiple(503), nearest_multiple(997)
    (496, 992)
    """
    return round(size / _MULTIPLE) * _MULTIPLE


def _alternate(candidates: Sequence[Candidate], settings: Settings) -> None:
    settings = settings.warmed(sum(array.nbytes for array in candidates[0].args))
    compare(candidates, always=tuple(each.name for each in candidates), budget=settings.budget, settle=settings.settle)


def _means(figures: Sequence[Figure]) -> list[Figure]:
    found = []
    for title, asked in (("threads", _THREADS_FACTOR), ("GFLOP/s", _PRIME_FACTOR)):
        values = [each.value for each in figures if title in each.name and each.asked == asked and each.value]
        if values:
            found.append(_figure(f"geometric mean of the figures with {title!r}", geometric_mean(values), asked))
    return found
