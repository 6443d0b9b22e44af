"""Words of a step of the sort family, after the header of `abi`. Strides and offsets are bytes."""

from __future__ import annotations

S_COUNT = 16  # elements of a line
S_FROM, S_TO = 17, 18  # strides along a line, of the operand A and of the output
S_TABLE = 19  # address of rows (count, stride of A, of the output) of the loops over lines, slowest first
S_RANK = 20
S_LINES, S_SHARE = 21, 22  # lines, of all and of a task
# how the bits of an element become an unsigned integer in the order of the elements: see `sort`
S_SIGN, S_FLOAT, S_INFINITY = 23, 24, 25

RUN = 16  # elements that are sorted by rank; 32 in vectors of 512 bits
SPACE = 256  # bytes behind a buffer, as a run is read whole
RADIX = 32  # elements for each byte of one, from which on digits are counted instead of runs merged


def scratch(count: int, item: int, with_indices: bool) -> tuple[int, int]:
    """Bytes from one of the two buffers of keys to the next, and of those of indices.

    >>> scratch(3, 4, True)
    (320, 320)
    """
    keys = -(-count * item // 64) * 64 + SPACE
    return keys, (-(-count * 8 // 64) * 64 + SPACE if with_indices else 0)
