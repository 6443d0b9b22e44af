"""Blocks that are asked for before they are packed: which plans do so, and that results stay the same wherever the next
block lies: in K, in the loop over K outside, in the outer loops, in the task after this one."""

from dataclasses import replace

import numpy as np
import pytest
from dense import numpy_dtype
from plan_cases import plan

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi, cores
from einsum_engine.planners import gemm_access, gemm_tables, memo, packing
from einsum_engine.planners.build import build_plan

# expression, sizes: packed along lanes, along k, across panels; few columns and many; sums in several loops
CASES = {
    "along lanes": ("dca,bd->cba", dict(a=37, b=40, c=9, d=50)),
    "along k": ("acd,db->cba", dict(a=37, b=24, c=9, d=50)),
    "few columns": ("ad,db->ba", dict(a=330, b=5, d=50)),
    "few columns of a batch": ("xad,xdb->xba", dict(x=5, a=170, b=3, d=64)),
    "across panels": ("adb,cd->cba", dict(a=40, b=37, c=24, d=70)),
    "blocks of k": ("mk,kn->mn", dict(m=130, n=120, k=900)),
    "several loops of k": ("dac,bcd->ba", dict(a=50, b=60, c=70, d=9)),
    "b is packed by tasks": ("xkm,xkn->xmn", dict(x=6, m=90, n=110, k=80)),
    "a batch last": ("mkx,nkx->xmn", dict(x=5, m=70, n=60, k=64)),
}


@pytest.fixture(autouse=True)
def core(monkeypatch):
    """Cores on which tiles ask for blocks, whatever is here, and no rows that were made for others."""
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    memo.forget()
    yield
    memo.forget()


def words(compiled):
    return [step.args.words.get(abi.G_PACK_MODE, 0) for step in compiled.plan.steps if step.family == "gemm"]


def compiled(name, dtype, threads):
    text, sizes = CASES[name]
    shapes = [tuple(sizes[index] for index in term) for term in text.split("->")[0].split(",")]
    return engine.compile(text, *shapes, dtypes=dtype, threads=threads), shapes


@pytest.fixture
def always(monkeypatch):
    for name in ("FETCHED_BYTES", "FETCHED_FOR", "FETCHED_ROWS", "NARROW_BYTES"):  # short rows are packed, too
        monkeypatch.setattr(gemm_access, name, 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(always, name, dtype, threads):
    f, shapes = compiled(name, dtype, threads)
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 2 if dtype == "bool" else 5, shape).astype(numpy_dtype(dtype)) for shape in shapes]
    expected = np.einsum(CASES[name][0], *(x.astype("c16" if dtype == "complex64" else "i8") for x in arrays), optimize=True)
    assert np.array_equal(f(*arrays), expected.astype(bool) if dtype == "bool" else expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool"])
@pytest.mark.parametrize("expr", ["mkx,nkx->xmn", "kmx,nxk->xmn"])
def test_panels_of_a_batch_that_go_through_memory(monkeypatch, expr, dtype, threads):
    """Stored past the caches, and asked for by tiles of the strip before."""
    monkeypatch.setattr(packing, "PAST_BYTES", 0)
    monkeypatch.setattr(gemm_tables, "FAR_BYTES", 0)
    for name in ("L1_BYTES", "IN_PLACE_BYTES"):  # or B is read in place
        monkeypatch.setattr(gemm_access, name, 0)
    sizes = dict(x=18, m=41, n=300, k=130)
    shapes = [tuple(sizes[index] for index in term) for term in expr.split("->")[0].split(",")]
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 2 if dtype == "bool" else 5, shape).astype(numpy_dtype(dtype)) for shape in shapes]
    f = engine.compile(expr, *shapes, dtypes=dtype, threads=threads)
    bits = [step.args.words.get(abi.G_PACK_MODE, 0) & (abi.PACK_PAST | abi.FAR_B) for step in f.plan.steps]
    assert abi.PACK_PAST in bits and abi.FAR_B in bits
    expected = np.einsum(expr, *(x.astype("c16" if dtype == "complex64" else "i8") for x in arrays), optimize=True)
    assert np.array_equal(f(*arrays), expected.astype(bool) if dtype == "bool" else expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "bool"])
def test_panels_along_k_that_go_through_memory(monkeypatch, dtype, threads):
    """Each begins with a line, whatever K is, and is stored past the caches."""
    monkeypatch.setattr(packing, "PAST_BYTES", 0)
    for name in ("L1_BYTES", "IN_PLACE_BYTES", "PACK_BYTES"):  # or B is read in place, or packed by tasks
        monkeypatch.setattr(gemm_access, name, 0)
    rng = np.random.default_rng(3)
    shapes = (1031, 611), (203, 1031)
    a, b = (rng.integers(0, 2 if dtype == "bool" else 5, shape).astype(numpy_dtype(dtype)) for shape in shapes)
    f = engine.compile("km,nk->nm", *shapes, dtypes=dtype, threads=threads)
    words = [step.args.words for step in f.plan.steps]
    assert any(w.get(abi.G_PACK_MODE, 0) & abi.PACK_PAST and w[abi.G_A_STRIDE] % 64 == 0 for w in words)
    exact = "c16" if dtype.startswith("complex") else "i8"
    expected = b.astype(exact) @ a.astype(exact)
    assert np.array_equal(f(a, b), expected.astype(bool) if dtype == "bool" else expected)


def test_rows_on_a_page_each_are_not_asked_for():
    """Terms of a row are packed together; rows of 256 terms on pages of their own, and side by side."""
    for expr, fetched in (("mkx,nxk->xmn", False), ("xmk,xnk->xmn", True)):
        shapes = [tuple(128 if index == "m" else 256 for index in term) for term in expr.split("->")[0].split(",")]
        bits = [step.args.words.get(abi.G_PACK_MODE, 0) for step in engine.compile(expr, *shapes, dtypes="float32").plan.steps]
        assert bool(bits[-1] & abi.FETCH_A) == fetched, expr


def test_each_way_of_packing_is_asked_for(always):
    asked = {name: [each & (abi.FETCH_A | abi.FETCH_B) for each in words(compiled(name, "float32", 1)[0])] for name in CASES}
    found = {bits for each in asked.values() for bits in each}
    assert {abi.FETCH_A, abi.FETCH_B} <= found | {bits & abi.FETCH_B for bits in found}, asked


@pytest.mark.parametrize(
    "text, shapes, fetched",
    [
        ("adb,cd->cba", [(168, 168, 168), (44, 168)], True),  # rows of 168 elements, far apart
        ("adb,cd->cba", [(40, 37, 40), (24, 37)], False),  # fits a core's cache
        ("adb,cd->cba", [(168, 168, 168), (8, 168)], False),  # each line is used for 8 columns only
        ("aced,eb->dcba", [(48, 44, 44, 48), (44, 24)], False),  # rows follow each other
        ("ad,db->ba", [(20000, 168), (168, 24)], True),  # side by side, and each ends soon after hardware has found it
        ("ad,db->ba", [(20000, 512), (512, 24)], True),
        ("ad,db->ba", [(20000, 516), (516, 24)], False),  # long rows
        ("ad,db->ba", [(6000, 168), (168, 24)], False),  # 4 MB: in cache
        ("ad,db->ba", [(40000, 64), (64, 8)], True),  # few columns of rows from memory
        ("ad,db->ba", [(40000, 64), (64, 3)], True),
        ("ad,db->ba", [(20000, 64), (64, 8)], False),  # 5 MB
        ("ad,db->ba", [(200000, 20), (20, 8)], False),  # 80 bytes: one stream
        ("acd,db->cba", [(100, 400, 64), (64, 12)], False),  # on a page each
        ("cad,db->cba", [(100, 400, 64), (64, 8)], True),
    ],
)
def test_what_is_large_and_in_short_rows_is_asked_for(text, shapes, fetched):
    """With the tiles of one instruction set, on any machine: others do not pack the large operand of some of these."""
    made = plan(text, [np.empty(shape, "float32") for shape in shapes], isa="avx512", threads=1)
    rows = [step.args.words for step in made.steps if step.family == "gemm"]
    assert [bool(row[abi.G_PACK_MODE] & abi.FETCH_A) for row in rows] == [fetched]


ROWS_OF_CORES = [cores.PLAIN, *cores.MAKERS.values()]


@pytest.mark.parametrize("here", ROWS_OF_CORES, ids=[row.suffix or "plain" for row in ROWS_OF_CORES])
def test_which_cores_ask_for_blocks(here, monkeypatch, always):
    """Rows that are read in place are asked for everywhere."""
    monkeypatch.setattr(cores, "here", lambda: here)
    steps = [step for name in CASES for step in compiled(name, "float32", 1)[0].plan.steps if step.family == "gemm"]
    packed = [step.args.words[abi.G_PACK_MODE] for step in steps if abi.G_PACK in step.args.kernels]
    asked = [each for each in packed if each & (abi.FETCH_A | abi.FETCH_B)]
    assert packed and bool(asked) == here.blocks_ask
    made = plan("da,db->ba", [np.empty((1000, 10000), "float32"), np.empty((1000, 3), "float32")], isa="avx512", threads=1)
    (row,) = (step.args.words for step in made.steps if step.family == "gemm")
    assert row[abi.G_PACK_MODE] & abi.FETCH_A


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_task_finds_the_rest_of_lines_that_an_outer_loop_reads(dtype, threads):
    """e and c are adjacent in A: a task has one run of e, and goes through many c."""
    text, shapes = "afbce,df->edcba", [(24, 6, 20, 9, 24), (19, 6)]
    f = engine.compile(text, *shapes, dtypes=dtype, threads=threads)
    (row,) = [step.args.words for step in f.plan.steps if step.family == "gemm"]
    assert row[abi.G_PANEL_BLOCK] == 24 < row[abi.G_PANELS]
    assert 3 * row[abi.G_OUTER_BLOCK] > row[abi.G_OUTER_TOTAL] > 1
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 5, shape).astype(dtype) for shape in shapes]
    assert np.array_equal(f(*arrays), np.einsum(text, *arrays, optimize=True))


FEW_COLUMNS = [  # expression, sizes: one column and several, rows that end within a panel, terms that end within a block
    ("ij,i->j", dict(i=67, j=1300)),
    ("ij,i->j", dict(i=9001, j=270)),
    ("ij,ik->kj", dict(i=43, j=1300, k=3)),
    ("ij,ki->kj", dict(i=40, j=1027, k=4)),
    ("xij,xi->xj", dict(x=3, i=37, j=1025)),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "int16", "bool"])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_rows_of_a_large_operand_with_few_columns(monkeypatch, row, dtype, threads):
    """A few rows at a time over all panels, C added to, the next rows asked for."""
    monkeypatch.setattr(gemm_access, "NEAR_BYTES", 0)
    monkeypatch.setattr(gemm_access, "LONG_ROW", 256)
    blocks, rng = set(), np.random.default_rng(4)
    for text, sizes in FEW_COLUMNS:
        shapes = [tuple(sizes[index] for index in term) for term in text.split("->")[0].split(",")]
        arrays = [rng.integers(0, 2 if dtype == "bool" else 5, shape).astype(numpy_dtype(dtype)) for shape in shapes]
        request = engine.compile(text, *shapes, dtypes=dtype, threads=threads).plan.request
        plan = build_plan(replace(request, isa=row.name))
        blocks |= {step.args.words[abi.G_KC] for step in plan.steps if step.kernel.startswith("gemm_")}
        expected = np.einsum(text, *(x.astype("c16" if dtype.startswith("complex") else "i8") for x in arrays))
        out = np.empty(expected.shape, numpy_dtype(dtype))
        bind(plan).run(arrays, out)
        assert np.array_equal(out, expected.astype(out.dtype)), text
    if row.repeats and dtype not in ("int16", "bool"):  # with narrow elements, rows have few panels
        assert gemm_access.ROWS_AT_ONCE in blocks


@pytest.mark.parametrize(
    "text, shapes, rows",
    [
        ("ij,i->j", [(1100, 1024), (1100,)], True),
        ("ij,i->j", [(1000, 1024), (1000,)], False),  # is read again from the caches
        ("ij,i->j", [(18000, 64), (18000,)], False),  # short rows follow each other
        ("ij,ik->kj", [(1100, 1024), (1100, 4)], True),
        ("ij,ik->kj", [(1100, 1024), (1100, 5)], False),
        ("ij,ik->jk", [(1100, 1024), (1100, 2)], False),  # C is not added to by vectors
    ],
)
def test_few_columns_read_few_rows_of_a_large_operand_at_once(text, shapes, rows):
    f = engine.compile(text, *shapes, dtypes="float32", threads=1)
    (words,) = [step.args.words for step in f.plan.steps if step.kernel.startswith("gemm_")]
    assert (words[abi.G_KC] == gemm_access.ROWS_AT_ONCE) == rows
    assert bool(words[abi.G_PACK_MODE] & abi.FETCH_A) == rows


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_operands_of_the_next_product_are_asked_for(row, threads):
    """Many products, each of which fits a core's cache: all together do not."""
    rng = np.random.default_rng(5)
    for text, sizes in (("xij,xjk->xik", (40, 64, 61, 96)), ("xij,xkj->xik", (40, 90, 64, 64)), ("xij,jk->xik", (60, 64, 48, 96))):
        of = dict(zip("xijk", sizes))
        arrays = [rng.integers(0, 5, [of[i] for i in term]).astype("f8") for term in text.split("->")[0].split(",")]
        request = engine.compile(text, *arrays, threads=threads).plan.request
        out = np.empty([of[i] for i in text[-3:]])
        bind(build_plan(replace(request, isa=row.name))).run(arrays, out)
        assert np.array_equal(out, np.einsum(text, *arrays, optimize=True)), text


@pytest.mark.parametrize("here", ROWS_OF_CORES, ids=[row.suffix or "plain" for row in ROWS_OF_CORES])
@pytest.mark.parametrize(
    "dtype, rows, columns, isa_name, near",
    [
        ("float64", 404, 40, "avx512", True),
        ("float32", 404, 40, "avx512", True),
        ("float64", 404, 96, "avx512", False),  # a panel is packed in less time than it takes longer for so many
        ("float64", 405, 24, "avx512", True),
        ("float32", 33, 33, "avx512", False),  # lanes would be read by mask
        ("complex128", 404, 40, "avx512", False),
        ("float64", 404, 40, "avx2", False),
    ],
)
def test_an_a_whose_rows_are_asked_for_is_read_in_place_for_more_columns(monkeypatch, here, dtype, rows, columns, isa_name, near):
    monkeypatch.setattr(cores, "here", lambda: here)
    monkeypatch.setattr(gemm_access, "NARROW_BYTES", 0)  # no row is short enough to be read in place for that
    operands = [np.empty((200, rows), dtype), np.empty((200, columns), dtype)]
    (kernel,) = (s.kernel for s in plan("xy,xu->uy", operands, isa=isa_name, threads=1).steps if s.family == "gemm")
    monkeypatch.setattr(gemm_access, "NEAR_PANELS", 0)
    memo.forget()
    (before,) = (s.kernel for s in plan("xy,xu->uy", operands, isa=isa_name, threads=1).steps if s.family == "gemm")
    assert before[-2] == "p" and (kernel[-2] == "d") == (near and here.rows_near > 0)
