"""Rows of the step table for copies and products: words, offset vectors and names of kernels."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Sequence

import numpy as np

from .cpu import abi
from .cpu import nest_abi as na
from .cpu.storage import STORAGES, canonical_pair
from .cpu.units import LINE
from .nest_boxes import OUT, SHORT_RUN, A, B, Group, choose, run_of
from .nest_problem import Dim, NestProblem
from .row import Row

TASK_BYTES = 32 << 10  # smaller work stays in one task
PARALLEL_BYTES = 256 << 10  # less is moved before a second thread is awake
TASKS_PER_THREAD = 4
UNEVEN = 4  # boxes of a task, from which one more or less makes no difference
STREAM_BYTES = 8 << 20  # larger outputs are written past the caches
FAR_BYTES = 24 << 20  # larger operands come from memory
STREAM_ROW = 512  # bytes, at least
ORDERED_BYTES = 8 << 10  # of an operand in a box, where what is staged is read as it lies in memory
# Where the result goes past the caches and all come from memory: loads of a box run beside the stores of the one
# before, as far as a core looks ahead.
PAST_BYTES = 2 << 10
WIDEST = 16  # bytes of the largest element that is moved as one


def share(nbytes: int, threads: int) -> int:
    """Tasks wanted for work on so many bytes."""
    return max(1, min(TASKS_PER_THREAD * threads, nbytes // TASK_BYTES)) if threads > 1 else 1


def even(tasks: int, boxes: int) -> int:
    """Tasks for so many boxes: one for each, where some tasks would have two and others one, or the like.

    >>> even(8, 5), even(8, 10), even(8, 16), even(8, 100)
    (5, 10, 8, 8)
    """
    few = 1 < tasks and boxes < UNEVEN * tasks
    return boxes if few and boxes % tasks else min(tasks, boxes)


class RowBuilder:
    """Collects what a row needs; the table begins with the odometer, vectors in it are found again by value."""

    def __init__(self, o: Group, j: Group, outer: Sequence[Dim], shifts: Dim):
        self.o, self.j = o, j
        odometer = [o.chunks, j.chunks, *outer]
        self.boxes = prod(d[0] for d in odometer)
        self.kernels: dict[int, str] = {}
        self.scratch = 0
        self._parts = [np.array(odometer, np.int64).ravel()]
        self._places: dict[bytes, int] = {}
        self._length = self._parts[0].size
        self.words = {
            na.N_RANK: len(odometer),
            na.N_BOXES: self.boxes,
            na.N_OUT_BASE: shifts[1],
            na.N_A_BASE: shifts[2],
            na.N_B_BASE: shifts[3],
            na.N_O: o.count,
            na.N_O_TOTAL: o.total,
            na.N_J: j.count,
            na.N_J_TOTAL: j.total,
        }

    def vector(self, values: np.ndarray) -> int:
        """Place of an offset vector in the table, in bytes."""
        key = values.tobytes()
        if key not in self._places:
            self._places[key] = 8 * self._length
            self._parts.append(values)
            self._length += values.size
        return self._places[key]

    def rows(self, count: int, pitch: int) -> int:
        """Vector of rows ``pitch`` bytes apart."""
        return self.vector(np.arange(count, dtype=np.int64) * pitch)

    def reserve(self, nbytes: int) -> int:
        """Place in the worker's scratch memory."""
        start = self.scratch
        self.scratch += -(-nbytes // LINE) * LINE
        return start

    def row(self, tasks: int, nbytes: int) -> Row:
        """The row in so many tasks; ``nbytes``: what it moves."""
        tables = {na.N_TABLE: np.concatenate(self._parts)}
        self.words[abi.PARALLEL] = abi.IN_BANDS * (tasks > 1 and nbytes >= PARALLEL_BYTES)
        return Row(words=self.words, tables=tables, kernels=self.kernels, scratch=self.scratch, tasks=max(1, tasks))

    # -- operands --------------------------------------------------------------------------------------------
    def place(self, operand: int, item: int, *, broadcast: bool = False, turned: bool = False) -> None:
        """Words of an operand: in place if it runs along O, or is one entry and may be (``broadcast``), else staged;
        ``turned``: a staged output may leave by tiles."""
        o, j = self.o, self.j
        runs = o.contiguous(operand, item)
        if not runs and not (broadcast and o.constant(operand)):
            self._stage(operand, item, turned)
            return
        self.words[na.N_OUT_MODE + operand] = na.CONTIGUOUS if runs else na.BROADCAST
        self.words[na.N_OUT_J + operand] = self.vector(j.offsets(operand))

    def _stage(self, operand: int, item: int, turned: bool) -> None:
        o, j = self.o, self.j
        varies = operand == OUT or j.varies(operand)
        mode = move_mode(o, j, operand, item)
        if operand == OUT and not (turned and mode == na.MOVE_TILE and j.contiguous(OUT, item)):
            mode = na.MOVE_SCATTER
        self.words[na.N_OUT_J + operand] = self.rows(j.count, o.count * item if varies else 0)
        self.words[na.N_OUT_FAR + operand] = self.vector(j.offsets(operand))
        self.words[na.N_OUT_ROWS + operand] = int(varies)
        self.words[na.N_OUT_STAGE + operand] = self.reserve(o.count * item * (j.count if varies else 1))
        self.words[na.N_OUT_O + operand] = self.move(operand, item, mode, o, j)

    def move(self, operand: int, item: int, mode: int, along: Group, across: Group) -> int:
        """Words of a move of the operand to where it runs along ``along``; place of the offset vector."""
        offsets, wide = along.offsets(operand), 0
        if mode in (na.MOVE_GATHER, na.MOVE_SCATTER):
            # neighbours are moved as one larger element
            while item << wide < WIDEST and along.dims[0][0] % (2 << wide) == 0 and along.dims[0][1 + operand] == item:
                wide += 1
        self.words[na.N_OUT_MODE + operand] = na.STAGED + mode
        self.words[na.N_OUT_RUN + operand] = move_run(mode, along, across, operand, item)
        self.words[na.N_OUT_WIDE + operand] = wide
        self.kernels[na.N_OUT_MOVE + operand] = f"nest_move_{item << wide}"
        return self.vector(offsets[:: 1 << wide])


def move_mode(along: Group, across: Group, operand: int, item: int) -> int:
    """How an input reaches a place where it runs along a group."""
    if along.contiguous(operand, item):
        return na.MOVE_RUN
    if along.constant(operand):
        return na.MOVE_FILL
    if several(along, operand, item):
        return na.MOVE_WEAVE if along.dims[0][1 + operand] else na.MOVE_SEVERAL
    tiles = run_of(across, operand, item) >= SHORT_RUN and along.count >= SHORT_RUN
    return na.MOVE_TILE if tiles else na.MOVE_GATHER


def several(along: Group, operand: int, item: int) -> int:
    """How many entries of a group are the same element, or lie in so many rows, of an operand that is contiguous
    otherwise; 0 where that is not so, or there is no kernel for it."""
    (times, *_), *rest = along.dims
    others = Group(dims=tuple(rest), total=along.total, chunks=along.chunks)
    return times if times in na.TIMES and rest and others.contiguous(operand, item) else 0


def move_run(mode: int, along: Group, across: Group, operand: int, item: int) -> int:
    """What a move is told beside its mode."""
    if mode in (na.MOVE_SEVERAL, na.MOVE_WEAVE):
        return item * several(along, operand, item)
    return run_of(across, operand, item)


# -- element-wise --------------------------------------------------------------------------------------------------
def lower_elementwise(problem: NestProblem, shifts: Dim, threads: int) -> tuple[Row, tuple[str, str, str]]:
    """Row of a normalised copy or product, and what its operands are."""
    tasks = share(problem.bytes, threads)
    budget = max(256, problem.elements // tasks)
    items = [STORAGES[name].itemsize for name in problem.operands]
    far = problem.op == "mul" and problem.bytes >= STREAM_BYTES
    o, j, outer = choose(list(problem.dims), items, budget, row=2 * STREAM_ROW if far else 0)  # parts that divide it have half of that
    if _in_order(o, items):
        past = problem.bytes >= FAR_BYTES and _streams(problem, o, items[OUT])
        most = PAST_BYTES if past else ORDERED_BYTES
        o, j, outer = choose(list(problem.dims), items, min(budget, most // max(items)))
    names = ("out", "a", "b" if problem.op == "mul" or problem.scaled else "")
    if problem.op == "mul" and o.constant(B) and not o.constant(A):
        # only the first factor may be one element per row
        problem, shifts = _exchanged(problem), _exchange(shifts)
        items, names = [items[OUT], items[B], items[A]], ("out", "b", "a")
        o, j, outer = o.mapped(_exchange), j.mapped(_exchange), [_exchange(d) for d in outer]
    builder = RowBuilder(o, j, outer, shifts)
    builder.words[na.N_FLAGS] = _flags(problem)
    builder.kernels[abi.FN] = _kernel(problem)
    if _streams(problem, o, items[OUT]):
        builder.words[na.N_FLAGS] |= na.STREAM
    for operand, item in enumerate(items):
        builder.place(operand, item, broadcast=problem.op == "mul" and operand == A)
    return builder.row(min(tasks, builder.boxes), problem.bytes), names


def _in_order(o: Group, items: Sequence[int]) -> bool:
    """Whether all that is staged is read in order, by `MOVE_SEVERAL` or `MOVE_WEAVE`; large boxes gain nothing."""
    staged = [x for x, item in enumerate(items) if not o.contiguous(x, item) and not o.constant(x)]
    return bool(staged) and all(x != OUT and several(o, x, items[x]) for x in staged)


def _streams(problem: NestProblem, o: Group, item: int) -> bool:
    """A product in long rows, whose result does not fit in cache."""
    if problem.op != "mul" or problem.accumulate or not o.contiguous(OUT, item):
        return False
    return item * problem.elements >= STREAM_BYTES and o.count * item >= STREAM_ROW


def _exchange(dim: Dim) -> Dim:
    return dim[0], dim[1], dim[3], dim[2]


def _exchanged(problem: NestProblem) -> NestProblem:
    """The product with its factors exchanged."""
    dims = tuple(map(_exchange, problem.dims))
    return replace(problem, a=problem.b, b=problem.a, conj_a=problem.conj_b, conj_b=problem.conj_a, dims=dims)


def _flags(problem: NestProblem) -> int:
    add = problem.accumulate and not problem.scaled
    return na.CONJ_A * problem.conj_a | na.CONJ_B * problem.conj_b | na.ADD_OUT * add


# -- names ---------------------------------------------------------------------------------------------------------
def _kernel(problem: NestProblem) -> str:
    a, out = kernel_source(problem.a, problem.out), kernel_target(problem.out)
    if problem.op == "mul":
        return f"nest_mul_{a}_{kernel_source(problem.b, problem.out)}_{out}" + ("_add" if problem.accumulate else "")
    swap = "_swap" if problem.swap_a and STORAGES[problem.a].bits > 8 else ""
    if problem.scaled or problem.accumulate:
        return f"nest_axpby_{a}_{out}{swap}"
    source, target = canonical_pair(problem.a, problem.out)
    return f"nest_cast_{source}_{target}{swap}"


def kernel_source(name: str, out: str) -> str:
    """Dtype of an input as kernels are named by it: arithmetic is done in the compute dtype of the output."""
    return canonical_pair(name, STORAGES[out].compute)[0]


def kernel_target(out: str) -> str:
    return out if STORAGES[out].floating else STORAGES[out].compute
