"""What is left of the memory that a process may use: of the machine's and of its control group's, of either version."""

import os
import subprocess
import sys

import pytest

from einsum_engine import machine_memory

MACHINE = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\n"
PAGES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
NAMES = {
    1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    2: ("memory.max", "memory.current", "memory.stat", "inactive_file"),
}


@pytest.fixture
def machine(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text(MACHINE)
    return file


@pytest.fixture
def group(tmp_path):
    """Writes the files of a control group: its limit, what it uses, and what of that are pages of files."""

    def write(version, limit, used, files):
        *names, field = NAMES[version]
        texts = (f"{limit}\n", f"{used}\n", f"anon 7\n{field} {files}\nactive_file 3\n")
        for name, text in zip(names, texts):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_of_the_machine_where_there_is_no_group(machine, tmp_path):
    assert machine_memory.share_left(tmp_path, machine) == 0.4
    assert machine_memory.total(tmp_path) == PAGES


@pytest.mark.parametrize("version", NAMES)
def test_the_group_counts_where_it_has_less(version, group, machine):
    folder = group(version, 100_000, 95_000, 5_000)
    assert machine_memory.share_left(folder, machine) == pytest.approx(0.1)
    assert machine_memory.total(folder) == 100_000
    group(version, 100_000, 15_000, 5_000)
    assert machine_memory.share_left(folder, machine) == 0.4
    group(version, 100_000, 120_000, 130_000)  # figures of different moments
    assert machine_memory.share_left(folder, machine) == 0.4


@pytest.mark.parametrize("version", NAMES)
@pytest.mark.parametrize("limit", ["max", 9223372036854771712, "", 0])
def test_a_group_without_a_limit_has_the_machine(version, limit, group, machine):
    folder = group(version, limit, PAGES, 0)
    assert machine_memory.share_left(folder, machine) == 0.4


@pytest.mark.parametrize("text", ["", "MemTotal: 5", "MemAvailable: 5 kB", "MemTotal: 0 MemAvailable: 0", "MemTotal: x y"])
def test_what_cannot_be_read_is_all_there(text, tmp_path):
    assert machine_memory.share_left(tmp_path, tmp_path / "absent") == 1.0
    (tmp_path / "meminfo").write_text(text)
    assert machine_memory.share_left(tmp_path, tmp_path / "meminfo") == 1.0


def test_here():
    assert 0 < machine_memory.share_left() <= 1 and 0 < machine_memory.total() <= PAGES


def test_the_last_cache_is_the_largest(tmp_path):
    for number, text in enumerate(("48K\n", "2048K\n", "32M\n", "", "?K\n")):
        (tmp_path / f"index{number}").mkdir()
        for name, written in dict(type="Unified\n", level=f"{number}\n", size=text).items():
            (tmp_path / f"index{number}" / name).write_text(written)
    (tmp_path / "index9").mkdir()  # without a size
    assert machine_memory.last_cache(tmp_path) == 32 << 20
    assert machine_memory.last_cache(tmp_path / "index9") == 0


def _with_caches(folder, sizes):
    for level, size in sizes.items():
        (folder / f"index{level}").mkdir()
        for name, text in dict(type="Unified\n", level=f"{level}\n", size=size).items():
            (folder / f"index{level}" / name).write_text(text)
    return folder


def test_blocks_shrink_with_the_cache_that_holds_them(tmp_path):
    folder = _with_caches(tmp_path, {1: "16K\n", 2: "256K\n", 3: "8M\n"})
    assert machine_memory.cache_of_level(2, folder) == 256 << 10
    assert machine_memory.block_bytes(320 << 10, level=2, folder=folder) == 160 << 10
    assert machine_memory.block_bytes(256, level=1, folder=folder) == 128


@pytest.mark.parametrize("sizes", [{}, {3: "32M\n"}, {1: "32K\n", 2: "512K\n"}, {1: "48K\n", 2: "2M\n"}])
def test_blocks_are_what_was_measured_in_others(tmp_path, sizes):
    folder = _with_caches(tmp_path, sizes)
    assert machine_memory.block_bytes(320 << 10, level=2, folder=folder) == 320 << 10
    assert machine_memory.block_bytes(24 << 10, level=1, folder=folder) == 24 << 10


_SMALL = """
from pathlib import Path
from einsum_engine import machine_memory
machine_memory.caches.__defaults__ = machine_memory.cache_of_level.__wrapped__.__defaults__ = (Path({folder!r}),)
machine_memory.block_bytes.__kwdefaults__["folder"] = Path({folder!r})
import numpy as np, einsum_engine as engine
from einsum_engine.planners import gemm_access, packing, tasks
print(gemm_access.KC[8], packing.PACK_BYTES, tasks.WIDE_BYTES)
rng = np.random.default_rng(0)
a, b = rng.integers(-9, 9, (500, 700)).astype(float), rng.integers(-9, 9, (700, 600)).astype(float)
for expression, x, y in (("ik,kj->ij", a, b), ("ki,kj->ij", a.T.copy(), b), ("ik,jk->ji", a, b.T.copy())):
    for threads in (1, 2):
        plan = engine.compile(expression, x, y, threads=threads)
        assert np.array_equal(plan(x, y), np.einsum(expression, x, y, optimize=True))
"""


def test_a_process_with_small_caches_plans_smaller_blocks(tmp_path):
    folder = _with_caches(tmp_path, {1: "16K\n", 2: "256K\n"})
    done = subprocess.run([sys.executable, "-c", _SMALL.format(folder=str(folder))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["128", str(160 << 10), str(360 << 10)]
