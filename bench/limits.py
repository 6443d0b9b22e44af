"""The limit of a contraction: the least time that its steps can take on this machine.

The limit of a step is the larger of its flops over the FMA peak of its dtype and its bytes over the copy bandwidth
at that footprint; bytes are those of the distinct elements touched. The limits of the steps of our path add up.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Callable, Sequence

from .steps import StepCost

# Below this a limit says more about the clock and the call than about the machine.
SMALLEST_LIMIT = 50e-6
# How far above the limit a peer may be measured before the run is void: the noise of two measurements.
VOID_MARGIN = 1.05

_COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64", "clongdouble": "longdouble"}
_UNSIGNED = {"uint8": "int8", "uint16": "int16", "uint32": "int32", "uint64": "int64"}
_WIDENED = {"float16": "float32", "bfloat16": "float32"}
# A complex multiply-add is four real ones, a complex addition two.
_COMPLEX_FMAS = 4
_COMPLEX_ADDS = 2


class Roof:
    """Peaks and bandwidths of this machine, each measured once, when first asked for.

    ``peak(dtype_name, threads)`` is in flop/s (a multiply-add counts two), ``bandwidth(nbytes, threads)`` in
    bytes/s, reads and writes both counted. Without them, `einsum_engine.kernels.calibrate` measures, never taking a
    figure of an earlier run.

    >>> roof = Roof(1, peak=lambda dtype, threads: 2e9, bandwidth=lambda nbytes, threads: 1e9)
    >>> roof.peak("complex64")
    2000000000.0
    """

    def __init__(
        self,
        threads: int,
        peak: Callable[[str, int], float] | None = None,
        bandwidth: Callable[[int, int], float] | None = None,
    ) -> None:
        self.threads = threads
        self._measure_peak = peak
        self._measure_bandwidth = bandwidth
        self.peaks: dict[str, float] = {}
        self.bandwidths: dict[int, float] = {}

    def peak(self, dtype: str) -> float:
        """flop/s of the real dtype in which ``dtype`` is computed."""
        real = real_dtype(dtype)
        if real not in self.peaks:
            measure = self._measure_peak or partial(_calibrate().fma_peak, fresh=True)
            self.peaks[real] = float(measure(real, self.threads))
        return self.peaks[real]

    def bandwidth(self, nbytes: int) -> float:
        """bytes/s of a copy that touches about ``nbytes``: measured at the nearest quarter of an octave."""
        footprint = round(2 ** (round(4 * math.log2(max(nbytes, 1024))) / 4))
        if footprint not in self.bandwidths:
            measure = self._measure_bandwidth or partial(_calibrate().copy_bandwidth, fresh=True)
            self.bandwidths[footprint] = float(measure(footprint, self.threads))
        return self.bandwidths[footprint]

    def step_limit(self, step: StepCost, dtype: str, itemsize: int) -> float:
        """Seconds that ``step`` takes at least."""
        nbytes = sum(step.elements) * itemsize
        flops = step_flops(step, dtype)
        seconds = nbytes / self.bandwidth(nbytes) if nbytes else 0.0
        return max(seconds, flops / self.peak(dtype)) if flops else seconds

    def limit(self, steps: Sequence[StepCost], dtype: str, itemsize: int) -> float:
        """Seconds that all ``steps`` take at least, one after the other."""
        return sum(self.step_limit(step, dtype, itemsize) for step in steps)


def _calibrate():  # type: ignore[no-untyped-def]
    from ..kernels import calibrate

    return calibrate


def real_dtype(dtype: str) -> str:
    """The real dtype whose FMA peak bounds ``dtype``: the part of a complex, the wider type of a half.

    >>> real_dtype("complex128"), real_dtype("bfloat16"), real_dtype("uint32")
    ('float64', 'float32', 'int32')
    """
    for table in (_COMPLEX_PARTS, _UNSIGNED, _WIDENED):
        dtype = table.get(dtype, dtype)
    return dtype


def step_flops(step: StepCost, dtype: str) -> int:
    """Real flops of a step; a real multiply-add counts two and an addition alone one."""
    if dtype in _COMPLEX_PARTS:
        return 2 * _COMPLEX_FMAS * step.multiply_adds + _COMPLEX_ADDS * step.adds
    return 2 * step.multiply_adds + step.adds


def share(limit: float, seconds: float) -> float | None:
    """Fraction of the limit that a time reaches, or None where the limit is too short to say.

    >>> share(1e-3, 2e-3), share(1e-6, 2e-6)
    (0.5, None)
    """
    if limit < SMALLEST_LIMIT:
        return None
    return limit / seconds


def voids(limit: float, seconds: float) -> bool:
    """Whether a peer's time is above the limit: then the limit was measured wrongly, and the run is void."""
    reached = share(limit, seconds)
    return reached is not None and reached > VOID_MARGIN
