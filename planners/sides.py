"""Dimension groups of one binary contraction, and how a group is cut into panels and lanes.

A `Dim` is one dimension, or several fused ones, with its offset vector in every tensor that has it. `Panels` is the
lanes side of a GEMM: a *box* of the fastest dimensions, the last of them possibly cut, fills the lanes of a panel,
so that every offset stays a sum of per-dimension tables (no carries between remainders at run time).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from ..kernels.gemm import counted, padded
from ..plan import Axis, Index
from ..records import lazy, quick

LEFT, RIGHT, OUT = 0, 1, 2
NO_TABLES: Mapping[int, np.ndarray] = {}
ZERO = np.zeros(1, np.int64)  # the table of no dimension
_FEW = 256  # entries of a table that is kept, since many products have it
SPLIT_ABOVE = 4096  # a longer dimension is cut in two, so that no table grows with the tensor


class Dim(NamedTuple):
    """A dimension with one linear stride (``None``: not linear) or table per tensor; ``free`` tensors have neither."""

    indices: tuple[Index, ...]
    size: int
    strides: Mapping[int, int | None]
    tables: Mapping[int, np.ndarray]

    def stride(self, tensor: int) -> int | None:
        return self.strides.get(tensor)

    def table(self, tensor: int) -> np.ndarray:
        """Byte offsets of the values of this dimension; zeros where the tensor does not have it."""
        found = self.tables.get(tensor) if self.tables else None
        return _multiples(self.size, self.strides.get(tensor) or 0) if found is None else found

    def step(self, tensor: int) -> int:
        """Bytes from its first value to the second one; there are two at least."""
        first, second = self.table(tensor)[:2].tolist()
        return second - first


made_dim = partial(tuple.__new__, Dim)  # of its fields as a tuple: without the call of Python that `Dim` is


@lru_cache(maxsize=1024)
def _few_multiples(size: int, stride: int) -> np.ndarray:
    # One call of NumPy in place of two: on a first plan each takes several times as long as in a loop.
    table = np.arange(0, size * stride, stride) if stride else np.zeros(size, np.int64)
    table.setflags(write=False)  # several plans have it, as all tables that are kept
    return table


@lru_cache(maxsize=2048)
def _few_sums(places: tuple[tuple[int, int], ...]) -> np.ndarray:
    """`flat_table` of dimensions with strides, by their sizes and strides."""
    table = _few_multiples(*places[0])
    for size, stride in places[1:]:
        table = np.add.outer(table, _few_multiples(size, stride)).ravel()
    table.setflags(write=False)
    return table


def _multiples(size: int, stride: int) -> np.ndarray:
    return _few_multiples(size, stride) if size <= _FEW else np.arange(size, dtype=np.int64) * stride


def run_along(dims: Sequence[Dim], tensor: int, item: int) -> int:
    """Entries of a tensor that lie side by side along the first of these dimensions."""
    run = 1
    for dim in dims:
        if dim.stride(tensor) != run * item:
            break
        run *= dim.size
    return run


def axis_table(axis: Axis) -> np.ndarray:
    """``T[i] = (i // tile) * outer + (i % tile) * stride``."""
    i = np.arange(axis.size, dtype=np.int64)
    if axis.linear:
        return i * axis.stride
    return i // axis.tile * axis.outer + i % axis.tile * axis.stride


def learned(dim: Dim, tensor: int, axis: Axis) -> Dim:
    """A dimension of one index that knows its axis in one tensor more."""
    if axis.linear:
        return Dim(dim.indices, dim.size, {**dim.strides, tensor: axis.stride}, dim.tables)
    return Dim(dim.indices, dim.size, {**dim.strides, tensor: None}, {**dim.tables, tensor: axis_table(axis)})


def fused_dims(
    ordered: Sequence[Index],
    sizes: Mapping[Index, int],
    known: Sequence[tuple[int, Mapping[Index, Axis]]],
    whole: bool = True,
) -> list[Dim]:
    """Dimensions of indices (slow to fast) with their axes in tensors whose layouts are known.

    ``whole``: these are all tensors that have the indices, and neighbours that form one linear dimension in every one
    become one.
    """
    out: list[Dim] = []
    for index in ordered:
        indices, size = (index,), sizes[index]
        strides: dict[int, int | None] = {}
        tables: Mapping[int, np.ndarray] = NO_TABLES
        for tensor, axes in known:
            axis = axes[index]
            if axis.tile >= axis.size:
                strides[tensor] = axis.stride
            else:
                strides[tensor] = None
                tables = {**tables, tensor: axis_table(axis)}
        if whole and out and not tables and not out[-1].tables:
            slow = out[-1]
            for tensor in strides:
                if slow.strides[tensor] != strides[tensor] * size:
                    break
            else:
                out.pop()
                indices, size = slow.indices + indices, slow.size * size
        out.append(made_dim((indices, size, strides, tables)))
    return out


def fused_places(
    ordered: Sequence[Index], sizes: Mapping[Index, int], first: Mapping[Index, Axis], second: Mapping[Index, Axis]
) -> tuple[list[tuple[Index, ...]], tuple[tuple[int, int, int], ...]] | None:
    """`fused_dims` of indices of two tensors as numbers: indices of each dimension, its size and strides; None where an axis
    is not linear. Most products are found by these, and no dimensions are made."""
    names: list[tuple[Index, ...]] = []
    places: list[tuple[int, int, int]] = []
    slow_x = slow_y = None
    for index in ordered:
        size = sizes[index]
        _, length, x, tile, _ = first[index]
        _, other, y, tile_y, _ = second[index]
        if tile < length or tile_y < other:
            return None
        if slow_x == x * size and slow_y == y * size:
            names[-1] += (index,)
            places[-1] = places[-1][0] * size, x, y
        else:
            names.append((index,))
            places.append((size, x, y))
        slow_x, slow_y = x, y
    return names, tuple(places)


def split_long(dims: Sequence[Dim]) -> list[Dim]:
    """Cuts linear dimensions longer than SPLIT_ABOVE by a divisor, if they have one of useful size."""
    for dim in dims:
        if dim.size > SPLIT_ABOVE:
            break
    else:
        return list(dims)
    out: list[Dim] = []
    for dim in dims:
        inner = divisor(dim.size) if dim.size > SPLIT_ABOVE and not dim.tables else 0
        out += cut(dim, inner)[::-1] if inner else [dim]
    return out


def cut(dim: Dim, inner: int) -> list[Dim]:
    """``dim`` as ``inner`` values and the turns of those, fast and slow; one dimension where there is one turn."""
    if inner == dim.size:
        return [dim]
    outer = {t: s * inner for t, s in dim.strides.items()}
    return [Dim(dim.indices, inner, dim.strides, NO_TABLES), Dim(dim.indices, dim.size // inner, outer, NO_TABLES)]


def levels(dims: Sequence[Dim], most: int) -> list[list[Dim]]:
    """Dimensions (slow to fast) as at most ``most`` loops, one within the other, whose tables are short."""
    if not dims:
        return []
    groups: list[list[Dim]] = []
    for dim in reversed(split_long(dims)):
        if groups and (total(groups[0]) * dim.size <= SPLIT_ABOVE or len(groups) == most):
            groups[0].insert(0, dim)
        else:
            groups.insert(0, [dim])
    return groups


def divisor(size: int) -> int:
    """A divisor between 512 and SPLIT_ABOVE, multiples of 64 first; 0 if there is none."""
    for step in (64, 16, 1):
        for candidate in range(SPLIT_ABOVE - SPLIT_ABOVE % step, 511, -step):
            if size % candidate == 0:
                return candidate
    return 0


def largest_divisor(size: int, most: int) -> int:
    """The largest divisor that is at most ``most``, but not 1; the size itself where there is none."""
    return next((d for d in range(min(most, size), 1, -1) if size % d == 0), size)


def total(dims: Sequence[Dim]) -> int:
    count = 1
    for dim in dims:  # no frame for it, as a comprehension has: there are few, and they are asked for often
        count *= dim.size
    return count


def leading(dims: Sequence[Dim], entries: int) -> int:
    """How many of the first dimensions a table of ``entries`` holds, at least one."""
    count, size = 0, 1
    while count < len(dims) and (count == 0 or size * dims[count].size <= entries):
        size *= dims[count].size
        count += 1
    return count


def _places(dims: Sequence[Dim], tensor: int) -> tuple[tuple[int, int] | None, ...]:
    """What the tables of dimensions follow from, size and stride; None where one has tables of its own."""
    return tuple([None if tables else (size, strides.get(tensor) or 0) for _, size, strides, tables in dims])


def flat_table(dims: Sequence[Dim], tensor: int) -> np.ndarray:
    """Offsets of the combined index, first dimension slowest."""
    if len(dims) < 2:
        return dims[0].table(tensor) if dims else ZERO
    if total(dims) <= _FEW:
        places = _places(dims, tensor)
        if None not in places:
            return _few_sums(places)
    table = dims[0].table(tensor)
    for dim in dims[1:]:
        table = np.add.outer(table, dim.table(tensor)).ravel()
    return table


def outer_loop(
    dims: Sequence[Dim], left: int | None, right: int | None
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """An outer loop; ``left``, ``right``: bytes from turn to turn in a packed operand, None where it is not packed."""
    count = total(dims)
    steps = np.arange(count, dtype=np.int64)
    return (
        count,
        flat_table(dims, LEFT) if left is None else steps * left,
        flat_table(dims, RIGHT) if right is None else steps * right,
        flat_table(dims, OUT),
    )


def _offsets(
    lanes: np.ndarray | None,
    cut: np.ndarray | None,
    run: np.ndarray | None,
    rest: np.ndarray | None,
    tile: int,
    width: int,
) -> np.ndarray:
    """`Panels.offsets` from the tables of its dimensions, None where there are none."""
    grid, box = ZERO if lanes is None else lanes, 1 if lanes is None else len(lanes)
    if cut is not None:
        cut, box = padded(cut, tile), box * tile
        grid = cut if lanes is None else np.add.outer(cut, lanes)
    grid = grid.reshape(-1, box)
    if run is not None:
        grid = (grid[:, None, :] + run[:, None]).reshape(-1, box)
    if rest is not None:
        grid = np.add.outer(rest, grid).reshape(-1, box)
    return grid if box == width else grid.take(counted(width), axis=1, mode="clip")


@lru_cache(maxsize=2048)
def _few_offsets(*given) -> np.ndarray:
    """`_offsets` of dimensions with strides, by their sizes and strides."""
    *groups, tile, width = given
    tables = [_few_sums(places) if places else None for places in groups]
    table = _offsets(*tables, tile, width)
    table.setflags(write=False)
    return table


def ones(count: int) -> np.ndarray:
    """A table of ones."""
    return _few_ones(count) if count <= _FEW else np.ones(count, np.int64)


@lru_cache(maxsize=_FEW)
def _few_ones(count: int) -> np.ndarray:
    table = np.ones(count, np.int64)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=1024)
def _valid_lanes(count: int, cuts: int, rest: int, box: int, last: int) -> np.ndarray:
    valid = np.full(count, box, np.int64)
    valid.reshape(-1, cuts, count // (rest * cuts))[:, -1] = last
    valid.setflags(write=False)
    return valid


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class Panels:
    """The lanes side: ``lanes`` whole fast dimensions, then ``cut`` by ``tile``, then ``rest`` (slow to fast) and
    ``outer`` dimensions looped outside. ``box`` lanes of ``width`` are used in a whole panel."""

    width: int
    box: int
    lanes: tuple[Dim, ...]  # whole dimensions within a panel, fastest first
    cut: Dim | None
    tile: int
    rest: tuple[Dim, ...]  # dimensions that enumerate panels, slow to fast; the cut one is fastest
    run_last: Dim | None  # enumerates panels faster than the cut (see PANEL_RUN)
    outer: tuple[Dim, ...]

    @lazy
    def cuts(self) -> int:
        return -(-self.cut.size // self.tile) if self.cut is not None else 1

    @lazy
    def count(self) -> int:
        """Panels of the inner part."""
        last = self.run_last.size if self.run_last is not None else 1
        return total(self.rest) * self.cuts * last

    @property
    def padded(self) -> int:
        """Rows computed, padding included, over all panels and outer loops."""
        return self.count * self.width * total(self.outer)

    @lazy
    def _groups(self) -> tuple[tuple[Sequence[Dim], ...], bool]:
        """Dimensions as `_offsets` takes them, slow to fast, and whether tables are few and follow from strides."""
        cut, run = self.cut, self.run_last
        groups = self.lanes[::-1], () if cut is None else (cut,), () if run is None else (run,), self.rest
        few = self.count * self.width <= _FEW and not any([dim.tables for dims in groups for dim in dims])
        return groups, few

    def offsets(self, tensor: int) -> np.ndarray:
        """(count, width) byte offsets; lanes past the box repeat the last."""
        groups, few = self._groups
        if not few:
            tables = [flat_table(dims, tensor) if dims else None for dims in groups]
            return _offsets(*tables, self.tile, self.width)
        places = [_places(dims, tensor) if dims else () for dims in groups]
        return _few_offsets(*places, self.tile, self.width)

    def valid(self) -> np.ndarray:
        """(count,) lanes that exist in each panel."""
        make = _valid_lanes if self.count <= _FEW else _valid_lanes.__wrapped__
        return make(self.count, self.cuts, total(self.rest), self.box, self.last_valid)

    @property
    def filled(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(panels, lanes that exist in each): of those before the last along the dimension that is cut, of the last."""
        last = self.count // self.cuts
        return (self.count - last, self.box), (last, self.last_valid)

    @lazy
    def last_valid(self) -> int:
        """Lanes of the last panel along the dimension that is cut."""
        if self.cut is None:
            return self.box
        return (self.cut.size - (self.cuts - 1) * self.tile) * (self.box // self.tile)

    def run(self, tensor: int, item: int) -> int | None:
        """How many lanes from the first are adjacent, in every panel; None: a table knows.

        As many are in each run of the panel, since lanes are whole dimensions. So a panel's valid lanes are adjacent
        where there are no more of them.
        """
        expected, count = item, 1
        if self.box == 1:
            return 1
        for dim in self.lanes if self.cut is None else (*self.lanes, self.cut):
            if tensor in dim.tables:
                return None
            if dim.size > 1 and dim.strides.get(tensor) != expected:
                return count
            expected *= dim.size
            count *= dim.size
        return self.box


def panel_rows(sizes: Sequence[int], width: int, extend: bool) -> tuple[int, int, int]:
    """What `make_panels` would give, without building it: padded rows, lanes used of a panel, dimensions in the lanes."""
    filled = tile = cuts = 1
    position = taken = 0
    while position < len(sizes):
        size = sizes[position]
        if filled * size <= width:
            filled *= size
            position, taken = position + 1, taken + 1
            if not extend:
                break
            continue
        tile = width // filled
        if tile > 1 or not taken:
            cuts = -(-size // tile)
            position, taken = position + 1, taken + 1
        else:
            tile = 1
        break
    return cuts * width * prod(sizes[position:]), filled * tile, taken


def make_panels(dims: Sequence[Dim], width: int, extend: bool, run_dim: Dim | None, inner_target: int) -> Panels:
    """Cuts ``dims`` (fastest first) into panels of ``width`` lanes.

    ``extend`` lets the box take more than the fastest dimension; ``run_dim`` enumerates panels fastest when it is not
    among the lanes; dimensions beyond ``inner_target`` rows go to the outer loops.
    """
    lanes: list[Dim] = []
    filled, cut, tile, position = 1, None, 1, 0
    while position < len(dims):
        dim = dims[position]
        if filled * dim.size <= width:
            lanes.append(dim)
            filled *= dim.size
            position += 1
            if not extend:
                break
            continue
        tile = width // filled
        if tile > 1 or not lanes:
            cut, position = dim, position + 1
        else:
            tile = 1
        break
    remaining = list(dims[position:])
    run_last = None
    if run_dim is not None and any(d is run_dim for d in remaining):
        remaining = [d for d in remaining if d is not run_dim]
        run_last = run_dim
    rows = width * (run_last.size if run_last else 1) * (-(-cut.size // tile) if cut is not None else 1)
    inner = 0
    while inner < len(remaining) and rows * remaining[inner].size <= inner_target:
        rows *= remaining[inner].size
        inner += 1
    return Panels(
        width=width,
        box=filled * tile,
        lanes=tuple(lanes),
        cut=cut,
        tile=tile,
        rest=tuple(remaining[:inner][::-1]),
        run_last=run_last,
        outer=tuple(remaining[inner:][::-1]),
    )
