"""Frozen dataclasses that are made by the thousand while a plan is drawn up."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Callable, TypeVar

T = TypeVar("T", bound=type)
R = TypeVar("R")
_LATER = "_later"  # what has all fields that a record was made without
_FACTORY: Any = object()  # the argument that was not given, of a field with a default factory


class Later:
    """Stands for fields that few ask for: the value of each is the attribute of that name, read when somebody does."""

    __slots__ = ()


class _Deferred:
    """A field that may come from a `Later`; once read, it is in the instance, which is looked at first."""

    def __init__(self, name: str) -> None:
        self.name, self.later = name, f"_later_{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError(self.name)  # the field has no default
        known = instance.__dict__
        later = known.get(self.later) or known.get(_LATER)
        if later is None:
            raise AttributeError(self.name)
        found = instance.__dict__[self.name] = getattr(later, self.name)
        return found


def _state(self: Any) -> dict[str, Any]:
    """What is pickled and copied: all fields, none of them later, and nothing `lazy`, which may hold addresses."""
    return {field.name: getattr(self, field.name) for field in fields(self)}


def quick(cls: T) -> T:
    """Gives a frozen dataclass (keyword arguments alone, no ``__post_init__``) an ``__init__`` that stores all fields
    at once. The one that `dataclass` writes calls ``object.__setattr__`` for each, which takes half as long again.

    Fields that the class names in ``LATER`` may be given as a `Later`.

    >>> from dataclasses import dataclass
    >>> @quick
    ... @dataclass(frozen=True, kw_only=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1)
    Point(x=1, y=0)
    """
    names = [field.name for field in fields(cls)]
    scope: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY, "_Later": Later}
    later = cls.__dict__.get("LATER", ())
    parameters, values = [], []
    for field in fields(cls):
        name = field.name
        assert field.kw_only and field.init and not hasattr(cls, "__post_init__"), f"{cls.__name__}.{name}"
        parameter, value = name, name
        if field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not MISSING:
            scope[f"_factory_{name}"] = field.default_factory
            parameter, value = f"{name}=_FACTORY", f"_factory_{name}() if {name} is _FACTORY else {name}"
        parameters.append(parameter)
        key = f"'_later_{name}' if isinstance({name}, _Later) else {name!r}" if name in later else repr(name)
        values.append(f"{key}: {value}")
    body = f"def __init__(self, *, {', '.join(parameters)}):\n    _set(self, '__dict__', {{{', '.join(values)}}})"
    exec(body, scope)  # as `dataclass` itself does
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {name: cls.__annotations__[name] for name in names}
    cls.__init__, cls.__getstate__ = made, _state
    for name in later:
        setattr(cls, name, _Deferred(name))
    return cls


def hashed_once(cls: T) -> T:
    """Has a frozen dataclass keep its hash, for those with thousands of parts, which each look-up would hash again.

    It is pickled without it: texts have other hashes in another process.
    """
    whole = cls.__hash__

    def __hash__(self: Any) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = whole(self)
        return found

    cls.__hash__ = __hash__
    cls.__getstate__ = _state
    return cls


def changed(record: R, **fields: Any) -> R:
    """A quick record with other values in some fields: `dataclasses.replace` in a third of the time.

    What was computed `lazy` stays, and must not depend on those fields.

    >>> from .kernels.row import Row
    >>> changed(Row(words={1: 2}), tasks=3)
    Row(words={1: 2}, tables={}, kernels={}, scratch=0, tasks=3)
    """
    made = object.__new__(record.__class__)
    object.__setattr__(made, "__dict__", {**record.__dict__, **fields})
    return made


def forget(record: Any) -> None:
    """Drops what was computed `lazy`; it is computed again where somebody asks."""
    known = record.__dict__
    for name in known.keys() - record.__dataclass_fields__.keys():
        known.pop(name, None)


def partly(cls: type[R], later: Later, **fields: Any) -> R:
    """A quick record of ``fields`` and defaults, the others from ``later``, as each is asked for: an entry in place of one
    for each field."""
    made = object.__new__(cls)
    fields[_LATER] = later
    object.__setattr__(made, "__dict__", fields)
    return made


class lazy:  # noqa: N801 - used like `functools.cached_property`
    """`functools.cached_property` without its lock: computed at the first use, and kept in the instance.

    Before Python 3.12 that lock is one for all instances, and a process that forks while another thread holds it has a
    child that waits for ever.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.function(instance)
        return found
