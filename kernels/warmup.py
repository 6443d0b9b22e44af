"""Fills the kernel cache, so that no later process compiles anything."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Iterator

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
        waiting = iter(names)  # each worker takes the next: none is idle while there are some
        for _ in executor.map(lambda _: _compile(waiting, isa, bar), range(workers)):
            pass
    return len(names)


def missing(isa: ISA) -> list[str]:
    """Names of the kernels that the cache lacks."""
    from .cpu import library

    return [name for name in kernel_names(isa) if diskcache.read(library.path(name, isa)) is None]


def _compile(waiting: Iterator[str], isa: ISA, bar) -> None:
    """Has a process of its own compile what is waiting, one after the other."""
    # -P: a folder of this name where it is called from, as a clone has, is not the package
    command = [sys.executable, "-P", "-m", __name__, isa.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        with suppress(BrokenPipeError):  # the process ended: its status says why
            for name in waiting:
                process.stdin.write(name + "\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    break
                bar.update(1)
            process.stdin.close()
    if process.returncode:
        raise RuntimeError(f"compiling kernels for {isa.name} ended with status {process.returncode}")


def _bar(total: int, isa: ISA, progress: bool):
    from tqdm import tqdm

    return tqdm(total=total, unit="kernel", desc=f"compiling for {isa.name}", disable=not progress)


def main() -> None:
    """Worker: compiles the kernels named on standard input, and answers each name with it."""
    from .cpu import library

    isa = get(sys.argv[1])
    kernel_names(isa)  # from now on, structures are known by their names
    # A module is a web of objects: to look for garbage as often as Python does costs a fifth of the time to write one.
    gc.freeze()
    gc.set_threshold(5000)
    for line in sys.stdin:
        library.store(line.strip(), isa)
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
