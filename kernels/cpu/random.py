"""The random family: words of Philox-4x32-10 at counters 0, 1, ... and what is made of them.

    out[i] = word i                          random_uint32
    out[i] = (word i >> 8) * 2^-24           random_float32
    out[i] = (words 2i, 2i+1 >> 11) * 2^-53  random_float64

Lanes are blocks of four words, one after the other. Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (2011); `op_numpy.philox` says the same in NumPy.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import random_abi as ra
from .emit import F32, F64, I8, I32, I64, Fn, Val, vector_type

_FACTORS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_ROUNDS = 10


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``random_<dtype>``."""
    dtype = name.split("_")[1]
    lanes = isa.vector_bits // 64
    item = 8 if dtype == "float64" else 4
    each = 16 * lanes // item  # elements of a group
    f = Fn(module, name, [I64] * 4)
    ctx, step, task, _ = f.args
    bases = f.word(ctx, abi.CTX_BASES)
    out = f.word(bases, f.word(step, abi.OUT_SLOT)) + f.word(step, abi.OUT_OFFSET)
    key = f.word(bases, f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET)
    words = [f.convert(f.load(I32, key + n * f.word(step, ra.R_KEY_STEP)), "zext", I64) for n in (f.i64(0), f.i64(1))]
    count, share = f.word(step, ra.R_COUNT), f.word(step, ra.R_SHARE) // lanes
    stream = f.splat(f.word(step, ra.R_STREAM), lanes)
    keys = _keys(f, words, lanes)
    groups = f.ceil_div(count, each)
    first = task * share
    last = f.min(first + share, groups)
    whole = f.min(last, count // each)
    with f.range(first, whole) as group:
        f.store(_group(f, dtype, lanes, group, stream, keys), out + group * (each * item))
    part = f.stack(each * item)
    with f.range(f.max(first, whole), last) as group:
        f.store(_group(f, dtype, lanes, group, stream, keys), part)
        with f.range(0, (count - group * each) * item) as byte:
            f.store(f.load(I8, part + byte), out + group * (each * item) + byte)
    f.ret()


def _keys(f: Fn, words: list[Val], lanes: int) -> list[tuple[Val, Val]]:
    """The key of each round."""
    found = []
    for _ in range(_ROUNDS):
        found.append(tuple(f.splat(word, lanes) for word in words))
        words = [(word + step) & _LOW for word, step in zip(words, _STEPS)]
    return found


def _group(f: Fn, dtype: str, lanes: int, group: Val, stream: Val, keys: list[tuple[Val, Val]]) -> Val:
    """The elements of one group."""
    wide = vector_type(I64, lanes)
    block = f.splat(group * lanes, lanes) + (f.vector(I64, range(lanes)) if lanes > 1 else 0)
    c0, c1, c2, c3 = block & _LOW, block >> 32, stream, f.zero(wide)
    for low, high in keys:
        one, two = (x * f.const(wide, factor) for x, factor in zip((c0, c2), _FACTORS))
        c0, c1, c2, c3 = (two >> 32) ^ c1 ^ low, two & _LOW, (one >> 32) ^ c3 ^ high, one & _LOW
    if dtype == "float64":
        return _woven(f, lanes, _float64(f, c0, c1), _float64(f, c2, c3))
    words = f.bitcast(_woven(f, lanes, c0 | (c1 << 32), c2 | (c3 << 32)), vector_type(I32, 4 * lanes))
    if dtype == "uint32":
        return words
    return f.convert(words >> 8, "sitofp", vector_type(F32, 4 * lanes)) * 2.0**-24


def _woven(f: Fn, lanes: int, even: Val, odd: Val) -> Val:
    """Lanes of two vectors in turn."""
    return f.shuffle(even, odd, [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)])


def _float64(f: Fn, high: Val, low: Val) -> Val:
    """The 53 upper bits of two words as a float below 1: halves as mantissas of 2^84 and 2^52, which are exact."""
    ty = vector_type(F64, high.type.count)
    bits = ((high << 32) | low) >> 11
    upper = f.bitcast((bits >> 32) | 0x4530000000000000, ty) - 2.0**84
    lower = f.bitcast((bits & _LOW) | 0x4330000000000000, ty) - 2.0**52
    return (upper + lower) * 2.0**-53
