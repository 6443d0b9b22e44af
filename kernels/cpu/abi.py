"""The binary interface between plans and compiled kernels: word positions in the step table and the context.

Everything is int64. A step is `STEP_WORDS` words; the first 16 mean the same for every family, the rest belong to
the family. Table words hold absolute addresses of offset vectors (int64, bytes). A kernel is a *task function*
``void task(ctx, step, task, worker)``: it computes share ``task`` of ``step[NTASKS]`` shares and may use the scratch
memory of ``worker``. Tasks of one step never write different values to the same byte, so they may run in any order
on any thread.
"""

from __future__ import annotations

STEP_WORDS = 80

# -- header ----------------------------------------------------------------------------------------------------
FN = 0  # address of the task function
NTASKS = 1
KIND = 2  # RUN, or control flow: see below
OUT_SLOT, OUT_OFFSET = 3, 4  # gemm: slot -1, of any operand, is the scratch memory of the worker
A_SLOT, A_OFFSET = 5, 6
B_SLOT, B_OFFSET = 7, 8
TILE = 9  # gemm: address of `fused_tile`, called for blocks of C that have all of their sum, 0: C is all there is
TILE_ROW = 10  # address of the row function that it calls
TILE_TABLE = 11  # address of what it is called with: `fused_abi`
EXTENT = 12  # address of an int64 that replaces NTASKS at run time, 0: none
NEXT = 13  # for BRANCH, LOOP, JUMP and BLOCKS: the row to go to
PARALLEL = 14  # how threads share the tasks: below
TICKS = 15  # nanoseconds spent, accumulated when profiling is on

# The calling thread does all of them; threads take one after the other, or each those beside its last one: where tasks
# are parts of an array, each thread has the same part in every step and every call, which caches of its own may hold.
ALONE, IN_TURN, IN_BANDS = 0, 1, 2

# kinds of rows
RUN, BRANCH, LOOP, STOP, JUMP, BLOCKS = 0, 1, 2, 3, 4, 5
BLOCK_STARTS = 16  # of a BLOCKS row: address of where each block begins and the last one ends, in rows from itself

# -- context ---------------------------------------------------------------------------------------------------
CTX_BASES = 0  # address of the array of base addresses, one per slot
CTX_SCRATCH = 1  # base address of scratch memory
CTX_SCRATCH_STRIDE = 2  # bytes per worker
CTX_POOL = 3  # address of the pool, 0: run tasks in the caller
CTX_THREADS = 4  # workers to use, the caller included
CTX_DEADLINE = 5  # CLOCK_MONOTONIC ns after which the walker returns between steps, 0: never
CTX_PROFILE = 6  # accumulate TICKS
CTX_CLOCK = 7  # address of clock_gettime
CTX_SPLIT = 8  # address of SPLIT_WORDS counters per worker; read by timed kernels alone
CTX_SLICE = 9  # ns after which the walker returns at a JUMP row, 0: never
CTX_ERROR = 10  # what a step found wrong with its operands: below; 0: nothing. The walker returns then
CTX_ERROR_VALUE, CTX_ERROR_AXIS, CTX_ERROR_SIZE = 11, 12, 13  # more about a bad index
CTX_WORDS = 16

# -- errors: see `kernels.failures` ----------------------------------------------------------------------------
BAD_INDEX = 1
NEGATIVE_POWER = 2

# -- counters of a worker, in ticks of the processor's clock: see `stopwatch` -------------------------------------
SPLIT_TOTAL, SPLIT_PACKING, SPLIT_UNPACKING = 0, 1, 2
SPLIT_WORDS = 8  # a cache line, so that workers do not share one

# -- family: gemm ----------------------------------------------------------------------------------------------
# lanes side M (operand A), broadcast side N (operand B), four outer loops with a table per operand
G_OUTER = 16  # 4 loops x (count, table A, table B, table C): words 16..31
G_OUTER_TOTAL = 32  # product of the counts
G_M = 33  # valid rows of the inner M (before padding to panels)
G_PANELS = 34  # panels of the inner M
G_TM_A, G_TM_C = 35, 36  # panels*MR offsets each
G_VALID = 37  # panels: valid lanes of each
G_FLAGS = 38  # panels: bit 0: A lanes contiguous, bit 1: C lanes contiguous
G_N = 39
G_TN_B, G_TN_C = 40, 41  # N offsets each (padded to a multiple of NR by repeating the last)
G_K = 42
G_TK_A, G_TK_B = 43, 44
G_KC = 45  # K block
G_A_STRIDE = 46  # bytes between packed A panels when A is prepacked (FBL), 0: pack in the task
G_B_STRIDE = 47  # bytes between packed B panels when B is prepacked, 0: pack in the task
G_PACK = 48  # address of the pack function (of A)
# how A runs, plus 4 times how B runs, plus FETCH_A, FETCH_B, FAR_A, FAR_B, NESTED_A, ADJACENT_B; of a packing step, plus PACK_PAST
G_PACK_MODE = 49
G_OUTER_BLOCK, G_PANEL_BLOCK, G_N_BLOCK = 50, 51, 52  # task shape
G_PANEL_TASKS, G_N_TASKS = 53, 54
G_ACCUMULATE = 55  # add to C instead of overwriting
G_CHUNK = 57  # scattered lanes of C come in runs of so many elements
G_KO = 59  # outer loop over K, each turn G_K terms
G_TKO_A, G_TKO_B = 60, 61
G_STREAM = 58  # C does not fit in cache: store past it
G_B_SCRATCH = 62  # where B is packed by the task: bytes into its scratch
G_B_PACK = 63  # and the pack function for it
G_SIGNS = 56  # complex: bit 0 conjugate A, bit 1 conjugate B
G_STAGE = 64  # address of `fused_stage`, called before each block of K, 0: both operands are read where they are
G_STAGE_ROW = 65  # address of the row function that it calls
G_STAGE_TABLE = 66  # address of what it is called with: `fused_abi`
G_STAGED = 67  # which operand is made so in the scratch memory of the worker: STAGED_A or STAGED_B
G_STAGE_COLUMNS = 68  # B: columns that are made at a time; tasks have whole multiples
G_SHARES = 69  # of each task, in order: first panel, end, first column, end; 0: blocks of PANEL_BLOCK and N_BLOCK
SHARE_WORDS = 4
# For A and for B, packed along K in squares: how many lines each lane has of a block of K, and the offsets of these from
# its first term; 0: lines follow from the tables of lanes and terms.
G_LINES_A, G_LINES_B = 70, 71
G_TURN = 72  # panels: which one is computed when, within each task; 0: in their order
G_EVEN = 73  # terms that follow each other at equal distances in each operand that is read in place, 0: tables alone say where
# address of what a turn of the outer loops has of A, B and C, for each: bytes of a row, rows, bytes from one to the next; it is asked
# for in the turn before; no rows: it is not. 0: nothing is
G_ASKS = 74
ASK_WORDS = 3
STAGED_A, STAGED_B = 0, 1

# the operand is larger than the caches of a core: the block that is packed next, or of an A that few columns read in
# place the next block of K, of a B that few panels do the next column block, is asked for early
FETCH_A, FETCH_B = 16, 32
# panels of B that were packed before come from memory
FAR_B = 128
# panels of A that were there before are nested in blocks of K: those of one block lie side by side, then those of the next
NESTED_A = 256
# panels of A that were there before come from beyond the cache of a core: tiles ask for the next block of them
FAR_A = 512
# a tile that reads B in place has adjacent columns if its first and its last one are as far apart as in a run; some are
ADJACENT_B = 1024
# of a packing step: the panels do not fit in cache, whole lines of them go past it
PACK_PAST = 64

# -- pack function: void pack(args) with args an array of words ----------------------------------------------
P_DST, P_SRC = 0, 1
P_PANELS, P_WIDTH = 2, 3  # panels, lanes per panel
P_LANES = 4  # table of panels*width offsets
P_VALID = 5  # table of valid lanes per panel, 0: all are
P_K, P_TK = 6, 7
P_MODE = 8
P_STRIDE = 9  # bytes between destination panels
P_WORDS = 10

# pack modes: how the source runs
LANES_RUN, K_RUN, PANEL_RUN, SCATTERED = 0, 1, 2, 3
