"""The methods and attributes of NumPy's arrays that traced arrays have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from .avals import known_dtype
from .errors import EngineTypeError, EngineValueError
from .trace import FUNCTIONS, Component, Tracer, cast_atom, complete, emit, fresh, whole_root
from .trace_functions import full
from .trace_lines import located
from .trace_shapes import copied, flattened, laid_out, only_fortran, reshape

# Method -> NumPy's function of the same arguments.
_SAME = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "any": np.any,
    "all": np.all,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "round": np.round,
    "clip": np.clip,
    "take": np.take,
    "put": np.put,
    "argsort": np.argsort,
    "swapaxes": np.swapaxes,
    "squeeze": np.squeeze,
    "diagonal": np.diagonal,
    "trace": np.trace,
    "ravel": np.ravel,
    "dot": np.dot,
    "repeat": np.repeat,
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "searchsorted": np.searchsorted,
    "choose": np.choose,
}


def _method(name: str, function: Any) -> Callable[..., Any]:
    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        with located(f".{name}()", self):
            return FUNCTIONS[function](self, *args, **kwargs)

    method.__name__, method.__doc__ = name, f"`numpy.ndarray.{name}`."
    return method


def _own(name: str, mine: Callable[..., Any]) -> Callable[..., Any]:
    """A method that NumPy has no function for."""
    mine = complete(mine)

    @wraps(mine)
    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        with located(f".{name}()", self):
            return mine(self, *args, **kwargs)

    return method


def _reshape(self: Tracer, *shape: Any, order: str = "C", copy: Any = None) -> Tracer:
    return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)


def _transpose(self: Tracer, *axes: Any) -> Tracer:
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
    return self.derive(lambda view: view.transpose(order))


def _astype(
    self: Tracer, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
) -> Tracer:
    wanted = known_dtype(dtype, "the result")
    if wanted == self.dtype:
        return copied(self, order) if copy or not _is_laid_out(self, order) else self
    if not np.can_cast(self.dtype, wanted, casting):
        raise EngineTypeError(f"cannot cast from {self.dtype} to {wanted} with casting rule {casting!r}")
    found = fresh(cast_atom(self.read(), wanted), laid_out(order, self.shape, wanted.itemsize, self))
    found.scalar = self.scalar
    return found


def _is_laid_out(self: Tracer, order: str | None) -> bool:
    """Whether memory is in this order, so that NumPy makes no copy for it."""
    if order == "A":
        return _is_laid_out(self, "C") or only_fortran(self)
    memory = self.memory.transpose(None) if order == "F" else self.memory
    return order in ("K", None) or memory.is_contiguous(self.itemsize)


def _copy(self: Tracer, order: str = "C") -> Tracer:
    return copied(self, order)


def _flatten(self: Tracer, order: str = "C") -> Tracer:
    return reshape(self, -1, order, copy=True)


def _fill(self: Tracer, value: Any) -> None:
    self.write(value)


def _view(self: Tracer, dtype: Any = None, type: Any = None) -> Tracer:
    if type is not None or (dtype is not None and np.dtype(dtype) != self.dtype):
        raise EngineTypeError(f"the bits of {self.dtype} as {type or dtype}: not supported in a traced function")
    return self.derive(lambda view: view)


def _sort(self: Tracer, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
    self.write(np.sort(self, axis=axis, kind=kind, order=order, stable=stable))


def _rounded(self: Tracer, ndigits: int | None = None) -> Tracer:
    if ndigits is None:
        raise self._needs_value("round()", "np.round and np.rint keep it an array")
    return np.round(self, ndigits)


def _conj(self: Tracer) -> Tracer:
    """Of real numbers NumPy's method, unlike the function, is the array itself."""
    return np.conjugate(self) if self.dtype.kind == "c" else self


def _component(name: str) -> property:
    def get(self: Tracer) -> Tracer:
        with located(f".{name}", self):
            if self.dtype.kind == "c":
                component = Component(self, name)
                return fresh(emit(name, self.read())) if self.scalar else whole_root(component, memory=self.memory)
            if name == "real":
                return self
            found = full(self.shape, self.dtype.type(0), self.dtype, laid_out("K", self.shape, self.itemsize, self))
            found.scalar, found.locked = self.scalar, ".imag of a real array is read-only"
            return found

    def put(self: Tracer, value: Any) -> None:
        with located(f".{name} =", self):
            raise EngineValueError(f".{name} of a traced array cannot be written: write the complex value")

    return property(get, put, doc=f"The {name} part.")


def _delete(self: Tracer, key: Any) -> None:
    with located("del", self):
        raise EngineValueError("an array has no elements to delete: np.delete makes one without them")


class Flat:
    """`numpy.ndarray.flat`: what is taken is a copy; what is assigned goes to the array."""

    def __init__(self, array: Tracer) -> None:
        self.array = array

    def __getitem__(self, key: Any) -> Any:
        return copied(flattened(self.array)[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        found = flattened(self.array)
        found[key] = value
        if found.root is not self.array.root:  # a copy
            self.array.check_distinct()
            self.array.write(reshape(found, self.array.shape))

    def __iter__(self) -> Iterator[Tracer]:
        return iter(flattened(self.array))

    def __len__(self) -> int:
        return self.array.size


for _name, _function in _SAME.items():
    setattr(Tracer, _name, _method(_name, _function))
for _made in (_reshape, _transpose, _astype, _copy, _flatten, _fill, _view, _sort, _conj):
    setattr(Tracer, _made.__name__[1:], _own(_made.__name__[1:], _made))
Tracer.__delitem__ = _delete  # type: ignore[attr-defined]
Tracer.__copy__ = lambda self: copied(self, "K")  # type: ignore[attr-defined]
Tracer.__deepcopy__ = lambda self, memo: copied(self, "K")  # type: ignore[attr-defined]
Tracer.__round__ = _rounded  # type: ignore[attr-defined]
Tracer.conjugate = Tracer.conj  # type: ignore[attr-defined]
Tracer.flat = property(Flat, doc="All elements in C order.")  # type: ignore[attr-defined]
Tracer.T = property(lambda self: self.transpose(), doc="The axes reversed.")  # type: ignore[attr-defined]
Tracer.mT = property(lambda self: np.matrix_transpose(self), doc="The last two axes exchanged.")  # type: ignore[attr-defined]
Tracer.real, Tracer.imag = _component("real"), _component("imag")  # type: ignore[attr-defined]
