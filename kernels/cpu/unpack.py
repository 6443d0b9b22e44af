"""Unpacking: a group of tiles to C where the next panel is adjacent, by transposing in registers.

Where A runs along another row dimension than C, lanes follow A, which is then read in place, and C is adjacent from
panel to panel. Tiles wait in the cache; then each column of them goes out as T x T blocks of (panel, lane), turned
round, so that runs of C are stored. C is as a rule several times smaller than A: this costs what packing A would,
divided by that.

Panels wait in groups of (beside, adjacent): for each panel that is adjacent in C, those whose lanes go on in A where its
own end, so that A is read in longer runs too.

The arguments are words of `unpack_abi`.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from .emit import I64, Fn, Val
from .mover import Mover
from .stream import LINE, stream

_ROOM = 1088  # bytes for a run that is put together, and the rest of its last block


def build_unpack(module: ir.Module, name: str, isa: ISA) -> None:
    """``void unpack(args)``: ``unpack_8`` moves elements of so many bytes."""
    f = Fn(module, name, [I64])
    Unpacker(f, Mover(f, int(name.split("_")[1]), isa), isa).emit()
    f.ret()


class Unpacker:
    """Emits one unpack function; attributes are its arguments."""

    def __init__(self, f: Fn, mover: Mover, isa: ISA) -> None:
        self.f, self.m, self.isa = f, mover, isa
        names = ("src", "stride", "pitch", "panels", "dst", "lanes", "columns", "valid", "count", "stream")
        for index, name in enumerate(names):
            setattr(self, name, f.word(f.args[0], index))
        self.nbytes = self.panels * mover.item  # of a run in C
        self.room = f.stack(_ROOM * mover.block)

    def emit(self) -> None:
        f, m = self.f, self.m
        whole = self.stream.ne(0) & (self.nbytes >= 2 * LINE) & (self.nbytes <= _ROOM - LINE)
        with f.range(0, self.count) as j, f.range(0, self.valid, m.block) as l:
            source, column = self.src + j * self.pitch + l * m.item, self.dst + f.word(self.columns, j)
            table, lanes = self.lanes + l * 8, f.min(self.valid - l, m.block)
            with f.if_else(whole & self._apart(column, table, lanes)) as (runs, blocks):
                with runs:
                    self._runs(source, column, table, lanes)
                with blocks, f.range(0, self.panels, m.block) as p:
                    rows, target = self._turned(source, p), column + p * m.item
                    with f.if_else((p + m.block <= self.panels) & lanes.eq(m.block)) as (then, otherwise):
                        with then:
                            self._whole(rows, [target + f.word(table, i) for i in range(m.block)])
                        with otherwise:
                            self._part(rows, target, table, self.panels - p, lanes)

    def _turned(self, source: Val, p: Val) -> list[Val]:
        """For each of T lanes, what T panels from ``p`` on have; behind the last one, it again."""
        f, m = self.f, self.m
        last = f.min(self.panels - p, m.block) - 1
        places = [p * self.stride + f.min(f.i64(i), last) * self.stride for i in range(m.block)]
        return m.transpose([m.load(source + place, m.block) for place in places])

    def _apart(self, column: Val, table: Val, lanes: Val) -> Val:
        """Whether one of the runs of these lanes does not begin with a line."""
        f, bits = self.f, self.f.i64(0)
        for i in range(self.m.block):
            bits = bits | (column + f.word(table, f.min(f.i64(i), lanes - 1)))
        return (bits & (LINE - 1)).ne(0)

    def _runs(self, source: Val, column: Val, table: Val, lanes: Val) -> None:
        """Put together before they go past the caches, whole lines each. The lines at both ends have to be read: they are
        asked for first, to be written."""
        f, m = self.f, self.m
        with f.range(0, lanes) as i:
            for end in (f.i64(0), self.nbytes - 1):
                f.prefetch(column + f.word(table, i) + end, write=True)
        with f.range(0, self.panels, m.block) as p:
            for i, row in enumerate(self._turned(source, p)):
                m.store(row, self.room + i * _ROOM + p * m.item)
        with f.range(0, lanes) as i:
            stream(f, self.isa, column + f.word(table, i), self.room + i * _ROOM, f.i64(0), self.nbytes)

    def _whole(self, rows: list[Val], places: list[Val]) -> None:
        f, m = self.f, self.m
        bits = places[0]
        for place in places[1:]:
            bits = bits | place
        aligned = (bits & (m.block * m.item - 1)).eq(0)
        with f.if_else(aligned & self.stream.ne(0)) as (past, through):
            with past:
                for row, place in zip(rows, places):
                    f.stream(row, place)
            with through:
                for row, place in zip(rows, places):
                    m.store(row, place)

    def _part(self, rows: list[Val], target: Val, table: Val, panels: Val, valid: Val) -> None:
        """Fewer panels or fewer lanes than a block has: by mask, or through the stack."""
        f, m = self.f, self.m
        if m.masked:
            for i, row in enumerate(rows):
                count = f.select(valid > i, panels, f.i64(0))
                mask = f.lane_mask(count * m.group, m.block * m.group)
                f.store_masked(row, target + f.word(table, f.min(f.i64(i), valid - 1)), mask)
            return
        spill = f.stack(m.block * m.block * m.item)
        for i, row in enumerate(rows):
            m.store(row, spill + i * (m.block * m.item))
        with f.range(0, f.min(valid, m.block)) as i:
            m.copy_run(spill + i * (m.block * m.item), target + f.word(table, i), f.min(panels, m.block))
