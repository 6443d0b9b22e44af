"""sin, cos and tan of vectors for arguments of any size.

Arguments up to `LIMIT` are reduced by pi/2 in pieces. Vectors with larger ones take these lane by lane through
`_build_reduction`: the product with those 192 bits of 2/pi that matter (Payne and Hanek), in integers.
"""

from __future__ import annotations

from math import nan

from llvmlite import ir

from .emit import F32, F64, I64, Fn, Val, Var, vector_type
from .floats import Floats
from .mathconst import PIO2, PIO2_BITS, TWO_OVER_PI, TWO_OVER_PI_BITS

LIMIT = {32: 1.0e5, 64: 1.0e6}
I128 = ir.IntType(128)
# pi / 2 in floats of 24 bits, for fused multiply-adds
_PIO2_SHORT = (1.5707963705062866, -4.371139000186241e-08, -1.7151245100058819e-15)
_REDUCTION = "reduce_large"


class Trig:
    """Functions of the vectors of a `Floats`."""

    def __init__(self, floats: Floats):
        self.v, self.f, self.bits = floats, floats.f, floats.bits

    def sin(self, x: Val) -> Val:
        r, low, q = self._reduce(x)
        value = self.f.select((q & 1).ne(0), self._cos(r, low), self._sin(r, low))
        value = self.v.flip_where((q & 2).ne(0), value)
        return self.v.select(x.eq(0.0), x, value)

    def cos(self, x: Val) -> Val:
        r, low, q = self._reduce(x)
        value = self.f.select((q & 1).ne(0), self._sin(r, low), self._cos(r, low))
        return self.v.flip_where(((q + 1) & 2).ne(0), value)

    def both(self, x: Val) -> tuple[Val, Val]:
        """Sine and cosine."""
        r, low, q = self._reduce(x)
        odd, near = (q & 1).ne(0), (self._sin(r, low), self._cos(r, low))
        sine, cosine = self.f.select(odd, near[1], near[0]), self.f.select(odd, near[0], near[1])
        sine = self.v.select(x.eq(0.0), x, self.v.flip_where((q & 2).ne(0), sine))
        return sine, self.v.flip_where(((q + 1) & 2).ne(0), cosine)

    def tan(self, x: Val) -> Val:
        """The quotient, corrected by what rounding took from its two sides."""
        v, (r, low, q) = self.v, self._reduce(x)
        odd = (q & 1).ne(0)
        sine, cosine = self._sine(r, low), self._cosine(r, low)
        (n, n_low), (d, d_low) = (
            [self.f.select(odd, a, b) for a, b in zip(one, other, strict=True)]
            for one, other in ((cosine, sine), (sine, cosine))
        )
        value = n / d
        value = value + v.fma(value, v.neg(d_low), n_low) / d
        return v.select(x.eq(0.0), x, v.flip_where(odd, value))

    # -- |r| <= pi / 4: values, and what rounding took from them ----------------------------------------------
    def _sine(self, r: Val, low: Val) -> tuple[Val, Val]:
        v, z = self.v, r * r
        cube = z * r
        tail = v.fma(cube, v.poly("SIN", z), v.fma(z * -0.5, low, low))
        value = r + tail
        return value, (r - value) + tail

    def _cosine(self, r: Val, low: Val) -> tuple[Val, Val]:
        v, z = self.v, r * r
        half = z * 0.5
        w = v.c(1.0) - half
        tail = ((v.c(1.0) - w) - half) + (z * z * v.poly("COS", z) - r * low)
        value = w + tail
        return value, (w - value) + tail

    def _sin(self, r: Val, low: Val) -> Val:
        return self._sine(r, low)[0]

    def _cos(self, r: Val, low: Val) -> Val:
        return self._cosine(r, low)[0]

    # -- reduction -------------------------------------------------------------------------------------------
    def _reduce(self, x: Val) -> tuple[Val, Val, Val]:
        """``r, low, q`` with ``x = q pi/2 + r + low``, q modulo 4."""
        v, f = self.v, self.f
        parts = [Var(f, part) for part in self._near(x)]
        large = v.abs(x) > LIMIT[self.bits]  # not NaN
        with f.if_(v.any(large), likely=False):
            self._far(x, large, parts)
        return tuple(part.get() for part in parts)

    def _near(self, x: Val) -> tuple[Val, Val, Val]:
        v = self.v
        if self.bits == 32 and not v.isa.fma:
            wide = Floats(self.f, v.isa, v.lanes, 64)
            x = self.f.convert(x, "fpext", wide.type)
            k, q = wide.nearest(x * TWO_OVER_PI)
            r, low = self._narrow((x - k * PIO2[0]) - k * PIO2[1], v.type)
            return r, low, self.f.convert(q, "trunc", v.int_type)
        k, q = v.nearest(x * TWO_OVER_PI)
        if self.bits == 64:
            r = x - k * PIO2[0]
            w = k * PIO2[1]
            high = r - w
            low = ((r - high) - w) - k * PIO2[2]
        else:
            r = v.fma(k, -_PIO2_SHORT[0], x)
            w, lost = v.two_product(k, v.c(-_PIO2_SHORT[1]))
            high, rest = v.two_sum(r, w)
            low = v.fma(k, -_PIO2_SHORT[2], rest + lost)
        total = high + low
        return total, (high - total) + low, q

    def _narrow(self, value: Val, ty: ir.Type) -> tuple[Val, Val]:
        """float64 as a sum of two float32."""
        high = self.f.convert(value, "fptrunc", ty)
        low = value - self.f.convert(high, "fpext", value.type)
        return high, self.f.convert(low, "fptrunc", ty)

    def _far(self, x: Val, large: Val, parts: list[Var]) -> None:
        """Lanes where ``large`` is set, one by one."""
        v, f = self.v, self.f
        reduce, item = _reduction(f), v.bits // 8
        places = [f.stack(item * v.lanes) for _ in range(4)]
        answer, flags = f.stack(24), f.stack(8 * v.lanes)
        for place, value in zip(places, [x, *(p.get() for p in parts)], strict=True):
            f.store(value, place)
        f.store(f.convert(large, "zext", vector_type(I64, v.lanes)), flags)
        with f.range(0, v.lanes) as lane:
            with f.if_(f.word(flags, lane).ne(0)):
                one = f.load(v.elem, places[0] + lane * item)
                f.call(reduce, [one if v.bits == 64 else f.convert(one, "fpext", F64), answer])
                r, low, q = f.load(F64, answer), f.load(F64, answer + 8), f.word(answer, 2)
                if v.bits == 32:
                    r, low = self._narrow(r, F32)
                    q = f.convert(q, "trunc", v.whole)
                for place, value in zip(places[1:], (r, low, q), strict=True):
                    f.store(value, place + lane * item)
        for place, part in zip(places[1:], parts, strict=True):
            part.set(f.load(part.type, place))


def _reduction(f: Fn) -> Fn:
    """The module's function ``void reduce_large(double x, int64 answer)``: stores r, low and q."""
    known = f.module.globals.get(_REDUCTION)
    if known is None:
        return _build_reduction(f.module)
    made = object.__new__(Fn)
    made.fn = known
    return made


def _build_reduction(module: ir.Module) -> Fn:
    f = Fn(module, _REDUCTION, [F64, I64], internal=True)
    f.fn.attributes.add("noinline")
    x, answer = f.args
    words = [0, *TWO_OVER_PI_BITS]  # 64 zeros before the point
    table = ir.GlobalVariable(module, ir.ArrayType(I64, len(words)), f"{_REDUCTION}_bits")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, words)
    bits = f.bitcast(x, I64)
    exponent = (bits >> 52) & 0x7FF
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    # bits of weight 4 and more in the product leave the quadrant as it is
    place = exponent - (1075 - 62)
    at = Val(f, f.b.ptrtoint(table, I64)) + (place >> 6) * 8
    shift = place & 63

    def word(number: int) -> Val:
        high, low = f.word(at, number), f.word(at, number + 1)
        return (high << shift) | ((low >> 1) >> (f.i64(63) - shift))

    def wide(value: Val) -> Val:
        return f.convert(value, "zext", I128)

    low, middle = (wide(mantissa) * wide(word(n)) for n in (2, 1))
    sum_ = (low >> 64) + middle
    top = f.convert(sum_ >> 64, "trunc", I64) + mantissa * word(0)
    product = (wide(top) << 64) | wide(f.convert(sum_, "trunc", I64))
    lowest = f.convert(low, "trunc", I64)
    fraction = (product << 2) | wide(lowest >> 62)
    up = f.convert(fraction >> 127, "trunc", I64)
    fraction = f.select(up.ne(0), f.const(I128, 0) - fraction, fraction)
    zeros = Val(f, f.b.ctlz(fraction.v, ir.Constant(ir.IntType(1), 0)))
    leading = f.convert((fraction << zeros) >> 64, "trunc", I64)
    radians = f.convert((wide(leading) * f.const(I128, PIO2_BITS)) >> 64, "trunc", I64)
    scale = f.bitcast((f.i64(1023 - 63) - f.convert(zeros, "trunc", I64)) << 52, F64)
    negative = bits < 0
    flip = (up ^ (bits >> 63)).ne(0)
    # -2048: all but the last 11 bits, so that both conversions are exact
    for number, part in enumerate((radians & -2048, radians & 2047)):
        value = f.convert(part, "uitofp", F64) * scale
        value = f.select(flip, Val(f, f.b.fneg(value.v)), value)
        value = f.select(exponent.eq(0x7FF), f.const(F64, nan), value)
        f.store(value, answer + 8 * number)
    q = (top >> 62) + up
    f.store(f.select(negative, f.i64(0) - q, q) & 3, answer + 16)
    f.ret()
    return f
