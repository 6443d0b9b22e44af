"""What a step may find wrong with its operands when a plan runs: kernels tell the context, callers raise it.

Messages are NumPy's own.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from .cpu import abi

# CTX_ERROR -> exception, and its text; %ld stand for the words after CTX_ERROR
FAILURES: MappingProxyType[int, tuple[type[Exception], str]] = MappingProxyType(
    {
        abi.BAD_INDEX: (IndexError, "index %ld is out of bounds for axis %ld with size %ld"),
        abi.NEGATIVE_POWER: (ValueError, "Integers to negative integer powers are not allowed."),
    }
)


def failure(context: np.ndarray) -> Exception | None:
    """The exception that a call left in its context, which forgets it.

    >>> context = np.zeros(abi.CTX_WORDS, np.int64)
    >>> context[abi.CTX_ERROR : abi.CTX_ERROR_SIZE + 1] = abi.BAD_INDEX, 7, 0, 5
    >>> failure(context), failure(context)
    (IndexError('index 7 is out of bounds for axis 0 with size 5'), None)
    """
    code, *values = (int(word) for word in context[abi.CTX_ERROR : abi.CTX_ERROR_SIZE + 1])
    if not code:
        return None
    context[abi.CTX_ERROR] = 0
    kind, text = FAILURES[code]
    return kind(text % tuple(values[: text.count("%ld")]))
