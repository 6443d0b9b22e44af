"""Environment variables, all in one table, and the facts of the machine that they override.

Values are read when they are used, not when the package is imported, so a test or a program may set a variable
at any time; `Option.seen` says when that is. An empty variable counts as absent.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from .errors import EngineTypeError, EngineValueError

# That the pool has room for. Plans are made for a number of threads: they would share tasks and memory among more in vain.
MOST_THREADS = 256

_UNITS = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("b", 1000), ("ib", 1024))
}


def parse_bytes(text: str) -> int:
    """Bytes in a size such as ``"8GiB"``, ``"500 MB"``, ``"64k"`` or ``"4096"`` (``k`` alone is 1024).

    >>> parse_bytes("8GiB"), parse_bytes("1.5 kB")
    (8589934592, 1500)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise EngineValueError(f"not a number of bytes: {text!r} (examples: '8GiB', '500MB', '4096')")
    number = int(match[1]) if match[1].isdigit() else float(match[1])
    return int(number * _UNITS[match[2]])


def _count(text: str) -> int:
    """A positive integer; of a list, as OpenMP allows, the first entry."""
    number = int(text.split(",")[0])
    if number < 1:
        raise ValueError("a count is at least 1")
    return number


def _level(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("a level is at least 0")
    return number


def _switch(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError("a switch is 0 or 1")
    return text.strip() == "1"


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _name(text: str) -> str:
    return text.strip().lower()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One environment variable.

    ``parse`` turns the text into a value or raises ValueError; ``expects`` says in words what it takes, ``seen`` when a
    change of it counts: each time that this happens.
    """

    name: str
    parse: Callable[[str], Any]
    expects: str
    default: Any
    help: str
    seen: str

    def read(self) -> Any:
        """The value now; the default where the variable is absent or empty."""
        text = os.environ.get(self.name, "")
        if not text.strip():
            return self.default
        try:
            return self.parse(text)
        except (ValueError, RuntimeError) as error:
            raise EngineValueError(
                f"environment variable {self.name}={text!r}: expected {self.expects} ({error})"
            ) from None


_PLAN, _KERNEL = "a plan is made", "a kernel is loaded that the process does not have"

OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            name="EINSUM_ENGINE_ISA",
            parse=_name,
            expects="the name of an instruction set",
            default=None,
            help="instruction set that kernels are made for: avx512, avx2, sse2 or neon (default: the widest here)",
            seen=_PLAN,
        ),
        Option(
            name="EINSUM_ENGINE_NUM_THREADS",
            parse=_count,
            expects="an integer of at least 1",
            default=None,
            help="threads of a call that does not say threads= (default: OMP_NUM_THREADS, else the CPUs available)",
            seen=_PLAN,
        ),
        Option(
            name="OMP_NUM_THREADS",
            parse=_count,
            expects="an integer of at least 1, or a list of them",
            default=None,
            help="the same, where EINSUM_ENGINE_NUM_THREADS is not set",
            seen=_PLAN,
        ),
        Option(
            name="EINSUM_ENGINE_CACHE_DIR",
            parse=_path,
            expects="a folder",
            default=None,
            help="folder of compiled kernels (default: einsum_engine under XDG_CACHE_HOME or ~/.cache)",
            seen=f"{_KERNEL}; the first plan is made",
        ),
        Option(
            name="XDG_CACHE_HOME",
            parse=Path,
            expects="an absolute folder",
            default=None,
            help="parent of the default cache folder; a relative one is ignored, as the XDG specification says",
            seen=f"{_KERNEL}; the first plan is made",
        ),
        Option(
            name="EINSUM_ENGINE_MEASURE",
            parse=_switch,
            expects="0 or 1",
            default=True,
            help="0 predicts times for a typical core; else constants measured here at first use are read (default: 1)",
            seen="a plan is made, the first of an expression or a compiled object",
        ),
        Option(
            name="EINSUM_ENGINE_SVML",
            parse=_switch,
            expects="0 or 1",
            default=True,
            help="0 computes all functions by code of this package, also where Intel's SVML is installed (default: 1)",
            seen=_KERNEL,
        ),
        Option(
            name="EINSUM_ENGINE_POOL_BYTES",
            parse=parse_bytes,
            expects="a number of bytes such as 512MiB",
            default=512 << 20,
            help="bound on the large result buffers kept for reuse; 0 turns the pool off (default: 512MiB)",
            seen="a plan is made; a large result is made or has died, of cached plans every 50 ms at most",
        ),
        Option(
            name="EINSUM_ENGINE_ARENA_BYTES",
            parse=parse_bytes,
            expects="a number of bytes such as 512MiB",
            default=512 << 20,
            help="the same for memory of intermediates, in arenas of more than 256 KiB; 0 keeps none (default: 512MiB)",
            seen="a plan is made, for arenas of up to 16 MiB; a call takes one from the pool or gives it back",
        ),
        Option(
            name="EINSUM_ENGINE_DUMP",
            parse=_path,
            expects="a folder",
            default=None,
            help="folder that LLVM IR and assembly of every kernel compiled are written to (default: nowhere)",
            seen="a kernel is compiled",
        ),
        Option(
            name="EINSUM_ENGINE_DEBUG",
            parse=_level,
            expects="an integer of at least 0",
            default=0,
            help="1 prints the table of each plan that is made, 2 also each kernel that is compiled (default: 0)",
            seen="a plan is made; a kernel is compiled",
        ),
    )
}


def get(name: str) -> Any:
    """The value of the environment variable ``name`` now. EngineValueError names the variable and its bad value.

    >>> get("EINSUM_ENGINE_DEBUG") >= 0
    True
    """
    if name not in OPTIONS:
        raise EngineValueError(f"unknown environment variable {name!r}; there are {', '.join(OPTIONS)}")
    return OPTIONS[name].read()


def table() -> str:
    """All variables, one a line: name, value now, and what it does."""
    width = max(map(len, OPTIONS))
    return "\n".join(
        f"{option.name:<{width}}  {'(not set)' if os.environ.get(option.name) is None else os.environ[option.name]}"
        f"  {option.help}"
        for option in OPTIONS.values()
    )


def threads(requested: int | None = None) -> int:
    """Threads to use: ``requested``, else EINSUM_ENGINE_NUM_THREADS, else OMP_NUM_THREADS, else `available_cpus`; at most
    `MOST_THREADS`.

    >>> threads(3)
    3
    """
    if requested is not None:
        return min(_checked_threads(requested), MOST_THREADS)
    return min(get("EINSUM_ENGINE_NUM_THREADS") or get("OMP_NUM_THREADS") or available_cpus(), MOST_THREADS)


def _checked_threads(requested: int) -> int:
    try:
        number = requested.__index__()
    except AttributeError:
        raise EngineTypeError(f"threads={requested!r}: expected an integer, not {type(requested).__name__}") from None
    if number < 1:
        raise EngineValueError(f"threads={requested!r}: expected at least 1")
    return number


def available_cpus() -> int:
    """CPUs that this process may use: its affinity mask, limited by the quota of its control group."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpus()
    return affinity if quota is None else max(1, min(affinity, quota))


@lru_cache(maxsize=1)
def _cgroup_cpus() -> int | None:
    # Once per process: a dozen small files are read, and container runtimes set quotas at the start.
    return cgroup_cpus(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))


def cgroup_cpus(membership: Path, mount: Path) -> int | None:
    """The CPU quota of a control group, rounded up to whole CPUs; None where there is none.

    ``membership`` is ``/proc/self/cgroup``, ``mount`` is where the hierarchies are mounted (versions 1 and 2, and both
    at once). The tightest quota from the group up to the root counts.
    """
    quotas = []
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = (mount / controllers, mount / "cpu") if controllers else (mount, mount / "unified")
        for root in roots:
            quotas += [quota for group in _ancestors(root, path) if (quota := _group_quota(group)) is not None]
    return min(quotas, default=None)


def _ancestors(root: Path, path: str) -> list[Path]:
    """The folders of a control group and of its ancestors; inside a container often only the root is there."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _group_quota(group: Path) -> int | None:
    words = _read(group / "cpu.max").split()
    if len(words) != 2:
        words = [_read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()]
    quota, period = words
    # Version 2 writes "max", version 1 writes -1 where there is no limit.
    if not quota.isdigit() or not period.isdigit() or not int(quota) or not int(period):
        return None
    return -(-int(quota) // int(period))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """What tells one kind of machine from another: architecture and, from /proc/cpuinfo where there is one, the CPU."""
    return "/".join([platform.machine(), *cpu_fields(Path("/proc/cpuinfo"))])


def cpu_fields(cpuinfo: Path) -> list[str]:
    """Model, family and stepping of the first CPU in such a file; the others are not read, there may be hundreds."""
    wanted = ("model name", "cpu family", "model", "stepping", "CPU part")
    found: dict[str, str] = {}
    try:
        with cpuinfo.open() as lines:
            for line in takewhile(str.strip, lines):
                name, _, value = line.partition(":")
                found[name.strip()] = value.strip()
    except OSError:
        pass
    return [found[name] for name in wanted if name in found]


def cache_dir() -> Path:
    """Folder of the compiled kernels; not created here, and perhaps not writable."""
    chosen = get("EINSUM_ENGINE_CACHE_DIR")
    if chosen is not None:
        return chosen
    parent = get("XDG_CACHE_HOME")
    if parent is None or not parent.is_absolute():
        try:
            parent = Path.home() / ".cache"
        except RuntimeError:
            # A user without a home: a folder that cannot be made, so that the cache stays in memory and says so.
            # A shared temporary folder would let other users put code there.
            parent = Path(os.devnull)
    return parent / "einsum_engine"
