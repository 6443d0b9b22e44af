"""What kernels do otherwise on the cores of some makers: which have it, and what it gives."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from math import prod

import fused_case
import numpy as np
import oracle
import pytest
import test_mathlib as own
import test_over as over
import test_quotient as quotients
from test_assembly import _loops
from test_mathlib import EXTENDED, NEEDS_EXTENDED, WIDE

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import fused_structure, isa, tiles
from einsum_engine.kernels.cpu import codegen, cores, generators, library, svml
from einsum_engine.kernels.cpu import nest_abi as na
from einsum_engine.kernels.cpu.tile import TileSpec, several_terms
from einsum_engine.kernels.fused_over import TOGETHER
from einsum_engine.kernels.nest import NestProblem, lower
from einsum_engine.kernels.nest_rows import STREAM_BYTES
from einsum_engine.kernels.tiles import reads_in_place
from einsum_engine.planners.build import build_plan

# A store past the caches, a request for a line
PAST, ASKED = r"v?movntps|stnp", r"prefetch|prfm"
ROWS = pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
own_functions = own.own_functions


ROWS_OF_CORES = [cores.PLAIN, *cores.MAKERS.values()]
CORES = pytest.mark.parametrize("core", ROWS_OF_CORES, ids=[row.suffix or "plain" for row in ROWS_OF_CORES], indirect=True)


@pytest.fixture
def core(request, monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: request.param)
    return request.param


@pytest.mark.parametrize("maker", [*cores.MAKERS, "AuthenticAMD", ""])
def test_rows_by_maker(monkeypatch, maker):
    monkeypatch.setattr(cores, "host_maker", lambda: maker)
    assert cores.here.__wrapped__() is cores.MAKERS.get(maker, cores.PLAIN)
    assert len({row.suffix for row in ROWS_OF_CORES}) == len(ROWS_OF_CORES)  # of files


def test_the_maker_of_a_processor():
    assert isa.parse_maker("processor\t: 0\nvendor_id\t: A B\nflags\t\t: a\n\nvendor_id\t: C\n") == "A B"
    assert isa.parse_maker("processor\t: 0\nFeatures\t: fp asimd\n") == "" == isa.parse_maker("")


@CORES
@ROWS
def test_which_kernels_have_products_in_place_of_quotients(core, row):
    """tanh of float64 on AVX-512 alone; what a caller divides is rounded right anywhere."""
    found = {
        (op, dtype): "rcp14" in str(generators.build(fused_structure.name(fused_case.single(op, (dtype,) * arity)), row))
        for op, arity in (("tanh", 1), ("div", 2), ("sigmoid", 1), ("rsqrt", 1))
        for dtype in ("float32", "float64")
    }
    assert {key for key, has in found.items() if has} == (
        {("tanh", "float64")} if core.slow_divider and row.name == "avx512" else set()
    )


@CORES
def test_their_kernels_have_files_of_their_own(core):
    row = isa.active_isa()
    assert library.path("fused_" + 32 * "0", row).name.endswith(f"0{'.svml' if svml.used() else ''}{core.suffix}.o")
    assert library.path("nest_copy", row).name == f"nest_copy{core.suffix}.o"
    assert library.path("walk", row).name == "walk.o"
    for modes in ("dd", "pd", "pd_timed", "dp", "pp", "pp_timed"):
        in_place = "d" in modes[:2]
        assert library.path(f"gemm_float32_3x8_{modes}", row).name == f"gemm_float32_3x8_{modes}{core.suffix * in_place}.o"


@CORES
@own.ISAS
def test_tanh_of_float64(core, isa):
    """The bound of all its ways; NaN, infinities and zeros with their signs (`test_mathlib.errors`)."""
    x = own.arguments(np.random.default_rng(3), "float64")
    x = np.concatenate([x, np.random.default_rng(4).uniform(-20, 20, 500_000)])
    found = fused_case.apply(isa, "tanh", x)
    if EXTENDED:
        own.check(found, np.tanh(x.astype(WIDE)), own.BOUNDS["tanh"], (x,), isa.name)
    assert (np.abs(found[~np.isnan(x)]) <= 1).all()


@CORES
@own.ISAS
@NEEDS_EXTENDED
def test_tanh_where_pieces_meet_and_near_one(core, isa):
    own.test_tanh_of_float64_where_pieces_meet(isa)
    own.test_tanh_near_one(isa, "float64", 25, 19.1)


@CORES
@own.ISAS
def test_a_tail_is_what_a_vector_gives(core, isa):
    """Elements by mask, one vector and two at once: the same bits."""
    x = np.random.default_rng(5).uniform(-3, 3, 67)
    whole = fused_case.apply(isa, "tanh", x)
    for first, last in ((0, 3), (5, 13), (1, 18), (0, 40)):
        assert (fused_case.apply(isa, "tanh", x[first:last].copy()) == whole[first:last]).all()


@CORES
@ROWS
@pytest.mark.parametrize("text", ["add 0 1 float32", "tanh 0 float32; add 2 1 float32"], ids=["light", "a long function"])
def test_loops_past_the_caches_ask_for_each_line_that_they_load(core, row, text):
    """And those that store in the caches for nothing."""
    structure = fused_structure.parse(f"float32 float32; {text}; -> {2 + text.count(';')}")
    loops = _loops(codegen.assembly(generators.build(fused_structure.name(structure), row), row))
    counts = [[sum(bool(re.match(code, line)) for line in loop) for code in (PAST, ASKED)] for loop in loops]
    found = [(stores, asked) for stores, asked in counts if stores]
    assert found and all((asked > 0) == (core.ahead > 0) for _, asked in found)
    if core.ahead and row.triple_arch == "x86_64":  # elsewhere a store takes two vectors
        assert all(asked == 2 * -(-stores * row.vector_bits // 512) for stores, asked in found)
    if "tanh" not in text:  # where a long function stores is decided in its only loop
        assert [asked for stores, asked in counts if not stores and asked] == []


def test_what_comes_behind_an_operand_is_not_read(monkeypatch):
    """Asking for it is no reading: the last page of each operand is followed by one that may not be touched."""
    monkeypatch.setattr(cores, "here", lambda: cores.MAKERS["GenuineIntel"])
    count = (STREAM_BYTES + (1 << 20)) // 8
    x, out = oracle.guarded(count * 8).view("float64"), oracle.guarded(count * 8).view("float64")
    x[:] = np.arange(count) % 7
    fused_case.run(isa.active_isa(), fused_case.single("tanh", ("float64",)), [out], [x], threads=2)
    assert (out == fused_case.apply(isa.active_isa(), "tanh", np.arange(7.0))[np.arange(count) % 7]).all()


def by_one_number(dtype):
    """Rows of the first input by the largest element of the second."""
    g = fused_structure.Graph((dtype,) * 2)
    return g.structure(g.op("div", 0, g.over(1, "max")))


def check_rows(isa, x, d):
    out = np.empty_like(x)
    over.run(isa, by_one_number(x.dtype.name), [out], [x, d])
    with np.errstate(all="ignore"):
        quotients.same(out, x / d)


@CORES
@ROWS
@quotients.FLOATS
def test_which_rows_are_divided_by_products(core, row, dtype):
    text = str(generators.build(fused_structure.name(by_one_number(dtype)), row))
    assert ("llvm.fma" in text) == (core.slow_divider and row.fma)
    assert "llvm.fma" not in str(generators.build(fused_structure.name(fused_case.single("div", (dtype,) * 2)), row))


@CORES
@own.ISAS
@quotients.FLOATS
def test_rows_by_one_number_have_the_bits_of_a_division(core, isa, dtype):
    """All sizes by all divisors, also those that have no finite inverse, and quotients next to the middle of two numbers."""
    rng = np.random.default_rng(7)
    d = np.concatenate([quotients.borders(dtype), quotients.any_bits(rng, dtype, 40), rng.random(40).astype(dtype) + 0.5])
    for length in (3, 100, 333):
        for x in (quotients.any_bits(rng, dtype, d.size * length), rng.standard_normal(d.size * length).astype(dtype)):
            check_rows(isa, x.reshape(d.size, length), d[:, None])
    x, d = quotients.hard(rng, dtype, 1000)
    check_rows(isa, np.ascontiguousarray(np.broadcast_to(x[:, None], (len(x), 128))), np.ascontiguousarray(d[:, None]))


@CORES
@ROWS
@quotients.FLOATS
def test_rows_over_rows_ask_for_rows_that_come(core, row, dtype):
    """In one pass (`Passes.dearest`, `Passes.between`), each line once: those of long rows into L2, of others into L1."""
    g = fused_structure.Graph((dtype,))
    e = g.op("exp", g.op("sub", 0, g.over(0, "max")))
    softmax = g.structure(g.op("div", e, g.over(e, "sum")))
    g = fused_structure.Graph((dtype,))
    light = g.structure(g.op("sub", 0, g.over(0, "max")))
    rows = min(TOGETHER, row.vector_bits // np.finfo(dtype).bits)
    wanted = [TOGETHER + 1, rows + TOGETHER + 1]  # vectors of a row, and one by one at its end; of several short rows
    for structure in (softmax, light):
        text = str(generators.build(fused_structure.name(structure), row))
        asked = [text.count(f"i32 0, i32 {locality}, i32 1)") for locality in (2, 3)]
        assert asked == (wanted if core.ahead else [0, 0])


@CORES
@own.ISAS
@pytest.mark.parametrize("count, length", [(9, 17), (1, 300), (3, 1100), (2, 5000), (1, 20_000)], ids=str)
def test_rows_that_come_need_not_be_there(core, isa, count, length):
    """Neither behind the last row nor before the first one: pages that may not be touched."""
    rng = np.random.default_rng(length)
    for dtype, make, flush in (("float32", over.softmax_structure, "end"), ("float64", over.norm_structure, "start")):
        x = rng.standard_normal((count, length)).astype(dtype)
        other = np.ones((count, 1) if make is over.softmax_structure else (1, length), dtype)
        over.check(isa, make(dtype), [x, other], (count,), length, flush)
        over.check(isa, make(dtype), [x[::-1, ::-1].copy()[::-1, ::-1], other], (count,), length, flush)


SHAPES = [((300, 70, 110), (2, 1, 0)), ((37, 16, 5, 31, 27), (4, 3, 0, 2, 1)), ((2100, 1050), (1, 0)), ((64,) * 4, (3, 2, 1, 0))]


@CORES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape, axes", SHAPES, ids=str)
def test_permutations_past_the_caches(core, shape, axes, threads, monkeypatch):
    """Boxes of all kinds, the last ones smaller; between pages that may not be touched."""
    monkeypatch.setattr(library, "_addresses", {})
    for dtype in ("float32", "complex128"):
        kind = np.dtype(dtype)
        x = oracle.guarded(prod(shape) * kind.itemsize).view(dtype).reshape(shape)
        x.real = np.arange(x.size).reshape(shape) % 65521
        out = oracle.guarded(x.nbytes).view(dtype).reshape([shape[axis] for axis in axes])
        assert x.nbytes >= STREAM_BYTES
        letters = "abcdef"[: len(shape)]
        expr = f"{letters}->{''.join(letters[axis] for axis in axes)}"
        engine.compile(expr, x, threads=threads)(x, out=out)
        assert (out == x.transpose(axes)).all()
    row = isa.active_isa()
    assert (f"nest_copy{core.suffix}", row.name) in library._addresses


@pytest.mark.parametrize("shape, axes, dtype, byte", [
    ((682, 12300), (1, 0), "float32", 64),  # strips of boxes, of which the next one continues the rows
    ((2322, 97, 37), (2, 1, 0), "float32", 64),
    ((2899, 1447), (1, 0), "float64", 1),  # boxes along the rows of the input
    ((60, 373, 375), (1, 0, 2), "float32", 0),  # rows of both: no tiles
    ((40, 31, 16, 7, 10, 6), (1, 3, 5, 4, 2, 0), "float32", 1),
    ((500000, 2, 9), (2, 1, 0), "int16", 0),
])  # fmt: skip
def test_what_tiles_ask_for(shape, axes, dtype, byte):
    x = np.empty(shape, dtype)
    strides = np.empty([shape[axis] for axis in axes], dtype).strides
    dims = tuple((shape[axis], to, x.strides[axis], 0) for to, axis in zip(strides, axes))
    words = lower(NestProblem(op="copy", dims=dims, out=dtype, a=dtype)).rows[0].words
    assert words[na.N_JOINED] and words[na.N_COMING] == byte


@CORES
def test_tiles_of_many_vectors_are_bound_by_what_comes_from_l2(core):
    """Where two multiply-adds are done a cycle; not a tile of as many with fewer vectors of A."""
    share = partial(tiles.efficiency.__wrapped__, isa.get("avx512"), "float64", in_flight=8)
    assert share((6, 4)) == pytest.approx(24 / (max(24, 6 * core.lanes_load) + 0.3))
    assert (share((6, 4)) < share((3, 8))) == (core.lanes_load > 4)


@CORES
@ROWS
@pytest.mark.parametrize("name", ["gemm_float64_2x2_pd", "gemm_complex64_1x2_dd", "gemm_int8_1x2_pd"])
def test_who_asks_for_columns_between_terms(core, row, name, monkeypatch):
    """A request for each column, once in each loop over K: with a packed A one, else one more for panels that are not whole."""
    alone = replace(core, rows_near=0, columns_spread=False)
    monkeypatch.setattr(cores, "here", lambda: alone)
    text = codegen.assembly(generators.build(name, row), row)
    monkeypatch.setattr(cores, "here", lambda: replace(alone, columns_ask=False))
    before = codegen.assembly(generators.build(name, row), row)
    more, columns = (len(re.findall(ASKED, each)) for each in (text, before)), int(name.split("_")[2][2:])
    asked, plain = more
    assert asked - plain == columns * (1 if name[-2] == "p" else 2) * core.columns_ask


@CORES
@ROWS
@pytest.mark.parametrize("name", ["gemm_float64_2x6_pd", "gemm_float32_3x4_pd", "gemm_complex128_2x3_pd", "gemm_float64_2x6_pp"])
def test_who_asks_for_columns_in_turns(core, row, name, monkeypatch):
    """A loop of its own, with a request for each column in a turn, and one for the ends of all columns before a strip; what tiles
    without it ask for is in both functions."""
    found = []
    for spread in (True, False):
        monkeypatch.setattr(cores, "here", lambda: replace(core, rows_near=0, turns_ask=False, columns_ask=False, columns_spread=spread))
        found.append(len(re.findall(ASKED, codegen.assembly(generators.build(name, row), row))))
    columns = int(name.split("_")[2][2:])
    spreads = row.vector_bits == 256 and name.endswith("d")
    assert (found[0] - found[1] >= 2 * columns) == spreads and (found[0] == found[1]) == (not spreads)


@CORES
@ROWS
@pytest.mark.parametrize("name", ["gemm_float64_2x2_dp", "gemm_float32_2x8_dp", "gemm_complex64_1x2_dd", "gemm_float64_2x2_pp"])
def test_who_asks_for_rows_a_few_terms_before_their_use(core, row, name, monkeypatch):
    """The lines of a row, in a loop over K of whole panels and, where terms are at equal distances, of others, each term of a turn;
    there are other loops for when they are in the first cache."""
    found = []
    for near in (0, 12):
        monkeypatch.setattr(cores, "here", lambda: replace(core, rows_near=near, columns_ask=False, columns_spread=False))
        text = codegen.assembly(generators.build(name, row), row)
        found.append(len(re.findall(r"prefetcht0|prfm\s+pldl1keep", text)))
    lines = -(-int(name.split("_")[2][0]) * row.vector_bits // 512) if name[-2] == "d" and row.vector_bits > 128 else 0
    several = several_terms(TileSpec.from_name(name), row)
    assert found[1] - found[0] == lines * (1 + 2 * (several + 1 if several > 1 else 1))


@CORES
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "int8"])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_rows_of_an_a_that_is_read_in_place(core, row, dtype, monkeypatch):
    """In the first cache and not, in order and with negative strides; fewer terms than are asked for ahead; few columns."""
    monkeypatch.setattr(library, "_addresses", {})
    rng, kernels = np.random.default_rng(7), set()
    for lanes, terms, columns in ((403, 97, 13), (1000, 260, 24), (2000, 11, 7), (131, 1, 9), (64, 64, 40), (700, 300, 3), (700, 300, 1)):
        a = oracle.guarded(terms * lanes * np.dtype(dtype).itemsize).view(dtype).reshape(terms, lanes)
        b = rng.integers(-2, 3, (terms, columns)).astype(dtype)
        a[:] = rng.integers(-2, 3, a.shape)
        exact = a.T.astype(complex if np.iscomplexobj(a) else "i8") @ b.astype(complex if np.iscomplexobj(b) else "i8")
        for left, right in ((a, b), (a[::-1], b[::-1])):
            request = engine.compile("km,kn->nm", left, right).plan.request
            made = build_plan(replace(request, isa=row.name))
            kernels |= {step.kernel for step in made.steps if step.family == "gemm"}
            out = np.empty((columns, lanes), dtype)
            bind(made).run([left, right], out)
            assert np.array_equal(out, exact.T.astype(dtype))
    assert any(reads_in_place(kernel) and kernel[-2] == "d" for kernel in kernels)


@CORES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "int8"])
def test_columns_of_a_large_b_that_is_read_in_place(core, dtype, threads, monkeypatch):
    """Terms that fill pieces and such that do not, in one block and in several; few, for which all is asked for before."""
    monkeypatch.setattr(library, "_addresses", {})
    rng, kernels = np.random.default_rng(7), set()
    for columns, terms, lanes in ((600, 97, 16), (203, 768, 21), (150, 1999, 5), (1000, 40, 24), (7, 5000, 16), (260, 1028, 70)):
        size = columns * terms * np.dtype(dtype).itemsize
        b = oracle.guarded(size).view(dtype).reshape(columns, terms)
        a = oracle.guarded(terms * lanes * np.dtype(dtype).itemsize).view(dtype).reshape(terms, lanes)
        b[:], a[:] = rng.integers(-2, 3, b.shape), rng.integers(-2, 3, a.shape)
        f = engine.compile("nk,km->nm", b, a, threads=threads)
        kernels |= {step.kernel for step in f.plan.steps if step.family == "gemm"}
        exact = b.astype(complex if np.iscomplexobj(b) else "i8") @ a.astype(complex if np.iscomplexobj(a) else "i8")
        assert np.array_equal(f(b, a), exact.astype(dtype))
    assert any(reads_in_place(kernel) for kernel in kernels)


@CORES
def test_who_asks_for_a_box_to_come(core):
    """Move functions of long elements have both kinds of tiles; the copy says which, and asks itself for the other kinds of
    boxes."""
    row = isa.get("avx512")
    for item, asked in ((2, 0), (4, 16), (8, 8), (16, 4)):  # a request for each row of a tile
        text = codegen.assembly(generators.build(f"nest_move_{item}", row), row)
        loops = [sum("prefetcht1" in code for code in loop) for loop in _loops(text)]
        assert max(loops) == asked and loops.count(0) >= len(loops) // 2
    for row in map(isa.get, ("sse2", "avx2", "avx512")):
        tiles_ask = core.tiles_ask or row.vector_bits < 512
        assert (f"${na.MOVE_COMING}, " in codegen.assembly(generators.build("nest_copy", row), row)) == tiles_ask
