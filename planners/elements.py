"""What planners know of a dtype by its name."""

from __future__ import annotations

from functools import cache

REAL_PART = {"complex64": "float32", "complex128": "float64"}


def same_bits(a: str, b: str) -> bool:
    """Kernels treat both alike: equal, or integers of one width (wrap-around does not know signs)."""
    return a == b or (a.lstrip("u") == b.lstrip("u") and "int" in a and "int" in b)


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype by NumPy name."""
    sizes = {"bool": 1, "float16": 2, "bfloat16": 2}
    if dtype in sizes:
        return sizes[dtype]
    digits = "".join(ch for ch in dtype if ch.isdigit())
    return int(digits) // 8
