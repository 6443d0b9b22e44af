"""Which tile a product gets, and whether lanes are filled from several dimensions."""

import oracle
import pytest
from plan_cases import operands, plan, run

from einsum_engine.kernels import isa, tiles
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
