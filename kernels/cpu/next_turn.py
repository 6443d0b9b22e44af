"""Asks for what the next turn of the outer loops reads and writes, a few lines at a time, while the tiles of this one run.

A batch of small products is read once and written once: each takes as long as its multiply-adds and as its lines need, one after
the other, where a core does not find them early enough by itself. What is asked for at once waits in line, and loads of this
turn behind it; what is asked for before a tile is not there for its first terms. So requests lie between a few terms each,
evenly over the turn, and C is asked for, too: a store past the caches takes longer than one to a line that is there.

What it may assume: each operand's part in a turn is rows of one length, so many bytes apart, as ``G_ASKS`` has them, and a task has
all of a turn's panels and columns, in one block of K.
"""

from __future__ import annotations

from . import abi
from .emit import Fn, Val, Var
from .stream import LINE

ASK_TERMS = 8  # of an operand that is read in place, between two requests
SIDES = 3  # A, B and C
AT, ROW_END, ROWS, ROW, GAP, SHARE = range(6)  # of each: the next line, where its row ends, rows that are left, bytes of a row, bytes
SIDE_WORDS = 6  # from its end to the next one, and lines that are asked for each time
ACTIVE = SIDE_WORDS * SIDES  # whether there is anything to ask for
WORDS = ACTIVE + 1


class NextTurn:
    """``at``: address of `WORDS` words, on the stack of a task."""

    def __init__(self, f: Fn, at: Val) -> None:
        self.f, self.at = f, at

    @property
    def active(self) -> Val:
        return self.f.word(self.at, ACTIVE)

    def nothing(self) -> None:
        """Until `announce` says otherwise."""
        self.f.store(self.f.i64(0), self.at + 8 * ACTIVE)

    def announce_block(self, row: Val, rows: Val, stride: Val, there: Val, times: Val) -> None:
        """Before a block of panels of A: where the next one is, and the rows that it has there."""
        self.announce_side(0, row, rows, stride, there, times)
        for side in range(1, SIDES):
            self.f.store(self.f.i64(0), self._place(side, ROWS))
        self.f.store(rows, self.at + 8 * ACTIVE)

    def announce_side(self, side: int, row: Val, rows: Val, stride: Val, there: Val, times: Val) -> None:
        lines = rows * ((row + (LINE - 1)) // LINE)
        words = {
            AT: there,
            ROW_END: there + row,
            ROWS: rows,
            ROW: row,
            GAP: stride - row,
            SHARE: (lines + times - 1) // times,
        }
        for word, value in words.items():
            self.f.store(value, self._place(side, word))

    def announce(self, table: Val, now: tuple[Val, ...], then: tuple[Val, ...], times: Val) -> None:
        """Before a turn: where A, B and C are in it, and in the next one; there are so many requests until then. An operand
        that stays where it is, is there. ``table``: `abi.ASK_WORDS` for each."""
        f, some = self.f, self.f.i64(0)
        for side, (here, there) in enumerate(zip(now, then)):
            row, rows, stride = (f.word(table, abi.ASK_WORDS * side + word) for word in range(abi.ASK_WORDS))
            rows = f.select(here.eq(there), f.i64(0), rows)
            self.announce_side(side, row, rows, stride, there, times)
            some = some | rows
        f.store(some, self.at + 8 * ACTIVE)

    def ask(self) -> None:
        """What is due."""
        f = self.f
        for side in range(SIDES):
            left = self._word(side, ROWS)
            with f.if_(left.ne(0)):
                self._ask(side, left)

    def _ask(self, side: int, left: Val) -> None:
        f = self.f
        at, end, rows = Var(f, self._word(side, AT)), Var(f, self._word(side, ROW_END)), Var(f, left)
        lines = Var(f, self._word(side, SHARE))
        with f.while_() as leave:
            leave((lines.get() <= 0) | rows.get().eq(0))
            lines.add(f.i64(-1))
            f.prefetch(at.get(), write=side == 2, locality=2)
            at.add(LINE)
            with f.if_(at.get() >= end.get()):
                at.set(end.get() + self._word(side, GAP))
                end.set(at.get() + self._word(side, ROW))
                rows.add(f.i64(-1))
        for word, value in ((AT, at), (ROW_END, end), (ROWS, rows)):
            f.store(value.get(), self._place(side, word))

    def _word(self, side: int, word: int) -> Val:
        return self.f.word(self.at, SIDE_WORDS * side + word)

    def _place(self, side: int, word: int) -> Val:
        return self.at + 8 * (SIDE_WORDS * side + word)
