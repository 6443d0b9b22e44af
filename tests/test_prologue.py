"""Maps of an operand that go through its rows in blocks together with the contraction that reads them."""

import numpy as np
import pytest
from program_calls import assert_like_numpy

import einsum_engine as engine
from einsum_engine.planners import prologue

RNG = np.random.default_rng(0)


def array(*shape, dtype="float32"):
    return RNG.integers(-3, 4, shape).astype(dtype)


@pytest.fixture
def small(monkeypatch):
    """Blocks of a few rows, of any operand."""
    for name, value in {"LARGE": 0, "BLOCK": 0, "FEWEST_ROWS": 7, "MOST_COLUMNS": 1 << 30}.items():
        monkeypatch.setattr(prologue, name, value)


def blocks(plan) -> set[int]:
    return {step.block[1] for step in plan.steps}


SHAPES = {
    "matrix": ("ik,kj->ij", (30, 20), (20, 9)),
    "transposed result": ("ik,kj->ji", (30, 20), (20, 9)),
    "second operand": ("kj,ik->ij", (20, 9), (30, 20)),
    "vector": ("ik,k->i", (30, 20), (20,)),
    "three indices": ("iak,kb->aib", (30, 4, 20), (20, 9)),
    "fewer rows at the end": ("ik,kj->ij", (31, 20), (20, 9)),
}


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_maps_of_operands(name, threads, dtype, small, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    subscripts, first, second = SHAPES[name]
    x, y, row = array(*first, dtype=dtype), array(*second, dtype=dtype), array(20, dtype=dtype)

    def function(x, y, row):
        x, y = (x - row, y) if len(x.shape) and x.shape[0] > 25 else (x, y - row)
        return np.einsum(subscripts, x, y)

    jitted = assert_like_numpy(function, x, y, row, rtol=0)
    assert blocks(jitted.plan(x, y, row)) == {5}


def test_only_a_block_is_in_memory(small):
    x, w = array(100, 64), array(64, 3)
    function = lambda x, w: np.abs(x) @ w  # noqa: E731
    plan = assert_like_numpy(function, x, w, rtol=0).plan(x, w)
    whole = engine.jit(function, passes=("views",)).plan(x, w)
    assert blocks(plan) == {15} and blocks(whole) == {1}  # of 7 rows
    assert whole.arena_bytes - plan.arena_bytes == (100 - 7) * 64 * 4
    assert plan.flops == whole.flops and "abs, 1 of 15 blocks" in engine.jit(function).explain(x, w)


@pytest.mark.parametrize("shape", [(1, 5, 4), (0, 5, 4), (40, 0, 4), (40, 5, 0), (40, 1, 1)])
def test_few_elements(shape, small):
    m, k, n = shape
    assert_like_numpy(lambda x, w: (x * 2) @ w + 1, array(m, k), array(k, n), rtol=0)


def test_what_others_read_is_there_as_a_whole(small):
    """Results, operands of two contractions, sums over the rows, diagonals, and memory that another value lives in."""

    def returned(x, w):
        y = x * 2
        return y, y @ w

    def summed(x, w):
        return np.einsum("ik,ij->kj", x * 2, w[:, :1] + 0 * x[:, :1]), np.einsum("ii->i", (x * 2)[:20, :20])

    def chained(x, w):
        y = np.abs(x) * (x + 1)
        z = y.sum(0) + y
        return z @ w, (x - 1) @ (w * 3)

    def written(x, w):
        x += 1
        return (x * 2) @ w, x

    for function in (returned, summed, chained, written):
        assert_like_numpy(function, array(30, 20), array(20, 9) if function is not summed else array(30, 9), rtol=0)
    assert blocks(engine.jit(returned).plan(array(30, 20), array(20, 9))) == {1}


def test_only_what_is_large_and_has_few_columns_goes_in_blocks(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    function = lambda x, w: np.exp(x) @ w  # noqa: E731
    plans = {n: engine.jit(function).plan(np.zeros((4096, n), "f4"), np.zeros((n, 8), "f4")) for n in (64, 4096)}
    assert blocks(plans[64]) == {1} and blocks(plans[4096]) == {32}
    wide = engine.jit(function).plan(np.zeros((4096, 4096), "f4"), np.zeros((4096, 512), "f4"))
    assert blocks(wide) == {1}


def test_a_block_that_is_left_out_is_seen(small, monkeypatch):
    right = prologue.Prologue.starts
    monkeypatch.setattr(prologue.Prologue, "starts", property(lambda self: right.fget(self)[:-1]))
    with pytest.raises(AssertionError):
        assert_like_numpy(lambda x, w: (x * 2 + 9) @ w, array(30, 20), np.ones((20, 3), "f4"), rtol=0)
