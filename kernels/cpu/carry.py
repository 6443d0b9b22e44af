"""Whole lines past the caches, of columns of a large C that begin anywhere.

A tile is whole lines long, but has parts of lines at both ends where its column does not begin with one: in an array of the
caller's, or where columns are no whole lines apart. A line that is stored in part is read first, and holds up the stores
behind it. So what a tile has of its last lines waits for that of the next panel, where this goes on in C, and leaves with it:
also where a panel has fewer lanes, as the last one of each run of a dimension that is no whole panels long. Other ends
are stored by mask.
"""

from __future__ import annotations

from typing import Callable

from llvmlite import ir

from ..isa import ISA
from .emit import I64, Fn, Val
from .stream import LINE
from .tile import TileEmitter, TileSpec


def emit_carry(module: ir.Module, spec: TileSpec, isa: ISA) -> Fn:
    """``void carry(tile, kept, corner, columns, joined, goes_on)``: the columns at ``tile``, one behind the other, go to the
    offsets ``columns`` from ``corner``. ``joined``: ``kept`` has a line for each, whose end comes before the column.
    ``goes_on``: the last line of each is kept so, not stored."""
    f = Fn(module, "carry", [I64] * 6, internal=True)
    f.fn.attributes.add("noinline")
    _Store(f, TileEmitter(f, spec, isa)).emit()
    f.ret()
    return f


def emit_carry_part(module: ir.Module, spec: TileSpec, isa: ISA) -> Fn:
    """``void carry_part(tile, kept, corner, columns, joined, goes_on, nbytes)``: the same for the first ``nbytes`` of each
    column."""
    f = Fn(module, "carry_part", [I64] * 7, internal=True)
    f.fn.attributes.add("noinline")
    tile = TileEmitter(f, spec, isa)
    with f.range(0, spec.nr) as j:
        _store_part(f, tile, j)
    f.ret()
    return f


def _store_part(f: Fn, tile: TileEmitter, j: Val) -> None:
    """Column ``j``: whole lines past the caches, and what is behind them is kept or stored by mask."""
    source, kept, corner, columns, joined, goes_on, nbytes = f.args
    at = corner + f.word(columns, j)
    over = at & (LINE - 1)
    end, line, source = over + nbytes, at - over, source + j * (tile.mr * tile.item) - over
    unit, behind = tile.item // tile.parts, kept + (j + 1) * LINE
    whole = end & ~(LINE - 1)
    before = f.lane_mask(f.select(joined.ne(0), f.i64(0), over // unit), tile.lanes)
    own = before ^ f.lane_mask(f.i64(tile.lanes), tile.lanes)  # lanes of the first line that are there
    first = f.select(f.lane_mask(over // unit, tile.lanes), f.load(tile.vec, behind - over), f.load(tile.vec, source))
    with f.if_else(whole.ne(0)) as (some, none):
        with some:
            with f.if_else(joined.ne(0)) as (full, part):
                with full:
                    f.stream(first, line)
                with part:
                    f.store_masked(first, line, own)
            with f.range(LINE, whole, LINE) as begin:
                f.stream(f.load(tile.vec, source + begin), line + begin)
            rest, there = f.load(tile.vec, source + whole), f.lane_mask((end - whole) // unit, tile.lanes)
            _leave(f, rest, there, goes_on, behind - (end - whole), line + whole)
        with none:
            _leave(f, first, f.lane_mask(end // unit, tile.lanes) & own, goes_on, behind - end, line)


def _leave(f: Fn, line: Val, there: Val, goes_on: Val, kept: Val, to: Val) -> None:
    """Keeps the lanes of a line that are ``there``, or stores them."""
    f.store_masked(line, f.select(goes_on.ne(0), kept, to), there)


class _Store:
    """Emits that function. The line of C at ``lines[j]`` is at ``sources[j]``; ``over[j]`` bytes of it come before the column."""

    def __init__(self, f: Fn, tile: TileEmitter) -> None:
        self.f, self.tile, self.nbytes, self.columns = f, tile, tile.mr * tile.item, range(tile.spec.nr)
        source, self.kept, corner, columns, self.joined, self.goes_on = f.args
        places = [corner + f.word(columns, j) for j in self.columns]
        self.over = [at & (LINE - 1) for at in places]
        self.lines = [at - over for at, over in zip(places, self.over)]
        self.sources = [source + j * self.nbytes - over for j, over in enumerate(self.over)]

    def emit(self) -> None:
        for j in self.columns:
            for begin in range(LINE, self.nbytes, LINE):
                self.f.stream(self._line(j, begin), self.lines[j] + begin)
        self._begins()
        self._ends()

    def _line(self, j: int, begin: Val | int = 0) -> Val:
        return self.f.load(self.tile.vec, self.sources[j] + begin)

    def _begins(self) -> None:
        f, tile = self.f, self.tile
        every = f.lane_mask(f.i64(tile.lanes), tile.lanes)
        with f.if_else(self.joined.ne(0)) as (joined, alone):
            with joined:
                for j in self.columns:
                    before = f.load(tile.vec, self.kept + (j + 1) * LINE - self.over[j])
                    f.stream(f.select(self._before(j), before, self._line(j)), self.lines[j])
            with alone:
                for j in self.columns:
                    f.store_masked(self._line(j), self.lines[j], self._before(j) ^ every)

    def _ends(self) -> None:
        f = self.f
        with f.if_else(self.goes_on.ne(0)) as (kept, alone):
            with kept:
                for j in self.columns:
                    f.store(self._line(j, self.over[j] + (self.nbytes - LINE)), self.kept + j * LINE)
            with alone:
                for j in self.columns:
                    f.store_masked(self._line(j, self.nbytes), self.lines[j] + self.nbytes, self._before(j))

    def _before(self, j: int) -> Val:
        """Mask of the lanes that come before column j in its line."""
        return self.f.lane_mask(self.over[j] // (self.tile.item // self.tile.parts), self.tile.lanes)


class CarriedLines:
    """Emits calls of it into the loops over columns and panels."""

    def __init__(self, f: Fn, tile: TileEmitter, function: Fn, part: Fn) -> None:
        self.f, self.tile, self.function, self.part = f, tile, function, part
        self.nbytes = tile.mr * tile.item
        # Lines are read that begin in what lies before a column, or end in what lies behind it.
        self.rows = f.stack(self.nbytes * tile.spec.nr + 2 * LINE) + LINE
        self.kept = f.stack(LINE * (tile.spec.nr + 2)) + LINE
        self.ragged, self.over, self.apart, self.joined, self.goes_on, self.bytes = (f.var(0) for _ in range(6))

    def strip(self, columns: Val) -> None:
        """Before a strip of columns at these offsets."""
        first, ragged = self.f.word(columns), self.f.i64(0)
        for j in range(1, self.tile.spec.nr):
            ragged = ragged | (self.f.word(columns, j) - first)
        self.ragged.set(ragged)

    def begin(self, past: Val, corner: Val, columns: Val, nbytes: Val, following: Callable[[], Val]) -> None:
        """Before a tile; ``past``: of its columns, all whole, ``nbytes`` are to go past the caches. ``following``: where the next
        panel begins in C, if its columns are whole, too."""
        f = self.f
        self.joined.set(self.goes_on.get())
        self.goes_on.set(0)
        self.apart.set(0)
        self.bytes.set(nbytes)
        with f.if_(past):
            places = (corner + f.word(columns)) | self.ragged.get()  # the least of their bits
            real = self.tile.item // self.tile.parts
            self.over.set(places & (LINE - 1))
            apart = (places & (real - 1)).eq(0) & ((self.over.get() | nbytes) & (LINE - 1)).ne(0)
            with f.if_(apart):
                # what is kept is the beginning of a line: none of it may be somebody else's
                own = self.joined.get().ne(0) | (nbytes >= LINE) | self.over.get().eq(0)
                self.goes_on.set(f.select(own & following().eq(corner + nbytes), f.i64(1), f.i64(0)))
                alone = (self.joined.get() | self.goes_on.get()).eq(0)
                # fewer lanes that neither begin nor end a line with others are stored as anywhere else
                self.apart.set(f.select(alone & nbytes.ne(self.nbytes), f.i64(0), f.i64(1)))
                with f.if_(alone & nbytes.eq(self.nbytes)):
                    self._ask(corner, columns)

    def _ask(self, corner: Val, columns: Val) -> None:
        """Asks for the lines at both ends of columns. Not done for those of several panels: hardware would bring what lies
        between them as well, which is stored as a whole."""
        for j in range(self.tile.spec.nr):
            at = corner + self.f.word(columns, j)
            for end in (0, self.nbytes - 1):
                self.f.prefetch(at + end, write=True)

    def store(self, result, corner: Val, columns: Val) -> None:
        f = self.f
        self.tile.spill(result, self.rows)
        where = [self.rows, self.kept, corner, columns, self.joined.get(), self.goes_on.get()]
        with f.if_else(self.bytes.get().eq(self.nbytes)) as (whole, part):
            with whole:
                f.call(self.function, where)
            with part:
                f.call(self.part, [*where, self.bytes.get()])
