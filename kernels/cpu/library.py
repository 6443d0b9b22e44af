"""Every compiled kernel by name: where it is generated, and its address in this process.

``BUILDERS`` is the table: a name pattern and the function that emits it. A name is resolved once per process: from
memory, else from disk, else by compiling. `compilations` counts the last case, which a warm cache never meets.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from pathlib import Path
from typing import Callable

from llvmlite import binding as llvm
from llvmlite import ir

from ... import config
from ...locks import anew
from .. import diskcache, fused_structure
from ..isa import ISA
from ..tiles import TIMED
from . import batched, calibrate, codegen, dot, entry, fused, gemm, nest, pack, pack_task, small, unpack, walker
from . import guard, image, indexed, random, result_memory, sort
from .tile import TileSpec

Builder = Callable[[ir.Module, str, ISA], None]


def _gemm(module: ir.Module, name: str, isa: ISA) -> None:
    gemm.build_gemm(module, TileSpec.from_name(name), isa)


BUILDERS: list[tuple[re.Pattern, Builder]] = [
    (re.compile(r"walk"), walker.build_walker),
    (re.compile(r"entry"), entry.build_entry),
    (re.compile(r"worker_loop"), walker.build_worker_loop),
    (re.compile(r"blocks"), walker.build_blocks),
    (re.compile(rf"gemm_\w+_\d+x\d+_[pd][pd]({TIMED})?"), _gemm),
    (re.compile(r"nest_\w+"), nest.build),
    (re.compile(r"pack_(\d+|[a-z]+\d+_[a-z]+\d+)"), pack.build_pack),
    (re.compile(r"packtask"), pack_task.build_pack_task),
    (re.compile(r"unpack_\d+"), unpack.build_unpack),
    (re.compile(r"small_\w+_\d+s?(_\d+x\d+)?"), small.build_small),
    (re.compile(r"batched_\w+_\d+x\d+"), batched.build_batched),
    (re.compile(r"dot_\w+_(tile|rows)"), dot.build_dot),
    (re.compile(r"dotsum_\w+"), dot.build_dot_sum),
    (re.compile(r"fused_(run|tile|stage|[0-9a-f]{32})"), fused.build),
    (re.compile(r"(gather|scatter)_\d+|scatteradd_[a-z]+\d*"), indexed.build),
    (re.compile(r"random_(uint32|float32|float64)"), random.build),
    (re.compile(r"(arg)?sort_[1248]"), sort.build),
    (re.compile(r"guard"), guard.build),
    (re.compile("|".join(result_memory.NAMES)), result_memory.build),
    (re.compile(r"fmapeak_\w+"), calibrate.build_fma_peak),
    (re.compile(r"copy_(plain|stream)"), calibrate.build_copy),
]

_lock = anew(globals(), "_lock", threading.RLock)
_addresses: dict[tuple[str, str], int] = {}
compilations = 0


def _source_digest() -> str:
    digest = hashlib.sha256(repr(llvm.llvm_version_info).encode())
    here = Path(__file__).parent
    decide = [here.parent / f"{name}.py" for name in ("isa", "fused_structure", "fused_over")]
    for path in sorted([*here.glob("*.py"), *decide]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _source_digest()  # of the sources that this process has imported, not of what they may become


def source_digest() -> str:
    """Digest of everything that decides what machine code a name stands for."""
    return _DIGEST


def build(name: str, isa: ISA) -> ir.Module:
    """IR module holding the function ``name``."""
    for pattern, builder in BUILDERS:
        if pattern.fullmatch(name):
            module = ir.Module(name)
            module.triple = isa.triple
            builder(module, name, isa)
            return module
    raise KeyError(f"no generator for kernel {name!r}")


def address(name: str, isa: ISA) -> int:
    """Address of a kernel, compiled if no cache has it."""
    key = (name, isa.name)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key)
            if found is None:
                found = _addresses[key] = _load(name, isa)
    return found


def _load(name: str, isa: ISA) -> int:
    data = diskcache.read(_path(name, isa))
    data = store(name, isa) if data is None else data
    return image.load(data) if image.is_image(data) else codegen.load(data, (name,), isa)[0]


def _path(name: str, isa: ISA) -> Path:
    return diskcache.folder(isa.name, source_digest()) / f"{name}.o"


def store(name: str, isa: ISA) -> bytes:
    """Compiles a kernel and writes it to the cache, linked."""
    data = image.linked(_compile(name, isa), name)
    diskcache.write(_path(name, isa), data)
    if name.startswith("fused_") and name not in fused.COMMON:
        fused_structure.remember(name)
    return data


def _compile(name: str, isa: ISA) -> bytes:
    global compilations
    compilations += 1
    if config.get("EINSUM_ENGINE_DEBUG") >= 2:
        print(f"compiling {name} for {isa.name}", file=sys.stderr)
    module = build(name, isa)
    dump = config.get("EINSUM_ENGINE_DUMP")
    if dump:
        Path(dump).mkdir(parents=True, exist_ok=True)
        (Path(dump) / f"{name}_{isa.name}.ll").write_text(str(module))
        (Path(dump) / f"{name}_{isa.name}.s").write_text(codegen.assembly(module, isa))
    return codegen.compile_object(module, isa)


def _before_fork() -> None:
    """Waits until no other thread is in LLVM, whose own locks a child could never release."""
    _lock.acquire()
    codegen.lock.acquire()


def _after_fork() -> None:
    codegen.lock.release()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
