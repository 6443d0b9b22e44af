"""What is left of the memory that a process may use: of the machine's and of its control group's, of either version."""

import os

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
