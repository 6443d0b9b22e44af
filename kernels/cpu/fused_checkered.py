"""Two maps, each over one colour of a checkerboard, the second of which reads what the first wrote, in one pass.

    for pairs of rows, some at a time
      for two vectors of a row                  the first and the last ones by mask
        the next ones of each row, as a vector of the elements in even places and one of those in odd places
        the first colour: vectors of these pairs      in registers, beside what is there of the second one
        the second colour: of the rows one before     two vectors behind: it needs what is to the right
        stores of whole vectors, elements in their order again

Each colour is every second element of a row, so nothing is computed that is not wanted. Neighbours along a row are the
other vector as it is, or shifted by one. Vectors of one colour have their elements in the `order` in which instructions
take two vectors apart and put them together.

The last row has its first colour, which the next pairs need, as they need that colour of the row above it. Both wait in
scratch for them, so each row is loaded and stored once: fewer lines go between the first level of cache and the second,
and fewer lie at the same places in a page. After the last pair, the second colour of its last row is computed.

The rows above the first pair and below the last one are read as they are: their first colour is there already, if they
have one. What would be the second colour of the row above goes to scratch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable

from ..fused_structure import Point, row_reach
from ..isa import ISA
from . import fused_abi as ua
from .emit import I1, Val, Var, vector_type
from .fused_near import VectorRows
from .fused_rows import Kernel
from .stream import LINE

Halves = list[Val]  # the elements in even places, and those in odd places


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Rows whose first colour is computed, and those whose second one is, which begin and end a row before them."""

    first: range
    second: range

    def placed(self, points: list[Point]) -> list[tuple[Point, int]]:
        """Points and their rows."""
        rows = (self.first, self.second)
        return [(point, row) for point in points for row in rows[point.stage] if row % 2 == point.row]


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One row: which one, where it lies, where it begins and ends, counted from the first vector's first lane, and what
    was loaded (``before``: one step ago, ``here``: for this one, where it was loaded already) and found in the first
    colour."""

    row: int
    at: Val
    exists: tuple[Val, Val]
    before: list[Var]
    here: list[Var]
    one: list[Var]  # after the first colour: one step ago, two
    two: list[Var]


class CheckeredRows:
    """All rows of a structure with `Structure.points`.

    Vectors are aligned in the first row, whose first element then lies in an even lane or in an odd one. There is code
    for both: one that begins with an even lane, an element from where vectors are aligned, would load and store over
    two lines in all rows, where rows are lines apart.
    """

    def __init__(self, kernel: Kernel):
        self.k = kernel

    def emit(self) -> None:
        low = min(0, *(point.element for point in self.k.s.points))
        with self.k.f.if_else((VectorRows(self.k, low).head & 1).eq(0)) as (even, odd):
            for branch, ahead in ((even, 0), (odd, 1)):
                with branch:
                    _Rows(self.k, low, ahead).emit()


class _Rows(VectorRows):
    """Those whose first element lies in an even lane, or ``ahead`` = 1 behind one, from where elements are counted."""

    def __init__(self, kernel: Kernel, low: int, ahead: int):
        super().__init__(kernel, low)
        first = Point(row=0, element=0, stage=0, structure=kernel.s)
        self.points = [replace(point, element=point.element + ahead) for point in (first, *kernel.s.points)]
        elements = [point.element for point in self.points]
        f, w = self.f, self.w
        self.head -= ahead  # even elements lie in even places
        self.last = kernel.no * 2 - 1  # elements, behind the first of a point, to the end of its last
        self.steps = f.ceil_div(self.head + max(elements) + self.last, 2 * w)
        self.vectors = self.steps * 2
        self.every = [f.vector(I1, [int(lane % 2 == first) for lane in range(w)]) for first in (0, 1)]
        self.none = f.zero(self.bits)
        self.order = order(w, self.item(0), kernel.isa)
        self.kept = _Kept(self, self._needed_above())

    def emit(self) -> None:
        self._enter()
        self.all_rows(2 if self.k.unroll >= 4 else 1, self._pairs)
        self._span(self.k.nj, _Span(first=range(0), second=range(-1, 0)))

    def _needed_above(self) -> list[tuple[int, int]]:
        """What is read of the two rows above a pair: rows and halves."""
        second = [point for point in self.points if (point.row, point.stage) == (1, 1)]
        above = {_place(point, along)[0] for point in second for down, along in point.structure.near if down == -1}
        return [*((-2, half) for half in sorted(above)), (-1, 0), (-1, 1)]

    def _enter(self) -> None:
        """The row above the first pair to scratch, as far as that reads it."""
        shifts = [
            point.element + along
            for point in self.points
            for down, along in point.structure.near
            if point.row + down == -1
        ]
        reach = (min(shifts), max(shifts) + self.last) if shifts else (0, 0)
        exists = (self.head + reach[0], self.head + reach[1])
        with self.f.range(-1, self.steps + 2) as i:
            self.kept.store(-2, i, [self.none] * 2)
            self.kept.store(-1, i, self._load(self.origin - self.down, exists, i, True))

    def _pairs(self, j: Val, many: int) -> None:
        """The first colour of ``many`` pairs of rows from j on, the second one of as many rows from the one before."""
        self._span(j, _Span(first=range(2 * many), second=range(-1, 2 * many - 1)))

    def _span(self, j: Val, span: _Span) -> None:
        """All of a span that begins with pair j."""
        f, i, count = self.f, self.f.var(0), len(span.first)
        reads = self._reads(span)
        reaches = {row: self._reach(row, span) for row in reads}
        lines = self._lines(j, span, reads, reaches)
        begin, end = self._whole(list(reaches.values()))
        unread = self.origin + (j * 2 + 1) * self.down
        coming = self.coming(unread, self.down, self.size, count, j + count // 2 < self.k.nj, 2) if count else None
        with f.while_() as leave:
            leave(i.get() > self.steps)
            with f.range(f.select(i.get() >= begin, i.get(), end), end) as n:
                if coming is not None:
                    coming.ask()
                self._step(n, lines, span, edge=False)
                i.set(n + 1)
            with f.if_(i.get() <= self.steps):
                self._step(i.get(), lines, span, edge=True)
                i.add(1)

    def _reads(self, span: _Span) -> dict[int, list[set[int]]]:
        """By how many vector elements what each colour reads of a row is shifted."""
        reads: dict[int, list[set[int]]] = {row: [{0}, set()] for row in range(-1, len(span.first))}
        for point, row in span.placed(self.points):
            for down, along in point.structure.near:
                _, shift = _place(point, along)
                if point.stage == 0 and self._again(row + down):
                    shift = 0
                reads.setdefault(row + down, [{0}, set()])[point.stage].add(shift)
        return reads

    def _again(self, row: int) -> bool:
        """Whether what the first colour reads of a row, shifted, is loaded once more. Of AVX2 that takes one instruction
        besides, and shifting two vectors two or three, whose results come late."""
        return self.order != list(range(self.w)) and row not in self.kept.rows

    def _lines(self, j: Val, span: _Span, reads: dict[int, list[set[int]]], reaches: dict) -> dict[int, _Line]:
        """The rows of a span, as they are before its first step. Of those that the next pairs need, what lies before
        that goes to scratch."""
        f, at, count = self.f, self.origin + j * (self.down * 2), len(span.first)
        exists = {reach: (self.head + reach[0], self.head + reach[1] + self.last) for reach in reaches.values()}
        ats = {row: at + row * self.down for row in reads}
        ats[-1] = f.select(j.eq(0), self.kept.behind(self.steps), ats[-1])
        lines = {row: self._line(row, ats[row], exists[reaches[row]], *reads[row]) for row in reads}
        for row in self.kept.rows if count else []:
            if min(set().union(*reads[row])) < 0:
                below = lines[row + count]
                self.kept.store(row, f.i64(-1), self._load(below.at, below.exists, f.i64(-1), True))
        return lines

    def _reach(self, row: int, span: _Span) -> tuple[int, int]:
        """The first element of a row that there is, and the last, for the first of each point: rows of pairs exist as
        far as these reach, those beside them as far as they are read."""
        if row in span.first or row in span.second:
            return row_reach(self.points, row % 2)
        found = [
            point.element + along
            for point, place in span.placed(self.points)
            for down, along in point.structure.near
            if place + down == row
        ]
        return min(found), max(found)

    def _line(self, row: int, at: Val, exists: tuple[Val, Val], first: set[int], second: set[int]) -> _Line:
        """``first``, ``second``: by how many vector elements what each colour reads of it is shifted."""
        none = [self.none] * 2
        held = [
            self._read(row, at, exists, self.f.i64(step), True) if used else none
            for step, used in ((-1, min(first) < 0), (0, max(first) > 0), (-1, min(second, default=0) < 0))
        ]
        before, here, one, two = ([Var(self.f, half) for half in halves] for halves in (*held, none))
        return _Line(
            row=row, at=at, exists=exists, before=before, here=here if max(first) > 0 else [], one=one, two=two
        )

    def _read(self, row: int, at: Val, exists: tuple[Val, Val], step: Val, edge: bool) -> Halves:
        return self.kept.load(row, step) if row in self.kept.rows else self._load(at, exists, step, edge)

    def _load(self, at: Val, exists: tuple[Val, Val], step: Val, edge: bool) -> Halves:
        low, high = (
            self.k.ops.load(self.dtype, at + k * self.size, self.mask(k, *exists) if edge else None)
            for k in (step * 2, step * 2 + 1)
        )
        low, high = (self.f.bitcast(value, self.bits) for value in (low, high))
        return [self.f.shuffle(low, high, [2 * k + first for k in self.order]) for first in (0, 1)]

    def _store(self, row: int, at: Val, halves: Halves, step: Val, edge: bool) -> None:
        f, w = self.f, self.w
        taken = [self.order.index(lane // 2) + w * (lane % 2) for lane in range(2 * w)]
        for half, k in enumerate((step * 2, step * 2 + 1)):
            value, mask = f.shuffle(*halves, taken[half * w : (half + 1) * w]), None
            value = f.bitcast(value, vector_type(self.elem, w))
            if edge:
                mask = self._covered(row % 2, k)
            self.k.ops.store(self.dtype, value, at + k * self.size, mask)

    def _whole(self, reaches: list[tuple[int, int]]) -> tuple[Val, Val]:
        """Steps from here to there are whole in all rows and all points, and so are those beside them."""
        elements = [point.element for point in self.points]
        low = max(*elements, *(low for low, _ in reaches))
        high = min(*elements, *(high for _, high in reaches))
        end = self.f.max(self.head + high + self.last, 0) // (2 * self.w)
        return self.f.ceil_div(self.f.max(self.head + low, 0), 2 * self.w) + 1, end - 1

    def _covered(self, row: int, k: Val) -> Val:
        """Lanes of vector k that are a point's."""
        low, high = sorted(point.element for point in self.points if point.row == row)
        ends = [(first, first + self.last) for first in (self.head + low, self.head + high)]
        if high - low == 1:  # together without a gap
            return self.mask(k, ends[0][0], ends[1][1])
        one, other = (self.mask(k, *end) & self.every[e % 2] for e, end in zip((low, high), ends))
        return one | other

    def _mine(self, point: Point, step: Val) -> Val:
        """Of the vector of its colour, those that are a point's."""
        first = (self.head + (point.element - point.element % 2)) // 2
        return self.mask(step, first, first + self.k.no, self.order)

    def window(self, low: Val, high: Val, first: int) -> Val:
        return super().window(low, high, first, self.order)

    def _step(self, i: Val, lines: dict[int, _Line], span: _Span, edge: bool) -> None:
        """Row by row, so that each is in registers for a short time."""
        states: dict[int, _State] = {}
        for row in range(min(lines), span.second.stop + 2):
            if row in lines:
                line = lines[row]
                loaded = self._read(row, line.at, line.exists, i + 1 if line.here else i, edge)
                states[row] = _State(line, loaded)
            for point in self._at(row - 1, 0, span):
                half, state = point.element % 2, states[row - 1]
                value = self._value(point, lambda down, *place: self._first(states[row - 1 + down], *place, i, edge))
                state.now[half] = self.f.select(self._mine(point, i), value, state.now[half]) if edge else value
            for point in self._at(row - 2, 1, span):
                value = self._value(point, lambda down, *place: self._shifted(states[row - 2 + down].second(), *place))
                states[row - 2].final[point.element % 2] = value
            if row - 2 in span.second:
                # a step late: loads have the same place in a page as what is stored in rows that are pages apart
                self._store(row - 2, lines[row - 2].at, states[row - 2].final, i - 1, edge)
        for row in self.kept.rows if span.first else []:
            self.kept.store(row, i, states[row + len(span.first)].now)
        for state in states.values():
            state.leave()

    def _at(self, row: int, stage: int, span: _Span) -> list[Point]:
        return [point for point, place in span.placed(self.points) if place == row and point.stage == stage]

    def _first(self, state: _State, half: int, shift: int, i: Val, edge: bool) -> Val:
        """What the first colour reads of a row."""
        if not shift or not self._again(state.line.row):
            return self._shifted(state.first(), half, shift)
        (low, high), by = state.line.exists, 2 * shift
        found = self._load(state.line.at + by * self.item(0), (low - by, high - by), i, edge)
        return self.f.bitcast(found[half], vector_type(self.elem, self.w))

    def _shifted(self, beside: tuple[Halves, Halves, Halves], half: int, shift: int) -> Val:
        """``beside``: what lies to the left, there and to the right."""
        left, middle, right = (halves[half] for halves in beside)
        pair, first = ((left, middle), self.w - 1) if shift < 0 else ((middle, right), shift)
        return self.window(*pair, first)

    def _value(self, point: Point, read: Callable[[int, int, int], Val]) -> Val:
        """``read``: which half, so many elements further, so many rows down."""
        s = point.structure
        values = [read(down, *_place(point, along)) for down, along in s.near]
        self.k.compute(values, s=s)
        return self.f.bitcast(values[s.outputs[0].value], self.bits)


class _Kept:
    """What pairs of rows need of those above them, in scratch: of each step, from the one before the first on, vectors
    of some halves of rows."""

    def __init__(self, rows: _Rows, halves: list[tuple[int, int]]):
        f, self.f, self.bits, self.none = rows.f, rows.f, rows.bits, rows.none
        self.halves, self.rows = halves, sorted({row for row, _ in halves})
        self.size, self.step = rows.size, rows.size * len(halves)
        room = f.word(rows.k.args, ua.R_KEEP)
        self.first = room + ((f.i64(0) - room) & (LINE - 1)) + self.step

    def _at(self, place: tuple[int, int], step: Val) -> Val:
        return self.first + step * self.step + self.halves.index(place) * self.size

    def behind(self, steps: Val) -> Val:
        """Room for a row, behind all that is kept in so many steps and three more."""
        return self.first + (steps + 2) * self.step

    def load(self, row: int, step: Val) -> Halves:
        places = [(row, half) for half in (0, 1)]
        return [self.f.load(self.bits, self._at(p, step)) if p in self.halves else self.none for p in places]

    def store(self, row: int, step: Val, halves: Halves) -> None:
        for half, value in enumerate(halves):
            if (row, half) in self.halves:
                self.f.store(value, self._at((row, half), step))


class _State:
    """A row in one step. ``now``: the vectors of this step, with the first colour from some time on; ``final``: those
    of the step before, with the second one from some time on."""

    def __init__(self, line: _Line, loaded: Halves):
        self.line, self.loaded = line, loaded
        self.before, self.one, self.two = ([var.get() for var in held] for held in (line.before, line.one, line.two))
        self.raw = [var.get() for var in line.here] or loaded
        self.now, self.final = list(self.raw), list(self.one)

    def first(self) -> tuple[Halves, Halves, Halves]:
        """What the first colour reads."""
        return self.before, self.raw, self.loaded

    def second(self) -> tuple[Halves, Halves, Halves]:
        return self.two, self.one, self.now

    def leave(self) -> None:
        line = self.line
        held = (line.two, self.one), (line.one, self.now), (line.before, self.raw), (line.here, self.loaded)
        for variables, values in held:
            for var, value in zip(variables, values):
                var.set(value)


def order(lanes: int, item: int, isa: ISA) -> list[int]:
    """The element of a colour in each lane. AVX2 moves elements of two vectors between lanes within 16 bytes in one
    instruction, and in three or four otherwise: each 16 bytes take theirs of the first vector, then of the second."""
    near = 16 // item
    if isa.name != "avx2" or near < 2:
        return list(range(lanes))
    units = [range(first, first + near // 2) for first in range(0, lanes // 2, near // 2)]
    return [lane for unit in units for lane in (*unit, *(lanes // 2 + lane for lane in unit))]


def _place(point: Point, along: int) -> tuple[int, int]:
    """Which half of a row has what lies so far from a point's elements, and by how many of its elements further."""
    place = point.element % 2 + along
    return place % 2, place // 2
