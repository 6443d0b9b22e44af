"""Products of a batch with a vector on one side, as sums of corresponding elements; and sums of both operands' fast indices."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import numpy as np
import oracle
import pytest
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import tiles
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.planners import casts, joining, splitting, thread_slices, weighted
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.splitting import SumCut, pieces_of_tiles

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 0)) or 60


def operands(expression: str, sizes: dict[str, int], dtype: str, seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    terms = expression.partition("->")[0].split(",")
    return [oracle.random(rng, [sizes[letter] for letter in term], dtype, exact=True) for term in terms]


def expected(expression: str, arrays: list[np.ndarray]) -> np.ndarray:
    dtype = arrays[0].dtype
    wide = np.complex128 if dtype.kind == "c" else np.int64
    return np.einsum(expression, *[each.astype(wide) for each in arrays]).astype(dtype)


CASES = {  # expression, sizes, and whether a fused kernel does it
    "corresponding elements": ("bac,acb->ab", dict(a=90, b=300, c=40), True),
    "few rows": ("cabd,dab->acb", dict(a=2, b=85, c=3, d=9), True),
    "all summed": ("ab,ba->", dict(a=50, b=60), True),
    "rows enough": ("cabd,dab->acb", dict(a=2, b=85, c=30, d=9), False),
    "rows adjacent": ("acb,ca->ab", dict(a=11, b=2, c=98), False),
    "short runs of both": ("bacd,bcad->ba", dict(a=20, b=9, c=30, d=3), False),
    "short runs that go on": ("cba,cba->ab", dict(a=3, b=36, c=14), True),
    "few terms": ("cab,acb->ba", dict(a=24, b=3, c=16), True),
    "more terms": ("cab,acb->ba", dict(a=24, b=3, c=17), False),
    "a matrix": ("cabd,dabe->acbe", dict(a=2, b=85, c=3, d=9, e=2), False),
}


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_which_products_they_are(case, dtype, isa, monkeypatch):
    """Of a vector of the instruction set, that is: rows are few or not beside its elements, whatever is predicted."""
    monkeypatch.setattr(weighted, "LEAD", math.inf)
    expression, sizes, fused = CASES[case]
    arrays = operands(expression, sizes, dtype)
    plan = build_plan(replace(engine.compile(expression, *arrays, threads=1).plan.request, isa=isa.name))
    larger, smaller = (set(term) for term in expression.partition("->")[0].split(","))
    rows = int(np.prod([sizes[letter] for letter in larger - smaller]))
    few = rows <= splitting.SLENDER * tiles.elements(isa, dtype) or case == "corresponding elements"
    if fused or not few:
        assert ("fused" in [step.family for step in plan.steps]) == (fused and few)
    out = np.empty(expected(expression, arrays).shape, dtype)
    bind(plan).run(arrays, out)
    np.testing.assert_array_equal(out, expected(expression, arrays))


PREDICTED = [  # many rows, which lie apart, or beside a batch that runs with them
    ("bcead,dcae->bdc", dict(a=2, b=16, c=12, d=8, e=177)),
    ("adbc,bda->dcb", dict(a=5, b=37, c=128, d=23)),
]


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("expression, sizes", PREDICTED)
def test_products_that_are_predicted_to_take_less(expression, sizes, dtype, isa, monkeypatch):
    """With results of both plans; narrow vectors of complex64 are left to the GEMM."""
    arrays = operands(expression, sizes, dtype)
    for threads in (1, 2):
        request = replace(engine.compile(expression, *arrays, threads=threads).plan.request, isa=isa.name)
        for lead in (math.inf, 1e-6):
            monkeypatch.setattr(weighted, "LEAD", lead)
            plan = build_plan(request)
            families = [step.family for step in plan.steps]
            if dtype == "float64" and isa.masks:
                assert ("fused" in families) == (lead < 1), families
            found = np.empty([sizes[i] for i in expression.partition("->")[2]], dtype)
            bind(plan).run(arrays, found)
            np.testing.assert_array_equal(found, expected(expression, arrays))


def test_predictions_decide_for_batches_alone(monkeypatch):
    monkeypatch.setattr(weighted, "LEAD", 0.0)
    for expression, fused in (("adbc,bda->dcb", True), ("cd,c->d", False)):
        arrays = operands(expression, dict(a=5, b=37, c=1280, d=230), "float64")
        with made_anew():
            steps = engine.compile(expression, *arrays, threads=1).plan.steps
        assert ("fused" in [step.family for step in steps]) == fused


def drawn(draw: random.Random) -> tuple[str, dict[str, int]]:
    """An expression in which one operand has all indices, and sizes."""
    letters = iter("abcdefg")
    batch, rows, terms = ("".join(next(letters) for _ in range(draw.choice(counts))) for counts in ((0, 1, 2), (0, 1), (1, 2)))
    orders = ["".join(draw.sample(group, len(group))) for group in (batch + rows + terms, batch + terms, batch + rows)]
    sizes = {letter: draw.choice((1, 2, 3, 5, 8, 13, 17, 33)) for letter in batch + rows + terms}
    return f"{orders[0]},{orders[1]}->{orders[2]}", sizes


@pytest.mark.parametrize("threads", [1, 2])
def test_random_products(threads, monkeypatch):
    """Whatever may be a sum of corresponding elements is one here."""
    monkeypatch.setattr(weighted, "SLENDER", 1e9)
    monkeypatch.setattr(weighted, "RUN", 0)
    found = 0
    with made_anew():
        for seed in range(EXAMPLES):
            draw = random.Random(seed)
            expression, sizes = drawn(draw)
            dtype = draw.choice(tiles.DTYPES)
            arrays = operands(expression, sizes, dtype, seed)
            if draw.random() < 0.3:
                arrays = [array[..., ::-1] for array in arrays]
            call = engine.compile(expression, *arrays, threads=threads)
            found += "fused" in [step.family for step in call.plan.steps]
            np.testing.assert_array_equal(call(*arrays), expected(expression, arrays), f"seed {seed}: {expression} {sizes} {dtype}")
    assert found > EXAMPLES // 5


@pytest.mark.parametrize("accumulate", [None, "float32"])
def test_half_precision(accumulate, monkeypatch):
    """Its elements are cast on their way: there is no vector of it to compare rows with."""
    monkeypatch.setattr(casts, "SMALL_BYTES", 0)  # else copies are cast before
    arrays = [np.sign(array).astype("float16") for array in operands("cabd,dab->acb", dict(a=2, b=85, c=3, d=9), "float32")]
    with made_anew():
        found = engine.einsum("cabd,dab->acb", *arrays, accumulate=accumulate)
    np.testing.assert_array_equal(found, expected("cabd,dab->acb", arrays))


def test_within_a_network():
    """Intermediates that lie as the plan has them, which may be no plain matrix."""
    expression, sizes = "xa,xb,abk,kab->bk", dict(x=50, a=30, b=3, k=2)
    arrays = operands(expression, sizes, "float64")
    np.testing.assert_array_equal(engine.einsum(expression, *arrays), expected(expression, arrays))


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_within_slices(dtype, monkeypatch):
    """A half of the network for each thread; the second product has four terms that lie apart."""
    for name, value in (("LEAST_SECONDS", 0.0), ("GAIN", -1e9), ("GAIN_RATE", 0.0)):
        monkeypatch.setattr(thread_slices, name, value)
    expression, sizes = "aeb,dbc,adce->ecd", dict(a=4, b=33, c=6, d=36, e=66)
    arrays = operands(expression, sizes, dtype)
    with made_anew():
        call = engine.compile(expression, *arrays, threads=2)
        families = [step.family for step in call.plan.steps]
        np.testing.assert_array_equal(call(*arrays), expected(expression, arrays))
    few = 1 <= splitting.SLENDER * tiles.elements(active_isa(), dtype)
    assert "control" in families and ("fused" in families) == few


@pytest.mark.parametrize("conj", [[0], [1]])
@pytest.mark.parametrize("dtype", tiles.COMPLEX)
def test_conjugated(dtype, conj):
    for expression, sizes in (("bac,acb->ab", dict(a=23, b=52, c=2)), ("ab,ba->", dict(a=90, b=200))):
        arrays = operands(expression, sizes, dtype)
        exact = [np.conj(array) if at in conj else array for at, array in enumerate(arrays)]
        np.testing.assert_array_equal(engine.einsum(expression, *arrays, conj=conj), np.einsum(expression, *exact))


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("expression, sizes", [
    ("ab,ba->", dict(a=300, b=470)),
    ("abc,cab->", dict(a=60, b=40, c=50)),
    ("abc,cba->b", dict(a=90, b=20, c=80)),
])  # fmt: skip
def test_sums_along_different_indices_keep_one_of_them(expression, sizes, dtype):
    """A tile has two sides: the step behind adds one."""
    arrays = operands(expression, sizes, dtype)
    for threads in (1, 2):
        call = engine.compile(expression, *arrays, threads=threads)
        if sum(array.nbytes for array in arrays) >= 1 << 17:
            assert call.plan.steps[-1].family == "sum"
        np.testing.assert_array_equal(call(*arrays), expected(expression, arrays))


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("expression, sizes", [
    ("abc,cab->b", dict(a=7, b=91, c=65)),
    ("abc,cba->a", dict(a=91, b=7, c=66)),
    ("acb,abc->c", dict(a=19, b=61, c=67)),
    ("bac,acb->ab", dict(a=11, b=91, c=75)),
    ("abced,cebda->bac", dict(a=26, b=5, c=7, d=27, e=8)),
])  # fmt: skip
def test_sums_along_different_indices_that_leave_one_of_them(expression, sizes, dtype):
    """From 256 KB of both on nothing is copied: tiles of one operand are turned round."""
    arrays = operands(expression, sizes, dtype)
    large = sum(array.nbytes for array in arrays) >= joining.CROSSED_BYTES
    for threads in (1, 2):
        call = engine.compile(expression, *arrays, threads=threads)
        assert large == ([step.family for step in call.plan.steps][0] == "fused")
        np.testing.assert_array_equal(call(*arrays), expected(expression, arrays))


def test_a_tile_has_some_entries_on_either_side():
    def fused(**sizes):
        arrays = [np.zeros([sizes[i] for i in term]) for term in ("bac", "acb")]
        (step, *_) = build_plan(engine.compile("bac,acb->ab", *arrays, threads=1).plan.request).steps
        return step.family == "fused"

    assert fused(a=40, b=16, c=40) and fused(a=40, b=40, c=16)
    assert not fused(a=43, b=15, c=40) and not fused(a=43, b=40, c=15)


def test_pieces_of_tiles():
    def found(left, right, kept, **sizes):
        return pieces_of_tiles(dense_axes(left[::-1], sizes, 8), dense_axes(right[::-1], sizes, 8), kept, rows=4)

    assert found("ab", "ba", "", a=300, b=200) == SumCut(("a",), 300)
    assert found("abc", "cba", "b", a=300, b=200, c=16) == SumCut(("a",), 300)
    assert found("abc", "cba", "b", a=15, b=200, c=300) is None, "no tile"
    assert found("ab", "ba", "a", a=300, b=200) is None, "a is kept"
    assert found("", "", "") is None, "numbers"
    assert found("ab", "ab", "", a=300, b=200) is None, "a dot product"
    assert found("abc", "cb", "", a=300, b=200, c=50) is None, "a lone sum"
    assert found("cad", "abdc", "ab", a=300, b=4, c=50, d=60) == SumCut(("c",), 50), "along the larger operand"
    assert found("abdc", "cad", "ab", a=300, b=4, c=50, d=60) == SumCut(("c",), 50)
    assert found("cad", "abdc", "ab", a=300, b=5, c=50, d=60) is None, "too many rows"
    assert found("abc", "cb", "a", a=3, b=200, c=50) == SumCut(("c",), 50)
    assert found("abc", "cb", "a", a=4, b=200, c=50) is None, "a vector is copied"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32"])
@pytest.mark.parametrize("expression, sizes", [
    ("pqrs,sr->pq", dict(p=7, q=12, r=13, s=17)),
    ("sr,prqs->pq", dict(p=7, q=12, r=13, s=17)),
    ("bcad,bda->cb", dict(b=5, c=9, a=12, d=40)),
    ("abc,cb->a", dict(a=4, b=300, c=301)),
])  # fmt: skip
def test_vectors_are_copied_in_the_order_of_the_rows(expression, sizes, dtype):
    """One copy, then a sum along adjacent terms; of four threads each has partial sums behind the copy where results are few."""
    arrays = operands(expression, sizes, dtype)
    for threads in (1, 2, 4):
        call = engine.compile(expression, *arrays, threads=threads)
        found = [step.family for step in call.plan.steps]
        if dtype != "int32":
            assert found[:2] == ["copy", "dot"], found
        np.testing.assert_array_equal(call(*arrays), expected(expression, arrays))
    if sizes.get("a") == 4 and dtype != "int32":
        assert len(found) == 3, "partial sums are added"


@pytest.mark.parametrize("conj", [[0], [1]])
def test_copied_vectors_are_conjugated(conj):
    arrays = operands("prqs,sr->pq", dict(p=7, q=12, r=13, s=17), "complex64")
    exact = [np.conj(array) if at in conj else array for at, array in enumerate(arrays)]
    found = engine.einsum("prqs,sr->pq", *arrays, conj=conj)
    np.testing.assert_array_equal(found, np.einsum("prqs,sr->pq", *exact))


def test_few_rows_do_not_pay_for_a_copy():
    for rows in (3, 4):
        arrays = operands("abc,cb->a", dict(a=rows, b=60, c=70), "float64")
        steps = engine.compile("abc,cb->a", *arrays, threads=1).plan.steps
        assert ("copy" in [step.family for step in steps]) == (rows == 4)
