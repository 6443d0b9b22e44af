"""Functions of complex numbers, put together from real ones: pairs of vectors, real and imaginary parts.

Special values are those of C99, annex G, and what NumPy defines beyond it (powers, order, sign).
"""

from __future__ import annotations

from math import inf, log, nan

from .emit import Val, Var
from .floats import Floats
from .mathconst import LN2, LN2_REST
from .mathinverse import Inverse
from .mathlib import Math
from .mathtrig import Trig

Pair = tuple[Val, Val]
# Arguments of the exponential beyond which no product with a float is finite and not 0
_EXP_RANGE = {32: (-104.0, 200.0), 64: (-746.0, 1500.0)}
_LEVEL = {32: 10.0, 64: 20.0}  # from here on, sinh, cosh and half of exp are one
# Sizes whose squares need a power of two, and its exponent
_SQUARES = {32: (2.0**-40, 2.0**40, 100), 64: (2.0**-400, 2.0**400, 600)}
_WHOLE_POWERS = 100.0  # smaller whole exponents are products, as in NumPy


class ComplexMath:
    """Functions of the pairs of a `Floats`."""

    def __init__(self, v: Floats):
        self.v, self.f, self.math, self.trig = v, v.f, Math(v), Trig(v)

    def _either(self, condition: Val, a: Pair, b: Pair) -> Pair:
        return tuple(self.v.select(condition, x, y) for x, y in zip(a, b, strict=True))

    def _infinite(self, z: Pair) -> Val:
        return self.v.abs(z[0]).eq(inf) | self.v.abs(z[1]).eq(inf)

    def _unbounded(self, x: Val) -> Val:
        """Infinite or NaN."""
        return (self.v.abs(x) < inf) ^ self.v.true()

    # -- arithmetic ------------------------------------------------------------------------------------------
    def mul(self, z: Pair, w: Pair) -> Pair:
        (a, b), (c, d) = z, w
        return a * c - b * d, a * d + b * c

    def div(self, z: Pair, w: Pair) -> Pair:
        """Smith's, as NumPy: by the larger part of the divisor."""
        v, f, (a, b), (c, d) = self.v, self.f, z, w
        wide = v.abs(c) >= v.abs(d)
        large, small = f.select(wide, c, d), f.select(wide, d, c)
        ratio = small / large
        scale = v.c(1.0) / (large + small * ratio)
        x, y = f.select(wide, a, b), f.select(wide, b, a)
        re = (x + y * ratio) * scale
        im = f.select(wide, b - a * ratio, b * ratio - a) * scale
        zero = large.eq(0.0)
        return f.select(zero, a / v.abs(c), re), f.select(zero, b / v.abs(c), im)

    def sign(self, z: Pair) -> Pair:
        """``z / abs(z)``; of infinite numbers the direction, where there is one."""
        v, (x, y) = self.v, z
        size = self.math.hypot(x, y)
        flat, steep = v.abs(x).eq(inf), v.abs(y).eq(inf)
        usual = self._either(size.eq(0.0), (v.c(0.0), v.c(0.0)), (x / size, y / size))
        one = v.c(1.0)
        level = self._either(flat, (v.copysign(one, x), v.c(0.0)), (v.c(0.0), v.copysign(one, y)))
        lost = (flat & steep) | v.isnan(size)
        return self._either(lost, (v.c(nan), v.c(nan)), self._either(flat | steep, level, usual))

    # -- order: by real part, then by imaginary part -----------------------------------------------------------
    def compare(self, op: str, z: Pair, w: Pair) -> Val:
        """``lt``, ``le``, ``gt`` or ``ge``; false where a part that counts is NaN."""
        v, (a, b), (c, d) = self.v, z, w
        known = (v.isnan(b) | v.isnan(d)) ^ v.true()
        first = a < c if op in ("lt", "le") else a > c
        second = {"lt": b < d, "le": b <= d, "gt": b > d, "ge": b >= d}[op]
        return (first & known) | (a.eq(c) & second)

    def extreme(self, op: str, z: Pair, w: Pair) -> Pair:
        """``max`` or ``min``; the first one with a NaN."""
        kept = self.compare("ge" if op == "max" else "le", z, w) | self.v.isnan(z[0]) | self.v.isnan(z[1])
        return self._either(kept, z, w)

    # -- exp -------------------------------------------------------------------------------------------------
    def _power(self, x: Val) -> tuple[Val, Val]:
        """``value, k`` with ``exp(x) = value 2**k``."""
        v, (least, most) = self.v, _EXP_RANGE[self.v.bits]
        value, k = self.math.power(v.at_most(v.at_least(x, least), most))
        return v.select(x.eq(inf), inf, value), k

    def _grown(self, value: Val, k: Val, part: Val) -> Val:
        """``value * 2**k * part`` for k of twice the range of exponents; no product on the way leaves the range."""
        v, most = self.v, 1000 if self.v.bits == 64 else 120
        first, rest = v.limit_power(k, most)
        return v.scale(v.scale(value, first) * part, rest)

    def exp(self, z: Pair) -> Pair:
        """``exp(x) (cos(y) + i sin(y))``, the power of two last."""
        return self._exp(z, *self.trig.both(z[1]), self._power(z[0]))

    def _exp(self, z: Pair, sine: Val, cosine: Val, power: tuple[Val, Val]) -> Pair:
        """``power``: two to the k times a value, of x."""
        v, (x, y), (value, k) = self.v, z, power
        re, im = self._grown(value, k, cosine), self._grown(value, k, sine)
        unbounded = self._unbounded(y)
        zero = unbounded & x.eq(-inf)
        re = v.select(zero, 0.0, v.select(unbounded & x.eq(inf), inf, re))
        return re, v.select(y.eq(0.0), y, v.select(zero, v.copysign(v.c(0.0), y), im))

    def exp2(self, z: Pair) -> Pair:
        """The angle, y log(2), is a sum of two floats, of which the second is an angle of its own where y is large."""
        v, (x, y), (least, most) = self.v, z, _EXP_RANGE[self.v.bits]
        angle, low = v.two_product(y, v.c(LN2))
        low = low + y * LN2_REST[v.bits]
        sine, cosine = self.trig.both(angle)
        turn, rest = self.trig.both(low)
        sine, cosine = v.fma(turn, cosine, sine * rest), v.fma(v.neg(turn), sine, cosine * rest)
        p, k = self.math.fraction_power(v.at_most(v.at_least(x, least * 1.5), most * 1.5))
        return self._exp(z, sine, cosine, (v.select(x.eq(inf), inf, p + 1.0), k))

    def expm1(self, z: Pair) -> Pair:
        """``exp(x) cos(y) - 1 = (exp(x) - 1) cos(y) - 2 sin(y / 2)^2``."""
        v, (x, y) = self.v, z
        sine, cosine = self.trig.both(y)
        re, im = self._exp(z, sine, cosine, self._power(x))
        half = self.trig.sin(y * 0.5)
        small = self.math.expm1(x) * cosine - half * half * 2.0
        return v.select(x > _LEVEL[v.bits], re - 1.0, small), im

    # -- hyperbolic and trigonometric ------------------------------------------------------------------------
    def _hyperbolic(self, z: Pair, real: str) -> Pair:
        """``sinh(x) cos(y), cosh(x) sin(y)``, or, for ``real`` cosh, ``cosh(x) cos(y), sinh(x) sin(y)``."""
        v, (x, y) = self.v, z
        sine, cosine = self.trig.both(y)
        size = v.abs(x)
        value, k = self._power(size)
        k = v.less(k, 1)
        half = v.scale(value, k)
        parts = {"sinh": self.math.sinh_of(x, half), "cosh": self.math.cosh_of(half)}
        signed = {"sinh": v.copysign(value, x), "cosh": value}
        other = "cosh" if real == "sinh" else "sinh"
        far = size > _LEVEL[v.bits]
        return tuple(
            v.select(far, self._grown(signed[name], k, angle), parts[name] * angle)
            for name, angle in ((real, cosine), (other, sine))
        )

    def sinh(self, z: Pair) -> Pair:
        v, (x, y) = self.v, z
        re, im = self._hyperbolic(z, "sinh")
        kept = self._unbounded(y) & (x.eq(0.0) | v.abs(x).eq(inf))
        return v.select(kept, x, re), v.select(y.eq(0.0), y, im)

    def cosh(self, z: Pair) -> Pair:
        v, (x, y) = self.v, z
        re, im = self._hyperbolic(z, "cosh")
        unbounded = self._unbounded(y)
        re = v.select(unbounded & v.abs(x).eq(inf), inf, re)
        zero = v.select(x.eq(0.0) & unbounded, 0.0, im)
        sign = v.select(v.isnan(x), 1.0, v.copysign(v.c(1.0), x))
        return re, v.select(y.eq(0.0), sign * y, zero)

    def tanh(self, z: Pair) -> Pair:
        """``sinh(x) cosh(x) + i sin(y) cos(y)`` over ``sinh(x)^2 + cos(y)^2``, in the end ``exp(2 |x|) / 4``."""
        v, (x, y) = self.v, z
        sine, cosine = self.trig.both(y)
        size = v.abs(x)
        far = size > _LEVEL[v.bits]
        near = v.select(far, 1.0, size)
        half = self.math.half_exp(near)
        hyper, product = self.math.sinh_of(near, half), sine * cosine
        below = v.fma(hyper, hyper, cosine * cosine)
        re = v.select(far, 1.0, hyper * self.math.cosh_of(half) / below)
        im = v.select(far, product * self.math.exp(size * -2.0) * 4.0, product / below)
        return self._special_tanh(x, y, v.copysign(re, x), im)

    def _special_tanh(self, x: Val, y: Val, re: Val, im: Val) -> Pair:
        v = self.v
        level, unbounded = v.abs(x).eq(inf), self._unbounded(y)
        re = v.select(unbounded, v.select(x.eq(0.0), x, nan), re)
        re = v.select(level, v.copysign(v.c(1.0), x), v.select(v.isnan(x), x, re))
        im = v.select(unbounded & level, v.copysign(v.c(0.0), y), im)
        return re, v.select(y.eq(0.0), y, im)

    def _turned(self, name: str, z: Pair) -> Pair:
        """``-i f(i z)``: a function of the imaginary axis."""
        re, im = getattr(self, name)((self.v.neg(z[1]), z[0]))
        return im, self.v.neg(re)

    def sin(self, z: Pair) -> Pair:
        return self._turned("sinh", z)

    def tan(self, z: Pair) -> Pair:
        return self._turned("tanh", z)

    def cos(self, z: Pair) -> Pair:
        return self.cosh((self.v.neg(z[1]), z[0]))

    # -- logarithms ------------------------------------------------------------------------------------------
    def _log_size(self, x: Val, y: Val, low: Val | None = None) -> Val:
        """``log |x + low + i y|``: half the logarithm of the sum of the squares, which are kept as two floats each."""
        v, (least, most, shift) = self.v, _SQUARES[self.v.bits]
        a, b = v.abs(x), v.abs(y)
        large = v.select(a > b, a, b)
        up, down = large < least, large > most
        scale = v.select(up, 2.0**shift, v.select(down, 2.0**-shift, 1.0))
        a, b = a * scale, b * scale
        (one, one_low), (two, two_low) = v.two_product(a, a), v.two_product(b, b)
        total, total_low = v.two_sum(one, two)
        rest, lost = v.two_sum(one_low, two_low)
        rest, more = v.two_sum(rest, total_low)
        lost = lost + more
        if low is not None:
            lost = lost + x * scale * (low * scale) * 2.0
        excess, more = v.two_sum(total - 1.0, rest)
        value = self.math.log_of_sum(total, rest + lost, (excess, more + lost)) * 0.5
        value = value + v.select(up, -shift * log(2), v.select(down, shift * log(2), 0.0))
        return v.select(self._infinite((x, y)), inf, value)

    def _angle(self, y: Val, x: Val) -> Val:
        return Inverse(self.v).arctan2(y, x)

    def log(self, z: Pair) -> Pair:
        return self._log_size(*z), self._angle(z[1], z[0])

    def _scaled_log(self, z: Pair, factor: float) -> Pair:
        re, im = self.log(z)
        return re * factor, im * factor

    def log2(self, z: Pair) -> Pair:
        return self._scaled_log(z, 1 / log(2))

    def log10(self, z: Pair) -> Pair:
        return self._scaled_log(z, 1 / log(10))

    def log1p(self, z: Pair) -> Pair:
        (x, y), v = z, self.v
        total, low = v.two_sum(v.c(1.0), x)
        low = v.select(v.abs(x) < 2.0**60, low, 0.0)
        return self._log_size(total, y, low), self._angle(y, total)

    # -- powers ----------------------------------------------------------------------------------------------
    def sqrt(self, z: Pair) -> Pair:
        """``t + i y / 2t`` with ``t = sqrt((|x| + |z|) / 2)``, the other way round where x is negative. Powers of 4
        keep it away from both ends of the range."""
        v, (x, y) = self.v, z
        most = v.select(v.abs(x) > v.abs(y), v.abs(x), v.abs(y))
        limits = (2.0**-900, 2.0**900, 2.0**200) if v.bits == 64 else (2.0**-90, 2.0**90, 2.0**40)
        low, high = most < limits[0], most > limits[1]
        scale = v.select(low, limits[2], v.select(high, 1 / limits[2], 1.0))
        back = v.select(low, limits[2] ** -0.5, v.select(high, limits[2] ** 0.5, 1.0))
        a, b = x * scale, y * scale
        t = v.sqrt((v.abs(a) + self.math.hypot(a, b)) * 0.5)
        other = b / (t + t)
        t, other = t * back, other * back
        minus = x < 0.0
        re, im = v.select(minus, v.abs(other), t), v.select(minus, v.copysign(t, y), other)
        return self._special_sqrt(x, y, re, im)

    def _special_sqrt(self, x: Val, y: Val, re: Val, im: Val) -> Pair:
        v = self.v
        zero = x.eq(0.0) & y.eq(0.0)
        re, im = v.select(zero, 0.0, re), v.select(zero, y, im)
        bad = v.isnan(y)
        up, down = x.eq(inf), x.eq(-inf)
        re = v.select(up, inf, v.select(down, v.select(bad, nan, 0.0), re))
        im = v.select(up, v.select(bad, nan, v.copysign(v.c(0.0), y)), v.select(down, v.copysign(v.c(inf), y), im))
        wide = v.abs(y).eq(inf)
        return v.select(wide, inf, re), v.select(wide, y, im)

    def pow(self, z: Pair, w: Pair) -> Pair:
        """``exp(w log(z))``; small whole exponents by products; powers of 0 as NumPy has them."""
        v, (c, d) = self.v, w
        one = (v.c(1.0), v.c(0.0))
        general = self.exp(self.mul(w, self.log(z)))
        whole = d.eq(0.0) & v.round(c).eq(c) & (v.abs(c) < _WHOLE_POWERS)
        product = self._product(z, v.nearest(v.select(whole, v.abs(c), 0.0))[1])
        product = self._either(c < 0.0, self.div(one, product), product)
        value = self._either(whole, product, general)
        lost = z[0].eq(0.0) & z[1].eq(0.0)
        none = (v.select(c > 0.0, 0.0, nan),) * 2
        value = self._either(lost, none, value)
        return self._either(c.eq(0.0) & d.eq(0.0), one, value)

    def _product(self, z: Pair, exponent: Val) -> Pair:
        """``z**exponent`` for whole exponents >= 0, by squares."""
        v, f = self.v, self.f
        left, begun = Var(f, exponent), Var(f, exponent.ne(exponent))
        total, base = [Var(f, v.c(value)) for value in (1.0, 0.0)], [Var(f, part) for part in z]
        with f.while_() as leave:
            going = left.get().ne(0)
            leave(v.any(going).eq(0))
            odd = (left.get() & 1).ne(0)
            power = tuple(part.get() for part in base)
            old = tuple(part.get() for part in total)
            more = self._either(begun.get(), self.mul(old, power), power)
            squares = self.mul(power, power)
            for part, value, before in zip(total, more, old, strict=True):
                part.set(f.select(odd, value, before))
            for part, value in zip(base, squares, strict=True):
                part.set(value)
            begun.set(begun.get() | odd)
            left.set(left.get() >> 1)
        return tuple(part.get() for part in total)
