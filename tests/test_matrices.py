"""Products of few columns whose rows are many, several dimensions, or on lines that a batch shares: loops of small ones, copies."""

import random

import numpy as np
import oracle
import plan_cases
import pytest

import einsum_engine as engine
from einsum_engine.kernels import small, tiles
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.tiles import ITEMSIZE
from einsum_engine.planners import beside, cache_sets, unpacked
from einsum_engine.planners.contraction import Laid, asked
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.sides import OUT, total

ISAS = host_isas()
CACHES = {1: 32 << 10, 2: 512 << 10}
SIZES = dict(a=5, b=3, c=4, d=3, e=6)
IN_LOOPS = ["bcae,aed->bcad", "aed,bcae->bcad", "cbae,aed->bacd", "ebca,ead->cabd", "bcea,aed->acbd"]
COPIED = ["bcae,ade->bcad", "ade,bcae->bcad", "cbae,dea->bacd", "ebca,eda->cabd"]


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    """Caches of one size, operands large enough, and no plan from before."""
    monkeypatch.setattr(cache_sets, "cache_of_level", CACHES.__getitem__)
    monkeypatch.setattr(beside, "LEAST_OF_COLUMNS", 64)
    with plan_cases.made_anew():
        yield


def contraction(text: str, sizes: dict, dtype: str):
    """A product of two dense operands, the first index of a term the slowest."""
    terms, out = text.split("->")[0].split(","), text.split("->")[1]
    axes = [dense_axes(term[::-1], sizes, ITEMSIZE[dtype]) for term in (*terms, out)]
    question = asked(tuple(map(tuple, (*terms, out))), (dtype, "", ""), (False, False), (False, False), (True, True, False, False))
    return Laid(question, sizes, *axes).contraction


def matrices(text: str, sizes: dict, isa, dtype: str = "float32"):
    """The small products that a contraction is taken for, the second operand having the columns."""
    return unpacked._View(contraction(text, sizes, dtype), isa).matrices


def indices(dims) -> str:
    return "".join(index for dim in dims for index in dim.indices)


def families(made) -> list[str]:
    return [step.family for step in made.steps]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("text", IN_LOOPS)
def test_rows_in_several_dimensions_are_loops_around_small_products(text, dtype, isa):
    arrays = plan_cases.operands(text, SIZES, dtype)
    made = plan_cases.plan(text, arrays, isa=isa.name)
    assert families(made) == ["small"]
    oracle.check(plan_cases.run(made, arrays), oracle.einsum(text, *arrays))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("text", COPIED)
def test_a_small_operand_is_copied_so_that_its_columns_are_adjacent(text, dtype, isa):
    lanes = tiles.elements(isa, dtype)
    sizes = dict(a=3, b=16, c=16, d=max(2, lanes // 2 + lanes // 4), e=3)
    arrays = plan_cases.operands(text, sizes, dtype)
    made = plan_cases.plan(text, arrays, isa=isa.name)
    assert families(made) in (["copy", "small"], ["small"])
    assert families(made) == ["copy", "small"] or "t" in made.steps[-1].kernel.rsplit("_", 1)[1], made.steps[-1].kernel
    oracle.check(plan_cases.run(made, arrays), oracle.einsum(text, *arrays))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("text", ["bcaef,adea,xd->bcafx", "adea,bcaef,dx->cbafx"])
def test_a_diagonal_is_copied_and_what_was_computed_is_read(text, threads):
    """The copied operand lies as no layout of its own does; the product of the copy is an operand of the next one."""
    sizes = dict(a=5, b=6, c=8, d=4, e=4, f=3, x=7)
    arrays = plan_cases.operands(text, sizes, "float64")
    made = plan_cases.plan(text, arrays, threads=threads)
    oracle.check(plan_cases.run(made, arrays), oracle.einsum(text, *arrays))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_what_would_be_copied_is_small_and_fills_half_a_vector(isa):
    lanes, text = tiles.elements(isa, "float32"), "bcae,ade->bcad"
    sizes = dict(a=5, b=6, c=8, d=lanes, e=3)  # fewer terms than columns that are turned round have

    def copied(**more):
        choice = unpacked.choose(contraction(text, sizes | more, "float32"), isa)
        return choice is not None and choice.copied is not None

    assert copied()
    assert not copied(b=1, c=2, e=9), "as large as the other"
    assert not copied(d=max(1, lanes // 2 - 1)), "rows of less than half a vector"


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_rows_on_shared_lines_are_as_many_as_the_first_cache_keeps(isa, monkeypatch):
    """Of 64 rows 2 KB apart, with terms on 4 lines each, 8 are in the first cache together while the batch passes."""
    text, sizes = "reaqb,abqs->reabs", dict.fromkeys("reaqbs", 8)
    found = matrices(text, sizes, isa)
    assert total(found.m) == 8 and indices(found.products).endswith("b") and total(found.products) == 512
    monkeypatch.setattr(cache_sets, "cache_of_level", lambda level: CACHES[level] << 5)
    found = matrices(text, sizes, isa)
    assert total(found.m) == 64 and total(found.products) == 64


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_rows_that_the_first_cache_cannot_keep_are_left_to_a_gemm(isa):
    """Both dimensions of M, and K, go by whole pages: the terms of one row have no room in a set."""
    text, sizes = "cbea,aed->bcad", dict(b=8, c=8, e=16, a=1024, d=3)
    assert len(matrices(text, sizes, isa).m) == 2, "as they were"
    assert unpacked.choose(contraction(text, sizes, "float32"), isa) is None
    assert len(matrices(text, sizes | dict(a=999), isa).m) == 1


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_the_rows_of_a_matrix_are_many_and_near_each_other(isa):
    sizes = dict(a=5, b=3, c=8, d=3, e=6)
    assert indices(matrices("cbae,aed->bcad", sizes, isa).m) == "c", "8 rows apart rather than 3 near ones"
    assert indices(matrices("cbae,aed->bcad", sizes | dict(b=9), isa).m) == "b", "both have 8: the nearer ones"
    (rows,) = matrices("bcae,aed->bcad", sizes | dict(c=100), isa).m
    assert rows.size == 60, "a divisor of 300, one dimension of both, that the family takes"


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa.vector_bits > 128], ids=lambda isa: isa.name)
@pytest.mark.parametrize("text", ["cbae,aed->bcad", "cbae,ade->bcad"])
def test_large_results_of_whole_lines_are_left_to_a_gemm(text, isa, monkeypatch):
    """Of 128 bits four vectors are a line, and more than rows of small products have."""
    sizes = dict(a=64, b=16, c=16, d=16, e=8)
    chosen = unpacked.choose(contraction(text, sizes, "float32"), isa)
    assert chosen is not None and chosen.row.name == "small"
    monkeypatch.setattr(small, "FAR_BYTES", 64 * 16 * 16 * 64 - 1)
    assert unpacked.choose(contraction(text, sizes, "float32"), isa) is None
    chosen = unpacked.choose(contraction(text, sizes | dict(d=15, b=18), "float32"), isa)
    assert chosen is not None and chosen.row.name == "small", "rows that are no lines"


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_large_results_are_written_in_their_order(isa, monkeypatch):
    text, sizes = "cabe,aed->abcd", dict(a=9, b=8, c=9, d=6, e=3)
    assert indices(matrices(text, sizes, isa).products) == "cab".replace(indices(matrices(text, sizes, isa).m), "")
    monkeypatch.setattr(small, "FAR_BYTES", 0)
    found = matrices(text, sizes, isa)
    strides = [dim.stride(OUT) for dim in found.products]
    assert strides == sorted(strides, reverse=True) and indices(found.m) == "c", "the rows that are near each other in it"


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_columns_that_would_be_gathered_for_each_row_are_not(isa):
    """Neither adjacent in B nor beside terms: rows in several dimensions stay a GEMM's, if the operand is too large for a copy."""
    text = "bcae,aexd->bcadx"
    sizes = dict(a=64, b=2, c=2, d=4, e=3, x=4)
    assert unpacked.choose(contraction(text, sizes, "float32"), isa) is None


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int16"])
def test_random_products(isa, dtype):
    """Indices of each kind in any order: exact, whatever is chosen; most have several dimensions of rows."""
    rng, found = random.Random(f"{isa.name} {dtype}"), 0
    for seed in range(60):
        kinds = {"b": rng.choice([1, 1, 2]), "m": rng.choice([1, 2, 3]), "n": rng.choice([1, 1, 2]), "k": rng.choice([1, 1, 2])}
        letters = iter("abcdefghijkl")
        names = {kind: [next(letters) for _ in range(count)] for kind, count in kinds.items()}
        sizes = {name: rng.choice([1, 2, 3, 4, 5, 8, 9]) for group in names.values() for name in group}
        groups = [[i for kind in word for i in names[kind]] for word in ("bmk", "bkn", "bmn")]
        terms = [rng.sample(group, len(group)) for group in groups]
        text = "{},{}->{}".format(*map("".join, terms))
        arrays = plan_cases.operands(text, sizes, dtype, seed)
        made = plan_cases.plan(text, arrays, isa=isa.name, threads=1 + seed % 2)
        found += "small" in families(made)
        result = plan_cases.run(made, arrays)
        assert np.array_equal(result, np.einsum(text, *arrays).astype(result.dtype)), (text, sizes, seed, made.steps)
    assert found >= 5


TALL = ["ik,kj->ij", "kj,ik->ij", "aik,kj->iaj", "kj,aki->aij", "ki,kj->ij"]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [dtype for dtype in tiles.DTYPES if 4 <= ITEMSIZE[dtype] <= 8])
@pytest.mark.parametrize("text", TALL)
def test_many_rows_are_a_batch_of_fewer(text, dtype, isa):
    """Of 130 rows, with 3 before them or without, 26 are a divisor; of 254 only 2, and of 257 none, which are left to a GEMM."""
    sizes = dict(i=130, a=3, k=5, j=max(2, 3 * tiles.elements(isa, dtype) // 4))
    arrays = plan_cases.operands(text, sizes, dtype)
    made = plan_cases.plan(text, arrays, isa=isa.name, threads=2)
    assert families(made) == ["small"]
    oracle.check(plan_cases.run(made, arrays), oracle.einsum(text, *arrays))
    for more in (dict(i=254, a=1), dict(i=257, a=1)):
        arrays = plan_cases.operands(text, sizes | more, dtype)
        made = plan_cases.plan(text, arrays, isa=isa.name)
        assert families(made) == ["gemm"]
        oracle.check(plan_cases.run(made, arrays), oracle.einsum(text, *arrays))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_tall_products_that_a_gemm_has_tiles_for(isa):
    lanes = tiles.elements(isa, "float32")
    sizes = dict(i=512, k=8, j=lanes)

    def chosen(dtype="float32", text="ik,kj->ij", **more):
        choice = unpacked.choose(contraction(text, sizes | more, dtype), isa)
        return choice and choice.row.name

    assert chosen() == chosen(j=lanes // 2) == chosen(j=lanes + 1) == "small"
    for more in (dict(text="ik,kj->ji"), dict(j=2 * lanes), dict(k=25), dict(i=127), dict(dtype="complex128", j=2, k=16)):
        assert chosen(**more) is None, more


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_two_by_two_rows_without_a_kernel_of_their_own_are_loops(isa):
    sizes = dict(a=9, b=2, c=2, e=4, d=8)
    for dtype in ("float64", "int32"):
        rows = matrices("cbae,aed->bcad", sizes, isa, dtype).m
        assert len(rows) == (2 if dtype == "float64" else 1), "float64 has them written out"


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_columns_that_are_adjacent_together_are_copied(isa):
    lanes, text = tiles.elements(isa, "float32"), "bcae,aexd->bcadx"
    sizes = dict(a=5, b=16, c=16, d=max(2, lanes // 4), x=2, e=3)
    choice = unpacked.choose(contraction(text, sizes, "float32"), isa)
    assert choice is not None and choice.copied is not None


def test_an_operand_that_never_changes_is_packed_once():
    text, sizes = "bcae,ade->bcad", dict(a=5, b=16, c=16, d=8, e=3)
    arrays = plan_cases.operands(text, sizes, "float64")
    assert "copy" in families(plan_cases.plan(text, arrays))
    f = engine.compile(text, *arrays, constants=[1])
    assert [step.once for step in f.plan.steps if step.family in ("copy", "pack")] == [True]
    oracle.check(f(arrays[0]), oracle.einsum(text, *arrays))
