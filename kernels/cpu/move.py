"""Moving a box of elements between two layouts, without looking at their bits.

``void move(dst, src, no, nj, dst_o, src_o, dst_j, src_j, mode, run)`` copies element (o, j) from
``src + src_o[o] + src_j[j]`` to ``dst + dst_o[o] + dst_j[j]`` for o < no, j < nj; offsets in bytes. The mode is a
promise:

    MOVE_RUN       both are adjacent along o: vectors                              (src_o, dst_o unused)
    MOVE_FILL      dst adjacent, one source element per j: splat                   (src_o, dst_o unused)
    MOVE_TILE      dst adjacent along o, src along j in runs of ``run`` entries: T x T blocks transposed in registers,
                   so that a line of either side is touched once                   (dst_o unused)
    MOVE_GATHER    dst adjacent along o                                            (dst_o unused)
    MOVE_ELEMENTS  none
    MOVE_SCATTER   src adjacent along o                                            (src_o unused)
    MOVE_APART     dst adjacent along o, src ``run`` bytes apart: vectors, of which every second, third or fourth element
                   is taken, or all in reverse; what lies between two elements may be read (dst_o unused)
    MOVE_SPREAD    src adjacent along o, dst ``run`` bytes apart: vectors, stored by mask or element by element, or
                   reversed                                                         (src_o unused)
    MOVE_REPEAT    dst adjacent along o, src in the first ``run`` entries, which are repeated (src_o, dst_o unused)
    MOVE_SEVERAL   dst adjacent along o, ``run`` bytes of it one element of src, which are adjacent: vectors with each
                   element twice or four times                                      (dst_o unused)
    MOVE_WEAVE     dst adjacent along o, ``run`` bytes of it one element of each of two or four rows of src, which are
                   adjacent: vectors of each, put together                          (dst_o unused)
    MOVE_PADDED    MOVE_TILE, where rows of dst begin with vectors and have room for whole ones, the last of which ends
                   with anything
    MOVE_COMING    MOVE_TILE, where each whole tile asks for what lies ``dst_o`` bytes (a number) from what it loads;
                   elements of `nest_abi.COMING_BYTES` and more

Nothing outside the box is read or written. Elements may be written twice with the same value, so source and
destination must not overlap (`MOVE_RUN` allows them to be the same).
"""

from __future__ import annotations

from typing import Callable

from llvmlite import ir

from ..isa import ISA
from . import nest_abi as na
from .emit import I1, I64, Fn, Val, Var
from .mover import PART, Mover

ARGS = 10


class BoxMover:
    """Emits the body of one move function; attributes are its arguments."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        self.f, self.m, self.item = f, Mover(f, item, isa), item
        names = ("dst", "src", "no", "nj", "dst_o", "src_o", "dst_j", "src_j", "mode", "run")
        for name, value in zip(names, f.args, strict=True):
            setattr(self, name, value)

    def emit(self) -> None:
        modes = (
            (na.MOVE_RUN, self._run),
            (na.MOVE_TILE, self._tile),
            (na.MOVE_GATHER, self._gather),
            (na.MOVE_FILL, self._fill),
            (na.MOVE_SCATTER, self._scatter),
            (na.MOVE_APART, self._apart),
            (na.MOVE_SPREAD, self._spread),
            (na.MOVE_REPEAT, self._repeat),
            (na.MOVE_SEVERAL, self._each_several),
            (na.MOVE_WEAVE, self._weave),
            (na.MOVE_PADDED, lambda: self._tile(padded=True)),
        )
        if self.item >= na.COMING_BYTES:
            modes += ((na.MOVE_COMING, lambda: self._tile(self.dst_o)),)
        self._choose(modes)

    def _choose(self, modes) -> None:
        if not modes:
            self._elements()
            return
        (number, emit), rest = modes[0], modes[1:]
        with self.f.if_else(self.mode.eq(number)) as (then, otherwise):
            with then:
                emit()
            with otherwise:
                self._choose(rest)

    # -- rows ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        f = self.f
        with f.range(0, self.nj) as j:
            self._copy_row(self.src + f.word(self.src_j, j), self.dst + f.word(self.dst_j, j))

    def _repeat(self) -> None:
        """Each turn copies all that is there, so only the first ones load what was stored just before."""
        f = self.f
        with f.range(0, self.nj) as j:
            dst = self.dst + f.word(self.dst_j, j)
            there = Var(f, f.min(self.run, self.no))
            self._copy_row(self.src + f.word(self.src_j, j), dst, there.get())
            with f.while_() as leave:
                leave(there.get() >= self.no)
                count = f.min(there.get(), self.no - there.get())
                self._copy_row(dst, dst + there.get() * self.item, count)
                there.add(count)

    def _copy_row(self, src: Val, dst: Val, count: Val | None = None) -> None:
        """``count`` entries, or all: vectors, the last of which ends with the row."""
        f, m = self.f, self.m
        count = self.no if count is None else count
        step = m.block * self.item
        with f.if_else(count >= m.block) as (vectors, less):
            with vectors:
                done, end = f.var(0), count * self.item
                with f.range(0, end - (4 * step - 1), 4 * step) as at:
                    values = [m.load(src + at + i * step, m.block) for i in range(4)]
                    for i, value in enumerate(values):
                        m.store(value, dst + at + i * step)
                    done.set(at + 4 * step)
                with f.range(done.get(), end - step, step) as at:
                    m.copy(src + at, dst + at, m.block)
                m.copy(src + (end - step), dst + (end - step), m.block)
            with less:
                self._copy_short(src, dst, count, m.block // 2)

    def _copy_short(self, src: Val, dst: Val, count: Val, size: int) -> None:
        """Less than twice ``size`` entries: the first and the last so many, or less."""
        f, m = self.f, self.m
        if size == 1:
            with f.if_(count > 0):
                m.copy(src, dst)
            return
        with f.if_else(count >= size) as (enough, less):
            with enough:
                last = (count - size) * self.item
                m.copy(src, dst, size)
                m.copy(src + last, dst + last, size)
            with less:
                self._copy_short(src, dst, count, size // 2)

    def _fill(self) -> None:
        f, m = self.f, self.m
        with f.range(0, self.nj) as j:
            dst = self.dst + f.word(self.dst_j, j)
            one = m.load(self.src + f.word(self.src_j, j))
            wide = self._splat(one)
            whole = self.no - self.no % m.block
            with f.range(0, whole, m.block) as o:
                m.store(wide, dst + o * self.item)
            with f.range(whole, self.no) as o:
                m.store(one, dst + o * self.item)

    def _splat(self, one: Val) -> Val:
        m = self.m
        if m.group == 1:
            return self.f.splat(one, m.block)
        return self.f.shuffle(one, one, [g for _ in range(m.block) for g in range(m.group)])

    # -- elements --------------------------------------------------------------------------------------------
    def _gather(self) -> None:
        f = self.f
        with f.range(0, self.nj) as j:
            src, dst = self.src + f.word(self.src_j, j), self.dst + f.word(self.dst_j, j)
            self._each(lambda o: src + f.word(self.src_o, o), lambda o: dst + o * self.item)

    def _scatter(self) -> None:
        f = self.f
        with f.range(0, self.nj) as j:
            src, dst = self.src + f.word(self.src_j, j), self.dst + f.word(self.dst_j, j)
            self._each(lambda o: src + o * self.item, lambda o: dst + f.word(self.dst_o, o))

    def _elements(self) -> None:
        f = self.f
        with f.range(0, self.nj) as j:
            src, dst = self.src + f.word(self.src_j, j), self.dst + f.word(self.dst_j, j)
            self._each(lambda o: src + f.word(self.src_o, o), lambda o: dst + f.word(self.dst_o, o))

    def _each(self, source, target, unroll: int = 4) -> None:
        """One element at a time: a store per cycle, which hardware gathers do not beat."""
        f, m = self.f, self.m
        whole = self.no - (self.no & (unroll - 1))
        with f.range(0, whole, unroll) as o:
            values = [m.load(source(o + i)) for i in range(unroll)]
            for i, value in enumerate(values):
                m.store(value, target(o + i))
        with f.range(whole, self.no) as o:
            m.copy(source(o), target(o))

    # -- every second, third or fourth element, or all in reverse --------------------------------------------
    def _apart(self) -> None:
        self._steps(self._vectors(), self._take, self._gather)

    def _spread(self) -> None:
        self._steps(self._vectors(), self._put, self._scatter)

    def _each_several(self) -> None:
        self._steps([times for times in na.TIMES if times <= self.m.block], self._put_again, self._gather)

    def _put_again(self, times: int, src: Val, dst: Val, at: Val) -> None:
        m, count = self.m, self.m.block // times
        some = m.load(src + (at // times) * self.item, count)
        several = [e // times for e in range(m.block)]
        m.store(self._splat(some) if count == 1 else self._shuffle(some, some, several), dst + at * self.item)

    def _weave(self) -> None:
        m = self.m
        self._steps([n for n in na.TIMES if m.block // n * m.group > 1], self._put_woven, self._gather)

    def _put_woven(self, times: int, src: Val, dst: Val, at: Val) -> None:
        m, count = self.m, self.m.block // times
        start = src + (at // times) * self.item
        parts = m.join([m.load(start + self.f.word(self.src_o, row), count) for row in range(times)])
        lanes = [e % times * count + e // times for e in range(m.block)]
        m.store(self._shuffle(parts, parts, lanes), dst + at * self.item)

    def _vectors(self) -> list[int]:
        """Distances at which no vector but the last ends behind the last element."""
        return [step for step in na.STEPS if step <= self.m.block + 1]

    def _steps(self, steps, emit, otherwise) -> None:
        """``emit(steps)`` for the distance of the elements that ``run`` says; ``otherwise`` where no vector is full."""
        f, m = self.f, self.m
        if not steps:
            otherwise()
            return
        here = self.run.eq(steps[0] * self.item) & (self.no >= m.block)
        with f.if_else(here) as (then, other):
            with then, f.range(0, self.nj) as j:
                src, dst = self.src + f.word(self.src_j, j), self.dst + f.word(self.dst_j, j)
                with f.range(0, self.no, m.block) as o:  # the last vector is moved back to end with the row
                    at = f.min(o, self.no - m.block)
                    emit(steps[0], src, dst, at)
            with other:
                self._steps(steps[1:], emit, otherwise)

    def _starts(self, step: int) -> list[int]:
        """Where the vectors begin that hold a vector of elements ``step`` apart: the last one ends with the last."""
        if step < 0:
            return [1 - self.m.block]
        return [*(n * self.m.block for n in range(step - 1)), (step - 1) * (self.m.block - 1)]

    def _take(self, step: int, src: Val, dst: Val, at: Val) -> None:
        m, starts = self.m, self._starts(step)
        first, *more = [m.load(src + at * (step * self.item) + start * self.item, m.block) for start in starts]
        if step < 0:
            first = self._reversed(first)
        found = [step * e if step * e < m.block else 0 for e in range(m.block)]
        for number, vector in enumerate(more, 1):
            lanes = []
            for e in range(m.block):
                place = step * e - starts[number]
                mine = 0 <= place < m.block and step * e >= starts[number - 1] + m.block
                lanes.append(m.block + place if mine else found[e] if number == 1 else e)
            first = self._shuffle(first, vector, lanes)
        m.store(first, dst + at * self.item)

    def _put(self, step: int, src: Val, dst: Val, at: Val) -> None:
        f, m = self.f, self.m
        value = m.load(src + at * self.item, m.block)
        if step < 0:
            m.store(self._reversed(value), dst + (at * step + self._starts(step)[0]) * self.item)
            return
        if not m.masked:
            for e in range(m.block):
                m.store(self._shuffle(value, value, [e]), dst + (at + e) * (step * self.item))
            return
        for start in self._starts(step):
            places = range(start, start + m.block)
            mask = [int(place % step == 0) for place in places for _ in range(m.group)]
            spread = self._shuffle(value, value, [place // step for place in places])
            to = dst + at * (step * self.item) + start * self.item
            f.store_masked(spread, to, f.vector(I1, mask))

    def _reversed(self, value: Val) -> Val:
        return self._shuffle(value, value, list(reversed(range(self.m.block))))

    def _shuffle(self, a: Val, b: Val, lanes: list[int]) -> Val:
        """`Fn.shuffle` by elements."""
        return self.f.shuffle(a, b, [lane * self.m.group + g for lane in lanes for g in range(self.m.group)])

    # -- tiles -----------------------------------------------------------------------------------------------
    def _tile(self, coming: Val | None = None, padded: bool = False) -> None:
        """``coming``: how far from what is loaded lies what is asked for."""
        f = self.f
        with f.range(0, self.nj, self.run) as j:
            self._tile_run(j, f.min(self.run, self.nj - j), self.m.block, coming, padded)

    def _tile_run(self, j: Val, count: Val, size: int, coming: Val | None, padded: bool) -> None:
        """``no x count`` elements in tiles of ``size`` or, where a side is shorter, smaller ones."""
        f = self.f
        if size < 2:
            with f.range(j, j + count) as row:
                src, dst = self.src + f.word(self.src_j, row), self.dst + f.word(self.dst_j, row)
                self._each(lambda o: src + f.word(self.src_o, o), lambda o: dst + o * self.item)
            return
        fits = count >= size if padded else (self.no >= size) & (count >= size)
        with f.if_else(fits) as (then, otherwise):
            with then:
                if self.m.block > size >= -(-PART // self.item):
                    self._short(j, count, size, padded)
                else:
                    (self._padded_tiles if padded else self._tiles)(j, count, size, coming)
            with otherwise:
                self._tile_run(j, count, size // 2, coming, padded)

    def _short(self, j: Val, count: Val, size: int, padded: bool) -> None:
        """Less entries of J than a tile has: tiles of ``size`` columns of whole vectors, if there are as many rows."""
        f, rows = self.f, self.m.block
        if padded:
            self._columns(j, count, size, self.no - 1)
            return
        with f.if_else(self.no >= rows) as (then, otherwise):
            with then:
                self._columns(j, count, size, None)
            with otherwise:
                self._tiles(j, count, size, None)

    def _columns(self, j: Val, count: Val, size: int, last: Val | None) -> None:
        """``last``: the last row, if the last tile along o is where it belongs, not moved back."""
        f, rows, whole = self.f, self.m.block, self.no & -self.m.block
        with f.range(0, count, size) as second:
            column = j + f.min(second, count - size)
            with f.range(0, whole, rows) as first:
                self._move_columns(first, column, size, None)
            with f.if_(whole < self.no), f.if_else(self.no - whole <= size) as (few, many):
                with few:
                    self._move_tile(self.no - size if last is None else whole, column, size, None, last)
                with many:
                    self._move_columns(self.no - rows if last is None else whole, column, size, last)

    def _move_columns(self, o: Val, j: Val, size: int, last: Val | None) -> None:
        """A vector of rows, so many columns: vectors of every ``size``-th row, which squares in them make columns."""
        m, dst = self.m, self.dst + o * self.item
        sources = self._sources(o, j, m.block, last)
        rows = [m.join([m.load(source, size) for source in sources[k::size]]) for k in range(size)]
        for k, column in enumerate(m.transpose(rows)):
            m.store(column, dst + self.f.word(self.dst_j, j + k))

    def _tiles(self, j: Val, count: Val, size: int, coming: Val | None) -> None:
        """The last tile of a side is moved back to end with it: some elements are written twice."""
        f, whole = self.f, self.no & -size

        def some(rows: int) -> None:
            with f.range(0, count, size) as second:
                column = j + f.min(second, count - size)
                with f.range(0, whole, size) as first:
                    self._move_tile(first, column, size, coming)
                self._move_rows(self.no - rows, column, size, rows)

        def tiles() -> None:
            with f.range(0, count, size) as second, f.range(0, self.no, size) as first:
                self._move_tile(f.min(first, self.no - size), j + f.min(second, count - size), size, coming)

        # Of a whole tile in place of none: what is left of that is not few.
        self.m.last_rows(size, (self.no - 1 & size - 1) + 1, some, tiles)

    def _padded_tiles(self, j: Val, count: Val, size: int, coming: Val | None) -> None:
        """The last tile along o is where it belongs, so that no vector is stored in two lines; its last rows are the last
        there is. Along the rows of a tile first: each often lies on another page, and a core knows where 72 of them are."""
        f, whole, last = self.f, self.no & -size, self.no - 1

        def along(move: Callable[[Val], None]) -> None:
            with f.range(0, count, size) as second:
                move(j + f.min(second, count - size))

        with f.range(0, whole, size) as first:
            along(lambda column: self._move_tile(first, column, size, coming))
        with f.if_(whole < self.no):
            self.m.last_rows(
                size,
                self.no - whole,
                lambda rows: along(lambda column: self._move_rows(whole, column, size, rows, last)),
                lambda: along(lambda column: self._move_tile(whole, column, size, coming, last)),
            )

    def _move_rows(self, o: Val, j: Val, size: int, rows: int, last: Val | None = None) -> None:
        """``size`` columns of ``rows``, of which a vector has several."""
        m, dst = self.m, self.dst + o * self.item
        loaded = [m.load(source, size) for source in self._sources(o, j, rows, last)]
        for k, column in enumerate(m.few_columns(loaded)):
            m.store(column, dst + self.f.word(self.dst_j, j + k))

    def _sources(self, o: Val, j: Val, count: int, last: Val | None) -> list[Val]:
        """Where ``count`` rows have entry j; rows behind the ``last`` are that one."""
        f, src = self.f, self.src + self.f.word(self.src_j, j)
        rows = [o + k if last is None else f.min(o + k, last) for k in range(count)]
        return [src + f.word(self.src_o, row) for row in rows]

    def _move_tile(self, o: Val, j: Val, size: int, coming: Val | None, last: Val | None = None) -> None:
        f, m, dst = self.f, self.m, self.dst + o * self.item
        sources = self._sources(o, j, size, last)
        if coming is not None and size == m.block:
            for source in sources:
                f.prefetch(source + coming, locality=2)
        columns = m.square(size, lambda row, first, count: m.load(sources[row] + first * self.item, count))
        for k, column in enumerate(columns):
            m.store(column, dst + f.word(self.dst_j, j + k))


def build_move(module: ir.Module, name: str, item: int, isa: ISA) -> None:
    """The move function for elements of ``item`` bytes."""
    f = Fn(module, name, [I64] * ARGS)
    BoxMover(f, item, isa).emit()
    f.ret()
