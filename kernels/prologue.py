"""The prologue of a product as data: a map whose result is an operand of the product, and is never there as a whole.

Each task makes the block of it that it needs next, in the scratch memory of the worker, and reads it there
(`cpu.fused_tile`). A `GemmProblem` is planned as if the operand were in memory, with strides that are nested. So an offset
in its tables says which element it is, as in `epilogue`, and where that is in the operands of the map. `StageTables` is
made of a problem and of a map, and `problem` is what runs.

A block is laid out as the map runs: lanes side by side, term after term, or terms side by side, lane after lane. The
product reads both in place; only lanes of A have to be side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np

from ..records import lazy
from .cpu import abi
from .cpu import fused_abi as ua
from .cpu import nest_abi as na
from .cpu.storage import STORAGES
from .cpu.units import LINE, PAGE
from .epilogue import SCRATCH, Vectors, digits, never_carry
from .fused_structure import Structure, name
from .gemm import GemmProblem, StageRow, packed_bytes
from .row import Operand
from .tiles import ITEMSIZE

STAGE_BYTES = 512 << 10  # of a block, beside what else a task has in L2
LONG_RUN = 16384  # bytes of A that are adjacent, in a block: shorter ones come slowly from memory
FEWEST_TERMS = 32  # of such a block
STRIP_BYTES = 32 << 10  # of B at a time
OTHER_BYTES = 384 << 10  # of A beside it
MOST_TERMS = 2048  # that are added one after the other: rounding grows with them


@dataclass(frozen=True, kw_only=True)
class StagedMap:
    """A structure that stores one value and reduces nothing, over operands of ``shape``: the result, which is operand
    ``side`` (`abi.STAGED_A` or ``STAGED_B``) of a product, then inputs.

    ``strides``: of each, in bytes, 0 where it is broadcast; those of the result are nested, none 0 where the size is more
    than 1. ``nr``: columns of the tile, where it is B; ``threads``: that share the tasks of the product.
    """

    structure: Structure
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    side: int
    nr: int
    threads: int = 1


class StageTables:
    """Which element each table of the operand stands for, which is not in panels already. ``shift``: bytes from its first
    element to that of the problem."""

    def __init__(self, problem: GemmProblem, staged: StagedMap, shift: int = 0) -> None:
        self.e, self.is_a = staged, staged.side == abi.STAGED_A
        problem = replace(problem, shares=())  # tables go by blocks
        self.p, self.columns = (_wide(problem, staged.threads), 0) if self.is_a else _in_strips(problem, staged.nr)
        self.item = ITEMSIZE[problem.dtype]
        p = self.p
        exist = (np.arange(p.mr) < p.valid[:, None]).ravel()
        self.at = np.flatnonzero(exist) if self.is_a else np.arange(len(p.tn_b))  # lanes that exist
        self.start = self._digits(np.array([shift]))
        self.lanes = self._digits(p.tm_a[self.at] if self.is_a else p.tn_b)
        self.terms = self._digits(p.tk_a if self.is_a else p.tk_b)
        self.turns = self._digits(p.tko_a if self.is_a else p.tko_b)
        loops = [(count, a if self.is_a else b) for count, a, b, _ in p.outer]
        self.outer = [self._digits(table) if count > 1 else None for count, table in loops]

    def _digits(self, offsets: np.ndarray) -> np.ndarray:
        return digits(offsets, self.e.shape, self.e.strides[0])

    @property
    def fits(self) -> bool:
        """Whether sums of the tables never carry, and what is staged can be read in place."""
        p = self.p
        source = p.a_source if self.is_a else p.b_source
        if source or (self.is_a and (self.along_k or p.across[0])):
            return False
        parts = [self.start, self.lanes, self.terms, self.turns, *(each for each in self.outer if each is not None)]
        return never_carry(parts, self.e.shape)

    # -- how the map runs ----------------------------------------------------------------------------------------
    def _along(self, which: np.ndarray, number: int) -> np.ndarray:
        """Offsets of operand ``number`` for elements."""
        return np.array(self.e.strides[number], np.int64) @ which

    def _item(self, number: int) -> int:
        return STORAGES[self.e.structure.stored[number]].itemsize

    @lazy
    def along_k(self) -> bool:
        """Whether terms are adjacent, rather than lanes."""
        return _adjacent(self._along(self.terms, 0), self.item) > _adjacent(self._along(self.lanes, 0), self.item)

    @lazy
    def _run_offsets(self) -> list[np.ndarray]:
        """Of each operand, along what the map runs along."""
        which = self.terms if self.along_k else self.lanes
        return [self._run_at * self.item, *(self._along(which, n) for n in range(1, len(self.e.strides)))]

    @lazy
    def _run_at(self) -> np.ndarray:
        """Places of what the map runs along, within its block."""
        return np.arange(len(self.p.tk_a)) % self.p.kc if self.along_k else self.at % self.lane_block

    @lazy
    def _blocks(self) -> np.ndarray:
        """The block that each is of."""
        return np.arange(len(self.p.tk_a)) // self.p.kc if self.along_k else self.at // self.lane_block

    @lazy
    def kinds(self) -> list[int]:
        """Of each operand: whether it runs, or is one element."""
        found = [na.CONTIGUOUS]
        for number, offsets in list(enumerate(self._run_offsets))[1:]:
            repeats = _adjacent(offsets, 0) > _adjacent(offsets, self._item(number))
            found.append(na.BROADCAST if repeats else na.CONTIGUOUS)
        return found

    @lazy
    def runs(self) -> np.ndarray:
        """Where runs begin: along each, all operands are of their kind, and none leaves its block."""
        goes_on = np.diff(self._blocks) == 0
        for number, (offsets, kind) in enumerate(zip(self._run_offsets, self.kinds)):
            goes_on &= np.diff(offsets) == (self._item(number) if kind == na.CONTIGUOUS else 0)
        return np.concatenate([[0], 1 + np.flatnonzero(~goes_on)])

    @property
    def run(self) -> float:
        """Elements in a run, on average."""
        return len(self._run_at) / len(self.runs)

    @property
    def repeated(self) -> int:
        """How often each element is computed: by tasks of the other side, and in loops that the operand does not have."""
        _, panels, columns = self.p.tasks
        others = columns if self.is_a else panels
        for loop, (count, *_) in zip(self.outer, self.p.outer):
            others *= count if loop is not None and not loop.any() else 1
        return others

    # -- what is staged ------------------------------------------------------------------------------------------
    @lazy
    def lane_block(self) -> int:
        """Lanes of a task, padding included, or columns that are made at a time."""
        return self.p.blocks[1] * self.p.mr if self.is_a else self.columns

    @lazy
    def pitch(self) -> int:
        """Bytes from one run to the next in scratch memory: not whole pages, so that they do not share cache sets."""
        count = min(self.p.kc, len(self.p.tk_a)) if self.along_k else min(self.lane_block, int(self.at[-1]) + 1)
        nbytes = -(-count * self.item // LINE) * LINE
        return nbytes + LINE if nbytes % PAGE == 0 else nbytes

    @lazy
    def nbytes(self) -> int:
        """Of the block that is in scratch memory."""
        terms = min(self.p.kc, len(self.p.tk_a))
        return self.pitch * (min(self.lane_block, len(self.at)) if self.along_k else terms)

    @lazy
    def problem(self) -> GemmProblem:
        """The problem with the operand in scratch memory, behind what is packed there; `place` gives it its table."""
        p, item = self.p, self.item
        terms, lanes = np.arange(len(p.tk_a)) % p.kc, np.arange(p.panels * p.mr if self.is_a else len(p.tn_b))
        steps = (self.pitch, item) if self.along_k else (item, self.pitch)
        tables = {"tm": lanes % self.lane_block * steps[0], "tk": terms * steps[1], "tko": np.zeros(len(p.tko_a), np.int64)}
        stage = StageRow(self.e.side, self.nbytes, self.columns, name(self.e.structure), np.zeros(1, np.int64))
        nothing = [np.zeros(count, np.int64) for count, *_ in p.outer]
        if self.is_a:
            outer = tuple((n, zero, b, c) for (n, _, b, c), zero in zip(p.outer, nothing))
            more = dict(tm_a=tables["tm"], tk_a=tables["tk"], tko_a=tables["tko"], a_mode="direct", fetch_a=False)
        else:
            outer = tuple((n, a, zero, c) for (n, a, _, c), zero in zip(p.outer, nothing))
            more = dict(tn_b=tables["tm"], tk_b=tables["tk"], tko_b=tables["tko"], b_mode="direct", fetch_b=False)
        return replace(p, outer=outer, stage=stage, even=0, asks=(), **more)

    def place(self, problem: GemmProblem, a: Operand, b: Operand, places: Sequence[Operand]) -> GemmProblem:
        """``problem``, which is `problem` or made of it, with its inputs and those of the map where they are."""
        staged = Operand(SCRATCH, packed_bytes(problem))
        stage = problem.stage._replace(table=self._table([staged, *places]))
        sides = {"a": staged, "b": b} if self.is_a else {"a": a, "b": staged}
        return replace(problem, stage=stage, **sides)

    def _table(self, places: Sequence[Operand]) -> np.ndarray:
        """What `fused_stage` is called with; ``places``: where operands start."""
        head = np.zeros(ua.T_HEAD + ua.T_WORDS * len(places), np.int64)
        vectors = Vectors(len(head))
        block = self._blocks[self.runs]
        head[ua.T_OPERANDS], head[ua.T_ALONG_K] = len(places), int(self.along_k)
        head[ua.T_FIRST] = vectors.place(np.searchsorted(block, np.arange(int(self._blocks[-1]) + 2)))
        head[ua.T_LANES] = vectors.place(np.diff(np.append(self.runs, len(self._run_at))))
        for number, place in enumerate(places):
            words = head[ua.T_HEAD + ua.T_WORDS * number :]
            self._operand(number, place, words, vectors)
        return np.concatenate([head, *vectors.found])

    def _operand(self, number: int, place: Operand, words: np.ndarray, vectors: Vectors) -> None:
        words[ua.T_KIND] = self.kinds[number]
        words[ua.T_RUNS] = vectors.place(self._run_offsets[number][self.runs])
        words[ua.T_SLOT], words[ua.T_OFFSET] = place
        level = ua.T_OUTER + 4 - len(self.outer)
        if not number:
            walked = self.problem.tn_b if self.along_k else self.problem.tk_a if self.is_a else self.problem.tk_b
            tables = [np.zeros(count, np.int64) for count, *_ in self.p.outer]
            turns = np.zeros(len(self.p.tko_a), np.int64)
        else:
            words[ua.T_OFFSET] += int(self._along(self.start, number)[0])
            walked = self._along(self.lanes if self.along_k else self.terms, number)
            tables = [None if each is None else self._along(each, number) for each in self.outer]
            turns = self._along(self.turns, number)
        if number and self.kinds[number] == na.CONTIGUOUS:
            words[ua.T_AHEAD] = self._item(number)
        words[ua.T_COLUMNS], words[ua.T_TURNS] = vectors.place(walked), vectors.place(turns)
        for at, offsets in enumerate(tables):
            if offsets is not None:
                words[level + at] = vectors.place(offsets)


def _adjacent(offsets: np.ndarray, item: int) -> int:
    """Neighbours that are so many bytes apart."""
    return int(np.count_nonzero(np.diff(offsets) == item))


def _wide(p: GemmProblem, threads: int) -> GemmProblem:
    """The problem with blocks of A that are long in memory, and have few terms instead; at least one for each thread."""
    item, terms, panels = ITEMSIZE[p.dtype], len(p.tk_a), p.blocks[1]
    shared = -(-p.panels // -(-threads // p.tasks[0]))  # panels of a task
    panels = max(panels, min(shared, -(-LONG_RUN // (p.mr * item))))
    kc = min(p.kc, max(FEWEST_TERMS, STAGE_BYTES // (panels * p.mr * item)))
    kc = -(-terms // -(-terms // kc))
    return replace(p, blocks=(p.blocks[0], panels, p.blocks[2]), kc=kc, stream=p.stream and kc >= terms)


def _in_strips(p: GemmProblem, nr: int) -> tuple[GemmProblem, int]:
    """The problem with as many terms at a time as leave A in L2, and tasks that have whole strips of columns, which are
    staged one after the other: so the map goes through its operands as they lie."""
    item, terms = ITEMSIZE[p.dtype], len(p.tk_b)
    p = replace(p, nr=nr)
    kc = p.kc
    if p.a_mode == "pack":
        kc = min(terms, max(kc, min(MOST_TERMS, OTHER_BYTES // (p.panels * p.mr * item))))
    if not p.a_nested:  # it lies in blocks of so many
        kc = -(-terms // -(-terms // kc))
    most = STRIP_BYTES // (kc * item)
    columns = min(p.blocks[2], max(p.nr, most - most % p.nr))
    pieces = -(-p.blocks[2] // columns)
    columns = -(-(-(-p.blocks[2] // pieces)) // p.nr) * p.nr
    return replace(p, blocks=(*p.blocks[:2], columns * pieces), kc=kc), columns
