"""Asks for what the next turn of the outer loops reads and writes, a few lines at a time, while the tiles of this one run.

A batch of small products is read once and written once: each takes as long as its multiply-adds and as its lines need, one after
the other, where a core does not find them early enough by itself. What is asked for at once waits in line, and loads of this
turn behind it; what is asked for before a tile is not there for its first terms. So requests lie between a few terms each,
evenly over the turn, and C is asked for, too: a store past the caches takes longer than one to a line that is there.

What it may assume: each operand's part in a turn is one block without gaps, of which ``G_ASK_A``, ``G_ASK_B``, ``G_ASK_C`` are the
bytes (0: not asked for), and a task has all of a turn's panels and columns, in one block of K.
"""

from __future__ import annotations

from . import abi
from .emit import Fn, Val, Var
from .stream import LINE

ASK_TERMS = 8  # of an operand that is read in place, between two requests
SIDES = 3  # A, B and C
AT, END, SHARE = range(3)  # words of each: the next line, where they end, bytes that are asked for each time
ACTIVE = 3 * SIDES  # whether there is anything to ask for
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

    def announce(self, step: Val, now: tuple[Val, ...], then: tuple[Val, ...], times: Val) -> None:
        """Before a turn: where A, B and C are in it, and in the next one; there are so many requests until then. An operand
        that stays where it is, is there."""
        f, some = self.f, self.f.i64(0)
        for side, (here, there) in enumerate(zip(now, then)):
            nbytes = f.select(here.eq(there), f.i64(0), f.word(step, abi.G_ASK_A + side))
            lines = (nbytes + (LINE - 1)) // LINE
            share = (lines + times - 1) // times * LINE
            for word, value in ((AT, there), (END, there + nbytes), (SHARE, share)):
                f.store(value, self.at + 8 * (3 * side + word))
            some = some | nbytes
        f.store(some, self.at + 8 * ACTIVE)

    def ask(self) -> None:
        """What is due."""
        f = self.f
        for side in range(SIDES):
            words = [self.at + 8 * (3 * side + word) for word in (AT, END, SHARE)]
            first = f.word(words[AT])
            stop = f.min(first + f.word(words[SHARE]), f.word(words[END]))
            at = Var(f, first)
            with f.while_() as leave:
                leave(at.get() >= stop)
                f.prefetch(at.get(), write=side == 2, locality=2)
                at.add(LINE)
            f.store(at.get(), words[AT])
