"""Every kernel by name, and what emits it. Only who compiles one loads this: most processes find theirs on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

from llvmlite import ir

from ... import config
from ..isa import ISA
from ..tiles import TIMED
from . import batched, calibrate, codegen, dot, entry, fused, gemm, guard, indexed, nest, pack, pack_task, random
from . import result_memory, small, sort, unpack, walker
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
    (re.compile(r"small_\w+_\d+(t|s?(_\d+x\d+)?)"), small.build_small),
    (re.compile(r"batched_\w+_\d+x\d+"), batched.build_batched),
    (re.compile(r"dot_\w+_(tile|rows)"), dot.build_dot),
    (re.compile(r"dotsum_\w+"), dot.build_dot_sum),
    (re.compile(r"fused_(run|tile|stage|[0-9a-f]{32})"), fused.build),
    (re.compile(r"(gather|scatter)_\d+|scatteradd_[a-z]+\d*"), indexed.build),
    (re.compile(r"random_(uint32|float32|float64)"), random.build),
    (re.compile(r"(arg)?sort_[1248]"), sort.build),
    (re.compile(r"guard"), guard.build),
    (re.compile("|".join(result_memory.NAMES)), result_memory.build),
    (re.compile(r"fma(peak|chain)_\w+"), calibrate.build_fma_peak),
    (re.compile(r"copy_(plain|stream)"), calibrate.build_copy),
]


def build(name: str, isa: ISA) -> ir.Module:
    """IR module holding the function ``name``."""
    for pattern, builder in BUILDERS:
        if pattern.fullmatch(name):
            module = ir.Module(name)
            module.triple = isa.triple
            builder(module, name, isa)
            return module
    raise KeyError(f"no generator for kernel {name!r}")


def compile_kernel(name: str, isa: ISA) -> bytes:
    """Its object file; its texts where `EINSUM_ENGINE_DUMP` says."""
    module = build(name, isa)
    dump = config.get("EINSUM_ENGINE_DUMP")
    if dump:
        Path(dump).mkdir(parents=True, exist_ok=True)
        (Path(dump) / f"{name}_{isa.name}.ll").write_text(str(module))
        (Path(dump) / f"{name}_{isa.name}.s").write_text(codegen.assembly(module, isa))
    return codegen.compile_object(module, isa)
