"""Words of the pool of results, and what of a block is not data."""

from __future__ import annotations

from .units import LINE, PAGE

R_LOCK = 0
# Functions of NumPy's handler, and what they are called with. R_MALLOC is its calloc where new blocks are zeros, and malloc,
# which does not look at its third argument, else: both are called with R_ALLOCATOR, bytes and 1.
R_MALLOC, R_FREE, R_ALLOCATOR = 1, 2, 3
R_BESIDE_COUNT, R_BESIDE = 4, 5  # addresses that the next result is written beside; MOST_BESIDE words
R_LIMIT, R_BYTES, R_COUNT = 13, 14, 15  # bytes that may be kept, bytes and blocks that are
R_CLOCK, R_NEXT_LOOK, R_PENDING, R_LOOK = 16, 17, 18, 19  # clock_gettime; ns; Py_AddPendingCall, and of what function
R_COPY, R_SET = 20, 21  # memcpy, memset
R_LOOKER = 22  # what that function is called with
R_NEXT_NEW = 23  # as R_NEXT_LOOK, which is for what dies, for what takes new memory: that of one does not put off the other's
R_BLOCKS = 24  # block and bytes of each, the oldest first
MOST_BESIDE, MOST_BLOCKS = 8, 64
R_WORDS = R_BLOCKS + 2 * MOST_BLOCKS

ROOM = 2 * PAGE + LINE  # bytes of a block beside those of the data
SLACK = 8  # a block up to 1/8 larger than asked for will do
