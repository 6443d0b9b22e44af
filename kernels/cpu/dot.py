"""The dot family: lanes run along K, which is contiguous in both operands, and are summed at the end.

    C[o, m, n] (+)= sum_k A[o, m, k] * B[o, n, k]        dot_<dtype>_tile
    C[o, m]    (+)= sum_k A[o, m, k] * B[o, m, k]        dot_<dtype>_rows

    for outer
      for k0 in K by KC               so that rows are read again from cache
        for m in M by MT
          for n in N by NT
            for run in [k0, k0 + KC)  adjacent elements; K is a table of runs
              tile                    MT x NT vectors of sums
            C[m, n] (+)= their lanes summed

Complex elements stay interleaved: one vector of sums holds ``re*re`` and ``im*im``, another ``re*im`` and ``im*re``;
signs, conjugation included, are applied once at the end. A run that ends within a vector is read through a mask, or
as the last whole vector of the run with the lanes that were counted already cleared: nothing outside is read.
C is not read unless ACCUMULATE is set or k0 > 0.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import dot_abi as da
from .emit import I32, I64, Fn, Val, Var, scalar_type, size_of, vector_type
from .fold import fold, power_of_two
from .lanes import Lanes, Outer
from .stream import LINE

TILE, ROWS = "tile", "rows"


def tile_of(dtype: str, isa: ISA) -> tuple[int, int]:
    """(MT, NT) where several columns use a row: sums, operands and one spare vector fit the registers."""
    wide = isa.registers >= 32
    if dtype.startswith("complex"):
        return (4, 2) if wide else (2, 2)
    return (6, 4) if wide else (4, 3)


def stream_rows(dtype: str, isa: ISA) -> int:
    """Rows at once where one column uses them: many, since re-reading the column costs as much as reading a row, but no
    more than a set of the L1 cache has lines: rows at distances of whole pages share their sets."""
    return 6 if isa.registers < 32 and dtype.startswith("complex") else 8


@dataclass(frozen=True, kw_only=True)
class _Body:
    """One unrolled tile: ``mt`` x ``nt`` sums, ``unroll`` vectors a round, added to ``chains`` sums in turn;
    ``paired``: row i goes with column i."""

    mt: int
    nt: int
    unroll: int = 1
    chains: int = 1
    paired: bool = False

    @property
    def columns(self) -> int:
        """Rows of B that are read."""
        return self.mt if self.paired else self.nt

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(row of A, row of B) of every sum."""
        if self.paired:
            return [(i, i) for i in range(self.mt)]
        return [(i, j) for i in range(self.mt) for j in range(self.nt)]


def build_dot(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``dot_<dtype>_tile`` or ``dot_<dtype>_rows``."""
    _, dtype, kind = name.split("_")
    lanes = _Sums(module, dtype, isa)
    f = Fn(module, name, [I64] * 4)
    _Nest(f, lanes, kind).emit()
    f.ret()


class _Sums(Lanes):
    """Vectors along K: the part of a vector at the end of a run, and the sum of their lanes."""

    def __init__(self, module: ir.Module, dtype: str, isa: ISA):
        super().__init__(dtype, isa)
        self.partial = None if self.masked else self._build_partial(module)

    def load_tail(self, f: Fn, at: Val, count: Val, mask: Val | None, whole: Val) -> Val:
        """The ``count`` < elems elements at ``at``, zeros behind. ``whole``: so many elements lie before ``at``."""
        if mask is not None:
            return f.load_masked(self.vec, at, mask)
        return f.call(self.partial, [at, count, whole])

    def _build_partial(self, module: ir.Module) -> Fn:
        """`load_tail` without masks, as a function: it is the same for every row."""
        f = Fn(module, f"dot_{self.dtype}_tail", [I64] * 3, internal=True, ret=self.vec)
        at, count, whole = f.args
        f.fn.attributes.add("noinline")
        result = Var(f, f.zero(self.vec))
        with f.if_else(whole >= self.elems) as (behind, short):
            with behind:
                result.set(self._last_vector(f, at, count))
            with short:
                area = f.stack(self.vector_bytes)
                f.store(f.zero(self.vec), area, align=self.vector_bytes)
                self._copy(f, at, area, count * self.item)
                result.set(f.load(self.vec, area, align=self.vector_bytes))
        f.ret(result.get())
        return f

    def _last_vector(self, f: Fn, at: Val, count: Val) -> Val:
        """The vector that ends with the run; its first elems - count elements are cleared."""
        vector = f.load(self.vec, at + count * self.item - self.vector_bytes)
        bits = size_of(self.real) * 8
        integer = ir.IntType(bits)
        index = f.vector(integer, range(self.lanes))
        first = (f.i64(self.elems) - count) * self.parts
        first = first if bits == 64 else f.convert(first, "trunc", integer)
        mask = f.convert(index >= f.splat(first, self.lanes), "sext", index.type)
        return f.bitcast(f.bitcast(vector, index.type) & mask, self.vec)

    def _copy(self, f: Fn, src: Val, dst: Val, nbytes: Val) -> None:
        """Fewer bytes than a vector, in pieces that halve."""
        done, piece = f.var(0), self.vector_bytes // 2
        while piece >= min(self.item, 8):
            ty = {1: ir.IntType(8), 2: ir.IntType(16), 4: I32, 8: I64}.get(piece) or vector_type(I64, piece // 8)
            with f.if_((nbytes & piece).ne(0)):
                f.store(f.load(ty, src + done.get()), dst + done.get())
                done.add(piece)
            piece //= 2

    def reduce(self, f: Fn, vectors: list[Val]) -> list[Val]:
        """Sum of the lanes of each vector."""
        groups = fold(f, self.add, vectors, self.lanes)
        per_vector = power_of_two(len(vectors)) // len(groups)
        return [f.extract(groups[i // per_vector], i % per_vector) for i in range(len(vectors))]


class _Nest:
    """The loops of the module docstring: the task function calls `inner` for each outer index."""

    def __init__(self, f: Fn, lanes: _Sums, kind: str):
        self.task_function, self.lanes, self.paired = f, lanes, kind == ROWS
        self.mt, self.nt = tile_of(lanes.dtype, lanes.isa)

    def emit(self) -> None:
        f = self.task_function
        ctx, step, task, _ = f.args
        bases = f.word(ctx, abi.CTX_BASES)

        def word(index: int) -> Val:
            return f.word(step, index)

        def span(index: Val, block: int, total: int) -> tuple[Val, Val]:
            start = index * word(block)
            return start, f.min(start + word(block), word(total))

        rest, splits = task, word(da.D_SPLITS)
        split, rest = rest % splits, rest // splits
        tn, rest = rest % word(da.D_N_TASKS), rest // word(da.D_N_TASKS)
        tm, to = rest % word(da.D_M_TASKS), rest // word(da.D_M_TASKS)
        spans = [*span(tm, da.D_M_BLOCK, da.D_M), *span(tn, da.D_N_BLOCK, da.D_N), *span(split, da.D_SPLIT, da.D_K)]
        slots = ((abi.A_SLOT, abi.A_OFFSET), (abi.B_SLOT, abi.B_OFFSET), (abi.OUT_SLOT, abi.OUT_OFFSET))
        at = [f.word(bases, word(slot)) + word(offset) for slot, offset in slots]
        at[2] = at[2] + split * word(da.D_SPLIT_STRIDE)
        # A function of its own: LLVM takes twice as long for both in one.
        inner = self._inner()
        Outer(f, step).loop(
            *span(to, da.D_OUTER_BLOCK, da.D_OUTER_TOTAL),
            lambda offsets: f.call(inner, [step, *(x + offset for x, offset in zip(at, offsets)), *spans]),
        )

    def _inner(self) -> Fn:
        """``inner(step, a, b, c, m0, m1, n0, n1, k0, k1)``: this part of the results, for one outer index."""
        task = self.task_function
        f = self.f = Fn(task.module, f"{task.fn.name}_inner", [I64] * 10, internal=True)
        f.fn.attributes.add("noinline")
        self.step, a, b, c, self.m0, self.m1, self.n0, self.n1, self.k0, self.k1 = f.args
        self.signs = self._sign_vectors(self.word(da.D_SIGNS)) if self.lanes.parts == 2 else None
        self._k_blocks(a, b, c)
        f.ret()
        return f

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def entry(self, table: int, index: Val) -> Val:
        """Entry of the offset vector that a word points to."""
        return self.f.word(self.word(table), index)

    def _k_blocks(self, a: Val, b: Val, c: Val) -> None:
        """At least one block, also of an empty sum, which stores zeros."""
        f = self.f
        end = f.max(self.k1, self.k0 + 1)
        with f.range(self.k0, end, self.word(da.D_KC)) as k:
            last = f.min(k + self.word(da.D_KC), self.k1)
            later = f.convert(k > self.k0, "zext", I64)
            at = _Place(a=a, b=b, c=c, first=k, last=last, accumulate=self.word(da.D_ACCUMULATE) | later)
            if self.paired:
                self._rows(at, None)
            else:
                self._tiles(at)

    def _tiles(self, at: "_Place") -> None:
        f = self.f
        body = _Body(mt=self.mt, nt=self.nt, unroll=max(1, LINE // self.lanes.vector_bytes))
        with f.if_else((self.n1 - self.n0) > 1) as (several, one):
            with several:
                with f.range(self.m0, self.m1, self.mt) as m:
                    with f.range(self.n0, self.n1, self.nt) as n:
                        rows, columns = f.min(self.m1 - m, self.mt), f.min(self.n1 - n, self.nt)
                        self._tile(at, body, m, n, rows, columns)
            with one:
                # none when n0 is past the end
                with f.range(self.n0, self.n1) as n:
                    self._rows(at, n)

    def _rows(self, at: "_Place", n: Val | None) -> None:
        """One column, or paired rows: many rows at once, then four, then one; or one after the other, as one stream."""
        f, parts = self.f, self.lanes.parts
        many, few, start = stream_rows(self.lanes.dtype, self.lanes.isa), 4, self.m0
        in_order = self.word(da.D_IN_ORDER).ne(0)
        if n is not None:
            start = Var(f, self.m0)
            with f.range(self.m0, f.select(in_order, self.m0, self.m1) - (many - 1), many) as m:
                self._tile(at, _Body(mt=many, nt=1), m, n)
                start.set(m + many)
            start = start.get()
        step = f.select(in_order, f.i64(1), f.i64(few))
        with f.range(start, self.m1, step) as m:
            rows, column = f.min(self.m1 - m, step), m if n is None else n
            with f.if_else(rows > 1) as (several, one):
                for branch, mt in ((several, few), (one, 1)):
                    with branch:
                        chains = 8 // (mt * parts)
                        body = _Body(mt=mt, nt=1, unroll=chains, chains=chains, paired=self.paired)
                        self._tile(at, body, m, column, rows)

    # -- one tile --------------------------------------------------------------------------------------------
    def _tile(self, at: "_Place", body: _Body, m: Val, n: Val, rows=None, columns=None) -> None:
        """Rows and columns that do not exist repeat the last one and are not stored (``None``: all exist)."""
        f = self.f
        members = [self._clamped(i, rows) for i in range(body.mt)]
        left = [at.a + self.entry(da.D_TM_A, m + i) for i in members]
        if self.paired:
            right = [at.b + self.entry(da.D_TM_B, m + i) for i in members]
        else:
            right = [at.b + self.entry(da.D_TN_B, n + self._clamped(j, columns)) for j in range(body.nt)]
        ahead = []
        if body.nt > 1:
            # Rows come from memory in short pieces, which hardware does not foresee.
            ahead = [at.a + self.entry(da.D_TM_A, f.min(m + body.mt + i, self.m1 - 1)) for i in range(body.mt)]
        sums = self._sums(body, left, right, ahead, at.first, at.last)
        with f.if_else(at.accumulate.ne(0)) as (then, otherwise):
            for branch, add in ((then, True), (otherwise, False)):
                with branch:
                    self._store_tile(body, sums, at.c, m, n, rows, columns, add)

    def _clamped(self, i: int, count: Val | None) -> Val:
        return self.f.i64(i) if not i or count is None else self.f.min(i, count - 1)

    def _store_tile(self, body: _Body, sums, c: Val, m: Val, n: Val, rows, columns, add: bool) -> None:
        for j in range(body.nt):
            with self._if_exists(j, columns):
                column = c if self.paired else c + self.entry(da.D_TN_C, n + j)
                for i in range(body.mt):
                    with self._if_exists(i, rows):
                        self._store(sums[i * body.nt + j], column + self.entry(da.D_TM_C, m + i), add)

    def _if_exists(self, i: int, count: Val | None):
        return nullcontext() if not i or count is None else self.f.if_(count > i)

    def _store(self, values: list[Val], at: Val, add: bool) -> None:
        for part, value in enumerate(values):
            place = at + part * size_of(self.lanes.real)
            self.f.store(self.lanes.add(self.f.load(value.type, place), value) if add else value, place)

    def _sums(self, body: _Body, left: list[Val], right: list[Val], ahead: list[Val], first: Val, last: Val):
        """For each cell the parts of its sum over the elements [first, last) of K; fetches the same of ``ahead``."""
        f, lanes = self.f, self.lanes
        zero = f.zero(lanes.vec)
        acc = [[[Var(f, zero) for _ in range(lanes.parts)] for _ in body.cells] for _ in range(body.chains)]
        run = self.word(da.D_RUN)
        index, k, start = f.var(0), Var(f, first), Var(f, first)
        with f.if_(first >= run):  # divisions take as long as a short row
            index.set(first // run)
            start.set(first - index.get() * run)
        with f.if_(start.get().eq(0)):
            self._short_runs(body, acc, (left, right, ahead), index, k, last)
        with f.while_() as leave:
            leave(k.get() >= last)
            count = f.min(run - start.get(), last - k.get())
            shift = start.get() * lanes.item
            a, b = (self.entry(table, index.get()) + shift for table in (da.D_TK_A, da.D_TK_B))
            self._run(body, acc, [x + a for x in left], [y + b for y in right], [x + a for x in ahead], count)
            k.add(count)
            index.add(1)
            start.set(0)
        return self._finish(acc)

    def _short_runs(self, body: _Body, acc, rows, index: Var, k: Var, last: Val) -> None:
        """Runs of a vector, or of less under one mask, from ``index`` on, as many together as there are sums that are added to in
        turn; fewer are left over. What a run of any length takes to begin is several times its one step."""
        f, lanes, run = self.f, self.lanes, self.word(da.D_RUN)
        with f.if_(run.eq(lanes.elems)):
            self._steps(body, acc, rows, index, last // lanes.elems, lambda row: f.load(lanes.vec, row))
            k.set(index.get() * lanes.elems)
        if lanes.masked and body.nt == 1:
            with f.if_(run < lanes.elems):
                mask = lanes.mask(f, run)
                self._steps(body, acc, rows, index, last // run, lambda row: f.load_masked(lanes.vec, row, mask))
                k.set(index.get() * run)

    def _steps(self, body: _Body, acc, rows, index: Var, end: Val, load) -> None:
        """A step for each of the runs from ``index`` to ``end``, each of which is what ``load`` loads."""
        f, (left, right, ahead) = self.f, rows
        with f.range(index.get(), end - (body.chains - 1), body.chains) as first:
            for u in range(body.chains):
                a, b = (self.entry(table, first + u) for table in (da.D_TK_A, da.D_TK_B))
                for row in ahead:
                    f.prefetch(row + a, locality=2)
                self._step(body, acc[u], load, [x + a for x in left], [y + b for y in right])
            index.set(first + body.chains)

    def _run(self, body: _Body, acc, left: list[Val], right: list[Val], ahead: list[Val], count: Val) -> None:
        """Rounds of ``unroll`` vectors, single vectors, and what is left of one."""
        f, lanes = self.f, self.lanes
        size, at = lanes.vector_bytes, f.var(0)
        whole = (count // lanes.elems) * size
        unroll = body.unroll
        while unroll:
            with f.range(at.get(), whole - (unroll - 1) * size, unroll * size) as position:
                for row in ahead:
                    f.prefetch(row + position, locality=2)
                for u in range(unroll):
                    shift = position + u * size
                    self._step(body, acc[u % body.chains], lambda row: f.load(lanes.vec, row + shift), left, right)
                at.set(position + unroll * size)
            unroll = 1 if unroll > 1 else 0
        rest = count % lanes.elems
        with f.if_(rest > 0):
            mask, before = lanes.mask(f, rest) if lanes.masked else None, count - rest
            self._step(body, acc[0], lambda row: lanes.load_tail(f, row + whole, rest, mask, before), left, right)

    def _step(self, body: _Body, acc, load, left: list[Val], right: list[Val]) -> None:
        f, lanes = self.f, self.lanes
        columns = [load(row) for row in right]
        swapped = []
        if lanes.parts == 2:
            swapped = [lanes.swap(f, v) for v in columns]
        rows = {}
        for cell, (i, j) in enumerate(body.cells):
            if i not in rows:
                rows[i] = load(left[i])
            for slot, column in zip(acc[cell], (columns[j], *([swapped[j]] if swapped else ()))):
                slot.set(lanes.fma(f, rows[i], column, slot.get()))

    def _finish(self, acc) -> list[list[Val]]:
        f, lanes = self.f, self.lanes
        cells = [[slot.get() for slot in parts] for parts in acc[0]]
        for other in acc[1:]:
            cells = [[lanes.add(x, y.get()) for x, y in zip(mine, more)] for mine, more in zip(cells, other)]
        if self.signs:
            # plus zero: the sign of a conjugate must not turn an empty sum into -0
            zero = f.zero(lanes.vec)
            cells = [[lanes.fma(f, value, sign, zero) for value, sign in zip(parts, self.signs)] for parts in cells]
        flat = lanes.reduce(f, [value for parts in cells for value in parts])
        return [flat[i : i + lanes.parts] for i in range(0, len(flat), lanes.parts)]

    def _sign_vectors(self, signs: Val) -> tuple[Val, Val]:
        """Signs of (re*re, im*im) and of (re*im, im*re) before their lanes are summed."""
        f, lanes = self.f, self.lanes
        sign_a, sign_b = lanes.signs(f, signs)
        one = f.const(lanes.real, 1.0)
        return lanes.weave(f, one, sign_a * sign_b * -1.0), lanes.weave(f, sign_b, sign_a)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Operand addresses at an outer index, the part of K to sum, and whether to add to C."""

    a: Val
    b: Val
    c: Val
    first: Val
    last: Val
    accumulate: Val


def build_dot_sum(module: ir.Module, name: str, isa: ISA) -> None:
    """``dotsum_<dtype>``: C[m] (+)= sum over splits of A[split * SPLIT_STRIDE + m], in the order of the splits."""
    dtype = name.split("_")[1]
    real, parts = scalar_type(dtype), 2 if dtype.startswith("complex") else 1
    f = Fn(module, name, [I64] * 4)
    ctx, step, *_ = f.args
    bases = f.word(ctx, abi.CTX_BASES)
    source = f.word(bases, f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET)
    target = f.word(bases, f.word(step, abi.OUT_SLOT)) + f.word(step, abi.OUT_OFFSET)
    stride, table = f.word(step, da.D_SPLIT_STRIDE), f.word(step, da.D_TM_C)
    size = size_of(real)
    with f.range(0, f.word(step, da.D_M)) as m:
        place = target + f.word(table, m)
        for part in range(parts):
            total = Var(f, f.zero(real))
            with f.if_(f.word(step, da.D_ACCUMULATE).ne(0)):
                total.set(f.load(real, place + part * size))
            with f.range(0, f.word(step, da.D_SPLITS)) as split:
                value = f.load(real, source + split * stride + m * (size * parts) + part * size)
                total.set(total.get() | value if dtype == "bool" else total.get() + value)
            f.store(total.get(), place + part * size)
    f.ret()
