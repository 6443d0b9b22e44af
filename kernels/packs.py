"""What packing may convert on the way, as data: the names of the pack kernels.

A panel holds elements of the dtype that a GEMM computes in. Its source may be of a narrower one: elements are widened
between load and store, so that no step before reads and writes the operand. `kernel` is the name for a pair of dtypes,
`names` are those that warm-up compiles.
"""

from __future__ import annotations

from functools import lru_cache

from .cpu.storage import STORAGES, Storage, canonical_pair, moves
from .tiles import DTYPES

ITEM_SIZES = (1, 2, 4, 8, 16)


def widens(source: str, dtype: str) -> bool:
    """Whether panels of ``dtype`` may be packed from ``source`` elements of other bits: where NumPy calls the cast
    safe. Complex panels have complex sources.

    >>> widens("float16", "float32"), widens("int32", "float32"), widens("float32", "float32")
    (True, False, False)
    """
    a, b = STORAGES[source], STORAGES[dtype]
    return a.parts == b.parts and not moves(source, dtype) and b.kind != "b" and _digits(a, b)


def _digits(a: Storage, b: Storage) -> bool:
    """Whether ``b`` holds what ``a`` does; float64 takes integers of any width, as in NumPy."""
    if a.floating:
        return b.kind == "f" and b.bits > a.bits
    return b.bits > a.bits or (b.kind == "f" and b.bits == 64)


@lru_cache(maxsize=None)
def kernel(source: str, dtype: str) -> str:
    """Name of the kernel that packs elements of ``source`` into panels of ``dtype``.

    >>> kernel("bfloat16", "float32"), kernel("bool", "int64"), kernel("uint32", "int32")
    ('pack_bfloat16_float32', 'pack_uint8_int64', 'pack_4')
    """
    if moves(source, dtype):
        return f"pack_{STORAGES[dtype].itemsize}"
    return "pack_{}_{}".format(*canonical_pair(source, dtype))


def names() -> tuple[str, ...]:
    """Every pack kernel: moving elements of each size, and each widening."""
    pairs = [(source, dtype) for dtype in DTYPES for source in STORAGES if widens(source, dtype)]
    return tuple(dict.fromkeys([*(f"pack_{size}" for size in ITEM_SIZES), *(kernel(*pair) for pair in pairs)]))
