"""Words of a step of the dot family, after the header of `abi`. Strides and offsets are bytes."""

from __future__ import annotations

D_OUTER = 16  # 4 loops x (count, table A, table B, table C), slowest first: words 16..31; no table is missing
D_OUTER_TOTAL = 32  # product of the counts
D_M = 33
D_TM_A, D_TM_B, D_TM_C = 34, 35, 36  # M offsets each; that of B for paired rows only
D_N = 37  # 1 for paired rows
D_TN_B, D_TN_C = 38, 39
D_K = 40  # elements summed
D_RUN = 41  # of which so many are adjacent, at least 1
D_TK_A, D_TK_B = 42, 43  # ceil(K / RUN) offsets each
D_KC = 44  # elements per K block, at least 1
D_OUTER_BLOCK, D_M_BLOCK, D_N_BLOCK = 45, 46, 47  # task shape
D_M_TASKS, D_N_TASKS = 48, 49
D_SPLITS = 50  # tasks along K
D_SPLIT = 51  # elements of each, at least 1
D_SPLIT_STRIDE = 52  # bytes between the partial results of two splits
D_ACCUMULATE = 53  # add to C instead of overwriting
D_SIGNS = 54  # complex: bit 0 conjugate A, bit 1 conjugate B
D_IN_ORDER = 55  # rows of A come from memory: one after the other
