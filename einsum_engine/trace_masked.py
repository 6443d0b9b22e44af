"""Elements under a traced mask, ``a[a > 0]``: how many there are depends on data, so all of ``a`` is computed with.

A `Masked` array goes through element-wise work with scalars and with elements under the same mask, back to the places
of the mask (``a[m] += b[m]`` is a select), and into sums and means. Whatever needs its shape is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import EngineAttributeError, EngineTypeError
from .ir import Atom
from .trace import Tracer, current, fresh, numpy_name
from .trace_lines import located, placed, source_line
from .trace_store import write_where

HINT = (
    "a traced mask as index: how many elements it takes depends on data; use engine.where, or assign what has the same "
    "mask, a[mask] = b[mask] + 1, or one value; .sum() and .mean() are known too"
)
_SUMS = (np.sum, np.prod, np.mean, np.any, np.all)


class Masked(np.lib.mixins.NDArrayOperatorsMixin):
    """The elements of ``whole`` where ``mask`` holds; ``mask`` has the leading axes of ``whole``."""

    __slots__ = ("whole", "mask", "where")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 2000
    is_masked = True

    def __init__(self, whole: Tracer, mask: Tracer) -> None:
        self.whole, self.mask, self.where = whole, mask, source_line()

    @property
    def dtype(self) -> np.dtype:
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        return 1 + self.whole.ndim - self.mask.ndim

    def __repr__(self) -> str:
        return f"<traced elements of {self.whole!r} under a mask, {self.where}>"

    def refusal(self, what: str) -> EngineTypeError:
        """The error where the number of elements would be needed."""
        return placed(EngineTypeError(f"{what}, {self.where}: {HINT} (operands {self.whole!r}, {self.mask!r})"))

    def wide_mask(self) -> Tracer:
        """The mask with the axes of ``whole``."""
        return self.mask.derive(lambda view: view.expand(range(view.ndim, self.whole.ndim)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        name = numpy_name(ufunc)
        if method != "__call__" or (out is not None and out[0] is not self) or ufunc.nout > 1 or ufunc is np.matmul:
            raise self.refusal(name if method == "__call__" else f"{name}.{method}")
        with located(name, *inputs):
            made = ufunc(*(self._beside(x, name) for x in inputs), **kwargs)
        if out is None:
            return Masked(made, self.mask)
        self.whole = made.astype(self.dtype, casting="same_kind", copy=False)
        return self

    def _beside(self, operand: Any, name: str) -> Any:
        """An operand for all elements: a scalar, or elements under the same mask."""
        if not isinstance(operand, Masked):
            if np.ndim(operand):
                raise self.refusal(name)
            return operand
        if operand.whole.shape != self.whole.shape or not same(operand.mask.read(), self.mask.read()):
            raise self.refusal(name)
        return operand.whole

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        axis = kwargs.get("axis", args[1] if len(args) > 1 else None)
        if function not in _SUMS or args[0] is not self or (axis is not None and self.ndim > 1):
            raise self.refusal(numpy_name(function))
        kwargs.pop("axis", None)
        mask = self.wide_mask() if self.ndim > 1 else self.mask
        return function(self.whole, None, *args[2:], **kwargs, where=np.broadcast_to(mask, self.whole.shape))

    def astype(self, *args: Any, **kwargs: Any) -> Masked:
        """The same elements in another dtype."""
        return Masked(self.whole.astype(*args, **kwargs), self.mask)

    def copy(self, order: str = "C") -> Masked:
        """The same elements."""
        return Masked(self.whole, self.mask)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise self.refusal("conversion to an array")

    def __len__(self) -> int:
        raise self.refusal("len()")

    def __getitem__(self, key: Any) -> Any:
        raise self.refusal("indexing")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self.refusal("assignment to an index")

    def __getattr__(self, name: str) -> Any:
        raise EngineAttributeError(f".{name}, {self.where}: {HINT} (operands {self.whole!r}, {self.mask!r})")


def _sum(function: Any) -> Callable[..., Any]:
    def method(self: Masked, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = function.__name__, f"`numpy.ndarray.{function.__name__}`."
    return method


for _function in _SUMS:
    setattr(Masked, _function.__name__, _sum(_function))


def take(array: Tracer, mask: Tracer) -> Masked:
    """``array[mask]``: the elements as they are now."""
    return Masked(fresh(array.read()), fresh(mask.read()))


def put(array: Tracer, mask: Tracer, value: Masked) -> None:
    """``array[mask] = value``, of elements under the same mask."""
    if value.whole.shape != array.shape or not same(value.mask.read(), mask.read()):
        raise value.refusal("assignment of elements under another mask")
    write_where(array, value.wide_mask(), value.whole.astype(array.dtype, copy=False))


def same(one: Atom, two: Atom) -> bool:
    """Whether two values are one, or made by the same maps of the same ones: ``a > 0`` written twice."""
    if one == two:
        return True
    first, second = current().builder.source(one), current().builder.source(two)
    if first is None or second is None or len(first.outputs) > 1:
        return False
    alike = first.op == second.op and first.params == second.params and len(first.inputs) == len(second.inputs)
    return alike and not first.op.startswith("random") and all(map(same, first.inputs, second.inputs))
