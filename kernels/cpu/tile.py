"""The GEMM family: a register tile looped over K, and the loops around it (LAGEMM).

A tile is MR x NR elements of C held in registers: MR = ``mv`` vectors along the lanes side M (operand A), NR
broadcast columns along N (operand B). Complex elements stay interleaved: the tile keeps ``a * re(b)`` and
``a * im(b)`` apart and combines them once after the K loop, which costs four real FMAs per complex one and makes
conjugation a choice of signs.

Loop nest of one task (after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008):

    for outer            B, and what was split off M and N: offsets added per operand
      for turn           what was split off K: offsets added per operand
        for k0 in K by KC
          pack A, B      unless they lie in panels already, or are read in place
          for j in N by NR
            for i in panels of M
              tile       C[i, j] (+)= A[i, k0:k0+KC] B[k0:k0+KC, j]

What the nest may assume: offsets are in bytes and may be any int64; ``valid`` lanes of a panel are a prefix;
N tables are padded by repeating the last entry, so the tile may read (never write) the repeated column; lanes past
the valid ones hold anything, and never reach C. C is not read unless ACCUMULATE is set or it is not the first block of K.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from ..tiles import PANEL_GAP
from . import abi
from .emit import I64, Fn, Val, Var, scalar_type, size_of, vector_type


@dataclass(frozen=True, kw_only=True)
class TileSpec:
    """One generated GEMM: dtype, tile and how each operand is read (``packed`` panels or ``direct`` in place)."""

    dtype: str
    mv: int
    nr: int
    a_packed: bool
    b_packed: bool

    @property
    def name(self) -> str:
        modes = f"{'p' if self.a_packed else 'd'}{'p' if self.b_packed else 'd'}"
        return f"gemm_{self.dtype}_{self.mv}x{self.nr}_{modes}"

    @classmethod
    def from_name(cls, name: str) -> "TileSpec":
        _, dtype, tile, modes = name.split("_")
        mv, nr = map(int, tile.split("x"))
        return cls(dtype=dtype, mv=mv, nr=nr, a_packed=modes[0] == "p", b_packed=modes[1] == "p")


class TileEmitter:
    """Emits the pieces of one `TileSpec` into a function."""

    def __init__(self, f: Fn, spec: TileSpec, isa: ISA):
        self.f, self.spec, self.isa = f, spec, isa
        self.real = scalar_type(spec.dtype)
        self.complex = spec.dtype.startswith("complex")
        self.parts = 2 if self.complex else 1
        self.item = size_of(self.real) * self.parts
        self.vector_bytes = isa.vector_bits // 8
        self.lanes = self.vector_bytes // size_of(self.real)
        self.elems = self.lanes // self.parts  # elements per vector
        self.mr = spec.mv * self.elems
        self.vec = vector_type(self.real, self.lanes)

    # -- K loop ----------------------------------------------------------------------------------------------
    def k_loop(self, a: Val, b, klen: Val, tka: Val, tkb: Val, mask_of=None) -> list[list[list[Val]]]:
        """acc[part][i][j] after ``klen`` terms. ``a``: address of the panel (or of lane 0); ``b``: address of the
        packed panel, or a list of column addresses. ``mask_of(i)`` limits the lanes read in place."""
        f, spec = self.f, self.spec
        acc = [
            [[Var(f, f.zero(self.vec)) for _ in range(spec.nr)] for _ in range(spec.mv)] for _ in range(self.parts)
        ]
        a_at, b_at = Var(f, a), Var(f, b if spec.b_packed else f.i64(0))
        with f.range(0, klen) as k:
            row = a_at.get() if spec.a_packed else a + f.word(tka, k)
            rows = [self._load_a(row, i, mask_of) for i in range(spec.mv)]
            step = None if spec.b_packed else f.word(tkb, k)
            for j in range(spec.nr):
                column = b_at.get() + j * self.item if spec.b_packed else b[j] + step
                for part in range(self.parts):
                    scalar = f.load(self.real, column + part * size_of(self.real))
                    wide = f.splat(scalar, self.lanes)
                    for i in range(spec.mv):
                        slot = acc[part][i][j]
                        slot.set(self._fma(rows[i], wide, slot.get()))
            if spec.a_packed:
                a_at.add(self.mr * self.item)
            if spec.b_packed:
                b_at.add(spec.nr * self.item)
        return [[[v.get() for v in line] for line in part] for part in acc]

    def _load_a(self, row: Val, i: int, mask_of) -> Val:
        address = row + i * self.vector_bytes
        if mask_of is None:
            return self.f.load(self.vec, address)
        return self.f.load_masked(self.vec, address, mask_of(i))

    def _fma(self, a: Val, b: Val, c: Val) -> Val:
        if self.spec.dtype == "bool":
            return (a & b) | c
        return self.f.fma(a, b, c) if self.isa.fma else a * b + c

    def add(self, a: Val, b: Val) -> Val:
        return a | b if self.spec.dtype == "bool" else a + b

    def combine(self, acc, signs: Val) -> list[list[Val]]:
        """C tile from the accumulators: real as is; complex ``s1 * a re(b) + s2 * swap(a im(b))``."""
        if not self.complex:
            return acc[0]
        f = self.f
        swap = [l ^ 1 for l in range(self.lanes)]
        first, second = self._sign_vectors(signs)
        return [
            [
                acc[0][i][j] * first + f.shuffle(acc[1][i][j], acc[1][i][j], swap) * second
                for j in range(self.spec.nr)
            ]
            for i in range(self.spec.mv)
        ]

    def _sign_vectors(self, signs: Val) -> tuple[Val, Val]:
        """Signs on (re, im) lanes of both products; a conjugate is a sign, never another kernel."""
        f, one = self.f, self.f.const(self.real, 1.0)
        minus = f.const(self.real, -1.0)
        conj_a, conj_b = (signs & 1).ne(0), (signs & 2).ne(0)
        first_im = f.select(conj_a, minus, one)
        second_re = f.select(Val(f, f.b.xor(conj_a.v, conj_b.v)), one, minus)
        second_im = f.select(conj_b, minus, one)
        even = f.vector(ir.IntType(1), [l % 2 == 0 for l in range(self.lanes)])

        def weave(re: Val, im: Val) -> Val:
            return f.select(even, f.splat(re, self.lanes), f.splat(im, self.lanes))

        return weave(one, first_im), weave(second_re, second_im)

    # -- stores ----------------------------------------------------------------------------------------------
    def store_columns(self, tile, c: Val, tnc: Val, accumulate: Val, stream: Val) -> None:
        """Whole tile, lanes contiguous: one address per column.

        ``stream``: C is larger than the caches, so whole aligned vectors go past them and no line of C is read before
        it is overwritten.
        """
        f = self.f
        columns = [c + f.word(tnc, j) for j in range(self.spec.nr)]
        with f.if_else(accumulate.ne(0)) as (then, otherwise):
            with then:
                self._each(tile, columns, lambda v, at: f.store(self.add(f.load(self.vec, at), v), at))
            with otherwise:
                with f.if_else(self._all_aligned(columns, stream)) as (past, through):
                    with past:
                        self._each(tile, columns, lambda v, at: f.stream(v, at))
                    with through:
                        self._each(tile, columns, lambda v, at: f.store(v, at))

    def fetch_columns(self, c: Val, tnc: Val) -> None:
        """Asks for the lines of C that will be added to; they arrive during the K loop."""
        for j in range(self.spec.nr):
            column = c + self.f.word(tnc, j)
            for at in range(0, self.spec.mv * self.vector_bytes, 64):
                self.f.prefetch(column + at, write=True)

    def store_masked(self, tile, c: Val, tnc: Val, accumulate: Val, masks) -> None:
        """All columns, lanes contiguous but not all valid: stores by mask."""
        f = self.f
        columns = [c + f.word(tnc, j) for j in range(self.spec.nr)]
        with f.if_else(accumulate.ne(0)) as (then, otherwise):
            for branch, add in ((then, True), (otherwise, False)):
                with branch:
                    for j, column in enumerate(columns):
                        for i in range(self.spec.mv):
                            at, value = column + i * self.vector_bytes, tile[i][j]
                            value = self.add(f.load_masked(self.vec, at, masks[i]), value) if add else value
                            f.store_masked(value, at, masks[i])

    def lane_masks(self, valid: Val) -> list[Val]:
        """Masks of the lanes that exist, one per vector of a column."""
        return [self.f.lane_mask(valid * self.parts, self.lanes, i * self.lanes) for i in range(self.spec.mv)]

    def _all_aligned(self, columns, stream: Val) -> Val:
        bits = columns[0]
        for column in columns[1:]:
            bits = bits | column
        return (bits & (self.vector_bytes - 1)).eq(0) & stream.ne(0)

    def _each(self, tile, columns, action) -> None:
        for j, column in enumerate(columns):
            for i in range(self.spec.mv):
                action(tile[i][j], column + i * self.vector_bytes)

    def spill(self, tile, stack: Val) -> None:
        """Tile to the stack, column after column of MR elements."""
        for j in range(self.spec.nr):
            for i in range(self.spec.mv):
                address = stack + j * self.mr * self.item + i * self.vector_bytes
                self.f.store(tile[i][j], address, align=self.vector_bytes)

    def store_spilled(self, stack, c, tmc, tnc, valid, columns, run, acc, chunk) -> None:
        """Edges and scattered lanes, from the spilled tile. ``run``: lanes are contiguous in C."""
        f = self.f
        with f.if_else(run.ne(0)) as (then, otherwise):
            with then:
                with f.range(0, columns) as j:
                    self._store_prefix(stack + j * (self.mr * self.item), c + f.word(tnc, j), valid, acc)
            with otherwise:
                self._store_scattered(stack, c, tmc, tnc, valid, columns, acc, chunk)

    def _store_prefix(self, src: Val, dst: Val, valid: Val, acc: Val) -> None:
        """``valid`` elements, whole vectors first and then one element at a time."""
        f = self.f
        whole = (valid // self.elems) * self.elems
        with f.range(0, whole, self.elems) as l:
            self._move(self.vec, src + l * self.item, dst + l * self.item, acc)
        with f.range(whole * self.parts, valid * self.parts) as l:
            self._move(self.real, src + l * size_of(self.real), dst + l * size_of(self.real), acc)

    def _store_scattered(self, stack, c, tmc, tnc, valid, columns, acc, chunk) -> None:
        """Lanes that come in runs of ``chunk`` elements are moved as vectors; 1: element by element."""
        sizes = [size for size in (self.elems, self.elems // 2, self.elems // 4) if size > 1]
        self._by_chunk(sizes, stack, c, tmc, tnc, valid, columns, acc, chunk)

    def _by_chunk(self, sizes, stack, c, tmc, tnc, valid, columns, acc, chunk) -> None:
        if not sizes:
            self._scatter_loop(1, stack, c, tmc, tnc, valid, columns, acc)
            return
        with self.f.if_else(chunk.eq(sizes[0])) as (then, otherwise):
            with then:
                self._scatter_loop(sizes[0], stack, c, tmc, tnc, valid, columns, acc)
            with otherwise:
                self._by_chunk(sizes[1:], stack, c, tmc, tnc, valid, columns, acc, chunk)

    def _scatter_loop(self, size: int, stack, c, tmc, tnc, valid, columns, acc) -> None:
        f, ty = self.f, vector_type(self.real, size * self.parts)
        with f.range(0, columns) as j:
            column, source = c + f.word(tnc, j), stack + j * (self.mr * self.item)
            with f.range(0, valid, size) as l:
                self._move(ty, source + l * self.item, column + f.word(tmc, l), acc)

    def _move(self, ty, src: Val, dst: Val, acc: Val) -> None:
        f = self.f
        value = Var(f, f.load(ty, src))
        with f.if_(acc.ne(0)):
            value.set(self.add(f.load(ty, dst), value.get()))
        f.store(value.get(), dst)


def build_gemm(module: ir.Module, spec: TileSpec, isa: ISA) -> tuple[str, ...]:
    """Task function of one GEMM kernel; name of its symbol."""
    inner = Fn(module, "tiles", [I64] * 13, internal=True)
    inner.fn.attributes.add("noinline")
    TileLoop(inner, TileEmitter(inner, spec, isa)).emit()
    inner.ret()
    f = Fn(module, spec.name, [I64] * 4)
    GemmNest(f, TileEmitter(f, spec, isa), inner).emit()
    f.ret()
    return (spec.name,)


class GemmNest:
    """The loops around the tile; see the module docstring for their order and assumptions."""

    def __init__(self, f: Fn, tile: TileEmitter, tiles: Fn):
        self.f, self.tile, self.spec, self.tiles = f, tile, tile.spec, tiles
        ctx, step, task, worker = f.args
        self.step = step
        bases = f.word(ctx, abi.CTX_BASES)
        word = self.word
        self.a = f.word(bases, word(abi.A_SLOT)) + word(abi.A_OFFSET)
        self.b = f.word(bases, word(abi.B_SLOT)) + word(abi.B_OFFSET)
        self.c = f.word(bases, word(abi.OUT_SLOT)) + word(abi.OUT_OFFSET)
        self.scratch = f.word(ctx, abi.CTX_SCRATCH) + f.word(ctx, abi.CTX_SCRATCH_STRIDE) * worker
        self.task = task

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def emit(self) -> None:
        f, word = self.f, self.word
        n_tasks, panel_tasks = word(abi.G_N_TASKS), word(abi.G_PANEL_TASKS)
        tn, rest = self.task % n_tasks, self.task // n_tasks
        tp, to = rest % panel_tasks, rest // panel_tasks
        self.p0, self.p1 = self._span(tp, word(abi.G_PANEL_BLOCK), word(abi.G_PANELS))
        self.n0, self.n1 = self._span(tn, word(abi.G_N_BLOCK), word(abi.G_N))
        o0, o1 = self._span(to, word(abi.G_OUTER_BLOCK), word(abi.G_OUTER_TOTAL))
        self.pack_args = f.stack(8 * abi.P_WORDS)
        with f.range(o0, o1) as o:
            a, b, c = self._outer_offsets(o)
            self._k_blocks(a, b, c)
        with f.if_(word(abi.G_STREAM).ne(0)):
            f.store_fence()

    def _span(self, index: Val, block: Val, total: Val) -> tuple[Val, Val]:
        start = index * block
        return start, self.f.min(start + block, total)

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
                if self.spec.a_packed:
                    panels, stride = self._packed_a(left, k0, klen)
                else:
                    panels, stride = left, f.i64(0)
                columns, distance = self._packed_b(right, k0, klen) if self.spec.b_packed else (right, f.i64(0))
                block = (panels, stride, columns, distance, c, k0, klen, accumulate)
                f.call(self.tiles, [self.step, *block, self.p0, self.p1, self.n0, self.n1])

    def _packed_a(self, a: Val, k0: Val, klen: Val) -> tuple[Val, Val]:
        """Address and stride of the packed panels: where A lies if it is in panels, else packed into scratch."""
        f, word, width = self.f, self.word, self.tile.mr * self.tile.item
        ready = word(abi.G_A_STRIDE)
        start = Var(f, a + self.p0 * ready + k0 * width)
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
            self._pack(args)
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
                abi.P_MODE: word(abi.G_PACK_MODE) >> 2,
                abi.P_STRIDE: distance,
            }
            self._pack(args)
            start.set(scratch - first * distance)
            stride.set(distance)
        return start.get(), stride.get()

    def _pack(self, args: dict[int, Val]) -> None:
        for index, value in args.items():
            self.f.store(value, self.pack_args + 8 * index)
        self.f.call(self.word(abi.G_PACK), [self.pack_args])


class TileLoop:
    """The two inner loops, over columns and panels, as a function of its own: LLVM is several times quicker so."""

    def __init__(self, f: Fn, tile: TileEmitter):
        self.f, self.tile, self.spec = f, tile, tile.spec
        self.step, *self.block, self.p0, self.p1, self.n0, self.n1 = f.args
        self.stack = f.stack(tile.mr * tile.spec.nr * tile.item)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def emit(self) -> None:
        f, word, spec, tile = self.f, self.word, self.spec, self.tile
        panels, stride, b, b_stride, c, k0, klen, accumulate = self.block
        tables = {name: word(getattr(abi, name)) for name in ("G_TN_B", "G_TN_C", "G_TM_A", "G_TM_C", "G_VALID")}
        flag_table, signs = word(abi.G_FLAGS), word(abi.G_SIGNS)
        chunk, stream = word(abi.G_CHUNK), word(abi.G_STREAM)
        tka, tkb = word(abi.G_TK_A) + k0 * 8, word(abi.G_TK_B) + k0 * 8
        with f.range(self.n0, self.n1, spec.nr) as n:
            tnc = tables["G_TN_C"] + n * 8
            columns = f.min(self.n1 - n, spec.nr)
            if spec.b_packed:
                source = b + (n // spec.nr) * b_stride
            else:
                tnb = tables["G_TN_B"] + n * 8
                source = [b + f.word(tnb, j) for j in range(spec.nr)]
            with f.range(self.p0, self.p1) as p:
                valid, flags = f.word(tables["G_VALID"], p), f.word(flag_table, p)
                tmc = tables["G_TM_C"] + p * (8 * tile.mr)
                if spec.a_packed:
                    a = panels + (p - self.p0) * stride
                else:
                    a = panels + f.word(tables["G_TM_A"], p * tile.mr)
                edge = _Edge(
                    c=c,
                    tmc=tmc,
                    tnc=tnc,
                    valid=valid,
                    columns=columns,
                    run=flags & 2,
                    accumulate=accumulate,
                    chunk=chunk,
                    stream=stream,
                )
                self._tile(a, source, klen, tka, tkb, signs, edge)

    def _tile(self, a: Val, source, klen: Val, tka: Val, tkb: Val, signs: Val, edge: "_Edge") -> None:
        f, tile = self.f, self.tile
        with f.if_(edge.accumulate.ne(0) & edge.run.ne(0)):
            tile.fetch_columns(edge.c + f.word(edge.tmc), edge.tnc)

        def product(mask_of=None):
            return tile.combine(tile.k_loop(a, source, klen, tka, tkb, mask_of), signs)

        if self.spec.a_packed:
            self._store(product(), edge)
            return
        with f.if_else(edge.valid.eq(tile.mr)) as (then, otherwise):
            with then:
                self._store(product(), edge)
            with otherwise:
                # read in place: lanes past the valid ones may lie outside the operand
                masks = tile.lane_masks(edge.valid)
                self._store_partial(product(lambda i: masks[i]), edge)

    def _store(self, result, edge: "_Edge") -> None:
        f, tile = self.f, self.tile
        whole = edge.valid.eq(tile.mr) & edge.run.ne(0) & edge.columns.eq(self.spec.nr)
        with f.if_else(whole) as (then, otherwise):
            with then:
                tile.store_columns(result, edge.c + f.word(edge.tmc), edge.tnc, edge.accumulate, edge.stream)
            with otherwise:
                self._store_partial(result, edge)

    def _store_partial(self, result, edge: "_Edge") -> None:
        """By mask where the lanes run and the ISA has masks; through the stack otherwise."""
        f, tile = self.f, self.tile
        if not tile.isa.masks or tile.item // tile.parts < 4:
            tile.spill(result, self.stack)
            self._store_edge(edge)
            return
        with f.if_else(edge.run.ne(0) & edge.columns.eq(self.spec.nr)) as (then, otherwise):
            with then:
                corner = edge.c + f.word(edge.tmc)
                tile.store_masked(result, corner, edge.tnc, edge.accumulate, tile.lane_masks(edge.valid))
            with otherwise:
                tile.spill(result, self.stack)
                self._store_edge(edge)

    def _store_edge(self, edge: "_Edge") -> None:
        f = self.f
        corner = edge.c + f.word(edge.tmc)
        base = f.select(edge.run.ne(0), corner, edge.c)
        self.tile.store_spilled(
            self.stack, base, edge.tmc, edge.tnc, edge.valid, edge.columns, edge.run, edge.accumulate, edge.chunk
        )


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """Where a tile goes: base of C, its lane and column tables, how much of it exists."""

    c: Val
    tmc: Val
    tnc: Val
    valid: Val
    columns: Val
    run: Val
    accumulate: Val
    chunk: Val
    stream: Val
