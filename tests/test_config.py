"""The table of environment variables, and the thread count and cache folder that follow from it."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import config, recycle
from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.kernels.cpu import pool_abi, result_abi

GOOD = {
    "EINSUM_ENGINE_ISA": (" AVX2 ", "avx2"),
    "EINSUM_ENGINE_NUM_THREADS": ("3", 3),
    "OMP_NUM_THREADS": ("4,2", 4),
    "EINSUM_ENGINE_CACHE_DIR": ("/somewhere/else", Path("/somewhere/else")),
    "XDG_CACHE_HOME": ("/cache", Path("/cache")),
    "EINSUM_ENGINE_MEASURE": ("0", False),
    "EINSUM_ENGINE_SVML": ("0", False),
    "EINSUM_ENGINE_POOL_BYTES": ("1.5GiB", 3 << 29),
    "EINSUM_ENGINE_ARENA_BYTES": ("20MB", 20_000_000),
    "EINSUM_ENGINE_DUMP": ("/dump", Path("/dump")),
    "EINSUM_ENGINE_DEBUG": ("2", 2),
}
BAD = {
    "EINSUM_ENGINE_NUM_THREADS": ("0", "-1", "two", "1.5"),
    "OMP_NUM_THREADS": ("0", "many"),
    "EINSUM_ENGINE_MEASURE": ("2", "yes"),
    "EINSUM_ENGINE_SVML": ("2", "yes"),
    "EINSUM_ENGINE_POOL_BYTES": ("-1", "8XB", "lots"),
    "EINSUM_ENGINE_ARENA_BYTES": ("-1", "8XB", "lots"),
    "EINSUM_ENGINE_DEBUG": ("-1", "yes"),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in config.OPTIONS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", config.OPTIONS)
def test_every_variable_has_a_default_a_help_and_is_read_when_used(name, monkeypatch):
    option = config.OPTIONS[name]
    assert option.name == name and option.help and option.expects
    assert config.get(name) == option.default
    text, value = GOOD[name]
    monkeypatch.setenv(name, text)
    assert config.get(name) == value
    monkeypatch.setenv(name, "")
    assert config.get(name) == option.default


@pytest.mark.parametrize("name, text", [(name, text) for name, texts in BAD.items() for text in texts])
def test_a_bad_value_is_named_with_its_variable(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(EngineValueError, match=f"{name}='{text}'"):
        config.get(name)


def test_an_unknown_variable_lists_the_known_ones():
    with pytest.raises(EngineValueError, match="'EINSUM_ENGINE_TYPO'.*EINSUM_ENGINE_ISA"):
        config.get("EINSUM_ENGINE_TYPO")


def test_the_package_reads_no_variable_outside_the_table():
    root = Path(config.__file__).resolve().parent
    sources = [root, *(root.parent / name for name in ("kernels", "planners", "bench"))]
    found = [
        f"{path.name}:{number}"
        for folder in sources
        for path in folder.rglob("*.py")
        if path != Path(config.__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"getenv|environ\.get|environ\[[^\]]+\](?! *=[^=])", line)
    ]
    assert found == []


def test_table_shows_names_and_values(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_DEBUG", "2")
    lines = {line.split()[0]: line for line in config.table().splitlines()}
    assert set(lines) == set(config.OPTIONS)
    assert lines["EINSUM_ENGINE_DEBUG"].split()[1] == "2"
    assert "(not set)" in lines["EINSUM_ENGINE_ISA"]


def _called(f, *arrays) -> int:
    """Bytes that the pool of results holds after calls whose results die, of which the first one looks."""
    for _ in range(2):
        recycle.results.words[result_abi.R_NEXT_LOOK] = 0
        f(*arrays)
        [None for _ in range(1000)]  # where the main thread does what is pending
    return recycle.results.nbytes


def test_plans_keep_their_threads_and_go_by_the_pool_of_now(monkeypatch):
    """The last column of docs/configuration.md, for two of the variables."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    a, b = np.ones((600, 20)), np.ones((20, 600))
    f = engine.compile("ij,jk->ik", a, b)
    assert f.plan.threads == 1 and f.plan.output_bytes >= recycle.SMALLEST
    for text, kept in (("", True), ("0", False), ("4MiB", True), ("0", False)):
        monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", text)
        assert (_called(f, a, b) > 0) == kept
    monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", "lots")
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")
    assert _called(f, a, b) == 0 and f.plan.threads == 1  # nobody asked for a plan, who would be told
    with pytest.raises(EngineValueError, match="EINSUM_ENGINE_POOL_BYTES='lots'"):
        engine.compile("ij,jk->ki", a, b)(a, b)
    monkeypatch.delenv("EINSUM_ENGINE_POOL_BYTES")
    assert engine.compile("ij,jk->ik", a, b).plan.request.threads == 2


def test_clear_cache_lets_go_of_results():
    a, b = np.ones((600, 20)), np.ones((20, 600))
    engine.einsum("ij,jk->ik", a, b)
    assert recycle.results.nbytes
    engine.clear_cache()
    assert not recycle.results.nbytes


@pytest.mark.parametrize(
    "text, expected",
    [("4096", 4096), ("64k", 65536), ("64 kB", 64000), ("64KiB", 65536), ("0.5GiB", 1 << 29), ("1TB", 10**12)],
)
def test_parse_bytes(text, expected):
    assert config.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "1 2", "-4", "4e3", "7PiB"])
def test_parse_bytes_refuses(text):
    with pytest.raises(EngineValueError, match="not a number of bytes"):
        config.parse_bytes(text)


def test_threads_prefers_the_argument_then_ours_then_openmp(monkeypatch):
    monkeypatch.setattr(config, "available_cpus", lambda: 7)
    assert config.threads() == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert config.threads() == 5
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "3")
    assert config.threads() == 3
    assert config.threads(2) == 2


@pytest.mark.parametrize("many", [10**4, 2**31, 2**63, 10**30])
def test_threads_are_no_more_than_the_pool_has_room_for(monkeypatch, many):
    assert config.threads(many) == config.MOST_THREADS <= pool_abi.MAX_WORKERS + 1  # the caller is one more
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", str(many))
    assert config.threads() == config.MOST_THREADS
    assert engine.compile("ij,jk->ik", (600, 600), (600, 600), threads=many).plan.threads == config.MOST_THREADS


@pytest.mark.parametrize("bad, error", [(0, EngineValueError), (-2, EngineValueError), ("4", EngineTypeError)])
def test_threads_refuses(bad, error):
    with pytest.raises(error, match=f"threads={bad!r}"):
        config.threads(bad)


def test_available_cpus_obeys_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for quota, expected in ((None, 6), (4, 4), (9, 6), (0, 1)):
        monkeypatch.setattr(config, "_cgroup_cpus", lambda quota=quota: quota)
        assert config.available_cpus() == expected


CGROUPS = {
    "v2 own group": ("0::/user/job\n", {"user/job/cpu.max": "150000 100000"}, 2),
    "v2 parent is tighter": ("0::/a/b\n", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3),
    "v2 no limit": ("0::/a\n", {"a/cpu.max": "max 100000"}, None),
    "v2 inside a container": ("0::/../../job\n", {"cpu.max": "50000 100000"}, 1),
    "v1": (
        "3:cpuset:/x\n4:cpu,cpuacct:/job\n",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
        4,
    ),
    "v1 no limit": ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    "v1 and v2": (
        "1:cpu:/\n0::/\n",
        {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000", "unified/cpu.max": "max 100000"},
        2,
    ),
    "not a quota": ("0::/\n", {"cpu.max": "garbage"}, None),
    "no control groups": (None, {}, None),
}


@pytest.mark.parametrize("name", CGROUPS)
def test_cgroup_quota(name, tmp_path):
    membership, files, expected = CGROUPS[name]
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    for path, text in files.items():
        target = tmp_path / "mount" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    assert config.cgroup_cpus(tmp_path / "membership", tmp_path / "mount") == expected


def test_cache_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert config.cache_dir() == Path("/home/someone/.cache/einsum_engine")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert config.cache_dir() == Path("/home/someone/.cache/einsum_engine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert config.cache_dir() == Path("/xdg/einsum_engine")
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", "~/mine")
    assert config.cache_dir() == Path("/home/someone/mine")


def test_cache_dir_without_a_home_cannot_be_made(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OSError):
        config.cache_dir().mkdir(parents=True)


def test_cpu_fields_are_those_of_the_first_cpu(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: A\nmodel\t\t: 7\n\nprocessor\t: 1\nmodel name\t: B\nstepping\t: 1\n")
    assert config.cpu_fields(path) == ["A", "7"]
    assert config.cpu_fields(tmp_path / "missing") == []
    assert "\n" not in config.cpu_name()
