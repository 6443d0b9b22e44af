"""The dot family: every dtype, instruction set and edge against its NumPy reference, in guarded memory."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import strided
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels import dot, isa, tiles
from einsum_engine.kernels.cpu import dot_abi as da
from einsum_engine.kernels.gemm import Operand
from einsum_engine.kernels.launch import Launch, run

ISAS = isa.host_isas()
A, B, C, TEMP = (Operand(slot=slot, offset=0) for slot in range(4))
SIZES = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 9, 13])


def problem(rng, dtype, *, outer, m, n, runs, length, rows=False, **options):
    """A problem with axes A[o1, o2, m, runs, length], B[o1, o2, n, runs, length], C[o1, o2, m, n] and its operands."""
    exact = options.pop("exact", True)
    columns = m if rows else n
    shapes = ((*outer, m, runs, length), (*outer, columns, runs, length), (*outer, m, 1 if rows else n))
    a, b = (strided.make(rng, shape, dtype, fixed=[4], zeros=True, exact=exact) for shape in shapes[:2])
    c = strided.make(rng, shapes[2], dtype, exact=exact)
    p = dot.DotProblem(
        dtype=dtype,
        a=A._replace(offset=a.start),
        b=B._replace(offset=b.start),
        c=C._replace(offset=c.start),
        outer=tuple((outer[i], a.table(i), b.table(i), c.table(i)) for i in range(2)),
        tm_a=a.table(2),
        tm_c=c.table(2),
        tn_b=b.table(2),
        tn_c=c.table(3),
        rows=rows,
        k=runs * length,
        run=length,
        tk_a=a.table(3),
        tk_b=b.table(3),
        **options,
    )
    return p, (a, b, c)


def check(p, operands, row, threads=1):
    """Runs the kernels and the reference on copies of the same bytes."""
    temp = oracle.guarded(dot.temp_bytes(p, threads))
    bases = [x.memory.ctypes.data for x in operands] + [temp.ctypes.data]
    rows = dot.lower(p, threads, TEMP)
    strided.same_as_reference(p, operands, dot.reference, lambda: run(rows, bases, row))


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("rows", [False, True], ids=["tile", "rows"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_against_reference(row, dtype, rows, data):
    lanes = row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    lengths = st.one_of(st.integers(1, 2 * lanes + 1), st.sampled_from([0, 8 * lanes, 17 * lanes + 3, 97]))
    options = {name: data.draw(st.booleans(), name) for name in ("conj_a", "conj_b", "accumulate")}
    p, operands = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
        dtype,
        outer=(data.draw(st.sampled_from([1, 2, 3, 0]), "outer"), data.draw(st.sampled_from([1, 2]), "outer 2")),
        m=data.draw(SIZES, "m"),
        n=data.draw(SIZES, "n"),
        runs=data.draw(st.sampled_from([1, 1, 2, 3, 5, 0]), "runs"),
        length=data.draw(lengths, "length"),
        rows=rows,
        **options,
    )
    check(p, operands, row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_length_of_a_run(row, dtype):
    rng = np.random.default_rng(1)
    for length in range(1, 2 * row.vector_bits // (8 * tiles.ITEMSIZE[dtype]) + 3):
        for m, n in ((1, 1), (5, 1), (4, 4)):
            check(*problem(rng, dtype, outer=(1, 1), m=m, n=n, runs=1, length=length), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("rows", [False, True], ids=["tile", "rows"])
def test_runs_of_one_vector(row, dtype, rows, monkeypatch):
    """Fewer and more of them than sums are added to in turn; blocks of K and shares of threads that end within a run."""
    rng, lanes = np.random.default_rng(9), row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    for block in (1 << 20, 3 * lanes, 3 * lanes + lanes // 2, max(1, lanes - 1)):
        monkeypatch.setattr(dot, "_k_block", lambda p: block)
        for runs, m, n in ((1, 9, 1), (2, 4, 1), (3, 1, 1), (8, 8, 1), (9, 5, 6), (17, 3, 2)):
            options = {"accumulate": runs % 2 == 0, "conj_a": runs > 2, "rows": rows}
            check(*problem(rng, dtype, outer=(1, 2), m=m, n=n, runs=runs, length=lanes, **options), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("rows", [False, True], ids=["tile", "rows"])
def test_rows_one_after_the_other(row, dtype, rows, monkeypatch):
    """Numbers of rows around those of a tile, several tasks, lengths that end within a vector."""
    monkeypatch.setattr(dot, "_in_order", lambda p: p.n == 1)
    rng, lanes = np.random.default_rng(8), row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    for m, length in ((1, 5), (2, 8 * lanes), (4, 17 * lanes + 3), (9, lanes - 1), (13, 3 * lanes)):
        p, operands = problem(
            rng, dtype, outer=(1, 2), m=m, n=1, runs=2, length=length, rows=rows, accumulate=m % 2 == 0, conj_b=m > 4
        )
        assert dot.lower(p)[0].words[da.D_IN_ORDER]
        check(p, operands, row)


@pytest.mark.parametrize(
    "text, shapes, in_order",
    [
        ("ij,j->i", [(100000, 100), (100,)], True),
        ("ij,ij->i", [(30000, 300), (30000, 300)], True),
        ("bij,bj->bi", [(10, 10000, 100), (10, 100)], True),
        ("ij,j->i", [(50000, 100), (100,)], False),  # stays in the shared cache
        ("ij,j->i", [(400000, 20), (20,)], False),  # adding up lanes takes longer than reading
        ("ij,j->i", [(5000, 1500), (1500,)], False),  # hardware follows eight
        ("ij,kj->ik", [(100000, 100), (2, 100)], False),
    ],
)
def test_short_rows_from_memory_are_read_in_order(text, shapes, in_order):
    (step,) = [step for step in engine.compile(text, *shapes, dtypes="float32", threads=1).plan.steps]
    assert bool(step.family == "dot" and step.args.words[da.D_IN_ORDER]) == in_order


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("m, n", [(0, 3), (3, 0), (1, 1), (9, 6), (8, 4), (4, 1), (1, 4), (2, 7)])
@pytest.mark.parametrize("k", [0, 1, 300])
def test_edges(row, m, n, k):
    check(*problem(np.random.default_rng(2), "float64", outer=(1, 1), m=m, n=n, runs=1, length=k), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
def test_k_blocks_add_up(row, dtype, monkeypatch):
    monkeypatch.setattr(dot, "_k_block", lambda p: 37)
    rng = np.random.default_rng(3)
    for accumulate in (False, True):
        p, operands = problem(rng, dtype, outer=(1, 2), m=5, n=6, runs=3, length=83, accumulate=accumulate)
        check(p, operands, row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_shared_sum(row, dtype, threads, monkeypatch):
    monkeypatch.setattr(dot, "SHARED_TERMS", 64)
    rng = np.random.default_rng(threads)
    lanes = row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    for runs, length, rows in ((1, 1000, False), (7, 99, False), (7, 99, True), (601, lanes, False)):
        accumulate = bool(rng.integers(2))
        options = {"rows": rows, "parallel": True, "accumulate": accumulate}
        p, operands = problem(rng, dtype, outer=(1, 2), m=1, n=1, runs=runs, length=length, **options)
        assert dot.splits(p, threads) > 1 and len(dot.lower(p, threads, TEMP)) == 2
        check(p, operands, row, threads)


@pytest.mark.parametrize("m, k, tasks", [(20, 4000, 4), (20, 1638, 1), (20, 1639, 2), (1, 40_000, 2)])
def test_what_is_worth_two_threads_has_tasks_for_them(m, k, tasks):
    p, _ = problem(np.random.default_rng(0), "complex128", outer=(1, 1), m=m, n=1, runs=1, length=k, parallel=True)
    assert dot.lower(p, 2, TEMP)[0].tasks == tasks
    assert dot.lower(replace(p, parallel=False), 2, TEMP)[0].tasks == 1


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_tasks_cover_the_results_once(threads, monkeypatch):
    monkeypatch.setattr(dot, "SHARED_TERMS", 64)
    rng = np.random.default_rng(threads)
    for outer, m, n in (((3, 5), 1, 1), ((1, 1), 37, 1), ((1, 2), 5, 9), ((1, 1), 3, 50), ((2, 1), 1, 30)):
        p, operands = problem(rng, "int64", outer=outer, m=m, n=n, runs=2, length=40, parallel=True, accumulate=True)
        (row,) = dot.lower(p, threads, TEMP)
        assert row.tasks > 1
        check(p, operands, ISAS[0], threads)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rounding_is_within_the_bound(row, dtype):
    rng = np.random.default_rng(5)
    p, (a, b, c) = problem(rng, dtype, outer=(1, 1), m=5, n=3, runs=1, length=201, exact=False, conj_b=True)
    answer = oracle.einsum("mk,nk->mn", a.view[0, 0, :, 0], b.view[0, 0, :, 0], conj=[1])
    run(dot.lower(p), [x.memory.ctypes.data for x in (a, b, c)], row)
    oracle.check(c.view[0, 0], answer)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 5e-324])
def test_special_values_stay_in_their_result(row, special):
    p, (a, b, c) = problem(np.random.default_rng(6), "float64", outer=(1, 1), m=9, n=5, runs=1, length=21)
    a.view[0, 0, 3, 0, 20] = special
    b.view[...] = 1
    c.view[...] = np.nan  # not read
    run(dot.lower(p), [x.memory.ctypes.data for x in (a, b, c)], row)
    np.testing.assert_array_equal(c.view[0, 0], np.einsum("mk,nk->mn", a.view[0, 0, :, 0], b.view[0, 0, :, 0]))


def test_a_wrong_kernel_is_caught():
    p, operands = problem(np.random.default_rng(7), "float64", outer=(1, 1), m=5, n=5, runs=2, length=20)
    expected = operands[2].copy()
    dot.reference(replace(p, tk_b=p.tk_b[::-1]), {0: operands[0].memory, 1: operands[1].memory, 2: expected.memory})
    Launch(dot.lower(p)[0], [x.memory.ctypes.data for x in operands], ISAS[0])()
    with pytest.raises(AssertionError):
        strided.same_bytes(operands[2], expected, p)


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("kind", ["tile", "rows"])
def test_compiles_for_arm(dtype, kind):
    from einsum_engine.kernels.cpu import codegen, generators

    neon, name = isa.get("neon"), f"dot_{dtype}_{kind}"
    assert f"{name}:" in codegen.assembly(generators.build(name, neon), neon)


def test_fits():
    wide = isa.get("avx512")
    assert dot.fits(wide, "float64", m=1, n=1, k=100, run=100)
    assert dot.fits(wide, "float64", m=1000, n=1, k=100, run=100)
    assert not dot.fits(wide, "float64", m=1000, n=1000, k=100, run=100)
    assert not dot.fits(wide, "float64", m=1, n=1, k=100, run=1)
    assert dot.fits(wide, "float64", m=1, n=1, k=2, run=2)
    assert dot.fits(wide, "float32", m=1, n=1, k=300, run=3)
    assert not dot.fits(wide, "float32", m=2, n=1, k=300, run=3)
    assert dot.fits(wide, "float64", m=1000, n=8, k=1000, run=1000)
    assert not dot.fits(wide, "float64", m=1000, n=8, k=64, run=64)
    assert dot.fits(wide, "float64", m=10, n=1, k=64, run=8)
    assert dot.fits(wide, "float64", m=10, n=1, k=90, run=9)
    assert not dot.fits(wide, "float64", m=1000, n=8, k=900, run=9)
