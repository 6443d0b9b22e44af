"""The GEMM family: every tile of every dtype on every instruction set that runs here, at every edge."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import Case, build, run, with_modes

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import diskcache, gemm, isa, launch, tiles
from einsum_engine.kernels.cpu import codegen, generators, library
from einsum_engine.kernels.cpu.coming import NEAR_BYTES, PIECE
from einsum_engine.kernels.cpu.tile import SEVERAL, TileSpec, several_terms
from einsum_engine.planners.build import build_plan

MODES = ("dd", "pp", "dp", "pd")
IN_ALL_MODES = (isa.host_isas()[0].name, "float32")  # other kernels take turns: one access mode per tile
AT_ALL_COLUMNS = ("float32", "complex64")


def _kernels():
    """(isa, dtype, tile, modes): every tile of the tables, at least one access mode each."""
    for row in isa.host_isas():
        for d, dtype in enumerate(tiles.DTYPES):
            for t, tile in enumerate(tiles.tiles(row, dtype)):
                for modes in MODES if (row.name, dtype) == IN_ALL_MODES else (MODES[(t + d) % 4],):
                    yield row, dtype, tile, modes


KERNELS = tuple(_kernels())


def _each(kernels):
    names = [f"{r.name}-{d}-{t[0]}x{t[1]}-{m}" for r, d, t, m in kernels]
    return pytest.mark.parametrize("row, dtype, tile, modes", kernels, ids=names)


every_kernel = _each(KERNELS)
every_reader_of_panels = _each([kernel for kernel in KERNELS if kernel[3][0] == "p"])
every_dtype = pytest.mark.parametrize("dtype", tiles.DTYPES)
every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)


def _compile(names) -> None:
    for name, row in names:
        library.address(name, isa.get(row))


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels that the disk cache lacks, compiled by two processes at once: within one, LLVM has a lock."""
    names = [(f"gemm_{d}_{t[0]}x{t[1]}_{m}", r.name) for r, d, t, m in KERNELS]
    digest = library.source_digest()
    missing = [(n, r) for n, r in names if not (diskcache.folder(r, digest) / f"{n}.o").exists()]
    if len(missing) > 20:
        context = multiprocessing.get_context("spawn")
        helpers = [context.Process(target=_compile, args=(missing[i::2],)) for i in range(2)]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()


def _edges(mr: int, elements: int) -> tuple[int, ...]:
    """Numbers of valid lanes: all of them, or all around the borders of vectors where a tile is tall."""
    if mr <= 64:
        return tuple(range(1, mr + 1))
    near = {lanes + shift for lanes in range(0, mr + 1, elements) for shift in (-1, 0, 1)}
    return tuple(sorted({lane for lane in near if 1 <= lane <= mr} | {2, 3, mr - 3, mr // 2 + 5}))


def _height(row, dtype, tile) -> int:
    return tile[0] * tiles.elements(row, dtype)


def _first(row, dtype) -> tuple:
    """The first tile of a dtype, and an access mode that the other tests compile anyway."""
    return next((t, m) for r, d, t, m in KERNELS if (r, d) == (row, dtype))


@every_kernel
def test_every_edge_of_every_tile(row, dtype, tile, modes):
    """All numbers of lanes at once (a panel each), all numbers of columns in turn, with every flag along the way.

    C holds NaN where it is to be overwritten; the bytes between its elements must stay as they are.
    """
    valid = _edges(_height(row, dtype, tile), tiles.elements(row, dtype))
    nr = tile[1]
    columns = range(1, nr + 2) if dtype in AT_ALL_COLUMNS else sorted({1, nr // 2 or 1, nr // 2 + 1, max(1, nr - 1), nr, nr + 1})
    packs = ("LANES_RUN", "panels", "K_RUN", "SCATTERED")
    for n in columns:
        case = Case(
            dtype=dtype,
            tile=tile,
            valid=valid,
            n=n,
            k=1 + n % 3,
            scattered=n % 4 == 2,
            stream=n % 3 == 0,
            accumulate=n % 2 == 0,
            conj=(n % 2 == 1, n % 4 > 1),
            even=n % 3 != 1,
            seed=n,
        )
        run(build(with_modes(case, modes, packs[n % 4]), row), row)


@every_kernel
def test_no_access_outside_operands(row, dtype, tile, modes):
    """Rows of lanes, columns of B and stretches of C directly before and after pages that end the process."""
    height, nr = _height(row, dtype, tile), tile[1]
    valid = tuple(v for v in _edges(height, tiles.elements(row, dtype)) if height <= 32 or v % 5 == 1 or v == height)
    case = Case(dtype=dtype, tile=tile, valid=valid, n=nr + 1, k=2, flush="end")
    run(build(with_modes(case, modes), row), row)
    run(build(with_modes(replace(case, even=False), modes), row), row)
    # whole columns that start at a page are streamed
    case = replace(case, n=nr, k=3, flush="start", stream=True, scattered=nr % 2 == 1)
    run(build(with_modes(case, modes, "panels"), row), row)


TURNED = tuple(
    pytest.param(row, dtype, tile, id=f"{row.name}-{dtype}-{tile[0]}x{tile[1]}")
    for row in isa.host_isas()
    for dtype in tiles.DTYPES
    for tile in tiles.tiles(row, dtype)
    if tiles.turns(row, dtype, tile[1])
)


@pytest.mark.parametrize("row, dtype, tile", TURNED)
@pytest.mark.parametrize("modes", ["pp", "dp"])
def test_turned_tiles_at_their_edges(row, dtype, tile, modes):
    """Whole and partial tiles before and after fences; a NaN in one lane and one in one column reach no others."""
    height, nr = _height(row, dtype, tile), tile[1]
    for flush, n, k in (("end", nr, 3), ("start", nr + 1, 6), ("", 2 * nr, 5)):
        case = Case(dtype=dtype, tile=tile, valid=(height, max(1, height - 1)), n=n, k=k, kc=4, flush=flush)
        run(build(with_modes(case, modes, "LANES_RUN", "K_RUN"), row), row)
    ready = build(with_modes(replace(case, k=3), modes, "LANES_RUN", "K_RUN"), row)
    p, kind = ready.problem, np.dtype(dtype)
    for slot, at in ((0, p.a.offset + p.tm_a[height - 1] + p.tk_a[1]), (1, p.b.offset + p.tn_b[nr - 1] + p.tk_b[2])):
        ready.memory[slot][at : at + kind.itemsize] = np.array([np.nan], kind).view(np.uint8)
    expected = ready.memory[2].copy()
    gemm.reference(p, {**ready.memory, 2: expected})
    launch.run([gemm.lower(p)], [memory.ctypes.data for memory in ready.memory.values()], row)
    got, want = (memory[ready.written].view(kind) for memory in (ready.memory[2], expected))
    assert np.isnan(want).sum() == n + sum(case.valid) - 1 and np.array_equal(got, want, equal_nan=True)


@every_isa
@every_dtype
def test_k_around_its_blocks(row, dtype):
    tile, modes = _first(row, dtype)
    height, kc = _height(row, dtype, tile), 8
    for k in (1, 2, 3, kc - 1, kc, kc + 1, 2 * kc, 3 * kc + 5):
        for accumulate in (False, True):
            case = Case(dtype=dtype, tile=tile, valid=(height, 1), n=tile[1] + 1, k=k, kc=kc, accumulate=accumulate)
            for pack in ("LANES_RUN", "panels", "K_RUN"):
                run(build(with_modes(case, modes, pack), row), row)


def _of_several_terms():
    """Kernels with several terms in a turn of their K loop, which read panels only."""
    for row, dtype, tile, _ in KERNELS:
        name = f"gemm_{dtype}_{tile[0]}x{tile[1]}_pp"
        if several_terms(TileSpec.from_name(name), row) > 1:
            yield row, dtype, tile, "pp"


@_each(tuple(dict.fromkeys(_of_several_terms())))
def test_k_around_turns_of_several_terms(row, dtype, tile, modes):
    for k in range(1, 2 * SEVERAL + 2):
        case = Case(dtype=dtype, tile=tile, valid=(_height(row, dtype, tile), 1), n=tile[1] + 1, k=k)
        run(build(with_modes(case, modes, "panels", "K_RUN"), row), row)


@every_isa
@every_dtype
@pytest.mark.parametrize("flush", ["", "start", "end"])
def test_the_task_packs_b(row, dtype, flush):
    """Columns of each task, K block after K block; a last panel of B repeats its last column."""
    tile = tiles.tiles(row, dtype)[0]
    height, nr = _height(row, dtype, tile), tile[1]
    case = Case(dtype=dtype, tile=tile, valid=(height, 1, height), n=3 * nr + 1, k=11, kc=4, flush=flush)
    for modes, pack in (("pp", "K_RUN"), ("pp", "panels"), ("dp", "LANES_RUN")):
        for pack_b in ("K_RUN", "SCATTERED"):
            for blocks in (None, (1, 3, 2 * nr), (1, 2, nr)):
                run(build(with_modes(replace(case, blocks=blocks), modes, pack, pack_b), row), row)


@every_isa
@pytest.mark.parametrize("modes", MODES)
def test_k_as_long_as_plans_make_it(row, modes):
    tile = tiles.tiles(row, "float32")[0]
    case = Case(dtype="float32", tile=tile, valid=(5,), n=3, k=1030, kc=384)
    run(build(with_modes(case, modes, "K_RUN"), row), row)


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
@pytest.mark.parametrize("flush", ["", "end"])
def test_k_in_pieces_between_which_tiles_ask_for_lines(row, dtype, flush):
    """Blocks that add to C, a block whose B is too large to stay near, and the short rest of K, which is one piece."""
    tile = tiles.tiles(row, dtype)[0]
    height, kc = _height(row, dtype, tile), PIECE + 5
    case = Case(dtype=dtype, tile=tile, valid=(height, max(1, height - 1)), n=tile[1] + 1, k=2 * kc + 7, kc=kc, flush=flush)
    for scattered in (False, True):
        run(build(with_modes(replace(case, scattered=scattered), "pp", "panels"), row), row)
        run(build(with_modes(replace(case, accumulate=True, scattered=scattered), "pp", "panels", "K_RUN"), row), row)
    columns = NEAR_BYTES // (kc * tiles.ITEMSIZE[dtype]) + 2
    run(build(with_modes(replace(case, n=columns, k=kc), "pp", "K_RUN"), row), row)


@every_isa
@pytest.mark.parametrize("dtype", tiles.COMPLEX)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("conj", [(False, False), (True, False), (False, True), (True, True)])
def test_conjugation_is_a_sign(row, dtype, conj, accumulate):
    tile, modes = _first(row, dtype)
    valid = (_height(row, dtype, tile), 1)
    case = Case(dtype=dtype, tile=tile, valid=valid, n=tile[1] + 2, k=5, kc=2, conj=conj, accumulate=accumulate)
    run(build(with_modes(case, modes), row), row)


@every_isa
@every_dtype
@pytest.mark.parametrize("flush", ["", "start", "end"])
def test_scattered_lanes_in_runs(row, dtype, flush):
    """Every length that the store has a path for, and lengths in pieces."""
    tile, modes = _first(row, dtype)
    height, elements = _height(row, dtype, tile), tiles.elements(row, dtype)
    for chunk in sorted({1, 2, 3, elements // 4, elements // 2, elements - 1, elements, elements + 3} - {0}):
        most = height - height % chunk
        if not most:
            continue
        valid = tuple(v for v in range(chunk, most + 1, chunk) if v in (chunk, 3 * chunk, most))
        for accumulate in (False, True):
            case = Case(dtype=dtype, tile=tile, valid=valid, n=3, k=2, scattered=True, chunk=chunk, flush=flush)
            run(build(with_modes(replace(case, accumulate=accumulate), modes), row), row)


@every_isa
@every_dtype
def test_unaligned_operands(row, dtype):
    tile, modes = _first(row, dtype)
    height = _height(row, dtype, tile)
    for gap in (1, 3):
        case = Case(dtype=dtype, tile=tile, valid=(height, 1, height), n=tile[1], k=3, gap=gap, stream=True)
        for pack in ("LANES_RUN", "panels", "K_RUN"):
            run(build(with_modes(case, modes, pack), row), row)
            run(build(with_modes(replace(case, scattered=True), modes, pack), row), row)


@every_isa
@every_dtype
def test_columns_past_the_caches_begin_anywhere(row, dtype):
    """Panels that go on with each other, or end with one that is not full; columns a whole number of lines apart or not."""
    for tile in [tile for tile in tiles.tiles(row, dtype) if tile[0] > 1]:
        modes = next(m for r, d, t, m in KERNELS if (r, d, t) == (row, dtype, tile))
        height, item = _height(row, dtype, tile), tiles.ITEMSIZE[dtype]
        for gap, lead in ((0, 4), (0, 16), (0, 64 - item), (item, 0), (64, 24)):
            valid = (height, height, height, height - 1, height, height)
            case = Case(dtype=dtype, tile=tile, valid=valid, n=2 * tile[1], k=2, gap=gap, lead=lead, stream=True)
            run(build(with_modes(case, modes), row), row)
            blocks = (1, 2, tile[1])
            run(build(with_modes(replace(case, accumulate=lead == 16, blocks=blocks), modes), row), row)


@every_isa
@pytest.mark.parametrize("modes", MODES)
def test_any_cut_into_tasks_gives_the_same(row, modes):
    dtype, tile = "float32", tiles.tiles(row, "float32")[0]
    height, nr = _height(row, dtype, tile), tile[1]
    case = Case(dtype=dtype, tile=tile, valid=(height, height, 3, height, 1), n=3 * nr + 1, k=5, kc=3)
    for blocks in ((1, 1, nr), (1, 2, 2 * nr), (1, 5, 4 * nr), (1, 3, 8 * nr)):
        run(build(with_modes(replace(case, blocks=blocks), modes, "panels"), row), row)
        run(build(with_modes(replace(case, blocks=blocks), modes, "K_RUN"), row), row)
        run(build(with_modes(replace(case, blocks=blocks), modes, "nested"), row), row)


@every_reader_of_panels
def test_panels_nested_in_blocks_of_k(row, dtype, tile, modes):
    """One block of K (plain panels), a short last one, whole ones; one panel, several that are not full; at pages that end
    the process."""
    height, nr = _height(row, dtype, tile), tile[1]
    for k, kc, valid in ((3, 3, (height, 1)), (7, 3, (height, height, 1)), (6, 2, (height - 1 or 1,)), (2, 5, (height, 1))):
        case = Case(dtype=dtype, tile=tile, valid=valid, n=nr + 1, k=k, kc=kc, accumulate=k == 6, conj=(True, k == 7))
        run(build(with_modes(case, modes, "nested"), row), row)
        run(build(with_modes(replace(case, flush="end"), modes, "nested"), row), row)


@every_isa
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("lanes", [512, 1037])
def test_large_results_with_few_columns(row, dtype, lanes):
    """Results past the caches, outer iterations whose A is asked for early, panels that are not full."""
    rng = np.random.default_rng(lanes)
    count = (9 << 20) // (2 * lanes * np.dtype(dtype).itemsize)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((count, 2, lanes), (2, 3)))
    if dtype == "complex64":
        a.imag, b.imag = rng.integers(-4, 5, a.shape), rng.integers(-4, 5, b.shape)
    plan = build_plan(replace(engine.compile("abc,bd->adc", a, b, conj=[0]).plan.request, isa=row.name))
    assert plan.steps[-1].family == "gemm"
    out = np.empty((count, 3, lanes), dtype)
    bind(plan).run([a, b], out)
    assert np.array_equal(out, a[:, :1].conj() * b[0, :, None] + a[:, 1:].conj() * b[1, :, None])


@every_isa
@pytest.mark.parametrize("modes", MODES)
def test_shares_of_unequal_size_give_the_same(row, modes):
    """What follows is a share of other panels, of the same, and of fewer columns; B is packed before, by tasks, or not."""
    dtype, tile = "float32", tiles.tiles(row, "float32")[0]
    height, nr = _height(row, dtype, tile), tile[1]
    n = 3 * nr + 1
    shares = (0, 3, 0, n), (3, 4, 0, 2 * nr), (3, 4, 2 * nr, n), (4, 5, 0, nr), (4, 5, nr, n)
    case = Case(dtype=dtype, tile=tile, valid=(height, height, 3, height, 1), n=n, k=5, kc=3, shares=shares)
    for pack, pack_b in (("panels", "panels"), ("nested", "panels"), ("K_RUN", "panels"), ("LANES_RUN", "K_RUN")):
        for blocks in (None, (1, 1, nr)):
            run(build(with_modes(replace(case, blocks=blocks), modes, pack, pack_b), row), row)


@pytest.mark.parametrize("tile, modes", [((1, 8), "dp"), ((4, 6), "pp"), ((2, 14), "pp"), ((3, 8), "pd")])
def test_pairs_of_products_come_before_the_sums_of_the_pair_before(tile, modes):
    """Compiled, not run: the K loops of 64-bit integers with vectors of 512 bits."""
    avx512, count = isa.get("avx512"), tile[0] * tile[1]
    text = codegen.assembly(generators.build(f"gemm_int64_{tile[0]}x{tile[1]}_{modes}", avx512), avx512)
    loops = [part.splitlines() for part in text.split("\n.L") if part.count("vpmullq") == count]
    assert loops
    for lines in loops:
        body = [line for line in lines if "vpmullq" in line or "vpaddq\t%zmm" in line]
        assert "".join("m" if "vpmullq" in line else "s" for line in body) == "mm" + "mmss" * (count // 2 - 1) + "ss"
        assert all("{1to8}" in line for line in body if "vpmullq" in line), "a broadcast apart"
