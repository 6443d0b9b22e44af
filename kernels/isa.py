"""The instruction sets that kernels are generated for: one row each, and which of them this machine runs.

Pure data: planners read it for vector widths and register counts, the generator for the target machine.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .. import config
from ..errors import EngineValueError


@dataclass(frozen=True, kw_only=True, eq=False)
class ISA:
    """One instruction set, a row of `ISAS`: equal to itself alone, since it is part of the key of many small caches.

    ``triple_arch`` is the first part of the LLVM target triple, ``cpu`` and ``features`` are LLVM's names (a feature
    carries its sign: ``+fma``), ``host_flags`` the flags that ``/proc/cpuinfo`` must show. ``registers`` counts vector
    registers of ``vector_bits`` bits; ``masks``: loads and stores may be masked by lane; ``half``: converts between
    float16 and float32 in hardware; ``repeats``: an element of memory in all lanes of a vector costs no arithmetic unit.
    ``schedule``: for which processor LLVM puts the instructions of long functions in order; they stay those of
    ``features``.
    """

    name: str
    triple_arch: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    registers: int
    masks: bool
    half: bool
    repeats: bool
    host_flags: tuple[str, ...]
    schedule: str = ""

    @property
    def triple(self) -> str:
        """LLVM's target triple: ELF objects, as the machines that are tested use."""
        return f"{self.triple_arch}-unknown-linux-gnu"

    @property
    def fma(self) -> bool:
        """A fused multiply-add exists in hardware; elsewhere kernels multiply and add, never call a library."""
        return self.triple_arch == "aarch64" or "+fma" in self.features

    @property
    def in_flight(self) -> int:
        """Multiply-adds under way at the peak of a common core: four cycles each, one (512 bits) or two a cycle."""
        return 4 if self.vector_bits == 512 else 8

    def lanes(self, itemsize: int) -> int:
        """Elements of ``itemsize`` bytes in one vector register.

        >>> get("avx2").lanes(8)
        4
        """
        return self.vector_bits // (8 * itemsize)


_AVX2_FLAGS = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
_AVX512_PARTS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

# Widest first within an architecture: `host_isas` keeps this order.
ISAS: dict[str, ISA] = {
    isa.name: isa
    for isa in (
        ISA(
            name="avx512",
            triple_arch="x86_64",
            cpu="x86-64-v4",
            # LLVM tunes x86-64-v4 for 256 bits; kernels are written for 512.
            features=("-prefer-256-bit", *(f"+{part}" for part in _AVX512_PARTS), "+avx2", "+fma", "+f16c"),
            vector_bits=512,
            registers=32,
            masks=True,
            half=True,
            repeats=True,
            host_flags=(*_AVX512_PARTS, *_AVX2_FLAGS),
            schedule="znver4",
        ),
        ISA(
            name="avx2",
            triple_arch="x86_64",
            cpu="x86-64-v3",
            features=("+avx2", "+fma", "+f16c"),
            vector_bits=256,
            registers=16,
            masks=False,
            half=True,
            repeats=True,
            host_flags=_AVX2_FLAGS,
        ),
        # SSE2 is part of every x86-64 CPU, and NEON of every 64-bit ARM: no flag to look for.
        ISA(
            name="sse2",
            triple_arch="x86_64",
            cpu="x86-64",
            features=("+sse2",),
            vector_bits=128,
            registers=16,
            masks=False,
            half=False,
            repeats=False,
            host_flags=(),
        ),
        ISA(
            name="neon",
            triple_arch="aarch64",
            cpu="generic",
            features=("+neon",),
            vector_bits=128,
            registers=32,
            masks=False,
            half=True,
            repeats=True,
            host_flags=(),
        ),
    )
}


def get(name: str) -> ISA:
    """The row called ``name``; EngineValueError lists the names there are.

    >>> get("avx512").registers
    32
    """
    if name not in ISAS:
        raise EngineValueError(f"unknown instruction set {name!r}; there are {', '.join(ISAS)}")
    return ISAS[name]


def host_isas() -> tuple[ISA, ...]:
    """The instruction sets that this machine runs, widest first; never empty on x86-64 and 64-bit ARM."""
    return runnable(platform.machine(), _host_flags())


@lru_cache(maxsize=8)
def runnable(machine: str, flags: frozenset[str]) -> tuple[ISA, ...]:
    """The instruction sets of a ``machine`` (as `platform.machine` names it) whose CPU shows ``flags``."""
    arch = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}.get(machine.lower())
    return tuple(isa for isa in ISAS.values() if isa.triple_arch == arch and flags.issuperset(isa.host_flags))


def host_maker() -> str:
    """Who made this machine's CPU, as it says itself: ``GenuineIntel``; empty where it does not."""
    return parse_maker(_cpuinfo())


@lru_cache(maxsize=1)
def _host_flags() -> frozenset[str]:
    """Flags of the first CPU; where there is no such file, none, which leaves the baseline sets."""
    return parse_cpuinfo(_cpuinfo())


@lru_cache(maxsize=1)
def _cpuinfo() -> str:
    """/proc/cpuinfo, empty elsewhere than on Linux."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")  # names of models may be anything
    except OSError:
        return ""


def parse_maker(text: str) -> str:
    """The maker in the text of /proc/cpuinfo (``vendor_id``, which ARM has not).

    >>> parse_maker("processor\\t: 0\\nvendor_id\\t: AuthenticAMD\\n")
    'AuthenticAMD'
    """
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            return value.strip()
    return ""


def parse_cpuinfo(text: str) -> frozenset[str]:
    """The flags in the text of /proc/cpuinfo (``flags`` on x86, ``Features`` on ARM).

    >>> sorted(parse_cpuinfo("model name\\t: x\\nflags\\t\\t: sse2 avx2\\n"))
    ['avx2', 'sse2']
    """
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def active_isa(name: str | None = None) -> ISA:
    """The instruction set to generate for: ``name``, else EINSUM_ENGINE_ISA, else the widest that runs here.

    EngineValueError where the name is unknown or this machine cannot run it.
    """
    source = "isa"
    if name is None:
        source, name = "environment variable EINSUM_ENGINE_ISA", config.get("EINSUM_ENGINE_ISA")
    here = host_isas()
    if name is None:
        if not here:
            raise EngineValueError(f"no kernels for this machine: {platform.machine()!r} is neither x86-64 nor AArch64")
        return here[0]
    names = ", ".join(isa.name for isa in here) or "none"
    if name not in ISAS:
        raise EngineValueError(f"{source}={name!r}: unknown instruction set; there are {', '.join(ISAS)}")
    if ISAS[name] not in here:
        raise EngineValueError(f"{source}={name!r}: this machine ({platform.machine()}) runs {names}")
    return ISAS[name]
