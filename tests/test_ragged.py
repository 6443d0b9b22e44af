"""Runs of C that end within a line: tiles go along them, and lines that several panels share leave once they are whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels import isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import gemm, memo


every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)

# Dtype -> runs of C, and whether tiles go along them, where they carry what they have of a line: not in tiles of one line (202),
# nor where each run has one panel (the last of each row).
RUNS = {
    "float32": {164: True, 131: True, 170: True, 202: False, 49: False},
    "float64": {84: True, 90: True, 18: False},
    "int64": {84: True, 90: True, 18: False},
    "int32": {164: True, 90: True, 49: False},
    "complex64": {90: True, 41: True, 21: False},
    "complex128": {45: True, 21: True, 9: False},
}


@pytest.fixture
def streamed(monkeypatch):
    """Results of any size go past the caches."""
    monkeypatch.setattr(gemm, "STREAM_BYTES", 0)


def product(row: isa.ISA, dtype: str, sizes: tuple[int, int, int, int], threads: int, offset: int) -> bool:
    """Checks a product; whether its tiles take panels in another order than that in which they are packed."""
    a, b, c, d = sizes
    memo.forget()
    rng = np.random.default_rng(0)
    left, right = (_small(rng, shape, dtype) for shape in ((a, d, b), (c, d)))
    want = np.einsum("adb,cd->cba", left, right).astype(dtype)  # of integers: exact
    left, right = left.astype(dtype), right.astype(dtype)
    memory = np.full((c * b * a + 64) * left.itemsize, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + offset * left.itemsize
    out = memory[start : start + c * b * a * left.itemsize].view(dtype).reshape(c, b, a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSUM_ENGINE_ISA", row.name)
        compiled = engine.compile("adb,cd->cba", left.shape, right.shape, dtypes=[dtype] * 2, threads=threads)
        memo.forget()  # nobody else is to have plans of such results
        assert compiled(left, right, out=out) is out
    assert compiled.plan.isa == row.name and (out == want).all()
    assert (memory[:start] == 0xA5).all() and (memory[start + out.nbytes :] == 0xA5).all()
    return any(abi.G_TURN in step.args.tables for step in compiled.plan.steps)


def _small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    parts = [rng.integers(-4, 5, shape) for _ in range(2)]
    return parts[0] + 1j * parts[1] if dtype in tiles.COMPLEX else parts[0]


def test_every_dtype_that_carries_has_runs():
    kernels = [(row, dtype) for row in isa.ISAS.values() for dtype in tiles.DTYPES]
    carry = [any(tiles.carries(*kernel, tile) for tile in tiles.tiles(*kernel)) for kernel in kernels]
    assert {dtype for (_, dtype), carries in zip(kernels, carry) if carries} == set(RUNS)


@every_isa
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offset", [0, 1, 3, 5])
@pytest.mark.parametrize("dtype, run", [(dtype, run) for dtype, runs in RUNS.items() for run in runs])
def test_tiles_go_along_runs_that_are_no_whole_lines(row, dtype, run, offset, threads, streamed):
    turned = product(row, dtype, (run, 48, 30, 24), threads, offset)
    assert turned == (RUNS[dtype][run] and tiles.carries(row, dtype, (2, 1)))


@every_isa
@given(data=st.data())
def test_random_runs(row, data):
    dtype = data.draw(st.sampled_from(list(RUNS)))
    sizes = tuple(data.draw(st.integers(1, most)) for most in (200, 60, 64, 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "STREAM_BYTES", 0)
        product(row, dtype, sizes, data.draw(st.integers(1, 2)), data.draw(st.integers(0, 15)))


@pytest.mark.parametrize(
    "sizes, dtype",
    [
        *(((176, 27, 4, 32), dtype) for dtype in ("float64", "int64", "complex64")),
        *(((169, 56, 3, 33), dtype) for dtype in ("float32", "int32", "complex128")),
        ((182, 30, 2, 37), "float64"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
@every_isa
def test_few_columns_and_lanes_along_the_operand(row, sizes, dtype, threads):
    """Panels in groups that are unpacked together are those of the tile that the groups were made for."""
    product(row, dtype, sizes, threads, 0)
