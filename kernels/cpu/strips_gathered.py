"""Strips with vectors of less than a line.

Lines are put together in scratch, which has one more for each entry of J than a strip: what is kept of the strip before, and
behind it what this one has. Lines of the output lie there, somewhere.
"""

from __future__ import annotations

from ..isa import ISA
from . import nest_abi as na
from .emit import Fn, Val
from .stream import stream, stream_lines
from .strips import PARTS_AHEAD, Strips
from .units import LINE


class Gathered(Strips):
    """The loop over the strips of a task."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        super().__init__(f, item, isa)
        self.isa, self.kept_bytes = isa, (self.lines + 1) * LINE

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        f, tile, inside = self.f, self.tile, begun & ends.eq(0)
        bounds, rest = self._bounds(count, begun, ends), nj % tile
        with f.if_(inside.eq(0)), f.range(0, f.min(nj, PARTS_AHEAD)) as j:
            self._bring(out, j, bounds)

        def write(first: Val, last: Val) -> None:
            with f.if_else(inside) as (whole, part):
                with whole, f.range(first, last) as j:
                    self._within(out, j)
                with part, f.range(first, last) as j:
                    self._bring(out, f.min(j + PARTS_AHEAD, nj - 1), bounds)
                    self._end(out, j, count, begun, ends)

        with f.range(0, nj - rest, tile) as j:
            self._ask(j, nj, tile)
            self._move(j)
            write(j, j + tile)
        with f.if_(rest.ne(0)):
            self._ask(nj - rest, nj, tile)
            with f.range(nj - rest, nj) as j, f.range(0, self.size) as k:
                self.m.copy(f.word(self.rows, k) + j * self.item, self._new(j) + k * self.item)
            write(nj - rest, nj)

    def _move(self, j: Val) -> None:
        """A whole tile of all rows to scratch."""
        f, m = self.f, self.m
        for part in range(0, self.tile, m.block):
            for row in range(0, self.size, m.block):
                rows = [f.word(self.rows, row + k) + (j + part) * self.item for k in range(m.block)]
                for k, piece in enumerate(m.transpose([m.load(a, m.block) for a in rows])):
                    m.store(piece, self._new(j + part + k) + row * self.item)

    def _new(self, j: Val) -> Val:
        """What a strip has of an entry of J; a line before it is what is kept."""
        return self.kept + LINE + j * self.kept_bytes

    def _lines(self, out: Val, j: Val) -> tuple[Val, Val, Val]:
        """Address of the line in which the entries of a strip begin, and bytes before them; where that line is in scratch."""
        to = out + self.f.word(self.across, j)
        over = to & (LINE - 1)
        return to - over, over, self._new(j) - over

    def _within(self, out: Val, j: Val) -> None:
        to, _, source = self._lines(out, j)
        stream_lines(self.f, self.isa, to, source, self.f.i64(self.lines * LINE), lambda: None)
        self._keep(j)

    def _end(self, out: Val, j: Val, count: Val, begun: Val, ends: Val) -> None:
        f = self.f
        to, over, source = self._lines(out, j)
        last = f.select(ends, over + count * self.item, f.i64(self.lines * LINE))
        stream(f, self.isa, to, source, f.select(begun, f.i64(0), over), last)
        self._keep(j)

    def _keep(self, j: Val) -> None:
        new = self._new(j)
        self.m.copy(new + (self.lines - 1) * LINE, new - LINE, self.tile)
