"""Inverse trigonometric and hyperbolic functions of vectors, branch-free; largest errors are those of `test_mathlib`.

Inverse hyperbolic functions are logarithms of sums of two floats, so that nothing is lost near 0 and 1.
"""

from __future__ import annotations

from math import inf, nan

from .emit import Val
from .floats import Floats
from .mathconst import LN2, PI_PIECES
from .mathlib import Math

_TINY = {32: 2.0**-6, 64: 2.0**-13}  # up to here, two terms of the series are exact to an ulp
_HUGE = {32: 2.0**14, 64: 2.0**30}  # from here on, x^2 + 1 is x^2


class Inverse:
    """Functions of the vectors of a `Floats`."""

    def __init__(self, floats: Floats):
        self.v, self.f, self.bits = floats, floats.f, floats.bits
        self.pi, self.pi_low = PI_PIECES[self.bits]

    # -- arctangents -----------------------------------------------------------------------------------------
    def _tail(self, name: str, r: Val, z: Val) -> Val:
        return r * z * self.v.poly(name, z)

    def arctan(self, x: Val) -> Val:
        v, size = self.v, self.v.abs(x)
        far = size > 1.0
        t = v.select(far, v.c(1.0) / size, size)
        near = t + self._tail("ATAN", t, t * t)
        value = v.select(far, v.c(self.pi / 2) - (near - self.pi_low / 2), near)
        return v.copysign(value, x)

    def arctan2(self, y: Val, x: Val) -> Val:
        """A quarter turn, half a turn or none, and the angle of the smaller one to the larger."""
        v, f = self.v, self.f
        a, b = v.abs(y), v.abs(x)
        steep = a > b
        low, high = f.select(steep, b, a), f.select(steep, a, b)
        t = v.select(low.eq(high), v.select(low.eq(0.0), 0.0, 1.0), low / high)
        tail = self._tail("ATAN", t, t * t)
        back = v.to_bits(x) < 0
        flip = steep ^ back
        t, tail = v.flip_where(flip, t), v.flip_where(flip, tail)
        base, base_low = (
            v.select(steep, part / 2, v.select(back, part, 0.0)) for part in (self.pi, self.pi_low)
        )
        return v.copysign(base + (t + (tail + base_low)), y)

    # -- arcsine, arccosine ----------------------------------------------------------------------------------
    def _half_angle(self, x: Val) -> tuple[Val, Val, Val]:
        """``far, r, tail``: the arcsine of \\|x| is r + tail, or, where far, a quarter turn less twice that."""
        v, size = self.v, self.v.abs(x)
        far = size > 0.5
        z = v.select(far, (v.c(1.0) - size) * 0.5, x * x)
        r = v.select(far, v.sqrt(z), size)
        return far, r, self._tail("ASIN", r, z)

    def arcsin(self, x: Val) -> Val:
        v = self.v
        far, r, tail = self._half_angle(x)
        quarter, lost = v.two_sum(v.c(self.pi / 2), (r + r) * -1.0)
        turned = quarter + (lost - ((tail + tail) - self.pi_low / 2))
        return v.copysign(v.select(far, turned, r + tail), x)

    def arccos(self, x: Val) -> Val:
        v = self.v
        far, r, tail = self._half_angle(x)
        angle = r + tail
        twice = angle + angle
        large = v.select(x < 0.0, v.c(self.pi) - (twice - self.pi_low), twice)
        return v.select(far, large, v.c(self.pi / 2) - (v.copysign(angle, x) - self.pi_low / 2))

    # -- inverse hyperbolic ----------------------------------------------------------------------------------
    def _log_of_sum(self, x: Val, sign: float) -> Val:
        """``log(x + sqrt(x^2 + sign))`` of a positive x."""
        v, f, math = self.v, self.f, Math(self.v)
        huge = x > _HUGE[self.bits]
        near = v.at_most(x, _HUGE[self.bits])
        square, square_low = v.two_product(near, near)
        total, total_low = v.two_sum(square, v.c(sign))
        root = v.sqrt(total)
        product, lost = v.two_product(root, root)
        root_low = ((total - product) - lost + (total_low + square_low)) / (root + root)
        high, low = v.two_sum(root, near)
        low = (low + v.select(root > 0.0, root_low, 0.0)) / high
        return math.log(f.select(huge, x, high), v.select(huge, LN2, low))

    def arcsinh(self, x: Val) -> Val:
        v, size = self.v, self.v.abs(x)
        near = v.fma(size * size * size, -1 / 6, size)
        return v.copysign(v.select(size < _TINY[self.bits], near, self._log_of_sum(size, 1.0)), x)

    def arccosh(self, x: Val) -> Val:
        return self.v.select(x < 1.0, nan, self._log_of_sum(x, -1.0))

    def arctanh(self, x: Val) -> Val:
        """Half the logarithm of (1 + x) / (1 - x)."""
        v, size = self.v, self.v.abs(x)
        near = v.fma(size * size * size, 1 / 3, size)
        (n, n_low), (d, d_low) = v.two_sum(v.c(1.0), size), v.two_sum(v.c(1.0), v.neg(size))
        q = n / d
        product, lost = v.two_product(q, d)
        low = ((n - product) - lost + (n_low - q * d_low)) / n
        far = Math(v).log(q, v.select(size < 1.0, low, 0.0)) * 0.5
        value = v.select(size < _TINY[self.bits], near, v.select(size.eq(1.0), inf, far))
        return v.copysign(v.select(size > 1.0, nan, value), x)
