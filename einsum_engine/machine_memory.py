"""The memory that this process may use: the machine's, or what its control group has of it; and its caches."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_GROUPS = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/meminfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_COMMON = {1: 32 << 10, 2: 512 << 10}  # bytes of the caches of a core, by level: the least for which blocks were measured
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


class _GroupFiles(NamedTuple):
    """Files of one version of control groups; ``cache``: the line of ``stat`` with the pages of files that go first."""

    limit: str
    used: str
    stat: str
    cache: str


_VERSIONS = (
    _GroupFiles("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _GroupFiles(
        "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"
    ),
)


def total(groups: Path = _GROUPS) -> int:
    """Bytes of memory that this process may use."""
    limits = [_number(groups / version.limit) for version in _VERSIONS]
    return min([_of_the_machine(), *(limit for limit in limits if limit)])


def share_left(groups: Path = _GROUPS, machine: Path = _MACHINE) -> float:
    """The part of the memory that nobody needs, of the machine's or of the control group's, whichever has less.

    What cannot be read is all there.
    """
    return min([_left_of_machine(machine), *(_left_of_group(groups, version) for version in _VERSIONS)])


def caches(folder: Path = _CACHES) -> list[dict[str, Any]]:
    """Data and unified caches of the first core: level, kind and bytes; empty where the system does not tell."""
    found = []
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size:
            found.append({"level": level, "kind": kind, "bytes": int(size[1]) * _UNITS[size[2]]})
    return found


@cache
def last_cache(folder: Path = _CACHES) -> int:
    """Bytes of the last of them; 0 where the system does not tell."""
    return max([each["bytes"] for each in caches(folder)], default=0)


@cache
def cache_of_level(level: int, folder: Path = _CACHES) -> int:
    """Bytes of the data cache of a level; 0 where the system does not tell."""
    return max([each["bytes"] for each in caches(folder) if each["level"] == level], default=0)


def block_bytes(most: int, *, level: int, folder: Path = _CACHES) -> int:
    """Bytes of a block that is to stay in the cache of a level: ``most`` with 32 KB (1) or 512 KB (2) and more, from which on
    larger blocks gain nothing, or where the size is not known; the same part of a smaller one."""
    return most * min(cache_of_level(level, folder) or _COMMON[level], _COMMON[level]) // _COMMON[level]


def _of_the_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_of_machine(file: Path) -> float:
    words = _words(file)
    available, everything = _after(words, "MemAvailable:"), _after(words, "MemTotal:")
    return 1.0 if available is None or not everything else available / everything


def _left_of_group(groups: Path, version: _GroupFiles) -> float:
    """A group without a limit has one beyond the machine's memory, or none."""
    limit = _number(groups / version.limit)
    if not limit or limit > _of_the_machine():
        return 1.0
    used = _number(groups / version.used) or 0
    kept = _after(_words(groups / version.stat), version.cache) or 0
    return 1.0 - max(used - kept, 0) / limit


def _number(file: Path) -> int | None:
    """The number that is all of a file; None where it is absent, or "max"."""
    words = _words(file)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _after(words: list[str], name: str) -> int | None:
    """The number behind ``name``."""
    try:
        return int(words[words.index(name) + 1])
    except (ValueError, IndexError):
        return None
