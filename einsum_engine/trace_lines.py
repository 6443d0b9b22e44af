"""Errors that name the operation, the user's line and the shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from .avals import Aval
from .errors import (
    EngineAttributeError,
    EngineAxisError,
    EngineError,
    EngineIndexError,
    EngineTypeError,
    EngineValueError,
)

Named = TypeVar("Named", bound=EngineError)

# What NumPy or Python raises of an argument -> the error of the engine that takes its place; the first one counts.
_TAKEN: tuple[tuple[type[Exception], type[EngineError]], ...] = (
    (np.exceptions.AxisError, EngineAxisError),
    (IndexError, EngineIndexError),
    (AttributeError, EngineAttributeError),
    (TypeError, EngineTypeError),
    (ValueError, EngineValueError),
    (ArithmeticError, EngineValueError),
)
_OWN = (str(Path(__file__).parent), str(Path(np.__file__).parent), contextmanager.__code__.co_filename)


def _users_frame() -> FrameType:
    """The innermost frame that belongs neither to the engine nor to NumPy."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def source_line() -> str:
    """``file:line`` of the innermost code that belongs neither to the engine nor to NumPy."""
    frame = _users_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """``file:line`` of the innermost such code that an error came through."""
    found, place = error.__traceback__, ""
    while found is not None:
        name = found.tb_frame.f_code.co_filename
        place = place if name.startswith(_OWN) else f"{name}:{found.tb_lineno}"
        found = found.tb_next
    return place


def placed(error: Named) -> Named:
    """``error``, whose message names operation and line already."""
    error.named = str(error), 0  # type: ignore[attr-defined]
    return error


class located:  # noqa: N801 - used like `contextlib.suppress`
    """Errors of the engine raised inside get the operation ``name``, the user's line and the operands' avals.

    Of operations that are made of others the outermost counts: the one that the user wrote. Every operation goes through
    it: a generator would take three times as long.
    """

    def __init__(self, name: str, *operands: Any) -> None:
        self.name, self.operands = name, operands

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        given, error = error, error if isinstance(error, EngineError) else _taken(error, trace)
        if error is None:
            return
        here = id(_users_frame())  # a frame itself would keep alive what is in it
        message, frame = getattr(error, "named", (str(error), here))
        if frame != here:
            return
        avals = ", ".join(str(Aval(x.shape, x.dtype)) for x in _arrays(self.operands))
        shown = f" (operands {avals})" if avals else ""
        fresh = type(error)(f"{self.name}, {source_line()}: {message}{shown}")
        fresh.named = message, here  # type: ignore[attr-defined]
        raise fresh from (None if given is error else given)


def _taken(error: BaseException, trace: Any) -> EngineError | None:
    """The error of the engine for one that NumPy or Python raised of the arguments: not in the user's own code."""
    made = next((ours for theirs, ours in _TAKEN if isinstance(error, theirs)), None)
    while made is not None and trace is not None:
        made = made if trace.tb_frame.f_code.co_filename.startswith(_OWN) else None
        trace = trace.tb_next
    return None if made is None else made(f"{error}: no such argument in a traced function")


def _arrays(operands: Any) -> Iterator[Any]:
    """The arrays among operands, and in the lists among them."""
    for x in operands:
        if isinstance(x, (list, tuple)):
            yield from _arrays(x)
        elif isinstance(getattr(x, "shape", None), tuple) and isinstance(getattr(x, "dtype", None), np.dtype):
            yield x
