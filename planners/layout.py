"""Layouts that planners give to free operands: rows that are read in place, and panels (FBL)."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Iterable, Mapping, NamedTuple, Sequence

from ..plan import Axis, Index, Layout, linear_axes
from .sides import Dim, Panels, total


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


class BlocksOfK(NamedTuple):
    """How K is cut in blocks: each has ``whole`` dimensions, the fastest, and ``tile`` of the next one."""

    whole: int
    tile: int
    terms: int


def blocks_of_k(k: Sequence[Dim], most: int) -> BlocksOfK | None:
    """The largest blocks of at most ``most`` terms that are boxes: a block begins where a tile does, or no sum of tables
    says where terms are. None where K is one block, and where blocks would be less than half as long: C is read and written
    again for each.

    ``k``: fastest first. Blocks are of one length but for the last, which is shorter where only the slowest dimension is cut.
    """
    sizes = [dim.size for dim in k]
    if total(k) <= most:
        return None
    whole, terms = 0, 1
    while terms * sizes[whole] <= most:
        terms *= sizes[whole]
        whole += 1
    tile, size = most // terms, sizes[whole]
    if total(k[whole:]) == size:
        tile = -(-size // -(-size // tile))
    else:
        tile = next(d for d in range(tile, 0, -1) if size % d == 0)
    return BlocksOfK(whole, tile, terms * tile) if 2 * terms * tile >= most else None


def fbl_layout(
    panels: Panels, batch: Sequence[Dim], k: Sequence[Dim], item: int, blocks: BlocksOfK | None = None
) -> Layout:
    """[batch][outer][panel][k][lane]: panels as a GEMM walks them, so that it reads them without packing.

    Fixed-block layout (M. Koch, 2023, section 5.2) with blocks that are boxes of whole dimensions times a tile of one
    more, which makes every address a sum of per-dimension tables. ``batch`` and ``k`` come fastest first; dimensions
    hold one index each. With ``blocks`` of K, nested in these: [batch][outer][block][panel][k][lane].
    """
    axes: list[Axis] = []
    inside, beyond = (k, ()) if blocks is None else (k[: blocks.whole], k[blocks.whole :])

    def put(dims: Iterable[Dim], stride: int) -> int:
        for dim in dims:
            axes.append(Axis.strided(dim.indices[0], dim.size, stride))
            stride *= dim.size
        return stride

    lane_stride = put(panels.lanes, item)
    term_stride = stride = put(inside, panels.width * item)
    if blocks is not None:
        stride *= blocks.tile
    if panels.cut is not None:
        axes.append(_cut_axis(panels.cut, panels.tile, lane_stride, stride))
        stride *= panels.cuts
    stride = put(panels.rest[::-1], stride)
    if blocks is not None:
        axes.append(_cut_axis(beyond[0], blocks.tile, term_stride, stride))
        stride = put(beyond[1:], stride * -(-beyond[0].size // blocks.tile))
    put((*panels.outer[::-1], *batch), stride)
    kind = "fbl" if blocks is None else "nested"
    return Layout(kind=kind, axes=tuple(axes[::-1]), itemsize=item, panel=panels.width)


def _cut_axis(cut: Dim, tile: int, inside: int, apart: int) -> Axis:
    """Axis of a dimension that is cut: within a tile, and from tile to tile."""
    index = cut.indices[0]
    if tile >= cut.size:
        return Axis.strided(index, cut.size, inside)
    if tile == 1:
        return Axis.strided(index, cut.size, apart)
    return Axis(index=index, size=cut.size, stride=inside, tile=tile, outer=apart)
