"""The GEMM family on the Python side: its problem as data, lowering to a row of the step table, NumPy reference.

A `GemmProblem` is a contraction after layout: every operand is addressed by sums of offset vectors (bytes),

    C[o, m, n] (+)= sum_k A[o, m, k] * B[o, n, k]
    address of A = base + sum of outer tables + tm_a[m] + tk_a[k], and so on,

with M cut into panels of MR lanes (``valid`` of them exist in each panel).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ..dtypes import as_numpy
from ..records import lazy, quick
from . import packs
from .cpu import abi, cores
from .cpu import unpack_abi as ub
from .cpu.units import LINE
from .row import Operand, Row, operand_words
from .tiles import ADDRESSED, COMPLEX, ITEMSIZE, PANEL_GAP

ZERO = np.zeros(1, np.int64)
_FLAGS = np.array([1, 3], np.int64)  # of a panel whose lanes do not run in C, and of one whose lanes do


class StageRow(NamedTuple):
    """A prologue of a GEMM, as `kernels.prologue` makes it: ``nbytes`` of scratch memory that hold the operand's block
    (``abi.STAGED_A`` or ``STAGED_B``), ``columns`` of B at a time, the name of the row function, and what `fused_stage` is
    called with."""

    operand: int
    nbytes: int
    columns: int
    row: str
    table: np.ndarray


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class GemmProblem:
    """One packed or direct GEMM.

    ``outer``: up to four loops ``(count, table_a, table_b, table_c)``, slowest first. ``tm_a``, ``tm_c``: panels x MR
    offsets; ``tko_a``, ``tko_b``: of an outer loop over K, of which ``tk_a``, ``tk_b`` are one turn;
    ``valid``: lanes per panel; ``run``: panels whose C lanes are contiguous. ``a_mode``: ``direct`` (lanes
    contiguous, read in place), ``pack`` (packed by each task), ``panels`` (lies in panels, ``a_stride`` apart,
    ``a_nested``: in those of the first ``kc`` terms, then in those of the next);
    ``b_mode``: ``direct``, ``panels`` or ``pack``, as ``pack_mode`` and ``b_pack_mode`` say. ``a_source``, ``b_source``:
    dtypes that packing tasks widen from. ``chunk``: lanes of C that do not run come in runs of so many;
    ``fetch_a``, ``fetch_b``: the block that is packed next, or terms of A or the block of B that are read in place next, are asked
    for while tiles run. ``across``: panels are unpacked in groups of so many that are beside each other in A, times so many that are
    adjacent in C, lane by lane. ``turn``: panels come in groups of so many that are adjacent in C, times so many that are
    beside each other in A, which is how they are packed, fewer in the last one; tiles go along C. Tasks have whole groups;
    (0, 0): neither.
    ``stream``: store past the caches; ``close``: there, lanes come in runs of so many, behind which the next column
    begins, 0: they do not. ``stage``: an operand that is made block by block, in scratch memory.
    ``even``: terms of K that follow each other at equal distances in each operand that is read in place; 0: not known.
    ``asks``: what a turn of the outer loops has of A, B and C, and is asked for in the turn before: bytes of a row, rows (0: it is
    not), bytes from one to the next.
    ``lines``: where K goes in squares, the lines of a block that each lane of A and of B has, from its first term on.
    ``blocks``: outer indices, panels and columns per task; ``shares``: first panel, end, first column and end
    of each task, where these are unequal.
    """

    dtype: str
    mv: int
    nr: int
    mr: int
    a: Operand
    b: Operand
    c: Operand
    outer: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]
    tm_a: np.ndarray
    tm_c: np.ndarray
    valid: np.ndarray
    run: np.ndarray
    tn_b: np.ndarray
    tn_c: np.ndarray
    tk_a: np.ndarray
    tk_b: np.ndarray
    tko_a: np.ndarray = field(default_factory=lambda: ZERO)
    tko_b: np.ndarray = field(default_factory=lambda: ZERO)
    a_mode: str
    b_mode: str
    a_source: str = ""
    b_source: str = ""
    a_stride: int = 0
    a_nested: bool = False
    b_stride: int = 0
    pack_mode: int = abi.SCATTERED
    b_pack_mode: int = abi.SCATTERED
    fetch_a: bool = False
    fetch_b: bool = False
    far_a: bool = False
    far_b: bool = False
    kc: int = 256
    even: int = 0
    asks: tuple[tuple[int, int, int], ...] = ()
    chunk: int = 1
    across: tuple[int, int] = (0, 0)
    turn: tuple[int, int] = (0, 0)
    stream: bool = False
    close: int = 0
    blocks: tuple[int, int, int] = (1, 1, 1)
    shares: tuple[tuple[int, int, int, int], ...] = ()
    lines: tuple[np.ndarray, ...] = ()
    conj_a: bool = False
    conj_b: bool = False
    accumulate: bool = False
    parallel: bool = False
    stage: StageRow | None = None

    @property
    def kernel(self) -> str:
        modes = ("d" if self.a_mode == "direct" else "p") + ("d" if self.b_mode == "direct" else "p")
        return f"gemm_{self.dtype}_{self.mv}x{self.nr}_{modes}"

    @property
    def outer_total(self) -> int:
        return prod([count for count, *_ in self.outer]) if self.outer else 1

    @property
    def panels(self) -> int:
        return len(self.valid)

    @property
    def rows(self) -> int:
        """Rows that exist, padding not counted."""
        return sum(self.valid.tolist())  # few: a reduction by NumPy takes longer

    @lazy
    def tasks(self) -> tuple[int, int, int]:
        """Number of tasks along outer, panels and columns; shares count as tasks along panels."""
        outer, panels, columns = self.blocks
        if self.shares:
            return -(-self.outer_total // outer), len(self.shares), 1
        return -(-self.outer_total // outer), -(-self.panels // panels), -(-len(self.tn_c) // columns)


def lower(p: GemmProblem) -> Row:
    """The row of the step table that computes ``p``."""
    outer_tasks, panel_tasks, n_tasks = p.tasks
    scratch_a = _scratch_a(p)
    words = {
        **operand_words(p.c, p.a, p.b),
        abi.PARALLEL: (abi.IN_TURN if p.shares else abi.IN_BANDS) * p.parallel,  # shares come in the order to be taken
        abi.G_OUTER_TOTAL: p.outer_total,
        abi.G_M: p.rows,
        abi.G_PANELS: p.panels,
        abi.G_N: len(p.tn_c),
        abi.G_K: len(p.tk_a),
        abi.G_KO: len(p.tko_a),
        abi.G_KC: p.kc,
        abi.G_EVEN: _even(p),
        abi.G_A_STRIDE: p.a_stride,
        abi.G_B_STRIDE: p.b_stride,
        abi.G_PACK_MODE: p.pack_mode
        + 4 * p.b_pack_mode
        + abi.FETCH_A * _asks(p.fetch_a, p.a_mode)
        + abi.FETCH_B * _asks(p.fetch_b, p.b_mode)
        + abi.FAR_B * p.far_b
        + abi.FAR_A * (p.far_a and cores.here().turns_ask)
        + abi.NESTED_A * p.a_nested
        + abi.ADJACENT_B * _adjacent(p),
        abi.G_B_SCRATCH: scratch_a,
        abi.G_OUTER_BLOCK: p.blocks[0],
        abi.G_PANEL_BLOCK: p.blocks[1],
        abi.G_N_BLOCK: p.blocks[2],
        abi.G_PANEL_TASKS: panel_tasks,
        abi.G_N_TASKS: n_tasks,
        abi.G_ACCUMULATE: int(p.accumulate),
        abi.G_CHUNK: p.chunk,
        abi.G_STREAM: (1 + 2 * p.close) * (p.stream and not (p.asks and p.asks[2][1])),  # C that is asked for goes through the caches
        abi.G_SIGNS: int(p.conj_a) | int(p.conj_b) << 1,
    }
    tables, kernels = _tables(p), _kernels(p)
    _put_loops(p.outer, words, tables)
    scratch = _whole_lines(scratch_a + _scratch_b(p))
    if p.stage is not None:
        kernels |= {abi.G_STAGE: "fused_stage", abi.G_STAGE_ROW: p.stage.row}
        tables[abi.G_STAGE_TABLE], words[abi.G_STAGED] = p.stage.table, p.stage.operand
        words[abi.G_STAGE_COLUMNS] = p.stage.columns
        scratch += p.stage.nbytes
    tasks = outer_tasks * panel_tasks * n_tasks
    return Row(words=words, tables=tables, kernels=kernels, scratch=scratch, tasks=tasks)


def _even(p: GemmProblem) -> int:
    """Terms at equal distances, where blocks of K begin with the first one of them."""
    return p.even if p.even and (len(p.tk_a) <= max(p.even, p.kc) or p.kc % p.even == 0) else 0


def _adjacent(p: GemmProblem) -> bool:
    """Whether some tiles read adjacent columns in place, and each finds out by its first and its last column whether all of its own
    are so. The last one repeats a column: where it has two runs, these may be as far apart as what it lacks."""
    if p.b_mode != "direct" or p.nr <= ADDRESSED or len(p.tn_b) < p.nr:
        return False
    columns, item = padded(p.tn_b, p.nr).reshape(-1, p.nr), ITEMSIZE[p.dtype]
    whole = columns[:, -1] - columns[:, 0] == (p.nr - 1) * item
    return bool(whole.any() and (np.diff(columns[whole]) == item).all())


def _tables(p: GemmProblem) -> dict[int, np.ndarray]:
    a_tables = p.a_mode != "panels"  # what lies in panels is addressed by strides
    b_tables = p.b_mode != "panels"
    tables = {
        abi.G_TM_A: p.tm_a if a_tables else ZERO,
        abi.G_TM_C: p.tm_c,
        abi.G_VALID: p.valid,
        abi.G_FLAGS: _flags(p),
        abi.G_TN_B: padded(p.tn_b, p.nr) if b_tables else ZERO,
        abi.G_TN_C: padded(p.tn_c, p.nr),
        abi.G_TK_A: p.tk_a if a_tables else ZERO,
        abi.G_TK_B: p.tk_b if b_tables else ZERO,
        abi.G_TKO_A: p.tko_a,
        abi.G_TKO_B: p.tko_b,
    }
    for word, offsets in zip((abi.G_LINES_A, abi.G_LINES_B), p.lines):
        tables[word] = np.append(len(offsets), offsets)
    if p.turn[0]:
        tables[abi.G_TURN] = _turned(p.panels, *p.turn)
    if p.asks:
        tables[abi.G_ASKS] = np.array(p.asks, np.int64).ravel()
    if p.shares:
        tables[abi.G_SHARES] = np.array(p.shares, np.int64).ravel()
    return tables


def _turned(panels: int, cuts: int, beside: int) -> np.ndarray:
    """The panels group after group, each along C.

    >>> _turned(10, 2, 3).tolist()
    [0, 3, 1, 4, 2, 5, 6, 8, 7, 9]
    """
    numbers, size = np.arange(panels), cuts * beside
    return np.concatenate([numbers[at : at + size].reshape(cuts, -1).T.ravel() for at in range(0, panels, size)])


def _kernels(p: GemmProblem) -> dict[int, str]:
    kernels = {abi.FN: p.kernel}
    if p.a_mode == "pack":
        kernels[abi.G_PACK] = packs.kernel(p.a_source or p.dtype, p.dtype)
    if p.across[0]:
        kernels[abi.G_PACK] = f"unpack_{ITEMSIZE[p.dtype]}"
    if p.b_mode == "pack":
        kernels[abi.G_B_PACK] = packs.kernel(p.b_source or p.dtype, p.dtype)
    return kernels


def _flags(p: GemmProblem) -> np.ndarray:
    flags = _FLAGS.take(p.run)
    beside, adjacent = p.across
    if not beside:
        return flags
    place = np.arange(beside * adjacent).reshape(beside, adjacent).T.ravel() + 1
    place[-1] += (beside + (adjacent << ub.WAIT_BITS)) << ub.WAIT_BITS
    return flags + (np.resize(place, p.panels) << ub.WAITS)


def _most(p: GemmProblem) -> tuple[int, int]:
    """Panels and columns of the task that has most of them."""
    if not p.shares:
        return p.blocks[1:]
    return max(end - first for first, end, *_ in p.shares), max(end - first for *_, first, end in p.shares)


def packed_bytes(p: GemmProblem) -> int:
    """Of the scratch memory of a worker, what a task packs; in whole cache lines."""
    return _whole_lines(_scratch_a(p) + _scratch_b(p))


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _asks(wanted: bool, mode: str) -> bool:
    """Of what is packed, on cores where that pays; of what is read in place, as was decided."""
    return wanted and (mode != "pack" or cores.here().blocks_ask)


def _scratch_a(p: GemmProblem) -> int:
    """Bytes of the panels of A that a task packs, or of the tiles that wait to be unpacked, whole cache lines."""
    if p.across[0]:
        return p.across[0] * p.across[1] * p.mr * p.nr * ITEMSIZE[p.dtype]
    return _whole_lines(_most(p)[0] * _panel_bytes(p, p.mr)) if p.a_mode == "pack" else 0


def _scratch_b(p: GemmProblem) -> int:
    if p.b_mode != "pack":
        return 0
    return -(-min(_most(p)[1], len(p.tn_c)) // p.nr) * _panel_bytes(p, p.nr)


def _panel_bytes(p: GemmProblem, width: int) -> int:
    return width * min(p.kc, len(p.tk_a)) * ITEMSIZE[p.dtype] + PANEL_GAP


def padded(table: np.ndarray, multiple: int) -> np.ndarray:
    """Repeats the last entry so that a whole tile may be addressed at the edge."""
    missing = -len(table) % multiple
    return table.take(counted(len(table) + missing), mode="clip") if missing else table


@lru_cache(maxsize=64)
def counted(count: int) -> np.ndarray:
    """The numbers below ``count``."""
    return np.arange(count)


def _put_loops(outer: tuple, words: dict[int, int], tables: dict[int, np.ndarray]) -> None:
    """Four loops: those of ``outer``, and before them such as run once."""
    at = abi.G_OUTER
    for _ in range(4 - len(outer)):
        words[at] = 1
        at += 4
    for count, *operands in outer:
        words[at] = count
        if count > 1:
            tables[at + 1], tables[at + 2], tables[at + 3] = operands
        at += 4


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class PackProblem:
    """Operand to panels in a buffer: panel p, element (k, lane) at ``p * stride + (k * width + lane) * item``.

    Elements of dtype ``source`` become elements of ``dtype``. ``past``: panels are stored past the caches.
    """

    source: str
    dtype: str
    width: int
    src: Operand
    dst: Operand
    outer: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]
    lanes: np.ndarray
    valid: np.ndarray
    tk: np.ndarray
    stride: int
    mode: int
    block: int
    past: bool = False
    parallel: bool = False

    @property
    def kernel(self) -> str:
        return packs.kernel(self.source, self.dtype)


def lower_pack(p: PackProblem) -> Row:
    """The row of the step table that packs ``p``."""
    shares = -(-len(p.valid) // p.block)
    words = {
        **operand_words(p.dst, p.src),
        abi.PARALLEL: abi.IN_BANDS * p.parallel,
        abi.G_PANELS: len(p.valid),
        abi.G_N: p.width,
        abi.G_K: len(p.tk),
        abi.G_A_STRIDE: p.stride,
        abi.G_PACK_MODE: p.mode + abi.PACK_PAST * p.past,
        abi.G_PANEL_TASKS: shares,
        abi.G_PANEL_BLOCK: p.block,
    }
    tables = {abi.G_TM_A: p.lanes, abi.G_VALID: p.valid, abi.G_TK_A: p.tk}
    _put_loops(p.outer, words, tables)
    tasks = shares * prod([count for count, *_ in p.outer])
    return Row(words=words, tables=tables, kernels={abi.FN: "packtask", abi.G_PACK: p.kernel}, tasks=tasks)


# -- reference ---------------------------------------------------------------------------------------------------
def reference(p: GemmProblem, memory: dict[int, np.ndarray]) -> None:
    """What the kernel computes, with NumPy: ``memory[slot]`` is the uint8 view that starts at the slot's base."""
    for offsets in _outer_offsets(p.outer):
        a, b, c = (operand.offset + off for operand, off in zip((p.a, p.b, p.c), offsets))
        lanes = np.concatenate([np.arange(v) + i * p.mr for i, v in enumerate(p.valid)])
        if p.a_mode == "panels":
            item = ITEMSIZE[p.dtype]
            at_m = lanes // p.mr * p.a_stride + lanes % p.mr * item
            k = np.arange(len(p.tk_a))
            if p.a_nested:
                k = k // p.kc * p.kc * p.panels + k % p.kc
            at_k = _both(p.tko_a, k * p.mr * item)
        else:
            at_m, at_k = p.tm_a[lanes], _both(p.tko_a, p.tk_a)
        left = _read(memory[p.a.slot], a + at_m[:, None] + at_k[None, :], p.a_source or p.dtype)
        if p.b_mode == "panels":
            n, item = np.arange(len(p.tn_b)), ITEMSIZE[p.dtype]
            at = n[:, None] // p.nr * p.b_stride + n[:, None] % p.nr * item
            at = at + _both(p.tko_b, np.arange(len(p.tk_b)) * p.nr * item)
        else:
            at = p.tn_b[:, None] + _both(p.tko_b, p.tk_b)[None, :]
        right = _read(memory[p.b.slot], b + at, p.b_source or p.dtype)
        product = _product(*(side.astype(_kind(p.dtype), copy=False) for side in (left, right)), p)
        where = c + p.tm_c[lanes][:, None] + p.tn_c[None, :]
        if p.accumulate:
            product = _add(product, _read(memory[p.c.slot], where, p.dtype), p.dtype)
        _write(memory[p.c.slot], where, product)


def _both(turns: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Offsets of all of K."""
    return np.add.outer(turns, inner).ravel()


def _outer_offsets(outer):
    if not outer:
        yield (0, 0, 0)
        return
    count, *tables = outer[0]
    for i in range(count):
        head = tuple(int(t[i]) if count > 1 else 0 for t in tables)
        for tail in _outer_offsets(outer[1:]):
            yield tuple(x + y for x, y in zip(head, tail))


def _product(left: np.ndarray, right: np.ndarray, p: GemmProblem) -> np.ndarray:
    if p.dtype == "bool":
        return (left.astype(bool) @ right.astype(bool).T).astype(np.uint8)
    if p.dtype in COMPLEX:
        left = left.conj() if p.conj_a else left
        right = right.conj() if p.conj_b else right
    return left @ right.T


def _add(x: np.ndarray, y: np.ndarray, dtype: str) -> np.ndarray:
    return x | y if dtype == "bool" else x + y


def _read(memory: np.ndarray, at: np.ndarray, dtype: str) -> np.ndarray:
    kind = _kind(dtype)
    return memory[at[..., None] + np.arange(kind.itemsize)].view(kind)[..., 0]


def _kind(dtype: str) -> np.dtype:
    return as_numpy("uint8" if dtype == "bool" else dtype)


def _write(memory: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values)
    memory[at[..., None] + np.arange(values.itemsize)] = values.view(np.uint8).reshape(*values.shape, values.itemsize)
