"""What a second thread and an awkward size do: ours alone, in alternation with itself."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, Callable, Iterable, Sequence

from ..kernels.calibrate import Loops, multiply_adds
from .cases import SCALING, Case, operands, tccg_cases, uniform_shapes
from .figures import Figure, geometric_mean
from .limits import real_dtype
from .run import Settings
from .timing import SAMPLE_SECONDS, Candidate, compare

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
_LARGE_PRIMES = (503, 521, 751, 997, 1021)
# Dtype -> primes that all three sizes of a product are, and those that K alone is, between `_EVEN` rows and columns.
_PRIMES = {"float32": _LARGE_PRIMES, "float64": _LARGE_PRIMES, "complex64": (503, 751), "int64": (503, 521)}
_PRIMES_OF_K = {"float32": (503, 1021), "float64": (503, 1021), "complex64": (751,), "int64": (503,)}
_EVEN = 768
_MULTIPLE = 16
_THREADS_FACTOR, _PRIME_FACTOR = 1.8, 0.9


def measure(
    engine: Any,
    settings: Settings,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    loops: Callable[[str, int], Loops] = multiply_adds,
) -> list[Figure]:
    """All figures of this table; ``loops(dtype, threads)`` are multiply-adds in registers, for comparison."""
    parts: list[Callable[[], list[Figure]]] = []
    if settings.threads > 1:
        parts += [partial(_threads, engine, settings, case, loops) for case in bound_cases()]
    parts += [partial(_prime, engine, settings, *each) for each in prime_products()]
    found = [figure for part in progress(parts) for figure in part()]
    return found + _means(found)


def bound_cases() -> list[Case]:
    """Cases that arithmetic bounds."""
    cases = [
        Case(family=SCALING, name=f"{expr} {size}", expr=expr, shapes=uniform_shapes(expr, size), dtype=dtype)
        for expr, size, dtype in _BOUND
    ]
    return cases + [case for case in tccg_cases() if case.name.startswith(_TCCG) and case.dtype == "float32"]


def prime_products() -> list[tuple[str, tuple[int, ...], tuple[int, ...], str]]:
    """Name, sizes m, k and n, the multiples of 16 that these are held against, and dtype, of each product."""
    found = []
    for dtype, primes in _PRIMES.items():
        found += [(f"gemm {prime} {dtype}", (prime,) * 3, (nearest_multiple(prime),) * 3, dtype) for prime in primes]
    for dtype, primes in _PRIMES_OF_K.items():
        for prime in primes:
            name, sides = f"gemm {_EVEN} x {prime} x {_EVEN} {dtype}", (_EVEN, nearest_multiple(prime), _EVEN)
            found.append((name, (_EVEN, prime, _EVEN), sides, dtype))
    return found


def _figure(name: str, value: float | None, asked: float | None) -> Figure:
    return Figure(table=SCALING, name=name, value=value, unit="x", asked=asked)


def _threads(engine: Any, settings: Settings, case: Case, loops: Callable[[str, int], Loops]) -> list[Figure]:
    """What the threads gain, and what they gain where all is in registers, in the same rounds: two processors may be one
    core's two threads."""
    arrays, both = operands(case), (1, settings.threads)
    ours = [
        Candidate(
            name=str(threads),
            function=engine.compile(case.expr, *arrays, threads=threads),
            args=tuple(arrays),
        )
        for threads in both
    ]
    registers = [loops(real_dtype(case.dtype), threads) for threads in both]
    peaks = [
        Candidate(name=f"peak {threads}", function=each.seconds, args=(each.repeats(SAMPLE_SECONDS),))
        for threads, each in zip(both, registers)
    ]
    _alternate([*ours, *peaks], settings)
    gained = ours[0].median / ours[1].median
    rates = [each.amount * peak.args[0] / peak.median for each, peak in zip(registers, peaks)]
    asked = _THREADS_FACTOR if settings.threads == 2 else None
    name = f"{case.name} {case.dtype}, 1 to {settings.threads} threads"
    return [_figure(name, gained, asked), _figure(f"{name}, over the FMA peak's", gained * rates[0] / rates[1], None)]


def _prime(
    engine: Any, settings: Settings, name: str, primes: tuple[int, ...], near: tuple[int, ...], dtype: str
) -> list[Figure]:
    candidates = []
    for m, k, n in (primes, near):
        case = Case(family=SCALING, name=f"gemm {m} {k} {n}", expr=_PRODUCT, shapes=((m, k), (k, n)), dtype=dtype)
        arrays = operands(case)
        function = engine.compile(_PRODUCT, *arrays, threads=settings.threads)
        candidates.append(Candidate(name=case.name, function=function, args=tuple(arrays)))
    _alternate(candidates, settings)
    rates = [prod(sizes) / each.median for sizes, each in zip((primes, near), candidates)]
    return [_figure(f"{name}, GFLOP/s over those of {near[1]}", rates[0] / rates[1], _PRIME_FACTOR)]


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
