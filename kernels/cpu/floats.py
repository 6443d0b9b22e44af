"""Vectors of float32 or float64: what the functions in `mathlib` and `mathtrig` are made of. No library is called."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from struct import pack, unpack
from typing import Sequence

from llvmlite import ir

from ..isa import ISA
from . import cores
from .emit import F32, F64, I1, I32, I64, Fn, Val, vector_type
from .mathconst import HALF_EXPS, HALF_EXPS_BESIDE, INVERSES, INVERSES_LOG, INVERSES_LOG_REST, LN2, LOG_PIECES
from .mathconst import POLYNOMIALS, SIXTEENTHS
from .mathpieces import Pieces

_LONG = 14  # coefficients, from which a polynomial is worth one product more


@dataclass(frozen=True)
class NearInverse:
    """``inverse`` of which ``x = fraction * 2**exponent`` is about the inverse: ``fraction * inverse`` is 1 or a little
    less (1/26) or more (1/16). The fraction is from 1 to 2; of 0 and infinity it is 1, and of less than 0 NaN."""

    exponent: Val
    fraction: Val
    place: Val  # of the inverse in its table
    inverse: Val


class Floats:
    """``lanes`` floats of ``bits`` bits at once (one is a plain scalar)."""

    def __init__(self, f: Fn, isa: ISA, lanes: int, bits: int):
        self.f, self.isa, self.lanes, self.bits = f, isa, lanes, bits
        self.elem, self.whole = (F32, I32) if bits == 32 else (F64, I64)
        self.type, self.int_type = vector_type(self.elem, lanes), vector_type(self.whole, lanes)
        self.mantissa = 23 if bits == 32 else 52
        self.bias = 127 if bits == 32 else 1023
        self.sign_bit = -(2 ** (bits - 1))
        self.magic = 1.5 * 2.0**self.mantissa

    def c(self, value: float) -> Val:
        return self.f.const(self.type, float(value))

    def of_bits(self, value: Val) -> Val:
        return self.f.bitcast(value, self.type)

    def to_bits(self, value: Val) -> Val:
        return self.f.bitcast(value, self.int_type)

    # -- arithmetic ------------------------------------------------------------------------------------------
    def fma(self, a: Val, b: Val | float, c: Val | float) -> Val:
        """``a * b + c``, fused where the instruction set can."""
        b, c = (x if isinstance(x, Val) else self.c(x) for x in (b, c))
        return self.f.fma(a, b, c) if self.isa.fma else a * b + c

    def neg(self, value: Val) -> Val:
        return Val(self.f, self.f.b.fneg(value.v))

    def poly(self, name: str, x: Val, first: int = 0) -> Val:
        """The polynomial of `mathconst`, from coefficient ``first`` on, by Horner's rule."""
        coefficients = POLYNOMIALS[name, self.bits][first:]
        if len(coefficients) >= _LONG:
            return self._by_squares(coefficients, x, x * x)
        value = self.c(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.fma(value, x, coefficient)
        return value

    def poly_by_squares(self, name: str, x: Val, square: Val) -> Val:
        """The same from pairs of coefficients, by Horner's rule in the square: as many products, half in a row."""
        return self._by_squares(POLYNOMIALS[name, self.bits], x, square)

    def _by_squares(self, coefficients: Sequence[float], x: Val, square: Val) -> Val:
        couples = zip_longest(coefficients[::2], coefficients[1::2])
        pairs = [self.c(even) if odd is None else self.fma(x, odd, even) for even, odd in couples]
        value = pairs[-1]
        for pair in pairs[-2::-1]:
            value = self.fma(value, square, pair)
        return value

    def two_sum(self, a: Val, b: Val) -> tuple[Val, Val]:
        """The rounded sum and what rounding lost."""
        total = a + b
        part = total - a
        return total, (a - (total - part)) + (b - part)

    def ordered_sum(self, large: Val, small: Val) -> tuple[Val, Val]:
        """`two_sum` where ``large`` is 0 or no smaller than ``small``."""
        total = large + small
        return total, (large - total) + small

    def two_product(self, a: Val, b: Val) -> tuple[Val, Val]:
        """The rounded product and what rounding lost."""
        product = a * b
        if self.isa.fma:
            return product, self.f.fma(a, b, self.neg(product))
        (ah, al), (bh, bl) = self._halves(a), self._halves(b)
        return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl

    def _halves(self, a: Val) -> tuple[Val, Val]:
        scaled = a * (2.0 ** ((self.mantissa + 2) // 2) + 1)
        high = scaled - (scaled - a)
        return high, a - high

    def sqrt(self, x: Val) -> Val:
        return self.f.intrinsic("sqrt", [x])

    # -- signs and comparisons -------------------------------------------------------------------------------
    def abs(self, value: Val) -> Val:
        return self.of_bits(self.to_bits(value) & ~self.sign_bit)

    def copysign(self, size: Val, sign: Val) -> Val:
        """``size`` (of any sign) with the sign of ``sign``."""
        return self.of_bits((self.to_bits(size) & ~self.sign_bit) | (self.to_bits(sign) & self.sign_bit))

    def flip_where(self, condition: Val, value: Val) -> Val:
        return self.f.select(condition, self.neg(value), value)

    def select(self, condition: Val, a: Val | float, b: Val | float) -> Val:
        a, b = (x if isinstance(x, Val) else self.c(x) for x in (a, b))
        return self.f.select(condition, a, b)

    def isnan(self, value: Val) -> Val:
        return Val(self.f, self.f.b.fcmp_unordered("uno", value.v, value.v))

    def ne(self, a: Val, b: Val) -> Val:
        """True where they differ or one is NaN."""
        return Val(self.f, self.f.b.fcmp_unordered("!=", a.v, b.v))

    def at_most(self, value: Val, limit: float) -> Val:
        """The smaller one; NaN stays."""
        return self.select(value > limit, limit, value)

    def at_least(self, value: Val, limit: float) -> Val:
        return self.select(value < limit, limit, value)

    def any(self, condition: Val) -> Val:
        """One bit: true where a lane is."""
        if self.lanes == 1:
            return condition
        word = ir.IntType(self.lanes)
        return self.f.bitcast(condition, word).ne(0)

    def true(self) -> Val:
        return self.f.const(vector_type(I1, self.lanes), 1)

    # -- whole numbers ---------------------------------------------------------------------------------------
    def nearest(self, x: Val) -> tuple[Val, Val]:
        """``x`` rounded to a whole number, as float and as integer; below 2^22 (float32) or 2^51 in size."""
        whole, bits = self._nearest_above(x, 1.0, 0)
        return whole, bits - self.to_bits(self.c(self.magic))

    def _nearest_above(self, x: Val, factor: float, more: int) -> tuple[Val, Val]:
        """``k``, ``x * factor`` rounded to a whole number, and an integer that ends in the bits of ``k + more``."""
        above = self.magic + more
        shifted = self.fma(x, factor, above) if factor != 1.0 else x + above
        return shifted - above, self.to_bits(shifted)

    def nearest_power(self, x: Val, factor: float = 1.0) -> tuple[Val, Val]:
        """``x * factor`` rounded to a whole number, and the same as `scale` wants it: what one instruction multiplies
        by, or the bits of what is above the magic number and twice the bias."""
        if not self._scales:
            return self._nearest_above(x, factor, 2 * self.bias)
        whole = self.f.intrinsic("rint", [x * factor])
        return whole, whole

    def power_near(self, x: Val, factor: float) -> tuple[Val, Val]:
        """``k``, ``x * factor`` rounded to a whole number, and ``2**k``, for k of the range of exponents."""
        k, bits = self._nearest_above(x, factor, self.bias)
        return k, self.of_bits(bits << self.mantissa)

    @property
    def _scales(self) -> bool:
        """One instruction multiplies by powers of two."""
        return self.isa.name == "avx512" and self.lanes * self.bits in (128, 256, 512, 1024)

    @property
    def looks_up(self) -> bool:
        """One instruction finds 16 floats in registers, and one multiplies by powers of two."""
        return self._scales and self.lanes * self.bits >= 512

    def nearest_sixteenth(self, x: Val, factor: float = 1.0) -> tuple[Val, Val]:
        """``x * factor`` rounded to a multiple k of 1/16, and of `SIXTEENTHS` that of its fraction; where `looks_up`.

        `scale` takes k for the whole number below it."""
        k, place = self._sixteenth(x, factor)
        return k, self.f.lookup(SIXTEENTHS[self.bits], place, self.type)

    def near_half_exp(self, x: Val, factor: float) -> tuple[Val, Val, Val]:
        """``x * factor`` rounded to a multiple k of 1/16, and ``exp(f log(2) + beside) / 2`` with ``beside`` for its
        fraction f; of float64 where `looks_up`."""
        k, place = self._sixteenth(x, factor)
        half, beside = (self.f.lookup(table, place, self.type) for table in (HALF_EXPS, HALF_EXPS_BESIDE))
        return k, half, beside

    def _sixteenth(self, x: Val, factor: float) -> tuple[Val, Val]:
        """``x * factor`` rounded to a multiple of 1/16, and a place in tables by its fraction."""
        shifted = self.fma(x, factor, self.magic / 16) if factor != 1.0 else x + self.magic / 16
        return shifted - self.magic / 16, self.to_bits(shifted)

    def of_pieces(self, pieces: Pieces, x: Val) -> Val:
        """A function of x from 0 to ``pieces.most``, of float32 where `looks_up`: no comparisons and no division."""
        point, *coefficients = self.row_of(pieces, x)
        r, value = x - point, coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            value = self.fma(value, r, coefficient)
        return value

    def row_of(self, pieces: Pieces, x: Val) -> list[Val]:
        """What the piece that x lies in has in its row; where `looks_up`."""
        two_bits, first = self.mantissa - 2, self._bits_of(pieces.shift)
        bits, rest = self.to_bits(x + pieces.shift), -first % (1 << two_bits)
        part, before = (bits + rest if rest else bits) >> two_bits, ((first + rest) >> two_bits) % 16
        rows = pieces.rows[-before:] + pieces.rows[:-before]  # row n is found by ``before + n``
        return [self.f.lookup(column, part, self.type) for column in zip(*rows, strict=True)]

    def _bits_of(self, value: float) -> int:
        form, whole = ("<f", "<i") if self.bits == 32 else ("<d", "<q")
        return unpack(whole, pack(form, value))[0]

    def near_quotient(self, x: Val, d: Val) -> Val:
        """``x / d`` to about an ulp, for d far from both ends of the range, of float64 where `looks_up`. Where the divider
        is slow, it has no part in it: of an inverse that is off by e, 2^-14, there are left e^4."""
        if not cores.here().slow_divider:
            return x / d
        start = self.f.about_inverse(d)
        e = self.fma(self.neg(start), d, 1.0)
        first = self.fma(start, e, start)
        return x * self.fma(first, e * e, first)

    def near_inverse(self, x: Val) -> NearInverse:
        """Where `looks_up`."""
        m = self.f.fraction(x)
        place = self.to_bits(m) >> (self.mantissa - 4)
        return NearInverse(self.f.exponent(x), m, place, self.f.lookup(INVERSES, place, self.type))

    def log_of_inverse(self, near: NearInverse) -> tuple[Val, Val]:
        """``-log(inverse / 2**exponent)`` in two pieces, the second infinite where the exponent is."""
        f, k, (ln2, ln2_low) = self.f, near.exponent, LOG_PIECES[self.bits]
        tables = (INVERSES_LOG[self.bits], INVERSES_LOG_REST[self.bits])
        high, low = (f.lookup(table, near.place, self.type) for table in tables)
        finite = self.at_most(self.at_least(k, -2.0 * self.bias), 2.0 * self.bias)
        return self.fma(finite, ln2, high), self.fma(k, ln2_low, low)

    def short_log_of_inverse(self, near: NearInverse) -> Val:
        """The same in one float."""
        whole = [high + low for high, low in zip(INVERSES_LOG[64], INVERSES_LOG_REST[64], strict=True)]
        return self.fma(near.exponent, LN2, self.f.lookup(whole, near.place, self.type))

    def of_int(self, k: Val) -> Val:
        """A small integer as float."""
        return self.of_bits(k + self.to_bits(self.c(self.magic))) - self.magic

    def less(self, k: Val, n: int) -> Val:
        """``k - n``, for a k of `nearest_power`."""
        return k - (float(n) if self._scales else n)

    def limit_power(self, k: Val, most: int) -> tuple[Val, Val]:
        """A k of `nearest_power` as a sum: of what is at least ``-most`` and at most ``most``, and the rest."""
        zero = 0 if self._scales else self._bits_of(self.magic + 2 * self.bias)
        high, low = (self.f.const(k.type, zero + limit) for limit in (most, -most))
        first = self.f.select(k > high, high, self.f.select(k < low, low, k))
        return first, k - first if self._scales else k - first + zero

    def power_of_two(self, k: Val) -> Val:
        return self.of_bits((k + self.bias) << self.mantissa)

    def scale(self, value: Val, k: Val) -> Val:
        """``value * 2**k``, rounded once, for a k of `nearest_power` of twice the range of exponents."""
        if self._scales:
            return self.f.scalef(value, k)
        first, second = self._powers(k)
        return value * first * second

    def scale_above_one(self, more: Val, k: Val) -> Val:
        """``(1 + more) * 2**k`` in the same way."""
        if self._scales:
            return self.f.scalef(more + 1.0, k)
        first, second = self._powers(k)
        return self.fma(more, first, first) * second

    def _powers(self, k: Val) -> tuple[Val, Val]:
        """Two powers of two, which floats hold, whose product is ``2**k``: of half of k, rounded down, and of the rest.

        Half of twice the bias is the bias, and a shift leaves nothing of the magic number, nor of its half."""
        half = k >> 1
        return self.of_bits(half << self.mantissa), self.of_bits((k - half) << self.mantissa)

    def round(self, x: Val, how: str = "rint") -> Val:
        """To a whole number: ``rint`` (ties to even), ``floor``, ``ceil``, ``trunc``; keeps the sign of zero."""
        if self.isa.name != "sse2":
            return self.f.intrinsic(how, [x])
        size, limit = self.abs(x), 2.0**self.mantissa
        near = self.copysign((size + limit) - limit, x)
        if how == "floor":
            near = self.select(near > x, near - 1.0, near)
        elif how == "ceil":
            near = self.select(near < x, near + 1.0, near)
        elif how == "trunc":
            near = self.select(self.abs(near) > size, self.copysign(self.abs(near) - 1.0, x), near)
        return self.select(size < limit, self.copysign(near, x) if how != "floor" else self._signed(near, x), x)

    def _signed(self, near: Val, x: Val) -> Val:
        """A floor that is 0 keeps the sign of x."""
        return self.select(near.eq(0.0), self.copysign(near, x), near)
