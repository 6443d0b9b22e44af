"""The two inner loops of a GEMM task, over columns and panels, and how its tiles reach C: as `gemm` describes them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import or_

from llvmlite import ir

from ..isa import ISA
from ..tiles import adjoins
from . import abi, cores
from . import unpack_abi as ub
from .carry import CarriedLines
from .coming import C_COMES, C_FAR, C_FOLLOWS, C_FOLLOWS_B, C_SOURCE, C_WORDS, Beside, Columns, Fetcher, Spread, later_of
from .edges import EdgeStores
from .emit import I64, Fn, Val, Var
from .evenly import Evenly, step_of
from .stopwatch import Stopwatch
from .stream import LINE, stream
from .tile import FETCHED_FROM, TileEmitter, TileSpec

L1_BYTES = 24 << 10  # of an A that is read in place, which stays in the first cache
FOLLOWED_BYTES = 2 << 10  # from one row to the next, up to which a core follows
FMAS_AHEAD = 2400  # from asking for the lanes of a panel to their use: a line comes from memory meanwhile


def emit_past(module: ir.Module, tile: TileSpec, isa: ISA) -> Fn:
    """``void past(source, corner, lanes, columns, valid, count, run, spilled)``: a tile goes past the caches to ``corner`` and the
    offsets of its ``valid`` lanes, in runs of so many, and of its ``count`` columns, of which those that are adjacent in C leave
    as one. At ``source`` each run of lanes has all columns side by side; or the tile was ``spilled`` there as it is, and its
    runs are put together first.
    """
    f = Fn(module, "past", [I64] * 8, internal=True)
    f.fn.attributes.add("noinline")
    emitter = TileEmitter(f, tile, isa)
    source, corner, lanes, columns, valid, count, run, spilled = f.args
    column, vector = emitter.mr * emitter.item, emitter.vector_bytes
    width, close = run * emitter.item, f.stack(column * tile.nr + vector)
    begin = Var(f, source)  # of the first column's part of a run
    with f.range(0, valid, run) as lane:
        with f.if_(spilled.ne(0)):
            # What a column has more, the next one overwrites.
            with f.range(0, count) as j, f.range(0, width, vector) as at:
                here = source + j * column + lane * emitter.item + at
                f.store(f.load(emitter.vec, here), close + j * width + at)
            begin.set(close)
        target, done = corner + f.word(lanes, lane), f.var(0)
        with f.while_() as leave:
            j = done.get()
            leave(j >= count)
            first, together = f.word(columns, j), f.var(1)
            with f.while_() as end:
                end(j + together.get() >= count)
                end((f.word(columns, j + together.get()) - first).ne(width * together.get()))
                together.add(1)
            stream(f, isa, target + first, begin.get() + j * width, f.i64(0), width * together.get())
            done.set(j + together.get())
        begin.add(width * tile.nr)
    f.ret()
    return f


class TileLoop:
    """The two inner loops, over columns and panels, as a function of its own: LLVM is several times quicker so."""

    def __init__(self, f: Fn, tile: TileEmitter, past: Fn | None, carry: tuple[Fn, Fn] | None, spreads: bool = False):
        self.f, self.tile, self.spec, self.past = f, tile, tile.spec, past
        self.step, *self.block, self.p0, self.p1, self.n0, self.n1, coming, self.scratch = f.args[:15]
        self.coming, self.ahead, self.near = coming, None, None
        self.beside: Beside | None = None
        self.even: Evenly | None = None
        self.later = later_of(f, tile, coming)
        self.columns = Columns(f, tile) if cores.here().columns_ask and not self.spec.b_packed else None
        self.spread = Spread(f, tile, f.word(coming, C_FAR)) if spreads else None
        self.watch = Stopwatch(f, f.args[15] if self.spec.timed else None)
        packed = ((0, tile.mr, self.spec.a_packed), (1, self.spec.nr, self.spec.b_packed))
        self.fetchers = [Fetcher(f, coming + 8 * C_WORDS * n, width) for n, width, is_packed in packed if is_packed]
        self.tile_bytes = tile.mr * tile.spec.nr * tile.item
        # The last of the runs of lanes, which `TileEmitter.spill_runs` puts together, may not be whole.
        self.stack = f.stack(2 * self.tile_bytes + tile.vector_bytes)
        self.carry = None if carry is None else CarriedLines(f, tile, *carry)
        self.unpack_args = None if self.spec.a_packed else f.stack(8 * ub.U_WORDS)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def emit(self) -> None:
        f, word, spec, tile = self.f, self.word, self.spec, self.tile
        panels, stride, b, b_stride, c, k0, klen, accumulate = self.block
        tables = {name: word(getattr(abi, name)) for name in ("G_TN_B", "G_TN_C", "G_TM_A", "G_TM_C", "G_VALID")}
        flag_table = word(abi.G_FLAGS)
        signs = tile.sign_vectors(word(abi.G_SIGNS)) if tile.complex else None
        chunk, stream = word(abi.G_CHUNK), word(abi.G_STREAM)
        tka, tkb = word(abi.G_TK_A) + k0 * 8, word(abi.G_TK_B) + k0 * 8
        beside = None
        if spec.a_packed and spec.b_packed:
            distant = (word(abi.G_PACK_MODE) & abi.FAR_B).ne(0)
            beside = Beside(f, tile, klen, self.p1 - self.p0, word(abi.G_N), accumulate, distant, self.later)
            self.beside = beside
        elif not tile.turns:
            self.even = Evenly(f, tile, word(abi.G_EVEN), klen, tka, tkb, self.later)
            self.even.spread = self.spread
        follows = f.word(self.coming, C_FOLLOWS) if tile.asks else None
        self.comes = f.word(self.coming, C_COMES) if tile.asks_widely else None
        further = f.i64(FMAS_AHEAD) // (klen * (spec.mv * spec.nr)) + 1
        with f.range(self.n0, self.n1, spec.nr) as n:
            tnc = tables["G_TN_C"] + n * 8
            columns = f.min(self.n1 - n, spec.nr)
            if self.carry is not None:
                with f.if_(stream.ne(0)):
                    self.carry.strip(tnc)
            asked = functools.reduce(or_, [fetcher.word(C_SOURCE) for fetcher in self.fetchers], f.i64(0))
            if spec.b_packed:
                source = b + (n // spec.nr) * b_stride
                if beside is not None:
                    beside.strip(source + f.select(n + spec.nr < word(abi.G_N), b_stride, f.i64(0)))
            else:
                tnb = tables["G_TN_B"] + n * 8
                source = [b + f.word(tnb, j) for j in range(spec.nr)]
            self.near = self._wants_near(n, tka, klen)
            if self.even is not None:
                self.even.strip(self._asks_evenly(n, klen), self._adjacent(source))
            if not spec.b_packed:
                self._next_columns(b, n, tkb, klen)
            with f.range(self.p0, self.p1) as turn:
                p = self._panel(turn)
                valid, flags = f.word(tables["G_VALID"], p), f.word(flag_table, p)
                tmc = tables["G_TM_C"] + p * (8 * tile.mr)
                if spec.a_packed:
                    a = panels + (p - self.p0) * stride
                else:
                    a = panels + f.word(tables["G_TM_A"], p * tile.mr)
                    following = self._following(p + further, n)
                    self.ahead = panels + f.word(tables["G_TM_A"], following * tile.mr) - a
                    if tile.follows:
                        self.ahead = follows
                    elif tile.asks:
                        with f.if_(follows.ne(0)):
                            self._fetch_rows(a + follows, tka, klen, n)
                edge = _Edge(
                    c=c,
                    tmc=tmc,
                    tnc=tnc,
                    valid=valid,
                    columns=columns,
                    run=flags & 2,
                    flags=flags,
                    accumulate=accumulate,
                    chunk=chunk,
                    stream=stream,
                    waits=flags >> ub.WAITS,
                    panel=p,
                    turn=turn,
                )
                if self.fetchers:
                    with f.if_(asked.ne(0)):
                        for fetcher in self.fetchers:
                            fetcher.ask()
                self._tile(a, source, klen, tka, tkb, signs, edge)

    def _panel(self, turn: Val) -> Val:
        """Which panel comes at this turn of the loop over panels: where A is packed along others than C runs, not the next one."""
        if not self.spec.a_packed:
            return turn
        f, order, panel = self.f, self.word(abi.G_TURN), Var(self.f, turn)
        with f.if_(order.ne(0)):
            panel.set(f.word(order, turn))
        return panel.get()

    def _wants_near(self, n: Val, tka: Val, klen: Val) -> Val | None:
        """Whether rows of an A that is read in place are asked for a few terms before their use: where it is not in the first cache
        and rows are so far apart that no core follows them; by tiles that have time for it, for the first columns always."""
        f, tile = self.f, self.tile
        if not tile.rows_near:
            return None
        apart = step_of(f, tka, klen)
        wanted = self._is_far(n, klen) & (f.max(apart, f.i64(0) - apart) > FOLLOWED_BYTES)
        return wanted if self.spec.nr < FETCHED_FROM else wanted | n.eq(self.n0)

    def _is_far(self, n: Val, klen: Val) -> Val:
        """Whether the A that is read in place is not in the first cache: for the first columns, or since it has no room there."""
        return n.eq(self.n0) | ((self.p1 - self.p0) * klen * (self.tile.mr * self.tile.item) > L1_BYTES)

    def _asks_evenly(self, n: Val, klen: Val) -> Val | None:
        """Whether terms at equal distances ask for rows of A; the last columns of a tile that has time ask for what the next
        task reads."""
        tile = self.tile
        if not (tile.rows_near or tile.asks):
            return None
        asks = self._is_far(n, klen) if self.near is None else self.near
        return asks | (n + self.spec.nr >= self.n1) if tile.asks_widely else asks

    def _adjacent(self, source) -> Val | None:
        """Whether the columns of a strip, which are at ``source``, are adjacent, where the tile has a loop for these. The last one
        stands for those that a strip does not have."""
        spec = self.spec
        if spec.b_packed or not adjoins(self.tile.isa, spec.dtype, (spec.mv, spec.nr)):
            return None
        whole = (source[-1] - source[0]).eq((spec.nr - 1) * self.tile.item)
        return whole & (self.word(abi.G_PACK_MODE) & abi.ADJACENT_B).ne(0)

    def _fetch_rows(self, a: Val, tka: Val, klen: Val, n: Val) -> None:
        """Asks for a share of a panel of the next outer iteration: the strips of columns have a piece of K each."""
        f, nr = self.f, self.spec.nr
        strips, strip = f.ceil_div(self.n1 - self.n0, nr), (n - self.n0) // nr
        piece = f.ceil_div(klen, strips)
        with f.range(strip * piece, f.min((strip + 1) * piece, klen)) as k:
            self.tile.fetch_row(a + f.word(tka, k))

    def _following(self, panel: Val, n: Val) -> Val:
        """The panel whose lanes are asked for: ``panel``, or where there is time, behind the last columns of a task, one of the
        task that this thread takes next."""
        f = self.f
        if self.comes is None:
            return f.min(panel, self.p1 - 1)
        beyond = (panel >= self.p1) & (n + self.spec.nr >= self.n1) & self.comes.ne(0)
        far = f.min(panel - self.p1 + self.comes, self.word(abi.G_PANELS) - 1)
        return f.select(beyond, far, f.min(panel, self.p1 - 1))

    def _next_columns(self, b: Val, n: Val, tkb: Val, klen: Val) -> None:
        """Before a strip of columns that are read in place: sees to it that the next ones are asked for."""
        f, tnb = self.f, self.word(abi.G_TN_B)
        there = f.i64(0) if self.later is None else self.later.b_is_there
        asked = there.ne(0)
        if self.columns is not None:
            asked = asked | self.columns.strip(b, tnb, (n, self.n0, self.n1), tkb, klen, there).ne(0)
        if self.spread is not None:
            asked = asked | self.spread.strip(b, (n, self.n1), (tnb, tkb), klen, self.p1 - self.p0)
        with f.if_(asked.eq(0)):
            self._fetch_columns(b, tnb, n, tkb, klen)

    def _fetch_columns(self, b: Val, tnb: Val, n: Val, tkb: Val, klen: Val) -> None:
        """Asks for the next columns of a B that is read in place, or the first ones of the next outer iteration: they come
        from memory while these are used."""
        f, nr, item = self.f, self.spec.nr, self.tile.item
        more = n < (self.n1 - 1) // nr * nr
        far = f.word(self.coming, C_FOLLOWS_B) if self.tile.asks else f.i64(0)
        b = f.select(more, b, b + far)
        with f.if_(more | far.ne(0)):
            coming = tnb + f.select(more, n + nr, self.n0) * 8
            first = f.word(tkb)
            with f.if_else(step_of(f, tkb, klen).eq(item)) as (along, across):
                with along:
                    for j in range(nr):
                        column = b + f.word(coming, j) + first
                        with f.range(0, klen * item, 64) as at:
                            f.prefetch(column + at, locality=2)
                with across:
                    row = b + f.word(coming)
                    with f.range(0, klen) as k:
                        f.prefetch(row + f.word(tkb, k), locality=2)

    def _tile(self, a: Val, source, klen: Val, tka: Val, tkb: Val, signs, edge: "_Edge") -> None:
        f, tile, spec = self.f, self.tile, self.spec
        adds, corner = edge.accumulate.ne(0) & edge.run.ne(0), edge.c + f.word(edge.tmc)
        if self.carry is not None:
            runs = edge.run.ne(0) & edge.columns.eq(spec.nr) & (edge.valid.eq(tile.mr) | edge.stream.eq(1))
            past = runs & edge.stream.ne(0) & edge.accumulate.eq(0) & edge.waits.eq(0)
            self.carry.begin(past, corner, edge.tnc, edge.valid * tile.item, lambda: self._following_in_c(edge))
        if self.beside is not None:
            self.beside.begin(corner, edge.tnc, adds)
        else:
            with f.if_(adds):
                tile.fetch_columns(corner, edge.tnc)
        between = self.beside
        if self.columns is not None:
            self.columns.begin(edge.turn.eq(self.p0))
            between = self.columns
        if self.spread is not None:
            self.spread.number = edge.turn - self.p0

        def product(mask_of=None):
            near = self.near if mask_of is None else None
            few = edge.columns <= spec.nr // 2 if tile.halves else None
            loop = tile.k_loop(a, source, klen, tka, tkb, mask_of, self.ahead, between, near, few, self.even)
            return tile.combine(loop, signs)

        def finish(result, store):
            with self.watch.part(abi.SPLIT_UNPACKING):
                if self.spec.a_packed:
                    store(result, edge)
                    return
                with f.if_else(edge.waits.ne(0)) as (later, now):
                    with later:
                        self._wait(result, edge)
                    with now:
                        store(result, edge)

        if self.spec.a_packed:
            finish(product(), self._store)
            return
        with f.if_else(edge.valid.eq(tile.mr)) as (then, otherwise):
            with then:
                finish(product(), self._store)
            with otherwise:
                # read in place: lanes past the valid ones may lie outside the operand
                masks = tile.lane_masks(edge.valid)
                finish(product(lambda i: masks[i]), self._store_run)

    def _wait(self, result, edge: "_Edge") -> None:
        """Keeps the tile of a panel that is adjacent in C to its neighbours; the last of a group stores them all."""
        f, tile = self.f, self.tile
        place, beside, adjacent = (edge.waits >> ub.WAIT_BITS * n & ub.WAIT_MOST for n in range(3))
        tile.spill(result, self.scratch + (place - 1) * self.tile_bytes)
        with f.range(0, beside) as q:
            panel = edge.panel + 1 - adjacent * beside + q
            args = (
                self.scratch + q * adjacent * self.tile_bytes,
                f.i64(self.tile_bytes),
                f.i64(tile.mr * tile.item),
                adjacent,
                edge.c,
                self.word(abi.G_TM_C) + panel * (8 * tile.mr),
                edge.tnc,
                f.word(self.word(abi.G_VALID), panel),
                edge.columns,
                edge.stream,
            )
            for index, value in enumerate(args):
                f.store(value, self.unpack_args + 8 * index)
            f.call(self.word(abi.G_PACK), [self.unpack_args])

    def _whole(self, edge: "_Edge") -> Val:
        """Whether the tile is whole columns of C."""
        return edge.valid.eq(self.tile.mr) & edge.run.ne(0) & edge.columns.eq(self.spec.nr)

    def _following_in_c(self, edge: "_Edge") -> Val:
        """Where the next panel of the task begins in C, if its lanes run as these do; else 0."""
        f = self.f
        panel = self._panel(f.min(edge.turn + 1, self.p1 - 1))
        valid, flags = f.word(self.word(abi.G_VALID), panel), f.word(self.word(abi.G_FLAGS), panel)
        begin = edge.c + f.word(self.word(abi.G_TM_C), panel * self.tile.mr)
        return f.select((valid.eq(edge.valid) | edge.stream.eq(1)) & flags.eq(edge.flags), begin, f.i64(0))

    def _store(self, result, edge: "_Edge") -> None:
        with self.f.if_else(self._whole(edge)) as (then, otherwise):
            with then:
                self._store_whole(result, edge, edge.c + self.f.word(edge.tmc))
            with otherwise:
                self._store_run(result, edge)

    def _store_run(self, result, edge: "_Edge") -> None:
        """Fewer lanes or columns than a tile has; the lanes, where they begin or end lines with those of other panels, like
        whole columns."""
        if self.carry is None:
            self._store_partial(result, edge)
            return
        with self.f.if_else(self.carry.apart.get().ne(0)) as (apart, otherwise):
            with apart:
                self.carry.store(result, edge.c + self.f.word(edge.tmc), edge.tnc)
            with otherwise:
                self._store_partial(result, edge)

    def _store_whole(self, result, edge: "_Edge", corner: Val) -> None:
        if self.carry is None:
            self.tile.store_columns(result, corner, edge.tnc, edge.accumulate, edge.stream)
            return
        with self.f.if_else(self.carry.apart.get().ne(0)) as (apart, otherwise):
            with apart:
                self.carry.store(result, corner, edge.tnc)
            with otherwise:
                aligned = self.carry.over.get().eq(0)
                self.tile.store_columns(result, corner, edge.tnc, edge.accumulate, edge.stream, aligned)

    def _store_partial(self, result, edge: "_Edge") -> None:
        """Past the caches where runs of lanes and columns are adjacent in a large C, or what there is are whole lines: one
        line that is read before it is written holds up those around it."""
        if self.past is None:
            self._store_through(result, edge)
            return
        f, tile, run = self.f, self.tile, edge.stream >> 1
        lines = edge.stream.ne(0) & edge.run.ne(0) & ((edge.valid * tile.item) & (LINE - 1)).eq(0)
        run = f.select(run.eq(0) & lines, edge.valid, run)
        with f.if_else(run.ne(0) & edge.accumulate.eq(0)) as (past, through):
            with past:
                self._store_past(result, edge, run)
            with through:
                self._store_through(result, edge)

    def _store_past(self, result, edge: "_Edge", run: Val) -> None:
        """Runs of a vector or more are put together as they are spilled."""
        f, tile = self.f, self.tile
        spilled = f.i64(1)
        if tile.stores_by_mask:
            short = run < tile.elems
            with f.if_else(short) as (then, otherwise):
                with then:
                    tile.spill(result, self.stack)
                with otherwise:
                    tile.spill_runs(result, self.stack, run)
            spilled = f.select(short, f.i64(1), f.i64(0))
        else:
            tile.spill(result, self.stack)
        where = [self.stack, edge.c, edge.tmc, edge.tnc, edge.valid, edge.columns]
        f.call(self.past, [*where, run, spilled])

    def _store_through(self, result, edge: "_Edge") -> None:
        """Where the lanes run by mask, or if the ISA has none, vector by vector; through the stack otherwise."""
        f, tile = self.f, self.tile
        runs = edge.run.ne(0) & edge.columns.eq(self.spec.nr)
        with f.if_else(runs) as (then, otherwise):
            with then:
                corner = edge.c + f.word(edge.tmc)
                if tile.stores_by_mask:
                    tile.store_masked(result, corner, edge.tnc, edge.accumulate, tile.lane_masks(edge.valid))
                else:
                    EdgeStores(tile, self.stack).prefixes(result, corner, edge.tnc, edge.valid, edge.accumulate)
            with otherwise:
                tile.spill(result, self.stack)
                self._store_edge(edge)

    def _store_edge(self, edge: "_Edge") -> None:
        f = self.f
        corner = edge.c + f.word(edge.tmc)
        base = f.select(edge.run.ne(0), corner, edge.c)
        how = edge.valid, edge.columns, edge.run, edge.accumulate, edge.chunk
        EdgeStores(self.tile, self.stack).spilled(base, edge.tmc, edge.tnc, *how)


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """Where a tile goes: base of C, its lane and column tables, how much of it exists."""

    c: Val
    tmc: Val
    tnc: Val
    valid: Val
    columns: Val
    run: Val
    flags: Val
    accumulate: Val
    chunk: Val
    stream: Val
    waits: Val
    panel: Val
    turn: Val
