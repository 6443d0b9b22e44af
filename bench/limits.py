"""The limit of a contraction: the least time that its steps can take on this machine.

The limit of a step is the larger of its flops over the FMA peak of its dtype and its bytes over the copy bandwidth
at that footprint; bytes are those of the distinct elements touched. The limits of the steps of our path add up.

A busy machine shows less than its peak, never more: of several measurements of a run the largest counts. `LimitNow`
is the same limit as it is at one moment, for comparisons in alternation: two processors that are two cores at one time
and one core's two threads at another have twice the peak or not, whoever asks for it.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterable, Mapping, Sequence

from ..dtypes import DTYPES
from ..errors import EngineTypeError
from .steps import StepCost
from .timing import SAMPLE_SECONDS

# Below this a limit says more about the clock and the call than about the machine.
SMALLEST_LIMIT = 50e-6
# How far above the limit a peer may be measured before the run is void: the noise of two measurements.
VOID_MARGIN = 1.05
# Seconds after which a peak or a bandwidth that is needed again is also measured again.
_FRESH_SECONDS = 60.0
_TRIES = 5
_PAUSE_SECONDS = 0.2
# What is less than this of a limit is not run to see how long it takes just now.
_SMALL_PART = 0.02

# What a step does: real flops, and bytes of the distinct elements that it touches.
Work = Sequence[tuple[int, int]]

# A complex multiply-add is four real ones, a complex addition two.
_COMPLEX_FMAS = 4
_COMPLEX_ADDS = 2


class Roof:
    """Peaks and bandwidths of this machine, measured when first asked for and again later: the largest count.

    ``peak(dtype_name, threads)`` is in flop/s (a multiply-add counts two), ``bandwidth(nbytes, threads)`` in
    bytes/s, reads and writes both counted. Without them, `einsum_engine.kernels.calibrate` measures, never taking a
    figure of an earlier run.

    >>> roof = Roof(1, peak=lambda dtype, threads: 2e9, bandwidth=lambda nbytes, threads: 1e9)
    >>> roof.peak("complex64")
    2000000000.0
    >>> roof.limit([(1000, 0), (0, 4000)], "float32")
    4.5e-06
    """

    def __init__(
        self,
        threads: int,
        peak: Callable[[str, int], float] | None = None,
        bandwidth: Callable[[int, int], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads = threads
        self._measure_peak = peak
        self._measure_bandwidth = bandwidth
        self._clock = clock
        self._measured: dict[str | int, float] = {}
        self.peaks: dict[str, float] = {}
        self.bandwidths: dict[int, float] = {}

    def peak(self, dtype: str) -> float:
        """flop/s of the real dtype in which ``dtype`` is computed."""
        real = real_dtype(dtype)
        if real not in self.peaks:
            self._peak_again(real)
        return self.peaks[real]

    def bandwidth(self, nbytes: int) -> float:
        """bytes/s of a copy that touches about ``nbytes``: measured at the nearest quarter of an octave."""
        footprint = _footprint(nbytes)
        if footprint not in self.bandwidths:
            self._bandwidth_again(footprint)
        return self.bandwidths[footprint]

    def prime(self, dtypes: Iterable[str], pause: Callable[[float], Any] = time.sleep) -> None:
        """Measure the peaks of ``dtypes`` several times, with pauses between; dtypes without a peak are left out."""
        reals = sorted({real_dtype(dtype) for dtype in dtypes})
        for number in range(_TRIES if reals else 0):
            if number:
                pause(_PAUSE_SECONDS)
            for real in reals:
                with suppress(EngineTypeError):
                    self._peak_again(real)

    def refresh(self, work: Work, dtype: str) -> None:
        """Measure again what bounds ``work`` and was last measured more than a minute ago."""
        self._again(work, dtype, self._clock() - _FRESH_SECONDS)

    def again(self, work: Work, dtype: str) -> None:
        """Measure again what bounds ``work``."""
        self._again(work, dtype, math.inf)

    def include(self, peaks: Mapping[str, float], bandwidths: Mapping[str, float]) -> None:
        """Let the figures of an earlier part of the same run count."""
        for name, rate in peaks.items():
            self.peaks[name] = max(rate, self.peaks.get(name, 0.0))
        for footprint, rate in bandwidths.items():
            self.bandwidths[int(footprint)] = max(rate, self.bandwidths.get(int(footprint), 0.0))

    def limit(self, work: Work, dtype: str) -> float:
        """Seconds that all steps of ``work`` take at least, one after the other."""
        return sum(seconds for _, seconds in self.parts(work, dtype).values())

    def parts(self, work: Work, dtype: str) -> dict[str | int, tuple[int, float]]:
        """What bounds the steps of ``work``: of a real dtype the flops, of a footprint the bytes, and their seconds."""
        found: dict[str | int, tuple[int, float]] = {}
        for flops, nbytes in work:
            by_flops, by_bytes = self._of_flops(flops, dtype), self._of_bytes(nbytes)
            copied = by_bytes > by_flops
            bound: str | int = _footprint(nbytes) if copied else real_dtype(dtype)
            amount, seconds = found.get(bound, (0, 0.0))
            found[bound] = (amount + (nbytes if copied else flops), seconds + max(by_flops, by_bytes))
        return found

    def _of_flops(self, flops: int, dtype: str) -> float:
        return flops / self.peak(dtype) if flops else 0.0

    def _of_bytes(self, nbytes: int) -> float:
        return nbytes / self.bandwidth(nbytes) if nbytes else 0.0

    def _again(self, work: Work, dtype: str, before: float) -> None:
        for bound in self._bounds(work, dtype):
            if self._measured.get(bound, -math.inf) >= before:
                continue
            if isinstance(bound, str):
                self._peak_again(bound)
            else:
                self._bandwidth_again(bound)

    def _bounds(self, work: Work, dtype: str) -> list[str | int]:
        """The real dtype whose peak bounds a step, and the footprint of the longest step that bandwidth bounds."""
        bounds = self.parts(work, dtype)
        footprints = [bound for bound in bounds if not isinstance(bound, str)]
        longest = max(footprints, key=lambda bound: bound / self.bandwidth(bound), default=None)
        return [bound for bound in bounds if isinstance(bound, str) or bound == longest]

    def _peak_again(self, real: str) -> None:
        measure = self._measure_peak or partial(_calibrate().fma_peak, fresh=True)
        self.peaks[real] = max(float(measure(real, self.threads)), self.peaks.get(real, 0.0))
        self._measured[real] = self._clock()

    def _bandwidth_again(self, footprint: int) -> None:
        measure = self._measure_bandwidth or partial(_calibrate().copy_bandwidth, fresh=True)
        self.bandwidths[footprint] = max(float(measure(footprint, self.threads)), self.bandwidths.get(footprint, 0.0))
        self._measured[footprint] = self._clock()


class LimitNow:
    """The limit of some work at the moment of a call: what bounds it is run for as long as a sample takes.

    The calls return seconds that are comparable with the mean of a sample of calls of an engine: disturbances count on
    both sides. What is a small part of the limit counts as ``roof`` has it.
    """

    def __init__(self, roof: Roof, work: Work, dtype: str) -> None:
        parts = roof.parts(work, dtype)
        total = sum(seconds for _, seconds in parts.values())
        run = {bound: part for bound, part in parts.items() if part[1] >= _SMALL_PART * total}
        self._whole = total / sum(seconds for _, seconds in run.values())
        self._times = SAMPLE_SECONDS / total
        self._parts = [(_loops(bound, roof.threads), amount) for bound, (amount, _) in run.items()]

    def __call__(self) -> float:
        """Seconds that the work takes at least."""
        return self._whole * sum(self._seconds(loops, amount) for loops, amount in self._parts)

    def _seconds(self, loops: Any, amount: int) -> float:
        """What ``amount`` takes, from as many whole repetitions as its part of a sample has."""
        repeats = max(1, round(self._times * amount / loops.amount))
        return amount * loops.seconds(repeats) / (repeats * loops.amount)


def _loops(bound: str | int, threads: int) -> Any:
    calibrate = _calibrate()
    return calibrate.multiply_adds(bound, threads) if isinstance(bound, str) else calibrate.copies(bound, threads)


def _footprint(nbytes: int) -> int:
    return round(2 ** (round(4 * math.log2(max(nbytes, 1024))) / 4))


def _calibrate():  # type: ignore[no-untyped-def]
    from ..kernels import calibrate

    return calibrate


def real_dtype(dtype: str) -> str:
    """The real dtype whose FMA peak bounds ``dtype``: the part of a complex, the wider type of a half.

    >>> real_dtype("complex128"), real_dtype("bfloat16"), real_dtype("uint32")
    ('float64', 'float32', 'int32')
    """
    return DTYPES[dtype].real


def step_flops(step: StepCost, dtype: str) -> int:
    """Real flops of a step; a real multiply-add counts two and an addition alone one."""
    if DTYPES[dtype].part:
        return 2 * _COMPLEX_FMAS * step.multiply_adds + _COMPLEX_ADDS * step.adds
    return 2 * step.multiply_adds + step.adds


def work_of(steps: Sequence[StepCost], dtype: str, itemsize: int) -> list[tuple[int, int]]:
    """What each of ``steps`` does, for `Roof.limit`."""
    return [(step_flops(step, dtype), sum(step.elements) * itemsize) for step in steps]


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
