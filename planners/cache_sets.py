"""Lines of an operand that many small products read a few elements of each, where they push each other out of the caches.

At strides of powers of two lines share few sets of a cache, and are gone long before it is full.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Sequence

from ..kernels.cpu.units import LINE, PAGE
from ..kernels.isa import ISA
from ..machine_memory import cache_of_level
from .sides import OUT, Dim

Step = tuple[int, int]  # size, and bytes from one to the next

ANY = 1 << 30  # columns
WAITED_TERMS = 32  # of a sum, up to which stores past the caches are waited for
TILE_COLUMNS = 16  # that are looked at
BEYOND = 9.0  # cycles of a line that comes from beyond the second cache; from that one it is there in time
_PERIODS = (1, PAGE), (2, 64 << 10)  # level, bytes from which on sets come again; with more sets, as if these had more lines


def line_cycles(product: Sequence[Step], turn: Step | None, *, item: int) -> float:
    """Cycles that one product waits for lines of an operand, of whose lines it reads half or less, because sets are full.

    ``product``: dimensions that it has of the operand, whose elements have ``item`` bytes; ``turn``: the one along which
    products follow each other. Where that goes along lines, the next product finds those of this one, if a cache keeps
    them all; else products of the next loop outside do, if it keeps those of all turns. More lines than the second cache
    has are not counted: other numbers tell what these take.

    >>> line_cycles([(8, 256), (8, 16384)], (64, 4), item=4)  # 64 lines in 32 sets of the second cache
    0.0
    """
    lines = _lines(product, item)
    if LINE * lines < 2 * item * prod([size for size, step in product if step]) or LINE * lines > cache_of_level(2):
        return 0.0
    kept = product if turn is None or 0 < abs(turn[1]) < LINE else (*product, turn)
    return 0.0 if _stay(kept, item) else lines * BEYOND


def stay_near(steps: Sequence[Step], *, item: int) -> bool:
    """Whether the first cache keeps the lines of so many elements.

    >>> stay_near([(8, 2048), (8, 32)], item=4), stay_near([(64, 2048), (8, 32)], item=4)
    (True, False)
    """
    level, period = _PERIODS[0]
    return _fit(steps, level, period, item)


def _lines(steps: Sequence[Step], item: int) -> int:
    """How many lines elements lie on, at most."""
    return _within(steps, item) * prod([size for size, step in steps if abs(step) >= LINE])


def _within(steps: Sequence[Step], item: int) -> int:
    """Lines that elements lie on which are less than a line apart."""
    span = sum([(size - 1) * abs(step) for size, step in steps if abs(step) < LINE]) + item
    return -(-span // LINE)


def _stay(steps: Sequence[Step], item: int) -> bool:
    """Whether one of the first two caches keeps all of the lines."""
    return any([_fit(steps, level, period, item) for level, period in _PERIODS])


def _fit(steps: Sequence[Step], level: int, period: int, item: int) -> bool:
    """Whether a cache keeps all of the lines, whose sets come again from ``period`` bytes on."""
    lines, within = _lines(steps, item), _within(steps, item)
    sets = within * prod([min(size, period // gcd(step, period)) for size, step in steps if abs(step) >= LINE])
    return lines <= cache_of_level(level) // period * min(sets, period // LINE)


def columns_apart(dims: Sequence[Dim], isa: ISA, terms: int) -> int:
    """How many columns side by side lie on lines of their own in a page of C, as far as a tile may have so many.

    Where a vector is no line, a core that stores lines past the caches at the same place of several pages waits for each
    (docs/performance-memory.md#columns-apart); with more ``terms`` that is over before the next tile is stored.
    """
    if isa.vector_bits >= 8 * LINE or terms > WAITED_TERMS:
        return ANY
    offsets, seen = [0], {}
    for dim in dims:  # fastest first
        step = dim.stride(OUT)
        if step is None or not 0 < len(offsets) < TILE_COLUMNS:
            break
        turns = range(min(dim.size, -(-TILE_COLUMNS // len(offsets))))
        offsets = [turn * step + offset for turn in turns for offset in offsets]
    for count, offset in enumerate(offsets):
        line = offset // LINE
        if seen.setdefault(line % (PAGE // LINE), line) != line:
            return count
    return ANY
