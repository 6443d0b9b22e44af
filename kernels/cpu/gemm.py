"""The loops around the register tile of `tile`: LAGEMM, one task of a GEMM step.

Loop nest of one task (after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008):

    for outer            B, and what was split off M and N: offsets added per operand
      for turn           what was split off K: offsets added per operand
        for k0 in K by KC
          stage A or B   where the step has a prologue: `fused_stage`
          pack A, B      unless they lie in panels already, or are read in place
          for j in N by NR
            for i in panels of M
              tile       C[i, j] (+)= A[i, k0:k0+KC] B[k0:k0+KC, j]
          epilogue       in the last block of K, behind each strip of columns: `fused_tile`, where the step has one

What the nest may assume: offsets are in bytes and may be any int64; ``valid`` lanes of a panel are a prefix;
N tables are padded by repeating the last entry, so the tile may read (never write) the repeated column; lanes past
the valid ones hold anything, and never reach C. C is not read unless ACCUMULATE is set or the block of K is not the first.
"""

from __future__ import annotations

from llvmlite import ir

from .. import tiles
from ..isa import ISA
from ..tiles import PANEL_GAP
from . import abi
from . import fused_abi as ua
from .carry import emit_carry, emit_carry_part
from .coming import C_COMES, C_FAR, C_FOLLOWS, C_FOLLOWS_B, COMING_BYTES, Describer, Side, is_cut, later_of, pays_to_spread
from .emit import I64, Fn, Val, Var
from .stopwatch import Stopwatch
from .tile import TileEmitter, TileSpec
from .tile_loop import TileLoop, emit_past
from .units import ASK_TERMS, LINE

FOLLOWED = 128 << 10  # most bytes of A in an outer iteration that is asked for during the one before
LONG_ENOUGH = 8 << 10  # bytes of A: less is there before asking for it pays
FAR_BYTES = 1 << 20  # of A in all outer iterations: more is not in the cache of a core


def build_gemm(module: ir.Module, spec: TileSpec, isa: ISA) -> tuple[str, ...]:
    """Task function of one GEMM kernel; name of its symbol."""
    inner = _loops(module, "tiles", spec)
    past = emit_past(module, spec, isa) if spec.nr > 1 else None
    carries = tiles.carries(isa, spec.dtype, (spec.mv, spec.nr))
    carry = (emit_carry(module, spec, isa), emit_carry_part(module, spec, isa)) if carries else None
    TileLoop(inner, TileEmitter(inner, spec, isa), past, carry).emit()
    inner.ret()
    asking = None
    if TileEmitter(inner, spec, isa).spreads:
        # A function of its own: what it knows costs registers where there is nothing to ask for.
        asking = _loops(module, "asking", spec)
        TileLoop(asking, TileEmitter(asking, spec, isa), past, carry, spreads=True).emit()
        asking.ret()
    f = Fn(module, spec.name, [I64] * 4)
    nest = GemmNest(f, TileEmitter(f, spec, isa), inner, asking)
    with nest.watch.part(abi.SPLIT_TOTAL):
        nest.emit()
    f.ret()
    return (spec.name,)


def _loops(module: ir.Module, name: str, spec: TileSpec) -> Fn:
    """A function for the two inner loops."""
    f = Fn(module, name, [I64] * (15 + spec.timed), internal=True)
    f.fn.attributes.add("noinline")
    return f


class GemmNest:
    """The loops around the tile; see the module docstring for their order and assumptions."""

    def __init__(self, f: Fn, tile: TileEmitter, tiles: Fn, asking: Fn | None):
        self.f, self.tile, self.spec, self.tiles, self.asking = f, tile, tile.spec, tiles, asking
        ctx, step, task, worker = f.args
        self.step = step
        bases = f.word(ctx, abi.CTX_BASES)
        word = self.word
        self.scratch = f.word(ctx, abi.CTX_SCRATCH) + f.word(ctx, abi.CTX_SCRATCH_STRIDE) * worker
        slots = (abi.A_SLOT, abi.B_SLOT, abi.OUT_SLOT)
        self.a, self.b, self.c = (self._operand(bases, word(slot), word(slot + 1)) for slot in slots)
        self.ctx, self.task, self.worker = ctx, task, worker
        self.threads = f.word(ctx, abi.CTX_THREADS)
        self.watch = Stopwatch.of_worker(f, ctx, worker, self.spec.timed)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def _operand(self, bases: Val, slot: Val, offset: Val) -> Val:
        return self.f.select(slot < 0, self.scratch, self.f.word(bases, self.f.max(slot, 0))) + offset

    def emit(self) -> None:
        f, word = self.f, self.word
        n_tasks, panel_tasks = word(abi.G_N_TASKS), word(abi.G_PANEL_TASKS)
        tn, rest = self.task % n_tasks, self.task // n_tasks
        tp, to = rest % panel_tasks, rest // panel_tasks
        self.panel_task = tp
        self.p0, self.p1, self.n0, self.n1 = self._share(tp, tn)
        o0, o1 = self._span(to, word(abi.G_OUTER_BLOCK), word(abi.G_OUTER_TOTAL))
        self.pack_args = f.stack(8 * abi.P_WORDS)
        self.coming = f.stack(COMING_BYTES)
        self.describer = Describer(f, self.step, self.coming, self.tile.item)
        self.describer.nothing()
        self.later = later_of(f, self.tile, self.coming)
        if self.later is not None:
            self.later.begin()
        if self.tile.asks_widely:
            self._name_next_task(o1 - o0)
        with f.range(o0, o1) as o:
            self.outer = o
            a, b, c = self._outer_offsets(o)
            self.next_a, self.next_b = self._next_outer(o, o1)
            if self.tile.asks:
                self._follow(o, o1, a, b)
            if self.later is not None:
                with f.if_(word(abi.G_ASKS).ne(0)):
                    self._announce(o, o1, (a, b, c))
            self._k_blocks(a, b, c)
        with f.if_(word(abi.G_STREAM).ne(0)):
            f.store_fence()

    def _name_next_task(self, loops: Val) -> None:
        """Tells tiles of an A that is read in place which panel comes behind the last of the task, where it is read so too: at
        this place of the outer loops, in one block of K."""
        f, word = self.f, self.word
        after, _ = self._panels_after()
        same = after.ne(0) & loops.eq(1) & (word(abi.G_KC) >= word(abi.G_K)) & word(abi.G_KO).eq(1)
        f.store(f.select(same, self.p0 + after, f.i64(0)), self.coming + 8 * C_COMES)

    def _share(self, tp: Val, tn: Val) -> tuple[Val, ...]:
        """Panels and columns of a task: first and end of each."""
        f, word = self.f, self.word
        panels = self._span(tp, word(abi.G_PANEL_BLOCK), word(abi.G_PANELS))
        columns = self._span(tn, word(abi.G_N_BLOCK), word(abi.G_N))
        found = [Var(f, bound) for bound in (*panels, *columns)]
        with f.if_(word(abi.G_SHARES).ne(0)):
            for number, bound in enumerate(found):
                bound.set(self._of_share(tp, number))
        return tuple(bound.get() for bound in found)

    def _of_share(self, task: Val, number: int) -> Val:
        return self.f.word(self.word(abi.G_SHARES) + task * (8 * abi.SHARE_WORDS), number)

    def _span(self, index: Val, block: Val, total: Val) -> tuple[Val, Val]:
        start = index * block
        return start, self.f.min(start + block, total)

    def _next_outer(self, o: Val, end: Val) -> tuple[Val, Val]:
        """Where A and B are in the next turn of the outer loops, 0 after the last."""
        f = self.f
        a, b = Var(f, f.i64(0)), Var(f, f.i64(0))
        if self.spec.a_packed or self.spec.b_packed:
            with f.if_((o + 1 < end) & (self.word(abi.G_PACK_MODE) & (abi.FETCH_A | abi.FETCH_B | abi.FAR_A)).ne(0)):
                next_a, next_b, _ = self._outer_offsets(o + 1)
                a.set(next_a)
                b.set(next_b)
        return a.get(), b.get()

    def _follow(self, o: Val, end: Val, a: Val, b: Val) -> None:
        """Tells tiles how far the operands of the next outer iteration are, where these stay in cache until they are read,
        and all of them together do not; 0: not to ask."""
        f, word, item = self.f, self.word, self.tile.item
        nbytes = word(abi.G_M) * word(abi.G_K) * item
        if self.tile.follows:
            far = word(abi.G_STREAM).ne(0)
        else:
            far = (nbytes > LONG_ENOUGH) & (nbytes * word(abi.G_OUTER_TOTAL) > FAR_BYTES)
        far_a, far_b = Var(f, f.i64(0)), Var(f, f.i64(0))
        with f.if_((o + 1 < end) & far & (nbytes <= FOLLOWED) & word(abi.G_KO).eq(1)):
            next_a, next_b, _ = self._outer_offsets(o + 1)
            far_a.set(next_a - a)
            far_b.set(next_b - b)
        f.store(far_a.get(), self.coming + 8 * C_FOLLOWS)
        f.store(far_b.get(), self.coming + 8 * C_FOLLOWS_B)

    def _announce(self, o: Val, end: Val, now: tuple[Val, ...]) -> None:
        """Tells tiles what the next turn of the outer loops reads and writes; an A or B of which this is so is asked for in no
        other way then."""
        f, table = self.f, self.word(abi.G_ASKS)
        self.later.next()
        with f.if_(o + 1 < end):
            self.later.announce(table, now, self._outer_offsets(o + 1), self._requests(self.word(abi.G_K)))
            for side, index in ((0, C_FOLLOWS), (1, C_FOLLOWS_B)) if self.tile.asks else ():
                with f.if_(f.word(table, abi.ASK_WORDS * side + 1).ne(0)):
                    f.store(f.i64(0), self.coming + 8 * index)

    def _requests(self, klen: Val) -> Val:
        """How often tiles ask for something while a block of K is computed. A strip of half a tile's columns does not, where it has a
        loop of its own."""
        f, nr = self.f, self.spec.nr
        columns = self.n1 - self.n0
        strips = f.ceil_div(columns, nr)
        if self.tile.halves:
            rest = columns % nr
            strips = strips - f.select((rest > 0) & (rest <= nr // 2), f.i64(1), f.i64(0))
        if self.spec.a_packed and self.spec.b_packed:
            pieces = f.select(is_cut(klen, self.spec.mv, nr), f.i64(nr), f.i64(1))
        else:
            pieces = f.ceil_div(klen, ASK_TERMS)
        return f.max((self.p1 - self.p0) * strips * pieces, 1)

    def _announce_panels(self, a: Val, turn: Val, k0: Val, klen: Val) -> None:
        """Tells tiles which panels of A this task, or the thread's next one, reads after this block of K, if they come from far."""
        f, word = self.f, self.word
        far = (word(abi.G_PACK_MODE) & abi.FAR_A).ne(0) & word(abi.G_ASKS).eq(0)
        if not self.spec.b_packed:
            far = far & word(abi.G_EVEN).ne(0)  # the loop by tables asks for nothing
        with f.if_(far):
            ready, width = word(abi.G_A_STRIDE), self.tile.mr * self.tile.item
            after, many = self._panels_after()
            more, again = k0 + word(abi.G_KC) < word(abi.G_K), turn + 1 < word(abi.G_KO)
            same = more | again | self.next_a.ne(0)
            first = f.select(same, self.p0, self.p0 + after)
            rows = f.select(same, self.p1 - self.p0, f.select(after.ne(0), many, f.i64(0)))
            base = Var(f, f.select(self.next_a.ne(0), self.next_a, a) + f.word(word(abi.G_TKO_A)))
            with f.if_(more | again):
                base.set(a + f.word(word(abi.G_TKO_A), turn + f.select(more, f.i64(0), f.i64(1))))
            start = f.select(more, k0 + word(abi.G_KC), f.i64(0))
            nested = (word(abi.G_PACK_MODE) & abi.NESTED_A).ne(0)
            before = f.select(nested, word(abi.G_PANELS), f.i64(1))
            row = f.min(word(abi.G_KC), word(abi.G_K) - start) * width
            there = base.get() + first * ready + start * before * width
            self.later.announce_block(row, rows, ready, there, self._requests(klen))

    def _follow_terms(self, k0: Val) -> None:
        """Tells tiles how far the A of the next block of K is, where rows that are read in place come from memory."""
        f, word = self.f, self.word
        with f.if_((word(abi.G_PACK_MODE) & abi.FETCH_A).ne(0)):
            after = f.min(k0 + word(abi.G_KC), word(abi.G_K) - 1)
            far = f.word(word(abi.G_TK_A), after) - f.word(word(abi.G_TK_A), k0)
            f.store(far, self.coming + 8 * C_FOLLOWS)

    def _name_next_block(self, b: Val, k0: Val, klen: Val) -> None:
        """Tells tiles of a B that is read in place in blocks how far the next one is: that of the next terms, or of the columns
        behind these, which are mostly the next task's. For the first one that a thread takes nobody has asked."""
        f, word, far = self.f, self.word, self.f.var(0)
        with f.if_((word(abi.G_PACK_MODE) & abi.FETCH_B).ne(0)):
            terms, columns, behind = word(abi.G_TK_B), word(abi.G_TN_B), k0 + klen
            below = f.word(terms, f.min(behind, word(abi.G_K) - 1)) - f.word(terms, k0)
            beside = f.word(columns, f.min(self.n1, word(abi.G_N) - 1)) - f.word(columns, self.n0)
            beside = f.select(self.n1 < word(abi.G_N), beside + f.word(terms) - f.word(terms, k0), f.i64(0))
            far.set(f.select(behind < word(abi.G_K), below, beside))
            with f.if_(k0.eq(0) & self._begins_band()):
                self._ask_for_block(b + f.word(columns, self.n0), klen)
        f.store(far.get(), self.coming + 8 * C_FAR)

    def _ask_for_block(self, begin: Val, klen: Val) -> None:
        """Asks for the columns of this task in so many terms from the first one on, row by row: they are adjacent."""
        f, nbytes = self.f, (self.n1 - self.n0) * self.tile.item
        with f.range(0, klen) as k, f.range(0, nbytes, LINE) as at:
            f.prefetch(begin + f.word(self.word(abi.G_TK_B), k) + at, locality=2)

    def _begins_band(self) -> Val:
        """Whether the task is the first of those that a thread takes one after the other, where there are tasks of columns alone: as
        `walker` cuts them if all threads come; if some do not, more blocks are asked for than need be."""
        f, tasks = self.f, self.word(abi.G_N_TASKS)
        threads = f.select(self.word(abi.PARALLEL).eq(abi.ALONE), f.i64(1), self.threads)
        band = f.ceil_div(self.task * threads, tasks)
        return (band * tasks // threads).eq(self.task)

    def _outer_offsets(self, o: Val) -> tuple[Val, Val, Val]:
        """Sum of the outer loops' tables at flat index ``o``; the last loop is the fastest."""
        f = self.f
        a, b, c, rest = Var(f, self.a), Var(f, self.b), Var(f, self.c), Var(f, o)
        for level in reversed(range(4)):
            at = abi.G_OUTER + 4 * level
            count = self.word(at)
            with f.if_(count > 1):
                i = rest.get() % count
                rest.set(rest.get() // count)
                for target, table in ((a, at + 1), (b, at + 2), (c, at + 3)):
                    target.add(f.word(self.word(table), i))
        return a.get(), b.get(), c.get()

    def _k_blocks(self, a: Val, b: Val, c: Val) -> None:
        f, word = self.f, self.word
        total, kc = word(abi.G_K), word(abi.G_KC)
        with f.range(0, word(abi.G_KO)) as turn:
            left = a + f.word(word(abi.G_TKO_A), turn)
            right = b + f.word(word(abi.G_TKO_B), turn)
            with f.range(0, total, kc) as k0:
                klen = f.min(kc, total - k0)
                later = Val(f, f.b.zext(((k0 + turn) > 0).v, I64))
                accumulate = word(abi.G_ACCUMULATE) | later
                if not self.spec.a_packed:
                    self._stage_a(turn, k0, klen)
                if self.spec.a_packed:
                    panels, stride = self._packed_a(left, k0, klen)
                else:
                    panels, stride = left, f.i64(0)
                columns, distance = self._packed_b(right, k0, klen) if self.spec.b_packed else (right, f.i64(0))
                if self.tile.follows:
                    self._follow_terms(k0)
                if self.asking is not None:
                    self._name_next_block(right, k0, klen)
                block = (panels, stride, columns, distance, c, k0, klen, accumulate)
                self._describe(a, b, turn, k0)
                if self.later is not None and self.spec.a_packed:
                    self._announce_panels(a, turn, k0, klen)
                last = (turn + 1).eq(word(abi.G_KO)) & (k0 + klen).eq(total)
                if self.spec.b_packed:
                    self._columns(block, last, self.n0, self.n1)
                else:
                    self._staged_columns(block, last, turn)

    def _columns(self, block: tuple[Val, ...], last: Val, n0: Val, n1: Val) -> None:
        """Columns of a block of K; ``last``: it is the last one."""
        with self.f.if_else(last & self.word(abi.TILE).ne(0)) as (through, plain):
            with through:
                self._strips(block, n0, n1)
            with plain:
                self._tiles(block, n0, n1)

    def _staged_columns(self, block: tuple[Val, ...], last: Val, turn: Val) -> None:
        """Columns of a block of K, so many at a time where B is staged."""
        f, word = self.f, self.word
        staged = word(abi.G_STAGE).ne(0) & word(abi.G_STAGED).eq(abi.STAGED_B)
        several = f.select(staged, word(abi.G_STAGE_COLUMNS), self.n1 - self.n0)
        with f.range(self.n0, self.n1, several) as n:
            end = f.min(n + several, self.n1)
            with f.if_(staged):
                self._stage(turn, *block[5:7], n // several, n, end)
            self._columns(block, last, n, end)

    def _stage_a(self, turn: Val, k0: Val, klen: Val) -> None:
        word, mr = self.word, self.tile.mr
        with self.f.if_(word(abi.G_STAGE).ne(0) & word(abi.G_STAGED).eq(abi.STAGED_A)):
            self._stage(turn, k0, klen, self.panel_task, self.p0 * mr, self.p1 * mr)

    def _stage(self, turn: Val, k0: Val, klen: Val, block: Val, first: Val, end: Val) -> None:
        """Makes a block of an operand that is a map of others; the step's tables say where it is then."""
        where = (self.ctx, self.step, self.worker, self.outer, turn, k0, k0 + klen, block, first, end)
        with self.watch.part(abi.SPLIT_PACKING):
            self.f.call(self.word(abi.G_STAGE), list(where))

    def _tiles(self, block: tuple[Val, ...], n0: Val, n1: Val) -> None:
        f, counters = self.f, () if self.watch.counters is None else (self.watch.counters,)
        args = [self.step, *block, self.p0, self.p1, n0, n1, self.coming, self.scratch, *counters]
        if self.asking is None:
            f.call(self.tiles, args)
            return
        k0, klen = block[5:7]
        spreads = pays_to_spread(f, self.tile, self.word(abi.G_TK_B) + k0 * 8, klen, self.word(abi.G_EVEN), n1 - n0)
        with f.if_else(spreads | f.word(self.coming, C_FAR).ne(0)) as (asks, others):
            with asks:
                f.call(self.asking, args)
            with others:
                f.call(self.tiles, args)

    def _strips(self, block: tuple[Val, ...], n0: Val, n1: Val) -> None:
        """The last block of K: strips of columns, each of which goes through the tile function while it is in cache."""
        f, word = self.f, self.word
        strip = f.word(word(abi.TILE_TABLE), ua.T_STRIP)
        with f.range(n0, n1, strip) as n:
            end = f.min(n + strip, n1)
            self._tiles(block, n, end)
            with self.watch.part(abi.SPLIT_UNPACKING):
                f.call(word(abi.TILE), [self.ctx, self.step, self.worker, self.outer, self.panel_task, n, end])

    def _describe(self, a: Val, b: Val, turn: Val, k0: Val) -> None:
        """What is packed after this block."""
        f, nr = self.f, self.spec.nr
        panels, columns = self.p1 - self.p0, f.ceil_div(self.n1 - self.n0, nr)
        tiles = panels * columns
        if self.spec.a_packed:
            after, many = self._panels_after()
            side = Side(
                number=0,
                turns=abi.G_TKO_A,
                lanes=abi.G_TM_A,
                terms=abi.G_TK_A,
                lines=abi.G_LINES_A,
                bit=abi.FETCH_A,
                width=self.tile.mr,
                first=self.p0,
                panels=f.select(after.ne(0), many, panels),
            )
            self.describer.next(side, a, turn, k0, self.next_a, after, tiles)
        if self.spec.b_packed:
            side = Side(
                number=1,
                turns=abi.G_TKO_B,
                lanes=abi.G_TN_B,
                terms=abi.G_TK_B,
                lines=abi.G_LINES_B,
                bit=abi.FETCH_B,
                width=nr,
                first=self.n0 // nr,
                panels=columns,
            )
            self.describer.next(side, b, turn, k0, self.next_b, f.i64(0), tiles)

    def _panels_after(self) -> tuple[Val, Val]:
        """From the panels of this task to those of the one that this thread takes next, and how many these are; 0 where
        there is none, or it has the same."""
        f, word = self.f, self.word
        in_turn = word(abi.PARALLEL).eq(abi.IN_TURN)
        after = word(abi.G_PANEL_BLOCK) * f.select(in_turn, self.threads, f.i64(1))
        left = word(abi.G_PANELS) - (self.p0 + after)
        some = (left > 0) & word(abi.G_N_TASKS).eq(1)
        distance, many = Var(f, f.select(some, after, f.i64(0))), Var(f, f.min(self.p1 - self.p0, left))
        with f.if_(word(abi.G_SHARES).ne(0)):
            task = self.panel_task + self.threads
            last = word(abi.G_PANEL_TASKS) - 1
            share = f.min(task, last)
            distance.set(f.select(task > last, f.i64(0), self._of_share(share, 0) - self.p0))
            many.set(self._of_share(share, 1) - self._of_share(share, 0))
        return distance.get(), many.get()

    def _packed_a(self, a: Val, k0: Val, klen: Val) -> tuple[Val, Val]:
        """Address and stride of the packed panels: where A lies if it is in panels, else packed into scratch."""
        f, word, width = self.f, self.word, self.tile.mr * self.tile.item
        ready = word(abi.G_A_STRIDE)
        nested = (word(abi.G_PACK_MODE) & abi.NESTED_A).ne(0)
        before = f.select(nested, word(abi.G_PANELS), f.i64(1))  # panels that have the terms before k0 before this block
        start = Var(f, a + self.p0 * ready + k0 * before * width)
        stride = Var(f, ready)
        with f.if_(ready.eq(0)):
            distance = klen * width + PANEL_GAP
            args = {
                abi.P_DST: self.scratch,
                abi.P_SRC: a,
                abi.P_PANELS: self.p1 - self.p0,
                abi.P_WIDTH: f.i64(self.tile.mr),
                abi.P_LANES: word(abi.G_TM_A) + self.p0 * (8 * self.tile.mr),
                abi.P_VALID: word(abi.G_VALID) + self.p0 * 8,
                abi.P_K: klen,
                abi.P_TK: word(abi.G_TK_A) + k0 * 8,
                abi.P_MODE: word(abi.G_PACK_MODE) & 3,
                abi.P_STRIDE: distance,
            }
            self._pack(abi.G_PACK, args)
            start.set(self.scratch)
            stride.set(distance)
        return start.get(), stride.get()

    def _packed_b(self, b: Val, k0: Val, klen: Val) -> tuple[Val, Val]:
        """Address that panel 0 of B would have for k0, and the distance of panels; the task's columns are packed into
        scratch, after A, unless B lies in panels. The panels repeat the last column, as its table does."""
        f, word, nr = self.f, self.word, self.spec.nr
        width = nr * self.tile.item
        ready, first = word(abi.G_B_STRIDE), self.n0 // nr
        start, stride = Var(f, b + k0 * width), Var(f, ready)
        with f.if_(ready.eq(0)):
            scratch, distance = self.scratch + word(abi.G_B_SCRATCH), klen * width + PANEL_GAP
            args = {
                abi.P_DST: scratch,
                abi.P_SRC: b,
                abi.P_PANELS: (self.n1 - self.n0 + (nr - 1)) // nr,
                abi.P_WIDTH: f.i64(nr),
                abi.P_LANES: word(abi.G_TN_B) + self.n0 * 8,
                abi.P_VALID: f.i64(0),
                abi.P_K: klen,
                abi.P_TK: word(abi.G_TK_B) + k0 * 8,
                abi.P_MODE: word(abi.G_PACK_MODE) >> 2 & 3,
                abi.P_STRIDE: distance,
            }
            self._pack(abi.G_B_PACK, args)
            start.set(scratch - first * distance)
            stride.set(distance)
        return start.get(), stride.get()

    def _pack(self, function: int, args: dict[int, Val]) -> None:
        """Calls the pack function whose address is in that word of the step."""
        for index, value in args.items():
            self.f.store(value, self.pack_args + 8 * index)
        with self.watch.part(abi.SPLIT_PACKING):
            self.f.call(self.word(function), [self.pack_args])
