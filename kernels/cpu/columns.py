"""Packing into panels as wide as a tile: with the width known, a run of a few elements is straight code."""

from __future__ import annotations

from typing import Callable

from llvmlite import ir

from ..isa import ISA
from ..tiles import ITEMSIZE, elements, tiles
from .emit import I64, Fn, Val
from .mover import Mover, mover_for
from .stream import LINE


def columns(mover: Mover, isa: ISA) -> list[int]:
    """Columns of the tiles that read such elements, where they are several."""
    return sorted({nr for dtype in _dtypes(mover) for _, nr in tiles(isa, dtype) if nr > 1})


def lanes(mover: Mover, isa: ISA) -> list[int]:
    """Lanes of the tiles for such elements, where they are several."""
    widths = {mv * elements(isa, dtype) for dtype in _dtypes(mover) for mv, _ in tiles(isa, dtype)}
    return sorted(width for width in widths if width > 1)


def _dtypes(mover: Mover) -> list[str]:
    return [dtype for dtype, item in ITEMSIZE.items() if item == mover.item]


def is_woven(mover: Mover, width: int) -> bool:
    """Whether lanes fill a part of a vector, and are woven with fewer shuffles than a whole block takes."""
    return width < mover.block and width // (width & -width) <= 3


def emit_row(module: ir.Module, width: int, name: str, isa: ISA) -> Fn:
    """``void row(at, dst, stride, panels, ahead)``: adjacent elements to so many panels of ``width`` lanes, ``stride`` bytes
    apart. What lies from ``ahead`` on is asked for early.

    A run of a few elements is a few instructions where its length is known, and a loop and several tests where it is not.
    """
    f = Fn(module, f"row_{width}", [I64] * 5, internal=True)
    f.fn.attributes.add("noinline")
    m = mover_for(f, name, isa)
    at, dst, stride, panels, ahead = f.args
    pitch = width * m.source_item
    with f.range(0, panels) as q:
        source, to = at + q * pitch, dst + q * stride
        for part in range(0, pitch, LINE):
            f.prefetch(ahead + q * pitch + part, locality=2)
        done = 0
        for elems in m.pieces(width):
            m.copy(source + done * m.source_item, to + done * m.item, elems)
            done += elems
    f.ret()
    return f


def store_vectors(m: Mover, vectors: list[Val], dst: Val, distance: Val | int, past: Val) -> None:
    """Vectors of T elements, ``distance`` bytes apart. ``past``: they are whole lines of ``dst``, and go past the caches where
    a vector is a line."""
    f = m.f

    def each(store: Callable[[Val, Val], None]) -> None:
        for i, vector in enumerate(vectors):
            store(vector, dst + distance * i)

    if m.block * m.item != LINE:
        each(m.store)
        return
    with f.if_else(past.ne(0)) as (then, otherwise):
        with then:
            each(f.stream)
        with otherwise:
            each(m.store)


def emit_woven(module: ir.Module, width: int, name: str, isa: ISA) -> Fn:
    """``void woven(at, lanes, dst, steps, ahead, past)``: so many blocks of ``width`` lanes and T terms to a panel of that width,
    from ``at + lanes[l]``, where the terms of each lane are adjacent, to ``dst``. Whole vectors of the panel are stored.
    ``past``: ``dst`` begins with a line, and they go past the caches."""
    f = Fn(module, f"woven_{width}", [I64] * 6, internal=True)
    f.fn.attributes.add("noinline")
    m = mover_for(f, name, isa)
    at, lanes, dst, steps, ahead, past = f.args
    sources = [at + f.word(lanes, l) for l in range(width)]
    with f.range(0, steps) as step:
        shift, to = step * (m.block * m.source_item), dst + step * (width * m.block * m.item)
        for source in sources:
            f.prefetch(source + shift + ahead, locality=2)
        vectors = m.weave([m.load(source + shift, m.block) for source in sources])
        store_vectors(m, vectors, to, m.block * m.item, past)
    f.ret()
    return f
