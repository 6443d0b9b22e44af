"""The builder that writes instructions as text: what it folds, and that the code does what llvmlite's would."""

import ctypes
import operator
import re

import numpy as np
import pytest
from llvmlite import ir

from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import codegen, generators, lines
from einsum_engine.kernels.cpu.emit import F64, I8, I64, Fn

EACH_ISA = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
_BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_,
           "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift}  # fmt: skip
_WORDS = (0, 1, -1, 7, -(2**63), 2**63 - 1)


def _function(row, name: str, emit, arguments: int):
    """``emit(f, *arguments)`` as a function of that many int64; None instead of a result is 0."""
    module = ir.Module(name)
    f = Fn(module, name, [I64] * arguments, I64)
    f.ret(emit(f, *f.args) or f.i64(0))
    (address,) = codegen.load(codegen.compile_object(module, row), (name,), row)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(address)


def _signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("symbol", _BINARY)
def test_constants_are_folded_as_they_are_computed(symbol):
    """Each operation on two words: both as data, one of them a constant, both constants."""
    row, op = isa.host_isas()[0], _BINARY[symbol]
    right = (0, 1, 8, 63) if symbol in ("<<", ">>") else _WORDS
    for number, b in enumerate(right):
        for other, a in enumerate(_WORDS):
            expected = _signed(op(a % 2**64, b) if symbol == ">>" else op(a, b))

            def emit(f, x, y, out, a=a, b=b):
                for place, value in enumerate((op(x, y), op(x, b), op(f.i64(a), y), op(f.i64(a), b))):
                    f.store(value, out + 8 * place)

            out = np.zeros(4, np.int64)
            _function(row, f"fold_{list(_BINARY).index(symbol)}_{number}_{other}", emit, 3)(a, b, out.ctypes.data)
            assert out.tolist() == [expected] * 4, (a, symbol, b)


def test_offsets_cost_no_instruction():
    """A word of a row is a load from a sum, whatever its number; that number 0 is none."""
    module = ir.Module("words")
    f = Fn(module, "words", [I64])
    before = len(f.b.block.instructions)
    f.word(f.args[0], 40)
    f.word(f.args[0], 0)
    text = [str(line).split("= ")[1].split()[0] for line in f.b.block.instructions[before:]]
    assert text == ["add", "inttoptr", "load", "inttoptr", "load"]


@EACH_ISA
def test_no_kernel_computes_with_two_constants(row):
    for name in ("gemm_float32_1x4_dp", "small_float64_2", "pack_4", "nest_mul_complex64_complex64_complex64", "walk"):
        text = str(generators.build(name, row))
        assert "load i64" in text and not re.search(r"= (add|sub|mul) i64 -?\d+, -?\d+$", text, re.MULTILINE), name


def test_constants_that_compare_equal_are_not_one():
    zero, minus = (lines.CONSTANTS.get(F64, value) for value in (0.0, -0.0))
    assert zero is lines.CONSTANTS.get(F64, 0.0) and zero.get_reference() != minus.get_reference()
    assert len({str(lines.CONSTANTS.get(ty, 1)) for ty in (I8, I64, lines.vector_of(I8, 2), F64)}) == 4


@EACH_ISA
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32, 64])
def test_mask_of_lanes(row, lanes):
    """For counts below, between and above the lanes, from lane 0 on and from another."""

    def emit(f, count, out):
        ones, zeros = f.const(lines.vector_of(I8, lanes), 1), f.const(lines.vector_of(I8, lanes), 0)
        for place, first in enumerate((0, lanes)):
            f.store(f.select(f.lane_mask(count, lanes, first), ones, zeros), out + place * lanes)

    function, out = _function(row, f"mask_{lanes}", emit, 2), np.zeros(2 * lanes, np.int8)
    for count in (-3, 0, 1, lanes - 1, lanes, lanes + 1, 2 * lanes, 1000):
        function(count, out.ctypes.data)
        assert out.tolist() == [int(lane < count) for lane in range(2 * lanes)]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_masks_stay_out_of_the_k_loop(dtype):
    """An edge that is read in place costs its loads no comparison."""
    row = isa.get("avx512")
    text = codegen.assembly(generators.build(f"gemm_{dtype}_1x4_dd", row), row)
    loops = [block for block in re.split(r"^\.L\w+:", text, flags=re.MULTILINE) if "{%k" in block and "vfmadd" in block]
    assert loops and not any("vpcmp" in block for block in loops)
