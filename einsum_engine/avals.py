"""What is known of a value before it is computed: shape and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from . import dtypes
from .errors import EngineTypeError


@dataclass(frozen=True)
class Aval:
    """Shape (in elements) and dtype (native byte order) of a value.

    >>> str(Aval((4, 5), np.dtype("float32")))
    'float32[4,5]'
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_NUMBERS = {dtype.type: dtype for dtype in map(np.dtype, "?bhilqBHILQefdFD")}  # the objects that NumPy has for them


def known_dtype(dtype: Any, what: str) -> np.dtype:
    """``dtype`` in native byte order; `EngineTypeError`, opening with ``what``, where programs give it no meaning.

    >>> known_dtype(">f4", "x")
    dtype('float32')
    >>> known_dtype("datetime64[s]", "argument 0")
    Traceback (most recent call last):
    einsum_engine.errors.EngineTypeError: argument 0 has dtype datetime64[s], which has no meaning in a program
    """
    number = _NUMBERS.get(dtype.type) if isinstance(dtype, np.dtype) else None
    if number is not None:
        return number
    try:
        found = dtypes.to_dtype(dtype)
        known = dtypes.row(found).kind != "external"
    except EngineTypeError:
        known = False
    if not known:
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            pass  # shown as it was given
        raise EngineTypeError(f"{what} has dtype {dtype}, which has no meaning in a program")
    return found.newbyteorder("=")
