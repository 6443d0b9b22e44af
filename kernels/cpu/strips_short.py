"""Strips of runs of the output of three or four lines that continue each other, each run at once.

Where entry k of J is continued by entry l, l comes later: in this box, or in the next one of the task. So the lanes that k has of
the line that both share wait where l finds what is kept of it, and l writes that line. Nothing is gone through twice,
as `strips_joined` does with longer runs. Only ends that nothing of the task continues are stored by mask.

    for entry of J
      lines = ends of what is kept, and all vectors of the run, each with the beginning of the next
      what is kept of the entry that continues this one = the last lanes of the run
"""

from __future__ import annotations

from . import nest_abi as na
from .emit import I1, Val, Var
from .nest_frame import OUT, A
from .strips import from_lane, lanes_of_two
from .strips_joined import Joined
from .units import LINE

LEAST, MOST = na.SHORT_LEAST + 1, na.SHORT_LINES  # vectors of a run


class Short(Joined):
    """The loop over the boxes of a task: O is one run."""

    def __init__(self, f, item, isa):
        super().__init__(f, item, isa)
        self.size = MOST * self.tile
        self.rows = f.stack(8 * self.size)

    def emit(self) -> None:
        f, frame = self.f, self.frame
        at = [Var(f, frame.operand(which)) for which in (OUT, A)]
        odometer = self._odometer(frame.counters, at, [1 + OUT, 1 + A])
        first, last = frame.share(frame.word(na.N_BOXES))
        odometer.start(first)
        with f.range(first, last) as index:
            self.task_begins, self.task_ends = index.eq(first), (index + 1).eq(last)
            out, a = (v.get() for v in at)
            self._addresses(self.rows, a, f.i64(0))
            nj = frame.extent(na.N_J, na.N_J_TOTAL, f.word(frame.counters))
            self._runs(out, nj, frame.word(na.N_O_TOTAL), MOST)
            with f.if_(index + 1 < last):
                odometer.advance()

    def _ask(self, j: Val, nj: Val, columns: int, first: Val | int = 0) -> None:
        """For nothing: rows are long, and few enough for the core to read ahead."""

    def _runs(self, out: Val, nj: Val, count: Val, parts: int) -> None:
        """All runs, of so many ``parts`` or less."""
        if parts == LEAST:
            self._runs_of(out, nj, count, parts)
            return
        with self.f.if_else(count > (parts - 1) * self.tile) as (enough, less):
            with enough:
                self._runs_of(out, nj, count, parts)
            with less:
                self._runs(out, nj, count, parts - 1)

    def _runs_of(self, out: Val, nj: Val, count: Val, parts: int) -> None:
        f, lanes, element = self.f, self.lanes, self.vector.element
        here = count * self.m.group
        valid = f.convert(here - (parts - 1) * lanes, "trunc", element)  # lanes of the last vector
        behind = f.vector(element, range(lanes)) + f.splat(valid, lanes)
        comes, goes_on = self._neighbours()

        def store(j: Val, vectors: list[Val]) -> None:
            to, before, which = self._place(out, j)
            through = [f.load(self.vector, self.kept + j * LINE, align=LINE), *vectors]
            lines = [lanes_of_two(f, a, b, which) for a, b in zip(through, vectors)]
            self._head(j, lines[0], to, before, comes)
            for number, line in enumerate(lines[1:-1], 1):
                f.stream(line, to + number * LINE)
            end, full = before + here, parts * lanes
            with f.if_(end >= full):
                f.stream(lines[-1], to + (parts - 1) * LINE)
            other = Var(f, f.word(self.following, j))
            with f.if_((other.get() < 0) | (other.get() >= nj)):  # a smaller last box has less entries than the tables
                other.set(f.select(goes_on, f.word(self.on, j), f.i64(-1)))
            with f.if_else(other.get() >= 0) as (continued, alone):
                with continued:
                    f.store(lanes_of_two(f, through[-2], through[-1], behind), self.kept + other.get() * LINE, align=LINE)
                with alone:
                    over = f.select(end >= full, f.i64(full), f.i64(full - lanes))
                    rest = lanes_of_two(f, vectors[-1], vectors[-1], which)
                    tail = f.select(end >= full, rest, lines[-1])
                    f.store_masked(tail, to + over * self.unit, f.lane_mask(end - over, lanes))

        self._tiles(nj, store, parts)

    def _head(self, j: Val, line: Val, to: Val, before: Val, comes: Val) -> None:
        """The line in which a run begins."""
        f, there = self.f, Var(self.f, self.f.const(I1, 1))
        with f.if_(f.word(self.before, j) < 0):
            there.set(before.eq(0) | (comes & (f.word(self.come, j) >= 0)))
        with f.if_else(there.get()) as (whole, alone):
            with whole:
                f.stream(line, to)
            with alone:
                f.store_masked(line, to, from_lane(f, self.lanes, before))
