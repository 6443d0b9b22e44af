"""Runs of the output that tiles write to scratch as they are in its lines: a box of a permutation on its way past the caches.

A run is so many rows, one behind the other, and begins anywhere in a line; in scratch, it begins at the same place in one.
A few rows are moved, then the lines that are complete are stored, and so on: moves, which wait for memory, and stores past
the caches, which wait for it as well, are done side by side only as far as a core looks ahead, some hundred instructions
(docs/performance-memory.md#dense). There are no more than four for each line here; `composed` has thirty, and is for cores
on which a vector stored in two lines costs more than these.
"""

from __future__ import annotations

from typing import Callable

from ..isa import ISA
from . import cores
from . import nest_abi as na
from .composed import BoxRuns, composes
from .emit import I8, Val, Var, vector_type
from .nest_frame import Box, Frame
from .stream import LINE

_LINE = vector_type(I8, LINE)


def stores_dense(isa: ISA) -> bool:
    """Whether rows are put where they are in lines of the output."""
    return composes(isa) and cores.here().dense_rows


class Dense(BoxRuns):
    """Emits the runs of one box. ``move(dst, first, count)`` emits the move of that many rows from number ``first`` on, rows of
    all runs counted."""

    def __init__(self, frame: Frame, box: Box, scratch: Val, move: Callable[[Val, Val, Val], None]) -> None:
        super().__init__(frame, box)
        self.box, self.scratch, self.move = box, scratch, move
        self.joined, self.each = frame.word(na.N_JOINED), frame.word(na.N_TURN)
        self.row = box.no << frame.word(na.N_A_WIDE)
        self.nbytes = self.f.select(self.unfinished, self.own, self.joined * self.row)

    def emit(self) -> None:
        f, far = self.f, self.frame.vector(na.N_RUNS_OUT)
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
            self.move(self.scratch + over + first * self.row, run * self.joined + first, count)
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
