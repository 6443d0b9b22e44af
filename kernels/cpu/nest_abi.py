"""Words of a step of the nest family, after the header of `abi`.

The iteration space is cut into equal boxes of ``O x J`` entries. An odometer of N_RANK loops runs over the boxes: its
row 0 counts the chunks of O, its row 1 the chunks of J (the last chunk may be shorter), the others are whole
dimensions. Everything of variable length lies in one int64 table, N_TABLE: first the odometer's rows
``(size, stride out, stride a, stride b)``, then offset vectors, whose places the words below give in bytes from the
start of the table. All strides and offsets are bytes.
"""

from __future__ import annotations

N_TABLE = 16  # address
N_RANK = 17
N_BOXES = 18  # product of the odometer's sizes
N_OUT_BASE, N_A_BASE, N_B_BASE = 19, 20, 21  # added to the operand: where dimensions were reversed
N_O, N_O_TOTAL = 22, 23  # entries of O in a box, in all boxes
N_J, N_J_TOTAL = 24, 25
N_OUT_MODE, N_A_MODE, N_B_MODE = 26, 27, 28  # how the operand runs along O: see below
N_OUT_O, N_A_O, N_B_O = 29, 30, 31  # offset vectors along O (unused where contiguous or broadcast)
N_OUT_J, N_A_J, N_B_J = 32, 33, 34  # offset vectors along J: of the staged copy where the operand is staged
N_OUT_MOVE, N_A_MOVE, N_B_MOVE = 35, 36, 37  # address of the move function where the operand is staged
# MOVE_TILE: entries of J that are adjacent in the operand; MOVE_SEVERAL: bytes of the entries that are one element;
# MOVE_WEAVE: of those that come from one place in each of its rows
N_OUT_RUN, N_A_RUN, N_B_RUN = 38, 39, 40
N_OUT_FAR, N_A_FAR, N_B_FAR = 41, 42, 43  # offset vectors along J of the staged operand itself
N_OUT_ROWS, N_A_ROWS, N_B_ROWS = 44, 45, 46  # 0: the staged operand does not change along J, 1: it does
N_OUT_STAGE, N_A_STAGE, N_B_STAGE = 47, 48, 49  # where it is staged: bytes from the start of the worker's scratch
N_FLAGS = 50
# sum: the loops over what is summed, odometer rows ``(size, unused, stride a, unused)``
N_R_TABLE = 51  # bytes from the start of the table
N_R_RANK = 52
N_R_BOXES = 53
N_L, N_L_TOTAL = 54, 55  # adjacent entries in a box, in all boxes: row 0 counts its chunks
N_Q, N_Q_TOTAL = 56, 57  # other entries: row 1
N_A_Q = 58  # offset vector along Q
N_R_MODE = 59
# and N_B_STAGE: accumulators, two for each entry of O x J; N_B_J: offset vector along J of the accumulators;
# N_B_FAR: offset vector of the rows of staged summed entries; N_B_O: offset vector along O of an output that is staged
# with MOVE_TILE (it leaves turned round: contiguous along J in memory, along O, for N_OUT_RUN entries, where it is staged)
N_TASK_STRIDE = 60  # bytes of output per task where tasks share the sum (partial results), else 0

# copy: the output is written in runs, past the caches, from scratch (or from a, where N_A_MOVE is 0)
N_JOINED = 38  # entries of J that make one run, 0: the output is written by the move
N_RUNS_OUT, N_RUNS_A = 41, 43  # offset vectors of the runs in the output, in scratch or a
N_OWN = 40  # the chunks of O continue each other's runs: so many bytes of a run, a line or more, are a box's
#  own; 0: they do not
N_OWN_ROW, N_OWN_STEP = 44, 45  # row of the odometer that counts the chunks of O, boxes from one of them to the next.
#  If these are several, boxes leave the last line of each run from here on in scratch, at the odometer's strides of b:
N_OWN_PLACE = 37
# Lines that are put together from rows of O, where the kernel does that (`composed`): offset vector of the rows, run after
# run, in scratch, or in a where N_ROWS_J is 0; 0: they are not. How many rows of a run are a box's own.
N_ROWS, N_OWN_ROWS = 57, 58
N_ROWS_J = 59  # offset vector along J of rows in scratch, each of which begins with a line and ends with a whole vector
# Runs of several of these rows that tiles put where they are in lines of the output, on cores that do that (`dense`): address of
# the function that has such a box; how many rows are moved before their lines are written, 0: they are not put there.
N_DENSE, N_TURN = 35, 60
DENSE_BYTES = 128  # of such a row, at most
N_AHEAD, N_AHEAD_COUNT = 34, 46  # offset vector of the bytes of a that are asked for a box early; how many they are
N_FETCH = 51  # runs of a in a box that are copied to scratch before the move, which reads them there; 0: none
N_FETCH_RUNS, N_FETCH_BYTES = 52, 53  # offset vector of these runs in a; bytes of each, whole lines
N_FETCH_PITCH, N_FETCH_PLACE = 54, 55  # bytes from one run to the next in scratch; where the first one lies there
N_STRIPS = 56  # of a copy, and of the strips in place of which it is there: outputs that strips write, bits of
# those that begin with a line; those that begin with an element; these, where strips join what continues each other; the first
# and the second, of runs that are whole lines, where a vector is a line; those that begin with a lane, of rows of whole lines;
# none, where a line takes several vectors, since rows of a tile push each other out of the first cache before the last of these
# (`strips`)
STRIPS_LINES, STRIPS_ANY, STRIPS_JOINED, STRIPS_WHOLE, STRIPS_WITHIN, STRIPS_OF_LINES, STRIPS_CROWDED = 1, 2, 4, 8, 16, 32, 64
N_COMING = 28  # which byte of their rows, from 1 on, tiles may ask for of a box to come; 0: they do not
N_AHEAD_LINE = 49  # how many of them beside each line that is written: the vector has a multiple of it

# strips: see `strips`
N_KEPT = 37  # ends of lines: bytes from the start of the worker's scratch; a line more for each entry of J than a strip has
# vectors along J: which entry continues the entry's run of the output, and which is continued by it, -1: none; 0: none do
N_STRIPS_NEXT, N_STRIPS_BEFORE = 57, 58
SIDE_LINES = 16  # of a strip of rows that are lines (`strips_lines`)
N_STRIPS_PITCH = 58  # of these: bytes from one entry of J to the next in a
# of whole lines, runs or rows: how many entries of J after the one that it continues each comes; 0: none does
N_STRIPS_BACK = 57
# row of the odometer, the first that moves, along which boxes continue each other's runs, 0: none does; vectors along J: which
# entry of the box after this one continues, and which of the one before it continues, -1: none
N_STRIPS_ROW, N_STRIPS_ON, N_STRIPS_FROM = 55, 59, 60
# strips go through so many boxes beside each other, each of which has a strip in turn: bytes from one to the next in the output
# and in a
N_BESIDE, N_BESIDE_OUT, N_BESIDE_A = 38, 40, 41
SHORT_LEAST, SHORT_LINES = 2, 4  # lines of a run that is written at once (`strips_short`): more than these, and at most
N_STRIPS_AHEAD = 46  # how many strips before they are read lines of a are asked for; 0: they are not
N_STRIPS_ENDS = 44  # whether the line is, too, in which a row of a strip ends: 0 where the next row of the strip begins there

N_OUT_WIDE, N_A_WIDE, N_B_WIDE = 61, 62, 63  # staged operands: 2**this neighbours along O are moved as one element

# modes along O; a staged operand's mode is STAGED + mode of the move
CONTIGUOUS, BROADCAST, STAGED = 0, 1, 2
MOVE_RUN, MOVE_FILL, MOVE_TILE, MOVE_GATHER, MOVE_ELEMENTS, MOVE_SCATTER = 0, 1, 2, 3, 4, 5
MOVE_APART, MOVE_SPREAD, MOVE_REPEAT, MOVE_SEVERAL, MOVE_WEAVE, MOVE_COMING, MOVE_PADDED = 6, 7, 8, 9, 10, 11, 12
COMING_BYTES = 4  # of an element, from which there is MOVE_COMING
RUNS_AHEAD = 4  # how many runs before they are copied to scratch lines of a are asked for
STEPS = (-1, 2, 3, 4)  # elements, of MOVE_APART and MOVE_SPREAD
TIMES = (2, 4)  # of MOVE_SEVERAL and MOVE_WEAVE

# sum: how a box is added up
SUM_COLUMNS, SUM_ROWS, SUM_STAGED_COLUMNS, SUM_STAGED_ROWS = 0, 1, 2, 3

# bits of N_FLAGS
CONJ_A, CONJ_B, ADD_OUT = 1, 2, 4
STREAM = 16  # mul: the output runs along O and does not fit in cache
IN_ORDER = 32  # SUM_COLUMNS: rows are adjacent and come from memory; behind the accumulators is room for a row more
SHORT_RUNS = 64  # SUM_ROWS: a few vectors for each entry of O and one of Q, those of several entries at once
RUNS_ACROSS = 8  # SUM_ROWS: the loop over O within the loop over Q; N_A_STAGE: a vector for each entry of O
