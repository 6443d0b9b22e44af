"""The batched family on the Python side: its problem as data, lowering to a row of the step table, NumPy reference.

    C[o, b, m, n] (+)= sum_k A[o, b, m, k] * B[o, b, n, k]

The batch dimension b is contiguous in A, B and C; everything else is addressed by offset vectors (bytes). Lanes run
along b, so no operand is packed or broadcast, whatever the order of its other dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from ..machine_memory import block_bytes
from .cpu import abi
from .cpu import batched_abi as ba
from .gemm import ZERO, Operand
from .isa import ISA
from .loops import SHARED_TERMS, SHARES, Loops, exchanged, outer_offsets, outer_total, outer_words, read, write
from .row import Row, operand_words
from .tiles import COMPLEX, ITEMSIZE

# (registers, complex?) -> tiles with rows >= columns; a tile holds its sums, its columns and one row in registers
_TILES = {
    (32, False): ((1, 1), (4, 1), (2, 2), (3, 3), (4, 4), (6, 4)),
    (32, True): ((1, 1), (4, 1), (2, 2), (4, 2), (3, 3)),
    (16, False): ((1, 1), (4, 1), (2, 2), (4, 2), (3, 3)),
    (16, True): ((1, 1), (3, 1), (2, 2)),
}
BLOCK_BYTES = block_bytes(256 << 10, level=2)  # of A, B and C per block of the batch: stays in L2 while tiles read it again
BLOCK_RUN = 512  # bytes of the batch at least: shorter pieces waste what memory fetches ahead
MEMORY_BYTES = 16 << 20  # operands of more come from memory
AHEAD = 512  # bytes
MANY_ROWS = 24  # more than hardware fetches ahead by itself
STAGE_BYTES = 24 << 10  # of rows copied to scratch: they stay in L1
STAGE_RUN = 256  # bytes of a row at least
STAGE_LONG = 1024  # of the rows themselves, where a line is two vectors or more
CROWDED = 0.4  # of their lines
FEW_USES, MANY_USES = 2, 4  # of a row by the tiles of a product
_LINE, _WAY, _WAYS = 64, 4096, 8  # of a common first-level cache: lines at the same offset of a page share 8 places
_SETS = 1024  # of a common second-level cache, each of as many lines
_STAY = 2 * _WAYS  # lines of all columns in a set, up to which most are read again before others have taken their places


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchedProblem:
    """Many products at once.

    ``outer``: up to four loops ``(count, table_a, table_b, table_c)``, slowest first. ``lanes``: elements of the
    batch dimension. ``tm_*``, ``tn_*``, ``tk_*``: offsets of M, N and K. ``parallel``: the row may use the pool.
    """

    dtype: str
    a: Operand
    b: Operand
    c: Operand
    outer: Loops = ()
    lanes: int
    tm_a: np.ndarray
    tm_c: np.ndarray
    tn_b: np.ndarray
    tn_c: np.ndarray
    tk_a: np.ndarray
    tk_b: np.ndarray
    conj_a: bool = False
    conj_b: bool = False
    accumulate: bool = False
    parallel: bool = False

    @property
    def m(self) -> int:
        return len(self.tm_a)

    @property
    def n(self) -> int:
        return len(self.tn_b)

    @property
    def k(self) -> int:
        return len(self.tk_a)

    @property
    def terms(self) -> int:
        return outer_total(self.outer) * self.lanes * self.m * self.n * self.k

    @property
    def rows(self) -> int:
        """Rows of lanes in A, B and C together."""
        return self.m * self.k + self.n * self.k + self.m * self.n

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of A, B and C."""
        return outer_total(self.outer) * self.lanes * self.rows * ITEMSIZE[self.dtype]

    @property
    def flops(self) -> int:
        return self.terms * (8 if self.dtype in COMPLEX else 2)


def tiles(isa: ISA, dtype: str) -> tuple[tuple[int, int], ...]:
    """Register tiles (rows, columns) that kernels exist for."""
    return _TILES[isa.registers, dtype in COMPLEX]


def tile_for(isa: ISA, dtype: str, m: int, n: int) -> tuple[int, int]:
    """The tile that computes ``m`` x ``n`` results in the fewest cycles; ties go to the larger tile."""
    return min(tiles(isa, dtype), key=lambda tile: (_cycles(isa, dtype, tile, m, n), -tile[0] * tile[1]))


def _cycles(isa: ISA, dtype: str, tile: tuple[int, int], m: int, n: int) -> float:
    """Of all tiles, for a term: in multiply-adds."""
    mt, nt = tile
    passes = -(-m // mt) * -(-n // nt)
    if isa.registers > 16:  # two loads and one or two multiply-adds a cycle; a few cycles to start and store a tile
        return passes * (max(mt * nt, (mt + nt) / 2) + 1)
    parts = 2 if dtype in COMPLEX else 1
    # Two of each in a cycle, of which those of one tile are under way: few sums wait for themselves. Of tiles that all do so
    # the one that does the least besides.
    work, loads = mt * nt * parts, mt + nt * parts
    return passes * (max(work, loads, isa.in_flight) + 2 + 0.01 * (work + loads))


def arranged(p: BatchedProblem, isa: ISA, threads: int = 1) -> tuple[BatchedProblem, tuple[int, int]]:
    """``p`` in the roles in which it is computed, and its tile.

    Rows of a tile are read again for each of its columns' tiles, columns for each of the rows': from the first cache, if it has
    room for them, else each wait counts as two multiply-adds (docs/performance-batches.md#roles). Where without sharing rows some
    threads would have nothing, these are many.
    """
    many = p if p.m >= p.n else exchanged(p)
    if isa.registers > 16 or many.n == 1:  # others were not measured, or nothing is read again
        return many, tile_for(isa, p.dtype, many.m, many.n)
    full = _fullest(many.tk_a), _fullest(many.tk_b)

    def cost(choice: tuple[int, tuple[int, int]]) -> tuple[float, int, int]:
        turned, (mt, nt) = choice
        m, n, of_rows, of_columns = (many.n, many.m, *full[::-1]) if turned else (many.m, many.n, *full)
        again = m * (-(-n // nt) - 1) if of_rows * mt > _WAYS else 0
        again += n * (-(-m // mt) - 1) if of_columns * n > _STAY else 0
        return _cycles(isa, p.dtype, (mt, nt), m, n) + 2 * again, -mt * nt, turned

    by_rows = p.parallel and outer_total(p.outer) * -(-p.lanes // _unit(p, isa)) < threads
    roles = (0,) if by_rows else (0, 1)
    turned, tile = min(((turned, tile) for turned in roles for tile in tiles(isa, p.dtype)), key=cost)
    return exchanged(many) if turned else many, tile


def _fullest(row: np.ndarray) -> int:
    """Lines of the terms of a row in the set of a first-level cache that has most of them."""
    return int(np.bincount(np.unique(row // _LINE) % (_WAY // _LINE)).max(initial=0))


def fits(isa: ISA, dtype: str, *, lanes: int, m: int, n: int, k: int) -> bool:
    """Whether this family is the right one for products of (m, k) by (k, n), ``lanes`` of them side by side.

    The batch must fill vectors, and one vector of it in all operands stay in the L2 cache, where there is no blocking.
    """
    per_vector = isa.lanes(ITEMSIZE[dtype])
    vectors = m * k + n * k + m * n
    return lanes >= max(2, per_vector // 2) and vectors * isa.vector_bits // 8 <= 2 * BLOCK_BYTES


def lower(p: BatchedProblem, isa: ISA, threads: int = 1) -> Row:
    """The row of the step table that computes ``p``."""
    p, (mt, nt) = arranged(p, isa, threads)
    shares, tasks = _shares(p, isa, mt, threads)
    staged = collides(p, isa, (mt, nt))
    block = _block(p, isa, staged)
    run = block * ITEMSIZE[p.dtype]  # bytes of a row in scratch
    words = {
        **operand_words(p.c, p.a, p.b),
        abi.PARALLEL: abi.IN_BANDS * p.parallel,
        ba.B_OUTER_TOTAL: outer_total(p.outer),
        ba.B_M: p.m,
        ba.B_N: p.n,
        ba.B_K: p.k,
        ba.B_LANES: p.lanes,
        ba.B_BLOCK: block,
        ba.B_OUTER_SHARE: shares[0],
        ba.B_LANES_SHARE: shares[1],
        ba.B_M_SHARE: shares[2],
        ba.B_LANES_TASKS: tasks[1],
        ba.B_M_TASKS: tasks[2],
        ba.B_ACCUMULATE: int(p.accumulate),
        ba.B_SIGNS: int(p.conj_a) | int(p.conj_b) << 1,
        ba.B_AHEAD: AHEAD if p.nbytes >= MEMORY_BYTES and p.rows >= MANY_ROWS else 0,
        ba.B_STAGE_B: p.m * p.k * run if staged else 0,
    }
    outer = outer_words(p.outer)
    tables = {ba.B_TABLES + i: table for i, table in enumerate((p.tm_a, p.tk_a, p.tn_b, p.tk_b, p.tm_c, p.tn_c))}
    if staged:
        m, n, k = (np.arange(count, dtype=np.int64) * run for count in (p.m, p.n, p.k))
        copies = (m * p.k, k, n * p.k, k, p.tm_c, p.tn_c)
        tables |= {ba.B_STAGED + i: table for i, table in enumerate(copies)}
    tables = {word: table if len(table) else ZERO for word, table in tables.items()}
    empty = not outer_total(p.outer) * p.lanes * p.m * p.n
    return Row(
        words=words | outer[0],
        tables=tables | outer[1],
        kernels={abi.FN: f"batched_{p.dtype}_{mt}x{nt}"},
        scratch=(p.m + p.n) * p.k * run if staged else 0,
        tasks=0 if empty else int(np.prod(tasks)),
    )


def collides(p: BatchedProblem, isa: ISA, tile: tuple[int, int]) -> bool:
    """Whether A and B are worked on in copies: where twice as many rows of a tile start in a set of a first-level cache as it holds,
    and copying pays.

    Such rows evict each other between the parts of a line. Where a vector is a cache line, a tile reads each once, and rows lose
    only what is fetched ahead, which is less than copying takes unless all of many lie whole pages apart; and with a single column,
    a copy of A takes as long as the product (docs/performance-batches.md#copies-of-rows).
    """
    if not p.lanes or not p.k or p.lanes * ITEMSIZE[p.dtype] < STAGE_RUN:
        return False
    mt, nt = tile
    whole = isa.vector_bits == 8 * _LINE
    if whole and p.n == 1 and p.m > mt:
        return False
    rows = _starts(((p.tm_a[:mt], p.tk_a), (p.tn_b[:nt], p.tk_b), (p.tm_c[:mt], p.tn_c[:nt])), _WAY // _LINE)
    most = int(rows.max())
    if whole:
        return most >= 4 * _WAYS and most == int(rows.sum())
    return most > 2 * _WAYS and _pays_to_copy(p, isa, tile)


def _pays_to_copy(p: BatchedProblem, isa: ISA, tile: tuple[int, int]) -> bool:
    """Whether copies of a block stay in the second cache, and rows are read often or from beyond it: long ones of large products,
    or those to which few of its sets belong. Else they are read again from there, which takes less."""
    item, (mt, nt) = ITEMSIZE[p.dtype], tile
    if (p.m + p.n) * p.k * _block(p, isa, staged=True) * item > 3 * BLOCK_BYTES // 2:
        return False
    run, nbytes = p.lanes * item, p.rows * p.lanes * item
    uses = (p.m * -(-p.n // nt) + p.n * -(-p.m // mt)) / (p.m + p.n)
    if uses >= MANY_USES or uses >= FEW_USES and run >= STAGE_LONG and 4 * nbytes > 3 * BLOCK_BYTES:
        return True
    return 2 * nbytes < 3 * BLOCK_BYTES and _crowded(p, run)


def _crowded(p: BatchedProblem, run: int) -> bool:
    """Whether of the lines of all rows, of ``run`` bytes each, many lie in sets of a second-level cache that have no room for them."""
    begin = _starts(((p.tm_a, p.tk_a), (p.tn_b, p.tk_b), (p.tm_c, p.tn_c)), _SETS)
    lines = min(-(-run // _LINE), _SETS)
    before = np.concatenate([[0], np.cumsum(np.concatenate([begin, begin]))])
    held = before[_SETS + 1 :] - before[_SETS + 1 - lines : -lines]
    return bool(held[held > _WAYS].sum() > CROWDED * held.sum())


def _starts(tables: Sequence[tuple[np.ndarray, np.ndarray]], sets: int) -> np.ndarray:
    """How many rows of lanes start in each set of a cache. ``tables``: of each operand those that rows are a sum of."""
    rows = [np.unique(np.add.outer(x, y)) for x, y in tables]
    return np.bincount(np.concatenate(rows) // _LINE % sets, minlength=sets)


def _block(p: BatchedProblem, isa: ISA, staged: bool) -> int:
    """Elements of the batch per block, whole vectors."""
    item = ITEMSIZE[p.dtype]
    unit = isa.lanes(item)
    room, run = (STAGE_BYTES, STAGE_RUN) if staged else (BLOCK_BYTES, BLOCK_RUN)
    wanted = max(run // item, room // max(1, p.rows * item))
    return max(unit, wanted // unit * unit)


def _shares(p: BatchedProblem, isa: ISA, mt: int, threads: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """What a task gets, and how many tasks there are: along outer, batch and M. The slow dimensions are cut first."""
    wanted = 1
    if p.parallel and threads > 1:
        wanted = max(1, min(SHARES * threads, p.terms // SHARED_TERMS))
    shares, tasks = [], []
    for total, step in ((outer_total(p.outer), 1), (p.lanes, _unit(p, isa)), (p.m, mt)):
        share = -(-max(1, -(-total // wanted)) // step) * step
        shares.append(share)
        tasks.append(max(1, -(-total // share)))
        wanted = -(-wanted // tasks[-1])
    return tuple(shares), tuple(tasks)


def _unit(p: BatchedProblem, isa: ISA) -> int:
    """Elements of the batch that stay with one task."""
    return max(64, isa.lanes(ITEMSIZE[p.dtype]))


# -- reference ---------------------------------------------------------------------------------------------------
def reference(p: BatchedProblem, memory: dict[int, np.ndarray]) -> None:
    """What the row computes, with NumPy: ``memory[slot]`` is the uint8 view that starts at the slot's base."""
    lanes = np.arange(p.lanes) * ITEMSIZE[p.dtype]
    for outer_a, outer_b, outer_c in zip(*(outer_offsets(p.outer, operand) for operand in range(3))):
        at_a, at_b, at_c = (
            start + np.add.outer(lanes, np.add.outer(rows, columns))
            for start, rows, columns in (
                (p.a.offset + outer_a, p.tm_a, p.tk_a),
                (p.b.offset + outer_b, p.tn_b, p.tk_b),
                (p.c.offset + outer_c, p.tm_c, p.tn_c),
            )
        )
        left = read(memory[p.a.slot], at_a, p.dtype, p.conj_a)
        right = read(memory[p.b.slot], at_b, p.dtype, p.conj_b)
        product = np.einsum("bmk,bnk->bmn", left, right)
        write(memory[p.c.slot], at_c, product, p.dtype, p.accumulate)
