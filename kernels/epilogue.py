"""The epilogue of a product as data: a fused map that takes blocks of C, while they are in cache, to what is made of it.

A `GemmProblem` addresses C by sums of tables. Whatever else the map reads and writes is addressed by tables of the same
shape, and these follow from those of C: C is given as a view whose strides are nested, so that an offset says which
entry it is, and an offset in another operand is that entry times its strides. `EpilogueTables` is made of a problem
and such a view, and `lower` makes the row of both. C lies in memory, or in the scratch memory of the worker, where it is
never stored.

>>> digits(np.array([0, 4, 24, 28]), (2, 6), (24, 4))
array([[0, 0, 1, 1],
       [0, 1, 0, 1]])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Callable, Sequence

import numpy as np

from ..records import lazy
from . import gemm
from .cpu import abi
from .cpu import fused_abi as ua
from .cpu import nest_abi as na
from .cpu.storage import STORAGES
from .cpu.units import LINE
from .fused_structure import Structure, name
from .gemm import GemmProblem
from .row import Operand, Row
from .tiles import ITEMSIZE

SCRATCH = -1  # slot of what lies in the scratch memory of the worker
STRIP_BYTES = 48 << 10  # of a strip of C, which goes through the tile function at once
SCRATCH_BYTES = 512 << 10  # of C, at most, in scratch memory


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """A structure without reductions, over operands of ``shape``: outputs, then inputs.

    ``strides``: of each operand, in bytes, 0 where it is broadcast; ``c``: numbers of the operands that are C; ``view``:
    strides of C, nested, none 0 where the size is more than 1; ``scratch``: C is not stored. ``stream``: the outputs
    are larger than the caches, and go past them.
    """

    structure: Structure
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    c: tuple[int, ...]
    view: tuple[int, ...]
    scratch: bool = False
    stream: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)


def digits(offsets: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """(dimensions, entries): the indices that an offset stands for, in a view whose strides are nested; all that is left
    over is counted along the slowest one, where a caller finds it too large."""
    found, rest = np.zeros((len(shape), len(offsets)), np.int64), offsets
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if shape[axis] > 1:
            found[axis], rest = np.divmod(rest, strides[axis])
    return found


def never_carry(parts: Sequence[np.ndarray], shape: Sequence[int]) -> bool:
    """Whether sums of `digits`, one entry of each of ``parts``, are indices of a view of that shape."""
    most = sum(part.max(axis=1) for part in parts)
    least = min(int(part.min()) for part in parts) if shape else 0
    return least >= 0 and all(top < max(size, 1) for top, size in zip(most, shape))


def nested(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Whether each stride is at least what the faster dimensions span."""
    span = item
    for size, stride in sorted((pair for pair in zip(shape, strides) if pair[0] > 1), key=lambda pair: pair[1]):
        if stride < span:
            return False
        span = stride * size
    return True


class EpilogueTables:
    """Which entry each table of C stands for. ``shift``: bytes from the first element of C to that of the problem."""

    def __init__(self, problem: GemmProblem, epilogue: Epilogue, shift: int = 0) -> None:
        self.p, self.e, self.shift = replace(problem, shares=()), epilogue, shift  # tables go by blocks
        lanes = np.arange(problem.mr) < problem.valid[:, None]
        self.at = np.flatnonzero(lanes)  # positions of lanes that exist, among those of all panels
        self.start = self._digits(np.array([shift]))
        self.lanes = self._digits(problem.tm_c[self.at])
        self.columns = self._digits(problem.tn_c)
        self.outer = [self._digits(table) if count > 1 else None for count, _, _, table in problem.outer]

    def _digits(self, offsets: np.ndarray) -> np.ndarray:
        return digits(offsets, self.e.shape, self.e.view)

    @property
    def fits(self) -> bool:
        """Whether sums of the tables never carry: then the entry of a sum is the sum of the entries."""
        if self.p.accumulate or self.p.across[0]:
            return False
        parts = [self.start, self.lanes, self.columns, *(each for each in self.outer if each is not None)]
        return never_carry(parts, self.e.shape)

    # -- runs of lanes -------------------------------------------------------------------------------------------
    def _along(self, which: np.ndarray, number: int) -> np.ndarray:
        """Offsets of operand ``number`` for entries."""
        return np.array(self.e.strides[number], np.int64) @ which

    def _is_scratch(self, number: int) -> bool:
        return self.e.scratch and number in self.e.c

    @lazy
    def block_lanes(self) -> int:
        """Lanes of a block of panels, padding included."""
        return self.p.blocks[1] * self.p.mr

    @lazy
    def distance(self) -> int:
        """Bytes between columns of C in scratch memory: no multiple of a page, so that they do not share cache sets."""
        item = ITEMSIZE[self.p.dtype]
        return -(-min(self.block_lanes, self.p.panels * self.p.mr) * item // LINE) * LINE + LINE

    @lazy
    def lane_offsets(self) -> list[np.ndarray]:
        """Of each operand, in order of the lanes that exist."""
        item = ITEMSIZE[self.p.dtype]
        return [
            self.at % self.block_lanes * item if self._is_scratch(number) else self._along(self.lanes, number)
            for number in range(len(self.e.strides))
        ]

    @lazy
    def kinds(self) -> list[int]:
        """Of each operand: whether it runs along the lanes, or is one element there."""
        found = []
        for number, offsets in enumerate(self.lane_offsets):
            steps = np.diff(offsets)
            repeats = np.count_nonzero(steps == 0) > np.count_nonzero(steps == self._item(number))
            output = number < len(self.e.structure.outputs)
            found.append(na.BROADCAST if repeats and not output else na.CONTIGUOUS)
        return found

    def _item(self, number: int) -> int:
        return STORAGES[self.e.structure.stored[number]].itemsize

    @lazy
    def runs(self) -> np.ndarray:
        """Where runs begin: along each, all operands are of their kind, and none leaves its block of panels."""
        if not len(self.at):
            return np.zeros(0, np.int64)
        goes_on = np.diff(self.at // self.block_lanes) == 0
        for number, (offsets, kind) in enumerate(zip(self.lane_offsets, self.kinds)):
            goes_on &= np.diff(offsets) == (self._item(number) if kind == na.CONTIGUOUS else 0)
        return np.concatenate([[0], 1 + np.flatnonzero(~goes_on)])

    @property
    def run(self) -> float:
        """Lanes in a run, on average."""
        return len(self.at) / max(1, len(self.runs))

    @property
    def pieces(self) -> int:
        """Runs in columns."""
        return len(self.runs) * len(self.p.tn_c) * self.p.outer_total

    # -- C in scratch memory -------------------------------------------------------------------------------------
    @lazy
    def strip(self) -> int:
        """Columns that go through the tile function at once: whole tiles."""
        nr = self.p.nr
        columns = STRIP_BYTES // (min(self.block_lanes, len(self.at)) * ITEMSIZE[self.p.dtype])
        return max(nr, columns // nr * nr)

    @lazy
    def period(self) -> int:
        """Columns of C that are in scratch memory at once: a strip where the sum is a single block of K."""
        single = self.p.kc >= len(self.p.tk_a) and len(self.p.tko_a) == 1
        return self.strip if single else min(self.p.blocks[2], len(self.p.tn_c))

    @property
    def scratch_bytes(self) -> int:
        return min(self.period, len(self.p.tn_c)) * self.distance

    def in_scratch(self) -> GemmProblem:
        """The problem with C in the scratch memory of each worker, behind what it packs there."""
        p = self.p
        columns = np.arange(len(p.tn_c), dtype=np.int64)
        at = np.arange(p.panels * p.mr, dtype=np.int64) % self.block_lanes * ITEMSIZE[p.dtype]
        return replace(
            p,
            c=Operand(slot=SCRATCH, offset=self._behind),
            tm_c=at,
            tn_c=self._scratch_columns(columns),
            outer=tuple((count, a, b, np.zeros(count, np.int64)) for count, a, b, _ in p.outer),
            run=np.ones(p.panels, np.int64),
            chunk=1,
            turn=(0, 0),
            stream=False,
        )

    @lazy
    def _behind(self) -> int:
        return -(-gemm.lower(self.p).scratch // LINE) * LINE

    def _scratch_columns(self, columns: np.ndarray) -> np.ndarray:
        """Offsets in scratch memory: columns of a task begin at 0, and so do strips."""
        return columns % self.p.blocks[2] % self.period * self.distance

    # -- the table -----------------------------------------------------------------------------------------------
    def table(self, places: Sequence[Operand]) -> np.ndarray:
        """What `fused_tile` is called with; ``places``: where operands start."""
        head = np.zeros(ua.T_HEAD + ua.T_WORDS * len(places), np.int64)
        vectors = Vectors(len(head))
        block = self.at[self.runs] // self.block_lanes if len(self.runs) else self.runs
        first = np.searchsorted(block, np.arange(self.p.tasks[1] + 1))
        head[ua.T_OPERANDS], head[ua.T_STREAM], head[ua.T_STRIP] = len(places), int(self.e.stream), self.strip
        head[ua.T_FIRST] = vectors.place(first)
        head[ua.T_LANES] = vectors.place(np.diff(np.append(self.runs, len(self.at))))
        for number, place in enumerate(places):
            words = head[ua.T_HEAD + ua.T_WORDS * number :]
            self._operand(number, place, words, vectors)
        return np.concatenate([head, *vectors.found])

    def _operand(self, number: int, place: Operand, words: np.ndarray, vectors: Vectors) -> None:
        words[ua.T_KIND] = self.kinds[number]
        words[ua.T_RUNS] = vectors.place(self.lane_offsets[number][self.runs])
        level = ua.T_OUTER + 4 - len(self.outer)
        if self._is_scratch(number):
            words[ua.T_SLOT], words[ua.T_OFFSET] = SCRATCH, self._behind
            words[ua.T_COLUMNS] = vectors.place(self._scratch_columns(np.arange(len(self.p.tn_c))))
            tables = [np.zeros(count, np.int64) for count, *_ in self.p.outer]
        else:
            words[ua.T_SLOT] = place.slot
            words[ua.T_OFFSET] = place.offset + int(self._along(self.start, number)[0])
            words[ua.T_COLUMNS] = vectors.place(self._along(self.columns, number))
            tables = [None if each is None else self._along(each, number) for each in self.outer]
        for at, offsets in enumerate(tables):
            if offsets is not None:
                words[level + at] = vectors.place(offsets)


class Vectors:
    """Vectors behind the head of a table, each once."""

    def __init__(self, start: int) -> None:
        self.start, self.found, self.known = start, [], {}

    def place(self, values: np.ndarray) -> int:
        """Bytes from the start of the table."""
        values = np.ascontiguousarray(values, np.int64)
        key = values.tobytes()
        if key not in self.known:
            self.known[key] = 8 * self.start
            self.found.append(values)
            self.start += len(values)
        return self.known[key]


def lower(
    tables: EpilogueTables, places: Sequence[Operand], c: Operand, inputs: Callable[[GemmProblem], GemmProblem]
) -> Row:
    """The row of a product with its epilogue. ``places``: of the epilogue's operands, in order; that of C is not looked
    at where C is not stored. ``inputs``: gives A and B of a problem their places."""
    e = tables.e
    problem = tables.in_scratch() if e.scratch else replace(tables.p, c=c, stream=False)
    row = gemm.lower(inputs(problem))
    scratch = row.scratch
    if e.scratch:
        scratch = problem.c.offset + tables.scratch_bytes
    kernels = {**row.kernels, abi.TILE: "fused_tile", abi.TILE_ROW: name(e.structure)}
    table = {**row.tables, abi.TILE_TABLE: tables.table(places)}
    return Row(words=row.words, tables=table, kernels=kernels, scratch=scratch, tasks=row.tasks)
