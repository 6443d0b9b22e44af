"""Calibration: the loops compute what they say, figures are plausible, remembered and measured again on request."""

import json

import numpy as np
import pytest

from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.kernels import calibrate, isa, tiles

ISAS = isa.host_isas()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "_known", {})
    monkeypatch.setattr(calibrate, "_SECONDS", 1e-4)
    monkeypatch.setattr(calibrate, "_RUNS", 2)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("name", [*(f"fmapeak_{dtype}" for dtype in tiles.REAL), "fmachain_float32"])
def test_fma_loop_computes_multiply_adds(row, name):
    from einsum_engine.kernels.cpu import calibrate as loops

    dtype = name.split("_")[1]
    width, chains = row.vector_bits // 8, loops.chains(name, row)
    kind = np.dtype("uint8" if dtype == "bool" else dtype)
    data = np.zeros((2 + chains + 1) * width, np.uint8)
    vectors = data.view(kind).reshape(2 + chains + 1, -1)
    rng = np.random.default_rng(0)
    vectors[:] = rng.integers(0, 2 if dtype == "bool" else 5, vectors.shape)
    a, b, x = vectors[0].copy(), vectors[1].copy(), vectors[2:].copy()
    words = np.array([3, data.ctypes.data], np.int64)
    calibrate._function(name, row)(words.ctypes.data)
    for _ in range(3):
        x[:-1] = (x[:-1] & a) | b if dtype == "bool" else x[:-1] * a + b
    np.testing.assert_array_equal(vectors[2:], x)


@pytest.mark.parametrize("row", ISAS, ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["copy_plain", "copy_stream"])
def test_copy_loop_copies(row, name):
    from einsum_engine.kernels.cpu import calibrate as loops

    unit = loops.copy_unit(row)
    memory = calibrate._aligned(8 * unit)
    memory[: 3 * unit] = np.random.default_rng(0).integers(1, 255, 3 * unit)
    words = np.array([memory.ctypes.data + 4 * unit, memory.ctypes.data, 3 * unit, 2], np.int64)
    calibrate._function(name, row)(words.ctypes.data)
    np.testing.assert_array_equal(memory[4 * unit : 7 * unit], memory[: 3 * unit])
    assert (memory[7 * unit :] == calibrate._ORDINARY).all()


@pytest.mark.parametrize("dtype", tiles.REAL)
def test_what_is_measured_is_no_zeros(dtype):
    """Some memory takes and keeps lines of zeros for a fraction of what others cost, and denormals may cost more."""
    values = calibrate._aligned(4096).view(dtype)
    assert (values != 0).all() and np.isfinite(values).all()
    if values.dtype.kind == "f":
        assert (values > np.sqrt(np.finfo(dtype).tiny)).all() and (values < 1).all()


def test_copies_are_of_ordinary_numbers():
    for name in calibrate._COPIES:
        (call,) = calibrate._copy_loops(name, 1 << 16, 1, isa.active_isa()).calls
        call(1)
        assert call._memory.all()


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_every_dtype_has_a_peak(dtype):
    # Other programs may stop a run for as long as they like: what can be asked of a rate is its unit.
    assert 0 < calibrate.fma_peak(dtype) < 1e15


def test_derived_dtypes_share_a_peak():
    assert calibrate.fma_peak("complex128") == calibrate.fma_peak("float64")
    assert calibrate.fma_peak("bfloat16") == calibrate.fma_peak("float16") == calibrate.fma_peak("float32")
    assert calibrate.fma_peak("uint16") == calibrate.fma_peak("int16")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nbytes", [1, 1 << 16, 1 << 21])
def test_copy_bandwidth_is_a_rate(nbytes, threads):
    assert 0 < calibrate.copy_bandwidth(nbytes, threads) < 1e14


def test_peak_of_an_instruction_set_by_name():
    assert all(calibrate.fma_peak("float64", isa=row.name) > 0 for row in ISAS)
    with pytest.raises(EngineValueError, match="unknown instruction set"):
        calibrate.fma_peak("float64", isa="mmx")


def test_unknown_dtype_names_those_there_are():
    with pytest.raises(EngineTypeError, match="'float99': there are float32, .*complex128"):
        calibrate.fma_peak("float99")


def test_figures_are_remembered_in_memory_and_on_disk(monkeypatch):
    figures = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(calibrate, "_measure_peak", lambda *args: next(figures))
    assert [calibrate.fma_peak("float32"), calibrate.fma_peak("float32")] == [1.0, 1.0]
    calibrate._known.clear()
    assert calibrate.fma_peak("float32") == 1.0
    assert calibrate.fma_peak("float32", fresh=True) == 2.0
    assert calibrate.fma_peak("float32", threads=2) == 3.0
    assert sorted(json.loads(calibrate._file().read_text()).values()) == [2.0, 3.0]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "b"}', '{"a": -1}', "\x00"])
def test_damaged_file_is_no_figure(text, monkeypatch):
    monkeypatch.setattr(calibrate, "_measure_copy", lambda *args: 5.0)
    calibrate._file().parent.mkdir(parents=True)
    calibrate._file().write_text(text)
    assert calibrate.copy_bandwidth(1 << 20) == 5.0
    assert list(calibrate._read().values()) == [5.0]


def test_cache_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(calibrate, "_measure_copy", lambda *args: 5.0)
    assert calibrate.copy_bandwidth(1 << 20) == 5.0


def test_footprints_are_quarters_of_octaves():
    assert calibrate._footprint(0) == 4096
    assert calibrate._footprint(10**18) == 1 << 29
    assert calibrate._footprint(1 << 20) == calibrate._footprint((1 << 20) + 1000) == 1 << 20


def test_microkernel_rows_are_the_tile_table():
    for row in ISAS:
        rows = calibrate.microkernel_rows(row.name)
        assert len({name for name, *_ in rows}) == len(rows)
        assert [(dtype, tile) for _, dtype, tile in rows] == [(d, t) for d in tiles.DTYPES for t in tiles.tiles(row, d)]


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_rates_count_the_operations_of_one_repetition(dtype, threads, monkeypatch):
    repetitions = []

    def three_in_a_second(calls, target=None, runs=None):
        for call in calls:
            call(3)
        repetitions.append(len(calls))
        return 3.0

    monkeypatch.setattr(calibrate, "_best_rate", three_in_a_second)
    row, item = isa.active_isa(), np.dtype(dtype).itemsize
    name, (mv, nr) = next((name, tile) for name, kind, tile in calibrate.microkernel_rows() if kind == dtype)
    points = (4 * mv * row.vector_bits // 8 // item) * (4 * nr) * 96
    multiply_add = 8 if dtype == "complex64" else 2
    assert calibrate.microkernel(name, threads, k=96).best_rate() == 3 * threads * multiply_add * points
    from einsum_engine.kernels.cpu import calibrate as loops

    real = {"complex64": "float32"}.get(dtype, dtype)
    lanes = row.vector_bits // 8 // np.dtype(real).itemsize
    assert calibrate.fma_peak(dtype, threads, fresh=True) == 3 * threads * 2 * lanes * loops.chains(f"fmapeak_{real}", row)
    assert repetitions == [threads, threads]


def test_the_best_of_all_runs_counts(monkeypatch):
    seconds = iter([*[1e-9] * 3, *[1.0] * 3, 0.5, 0.25, 2.0])  # six to find out how many repetitions fill a run
    seen = []
    monkeypatch.setattr(calibrate, "_run", lambda calls, repeats: seen.append(repeats) or next(seconds))
    assert calibrate._best_rate([lambda repeats: None], 1.0, 3) == seen[-1] / 0.25
    assert seen[:3] == [1] * 3 and len(set(seen[3:])) == 1


def test_what_the_first_call_compiles_is_not_counted(monkeypatch):
    """A second for the kernel, then 1 ms for each repetition: what takes 0.1 s are some 100 of them, not one."""
    clock, known = [0.0], []

    def call(repeats):
        clock[0] += 1e-3 * repeats + (0 if known else 1.0)
        known.append(True)

    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: clock[0])
    assert 50 <= calibrate._repeats(call, 0.1) <= 100
    assert calibrate._best_rate([call], 0.1, 1) == pytest.approx(1000)


@pytest.mark.parametrize("stopped", range(9))
def test_a_run_that_is_stopped_does_not_fill_a_run(stopped, monkeypatch):
    """Else the time of a call counted for that of a repetition: here a hundred times as long."""
    runs = iter(range(100))

    def run(calls, repeats):
        return 1e-6 + 1e-8 * repeats + (1.0 if next(runs) == stopped else 0.0)

    monkeypatch.setattr(calibrate, "_run", run)
    assert calibrate._repeats(lambda repeats: None, 2e-4) * 1e-8 == pytest.approx(2e-4, rel=0.2)


def test_unknown_microkernel_names_those_there_are():
    with pytest.raises(EngineValueError, match="no microkernel 'gemm_x'.*gemm_float32_"):
        calibrate.microkernel("gemm_x")


def test_quick_rates_are_rates_and_not_remembered():
    row = isa.active_isa()
    rates = calibrate.quick_rates(row)
    assert set(rates) == {"float32", "float64", "cache_bandwidth", "memory_bandwidth", "in_flight"}
    assert calibrate._known == {} and not calibrate._file().exists()
    assert all(0 < rate < 1e15 for rate in rates.values())
