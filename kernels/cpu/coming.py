"""Asks for what comes next while tiles run: their own panels and columns (`Beside`), and the blocks that are packed.

A task packs a block, computes with it and packs the next: nothing comes from memory while tiles run, and nothing is
computed while the pack function waits for lines. `Describer` finds out which block follows: the next of K, of the loop
over K outside, of the outer loops, or that of the task which this thread takes next. `Fetcher` asks for a share of its
lines before each tile, into the second level of cache. Only the pack function reads them: a wrong guess costs time.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import abi, cores, next_turn
from .emit import Fn, Val, Var
from .evenly import step_of
from .next_turn import NextTurn
from .stream import LINE
from .tile import SEVERAL, TileEmitter, several_terms

NEAR_BYTES = 256 << 10  # of packed columns that stay in the second level of cache by themselves
PIECE = 256  # vector FMAs, of which so many are under way while a loop ends
LEAST_LINES, LEAST_BYTES = 12, 128 << 10  # of a column that is read in place, and of all: less is soon there
SHARES = 4  # tiles of a strip that ask for a share of the next columns, at most
LEAST = 4  # lines before a tile, so that the last tiles ask for nothing

# Words of a description, one for each operand, on the stack of a task.
C_SOURCE = 0  # what tables are added to, 0: nothing is coming
C_LANES, C_TK = 1, 2  # tables of its lanes and of its terms
C_K, C_PANELS = 3, 4
C_SHARE = 5  # lines before each tile
C_AT_K, C_AT_LANE, C_AT_PANEL = 6, 7, 8  # the next line to ask for
C_K_STEP, C_LANE_STEP, C_PANEL_STEP = 9, 10, 11  # a line further along the run
C_WORDS = 12
COMING_BYTES = 8 * (2 * C_WORDS + next_turn.WORDS)  # of both descriptions, and what `later_of` has behind them
# The words of an A that is read in place.
C_FOLLOWS, C_FOLLOWS_B = 0, 1  # bytes to where A and B are in the next outer iteration, 0: not to ask
C_COMES = 2  # first panel of the task that this thread takes next, 0: there is none
# The word of a B that is read in place in blocks: bytes from one to the next, 0: not to ask. A packed B has its description here.
C_FAR = C_WORDS


@dataclass(frozen=True, kw_only=True)
class Side:
    """One operand of a task that packs: words of the step, where the bit of `abi.G_PACK_MODE` is that says whether to
    ask, the first panel and how many there are."""

    number: int
    turns: int
    lanes: int
    terms: int
    lines: int
    bit: int
    width: int
    first: Val
    panels: Val


class Fetcher:
    """Emits the requests for one operand, described at ``at``; panels have ``width`` lanes."""

    def __init__(self, f: Fn, at: Val, width: int) -> None:
        self.f, self.at, self.width = f, at, width

    def word(self, index: int) -> Val:
        return self.f.word(self.at, index)

    def ask(self) -> None:
        """The lines that are due before one tile."""
        f = self.f
        with f.if_(self.word(C_SOURCE).ne(0)):
            k, lane, panel = (Var(f, self.word(n)) for n in (C_AT_K, C_AT_LANE, C_AT_PANEL))
            left = Var(f, self.word(C_SHARE))
            with f.while_() as leave:
                leave(left.get() <= 0)
                left.add(f.i64(0) - self._lines(left.get(), k, lane.get(), panel.get()))
                with f.if_(k.get() >= self._end(C_K, C_K_STEP)):
                    self._next_lane(k, lane, panel)
            for index, var in ((C_AT_K, k), (C_AT_LANE, lane), (C_AT_PANEL, panel)):
                f.store(var.get(), self.at + 8 * index)
            with f.if_(panel.get() >= self._end(C_PANELS, C_PANEL_STEP)):
                f.store(f.i64(0), self.at + 8 * C_SOURCE)

    def _lines(self, most: Val, k: Var, lane: Val, panel: Val) -> Val:
        """Asks for the lines of one lane that come next, and goes on behind them; how many they are. Runs begin anywhere
        in a line: past their end their last element is asked for."""
        f, step = self.f, self.word(C_K_STEP)
        nearest = f.min(panel, self.word(C_PANELS) - 1) * self.width + f.min(lane, self.width - 1)
        base, terms, last = self.word(C_SOURCE) + f.word(self.word(C_LANES), nearest), self.word(C_TK), self.word(C_K) - 1
        end = f.min(k.get() + most * step, self._end(C_K, C_K_STEP))
        count = f.ceil_div(end - k.get(), step)
        with f.range(k.get(), end, step) as at:
            f.prefetch(base + f.word(terms, f.min(at, last)), locality=2)
        k.add(count * step)
        return count

    def _next_lane(self, k: Var, lane: Var, panel: Var) -> None:
        f = self.f
        k.set(0)
        lane.add(self.word(C_LANE_STEP))
        with f.if_(lane.get() >= self.word(C_LANE_STEP) + (self.width - 1)):
            lane.set(0)
            panel.add(self.word(C_PANEL_STEP))

    def _end(self, count: int, step: int) -> Val:
        return self.word(count) + self.word(step) - 1


def later_of(f: Fn, tile: TileEmitter, coming: Val) -> NextTurn | None:
    """What tiles ask for of the next turn, or the next block of panels; None: nothing on these cores, nor where columns are turned."""
    return NextTurn(f, coming + 8 * C_WORDS * 2) if cores.here().turns_ask and not tile.turns else None


def is_cut(klen: Val, mv: int, nr: int) -> Val:
    """Whether the loop over K of a tile of packed operands is cut into pieces where there is something to ask for."""
    return (klen * mv >= PIECE) & (klen > nr)


class Beside:
    """Emits what tiles of packed operands ask for while they run: the next panel of B, which all panels of A share, and
    the columns of C that are added to.

    The panel comes from the third level of cache, or from memory, to the second; each tile asks for its share. Asked for
    all at once, lines wait for each other and the loads of A for them: so K is cut into pieces, with something to ask
    between two of them for each column. Where nothing is far there is one piece.
    """

    def __init__(
        self,
        f: Fn,
        tile: TileEmitter,
        klen: Val,
        panels: Val,
        columns: Val,
        accumulate: Val,
        distant: Val,
        later: NextTurn | None = None,
    ) -> None:
        self.f, self.tile, self.later = f, tile, later
        nr, item = tile.spec.nr, tile.item
        far = (columns * klen * item > NEAR_BYTES) | distant
        wanted = far | accumulate.ne(0)
        if later is not None:
            wanted = wanted | later.active.ne(0)
        self.cut = is_cut(klen, tile.spec.mv, nr)
        self.split = self.cut & wanted
        self.piece = f.select(self.split, klen // (nr + 1), klen)
        lines = (klen * (nr * item) + (LINE - 1)) // LINE
        self.lines = f.select(far, (lines + panels * nr - 1) // f.max(panels * nr, 1), f.i64(0))
        self.at, self.column = f.var(0), f.var(0)

    def strip(self, panel: Val) -> None:
        """Before a strip of columns; ``panel``: address of the panel behind its own."""
        self.at.set(panel)

    def begin(self, c: Val, tnc: Val, adds: Val) -> None:
        """Before a tile at ``c``, its columns at the offsets ``tnc``, which adds to them or does not."""
        self.adds, self.c, self.tnc = adds, c, tnc
        with self.f.if_(adds & self.split.eq(0)):
            self.tile.fetch_columns(c, tnc)
        self.column.set(0)
        if self.later is not None:
            self.later.ask(self.cut.eq(0))

    def ask(self, done: Val) -> None:
        """What is due between two pieces; a column is one that the tile has."""
        f = self.f
        with f.if_(self.adds & (self.column.get() < self.tile.spec.nr)):
            self.tile.fetch_column(self.c + f.word(self.tnc, self.column.get()))
            self.column.add(1)
        at = Var(f, self.at.get())
        with f.range(0, self.lines):
            f.prefetch(at.get(), locality=2)
            at.add(LINE)
        self.at.set(at.get())
        if self.later is not None:
            self.later.ask()


def _are_many(item: int, klen: Val, columns: Val) -> Val:
    """Whether columns of a block of K are long, and together more than is soon there."""
    return (klen >= LEAST_LINES * (LINE // item)) & (columns * klen * item >= LEAST_BYTES)


class Columns:
    """Emits what the first tile of a strip asks for of the next columns, where B is read in place along K: the next line of each,
    between as many terms as a line has. All before a tile, lines would wait for each other, and the tile for them."""

    def __init__(self, f: Fn, tile: TileEmitter) -> None:
        self.f, self.tile = f, tile
        self.terms = LINE // tile.item

    def strip(self, b: Val, tnb: Val, columns: tuple[Val, Val, Val], tkb: Val, klen: Val, there: Val) -> Val:
        """Before a strip; ``columns``: where it begins, and those of the task; ``there``: they were asked for before. 0: somebody
        else is to ask for what follows."""
        f, nr, item = self.f, self.tile.spec.nr, self.tile.item
        n, n0, n1 = columns
        self.b, self.tkb, self.next = b, tkb, tnb + (n + nr) * 8
        along = step_of(f, tkb, klen).eq(item)
        many = _are_many(item, klen, n1 - n0)
        self.asks = (n + nr < n1) & along & many & there.eq(0)
        return self.asks

    def begin(self, first: Val) -> None:
        """Before a tile; ``first``: of its strip."""
        self.split, self.piece = self.asks & first, self.f.i64(self.terms)

    def ask(self, done: Val) -> None:
        """Behind so many terms: what those before them have in the next columns."""
        at = self.b + self.f.word(self.tkb, done - 1)
        for j in range(self.tile.spec.nr):
            self.f.prefetch(at + self.f.word(self.next, j), locality=2)


def pays_to_spread(f: Fn, tile: TileEmitter, tkb: Val, klen: Val, even: Val, columns: Val) -> Val:
    """Whether a `Spread` asks for columns of a block of K: long ones whose terms are adjacent, and all of them as far apart."""
    return _are_many(tile.item, klen, columns) & (even >= klen) & step_of(f, tkb, klen).eq(tile.item)


class Spread:
    """Emits what the tiles of a strip ask for of the next columns, where B is read in place along K, terms lie at equal distances
    and tiles have a loop for these (`evenly`): of each column what lies so many terms further on in each turn. All before a strip,
    lines wait for each other and the tile for them; between pieces of K, pieces cost as much as is gained. One tile asks faster
    than memory answers: four or two share what there is, each at as many times smaller steps.

    Of a B in blocks of columns and terms the first tile of a strip asks, before each term, for what is at its place in the next
    block, ``far`` bytes from it; 0: it is not in blocks."""

    columns: Val

    def __init__(self, f: Fn, tile: TileEmitter, far: Val) -> None:
        self.f, self.tile, self.far = f, tile, far
        self.terms = min(2 * several_terms(tile.spec, tile.isa), max(SEVERAL, LINE // tile.item))
        self.at, self.first, self.share, self.step, self.shares = (f.var(0) for _ in range(5))
        self.number = f.i64(0)  # of a tile in its strip

    def strip(self, b: Val, columns: tuple[Val, Val], tables: tuple[Val, Val], klen: Val, tiles: Val) -> Val:
        """Before a strip of so many tiles: whether they ask. ``columns``: it begins with, and those of the task end before."""
        f, nr, item = self.f, self.tile.spec.nr, self.tile.item
        (n, end), (tnb, tkb) = columns, tables
        more, self.columns = (n + nr < end) & self.far.eq(0), tnb + (n + nr) * 8
        shares = f.select(tiles >= SHARES, f.i64(SHARES), f.select(tiles >= 2, f.i64(2), f.i64(1)))
        self.shares.set(f.select(more, shares, f.i64(0)))
        with f.if_(more):
            begin = b + f.word(tkb)
            self.first.set(begin)
            self.share.set(klen * item // shares)
            self.step.set(f.i64(self.terms * item) // shares)
            for j in range(nr):  # the last two lines, which turns may not come to
                last = begin + f.word(self.columns, j) + (klen * item - 1)
                f.prefetch(last - LINE, locality=2)
                f.prefetch(last, locality=2)
        return more | self.far.ne(0)

    def asks(self) -> Val:
        """Whether a tile is one that asks for columns."""
        return self.number < self.shares.get()

    def asks_far(self) -> Val:
        """Whether it is one that asks for its place in the next block."""
        return self.far.ne(0) & self.number.eq(0)

    def begin(self) -> None:
        """Before the terms of a tile that does."""
        self.at.set(self.first.get() + self.number * self.share.get())

    def ask(self, n: int) -> None:
        """Before a term of a turn."""
        nr = self.tile.spec.nr
        for j in range(nr):
            if j * self.terms // nr == n:
                self.f.prefetch(self.at.get() + self.f.word(self.columns, j), locality=2)

    def turn(self) -> None:
        """Behind a turn."""
        self.at.add(self.step.get())


class Describer:
    """Emits the descriptions of what a task packs next. ``step`` and ``at``: addresses of the row and of the words."""

    def __init__(self, f: Fn, step: Val, at: Val, item: int) -> None:
        self.f, self.step, self.at, self.item = f, step, at, item

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def nothing(self) -> None:
        """Until `next` says otherwise."""
        for number in (0, 1):
            self.f.store(self.f.i64(0), self.at + 8 * (C_WORDS * number + C_SOURCE))

    def next(self, side: Side, base: Val, turn: Val, k0: Val, outer: Val, ahead: Val, tiles: Val) -> None:
        """``base``: the operand at this place of the outer loops; ``outer``: at the next one of the task, 0 where there
        is none; ``ahead``: panels from this task's to those of the task after it, 0 where none is; ``tiles`` are computed
        until then."""
        f, word = self.f, self.word
        with f.if_((word(abi.G_PACK_MODE) & side.bit).ne(0)):
            now = base + f.word(word(side.turns), turn)
            more, again = k0 + word(abi.G_KC) < word(abi.G_K), turn + 1 < word(abi.G_KO)
            begin = base + f.word(word(side.turns))
            source = Var(f, f.select(outer.ne(0), outer + f.word(word(side.turns)), f.select(ahead.ne(0), begin, outer)))
            panel = Var(f, side.first + f.select(outer.ne(0), f.i64(0), ahead))
            with f.if_(again):
                source.set(base + f.word(word(side.turns), f.min(turn + 1, word(abi.G_KO) - 1)))
            with f.if_(more):
                source.set(now)
            with f.if_(again | more):
                panel.set(side.first)
            start = f.select(more, k0 + word(abi.G_KC), f.i64(0))
            here = source.get().eq(now) & panel.get().eq(side.first) & start.eq(k0)
            with f.if_(source.get().ne(0) & here.eq(0)):
                self._describe(side, source.get(), panel.get(), start, tiles)

    def _describe(self, side: Side, source: Val, panel: Val, start: Val, tiles: Val) -> None:
        f, word = self.f, self.word
        mode = (word(abi.G_PACK_MODE) >> 2 * side.number) & 3
        per_line = LINE // self.item
        source, offsets = Var(f, source), Var(f, word(side.terms) + start * 8)
        terms, step = Var(f, f.min(word(abi.G_KC), word(abi.G_K) - start)), Var(f, f.i64(per_line))
        with f.if_(word(side.lines).ne(0)):
            source.add(f.word(offsets.get()))
            offsets.set(word(side.lines) + 8)
            terms.set(f.word(word(side.lines)))
            step.set(1)
        runs = (
            (C_K_STEP, abi.K_RUN, terms.get(), step.get()),
            (C_LANE_STEP, abi.LANES_RUN, f.i64(side.width), f.i64(max(1, min(per_line, side.width)))),
            (C_PANEL_STEP, abi.PANEL_RUN, side.panels, f.i64(per_line)),
        )
        words = {
            C_SOURCE: source.get(),
            C_LANES: word(side.lanes) + panel * (8 * side.width),
            C_TK: offsets.get(),
            C_K: terms.get(),
            C_PANELS: side.panels,
            C_AT_K: f.i64(0),
            C_AT_LANE: f.i64(0),
            C_AT_PANEL: f.i64(0),
        }
        lines = f.i64(1)
        for index, run, count, step in runs:
            along = mode.eq(run)
            words[index] = f.select(along, step, f.i64(1))
            lines = lines * f.select(along, (count + (step * 2 - 2)) // step, count)
        words[C_SHARE] = f.max(lines // f.max(tiles, 1) + 1, LEAST)
        for index, value in words.items():
            f.store(value, self.at + 8 * (C_WORDS * side.number + index))
