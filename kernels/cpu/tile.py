"""The register tile of the GEMM family, looped over K; the loops around it are in `gemm`.

A tile is MR x NR elements of C held in registers: MR = ``mv`` vectors along the lanes side M (operand A), NR
broadcast columns along N (operand B). Complex elements stay interleaved: the tile keeps ``a * re(b)`` and
``a * im(b)`` apart and combines them once after the K loop, which costs four real FMAs per complex one and makes
conjugation a choice of signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable

from llvmlite import ir

from ..isa import ISA
from .. import tiles as tile_table
from ..tiles import COMPLEX, TIMED, follows, turns
from . import cores
from .emit import Fn, Val, Var, scalar_type, size_of, vector_type
from .evenly import Evenly
from .one_by_one import multiply
from .pairs import Pairs, in_pairs
from .stream import LINE
from .turned import Turned


FETCHED_FROM = 6  # columns of a tile from which on asking for the lanes of a later panel costs little
WIDE_FROM = 12  # and from which on to ask for more than that, beside a packed B
SEVERAL = 4  # terms in a turn of the K loop
MOST_IN_TURN = 80  # multiply-adds of 512 bits in a turn: with more, four terms gain less than two
ADDRESSES = 10  # of vectors and columns, with which asking does not take registers from the K loop


@dataclass(frozen=True, kw_only=True)
class TileSpec:
    """One generated GEMM: dtype, tile and how each operand is read (``packed`` panels or ``direct`` in place).

    ``timed``: it counts the ticks of packing and of stores (`stopwatch`)."""

    dtype: str
    mv: int
    nr: int
    a_packed: bool
    b_packed: bool
    timed: bool = False

    @property
    def name(self) -> str:
        modes = f"{'p' if self.a_packed else 'd'}{'p' if self.b_packed else 'd'}"
        return f"gemm_{self.dtype}_{self.mv}x{self.nr}_{modes}{TIMED if self.timed else ''}"

    @classmethod
    def from_name(cls, name: str) -> "TileSpec":
        plain = name.removesuffix(TIMED)
        _, dtype, tile, modes = plain.split("_")
        mv, nr = map(int, tile.split("x"))
        a_packed, b_packed = (mode == "p" for mode in modes)
        return cls(dtype=dtype, mv=mv, nr=nr, a_packed=a_packed, b_packed=b_packed, timed=name != plain)


def several_terms(spec: TileSpec, isa: ISA) -> int:
    """Terms in a turn of the K loop, more than one where they follow each other by a constant, as in panels. With narrower
    vectors one vector of complex numbers loses by four."""
    if not (isa.fma and spec.dtype.startswith(("float", "complex"))):
        return 1
    parts = 2 if spec.dtype in COMPLEX else 1
    if isa.vector_bits == 512:
        few = SEVERAL * spec.mv * spec.nr * parts > MOST_IN_TURN
    else:
        few = parts == 2 and spec.mv == 1
    return SEVERAL // 2 if few else SEVERAL


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
        # Columns of a packed B are multiplied as vectors where repeating one in all lanes takes an instruction.
        self.turns = spec.b_packed and turns(isa, spec.dtype, spec.nr)

    @property
    def stores_by_mask(self) -> bool:
        """Whether the instruction set has masks for elements of this size."""
        return self.isa.masks and self.item // self.parts >= 4

    # -- K loop ----------------------------------------------------------------------------------------------
    def k_loop(
        self,
        a: Val,
        b,
        klen: Val,
        tka: Val,
        tkb: Val,
        mask_of=None,
        ahead: Val | None = None,
        beside=None,
        near: Val | None = None,
        few: Val | None = None,
        even: Evenly | None = None,
    ) -> list[list[list[Val]]]:
        """acc[part][i][j] after ``klen`` terms. ``a``: address of the panel (or of lane 0); ``b``: address of the
        packed panel, or a list of column addresses. ``mask_of(i)`` limits the lanes read in place; what lies
        ``ahead`` bytes further is asked for where there is time beside the FMAs, and so is what ``beside``
        knows, a `coming.Beside` or `coming.Columns`. ``near``: whether rows of A are asked for `rows_near` terms before their
        use, in a loop of its own; None: they are not. ``few``: whether the first half of the columns is all that is wanted, in
        a loop of its own; of a tile that has `halves`. ``even``: terms at equal distances have a loop of their own."""
        f, spec = self.f, self.spec
        if self.turns:
            return Turned(self).k_loop(a, b, klen, tka, mask_of, ahead, beside)
        acc = [
            [[Var(f, f.zero(self.vec)) for _ in range(spec.nr)] for _ in range(spec.mv)] for _ in range(self.parts)
        ]
        start = b if spec.b_packed else f.i64(0)
        a_at, b_at = Var(f, a), Var(f, start)

        def adjacent(at: Val, j: int) -> Val:
            return at + j * self.item

        def anywhere(at: Val, j: int) -> Val:
            return at + b[j]

        column = adjacent if spec.b_packed else anywhere

        def products(row: Val, at: Val, columns: int = spec.nr, column: Callable[[Val, int], Val] = column) -> None:
            if in_pairs(self.isa, spec.dtype) and spec.mv * spec.nr % 2 == 0:
                lanes = partial(self.load_a, mask_of=mask_of)
                slots = [line[:columns] for line in acc[0]]
                Pairs(f, lanes, lambda at, j: self.repeated(column(at, j))).emit(slots, [row, at])
            else:
                rows = [self.load_a(row, i, mask_of) for i in range(spec.mv)]
                multiply(self, acc, rows, [column(at, j) for j in range(columns)])

        def term(distance: int, k: Val, columns: int = spec.nr) -> None:
            row = a_at.get() if spec.a_packed else a + f.word(tka, k)
            at = b_at.get() if spec.b_packed else f.word(tkb, k)
            if distance:
                self.fetch_near(a + f.word(tka, f.min(k + distance, klen - 1)))
            if not distance or self.asks_widely:
                self.fetch_ahead(row, ahead)
            products(row, at, columns)
            if spec.a_packed:
                a_at.add(self.mr * self.item)
            if spec.b_packed:
                b_at.add(spec.nr * self.item)

        def asking(row: Val, near: Val) -> None:
            if self.rows_near:
                self.fetch_near(row + near)
            if not self.rows_near or self.asks_widely:
                self.fetch_ahead(row, ahead)

        def whole() -> None:
            if even is None:
                by_tables()
                return
            with f.if_else(even.wanted(beside, ahead)) as (evenly, others):
                with evenly:
                    if even.adjacent is None:
                        even.emit(a, start, asking, products, f.i64(0) if spec.b_packed else b[0])
                    else:
                        with f.if_else(even.adjacent) as (together, apart):
                            with together:
                                even.emit(a, b[0], asking, partial(products, column=adjacent), f.i64(0))
                            with apart:
                                even.emit(a, start, asking, products, b[0])
                with others:
                    by_tables()

        def by_tables() -> None:
            if near is None:
                self.terms(klen, beside, partial(term, 0))
                return
            wanted = near & ahead.eq(0) if self.follows else near
            with f.if_else(wanted) as (asks, others):
                with asks:
                    self.terms(klen, beside, partial(term, self.rows_near))
                with others:
                    self.terms(klen, beside, partial(term, 0))

        if few is None:
            whole()
        else:
            with f.if_else(few) as (half, others):
                with half:
                    self.terms(klen, None, partial(term, 0, columns=spec.nr // 2))
                with others:
                    whole()
        return [[[v.get() for v in line] for line in part] for part in acc]

    def repeated(self, address: Val) -> Val:
        """A vector of what is there."""
        return self.f.splat(self.f.load(self.real, address), self.lanes)

    def terms(self, klen: Val, beside, term: Callable[[Val], None]) -> None:
        """The loop over K; in pieces where something is done between them."""
        f = self.f
        if beside is None:
            self._turns(f.i64(0), klen, term)
            return
        with f.if_else(beside.split) as (pieces, whole):
            with pieces:
                start = f.var(0)
                with f.while_() as leave:
                    end = f.min(start.get() + beside.piece, klen)
                    self._turns(start.get(), end, term)
                    start.set(end)
                    leave(end >= klen)
                    beside.ask(end)
            with whole:
                self._turns(f.i64(0), klen, term)

    def _turns(self, start: Val, stop: Val, term: Callable[[Val], None]) -> None:
        """Terms from ``start`` on, one by one where tables say where they are."""
        if self.spec.a_packed and self.spec.b_packed:
            self.turns_of_terms(start, stop, term)
            return
        with self.f.range(start, stop) as k:
            term(k)

    def turns_of_terms(self, start: Val, stop: Val, term: Callable[[Val], None]) -> None:
        """Terms from ``start`` on, several a turn where that pays: counting and jumping are a fifth of the instructions of a single
        term, which is what a busy core is short of. The rest of them, one by one, comes behind."""
        f, several = self.f, several_terms(self.spec, self.isa)
        if several > 1:
            behind = stop - (stop - start) % several
            with f.range(start, behind, several) as k:
                for n in range(several):
                    term(k + n)
            start = behind
        with f.range(start, stop) as k:
            term(k)

    @property
    def halves(self) -> bool:
        """Whether it has a K loop for half of its columns."""
        return tile_table.halves(self.isa, self.spec.dtype, (self.spec.mv, self.spec.nr))

    @property
    def follows(self) -> bool:
        """Whether it asks for A of the next outer iteration, or of the next block of K."""
        return not self.spec.a_packed and follows((self.spec.mv, self.spec.nr))

    @property
    def asks(self) -> bool:
        """Whether it asks for anything of an A that is read in place."""
        return self.follows or not self.spec.a_packed and self._fetches()

    @property
    def spreads(self) -> bool:
        """Whether tiles that read columns along K ask for the next ones between their terms, in a loop of its own."""
        evenly = not (self.spec.b_packed or self.turns or self.follows) and several_terms(self.spec, self.isa) > 1
        return evenly and cores.here().spreads(self.isa.vector_bits)

    @property
    def asks_widely(self) -> bool:
        """Whether it has time to ask for the lines in which rows of A begin, and beyond its task."""
        return not self.spec.a_packed and self.spec.b_packed and self.spec.nr >= WIDE_FROM

    def fetch_ahead(self, row: Val, ahead: Val | None) -> None:
        """Asks for the lanes of a later panel, or of the next outer iteration, where there is time beside the FMAs. Vectors
        begin anywhere in a line: the one in which the first begins is asked for, too; where a row begins, no panel before has."""
        if ahead is not None and self.follows:
            with self.f.if_(ahead.ne(0)):
                self.fetch_row(row + ahead)
        elif ahead is not None and self._fetches():
            if self.asks_widely:
                self.f.prefetch(row + ahead, locality=2)
            self.fetch_row(row + ahead)

    @property
    def rows_near(self) -> int:
        """How many terms before their use it may ask for rows of its panel. With vectors of 128 bits it has no time for it."""
        return cores.here().rows_near if not self.spec.a_packed and self.isa.vector_bits > 128 else 0

    def fetch_near(self, row: Val) -> None:
        """Asks for a row of this panel, into the first cache: no core does by itself what lies so far from the row before, and
        what other columns of B had of it is gone."""
        nbytes = self.spec.mv * self.vector_bytes
        for at in range(LINE - 1, nbytes + LINE - 1, LINE):
            self.f.prefetch(row + min(at, nbytes - 1))

    def fetch_row(self, row: Val) -> None:
        """Asks for the lines in which the vectors at ``row`` end."""
        for i in range(1, self.spec.mv + 1):
            self.f.prefetch(row + (i * self.vector_bytes - 1), locality=2)

    def _fetches(self) -> bool:
        columns = 0 if self.spec.b_packed else self.spec.nr
        return self.spec.nr >= FETCHED_FROM and self.spec.mv + columns <= ADDRESSES

    def load_a(self, row: Val, i: int, mask_of) -> Val:
        address = row + i * self.vector_bytes
        if mask_of is None:
            return self.f.load(self.vec, address)
        return self.f.load_masked(self.vec, address, mask_of(i))

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        if self.spec.dtype == "bool":
            return (a & b) | c
        if self.spec.dtype == "int8":
            return b * a + c  # there is no product of bytes: what LLVM makes of one prepares the second factor, once
        return self.f.fma(a, b, c) if self.isa.fma else a * b + c

    def add(self, a: Val, b: Val) -> Val:
        return a | b if self.spec.dtype == "bool" else a + b

    def combine(self, acc, signs: tuple[Val, Val] | None) -> list[list[Val]]:
        """C tile from the accumulators: real as is; complex ``a re(b) + swap(a im(b))`` with signs of `sign_vectors`."""
        if not self.complex:
            return acc[0]
        f = self.f
        swap = [l ^ 1 for l in range(self.lanes)]
        first, second = signs

        def whole(real: Val, imaginary: Val) -> Val:
            return self._flip(real, first) + self._flip(f.shuffle(imaginary, imaginary, swap), second)

        return [[whole(acc[0][i][j], acc[1][i][j]) for j in range(self.spec.nr)] for i in range(self.spec.mv)]

    def _flip(self, value: Val, signs: Val) -> Val:
        return self.f.bitcast(self.f.bitcast(value, signs.type) ^ signs, self.vec)

    def sign_vectors(self, signs: Val) -> tuple[Val, Val]:
        """Sign bits to flip on (re, im) lanes of both products; a conjugate is a sign, never another kernel. Flipping takes no
        unit that multiplies or adds."""
        f, bits = self.f, 8 * size_of(self.real)
        kept, flipped = (f.const(ir.IntType(bits), value) for value in (0, 1 << (bits - 1)))
        conj_a, conj_b = (signs & 1).ne(0), (signs & 2).ne(0)
        first_im = f.select(conj_a, flipped, kept)
        second_re = f.select(conj_a ^ conj_b, kept, flipped)
        second_im = f.select(conj_b, flipped, kept)
        even = f.vector(ir.IntType(1), [l % 2 == 0 for l in range(self.lanes)])

        def weave(re: Val, im: Val) -> Val:
            return f.select(even, f.splat(re, self.lanes), f.splat(im, self.lanes))

        return weave(kept, first_im), weave(second_re, second_im)

    # -- stores ----------------------------------------------------------------------------------------------
    def store_columns(self, tile, c: Val, tnc: Val, accumulate: Val, stream: Val, aligned: Val | None = None) -> None:
        """Whole tile, lanes contiguous: one address per column.

        ``stream``: C is larger than the caches, so whole aligned vectors go past them and no line of C is read before
        it is overwritten. ``aligned``: whether they are, where that is known.
        """
        f = self.f
        columns = [c + f.word(tnc, j) for j in range(self.spec.nr)]
        with f.if_else(accumulate.ne(0)) as (then, otherwise):
            with then:
                self._each(tile, columns, lambda v, at: f.store(self.add(f.load(self.vec, at), v), at))
            with otherwise:
                aligned = self._all_aligned(columns) if aligned is None else aligned
                with f.if_else(aligned & stream.ne(0)) as (past, through):
                    with past:
                        self._each(tile, columns, lambda v, at: f.stream(v, at))
                    with through:
                        self._each(tile, columns, lambda v, at: f.store(v, at))

    def fetch_columns(self, c: Val, tnc: Val) -> None:
        """Asks for the lines of C that will be added to; they arrive during the K loop."""
        for j in range(self.spec.nr):
            self.fetch_column(c + self.f.word(tnc, j))

    def fetch_column(self, column: Val) -> None:
        """The same of one column."""
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

    def _all_aligned(self, columns) -> Val:
        bits = columns[0]
        for column in columns[1:]:
            bits = bits | column
        return (bits & (self.vector_bytes - 1)).eq(0)

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

    def spill_runs(self, tile, stack: Val, run: Val) -> None:
        """Tile to the stack, where each ``run`` of lanes, of a vector or more, has its part of all columns side by side."""
        f, nr, width = self.f, self.spec.nr, run * self.item
        base, place = Var(f, stack), Var(f, f.i64(0))  # of the run that the next vector begins in, and where in it
        for i in range(self.spec.mv):
            left = run - place.get()
            behind = base.get() + width * nr
            mask = f.lane_mask(left * self.parts, self.lanes)
            for j in range(nr):
                f.store_masked(tile[i][j], base.get() + place.get() * self.item + width * j, mask)
            with f.if_(left < self.elems):
                others = f.lane_mask(f.i64(self.lanes), self.lanes) ^ mask
                for j in range(nr):
                    f.store_masked(tile[i][j], behind - left * self.item + width * j, others)
            with f.if_(left <= self.elems):  # the next vector begins in the next run
                base.set(behind)
                place.add(f.i64(0) - run)
            place.add(self.elems)
