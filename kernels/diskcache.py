"""Compiled kernels on disk: written atomically, verified on reading; a damaged file is a miss, never a crash."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Callable

from .. import config
from ..files import write_whole

_MAGIC = b"einsum-engine-object-2\n"
_DIGEST_BYTES = 32
_warned = False


def folder(isa_name: str, digest: str) -> Path:
    """Where objects of one ISA and one version of the generator live."""
    return config.cache_dir() / "kernels" / f"{isa_name}-{digest[:20]}"


def read(path: Path) -> bytes | None:
    """The object stored at ``path``; None if it is missing, unreadable, truncated, altered or that of another name."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    if len(data) <= head or not data.startswith(_MAGIC):
        return None
    body = data[head:]
    return body if _digest(path, body) == data[len(_MAGIC) : head] else None


def write(path: Path, body: bytes) -> None:
    """Store an object so that readers see all of it or nothing; a folder that cannot be written costs one warning."""
    global _warned
    try:
        _store(path, body, os.replace)
    except OSError as error:
        if not _warned:
            _warned = True
            warnings.warn(
                f"kernel cache {path.parent} cannot be written ({error}): kernels are kept in memory only; "
                "set EINSUM_ENGINE_CACHE_DIR to a writable folder",
                RuntimeWarning,
                stacklevel=2,
            )


def write_once(path: Path, body: bytes) -> bytes | None:
    """Store an object unless there is one; the one that is there then, the same for all who write at once.

    A damaged one is replaced. None where the folder cannot be written.
    """
    try:
        try:
            _store(path, body, _link)
        except FileExistsError:
            if read(path) is None:
                _store(path, body, os.replace)
    except OSError:
        return None
    return read(path)


def _store(path: Path, body: bytes, move: Callable[[Path, Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _MAGIC + _digest(path, body) + body, move)


def _digest(path: Path, body: bytes) -> bytes:
    """Of the bytes and of the name by which they are found: under another one they are a function of other arguments."""
    return hashlib.sha256(f"{path.name}\n".encode() + body).digest()


def _link(temporary: Path, path: Path) -> None:
    """As `os.replace`, but FileExistsError where ``path`` exists; a file system without links replaces it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        os.replace(temporary, path)
    else:
        os.unlink(temporary)
