"""Which tile a product gets, and whether lanes are filled from several dimensions."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from plan_cases import made_anew, operands, plan, run

from einsum_engine import executor
from einsum_engine.kernels import isa, tiles
from einsum_engine.kernels.cpu import abi, cores
from einsum_engine.planners import tile_choice
from einsum_engine.planners.gemm_access import L1_BYTES, block_of_k
from einsum_engine.planners.tile_choice import choose_tile

AVX512 = isa.get("avx512")


@pytest.mark.parametrize("dtype, fast", [("float32", 8), ("float32", 4), ("float64", 4), ("float64", 2)])
def test_short_rows_fill_whole_vectors(dtype, fast):
    """The fastest dimension has fewer elements than a vector, and the result is worth it."""
    lanes = tiles.elements(AVX512, dtype)
    assert fast < lanes
    (mv, _), several = choose_tile(AVX512, dtype, (fast, 8, 8), 512, 8, True)
    assert several and mv * lanes >= 2 * fast


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_b_read_in_place_has_tiles_of_few_columns_where_broadcasts_cost_much(dtype):
    row, most = isa.get("sse2"), tiles.most_in_place(dtype)
    packed, _ = choose_tile(row, dtype, (240,), 240, 200, True)
    in_place, _ = choose_tile(row, dtype, (240,), 240, 200, True, most=most, in_place=True)
    assert tiles.turns(row, dtype, packed[1])
    assert in_place[1] <= most < packed[1]
    assert tiles.efficiency(row, dtype, packed) > tiles.efficiency(row, dtype, packed, True)
    assert tiles.efficiency(AVX512, dtype, (2, 6)) == tiles.efficiency(AVX512, dtype, (2, 6), True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64", "complex128"])
@pytest.mark.parametrize("size", [700, 1000, 2048, 4096])
def test_panels_of_a_large_b_find_room_in_l1(dtype, size):
    (_, nr), _ = choose_tile(AVX512, dtype, (size,), size, size, True)
    item = tiles.ITEMSIZE[dtype]
    assert nr * block_of_k(size, item) * item <= L1_BYTES


@pytest.mark.parametrize("dtype, tile", [("float64", (2, 14)), ("complex128", (1, 12))])
def test_few_panels_of_b_may_be_wide(dtype, tile):
    rows = tile[0] * tiles.elements(AVX512, dtype) * 25
    assert choose_tile(AVX512, dtype, (rows,), 2 * tile[1], 1024, True)[0] == tile


@pytest.mark.parametrize("rows, columns, terms", [((4, 2, 2), 4, 4), ((8, 2), 4, 8)])
def test_tiny_products_store_what_lies_together(rows, columns, terms):
    assert not choose_tile(AVX512, "float32", rows, columns, terms, True)[1]


@pytest.mark.parametrize("columns", [44, 512])
def test_rows_of_whole_vectors_are_stored_as_they_are(columns):
    assert not choose_tile(AVX512, "float32", (48, 44, 44), columns, 48, True)[1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_dimensions_that_are_one_run_of_the_result_fill_vectors_together(dtype):
    rows = (2,) * 11
    (mv, _), several = choose_tile(AVX512, dtype, rows, 256, 2, True, together=8)
    whole = choose_tile(AVX512, dtype, (256, 8), 256, 2, True)[0]
    assert several and mv == whole[0]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_intermediates_of_many_short_dimensions_fill_vectors(dtype):
    """The last product reads rows of six dimensions of 2, which are one run of the result."""
    equation = "ua,uv,vbcdefgh,hl->labcdefg"
    arrays = operands(equation, dict.fromkeys("vbcdefgh", 2) | dict(u=2, a=9, l=5), dtype)
    made = plan(equation, arrays)
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))
    assert made.steps[-1].family == "gemm"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int16"])
@pytest.mark.parametrize("size", [3, 4, 6, 8])
def test_lanes_of_several_dimensions_compute_the_same(dtype, size):
    """K too short for anything else to matter, results in runs of ``size``, all of them scattered."""
    equation = "fhij,gikl->fkhgjl"
    arrays = operands(equation, {letter: size for letter in "fghijkl"}, dtype)
    made = plan(equation, arrays)
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))


def test_pieces_that_go_on_with_a_run_fill_vectors_with_it():
    """20 and 3 of 64 lanes, as the panels of the result's reader; 48 lanes would hold 2, which cross from piece to piece."""
    rows = (20, 20, 8, 8)
    assert choose_tile(AVX512, "float32", rows, 480, 64, True, goes_on=3) == ((4, 6), True)
    assert not choose_tile(AVX512, "float32", rows, 480, 64, True)[1]
    assert choose_tile(AVX512, "float32", rows, 480, 64, True, goes_on=7) == choose_tile(
        AVX512, "float32", rows, 480, 64, True
    )


@pytest.mark.parametrize("in_flight", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
def test_lines_in_two_parts_are_not_cut_into_tiles_of_one(dtype, in_flight):
    """A run of 5 vectors, in a large array of the caller's."""
    rows, how = (5 * tiles.elements(AVX512, dtype), 144), {"close": True, "in_flight": in_flight}
    (mv, _), _ = choose_tile(AVX512, dtype, rows, 1728, 24, True, anywhere=True, **how)
    assert mv > 1
    single = (tiles.elements(AVX512, dtype), 144)  # a tile is a whole run, which all have in two parts
    assert choose_tile(AVX512, dtype, single, 1728, 24, True, anywhere=True, **how) == choose_tile(
        AVX512, dtype, single, 1728, 24, True, **how
    )


@pytest.mark.parametrize("dtype, tile", [("float64", (3, 8)), ("float32", (3, 8)), ("complex64", (3, 4))])
def test_tiles_of_whole_columns_are_stored_as_they_are(dtype, tile):
    """Though each column begins where the one before ends."""
    rows = (tile[0] * tiles.elements(AVX512, dtype), 288)
    assert choose_tile(AVX512, dtype, rows, 1728, 24, True, close=True, in_flight=4)[0] == tile


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_given_for_a_large_result_decides_about_tiles(dtype):
    """Memory of our own begins with a line; the caller's may not. 17 MB."""
    if isa.active_isa().vector_bits != 512:
        pytest.skip("vectors are no lines here")
    lanes = tiles.elements(AVX512, dtype)
    equation, sizes = "aed,cbd->cbea", dict(a=5 * lanes, e=24, d=24, c=48, b=48)
    arrays = operands(equation, sizes, dtype)
    expected = np.einsum(equation, *arrays, optimize=True)
    memory = np.empty(expected.size + 1, dtype)
    out = memory[1:].reshape(expected.shape)
    given, fresh = plan(equation, arrays, out=out), plan(equation, arrays)
    assert given.request.out_strides == out.strides and fresh.request.out_strides is None
    assert "1x" not in given.steps[-1].kernel
    executor.bind(given).run(arrays, out)
    for found in (out, run(fresh, arrays)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("run, several", [(5, True), (6, True), (7, True), (9, True), (11, False)])
def test_runs_in_few_pieces_are_reason_to_fill_vectors(run, several):
    assert choose_tile(AVX512, "float32", (run, 12, 12), 512, 24, True)[1] == several


@pytest.mark.parametrize(
    "sizes, there",
    [
        (dict(b=36, e=64, d=30, c=40, a=48), True),  # 4 and a half
        (dict(b=36, e=64, d=6, c=4, a=48), False),  # 0.3 MB of A
        (dict(b=38, e=200, d=30, c=40, a=48), False),  # panels of 38 KB
        (dict(b=70, e=64, d=30, c=40, a=48), False),  # nine panels of columns
        (dict(b=80, e=64, d=30, c=40, a=48), True),  # ten, of tiles that are whole columns of a large result
    ],
)
def test_an_operand_that_lies_in_panels_is_read_there(sizes, there, monkeypatch):
    """In vectors of 16 its 48 lanes are a panel; 96 of two runs would waste fewer columns, and have to be packed. The other
    operand is packed wherever it is used by several panels."""
    core = replace(cores.here(), columns_in_place=0)
    monkeypatch.setattr(cores, "here", lambda: core)
    equation = "be,dcea->dcba"
    arrays = operands(equation, sizes, "float32")
    with made_anew():
        made = plan(equation, arrays, isa="avx512", threads=1)
    (kernel,) = (step.kernel for step in made.steps if step.family == "gemm")
    assert (kernel == "gemm_float32_3x8_dp") == there
    if any(row is AVX512 for row in isa.host_isas()):
        np.testing.assert_allclose(run(made, arrays), np.einsum(equation, *arrays, optimize=True), rtol=1e-4, atol=1e-3)


EVERY = [(row, dtype) for row in isa.host_isas() for dtype in tiles.DTYPES]


@pytest.mark.parametrize("row, dtype", EVERY, ids=lambda value: getattr(value, "name", value))
def test_a_core_of_two_units_wants_more_in_flight_and_fewer_loads(row, dtype):
    """Integers multiply in one of them, and where vectors are narrower there were two already."""
    for tile in tiles.tiles(row, dtype):
        one, two = (tiles.efficiency(row, dtype, tile, in_flight=count) for count in (row.in_flight, 2 * row.in_flight))
        assert one == tiles.efficiency(row, dtype, tile) and two <= one
        assert (two == one) == (tiles.units(row, dtype, 2 * row.in_flight) == 1 or not row.repeats or two > 0.95), tile
    if row is AVX512 and dtype == "float32":
        least, most = (tiles.efficiency(row, dtype, tile, in_flight=8) for tile in ((1, 4), (4, 6)))
        assert least < 0.5 and most > 0.95
        chosen = [choose_tile(row, dtype, (168,), 24, 168, True, in_flight=count)[0] for count in (0, 4, 8)]
        assert chosen == [(1, 8), (1, 8), (3, 8)]


def _just_enough(row, dtype) -> list[tuple[int, int]]:
    """Tiles with as many accumulators as multiply-adds in flight."""
    parts = 2 if dtype in tiles.COMPLEX else 1
    return [(mv, nr) for mv, nr in tiles.tiles(row, dtype) if row.repeats and nr > 1 and mv * nr * parts == row.in_flight]


@pytest.mark.parametrize(
    "row, dtype", [each for each in EVERY if _just_enough(*each)], ids=lambda value: getattr(value, "name", value)
)
def test_just_enough_accumulators_are_less_than_more(row, dtype):
    """Of floats; the products and sums of integers take turns. Of 24 columns and 64 rows more are chosen."""
    enough = max(tiles.efficiency(row, dtype, tile) for tile in _just_enough(row, dtype))
    more = max(tiles.efficiency(row, dtype, tile) for tile in tiles.tiles(row, dtype))
    floats = dtype.startswith(("float", "complex"))
    assert (enough < 0.9) == floats and more > 0.95
    if row.in_flight == 8 and dtype == "float32":
        assert choose_tile(row, dtype, (64,), 24, 64, True)[0] == (2, 6)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("row, dtype", EVERY, ids=lambda value: getattr(value, "name", value))
def test_tiles_that_are_not_weighed_would_not_be_chosen(monkeypatch, row, dtype, units):
    """Of tiles of one width, all but the fastest are left out: the choice is the same with all of them."""
    rng = np.random.default_rng(0)

    def case():
        rows = tuple(rng.choice([1, 2, 3, 4, 5, 8, 16, 17, 33, 100], rng.integers(1, 5)).tolist())
        columns, terms = rng.choice([1, 2, 3, 4, 5, 6, 8, 13, 16, 24, 100, 512], 2).tolist()
        most = int(rng.choice([4, 8, tile_choice.MOST_COLUMNS]))
        contiguous, across, close, in_place = (rng.random(4) < [0.7, 0.1, 0.2, 0.3]).tolist()
        together = int(rng.integers(1, 3))
        return row, dtype, rows, columns, terms, contiguous, across, most, close, in_place, together, 0, units * row.in_flight

    cases = [case() for _ in range(200)]
    chosen = [choose_tile.__wrapped__(*each) for each in cases]
    every = tile_choice._fastest.__wrapped__
    assert len(every(row, dtype, False, units * row.in_flight, 64, 64, 1, 16)) < len(tiles.tiles(row, dtype))
    monkeypatch.setattr(tile_choice, "ALIKE", float("inf"))
    monkeypatch.setattr(tile_choice, "_fastest", every)  # without its cache
    assert [choose_tile.__wrapped__(*each) for each in cases] == chosen


TREE = "aef,cfj,dgj,beg->abcd"  # the third product reads what the second writes
SIZES = dict(a=5, e=3, f=3, c=11, d=5, g=2, j=2, b=4)


@pytest.mark.parametrize("row, dtype", EVERY, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("policy", ["solve", "panels"])
def test_products_of_products_in_every_width_of_panels(row, dtype, policy):
    """d and pieces of c are in panels that the product before fills; c ends with a piece that is not whole."""
    arrays = operands(TREE, SIZES, dtype)
    made = plan(TREE, arrays, isa=row.name, layouts=policy, optimize=[(1, 2), (0, 2), (0, 1)])
    oracle.check(run(made, arrays), oracle.einsum(TREE, *arrays))
    for step in made.steps:
        _stays_inside(step, made.buffers[step.output], tiles.ITEMSIZE.get(dtype, 0))


def test_a_panel_is_stored_whole_where_its_reader_has_room():
    """Lanes that do not exist are stored where panels of an intermediate have them, and nowhere else."""
    arrays = operands(TREE, SIZES | dict(d=20, c=22, f=64, a=30, b=40), "float32")
    made = plan(TREE, arrays, isa="avx512", optimize=[(1, 2), (0, 2), (0, 1)])
    filled = [step for step in made.steps if _is_filled(step)]
    assert filled and all(made.buffers[step.output].kind == "arena" for step in filled)
    for step in filled:
        _stays_inside(step, made.buffers[step.output], 4)
    if AVX512 in isa.host_isas():
        wide = [array.astype(np.float64) for array in arrays]
        expected = np.einsum(TREE, *wide, optimize=True)
        assert np.allclose(run(made, arrays), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def _is_filled(step) -> bool:
    """More lanes are stored than elements exist."""
    tables, words = step.args.tables, step.args.words
    stored = tables[abi.G_VALID].sum() * words[abi.G_N] * words[abi.G_OUTER_TOTAL] if step.family == "gemm" else 0
    return stored > np.prod([size for kind in "BMN" for _, size in step.dims[kind]])


def _stays_inside(step, buffer, item: int) -> None:
    """What a product stores ends within its buffer."""
    if step.family != "gemm":
        return
    tables = step.args.tables
    lanes = tables[abi.G_TM_C].reshape(len(tables[abi.G_VALID]), -1)
    last = max(row[valid - 1] for row, valid in zip(lanes, tables[abi.G_VALID]))
    loops = [tables[at + 3].max() for at in range(abi.G_OUTER, abi.G_OUTER + 16, 4) if at + 3 in tables]
    assert last + tables[abi.G_TN_C].max() + sum(loops) + item <= buffer.nbytes
