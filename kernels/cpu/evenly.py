"""The K loop of a tile that reads an operand in place, where its terms lie at equal distances: with a constant stride.

A table of offsets costs each term a load, its address and often a spilled register, where two loads a cycle bound a tile of few
columns: 2 x 8 then has 16 in the 8 cycles of its multiply-adds. Terms of one index, or of some that are one, are a constant
apart; so are those of the fastest of several. Several of them are a turn of the loop then, as of packed panels.

What the loop may assume: ``G_EVEN`` divides the block of K, or is not less than it; a K of one term has no distance.
"""

from __future__ import annotations

from typing import Any, Callable

from llvmlite import ir

from .emit import I64, Fn, Val, Var
from .next_turn import NextTurn
from .units import ASK_TERMS

Term = Callable[[Val, Val], None]


def _kept(f: Fn, value: Val) -> Val:
    """``value``, which LLVM has to have in a register here: else it adds steps to each of the columns' addresses before the
    loop, those of all terms in a turn, and reads 32 of them from the stack."""
    same = ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0")
    return Val(f, f.b.call(same, [value.v]))


def step_of(f: Fn, terms: Val, klen: Val) -> Val:
    """Bytes from the first term to the second one, by the table of so many; 0: there is none."""
    return f.word(terms, f.min(f.i64(1), klen - 1)) - f.word(terms)


class Evenly:
    """Emits that loop for a `tile.TileEmitter`. ``run``: terms at equal distances, 0: tables say where they are; ``tka``,
    ``tkb``: these tables, of ``klen`` terms; ``later``: what is asked for between a few terms each."""

    def __init__(self, f: Fn, tile, run: Val, klen: Val, tka: Val, tkb: Val, later: NextTurn | None) -> None:
        self.f, self.tile, self.run, self.klen, self.later = f, tile, run, klen, later
        self.tables = (tka, tkb)
        packed = (tile.spec.a_packed, tile.spec.b_packed)
        widths = (tile.mr * tile.item, tile.spec.nr * tile.item)
        self.widths = tuple(width if is_packed else 0 for is_packed, width in zip(packed, widths))
        self.asks: Val | None = None
        self.adjacent: Val | None = None
        self.spread: Any = None  # a `coming.Spread`

    def _step(self, side: int) -> Val:
        """Bytes from one term to the next; 0: there is none. Read for each tile that wants it: others are over in as much time."""
        if self.widths[side]:
            return self.f.i64(self.widths[side])
        return step_of(self.f, self.tables[side], self.klen)

    def strip(self, asks: Val | None, adjacent: Val | None) -> None:
        """Before a strip of columns: whether its tiles ask for rows of A, and whether its columns are adjacent in B; None: they
        never do, are."""
        self.asks, self.adjacent = asks, adjacent

    def wanted(self, beside, ahead: Val | None) -> Val:
        """Whether the loop is this one: nothing is done between pieces of K, and no later operand is asked for row by row."""
        wanted = self.run.ne(0)
        if beside is not None:
            wanted = wanted & beside.split.eq(0)
        if ahead is not None and self.tile.follows:
            wanted = wanted & ahead.eq(0)
        return wanted

    def emit(self, a: Val, b: Val, asking: Callable[[Val, Val], None], term: Term, first_column: Val) -> None:
        """``term(row, at)`` for each term: where its lanes are, and its elements of the columns, from ``b`` on; ``asking(row, near)``
        before it, where rows are asked for, ``near``: bytes to that `tile.rows_near` terms behind it. ``first_column``: what is
        added to ``at`` for the first of them; 0 where ``b`` has it."""
        f, steps = self.f, (self._step(0), self._step(1))

        def either(loop: Callable[..., None]) -> None:
            """``loop``, whose terms ask for rows of A where these are wanted."""
            if self.asks is None:
                loop(a, b, steps, term, self.later)
                return
            near = _kept(f, steps[0] * self.tile.rows_near)  # in whose place LLVM would multiply for each term

            def both(row: Val, at: Val) -> None:
                asking(row, near)
                term(row, at)

            wanted = self.asks if self.later is None else self.asks & self.later.active.eq(0)
            with f.if_else(wanted) as (asks, others):
                with asks:
                    loop(a, b, steps, both)
                with others:
                    loop(a, b, steps, term, self.later)

        if self.spread is None:
            either(self._loop)
            return
        with f.if_else(self.spread.asks()) as (spread, others):
            with spread:
                either(self._asking_loop)
            with others, f.if_else(self.spread.asks_far()) as (far, near):
                with far:
                    self._loop(a, b, steps, self._asking_far(term, first_column))
                with near:
                    either(self._loop)

    def _asking_loop(self, a: Val, b: Val, steps: tuple[Val, Val], term: Term, later: None = None) -> None:
        """All terms at equal distances, while the next columns are asked for; nothing else is."""
        f, spread = self.f, self.spread
        spread.begin()
        places = self._begin((Var(f, a), Var(f, b)), (a, b), f.i64(0))
        behind = self.klen - self.klen % spread.terms
        with f.range(0, behind, spread.terms):
            for n in range(spread.terms):
                spread.ask(n)
                self._term(places, steps, term)
            spread.turn()
        with f.range(behind, self.klen):
            self._term(places, steps, term)

    def _asking_far(self, term: Term, first_column: Val) -> Term:
        """Terms that ask for their place in the next block of B."""
        far = first_column + self.spread.far

        def both(row: Val, at: Val) -> None:
            self.f.prefetch(at + far, locality=2)
            term(row, at)

        return both

    def _begin(self, places: tuple[Var, Var], bases: tuple[Val, Val], first: Val) -> tuple[Var, Var]:
        """Where the term ``first`` is; packed operands are there."""
        for base, place, table, width in zip(bases, places, self.tables, self.widths):
            if not width:
                place.set(base + self.f.word(table, first))
        return places

    def _term(self, places: tuple[Var, Var], steps: tuple[Val, Val], term: Term) -> None:
        term(places[0].get(), places[1].get())
        for place, step in zip(places, steps):
            place.set(_kept(self.f, place.get() + step))

    def _loop(self, a: Val, b: Val, steps: tuple[Val, Val], term: Term, later: NextTurn | None = None) -> None:
        f = self.f
        places = (Var(f, a), Var(f, b))
        start, run = f.var(0), self.run
        if later is not None:
            few = later.active.ne(0) & ((run >= self.klen) | (run % ASK_TERMS).eq(0))
            run = f.select(few, f.min(run, ASK_TERMS), run)

        with f.while_() as leave:
            first = start.get()
            end = f.min(first + run, self.klen)
            self._begin(places, (a, b), first)
            self.tile.turns_of_terms(first, end, lambda _: self._term(places, steps, term))
            start.set(end)
            if later is not None:
                later.ask()
            leave(end >= self.klen)
