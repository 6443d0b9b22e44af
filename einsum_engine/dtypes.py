"""The dtypes of the engine, one row each, and the result dtype by the rules of `np.einsum`.

A byte-swapped array has the row of its native dtype; packing swaps the bytes (`dtype.isnative` tells).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from .errors import EngineTypeError, EngineValueError
from .expr import quoted

CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@dataclass(frozen=True, kw_only=True)
class DTypeRow:
    """How one dtype is contracted.

    ``kind``: ``f c i u b`` as NumPy's, ``half``, ``bf16``, or ``external`` (handed to NumPy). ``itemsize`` in bytes.
    ``compute`` and ``accumulate`` name the dtypes that kernels multiply and sum in; ``part`` is the dtype of both parts
    of a complex.
    """

    name: str
    kind: str
    itemsize: int
    compute: str
    accumulate: str
    part: str = ""
    note: str = ""

    @property
    def real(self) -> str:
        """The real dtype in which kernels multiply and add."""
        return self.part or self.compute


def _row(name: str, kind: str, itemsize: int, compute: str = "", **more: Any) -> DTypeRow:
    compute = compute or name
    return DTypeRow(name=name, kind=kind, itemsize=itemsize, compute=compute, accumulate=compute, **more)


_WRAPS = "same bits as the signed product of this width"
_PACKED = "widened while it is packed, or by a step before; rounded once at the end of the sum"
_LONG = np.dtype("longdouble").itemsize

DTYPES: MappingProxyType[str, DTypeRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            _row("float32", "f", 4),
            _row("float64", "f", 8),
            _row("complex64", "c", 8, part="float32"),
            _row("complex128", "c", 16, part="float64"),
            _row("float16", "half", 2, "float32", note=_PACKED),
            _row("bfloat16", "bf16", 2, "float32", note=_PACKED),
            _row("int8", "i", 1, note="wraps around"),
            _row("int16", "i", 2, note="wraps around"),
            _row("int32", "i", 4, note="wraps around"),
            _row("int64", "i", 8, note="wraps around"),
            _row("uint8", "u", 1, "int8", note=_WRAPS),
            _row("uint16", "u", 2, "int16", note=_WRAPS),
            _row("uint32", "u", 4, "int32", note=_WRAPS),
            _row("uint64", "u", 8, "int64", note=_WRAPS),
            _row("bool", "b", 1, note="or of ands"),
            _row("longdouble", "external", _LONG, "external", note="np.einsum"),
            _row("clongdouble", "external", 2 * _LONG, "external", part="longdouble", note="np.einsum"),
            _row("object", "external", 8, "external", note="np.einsum"),
        )
    }
)

_BY_CHAR = {np.dtype(name).char: row for name, row in DTYPES.items() if name != "bfloat16"}
# C has more integer types than widths: both names of one width share its row.
_BY_CHAR |= {char: DTYPES[f"{'u' if char.isupper() else ''}int{8 * np.dtype(char).itemsize}"] for char in "bBhHiIlLqQ"}
_known: dict[np.dtype, DTypeRow] = {}
_named: dict[str, np.dtype] = {}  # by the names in DTYPES


def row(dtype: np.dtype | str, position: int | None = None, text: str = "") -> DTypeRow:
    """The row of a NumPy dtype, or of a name in `DTYPES`; the byte order makes no difference.

    Raises `EngineTypeError` naming the operand ``position`` of expression ``text`` for dtypes that are no numbers.

    >>> row(np.dtype(">u4")).compute
    'int32'
    """
    known = _known.get(dtype) if isinstance(dtype, np.dtype) else DTYPES.get(dtype)
    if known is None:
        dtype = np.dtype(dtype)
        known = DTYPES["bfloat16"] if _is_bfloat16(dtype) else _BY_CHAR.get(dtype.char)
        if known is None:
            where = "dtype" if position is None else f"operand {position}{_of(text)} has dtype"
            raise EngineTypeError(f"{where} {dtype}: not a number type; the engine knows {', '.join(DTYPES)}")
        _known[dtype] = known
    return known


def name_of(dtype: np.dtype) -> str:
    """``dtype.name`` of a number type, which NumPy puts together each time."""
    return row(dtype).name


def to_dtype(value: Any, what: str = "dtype=") -> np.dtype:
    """The NumPy dtype of a name (also ``"bfloat16"``), a dtype or scalar type of NumPy or JAX, or a torch dtype.

    The byte order is kept. Raises `EngineTypeError`, its message opening with ``what``, for anything else.

    >>> to_dtype("bfloat16").itemsize
    2
    """
    known = _named.get(value) if value.__class__ is str else None
    if known is not None:
        return known
    name = str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value
    try:
        if value is None:
            raise TypeError
        dtype = _bfloat16() if isinstance(name, str) and name == "bfloat16" else np.dtype(name)
        row(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise EngineTypeError(f"{what}{value!r:.100} is no dtype that the engine knows: {', '.join(DTYPES)}") from None
    if value.__class__ is str and value in DTYPES:
        _named[value] = dtype
    return dtype


def result_type(
    *operands: np.dtype | str, dtype: Any = None, casting: str = "safe", out: Any = None, text: str = ""
) -> np.dtype:
    """The dtype that `np.einsum` computes in, in native byte order.

    That is ``dtype``, to which each operand must be castable by the rule ``casting``; without it, `np.result_type`
    of the operands and of ``out``. The dtype ``out`` must be castable to the result and back, as NumPy asks.
    Raises `EngineTypeError` naming operand, dtypes and expression ``text``; `EngineValueError` for an unknown rule.

    >>> result_type("int32", "float32"), result_type("float32", "complex64")
    (dtype('float64'), dtype('complex64'))
    >>> result_type("float64", "float32", dtype="float32")
    Traceback (most recent call last):
    einsum_engine.errors.EngineTypeError: operand 0 cannot be cast from float64 to float32 according to the rule 'safe'
    """
    wanted = dtype if dtype is None or isinstance(dtype, np.dtype) else to_dtype(dtype)
    try:
        return _result_type(operands, wanted, casting, out)
    except EngineTypeError as error:
        for position, operand in enumerate(operands):
            row(operand, position, text)
        raise EngineTypeError(f"{error}{f', in {quoted(text)}' if text else ''}") from None


@lru_cache(maxsize=1024)
def _result_type(operands: tuple[np.dtype | str, ...], dtype: np.dtype | None, casting: str, out: Any) -> np.dtype:
    if casting not in CASTINGS:
        raise EngineValueError(f"casting={casting!r} is none of {', '.join(CASTINGS)}")
    given = [as_numpy(operand) for operand in operands]
    target = None if out is None else as_numpy(out)
    result = _promote([*given, *([] if target is None else [target])]) if dtype is None else dtype
    result = result.newbyteorder("=")
    named = {f"operand {position}": source for position, source in enumerate(given)}
    for name, source in named.items() if target is None else {**named, "out=": target}.items():
        _check_cast(name, source, result, casting)
    if target is not None:
        _check_cast("the result for out=", result, target, casting)
    return result


def _promote(given: list[np.dtype]) -> np.dtype:
    names = ", ".join(dict.fromkeys(row(dtype).name for dtype in given))
    try:
        return np.result_type(*given)
    except TypeError:
        raise EngineTypeError(f"no dtype holds all of {names}: give dtype= and casting=, or convert some") from None


def _check_cast(name: str, source: np.dtype, target: np.dtype, casting: str) -> None:
    if not np.can_cast(source, target, casting):
        raise EngineTypeError(f"{name} cannot be cast from {source} to {target} according to the rule {casting!r}")


def accumulate_type(result: np.dtype | str, accumulate: Any = None, text: str = "") -> str:
    """The kernel dtype in which sums for ``result`` are made: the table's, or that of the wider ``accumulate``.

    Raises `EngineTypeError` where ``accumulate`` does not hold every value of ``result``.

    >>> accumulate_type("float16"), accumulate_type("float32", "float64"), accumulate_type("uint8", "uint32")
    ('float32', 'float64', 'int32')
    """
    base = row(result)
    if accumulate is None:
        return base.accumulate
    wide = to_dtype(accumulate, "accumulate=")
    if not np.can_cast(as_numpy(result), wide, "safe"):
        raise EngineTypeError(f"accumulate={wide} does not hold every value of the result {base.name}{_of(text)}")
    return row(wide).accumulate


def as_numpy(dtype: np.dtype | str) -> np.dtype:
    """The NumPy dtype of a name in `DTYPES`; a NumPy dtype is returned as it is."""
    if isinstance(dtype, np.dtype):
        return dtype
    return _bfloat16() if dtype == "bfloat16" else np.dtype(dtype)


@lru_cache(maxsize=1)
def _bfloat16() -> np.dtype:
    import ml_dtypes  # only for arrays that have it

    return np.dtype(ml_dtypes.bfloat16)


def _is_bfloat16(dtype: np.dtype) -> bool:
    return dtype.name == "bfloat16" and dtype == _bfloat16()


def _of(text: str) -> str:
    return f" of {quoted(text)}" if text else ""
