"""Layouts that planners give to free operands: rows that are read in place, and panels (FBL)."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Iterable, Mapping, NamedTuple, Sequence

from ..plan import Axis, Index, Layout, linear_axes
from .sides import Dim, Panels


class Given(NamedTuple):
    """A layout given to a value: its axes, what they make up, and the bytes they span (0: no gaps)."""

    axes: Mapping[Index, Axis]
    kind: str = "strided"
    panel: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, layout: Layout) -> "Given":
        """What a planner decided on."""
        nbytes = max(layout.itemsize, _extent(layout.axes, layout.itemsize, layout.panel))
        axes = {axis.index: axis for axis in layout.axes}
        return cls(axes=axes, kind=layout.kind, panel=layout.panel, nbytes=nbytes)

    def renamed(self, names: Mapping[Index, Index]) -> "Given":
        """The same for other indices."""
        axes = {names[index]: axis.renamed(names[index]) for index, axis in self.axes.items()}
        return Given(axes=axes, kind=self.kind, panel=self.panel, nbytes=self.nbytes)


def _extent(axes: tuple[Axis, ...], item: int, panel: int) -> int:
    """Bytes from the first element to the end of the last panel."""
    last = item * max(panel, 1)
    for axis in axes:
        top = axis.size - 1
        if axis.linear:
            last += top * axis.stride
        else:
            last += top // axis.tile * axis.outer + (axis.tile - 1) * axis.stride
    return last


def dense_axes(indices: Iterable[Index], sizes: Mapping[Index, int], item: int) -> Mapping[Index, Axis]:
    """Contiguous axes, first index fastest."""
    indices = tuple(indices)
    return _dense_axes(indices, tuple(map(sizes.__getitem__, indices)), item)


@lru_cache(maxsize=1024)
def _dense_axes(indices: tuple[Index, ...], lengths: tuple[int, ...], item: int) -> Mapping[Index, Axis]:
    """One object for all values that lie so: where an expression comes with other sizes, most of them have theirs again."""
    strides = accumulate(lengths[:-1], mul, initial=item)
    if 0 in lengths:
        return {i: Axis.strided(i, size, stride) for i, size, stride in zip(indices, lengths, strides)}
    return linear_axes(indices, lengths, strides)


def row_layout(batch: Sequence[Dim], k: Sequence[Dim], side: Sequence[Dim], item: int) -> Layout:
    """[batch][k][side], the side fastest: rows that are read in place. Dimensions come fastest first, one index each."""
    sizes = {dim.indices[0]: dim.size for dim in (*side, *k, *batch)}
    return Layout(kind="strided", axes=tuple(dense_axes(sizes, sizes, item).values())[::-1], itemsize=item)


def fbl_layout(panels: Panels, batch: Sequence[Dim], k: Sequence[Dim], item: int) -> Layout:
    """[batch][outer][panel][k][lane]: panels as a GEMM walks them, so that it reads them without packing.

    Fixed-block layout (M. Koch, 2023, section 5.2) with blocks that are boxes of whole dimensions times a tile of one
    more, which makes every address a sum of per-dimension tables. ``batch`` and ``k`` come fastest first; dimensions
    hold one index each.
    """
    axes: list[Axis] = []
    stride = item
    for dim in panels.lanes:
        axes.append(Axis.strided(dim.indices[0], dim.size, stride))
        stride *= dim.size
    lane_stride, stride = stride, panels.width * item
    for dim in k:
        axes.append(Axis.strided(dim.indices[0], dim.size, stride))
        stride *= dim.size
    if panels.cut is not None:
        axes.append(_cut_axis(panels, lane_stride, stride))
        stride *= panels.cuts
    for dim in (*panels.rest[::-1], *panels.outer[::-1], *batch):
        axes.append(Axis.strided(dim.indices[0], dim.size, stride))
        stride *= dim.size
    return Layout(kind="fbl", axes=tuple(axes[::-1]), itemsize=item, panel=panels.width)


def _cut_axis(panels: Panels, lane_stride: int, panel_stride: int) -> Axis:
    """Axis of the dimension that is cut: within a panel by lanes, from panel to panel by their distance."""
    cut = panels.cut
    if panels.cuts == 1:
        return Axis.strided(cut.indices[0], cut.size, lane_stride)
    return Axis(index=cut.indices[0], size=cut.size, stride=lane_stride, tile=panels.tile, outer=panel_stride)
