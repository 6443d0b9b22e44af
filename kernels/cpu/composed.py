"""Lines of a large output that are put together from rows: a box of a permutation on its way past the caches.

A run of the output is so many rows, one behind the other, and begins anywhere in a line. Rows in scratch each begin with a
line: a vector that is stored across two lines waits for both, and with stores past the caches under way nothing is done
meanwhile (docs/performance-memory.md#composed). Rows that are adjacent in the input are read there.

    line = what was left of the row before, then the beginning of this one     lanes of both chosen by mask
    lines within the row                                                       as they are
    left = the end of this row                                                 in a register until the next

Only what belongs to a row is read, only lines that are whole are stored past the caches; the ends of a run that no other
box continues are stored by mask.
"""

from __future__ import annotations

from typing import Callable

from ..isa import ISA
from . import nest_abi as na
from .emit import I1, I8, I16, I32, I64, Fn, Val, Var, vector_of, vector_type
from .nest_frame import Box, Frame
from .stream import LINE

_LINE = vector_type(I8, LINE)
_LANE_BITS, _LANES = 2, LINE >> 2  # of parts of four bytes, which are moved within a line as they are


def composes(isa: ISA) -> bool:
    """Whether a vector is a line and bytes of it can be loaded by mask."""
    return isa.masks and isa.vector_bits == 8 * LINE and "+avx512bw" in isa.features


class BoxRuns:
    """Runs of the output of which a box has a part: whether the boxes before and after have others, and where these leave each
    other the line in which one ends and the next begins."""

    def __init__(self, frame: Frame, box: Box) -> None:
        self.frame, self.f, self.own = frame, frame.f, frame.word(na.N_OWN)
        self.begun, self.unfinished = self.own.ne(0) & box.begun, self.own.ne(0) & box.unfinished
        apart = frame.word(na.N_OWN_STEP) > 1
        self.kept = self.f.select(apart, box.at[2], frame.scratch(na.N_OWN_PLACE))

    def _mask(self, bits: Val) -> Val:
        return self.f.bitcast(bits, vector_of(I1, LINE))


class Composer(BoxRuns):
    """Emits the lines of one box; ``source``: what its rows are offsets from, ``by_lines``: they begin with lines there, and
    have room for whole ones."""

    def __init__(self, frame: Frame, box: Box, source: Val, by_lines: Val, beside: Callable[[], None]) -> None:
        super().__init__(frame, box)
        self.source, self.beside = source, beside
        f, joined = self.f, frame.word(na.N_JOINED)
        self.out, self.joined = box.at[0], joined
        nbytes = box.no << frame.word(na.N_A_WIDE)
        # A run of one row may be longer than what is the box's own of it, one of several has whole rows of its own.
        self.nbytes = f.select(self.unfinished & joined.eq(1), self.own, nbytes)
        self.rows = f.select(self.unfinished, frame.word(na.N_OWN_ROWS), joined)
        self.runs = box.nj // joined
        self.by_lines = by_lines & (self.nbytes >= LINE)

    def emit(self) -> None:
        f, far, rows = self.f, self.frame.vector(na.N_RUNS_OUT), self.frame.vector(na.N_ROWS)
        with f.range(0, self.runs) as run:
            self._run(self.out + f.word(far, run), rows + run * self.joined * 8, self.kept + run * LINE)

    def _run(self, dst: Val, rows: Val, kept: Val) -> None:
        """``over``: bytes of the line at ``at`` that come before the next row, and are in ``left``."""
        f = self.f
        self.over, self.at = Var(f, dst & (LINE - 1)), Var(f, dst & -LINE)
        self.left = Var(f, f.load(_LINE, kept, align=LINE))
        # The first bytes of the first line belong to somebody else.
        self.foreign = Var(f, f.select(self.begun, f.i64(0), self.over.get()))
        whole_lanes = ((dst | self.nbytes) & ((1 << _LANE_BITS) - 1)).eq(0)
        with f.if_else(self.by_lines & whole_lanes) as (lines, bytes_):
            with lines, f.range(0, self.rows) as row:
                self._turned_row(self.source + f.word(rows, row))
            with bytes_, f.range(0, self.rows) as row:
                self._row(self.source + f.word(rows, row))
        with f.if_else(self.unfinished) as (goes_on, ends):
            with goes_on:
                f.store(self.left.get(), kept, align=LINE)
            with ends, f.if_(self.over.get().ne(0)):
                mine = self._below(self.over.get()) & self._from(self.foreign.get())
                f.store_masked(self.left.get(), self.at.get(), mine)

    def _row(self, src: Val) -> None:
        f, over = self.f, self.over.get()
        begin = f.var(0)
        with f.if_else(over + self.nbytes < LINE) as (short, enough):
            with short:
                here = self._from(over) & self._below(over + self.nbytes)
                self.left.set(f.select(here, f.load_masked(_LINE, src - over, here), self.left.get()))
                self.over.set(over + self.nbytes)
            with enough:
                with f.if_(over.ne(0)):
                    here = self._from(over)
                    self._first(f.select(here, f.load_masked(_LINE, src - over, here), self.left.get()))
                    begin.set(f.i64(LINE) - over)
                self._within(src + begin.get(), self.nbytes - begin.get())

    def _turned_row(self, src: Val) -> None:
        """A row that lies in lines: each is loaded once, and its lanes are turned by as many as are in ``left``. What they push
        out at the end is then at the beginning, where the next line wants it. (A load from between two lines takes three
        cycles, and with masks, as many again where a row begins and where it ends.)"""
        f, over, whole, left = self.f, self.over.get(), self.nbytes & -LINE, self.left
        before = f.convert(over >> _LANE_BITS, "trunc", I32)
        numbers = f.vector(I32, range(_LANES)) - f.splat(before, _LANES)
        here = f.bitcast(f.convert(f.i64(-1) << (over >> _LANE_BITS), "trunc", I16), vector_of(I1, _LANES))

        def turned(at: Val) -> tuple[Val, Val]:
            """The line there, and the line of the output that ends with its beginning."""
            lanes = f.load(numbers.type, at, align=LINE)
            lanes = f.intel("permvar.si.512", lanes.type, [lanes.v, numbers.v])
            line = f.select(here, lanes, f.bitcast(left.get(), lanes.type))
            return f.bitcast(lanes, _LINE), f.bitcast(line, _LINE)

        lanes, line = turned(src)
        left.set(lanes)
        self._first(line)
        with f.range(LINE, whole, LINE) as i:
            lanes, line = turned(src + i)
            left.set(lanes)
            f.stream(line, self.at.get())
            self.beside()
            self.at.add(LINE)
        with f.if_(whole.ne(self.nbytes)):
            self._last(over + (self.nbytes - whole), *turned(src + whole))

    def _last(self, over: Val, lanes: Val, line: Val) -> None:
        """``over``: bytes that are there at the end of a row, of one line or of two."""
        f = self.f
        with f.if_else(over < LINE) as (less, full):
            with less:
                self.left.set(line)
                self.over.set(over)
            with full:
                self.left.set(lanes)
                self.over.set(over - LINE)
                f.stream(line, self.at.get())
                self.beside()
                self.at.add(LINE)

    def _first(self, line: Val) -> None:
        f = self.f
        with f.if_else(self.foreign.get().ne(0)) as (partly, whole):
            with partly:
                f.store_masked(line, self.at.get(), self._from(self.foreign.get()))
                self.foreign.set(0)
            with whole:
                f.stream(line, self.at.get())
        self.beside()
        self.at.add(LINE)

    def _within(self, src: Val, nbytes: Val) -> None:
        f, at, whole = self.f, self.at.get(), nbytes & -LINE
        with f.range(0, whole, LINE) as i:
            f.stream(f.load(_LINE, src + i), at + i)
            self.beside()
        self.at.set(at + whole)
        self.over.set(nbytes - whole)
        self.left.set(f.load_masked(_LINE, src + whole, self._below(nbytes - whole)))

    def _below(self, count: Val) -> Val:
        """Mask of the first bytes of a line, not all."""
        return self._mask((self.f.i64(1) << count) - 1)

    def _from(self, first: Val) -> Val:
        """Mask of the bytes of a line from this one on."""
        return self._mask(self.f.i64(-1) << first)
