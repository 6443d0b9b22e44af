"""The small family: every dtype, instruction set, width and edge against its NumPy reference, in guarded memory."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import strided
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels import isa, small, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.gemm import Operand
from einsum_engine.kernels.launch import Launch

ISAS = isa.host_isas()
A, B, C = (Operand(slot=slot, offset=0) for slot in range(3))


def problem(rng, dtype, *, outer, t, m, n, k, exact=True, strided_columns=False, **options):
    """A problem with axes A[o1, o2, t, m, k], B[o1, o2, t, k, n], C[o1, o2, t, m, n] and its operands."""
    fixed = [] if strided_columns else [4]
    a = strided.make(rng, (*outer, t, m, k), dtype, zeros=True, exact=exact)
    b = strided.make(rng, (*outer, t, k, n), dtype, fixed=fixed, zeros=True, exact=exact)
    c = strided.make(rng, (*outer, t, m, n), dtype, fixed=[4], exact=exact)
    strides = [x.view.strides for x in (a, b, c)]
    p = small.SmallProblem(
        dtype=dtype,
        a=A._replace(offset=a.start),
        b=B._replace(offset=b.start),
        c=C._replace(offset=c.start),
        outer=tuple((outer[i], a.table(i), b.table(i), c.table(i)) for i in range(2)),
        t=t,
        t_strides=tuple(s[2] for s in strides),
        m=m,
        m_strides=(strides[0][3], strides[2][3]),
        n=n,
        k=k,
        k_strides=(strides[0][4], strides[1][3]),
        n_stride=strides[1][4],
        **options,
    )
    return p, (a, b, c)


def check(p, operands, row, threads=1, width=None):
    """Runs the kernel and the reference on copies of the same bytes."""
    lowered = small.lower(p, row, threads)
    if width:
        lowered = replace(lowered, kernels={abi.FN: f"small_{p.dtype}_{width}{'s' if p.strided else ''}"})
    launch = Launch(lowered, [x.memory.ctypes.data for x in operands], row)
    strided.same_as_reference(p, operands, small.reference, launch)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_reference(row, dtype, data):
    sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 0])
    options = {
        name: data.draw(st.booleans(), name) for name in ("conj_a", "conj_b", "accumulate", "strided_columns")
    }
    p, operands = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
        dtype,
        outer=(data.draw(st.sampled_from([1, 1, 2, 3, 0]), "outer"), data.draw(st.sampled_from([1, 2]), "outer 2")),
        t=data.draw(sizes, "t"),
        m=data.draw(sizes, "m"),
        n=data.draw(st.one_of(sizes, st.integers(0, 40)), "n"),
        k=data.draw(sizes, "k"),
        **options,
    )
    assert small.kernel_for(p, row) in small.names(row)
    check(p, operands, row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_width_and_number_of_columns(row, dtype):
    rng = np.random.default_rng(1)
    for width in small.widths(row, dtype):
        cases = ((False, False), (True, False), (False, True), (True, True))
        for n in range(1, 2 * width + 2):
            for accumulate, strided_columns in cases[: 4 if width <= small.WIDEST_STRIDED else 2]:
                options = {"accumulate": accumulate, "strided_columns": strided_columns}
                p, operands = problem(rng, dtype, outer=(1, 1), t=2, m=3, n=n, k=2, **options)
                check(p, operands, row, width=width)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("m", range(1, 19))
def test_every_number_of_rows(row, dtype, m):
    check(*problem(np.random.default_rng(m), dtype, outer=(1, 1), t=2, m=m, n=5, k=3, conj_a=True), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", small.FIXED_DTYPES)
@pytest.mark.parametrize("size", small.FIXED)
def test_sizes_written_out(row, dtype, size):
    rng = np.random.default_rng(size)
    names = set()
    for n in (*range(1, 20), 33, 50, 128):
        for accumulate, strided_columns in ((False, False), (True, False), (False, True), (True, True)):
            options = {"accumulate": accumulate, "strided_columns": strided_columns}
            options |= {"conj_a": bool(n % 2), "conj_b": n > 5}
            p, operands = problem(rng, dtype, outer=(1, 2), t=3, m=size, n=n, k=size, **options)
            names.add(small.kernel_for(p, row))
            check(p, operands, row)
    fixed = {name.split("_")[2][-1] for name in names if name.endswith(f"_{size}x{size}")}
    assert "s" in fixed and len(fixed) > 1 and names <= set(small.names(row))


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", small.FIXED_DTYPES)
@pytest.mark.parametrize("n", [1, 2, 4, 5, 16])
def test_four_rows_and_terms_may_be_two_dimensions(row, dtype, n):
    """A[t, m1, k1, m0, k0], B[k1, t, k0, n], C[m1, t, m0, n]."""
    rng, item = np.random.default_rng(n), np.dtype(dtype).itemsize
    shapes = ((5, 2, 2, 4), (2, 5, 2, n), (2, 5, 2, n))
    operands = [strided.make(rng, shape, dtype, fixed=[3], exact=True) for shape in shapes]
    (a, b, c), strides = operands, [x.view.strides for x in operands]
    p = small.SmallProblem(
        dtype=dtype,
        a=A._replace(offset=a.start),
        b=B._replace(offset=b.start),
        c=C._replace(offset=c.start),
        t=5,
        t_strides=(strides[0][0], strides[1][1], strides[2][1]),
        m=4,
        m_strides=(strides[0][2], strides[2][2]),
        m_half=(strides[0][1], strides[2][0]),
        n=n,
        k=4,
        k_strides=(item, strides[1][2]),
        k_half=(2 * item, strides[1][0]),
    )
    if not small.is_written_out(row, dtype, m=4, n=n, k=4):
        with pytest.raises(AssertionError, match="one stride"):
            small.lower(p, row)
        return
    check(p, operands, row)
    left = a.view.reshape(5, 4, 4)
    expected = np.einsum("tmk,tkn->tmn", left, b.view.transpose(1, 0, 2, 3).reshape(5, 4, n))
    reference = [x.copy() for x in operands]
    small.reference(p, {slot: x.memory for slot, x in enumerate(reference)})
    np.testing.assert_array_equal(reference[2].view.transpose(1, 0, 2, 3).reshape(5, 4, n), expected)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_tasks_cover_the_results_once(threads, monkeypatch):
    monkeypatch.setattr(small, "SHARED_TERMS", 64)
    rng = np.random.default_rng(threads)
    for outer, t in (((3, 5), 1), ((1, 1), 99), ((1, 2), 50), ((2, 1), 3)):
        p, operands = problem(rng, "int32", outer=outer, t=t, m=4, n=4, k=4, parallel=True, accumulate=True)
        assert small.lower(p, ISAS[0], threads).tasks > 1
        check(p, operands, ISAS[0], threads)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rounding_is_within_the_bound(row, dtype):
    p, (a, b, c) = problem(
        np.random.default_rng(5), dtype, outer=(1, 1), t=3, m=3, n=5, k=20, exact=False, conj_b=True
    )
    answer = oracle.einsum("tmk,tkn->tmn", a.view[0, 0], b.view[0, 0], conj=[1])
    Launch(small.lower(p, row), [x.memory.ctypes.data for x in (a, b, c)], row)()
    oracle.check(c.view[0, 0], answer)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 5e-324])
def test_special_values_stay_in_their_result(row, special):
    p, (a, b, c) = problem(np.random.default_rng(6), "float64", outer=(1, 1), t=4, m=3, n=5, k=2)
    b.view[0, 0, 2, 1, 4] = special
    a.view[...] = 1
    c.view[...] = np.nan  # not read
    Launch(small.lower(p, row), [x.memory.ctypes.data for x in (a, b, c)], row)()
    np.testing.assert_array_equal(c.view[0, 0], np.einsum("tmk,tkn->tmn", a.view[0, 0], b.view[0, 0]))


def test_a_wrong_kernel_is_caught():
    p, operands = problem(np.random.default_rng(7), "float64", outer=(1, 1), t=3, m=2, n=3, k=2)
    expected = operands[2].copy()
    wrong = replace(p, conj_a=True, t_strides=(0, *p.t_strides[1:]))
    small.reference(wrong, {0: operands[0].memory, 1: operands[1].memory, 2: expected.memory})
    Launch(small.lower(p, ISAS[0]), [x.memory.ctypes.data for x in operands], ISAS[0])()
    with pytest.raises(AssertionError):
        strided.same_bytes(operands[2], expected, p)


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_compiles_for_arm(dtype):
    from einsum_engine.kernels.cpu import codegen, generators

    neon = isa.get("neon")
    for name in [name for name in small.names(neon) if name.split("_")[1] == dtype][-2:]:
        assert f"{name}:" in codegen.assembly(generators.build(name, neon), neon)


def test_width_for():
    wide, narrow = isa.get("avx512"), isa.get("avx2")
    assert [small.width_for(wide, "float64", n) for n in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, 8]
    assert [small.width_for(narrow, "float64", n) for n in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 2, 4, 4, 4, 4]


def test_fits():
    wide = isa.get("avx512")
    assert small.fits(wide, "float64", products=1000, m=8, n=8, k=8)
    assert not small.fits(wide, "float64", products=1, m=8, n=8, k=8)
    assert not small.fits(wide, "float64", products=1000, m=8, n=80, k=8)
    assert not small.fits(wide, "float64", products=1000, m=8, n=1, k=8)
    assert not small.fits(wide, "int8", products=1000, m=8, n=1, k=8)
    assert small.fits(wide, "float64", products=1000, m=8, n=8, k=8, strided=True)
    assert not small.fits(wide, "float64", products=1000, m=16, n=16, k=16, strided=True)
    assert small.width_for(wide, "int8", 60) == 64 and small.width_for(wide, "int8", 60, strided=True) == 8


@pytest.mark.parametrize(
    "dtype, products, m, n, k, fitting",
    [
        ("float32", 500, 20, 20, 20, True),
        ("float32", 500, 24, 24, 24, False),  # 1152 multiply-adds of vectors
        ("float32", 500, 12, 41, 12, False),  # more than two vectors and a half
        ("float32", 500, 3, 36, 50, False),  # few rows, each waiting for its sum
        ("float64", 500, 18, 18, 18, True),
        ("float64", 500, 8, 100, 8, False),  # 3 MB of results
        ("float64", 100, 8, 100, 8, True),
        ("float64", 100, 8, 129, 8, False),
        ("complex64", 500, 18, 18, 18, False),
        ("complex64", 1 << 17, 2, 32, 2, True),  # gates on a state that no cache holds: lines are whole
        ("complex64", 1 << 16, 2, 64, 2, False),
        ("complex64", 1 << 16, 4, 32, 4, False),
        ("complex64", 1 << 16, 4, 27, 4, True),  # and not whole
        ("float64", 1 << 16, 4, 36, 4, False),
    ],
)
def test_longer_rows(dtype, products, m, n, k, fitting):
    assert small.fits(isa.get("avx512"), dtype, products=products, m=m, n=n, k=k) == fitting
    assert not small.fits(isa.get("avx512"), dtype, products=products, m=m, n=n, k=k, strided=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize(
    "equation, sizes",
    [
        ("abc,db->adc", dict(a=330, b=2, c=27, d=2)),
        ("abc,db->adc", dict(a=61, b=4, c=100, d=3)),
        ("bmk,bkn->bmn", dict(b=7, m=8, k=8, n=128)),
        ("bmk,bkn->bmn", dict(b=9, m=11, k=12, n=18)),
        ("bkm,bkn->mbn", dict(b=9, m=11, k=12, n=19)),
        ("bmk,bkn->bmn", dict(b=5, m=6, k=24, n=17)),
    ],
)
def test_products_with_longer_rows(equation, sizes, dtype, threads):
    rng = np.random.default_rng(0)
    inputs, _ = equation.split("->")
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]) for term in inputs.split(",")]
    f = engine.compile(equation, *(x.shape for x in arrays), dtypes=dtype, threads=threads)
    assert (f(*(x.astype(dtype) for x in arrays)) == np.einsum(equation, *arrays)).all()
    assert isa.active_isa().vector_bits < 512 or [step.family for step in f.plan.steps] == ["small"]
