"""The options of `einsum` and `compile`: one table, checked once, hashable so that plans can be looked up by them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any, Callable, Iterable, Mapping, TypedDict

import numpy as np

from . import config, dtypes
from .errors import EngineTypeError, EngineValueError
from .memory import NO_LIMIT, MemoryLimit, parse_memory_limit
from .planners.objective import checked
from .records import changed, quick


class CallOptions(TypedDict, total=False):
    """The keywords of `einsum` besides ``out=``, for type checkers; `einsum` says what they mean."""

    dtype: Any
    casting: str
    order: str
    optimize: Any
    alpha: Any
    beta: Any
    conj: Any
    strict: bool
    accumulate: Any
    copy: bool
    threads: int | None
    memory_limit: int | str | None
    max_time: float | None
    minimize: Any


class CompileOptions(CallOptions, total=False):
    """The keywords of `compile`."""

    dtypes: Any
    constants: Any
    backend: str
    layouts: str
    profile: bool


@quick
@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options. ``dtype`` and ``accumulate`` are NumPy dtypes, ``conj`` sorted operand positions; ``profile``,
    which only `compile` takes, has every call measured."""

    dtype: np.dtype | None = None
    casting: str = "safe"
    order: str = "C"
    optimize: Any = "auto"
    alpha: Any = 1
    beta: Any = 0
    conj: tuple[int, ...] = ()
    strict: bool = False
    accumulate: np.dtype | None = None
    copy: bool = False
    threads: int | None = None
    memory_limit: MemoryLimit = NO_LIMIT
    max_time: float | None = None
    layouts: str = "solve"  # of `compile` alone
    minimize: Any = "flops"
    profile: bool = False

    @property
    def native(self) -> bool:
        """Whether the result is the plan's, in native byte order."""
        return self.dtype is None or self.dtype.isnative

    def replace(self, **changes: Any) -> "Options":
        """A copy with some fields changed."""
        return changed(self, **changes)


DEFAULT = Options()


def parse_options(options: Mapping[str, Any], function: str, also: tuple[str, ...] = ()) -> Options:
    """Checked options of a call of ``function``; ``also`` names keywords that its own code reads.

    EngineTypeError lists the valid names where one is unknown.
    """
    if not options:
        return DEFAULT
    for name in options:
        if name not in CHECKS:
            valid = ", ".join(sorted((*CHECKS, *also)))
            raise EngineTypeError(f"{function}() has no option {name!r}; its options are {valid}")
    return Options(**{name: CHECKS[name](value) for name, value in options.items()})


def _dtype(name: str) -> Callable[[Any], np.dtype | None]:
    def check(value: Any) -> np.dtype | None:
        return None if value is None else dtypes.to_dtype(value, f"{name}=")

    return check


def _one_of(name: str, values: tuple[str, ...], default: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value is None:
            return default
        if not isinstance(value, str):
            raise EngineTypeError(f"{name}={value!r}: expected one of {', '.join(values)}, not {type(value).__name__}")
        found = value if value in values else value.upper()
        if found not in values:
            raise EngineValueError(f"{name}={value!r}: expected one of {', '.join(values)}")
        return found

    return check


def check_flag(name: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, (bool, np.bool)):
            raise EngineTypeError(f"{name}={value!r}: expected True or False, not {type(value).__name__}")
        return bool(value)

    return check


def parse_factor(name: str, value: Any) -> Any:
    """``alpha`` or ``beta``, a number. EngineTypeError otherwise."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    # A time span is an integer to NumPy, and a text of digits converts to one.
    if not isinstance(value, (Number, np.bool)) or isinstance(value, np.timedelta64):
        raise EngineTypeError(f"{name}={value!r}: expected a number, not {type(value).__name__}")
    return value


def one_or_several(positions: Any) -> Iterable[Any]:
    """Operand positions, given as one integer or as several."""
    if isinstance(positions, np.ndarray):  # which has ``__index__``, whatever its shape
        return positions.ravel().tolist()
    return (positions,) if hasattr(positions, "__index__") else positions


def _positions(value: Any) -> tuple[int, ...]:
    """Operand positions of ``conj=``: an int or several; sorted, each once."""
    if value is None:
        return ()
    try:
        positions = sorted({position.__index__() for position in one_or_several(value)})
    except (TypeError, AttributeError):
        raise EngineTypeError(f"conj={value!r}: expected operand positions, such as 0 or (0, 2)") from None
    if positions and positions[0] < 0:
        raise EngineValueError(f"conj={value!r}: operand position {positions[0]} is negative")
    return tuple(positions)


def _optimize(value: Any) -> Any:
    """Names and objects as they are; a path as tuples, which can be part of a key."""
    if value is None or isinstance(value, (bool, np.bool)):
        return "auto" if value is None or value else False
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if type(value) is tuple and len(value) == 2 and type(value[0]) is list and not isinstance(value[1], (list, tuple)):
        value = value[0]  # what `contract_path` and `einsum_path` return: the path, and what it costs
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) == {tuple}:
            return tuple(value)
        return tuple(tuple(step) if isinstance(step, (list, tuple)) else step for step in value)
    return value


def _threads(value: Any) -> int | None:
    return None if value is None else config.threads(value)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise EngineTypeError(f"max_time={value!r}: expected seconds, not {type(value).__name__}") from None
    if not seconds > 0:
        raise EngineValueError(f"max_time={value!r}: expected more than 0 seconds")
    return seconds


# One row per option: its name and its check, which returns the normalised value.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "dtype": _dtype("dtype"),
    "casting": _one_of("casting", dtypes.CASTINGS, "safe"),
    "order": _one_of("order", ("C", "F", "A", "K"), "C"),
    "optimize": _optimize,
    "alpha": partial(parse_factor, "alpha"),
    "beta": partial(parse_factor, "beta"),
    "conj": _positions,
    "strict": check_flag("strict"),
    "accumulate": _dtype("accumulate"),
    "copy": check_flag("copy"),
    "threads": _threads,
    "memory_limit": parse_memory_limit,
    "max_time": _seconds,
    "minimize": checked,
}
