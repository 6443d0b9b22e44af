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


def build_unpack(module: ir.Module, name: str, isa: ISA) -> None:
    """``void unpack(args)``: ``unpack_8`` moves elements of so many bytes."""
    f = Fn(module, name, [I64])
    Unpacker(f, Mover(f, int(name.split("_")[1]), isa)).emit()
    f.ret()


class Unpacker:
    """Emits one unpack function; attributes are its arguments."""

    def __init__(self, f: Fn, mover: Mover) -> None:
        self.f, self.m = f, mover
        names = ("src", "stride", "pitch", "panels", "dst", "lanes", "columns", "valid", "count", "stream")
        for index, name in enumerate(names):
            setattr(self, name, f.word(f.args[0], index))

    def emit(self) -> None:
        f, m = self.f, self.m
        with f.range(0, self.count) as j:
            source, column = self.src + j * self.pitch, self.dst + f.word(self.columns, j)
            with f.range(0, self.valid, m.block) as l, f.range(0, self.panels, m.block) as p:
                at = source + l * m.item + p * self.stride
                last = f.min(self.panels - p, m.block) - 1
                places = [f.min(f.i64(i), last) * self.stride for i in range(m.block)]
                rows = m.transpose([m.load(at + place, m.block) for place in places])
                table, target = self.lanes + l * 8, column + p * m.item
                with f.if_else((p + m.block <= self.panels) & (l + m.block <= self.valid)) as (then, otherwise):
                    with then:
                        self._whole(rows, [target + f.word(table, i) for i in range(m.block)])
                    with otherwise:
                        self._part(rows, target, table, self.panels - p, self.valid - l)

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
