"""Long sums cut into pieces for the threads: when, and that the result is right."""

from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import isa, tiles
from einsum_engine.planners import joining
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.splitting import SumCut, cut, pieces_of_k


def _pieces(left, right, kept, threads=2, **sizes):
    return pieces_of_k(dense_axes(left[::-1], sizes, 4), dense_axes(right[::-1], sizes, 4), kept, itemsize=4, threads=threads)


def test_the_slowest_summed_index_is_cut():
    assert _pieces("dca", "cbd", "ba", a=168, b=160, c=160, d=168) == SumCut((), 8, "c", 20)
    assert _pieces("ka", "kb", "ab", k=20_011 * 9, a=100, b=100) == SumCut((), 9, "k", 20_011)


def test_a_prime_has_a_tail():
    assert _pieces("ka", "kb", "ab", k=32_003, a=128, b=128) == SumCut((), 8, "k", 4000, tail=3)
    assert _pieces("ka", "kb", "ab", 4, k=32_003, a=40, b=40) == SumCut((), 16, "k", 2000, tail=3)


def test_short_indices_number_pieces_as_they_are():
    fours = {letter: 4 for letter in "klmnopqrst"}
    assert _pieces("klmnopqrsta", "klmnopqrstb", "ab", a=2, b=2, **fours) == SumCut(("k", "l"), 16)
    sevens = {letter: 7 for letter in "klmnop"}
    assert _pieces("klmnopa", "klmnopb", "ab", a=2, b=2, **sevens) == SumCut(("k", "l"), 49)


def test_few_columns_beside_rows_enough():
    """Rows that run along the sum are streamed by their tasks; rows across it are packed for all tasks, or waited for."""
    assert _pieces("ka", "kb", "ab", k=5000, a=2, b=1500).count == 8
    assert _pieces("ak", "bk", "ab", k=5000, a=2, b=1500) is None
    assert _pieces("ak", "bk", "ab", k=200_000, a=2, b=30).count == 8
    assert _pieces("ka", "kb", "ab", k=500, a=2, b=15_000) is None


@pytest.mark.parametrize(
    "why, given",
    {
        "one thread": ("ka", "kb", "ab", 1, dict(k=32_000, a=128, b=128)),
        "a batch": ("xka", "xkb", "xab", 2, dict(x=16, k=32_000, a=128, b=128)),
        "a large output": ("ka", "kb", "ab", 2, dict(k=32_000, a=1024, b=1024)),
        "little work": ("ka", "kb", "ab", 2, dict(k=200, a=64, b=64)),
        "a dot product": ("k", "k", "", 2, dict(k=3_200_000)),
        "a short sum": ("ka", "kb", "ab", 2, dict(k=61, a=128, b=128)),
    }.items(),
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_not_cut(why, given):
    left, right, kept, threads, sizes = given
    assert _pieces(left, right, kept, threads, **sizes) is None, why


def test_what_an_intermediate_has_is_cut_without_a_tail():
    axes = [dense_axes(term, dict(k=32_003, a=40, b=40), 4) for term in ("ak", "bk")]
    assert pieces_of_k(*axes, "ab", itemsize=4, threads=2).tail
    assert pieces_of_k(*axes, "ab", itemsize=4, threads=2, free=True) is None


@pytest.mark.parametrize("size, tail", [(12, 0), (15, 3)])
def test_cut_covers_each_element_once(size, tail):
    axes = dense_axes("ak", {"k": size, "a": 5}, 4)
    pieces = cut(axes, SumCut((), 4, "k", 3, tail), "p")
    offsets = [p * pieces["p"].stride + k * pieces["k"].stride for p in range(4) for k in range(pieces["k"].size)]
    assert offsets == [k * axes["k"].stride for k in range(size - tail)]
    assert pieces["a"] == axes["a"]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
@pytest.mark.parametrize(
    "expression, shapes",
    [
        ("ka,kb->ab", [(20_000, 48), (20_000, 40)]),
        ("dca,cbd->ba", [(40, 160, 64), (160, 60, 40)]),
        ("ka,kb->ba", [(16_384, 33), (16_384, 65)]),
        ("ka,kb->ab", [(20_011, 48), (20_011, 40)]),
        ("ak,bk->ab", [(5, 50_021), (7, 50_021)]),
        ("ka,k->a", [(100_003, 3), (100_003,)]),
        ("aklmno,klmnob->ba", [(3, 9, 9, 9, 9, 9), (9, 9, 9, 9, 9, 2)]),
        ("ka,kb,kc->abc", [(20_000, 6), (20_000, 5), (20_000, 7)]),
        ("kab,acd,kcd->b", [(16_384, 8, 5), (8, 3, 9), (16_384, 3, 9)]),
    ],
)
def test_results(expression, shapes, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]  # exact in every dtype
    call = engine.compile(expression, *arrays, threads=2)
    assert [step.family for step in call.plan.steps][-1] == "sum"
    exact = np.complex128 if dtype[0] == "c" else np.int64
    expected = np.einsum(expression, *[a.astype(exact) for a in arrays], optimize=True)
    np.testing.assert_array_equal(call(*arrays), expected)
    turned = [a[::-1] for a in arrays]
    expected = np.einsum(expression, *[a.astype(exact) for a in turned], optimize=True)
    np.testing.assert_array_equal(engine.einsum(expression, *turned), expected)
    assert "'" in call.explain(), "the pieces have a name of their own"


@pytest.mark.parametrize("length", [18_000, 18_013])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_instruction_set_and_dtype(row, dtype, length):
    """Also where the threads are no divisor of the pieces, behind which there may be a tail, and with operands that run
    backwards."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((length, 45), (length, 37)))
    wide = "complex128" if dtype.startswith("complex") else "int64"
    for threads, x in ((2, a), (3, a[::-1])):
        plan = build_plan(replace(engine.compile("ka,kb->ab", x, b, threads=threads).plan.request, isa=row.name))
        assert [step.family for step in plan.steps][-1] == "sum"
        out = np.empty((45, 37), dtype)
        bind(plan).run([x, b], out)
        np.testing.assert_array_equal(out, (x.T.astype(wide) @ b.astype(wide)).astype(dtype))


@pytest.mark.parametrize("length", [40_000, 40_009])
def test_what_else_is_asked_for(length):
    """Conjugation, scaling, given results, other dtypes, repeated operands, and a result read by a further step."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (length, n)) + 1j * rng.integers(-3, 4, (length, n)) for n in (6, 9))
    exact = a.conj().T @ b
    call = engine.compile("ka,kb->ab", a, b, conj=[0], threads=2)
    assert call.plan.steps[-1].family == "sum"
    assert [step.family == "sum" for step in call.plan.steps].count(True) == 1
    np.testing.assert_array_equal(call(a, b), exact)
    out = np.asfortranarray(np.ones((6, 9), complex))
    engine.einsum("ka,kb->ab", a, b, conj=[0], alpha=2, beta=3, out=out, threads=2)
    np.testing.assert_array_equal(out, 2 * exact + 3)
    small, other = a.real.astype(np.int8), b.real.astype(np.int8)
    wide = engine.einsum("ka,kb->ab", small, other, dtype="int64", threads=2)
    np.testing.assert_array_equal(wide, small.T.astype(int) @ other.astype(int))
    gram = engine.einsum("ka,kb->ab", a, a, threads=2)
    np.testing.assert_array_equal(gram, a.T @ a)
    w = rng.integers(-3, 4, (9, 5)).astype(complex)
    np.testing.assert_array_equal(engine.einsum("ka,kb,bc->ca", a, b, w, threads=2), ((a.T @ b) @ w).T)


def test_flops_are_those_of_the_sum():
    """Neither the tail nor adding the pieces changes what a plan says that is done."""
    plans = [engine.compile("ka,kb->ab", (k, 40), (k, 40), threads=t).plan for k in (40_000, 40_009) for t in (1, 2)]
    assert [plan.flops for plan in plans] == [2 * k * 1600 for k in (40_000, 40_000, 40_009, 40_009)]


def test_a_product_with_a_tail_is_not_joined_with_what_adds_its_pieces(monkeypatch):
    """A fused kernel would leave the tail out."""
    monkeypatch.setattr(joining, "GAIN", -10.0)
    monkeypatch.setattr(joining, "LEAST_GAIN", -1.0)
    monkeypatch.setattr(joining, "COLUMNS", 0.0)
    rng = np.random.default_rng(4)
    a, b = rng.integers(-9, 9, (2003, 1000)).astype(float), rng.integers(-9, 9, 2003).astype(float)
    plan = build_plan(engine.compile("ka,k->a", a, b, threads=2).plan.request)
    assert [step.family for step in plan.steps][-1] == "sum"
    out = np.empty(1000)
    bind(plan).run([a, b], out)
    np.testing.assert_array_equal(out, b @ a)
