"""The same number of threads for every library: environment before they load, pools after, and affinity."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Iterator

# Read by the libraries when they load. NPROC is what XLA sizes its CPU pool by.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TBLIS_NUM_THREADS",
    "EINSUM_ENGINE_NUM_THREADS",
    "NPROC",
)
_OTHER_VARIABLES = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


def available_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def equal_threads(threads: int) -> Iterator[list[str]]:
    """Hold every library to ``threads`` threads inside the block.

    Enter it before the peers are imported. All threads of the process are pinned to that many CPUs, so that a pool
    that ignores every setting gains nothing. Yields remarks about what could not be set.
    """
    remarks: list[str] = []
    before = dict(os.environ)
    saved = {name: before.get(name) for name in (*_THREAD_VARIABLES, *_OTHER_VARIABLES)}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)), **_OTHER_VARIABLES)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if affinity is not None and threads < len(affinity):
        _pin(set(sorted(affinity)[:threads]))
    if "jax" in sys.modules:
        remarks.append("jax was imported before: its pool keeps its size")
    limits = _limit_loaded_pools(threads, remarks)
    try:
        yield remarks
    finally:
        if limits is not None:
            limits.restore_original_limits()
        if affinity is not None:
            _pin(affinity)
        for name, value in saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _pin(cpus: set[int]) -> None:
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        try:
            os.sched_setaffinity(int(task), cpus)
        except OSError:
            continue  # a thread that has ended meanwhile


def _limit_loaded_pools(threads: int, remarks: list[str]):  # type: ignore[no-untyped-def]
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        remarks.append("threadpoolctl is not installed: BLAS pools that were loaded before keep their size")
        return None
    import numpy  # noqa: F401  its BLAS must be loaded to be limited

    return threadpool_limits(limits=threads)
