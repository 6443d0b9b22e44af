"""Exponential functions, logarithms, erf and powers of vectors, from polynomials and exact reductions.

Everything is branch-free and keeps NaN, infinities, denormals and the sign of zero; `tests/test_mathlib.py` holds the
error bounds. The shapes of logarithms follow fdlibm; powers of float64 carry the logarithm in two floats, those of
float32 are computed in float64.
"""

from __future__ import annotations

from math import inf, nan

from . import mathpieces
from .emit import F64, Val, vector_type
from .floats import Floats, NearInverse
from .mathconst import LN2, LN2_LONG, LN2_PIECES, LOG2E, LOG2_PIECES, LOG10_2_PIECES, LOG10_PIECES
from .mathconst import SIXTEENTHS_SHIFT

# Arguments beyond which exp is inf, or 0
_EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
# The same of exp2; where sinh and cosh are inf
_EXP2_RANGE = {32: (-152.0, 130.0), 64: (-1080.0, 1030.0)}
_SINH_RANGE = {32: 91.0, 64: 712.0}
_TANH_ONE = {32: mathpieces.TANH_32.most, 64: mathpieces.TANH_64.most}  # from where on it is 1
_SMALLEST_NORMAL = {32: 2.0**-126, 64: 2.0**-1022}
_RAISE = {32: 24, 64: 54}  # denormals are multiplied by this power of 2
_SQRT_HALF = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}  # bits


class Math:
    """Functions of the vectors of a `Floats`."""

    def __init__(self, floats: Floats):
        self.v, self.f, self.bits = floats, floats.f, floats.bits

    # -- exp -------------------------------------------------------------------------------------------------
    def reduced(self, x: Val) -> tuple[Val, Val]:
        """``k, exp(r) - 1`` with ``x = k log(2) + r``."""
        kf, k = self.v.nearest_power(x, LOG2E)
        return k, self._near_expm1(self._less_powers(x, kf))

    def _less_powers(self, x: Val, k: Val) -> Val:
        """``x - k log(2)``."""
        v, (high, low) = self.v, LN2_PIECES[self.bits]
        return v.fma(k, -low, v.fma(k, -high, x))

    def _near_expm1(self, r: Val) -> Val:
        """``exp(r) - 1`` for r of no more than half of log(2)."""
        z = r * r
        return self.v.fma(z, self.v.poly_by_squares("EXP", r, z), r)

    def exp(self, x: Val, low: Val | None = None) -> Val:
        """``exp(x + low)``, where ``low`` is below an ulp of x."""
        v, (least, most) = self.v, _EXP_RANGE[self.bits]
        limited = v.at_most(v.at_least(x, least), most)
        if v.looks_up:
            return v.scale(*self._of_sixteenth(limited, low))
        k, p = self.reduced(limited)
        if low is None:
            return v.scale_above_one(p, k)
        value = p + 1.0  # what this loses counts as much as low
        return v.scale(value + v.fma(value, low, p - (value - 1.0)), k)

    def power(self, x: Val) -> tuple[Val, Val]:
        """``exp(x) / 2**k, k`` for x of no more than the range of `exp`, right to 0.75 ulp."""
        if self.v.looks_up and self.bits == 64:  # in float32 a table leaves 1.0
            return self._of_sixteenth(x)
        k, p = self.reduced(x)
        return p + 1.0, k

    def _of_sixteenth(self, x: Val, low: Val | None = None) -> tuple[Val, Val]:
        """``exp(x + low) / 2**k, k`` in 16 parts of an octave, where `Floats.looks_up`; low is of float64 alone."""
        v, (ln2, ln2_low) = self.v, LN2_PIECES[self.bits]
        k, start = v.nearest_sixteenth(x, LOG2E)
        r = v.fma(k, -ln2, x)
        if self.bits == 32:  # there is no shift
            return self._times_exp(start, v.fma(k, -ln2_low, r)), k
        rest = v.c(0.0) if low is None else low
        return self._times_exp(start, r + v.fma(k, -ln2_low, rest - SIXTEENTHS_SHIFT[64])), k

    def _times_exp(self, start: Val, r: Val) -> Val:
        """``start * exp(r)`` for r within half a sixteenth of an octave."""
        v, z = self.v, r * r
        return v.fma(start, v.fma(z, v.poly_by_squares("EXP_16", r, z), r), start)

    def exp2(self, x: Val) -> Val:
        v, (least, most) = self.v, _EXP2_RANGE[self.bits]
        x = v.at_most(v.at_least(x, least), most)
        if not v.looks_up:
            p, k = self.fraction_power(x)
            return v.scale_above_one(p, k)
        k, start = v.nearest_sixteenth(x)
        return v.scale(self._times_exp(start, v.fma(x - k, LN2, -SIXTEENTHS_SHIFT[self.bits])), k)

    def fraction_power(self, x: Val) -> tuple[Val, Val]:
        """``2**r - 1, k`` with ``x = k + r``."""
        v = self.v
        kf, k = v.nearest_power(x)
        r = (x - kf) * LN2
        z = r * r
        return v.fma(z, v.poly_by_squares("EXP", r, z), r), k

    def half_exp(self, x: Val) -> Val:
        """``exp(x) / 2`` for x >= 0: finite wherever sinh is."""
        k, p = self.reduced(self.v.at_most(x, _SINH_RANGE[self.bits]))
        return self.v.scale_above_one(p, self.v.less(k, 1))

    def sinh(self, x: Val) -> Val:
        return self.sinh_of(x, self.half_exp(self.v.abs(x)))

    def sinh_of(self, x: Val, half: Val) -> Val:
        """``half``: `half_exp` of the size of x."""
        v, z = self.v, x * x
        near = v.fma(x * z, v.poly("SINH", z), x)
        return v.select(v.abs(x) < 1.0, near, v.copysign(half - v.c(0.25) / half, x))

    def cosh(self, x: Val) -> Val:
        value, k = self.power(self.v.at_most(self.v.abs(x), _SINH_RANGE[self.bits]))
        return self.cosh_of(self.v.scale(value, self.v.less(k, 1)))

    def cosh_of(self, half: Val) -> Val:
        return half + self.v.c(0.25) / half

    def expm1(self, x: Val) -> Val:
        v = self.v
        value = self._expm1_of_sixteenth(x) if v.looks_up and self.bits == 64 else self._long_expm1(x)[0]
        return v.select(v.abs(x) < 2.0 ** -(v.mantissa + 2), x, value)

    def _expm1_of_sixteenth(self, x: Val) -> Val:
        """Half an exp that is looked up, less 1/2, is exact or far from 0: nothing cancels."""
        v, (ln2, ln2_low) = self.v, LN2_PIECES[64]
        limited = v.at_most(v.at_least(x, -40.0), _EXP_RANGE[64][1])
        k, half, beside = v.near_half_exp(limited, LOG2E)
        first, low = v.fma(k, -ln2, limited), v.fma(k, -ln2_low, v.neg(beside))  # first is exact
        r = first + low
        z = r * r
        power = v.fma(z, v.poly_by_squares("EXPM1_16", r, z), low) + first
        half = v.scale(half, k)  # twice of it may be too large
        value = v.fma(half, power, half - 0.5)
        return value + value

    def _long_expm1(self, x: Val) -> tuple[Val, Val]:
        """``exp(x) - 1`` as a sum of two floats."""
        v, (high, low) = self.v, LN2_PIECES[self.bits]
        limited = v.at_most(v.at_least(x, -40.0 if self.bits == 64 else -20.0), _EXP_RANGE[self.bits][1])
        kf, k = v.nearest(limited * LOG2E)
        first = v.fma(kf, -high, limited)
        r = v.fma(kf, -low, first)
        z = r * r
        tail = z * v.poly_by_squares("EXP", r, z)
        p = r + tail
        lost = ((r - p) + tail) + v.fma(kf, -low, first - r) * (p + 1.0)
        half = v.power_of_two(k - 1)  # 2**k itself may be too large
        value, rest = v.two_sum(half - 0.5, half * p)
        rest = v.fma(half, lost, rest)
        total = value + rest
        rest = (value - total) + rest
        return total + total, rest + rest

    def sigmoid(self, x: Val) -> Val:
        """``1 / (1 + e)`` or ``e / (1 + e)``, corrected by what ``1 + e`` lost."""
        v = self.v
        # an ulp of exp is one of the value, or two: a table would leave too little
        k, p = self.reduced(v.at_least(v.neg(v.abs(x)), _EXP_RANGE[self.bits][0]))
        small, negative = v.scale_above_one(p, k), x < 0.0
        total = small + 1.0
        lost = (v.c(1.0) - total) + small
        value = v.select(negative, small, 1.0) / total
        inverse = v.select(negative, v.c(1.0) - value, value)
        return v.fma(value * lost, v.neg(inverse), value)

    def tanh(self, x: Val) -> Val:
        """``1 - 2 / (exp(2 x) + 1)``; near 0 ``x - x z P(z) / Q(z)`` by the same division, as in Cephes.

        By pieces, where registers hold them."""
        v = self.v
        if v.looks_up:
            by_pieces = self._tanh_by_polynomials if self.bits == 32 else self._tanh_by_differences
            return v.copysign(by_pieces(v.abs(x)), x)
        size, z = v.abs(x), x * x
        near, below = size < 0.625, self._exp_above_one(v.at_most(size, _TANH_ONE[self.bits]))
        ratio = v.select(near, z * v.poly("TANH", z), 2.0) / v.select(near, v.poly("TANH_BELOW", z), below)
        size = v.select(near, size, 1.0)
        return v.copysign(v.fma(v.neg(size), ratio, size), x)

    def _exp_above_one(self, x: Val) -> Val:
        """``exp(2 x) + 1`` for x from 0 to where tanh is 1: the larger it is the less of it counts. So log(2) may be one
        float where no product is rounded, and powers of two are in the range of floats."""
        v, twice = self.v, x + x
        k, power = v.power_near(twice, LOG2E)
        r = v.fma(k, -LN2, twice) if v.isa.fma else self._less_powers(twice, k)
        return v.fma(self._near_expm1(r), power, power + 1.0)

    def _tanh_by_polynomials(self, size: Val) -> Val:
        return self.v.of_pieces(mathpieces.TANH_32, self.v.at_most(size, mathpieces.TANH_32.most))

    def _tanh_by_differences(self, size: Val) -> Val:
        """``t + (1 - t^2) T / (1 + t T)``, where ``size = p + r`` for the point p of its piece, ``t = tanh(p)``, and
        ``T = tanh(r) = r P(z) / (P(z) + z Q(z))`` with ``z = r * r``.

        What is added to t is ``(1 - t^2) r`` less a part of it, not a quotient: where p and t are 0, it alone rounds."""
        v, pieces = self.v, mathpieces.TANH_64
        size = v.at_most(size, pieces.most)
        point, value = v.row_of(pieces, size)
        r = size - point
        z = r * r
        above = v.poly("TANH_NEAR", z)
        more = v.fma(value * r, above, z * v.poly("TANH_NEAR_MORE", z))
        first = v.fma(v.neg(value), value, 1.0) * r
        return value + v.fma(v.neg(first), v.near_quotient(more, more + above), first)

    # -- log -------------------------------------------------------------------------------------------------
    def _split(self, x: Val) -> tuple[Val, Val]:
        """``f, k`` with ``x = (1 + f) 2**k`` and sqrt(1/2) <= 1 + f < sqrt(2), for x positive and finite."""
        v = self.v
        tiny, one = x < _SMALLEST_NORMAL[self.bits], v.bias << v.mantissa
        raised = self.f.select(tiny, x * 2.0 ** _RAISE[self.bits], x)
        bits = v.to_bits(raised) + (one - _SQRT_HALF[self.bits])
        k = (bits >> v.mantissa) - v.bias
        k = self.f.select(tiny, k - _RAISE[self.bits], k)
        m = v.of_bits((bits & ((1 << v.mantissa) - 1)) + _SQRT_HALF[self.bits])
        return m - 1.0, v.of_int(k)

    def log(self, x: Val, low: Val | None = None) -> Val:
        """``log(x) + low``."""
        if self.v.looks_up:
            near = self.v.near_inverse(x)
            return self._log_of_near(near, self.v.fma(near.fraction, near.inverse, -1.0), low)
        return self._special_log(x, self._log(*self._split(x), low))

    def log_of_sum(self, total: Val, rest: Val, excess: tuple[Val, Val]) -> Val:
        """``log(total + rest)``, where ``excess`` is that less 1, in two floats: all that counts near 1."""
        v, (f, k) = self.v, self._split(total)
        near = v.abs(excess[0]) < 0.25
        f, low = v.select(near, excess[0], f), v.select(near, excess[1], rest / total)
        return self._special_log(total, self._log(f, v.select(near, 0.0, k), low))

    def _log_of_near(self, near: NearInverse, r: Val, low: Val | None) -> Val:
        """``log(x) + low`` for ``x * inverse = (1 + r) 2**exponent``."""
        v, z, (high, rest) = self.v, r * r, self.v.log_of_inverse(near)
        total, lost = v.ordered_sum(high, r)
        return total + (lost + v.fma(z, v.poly_by_squares("LOG_16", r, z), rest if low is None else rest + low))

    def _log(self, f: Val, k: Val, low: Val | None) -> Val:
        """``log(1 + f) + k log(2) + low``."""
        v, (ln2, ln2_low) = self.v, LN2_PIECES[self.bits]
        s = f / (f + 2.0)
        z = s * s
        square = f * f * 0.5
        tail = s * (square + z * v.poly("LOG", z)) + (k * ln2_low if low is None else v.fma(k, ln2_low, low))
        return k * ln2 - ((square - tail) - f)

    def _special_log(self, x: Val, value: Val) -> Val:
        v = self.v
        value = v.select(x.eq(inf), inf, value)
        value = v.select(x.eq(0.0), -inf, value)
        return v.select(Val(self.f, self.f.b.fcmp_unordered("<", x.v, v.c(0.0).v)), nan, value)

    def _log_pieces(self, x: Val) -> tuple[Val, Val, Val]:
        """``k, high, low`` with ``log(x) = k log(2) + high + low``; high has so few bits that products are exact."""
        v = self.v
        f, k = self._split(x)
        s = f / (f + 2.0)
        square = f * f * 0.5
        kept = -(1 << 12) if self.bits == 32 else -(1 << 32)
        high = v.of_bits(v.to_bits(f - square) & kept)
        low = ((f - high) - square) + s * (square + s * s * v.poly("LOG", s * s))
        return k, high, low

    def log2(self, x: Val) -> Val:
        """As in FreeBSD."""
        (k, high, low), (one, two) = self._log_pieces(x), LOG2_PIECES[self.bits]
        first = high * one
        total = k + first
        return self._special_log(x, total + ((low + high) * two + low * one + ((k - total) + first)))

    def log10(self, x: Val) -> Val:
        (k, high, low), (one, two) = self._log_pieces(x), LOG10_PIECES[self.bits]
        first, start = high * one, k * LOG10_2_PIECES[self.bits][0]
        rest = k * LOG10_2_PIECES[self.bits][1] + (low + high) * two + low * one
        total = start + first
        return self._special_log(x, total + (rest + ((start - total) + first)))

    def log1p(self, x: Val) -> Val:
        v = self.v
        u, lost = v.two_sum(v.c(1.0), x)
        lost = v.select(x < inf, lost, 0.0)
        if v.looks_up:
            near = v.near_inverse(u)
            r = v.fma(near.fraction, near.inverse, -1.0)
            # lost / u, but for r^2 of it: that is little, for lost is little of r where r is
            part = v.scale(lost * near.inverse, v.neg(near.exponent))
            value = self._log_of_near(near, r, part * (v.c(1.0) - r))
        else:
            value = self.log(u, lost / u)
        value = v.select(u.eq(0.0), -inf, value)
        return v.select(x.eq(0.0), x, value)

    # -- roots, erf ------------------------------------------------------------------------------------------
    def sqrt(self, x: Val) -> Val:
        return self.v.sqrt(x)

    def rsqrt(self, x: Val) -> Val:
        return self.v.c(1.0) / self.v.sqrt(x)

    def cbrt(self, x: Val) -> Val:
        """``y (1 - r)^(-1/3)`` by its series, for an estimate y of the root and ``r = 1 - y^3 / m`` of a fraction m."""
        v, f, size = self.v, self.f, self.v.abs(x)
        tiny, one = size < _SMALLEST_NORMAL[self.bits], v.bias << v.mantissa
        bits = v.to_bits(f.select(tiny, size * 2.0 ** _RAISE[self.bits], size))
        exponent = (bits >> v.mantissa) - v.bias
        m = v.of_bits((bits & ((1 << v.mantissa) - 1)) | one)
        _, third = v.nearest((v.of_int(exponent) - 1.0) * (1 / 3))
        left = exponent - (third + third + third)  # 0, 1 or 2
        y = v.poly("CBRT", m) * v.select(left.eq(0), 1.0, v.select(left.eq(1), 2 ** (1 / 3), 2 ** (2 / 3)))
        m = m * v.power_of_two(left)
        square, square_low = v.two_product(y, y)
        cube, cube_low = v.two_product(square, y)
        r = (((m - cube) - cube_low) - square_low * y) / m
        y = v.fma(y * r, v.fma(r, v.fma(r, 14 / 81, 2 / 9), 1 / 3), y)
        third = f.select(tiny, third - _RAISE[self.bits] // 3, third)
        usual = (size > 0.0) & (size < inf)
        return v.select(usual, v.copysign(y * v.power_of_two(third), x), x)

    def hypot(self, a: Val, b: Val) -> Val:
        v, f = self.v, self.f
        a, b = v.abs(a), v.abs(b)
        if v.bits == 32:
            x, y = self._widen(a), self._widen(b)
            value = f.convert(f.intrinsic("sqrt", [x * x + y * y]), "fptrunc", v.type)
        else:
            large, small = f.select(a > b, a, b), f.select(a > b, b, a)
            # a power of two keeps squares away from both ends of the range
            up, down = large < 2.0**-500, large > 2.0**500
            scale = v.select(up, 2.0**600, v.select(down, 2.0**-600, 1.0))
            back = v.select(up, 2.0**-600, v.select(down, 2.0**600, 1.0))
            x, y = large * scale, small * scale
            value = v.sqrt(v.fma(x, x, y * y)) * back
        value = v.select(v.isnan(a) | v.isnan(b), nan, value)
        return v.select(a.eq(inf) | b.eq(inf), inf, value)

    def erf(self, x: Val) -> Val:
        v = self.v
        size = v.at_most(v.abs(x), 6.0 if self.bits == 64 else 4.0)
        near = v.fma(x, v.poly("ERF", x * x), x)
        t = (size - 2.0) / (size + 2.0)
        far = v.fma(self.exp(v.neg(size * size)), v.neg(v.poly("ERFCX", t)), 1.0)
        return v.select(v.abs(x) < 1.0, near, v.copysign(far, x))

    # -- pow -------------------------------------------------------------------------------------------------
    def pow(self, x: Val, y: Val) -> Val:
        v = self.v
        size = v.abs(x)
        value = self.power_of_size(size, y)
        whole, halved = v.round(y).eq(y), y * 0.5
        odd = whole & v.ne(v.round(halved), halved)
        negative = v.to_bits(x) < 0
        value = self.f.select(negative & odd, v.neg(value), value)
        undefined = (x < 0.0) & (x > -inf) & (v.ne(v.round(y), y))
        value = v.select(undefined, nan, value)
        one = x.eq(1.0) | y.eq(0.0) | (size.eq(1.0) & v.abs(y).eq(inf))
        return v.select(one, 1.0, value)

    def power_of_size(self, x: Val, y: Val) -> Val:
        """``x**y`` for x >= 0; of what is 1 whatever the other is, anything."""
        v = self.v
        if self.bits == 64:
            return self._power(x, v.at_most(v.at_least(y, -1e30), 1e30))
        wide = Math(Floats(self.f, v.isa, v.lanes, 64))
        value = wide._narrow_power(self._widen(x), self._widen(y))
        return self.f.convert(value, "fptrunc", v.type)

    def _widen(self, x: Val) -> Val:
        return self.f.convert(x, "fpext", vector_type(F64, self.v.lanes))

    def _narrow_power(self, x: Val, y: Val) -> Val:
        """``x**y`` for x >= 0 of the range of float32, with an error of a fraction of its ulp."""
        v = self.v
        if not v.looks_up:
            return self.exp(y * self.log(x))
        near = v.near_inverse(x)
        r = v.fma(near.fraction, near.inverse, -1.0)
        log = v.short_log_of_inverse(near) + v.fma(r * r, v.poly_by_squares("LOG_16_SHORT", r, r * r), r)
        least, most = _EXP_RANGE[32]
        power = v.at_most(v.at_least(v.fma(y, log, -SIXTEENTHS_SHIFT[64]), least), most)
        k, start = v.nearest_sixteenth(power, LOG2E)
        r = v.fma(k, -LN2, power)
        return v.scale(v.fma(start, v.fma(r * r, v.poly("EXP_16_SHORT", r), r), start), k)

    def _power(self, x: Val, y: Val) -> Val:
        """``x**y`` for x >= 0, y finite."""
        v = self.v
        high, low = self._long_log(x)
        product, lost = v.two_product(y, high)
        low = v.fma(y, low, lost)
        special = v.select(x.eq(0.0), -inf, x)  # log(inf) is inf, and NaN stays
        plain = (x > 0.0) & (x < inf)
        product = self.f.select(plain, product, special * y)
        small = v.abs(product) < 800.0
        return self.exp(product, v.select(small, low, 0.0))

    def _long_log(self, x: Val) -> tuple[Val, Val]:
        """log(x) as a sum of two floats, with an error of some 2^-65 of it."""
        v = self.v
        if v.looks_up:
            return self._long_log_of_near(v.near_inverse(x))
        f, k = self._split(x)
        d = f + 2.0
        s = f / d
        product, lost = v.two_product(s, d)
        s_low = (((f - product) - lost) - s * (f - (d - 2.0))) / d
        z, z_low = v.two_product(s, s)
        z_low = v.fma(s + s, s_low, z_low)
        # g = z/3 + z^2 (...), log(1 + f) = 2 s (1 + g)
        third, w_low = v.two_product(z, v.c(1 / 3))
        w_low = w_low + z * 1.850371707708594e-17 + z_low * (1 / 3) + z * z * v.poly("POW", z)
        g = third + w_low
        g_low = (third - g) + w_low
        first, first_low = s + s, s_low + s_low
        rest, rest_low = v.two_product(first, g)
        rest_low = rest_low + first * g_low + first_low * g
        m = first + rest
        m_low = ((first - m) + rest) + (first_low + rest_low)
        total, total_low = v.two_sum(k * LN2_LONG[0], m)
        total_low = total_low + v.fma(k, LN2_LONG[1], m_low)
        high = total + total_low
        return high, (total - high) + total_low

    def _long_log_of_near(self, near: NearInverse) -> tuple[Val, Val]:
        """The same; ``log(1 + r)`` as ``r - r^2 / 2 + r^3 / 3 + r^4 (...)``, three terms of it in two floats each."""
        v = self.v
        product, r_low = v.two_product(near.fraction, near.inverse)
        r = product - 1.0
        square, square_low = v.two_product(r, r)
        third = r * (1 / 3)
        third_low = v.fma(r, 1 / 3, v.neg(third)) + r * 1.850371707708594e-17
        cube, cube_low = v.two_product(square, third)
        cube_low = cube_low + v.fma(square, third_low, square_low * third)
        tail = v.fma(square * square, v.poly_by_squares("POW_16", r, square), cube_low)
        tail = tail + v.fma(r_low, (v.c(1.0) - r) + square, square_low * -0.5)
        high, low = v.log_of_inverse(near)
        total, tail = high, tail + low
        for term in (r, square * -0.5, cube):
            total, lost = v.ordered_sum(total, term)
            tail = tail + lost
        return v.ordered_sum(total, tail)
