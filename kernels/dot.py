"""The dot family on the Python side: its problem as data, lowering to rows of the step table, NumPy reference.

    C[o, m, n] (+)= sum_k A[o, m, k] * B[o, n, k]        ``rows=False``
    C[o, m]    (+)= sum_k A[o, m, k] * B[o, m, k]        ``rows=True``: every row of A with its own row of B

K is contiguous in both operands in runs: element k lies at ``tk[k // run] + k % run * itemsize``. Everything else is
addressed by offset vectors (bytes). Where there are too few results to share among threads the sum itself is shared:
partial results go to temporary memory, and a second row adds them up in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..machine_memory import block_bytes
from .cpu import abi
from .cpu import dot_abi as da
from .gemm import ZERO, Operand
from .isa import ISA
from .loops import SHARED_TERMS, SHARES, Loops, exchanged, outer_offsets, outer_total, outer_words, read, write
from .nest_rows import FAR_BYTES
from .row import Row, operand_words
from .tiles import COMPLEX, ITEMSIZE

BLOCK_BYTES = block_bytes(256 << 10, level=2)  # of all columns and a tile of rows, per K block: they stay in L2 while they are used again
IN_ORDER_BYTES = 256, 4096  # of adjacent rows that are read in order: of longer ones, hardware follows eight at once


@dataclass(frozen=True, kw_only=True, eq=False)
class DotProblem:
    """One sum along a contiguous dimension.

    ``outer``: up to four loops ``(count, table_a, table_b, table_c)``, slowest first. ``tm_a``, ``tm_c``: offsets of
    M; ``tn_b``, ``tn_c``: of N, or with ``rows`` one per m in B, and ``tn_c`` unused. ``k``: elements summed;
    ``tk_a``, ``tk_b``: ceil(k / run) offsets each. ``parallel``: the row may use the pool.
    """

    dtype: str
    a: Operand
    b: Operand
    c: Operand
    outer: Loops = ()
    tm_a: np.ndarray
    tm_c: np.ndarray
    tn_b: np.ndarray
    tn_c: np.ndarray
    rows: bool = False
    k: int
    run: int
    tk_a: np.ndarray
    tk_b: np.ndarray
    conj_a: bool = False
    conj_b: bool = False
    accumulate: bool = False
    parallel: bool = False

    @property
    def kernel(self) -> str:
        return f"dot_{self.dtype}_{'rows' if self.rows else 'tile'}"

    @property
    def outer_total(self) -> int:
        return outer_total(self.outer)

    @property
    def m(self) -> int:
        return len(self.tm_a)

    @property
    def n(self) -> int:
        return 1 if self.rows else len(self.tn_b)

    @property
    def results(self) -> int:
        return self.outer_total * self.m * self.n

    @property
    def flops(self) -> int:
        return self.results * self.k * (8 if self.dtype in COMPLEX else 2)


def fits(isa: ISA, dtype: str, *, m: int, n: int, k: int, run: int) -> bool:
    """Whether this family is the right one for ``m`` x ``n`` sums of ``k`` terms, ``run`` of them contiguous in both.

    Runs must fill vectors, or half of one where one side has one row: there it is the only way not to pack. With more
    than one row and column a sum must be long enough to pay for adding up lanes, and the smaller side too small to pay
    for packing: then a GEMM is faster. With paired rows ``n`` is 1. Of one row and one column, or paired rows, two
    adjacent terms are enough, since a GEMM would use one lane of a vector.
    """
    if m == n == 1:
        return k > 0 and run >= min(k, 2)
    lanes = isa.vector_bits // (8 * ITEMSIZE[dtype])
    side = min(m, n)
    if k == 0 or run < min(k, max(2, lanes // 2)) or (run < k and run % lanes and run < 4 * lanes and side > 1):
        return False
    return side <= 1 or (side <= SMALL_SIDE and k >= 2 * side * lanes)


SMALL_SIDE = 16


# -- lowering ----------------------------------------------------------------------------------------------------
def splits(p: DotProblem, threads: int) -> int:
    """Tasks that share the sum: more than one only where the results are too few for the threads."""
    if not p.parallel or threads < 2 or p.results == 0 or p.results >= SHARES * threads:
        return 1
    return max(1, min(threads, p.k * p.results // SHARED_TERMS))


def temp_bytes(p: DotProblem, threads: int) -> int:
    """Bytes of temporary memory that `lower` wants for partial results."""
    pieces = splits(p, threads)
    return pieces * p.results * ITEMSIZE[p.dtype] if pieces > 1 else 0


def lower(p: DotProblem, threads: int = 1, temp: Operand | None = None) -> tuple[Row, ...]:
    """The rows of the step table that compute ``p``: one, or two where K is shared through ``temp``."""
    if p.n > p.m:
        p = exchanged(p)  # kernels run along M
    pieces = splits(p, threads)
    if pieces == 1 or temp is None:
        return (_row(p, threads, 1, 0),)
    item, where = ITEMSIZE[p.dtype], result_offsets(p)
    partial = replace(_compact(p), c=temp, accumulate=False)
    return _row(partial, threads, pieces, p.results * item), _sum_row(p, pieces, temp, where)


def _row(p: DotProblem, threads: int, pieces: int, split_stride: int) -> Row:
    total = p.outer_total
    blocks, tasks = _shares(p, threads) if pieces == 1 else ((total, p.m, p.n), (1, 1, 1))
    split = max(1, -(-p.k // pieces))
    if pieces > 1:
        split = -(-split // 64) * 64  # whole vectors, so that only the last piece ends within one
    words = {
        **operand_words(p.c, p.a, p.b),
        abi.PARALLEL: abi.IN_BANDS * p.parallel,
        da.D_OUTER_TOTAL: total,
        da.D_M: p.m,
        da.D_N: p.n,
        da.D_K: p.k,
        da.D_RUN: max(1, p.run),
        da.D_KC: _k_block(p),
        da.D_OUTER_BLOCK: blocks[0],
        da.D_M_BLOCK: blocks[1],
        da.D_N_BLOCK: blocks[2],
        da.D_M_TASKS: tasks[1],
        da.D_N_TASKS: tasks[2],
        da.D_SPLITS: pieces,
        da.D_SPLIT: split,
        da.D_SPLIT_STRIDE: split_stride,
        da.D_ACCUMULATE: int(p.accumulate),
        da.D_SIGNS: int(p.conj_a) | int(p.conj_b) << 1,
        da.D_IN_ORDER: int(_in_order(p)),
    }
    tables = {
        da.D_TM_A: p.tm_a,
        da.D_TM_B: p.tn_b if p.rows else ZERO,
        da.D_TM_C: p.tm_c,
        da.D_TN_B: ZERO if p.rows else p.tn_b,
        da.D_TN_C: ZERO if p.rows else p.tn_c,
        da.D_TK_A: p.tk_a if len(p.tk_a) else ZERO,
        da.D_TK_B: p.tk_b if len(p.tk_b) else ZERO,
    }
    outer = outer_words(p.outer)
    count = int(np.prod(tasks)) * pieces if p.results else 0
    return Row(words=words | outer[0], tables=tables | outer[1], kernels={abi.FN: p.kernel}, tasks=count)


def _in_order(p: DotProblem) -> bool:
    """Whether one column reads short rows, one behind the other, that come from memory."""
    item, (least, most) = ITEMSIZE[p.dtype], IN_ORDER_BYTES
    row = p.k * item
    if p.n != 1 or p.run < p.k or p.m < 2 or not least <= row <= most or p.outer_total * p.m * row < FAR_BYTES:
        return False
    return p.tm_a[1] - p.tm_a[0] == row


def _k_block(p: DotProblem) -> int:
    """Elements of K per block: all of it where no row is read twice."""
    if p.rows or p.m * p.n == 1:
        return max(1, p.k)
    limit = max(512, BLOCK_BYTES // ((p.n + 8) * ITEMSIZE[p.dtype]))
    blocks = max(1, -(-p.k // limit))
    return max(1, -(-p.k // blocks))


def _shares(p: DotProblem, threads: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Results per task, and tasks, along outer, M and N: the slow dimensions are cut first."""
    totals = (p.outer_total, p.m, p.n)
    wanted = 1
    if p.parallel and threads > 1:
        wanted = max(1, min(SHARES * threads, p.results * p.k // SHARED_TERMS))
    blocks, tasks = [], []
    for total, unit in zip(totals, (1, 8 if p.n == 1 else 6, 4)):
        block = max(1, -(-total // wanted))
        if block > unit:
            block = -(-block // unit) * unit
        blocks.append(block)
        tasks.append(max(1, -(-total // block)))
        wanted = -(-wanted // tasks[-1])
    return tuple(blocks), tuple(tasks)


def result_offsets(p: DotProblem) -> np.ndarray:
    """Offset of every result in C: outer, m, n, the last fastest."""
    columns = ZERO if p.rows else p.tn_c
    return np.add.outer(np.add.outer(outer_offsets(p.outer, 2), p.tm_c), columns).ravel()


def _compact(p: DotProblem) -> DotProblem:
    """``p`` with its results one behind the other."""
    step, outer = ITEMSIZE[p.dtype], []
    tn_c = np.arange(p.n, dtype=np.int64) * step
    tm_c = np.arange(p.m, dtype=np.int64) * (step * p.n)
    step *= p.n * p.m
    for count, table_a, table_b, _ in reversed(p.outer):
        outer.append((count, table_a, table_b, np.arange(count, dtype=np.int64) * step))
        step *= count
    return replace(p, outer=tuple(outer[::-1]), tm_c=tm_c, tn_c=tn_c)


def _sum_row(p: DotProblem, pieces: int, temp: Operand, where: np.ndarray) -> Row:
    words = {
        **operand_words(p.c, temp),
        da.D_M: p.results,
        da.D_SPLITS: pieces,
        da.D_SPLIT_STRIDE: p.results * ITEMSIZE[p.dtype],
        da.D_ACCUMULATE: int(p.accumulate),
    }
    return Row(words=words, tables={da.D_TM_C: where}, kernels={abi.FN: f"dotsum_{p.dtype}"})


# -- reference ---------------------------------------------------------------------------------------------------
def reference(p: DotProblem, memory: dict[int, np.ndarray]) -> None:
    """What the rows compute, with NumPy: ``memory[slot]`` is the uint8 view that starts at the slot's base."""
    k = np.arange(p.k)
    at_a, at_b = (table[k // max(1, p.run)] + k % max(1, p.run) * ITEMSIZE[p.dtype] for table in (p.tk_a, p.tk_b))
    results = []
    for outer_a, outer_b in zip(outer_offsets(p.outer, 0), outer_offsets(p.outer, 1)):
        left = read(memory[p.a.slot], p.a.offset + outer_a + np.add.outer(p.tm_a, at_a), p.dtype, p.conj_a)
        right = read(memory[p.b.slot], p.b.offset + outer_b + np.add.outer(p.tn_b, at_b), p.dtype, p.conj_b)
        results.append(np.einsum("mk,mk->m" if p.rows else "mk,nk->mn", left, right).ravel())
    if results:
        write(memory[p.c.slot], p.c.offset + result_offsets(p), np.concatenate(results), p.dtype, p.accumulate)
