"""Pieces that the families with explicit vectors share: vectors of a dtype, and the outer loops of a step."""

from __future__ import annotations

from typing import Sequence

from llvmlite import ir

from ..isa import ISA
from .emit import Fn, Val, Var, scalar_type, size_of, vector_type

LEVELS = 4  # outer loops of a step


class Lanes:
    """Vectors of ``elems`` elements of a dtype; complex elements stay interleaved and take two lanes each.

    ``elems``: by default what fills a register. ``masked``: loads may be masked by lane at no cost.
    """

    def __init__(self, dtype: str, isa: ISA, elems: int | None = None):
        self.dtype, self.isa = dtype, isa
        self.real = scalar_type(dtype)
        self.parts = 2 if dtype.startswith("complex") else 1
        self.item = size_of(self.real) * self.parts
        self.elems = elems or isa.vector_bits // (8 * self.item)
        self.lanes = self.elems * self.parts
        self.vector_bytes = self.elems * self.item
        self.vec = vector_type(self.real, self.lanes)
        # AVX2 masks lanes of 4 and 8 bytes; LLVM would take others one by one.
        self.masked = isa.masks or (isa.name == "avx2" and size_of(self.real) >= 4)

    def fma(self, f: Fn, a: Val, b: Val, c: Val) -> Val:
        if self.dtype == "bool":
            return (a & b) | c
        return f.fma(a, b, c) if self.isa.fma else a * b + c

    def add(self, a: Val, b: Val) -> Val:
        return a | b if self.dtype == "bool" else a + b

    def mask(self, f: Fn, count: Val) -> Val:
        """Lanes of the first ``count`` elements."""
        return f.lane_mask(count * self.parts, self.lanes)

    def swap(self, f: Fn, value: Val) -> Val:
        """Real and imaginary parts exchanged."""
        return f.shuffle(value, value, [lane ^ 1 for lane in range(self.lanes)])

    def spread(self, f: Fn, value: Val, part: int) -> Val:
        """The real (0) or imaginary (1) part of each element on both of its lanes."""
        return f.shuffle(value, value, [lane - lane % 2 + part for lane in range(self.lanes)])

    def weave(self, f: Fn, re: Val, im: Val) -> Val:
        """Scalars repeated: ``re`` on the lanes of real parts, ``im`` on those of imaginary parts."""
        even = f.vector(ir.IntType(1), [lane % 2 == 0 for lane in range(self.lanes)])
        return f.select(even, f.splat(re, self.lanes), f.splat(im, self.lanes))

    def woven(self, f: Fn, signs: tuple[Val, ...]) -> tuple[Val, Val] | None:
        """The vectors of `combine`, which go before the loops that use them. ``signs``: of what goes as it is to real and
        imaginary parts, and of what is swapped."""
        if self.parts == 1:
            return None
        re, im, swapped_re, swapped_im = signs
        return self.weave(f, re, im), self.weave(f, swapped_re, swapped_im)

    def combine(self, f: Fn, woven: tuple[Val, Val] | None, parts: list[Val]) -> Val:
        """The product, from the sums of one factor's real and imaginary parts times the other factor. Plus zero: a sign
        makes no -0 of an empty sum."""
        if woven is None:
            return parts[0]
        first = self.fma(f, parts[0], woven[0], f.zero(self.vec))
        return self.fma(f, self.swap(f, parts[1]), woven[1], first)

    def signs(self, f: Fn, word: Val) -> tuple[Val, Val]:
        """Of the imaginary parts of A and B: -1 where bit 0 (A) or bit 1 (B) asks for the conjugate, else 1."""
        one, minus = f.const(self.real, 1.0), f.const(self.real, -1.0)
        return tuple(f.select((word & bit).ne(0), minus, one) for bit in (1, 2))


def loop_offsets(f: Fn, rows: Val, rank: Val, width: int | Val, index: Val, columns: Sequence[int | Val]) -> list[Val]:
    """What flat ``index`` of ``rank`` loops, the last fastest, adds to the operands in these ``columns``.

    Each of the ``rows``, ``width`` words long, is a loop: its count, then a stride for each operand.
    """
    left, totals = Var(f, index), [f.var(0) for _ in columns]
    with f.range(0, rank) as back:
        row = rows + (rank - 1 - back) * width * 8
        size = f.word(row)
        digit = left.get() % size
        for column, total in zip(columns, totals):
            total.add(digit * f.word(row, column + 1))
        left.set(left.get() // size)
    return [total.get() for total in totals]


class Outer:
    """The outer loops of a step, words 16 to 31: a counter per level, the sum of the tables of each operand.

    Each level is (count, table per operand), slowest first; no table is missing.
    """

    def __init__(self, f: Fn, step: Val, operands: int = 3):
        self.f, self.step, self.operands = f, step, operands
        self.words = [16 + (operands + 1) * level for level in range(LEVELS)]

    # Words are read where they are used: kept in registers they would crowd out the tile's.
    def _count(self, level: int) -> Val:
        return self.f.word(self.step, self.words[level])

    def loop(self, first: Val, last: Val, body) -> None:
        """``body(offsets)`` for each flat index, the last level fastest.

        The sums of the slower levels are kept until one of these goes on: where the body is a single tile, four tables
        an operand are half of what the tile takes.
        """
        f, rest = self.f, Var(self.f, first)
        digits = [f.var(0) for _ in range(LEVELS)]
        for level in reversed(range(LEVELS)):
            count = self._count(level)
            with f.if_(count > 1):
                digits[level].set(rest.get() % count)
                rest.set(rest.get() // count)
        slower = [Var(f, self._slower(i, digits)) for i in range(self.operands)]
        fastest, count = digits[-1], self._count(LEVELS - 1)
        with f.range(first, last):
            body([slower[i].get() + self._entry(i, LEVELS - 1, digits) for i in range(self.operands)])
            fastest.add(1)
            with f.if_(fastest.get() >= count, likely=False):
                fastest.set(0)
                self._advance(digits, LEVELS - 2)
                for i, total in enumerate(slower):
                    total.set(self._slower(i, digits))

    def _entry(self, operand: int, level: int, digits: list[Var]) -> Val:
        return self.f.word(self.f.word(self.step, self.words[level] + 1 + operand), digits[level].get())

    def _slower(self, operand: int, digits: list[Var]) -> Val:
        """The sum of all tables of an operand but the fastest."""
        terms = [self._entry(operand, level, digits) for level in range(LEVELS - 1)]
        return sum(terms[1:], terms[0])

    def _advance(self, digits: list[Var], level: int) -> None:
        """The next index of ``level`` and those before it; behind the last one of all comes the first."""
        digits[level].add(1)
        with self.f.if_(digits[level].get() >= self._count(level), likely=False):
            digits[level].set(0)
            if level:
                self._advance(digits, level - 1)
