"""What a result was measured on: CPU, ISA, cores, caches, versions, commit. No host, user or path."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from ..machine_memory import caches
from .threads import available_cpus

_PACKAGES = ("numpy", "llvmlite", "numba", "opt_einsum", "cotengra")
_PACKAGES += ("torch", "jax", "pytblis", "threadpoolctl", "numexpr")


def describe() -> dict[str, Any]:
    """Everything that goes into the head of a result file."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "isa": isa_name(),
        "widest_isa": widest_isa_name(),
        "cores": available_cpus(),
        "caches": caches(),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit(),
    }


def cpu_model() -> str:
    """The CPU's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def isa_name() -> str:
    """The instruction set that kernels are generated for."""
    from ..kernels.isa import active_isa

    return str(active_isa().name)


def widest_isa_name() -> str:
    """The widest one that this machine has: another one was asked for."""
    from ..kernels.isa import host_isas

    return str(host_isas()[0].name)


def versions() -> dict[str, str]:
    """Versions of the engine and of the packages that take part, as far as they are installed."""
    from .. import __version__

    found = {"einsum_engine": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this file is tracked in, with a digest of the changes where files were changed.

    None outside a checkout.
    """
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    revision = _git(here.parent, "rev-parse", "HEAD")
    changes = _git(here.parent, "diff", "HEAD", "--", ":/", ":(exclude,top)bench/results")
    if not changes:
        return revision
    return f"{revision} with changes {hashlib.sha256(changes.encode()).hexdigest()[:8]}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
