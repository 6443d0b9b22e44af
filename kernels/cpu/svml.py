"""Functions that Intel's vector library (SVML) computes sooner than `mathlib` and its neighbours, where it is installed
(package `intel-cmplr-lib-rt`). What calls them is `mathsvml`; nothing here loads LLVM.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from ... import config
from ...errors import EngineError
from ..isa import ISA

# By instruction set and bits of a float: what was measured to be sooner over the usual range, and nowhere much later
# (docs/performance-fused.md). Many functions of the library take what is special to them (0, denormals, infinities, NaN)
# one element after the other, up to a hundred times as long: they are not here. SSE2 is for processors without more, and
# the library would choose instructions by the processor.
ROWS = {
    ("avx512", 32): {"log2", "log10", "cbrt", "pow"},
    ("avx512", 64): {"log2", "log10", "cbrt", "sin", "cos"},
    ("avx2", 32): {"erf", "sin"},
    ("avx2", 64): {"erf"},
}

_NEEDED = "libintlc.so.5"  # by `libsvml.so`, which does not say where it is


def used() -> bool:
    """Whether kernels made now call the library."""
    return config.get("EINSUM_ENGINE_SVML") and library() is not None


@cache
def library() -> Path | None:
    """Where the library is: a package's own libraries lie two folders above its modules."""
    if sys.platform != "linux":
        return None
    folders = (Path(entry).parent.parent for entry in sys.path if entry.endswith("-packages"))
    found = (folder / "libsvml.so" for folder in folders)
    return next((path for path in found if path.is_file() and path.with_name(_NEEDED).is_file()), None)


@cache
def _loaded() -> ctypes.CDLL:
    path = library()
    if path is None:
        raise EngineError("a kernel calls libsvml.so, which is not installed (package intel-cmplr-lib-rt)")
    try:
        ctypes.CDLL(str(path.with_name(_NEEDED)))
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"{path} cannot be loaded ({error}): set EINSUM_ENGINE_SVML=0") from error


def address(symbol: str) -> int:
    """Of a function of the library, which is loaded when the first kernel that calls it is."""
    return ctypes.cast(getattr(_loaded(), symbol), ctypes.c_void_p).value


def serves(op: str, bits: int, isa: ISA) -> bool:
    """Whether kernels made now call the library for an operation of floats of so many bits."""
    return op in ROWS.get((isa.name, bits), ()) and used()
