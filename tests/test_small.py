"""The small family: every dtype, instruction set, width and edge against its NumPy reference, in guarded memory."""

from dataclasses import replace
from itertools import product

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


COLUMNS = {"adjacent": [4], "strided": [], "along k": [3]}  # axes of B that are contiguous


def problem(rng, dtype, *, outer, t, m, n, k, exact=True, columns="adjacent", **options):
    """A problem with axes A[o1, o2, t, m, k], B[o1, o2, t, k, n], C[o1, o2, t, m, n] and its operands."""
    fixed = COLUMNS[columns]
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


def check(p, operands, row, threads=1, kernel=None):
    """Runs the kernel and the reference on copies of the same bytes."""
    lowered = small.lower(p, row, threads)
    if kernel:
        lowered = replace(lowered, kernels={abi.FN: f"small_{p.dtype}_{kernel}"})
    launch = Launch(lowered, [x.memory.ctypes.data for x in operands], row)
    strided.same_as_reference(p, operands, small.reference, launch)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_reference(row, dtype, data):
    sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 0])
    options = {name: data.draw(st.booleans(), name) for name in ("conj_a", "conj_b", "accumulate")}
    options["columns"] = data.draw(st.sampled_from(list(COLUMNS)), "columns")
    p, operands = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
        dtype,
        outer=(data.draw(st.sampled_from([1, 1, 2, 3, 0]), "outer"), data.draw(st.sampled_from([1, 2]), "outer 2")),
        t=data.draw(sizes, "t"),
        m=data.draw(sizes, "m"),
        n=data.draw(st.one_of(sizes, st.integers(0, 40)), "n"),
        k=data.draw(st.one_of(sizes, st.integers(0, 66)), "k"),
        **options,
    )
    assert small.kernel_for(p, row) in small.names(row)
    check(p, operands, row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_width_and_number_of_columns(row, dtype):
    """Of all kernels whose rows and terms are not written out."""
    rng = np.random.default_rng(1)
    known = [name.removeprefix(f"small_{dtype}_") for name in small.names(row) if name.startswith(f"small_{dtype}_")]
    known = [name for name in known if "x" not in name]
    assert {small.two_registers(row, dtype), *small.widths(row, dtype)} - {0} == {int(x) for x in known if x.isdigit()}
    for kernel in known:
        width = int(kernel.rstrip("st"))
        columns = {"s": "strided", "t": "along k"}.get(kernel[-1], "adjacent")
        for n in range(1, 2 * width + 2):
            for accumulate in (False, True):
                k = min(width, small.turned_widths(row, dtype)[-1]) + n % 3 if kernel[-1] == "t" else 2
                options = {"accumulate": accumulate, "columns": columns}
                p, operands = problem(rng, dtype, outer=(1, 1), t=2, m=3, n=n, k=k, **options)
                check(p, operands, row, kernel=kernel)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", small.TURNED_DTYPES)
def test_columns_whose_terms_are_adjacent(row, dtype):
    rng, named = np.random.default_rng(2), set()
    sizes = ((1, 4, 4), (9, 4, 4), (3, 16, 16), (9, 16, 16), (17, 11, 9), (9, 15, 64), (9, 15, 65), (9, 3, 16), (9, 40, 7))
    for m, n, k in sizes:
        p, operands = problem(rng, dtype, outer=(1, 1), t=2, m=m, n=n, k=k, columns="along k", conj_a=True, conj_b=True)
        kernel = small.kernel_for(p, row)
        width, kind = small.at_once(row, dtype, m=m, n=n, k=k, columns="t")
        assert kernel == f"small_{dtype}_{width}{kind}" and (m > 8 or width >= min(n, small.widths(row, dtype)[-1]))
        named.add(kernel)
        check(p, operands, row)
    assert all(small.at_once(row, dtype, m=9, n=n, k=k, columns="t")[1] == "s" for n, k in ((3, 16), (15, 65)))
    kinds = {name[-1] for name in named}
    assert "s" in kinds and ("t" in kinds) == bool(small.turned_widths(row, dtype)) and named <= set(small.names(row))


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
        for accumulate, columns in product((False, True), ("adjacent", "strided")):
            options = {"accumulate": accumulate, "columns": columns}
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
    assert small.fits(wide, "float64", products=1000, m=8, n=8, k=8, columns="s")
    assert not small.fits(wide, "float64", products=1000, m=16, n=16, k=16, columns="s")
    assert small.fits(wide, "float64", products=1000, m=16, n=16, k=16, columns="t")
    sizes = {"products": 64, "m": 32, "n": 32, "k": 32}
    assert small.fits(wide, "float32", **sizes, apart=True) and small.fits(wide, "float64", **sizes)
    assert not small.fits(wide, "float64", **sizes, apart=True)  # two times 16 columns read A
    assert small.width_for(wide, "int8", 60) == 64 and small.width_for(wide, "int8", 60, strided=True) == 8


@pytest.mark.parametrize(
    "dtype, products, m, n, k, narrow, wide",
    [
        ("float32", 500, 20, 20, 20, False, True),
        ("float32", 500, 24, 24, 24, False, True),  # 1152 multiply-adds of vectors, but two registers
        ("float32", 500, 32, 40, 32, False, False),  # three
        ("float32", 500, 32, 64, 32, False, True),  # four
        ("float32", 500, 32, 64, 33, False, False),
        ("float32", 500, 41, 32, 64, False, False),  # 2624 terms of a row
        ("float32", 500, 40, 32, 64, False, True),
        ("float32", 2000, 32, 32, 32, False, False),  # 8 MB of results in whole lines
        ("float32", 2000, 32, 31, 32, False, True),
        ("float64", 2000, 32, 16, 32, True, False),
        ("float64", 2000, 16, 16, 16, True, True),
        ("float32", 500, 12, 41, 12, False, False),  # more than two vectors and a half
        ("float32", 500, 3, 36, 50, False, False),  # few rows, each waiting for its sum
        ("float64", 500, 18, 18, 18, False, True),
        ("float64", 500, 8, 100, 8, False, False),  # 3 MB of results
        ("float64", 100, 8, 100, 8, True, True),
        ("float64", 100, 8, 129, 8, False, False),
        ("complex64", 500, 18, 18, 18, False, False),
        ("complex64", 1 << 17, 2, 32, 2, True, True),  # gates on a state that no cache holds: lines are whole
        ("complex64", 1 << 16, 2, 64, 2, True, False),  # rows and terms are written out
        ("complex64", 1 << 16, 4, 32, 4, True, False),
        ("complex64", 1 << 16, 4, 27, 4, True, True),  # and not whole
        ("float64", 1 << 16, 4, 36, 4, True, False),
        ("float64", 1 << 16, 4, 36, 3, False, False),
        ("float32", 9, 3, 10**6, 3, True, False),
    ],
)
def test_longer_rows(dtype, products, m, n, k, narrow, wide):
    """With 16 registers of half the width, and with 32."""
    for name, fitting in (("avx2", narrow), ("avx512", wide)):
        assert small.fits(isa.get(name), dtype, products=products, m=m, n=n, k=k) == fitting, name
        assert not small.fits(isa.get(name), dtype, products=products, m=m, n=n, k=k, columns="s")


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


@pytest.mark.parametrize("dtype", small.TURNED_DTYPES)
@pytest.mark.parametrize(
    "equation, sizes, turned",
    [
        ("bmk,bnk->bmn", dict(b=5, m=16, k=16, n=16), True),
        ("mkb,nbk->bmn", dict(b=7, m=9, k=17, n=13), True),
        ("bkn,bmk->bmn", dict(b=7, m=16, k=23, n=30), False),
    ],
)
def test_products_whose_columns_are_turned_round(equation, sizes, turned, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]) for term in equation.split("->")[0].split(",")]
    f = engine.compile(equation, *(x.shape for x in arrays), dtypes=dtype)
    assert (f(*(x.astype(dtype) for x in arrays)) == np.einsum(equation, *arrays)).all()
    (step,) = f.plan.steps
    assert isa.active_isa().vector_bits < 512 or (step.family == "small" and step.kernel.endswith("t") == turned)
