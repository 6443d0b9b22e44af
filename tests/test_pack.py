"""Packing into panels: every mode, item size, width and tail, on every instruction set that runs here."""

import ctypes
from dataclasses import replace

import numpy as np
import oracle
import pytest

from einsum_engine.kernels import gemm, isa
from einsum_engine.kernels.cpu import abi, library
from einsum_engine.kernels.gemm import Operand, PackProblem
from einsum_engine.kernels.launch import Launch

MODES = {"lanes": abi.LANES_RUN, "k": abi.K_RUN, "panels": abi.PANEL_RUN, "scattered": abi.SCATTERED}
ITEMS = (1, 2, 4, 8, 16)
every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
every_item = pytest.mark.parametrize("item", ITEMS)
_Pack = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def _block(row, item: int) -> int:
    """Elements moved at once, T."""
    return max(2, min(row.vector_bits // (8 * item), 16))


def _around(size: int) -> list[int]:
    return sorted({1, size - 1, size, size + 1, 2 * size + 3} - {0})


def _sources(run: str, panels: int, width: int, k: int, item: int, flush: str):
    """Fenced memory whose rows run along ``run``, full of random bytes, and the tables (panels, width) and (k,)."""
    length, count = {"lanes": (width, panels * k), "k": (k, panels * width), "panels": (panels, width * k)}[run]
    rows = oracle.Fence(count, length * item, flush)
    rng = np.random.default_rng(panels * 1000 + width * 10 + k)
    for number in range(count):
        rows.row(number)[:] = rng.integers(0, 256, len(rows.row(number)))
    p, l, step = (np.arange(size, dtype=np.int64) for size in (panels, width, k))
    if run == "lanes":
        return rows, p[:, None] * rows.pitch + l[None, :] * item, step * panels * rows.pitch
    if run == "k":
        return rows, (p[:, None] * width + l[None, :]) * rows.pitch, step * item
    return rows, p[:, None] * item + l[None, :] * rows.pitch, step * width * rows.pitch


def _pack(row, item, mode, memory, start, lanes, valid, tk, flush="end") -> np.ndarray:
    """The packed bytes (panels, k, width, item), written into fenced memory that held garbage."""
    panels, width = lanes.shape
    stride = len(tk) * width * item
    packed = oracle.guarded(panels * stride, flush)
    packed[:] = 0x77
    tables = [np.ascontiguousarray(t, np.int64) for t in (lanes, valid, tk)]
    args = np.zeros(abi.P_WORDS, np.int64)
    args[[abi.P_DST, abi.P_SRC]] = packed.ctypes.data, memory.ctypes.data + start
    args[[abi.P_PANELS, abi.P_WIDTH, abi.P_K]] = panels, width, len(tk)
    args[[abi.P_LANES, abi.P_VALID, abi.P_TK]] = [t.ctypes.data for t in tables]
    args[[abi.P_MODE, abi.P_STRIDE]] = mode, stride
    _Pack(library.address(f"pack_{item}", row))(args.ctypes.data)
    return packed.reshape(panels, len(tk), width, item)


def _check(packed, memory, start, lanes, valid, tk) -> None:
    item = packed.shape[-1]
    for p, count in enumerate(valid):
        at = start + tk[:, None] + lanes[p, None, :count]
        expected = memory[at[:, :, None] + np.arange(item)]
        wrong = np.argwhere((packed[p, :, :count] != expected).any(axis=-1))
        assert not len(wrong), f"panel {p} of {len(valid)}: first wrong (k, lane) {wrong[0]}; {packed.shape}, {valid}"
        assert not packed[p, :, count:].any(), f"panel {p}: lanes past {count} are not zero"


def _poisoned(lanes, valid) -> np.ndarray:
    """Lanes past the valid ones hold an address that nobody owns."""
    lanes = lanes.copy()
    lanes[np.arange(lanes.shape[1])[None, :] >= np.asarray(valid)[:, None]] = 1 << 60
    return lanes


@every_isa
@every_item
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_every_way_a_source_runs(row, item, run, flush):
    """Runs of every length around T, with whole and partial panels; every mode may be asked for on every source."""
    size = _block(row, item)
    for panels, width, k in _shapes(run, size):
        rows, lanes, tk = _sources(run, panels, width, k, item, flush)
        for valid in {(width,) * panels, (width,) * (panels - 1) + (1,), (max(1, width - 1),) * panels}:
            table = _poisoned(lanes, valid)
            for mode in (MODES[run], abi.SCATTERED, *([abi.PANEL_RUN] if _moves_alike(lanes) else [])):
                packed = _pack(row, item, mode, rows.memory, rows.start, table, valid, tk, flush)
                _check(packed, rows.memory, rows.start, lanes, valid, tk)


def _shapes(run: str, size: int):
    """The running extent goes around T, and so does the other side of its transposed blocks."""
    for length in _around(size):
        for other in sorted({1, size - 1, size + 1, 2 * size} - {0}):
            if run == "lanes":
                yield 2, length, min(other, 3)
            elif run == "k":
                yield 2, other, length
            else:
                yield length, other, 2


def _moves_alike(lanes: np.ndarray) -> bool:
    """Lanes of all panels lie at the same distances: what PANEL_RUN promises."""
    return bool((lanes - lanes[:, :1] == lanes[0] - lanes[0, 0]).all())


@every_isa
@every_item
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
def test_promised_runs_that_break(row, item, run):
    """The mode says where speed lies, not what is true: holes in the run are found in the tables."""
    size = _block(row, item)
    panels, width, k = {"lanes": (3, 2 * size, 3), "k": (2, 3, 4 * size), "panels": (4 * size, 3, 2)}[run]
    memory = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    lanes = np.arange(panels)[:, None] * 40 * item + np.arange(width)[None, :] * 3 * item
    tk = np.arange(k, dtype=np.int64) * 5 * item
    hole = size + 1
    if run == "lanes":
        lanes = np.arange(panels)[:, None] * 64 * item + np.arange(width)[None, :] * item
        lanes[1, hole:] += item
    elif run == "k":
        tk = np.arange(k, dtype=np.int64) * item
        tk[hole:] += 7
        tk[-1] = 0
    else:
        lanes = np.arange(panels)[:, None] * item + np.arange(width)[None, :] * 200 * item
        lanes[hole:] += 2 * item
        lanes[-1] -= 5 * item
    valid = [width] * panels
    valid[panels // 2] = max(1, width - 2)
    packed = _pack(row, item, MODES[run], memory, 64, lanes, valid, tk)
    _check(packed, memory, 64, lanes, valid, tk)


@every_isa
@every_item
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 12])
def test_short_runs(row, item, run, length):
    """Runs of a few elements, as of dimensions of size 4 or 8, with gaps between them."""
    size = _block(row, item)
    many = 3 * length
    panels, width, k = {"lanes": (3, many, 5), "k": (3, size + 1, many), "panels": (many, size + 2, 3)}[run]
    memory = np.random.default_rng(length).integers(0, 256, 1 << 20, np.uint8)
    run_table = (np.arange(many) // length * 100 + np.arange(many) % length) * item
    far = {"lanes": (3000, 0, 9000), "k": (9000, 500, 0), "panels": (0, 500, 3000 * item)}[run]
    lanes = np.arange(panels)[:, None] * far[0] + np.arange(width)[None, :] * far[1]
    tk = np.arange(k, dtype=np.int64) * far[2]
    if run == "lanes":
        lanes = lanes + run_table[None, :]
    elif run == "k":
        tk = run_table
    else:
        lanes = lanes + run_table[:, None]
    for valid in ([width] * panels, [width] * (panels - 1) + [1]):
        packed = _pack(row, item, MODES[run], memory, 64, _poisoned(lanes, valid), valid, tk)
        _check(packed, memory, 64, lanes, valid, tk)


@every_isa
@every_item
def test_random_tables(row, item):
    rng = np.random.default_rng(item)
    memory = rng.integers(0, 256, 1 << 14, np.uint8)
    for panels, width, k in ((1, 1, 1), (3, 14, 5), (2, 7, 20)):
        lanes = rng.integers(-2048, 2048, (panels, width))
        tk = rng.integers(-2048, 2048, k)
        valid = rng.integers(1, width + 1, panels)
        for mode in (abi.LANES_RUN, abi.K_RUN, abi.SCATTERED):
            packed = _pack(row, item, mode, memory, 8192, _poisoned(lanes, valid), valid, tk)
            _check(packed, memory, 8192, lanes, valid, tk)


@every_isa
@every_item
def test_the_packing_step_cuts_panels_into_tasks(row, item):
    """Outer loops move source and destination; every cut gives the same panels, and nothing beyond is written."""
    panels, width, k, counts = 5, 6, 7, (2, 3)
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, 1 << 16, np.uint8)
    lanes = np.arange(panels)[:, None] * 60 * item + np.arange(width)[None, :] * 8 * item
    valid = np.array([6, 6, 2, 6, 1])
    size, whole = k * width * item, panels * k * width * item
    steps = [np.array([0, 700]), np.array([0, 1200, 40])]
    outer = tuple(
        (count, step, np.zeros(count, np.int64), np.arange(count) * whole * scale)
        for count, step, scale in zip(counts, steps, (3, 1))
    )
    problem = PackProblem(
        itemsize=item,
        width=width,
        src=Operand(slot=0, offset=100),
        dst=Operand(slot=1, offset=32),
        outer=outer,
        lanes=_poisoned(lanes, valid).ravel(),
        valid=valid,
        tk=np.arange(k, dtype=np.int64) * item,
        stride=size,
        mode=abi.K_RUN,
        block=panels,
    )
    for block in (1, 2, 5):
        out = oracle.Canary(32 + 6 * whole)
        Launch(gemm.lower_pack(replace(problem, block=block)), [memory.ctypes.data, out.memory.ctypes.data], row)()
        out.check()
        for number in range(6):
            start = 100 + int(steps[0][number // 3] + steps[1][number % 3])
            packed = out.memory[32 + number * whole :][:whole].reshape(panels, k, width, item)
            _check(packed, memory, start, lanes, valid, problem.tk)
