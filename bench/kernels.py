"""The table of microkernels: each alone, in alternation with the FMA peak of its dtype."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Callable, Iterable

from .limits import real_dtype
from .timing import wait_until_idle

# Short and many, so that some fall between the turns of other programs.
_SECONDS = 2e-3
_SAMPLES = 60


@dataclass(frozen=True, kw_only=True)
class KernelResult:
    """One microkernel alone at the cache-blocked K: flop/s, and the FMA peak of its dtype on as many threads.

    ``share_beside`` is the median share of the peak just before and behind: it says nothing about the machine's moment.
    """

    name: str
    dtype: str
    tile: tuple[int, ...]
    rate: float
    peak: float
    share_beside: float | None = None

    @property
    def share(self) -> float:
        """Fraction of the peak, the best moments of both."""
        return self.rate / self.peak


def run_kernels(
    calibrate: Any, threads: int, progress: Callable[[Iterable[Any]], Iterable[Any]] = iter
) -> list[KernelResult]:
    """Time every row of ``calibrate.microkernel_rows()``, in alternation with the peak of its dtype.

    The best of many samples counts, of a rate as of a peak; the best peak seen of a dtype counts for all its rows.
    Rates count real flops: 8 for a complex multiply-add.
    """
    found = []
    peaks: dict[str, float] = {}
    for name, dtype, tile in progress(calibrate.microkernel_rows()):
        wait_until_idle()
        rates, beside = _alternate(
            _rate_now(calibrate.microkernel(name, threads)),
            _rate_now(calibrate.multiply_adds(real_dtype(dtype), threads)),
        )
        peaks[dtype] = max(peaks.get(dtype, 0.0), *beside)
        shares = [2 * rate / (before + after) for rate, before, after in zip(rates, beside, beside[1:])]
        found.append((name, dtype, tuple(tile), max(rates), statistics.median(shares)))
    return [
        KernelResult(name=name, dtype=dtype, tile=tile, rate=rate, peak=peaks[dtype], share_beside=share)
        for name, dtype, tile, rate, share in found
    ]


def _rate_now(loops: Any) -> Callable[[], float]:
    repeats = loops.repeats(_SECONDS)
    return lambda: repeats * loops.amount / loops.seconds(repeats)


def _alternate(rate: Callable[[], float], peak: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Samples of a rate, and of the peak before, between and after these."""
    rates, peaks = [], [peak()]
    for _ in range(_SAMPLES):
        rates.append(rate())
        peaks.append(peak())
    return rates, peaks
