"""Words of a step of the random family, after the header of `abi`. The output is contiguous, operand A is the key."""

from __future__ import annotations

R_COUNT = 16  # elements of the output
R_STREAM = 17  # third word of the counters
R_KEY_STEP = 18  # bytes from the first word of the key to the second
R_SHARE = 19  # blocks of four words of a task, a multiple of WIDEST

WIDEST = 8  # lanes of 64 bits that a vector has at most
