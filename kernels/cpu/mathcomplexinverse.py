"""Inverse trigonometric and hyperbolic functions of complex numbers, after Kahan ("Branch Cuts for Complex Elementary
Functions", 1987): products of square roots of 1 - z and 1 + z, in whose sums nothing cancels.

Special values and the sides of the branch cuts are those of C99, annex G.
"""

from __future__ import annotations

from math import inf, log, nan

from .emit import Val
from .floats import Floats
from .mathcomplex import ComplexMath, Pair
from .mathconst import PI_PIECES
from .mathinverse import Inverse

_LARGE = 2.0**28  # from here on, 1 is nothing beside z^2,
_FLAT = 2.0**60  # and 1 / z nothing beside a right angle
_STEEP = 2.0**30  # 1 is nothing beside its square
_SHIFT = {32: 30, 64: 100}  # keeps a quotient by a denormal finite, as a power of two


class ComplexInverse:
    """Functions of the pairs of a `Floats`."""

    def __init__(self, v: Floats):
        self.v, self.f, self.complex, self.inverse = v, v.f, ComplexMath(v), Inverse(v)
        self.quarter = PI_PIECES[v.bits][0] / 2

    def _roots(self, x: Val, y: Val) -> tuple[Pair, Pair]:
        """Square roots of 1 - z and of 1 + z."""
        v, one = self.v, self.v.c(1.0)
        return self.complex.sqrt((one - x, v.neg(y))), self.complex.sqrt((one + x, y))

    def arcsin(self, z: Pair) -> Pair:
        v, (x, y) = self.v, z
        (a, b), (c, d) = self._roots(x, y)
        re = self.inverse.arctan2(x, a * c - b * d)
        im = self.inverse.arcsinh(a * d - b * c)
        wide = self.complex._infinite(z)
        re = v.select(wide, self.inverse.arctan2(x, v.abs(y)), re)
        re = v.select(x.eq(0.0), x, re)
        return re, v.copysign(v.select(wide, inf, im), y)

    def arccos(self, z: Pair) -> Pair:
        v, (x, y) = self.v, z
        (a, b), (c, d) = self._roots(x, y)
        angle = self.inverse.arctan2(a, c)
        im = self.inverse.arcsinh(c * b - d * a)
        wide = self.complex._infinite(z)
        re = v.select(wide, self.inverse.arctan2(v.abs(y), x), angle + angle)
        re = v.select(x.eq(0.0) & v.isnan(y), self.quarter, re)
        return re, v.copysign(v.select(wide, inf, im), v.neg(y))

    def arcsinh(self, z: Pair) -> Pair:
        re, im = self.arcsin((self.v.neg(z[1]), z[0]))
        return im, self.v.neg(re)

    def arccosh(self, z: Pair) -> Pair:
        """As `arccos`, turned so that the real part is positive."""
        v, (x, y) = self.v, z
        (a, b), (c, d) = self.complex.sqrt((x - 1.0, y)), self.complex.sqrt((x + 1.0, y))
        re = self.inverse.arcsinh(a * c + b * d)
        angle = self.inverse.arctan2(b, c)
        wide = self.complex._infinite(z)
        im = v.select(wide, self.inverse.arctan2(y, x), angle + angle)
        return v.select(wide, inf, re), v.select(x.eq(0.0) & v.isnan(y), self.quarter, im)

    def arctanh(self, z: Pair) -> Pair:
        """A quarter of ``log(|1 + z|^2 / |1 - z|^2)``, and half the angle of ``1 - z^2 + 2 i y``."""
        v, math, (x, y) = self.v, self.complex.math, z
        size, gap = v.abs(x), v.c(1.0) - v.abs(x)
        below = v.fma(gap, gap, y * y)
        shift = _SHIFT[v.bits]
        ratio = v.sqrt(size) * 2.0 / (math.hypot(gap, y) * 2.0**shift)
        steep = ratio > _STEEP * 2.0**-shift
        re = v.select(steep, (math.log(ratio) + shift * log(2)) * 0.5, math.log1p(size * 4.0 / below) * 0.25)
        im = self.inverse.arctan2(y + y, v.fma(gap, size + 1.0, v.neg(y * y))) * 0.5
        length = math.hypot(x, y)
        re = v.select(length > _LARGE, size / length / length, re)
        im = v.select(length > _FLAT, self.quarter, im)
        wide = self.complex._infinite(z)
        re = v.select(wide | x.eq(0.0), 0.0, re)
        im = v.select(wide, v.select(v.isnan(y), nan, self.quarter), im)
        return v.copysign(re, x), v.copysign(im, y)

    def arctan(self, z: Pair) -> Pair:
        re, im = self.arctanh((self.v.neg(z[1]), z[0]))
        return im, self.v.neg(re)
