"""Where the values of a program lie: views, in bytes, of memory.

An access is no step: it is a place in the memory of what it reads. A value that is written in place has the place of
the version before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..plan import Axis
from ..views import View
from .operations import Value, itemsize


@dataclass(frozen=True, eq=False)
class MemoryView:
    """A view, in bytes, of the memory of a value of the plan."""

    memory: Value
    view: View

    @property
    def dtype(self) -> str:
        return self.memory.dtype

    def part(self, view: View) -> MemoryView | None:
        """``view``, of the elements in C order, as a place; None where it is none."""
        found = self.view.then(view)
        return None if found is None else MemoryView(self.memory, found)

    def broadcast(self, shape: tuple[int, ...]) -> MemoryView:
        return MemoryView(self.memory, self.view.broadcast(shape))

    def same(self, other: MemoryView) -> bool:
        """Whether both are the same bytes under the same indices."""
        return self.memory is other.memory and self.view.canonical() == other.view.canonical()

    def overlaps(self, other: MemoryView) -> bool:
        """Whether both have an element in common."""
        return self.memory is other.memory and self.view.overlaps(other.view)

    @property
    def whole(self) -> bool:
        """Whether it is all of its memory, in C order."""
        item = itemsize(self.dtype)
        return self.view.offset == 0 and self.view.is_contiguous(item) and self.view.size * item == self.memory.nbytes


def strided_value(number: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, kind: str) -> Value:
    """A value with memory of its own, its indices called by their numbers."""
    term, axes = strided_axes(shape, strides)
    nbytes = itemsize(dtype) * prod(shape)
    return Value(number=number, term=term, dtype=dtype, kind=kind, axes=axes, nbytes=nbytes)


def strided_axes(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[str, ...], dict[str, Axis]]:
    """Names of the indices, and their axes."""
    term = tuple(f"x{axis}" for axis in range(len(shape)))
    return term, {index: Axis.strided(index, n, s) for index, n, s in zip(term, shape, strides)}
