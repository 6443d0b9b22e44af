"""Loads, stores and conversions of ``w`` elements of any dtype the engine stores.

`Converter` holds the width: a value of ``w`` elements is a vector of ``w * parts`` machine lanes (real and imaginary
parts interleaved), or one scalar. float16 and bfloat16 are carried as 16-bit integers. Rounding is to nearest even,
once: float64 goes to 16 bits through a float32 rounded to odd, which keeps the information that the second rounding
needs. Where the instruction set has no float16 conversion it is made of integer operations; nothing calls a library.

What NumPy leaves to the C compiler (a float outside the range of the integer) is defined as what x86 scalar code
gives: conversion to 32 or 64 bits, then truncation.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from .emit import F32, F64, I1, I8, I16, I32, I64, Fn, Val, vector_type
from .storage import STORAGES, Storage

HALF = ir.HalfType()
_INTS = {8: I8, 16: I16, 32: I32, 64: I64}


def part_type(row: Storage) -> ir.Type:
    """Machine type of one part in memory."""
    if row.kind == "f":
        return F32 if row.bits == 32 else F64
    return _INTS[row.bits]


class Converter:
    """Conversions of ``w`` elements at once."""

    def __init__(self, f: Fn, isa: ISA, w: int):
        self.f, self.isa, self.w = f, isa, w

    # -- types and memory ------------------------------------------------------------------------------------
    def type(self, name: str) -> ir.Type:
        row = STORAGES[name]
        return vector_type(part_type(row), self.w * row.parts)

    def like(self, value: Val, elem: ir.Type) -> ir.Type:
        """``elem`` with as many lanes as ``value``."""
        return ir.VectorType(elem, value.type.count) if isinstance(value.type, ir.VectorType) else elem

    def load(self, name: str, addr: Val, *, swap: bool = False, mask: Val | None = None) -> Val:
        ty = self.type(name)
        value = self.f.load(ty, addr) if mask is None else self.f.load_masked(ty, addr, self.part_mask(name, mask))
        return self.byteswap(value) if swap and STORAGES[name].bits > 8 else value

    def store(self, name: str, value: Val, addr: Val, *, mask: Val | None = None, past: bool = False) -> None:
        """``past``: the caches, at a multiple of its size."""
        if past:
            self.f.stream(value, addr)
        elif mask is None:
            self.f.store(value, addr)
        else:
            self.f.store_masked(value, addr, self.part_mask(name, mask))

    def part_mask(self, name: str, mask: Val) -> Val:
        """Mask of elements -> mask of machine lanes."""
        parts = STORAGES[name].parts
        return mask if parts == 1 else self.f.shuffle(mask, mask, [l // parts for l in range(self.w * parts)])

    def byteswap(self, value: Val) -> Val:
        f, elem = self.f, value.type.element if isinstance(value.type, ir.VectorType) else value.type
        as_int = {F32: I32, F64: I64}.get(elem, elem)
        bits = f.bitcast(value, self.like(value, as_int))
        return f.bitcast(f.intrinsic("bswap", [bits]), value.type)

    def splat(self, value: Val) -> Val:
        """One element (of a `Converter` of width 1) repeated ``w`` times."""
        if not isinstance(value.type, ir.VectorType):
            return self.f.splat(value, self.w)
        parts = value.type.count
        return self.f.shuffle(value, value, [l % parts for l in range(self.w * parts)])

    # -- conversion ------------------------------------------------------------------------------------------
    def cast(self, value: Val, source: str, target: str) -> Val:
        a, b = STORAGES[source], STORAGES[target]
        if source == target:
            return value
        if a.parts == 2 and b.parts == 1:
            if b.kind == "b":
                return self._complex_to_bool(value)
            return self._part(self.real(value), a, b)
        converted = self._part(value, a, b)
        return self.interleave(converted) if b.parts > a.parts else converted

    def real(self, value: Val) -> Val:
        """Real parts of interleaved ones."""
        return self._deinterleave(value, 0)

    def _deinterleave(self, value: Val, part: int) -> Val:
        if self.w == 1:
            return self.f.extract(value, part)
        return self.f.shuffle(value, value, range(part, 2 * self.w, 2))

    def interleave(self, value: Val) -> Val:
        """Real parts -> complex with imaginary parts 0."""
        f = self.f
        if self.w == 1:
            return f.insert(f.zero(ir.VectorType(value.type, 2)), value, 0)
        zero = f.zero(value.type)
        return f.shuffle(value, zero, [l // 2 + (l % 2) * self.w for l in range(2 * self.w)])

    def _complex_to_bool(self, value: Val) -> Val:
        f = self.f
        re, im = (self._not_zero(self._deinterleave(value, part)) for part in (0, 1))
        return f.convert(re | im, "zext", self.like(re, I8))

    def _not_zero(self, value: Val) -> Val:
        """True where a float is not zero; NaN is true."""
        return Val(self.f, self.f.b.fcmp_unordered("!=", value.v, self.f.zero(value.type).v))

    def _part(self, value: Val, a: Storage, b: Storage) -> Val:
        """Convert each part, ignoring how many parts an element has."""
        f = self.f
        if a.kind == b.kind and a.bits == b.bits:
            return value
        if b.kind == "b":
            return self._to_bool(value, a)
        if a.kind in "hB":
            wide = self._half_to_float(value) if a.kind == "h" else self._bfloat_to_float(value)
            return self._part(wide, STORAGES["float32"], b)
        if b.kind in "hB":
            return self._to_short(value, a, b)
        if a.kind == "f" and b.kind == "f":
            return f.convert(value, "fpext" if b.bits > a.bits else "fptrunc", self.like(value, part_type(b)))
        if a.kind == "f":
            return self._float_to_int(value, b)
        if b.kind == "f":
            return f.convert(value, "sitofp" if a.kind == "i" else "uitofp", self.like(value, part_type(b)))
        return self._resize(value, a.bits, b.bits, signed=a.kind == "i")

    def _resize(self, value: Val, old: int, new: int, *, signed: bool) -> Val:
        if old == new:
            return value
        op = "trunc" if new < old else "sext" if signed else "zext"
        return self.f.convert(value, op, self.like(value, _INTS[new]))

    def _to_bool(self, value: Val, a: Storage) -> Val:
        f = self.f
        if a.kind == "f":
            truth = self._not_zero(value)
        elif a.kind in "hB":
            truth = (value & 0x7FFF).ne(0)  # minus zero is false
        else:
            truth = value.ne(0)
        return f.convert(truth, "zext", self.like(value, I8))

    def _float_to_int(self, value: Val, b: Storage) -> Val:
        if b.kind == "u" and b.bits == 64:
            return self._float_to_uint64(value)
        bits = 64 if b.bits == 64 or (b.kind == "u" and b.bits == 32) else 32
        whole = self.f.convert(value, "fptosi", self.like(value, _INTS[bits]))
        return self._resize(whole, bits, b.bits, signed=True)

    def _float_to_uint64(self, value: Val) -> Val:
        """The upper half of the range is moved into the signed range and back."""
        f, ty = self.f, self.like(value, I64)
        limit = f.const(value.type, float(2**63))
        small = f.convert(value, "fptosi", ty)
        large = f.convert(value - limit, "fptosi", ty) ^ (-(2**63))
        return f.select(value >= limit, large, small)

    # -- 16-bit floats ---------------------------------------------------------------------------------------
    def _to_short(self, value: Val, a: Storage, b: Storage) -> Val:
        f = self.f
        if a.kind != "f":
            value = f.convert(value, "sitofp" if a.kind == "i" else "uitofp", self.like(value, F32))
        elif a.bits == 64:
            value = self._round_to_odd(value)
        return self._float_to_half(value) if b.kind == "h" else self._float_to_bfloat(value)

    def _round_to_odd(self, value: Val) -> Val:
        """float64 -> float32, truncated, with the last bit set where anything was lost."""
        f = self.f
        near = f.convert(value, "fptrunc", self.like(value, F32))
        back = f.convert(near, "fpext", value.type)
        bits = f.bitcast(near, self.like(value, I32))
        away = f.intrinsic("fabs", [back]) > f.intrinsic("fabs", [value])
        lost = f.convert(back.ne(value), "zext", bits.type)  # ordered: false for NaN
        odd = (bits - f.convert(away, "zext", bits.type)) | lost
        return f.bitcast(odd, near.type)

    def _bfloat_to_float(self, value: Val) -> Val:
        f = self.f
        bits = f.convert(value, "zext", self.like(value, I32)) << 16
        return f.bitcast(bits, self.like(value, F32))

    def _float_to_bfloat(self, value: Val) -> Val:
        f = self.f
        bits = f.bitcast(value, self.like(value, I32))
        high = bits >> 16
        rounded = (bits + ((high & 1) + 0x7FFF)) >> 16
        nan = Val(f, f.b.fcmp_unordered("uno", value.v, value.v))
        return f.convert(f.select(nan, high | 0x40, rounded), "trunc", self.like(value, I16))

    def _half_to_float(self, value: Val) -> Val:
        f = self.f
        if self.isa.half:
            return f.convert(f.bitcast(value, self.like(value, HALF)), "fpext", self.like(value, F32))
        wide = f.convert(value, "zext", self.like(value, I32))
        magnitude = (wide & 0x7FFF) << 13
        sign = (wide & 0x8000) << 16
        # Scaling by 2^112 moves the exponent and makes denormals normal, exactly; inf and NaN keep theirs full.
        scaled = f.bitcast(magnitude, self.like(value, F32)) * float(2.0**112)
        special = magnitude >= 0x7C00 << 13
        bits = f.select(special, magnitude | 0x7F800000, f.bitcast(scaled, wide.type))
        quiet = f.select(magnitude > 0x7C00 << 13, bits | 0x400000, bits)
        return f.bitcast(quiet | sign, self.like(value, F32))

    def _float_to_half(self, value: Val) -> Val:
        f = self.f
        if self.isa.half:
            half = f.convert(value, "fptrunc", self.like(value, HALF))
            return f.bitcast(half, self.like(value, I16))
        bits = f.bitcast(value, self.like(value, I32))
        sign = (bits >> 16) & 0x8000
        magnitude = bits & 0x7FFFFFFF
        normal = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13
        # Adding 0.5 leaves a denormal half in the low bits of the sum, rounded to nearest even by the addition.
        small = f.bitcast(f.bitcast(magnitude, value.type) + 0.5, bits.type) - 0x3F000000
        half = f.select(magnitude < 113 << 23, small, normal)
        half = f.select(magnitude >= 0x477FF000, f.const(bits.type, 0x7C00), half)
        half = f.select(magnitude > 0x7F800000, ((magnitude >> 13) & 0x3FF) | 0x7E00, half)
        return f.convert(half | sign, "trunc", self.like(value, I16))

    # -- signs -----------------------------------------------------------------------------------------------
    def imaginary_signs(self, name: str, conjugate: Val) -> Val:
        """Bits to exclusive-or complex values with: the signs of imaginary parts where the int64 is not 0."""
        f, row = self.f, STORAGES[name]
        elem = _INTS[row.bits]
        minus = f.select(conjugate.ne(0), f.const(elem, -(2 ** (row.bits - 1))), f.const(elem, 0))
        odd = f.vector(I1, [l % 2 == 1 for l in range(2 * self.w)])
        return f.select(odd, f.splat(minus, 2 * self.w), f.zero(ir.VectorType(elem, 2 * self.w)))

    def flip(self, value: Val, signs: Val) -> Val:
        return self.f.bitcast(self.f.bitcast(value, signs.type) ^ signs, value.type)
