"""Rows of a fused map that is written over what it reads, of rows beside it: each of these is loaded once.

    the row above -> scratch
    for rows, several at a time
      for vectors of a row                      the first and the last ones by mask
        as many lines of the rows that come next  into the second level of cache
        the next vector of each row, of the row below, and of the row above from scratch
        neighbours: two vectors that follow each other, shifted
        arithmetic and stores of all rows
        what was in the last row -> scratch, where it is the row above of the rows that follow

What is read was there before: vectors to the left are kept in registers, the row above in scratch, and the others are
loaded before they are written. Vectors lie where those of the first row are aligned.
"""

from __future__ import annotations

from typing import Callable, Sequence

from llvmlite import ir

from ..fused_structure import near_reach
from . import fused_abi as ua
from .convert import Converter
from .emit import I64, Fn, Val, Var, vector_type
from .fused_ops import Value
from .fused_rows import BoxRows, Kernel
from .storage import STORAGES
from .stream import LINE


class Line:
    """One row while it is gone through: ``reach``, the first and the last shift of elements that is read; ``exists``:
    where the row begins and ends, counted from the first vector's first lane (None: all of it may be read)."""

    def __init__(self, rows: VectorRows, at: Val, reach: tuple[int, int], exists: tuple[Val, Val] | None):
        self.rows, self.at, self.reach, self.exists = rows, at, reach, exists
        f = rows.f
        none = f.zero(rows.bits)
        self.before = Var(f, self.load(f.i64(-1), True) if reach[0] < 0 else none)
        self.here = Var(f, self.load(f.i64(0), True) if reach[1] > 0 else none)
        self.now, self.next, self.last = none, none, none

    def load(self, k: Val, edge: bool) -> Val:
        r = self.rows
        mask = r.mask(k, *self.exists) if edge and self.exists else None
        return r.f.bitcast(r.k.ops.load(r.dtype, self.at + k * r.size, mask), r.bits)

    def enter(self, k: Val, edge: bool) -> None:
        """Vector k and those beside it."""
        if self.reach[1] > 0:
            self.now, self.next = self.here.get(), self.load(k + 1, edge)
        else:
            self.now = self.load(k, edge)
        self.last = self.before.get()

    def shifted(self, by: int) -> Val:
        pair, first = ((self.last, self.now), self.rows.w + by) if by < 0 else ((self.now, self.next), by)
        return self.rows.window(*pair, first)

    def leave(self) -> None:
        if self.reach[0] < 0:
            self.before.set(self.now)
        if self.reach[1] > 0:
            self.here.set(self.next)


class Coming:
    """The rows that are read next, asked for while those before them are gone through, line after line in the order of
    memory: hardware follows one such run, but not several rows side by side, which are what is read."""

    def __init__(self, f: Fn, first: Val, down: Val, row: Val, step: int):
        """Rows of ``row`` bytes, ``down`` apart, from ``first`` on; so many bytes at a time."""
        self.f, self.down, self.row, self.step = f, down, row, step
        self.at, self.end = Var(f, first), Var(f, first + row)

    def ask(self) -> None:
        f, at, end = self.f, self.at.get(), self.end.get()
        for line in range(0, self.step, LINE):
            f.prefetch(at + line, locality=2)
        self.at.set(at + self.step)
        with f.if_(at + self.step >= end):
            self.at.add(self.down - self.row)
            self.end.set(end + self.down)


class VectorRows(BoxRows):
    """Rows of one array, cut into vectors that are aligned in the first of them. ``head``: the lane of the first vector
    (at ``origin``) that has the first element; ``low``: how far before it another one may be written."""

    def __init__(self, kernel: Kernel, low: int = 0):
        super().__init__(kernel)
        f, self.w = self.f, kernel.w
        self.dtype = kernel.s.stored[0]
        self.elem = kernel.ops.converter.type(self.dtype)
        self.elem = self.elem.element if isinstance(self.elem, ir.VectorType) else self.elem
        self.size, item = self.w * self.item(0), self.item(0)
        # of integers, LLVM shifts two vectors by an instruction with the shift in itself; of floats by one that reads a
        # table and overwrites a vector, which is copied before
        self.bits = vector_type(ir.IntType(8 * item), self.w)
        self.down = f.word(kernel.args, ua.R_DOWN)
        first = self.at(f.i64(0))[0]
        apart = (first + low * item) & (self.size - 1)
        self.head = f.select((apart % item).eq(0), apart // item, f.i64(0)) - low
        self.origin = first - self.head * item

    def all_rows(self, many: int, rows: Callable[[Val, int], None]) -> None:
        """``rows(j, n)`` for all, ``many`` at a time as long as there are so many."""
        f, count, done = self.f, self.k.nj, self.f.var(0)
        with f.range(0, count - (many - 1), many) as j:
            rows(j, many)
            done.set(j + many)
        if many > 1:
            with f.range(done.get(), count) as j:
                rows(j, 1)

    def coming(self, first: Val, down: Val, size: int, rows: int, more: Val, vectors: int = 1) -> Coming:
        """What comes behind ``rows`` rows, the first of which begins at ``first``, in vectors of ``size`` bytes; a step
        is ``vectors`` of each row. Where no ``more`` follow, these are asked for again."""
        ahead = self.f.select(more, down * rows, self.f.i64(0))
        return Coming(self.f, first + ahead, down, self.vectors * size, rows * vectors * size)

    def window(self, low: Val, high: Val, first: int, order: Sequence[int] = ()) -> Val:
        """The vector that begins with element ``first`` of ``low`` and goes on in ``high``; each has them in ``order``."""
        order = list(order or range(self.w))
        lanes = [order.index((k + first) % self.w) + (k + first) // self.w * self.w for k in order]
        value = self.f.shuffle(low, high, lanes) if first else low
        return self.f.bitcast(value, vector_type(self.elem, self.w))

    def mask(self, k: Val, first: Val, last: Val, order: Sequence[int] = ()) -> Val:
        """Lanes of vector k that lie between two elements, the first of which is not behind the last. ``order``: the
        element in each lane, where they are not in order."""
        f, w = self.f, self.w
        lanes = f.vector(I64, order or range(w)) + f.splat(k * w - first, w)
        return lanes.below(f.splat(last - first, w))


class NearRows(VectorRows):
    """All rows of a structure that says where its inputs lie beside the output (`Structure.near`)."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        f, self.near = self.f, kernel.s.near
        self.reaches = {row: near_reach(self.near, row) for row in (-1, 0, 1)}
        self.end = self.head + kernel.no
        self.vectors = f.ceil_div(self.end, self.w)
        # half a page from the row: loads that have the same place in a page as a store before them would wait for it
        room = f.word(kernel.args, ua.R_KEEP) + LINE
        self.kept = room + ((self.origin + ua.PAGE // 2 - room) & (ua.PAGE - 1))

    def emit(self) -> None:
        f, k = self.f, self.k
        if above := self.reaches[-1]:
            line = self.origin - self.down
            with f.range(-1, self.vectors + 1) as i:
                mask = self.mask(i, self.head + above[0], self.end + above[1])
                f.store(k.ops.load(self.dtype, line + i * self.size, mask), self.kept + i * self.size)
        self.all_rows(k.unroll, self._rows)

    def _rows(self, j: Val, many: int) -> None:
        """``many`` rows from j on."""
        f, at, i = self.f, self.origin + j * self.down, self.f.var(0)
        lines = {n: self._line(at + n * self.down, self.reaches[0] or (0, 0)) for n in range(many)}
        if self.reaches[-1]:
            lines[-1] = Line(self, self.kept, self.reaches[-1], None)
            if self.reaches[0] and self.reaches[0][0] < 0:
                f.store(lines[many - 1].before.get(), self.kept - self.size)
        if self.reaches[1]:
            lines[many] = self._line(at + many * self.down, self.reaches[1])
        others = [self._others(j + n) for n in range(many)]
        comings = self._comings(j, many)
        with f.while_() as leave:
            leave(i.get() >= self.vectors)
            with f.range(f.select(i.get() > 0, i.get(), self.vectors), self.vectors - 2) as n:
                for coming in comings:
                    coming.ask()
                self._vector(n, lines, many, others, edge=False)
                i.set(n + 1)
            with f.if_(i.get() < self.vectors):
                self._vector(i.get(), lines, many, others, edge=True)
                i.add(1)
        if self.reaches[-1] and self.reaches[-1][1] > 0:
            f.store(lines[many - 1].here.get(), self.kept + self.vectors * self.size)

    def _comings(self, j: Val, many: int) -> list[Coming]:
        """What is read for the first time after ``many`` rows from j on: of the array, and of other inputs."""
        f, k = self.f, self.k
        more, unread = j + many < k.nj, self.origin + (j + (1 if self.reaches[1] else 0)) * self.down
        comings = [self.coming(unread, self.down, self.size, many, more)]
        for number in (n for n, near in enumerate(self.near, k.outputs) if near is None):
            here, below = (self.at(row)[number] for row in (j, f.min(j + 1, k.nj - 1)))
            item = self.item(number)
            comings.append(self.coming(here - self.head * item, below - here, self.w * item, many, more))
        return comings

    def _line(self, at: Val, reach: tuple[int, int]) -> Line:
        return Line(self, at, reach, (self.head + reach[0], self.end + reach[1]))

    def _others(self, j: Val) -> list[tuple[Val, Val] | None]:
        """Where inputs lie that are no neighbours, and -1, or 0 where that is one element repeated."""
        f, k, at, found = self.f, self.k, self.at(j), []
        for number, (dtype, near) in enumerate(zip(k.s.inputs, self.near, strict=True), k.outputs):
            if near is not None:
                found.append(None)
                continue
            place, slot = Var(f, at[number]), f.stack(self.w * STORAGES[dtype].itemsize)
            with f.if_(self.one[number]):
                f.store(k.ops.converter.splat(Converter(f, k.isa, 1).load(dtype, at[number])), slot)
                place.set(slot)
            found.append((place.get(), f.select(self.one[number], f.i64(0), f.i64(-1))))
        return found

    def _vector(self, i: Val, lines: dict[int, Line], many: int, others: list[list], edge: bool) -> None:
        f, k = self.f, self.k
        mask = self.mask(i, self.head, self.end) if edge else None
        for line in lines.values():
            line.enter(i, edge)
        results: list[Value] = []
        for n in range(many):
            values: list[Value] = []
            for number, (dtype, near) in enumerate(zip(k.s.inputs, self.near, strict=True), k.outputs):
                if near is not None:
                    values.append(lines[n + near[0]].shifted(near[1]))
                    continue
                at, step = others[n][number - k.outputs]
                here = at + ((i * self.w - self.head) & step) * self.item(number)
                values.append(k.ops.load(dtype, here, mask))
            k.compute(values)
            results.append(values[k.s.outputs[0].value])
        for n, value in enumerate(results):
            k.ops.store(self.dtype, value, lines[n].at + i * self.size, mask)
        if self.reaches[-1]:
            f.store(lines[many - 1].now, self.kept + i * self.size)
        for line in lines.values():
            line.leave()
