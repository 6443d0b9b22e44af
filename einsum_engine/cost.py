"""What a step costs: flops, bytes and a predicted time.

Flops count one multiplication and one addition per term; a complex multiply-add counts 8. The time is the larger of
flops over peak and bytes over bandwidth (a roofline), plus a constant per step, and one per call. The constants are a
`Machine`, which planners are handed: `measured.machine` has those of this machine, `typical_machine` those of a common
core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

from .machine_memory import block_bytes

WITHIN = 4.0  # a measured constant further than this factor from the typical one is noise, or a broken clock
CONSTANTS = ("float32", "float64", "cache_bandwidth", "memory_bandwidth", "in_flight")
CONSTANTS += ("step_seconds", "call_seconds", "meeting_seconds")
COMPLEX = ("complex64", "complex128")
LATENCY = 4  # cycles of a multiply-add
WORTH_MEETING = 4.0  # times as long as threads need to meet is what a product saves that they share,
WORTH_MOVING = 1.25  # and what only moves, which takes up to three times as long as a copy
FETCHED_BYTES = 5 << 10  # from another core, while threads meet


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Rates of one thread with one instruction set: flops per second by dtype, bytes read and written per second for
    data in cache and in memory; vector multiply-adds under way at the peak, latency times rate; what each step and each call
    adds, in seconds, and a step that threads share to the share of each."""

    isa: str
    peak: dict[str, float]
    cache_bandwidth: float = 60e9
    memory_bandwidth: float = 15e9
    cache_bytes: int = block_bytes(1 << 20, level=2)
    in_flight: int = 0  # 0: as many as on a common core
    step_seconds: float = 1.5e-7
    call_seconds: float = 4e-7
    meeting_seconds: float = 1e-6
    measured: bool = False

    def bandwidth(self, nbytes: int) -> float:
        return self.cache_bandwidth if nbytes <= self.cache_bytes else self.memory_bandwidth

    def terms(self, dtype: str) -> float:
        """Multiply-adds of elements a second at the peak."""
        return self.peak.get(dtype, 1e9) / (8 if dtype in COMPLEX else 2)

    def is_shared(self, seconds: float, threads: int, worth: float = WORTH_MEETING) -> bool:
        """Whether ``threads`` share a step that one of them would do in so many seconds: it saves ``worth`` meetings."""
        return threads > 1 and seconds * (1 - 1 / threads) > worth * self.meeting_seconds

    def fetching_seconds(self, nbytes: int) -> float:
        """What other threads take to fetch so many bytes from the core that wrote them: lines go the same way as what threads
        tell each other when they meet."""
        return nbytes / FETCHED_BYTES * self.meeting_seconds


def typical_machine(isa: str, vector_bits: int, fma: bool) -> Machine:
    """Rates of a common core at 3 GHz: one (512 bits) or two vector FMAs a cycle."""
    units = 2 if vector_bits < 512 else 1
    per_cycle = vector_bits / 8 * units * (2 if fma else 1)
    rate = 3e9 * per_cycle
    peak = {"float32": rate / 4, "float64": rate / 8, "complex64": rate / 4, "complex128": rate / 8}
    for name, size in (("int8", 1), ("bool", 1), ("int16", 2), ("int32", 4), ("int64", 8)):
        peak[name] = rate / max(size, 4) / 2
    return Machine(isa=isa, peak=peak, in_flight=LATENCY * units)


def measured_machine(typical: Machine, constants: Mapping[str, float]) -> Machine:
    """``typical`` with its constants replaced by measured ones (`CONSTANTS`), each kept within a factor of `WITHIN`.

    Complex numbers have the peak of their parts; that of integers changes as that of float32 does, with the clock.
    Multiply-adds in flight are those of a whole number of units, at least one.
    """
    real = {name: _near(constants[name], typical.peak[name]) for name in ("float32", "float64")}
    faster = real["float32"] / typical.peak["float32"]
    peak = {name: rate * faster for name, rate in typical.peak.items()}
    peak |= real | {"complex64": real["float32"], "complex128": real["float64"]}
    rest = {name: _near(constants[name], getattr(typical, name)) for name in CONSTANTS if name not in real}
    rest["in_flight"] = LATENCY * max(1, round(rest["in_flight"] / LATENCY))
    return replace(typical, peak=peak, measured=True, **rest)


def _near(value: float, typical: float) -> float:
    return min(max(value, typical / WITHIN), typical * WITHIN)


def contraction_flops(points: int, dtype: str, summed: bool) -> int:
    """Operations of a step over ``points`` index combinations.

    >>> contraction_flops(1000, "float64", True), contraction_flops(1000, "complex64", True)
    (2000, 8000)
    """
    if dtype in COMPLEX:
        return points * (8 if summed else 6)
    return points * (2 if summed else 1)


def seconds(flops: int, nbytes: int, dtype: str, machine: Machine, threads: int = 1, cold: int = 0) -> float:
    """Predicted time of one step on ``threads`` threads, or on one where it is not worth sharing. ``cold``: of the bytes, those
    that are not in cache however few they are, because the step is a block of a larger one.

    >>> machine = typical_machine("avx2", 256, True)
    >>> seconds(0, 4096, "float32", machine, cold=4096) > seconds(0, 4096, "float32", machine)
    True
    """
    compute = flops / machine.peak.get(dtype, 1e9)
    cold = nbytes if nbytes > machine.cache_bytes else cold
    far, near = cold / (machine.memory_bandwidth * 1.5), (nbytes - cold) / machine.cache_bandwidth
    alone = max(compute, far + near)
    if not machine.is_shared(alone, threads):
        return alone + machine.step_seconds
    return max(compute / threads, far + near / threads) + machine.meeting_seconds + machine.step_seconds
