"""The batched family: every dtype, instruction set, tile and edge against its NumPy reference, in guarded memory."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import strided
from hypothesis import given, settings
from hypothesis import strategies as st

from einsum_engine.kernels import batched, isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.gemm import Operand
from einsum_engine.kernels.launch import Launch

ISAS = isa.host_isas()
A, B, C = (Operand(slot=slot, offset=0) for slot in range(3))


def problem(rng, dtype, *, outer, m, n, k, lanes, exact=True, **options):
    """A problem with axes A[o1, o2, m, k, lanes], B[o1, o2, n, k, lanes], C[o1, o2, m, n, lanes] and its operands."""
    a, b = (strided.make(rng, (*outer, x, k, lanes), dtype, fixed=[4], zeros=True, exact=exact) for x in (m, n))
    c = strided.make(rng, (*outer, m, n, lanes), dtype, fixed=[4], exact=exact)
    p = batched.BatchedProblem(
        dtype=dtype,
        a=A._replace(offset=a.start),
        b=B._replace(offset=b.start),
        c=C._replace(offset=c.start),
        outer=tuple((outer[i], a.table(i), b.table(i), c.table(i)) for i in range(2)),
        lanes=lanes,
        tm_a=a.table(2),
        tm_c=c.table(2),
        tn_b=b.table(2),
        tn_c=c.table(3),
        tk_a=a.table(3),
        tk_b=b.table(3),
        **options,
    )
    return p, (a, b, c)


def check(p, operands, row, threads=1, tile=None):
    """Runs the kernel and the reference on copies of the same bytes."""
    lowered = batched.lower(p, row, threads)
    if tile:
        lowered = replace(lowered, kernels={abi.FN: f"batched_{p.dtype}_{tile[0]}x{tile[1]}"})
    launch = Launch(lowered, [x.memory.ctypes.data for x in operands], row)
    strided.same_as_reference(p, operands, batched.reference, launch)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_reference(row, dtype, data):
    per_vector = row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    lanes = st.one_of(st.integers(0, 2 * per_vector + 1), st.sampled_from([7 * per_vector + 3, 61]))
    small = st.sampled_from([1, 1, 2, 3, 4, 5, 6, 7, 0])
    options = {name: data.draw(st.booleans(), name) for name in ("conj_a", "conj_b", "accumulate")}
    p, operands = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
        dtype,
        outer=(data.draw(st.sampled_from([1, 1, 2, 3, 0]), "outer"), data.draw(st.sampled_from([1, 2]), "outer 2")),
        m=data.draw(small, "m"),
        n=data.draw(small, "n"),
        k=data.draw(small, "k"),
        lanes=data.draw(lanes, "lanes"),
        **options,
    )
    check(p, operands, row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_tile_at_its_edges(row, dtype):
    rng = np.random.default_rng(1)
    per_vector = row.vector_bits // (8 * tiles.ITEMSIZE[dtype])
    for tile in batched.tiles(row, dtype):
        for m, n in (tile, (tile[0] + 1, tile[1] + 1), (1, 1), (2 * tile[0] - 1, tile[1])):
            p, operands = problem(rng, dtype, outer=(1, 1), m=max(m, n), n=min(m, n), k=3, lanes=per_vector + 1)
            check(p, operands, row, tile=tile)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_rest_of_the_batch(row, dtype):
    rng = np.random.default_rng(2)
    for lanes in range(1, 2 * row.vector_bits // (8 * tiles.ITEMSIZE[dtype]) + 2):
        for accumulate in (False, True):
            check(*problem(rng, dtype, outer=(1, 1), m=2, n=1, k=2, lanes=lanes, accumulate=accumulate), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
def test_blocks_of_the_batch(row, monkeypatch):
    monkeypatch.setattr(batched, "BLOCK_BYTES", 1)
    monkeypatch.setattr(batched, "BLOCK_RUN", 64)
    rng = np.random.default_rng(3)
    for accumulate in (False, True):
        check(*problem(rng, "float32", outer=(1, 1), m=5, n=3, k=2, lanes=301, accumulate=accumulate), row)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_copies_of_rows_that_collide(row, dtype, monkeypatch):
    monkeypatch.setattr(batched, "STAGE_BYTES", 2048)
    monkeypatch.setattr(batched, "collides", lambda p, isa, tile: True)
    rng = np.random.default_rng(8)
    for lanes in (1, 40, 1024, 1031):
        for m, n, k in ((3, 5, 4), (1, 1, 9)):
            p, operands = problem(
                rng, dtype, outer=(1, 2), m=m, n=n, k=k, lanes=lanes, accumulate=bool(rng.integers(2)), conj_b=True
            )
            assert batched.lower(p, row).scratch
            check(p, operands, row)


def test_collides(monkeypatch):
    monkeypatch.setattr(batched, "BLOCK_BYTES", 256 << 10)
    wide = isa.get("avx512")

    def pitched(lanes, size):
        return problem(np.random.default_rng(0), "float64", outer=(1, 1), m=size, n=size, k=size, lanes=lanes)[0]

    def table(pitch, count):
        return np.arange(count, dtype=np.int64) * pitch

    def rows(pitch, size):
        outer, inner = table(pitch * size, size), table(pitch, size)
        return replace(pitched(1024, size), tm_a=outer, tk_a=inner, tn_b=outer, tk_b=inner, tm_c=outer, tn_c=inner)

    narrow = isa.get("avx2")

    def collides(p, row):
        return batched.collides(p, row, batched.tile_for(row, p.dtype, p.m, p.n))

    assert collides(rows(8192, 8), wide) and collides(rows(8192, 8), narrow)
    assert not collides(rows(8192 + 64, 8), wide)
    assert not collides(rows(8192, 2), wide)
    # rows of one behind the other: of 2 KB, of which each line has two vectors or one, and so short that they fill all sets
    assert collides(rows(2048, 8), narrow) and not collides(rows(2048, 8), wide)
    assert not collides(rows(256, 12), narrow) and not collides(rows(256, 12), wide)
    column = replace(rows(8192, 8), tn_b=table(64, 1), tn_c=table(64, 1))
    assert not collides(column, wide) and not collides(column, narrow)
    columns = replace(rows(8192, 8), tn_b=table(65536, 2), tn_c=table(8192, 2))  # each row is read once or twice
    assert not collides(columns, narrow)
    assert collides(replace(columns, lanes=128), narrow)  # few sets are theirs, so that they are gone between two parts of a line
    assert not collides(replace(rows(8192, 8), tk_a=table(8192, 99), tk_b=table(8192, 99)), narrow)  # copies do not stay
    same = replace(columns, lanes=64, tm_a=table(0, 8), tk_a=table(0, 8), tk_b=table(8192 + 512, 8), tm_c=table(512, 8))
    assert not collides(same, narrow)  # rows that are one row


def crossed(m, n, k, **options):
    """Few rows whose terms are dense, many columns whose terms share a quarter of the sets."""
    p, _ = problem(np.random.default_rng(0), "float32", outer=(1, 2), m=m, n=n, k=k, lanes=8, **options)
    dense, apart = (np.arange(k, dtype=np.int64) * step for step in (32, 256))
    rows, columns = (np.arange(count, dtype=np.int64) * k * step for count, step in ((m, 32), (n, 256)))
    return replace(p, tm_a=rows, tk_a=dense, tn_b=columns, tk_b=apart)


def test_roles_keep_what_is_read_again_in_the_first_cache():
    narrow, wide = isa.get("avx2"), isa.get("avx512")
    p, tile = batched.arranged(crossed(8, 32, 64), narrow)
    assert (p.m, p.n, tile) == (8, 32, (4, 2)) and p.tk_b[1] == 256
    assert batched.arranged(crossed(8, 32, 2), narrow)[0].m == 32  # all of it stays
    assert batched.arranged(crossed(8, 32, 64), wide)[0].m == 32  # not measured
    shared = crossed(8, 32, 64, parallel=True)
    assert batched.arranged(shared, narrow, threads=2)[0].m == 8  # there is an outer loop for each
    assert batched.arranged(shared, narrow, threads=4)[0].m == 32


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
def test_tasks_cover_the_results_once(row, threads, monkeypatch):
    monkeypatch.setattr(batched, "SHARED_TERMS", 64)
    rng = np.random.default_rng(threads)
    for outer, m, n, lanes in (((3, 5), 1, 1, 20), ((1, 1), 3, 2, 999), ((1, 2), 9, 4, 130), ((1, 1), 4, 30, 33)):
        for accumulate in (False, True):
            p, operands = problem(
                rng, "int32", outer=outer, m=m, n=n, k=3, lanes=lanes, parallel=True, accumulate=accumulate
            )
            assert batched.lower(p, row, threads).tasks > 1
            check(p, operands, row, threads)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("lanes", [5, 16, 70])
@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
def test_four_outer_loops(row, lanes, threads, monkeypatch):
    """Sums of the slower levels go on where a task begins within them, and end with the last index of all."""
    monkeypatch.setattr(batched, "SHARED_TERMS", 16)
    p, operands = problem(
        np.random.default_rng(lanes), "float32", outer=(6, 15), m=4, n=1, k=3, lanes=lanes, parallel=True
    )
    levels = []
    for (_, *tables), fast in zip(p.outer, (3, 5)):
        levels += [(len(tables[0]) // fast, *(t[::fast] for t in tables)), (fast, *(t[:fast] for t in tables))]
    check(replace(p, outer=tuple(levels)), operands, row, threads)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rounding_is_within_the_bound(row, dtype):
    rng = np.random.default_rng(5)
    p, (a, b, c) = problem(rng, dtype, outer=(1, 1), m=3, n=2, k=40, lanes=9, exact=False, conj_a=True)
    answer = oracle.einsum("mkb,nkb->mnb", a.view[0, 0], b.view[0, 0], conj=[0])
    Launch(batched.lower(p, row), [x.memory.ctypes.data for x in (a, b, c)], row)()
    oracle.check(c.view[0, 0], answer)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 5e-324])
def test_special_values_stay_in_their_lane(row, special):
    p, (a, b, c) = problem(np.random.default_rng(6), "float64", outer=(1, 1), m=3, n=2, k=2, lanes=19)
    a.view[0, 0, 1, 0, 18] = special
    b.view[...] = 1
    c.view[...] = np.nan  # not read
    Launch(batched.lower(p, row), [x.memory.ctypes.data for x in (a, b, c)], row)()
    np.testing.assert_array_equal(c.view[0, 0], np.einsum("mkb,nkb->mnb", a.view[0, 0], b.view[0, 0]))


def test_a_wrong_kernel_is_caught():
    p, operands = problem(np.random.default_rng(7), "float64", outer=(1, 1), m=2, n=3, k=2, lanes=20)
    expected = operands[2].copy()
    wrong = replace(p, tk_b=p.tk_b[::-1])
    batched.reference(wrong, {0: operands[0].memory, 1: operands[1].memory, 2: expected.memory})
    Launch(batched.lower(p, ISAS[0]), [x.memory.ctypes.data for x in operands], ISAS[0])()
    with pytest.raises(AssertionError):
        strided.same_bytes(operands[2], expected, p)


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_compiles_for_arm(dtype):
    from einsum_engine.kernels.cpu import codegen, generators

    neon = isa.get("neon")
    for mt, nt in batched.tiles(neon, dtype)[-1:]:
        name = f"batched_{dtype}_{mt}x{nt}"
        assert f"{name}:" in codegen.assembly(generators.build(name, neon), neon)


@pytest.mark.parametrize("name", isa.ISAS)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_tiles_fit_the_registers(name, dtype):
    row, parts = isa.get(name), 2 if dtype in tiles.COMPLEX else 1
    for mt, nt in batched.tiles(row, dtype):
        assert mt >= nt and mt * nt * parts + nt * parts + 1 <= row.registers


def test_tile_for_wastes_little():
    wide = isa.get("avx512")
    assert batched.tile_for(wide, "float64", 1, 1) == (1, 1)
    assert batched.tile_for(wide, "float64", 2, 2) == (2, 2)
    assert batched.tile_for(wide, "float64", 3, 3) == (3, 3)
    assert batched.tile_for(wide, "float64", 8, 8) == (4, 4)
    assert batched.tile_for(wide, "float64", 12, 8) == (6, 4)
    narrow = isa.get("avx2")
    assert batched.tile_for(narrow, "float32", 7, 32) == (4, 2)  # four sums alone would wait for themselves
    assert batched.tile_for(narrow, "float32", 1, 1) == (1, 1)
    assert batched.tile_for(narrow, "float32", 2, 2) == (2, 2)
    assert batched.tile_for(narrow, "complex64", 4, 4) in ((2, 2), (4, 1), (3, 1))


def test_fits():
    wide = isa.get("avx512")
    assert batched.fits(wide, "float64", lanes=100, m=8, n=8, k=8)
    assert not batched.fits(wide, "float64", lanes=3, m=8, n=8, k=8)
    assert not batched.fits(wide, "float64", lanes=100, m=256, n=256, k=256)
