"""Functions of complex numbers, put together from real ones: pairs of vectors, real and imaginary parts.

Special values are those of C99, annex G.
"""

from __future__ import annotations

from math import exp, inf, nan
from typing import Callable

from .emit import Val
from .floats import Floats
from .mathlib import Math
from .mathtrig import Trig

Pair = tuple[Val, Val]
_SHIFT = 40.0  # more than the logarithm of how small a cosine of a float may be


class ComplexMath:
    """``hypot``: absolute value of a pair."""

    def __init__(self, v: Floats, hypot: Callable[[Floats, Val, Val], Val]):
        self.v, self.hypot = v, hypot

    def exp(self, z: Pair) -> Pair:
        """``exp(x) (cos(y) + i sin(y))``; where exp(x) alone is too large, it is multiplied in two parts."""
        v, (x, y) = self.v, z
        trig = Trig(v)
        large = x > (700.0 if v.bits == 64 else 80.0)
        size = Math(v).exp(v.select(large, x - _SHIFT, x))
        back = v.select(large, exp(_SHIFT), 1.0)
        re, im = (part * size * back for part in (trig.cos(y), trig.sin(y)))
        unbounded = (v.abs(y) < inf) ^ v.true()  # or NaN
        zero = unbounded & x.eq(-inf)
        re = v.select(zero, 0.0, v.select(unbounded & x.eq(inf), inf, re))
        real = y.eq(0.0)
        return v.select(real, size * back, re), v.select(real, y, v.select(zero, 0.0, im))

    def sqrt(self, z: Pair) -> Pair:
        """``t + i y / 2t`` with ``t = sqrt((|x| + |z|) / 2)``, the other way round where x is negative. Powers of 4 keep
        it away from both ends of the range."""
        v, (x, y) = self.v, z
        most = v.select(v.abs(x) > v.abs(y), v.abs(x), v.abs(y))
        limits = (2.0**-900, 2.0**900, 2.0**200) if v.bits == 64 else (2.0**-90, 2.0**90, 2.0**40)
        low, high = most < limits[0], most > limits[1]
        scale = v.select(low, limits[2], v.select(high, 1 / limits[2], 1.0))
        back = v.select(low, limits[2] ** -0.5, v.select(high, limits[2] ** 0.5, 1.0))
        a, b = x * scale, y * scale
        t = v.sqrt((v.abs(a) + self.hypot(v, a, b)) * 0.5)
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
