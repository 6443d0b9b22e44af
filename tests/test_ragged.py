"""Runs of C that end within a line: tiles go along them, and lines that several panels share leave once they are whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels import tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.isa import active_isa
from einsum_engine.planners import gemm, memo


def product(dtype: str, sizes: tuple[int, int, int, int], threads: int, offset: int) -> bool:
    """Checks a product; whether its tiles take panels in another order than that in which they are packed."""
    a, b, c, d = sizes
    memo.forget()
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-4, 5, shape) for shape in ((a, d, b), (c, d)))
    want = np.einsum("adb,cd->cba", left, right).astype(dtype)  # of integers: exact
    left, right = left.astype(dtype), right.astype(dtype)
    memory = np.full((c * b * a + 64) * left.itemsize, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + offset * left.itemsize
    out = memory[start : start + c * b * a * left.itemsize].view(dtype).reshape(c, b, a)
    compiled = engine.compile("adb,cd->cba", left.shape, right.shape, dtypes=[dtype] * 2, threads=threads)
    memo.forget()  # nobody else is to have plans of such results
    assert compiled(left, right, out=out) is out
    assert (out == want).all()
    assert (memory[:start] == 0xA5).all() and (memory[start + out.nbytes :] == 0xA5).all()
    return any(abi.G_TURN in step.args.tables for step in compiled.plan.steps)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offset", [0, 1, 3, 5])
@pytest.mark.parametrize(
    "dtype, run, turns",
    [
        ("float32", 164, True),
        ("float32", 131, True),
        ("float32", 170, True),
        ("float32", 202, False),  # in tiles of one line, which carry nothing
        ("float64", 84, True),
        ("float64", 90, True),
        ("complex64", 90, True),
        ("float32", 49, False),  # one panel for each run: these are in order
        ("float64", 18, False),
        ("complex64", 21, False),
    ],
)
def test_tiles_go_along_runs_that_are_no_whole_lines(dtype, run, turns, offset, threads, monkeypatch):
    monkeypatch.setattr(gemm, "STREAM_BYTES", 0)
    turned = product(dtype, (run, 48, 30, 24), threads, offset)
    assert turned == (turns and tiles.carries(active_isa(), dtype, (2, 1)))


@given(data=st.data())
def test_random_runs(data):
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    sizes = tuple(data.draw(st.integers(1, most)) for most in (200, 60, 64, 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "STREAM_BYTES", 0)
        product(dtype, sizes, data.draw(st.integers(1, 2)), data.draw(st.integers(0, 15)))


@pytest.mark.parametrize(
    "sizes, dtype", [((176, 27, 4, 32), "float64"), ((169, 56, 3, 33), "float32"), ((182, 30, 2, 37), "float64")]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_few_columns_and_lanes_along_the_operand(sizes, dtype, threads):
    """Panels in groups that are unpacked together are those of the tile that the groups were made for."""
    product(dtype, sizes, threads, 0)
