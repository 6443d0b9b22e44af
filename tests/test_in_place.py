"""A B that one tile reads once stays where it is: packing would read the same elements in the same order, and write them."""

import numpy as np
import oracle
import pytest
from plan_cases import plan, run

from einsum_engine.kernels import isa

CASES = [  # expression, sizes: dots of what does not run along K, one row or few with a few columns
    ("a,a->", dict(a=9001)),
    ("ab,ba->", dict(a=97, b=130)),
    ("ka,kb->ab", dict(k=7001, a=3, b=4)),
    ("ka,kb->ba", dict(k=7001, a=16, b=8)),
    ("kal,blk->ab", dict(k=70, a=5, b=3, l=101)),
]


@pytest.mark.parametrize("step, flush", [(-1, "start"), (2, "end")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int8", "int32", "int64", "bool"])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_results(row, dtype, step, flush):
    """K forwards and backwards, in one dimension and several, up to the ends of operands."""
    rng = np.random.default_rng(0)
    for text, sizes in CASES:
        arrays = []
        for term in text.split("->")[0].split(","):
            whole = oracle.random(rng, [abs(step) * sizes[index] for index in term], dtype, exact=True)
            arrays.append(oracle.place(whole, flush)[(slice(None, None, step),) * whole.ndim])
        made = plan(text, arrays, isa=row.name)
        if text.endswith("->"):  # tiles of narrow vectors have fewer columns than others
            assert not any(each.family == "pack" for each in made.steps), text
        wide = [array.astype("c16" if dtype.startswith("complex") else "i8") for array in arrays]
        expected = np.asarray(np.einsum(text, *wide, optimize=True)).astype(made.dtype)
        np.testing.assert_array_equal(run(made, arrays), expected, err_msg=text)


@pytest.mark.parametrize(
    "text, shapes, in_place, name",
    [
        ("a,a->", [(10**6,), (10**6,)], False, ""),  # a sum of corresponding elements
        ("ka,kb->ab", [(10**5, 16), (10**5, 8)], True, "avx512"),  # several tiles of others
        ("ka,kb->ab", [(10**5, 8), (10**5, 4)], True, ""),
        ("ka,kb->ab", [(10**5, 64), (10**5, 40)], False, ""),  # several tiles, panels of both
        ("ka,kb->ab", [(10**5, 9), (10**5, 14)], False, ""),  # more columns than streams that hardware follows
    ],
)
def test_one_tile_that_reads_b_once(text, shapes, in_place, name):
    """With the tiles of ``name``, or with those of this machine."""
    arrays = [np.empty((*rows, 2 * last), np.float32)[..., ::2] for *rows, last in shapes]  # nothing of them is read
    steps = plan(text, arrays, isa=name or isa.host_isas()[0].name, threads=1).steps
    kernels = [step.kernel for step in steps]
    assert (len(kernels) == 1 and kernels[0].endswith("d")) == in_place, kernels


@pytest.mark.parametrize("size, columns, packed", [(168, 44, True), (40, 24, False)])
def test_a_b_of_an_outer_loop_whose_rows_lie_apart_is_packed_where_it_comes_from_memory(size, columns, packed):
    """A block of it for one a, 225 KB, is as much as may be read in place; all of it is 38 MB, or half a megabyte."""
    steps = plan("adb,cd->cba", [np.empty((size,) * 3), np.empty((columns, size))], isa="avx2", threads=1).steps
    (kernel,) = [step.kernel for step in steps if step.family == "gemm"]
    assert kernel.endswith("pp") == packed, kernel


ALONG_A = [  # expression, sizes: rows of the result in another order than those of the larger operand, which are adjacent there
    ("ead,debc->cba", dict(a=2, b=11, c=3, d=124, e=18)),
    ("dc,bdca->ab", dict(a=19, b=2, c=13, d=6)),
    ("deab,ced->cba", dict(a=11, b=3, c=3, d=39, e=5)),
    ("gba,gc->cab", dict(a=45, b=37, c=2, g=60)),  # more rows than a panel has
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int16", "int64"])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("text, sizes", ALONG_A)
def test_rows_lie_as_the_operand_where_a_long_sum_stores_little(text, sizes, row, dtype):
    """Up to the ends of operands that begin or end with a page."""
    rng = np.random.default_rng(1)
    terms = text.split("->")[0].split(",")
    for flush in ("start", "end"):
        arrays = [oracle.place(oracle.random(rng, [sizes[index] for index in term], dtype, exact=True), flush) for term in terms]
        wide = [array.astype("c16" if dtype.startswith("complex") else "i8") for array in arrays]
        made = plan(text, arrays, isa=row.name)
        expected = np.einsum(text, *wide, optimize=True).astype(made.dtype)
        np.testing.assert_array_equal(run(made, arrays), expected)
    steps = plan(text, arrays, isa="avx512").steps
    if dtype == "float64":
        assert [step.family for step in steps] == ["gemm"] and steps[0].layouts[3] == "direct", steps


@pytest.mark.parametrize("k, columns, along", [(7, 1, False), (8, 1, True), (15, 4, False), (16, 4, True)])
def test_rows_of_a_short_sum_lie_as_the_result(k, columns, along):
    """For which a result whose entries are apart costs more than packing."""
    shapes = [(k, 5, 40), (k, columns)]
    asked = plan("kba,kc->cab", [np.zeros(shape, "f") for shape in shapes], isa="avx512", threads=1)
    (step,) = [step for step in asked.steps if step.family == "gemm"]
    assert (step.layouts[3] == "direct") == along, step
