"""Permutations in strips: tiles that go from rows of the input to whole lines of the output, past the caches.

A strip has as many entries of O as a line of the output (of some makers' cores: two lines), and all of J. Its rows of
the input, one for each entry of O, are read side by side, in order, as hardware follows them. A run of the output may
begin anywhere in a line: each line is what the strip before had of it, kept in scratch, and the first entries of this one.

    for strip of this task           entries of O; first those of one box, then the next box
      for box beside it              that goes on where this one ends, in the input: often there is one box alone
        for tile in J
          load the rows, transpose   vectors along O
          for entry of J             one vector, or two
            line = end of the vector that was kept, beginning of this one
            keep this one, store the line

Nothing outside the operands is read or written: where a run begins, ends, or is left to another task, and where J ends
within a tile, vectors are loaded and stored by mask.

`Shifted` does that with vectors of a line, `strips_joined` joins short runs besides, `strips_whole` has runs that are lines,
`strips_lines` rows that are, `strips_gathered` has smaller vectors.
"""

from __future__ import annotations

from typing import Callable, Iterable

from ..isa import ISA
from . import abi, cores
from . import nest_abi as na
from .emit import I1, I32, I64, Fn, Val, Var, size_of, vector_type
from .mover import PART, Mover
from .nest_frame import MAX_RANK, OUT, ROW, A, Frame, Odometer
from .units import LINE

LANE = 4  # bytes, of a row of whole lines
PARTS_AHEAD = 16  # lines of which a part is stored are asked for so many before
_KINDS = {I32: "d", I64: "q"}  # in names of AVX-512 intrinsics


def shifts_lines(isa: ISA) -> bool:
    """Whether a vector is a line, of which some lanes are loaded and stored, and an instruction takes lanes of two at
    places that a register has."""
    return isa.masks and isa.vector_bits == 8 * LINE


def joins_runs(isa: ISA) -> bool:
    """Whether runs of the output that continue each other are joined (`strips_joined`)."""
    return shifts_lines(isa) and cores.here().strips_join


def fits(frame: Frame, item: Val, isa: ISA) -> Val:
    """Whether strips write this output; else boxes do."""
    f, what, out = frame.f, frame.word(na.N_STRIPS), frame.operand(OUT)
    lines = (what & na.STRIPS_LINES).ne(0) & (out & (LINE - 1)).eq(0)
    others = na.STRIPS_ANY | (na.STRIPS_JOINED if joins_runs(isa) else 0)
    found = lines | (what & others).ne(0) & (out & (item - 1)).eq(0)
    if not shifts_lines(isa):
        found &= (what & na.STRIPS_CROWDED).eq(0)
    return whole(frame, item, isa) | found


def whole(frame: Frame, item: Val, isa: ISA) -> Val:
    """Whether these are strips of whole lines (`strips_whole`, `strips_lines`)."""
    f = frame.f
    if not shifts_lines(isa):
        return f.const(I1, 0)
    what, out = frame.word(na.N_STRIPS), frame.operand(OUT)
    within = (what & na.STRIPS_WITHIN).ne(0) & (out & (item - 1)).eq(0)
    within |= (what & na.STRIPS_OF_LINES).ne(0) & (out & (LANE - 1)).eq(0)
    return within | (what & na.STRIPS_WHOLE).ne(0) & (out & (LINE - 1)).eq(0)


def lanes_of_two(f: Fn, a: Val, b: Val, which: Val) -> Val:
    """Lanes of two vectors of a line each, those of ``b`` counted behind those of ``a``; AVX-512."""
    return f.intel(f"vpermi2var.{_KINDS[a.type.element]}.512", a.type, [a.v, which.v, b.v])


def from_lane(f: Fn, lanes: int, first: Val) -> Val:
    """Mask of so many lanes, from the ``first`` on."""
    return f.lane_mask(first, lanes) ^ f.vector(I1, [1] * lanes)


class Strips:
    """The loop over the strips of a task."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        self.f, self.item, self.m, self.frame = f, item, Mover(f, item, isa), Frame(f, (OUT, A))
        self.tile, self.lines = LINE // item, cores.here().strip_lines  # entries of J in a tile, lines of each
        self.size = self.lines * self.tile  # entries of O in a strip
        self.kept, self.kept_bytes = self.frame.scratch(na.N_KEPT), LINE  # of each entry of J
        self.rows, self.coming = f.stack(8 * self.size), f.stack(8 * self.size)
        self.ahead = self.frame.word(na.N_STRIPS_AHEAD)
        self.along, self.across = self.frame.vector(na.N_A_O), self.frame.vector(na.N_OUT_J)

    def emit(self) -> None:
        f, frame = self.f, self.frame
        total = frame.word(na.N_O_TOTAL)
        strips = f.ceil_div(total, self.size)
        at = [Var(f, frame.operand(which)) for which in (OUT, A)]
        odometer = self._odometer(frame.counters, at, [1 + OUT, 1 + A])
        coming = self._odometer(f.stack(8 * MAX_RANK), [Var(f, frame.operand(A))], [1 + A])  # what the next box reads
        first, last = self._share(frame.word(na.N_BOXES), strips)
        kept = self.kept
        odometer.start(first // strips)
        coming.start(first // strips)
        coming.advance()
        strip, begun = Var(f, first % strips), Var(f, f.const(I1, 0))
        with f.range(first, last) as index:
            self.task_begins, self.task_ends = index.eq(first), (index + 1).eq(last)
            self.run_begins, self.run_ends = strip.get().eq(0), (strip.get() + 1).eq(strips)
            out, a = (v.get() for v in at)
            o, following = strip.get() * self.size, strip.get() + 1
            ends = following.eq(strips) | self.task_ends
            nj = frame.extent(na.N_J, na.N_J_TOTAL, f.word(frame.counters))
            with f.range(0, frame.word(na.N_BESIDE)) as beside:
                self.kept = kept + beside * (frame.word(na.N_J) * self.kept_bytes)
                here = a + beside * frame.word(na.N_BESIDE_A)
                self._addresses(self.rows, here, o)
                with f.if_(self.ahead.ne(0)):
                    self._coming_rows(a, coming.at[0].get(), strip.get(), strips, beside)
                to = out + beside * frame.word(na.N_BESIDE_OUT) + o * self.item
                self._strip(to, nj, f.min(total - o, self.size), begun.get(), ends)
            more = following < strips
            begun.set(more)
            strip.set(f.select(more, following, f.i64(0)))
            with f.if_((index + 1 < last) & following.eq(strips)):
                odometer.advance()
                coming.advance()

    def _share(self, boxes: Val, strips: Val) -> tuple[Val, Val]:
        """Strips of this task, of so many of each box. All tasks have as many entries of J, of which the last chunk has less."""
        f, frame, tasks = self.f, self.frame, self.frame.word(abi.NTASKS)
        first, last = f.var(0), Var(f, boxes * strips)
        with f.if_(tasks > 1):
            chunk, total = frame.word(na.N_J), frame.word(na.N_J_TOTAL)
            chunks = f.ceil_div(total, chunk)
            of_chunk, of_all = strips * chunk, strips * total

            def begin(task: Val) -> Val:
                entries = task * (boxes // chunks * of_all) // tasks
                whole, rest = entries // of_all, entries % of_all
                number = rest // of_chunk
                within = (rest - number * of_chunk) // f.min(chunk, total - number * chunk)
                return (whole * chunks + number) * strips + within

            first.set(begin(frame.task))
            last.set(begin(frame.task + 1))
        return first.get(), last.get()

    def _odometer(self, counters: Val, at: list[Var], columns: list[int]) -> Odometer:
        """Of the boxes; row 0 counts the chunks of O, which strips go through."""
        frame = self.frame
        return Odometer(self.f, frame.table + ROW, frame.word(na.N_RANK) - 1, counters, at, columns)

    def _coming_rows(self, a: Val, next_box: Val, strip: Val, strips: Val, beside: Val) -> None:
        """Addresses of the rows of a strip to come: of the box beside this one, or so many strips on, in this box or the next."""
        f, frame = self.f, self.frame
        ahead, side = strip + self.ahead, beside + 1 < frame.word(na.N_BESIDE)
        here = ahead < strips
        number = f.select(here, ahead, f.min(ahead - strips, strips - 1))
        begin = f.select(here, a, next_box)
        begin = f.select(side, a + (beside + 1) * frame.word(na.N_BESIDE_A), begin)
        self._addresses(self.coming, begin, f.select(side, strip, number) * self.size)

    def _addresses(self, place: Val, a: Val, start: Val) -> None:
        """Of rows from ``start`` on; the last one of O stands for those behind it."""
        f, frame, number = self.f, self.frame, self.f.var(0)
        chunk, total = frame.word(na.N_O), frame.word(na.N_O_TOTAL)
        with f.if_(start >= chunk):
            number.set(start // chunk)
        rows, first = a + number.get() * f.word(frame.table, 1 + A), start - number.get() * chunk
        last = f.min(chunk, total - number.get() * chunk) - 1
        with f.if_else(first + (self.size - 1) <= last) as (whole, part):
            with whole:
                offsets = f.load(vector_type(I64, self.size), self.along + first * 8)
                f.store(offsets + f.splat(rows, self.size), place, align=LINE)
            with part:
                for k in range(self.size):
                    f.store(rows + f.word(self.along, f.min(first + k, last)), place + 8 * k, align=8)

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        """Writes a strip, of which ``count`` entries of O are there. ``begun``: what precedes them in their lines is kept;
        ``ends``: the last line is written as far as they go."""
        raise NotImplementedError

    def _ask(self, j: Val, nj: Val, columns: int, first: Val | int = 0) -> None:
        """For rows to come, of ``nj`` entries, by so many of a tile's ``columns`` from ``j`` on, of tiles from ``first`` on: the line in which each row of the
        tile begins, at the end of the rows also the one in which each ends. That is one more, as often as not."""
        f = self.f
        with f.if_(self.ahead.ne(0)):
            if columns == self.tile:
                self._ask_rows(j * self.item)
            else:
                with f.if_(((j - first) & (self.tile - 1)).eq(0)):
                    self._ask_rows(j * self.item)
            with f.if_((j + columns >= nj) & self.frame.word(na.N_STRIPS_ENDS).ne(0)):
                self._ask_rows(nj * self.item - 1)

    def _ask_rows(self, at: Val) -> None:
        for k in range(self.size):
            self.f.prefetch(self.f.word(self.coming, k) + at, locality=2)

    def _bring(self, out: Val, j: Val, bounds: tuple[Val, Val]) -> None:
        """Into L1, lines that a strip stores a part of. Such a store waits for the line, and with it all stores behind it."""
        f, begin = self.f, out + self.f.word(self.across, j)
        for bound in bounds:
            with f.if_((begin + bound & (LINE - 1)).ne(0)):
                f.prefetch(begin + bound)

    def _bounds(self, count: Val, begun: Val, ends: Val) -> tuple[Val, Val]:
        """Bytes of a strip before which others write and behind which others do."""
        f, end = self.f, count * self.item
        return f.select(begun, end, f.i64(0)), f.select(ends, end, f.i64(0))


class Shifted(Strips):
    """Strips where a vector is a line."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        super().__init__(f, item, isa)
        self.vector = self.m.vector(self.tile)
        self.lanes, self.unit = self.vector.count, size_of(self.vector.element)
        if self.lines > 1:
            self.numbers, element = f.stack(2 * LINE), self.vector.element
            for first in (0, self.lanes):
                f.store(f.vector(element, range(first, first + self.lanes)), self.numbers + first * self.unit, align=LINE)

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        with self.f.if_else(begun & (ends.eq(0))) as (inside, otherwise):
            with inside:
                self._tiles(nj, lambda j, vectors: self._within(out, j, vectors))
            with otherwise:
                self._border(out, nj, count, begun, ends)

    def _border(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        """A strip that begins runs, or ends them, or both."""
        f, bounds = self.f, self._bounds(count, begun, ends)
        with f.range(0, f.min(nj, PARTS_AHEAD)) as j:
            self._bring(out, j, bounds)

        def end(j: Val, vectors: list[Val]) -> None:
            self._bring(out, f.min(j + PARTS_AHEAD, nj - 1), bounds)
            self._end(out, j, vectors, count, begun, ends)

        self._tiles(nj, end)

    def _tiles(self, nj: Val, store: Callable[[Val, list[Val]], None], parts: int = 0, first: Val | int = 0) -> None:
        """``store(j, vectors)`` for each entry of J from ``first`` on: its vectors along O, the first ``parts`` or all. Those of
        several lines are as many as there are registers for, so that half of a tile's columns are transposed at a time."""
        f, parts = self.f, parts or self.lines
        columns = self.tile // 2 if parts > 1 else self.tile
        with f.range(first, nj - (columns - 1), columns) as j:
            self._ask(j, nj, columns, first)
            for k, vectors in enumerate(self._vectors(j, columns, parts)):
                store(j + k, vectors)
        rest = (nj - first) % columns
        j = nj - rest
        with f.if_(rest.ne(0)):
            self._ask(j, nj, columns, first)
            self._rest(j, rest, columns, store, parts)

    def _rest(self, j: Val, rest: Val, columns: int, store: Callable[[Val, list[Val]], None], parts: int) -> None:
        """The last entries of J, less than ``columns``, by a tile as narrow as holds them."""
        f, half = self.f, columns // 2
        if half * self.item < PART:
            self._masked(j, rest, columns, store, parts)
            return
        with f.if_else(rest > half) as (wide, narrow):
            with wide:
                self._masked(j, rest, columns, store, parts)
            with narrow, f.if_else(rest.eq(half)) as (full, part):
                with full:
                    for k, vectors in enumerate(self._vectors(j, half, parts)):
                        store(j + k, vectors)
                with part:
                    self._rest(j, rest, half, store, parts)

    def _masked(self, j: Val, rest: Val, columns: int, store: Callable[[Val, list[Val]], None], parts: int) -> None:
        f, mask = self.f, self.f.lane_mask(rest * self.m.group, columns * self.m.group)
        for k, vectors in list(enumerate(self._vectors(j, columns, parts, mask)))[: columns - 1]:
            with f.if_(rest > k):
                store(j + k, vectors)

    def _vectors(self, j: Val, columns: int, parts: int, mask: Val | None = None) -> Iterable[list[Val]]:
        """For each entry of J of so many columns, its first vectors, as many as ``parts``. ``mask``: of what is loaded of a row."""
        f, m, shift = self.f, self.m, j * self.item

        def load(row: int, count: int) -> Val:
            at = f.word(self.rows, row) + shift
            return m.load(at, count) if mask is None else f.load_masked(m.vector(count), at, mask)

        def transposed(first: int) -> list[Val]:
            if columns == self.tile:
                return m.transpose([load(first + row, columns) for row in range(self.tile)])
            if columns == self.tile // 2:
                return m.half_square(lambda row: load(first + row, columns))
            rows = range(first, first + self.tile)
            return m.transpose([m.join([load(row, columns) for row in rows[k::columns]]) for k in range(columns)])

        return map(list, zip(*(transposed(first) for first in range(0, parts * self.tile, self.tile))))

    def _place(self, out: Val, j: Val) -> tuple[Val, Val, Val]:
        """Address of the line in which the entries of a strip begin, lanes before them, and which lanes of one vector
        and the next are a line."""
        f = self.f
        to = out + f.word(self.across, j)
        over = to & (LINE - 1)
        return to - over, over >> (self.unit.bit_length() - 1), self._lanes_of_line(over)

    def _lanes_of_line(self, over: Val) -> Val:
        """Numbers of the lanes of two vectors that are a line, of which ``over`` bytes are of the first."""
        f, element = self.f, self.vector.element
        if self.lines > 1:
            return f.load(self.vector, self.numbers + LINE - over)  # of two lines, which these cores load as soon as any
        first = f.convert(f.i64(self.lanes) - (over >> (self.unit.bit_length() - 1)), "trunc", element)
        return f.vector(element, range(self.lanes)) + f.splat(first, self.lanes)

    def _shifted(self, j: Val, vectors: list[Val], which: Val) -> list[Val]:
        """Lines of an entry of J, of which the last vector is kept for the next strip."""
        f, kept = self.f, self.kept + j * LINE
        before = [f.load(self.vector, kept, align=LINE), *vectors]
        found = [lanes_of_two(f, a, b, which) for a, b in zip(before, vectors)]
        f.store(vectors[-1], kept, align=LINE)
        return found

    def _within(self, out: Val, j: Val, vectors: list[Val]) -> None:
        to, _, which = self._place(out, j)
        for number, line in enumerate(self._shifted(j, vectors, which)):
            self.f.stream(line, to + number * LINE)

    def _end(self, out: Val, j: Val, vectors: list[Val], count: Val, begun: Val, ends: Val) -> None:
        f, lanes = self.f, self.lanes
        to, before, which = self._place(out, j)
        end = f.select(ends, before + count * self.m.group, f.i64(self.size * self.m.group))
        first = f.select(begun, f.i64(0), before)
        for number, line in enumerate(self._shifted(j, vectors, which)):
            self._part(line, to + number * LINE, first - number * lanes, end - number * lanes)
        with f.if_(end > self.lines * lanes):
            rest = lanes_of_two(f, vectors[-1], vectors[-1], which)
            f.store_masked(rest, to + self.lines * LINE, f.lane_mask(end - self.lines * lanes, lanes))

    def _part(self, line: Val, to: Val, first: Val, end: Val) -> None:
        """Stores lanes of a line from ``first`` to before ``end``, past the caches if these are all."""
        f, lanes = self.f, self.lanes
        with f.if_else((first <= 0) & (end >= lanes)) as (whole, part):
            with whole:
                f.stream(line, to)
            with part, f.if_(end > 0):
                f.store_masked(line, to, f.lane_mask(end, lanes) & from_lane(f, self.lanes, first))
