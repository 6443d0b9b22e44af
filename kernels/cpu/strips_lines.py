"""Strips of lines: permutations of rows that are whole lines, and stay what they are.

    for strip of this task       some lines of a run of the output; their rows of the input are read side by side
      for entry of J
        for line of the strip
          line = end of the one before, beginning of this one, as the output begins within a line

The line before the first one is loaded again. That of a run is the last line of the one it continues, which is some entries of J
before (N_STRIPS_BACK); where that is not of this box, or there is none, lines that begin and end a run are stored by mask.
"""

from __future__ import annotations

from ..isa import ISA
from . import nest_abi as na
from .emit import I32, Fn, Val, Var, vector_type
from .nest_frame import OUT, ROW, A
from .strips import LANE, Strips, from_lane, lanes_of_two
from .units import LINE


class Lines(Strips):
    """The loop over the strips of a task."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        super().__init__(f, item, isa)  # of a lane; entries are lines
        self.item, self.size, self.lanes = LINE, na.SIDE_LINES, LINE // LANE
        self.vector, self.pitch = vector_type(I32, self.lanes), self.frame.word(na.N_STRIPS_PITCH)
        self.over = self.frame.operand(OUT) & (LINE - 1)
        self.before = self.over // LANE
        first = f.convert(f.i64(self.lanes) - self.before, "trunc", I32)
        self.which = f.vector(I32, range(self.lanes)) + f.splat(first, self.lanes)
        self.back = self.frame.word(na.N_STRIPS_BACK)
        self.previous = Var(f, f.i64(0))

    def _addresses(self, place: Val, a: Val, start: Val) -> None:
        """Of lines from ``start`` on, and of the one before: of a run that begins, the last one of the run it continues."""
        f, frame, chunk = self.f, self.frame, self.frame.word(na.N_O)
        super()._addresses(place, a, start)
        if place is not self.rows:
            return
        before = f.select(start > 0, start, frame.word(na.N_O_TOTAL)) - 1
        number = before // chunk
        back = f.select(start > 0, f.i64(0), self.back * self.pitch)
        self.previous.set(a - back + number * f.word(frame.table, 1 + A) + f.word(self.along, before - number * chunk))

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        f, line, within = self.f, out - self.over, self.over.ne(0)
        alone = f.select(self.back.ne(0), self.back, nj)  # entries of J that continue none, and that none continues
        heads, tails = within & self.run_begins, within & self.run_ends
        with f.range(0, nj) as j:
            at = j * self.pitch
            with f.if_(self.ahead.ne(0)):
                for k in range(self.size):
                    f.prefetch(f.word(self.coming, k) + at, locality=2)
            begins, ends_here = heads & (j < alone), tails & (j >= nj - alone)
            # where nothing is before the run, nothing of it is stored
            there = f.select(self.run_begins & (j < alone), f.word(self.rows, 0), self.previous.get())
            to, before = line + f.word(self.across, j), f.load(self.vector, there + at)
            with f.if_else(begins | ends_here | (count < self.size)) as (some, all_of_them):
                with some:
                    self._some(to, at, before, count, begins, ends_here)
                with all_of_them:
                    for k in range(self.size):
                        here = f.load(self.vector, f.word(self.rows, k) + at)
                        f.stream(lanes_of_two(f, before, here, self.which), to + k * LINE)
                        before = here

    def _some(self, to: Val, at: Val, before: Val, count: Val, begins: Val, ends: Val) -> None:
        """The first lines of a strip, of which one may begin a run, or end it, that is not continued here."""
        f, kept = self.f, Var(self.f, before)
        with f.range(0, count) as k:
            here = f.load(self.vector, f.word(self.rows + k * 8, 0) + at)
            line = lanes_of_two(f, kept.get(), here, self.which)
            with f.if_else(begins & k.eq(0)) as (part, whole):
                with part:
                    f.store_masked(line, to, from_lane(f, self.lanes, self.before))
                with whole:
                    f.stream(line, to + k * LINE)
            kept.set(here)
        with f.if_(ends):
            line = lanes_of_two(f, kept.get(), kept.get(), self.which)
            f.store_masked(line, to + count * LINE, f.lane_mask(self.before, self.lanes))
