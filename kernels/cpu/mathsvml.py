"""Functions of vectors by calls of Intel's library (`svml`), from the middle of a kernel.

Its functions that end in ``_ha`` are called, which are right to 0.9 ulp. One of them serves each instruction set, that of
whole registers: narrower vectors are filled up, so that an element has the same bits wherever it lies in an array.
"""

from __future__ import annotations

from math import inf

from llvmlite import ir

from .emit import Fn, Val, Var
from .floats import Floats
from .mathlib import Math


class Called(Math):
    """`Math` for the operations that `svml.serves`."""

    def call(self, name: str, *args: Val) -> Val:
        return self.pow(*args) if name == "pow" else self._outside(name, *args)

    def pow(self, x: Val, y: Val) -> Val:
        """The library takes zeros and infinities one by one: vectors that have any go another way, to the same bits."""
        f, v, result = self.f, self.v, Var(self.f, x)
        with f.if_else(v.any(self._plain(v.abs(x)) ^ v.true())) as (some, none):
            with some:
                result.set(super().pow(x, y))
            with none:
                result.set(self._outside("pow", x, y))
        return result.get()

    def power_of_size(self, x: Val, y: Val) -> Val:
        v, plain = self.v, self._plain(x)
        value = self._outside("pow", v.select(plain, x, 1.0), v.at_most(v.at_least(y, -1e30), 1e30))
        way = y * v.select(x.eq(0.0), -inf, x)  # that of the result, to infinity or 0; NaN stays
        special = v.select(way > 0.0, inf, v.select(way < 0.0, 0.0, way))
        return self.f.select(plain, value, special)

    def _plain(self, x: Val) -> Val:
        return (x > 0.0) & (x < inf)

    def _outside(self, name: str, *args: Val) -> Val:
        v, f, whole = self.v, self.f, self.v.isa.vector_bits // self.bits
        if v.lanes > whole:
            half = v.lanes // 2
            part = Called(Floats(f, v.isa, half, self.bits))
            halves = ([f.shuffle(x, x, range(at, at + half)) for x in args] for at in (0, half))
            return f.joined([part._outside(name, *each) for each in halves])
        symbol = f"__svml_{name}{'f' if self.bits == 32 else ''}{whole}_ha"
        kind = Floats(f, v.isa, whole, self.bits).type
        value = Val(f, f.b.call(_declared(f, symbol, kind, len(args)), [self._filled(x, whole).v for x in args]))
        if v.lanes == whole:
            return value
        return f.extract(value, 0) if v.lanes == 1 else f.shuffle(value, value, range(v.lanes))

    def _filled(self, x: Val, whole: int) -> Val:
        """With its own elements again: no other can be an argument that takes longer."""
        f, lanes = self.f, self.v.lanes
        if lanes == 1:
            return f.splat(x, whole)
        return x if lanes == whole else f.shuffle(x, x, [lane % lanes for lane in range(whole)])


def _declared(f: Fn, symbol: str, kind: ir.Type, arguments: int) -> ir.Function:
    """Called through a word that `image` fills in when the kernel is loaded: a library may be further away than a call
    can say."""
    function = f.module.globals.get(symbol)
    if function is None:
        function = ir.Function(f.module, ir.FunctionType(kind, [kind] * arguments), symbol)
        function.attributes.add("nonlazybind")
    return function
