"""Long sums cut into pieces for the threads: when, and that the result is right."""

from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import isa, tiles
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.splitting import cut, pieces_of_k


def _pieces(left, right, kept, threads=2, **sizes):
    return pieces_of_k(dense_axes(left[::-1], sizes, 4), dense_axes(right[::-1], sizes, 4), kept, itemsize=4, threads=threads)


def test_the_slowest_summed_index_is_cut():
    assert _pieces("dca", "cbd", "ba", a=168, b=160, c=160, d=168) == ("c", 8)
    assert _pieces("ka", "kb", "ab", k=20_011 * 9, a=100, b=100) == ("k", 9)


@pytest.mark.parametrize(
    "why, given",
    {
        "one thread": ("ka", "kb", "ab", 1, dict(k=32_000, a=128, b=128)),
        "a prime": ("ka", "kb", "ab", 2, dict(k=32_003, a=128, b=128)),
        "a batch": ("xka", "xkb", "xab", 2, dict(x=16, k=32_000, a=128, b=128)),
        "a large output": ("ka", "kb", "ab", 2, dict(k=32_000, a=1024, b=1024)),
        "few columns": ("ka", "kb", "ab", 2, dict(k=320_000, a=128, b=8)),
        "little work": ("ka", "kb", "ab", 2, dict(k=800, a=64, b=64)),
    }.items(),
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_not_cut(why, given):
    left, right, kept, threads, sizes = given
    assert _pieces(left, right, kept, threads, **sizes) is None, why


def test_cut_covers_each_element_once():
    axes = dense_axes("ak", {"k": 12, "a": 5}, 4)
    pieces = cut(axes, "k", "p", 4)
    offsets = [p * pieces["p"].stride + k * pieces["k"].stride for p in range(4) for k in range(pieces["k"].size)]
    assert offsets == [k * axes["k"].stride for k in range(12)]
    assert pieces["a"] == axes["a"]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
@pytest.mark.parametrize(
    "expression, shapes",
    [
        ("ka,kb->ab", [(20_000, 48), (20_000, 40)]),
        ("dca,cbd->ba", [(40, 160, 64), (160, 60, 40)]),
        ("ka,kb->ba", [(16_384, 33), (16_384, 65)]),
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


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_instruction_set_and_dtype(row, dtype):
    """Also where the threads are no divisor of the pieces, and with operands that run backwards."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((18_000, 45), (18_000, 37)))
    wide = "complex128" if dtype.startswith("complex") else "int64"
    for threads, x in ((2, a), (3, a[::-1])):
        plan = build_plan(replace(engine.compile("ka,kb->ab", x, b, threads=threads).plan.request, isa=row.name))
        assert [step.family for step in plan.steps][-1] == "sum"
        out = np.empty((45, 37), dtype)
        bind(plan).run([x, b], out)
        np.testing.assert_array_equal(out, (x.T.astype(wide) @ b.astype(wide)).astype(dtype))
