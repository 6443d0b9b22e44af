"""The dtypes that kernels read and write: what the bits of one element mean. Pure data, no code generator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Storage:
    """One dtype in memory.

    ``kind``: ``f`` IEEE float, ``h`` float16, ``B`` bfloat16, ``i`` signed, ``u`` unsigned, ``b`` bool (one byte, 0 or
    1); ``bits`` of one part; ``parts``: 2 for complex, real part first; ``compute``: dtype that arithmetic is done in.
    """

    name: str
    kind: str
    bits: int
    parts: int
    compute: str

    @property
    def itemsize(self) -> int:
        return self.bits * self.parts // 8

    @property
    def floating(self) -> bool:
        return self.kind in "fhB"


def _integers() -> list[Storage]:
    rows = []
    for bits in (8, 16, 32, 64):
        rows.append(Storage(name=f"int{bits}", kind="i", bits=bits, parts=1, compute=f"int{bits}"))
        # Wrap-around arithmetic is the same bits, signed or not.
        rows.append(Storage(name=f"uint{bits}", kind="u", bits=bits, parts=1, compute=f"int{bits}"))
    return rows


STORAGES: dict[str, Storage] = {
    row.name: row
    for row in (
        Storage(name="float16", kind="h", bits=16, parts=1, compute="float32"),
        Storage(name="bfloat16", kind="B", bits=16, parts=1, compute="float32"),
        Storage(name="float32", kind="f", bits=32, parts=1, compute="float32"),
        Storage(name="float64", kind="f", bits=64, parts=1, compute="float64"),
        Storage(name="complex64", kind="f", bits=32, parts=2, compute="complex64"),
        Storage(name="complex128", kind="f", bits=64, parts=2, compute="complex128"),
        Storage(name="bool", kind="b", bits=8, parts=1, compute="bool"),
        *_integers(),
    )
}


def canonical_pair(source: str, target: str) -> tuple[str, str]:
    """The pair of dtypes whose conversion has the same bits, so that fewer kernels exist: signs that do not matter
    are dropped.

    >>> canonical_pair("uint8", "uint16"), canonical_pair("int64", "uint8")
    (('uint8', 'int16'), ('int64', 'int8'))
    """
    a, b = STORAGES[source], STORAGES[target]
    if b.kind == "u" and not a.floating:
        target = f"int{b.bits}"
    if a.kind == "b" and b.kind != "b":
        source = "uint8"
    integer = b.kind in "iu" and a.kind in "iu"
    if a.kind == "u" and ((integer and b.bits <= a.bits) or b.kind == "b"):
        source = f"int{a.bits}"
    if source == "uint8" and target in ("int8", "uint8"):
        source = target = "int8"
    return source, target


def moves(source: str, target: str) -> bool:
    """True when converting is copying the bytes.

    >>> moves("int32", "uint32"), moves("bool", "uint8"), moves("uint8", "bool")
    (True, True, False)
    """
    source, target = canonical_pair(source, target)
    return source == target
