"""Words of a step of the small family, after the header of `abi`. Strides and offsets are bytes."""

from __future__ import annotations

S_OUTER = 16  # 4 loops x (count, table A, table B, table C), slowest first: words 16..31; no table is missing
S_OUTER_TOTAL = 32  # product of the counts
S_T, S_T_A, S_T_B, S_T_C = 33, 34, 35, 36  # products: how many, strides
S_M, S_M_A, S_M_C = 37, 38, 39  # rows
S_N = 40  # columns, contiguous in C and, but for the kernels with strided columns, in B
S_K, S_K_A, S_K_B = 41, 42, 43  # terms
S_OUTER_SHARE, S_T_SHARE = 44, 45  # task shape
S_T_TASKS = 46
S_ACCUMULATE = 47  # add to C instead of overwriting
S_SIGNS = 48  # complex: bit 0 conjugate A, bit 1 conjugate B
S_N_B = 49  # stride of the columns in B
S_M_A_HALF, S_M_C_HALF, S_K_A_HALF, S_K_B_HALF = 50, 51, 52, 53  # from row or term 0 to row or term 2 where there are 4
S_STREAM = 54  # C does not fit in cache, and rows are whole lines apart: store past it if they begin with lines
S_AHEAD = 55  # bytes to B of the next product, which is asked for there; 0: not
MOST_TURNED = 64  # terms of kernels that turn columns round
