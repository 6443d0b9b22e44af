"""Division by a divisor whose inverse is known: of several vectors some are divided, the others are three products each,
with the same bits.

With ``z = 1 / d``, rounded: ``q = x * z``, ``rest = q * d - x``, ``q - rest * z``, where the last two round once each. That
is ``x / d``, rounded correctly, if nothing over- or underflows on the way (P. Markstein, Computation of elementary
functions on the IBM RISC System/6000 processor, 1990; N. Brisebarre, J.-M. Muller, S. K. Raina, Accelerating correctly
rounded floating-point division when the divisor is known in advance, 2004).

Divisors outside of `DIVISORS` have an inverse that is infinite, and are divided by. By others, dividends from 2**-63 to 2**65
(float64: 2**-511 to 2**513) have quotients that are normal numbers, and what ``rest`` is rounded to is one or 0. A dividend
of 0 is right, too: ``rest`` is +0, and what is subtracted from ``q``, which has the sign, is +0, since divisors below 0
are outside.

The divider has a unit of its own: while it is busy with one vector, the products of one or two others are free.
"""

from __future__ import annotations

from functools import reduce
from math import inf
from typing import Sequence

from ..fused_structure import DIVISORS
from .emit import I32, Fn, Val, Var, vector_type
from .floats import Floats

DIVIDED = {32: 2, 64: 3}  # one vector of so many is divided: a quotient takes the divider as long as products of the others
PERIOD = 3  # vectors that are kept of a divisor: rows of 1, 2, 3, 4, 6, ... elements that are repeated fill these


class Periodic:
    """Vectors along a row of what repeats itself after `PERIOD` of them, in registers."""

    def __init__(self, f: Fn, vectors: Sequence[Val]):
        self.f, self.turning = f, [Var(f, vector) for vector in vectors]

    def following(self, count: int) -> Val:
        """So many vectors, as one value; those behind them come next."""
        now = [var.get() for var in self.turning]
        for place, var in enumerate(self.turning):
            var.set(now[(place + count) % PERIOD])
        return self.f.joined([now[n % PERIOD] for n in range(count)])

    def finite(self, v: Floats) -> Val:
        """Whether none of their elements is infinite; before any of them follows."""
        wrong = [var.get().eq(inf) for var in self.turning]
        return v.any(wrong[0] | wrong[1] | wrong[2]).eq(0)


def inverse(v: Floats, d: Val) -> Val:
    """What `quotient` takes for ``1 / d``."""
    low, high = DIVISORS[v.bits]
    inside = Val(v.f, v.f.b.and_((d >= low).v, (d <= high).v))
    return v.select(inside, v.c(1.0) / d, inf)


def quotient(v: Floats, x: Val, d: Val, z: Val, *, finite: bool = True) -> Val:
    """``x / d``, of several vectors at once: a test for each vector would cost what the products save. ``finite``: their
    inverses ``z`` are; else these are looked at, too, which costs nothing where they are the same for all of a loop."""
    f = v.f
    if not v.isa.fma or v.lanes * v.bits <= v.isa.vector_bits:
        return x / d
    one = Floats(f, v.isa, v.isa.vector_bits // v.bits, v.bits)
    vectors = list(zip(*(_vectors(one, value) for value in (x, d, z)), strict=True))
    divides = [n % DIVIDED[v.bits] == DIVIDED[v.bits] - 1 for n in range(len(vectors))]
    parts = [a / b if divided else _products(one, a, b, c) for (a, b, c), divided in zip(vectors, divides, strict=True)]
    result = Var(f, f.joined(parts))
    multiplied = [each for each, divided in zip(vectors, divides, strict=True) if not divided]
    unusual = _unusual(one, [x for x, _, _ in multiplied])
    if not finite:
        unusual = unusual | one.any(reduce(lambda a, b: a | b, [z.eq(inf) for _, _, z in multiplied]))
    with f.if_(unusual, likely=False):
        result.set(x / d)
    return result.get()


def _vectors(one: Floats, value: Val) -> list[Val]:
    """The vectors of a register's size."""
    lanes = one.lanes
    return [one.f.shuffle(value, value, range(first, first + lanes)) for first in range(0, value.type.count, lanes)]


def _products(one: Floats, x: Val, d: Val, z: Val) -> Val:
    q = x * z
    rest = one.f.fma(q, d, one.neg(x))
    return one.f.fma(one.neg(rest), z, q)


def _unusual(one: Floats, dividends: list[Val]) -> Val:
    """Whether one is not 0 and outside of the range in which products are right.

    Twice the bits are the size without the sign; less 1, a 0 is the largest. Their least and largest are found in lanes of
    32 bits, for which all instruction sets have an instruction: of 64 bits, the upper halves decide, whose borders are
    those of the whole."""
    f = one.f
    halves = vector_type(I32, one.lanes * one.bits // 32)
    sizes = [one.to_bits(x) + one.to_bits(x) for x in dividends]
    least = reduce(_least, [f.bitcast(size - 1, halves) for size in sizes])
    largest = reduce(_largest, [f.bitcast(size, halves) for size in sizes])
    low, high = (f.const(one.int_type, bits << (one.bits - 2)) for bits in (1, -1))
    small = f.bitcast(least, one.int_type).below(low)
    large = high.below(f.bitcast(largest, one.int_type))
    return one.any(small | large)


def _least(a: Val, b: Val) -> Val:
    return a.f.select(a.below(b), a, b)


def _largest(a: Val, b: Val) -> Val:
    return a.f.select(a.below(b), b, a)
