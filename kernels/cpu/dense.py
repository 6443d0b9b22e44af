"""Runs of the output that tiles write to scratch as they are in its lines: a box of a permutation on its way past the caches.

A run is so many rows, one behind the other, and begins anywhere in a line; in scratch, it begins at the same place in one.
A few rows are moved, then the lines that are complete are stored, and so on: moves, which wait for memory, and stores past
the caches, which wait for it as well, are done side by side only as far as a core looks ahead, some hundred instructions
(docs/performance-memory.md#dense). So there are few for each line: one function has a box, with the addresses of its rows of
the input on the stack. `composed` has thirty, and is for cores on which a vector stored in two lines costs more than these.

    for run of the output
      for turn, so many entries of J that their rows stay in the first cache
        for tile in J           a vector of entries of J, of all rows of the input
          transpose, store      columns one behind the other
        store the lines that are complete
"""

from __future__ import annotations

from typing import Callable, Iterable

from llvmlite import ir

from ..isa import ISA
from . import cores
from . import nest_abi as na
from .composed import BoxRuns, composes
from .emit import I8, I64, Fn, Val, Var, vector_type
from .mover import Mover
from .nest_frame import OUT, A, Box, Frame
from .stream import LINE

_LINE = vector_type(I8, LINE)
ARGS = 4 + 7


def stores_dense(isa: ISA) -> bool:
    """Whether rows are put where they are in lines of the output."""
    return composes(isa) and cores.here().dense_rows


def build_dense(module: ir.Module, name: str, item: int, isa: ISA) -> None:
    """``void dense(ctx, step, task, worker, out, a, left, no, nj, begun, unfinished)``: a `Box` of elements of ``item`` bytes,
    after what all kernels get. It does nothing where rows are not stored so (`stores_dense`), and is not called there."""
    f = Fn(module, name, [I64] * ARGS)
    if stores_dense(isa):
        Dense(f, item, isa).emit()
    f.ret()


def box_arguments(f: Fn, box: Box) -> list[Val]:
    """What `build_dense` says of a box."""
    flags = (f.select(flag, f.i64(1), f.i64(0)) for flag in (box.begun, box.unfinished))
    return [*f.args, box.at[0], box.at[1], box.at[2], box.no, box.nj, *flags]


class Dense(BoxRuns):
    """Emits the runs of one box."""

    def __init__(self, f: Fn, item: int, isa: ISA) -> None:
        frame = Frame(f, (OUT, A))
        *at, no, nj, begun, unfinished = f.args[4:]
        self.box = Box(at=at, no=no, nj=nj, begun=begun.ne(0), unfinished=unfinished.ne(0), coming=at[1])
        super().__init__(frame, self.box)
        self.m, self.item, self.no = Mover(f, item, isa), item, no
        self.tile, self.most = self.m.block, na.DENSE_BYTES // item  # rows of a tile, of a box
        self.rows = f.stack(8 * (self.most + self.tile))
        self.scratch, self.along = frame.scratch(na.N_OUT_STAGE), frame.vector(na.N_A_J)
        self.joined, self.each = frame.word(na.N_JOINED), frame.word(na.N_TURN)
        self.adjacent, self.row = frame.word(na.N_A_RUN), no * item
        self.nbytes = f.select(self.unfinished, self.own, self.joined * self.row)

    def emit(self) -> None:
        f, far, offsets = self.f, self.frame.vector(na.N_RUNS_OUT), self.frame.vector(na.N_A_O)
        with f.range(0, self.no + self.tile) as k:  # the last row stands for those behind it
            f.store(self.box.at[1] + f.word(offsets, f.min(k, self.no - 1)), self.rows + k * 8, align=8)
        turns = f.max(self.joined // self.each, f.i64(1))
        with f.range(0, self.box.nj // self.joined) as run:
            self._run(self.box.at[0] + f.word(far, run), run, turns)

    def _run(self, dst: Val, run: Val, turns: Val) -> None:
        f, kept = self.f, self.kept + run * LINE
        over, at = dst & (LINE - 1), dst & -LINE
        with f.if_(self.begun):
            f.store(f.load(_LINE, kept, align=LINE), self.scratch, align=LINE)
        # Bytes of lines that are written; of the first one, so many belong to somebody else.
        done, foreign = f.var(0), Var(f, f.select(self.begun, f.i64(0), over))
        with f.range(0, turns) as turn:
            first = turn * self.each
            count = f.select(turn + 1 < turns, self.each, self.joined - first)
            self._move(self.scratch + over + first * self.row, run * self.joined + first, count)
            whole = f.min(over + (first + count) * self.row, over + self.nbytes) & -LINE
            with f.if_(foreign.get().ne(0) & (whole > 0)):
                self._part(at, f.i64(0), self._mask(f.i64(-1) << foreign.get()))
                foreign.set(0)
                done.set(LINE)  # which `whole` is at least
            with f.range(done.get(), whole, LINE) as i:
                f.stream(f.load(_LINE, self.scratch + i, align=LINE), at + i)
            done.set(whole)
        rest = over + self.nbytes - done.get()
        with f.if_else(self.unfinished) as (goes_on, ends):
            with goes_on:
                f.store(f.load(_LINE, self.scratch + done.get(), align=LINE), kept, align=LINE)
            with ends, f.if_(rest > 0):
                mine = ((f.i64(1) << rest) - 1) & (f.i64(-1) << foreign.get())
                self._part(at, done.get(), self._mask(mine))

    def _part(self, at: Val, place: Val, mask: Val) -> None:
        f = self.f
        f.store_masked(f.load(_LINE, self.scratch + place, align=LINE), at + place, mask)

    # -- moves -----------------------------------------------------------------------------------------------
    def _move(self, to: Val, first: Val, count: Val) -> None:
        """So many entries of J, those that are adjacent in the input together."""
        f, adjacent = self.f, self.f.min(self.adjacent, count)
        with f.range(0, count, adjacent) as j:
            begin, shift = to + j * self.row, f.word(self.along, first + j)
            whole = adjacent - adjacent % self.tile
            with f.range(0, whole, self.tile) as k:
                self._tile(begin + k * self.row, shift + k * self.item, None)
            with f.if_(whole < adjacent):
                self._tile(begin + whole * self.row, shift + whole * self.item, adjacent - whole)

    def _tile(self, to: Val, shift: Val, rest: Val | None) -> None:
        """All rows of a tile's entries of J, or the first ``rest`` of these.

        Behind less rows than a tile has, something is stored that the next entry of J overwrites."""
        f, no, size = self.f, self.no, self.tile
        left = no & (size - 1)
        few = left.ne(0) & (left <= size // 2)
        with f.range(0, f.select(few, no - left, no), size) as first:
            o = f.max(f.min(first, no - size), f.i64(0))
            self._store(self.m.square(size, self._loader(o, shift, rest)), to + o * self.item, rest)
        with f.if_(few):
            self.m.last_rows(size, left, lambda rows: self._few(rows, to, shift, rest), lambda: None)

    def _few(self, rows: int, to: Val, shift: Val, rest: Val | None) -> None:
        """The last so many rows."""
        o = self.f.max(self.no - rows, self.f.i64(0))
        load = self._loader(o, shift, rest)
        self._store(self.m.few_columns([load(row, 0, self.tile) for row in range(rows)]), to + o * self.item, rest)

    def _loader(self, o: Val, shift: Val, rest: Val | None) -> Callable[[int, int, int], Val]:
        """Entries of J from ``first`` on of the row so many behind ``o``."""
        f, m = self.f, self.m

        def load(row: int, first: int, count: int) -> Val:
            at = f.word(self.rows + o * 8, row) + shift + first * self.item
            if rest is None:
                return m.load(at, count)
            here = f.max(rest - first, f.i64(0)) * m.group
            return f.load_masked(m.vector(count), at, f.lane_mask(f.min(here, f.i64(count * m.group)), count * m.group))

        return load

    def _store(self, columns: Iterable[Val], to: Val, rest: Val | None) -> None:
        f = self.f
        for k, column in enumerate(columns):
            if rest is None:
                self.m.store(column, to + self.row * k)
            else:
                with f.if_(rest > k):
                    self.m.store(column, to + self.row * k)
