"""Exceptions of the engine.

One base class, `EngineError`; each concrete class also derives from the builtin that NumPy would raise,
so `except ValueError` written for `np.einsum` keeps working.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class EngineValueError(EngineError, ValueError):
    """A value that has no meaning: wrong rank, sizes that disagree, malformed subscripts, unknown option."""


class EngineTypeError(EngineError, TypeError):
    """An operand or option of a type that the engine does not accept."""


class EngineMemoryError(EngineError, MemoryError):
    """Memory that could not be had; the message names the bytes."""


class EngineIndexError(EngineError, IndexError):
    """An index or axis outside the shape; the message names index, axis and size."""


class EngineAxisError(EngineIndexError, ValueError):
    """An axis outside the shape, which is both to NumPy too."""


class EngineAttributeError(EngineError, AttributeError):
    """A method or attribute of NumPy's arrays that traced arrays do not have."""


class EngineProgramError(EngineError, ValueError):
    """A program that breaks a rule of the IR; the message shows the equation between its neighbours."""
