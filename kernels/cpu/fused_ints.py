"""Integer operations on vectors, as NumPy's: they wrap around, and division by zero gives zero."""

from __future__ import annotations

from llvmlite import ir

from ..fused_structure import UNSIGNED
from ..isa import ISA
from .emit import F64, I8, Fn, Val, Var, vector_type
from .storage import STORAGES

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Integers:
    """``w`` integers of a dtype at once."""

    def __init__(self, f: Fn, isa: ISA, w: int, dtype: str):
        self.f, self.isa, self.w = f, isa, w
        self.bits, self.unsigned = STORAGES[dtype].bits, dtype in UNSIGNED

    def apply(self, op: str, args: list[Val]) -> Val:
        if op in _COMPARE:
            return self._compare(_COMPARE[op], *args)
        return getattr(self, f"_{op}")(*args)

    def _compare(self, op: str, a: Val, b: Val) -> Val:
        compare = self.f.b.icmp_unsigned if self.unsigned else self.f.b.icmp_signed
        return Val(self.f, compare(op, a.v, b.v))

    def _c(self, like: Val, value: int) -> Val:
        return self.f.const(like.type, value)

    def _add(self, a: Val, b: Val) -> Val:
        return a + b

    def _sub(self, a: Val, b: Val) -> Val:
        return a - b

    def _mul(self, a: Val, b: Val) -> Val:
        return a * b

    def _and(self, a: Val, b: Val) -> Val:
        return a & b

    def _or(self, a: Val, b: Val) -> Val:
        return a | b

    def _xor(self, a: Val, b: Val) -> Val:
        return a ^ b

    def _invert(self, a: Val) -> Val:
        return a ^ -1

    def _neg(self, a: Val) -> Val:
        return self._c(a, 0) - a

    def _abs(self, a: Val) -> Val:
        return a if self.unsigned else self.f.select(a < 0, self._neg(a), a)

    def _sign(self, a: Val) -> Val:
        one = self.f.select(a.ne(0), self._c(a, 1), self._c(a, 0))
        return one if self.unsigned else self.f.select(a < 0, self._c(a, -1), one)

    def _min(self, a: Val, b: Val) -> Val:
        return self.f.select(self._compare("<", a, b), a, b)

    def _max(self, a: Val, b: Val) -> Val:
        return self.f.select(self._compare(">", a, b), a, b)

    # -- shifts ----------------------------------------------------------------------------------------------
    def _shl(self, a: Val, b: Val) -> Val:
        """Counts outside of the width give 0."""
        inside = Val(self.f, self.f.b.icmp_unsigned("<", b.v, self._c(b, self.bits).v))
        return self.f.select(inside, a << self.f.select(inside, b, self._c(b, 0)), self._c(a, 0))

    def _shr(self, a: Val, b: Val) -> Val:
        """With the sign, where there is one; counts outside of the width give 0 or -1."""
        last = self._c(b, self.bits - 1)
        inside = Val(self.f, self.f.b.icmp_unsigned("<", b.v, self._c(b, self.bits).v))
        count = self.f.select(inside, b, last)
        if self.unsigned:
            return self.f.select(inside, a >> count, self._c(a, 0))
        return Val(self.f, self.f.b.ashr(a.v, count.v))

    # -- division --------------------------------------------------------------------------------------------
    def _divmod(self, a: Val, b: Val) -> tuple[Val, Val]:
        """Quotient rounded down, remainder with the sign of the divisor; both 0 where that is 0."""
        f, zero = self.f, b.eq(0)
        safe = f.select(zero, self._c(b, 1), b)
        if not self.unsigned:
            # the one quotient that does not fit is what wraps around
            minus = safe.eq(-1)
            quotient = f.select(minus, self._neg(a), self._quotient(a, f.select(minus, self._c(b, 1), safe)))
        else:
            quotient = self._quotient(a, safe)
        rest = a - quotient * safe
        if not self.unsigned:
            down = rest.ne(0) & ((rest ^ safe) < 0)
            quotient = f.select(down, quotient - 1, quotient)
            rest = f.select(down, rest + safe, rest)
        none = self._c(a, 0)
        return f.select(zero, none, quotient), f.select(zero, none, rest)

    def _quotient(self, a: Val, b: Val) -> Val:
        """Rounded towards zero; of up to 32 bits through float64, which vectors can divide and which is exact then."""
        f = self.f
        if self.bits == 64:
            return Val(f, (f.b.udiv if self.unsigned else f.b.sdiv)(a.v, b.v))
        wide = vector_type(F64, self.w)
        x, y = (f.convert(z, "uitofp" if self.unsigned else "sitofp", wide) for z in (a, b))
        return f.convert(x / y, "fptoui" if self.unsigned else "fptosi", a.type)

    def _floordiv(self, a: Val, b: Val) -> Val:
        return self._divmod(a, b)[0]

    def _mod(self, a: Val, b: Val) -> Val:
        return self._divmod(a, b)[1]

    def _fmod(self, a: Val, b: Val) -> Val:
        """The remainder with the sign of ``a``; 0 where b is 0."""
        rest = self._mod(a, b)
        if self.unsigned:
            return rest
        return self.f.select(rest.ne(0) & ((rest ^ a) < 0), rest - b, rest)

    def _gcd(self, a: Val, b: Val) -> Val:
        """Euclid's; of absolute values."""
        f = self.f
        unsigned = Integers(f, self.isa, self.w, f"uint{self.bits}")
        x, y = Var(f, self._abs(a)), Var(f, self._abs(b))
        with f.while_() as leave:
            going = y.get().ne(0)
            leave(self._any(going).eq(0))
            rest = unsigned._divmod(x.get(), y.get())[1]
            x.set(f.select(going, y.get(), x.get()))
            y.set(f.select(going, rest, y.get()))
        return x.get()

    def _lcm(self, a: Val, b: Val) -> Val:
        unsigned = Integers(self.f, self.isa, self.w, f"uint{self.bits}")
        return unsigned._divmod(self._abs(a), self._gcd(a, b))[0] * self._abs(b)

    def _bitwise_count(self, a: Val) -> Val:
        """Of the absolute value, as uint8."""
        count = self.f.intrinsic("ctpop", [self._abs(a)])
        return count if self.bits == 8 else self.f.convert(count, "trunc", vector_type(I8, self.w))

    def _pow(self, a: Val, b: Val) -> Val:
        """Wraps around; negative exponents, which NumPy refuses, count as 0."""
        f = self.f
        exponent = b if self.unsigned else f.select(b < 0, self._c(b, 0), b)
        base, left, value = Var(f, a), Var(f, exponent), Var(f, self._c(a, 1))
        with f.while_() as leave:
            leave(self._any(left.get().ne(0)).eq(0))
            odd = (left.get() & 1).ne(0)
            value.set(f.select(odd, value.get() * base.get(), value.get()))
            base.set(base.get() * base.get())
            left.set(left.get() >> 1)
        return value.get()

    def _any(self, condition: Val) -> Val:
        if self.w == 1:
            return condition
        return self.f.bitcast(condition, ir.IntType(self.w)).ne(0)
