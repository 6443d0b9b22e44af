"""Division by a divisor whose inverse is known: three products in place of a division, and the same bits.

With ``z = 1 / d``, rounded: ``q = x * z``, ``rest = q * d - x``, ``q - rest * z``, where the last two round once each. That
is ``x / d``, rounded correctly, if nothing over- or underflows on the way (P. Markstein, Computation of elementary
functions on the IBM RISC System/6000 processor, 1990; N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating correctly
rounded floating-point division when the divisor is known in advance, 2004).

So divisors outside of `DIVISORS` have an inverse that is infinite, and ``q`` tells what is to be divided: its exponent,
of which the first two bits differ from 2**-63 to 2**65 (float64: 2**-511 to 2**513). With it, what ``rest`` is rounded
to is a normal number or 0, as is the quotient. A dividend of 0 is right, too, where the inverse is finite: ``rest`` is
+0, and what is subtracted from ``q``, which has the sign, is +0, since divisors below 0 are outside.
"""

from __future__ import annotations

from math import inf

from ..fused_structure import DIVISORS
from .emit import Val, Var
from .floats import Floats


def inverse(v: Floats, d: Val) -> Val:
    """What `quotient` takes for ``1 / d``."""
    low, high = DIVISORS[v.bits]
    inside = Val(v.f, v.f.b.and_((d >= low).v, (d <= high).v))
    return v.select(inside, v.c(1.0) / d, inf)


def quotient(v: Floats, x: Val, d: Val, z: Val) -> Val:
    """``x / d``, of several vectors at once: a test for each vector would cost what the products save."""
    f = v.f
    if not v.isa.fma or v.lanes * v.bits <= v.isa.vector_bits:
        return x / d
    q = x * z
    rest = f.fma(q, d, v.neg(x))
    result = Var(f, f.fma(v.neg(rest), z, q))
    usual = _differing(v, q)
    with f.if_(_any(v, _all_of(v, usual).eq(0)), likely=False):
        right = usual.ne(0) | (x.eq(0.0) & (z < inf))
        with f.if_(_any(v, right.eq(0))):
            result.set(x / d)
    return result.get()


def _differing(v: Floats, q: Val) -> Val:
    """Not 0 where the first two bits of the exponent differ."""
    bits = v.to_bits(q)
    return (bits ^ (bits + bits)) & (1 << (v.bits - 2))


def _pieces(v: Floats, value: Val) -> list[Val]:
    """The vectors of a register's size."""
    lanes = v.isa.vector_bits // v.bits
    return [v.f.shuffle(value, value, range(first, first + lanes)) for first in range(0, v.lanes, lanes)]


def _all_of(v: Floats, bits: Val) -> Val:
    """What all vectors have in common."""
    common, *others = _pieces(v, bits)
    for other in others:
        common = common & other
    return common


def _any(v: Floats, condition: Val) -> Val:
    """Whether one lane is true, of as many as there are."""
    return Floats(v.f, v.isa, condition.type.count, v.bits).any(condition)
