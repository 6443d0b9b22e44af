"""Kernels on disk: damage is a miss, a folder that cannot be used costs one warning, one compilation per machine."""

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from einsum_engine.kernels import diskcache, isa, warmup

BODY = bytes(range(256)) * 20

# Computes with a kernel of its own and says how many were compiled.
PROGRAM = """
import ctypes, sys, numpy as np
from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi, library
def pack():
    args, words = np.zeros(abi.P_WORDS, np.int64), np.arange(64)
    out, zero, count = np.zeros(64, np.int64), np.zeros(1, np.int64), np.array([64])
    lanes = np.arange(64) * 8
    values = {abi.P_DST: out.ctypes.data, abi.P_SRC: words.ctypes.data, abi.P_PANELS: 1, abi.P_WIDTH: 64, abi.P_K: 1,
              abi.P_LANES: lanes.ctypes.data, abi.P_VALID: count.ctypes.data, abi.P_TK: zero.ctypes.data}
    for word, value in values.items():
        args[word] = value
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(library.address("pack_8", isa.active_isa()))(args.ctypes.data)
    assert (out == words).all()
pack()
for name in sys.argv[1:]:
    library.address(name, isa.active_isa())
print(library.compilations)
"""


def _start(folder, *names: str) -> subprocess.Popen:
    environment = os.environ | {"EINSUM_ENGINE_CACHE_DIR": str(folder), "PYTHONWARNINGS": "always"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *names],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen) -> tuple[int, str]:
    """Number of compilations, and what was written to stderr."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return int(out), err


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(diskcache, "_warned", False)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a" / "b" / "kernel.o"
    assert diskcache.read(path) is None
    diskcache.write(path, BODY)
    assert diskcache.read(path) == BODY
    diskcache.write(path, BODY[::-1])
    assert diskcache.read(path) == BODY[::-1]
    assert _files(tmp_path) == [path]


def test_every_truncation_is_a_miss(tmp_path):
    path = tmp_path / "kernel.o"
    diskcache.write(path, BODY)
    data = path.read_bytes()
    for length in (*range(80), len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        assert diskcache.read(path) is None, length
    path.write_bytes(data + b"\0")
    assert diskcache.read(path) is None


def test_every_altered_byte_is_a_miss(tmp_path):
    path = tmp_path / "kernel.o"
    diskcache.write(path, BODY)
    data = bytearray(path.read_bytes())
    for position in (*range(70), *range(70, len(data), 97), len(data) - 1):
        data[position] ^= 1
        path.write_bytes(data)
        assert diskcache.read(path) is None, position
        data[position] ^= 1


def test_an_object_of_another_name_is_a_miss(tmp_path):
    path = tmp_path / "kernel.o"
    diskcache.write(path, BODY)
    assert diskcache.read(path.rename(tmp_path / "other.o")) is None
    assert diskcache.read((tmp_path / "other.o").rename(path)) == BODY


def test_unreadable_files_are_misses(tmp_path):
    folder = tmp_path / "kernel.o"
    folder.mkdir()
    assert diskcache.read(folder) is None
    assert diskcache.read(folder / "below" / "a.o") is None
    if os.geteuid() != 0:  # root reads everything
        path = tmp_path / "closed.o"
        diskcache.write(path, BODY)
        path.chmod(0)
        assert diskcache.read(path) is None


def _blocked(tmp_path: Path) -> Path:
    """A folder that nobody can create, root neither: a file is in its place."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    return blocker / "cache"


def test_an_unwritable_folder_costs_one_warning(tmp_path):
    folder = _blocked(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"{folder}.*cannot be written.*EINSUM_ENGINE_CACHE_DIR") as caught:
        diskcache.write(folder / "a.o", BODY)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diskcache.write(folder / "b.o", BODY)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        diskcache.write(tmp_path / "a.o", BODY)
    assert _files(tmp_path) == []


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_who_may_read_is_what_the_umask_says(tmp_path, umask, mode):
    """What root compiled while an image was built is there for its users."""
    before = os.umask(umask)
    try:
        diskcache.write(tmp_path / "a.o", BODY)
        diskcache.write_once(tmp_path / "b.o", BODY)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in _files(tmp_path)] == [mode, mode]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        diskcache.write(tmp_path / "a.o", BODY)
    assert _files(tmp_path) == []


def test_a_second_process_compiles_nothing(tmp_path):
    assert _finish(_start(tmp_path, "walk"))[0] == 2
    compilations, messages = _finish(_start(tmp_path, "walk"))
    assert compilations == 0 and messages == ""


def test_damaged_kernels_are_compiled_again_and_mended(tmp_path):
    names = ("walk", "worker_loop", "entry")
    assert _finish(_start(tmp_path, *names))[0] == 4
    damage = {
        "pack_8.o": lambda data: b"",
        "walk.o": lambda data: data[: len(data) // 2],
        "worker_loop.o": lambda data: data[:-9] + bytes([data[-9] ^ 0x55]) + data[-8:],
        "entry.o": lambda data: os.urandom(5000),
    }
    for path in _files(tmp_path):
        path.write_bytes(damage[path.name](path.read_bytes()))
    assert _finish(_start(tmp_path, *names)) == (4, "")
    assert _finish(_start(tmp_path, *names)) == (0, "")


def test_two_processes_at_once(tmp_path):
    names = ("walk", "worker_loop", "entry")
    for process in [_start(tmp_path, *names) for _ in range(2)]:
        compilations, messages = _finish(process)
        assert compilations <= 4 and messages == ""
    assert len(_files(tmp_path)) == 4  # whole files, no temporary ones
    assert _finish(_start(tmp_path, *names)) == (0, "")


def test_kernels_work_without_a_cache_folder(tmp_path):
    compilations, messages = _finish(_start(_blocked(tmp_path), "walk"))
    assert compilations == 2
    assert messages.count("RuntimeWarning") == 1 and "EINSUM_ENGINE_CACHE_DIR" in messages


def test_a_file_that_is_in_the_way_of_a_kernel(tmp_path):
    """A folder with the name of a kernel: compiled in memory, with the one warning."""
    _finish(_start(tmp_path))
    (path,) = _files(tmp_path)
    path.unlink()
    path.mkdir()
    compilations, messages = _finish(_start(tmp_path))
    assert compilations == 1 and messages.count("RuntimeWarning") == 1


# Reserves gigabytes of addresses between kernels, as large arrays do, and plugs the holes beside those loaded before.
CROWDED = """
import ctypes, random
from einsum_engine.kernels import isa, registry
from einsum_engine.kernels.cpu import library
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
PRIVATE, NO_RESERVE, READ_WRITE = 0x22, 0x4000, 3
choice = random.Random(1)
names = list(registry.kernel_names(isa.active_isa())[:45])
choice.shuffle(names)
for name in names:
    if choice.random() < 0.2:
        libc.mmap(None, 5 << 30, 0, PRIVATE | NO_RESERVE, -1, 0)
    if choice.random() < 0.3:
        for _ in range(20):
            libc.mmap(None, 1 << 16, READ_WRITE, PRIVATE, -1, 0)
    library.address(name, isa.active_isa())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reserves addresses as Linux does")
def test_kernels_load_between_large_arrays():
    """Code and constants of a kernel stay within the 2 GiB that an instruction reaches: LLVM would end the process."""
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_who_stores_first_wins(tmp_path):
    path = tmp_path / "new" / "object"
    assert diskcache.write_once(path, b"first") == b"first"
    assert diskcache.write_once(path, b"second") == b"first" == diskcache.read(path)
    assert _files(tmp_path) == [path]


@pytest.mark.parametrize("damage", [b"", b"einsum-engine-object-2\n", b"anything else"])
def test_a_damaged_object_is_stored_anew(tmp_path, damage):
    path = tmp_path / "object"
    path.write_bytes(damage)
    assert diskcache.write_once(path, BODY) == BODY == diskcache.read(path)
    assert _files(tmp_path) == [path]


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "object"
    assert diskcache.write_once(path, b"only") == b"only"
    assert _files(tmp_path) == [path]


def test_a_folder_that_cannot_be_made_stores_nothing_and_says_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert diskcache.write_once(tmp_path / "file" / "object", BODY) is None


def test_warm_up_compiles_what_is_missing(tmp_path, monkeypatch):
    """By two processes, which take names in turn, also where a folder of the package's name is not the package; a name
    that nothing generates ends one of them."""
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    (tmp_path / "einsum_engine").mkdir()
    (tmp_path / "einsum_engine" / "__init__.py").write_text("raise ImportError('not the package')")
    monkeypatch.chdir(tmp_path)
    sums = [f"dotsum_{dtype}" for dtype in ("int8", "int16", "int32", "bool", "int64")]
    names = ["copy_plain", "copy_stream", "guard", "blocks", *sums]
    monkeypatch.setattr(warmup, "kernel_names", lambda row: names)
    monkeypatch.setattr(warmup.config, "threads", lambda: 2)
    row = isa.active_isa()
    assert warmup.missing(row) == names and warmup.warmup(row) == len(names)
    assert warmup.missing(row) == [] and warmup.warmup(row) == 0
    names.append("no_such_kernel")
    with pytest.raises(RuntimeError, match=f"compiling kernels for {row.name} ended with status 1"):
        warmup.warmup(row)
