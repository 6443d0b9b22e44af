"""Conversions between all dtypes against NumPy's astype, and scaled addition."""

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir
from nest_case import CANARY, Case

from einsum_engine.dtypes import as_numpy
from einsum_engine.kernels import isa as isas
from einsum_engine.kernels.cpu import codegen, nest
from einsum_engine.kernels.cpu.storage import STORAGES, canonical_pair, moves
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, about overflow and NaN
ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
SOURCES = pytest.mark.parametrize("source", STORAGES)
LENGTHS = (1, 2, 3, 5, 8, 13, 31, 100)


def run_copy(isa, source: np.ndarray, out: str, a: str, **options) -> np.ndarray:
    """The kernel's copy of a contiguous array."""
    dims = ((source.size, STORAGES[out].itemsize, source.itemsize, 0),)
    problem = NestProblem(op="copy", dims=dims, out=out, a=a, **options)
    case = Case(problem)
    operands = case.operands()
    operands[1].view[...] = source
    case.run(isa, operands)
    start = operands[0].start
    memory = operands[0].memory
    assert (memory[:start] == CANARY).all() and (memory[start + operands[0].view.nbytes :] == CANARY).all()
    return operands[0].view.copy()


def interesting(name: str) -> np.ndarray:
    """Edge values of a dtype and random ones of every magnitude."""
    dtype, rng = as_numpy(name), np.random.default_rng(5)
    row = STORAGES[name]
    if row.kind == "b":
        return rng.integers(0, 2, 100).astype(bool)
    if row.kind in "iu":
        info = np.iinfo(dtype)
        edges = [info.min, info.max, info.max - 1, info.min + 1, 0, 1, 2, 3, info.max // 2, info.max // 2 + 1]
        bits = rng.integers(0, 256, 100 * dtype.itemsize, dtype=np.uint8).view(dtype)
        small = bits // np.array(2, dtype) ** rng.integers(0, row.bits - 2, 100).astype(dtype)
        return np.concatenate([np.array(edges, dtype), bits, small])
    part = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    info = ml_dtypes.finfo(as_numpy(part))
    edges = [0.0, -0.0, 1, -1, float(info.max), float(info.tiny), float(info.smallest_subnormal), float(info.eps)]
    edges += [65504, 65519, 65520, 65536, -65520, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14, 2.0**-14 - 2.0**-24]
    edges += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3e38, 3.4e38, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        random = rng.standard_normal(200) * 2.0 ** rng.integers(-160, 130, 200)
        middle = rng.standard_normal(200) * 2.0 ** rng.integers(-26, 17, 200)
        found = np.concatenate([edges, random, middle]).astype(part)
    return found if row.parts == 1 else (found + 1j * found[::-1]).astype(dtype)


def expected_cast(source: np.ndarray, out: str) -> np.ndarray:
    """astype, with the cases that NumPy leaves open or rounds twice made exact."""
    target = as_numpy(out)
    if source.dtype.kind == "c" and target.kind not in "cb":
        source = source.real
    if out == "bfloat16" and source.dtype == np.float64:
        source = round_to_odd(source)
    with np.errstate(all="ignore"):
        return source.astype(target)


def same(got: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    """Equal values, signs of zeros too; every NaN is the same."""
    assert got.dtype == expected.dtype
    if got.dtype == as_numpy("bfloat16"):
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected, err_msg=message)
    if got.dtype.kind in "fc":
        got, expected = (x.view(x.real.dtype) for x in (got, expected))
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]), err_msg=message)


def round_to_odd(source: np.ndarray) -> np.ndarray:
    """float64 -> float32 such that rounding to fewer bits afterwards rounds once."""
    near = source.astype(np.float32)
    wide = near.astype(np.float64)
    bits = near.view(np.int32)
    bits = np.where(np.abs(wide) > np.abs(source), bits - 1, bits)
    return np.where((wide != source) & ~np.isnan(source), bits | 1, bits).astype(np.int32).view(np.float32)


def in_range(source: np.ndarray, out: str) -> np.ndarray:
    """The values whose conversion to an integer C defines."""
    target = as_numpy(out)
    if target.kind not in "iu" or source.dtype.kind in "iub":
        return source
    info, real = np.iinfo(target), source.real.astype(np.float64)
    return source[np.isfinite(real) & (np.trunc(real) >= info.min) & (np.trunc(real) < float(info.max) + 1)]


@ISAS
@SOURCES
def test_cast_to_every_dtype(isa, source):
    for out in STORAGES:
        given = in_range(interesting(source), out)
        expected = expected_cast(given, out)
        got = run_copy(isa, given, out, source)
        same(got, expected, f"{source} -> {out}")


@ISAS
@pytest.mark.parametrize(
    "pair", [("float16", "float32"), ("int8", "complex64"), ("complex64", "float64"), ("int64", "int8")]
)
def test_cast_of_every_length(isa, pair):
    for length in range(1, 70):
        given = interesting(pair[0])[-length:]
        given = in_range(given, pair[1])
        same(run_copy(isa, given, pair[1], pair[0]), expected_cast(given, pair[1]))


@ISAS
def test_every_float16_and_bfloat16_becomes_the_same_float32(isa):
    bits = np.arange(2**16, dtype=np.uint16)
    for name in ("float16", "bfloat16"):
        given = bits.view(as_numpy(name))
        np.testing.assert_array_equal(run_copy(isa, given, "float32", name), given.astype(np.float32))


@ISAS
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_float32_and_float64_are_rounded_once_to_nearest_even(isa, name):
    target = as_numpy(name)
    bits = np.arange(0, 2**16 - 1, dtype=np.uint16)
    low, high = (bits + np.uint16(k) for k in (0, 1))
    a, b = (x.view(target).astype(np.float64) for x in (low, high))
    usable = np.isfinite(a) & np.isfinite(b)
    a, b = a[usable], b[usable]
    middle = (a + b) / 2
    even = np.where(low[usable] % 2 == 0, a, b)
    tiny = np.abs(np.spacing(middle))
    for given, expected in ((middle, even), (middle + tiny, np.maximum(a, b)), (middle - tiny, np.minimum(a, b))):
        got = run_copy(isa, given, name, "float64").astype(np.float64)
        np.testing.assert_array_equal(got, expected)
    middle32 = middle.astype(np.float32)
    exact = middle32.astype(np.float64) == middle
    got = run_copy(isa, middle32[exact], name, "float32").astype(np.float64)
    np.testing.assert_array_equal(got, even[exact])


@ISAS
@pytest.mark.parametrize("source", ["float16", "float32", "complex128", "int16", "uint64"])
@pytest.mark.parametrize("out", ["complex64", "complex128", "same"])
def test_byte_swapped(isa, source, out):
    out = source if out == "same" else out
    given = in_range(interesting(source), out)
    swapped = given.byteswap()
    np.testing.assert_array_equal(run_copy(isa, swapped, out, source, swap_a=True), expected_cast(given, out))


@ISAS
@pytest.mark.parametrize("source", ["complex64", "complex128", "float32"])
def test_conjugate(isa, source):
    given = interesting(source)
    got = run_copy(isa, given, "complex128", source, conj_a=True)
    np.testing.assert_array_equal(got, given.astype(np.complex128).conj())


@ISAS
@pytest.mark.parametrize("out", ["float32", "float64", "complex64", "complex128", "int32", "bool", "float16", "uint8"])
@pytest.mark.parametrize("alpha, beta", [(1, 0), (2, 1), (-1, 3), (1 + 2j, 0), (1, 2 - 1j), (0, 0)])
def test_scaled(isa, out, alpha, beta):
    if STORAGES[out].parts == 1:
        alpha, beta = complex(alpha).real, complex(beta).real
    if STORAGES[out].kind in "iub":
        alpha, beta = int(abs(alpha)), int(abs(beta))
    if out == "bool":
        alpha, beta = bool(alpha), bool(beta)
    item = STORAGES[out].itemsize
    for a, dims in (
        (out, ((37, item, item, 0),)),
        (out, ((5, item, 40 * item, 0), (20, 5 * item, -item, 0))),
        ("int8" if out != "bool" else "bool", ((9, 30 * item, 1, 0), (20, item, 0, 0))),
        (out, ((9, 40 * item, 0, 0), (13, 3 * item, item, 0))),
    ):
        problem = NestProblem(op="copy", dims=dims, out=out, a=a, scaled=True)
        Case(problem, alpha=alpha, beta=beta, shift=1).check(isa)


@ISAS
def test_scaled_does_not_read_the_output_where_beta_is_zero(isa):
    problem = NestProblem(op="copy", dims=((33, 8, 4, 0),), out="float64", a="float32", scaled=True)
    case = Case(problem, alpha=2.0)
    operands = case.operands()
    operands[0].view[...] = np.nan
    case.run(isa, operands)
    np.testing.assert_array_equal(operands[0].view, 2 * operands[1].view)


def test_copies_of_bytes_are_known():
    for source in STORAGES:
        for target in STORAGES:
            if moves(source, target):
                given = interesting(source)
                assert given.view(as_numpy(target)).tobytes() == given.astype(as_numpy(target)).tobytes()
            assert canonical_pair(*canonical_pair(source, target)) == canonical_pair(source, target)


@pytest.mark.parametrize("isa", isas.ISAS.values(), ids=lambda isa: isa.name)
@pytest.mark.parametrize(
    "name",
    [
        *("nest_cast_float64_float16", "nest_cast_float16_complex64", "nest_cast_float32_bfloat16"),
        *("nest_cast_float64_uint64", "nest_cast_uint64_float16", "nest_cast_complex128_bool"),
        *("nest_axpby_float32_float16_swap", "nest_mul_int8_int8_int8", "nest_sum_bfloat16_bfloat16", "nest_copy"),
    ],
)
def test_kernels_call_no_library(isa, name):
    """Conversions and multiplications are instructions, on the instruction sets too that do not run here."""
    module = ir.Module()
    nest.build(module, name, isa)
    lines = [line.split() for line in codegen.assembly(module, isa).splitlines()]
    calls = [line for line in lines if line and line[0] in ("call", "callq", "bl") and not line[1].startswith("*")]
    assert calls == []
