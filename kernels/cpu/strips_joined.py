"""Strips of short runs of the output that continue each other.

Where entry k of J is continued by entry l, the line that both share is written whole, by the last strip of k: the first
strip of a box keeps the first vector of each entry, and behind what the last one has of k come the first lanes of what
is kept of l. All strips of a box belong to one task, then. Where l is in the box that follows, the line waits for that. Only
the ends that nothing of the task continues are stored by mask.

    first strip    keep the first vector; its line where it begins with one; the other lines
    last strip     lines, as far as there is something of k in them
"""

from __future__ import annotations

from . import nest_abi as na
from .emit import Val
from .nest_frame import ROW
from .strips import Shifted, from_lane, lanes_of_two
from .units import LINE


class Joined(Shifted):
    """Joins runs where the step says which entries of J continue each other."""

    def __init__(self, f, item, isa):
        super().__init__(f, item, isa)
        self.joined = self.frame.word(na.N_STRIPS_NEXT).ne(0)
        self.following, self.before = self.frame.vector(na.N_STRIPS_NEXT), self.frame.vector(na.N_STRIPS_BEFORE)
        self.on, self.come = self.frame.vector(na.N_STRIPS_ON), self.frame.vector(na.N_STRIPS_FROM)
        # lines for each entry of J: vectors of the first strip, and what the box after this one completes
        self.first = self.kept + self.frame.word(na.N_J) * LINE
        self.left = self.first + self.frame.word(na.N_J) * LINE

    def _share(self, boxes: Val, strips: Val) -> tuple[Val, Val]:
        unit = self.f.select(self.joined, strips, self.f.i64(1))
        first, last = super()._share(boxes, strips // unit)
        return first * unit, last * unit

    def _border(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        f = self.f
        with f.if_else(self.joined) as (joined, otherwise):
            with joined, f.if_else(begun) as (last, first):
                with first:
                    comes, _ = self._neighbours()
                    self._tiles(nj, lambda j, vectors: self._begin(out, j, vectors, comes))
                with last:
                    self._last(out, nj, count, self.lines)
            with otherwise:
                super()._border(out, nj, count, begun, ends)

    def _neighbours(self) -> tuple[Val, Val]:
        """Whether the box before continues in this one, and this one in the box after."""
        f, frame, row = self.f, self.frame, self.frame.word(na.N_STRIPS_ROW)
        at, carried = f.var(0), f.var(0)
        with f.if_(row.ne(0)):
            at.set(f.word(frame.counters, row - 1))
            carried.set(f.word(frame.table + row * ROW))
        return (at.get() > 0) & self.task_begins.eq(0), (at.get() + 1 < carried.get()) & self.task_ends.eq(0)

    def _begin(self, out: Val, j: Val, vectors: list[Val], comes: Val) -> None:
        """The first strip of a box, which is not its last."""
        f = self.f
        to, before, which = self._place(out, j)
        line, *lines = self._shifted(j, vectors, which)
        f.store(vectors[0], self.first + j * LINE, align=LINE)
        for number, other in enumerate(lines, 1):
            f.stream(other, to + number * LINE)
        with f.if_else(before.eq(0)) as (whole, part):
            with whole:
                f.stream(line, to)
            with part, f.if_(f.word(self.before, j) < 0):
                self._begin_alone(j, line, to, before, comes)

    def _begin_alone(self, j: Val, line: Val, to: Val, before: Val, comes: Val) -> None:
        f, foreign, other = self.f, self.f.lane_mask(before, self.lanes), self.f.var(-1)
        with f.if_(comes):
            other.set(f.word(self.come, j))
        with f.if_else(other.get() >= 0) as (left, alone):
            with left:
                begin = f.load(self.vector, self.left + other.get() * LINE, align=LINE)
                f.stream(f.select(foreign, begin, line), to)
            with alone:
                f.store_masked(line, to, from_lane(f, self.lanes, before))

    def _last(self, out: Val, nj: Val, count: Val, parts: int) -> None:
        """The last strip, which has entries of O for so many ``parts`` or less."""
        f = self.f
        if parts > 1:
            with f.if_else(count > (parts - 1) * self.tile) as (enough, less):
                with enough:
                    self._tiles_of_last(out, nj, count, parts)
                with less:
                    self._last(out, nj, count, parts - 1)
            return
        self._tiles_of_last(out, nj, count, parts)

    def _tiles_of_last(self, out: Val, nj: Val, count: Val, parts: int) -> None:
        f, lanes, element = self.f, self.lanes, self.vector.element
        here = count * self.m.group
        valid = here - (parts - 1) * lanes  # lanes of the last vector
        numbers = f.vector(element, range(lanes))
        behind = numbers + f.splat(f.convert(f.i64(lanes) - valid, "trunc", element), lanes)
        filled = f.select(f.lane_mask(valid, lanes), numbers, behind)

        _, goes_on = self._neighbours()

        def part(j: Val, line: Val, to: Val, end: Val) -> None:
            """A line that nothing of this box completes."""
            other = f.var(-1)
            with f.if_(goes_on):
                other.set(f.word(self.on, j))
            with f.if_else(other.get() >= 0) as (left, alone):
                with left:
                    f.store(line, self.left + j * LINE, align=LINE)
                with alone:
                    f.store_masked(line, to, f.lane_mask(end, lanes))

        def store(j: Val, vectors: list[Val]) -> None:
            to, before, which = self._place(out, j)
            other, end = f.word(self.following, j), before + here
            # what lies before the first of these vectors is there, if nothing that is meant
            begin = f.load(self.vector, self.first + other * LINE, align=LINE)
            padded = [*vectors[:-1], lanes_of_two(f, vectors[-1], begin, filled), lanes_of_two(f, begin, begin, behind)]
            kept = f.load(self.vector, self.kept + j * LINE, align=LINE)
            lines = [lanes_of_two(f, a, b, which) for a, b in zip([kept, *padded], padded)]
            for number, line in enumerate(lines[: parts - 1]):
                f.stream(line, to + number * LINE)
            more = to + (parts - 1) * LINE
            with f.if_else((other >= 0) & (other < nj)) as (continued, alone):
                with continued:
                    f.stream(lines[-2], more)
                    with f.if_(end > parts * lanes):
                        f.stream(lines[-1], more + LINE)
                with alone, f.if_else(end < parts * lanes) as (short, whole):
                    with short:
                        part(j, lines[-2], more, end - (parts - 1) * lanes)
                    with whole:
                        f.stream(lines[-2], more)
                        part(j, lines[-1], more + LINE, end - parts * lanes)

        self._tiles(nj, store, parts)
