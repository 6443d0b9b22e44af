"""Words of a step of the batched family, after the header of `abi`. Strides and offsets are bytes."""

from __future__ import annotations

B_OUTER = 16  # 4 loops x (count, table A, table B, table C), slowest first: words 16..31; no table is missing
B_OUTER_TOTAL = 32  # product of the counts
B_M, B_N, B_K = 33, 34, 35
B_TABLES = 36  # six offset vectors of the operands, in the order of TM_A...
B_STAGED = 42  # the same where A and B are read from copies
TM_A, TK_A, TN_B, TK_B, TM_C, TN_C = range(6)
B_LANES = 48  # elements of the batch dimension, contiguous in A, B and C
B_BLOCK = 49  # of which so many at a time, whole vectors
B_OUTER_SHARE, B_LANES_SHARE, B_M_SHARE = 50, 51, 52  # task shape
B_LANES_TASKS, B_M_TASKS = 53, 54
B_ACCUMULATE = 55  # add to C instead of overwriting
B_SIGNS = 56  # complex: bit 0 conjugate A, bit 1 conjugate B
B_AHEAD = 57  # operands come from memory: bytes to fetch ahead, and C is stored past the caches; 0: they do not
B_STAGE_B = 58  # where the copy of B starts in scratch, that of A at 0; 0: no copies, the operands are read in place
