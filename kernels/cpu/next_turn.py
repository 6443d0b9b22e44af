"""Prefetches what the next turn of the outer loops (of a batch, the next product) reads and writes, a few lines at a time, while the
tiles of this one run.

A batch of small products is read once and written once: each takes as long as its multiply-adds and as its lines need, one after
the other, where a core does not find them early enough by itself. What is asked for at once waits in line, and loads of this
turn behind it; what is asked for before a tile is not there for its first terms. So requests lie between a few terms each,
evenly over the turn, and C is asked for, too: a store past the caches takes longer than one to a line that is there.

What `announce` may assume: each operand's part in a turn is rows of one length, so many bytes apart, as ``G_ASKS`` has them, and a
task has all of a turn's panels and columns, in one block of K. `announce_block` is told the rows of one block of panels of A.
"""

from __future__ import annotations

from . import abi
from .emit import Fn, Val, Var
from .stream import LINE

SIDES = 3  # A, B and C
# Words of each: the next line, where its row ends, rows that are left, bytes of a row, bytes from its end to the next one, and lines
# that are asked for each time.
AT, ROW_END, ROWS, ROW, GAP, SHARE = range(6)
SIDE_WORDS = 6
ACTIVE = SIDE_WORDS * SIDES  # whether there is anything to ask for
ASKED_B, THERE_B = ACTIVE + 1, ACTIVE + 2  # whether B of the next turn is asked for in this one, and that of this turn was
WORDS = ACTIVE + 3


class NextTurn:
    """``at``: address of `WORDS` words, on the stack of a task."""

    def __init__(self, f: Fn, at: Val) -> None:
        self.f, self.at = f, at

    @property
    def active(self) -> Val:
        return self.f.word(self.at, ACTIVE)

    @property
    def b_is_there(self) -> Val:
        """Whether B of this turn was asked for in the one before."""
        return self.f.word(self.at, THERE_B)

    def begin(self) -> None:
        """Nothing was asked for, and nothing is."""
        for word in (ACTIVE, ASKED_B, THERE_B):
            self.f.store(self.f.i64(0), self.at + 8 * word)

    def next(self) -> None:
        """A turn begins, which may be the last one of the task: nothing is asked for until `announce` says otherwise."""
        f = self.f
        f.store(f.word(self.at, ASKED_B), self.at + 8 * THERE_B)
        for word in (ACTIVE, ASKED_B):
            f.store(f.i64(0), self.at + 8 * word)

    def announce_block(self, row: Val, rows: Val, stride: Val, there: Val, times: Val) -> None:
        """Before a block of panels of A: where the next one is, and the rows that it has there."""
        self.announce_side(0, row, rows, stride, there, times)
        for side in range(1, SIDES):
            self.f.store(self.f.i64(0), self._place(side, ROWS))
        self.f.store(rows, self.at + 8 * ACTIVE)

    def announce_side(self, side: int, row: Val, rows: Val, stride: Val, there: Val, times: Val) -> None:
        # Rows may begin anywhere in a line, and have one more then. That of a single row would make each share longer, and is left out.
        within, parted = there & (LINE - 1), ((there | stride) & (LINE - 1)).ne(0)
        lines = rows * ((row + (LINE - 1)) // LINE) + self.f.select(parted & (rows > 1), rows, self.f.i64(0))
        words = {
            AT: there - within,
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
            if side == 1:
                f.store(rows, self.at + 8 * ASKED_B)
        f.store(some, self.at + 8 * ACTIVE)

    def ask(self, here: Val | None = None) -> None:
        """What is due, if there is anything to ask for, and it is asked for ``here``."""
        f, wanted = self.f, self.active.ne(0)
        with f.if_(wanted if here is None else wanted & here):
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
                begin = end.get() + self._word(side, GAP)
                at.set(begin - (begin & (LINE - 1)))
                end.set(begin + self._word(side, ROW))
                rows.add(f.i64(-1))
        for word, value in ((AT, at), (ROW_END, end), (ROWS, rows)):
            f.store(value.get(), self._place(side, word))

    def _word(self, side: int, word: int) -> Val:
        return self.f.word(self.at, SIDE_WORDS * side + word)

    def _place(self, side: int, word: int) -> Val:
        return self.at + 8 * (SIDE_WORDS * side + word)
