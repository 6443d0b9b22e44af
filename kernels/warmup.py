"""Fills the kernel cache, so that no later process compiles anything."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from .. import config
from . import diskcache
from .isa import ISA, active_isa, get
from .registry import kernel_names


def warmup(isa: ISA | None = None, progress: bool = False) -> int:
    """Compiles what the cache lacks for ``isa`` (default: the active one); the number of kernels compiled.

    The compiler is serial within a process, so each CPU gets a process of its own. ``progress`` shows a bar.
    RuntimeError where such a process fails.
    """
    isa = isa or active_isa()
    names = missing(isa)
    workers = min(config.threads(), -(-len(names) // 8))
    with _bar(len(names), isa, progress) as bar, ThreadPoolExecutor(max(workers, 1)) as executor:
        # neighbours in the table take about as long as each other: deal them out in turn
        shares = [names[i::workers] for i in range(workers)]
        for _ in executor.map(lambda share: _compile_share(share, isa, bar), shares):
            pass
    return len(names)


def missing(isa: ISA) -> list[str]:
    """Names of the kernels that the cache lacks."""
    from .cpu import library

    folder = diskcache.folder(isa.name, library.source_digest())
    return [name for name in kernel_names(isa) if diskcache.read(folder / f"{name}.o") is None]


def _compile_share(names: list[str], isa: ISA, bar) -> None:
    command = [sys.executable, "-m", __name__, isa.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("\n".join(names))
        process.stdin.close()
        for _ in process.stdout:
            bar.update(1)
    if process.returncode:
        raise RuntimeError(f"compiling kernels for {isa.name} ended with status {process.returncode}")


def _bar(total: int, isa: ISA, progress: bool):
    from tqdm import tqdm

    return tqdm(total=total, unit="kernel", desc=f"compiling for {isa.name}", disable=not progress)


def main() -> None:
    """Worker: compiles the kernels named on standard input, one line of output each."""
    from .cpu import library

    isa = get(sys.argv[1])
    kernel_names(isa)  # from now on, structures are known by their names
    # A module is a web of objects: to look for garbage as often as Python does costs a fifth of the time to write one.
    gc.freeze()
    gc.set_threshold(5000)
    for name in sys.stdin.read().split():
        library.store(name, isa)
        print(name, flush=True)


if __name__ == "__main__":
    main()
