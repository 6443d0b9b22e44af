"""Loops that show what the machine can do: multiply-adds between registers, and copies.

``int64 fmapeak_<dtype>(args)``: repeats independent chains ``x = x * a + b`` in registers. ``args`` is the address of
two words: iterations, and the address of vectors: multiplier, addend, then one per chain. ``int64 fmachain_<dtype>(args)``: with
one chain, whose multiply-adds wait for each other.

``void copy_plain(args)``, ``void copy_stream(args)``: ``args`` holds destination, source, bytes (a multiple of
`copy_unit`), repetitions. The streaming copy wants its destination aligned to a vector.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from .emit import I64, Fn, Val, Var, scalar_type, size_of, vector_type
from .pairs import in_pairs

# Vectors per round of the copy loops: enough to keep loads in flight, small against any footprint measured.
_COPY_VECTORS = 4
# Emulated multiplications (bytes on x86, 64-bit integers before AVX-512DQ) need registers for their parts.
_FEW_CHAINS = {16: 6, 32: 12}
_CHAINS = {16: 12, 32: 24}
_UNFUSED_CHAINS = 14  # a multiplication and an addition are as long as both: all registers but two


def chains(name: str, isa: ISA) -> int:
    """Independent multiply-adds per iteration of the loop ``name``: for the peak latency times throughput of any machine, and
    no spills."""
    loop, dtype = name.split("_")
    if loop == "fmachain":
        return 1
    if dtype.startswith("float") and not isa.fma:
        return _UNFUSED_CHAINS
    emulated = dtype == "int8" or (dtype == "int64" and isa.name != "avx512")
    return (_FEW_CHAINS if emulated else _CHAINS)[isa.registers]


def copy_unit(isa: ISA) -> int:
    """Bytes that the copy loops move per round."""
    return _COPY_VECTORS * isa.vector_bits // 8


def build_fma_peak(module: ir.Module, name: str, isa: ISA) -> None:
    """Operations per iteration: 2 * `chains` * lanes."""
    dtype = name.split("_")[1]
    f = Fn(module, name, [I64])
    iterations, data = f.word(f.args[0], 0), f.word(f.args[0], 1)
    real = scalar_type(dtype)
    ty = vector_type(real, isa.lanes(size_of(real)))
    width = isa.vector_bits // 8
    a, b = f.load(ty, data), f.load(ty, data + width)
    # A start and an end in memory for each chain, or LLVM would merge equal chains into one.
    places = [data + (2 + i) * width for i in range(chains(name, isa))]
    accumulators = [Var(f, f.load(ty, place)) for place in places]
    with f.range(0, iterations):
        if in_pairs(isa, dtype):
            for pair in zip(accumulators[::2], accumulators[1::2], strict=True):
                products = f.together([slot.get() * a for slot in pair])
                for slot, total in zip(pair, f.together([product + b for product in products])):
                    slot.set(total)
        else:
            for slot in accumulators:
                slot.set(_step(f, dtype, isa, slot.get(), a, b))
    for slot, place in zip(accumulators, places):
        f.store(slot.get(), place)
    f.ret()


def _step(f: Fn, dtype: str, isa: ISA, x: Val, a: Val, b: Val) -> Val:
    if dtype == "bool":
        return (x & a) | b
    return f.fma(x, a, b) if isa.fma else x * a + b


def build_copy(module: ir.Module, name: str, isa: ISA) -> None:
    """Copy ``bytes`` ``repetitions`` times, `_COPY_VECTORS` vectors a round."""
    f = Fn(module, name, [I64])
    dst, src, nbytes, repetitions = (f.word(f.args[0], i) for i in range(4))
    width = isa.vector_bits // 8
    ty = vector_type(scalar_type("int64"), isa.lanes(8))
    write = f.stream if name == "copy_stream" else f.store
    with f.range(0, repetitions):
        with f.range(0, nbytes, copy_unit(isa)) as at:
            shifts = [at + i * width for i in range(_COPY_VECTORS)]
            values = [f.load(ty, src + shift) for shift in shifts]
            for value, shift in zip(values, shifts):
                write(value, dst + shift)
        f.b.fence("seq_cst")  # streaming stores count when they have left the write buffers
    f.ret()
