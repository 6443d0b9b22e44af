"""Fills the kernel cache, so that no later process compiles anything."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from .. import config
from . import diskcache
from .isa import ISA, active_isa
from .registry import kernel_names


def warmup(isa: ISA | None = None, progress: bool = False) -> int:
    """Compiles what the cache lacks for ``isa`` (default: the active one); the number of kernels compiled.

    LLVM works without the GIL, so as many threads compile as the machine has CPUs. ``progress`` shows a bar.
    """
    from .cpu import library

    isa = isa or active_isa()
    folder = diskcache.folder(isa.name, library.source_digest())
    missing = [name for name in kernel_names(isa) if diskcache.read(folder / f"{name}.o") is None]
    with ThreadPoolExecutor(config.threads()) as executor:
        results = executor.map(lambda name: library.store(name, isa), missing)
        for _ in _bar(results, len(missing), isa) if progress else results:
            pass
    return len(missing)


def _bar(results, total: int, isa: ISA):
    from tqdm import tqdm

    return tqdm(results, total=total, unit="kernel", desc=f"compiling for {isa.name}")
