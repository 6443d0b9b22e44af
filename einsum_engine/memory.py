"""Memory limits: what ``memory_limit=`` accepts, and allocation that names its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, Sequence

import numpy as np

from . import machine_memory, recycle
from .config import parse_bytes
from .errors import EngineMemoryError, EngineTypeError, EngineValueError


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """A bound: ``elements`` of the largest intermediate, or ``nbytes`` of `Plan.peak_bytes`; None is no bound.

    ``max_input`` bounds the intermediates by the elements of the largest operand. ``text`` is what the user wrote.
    """

    elements: int | None = None
    nbytes: int | None = None
    max_input: bool = False
    text: str = "None"


NO_LIMIT = MemoryLimit()


def parse_memory_limit(value: Any) -> MemoryLimit:
    """The limit that a user wrote: an int is elements (opt_einsum's meaning), ``"8GiB"`` or ``"80%"`` is bytes.

    ``None`` and ``-1`` are no limit. A percentage is of `machine_memory.total`.

    >>> parse_memory_limit("2MiB").nbytes, parse_memory_limit(1000).elements
    (2097152, 1000)
    """
    if value is None:
        return NO_LIMIT
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, (bool, np.bool)) or not hasattr(value, "__index__"):
        raise EngineTypeError(
            f"memory_limit={value!r}: expected an int (elements of the largest intermediate) or a text such as"
            f" '8GiB' or '80%' (bytes), not {type(value).__name__}"
        )
    number = value.__index__()
    if number == -1:
        return NO_LIMIT
    if number < 1:
        raise EngineValueError(f"memory_limit={number}: expected at least 1 element, or -1 for no limit")
    return MemoryLimit(elements=number, text=str(number))


def _parse_text(text: str) -> MemoryLimit:
    if text.strip() == "max_input":
        return MemoryLimit(max_input=True, text=text)
    percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if percent:
        nbytes = int(machine_memory.total() * float(percent[1]) / 100)
    else:
        try:
            nbytes = parse_bytes(text)
        except EngineValueError:
            raise EngineValueError(
                f"memory_limit={text!r}: expected a size such as '8GiB', a share such as '80%' or 'max_input'"
            ) from None
    if nbytes < 1:
        raise EngineValueError(f"memory_limit={text!r}: expected at least 1 byte")
    return MemoryLimit(nbytes=nbytes, text=text)


def empty(
    shape: tuple[int, ...],
    dtype: np.dtype,
    order: str = "C",
    zero: bool = False,
    beside: Sequence[np.ndarray] = (),
) -> np.ndarray:
    """A fresh array; EngineMemoryError names the bytes where there is no memory for it.

    A large one that need not be zero comes from recycled memory (`recycle`), from a place that goes well with reading
    the arrays ``beside``.
    """
    nbytes = dtype.itemsize * prod(shape)
    if dtype.kind in "biufc":
        dtype = np.dtype(dtype.char)  # the one object that NumPy has for it, which later calls recognise
    try:
        if nbytes >= recycle.SMALLEST and not zero and not dtype.hasobject:
            return recycle.large(shape, dtype, order, beside)
        return (np.zeros if zero else np.empty)(shape, dtype, order)
    except (MemoryError, ValueError):
        # ValueError: more bytes than an address has.
        raise EngineMemoryError(f"no memory for a result of shape {shape} and dtype {dtype}: {nbytes} bytes") from None
