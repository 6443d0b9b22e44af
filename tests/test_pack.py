"""Packing into panels: every kernel, mode, width and tail, on every instruction set that runs here."""

import ctypes
from dataclasses import replace
from itertools import product

import numpy as np
import oracle
import pytest
from dense import numpy_dtype

from einsum_engine.kernels import gemm, isa, packs, tiles
from einsum_engine.kernels.cpu import abi, columns, library
from einsum_engine.kernels.cpu.mover import mover_for
from einsum_engine.kernels.cpu.storage import STORAGES, moves
from einsum_engine.kernels.gemm import Operand, PackProblem
from einsum_engine.kernels.launch import Launch

MODES = {"lanes": abi.LANES_RUN, "k": abi.K_RUN, "panels": abi.PANEL_RUN, "scattered": abi.SCATTERED}
MOVES = {"pack_1": "int8", "pack_2": "int16", "pack_4": "float32", "pack_8": "float64", "pack_16": "complex128"}
HALVES = ("float16", "bfloat16")
WIDENINGS = [name for name in packs.names() if name not in MOVES]
every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
every_kernel = pytest.mark.parametrize("name", packs.names())
_Pack = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def _dtypes(name: str) -> tuple[str, str]:
    """Source and target of a kernel; what is only moved stands for any dtype of its size."""
    return (MOVES[name],) * 2 if name in MOVES else tuple(name.split("_")[1:])


def _items(name: str) -> tuple[int, int]:
    return tuple(STORAGES[dtype].itemsize for dtype in _dtypes(name))


def _converted(name: str, elements: np.ndarray) -> np.ndarray:
    """What NumPy makes of the bytes (..., source item): bytes (..., target item)."""
    source, target = map(numpy_dtype, _dtypes(name))
    if name in MOVES:
        return elements
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = np.ascontiguousarray(elements).view(source).astype(target)
    return wide.view(np.uint8)


def _differ(name: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Elements (...) whose bytes differ; one NaN is as good as another after a conversion."""
    wrong = (got != expected).any(axis=-1)
    target = numpy_dtype(_dtypes(name)[1])
    if name not in MOVES and target.kind in "fc":
        real = np.dtype(f"f{STORAGES[target.name].bits // 8}")
        both = [np.ascontiguousarray(x).view(real) for x in (got, expected)]
        wrong &= ~((both[0] == both[1]) | (np.isnan(both[0]) & np.isnan(both[1]))).all(axis=-1)
    return wrong


def _block(row, item: int) -> int:
    """Elements moved at once, T."""
    return max(2, min(row.vector_bits // (8 * item), 16))


def _around(size: int) -> list[int]:
    return sorted({1, size - 1, size, size + 1, 2 * size + 3} - {0})


def _sources(run: str, panels: int, width: int, k: int, item: int, flush: str):
    """Fenced memory whose rows run along ``run``, full of random bytes, and the tables (panels, width) and (k,)."""
    extents = {"lanes": (width, panels * k), "rows": (panels * width, k), "k": (k, panels * width)}
    length, count = {**extents, "panels": (panels, width * k)}[run]
    rows = oracle.Fence(count, length * item, flush)
    rng = np.random.default_rng(panels * 1000 + width * 10 + k)
    for number in range(count):
        rows.row(number)[:] = rng.integers(0, 256, len(rows.row(number)))
    p, l, step = (np.arange(size, dtype=np.int64) for size in (panels, width, k))
    if run == "lanes":
        return rows, p[:, None] * rows.pitch + l[None, :] * item, step * panels * rows.pitch
    if run == "rows":
        return rows, (p[:, None] * width + l[None, :]) * item, step * rows.pitch
    if run == "k":
        return rows, (p[:, None] * width + l[None, :]) * rows.pitch, step * item
    return rows, p[:, None] * item + l[None, :] * rows.pitch, step * width * rows.pitch


def _pack(row, name, mode, memory, start, lanes, valid, tk, flush="end") -> np.ndarray:
    """The packed bytes (panels, k, width, item), written into fenced memory that held garbage."""
    (panels, width), item = lanes.shape, _items(name)[1]
    stride = len(tk) * width * item
    packed = oracle.guarded(panels * stride, flush)
    packed[:] = 0x77
    tables = [np.ascontiguousarray(t, np.int64) for t in (lanes, valid, tk)]
    args = np.zeros(abi.P_WORDS, np.int64)
    args[[abi.P_DST, abi.P_SRC]] = packed.ctypes.data, memory.ctypes.data + start
    args[[abi.P_PANELS, abi.P_WIDTH, abi.P_K]] = panels, width, len(tk)
    args[[abi.P_LANES, abi.P_VALID, abi.P_TK]] = [t.ctypes.data for t in tables]
    args[[abi.P_MODE, abi.P_STRIDE]] = mode, stride
    _Pack(library.address(name, row))(args.ctypes.data)
    return packed.reshape(panels, len(tk), width, item)


def _check(name, packed, memory, start, lanes, valid, tk) -> None:
    item = _items(name)[0]
    for p, count in enumerate(valid):
        at = start + tk[:, None] + lanes[p, None, :count]
        expected = _converted(name, memory[at[:, :, None] + np.arange(item)])
        wrong = np.argwhere(_differ(name, packed[p, :, :count], expected))
        assert not len(wrong), f"panel {p} of {len(valid)}: first wrong (k, lane) {wrong[0]}; {packed.shape}, {valid}"
        assert not packed[p, :, count:].any(), f"panel {p}: lanes past {count} are not zero"


def _poisoned(lanes, valid) -> np.ndarray:
    """Lanes past the valid ones hold an address that nobody owns."""
    lanes = lanes.copy()
    lanes[np.arange(lanes.shape[1])[None, :] >= np.asarray(valid)[:, None]] = 1 << 60
    return lanes


@every_isa
@pytest.mark.parametrize("name", [*MOVES, *(name for name in WIDENINGS if _dtypes(name)[0] in HALVES)])
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_every_way_a_source_runs(row, name, run, flush):
    """Runs of every length around T, with whole and partial panels; every mode may be asked for on every source."""
    _around_blocks(row, name, run, flush)


@pytest.mark.parametrize("name", [name for name in WIDENINGS if _dtypes(name)[0] not in HALVES])
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
def test_every_way_a_widened_source_runs(name, run):
    _around_blocks(isa.active_isa(), name, run, "end")


def _around_blocks(row, name: str, run: str, flush: str) -> None:
    item, target = _items(name)
    size = _block(row, target)
    for panels, width, k in _shapes(run, size):
        rows, lanes, tk = _sources(run, panels, width, k, item, flush)
        for valid in {(width,) * panels, (width,) * (panels - 1) + (1,), (max(1, width - 1),) * panels}:
            table = _poisoned(lanes, valid)
            for mode in (MODES[run], abi.SCATTERED, *([abi.PANEL_RUN] if _moves_alike(lanes) else [])):
                packed = _pack(row, name, mode, rows.memory, rows.start, table, valid, tk, flush)
                _check(name, packed, rows.memory, rows.start, lanes, valid, tk)


def _shapes(run: str, size: int):
    """The running extent goes around T, and so does the other side of its transposed blocks."""
    for length in _around(size):
        for other in sorted({1, size // 2, size - 1, size + 1, 2 * size} - {0}):
            if run == "lanes":
                yield 2, length, min(other, 3)
            elif run == "k":
                yield 2, other, length
            else:
                yield length, other, 2


@every_isa
@pytest.mark.parametrize("name", [*MOVES, "pack_float16_float32", "pack_bfloat16_float64"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_rows_that_fill_several_panels(row, name, flush):
    """Those of tiles have straight code; the last panel may be a part of one, and others follow it elsewhere."""
    item, target = _items(name)
    wide = columns.lanes(mover_for(None, name, row), row)
    assert all(mv * tiles.elements(row, dtype) in (1, *wide) for dtype, size in tiles.ITEMSIZE.items() if size == target for mv, _ in tiles.tiles(row, dtype))
    for width, panels, k in product(sorted({*range(1, 26), *wide}), (1, 2, 5), (1, 3)):
        rows, lanes, tk = _sources("rows", panels, width, k, item, flush)
        for last in {1, max(1, width - 1), width}:
            valid = (width,) * (panels - 1) + (last,)
            table = _poisoned(lanes, valid)
            packed = _pack(row, name, abi.LANES_RUN, rows.memory, rows.start, table, valid, tk, flush)
            _check(name, packed, rows.memory, rows.start, lanes, valid, tk)


@every_isa
@pytest.mark.parametrize("name", [*MOVES, "pack_float16_float32", "pack_bfloat16_float64"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_every_width_of_narrow_panels_along_k(row, name, flush):
    """Those of tiles are woven, from one end of their rows to the other; neighbours of these are not."""
    item, target = _items(name)
    size = _block(row, target)
    for width, k in product(range(1, size), (size, 2 * size, 3 * size + 1)):
        rows, lanes, tk = _sources("k", 3, width, k, item, flush)
        broken = np.roll(tk, size // 2)  # runs that begin anew within a block
        for valid, terms in product({(width,) * 3, (width, width, max(1, width - 1))}, (tk, broken)):
            table = _poisoned(lanes, valid)
            packed = _pack(row, name, abi.K_RUN, rows.memory, rows.start, table, valid, terms, flush)
            _check(name, packed, rows.memory, rows.start, lanes, valid, terms)


@every_isa
@pytest.mark.parametrize("name", [*MOVES, "pack_float16_float32", "pack_bfloat16_float64"])
@pytest.mark.parametrize("flush", ["start", "end"])
def test_terms_that_are_equally_far_apart(row, name, flush):
    """Squares of K: what is adjacent on a lane is some terms apart; also with an end that is no whole row of the square, and
    with a term that breaks the order."""
    item, target = _items(name)
    size = _block(row, target)
    for apart, along, width in product((2, 5), sorted({2, size - 1, size, 2 * size + 3} - {1}), (1, size - 1, size + 2)):
        rows, lanes, tk = _sources("k", 2, width * apart, along, item, flush)
        lanes = lanes[:, ::apart]
        terms = (tk[:, None] + np.arange(apart) * rows.pitch).ravel()
        broken = terms.copy()
        broken[-1] = 0
        for valid, table in product({(width,) * 2, (width, max(1, width - 1))}, (terms, terms[:-1], broken)):
            packed = _pack(row, name, abi.K_RUN, rows.memory, rows.start, _poisoned(lanes, valid), valid, table, flush)
            _check(name, packed, rows.memory, rows.start, lanes, valid, table)


@every_isa
@pytest.mark.parametrize("name", [*MOVES, "pack_float16_float32"])
def test_panels_that_go_past_the_caches(row, name):
    """Panels of fewer lanes than a block has, of as many and of more; in whole lines or not, with and without padding."""
    item, target = _items(name)
    size = _block(row, target)
    for width, k, flush in product({1, 3, max(2, size - 2), size, 2 * size}, (5, 64), ("start", "end")):
        panels = size + 3 if k == 5 else max(2, size // 2)
        rows, lanes, tk = _sources("panels", panels, width, k, item, "end")
        for valid in {(width,) * panels, (max(1, width - 1),) * panels}:
            table, mode = _poisoned(lanes, valid), abi.PANEL_RUN | abi.PACK_PAST
            packed = _pack(row, name, mode, rows.memory, rows.start, table, valid, tk, flush)
            _check(name, packed, rows.memory, rows.start, lanes, valid, tk)


@every_isa
@pytest.mark.parametrize("name", [*MOVES, "pack_float16_float32"])
def test_panels_along_k_that_go_past_the_caches(row, name):
    """Woven panels, panels of whole lines and others; whole blocks of K and a rest, with and without padding."""
    item, target = _items(name)
    size = _block(row, target)
    for width, k, flush in product(sorted({2, 4, 6, 8, size, 2 * size}), (64, 64 + size // 2), ("start", "end")):
        rows, lanes, tk = _sources("k", 3, width, k, item, "end")
        for valid in ((width,) * 3, (width, width, width - 1)):
            mode = abi.K_RUN | abi.PACK_PAST
            packed = _pack(row, name, mode, rows.memory, rows.start, _poisoned(lanes, valid), valid, tk, flush)
            _check(name, packed, rows.memory, rows.start, lanes, valid, tk)


def _moves_alike(lanes: np.ndarray) -> bool:
    """Lanes of all panels lie at the same distances: what PANEL_RUN promises."""
    return bool((lanes - lanes[:, :1] == lanes[0] - lanes[0, 0]).all())


@every_isa
@every_kernel
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
def test_promised_runs_that_break(row, name, run):
    """The mode says where speed lies, not what is true: holes in the run are found in the tables."""
    item, target = _items(name)
    size = _block(row, target)
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
    packed = _pack(row, name, MODES[run], memory, 64, lanes, valid, tk)
    _check(name, packed, memory, 64, lanes, valid, tk)


@every_isa
@every_kernel
@pytest.mark.parametrize("run", ["lanes", "k", "panels"])
def test_short_runs(row, name, run):
    """Runs of a few elements, as of dimensions of size 4 or 8, with gaps between them."""
    for length in (2, 3, 4, 5, 8, 12):
        _short_runs(row, name, run, length)


def _short_runs(row, name: str, run: str, length: int) -> None:
    item, target = _items(name)
    size = _block(row, target)
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
        packed = _pack(row, name, MODES[run], memory, 64, _poisoned(lanes, valid), valid, tk)
        _check(name, packed, memory, 64, lanes, valid, tk)


@every_isa
@every_kernel
def test_random_tables(row, name):
    rng = np.random.default_rng(len(name))
    memory = rng.integers(0, 256, 1 << 14, np.uint8)
    for panels, width, k in ((1, 1, 1), (3, 14, 5), (2, 7, 20)):
        lanes = rng.integers(-2048, 2048, (panels, width))
        tk = rng.integers(-2048, 2048, k)
        valid = rng.integers(1, width + 1, panels)
        for mode in (abi.LANES_RUN, abi.K_RUN, abi.SCATTERED):
            packed = _pack(row, name, mode, memory, 8192, _poisoned(lanes, valid), valid, tk)
            _check(name, packed, memory, 8192, lanes, valid, tk)


@every_isa
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in WIDENINGS if _dtypes(name)[0] in HALVES])
def test_every_half_is_exact(row, name, mode):
    """All 65,536 of them: denormals, infinities, NaN and minus zero among them."""
    count, item = 1 << 16, 2
    memory = np.arange(count, dtype=np.uint16).view(np.uint8)
    panels, width, k = 32, 32, 64
    p, l, step = (np.arange(size, dtype=np.int64) for size in (panels, width, k))
    lanes, tk = {
        "lanes": (p[:, None] * width * k + l, step * width),
        "k": ((p[:, None] * width + l) * k, step),
        "panels": (p[:, None] + l * panels, step * panels * width),
        "scattered": (p[:, None] * width * k + l[::-1], step * width),
    }[mode]
    packed = _pack(row, name, MODES[mode], memory, 0, lanes * item, [width] * panels, tk * item)
    _check(name, packed, memory, 0, lanes * item, [width] * panels, tk * item)
    got = packed.view(_dtypes(name)[1]).ravel()
    where = (lanes[:, None, :] + tk[None, :, None]).ravel()
    assert np.array_equal(np.signbit(got), where >= 1 << 15)
    infinite, smallest = {"float16": (0x7C00, 2.0**-24), "bfloat16": (0x7F80, 2.0**-133)}[_dtypes(name)[0]]
    assert np.array_equal(np.isinf(got), where & 0x7FFF == infinite)
    assert np.array_equal(np.isnan(got), where & 0x7FFF > infinite)
    assert np.array_equal(got == 0, where & 0x7FFF == 0), "denormals are kept"
    assert got[where == 1][0] == smallest
    assert got[where == infinite >> 1][0] == 1.5


def test_which_dtypes_packing_widens():
    """As NumPy's safe casts, between dtypes of other bits and as many parts; every kernel is reached by some pair."""
    found = set()
    for source, dtype in product(STORAGES, tiles.DTYPES):
        a, b = numpy_dtype(source), numpy_dtype(dtype)
        if source == "bfloat16":
            safe = dtype in ("float32", "float64")
        else:
            safe = np.can_cast(a, b, "safe") and (a.kind == "c") == (b.kind == "c")
        assert packs.widens(source, dtype) == (safe and not moves(source, dtype)), (source, dtype)
        if packs.widens(source, dtype):
            found.add(packs.kernel(source, dtype))
    assert found == set(WIDENINGS)


@every_isa
@every_kernel
def test_the_packing_step_cuts_panels_into_tasks(row, name):
    """Outer loops move source and destination; every cut gives the same panels, and nothing beyond is written."""
    (item, target), (source, dtype) = _items(name), _dtypes(name)
    panels, width, k, counts = 5, 6, 7, (2, 3)
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, 1 << 16, np.uint8)
    lanes = np.arange(panels)[:, None] * 60 * item + np.arange(width)[None, :] * 8 * item
    valid = np.array([6, 6, 2, 6, 1])
    size, whole = k * width * target, panels * k * width * target
    steps = [np.array([0, 700]), np.array([0, 1200, 40])]
    outer = tuple(
        (count, step, np.zeros(count, np.int64), np.arange(count) * whole * scale)
        for count, step, scale in zip(counts, steps, (3, 1))
    )
    problem = PackProblem(
        source=source,
        dtype=dtype,
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
            packed = out.memory[32 + number * whole :][:whole].reshape(panels, k, width, target)
            _check(name, packed, memory, start, lanes, valid, problem.tk)
