"""Words of a step of the indexed family, after the header of `abi`. Strides and offsets are bytes.

The *indexed* operand is read (gather, operand A) or written (scatter, the output) at places that index arrays name, the
*dense* one is the other. Loops over the index arrays: an inner one, and outer ones in an odometer; loops over what lies
at each place: a run, and the rest in an odometer. Everything of variable length lies in one int64 table, I_TABLE:
`X_WORDS` words for each index array, then rows ``(count, stride of the dense operand, stride of each index array ...)``
of the outer loops, slowest first, then rows ``(count, stride of the indexed operand, stride of the dense one)``.
"""

from __future__ import annotations

I_TABLE = 16  # address
I_ARRAYS = 17  # index arrays
I_INNER = 18  # entries of the inner loop over the index arrays
I_DENSE = 19  # stride of the dense operand in it
I_OUTER, I_OUTER_RANK, I_OUTER_TOTAL = 20, 21, 22  # place of the rows in the table, how many, product of the counts
I_REST, I_REST_RANK, I_REST_TOTAL = 23, 24, 25
I_RUN, I_RUN_INDEXED, I_RUN_DENSE = 26, 27, 28  # elements of the run, strides
I_UNITS = 29  # of BLOCK entries of the inner loop at one entry of the outer ones
I_UNIT_SHARE, I_REST_SHARE = 30, 31  # task shape: units, entries of the rest
I_REST_TASKS = 32  # tasks along the rest, the fastest part of the task number
I_ADJACENT = 33  # the run is adjacent in both operands

# words of an index array in the table: it starts at bases[slot] + offset, names entries of an axis of so many, so far
# apart, and has a stride along the inner loop; X_AXIS: what an error calls it
X_SLOT, X_OFFSET, X_SIZE, X_STEP, X_INNER, X_AXIS = 0, 1, 2, 3, 4, 5
X_WORDS = 6

BLOCK = 256  # indices whose offsets are computed at once
