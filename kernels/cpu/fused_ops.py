"""Scalar operations on vectors of one dtype, with NumPy's meaning: what a fused kernel does between loads and stores.

A value is a vector (`Val`) of floats, of integers, or, for bool, of bits; a complex value is a pair of vectors, its real
and imaginary parts. float16 and bfloat16 are carried as 16-bit integers and only converted.
"""

from __future__ import annotations

from math import inf, nan

from ..fused_structure import COMPLEX, PARTS, UNSIGNED, Node, constant
from ..isa import ISA
from . import svml
from .convert import Converter
from .emit import I1, Fn, Val, Var, vector_type
from .floats import Floats
from .fused_ints import Integers
from .mathcomplex import ComplexMath
from .mathcomplexinverse import ComplexInverse
from .mathinverse import Inverse
from .mathlib import Math
from .mathsvml import Called
from .mathtrig import Trig
from .quotient import inverse, quotient
from .storage import STORAGES

Value = Val | tuple[Val, Val]
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Where a function of floats is written, if not in `Math`
_HOMES = dict.fromkeys(("sin", "cos", "tan"), Trig)
_HOMES |= dict.fromkeys(("arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"), Inverse)
_ROUND = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc"}


class _Tested(Val):
    """Which bytes are not 0."""

    __slots__ = ("raw",)

    def __init__(self, raw: Val):
        super().__init__(raw.f, raw.ne(0).v)
        self.raw = raw


class Ops:
    """Operations on ``w`` elements at once."""

    def __init__(self, f: Fn, isa: ISA, w: int):
        self.f, self.isa, self.w = f, isa, w
        self.converter = Converter(f, isa, w)

    def floats(self, dtype: str) -> Floats:
        return Floats(self.f, self.isa, self.w, STORAGES[dtype].bits)

    # -- memory ----------------------------------------------------------------------------------------------
    def load(self, dtype: str, at: Val, mask: Val | None = None) -> Value:
        return self.unpack(dtype, self.converter.load(dtype, at, mask=mask))

    def store(self, dtype: str, value: Value, at: Val, mask: Val | None = None, past: bool = False) -> None:
        self.converter.store(dtype, self.pack(dtype, value), at, mask=mask, past=past)

    def unpack(self, dtype: str, raw: Val) -> Value:
        """Elements as they are in memory -> value."""
        if dtype in COMPLEX:
            c = self.converter
            return c._deinterleave(raw, 0), c._deinterleave(raw, 1)
        return _Tested(raw) if dtype == "bool" else raw

    def pack(self, dtype: str, value: Value) -> Val:
        f = self.f
        if dtype in COMPLEX:
            re, im = value
            if self.w == 1:
                return f.insert(self.converter.interleave(re), im, 1)
            return f.shuffle(re, im, [lane // 2 + (lane % 2) * self.w for lane in range(2 * self.w)])
        return f.convert(value, "zext", self.converter.type("bool")) if dtype == "bool" else value

    def splat(self, dtype: str, number: bool | int | float | complex) -> Value:
        """A constant."""
        f = self.f
        if dtype in COMPLEX:
            part = self.floats(PARTS[dtype])
            return part.c(complex(number).real), part.c(complex(number).imag)
        if dtype == "bool":
            return f.const(vector_type(I1, self.w), int(number))
        if STORAGES[dtype].floating:
            return self.floats(dtype).c(float(number))
        bits = STORAGES[dtype].bits
        signed = (int(number) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return f.const(self.converter.type(dtype), signed)

    # -- one node --------------------------------------------------------------------------------------------
    def apply(self, node: Node, args: list[Value], dtypes: list[str]) -> Value:
        """``dtypes``: of the arguments."""
        if node.op == "const":
            return self.splat(node.dtype, constant(node.value, node.dtype))
        if node.op == "cast":
            return self.cast(args[0], dtypes[0], node.dtype)
        if node.op == "select":
            return self.select(*args)
        dtype = dtypes[0]
        if dtype in COMPLEX:
            return self._complex(node.op, PARTS[dtype], args)
        if dtype == "bool":
            return self._bool(node.op, args)
        if STORAGES[dtype].floating:
            return self._float(node.op, self.floats(dtype), args)
        return Integers(self.f, self.isa, self.w, dtype).apply(node.op, args)

    def select(self, condition: Val, a: Value, b: Value) -> Value:
        if isinstance(a, tuple):
            return tuple(self.f.select(condition, x, y) for x, y in zip(a, b, strict=True))
        return self.f.select(condition, a, b)

    def cast(self, value: Value, source: str, target: str) -> Value:
        if source == "bool" and target not in ("bool", "float16", "bfloat16"):
            return self.select(value, self.splat(target, 1), self.splat(target, 0))  # one instruction, where masks are
        raw = self.converter.cast(self.pack(source, value), source, target)
        return self.unpack(target, raw)

    # -- real ------------------------------------------------------------------------------------------------
    def _compare(self, op: str, a: Val, b: Val) -> Val:
        if op == "ne":
            return Val(self.f, self.f.b.fcmp_unordered("!=", a.v, b.v))
        return Val(self.f, self.f.b.fcmp_ordered(_COMPARE[op], a.v, b.v))

    def _float(self, op: str, v: Floats, args: list[Val]) -> Val:
        x = args[0]
        if op in _COMPARE:
            return self._compare(op, *args)
        simple = {
            "add": lambda: x + args[1],
            "sub": lambda: x - args[1],
            "mul": lambda: x * args[1],
            "div": lambda: x / args[1],
            "quotient": lambda: quotient(v, *args),
            "inverse": lambda: inverse(v, x),
            "neg": lambda: v.neg(x),
            "abs": lambda: v.abs(x),
            "isnan": lambda: v.isnan(x),
            "isinf": lambda: v.abs(x).eq(inf),
            # not x itself: LLVM would make it two comparisons and a blend, all of them in the way of the next
            "max": lambda: v.select(v.isnan(x), nan, self._extreme("max", *args)),
            "min": lambda: v.select(v.isnan(x), nan, self._extreme("min", *args)),
            "sign": lambda: self._sign(v, x),
            "floordiv": lambda: self._floor_division(v, *args)[0],
            "mod": lambda: self._floor_division(v, *args)[1],
            "fmod": lambda: self._remainder(v, *args),
            "copysign": lambda: v.copysign(*args),
            "signbit": lambda: v.to_bits(x) < 0,
            "heaviside": lambda: v.select(v.isnan(x), x, v.select(x.eq(0.0), args[1], v.select(x < 0.0, 0.0, 1.0))),
            "nextafter": lambda: self._next(v, *args),
        }
        if op in simple:
            return simple[op]()
        if op in _ROUND:
            return v.round(x, _ROUND[op])
        if svml.serves(op, v.bits, self.isa):
            return Called(v).call(op, *args)
        return getattr(_HOMES.get(op, Math)(v), op)(*args)

    def _extreme(self, op: str, x: Val, y: Val) -> Val:
        """The larger or smaller one, y where one is NaN: a single instruction of x86."""
        return self.f.select(x > y if op == "max" else x < y, x, y)

    def _sign(self, v: Floats, x: Val) -> Val:
        value = v.select(x > 0.0, 1.0, v.select(x < 0.0, -1.0, 0.0))
        return v.select(v.isnan(x), x, value)

    def _next(self, v: Floats, x: Val, y: Val) -> Val:
        """The neighbour of x towards y: its bits, as an integer, one more or less."""
        away = (y > x) ^ (x < 0.0)
        bits = v.to_bits(x)
        moved = v.of_bits(self.f.select(away, bits + 1, bits - 1))
        moved = self.f.select(x.eq(0.0), v.copysign(v.of_bits(self.f.const(v.int_type, 1)), y), moved)
        return v.select(v.isnan(x) | v.isnan(y), nan, self.f.select(x.eq(y), y, moved))

    def _floor_division(self, v: Floats, a: Val, b: Val) -> tuple[Val, Val]:
        """Quotient and remainder as NumPy's ``divmod``."""
        rest = self._remainder(v, a, b)
        quotient = (a - rest) / b
        other = v.ne(rest, v.c(0.0)) & ((rest < 0.0) ^ (b < 0.0))
        mod = v.select(rest.eq(0.0), v.copysign(v.c(0.0), b), v.select(other, rest + b, rest))
        quotient = v.select(other, quotient - 1.0, quotient)
        whole = v.round(quotient, "floor")
        whole = v.select(quotient - whole > 0.5, whole + 1.0, whole)
        whole = v.select(quotient.eq(0.0), v.copysign(v.c(0.0), a / b), whole)
        zero = b.eq(0.0)
        return v.select(zero, a / b, whole), v.select(zero, rest, mod)

    def _remainder(self, v: Floats, a: Val, b: Val) -> Val:
        """C's fmod: exact, by subtracting multiples of powers of two."""
        size = v.abs(b)
        usual = (v.abs(a) < inf) & (size > 0.0)
        # Divisors near the denormals are first multiplied by a power of two, then everything is.
        tiny = size < (2.0**-900 if v.bits == 64 else 2.0**-100)
        scale = v.select(tiny, 2.0**100 if v.bits == 64 else 2.0**30, 1.0)
        scaled = size * scale
        rest = self._subtract(v, v.abs(a), scaled, usual)
        rest = self._subtract(v, rest * scale, scaled, usual) / scale
        value = v.select(usual & v.isnan(b).eq(0), rest, nan)
        return v.copysign(value, a)

    def _subtract(self, v: Floats, first: Val, size: Val, usual: Val) -> Val:
        """What is left of ``first`` below the normal number ``size``."""
        f, rest = self.f, Var(self.f, first)
        exponent = ((1 << (v.bits - 1)) - 1) ^ ((1 << v.mantissa) - 1)
        with f.while_() as leave:
            left = rest.get()
            going = (left >= size) & usual
            leave(v.any(going).eq(0))
            bits = v.to_bits(size)
            moved = v.of_bits(bits + ((v.to_bits(left) & exponent) - (bits & exponent)))
            term = f.select(moved > left, moved * 0.5, moved)
            rest.set(f.select(going, left - term, left))
        return rest.get()

    # -- bool ------------------------------------------------------------------------------------------------
    def _both(self, x: Val, y: Val) -> Val:
        """Without masks, of bytes one test of the least in place of two."""
        if self.isa.masks or self.w == 1 or not (isinstance(x, _Tested) and isinstance(y, _Tested)):
            return x & y
        return _Tested(self.f.intrinsic("umin", [x.raw, y.raw]))

    def _bool(self, op: str, args: list[Val]) -> Val:
        x, y = args[0], args[-1]
        one = self.f.const(x.type, 1)
        return {
            "not": lambda: x ^ one,
            "invert": lambda: x ^ one,
            "and": lambda: self._both(x, y),
            "or": lambda: x | y,
            "xor": lambda: x ^ y,
            "min": lambda: x & y,
            "max": lambda: x | y,
            "eq": lambda: (x ^ y) ^ one,
            "ne": lambda: x ^ y,
            "lt": lambda: (x ^ one) & y,
            "le": lambda: (x ^ one) | y,
            "gt": lambda: x & (y ^ one),
            "ge": lambda: x | (y ^ one),
        }[op]()

    # -- complex ---------------------------------------------------------------------------------------------
    def _complex(self, op: str, part: str, args: list[tuple[Val, Val]]) -> Value:
        v = self.floats(part)
        (a, b), (c, d) = args[0], args[-1]
        known = ComplexMath(v)
        if op in ("lt", "le", "gt", "ge"):
            return known.compare(op, *args)
        if op in ("max", "min"):
            return known.extreme(op, *args)
        simple = {
            "add": lambda: (a + c, b + d),
            "sub": lambda: (a - c, b - d),
            "neg": lambda: (v.neg(a), v.neg(b)),
            "conj": lambda: (a, v.neg(b)),
            "real": lambda: a,
            "imag": lambda: b,
            "abs": lambda: Math(v).hypot(a, b),
            "round": lambda: (v.round(a), v.round(b)),
            "eq": lambda: a.eq(c) & b.eq(d),
            "ne": lambda: v.ne(a, c) | v.ne(b, d),
            "isnan": lambda: v.isnan(a) | v.isnan(b),
            "isinf": lambda: v.abs(a).eq(inf) | v.abs(b).eq(inf),
        }
        if op in simple:
            return simple[op]()
        return getattr(ComplexInverse(v) if op.startswith("arc") else known, op)(*args)

    # -- reductions ------------------------------------------------------------------------------------------
    def identity(self, reduce: str, dtype: str) -> Value:
        if reduce in ("sum", "prod"):
            return self.splat(dtype, reduce == "prod")
        if reduce in ("any", "all"):
            return self.splat("bool", reduce == "all")
        if STORAGES[dtype].floating:
            least = -inf if reduce == "max" else inf
            return self.splat(dtype, complex(least, least) if dtype in COMPLEX else least)
        bits = STORAGES[dtype].bits
        low, high = (0, 2**bits - 1) if dtype in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self.splat(dtype, low if reduce == "max" else high)

    def combine(self, reduce: str, dtype: str, a: Value, b: Value) -> Value:
        op = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(reduce, reduce)
        return self.apply(Node(op=op, dtype=dtype), [a, b], [dtype, dtype])

    def across(self, reduce: str, dtype: str, value: Value) -> Value:
        """All elements combined, by halves: a value of one element."""
        f, w = self.f, self.w
        if reduce in ("max", "min") and STORAGES[dtype].floating and dtype not in COMPLEX and w > 1:
            return self._extreme_across(reduce, dtype, value)
        parts = list(value) if isinstance(value, tuple) else [value]
        while w > 1:
            w //= 2
            low, high = ([f.shuffle(p, p, range(k * w, (k + 1) * w)) for p in parts] for k in (0, 1))
            if w == 1:
                low, high = ([f.extract(p, 0) for p in side] for side in (low, high))
            both = (tuple(low), tuple(high)) if len(parts) == 2 else (low[0], high[0])
            done = Ops(f, self.isa, w).combine(reduce, dtype, *both)
            parts = list(done) if isinstance(done, tuple) else [done]
        return tuple(parts) if len(parts) == 2 else parts[0]

    def _extreme_across(self, reduce: str, dtype: str, value: Val) -> Val:
        """NaN is looked for once, not at each half."""
        f, w, v = self.f, self.w, self.floats(dtype)
        some, best = v.any(v.isnan(value)), value
        while w > 1:
            w //= 2
            low, high = (f.shuffle(best, best, range(k * w, (k + 1) * w)) for k in (0, 1))
            if w == 1:
                low, high = f.extract(low, 0), f.extract(high, 0)
            best = self._extreme(reduce, low, high)
        return f.select(some, f.const(v.elem, nan), best)
