"""Words of a step of the fused family, after the header of `abi`, and of what its row functions are given.

The iteration space is cut into boxes of ``O x J`` entries. Two odometers run over them: the kept one over loops along
which all outputs run, the reduced one, inside, over loops that reductions combine. Row 0 of each counts chunks of O,
row 1 chunks of J (of size 1 in the odometer to which O or J does not belong). Everything of variable length lies in one
int64 table, U_TABLE: ``O_WORDS`` words for each operand (outputs first), the odometers' rows ``(size, stride of each
operand...)``, then offset vectors, whose places are bytes from the start of the table. Strides and offsets are bytes.
"""

from __future__ import annotations

from .units import PAGE

U_TABLE = 16  # address
U_OPERANDS = 17  # outputs and inputs
U_OUTPUTS = 18
U_ROW = 19  # address of the structure's row function
U_KEPT, U_KEPT_RANK, U_KEPT_BOXES = 20, 21, 22  # place of the odometer's rows, their number, product of the sizes
U_REDUCED, U_REDUCED_RANK, U_REDUCED_BOXES = 23, 24, 25
U_O, U_O_TOTAL = 26, 27  # entries of O in a box, in all boxes
U_J, U_J_TOTAL = 28, 29
U_MODE = 30  # which loops a reduction combines: below
U_STREAM = 31  # outputs are larger than the caches: aligned vectors are stored past them
U_MOVES = 32  # words 32 to 36: addresses of the move functions of 1, 2, 4, 8 and 16 bytes
U_SHARE = 37  # tasks share the reduced boxes of one kept box: bytes of results of each task; 0: they share kept boxes
U_APART = 38  # 1: operands that run along O have elements that are two apart there, in a map
U_ALIGN = 39  # 1: what is staged begins in its line where the first output does, whose rows are long
U_LATE = 40  # bytes of a row that is stored after the next box is computed, from two rows in scratch; 0: at once
U_LATE_STAGE, U_LATE_STRIDE = 41, 42  # where the two are in scratch, and how far apart: a page more than their bytes
NEAR_SCRATCH = PAGE + 6 * 64  # bytes of scratch, besides those of a row
U_NEAR, U_NEAR_STAGE = 43, 44  # neighbours: bytes between rows; with them or over rows: where rows are kept in scratch
U_SHARED = 46  # bits of the outputs of which tasks that share have results of their own
U_PERIOD = 45  # elements of O after which all divisors of quotients repeat themselves; 0: they do not
U_PARTS = 47  # 1: COLUMNS: results of a box are by themselves in scratch, and are combined with the others behind it

# words of an operand in the table
O_SLOT, O_OFFSET = 0, 1  # it starts at bases[slot] + offset
O_MODE = 2  # CONTIGUOUS, BROADCAST or STAGED + mode of the move, as in `nest_abi`
O_ALONG_O, O_ALONG_J = 3, 4  # offset vectors: along O where staged; along J, of the copy in scratch where staged
O_FAR_J = 5  # staged: offset vector along J of the operand itself
O_ROWS = 6  # an input that is staged: 1 if it changes along J; an output: 1 if it is no result of ROWS or COLUMNS
O_RUN = 7  # staged: entries of J that are adjacent in the operand; MOVE_APART, MOVE_SPREAD: bytes between neighbours;
O_STAGE = 8  # staged: where, in bytes from the start of the worker's scratch
O_WIDE = 9  # staged: 2**this neighbours along O are moved as one element
O_MOVE = 10  # staged: word of the step that holds the move function
O_PART = 11  # U_PARTS: where the results of a box are, in bytes from the start of the worker's scratch
O_WORDS = 12

# modes: no reduction, or each turn of the reduced boxes is combined with results along O and J; O combined (each J has its
# result), J combined (each O has its result)
MAP, ROWS, COLUMNS = 0, 1, 2

# void row(args): words of args, then R_WORDS for each operand
R_O, R_J, R_MODE, R_FIRST, R_STREAM, R_APART = 0, 1, 2, 3, 4, 5  # R_FIRST: results are overwritten, not combined with
R_KEEP, R_DOWN = 6, 7  # scratch for rows that are kept; of a structure with neighbours: bytes between rows
R_PERIOD, R_PARTS = 8, 9  # as U_PERIOD, U_PARTS
R_OPERANDS = 10
R_BASE, R_TABLE, R_KIND = 0, 1, 2  # address; address of the offset vector along J; CONTIGUOUS or BROADCAST
R_TOTAL = 3  # R_PARTS: address of the results of all boxes
R_WORDS = 4

# -- what `fused_tile` and `fused_stage` are called with: a table of int64; places are bytes from its start, offsets bytes --
T_OPERANDS = 0  # outputs and inputs
T_STREAM = 1  # outputs go past the caches
T_STRIP = 2  # columns of C that are taken through at a time
T_FIRST = 3  # place: for each block of panels, and behind the last, the number of its first run of lanes
T_LANES = 4  # place: lanes of each run; along them, each operand runs or is one element
T_ALONG_K = 5  # `fused_stage`: 1: runs go along k, 0: along the lanes
T_HEAD = 8  # words, then T_WORDS for each operand
# words of an operand: it starts at bases[slot] + offset; slot -1 is the scratch memory of the worker
T_SLOT, T_OFFSET, T_KIND = 0, 1, 2  # T_KIND: CONTIGUOUS or BROADCAST along a run
T_RUNS, T_COLUMNS = 3, 4  # places: offset of each run, of each column
T_OUTER = 5  # places, words 5 to 8: offsets along the four outer loops, of those that have more than one turn
T_TURNS = 9  # `fused_stage`: place: offset of each turn of K
T_AHEAD = 10  # `fused_stage`: bytes of an entry that are asked for early, 0: none
T_WORDS = 12

LONG_ROW = 4096  # bytes, from which rows of maps begin with a part of a vector, up to a line of the first output
