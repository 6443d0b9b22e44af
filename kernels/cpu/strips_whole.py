"""Strips of runs of the output that are whole lines: nothing is shifted or kept.

    for strip of this task, and those beside it
      for tile in J
        load the rows, transpose   vectors along O
        for entry of J
          store its lines

Where the output begins within a line, all runs begin at the same place of one: a strip has entries of O from there, and its
first lanes those of the strip before. In the first strip of a run they are the last entries of the run that it continues, which
is some entries of J before (N_STRIPS_BACK): their rows of the input are read as many entries earlier. Only where that run is
not of this box, or there is none, the line that begins a run and the one that ends it are stored by mask.
"""

from __future__ import annotations

from ..isa import ISA
from . import nest_abi as na
from .emit import I64, Fn, Val, vector_type
from .nest_frame import OUT, A
from .strips import PARTS_AHEAD, Shifted, from_lane
from .units import LINE

HEADS, TAILS, SECOND = range(3)  # what is stored of the first strip of a run beside its tiles


class Whole(Shifted):
    """The loop over the strips of a task, of which the last one of a run may be a line."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        super().__init__(f, item, isa)
        self.over = self.frame.operand(OUT) & (LINE - 1)
        self.shift, self.before = self.over // item, self.over // self.unit  # entries, lanes
        self.edge = f.stack(8 * self.tile)

    def _addresses(self, place: Val, a: Val, start: Val) -> None:
        """Of rows from ``start`` on and those that share its line; of a run that begins, also from before it."""
        f, chunk = self.f, self.frame.word(na.N_O)
        super()._addresses(place, a, start - self.shift)
        with f.if_((start >= chunk) & self.shift.ne(0)), f.if_((start % chunk).eq(0)):
            # lanes of the chunk before are there; the others
            rows = a + start // chunk * f.word(self.frame.table, 1 + A)
            last = f.min(chunk, self.frame.word(na.N_O_TOTAL) - start) - 1
            with f.range(self.shift, self.size) as k:
                f.store(rows + f.word(self.along, f.min(k - self.shift, last)), place + 8 * k, align=8)

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        f, first = self.f, self.f.var(0)
        line = out - self.over
        with f.if_(self.run_begins & self.shift.ne(0)):
            back = self.frame.word(na.N_STRIPS_BACK)
            first.set(f.select(back.ne(0), back, nj))
            self._edges(line, nj, count, first.get())
        begin = first.get()
        with f.if_else(count > self.tile) as (all_of_them, one):
            with all_of_them:
                self._tiles(nj, lambda j, vectors: self._lines(line, j, vectors), first=begin)
            with one:
                self._tiles(nj, lambda j, vectors: self._lines(line, j, vectors), 1, first=begin)

    def _lines(self, out: Val, j: Val, vectors: list[Val]) -> None:
        to = out + self.f.word(self.across, j)
        for number, line in enumerate(vectors):
            self.f.stream(line, to + number * LINE)

    def _edges(self, out: Val, nj: Val, count: Val, first: Val) -> None:
        """Lines of the ``first`` entries of J that begin runs which continue none of this box, of the last ones that end runs,
        and the second lines of those that begin."""
        f, rows, all_of_them = self.f, self.rows, first.eq(nj)
        back = self.frame.word(na.N_STRIPS_BACK) * self.item
        numbers = f.vector(I64, range(self.tile))
        ends = numbers < f.splat(self.shift, self.tile)  # rows of what is continued, read where the run itself ends
        ty = vector_type(I64, self.tile)
        here = f.load(ty, rows, align=LINE)
        shared = f.select(ends, here + f.splat(back, self.tile), here)
        self.rows = self.edge
        with f.range(0, f.select(count > self.tile, f.i64(SECOND + 1), f.i64(SECOND))) as which:
            tails, second = which.eq(TAILS), which.eq(SECOND)
            f.store(f.select(second, f.load(ty, rows + 8 * self.tile, align=LINE), shared), self.edge, align=LINE)
            begin, end = f.select(tails, nj - first, f.i64(0)), f.select(tails, nj, first)
            heads = f.select(tails, f.i64(self.lanes), f.select(second, f.i64(0), self.before))
            until = f.select(tails | which.eq(HEADS) & all_of_them, self.before, f.i64(0))
            to = out + f.select(second, f.i64(LINE), f.i64(0))
            with f.if_((tails & all_of_them).eq(0)):
                self._edge(to, begin, end, heads, until)
        self.rows = rows

    def _edge(self, out: Val, begin: Val, end: Val, heads: Val, tails: Val) -> None:
        """For entries of J from ``begin`` to before ``end`` lanes of a line from ``heads`` on, and those before ``tails`` of the
        line behind the run."""
        f = self.f
        behind = self.frame.word(na.N_O_TOTAL) * self.item
        parts = heads * self.unit, f.select(tails.ne(0), behind + tails * self.unit, f.i64(0))

        def store(j: Val, vectors: list[Val]) -> None:
            (line,) = vectors
            self._bring(out, f.min(j + PARTS_AHEAD, end - 1), parts)
            to = out + f.word(self.across, j)
            with f.if_else(heads.eq(0)) as (whole, part):
                with whole:
                    f.stream(line, to)
                with part, f.if_(heads < self.lanes):
                    f.store_masked(line, to, from_lane(f, self.lanes, heads))
            with f.if_(tails.ne(0)):
                f.store_masked(line, to + behind, f.lane_mask(tails, self.lanes))

        self._tiles(end, store, 1, first=begin)
