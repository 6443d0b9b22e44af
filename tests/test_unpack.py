"""Products whose lanes run along A: tiles wait, and groups of them are turned round on their way to C."""

from dataclasses import replace

import gemm_cases
import numpy as np
import oracle
import pytest
from dense import numpy_dtype

import einsum_engine as engine
from einsum_engine.kernels import isa, tiles
from einsum_engine.planners import across, layouts, memo, parts
from einsum_engine.planners.layouts import LayoutSolver

every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
DTYPES = ("float32", "float64", "complex128", "int8")


def _in_groups(case, row, adjacent: int, last: int, groups: int):
    """``case`` with panels in groups of (2, ``adjacent``), ``last`` lanes in each second one. C has a row for each
    column and lane of two panels, in which all panels of one place in A follow each other."""
    mr = case.tile[0] * tiles.elements(row, case.dtype)
    item, count = tiles.ITEMSIZE[case.dtype], 2 * adjacent * groups
    ready = gemm_cases.build(replace(case, valid=(mr, last) * (count // 2), scattered=True), row)
    c = gemm_cases.store(case, 2 * mr * case.n, adjacent * groups * item)
    begin = c.begin(adjacent * groups * item)
    along, beside = np.divmod(np.arange(count), 2)
    tm_c = begin + along[:, None] * item + (beside[:, None] * mr + np.arange(mr)) * c.pitch
    valid = ready.problem.valid
    tm_c[np.arange(mr) >= valid[:, None]] = gemm_cases.POISON
    tn_c = np.arange(case.n) * (2 * mr * c.pitch)
    where = (tm_c[tm_c < gemm_cases.POISON // 2][:, None] + tn_c).ravel()
    written = np.zeros(len(c.memory), bool)
    written[where[:, None] + np.arange(item)] = True
    for number in range(2 * mr * case.n):
        c.row(number)[...] = 7
    blocks = (1, 2 * adjacent, case.n)
    problem = replace(ready.problem, tm_c=tm_c.ravel(), tn_c=tn_c, across=(2, adjacent), blocks=blocks)
    return replace(ready, problem=problem, stores=(*ready.stores[:2], c), written=written)


@every_isa
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flush", ["start", "end"])
def test_groups_of_tiles_are_turned_round(row, dtype, flush):
    """Parts of blocks in both directions, runs between pages that end the process, whole blocks past the caches, runs that
    are put together since they do not begin with a line, and longer ones."""
    tile, item = tiles.tiles(row, dtype)[-1], tiles.ITEMSIZE[dtype]
    block = max(2, min(tiles.elements(row, dtype), 16))
    mr = tile[0] * tiles.elements(row, dtype)
    pairs = [(1, 1), (block - 1, mr), (block, max(1, mr - 1)), (block + 3, mr // 2 + 1), (2 * block, mr)]
    pairs += [(128 // item, mr), (200 // item, max(1, mr - 1)), (1024 // item, mr), (1024 // item + 1, mr)]
    for adjacent, last in pairs:
        given = dict(dtype=dtype, tile=tile, n=tile[1] + 1, k=3, b="panels", flush=flush, stream=True)
        case = gemm_cases.Case(valid=(), **given)
        gemm_cases.run(_in_groups(case, row, adjacent, last, groups=2), row)


@pytest.fixture
def only_along_a(monkeypatch):
    """All products are GEMMs drawn up so."""
    memo.forget()
    monkeypatch.setattr(LayoutSolver, "_orientations", lambda *_: iter([layouts.Orientation(across=True)]))
    monkeypatch.setattr(layouts, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(parts, "choose", lambda *_: None)
    yield
    memo.forget()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
@pytest.mark.parametrize(
    "expression, shapes",
    [
        ("adb,cd->cba", ((27, 28, 35), (3, 28))),
        ("aebd,ce->dcba", ((10, 7, 3, 18), (2, 7))),
        ("afbce,df->edcba", ((9, 5, 4, 3, 10), (3, 5))),
        ("zgadb,cd->zcgba", ((2, 2, 16, 9, 33), (3, 9))),
    ],
)
def test_lanes_along_a_compute_the_same(only_along_a, expression, shapes, dtype):
    rng = np.random.default_rng(3)
    arrays = [oracle.random(rng, shape, numpy_dtype(dtype), True) for shape in shapes]
    want = np.einsum(expression, *arrays)
    for threads in (1, 2):
        call = engine.compile(expression, *arrays, threads=threads)
        assert call.plan.steps[-1].layouts[3:4] == ("direct",), call.plan.steps
        np.testing.assert_array_equal(call(*arrays), want)


def test_only_where_a_runs_along_other_rows_than_the_output():
    def worth(expression, *shapes):
        found = []
        original = across.worth_drawing
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(layouts, "worth_drawing", lambda c: found.append(original(c)) or found[-1])
            engine.compile(expression, *shapes, threads=1)
        return found

    assert worth("adb,cd->cba", (100, 101, 102), (24, 101)) == [True]
    assert worth("adb,cd->cab", (100, 101, 102), (24, 101)) == [False]  # as in the output
    assert worth("adb,cd->cba", (100, 101, 102), (25, 101)) == [False]  # more columns than a tile
    assert worth("abd,cd->cba", (100, 102, 101), (24, 101)) == [False]  # along what is summed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_tiles_ask_beyond_their_task(only_along_a, dtype, threads):
    """Where a thread takes several tasks, and the last of them have fewer panels than tiles ask ahead for."""
    rng = np.random.default_rng(2)
    arrays = [oracle.random(rng, shape, numpy_dtype(dtype), True) for shape in ((100, 31, 150), (10, 31))]
    compiled = engine.compile("adb,cd->cba", *arrays, threads=threads)
    assert compiled.plan.steps[-1].tasks > 2
    np.testing.assert_array_equal(compiled(*arrays), np.einsum("adb,cd->cba", *arrays))
