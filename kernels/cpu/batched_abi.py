"""Words of a step of the batched family, after the header of `abi`. Strides and offsets are bytes."""

from __future__ import annotations

B_OUTER = 16  # 4 loops x (count, table A, table B, table C), slowest first: words 16..31; no table is missing
B_OUTER_TOTAL = 32  # product of the counts
B_M = 33
B_TM_A, B_TM_C = 34, 35  # M offsets each
B_N = 36
B_TN_B, B_TN_C = 37, 38  # N offsets each
B_K = 39
B_TK_A, B_TK_B = 40, 41  # K offsets each
B_LANES = 42  # elements of the batch dimension, contiguous in A, B and C
B_BLOCK = 43  # of which so many at a time, whole vectors
B_OUTER_SHARE, B_LANES_SHARE, B_M_SHARE = 44, 45, 46  # task shape
B_LANES_TASKS, B_M_TASKS = 47, 48
B_ACCUMULATE = 49  # add to C instead of overwriting
B_SIGNS = 50  # complex: bit 0 conjugate A, bit 1 conjugate B
