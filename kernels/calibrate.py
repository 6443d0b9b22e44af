"""What this machine can do: multiply-adds per second, bytes copied per second, measured once and remembered.

Figures are kept in memory and in ``calibration.json`` in the cache folder, under CPU and instruction set;
``fresh=True`` measures again. A measurement takes some tens of milliseconds and reports the best of several runs.
`quick_rates` is what a first use can wait for.
"""

from __future__ import annotations

import ctypes
import json
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

import numpy as np

from .. import config
from ..dtypes import DTYPES
from ..errors import EngineTypeError, EngineValueError
from ..files import write_whole
from . import tiles
from .cpu.units import PAGE
from .gemm import GemmProblem, Operand, lower
from .isa import ISA, active_isa
from .launch import Launch

_SECONDS = 0.002  # one run; short and many, so that some fall between the turns of other programs
_RUNS = 20
_SIZING_RUNS = 3  # of which the best says how many repetitions fill a run
_QUICK_SECONDS, _QUICK_RUNS = 2e-4, 12
_QUICK_FOOTPRINTS = {"cache_bandwidth": 1 << 19, "memory_bandwidth": 1 << 25}
_SMALLEST_FOOTPRINT = 4096
_LARGEST_FOOTPRINT = 1 << 29  # beyond any cache; more would only cost memory and time
_ORDINARY = 0x3F  # a byte that makes a positive number of any dtype, far from 0, denormals and infinity

_known: dict[str, float] = {}


def fma_peak(dtype: str, threads: int = 1, isa: str | None = None, *, fresh: bool = False) -> float:
    """Operations per second of multiply-adds held in registers, on ``threads`` threads together.

    A multiply-add counts 2 (for bool: an ``and`` and an ``or``); a complex one is four real ones, so a complex dtype
    has the rate of its parts. ``isa`` names an instruction set other than the active one.

    >>> fma_peak("complex64") == fma_peak("float32") > 1e8
    True
    """
    known = {name: row.real for name, row in DTYPES.items() if row.real in tiles.REAL}
    if dtype not in known:
        raise EngineTypeError(f"fma_peak of dtype {dtype!r}: there are {', '.join(known)}")
    real = known[dtype]
    chosen = active_isa(isa)
    return _remember(f"{chosen.name} fma {real} {threads}", fresh, lambda: _measure_peak(real, threads, chosen))


def copy_bandwidth(nbytes: int, threads: int = 1, isa: str | None = None, *, fresh: bool = False) -> float:
    """Bytes per second, read plus written, of the fastest vector copy with a footprint of ``nbytes``.

    The footprint is source and destination of all ``threads`` together, rounded to a quarter of an octave and kept
    between 4 KiB and 512 MiB. Plain and streaming stores are tried, repeatedly on the same memory: small footprints
    measure a cache.

    >>> copy_bandwidth(1 << 16) > 1e7
    True
    """
    footprint = _footprint(nbytes)
    chosen = active_isa(isa)
    key = f"{chosen.name} copy {footprint} {threads}"
    return _remember(key, fresh, lambda: _measure_copy(footprint, threads, chosen))


@dataclass(frozen=True, kw_only=True)
class Loops:
    """A compiled loop in a thread each: ``amount`` is what one repetition of all of them does together."""

    calls: Sequence[Callable[[int], None]]
    amount: int

    def seconds(self, repeats: int) -> float:
        """Seconds of ``repeats`` repetitions, here and now: whatever disturbs them counts."""
        return _run(self.calls, repeats)

    def repeats(self, seconds: float) -> int:
        """How many repetitions take one of the loops, alone, about so long."""
        return _repeats(self.calls[0], seconds)

    def best_rate(self, target: float | None = None, runs: int | None = None) -> float:
        """The amount of a second, in the best of some runs."""
        return self.amount * _best_rate(self.calls, target, runs)


def multiply_adds(dtype: str, threads: int = 1, isa: str | None = None) -> Loops:
    """What `fma_peak` runs; ``amount`` are the operations of a repetition.

    >>> loops = multiply_adds("float32")
    >>> 10_000 * loops.amount / loops.seconds(10_000) > 1e7
    True
    """
    return _peak_loops(dtype, threads, active_isa(isa))


def copies(nbytes: int, threads: int = 1, isa: str | None = None) -> Loops:
    """What `copy_bandwidth` runs, with the stores that are the faster ones just now; ``amount`` are bytes read and
    written, and all that the loops touch."""
    both = [_copy_loops(name, _footprint(nbytes), threads, active_isa(isa)) for name in _COPIES]
    return max(both, key=lambda loops: loops.best_rate(_QUICK_SECONDS, _QUICK_RUNS))


def quick_rates(isa: ISA) -> dict[str, float]:
    """Rates of one thread in some 20 ms, never remembered: FMA peaks of float32 and float64, operations per second;
    ``cache_bandwidth`` and ``memory_bandwidth`` of copies of 512 KiB and 32 MiB, bytes read and written per second;
    ``in_flight``: vector multiply-adds under way at the peak of float32."""
    rates = {dtype: _measure_peak(dtype, 1, isa, _QUICK_SECONDS, _QUICK_RUNS) for dtype in ("float32", "float64")}
    for name, footprint in _QUICK_FOOTPRINTS.items():
        rates[name] = _measure_copy(footprint, 1, isa, _QUICK_SECONDS, _QUICK_RUNS // 2)
    rates["in_flight"] = float(isa.in_flight)
    if isa.fma:  # elsewhere a product and a sum are under way together, which is another question
        chain = _peak_loops("float32", 1, isa, kernel="fmachain").best_rate(_QUICK_SECONDS, _QUICK_RUNS)
        rates["in_flight"] = rates["float32"] / chain
    return rates


def _footprint(nbytes: int) -> int:
    nbytes = min(max(nbytes, _SMALLEST_FOOTPRINT), _LARGEST_FOOTPRINT)
    return round(2 ** (round(4 * math.log2(nbytes)) / 4))


# -- measuring ---------------------------------------------------------------------------------------------------
_Function = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def _function(name: str, isa: ISA) -> Callable[[int], None]:
    """A compiled loop that takes the address of its arguments; the GIL is released while it runs."""
    from .cpu import library

    return _Function(library.address(name, isa))


def _measure_peak(dtype: str, threads: int, isa: ISA, target: float | None = None, runs: int | None = None) -> float:
    return _peak_loops(dtype, threads, isa).best_rate(target, runs)


def _peak_loops(dtype: str, threads: int, isa: ISA, kernel: str = "fmapeak") -> Loops:
    from .cpu import calibrate

    width, chains = isa.vector_bits // 8, calibrate.chains(f"{kernel}_{dtype}", isa)
    lanes = isa.lanes(tiles.ITEMSIZE[dtype])
    function, calls = _function(f"{kernel}_{dtype}", isa), []
    for _ in range(threads):
        data = _aligned((2 + chains) * width)
        # x * 0.5 + 1 tends to 2: no infinity, no denormal. Integers wrap, which costs nothing.
        data[:width].view(_view(dtype))[:] = 0.5 if dtype.startswith("float") else 1
        data[width:].view(_view(dtype))[:] = 1
        calls.append(_Call(function, data, [0, data.ctypes.data], 0))
    return Loops(calls=calls, amount=threads * 2 * chains * lanes)


_COPIES = ("copy_plain", "copy_stream")


def _measure_copy(footprint: int, threads: int, isa: ISA, target: float | None = None, runs: int | None = None) -> float:
    return max(_copy_loops(name, footprint, threads, isa).best_rate(target, runs) for name in _COPIES)


def _copy_loops(name: str, footprint: int, threads: int, isa: ISA) -> Loops:
    from .cpu import calibrate

    unit = calibrate.copy_unit(isa)
    share = max(unit, footprint // (2 * threads) // unit * unit)
    # Source and destination half a page apart modulo pages: equal low address bits stall loads behind stores.
    distance = -(-share // PAGE) * PAGE + PAGE // 2
    memory = _aligned(threads * 2 * distance)
    sources = [memory.ctypes.data + 2 * thread * distance for thread in range(threads)]
    function = _function(name, isa)
    calls = [_Call(function, memory, [at + distance, at, share, 0], 3) for at in sources]
    return Loops(calls=calls, amount=2 * share * threads)


def _view(dtype: str) -> np.dtype:
    return np.dtype("uint8" if dtype == "bool" else dtype)


def _aligned(nbytes: int) -> np.ndarray:
    """Touched memory at a page boundary, of ordinary numbers: memory may take and keep lines of zeros for less."""
    memory = np.empty(nbytes + PAGE, np.uint8)
    memory[:] = _ORDINARY
    shift = -memory.ctypes.data % PAGE
    return memory[shift : shift + nbytes]


class _Call:
    """A compiled loop with its argument words; ``memory`` is what they point into."""

    def __init__(self, function: Callable[[int], None], memory: np.ndarray, words: list[int], repeat_word: int):
        self._function, self._memory, self._repeat_word = function, memory, repeat_word
        self._words = np.array(words, np.int64)

    def __call__(self, repeats: int) -> None:
        self._words[self._repeat_word] = repeats
        self._function(self._words.ctypes.data)


def _best_rate(calls: Sequence[Callable[[int], None]], target: float | None = None, runs: int | None = None) -> float:
    """Repetitions per second of each of ``calls``, run at the same time in a thread each; the best run counts.

    ``target``: seconds that one of ``runs`` runs takes, about.
    """
    repeats = _repeats(calls[0], target or _SECONDS)
    return repeats / min(_run(calls, repeats) for _ in range(runs or _RUNS))


def _repeats(call: Callable[[int], None], target: float) -> int:
    """Repetitions that take about ``target`` seconds: alone, for starting threads would count for work."""
    call(1)  # a kernel that is not on disk is compiled here, which would count as many repetitions
    seconds, repeats = 0.0, 1
    while seconds < target / 2 and repeats < 1 << 40:
        repeats = repeats if not seconds else min(max(2 * repeats, int(repeats * target / seconds)), 64 * repeats)
        # A run that another program stopped looks as if a few repetitions filled it.
        seconds = min(_run([call], repeats) for _ in range(_SIZING_RUNS))
    return repeats


def _run(calls: Sequence[Callable[[int], None]], repeats: int) -> float:
    """Seconds from the start of the first call to the end of the last."""
    barrier = threading.Barrier(len(calls))
    spans = []

    def work(call: Callable[[int], None]) -> None:
        barrier.wait()
        start = time.perf_counter()
        call(repeats)
        spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(call,)) for call in calls[1:]]
    for worker in workers:
        worker.start()
    work(calls[0])
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


# -- microkernels ------------------------------------------------------------------------------------------------
_PANELS, _COLUMNS = 4, 4  # panels of A and of B: enough to walk, and all of it in L2


def microkernel_rows(isa: str | None = None) -> list[tuple[str, str, tuple[int, int]]]:
    """Every register tile of the GEMM family on the active instruction set: (kernel name, dtype, tile).

    >>> name, dtype, (vectors, columns) = microkernel_rows()[0]
    >>> name == f"gemm_{dtype}_{vectors}x{columns}_pp"
    True
    """
    chosen = active_isa(isa)
    rows = ((dtype, tile) for dtype in tiles.DTYPES for tile in tiles.tiles(chosen, dtype))
    return [(f"gemm_{dtype}_{mv}x{nr}_pp", dtype, (mv, nr)) for dtype, (mv, nr) in rows]


def microkernel(name: str, threads: int = 1, isa: str | None = None, *, k: int | None = None) -> Loops:
    """One of `microkernel_rows` on packed panels in cache; operations are counted as in `fma_peak`.

    ``k``: length of the sum, by default what fills 16 KiB of a panel of B with the widest tile.

    >>> name, dtype, tile = microkernel_rows()[0]
    >>> microkernel(name).best_rate() > 1e7
    True
    """
    chosen = active_isa(isa)
    known = {row: (dtype, tile) for row, dtype, tile in microkernel_rows(isa)}
    if name not in known:
        raise EngineValueError(f"no microkernel {name!r} for {chosen.name}; there are {', '.join(known)}")
    dtype, (mv, nr) = known[name]
    depth = k or _BLOCKED_K[tiles.ITEMSIZE[dtype]]
    calls = [_Tiles(dtype, mv, nr, depth, chosen) for _ in range(threads)]
    operations = 8 if dtype in tiles.COMPLEX else 2
    return Loops(calls=calls, amount=operations * threads * calls[0].points)


_BLOCKED_K = {1: 1024, 2: 768, 4: 384, 8: 256, 16: 192}


class _Tiles:
    """A GEMM on packed panels, over and over."""

    def __init__(self, dtype: str, mv: int, nr: int, k: int, isa: ISA):
        self._shape, self._isa = (dtype, mv, nr, k), isa
        item, self._mr = tiles.ITEMSIZE[dtype], mv * tiles.elements(isa, dtype)
        self.points = _PANELS * self._mr * _COLUMNS * nr * k
        counts = (_PANELS * self._mr * k, _COLUMNS * nr * k, _PANELS * self._mr * _COLUMNS * nr)
        self._memory = [_aligned(count * item) for count in counts]
        self._launches: dict[int, Launch] = {}

    def __call__(self, repeats: int) -> None:
        # Repetitions are an outer loop without strides: no call from Python between them.
        block = min(repeats, 256)
        for _ in range(repeats // block):
            self._launch(block)()
        if repeats % block:
            self._launch(repeats % block)()

    def _launch(self, repeats: int) -> Launch:
        if repeats not in self._launches:
            bases = [memory.ctypes.data for memory in self._memory]
            self._launches[repeats] = Launch(lower(self._problem(repeats)), bases, self._isa)
        return self._launches[repeats]

    def _problem(self, repeats: int) -> GemmProblem:
        dtype, mv, nr, k = self._shape
        item, mr = tiles.ITEMSIZE[dtype], self._mr
        rows, columns, depth = (np.arange(n, dtype=np.int64) for n in (_PANELS * mr, _COLUMNS * nr, k))
        still = np.zeros(repeats, np.int64)
        return GemmProblem(
            dtype=dtype,
            mv=mv,
            nr=nr,
            mr=mr,
            a=Operand(slot=0, offset=0),
            b=Operand(slot=1, offset=0),
            c=Operand(slot=2, offset=0),
            outer=((repeats, still, still, still),),
            tm_a=rows // mr * (mr * k * item) + rows % mr * item,
            tm_c=rows * item,
            valid=np.full(_PANELS, mr, np.int64),
            run=np.ones(_PANELS, np.int64),
            tn_b=columns // nr * (nr * k * item) + columns % nr * item,
            tn_c=columns * len(rows) * item,
            tk_a=depth * mr * item,
            tk_b=depth * nr * item,
            a_mode="panels",
            b_mode="panels",
            a_stride=mr * k * item,
            b_stride=nr * k * item,
            kc=k,
            blocks=(repeats, _PANELS, len(columns)),
        )


# -- remembering -------------------------------------------------------------------------------------------------
def _remember(key: str, fresh: bool, measure: Callable[[], float]) -> float:
    key = f"{config.cpu_name()} {key}"
    if not fresh:
        if key not in _known:
            _known.update(_read())
        if key in _known:
            return _known[key]
    _known[key] = measure()
    _write({**_read(), key: _known[key]})
    return _known[key]


def _file() -> Path:
    return config.cache_dir() / "calibration.json"


def _read() -> dict[str, float]:
    """Figures on disk; an unreadable or damaged file holds none."""
    try:
        data = json.loads(_file().read_text())
        return {str(key): float(value) for key, value in data.items() if float(value) > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(figures: dict[str, float]) -> None:
    """Replaces the file at once; a folder that cannot be written leaves the figures in memory."""
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(figures, indent=0, sort_keys=True).encode())
    except OSError:
        pass
