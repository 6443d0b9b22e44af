"""The table of microkernels: each alone, in alternation with the FMA peak of its dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable

from .timing import wait_until_idle

_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class KernelResult:
    """One microkernel alone at the cache-blocked K: flop/s, and the FMA peak of its dtype on as many threads."""

    name: str
    dtype: str
    tile: tuple[int, ...]
    rate: float
    peak: float

    @property
    def share(self) -> float:
        """Fraction of the peak."""
        return self.rate / self.peak


def run_kernels(
    calibrate: Any, threads: int, progress: Callable[[Iterable[Any]], Iterable[Any]] = iter
) -> list[KernelResult]:
    """Time every row of ``calibrate.microkernel_rows()``, in alternation with the peak of its dtype.

    The best of a few measurements counts, of a rate as of a peak; the best peak seen of a dtype counts for all its
    rows. Rates count real flops: 8 for a complex multiply-add.
    """
    rates = []
    peaks: dict[str, float] = {}
    for name, dtype, tile in progress(calibrate.microkernel_rows()):
        wait_until_idle()
        rate = 0.0
        for _ in range(_TRIES):
            peaks[dtype] = max(peaks.get(dtype, 0.0), float(calibrate.fma_peak(dtype, threads, fresh=True)))
            rate = max(rate, float(calibrate.microkernel_rate(name, threads)))
        rates.append((name, dtype, tuple(tile), rate))
    return [
        KernelResult(name=name, dtype=dtype, tile=tile, rate=rate, peak=peaks[dtype])
        for name, dtype, tile, rate in rates
    ]
