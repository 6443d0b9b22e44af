"""Copying bytes past the caches."""

from __future__ import annotations

from typing import Callable

from ..isa import ISA
from .emit import I8, I16, I32, I64, Fn, Val, vector_type
from .units import LINE


def stream(
    f: Fn,
    isa: ISA,
    dst: Val,
    src: Val,
    first: Val,
    last: Val,
    beside: Callable[[], None] = lambda: None,
    past: bool = True,
) -> None:
    """Bytes ``first`` to ``last`` (exclusive) of ``src`` to ``dst``: whole lines of ``dst`` ``past`` the caches, what
    comes before and after them as usual. Nothing else is read or written; both may be anywhere, and do not overlap.

    ``beside`` emits what is done beside each whole line: stores past the caches leave time for it."""
    begin = f.min(first + ((f.i64(0) - dst - first) & (LINE - 1)), last)
    at = f.var(first)
    _copy(f, dst, src, at, begin)
    whole = (last - begin) & ~(LINE - 1)
    stream_lines(f, isa, dst + begin, src + begin, whole, beside, past)
    at.set(begin + whole)
    _copy(f, dst, src, at, last)


def stream_lines(
    f: Fn, isa: ISA, dst: Val, src: Val, nbytes: Val, beside: Callable[[], None], past: bool = True
) -> None:
    """`stream` of whole lines of ``dst``."""
    size = min(isa.vector_bits // 8, LINE)
    words = vector_type(I64, size // 8)
    with f.range(0, nbytes, LINE) as i:
        parts = [f.load(words, src + i + part) for part in range(0, LINE, size)]
        for number, part in enumerate(parts):
            (f.stream if past else f.store)(part, dst + i + number * size)
        beside()


def _copy(f: Fn, dst: Val, src: Val, at, end: Val) -> None:
    """Less than a line."""
    with f.range(at.get(), end - 7, 8) as i:
        f.store(f.load(I64, src + i), dst + i)
        at.set(i + 8)
    for unit in (I32, I16, I8):
        size = unit.width // 8
        with f.if_(end - at.get() >= size):
            f.store(f.load(unit, src + at.get()), dst + at.get())
            at.add(size)
