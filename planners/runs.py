"""Rows of a product, as one dimension where they go on in A, or in C."""

from __future__ import annotations

from typing import Sequence

from ..kernels.cpu.units import LINE
from .sides import LEFT, OUT, Dim, cut, flat_table, largest_divisor

RUN_TABLES = 4  # tables of rows may be so much longer with a dimension that enumerates panels
LONG_ENOUGH = 512  # entries of dimensions that are put together so that blocks are whole
SHORT_RUN = 4  # blocks along a run; of more, the last one matters little


def run_dim(dims: Sequence[Dim], item: int) -> Dim | None:
    """The dimension of a row (fastest in C first) along which A is contiguous, if it is another than the fastest."""
    return next((dim for dim in dims[1:] if dim.stride(LEFT) == item), None)


def packed_rows(
    dims: Sequence[Dim], items: tuple[int, int], most: int, block: int
) -> tuple[list[Dim], Dim | None]:
    """Rows (fastest in C first) as they are packed, in blocks of so many, and the one that enumerates panels, along which A is
    contiguous. ``items``: bytes of an element of A and of C; ``most``: rows of panels that one table has."""
    joined = join_rows(dims, items[0], most)
    return longer_run(joined, run_dim(joined, items[0]), items[1], block)


def longer_run(dims: Sequence[Dim], run: Dim | None, item: int, block: int) -> tuple[list[Dim], Dim | None]:
    """The rows (fastest in C first, of ``item`` bytes) and the dimension ``run`` along which A is contiguous, with what goes on
    behind it in A as a part of it.

    Where the run is short and no whole number of blocks, which are transposed at a time, the last block is moved twice in
    part, and lines of A that two runs share are read again in another turn of the loops. Not where that makes no whole blocks
    either, nor where C goes on along ``run`` within a line: what tiles have of such lines may wait for the next (`ragged`).
    """
    if run is None or run.size % block == 0 or run.size > SHORT_RUN * block:
        return list(dims), run
    length = dims[0].size * item
    if dims[0].stride(OUT) == item and run.stride(OUT) == length and length % LINE:
        return list(dims), run
    others = [dim for dim in dims[1:] if dim is not run]
    found, rest = chain(run, others, LEFT, OUT, block)
    return (list(dims), run) if found.size % block else ([dims[0], *rest, found], found)


def chain(first: Dim, others: list[Dim], along: int, other: int, block: int) -> tuple[Dim, list[Dim]]:
    """``first`` and the dimensions that go on where it ends in the tensor ``along``, as one, until ``block`` divides
    its size or it is long enough, and what is left."""
    found, rest = first, list(others)
    while found.size % block:
        pitch = found.strides[along] * found.size
        slow = next((dim for dim in rest if dim.stride(along) == pitch and not dim.tables), None)
        size = 0 if slow is None else _part(slow.size, found.size, block)
        if slow is None or not size:
            break
        at = rest.index(slow)
        slow, *rest[at : at + 1] = cut(slow, size)
        table = (slow.table(other)[:, None] + found.table(other)[None, :]).ravel()
        found = Dim(slow.indices + found.indices, slow.size * found.size, {along: found.strides[along]}, {other: table})
    return found, rest


def _part(size: int, times: int, block: int) -> int:
    """The least divisor of ``size`` that makes whole blocks of ``times``, or else the largest that is not too long."""
    fitting = [part for part in range(2, size + 1) if size % part == 0 and part * times <= LONG_ENOUGH]
    return next((part for part in fitting if part * times % block == 0), fitting[-1] if fitting else 0)


def join_rows(dims: Sequence[Dim], item: int, most: int) -> list[Dim]:
    """Row dimensions (fastest first) that are adjacent in C as one, up to ``most`` rows, where A is packed by
    transposing: its lanes may lie anywhere then, and no lane is lost to a box that does not fill a panel."""
    if len(dims) < 2 or dims[0].stride(LEFT) == item:
        return list(dims)
    fast, *rest = dims
    run, whole = run_dim(dims, item), True
    while rest and whole and _joins(fast, rest[0], item, most):
        slow, turns = rest.pop(0), []
        if run is not None and not slow.tables:
            # A table of rows has an entry for each value of the dimension along which A runs, too.
            slow, *turns = cut(slow, largest_divisor(slow.size, RUN_TABLES * most // (fast.size * run.size)))
        rest, whole = turns + rest, not turns
        strides, tables = {OUT: fast.strides[OUT]}, {LEFT: flat_table((slow, fast), LEFT)}
        fast = Dim(slow.indices + fast.indices, slow.size * fast.size, strides, tables)
    return [fast, *rest]


def _joins(fast: Dim, slow: Dim, item: int, most: int) -> bool:
    in_c = None not in (fast.stride(OUT), slow.stride(OUT)) and slow.stride(OUT) == fast.stride(OUT) * fast.size
    return in_c and slow.stride(LEFT) != item and fast.size * slow.size <= most
