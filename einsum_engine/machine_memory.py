"""The memory that this process may use: the machine's, or what its control group has of it; its last cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

_GROUPS = Path("/sys/fs/cgroup")
_MACHINE = Path("/proc/meminfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


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


@cache
def last_cache(folder: Path = _CACHES) -> int:
    """Bytes of the last cache of the first core; 0 where the system does not tell."""
    return max([_kilobytes(file) for file in folder.glob("index*/size")], default=0) << 10


def _kilobytes(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    units = {"K": 1, "M": 1 << 10, "G": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[:-1].isdigit() and text[-1] in units else 0


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
