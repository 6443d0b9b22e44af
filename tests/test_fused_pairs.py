"""Long functions of floats, two vectors at a time: the same bits as one by one, and nothing beside what is asked for."""

import re

import fused_case
import numpy as np
import oracle
import pytest

from einsum_engine.kernels import fused
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import codegen, cores, fused_abi, generators
from einsum_engine.kernels.cpu import fused as row_functions
from einsum_engine.kernels.isa import ISAS, host_isas

HOST = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])


def chain(dtype, reduce=""):
    """Some functions that are computed in pairs, and a second output."""
    g = fs.Graph((dtype,) * 2)
    e = g.op("exp", 0)
    root = g.op("sqrt", g.op("abs", g.op("sub", e, 1)))
    return g.structure((g.op("mul", e, g.op("tanh", 1)), reduce), (root, reduce))


@FLOATS
def test_what_goes_in_pairs(dtype):
    for op in ("exp", "tanh", "log", "sin", "sigmoid"):
        assert row_functions.goes_in_pairs(fused_case.single(op, (dtype,)))
    assert row_functions.goes_in_pairs(chain(dtype))
    assert not row_functions.goes_in_pairs(chain(dtype, "sum")), "one vector at a time, as results"
    assert row_functions.goes_in_pairs(fused_case.single("exp", (dtype,), "sum"))
    for op in ("add", "sqrt", "pow", "fmod"):
        arguments = (dtype,) * fs.SCALARS[op].arity
        assert not row_functions.goes_in_pairs(fused_case.single(op, arguments))
    for other in ("float16", "complex64", "int32"):
        g = fs.Graph((other, dtype))
        assert not row_functions.goes_in_pairs(g.structure(g.op("exp", 1), g.cast(0, "float64")))


def values(rng, dtype, count):
    """Of several sizes, with NaN, infinities, zeros and denormals anywhere."""
    x = rng.standard_normal(count) * rng.choice([0.1, 1, 10, 500], count)
    places = rng.integers(0, count, 12)
    x[places] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, -1e-40, 89, -104, 710, -746, 0.625]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


@HOST
@FLOATS
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("shift", [0, 8, 16])
def test_pairs_have_the_bits_of_single_vectors(isa, dtype, shift, past, monkeypatch):
    """One row of 4 KB and more, as many short ones, which have no pairs; memory ends with what is written."""
    structure, rng = chain(dtype), np.random.default_rng(shift)
    if past:
        monkeypatch.setattr(fused, "STREAM_BYTES", 0)
    for rows in (147, 300, 301):
        short = [values(rng, dtype, rows * 8).reshape(rows, 8)[:, :7] for _ in "ab"]
        wanted = [np.empty((rows, 7), dtype) for _ in structure.outputs]
        fused_case.run(isa, structure, wanted, short)
        found = [placed(rows * 7, dtype, shift) for _ in structure.outputs]
        (row,) = fused_case.run(isa, structure, found, [np.ascontiguousarray(each).reshape(-1) for each in short])
        assert row.words[fused_abi.U_STREAM] == past
        for one, other in zip(found, wanted):
            same(one, other.reshape(-1))


def placed(count, dtype, shift):
    """Elements from a byte of a line on, at the end of memory."""
    return np.ndarray((count,), dtype, oracle.guarded(count * np.dtype(dtype).itemsize + shift).data, shift)


def same(one, other):
    """Bit by bit, but for which NaN it is."""
    kind = f"u{one.itemsize}"
    assert ((one.view(kind) == other.view(kind)) | (np.isnan(one) & np.isnan(other))).all()


@HOST
@FLOATS
def test_an_input_of_one_element_is_as_good_as_a_row_of_it(isa, dtype):
    structure, rng = chain(dtype), np.random.default_rng(3)
    a, b = values(rng, dtype, 2000), values(rng, dtype, 1)
    found, wanted = ([np.empty(2000, dtype) for _ in structure.outputs] for _ in range(2))
    fused_case.run(isa, structure, found, [a, b])
    fused_case.run(isa, structure, wanted, [a, np.repeat(b, 2000)])
    for one, other in zip(found, wanted):
        same(one, other)


@HOST
@FLOATS
@pytest.mark.parametrize("axis", [0, 1])
def test_reduced_and_stored_beside_one_element_of_each_row(isa, dtype, axis):
    """As in a softmax: the maximum of a row is one element, what is summed is stored too."""
    g = fs.Graph((dtype,) * 2)
    e = g.op("exp", g.op("sub", 0, 1))
    structure, rng = g.structure(e, (e, "sum")), np.random.default_rng(axis)
    x = rng.standard_normal((9, 1500)).astype(dtype)
    x = x if axis else np.ascontiguousarray(x.T)
    top = x.max(axis, keepdims=True)
    out, total = np.empty_like(x), np.empty_like(top)
    fused_case.run(isa, structure, [out, total], [x, top])
    wanted = np.exp((x - top).astype(float))
    np.testing.assert_allclose(out, wanted, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(total, wanted.sum(axis, keepdims=True), rtol=40 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype, found", [("float32", "vpermps"), ("float64", r"vperm[it]2pd")])
def test_powers_of_sixteenths_are_found_in_registers(dtype, found):
    """exp looks up and scales by an instruction each; tanh needs no scaling, and no instruction rounds for either."""
    for op, scaled in (("exp", True), ("tanh", False)):
        text = assembly(op, dtype)
        assert re.search(rf"({found}|vpermd)\s.*%zmm", text) and "vrndscale" not in text
        assert ("vscalef" in text) == scaled


def test_tanh_of_float32_has_neither_comparisons_nor_a_division(monkeypatch):
    """Its polynomials of each part of its range are in registers; float64 would take too many of them."""
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    for dtype, divides in (("float32", False), ("float64", True)):
        assert (re.search(r"vdivp[sd]\s.*%zmm", assembly("tanh", dtype)) is not None) == divides


def assembly(op, dtype):
    name = fs.name(fused_case.single(op, (dtype,)))
    return codegen.assembly(generators.build(name, ISAS["avx512"]), ISAS["avx512"])


def test_only_long_functions_are_put_in_order_for_a_processor():
    for op, wanted in (("exp", True), ("add", False)):
        structure = fused_case.single(op, ("float64",) * (2 if op == "add" else 1))
        for isa in ISAS.values():
            text = str(generators.build(fs.name(structure), isa))
            assert ('"tune-cpu"="znver4"' in text) == (wanted and isa.name == "avx512")
