"""The batched family: lanes run along a batch dimension that is contiguous in both operands and in the result.

    C[o, b, m, n] (+)= sum_k A[o, b, m, k] * B[o, b, n, k]        batched_<dtype>_<MT>x<NT>

    for outer
      for b0 in batch by BLOCK          so that operands are read again from cache
        copy A and B to scratch         if asked for
        for m in M by MT, n in N by NT
          for b in block by vectors
            for k                       MT x NT vectors of sums, each lane an element of the batch
            C[b, m, n] (+)= sums

Rows and columns past M and N repeat the last one and are not stored. The batch need not be a multiple of a vector: the
rest goes through masks, or as the last whole vector of the task computed again, or element by element. Nothing
outside the operands is read. C is read only to accumulate.

Copies in scratch serve operands whose rows lie a power of two apart: a cache holds few such lines at a time.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import batched_abi as ba
from .emit import I64, Fn, Val, Var
from .lanes import Lanes, Outer
from .one_by_one import done_first, is_tight
from .stream import LINE

_GROUP = 4  # vectors copied at once
_ALIGN_FROM = 4  # vectors in a row that are worth another one to align the rest


def build_batched(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``batched_<dtype>_<MT>x<NT>``."""
    _, dtype, tile = name.split("_")
    mt, nt = map(int, tile.split("x"))
    _Nest(module, name, Lanes(dtype, isa), mt, nt).emit()


@dataclass(frozen=True, kw_only=True)
class _Tile:
    """Rows and columns of one tile: offsets in the operands, and how many exist."""

    a: list[Val]
    b: list[Val]
    m: Val
    n: Val
    rows: Val
    columns: Val


class _Nest:
    def __init__(self, module: ir.Module, name: str, lanes: Lanes, mt: int, nt: int):
        self.module, self.name, self.lanes, self.mt, self.nt = module, name, lanes, mt, nt

    def emit(self) -> None:
        f = Fn(self.module, self.name, [I64] * 4)
        ctx, step, task, worker = f.args
        bases = f.word(ctx, abi.CTX_BASES)
        scratch = f.word(ctx, abi.CTX_SCRATCH) + f.word(ctx, abi.CTX_SCRATCH_STRIDE) * worker

        def word(index: int) -> Val:
            return f.word(step, index)

        def span(index: Val, share: int, total: int) -> tuple[Val, Val]:
            start = index * word(share)
            return start, f.min(start + word(share), word(total))

        tl, rest = task % word(ba.B_LANES_TASKS), task // word(ba.B_LANES_TASKS)
        tm, to = rest % word(ba.B_M_TASKS), rest // word(ba.B_M_TASKS)
        spans = [*span(tm, ba.B_M_SHARE, ba.B_M), *span(tl, ba.B_LANES_SHARE, ba.B_LANES)]
        slots = ((abi.A_SLOT, abi.A_OFFSET), (abi.B_SLOT, abi.B_OFFSET), (abi.OUT_SLOT, abi.OUT_OFFSET))
        at = [f.word(bases, word(slot)) + word(offset) for slot, offset in slots]
        block = _Block(self).emit()
        in_place, staged = self._in_place(block), _Staging(self).emit(block)
        copied = word(ba.B_STAGE_B).ne(0)
        whole = self._one_block(f, step, *spans[2:])

        def inner(offsets: list[Val]) -> None:
            places = [x + offset for x, offset in zip(at, offsets)]
            with f.if_else(copied) as (then, otherwise):
                with then:
                    f.call(staged, [step, scratch, *places, *spans])
                with otherwise, f.if_else(whole) as (short, long):
                    with short:
                        tables, elements = step + 8 * ba.B_TABLES, spans[2:]
                        f.call(block, [step, tables, *places, *spans, *elements, word(ba.B_ACCUMULATE)])
                    with long:
                        f.call(in_place, [step, *places, *spans])

        Outer(f, step).loop(*span(to, ba.B_OUTER_SHARE, ba.B_OUTER_TOTAL), inner)
        f.ret()

    def _one_block(self, f: Fn, step: Val, first: Val, last: Val) -> Val:
        """Whether the elements of the batch of a task are one block wherever they begin."""
        few = (last - first) < _ALIGN_FROM * self.lanes.elems
        return few & ((last - first) <= f.word(step, ba.B_BLOCK))

    def _in_place(self, block: Fn) -> Fn:
        """``(step, a, b, c, m0, m1, l0, l1)``: rows and elements of the batch of one task, one outer index."""
        f = Fn(self.module, f"{self.name}_in_place", [I64] * 8, internal=True)
        f.fn.attributes.add("noinline")
        step, a, b, c, m0, m1, first, last = f.args
        start, size = Var(f, first), Var(f, self.head(f, step, a, (ba.TM_A, ba.TK_A), first, last))
        accumulate, tables = f.word(step, ba.B_ACCUMULATE), step + 8 * ba.B_TABLES
        with f.while_() as leave:
            leave(start.get() >= last)
            stop = f.min(start.get() + size.get(), last)
            f.call(block, [step, tables, a, b, c, m0, m1, start.get(), stop, first, last, accumulate])
            start.set(stop)
            size.set(f.word(step, ba.B_BLOCK))
        f.ret()
        return f

    def head(self, f: Fn, step: Val, operand: Val, tables: tuple[int, int], first: Val, last: Val) -> Val:
        """Elements of the first block: so few that the vectors behind it are aligned in an operand, where that can be.

        A vector that lies in two cache lines costs twice; operands often share their alignment.
        """
        lanes, block = self.lanes, f.word(step, ba.B_BLOCK)
        corner = [f.word(f.word(step, ba.B_TABLES + table)) for table in tables]
        begin = operand + corner[0] + corner[1] + first * lanes.item
        missing = (f.i64(0) - begin) & (lanes.vector_bytes - 1)
        worth = (missing > 0) & (missing % lanes.item).eq(0) & ((last - first) >= _ALIGN_FROM * lanes.elems)
        return f.select(worth, missing // lanes.item, block)


class _Staging:
    """Copies of a block of A and B in scratch, rows one behind the other: no two rows meet in a cache."""

    def __init__(self, nest: _Nest):
        self.nest, self.module, self.name, self.lanes = nest, nest.module, nest.name, nest.lanes

    def emit(self, block: Fn) -> Fn:
        """``(step, scratch, a, b, c, m0, m1, l0, l1)``: as `_Nest._in_place`."""
        f = self.f = Fn(self.module, f"{self.name}_staged", [I64] * 9, internal=True)
        f.fn.attributes.add("noinline")
        self.step, copy_a, a, b, c, m0, m1, first, last = f.args
        lanes, zero, copy_b = self.lanes, f.i64(0), f.args[1] + self.word(ba.B_STAGE_B)
        head = self.nest.head(f, self.step, c, (ba.TM_C, ba.TN_C), first, last)
        start, size = Var(f, first), Var(f, head)
        with f.while_() as leave:
            leave(start.get() >= last)
            count, shift = f.min(size.get(), last - start.get()), start.get() * lanes.item
            self._copy(a + shift, copy_a, (ba.TM_A, ba.TK_A), m0, m1, count)
            self._copy(b + shift, copy_b, (ba.TN_B, ba.TK_B), zero, self.word(ba.B_N), count)
            tables, span = self.step + 8 * ba.B_STAGED, (m0, m1, zero, count, zero, count)
            f.call(block, [self.step, tables, copy_a, copy_b, c + shift, *span, self.word(ba.B_ACCUMULATE)])
            start.add(count)
            size.set(self.word(ba.B_BLOCK))
        f.ret()
        return f

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def _copy(self, operand: Val, copy: Val, tables: tuple[int, int], r0: Val, r1: Val, count: Val) -> None:
        """``count`` elements of each row of lanes of an operand."""
        f = self.f

        def offset(words: int, r: Val, k: Val) -> Val:
            return f.word(self.word(words + tables[0]), r) + f.word(self.word(words + tables[1]), k)

        with f.range(r0, r1) as r:
            with f.range(0, self.word(ba.B_K)) as k:
                self._run(operand + offset(ba.B_TABLES, r, k), copy + offset(ba.B_STAGED, r, k), count)

    def _run(self, src: Val, dst: Val, count: Val) -> None:
        """Groups of vectors, then single elements."""
        f, item, single = self.f, self.lanes.item, Lanes(self.lanes.dtype, self.lanes.isa, 1)
        done = f.var(0)
        for width, group in ((self.lanes, _GROUP), (single, 1)):
            unit = width.elems * group
            with f.range(done.get(), count - (unit - 1), unit) as i:
                shifts = [(i + u * width.elems) * item for u in range(group)]
                for value, shift in [(f.load(width.vec, src + shift), shift) for shift in shifts]:
                    f.store(value, dst + shift)
                done.set(i + unit)


class _Block:
    """The tiles of a block of the batch."""

    def __init__(self, nest: _Nest):
        self.module, self.name = nest.module, nest.name
        self.lanes, self.mt, self.nt = nest.lanes, nest.mt, nest.nt

    def emit(self) -> Fn:
        """``(step, tables, a, b, c, m0, m1, start, stop, first, last, accumulate)``.

        ``tables``: address of the six table words. Elements [start, stop) of the batch are computed; those of
        [first, last) may be read, and written with their own values.
        """
        f = self.f = Fn(self.module, f"{self.name}_block", [I64] * 12, internal=True)
        f.fn.attributes.add("noinline")
        self.step, self.tables, self.a, self.b, self.c, m0, m1, start, stop, *span, self.accumulate = f.args
        self.first, self.last = span
        lanes = self.lanes
        self.signs: tuple[Val, ...] = ()
        if lanes.parts == 2:
            sign_a, sign_b = lanes.signs(f, self.word(ba.B_SIGNS))
            one = f.const(lanes.real, 1.0)
            self.signs = (one, sign_a, sign_a * sign_b * -1.0, sign_b)
        self.woven = lanes.woven(f, self.signs)
        with f.range(m0, m1, self.mt) as m:
            with f.range(0, self.word(ba.B_N), self.nt) as n:
                self._elements(self._tile(m, n, m1), start, stop)
        f.ret()
        return f

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def entry(self, table: int, index: Val) -> Val:
        return self.f.word(self.f.word(self.tables, table), index)

    def _tile(self, m: Val, n: Val, m1: Val) -> _Tile:
        f = self.f
        rows, columns = f.min(m1 - m, self.mt), f.min(self.word(ba.B_N) - n, self.nt)
        a = [self.a + self.entry(ba.TM_A, m + (f.min(i, rows - 1) if i else 0)) for i in range(self.mt)]
        b = [self.b + self.entry(ba.TN_B, n + (f.min(j, columns - 1) if j else 0)) for j in range(self.nt)]
        return _Tile(a=a, b=b, m=m, n=n, rows=rows, columns=columns)

    def _elements(self, tile: _Tile, start: Val, stop: Val) -> None:
        """The elements [start, stop) of the batch: whole vectors, then the rest."""
        f, elems = self.f, self.lanes.elems
        whole = start + (stop - start) // elems * elems
        ahead = self.word(ba.B_AHEAD)
        with f.if_else(ahead.eq(0)) as (near, far):
            with near:
                with f.range(start, whole, elems) as at:
                    self._vector(self.lanes, tile, at, None)
            with far:
                with f.range(start, whole, elems) as at:
                    self._vector(self.lanes, tile, at, None, ahead)
        with f.if_(whole < stop):
            if self.lanes.isa.masks:
                self._vector(self.lanes, tile, whole, self.lanes.mask(f, stop - whole))
            else:
                self._rest(tile, whole, stop)

    def _rest(self, tile: _Tile, whole: Val, stop: Val) -> None:
        """Without masks: results may be stored twice, unless they are added to what is there."""
        f, elems = self.f, self.lanes.elems
        room = (self.last - self.first) >= elems
        with f.if_else(self.accumulate.eq(0) & room) as (again, single):
            with again:
                self._vector(self.lanes, tile, f.max(stop - elems, self.first), None)
            with single:
                with f.range(whole, stop) as at:
                    self._vector(Lanes(self.lanes.dtype, self.lanes.isa, 1), tile, at, None)

    # -- one vector of the batch -----------------------------------------------------------------------------
    def _vector(self, lanes: Lanes, tile: _Tile, at: Val, mask: Val | None, ahead: Val | None = None) -> None:
        """``ahead``: operands come from memory, in more streams than hardware follows: fetch so many bytes further."""
        f, shift = self.f, at * lanes.item
        acc = [[[Var(f, f.zero(lanes.vec)) for _ in range(lanes.parts)] for _ in tile.b] for _ in tile.a]
        terms_a, terms_b = f.word(self.tables, ba.TK_A), f.word(self.tables, ba.TK_B)
        tight = lanes is self.lanes and is_tight(lanes.isa, lanes.dtype, (self.mt * self.nt + self.nt) * lanes.parts + 1)
        with f.range(0, self.word(ba.B_K)) as k:
            in_a, in_b = shift + f.word(terms_a, k), shift + f.word(terms_b, k)
            if ahead is not None:
                for place in (*(a + in_a for a in tile.a), *(b + in_b for b in tile.b)):
                    f.prefetch(place + ahead, locality=2)
            columns = [self._factors(lanes, self._load(lanes, b + in_b, mask)) for b in tile.b]
            for i, a in enumerate(tile.a):
                row = self._load(lanes, a + in_a, mask)
                for j, factors in enumerate(columns):
                    for slot, factor in zip(acc[i][j], factors):
                        total = lanes.fma(f, row, factor, slot.get())
                        slot.set(done_first(f, total) if tight else total)
        store = f.store if mask is None else lambda value, place: f.store_masked(value, place, mask)
        with f.if_else(self.accumulate.ne(0)) as (then, otherwise):
            with then:
                self._store_tile(lanes, tile, acc, shift, mask, store, add=True)
            with otherwise:
                if ahead is None or lanes.vector_bytes < LINE:
                    self._store_tile(lanes, tile, acc, shift, mask, store)
                else:
                    self._store_past_caches(lanes, tile, acc, shift, store)

    def _store_past_caches(self, lanes: Lanes, tile: _Tile, acc, shift: Val, store) -> None:
        """Whole lines that nobody reads soon; streaming stores must be aligned."""
        f, low = self.f, Var(self.f, self.c + shift)
        for i in range(self.mt):
            with self._if_exists(i, tile.rows):
                low.set(low.get() | self.entry(ba.TM_C, tile.m + i))
        for j in range(self.nt):
            with self._if_exists(j, tile.columns):
                low.set(low.get() | self.entry(ba.TN_C, tile.n + j))
        with f.if_else((low.get() & (LINE - 1)).eq(0)) as (aligned, otherwise):
            with aligned:
                self._store_tile(lanes, tile, acc, shift, None, f.stream)
            with otherwise:
                self._store_tile(lanes, tile, acc, shift, None, store)

    def _load(self, lanes: Lanes, at: Val, mask: Val | None) -> Val:
        return self.f.load(lanes.vec, at) if mask is None else self.f.load_masked(lanes.vec, at, mask)

    def _factors(self, lanes: Lanes, value: Val) -> list[Val]:
        """What a row is multiplied with: the value, or its real and its imaginary part on both lanes of an element."""
        return [value] if lanes.parts == 1 else [lanes.spread(self.f, value, part) for part in range(2)]

    def _store_tile(self, lanes: Lanes, tile: _Tile, acc, shift: Val, mask: Val | None, store, add=False) -> None:
        for j in range(self.nt):
            with self._if_exists(j, tile.columns):
                column = self.c + self.entry(ba.TN_C, tile.n + j) + shift
                for i in range(self.mt):
                    with self._if_exists(i, tile.rows):
                        place = column + self.entry(ba.TM_C, tile.m + i)
                        value = lanes.combine(self.f, self._woven(lanes), [slot.get() for slot in acc[i][j]])
                        value = lanes.add(self._load(lanes, place, mask), value) if add else value
                        store(value, place)

    def _woven(self, lanes: Lanes) -> tuple[Val, Val] | None:
        return self.woven if lanes is self.lanes else lanes.woven(self.f, self.signs)

    def _if_exists(self, i: int, count: Val):
        return nullcontext() if not i else self.f.if_(count > i)
