"""Which operands of a batch of products are asked for one turn of the outer loops early (`kernels.cpu.next_turn`)."""

from __future__ import annotations

from typing import Sequence

from ..kernels.cpu import cores
from .sides import LEFT, OUT, RIGHT, Dim, total

ALL_BYTES = 1 << 20  # of all turns: less stays in the cache of a core
TURN_BYTES = 1 << 20  # of a turn, which are to stay there beside those that are in use
LEAST_BYTES = 4 << 10  # of a turn: with less there are more requests than multiply-adds to hide them behind


def asked_bytes(
    sides: Sequence[tuple[int, Sequence[Dim], bool]], items: tuple[int, int, int], turns: int
) -> tuple[int, int, int]:
    """Bytes of A, B and C in a turn that are asked for, 0: not. ``sides``: the tensor, the dimensions that it has within a turn,
    and whether it is read or written where it is; ``items``: bytes of their elements.

    A block has to be one run without gaps. What is read comes first, if not all of it has room.
    """
    found = [0, 0, 0]
    if not cores.here().turns_ask or turns < 2:
        return (0, 0, 0)
    room = TURN_BYTES
    for tensor, dims, in_place in sides:
        nbytes = _dense(dims, tensor, items[tensor]) if in_place else 0
        if nbytes <= room:
            found[tensor], room = nbytes, room - nbytes
    together = sum(found)
    return tuple(found) if together >= LEAST_BYTES and together * turns > ALL_BYTES else (0, 0, 0)


def _dense(dims: Sequence[Dim], tensor: int, item: int) -> int:
    """Bytes of a block that has no gaps; 0: it has some, or goes backwards."""
    reach = item
    for dim in dims:
        step = dim.stride(tensor)
        if step is None or step < 0 or dim.tables.get(tensor) is not None:
            return 0
        reach += (dim.size - 1) * step
    return reach if reach == total(dims) * item else 0
