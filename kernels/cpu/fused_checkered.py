"""Two maps, each over one colour of a checkerboard, the second of which reads what the first wrote, in one pass.

    for pairs of rows, some at a time
      for vectors of a row                      the first and the last ones by mask
        the next vector of each row
        the first colour: elements of these pairs     in registers, between what is there of the second one
        the second colour: of the rows one before     a vector behind: it needs what is to the right
        stores of whole vectors

The last row is left with its first colour in memory, and met again as the row before the next ones. So the second
colour of the last row is left to others, and the first colour of the row before the first one is there.
"""

from __future__ import annotations

from typing import Callable

from ..fused_structure import Point, row_reach
from .emit import I1, Val, Var, vector_type
from .fused_near import Line, VectorRows
from .fused_rows import Kernel


class CheckeredRows(VectorRows):
    """All rows of a structure with `Structure.points`."""

    def __init__(self, kernel: Kernel):
        self.points = [Point(row=0, element=0, stage=0, structure=kernel.s), *kernel.s.points]
        elements = [point.element for point in self.points]
        super().__init__(kernel, min(elements))
        f, w = self.f, self.w
        self.last = kernel.no * 2 - 1  # elements, behind the first of a point, to the end of its last
        self.vectors = f.ceil_div(self.head + max(elements) + self.last, w)
        even, odd = (f.vector(I1, [int(lane % 2 == first) for lane in range(w)]) for first in (0, 1))
        shifted = (self.head & 1).ne(0)
        self.every = f.select(shifted, odd, even), f.select(shifted, even, odd)

    def emit(self) -> None:
        self.all_rows(2 if self.k.unroll >= 4 else 1, self._pairs)

    def _pairs(self, j: Val, many: int) -> None:
        """The first colour of ``many`` pairs of rows from j on, the second one of as many rows from the one before."""
        f, i, at = self.f, self.f.var(0), self.origin + j * (self.down * 2)
        reads: dict[int, list[set[int]]] = {row: [{0}, set()] for row in range(-1, 2 * many)}
        for point, row in self._placed(many):
            for down, along in point.structure.near:
                reads.setdefault(row + down, [{0}, set()])[point.stage].add(along)
        reaches = {row: self._reach(row, many) for row in reads}
        lines = {row: self._line(row, at, first, reaches[row]) for row, (first, _) in reads.items()}
        begin, end = self._whole(list(reaches.values()))
        none = f.zero(vector_type(self.elem, self.w))
        held = {}  # after the first colour: one vector ago, two
        for row, line in lines.items():
            left = min(reads[row][1], default=0) < 0
            held[row] = Var(f, line.load(f.i64(-1), True) if left else none), Var(f, none)
        with f.while_() as leave:
            leave(i.get() > self.vectors)
            with f.range(f.select(i.get() >= begin, i.get(), end), end) as n:
                self._vector(n, lines, held, many, edge=False)
                i.set(n + 1)
            with f.if_(i.get() <= self.vectors):
                self._vector(i.get(), lines, held, many, edge=True)
                i.add(1)

    def _placed(self, many: int) -> list[tuple[Point, int]]:
        """Points and their rows."""
        rows = range(0, 2 * many, 2)
        return [(point, row + point.row - 2 * (point.row & point.stage)) for point in self.points for row in rows]

    def _reach(self, row: int, many: int) -> tuple[int, int]:
        """The first element of a row that there is, and the last, for the first of each point: rows of pairs exist as
        far as these reach, those beside them as far as they are read."""
        if -1 <= row < 2 * many:
            return row_reach(self.points, row % 2)
        found = [
            point.element + along
            for point, place in self._placed(many)
            for down, along in point.structure.near
            if place + down == row
        ]
        return min(found), max(found)

    def _line(self, row: int, at: Val, shifts: set[int], reach: tuple[int, int]) -> Line:
        exists = self.head + reach[0], self.head + reach[1] + self.last
        return Line(self, at + row * self.down, (min(shifts), max(shifts)), exists)

    def _whole(self, reaches: list[tuple[int, int]]) -> tuple[Val, Val]:
        """Vectors from here to there are whole in all rows and all points, and so are those beside them."""
        elements = [point.element for point in self.points]
        low = max(*elements, *(low for low, _ in reaches))
        high = min(*elements, *(high for _, high in reaches))
        end = self.f.max(self.head + high + self.last, 0) // self.w
        return self.f.ceil_div(self.f.max(self.head + low, 0), self.w) + 1, end - 1

    def _covered(self, point: Point, i: Val, edge: bool) -> Val:
        """Lanes of vector i that are a point's."""
        every, first = self.every[point.element % 2], self.head + point.element
        return every & self.mask(i, first, first + self.last) if edge else every

    def _vector(self, i: Val, lines: dict[int, Line], held: dict[int, tuple[Var, Var]], many: int, edge: bool) -> None:
        f = self.f
        for line in lines.values():
            line.enter(i, edge)
        now = {row: line.now for row, line in lines.items()}
        before = {row: (one.get(), two.get()) for row, (one, two) in held.items()}

        def behind(row: int, by: int) -> Val:
            one, two = before[row]
            if by < 0:
                return f.shuffle(two, one, range(self.w + by, 2 * self.w + by))
            return f.shuffle(one, now[row], range(by, self.w + by)) if by else one

        final = {}
        for point, row in self._placed(many):
            if point.stage == 0:
                value = self._value(point, row, lambda place, by: lines[place].shifted(by))
                now[row] = f.select(self._covered(point, i, edge), value, now[row])
        for point, row in self._placed(many):
            if point.stage == 1:
                value = self._value(point, row, behind)
                final[row] = f.select(self._covered(point, i - 1, edge), value, before[row][0])
        for row in range(-1, 2 * many):
            late = row < 2 * many - 1
            place = i - 1 if late else i
            colours = [self._covered(point, place, edge) for point in self.points if point.row == row % 2]
            mask = colours[0] | colours[1] if edge else None
            value = final[row] if late else now[row]
            self.k.ops.store(self.dtype, value, lines[row].at + place * self.size, mask)
        for row, (one, two) in held.items():
            two.set(one.get())
            one.set(now[row])
        for line in lines.values():
            line.leave()

    def _value(self, point: Point, row: int, read: Callable[[int, int], Val]) -> Val:
        s = point.structure
        values = [read(row + down, along) for down, along in s.near]
        self.k.compute(values, s=s)
        return values[s.outputs[0].value]
