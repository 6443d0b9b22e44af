"""The sort family: lines of an operand in ascending order, or the indices that put them so; equal ones stay in order.

    out[l, :] = sorted(a[l, :])               sort_<item>
    out[l, :] = order of a[l, :], int64       argsort_<item>

A line is copied to scratch as unsigned integers that are in the order of the elements (`_key`), so that one kernel
serves all dtypes of a size. Short lines: runs by rank, then merged, without branches on the elements. Long ones:
by digits of 8 bits, lowest first, each counted before; a digit that is the same everywhere is left out.
NaN comes last; which NaN it was is not kept.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import sort_abi as sa
from .emit import I8, I16, I32, I64, Fn, Val, Var, vector_type
from .lanes import loop_offsets

_INTS = {1: I8, 2: I16, 4: I32, 8: I64}
_DIGITS = 256


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``sort_<item>`` or ``argsort_<item>``."""
    op, item = name.split("_")
    _Sort(module, name, isa, int(item), op == "argsort").emit()


class _Buffers:
    """Two buffers of keys, and of indices; what is read and what is written are exchanged after each pass."""

    def __init__(self, f: Fn, item: int, keys: Val, indices: Val | None, key_bytes: Val, index_bytes: Val):
        self.f, self.item, self.type = f, item, _INTS[item]
        self.keys = Var(f, keys), Var(f, keys + key_bytes)
        self.indices = None if indices is None else (Var(f, indices), Var(f, indices + index_bytes))

    def key(self, i: Val, side: int = 0) -> Val:
        return self.f.load(self.type, self.keys[side].get() + i * self.item)

    def index(self, i: Val, side: int = 0) -> Val | None:
        return None if self.indices is None else self.f.word(self.indices[side].get(), i)

    def put(self, i: Val, key: Val, index: Val | None, side: int = 1) -> None:
        self.f.store(key, self.keys[side].get() + i * self.item)
        if index is not None:
            self.f.store(index, self.indices[side].get() + i * 8)

    def exchange(self) -> None:
        for pair in filter(None, (self.keys, self.indices)):
            old = pair[0].get()
            pair[0].set(pair[1].get())
            pair[1].set(old)


class _Sort:
    def __init__(self, module: ir.Module, name: str, isa: ISA, item: int, order: bool):
        self.f = Fn(module, name, [I64] * 4)
        self.item, self.order, self.type = item, order, _INTS[item]
        self.run = isa.vector_bits // 16 if isa.vector_bits == 512 else sa.RUN

    def emit(self) -> None:
        f = self.f
        ctx, step, task, worker = f.args
        bases = f.word(ctx, abi.CTX_BASES)
        self.step, self.count = step, f.word(step, sa.S_COUNT)
        source = f.word(bases, f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET)
        target = f.word(bases, f.word(step, abi.OUT_SLOT)) + f.word(step, abi.OUT_OFFSET)
        scratch = f.word(ctx, abi.CTX_SCRATCH) + worker * f.word(ctx, abi.CTX_SCRATCH_STRIDE)
        key_bytes, index_bytes = (f.ceil_div(self.count * n, 64) * 64 + sa.SPACE for n in (self.item, 8))
        indices = scratch + key_bytes * 2 if self.order else None
        self.counts = f.stack(8 * _DIGITS * self.item)
        first = task * f.word(step, sa.S_SHARE)
        last = f.min(first + f.word(step, sa.S_SHARE), f.word(step, sa.S_LINES))
        with f.range(first, last) as line:
            at = self._line(line)
            b = _Buffers(f, self.item, scratch, indices, key_bytes, index_bytes)
            with f.range(0, self.count) as i:
                element = f.load(self.type, source + at[0] + i * f.word(step, sa.S_FROM))
                b.put(i, self._key(element), i if self.order else None, side=0)
            with f.if_else(self.count < sa.RADIX * self.item) as (few, many):
                with few:
                    self._runs(b)
                    self._merge(b)
                with many:
                    self._count(b)
                    with f.range(0, self.item) as digit:
                        self._spread(b, digit)
            with f.range(0, self.count) as i:
                found = b.index(i) if self.order else self._element(b.key(i))
                f.store(found, target + at[1] + i * f.word(step, sa.S_TO))
        f.ret()

    def _line(self, line: Val) -> tuple[Val, Val]:
        """Offsets of a line in the operand and in the output."""
        rank, table = self.f.word(self.step, sa.S_RANK), self.f.word(self.step, sa.S_TABLE)
        source, target = loop_offsets(self.f, table, rank, 3, line, (0, 1))
        return source, target

    # -- elements and keys -----------------------------------------------------------------------------------
    def _narrow(self, word: int) -> Val:
        value = self.f.word(self.step, word)
        return value if self.type == I64 else self.f.convert(value, "trunc", self.type)

    def _signs(self, bits: Val) -> Val:
        """All ones where the sign is set."""
        return Val(self.f, self.f.b.ashr(bits.v, self.f.const(self.type, 8 * self.item - 1).v))

    def _key(self, bits: Val) -> Val:
        """Signed: the sign is inverted. Floats: all bits of negative ones; NaN is the largest, -0.0 is 0.0 where
        indices are asked for."""
        f, sign, floats = self.f, self._narrow(sa.S_SIGN), self._narrow(sa.S_FLOAT)
        if self.order:
            bits = f.select(floats.ne(0) & bits.eq(sign), f.const(self.type, 0), bits)
        top = -(1 << (8 * self.item - 1))
        magnitude = bits & ~top
        nan = Val(f, f.b.icmp_unsigned(">", magnitude.v, self._narrow(sa.S_INFINITY).v))
        return f.select(nan, f.const(self.type, -1), bits ^ ((self._signs(bits) & floats) | sign))

    def _element(self, key: Val) -> Val:
        floats = self._narrow(sa.S_FLOAT)
        return key ^ (((self._signs(key) ^ -1) & floats) | self._narrow(sa.S_SIGN))

    def _less(self, a: Val, b: Val) -> Val:
        return Val(self.f, self.f.b.icmp_unsigned("<", a.v, b.v))

    # -- short lines -----------------------------------------------------------------------------------------
    def _runs(self, b: _Buffers) -> None:
        """Each element of a run goes to the place that as many others come before."""
        f, run = self.f, self.run
        ty, mask = vector_type(self.type, run), ir.IntType(run)
        lanes = f.vector(I64, range(run))
        with f.range(0, self.count, run) as start:
            size = f.min(f.i64(run), self.count - start)
            keys = f.load(ty, b.keys[0].get() + start * self.item)
            there = f.bitcast(lanes < f.splat(size, run), mask)
            with f.range(0, size) as i:
                key = b.key(start + i)
                same = f.splat(key, run)
                earlier = (f.const(mask, 1) << f.convert(i, "trunc", mask)) - 1
                before = f.bitcast(self._less(keys, same), mask) | (f.bitcast(keys.eq(same), mask) & earlier)
                rank = f.convert(f.intrinsic("ctpop", [before & there]), "zext", I64)
                b.put(start + rank, key, b.index(start + i))
        b.exchange()

    def _merge(self, b: _Buffers) -> None:
        f, width = self.f, self.f.var(self.run)
        with f.while_() as leave:
            leave(width.get() >= self.count)
            with f.range(0, self.count, width.get() * 2) as start:
                middle = f.min(start + width.get(), self.count)
                end = f.min(middle + width.get(), self.count)
                left, right = Var(f, start), Var(f, middle)
                with f.range(start, end) as out:
                    i, j = left.get(), right.get()
                    one, two = b.key(i), b.key(j)  # behind its end there is a line of nothing
                    take = i.eq(middle) | ((j < end) & self._less(two, one))
                    index = f.select(take, b.index(j), b.index(i)) if self.order else None
                    b.put(out, f.select(take, two, one), index)
                    taken = f.convert(take, "zext", I64)
                    right.add(taken)
                    left.add(f.i64(1) - taken)
            b.exchange()
            width.set(width.get() * 2)

    # -- long lines ------------------------------------------------------------------------------------------
    def _digit(self, key: Val, digit: int | Val) -> Val:
        wide = key if self.type == I64 else self.f.convert(key, "zext", I64)
        return (wide >> self.f.i64(digit) * 8) & 0xFF

    def _count(self, b: _Buffers) -> None:
        """How often each digit has each value."""
        f = self.f
        with f.range(0, _DIGITS * self.item) as n:
            f.store(f.i64(0), self.counts + n * 8)
        with f.range(0, self.count) as i:
            key = b.key(i)
            for digit in range(self.item):
                cell = self.counts + (self._digit(key, digit) + digit * _DIGITS) * 8
                f.store(f.word(cell) + 1, cell)

    def _spread(self, b: _Buffers, digit: Val) -> None:
        """Elements in the order of one digit, unless they have the same one."""
        f, counts = self.f, self.counts + digit * _DIGITS * 8
        with f.if_(f.word(counts, self._digit(b.key(f.i64(0)), digit)).ne(self.count)):
            total = f.var(0)
            with f.range(0, _DIGITS) as n:
                cell = counts + n * 8
                many = f.word(cell)
                f.store(total.get(), cell)
                total.add(many)
            with f.range(0, self.count) as i:
                key = b.key(i)
                cell = counts + self._digit(key, digit) * 8
                place = f.word(cell)
                b.put(place, key, b.index(i))
                f.store(place + 1, cell)
            b.exchange()
