"""Which operands of a batch of products are asked for one turn of the outer loops early (`kernels.cpu.next_turn`)."""

from __future__ import annotations

from typing import Sequence

from ..kernels.cpu.units import LINE
from .sides import Dim

AskedRows = tuple[int, int, int]  # bytes of a row, rows, bytes from one to the next
NO_ROWS: AskedRows = (0, 0, 0)
ALL_BYTES = 2 << 20  # of all turns: less stays in the cache of a core
TURN_BYTES = 1536 << 10  # of a turn, which are to stay there beside those that are in use
LEAST_BYTES = 4 << 10  # of a turn: with less there are more requests than multiply-adds to hide them behind


def asked_rows(sides: Sequence[AskedRows], turns: int) -> tuple[AskedRows, ...]:
    """What is asked for of A, B and C, whose parts in a turn are ``sides``; (): nothing. What is read comes first, if not all
    of it has room."""
    found, together = [], 0
    for row, rows, stride in sides:
        fits = together + row * rows <= TURN_BYTES
        found.append((row, rows, stride) if fits else NO_ROWS)
        together += row * rows * fits
    return tuple(found) if together >= LEAST_BYTES and together * turns > ALL_BYTES else ()


def rows_of(dims: Sequence[Dim], tensor: int, item: int) -> AskedRows:
    """A block of these dimensions as rows of whole lines, or as one row; `NO_ROWS` where it is more than that.

    >>> dims = [Dim(("m",), 4, {0: 8}, {}), Dim(("k",), 6, {0: 4096}, {}), Dim(("l",), 2, {0: 32}, {})]
    >>> rows_of(dims, 0, 8), rows_of(dims[:2], 0, 8), rows_of(dims[1:], 0, 8)
    ((64, 6, 4096), (0, 0, 0), (0, 0, 0))
    """
    places = sorted([(dim.stride(tensor), dim.size) for dim in dims if dim.size > 1 and dim.stride(tensor) is not None])
    if len(places) < sum([dim.size > 1 for dim in dims]):  # one has a table
        return NO_ROWS
    row, rows, stride = item, 1, 0
    for step, size in places:
        if rows == 1 and step == row:
            row *= size
        elif rows == 1 and step > row or rows > 1 and step == rows * stride:
            rows, stride = rows * size, stride or step
        else:
            return NO_ROWS
    return (row, rows, stride) if rows == 1 or row % LINE == 0 else NO_ROWS
