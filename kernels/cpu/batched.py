"""The batched family: lanes run along a batch dimension that is contiguous in both operands and in the result.

    C[o, b, m, n] (+)= sum_k A[o, b, m, k] * B[o, b, n, k]        batched_<dtype>_<MT>x<NT>

    for outer
      for b0 in batch by BLOCK          so that operands are read again from cache
        for m in M by MT, n in N by NT
          for b in block by vectors
            for k                       MT x NT vectors of sums, each lane an element of the batch
            C[b, m, n] (+)= sums

Rows and columns past M and N repeat the last one and are not stored. The batch need not be a multiple of a vector: the
rest goes through masks, or as the last whole vector of the task computed again, or element by element. Nothing
outside the operands is read. C is read only to accumulate.
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
        ctx, step, task, _ = f.args
        bases = f.word(ctx, abi.CTX_BASES)

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
        inner = self._inner()
        Outer(f, step).loop(
            *span(to, ba.B_OUTER_SHARE, ba.B_OUTER_TOTAL),
            lambda offsets: f.call(inner, [step, *(x + offset for x, offset in zip(at, offsets)), *spans]),
        )
        f.ret()

    def _inner(self) -> Fn:
        """``inner(step, a, b, c, m0, m1, l0, l1)``: rows and elements of the batch of one task, one outer index."""
        f = self.f = Fn(self.module, f"{self.name}_inner", [I64] * 8, internal=True)
        f.fn.attributes.add("noinline")
        self.step, self.a, self.b, self.c, m0, m1, self.first, self.last = f.args
        lanes = self.lanes
        if lanes.parts == 2:
            sign_a, sign_b = lanes.signs(f, self.word(ba.B_SIGNS))
            one = f.const(lanes.real, 1.0)
            self.signs = (one, sign_a, sign_a * sign_b * -1.0, sign_b)
        self.accumulate = self.word(ba.B_ACCUMULATE)
        with f.range(self.first, self.last, self.word(ba.B_BLOCK)) as start:
            stop = f.min(start + self.word(ba.B_BLOCK), self.last)
            with f.range(m0, m1, self.mt) as m:
                with f.range(0, self.word(ba.B_N), self.nt) as n:
                    self._block(self._tile(m, n, m1), start, stop)
        f.ret()
        return f

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def entry(self, table: int, index: Val) -> Val:
        return self.f.word(self.word(table), index)

    def _tile(self, m: Val, n: Val, m1: Val) -> _Tile:
        f = self.f
        rows, columns = f.min(m1 - m, self.mt), f.min(self.word(ba.B_N) - n, self.nt)
        a = [self.a + self.entry(ba.B_TM_A, m + (f.min(i, rows - 1) if i else 0)) for i in range(self.mt)]
        b = [self.b + self.entry(ba.B_TN_B, n + (f.min(j, columns - 1) if j else 0)) for j in range(self.nt)]
        return _Tile(a=a, b=b, m=m, n=n, rows=rows, columns=columns)

    def _block(self, tile: _Tile, start: Val, stop: Val) -> None:
        """The elements [start, stop) of the batch: whole vectors, then the rest."""
        f, elems = self.f, self.lanes.elems
        whole = start + (stop - start) // elems * elems
        with f.range(start, whole, elems) as at:
            self._vector(self.lanes, tile, at, None)
        with f.if_(whole < stop):
            if self.lanes.isa.masks:
                self._vector(self.lanes, tile, whole, self.lanes.mask(f, stop - whole))
            else:
                self._rest(tile, whole, stop)

    def _rest(self, tile: _Tile, whole: Val, stop: Val) -> None:
        """Without masks: results may be stored twice, unless they are added to what is there."""
        f, elems = self.f, self.lanes.elems
        room = (stop - self.first) >= elems
        with f.if_else(self.accumulate.eq(0) & room) as (again, single):
            with again:
                self._vector(self.lanes, tile, stop - elems, None)
            with single:
                with f.range(whole, stop) as at:
                    self._vector(Lanes(self.lanes.dtype, self.lanes.isa, 1), tile, at, None)

    # -- one vector of the batch -----------------------------------------------------------------------------
    def _vector(self, lanes: Lanes, tile: _Tile, at: Val, mask: Val | None) -> None:
        f, shift = self.f, at * lanes.item
        acc = [[[Var(f, f.zero(lanes.vec)) for _ in range(lanes.parts)] for _ in tile.b] for _ in tile.a]
        with f.range(0, self.word(ba.B_K)) as k:
            in_a, in_b = shift + self.entry(ba.B_TK_A, k), shift + self.entry(ba.B_TK_B, k)
            columns = [self._factors(lanes, self._load(lanes, b + in_b, mask)) for b in tile.b]
            for i, a in enumerate(tile.a):
                row = self._load(lanes, a + in_a, mask)
                for j, factors in enumerate(columns):
                    for slot, factor in zip(acc[i][j], factors):
                        slot.set(lanes.fma(f, row, factor, slot.get()))
        with f.if_else(self.accumulate.ne(0)) as (then, otherwise):
            for branch, add in ((then, True), (otherwise, False)):
                with branch:
                    self._store_tile(lanes, tile, acc, shift, mask, add)

    def _load(self, lanes: Lanes, at: Val, mask: Val | None) -> Val:
        return self.f.load(lanes.vec, at) if mask is None else self.f.load_masked(lanes.vec, at, mask)

    def _factors(self, lanes: Lanes, value: Val) -> list[Val]:
        """What a row is multiplied with: the value, or its real and its imaginary part on both lanes of an element."""
        return [value] if lanes.parts == 1 else [lanes.spread(self.f, value, part) for part in range(2)]

    def _store_tile(self, lanes: Lanes, tile: _Tile, acc, shift: Val, mask: Val | None, add: bool) -> None:
        f = self.f
        for j in range(self.nt):
            with self._if_exists(j, tile.columns):
                column = self.c + self.entry(ba.B_TN_C, tile.n + j) + shift
                for i in range(self.mt):
                    with self._if_exists(i, tile.rows):
                        place = column + self.entry(ba.B_TM_C, tile.m + i)
                        value = self._combine(lanes, [slot.get() for slot in acc[i][j]])
                        value = lanes.add(self._load(lanes, place, mask), value) if add else value
                        f.store(value, place) if mask is None else f.store_masked(value, place, mask)

    def _combine(self, lanes: Lanes, parts: list[Val]) -> Val:
        """From the sums of ``a * re(b)`` and ``a * im(b)``; plus zero, so that a sign makes no -0 of an empty sum."""
        if lanes.parts == 1:
            return parts[0]
        f = self.f
        re, im, swapped_re, swapped_im = self.signs
        first = lanes.fma(f, parts[0], lanes.weave(f, re, im), f.zero(lanes.vec))
        return lanes.fma(f, lanes.swap(f, parts[1]), lanes.weave(f, swapped_re, swapped_im), first)

    def _if_exists(self, i: int, count: Val):
        return nullcontext() if not i else self.f.if_(count > i)
