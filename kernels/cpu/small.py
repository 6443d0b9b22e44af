"""The small family: many products of small matrices, one after the other, each too small for the GEMM nest.

    C[o, t, m, n] (+)= sum_k A[o, t, m, k] * B[o, t, k, n]        small_<dtype>_<W>

    for outer
      for t                    strides: nothing is looked up between two products
        for n by W             lanes: contiguous in B and C
          for m by 8, 4, 2, 1
            for k              rows of W sums: an element of A times W elements of B
            C[m, n] (+)= sums

    C[o, t, m, n] (+)= the same, rows and terms fixed             small_<dtype>_<W>_<M>x<K>
    C[o, t, m, n] (+)= the same, columns strided in B             small_<dtype>_<W>s, small_<dtype>_<W>s_<M>x<K>
    C[o, t, m, n] (+)= these, terms adjacent in B, K >= W         small_<dtype>_<W>t

W is as wide as the matrices, up to a register. With M and K fixed all rows and terms are written out; 4 of them may be two
dimensions of 2, as in a gate on two qubits. The last columns
go through masks, or as the last W columns computed again, or one by one. Columns whose terms are adjacent are turned round in
registers, W columns by W terms, and lie on the stack as rows while the rows of a product are summed. Nothing outside the
operands is read. C is read only to accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import small_abi as sa
from .emit import I64, Fn, Val, Var, size_of
from .lanes import Lanes, Outer
from .mover import Mover
from .units import LINE

_ROWS = (8, 4, 2, 1)  # rows at once: binary digits of M


def build_small(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``small_<dtype>_<W>``, with ``s`` after W for strided columns, perhaps with ``_<M>x<K>``."""
    _, dtype, width, *sizes = name.split("_")
    lanes, strided = Lanes(dtype, isa, int(width.rstrip("st"))), not width.isdigit()
    if width.endswith("t"):
        _Turned(module, name, lanes, strided).emit()
    elif sizes:
        _Fixed(module, name, lanes, strided, *map(int, sizes[0].split("x"))).emit()
    else:
        _Nest(module, name, lanes, strided).emit()


@dataclass(frozen=True, kw_only=True)
class _Product:
    """Addresses of one product."""

    a: Val
    b: Val
    c: Val


class _Nest:
    def __init__(self, module: ir.Module, name: str, lanes: Lanes, strided: bool):
        self.module, self.name, self.lanes, self.strided = module, name, lanes, strided
        # 16 registers hold 8 rows of sums, or 4 of complex ones; 32 as many in two registers each
        sums = lanes.parts * -(-lanes.vector_bytes * 8 // lanes.isa.vector_bits)
        self.rows = _ROWS[1:] if sums * _ROWS[0] > lanes.isa.registers // 2 else _ROWS

    def emit(self) -> None:
        f = Fn(self.module, self.name, [I64] * 4)
        ctx, step, task, _ = f.args
        bases = f.word(ctx, abi.CTX_BASES)

        def span(index: Val, share: int, total: int) -> tuple[Val, Val]:
            start = index * f.word(step, share)
            return start, f.min(start + f.word(step, share), f.word(step, total))

        tasks = f.word(step, sa.S_T_TASKS)
        spans = span(task % tasks, sa.S_T_SHARE, sa.S_T)
        slots = ((abi.A_SLOT, abi.A_OFFSET), (abi.B_SLOT, abi.B_OFFSET), (abi.OUT_SLOT, abi.OUT_OFFSET))
        at = [f.word(bases, f.word(step, slot)) + f.word(step, offset) for slot, offset in slots]
        products = self._products()
        Outer(f, step).loop(
            *span(task // tasks, sa.S_OUTER_SHARE, sa.S_OUTER_TOTAL),
            lambda offsets: f.call(products, [step, *(x + offset for x, offset in zip(at, offsets)), *spans]),
        )
        f.ret()

    def _products(self) -> Fn:
        """``(step, a, b, c, t0, t1)``: the products [t0, t1) of one outer index."""
        f = self.f = Fn(self.module, f"{self.name}_products", [I64] * 6, internal=True)
        f.fn.attributes.add("noinline")
        self.step, a, b, c, first, last = f.args
        self.signs: tuple[Val, ...] = ()
        if self.lanes.parts == 2:
            sign_a, sign_b = self.lanes.signs(f, self.word(sa.S_SIGNS))
            one = f.const(self.lanes.real, 1.0)
            self.signs = (one, sign_b, sign_a * sign_b * -1.0, sign_a)
        self.woven = self.lanes.woven(f, self.signs)
        self._loop(_Product(a=a, b=b, c=c), first, last)
        f.ret()
        return f

    def _loop(self, start: _Product, first: Val, last: Val) -> None:
        width, self.n = self.lanes.elems, self.word(sa.S_N)
        self.whole = self.n // width * width
        self.last = self.lanes.mask(self.f, self.n - self.whole) if self.lanes.isa.masks else None
        self._each(start, first, last, [self.word(w) for w in (sa.S_T_A, sa.S_T_B, sa.S_T_C)], self._product)

    def _each(self, start: _Product, first: Val, last: Val, strides: list[Val], action) -> None:
        f = self.f
        places = [Var(f, x + first * stride) for x, stride in zip((start.a, start.b, start.c), strides)]
        with f.range(first, last):
            action(_Product(a=places[0].get(), b=places[1].get(), c=places[2].get()))
            for place, stride in zip(places, strides):
                place.add(stride)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def _product(self, at: _Product) -> None:
        f, width, n, whole = self.f, self.lanes.elems, self.n, self.whole
        with f.range(0, whole, width) as column:
            self._columns(self.lanes, at, column, None)
        with f.if_(whole < n):
            if self.lanes.isa.masks:
                self._columns(self.lanes, at, whole, self.last)
                return
            again = self.word(sa.S_ACCUMULATE).eq(0) & (whole > 0)
            with f.if_else(again) as (then, otherwise):
                with then:
                    self._columns(self.lanes, at, n - width, None)
                with otherwise:
                    with f.range(whole, n) as column:
                        self._columns(Lanes(self.lanes.dtype, self.lanes.isa, 1), at, column, None)

    def _columns(self, lanes: Lanes, at: _Product, column: Val, mask: Val | None) -> None:
        """All rows of ``lanes.elems`` columns."""
        offsets = self._column_offsets(lanes, None if mask is None else self.n - column)
        self._all_rows(lanes, self._from_column(at, column), mask, offsets)

    def _all_rows(self, lanes: Lanes, at: _Product, mask: Val | None, offsets: list[Val] | None) -> None:
        f, m, done = self.f, self.word(sa.S_M), self.f.var(0)
        rows = self.rows if lanes is self.lanes else _ROWS[2:]
        with f.range(0, m - (rows[0] - 1), rows[0]) as i:
            self._rows(lanes, at, i, rows[0], mask, offsets)
            done.set(i + rows[0])
        for count in rows[1:]:
            with f.if_((m & count).ne(0)):
                self._rows(lanes, at, done.get(), count, mask, offsets)
                done.add(count)

    def _next_term(self, lanes: Lanes) -> int | Val:
        """Bytes from a row of columns to the next one."""
        return self.word(sa.S_K_B)

    def _from_column(self, at: _Product, column: Val) -> _Product:
        item = self.lanes.item
        stride = self.word(sa.S_N_B) if self.strided else item
        return _Product(a=at.a, b=at.b + column * stride, c=at.c + column * item)

    def _column_offsets(self, lanes: Lanes, count: Val | None) -> list[Val] | None:
        """Of each lane's column in B where they are strided; those from ``count`` on repeat the last."""
        if not self.strided:
            return None
        f, stride = self.f, self.word(sa.S_N_B)
        return [stride * (lane if count is None else f.min(lane, count - 1)) for lane in range(lanes.elems)]

    def _load_columns(self, lanes: Lanes, place: Val, mask: Val | None, offsets: list[Val] | None) -> Val:
        f = self.f
        if offsets is None:
            return f.load(lanes.vec, place) if mask is None else f.load_masked(lanes.vec, place, mask)
        if lanes.lanes == 1:
            return f.load(lanes.real, place + offsets[0])
        value = f.zero(lanes.vec)
        for lane in range(lanes.lanes):
            element, part = divmod(lane, lanes.parts)
            value = f.insert(value, f.load(lanes.real, place + offsets[element] + part * size_of(lanes.real)), lane)
        return value

    def _rows(self, lanes: Lanes, at: _Product, first: Val, count: int, mask: Val | None, columns_at) -> None:
        f = self.f
        acc = [[Var(f, f.zero(lanes.vec)) for _ in range(lanes.parts)] for _ in range(count)]
        row_stride = self.word(sa.S_M_A)
        a, b = Var(f, at.a + first * row_stride), Var(f, at.b)
        offsets = [row_stride * i if i else f.i64(0) for i in range(count)]
        with f.range(0, self.word(sa.S_K)):
            columns = self._load_columns(lanes, b.get(), mask, columns_at)
            for slots, offset in zip(acc, offsets):
                for part, slot in enumerate(slots):
                    scalar = f.load(lanes.real, a.get() + offset + part * size_of(lanes.real))
                    slot.set(lanes.fma(f, columns, f.splat(scalar, lanes.lanes), slot.get()))
            a.add(self.word(sa.S_K_A))
            b.add(self._next_term(lanes))
        with f.if_else(self.word(sa.S_ACCUMULATE).ne(0)) as (add, overwrite):
            for branch, accumulate in ((add, True), (overwrite, False)):
                with branch:
                    for i, slots in enumerate(acc):
                        place = at.c + (first + i) * self.word(sa.S_M_C)
                        self._store(lanes, [slot.get() for slot in slots], place, mask, accumulate)

    def _store(self, lanes: Lanes, parts: list[Val], place: Val, mask: Val | None, accumulate: bool) -> None:
        f, value = self.f, lanes.combine(self.f, self._woven(lanes), parts)
        if mask is None:
            f.store(lanes.add(f.load(lanes.vec, place), value) if accumulate else value, place)
        else:
            old = f.load_masked(lanes.vec, place, mask) if accumulate else None
            f.store_masked(lanes.add(old, value) if accumulate else value, place, mask)

    def _woven(self, lanes: Lanes) -> tuple[Val, Val] | None:
        return self.woven if lanes is self.lanes else lanes.woven(self.f, self.signs)


class _Turned(_Nest):
    """Terms are adjacent in B, as many as W at least and MOST_TURNED at most: what is loaded of a column is within it."""

    def _loop(self, start: _Product, first: Val, last: Val) -> None:
        self.turned = self.f.stack(sa.MOST_TURNED * self.lanes.vector_bytes)
        super()._loop(start, first, last)

    def _columns(self, lanes: Lanes, at: _Product, column: Val, mask: Val | None) -> None:
        if lanes is not self.lanes:  # a column at a time
            super()._columns(lanes, at, column, mask)
            return
        offsets = self._column_offsets(lanes, None if mask is None else self.n - column)
        at = self._from_column(at, column)
        self._turn([at.b + offset for offset in offsets])
        self._all_rows(lanes, _Product(a=at.a, b=self.turned, c=at.c), mask, None)

    def _turn(self, columns: list[Val]) -> None:
        """Rows of the terms of so many columns as W, square by square; a register has one column of a square at most."""
        f, lanes, terms = self.f, self.lanes, self.word(sa.S_K)
        mover = Mover(f, lanes.item, lanes.isa)
        size = min(lanes.elems, mover.block)
        with f.range(0, terms, size) as term:
            first = f.min(term, terms - size)  # the last ones again
            for left in range(0, lanes.elems, size):

                def load(column: int, skip: int, count: int) -> Val:
                    return mover.load(columns[left + column] + (first + skip) * lanes.item, count)

                for i, row in enumerate(mover.square(size, load)):
                    mover.store(row, self.turned + (first + i) * lanes.vector_bytes + left * lanes.item)

    def _next_term(self, lanes: Lanes) -> int | Val:
        return lanes.vector_bytes if lanes is self.lanes else lanes.item


class _Fixed(_Nest):
    """M rows and K terms written out, all strides in registers."""

    def __init__(self, module: ir.Module, name: str, lanes: Lanes, strided: bool, m: int, k: int):
        super().__init__(module, name, lanes, strided)
        self.m, self.k = m, k

    def _loop(self, start: _Product, first: Val, last: Val) -> None:
        f, width, n = self.f, self.lanes.elems, self.word(sa.S_N)
        strides = [self.word(w) for w in (sa.S_T_A, sa.S_T_B, sa.S_T_C)]
        rows, terms = (sa.S_M_A, sa.S_M_A_HALF), (sa.S_K_A, sa.S_K_A_HALF)
        self.a_rows, self.a_terms = self._offsets(self.m, *rows), self._offsets(self.k, *terms)
        self.c_rows = self._offsets(self.m, sa.S_M_C, sa.S_M_C_HALF)
        self.b_terms = self._offsets(self.k, sa.S_K_B, sa.S_K_B_HALF)
        self.accumulate = self.word(sa.S_ACCUMULATE)
        with f.if_else(n >= width) as (wide, narrow):
            with wide:
                offsets = self._column_offsets(self.lanes, None)

                def columns(at: _Product) -> None:
                    elements = self._kept(at)
                    with f.range(0, n, width) as j:
                        self._written_out(self._from_column(at, f.min(j, n - width)), None, offsets, elements)

                if not self._streams():
                    self._each(start, first, last, strides, columns)
                else:
                    past = self.word(sa.S_STREAM).ne(0) & (start.c & (LINE - 1)).eq(0)
                    with f.if_else(past) as (then, otherwise):
                        with then:
                            self._each(start, first, last, strides, self._lines_past)
                            f.store_fence()
                        with otherwise:
                            self._each(start, first, last, strides, columns)
            with narrow:
                if self.lanes.isa.masks:
                    mask, clamped = self.lanes.mask(f, n), self._column_offsets(self.lanes, n)
                    self._each(start, first, last, strides, lambda at: self._written_out(at, mask, clamped))

    def _lines_past(self, at: _Product) -> None:
        """Rows that are whole lines, past the caches; where the next product is, is asked for line by line: hardware would begin
        anew with each row."""
        f, item, ahead = self.f, self.lanes.item, self.word(sa.S_AHEAD)
        elements = self._kept(at)
        with f.range(0, self.word(sa.S_N), LINE // item) as j:
            with f.if_(ahead.ne(0)):
                for term in self.b_terms:
                    f.prefetch(at.b + ahead + term + j * item)
            for part in range(0, LINE // item, self.lanes.elems):
                self._written_out(self._from_column(at, j + part), None, None, elements, past=True)

    def _streams(self) -> bool:
        """Whether there is a way past the caches: for whole registers. (Those of a line go there as tiles of a GEMM.)"""
        lanes = self.lanes
        return not self.strided and 8 * lanes.vector_bytes == lanes.isa.vector_bits < 8 * LINE

    def _kept(self, at: _Product) -> list[Val] | None:
        """The elements of A for all columns, if half of the registers hold them."""
        few = self.m * self.k * self.lanes.parts <= self.lanes.isa.registers // 2
        return self._elements(at) if few else None

    def _elements(self, at: _Product) -> list[Val]:
        """Those of A, row by row, their parts one after the other, each in all lanes."""
        f, lanes = self.f, self.lanes
        parts = [part * size_of(lanes.real) for part in range(lanes.parts)]
        shifts = [row + term + part for row in self.a_rows for term in self.a_terms for part in parts]
        return [f.splat(f.load(lanes.real, at.a + shift), lanes.lanes) for shift in shifts]

    def _written_out(
        self,
        at: _Product,
        mask: Val | None,
        offsets: list[Val] | None,
        elements: list[Val] | None = None,
        past: bool = False,
    ) -> None:
        """``elements`` of A, where they are known; ``past``: the caches; all vectors of C are aligned then, and nothing is added
        to it."""
        f, lanes = self.f, self.lanes
        columns = [self._load_columns(lanes, at.b + shift, mask, offsets) for shift in self.b_terms]
        scalars, rows = iter(elements or self._elements(at)), []
        for _ in self.a_rows:
            sums = [f.zero(lanes.vec)] * lanes.parts
            for column in columns:
                for part in range(lanes.parts):
                    sums[part] = lanes.fma(f, column, next(scalars), sums[part])
            rows.append(sums)
        if past:
            for place, sums in zip(self.c_rows, rows):
                f.stream(lanes.combine(f, self._woven(lanes), sums), at.c + place)
            return
        with f.if_else(self.accumulate.ne(0)) as (add, overwrite):
            for branch, accumulate in ((add, True), (overwrite, False)):
                with branch:
                    for i, sums in enumerate(rows):
                        self._store(lanes, sums, at.c + self.c_rows[i], mask, accumulate)

    def _offsets(self, count: int, stride: int, half: int) -> list[Val]:
        """Of rows or terms; four may be two times two."""
        step = self.word(stride)
        if count != 4:
            return [step * i for i in range(count)]
        slow = self.word(half)
        return [step * (i % 2) + slow * (i // 2) for i in range(count)]
