"""Whole lines past the caches, of columns of a large C that begin anywhere.

A tile is whole lines long, but has parts of lines at both ends where its column does not begin with one: in an array of the
caller's, or where columns are no whole lines apart. A line that is stored in part is read first, and holds up the stores
behind it. So what a tile has of its last lines waits for that of the next panel, where this goes on in C, and leaves with it.
Other ends are stored by mask.
"""

from __future__ import annotations

from typing import Callable

from llvmlite import ir

from ..isa import ISA
from .emit import I64, Fn, Val
from .stream import LINE
from .tile import TileEmitter, TileSpec


def carries(tile: TileEmitter) -> bool:
    """Whether a vector is a line, parts of it can be stored, and a column has more than one: else all of its lines would be
    put together of two parts, which takes longer than it saves."""
    return tile.stores_by_mask and tile.vector_bytes == LINE and tile.spec.mv > 1


def emit_carry(module: ir.Module, spec: TileSpec, isa: ISA) -> Fn:
    """``void carry(tile, kept, corner, columns, joined, goes_on)``: the columns at ``tile``, one behind the other, go to the
    offsets ``columns`` from ``corner``. ``joined``: ``kept`` has a line for each, whose end comes before the column.
    ``goes_on``: the last line of each is kept so, not stored."""
    f = Fn(module, "carry", [I64] * 6, internal=True)
    f.fn.attributes.add("noinline")
    _Store(f, TileEmitter(f, spec, isa)).emit()
    f.ret()
    return f


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

    def __init__(self, f: Fn, tile: TileEmitter, function: Fn) -> None:
        self.f, self.tile, self.function = f, tile, function
        self.nbytes = tile.mr * tile.item
        # Lines are read that begin in what lies before a column, or end in what lies behind it.
        self.rows = f.stack(self.nbytes * tile.spec.nr + 2 * LINE) + LINE
        self.kept = f.stack(LINE * (tile.spec.nr + 1))
        self.ragged, self.over, self.apart, self.joined, self.goes_on = (f.var(0) for _ in range(5))

    def strip(self, columns: Val) -> None:
        """Before a strip of columns at these offsets."""
        first, ragged = self.f.word(columns), self.f.i64(0)
        for j in range(1, self.tile.spec.nr):
            ragged = ragged | (self.f.word(columns, j) - first)
        self.ragged.set(ragged)

    def begin(self, past: Val, corner: Val, columns: Val, following: Callable[[], Val]) -> None:
        """Before a tile; ``past``: its columns, all whole, are to go past the caches. ``following``: where the next panel begins
        in C, if its columns are whole, too."""
        f = self.f
        self.joined.set(self.goes_on.get())
        self.goes_on.set(0)
        self.apart.set(0)
        with f.if_(past):
            places = (corner + f.word(columns)) | self.ragged.get()  # the least of their bits
            real = self.tile.item // self.tile.parts
            self.over.set(places & (LINE - 1))
            self.apart.set(f.select((places & (real - 1)).eq(0), self.over.get(), f.i64(0)))
            with f.if_(self.apart.get().ne(0)):
                self.goes_on.set(f.select(following().eq(corner + self.nbytes), f.i64(1), f.i64(0)))
                with f.if_((self.joined.get() | self.goes_on.get()).eq(0)):
                    self._ask(corner, columns)

    def _ask(self, corner: Val, columns: Val) -> None:
        """Asks for the lines at both ends of columns. Not done for those of several panels: hardware would bring what lies
        between them as well, which is stored as a whole."""
        for j in range(self.tile.spec.nr):
            at = corner + self.f.word(columns, j)
            for end in (0, self.nbytes - 1):
                self.f.prefetch(at + end, write=True)

    def store(self, result, corner: Val, columns: Val) -> None:
        self.tile.spill(result, self.rows)
        where = [self.rows, self.kept, corner, columns]
        self.f.call(self.function, [*where, self.joined.get(), self.goes_on.get()])
