"""Rows of the step table for sums: which loops are kept and summed in a box, and how tasks share the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .cpu import abi
from .cpu import nest_abi as na
from .cpu.storage import STORAGES
from .nest_boxes import BOX, OUT, SHORT_RUN, A, Group, by_output, chain, direct, take, tile_cut, without
from .nest_problem import Dim, NestProblem, fuse
from .nest_rows import FAR_BYTES, RowBuilder, kernel_source, kernel_target, move_mode, share
from .row import Row

STAGED_BYTES = 32  # of the longest run that is moved before it is summed, half of it where runs of other places are added
SHORT_BYTES = 512  # of the longest runs that are summed several at once
SUMMED = 8192  # most entries of one output that are added in a box
IN_ORDER_BYTES = 128, 2048  # of adjacent rows that are read in order; of longer ones, hardware follows eight at once
TURNED, TURNED_ROWS = 128, 32  # entries of O and J of sums that are turned round
PARTIAL_RUN, PARTIAL_ENTRIES = 256, 16384  # of partial sums
VECTOR_BYTES = 64  # of the widest instruction set
_ONE = Group(dims=(), total=1, chunks=(1, 0, 0, 0))


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Sums of shares, and the loops over them that add them up into the output."""

    dims: tuple[Dim, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The loops of a sum: kept ones in O, J and outside, summed ones in L (adjacent in a), Q and outside."""

    mode: int
    o: Group
    q: Group
    outer: list[Dim]
    q_outer: list[Dim]
    j: Group = _ONE
    l: Group = _ONE


def lower_sum(problem: NestProblem, shifts: Dim, threads: int, *, last: bool = False) -> tuple[Row, Partial | None]:
    """Row of a normalised sum; `Partial` where it writes sums of shares that another row has to add up, which the
    ``last`` one never does."""
    kept, summed = [d for d in problem.dims if d[1]], [d for d in problem.dims if not d[1]]
    outputs, tasks = prod(d[0] for d in kept), share(problem.bytes, threads)
    few = not last and tasks > 1 and outputs * 64 * tasks <= problem.elements  # tasks divide what is summed
    if few and _run(summed, _items(problem, problem.out)[A]) is not None:
        few = outputs < 4 * tasks  # runs of more outputs are divided as they are
    repeated = None if last else _repeated(kept, summed, problem)
    if not few and repeated is None:
        cut = _cut(kept, summed, _items(problem, problem.out), max(1, outputs // tasks), 1 << 40)
        return _row(problem, problem.out, cut, shifts, tasks), None
    if repeated is not None:
        loop, lanes = repeated
        size, _, a, _ = loop
        summed[summed.index(loop)] = (size // lanes, 0, a * lanes, 0)
        kept = [*kept, (lanes, 0, a, 0)]
        outputs *= lanes
    compute, problem = STORAGES[problem.out].compute, replace(problem, accumulate=False)
    stride, partial, dims = STORAGES[compute].itemsize, [], []
    for size, out, a, _ in sorted(kept, key=lambda d: (not d[2], abs(d[2]))):  # as the input lies
        partial.append((size, stride, a, 0))
        dims.append((size, out, stride, 0))
        stride *= size
    if not few:
        cut = _cut(fuse(partial), summed, _items(problem, compute), max(1, outputs // tasks), 1 << 40)
        return _row(problem, compute, cut, (0, 0, *shifts[2:]), tasks), Partial(dims=tuple(dims), nbytes=stride)
    tasks = min(tasks, 2 * threads)
    cut = _cut(fuse(partial), summed, _items(problem, compute), BOX, max(1024, problem.elements // tasks))
    row = _row(problem, compute, cut, (0, 0, *shifts[2:]), tasks, stride)
    return row, Partial(dims=(*dims, (row.tasks, 0, stride, 0)), nbytes=row.tasks * stride)


def _repeated(kept: list[Dim], summed: list[Dim], problem: NestProblem) -> tuple[Dim, int] | None:
    """``(loop, lanes)``: a summed loop over short adjacent runs of kept entries, and how many of these runs are better
    kept than summed at first, for then they are one long run."""
    item = STORAGES[problem.a].itemsize
    run = prod(d[0] for d in chain(kept, A, item))
    if run * item >= VECTOR_BYTES or run == 1:
        return None
    loop = next((d for d in summed if d[2] == run * item), None)
    if loop is None:
        return None
    most = min(PARTIAL_RUN // run, loop[0] // 16, PARTIAL_ENTRIES // prod(d[0] for d in kept))
    lanes = next((n for n in range(most, 3, -1) if loop[0] % n == 0), None)
    return None if lanes is None else (loop, lanes)


def _run(summed: list[Dim], item: int) -> Dim | None:
    """The summed loop whose entries are adjacent in the input."""
    return next((d for d in summed if d[2] == item), None)


def _items(problem: NestProblem, out: str) -> list[int]:
    return [STORAGES[out].itemsize, STORAGES[problem.a].itemsize]


def _cut(kept: list[Dim], summed: list[Dim], items: list[int], outputs: int, most: int) -> Cut:
    """Boxes of at most so many ``outputs`` and of ``most`` entries."""
    item = items[A]
    summed = sorted(summed, key=lambda d: abs(d[2]))
    if kept and direct(kept[0], items) and kept[0][2] and kept[0][0] >= 8:
        o, left = take(kept[:1], max(64, min(SUMMED // item, outputs)))
        return _columns(o, *take(left + kept[1:], max(1, min(BOX, outputs) // o.count)), summed, most)
    runs = chain(kept, OUT, items[OUT]) or kept
    run = _run(summed, item)
    if run is None and (turned := _turned(kept, runs, item)) is not None:
        (fast, near), limit = turned, max(8, outputs)
        o, left = take(fast, min(TURNED, limit))
        rest = sorted(left + without(kept, fast), key=by_output)
        return _columns(o, *take(near + without(rest, near), max(1, min(TURNED_ROWS, limit // o.count))), summed, most)
    o, left = take(runs, max(8, min(256, outputs)))
    outer = sorted(left + without(kept, runs), key=by_output)
    if run is not None and run[0] * item > (STAGED_BYTES if len(summed) == 1 else STAGED_BYTES // 2):
        most = min(SUMMED, max(64, most // o.count))
        l, left = take([run], most)
        summed.remove(run)  # another loop may be the same, where elements of the input share memory
        q, q_outer = take(left + summed, max(1, most // l.count))
        return Cut(mode=na.SUM_ROWS, o=o, l=l, q=q, outer=outer, q_outer=q_outer)
    mode = na.SUM_STAGED_COLUMNS if o.total >= 8 else na.SUM_STAGED_ROWS
    q, q_outer = take(summed, max(16, min(SUMMED, most) // o.count))
    return Cut(mode=mode, o=o, q=q, outer=outer, q_outer=q_outer)


def _columns(o: Group, j: Group, outer: list[Dim], summed: list[Dim], most: int) -> Cut:
    """Rows along O."""
    q, q_outer = take(summed, min(512, max(8, most // (o.count * j.count))))
    return Cut(mode=na.SUM_COLUMNS, o=o, j=j, q=q, outer=outer, q_outer=q_outer)


def _turned(kept: list[Dim], runs: list[Dim], item: int) -> tuple[list[Dim], list[Dim]] | None:
    """Where the input runs along other kept loops than the output, its loops for O and those of the output for J: rows
    are added as they lie, and their sums are turned round. None where the input runs for a few entries only."""
    fast = chain(kept, A, item)
    if prod(d[0] for d in fast) < SHORT_RUN:
        return None
    cut = tile_cut(runs, fast)
    if cut is not None and prod(d[0] for d in fast[: cut[1]]) * min(item, 8) >= VECTOR_BYTES:
        return fast[: cut[1]], runs[: cut[0]]
    # Rows of a tile would be too short to be added in vectors: longer ones, whose sums go to their places one by one.
    return fast, [d for d in runs if d not in fast]


def _row(problem: NestProblem, out: str, cut: Cut, shifts: Dim, tasks: int, task_stride: int = 0) -> Row:
    o, j, l, q = cut.o, cut.j, cut.l, cut.q
    builder = RowBuilder(o, j, cut.outer, shifts)
    inner = [l.chunks, q.chunks, *cut.q_outer]
    summed_boxes = prod(d[0] for d in inner) if l.count and q.count else 0
    (item_out, item), item_part = _items(problem, out), STORAGES[STORAGES[out].compute].itemsize
    builder.place(OUT, item_out, turned=True)
    builder.words |= {
        na.N_R_TABLE: builder.vector(np.array(inner, np.int64).ravel()),
        na.N_R_RANK: len(inner),
        na.N_R_BOXES: summed_boxes,
        na.N_L: l.count,
        na.N_L_TOTAL: l.total,
        na.N_Q: q.count,
        na.N_Q_TOTAL: q.total,
        na.N_R_MODE: cut.mode,
        na.N_TASK_STRIDE: task_stride,
        na.N_FLAGS: na.CONJ_A * problem.conj_a | na.ADD_OUT * problem.accumulate,
        na.N_A_O: builder.vector(o.offsets(A)),
        na.N_A_Q: builder.vector(q.offsets(A)),
        na.N_A_J: builder.vector(j.offsets(A)),
        na.N_B_STAGE: builder.reserve(2 * o.count * j.count * item_part),
        na.N_B_J: builder.rows(j.count, o.count * item_part),
    }
    if builder.words[na.N_OUT_MODE] == na.STAGED + na.MOVE_TILE:
        builder.words |= {na.N_OUT_RUN: o.count, na.N_B_O: builder.rows(o.count, item_out)}
    if _in_order(problem, cut, item):
        builder.words[na.N_FLAGS] |= na.IN_ORDER
        builder.reserve(o.count * item_part)
    builder.kernels[abi.FN] = f"nest_sum_{kernel_source(problem.a, out)}_{kernel_target(out)}"
    if cut.mode == na.SUM_ROWS and l.count == l.total and l.total * item <= SHORT_BYTES:
        builder.words[na.N_FLAGS] |= na.SHORT_RUNS
    elif cut.mode == na.SUM_ROWS and _across(cut):
        builder.words[na.N_FLAGS] |= na.RUNS_ACROSS
        builder.words[na.N_A_STAGE] = builder.reserve(o.count * VECTOR_BYTES)
    if cut.mode in (na.SUM_STAGED_COLUMNS, na.SUM_STAGED_ROWS):
        _stage(builder, cut, item)
    return builder.row(min(tasks, summed_boxes if task_stride else builder.boxes), problem.bytes)


def _in_order(problem: NestProblem, cut: Cut, item: int) -> bool:
    """Short rows, one behind the other, that come from memory."""
    if cut.mode != na.SUM_COLUMNS or cut.q.count < 2 or problem.bytes < FAR_BYTES:
        return False
    row, (least, most) = cut.o.count * item, IN_ORDER_BYTES
    return cut.o.count == cut.o.total and cut.q.dims[0][1 + A] == row and least <= row <= most


def _across(cut: Cut) -> bool:
    """The run that follows a run in memory belongs to another output."""
    return cut.q.count > 1 and cut.o.count > 1 and abs(cut.q.dims[0][1 + A]) > abs(cut.o.dims[0][1 + A])


def _stage(builder: RowBuilder, cut: Cut, item: int) -> None:
    """Words of the move that brings summed entries to where they can be added."""
    along, across, word = (cut.o, cut.q, na.N_A_O) if cut.mode == na.SUM_STAGED_COLUMNS else (cut.q, cut.o, na.N_A_Q)
    builder.words[word] = builder.move(A, item, move_mode(along, across, A, item), along, across)
    builder.words[na.N_B_FAR] = builder.rows(across.count, along.count * item)
    builder.words[na.N_A_STAGE] = builder.reserve(cut.o.count * cut.q.count * item)
