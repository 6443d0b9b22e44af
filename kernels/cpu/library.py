"""Every compiled kernel by name: its address in this process.

A name is resolved once per process: from memory, else from disk, else by compiling, which alone loads LLVM.
`compilations` counts the last case, which a warm cache never meets.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from functools import cache
from pathlib import Path

import llvmlite  # its version: that loads nothing of LLVM

from ... import config
from ...locks import anew
from .. import diskcache, fused_structure
from ..isa import ISA
from ..tiles import reads_in_place
from . import cores, image, llvm_lock, svml

_lock = anew(globals(), "_lock", threading.RLock)
_addresses: dict[tuple[str, str], int] = {}
compilations = 0


def _source_digest() -> str:
    digest = hashlib.sha256(llvmlite.__version__.encode())
    here = Path(__file__).parent
    decide = [here.parent / f"{name}.py" for name in ("isa", "fused_structure", "fused_over")]
    for path in sorted([*here.glob("*.py"), *decide]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _source_digest()  # of the sources as this process began, not of what they may become


@cache
def _as_it_began() -> bool:
    """Whether the generators, which have just been loaded, are those of the digest: what others make is not stored."""
    return _source_digest() == _DIGEST


def source_digest() -> str:
    """Digest of everything that decides what machine code a name stands for."""
    return _DIGEST


def address(name: str, isa: ISA) -> int:
    """Address of a kernel, compiled if no cache has it."""
    key = (name + _variant(name), isa.name)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key)
            if found is None:
                found = _addresses[key] = _load(name, isa)
    return found


def _load(name: str, isa: ISA) -> int:
    data = diskcache.read(path(name, isa))
    data = store(name, isa) if data is None else data
    if image.is_image(data):
        return image.load(data)
    from . import codegen

    return codegen.load(data, (name,), isa)[0]


def path(name: str, isa: ISA) -> Path:
    """Where a kernel is on disk, or will be."""
    return diskcache.folder(isa.name, source_digest()) / f"{name}{_variant(name)}.o"


def _variant(name: str) -> str:
    """What a kernel's file is called besides: where functions of a library are used, it is one of those that may call
    it, and where cores have a row of their own, one of theirs."""
    if name == "nest_copy" or name.startswith(("nest_strips_", "nest_short_", "nest_whole_")) or reads_in_place(name):
        return cores.here().suffix
    if not name.startswith("fused_"):
        return ""
    return (".svml" if svml.used() else "") + cores.here().suffix


def store(name: str, isa: ISA) -> bytes:
    """Compiles a kernel and writes it to the cache, linked."""
    global compilations
    from . import fused, generators

    cached = _as_it_began()
    compilations += 1
    if config.get("EINSUM_ENGINE_DEBUG") >= 2:
        print(f"compiling {name} for {isa.name}", file=sys.stderr)
    data = image.linked(generators.compile_kernel(name, isa), name)
    if not cached:
        return data
    diskcache.write(path(name, isa), data)
    if name.startswith("fused_") and name not in fused.COMMON:
        fused_structure.remember(name)
    return data


def _before_fork() -> None:
    """Waits until no other thread is in LLVM, whose own locks a child could never release."""
    _lock.acquire()
    llvm_lock.lock.acquire()


def _after_fork() -> None:
    llvm_lock.lock.release()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
