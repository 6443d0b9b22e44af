"""Panels of intermediates nested in blocks of K: where elements lie, who gets them, and that they are written and read."""

import math
import pickle
import re

import numpy as np
import pytest
from gemm_cases import Case, build
from plan_cases import plan, run, typical

import einsum_engine as engine
from einsum_engine.kernels import isa, prologue, tiles
from einsum_engine.planners.contraction import BinaryContraction
from einsum_engine.planners.gemm import plan_gemm
from einsum_engine.planners.layout import blocks_of_k, dense_axes, fbl_layout
from einsum_engine.planners.sides import Dim, axis_table, make_panels
from einsum_engine.records import changed

DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "int8", "int32", "int64", "uint16", "bool")
K_DIMS = [(1300,), (40, 33), (16, 80), (5, 7, 40), (3, 500), (1, 900, 1), (2, 2, 2, 2, 2, 64), (50,)]


@pytest.mark.parametrize("sizes", K_DIMS, ids=str)
@pytest.mark.parametrize("rows", [(100,), (3, 50), (1,)], ids=str)
def test_where_nested_panels_lie(sizes, rows):
    """Each element has a place of its own: its panels' block of K, its panel in that, its term and its lane."""
    width, most, item = 16, 256, 4
    k = [Dim((f"k{n}",), size, {}, {}) for n, size in enumerate(sizes)]
    panels = make_panels([Dim((f"m{n}",), size, {}, {}) for n, size in enumerate(rows)], width, True, None, 4096)
    blocks = blocks_of_k(k, most)
    if blocks is None:
        assert math.prod(sizes) <= most
        return
    layout = fbl_layout(panels, [Dim(("b",), 2, {}, {})], k, item, blocks)
    assert layout.describe() == "nested16" and most // 2 <= blocks.terms <= most
    tables = {axis.index: axis_table(axis) for axis in layout.axes}
    of_k = _sums([tables[f"k{n}"] for n in range(len(sizes))])
    term = np.arange(len(of_k))
    in_block = panels.count * blocks.terms * width * item
    np.testing.assert_array_equal(of_k, term // blocks.terms * in_block + term % blocks.terms * width * item)
    of_m = _sums([tables[f"m{n}"] for n in range(len(rows))])
    start, lane = np.divmod(of_m, blocks.terms * width * item)
    assert np.all(start < panels.count) and np.all(lane < width * item)
    assert len(set(np.add.outer(of_k, of_m).ravel())) == len(of_k) * len(of_m)
    assert tables["b"][1] == -(-len(of_k) // blocks.terms) * in_block


def _sums(tables):
    """Offsets of all combinations, the first dimension fastest."""
    total = np.zeros(1, np.int64)
    for table in tables:
        total = np.add.outer(table, total).ravel()
    return total


def test_blocks_of_k_that_would_be_short_are_none():
    """A prime in the middle can be cut by no tile but 1; the slowest is cut anywhere, in tiles of about one length."""
    dims = [Dim((n,), size, {}, {}) for n, size in enumerate((10, 389, 4))]
    assert blocks_of_k(dims, 384) is None
    assert blocks_of_k(dims[:2], 384) == (1, 36, 360)
    assert blocks_of_k(dims[:1], 384) is None


FORTH, BACK, LONG = [(0, 1), (0, 1)], [(1, 2), (0, 1)], [(0, 1), (0, 2), (0, 1)]
NESTED = [
    ("ab,bc,cd->da", [(100, 30), (30, 2100), (2100, 20)], FORTH),  # ragged blocks, ragged panels
    ("ab,bc,cd->ad", [(20, 2100), (2100, 30), (30, 100)], BACK),  # panels of the right operand
    ("axb,bcy,ycd->dax", [(30, 5, 16), (16, 700, 3), (3, 700, 20)], FORTH),  # whole dimensions and tiles of one more
    ("pab,bc,pcd->pda", [(3, 70, 16), (16, 1100), (3, 1100, 10)], FORTH),  # a batch
    ("ab,bc,cd,de->ea", [(33, 1100), (1100, 1200), (1200, 1100), (1100, 20)], LONG),  # one after another
]
every_nested = pytest.mark.parametrize("expression, shapes, path", NESTED, ids=[case[0] for case in NESTED])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@every_nested
def test_nested_panels_are_written_and_read(expression, shapes, path, dtype, threads):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, shape).astype(dtype) for shape in shapes]
    if dtype == "float16":
        arrays = [array / np.float16(64) for array in arrays]  # no overflow
    call = engine.compile(expression, *arrays, layouts="nested", threads=threads, optimize=path)
    assert "nested" in {buffer.layout.kind for buffer in call.plan.buffers}
    wide = [array.astype({"f": "f8", "c": "c16"}.get(array.dtype.kind, array.dtype)) for array in arrays]
    expected = np.einsum(expression, *wide, optimize=True)
    bound = 8 * np.finfo(dtype).eps * np.max(np.abs(expected)) if arrays[0].dtype.kind in "fc" else 0
    np.testing.assert_allclose(call(*arrays).astype(wide[0].dtype), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
@every_nested
def test_nested_panels_on_every_instruction_set(expression, shapes, path, row, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]
    made = plan(expression, arrays, layouts="nested", isa=row.name, threads=2, optimize=path)
    assert "nested" in {buffer.layout.kind for buffer in made.buffers}
    np.testing.assert_array_equal(run(made, arrays), np.einsum(expression, *arrays, optimize=True))


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_panels_that_come_from_memory_are_nested(row):
    """A large intermediate that few columns read; none that fits in cache, has one block of K, or is read for long."""
    kinds = {}
    for m, k, n in ((4000, 1100, 20), (400, 1100, 20), (40000, 200, 20), (4000, 1100, 200)):
        sizes = dict(m=m, k=k, n=n)
        given = dict(right=dense_axes("kn", sizes, 4), out=dense_axes("mn", sizes, 4))
        given |= dict(batch=(), m=("m",), n=("n",), k=("k",), left=None)
        free = BinaryContraction(dtype="float32", sizes=sizes, **given)
        kinds[m, k, n] = plan_gemm(free, row, 1, typical(row)).left_layout.kind
        assert plan_gemm(changed(free, only_panels=True), row, 1, typical(row)).left_layout.kind == "fbl"
    assert list(kinds.values()) == ["nested", "fbl", "fbl", "fbl"]


def test_nested_panels_are_shown_and_stored(tmp_path):
    call = engine.compile(*NESTED[0][:1], *NESTED[0][1], layouts="nested", threads=1, optimize=FORTH)
    assert re.search(r"nested\d+", call.explain())
    call.save(tmp_path / "plan.json")
    assert engine.load(tmp_path / "plan.json").plan == pickle.loads(pickle.dumps(call)).plan == call.plan


@pytest.mark.parametrize("a, kc", [("nested", 5), ("panels", 4)])
def test_blocks_of_nested_panels_stay_where_b_is_staged(a, kc):
    """Blocks of one length are made only of panels that have all of K."""
    row = isa.active_isa()
    tile = tiles.tiles(row, "float32")[0]
    case = Case(dtype="float32", tile=tile, valid=(1, 1), n=tile[1] + 1, k=11, kc=5, a=a)
    staged, _ = prologue._in_strips(build(case, row).problem, tile[1])
    assert staged.kc == kc
