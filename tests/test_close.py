"""Runs of lanes behind which the next column of a large C begins: they are put together, and leave past the caches."""

from dataclasses import replace

import gemm_cases
import numpy as np
import pytest
from dense import numpy_dtype

import einsum_engine as engine
from einsum_engine.kernels import isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import gemm, memo
from einsum_engine.planners.gemm_access import KC
from einsum_engine.planners.tasks import gemm_blocks

every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
AVX512 = isa.get("avx512")


def _together(case, row, run: int, runs: int, columns: int):
    """``case`` with two panels of ``runs`` times ``run`` lanes; ``columns`` of C are adjacent, and then comes a gap."""
    mr = case.tile[0] * tiles.elements(row, case.dtype)
    item, groups = tiles.ITEMSIZE[case.dtype], -(-case.n // columns)
    ready = gemm_cases.build(replace(case, valid=(run * runs,) * 2, scattered=True), row)
    c = gemm_cases.store(case, 2 * runs * groups, columns * run * item)
    lane, column = np.arange(mr), np.arange(case.n)
    rows = (np.arange(2)[:, None] * runs + lane // run) * groups * c.pitch + lane % run * item
    tm_c = c.begin(columns * run * item) + rows
    tm_c[:, run * runs :] = gemm_cases.POISON
    tn_c = column // columns * c.pitch + column % columns * run * item
    where = (tm_c[:, : run * runs].ravel()[:, None] + tn_c).ravel()
    written = np.zeros(len(c.memory), bool)
    written[where[:, None] + np.arange(item)] = True
    for number in range(2 * runs * groups):
        c.row(number)[...] = 7
    problem = replace(ready.problem, tm_c=tm_c.ravel(), tn_c=tn_c, close=run, blocks=(1, 2, case.n))
    return replace(ready, problem=problem, stores=(*ready.stores[:2], c), written=written)


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_runs_of_columns_are_written_and_nothing_else(row, dtype, flush):
    """Lines that are whole and parts of lines, one run in a panel and several, columns that are adjacent or not."""
    tile = next(tile for tile in tiles.tiles(row, dtype)[::-1] if tile[1] > 1)
    mr = tile[0] * tiles.elements(row, dtype)
    for run, runs, columns in ((mr, 1, 2), (max(1, mr - 1), 1, 3), (mr // 2, 2, tile[1]), (1, mr, 1), (mr // 2, 1, 4)):
        _check_runs(row, dtype, flush, tile, run, runs, columns)


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64", "complex128", "int32"])
def test_runs_that_share_vectors(row, dtype):
    """Runs of a vector and more, which begin and end anywhere in the vectors of a tile."""
    tile = max((tile for tile in tiles.tiles(row, dtype) if tile[1] > 1), key=lambda tile: (tile[0], tile[1]))
    elements = tiles.elements(row, dtype)
    mr = tile[0] * elements
    for run in sorted({elements, elements + 1, 3 * elements // 2, 2 * elements - 1, mr // 3, mr // 2, mr - 1, mr}):
        for runs in {1, mr // run} if 0 < run <= mr else ():
            for columns in (tile[1], 1):
                _check_runs(row, dtype, "end", tile, run, runs, columns)


def _check_runs(row, dtype: str, flush: str, tile, run: int, runs: int, columns: int) -> None:
    given = dict(dtype=dtype, tile=tile, n=2 * tile[1] + 1, k=3, a="panels", b="panels", flush=flush, stream=True)
    gemm_cases.run(_together(gemm_cases.Case(valid=(), **given), row, run, runs, columns), row)


def _row(compiled):
    return compiled.plan.steps[-1].args


@pytest.fixture
def large(monkeypatch):
    """All results are written past the caches."""
    monkeypatch.setattr(gemm, "STREAM_BYTES", 0)
    memo.forget()
    yield
    memo.forget()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize(
    "text, sizes, close",
    [
        ("dacfe,fb->edcba", dict(d=5, a=24, c=4, f=9, e=6, b=24), True),
        ("aged,cbfg->fedcba", dict(a=6, g=11, e=5, d=4, c=3, b=5, f=3), True),
        ("dacfe,fb->edbca", dict(d=5, a=24, c=4, f=9, e=6, b=24), False),  # another row between
        ("dacfe,fb->edcba", dict(d=2, a=24, c=2, f=KC[4] + 1, e=2, b=24), False),  # added to, block after block
    ],
)
def test_which_products_are_stored_so(large, text, sizes, close, dtype):
    shapes = [tuple(sizes[index] for index in term) for term in text.split("->")[0].split(",")]
    arrays = [np.random.default_rng(3).integers(-4, 5, shape).astype(numpy_dtype(dtype)) for shape in shapes]
    f = engine.compile(text, *arrays, threads=1)
    assert np.array_equal(f(*arrays), np.einsum(text, *arrays, optimize=True))
    if isa.active_isa() is AVX512 and dtype == "float32":
        assert (_row(f).words[abi.G_STREAM] > 1) == close


def test_a_far_operand_is_read_in_few_streams():
    """Columns of a B that comes from memory, each of which is a stream."""
    near, far = (engine.compile("ae,de->da", (48, 48), (n, 48), dtypes="float64", threads=1) for n in (600, 60000))
    assert far.plan.steps[-1].tile[1] <= 8
    a, b = np.random.rand(48, 48), np.random.rand(60000, 48)
    assert np.allclose(far(a, b), b @ a.T) and np.allclose(near(a, b[:600]), b[:600] @ a.T)


@pytest.mark.parametrize("rows, packed", [(48, False), (48 * 400, True)])
def test_a_small_operand_is_packed_for_long_products(rows, packed):
    f = engine.compile("ke,mk->em", (48, 24), (rows, 48), dtypes="float32", threads=1)
    a, b = np.random.rand(48, 24).astype("f4"), np.random.rand(rows, 48).astype("f4")
    assert np.allclose(f(a, b), (b @ a).T, rtol=1e-4)
    assert any(step.kernel.startswith("pack") for step in f.plan.steps) == packed


def test_blocks_of_a_are_larger_beside_a_large_b():
    """What a core keeps beside B, and as many tasks as threads want."""
    given = dict(outer=1, panels=61, columns=1448, nr=8, panel_bytes=47 << 10, grain=1)
    assert gemm_blocks(column_bytes=100 << 10, threads=1, **given)[1] < gemm_blocks(column_bytes=3 << 20, threads=1, **given)[1]
    assert gemm_blocks(column_bytes=3 << 20, threads=2, **given) == (1, 8, 1448)
