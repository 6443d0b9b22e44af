"""Layouts that planners give to free operands: rows that are read in place, and panels (FBL)."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from ..plan import Axis, Index, Layout
from .sides import Dim, Panels


def strided_layout(order: Sequence[tuple[Index, int]], item: int) -> Layout:
    """Contiguous layout, first index slowest."""
    axes: list[Axis] = []
    stride = item
    for index, size in reversed(order):
        axes.append(Axis.strided(index, size, stride))
        stride *= size
    return Layout(kind="strided", axes=tuple(axes[::-1]), itemsize=item)


def dense_axes(indices: Iterable[Index], sizes: Mapping[Index, int], item: int) -> dict[Index, Axis]:
    """Contiguous axes, first index fastest."""
    layout = strided_layout([(index, sizes[index]) for index in indices][::-1], item)
    return {axis.index: axis for axis in reversed(layout.axes)}


def row_layout(batch: Sequence[Dim], k: Sequence[Dim], side: Sequence[Dim], item: int) -> Layout:
    """[batch][k][side], the side fastest: rows that are read in place. Dimensions come fastest first, one index each."""
    order = [*batch[::-1], *k[::-1], *side[::-1]]
    return strided_layout([(d.indices[0], d.size) for d in order], item)


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
