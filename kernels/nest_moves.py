"""Copies that only move bytes: rows of the step table, and the boxes of a permutation that does not fit in cache.

Such a permutation is bound by memory, so each line is to be read once and written once, past the caches. Its boxes hold
long runs of both the output and the input. They go along the input, which is best read in order; stores past the caches
may come in any. A box is moved to scratch that lies in the order of the output, in tiles transposed in registers where
both sides run, and from there to the output in whole lines, beside which the input of a box to come is asked for.
`move_boxes` cuts them. Where both sides run long enough, strips need no scratch (`nest_strips`).
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import or_
from typing import Iterable

import numpy as np

from .cpu import abi, cores
from .cpu import nest_abi as na
from .cpu.storage import STORAGES, moves
from .cpu.units import LINE
from .move_boxes import BOX_BYTES, ONE, Boxes, choose_boxes, starts
from .nest_boxes import OUT, A, B, Group, by_output, chain, choose, choose_rows, run_of, without
from .nest_strips import lower_strips
from .nest_lines import lower_lines
from .nest_problem import Dim, NestProblem
from .nest_rows import STREAM_BYTES, WIDEST, RowBuilder, move_mode, move_run, share
from .row import Row

LONG_ROW = 8192  # bytes of rows that are copied as they are
DENSE_TURN = 512  # of rows that are put where they are in lines instead, and are moved before they are stored
ROW_BYTES = LINE  # of rows that lines are put together from
LEAST_ROWS = 16  # of a box that threads share: of less than a tile, moving them takes longer than what threads would wait
SCRATCH = B  # operand whose strides are those in scratch


def is_move(problem: NestProblem) -> bool:
    """A copy that only moves bytes."""
    swapped = problem.swap_a and STORAGES[problem.a].bits > 8
    changes = swapped or problem.conj_a or problem.accumulate or problem.scaled
    return problem.op == "copy" and moves(problem.a, problem.out) and not changes


def lower_move(problem: NestProblem, shifts: Dim, threads: int) -> tuple[Row, ...]:
    """Rows of a normalised copy that only moves bytes; of several, only one does anything, whatever the output."""
    nbytes = problem.bytes
    tasks = share(nbytes, threads)
    dims, item = widen(list(problem.dims), STORAGES[problem.out].itemsize)
    if dims and item * prod(d[0] for d in dims) >= STREAM_BYTES and dims[0][1] == item and dims[0][2]:
        return _lower_large(dims, item, shifts, tasks, nbytes)
    o, j, outer = choose(dims, [item, item], max(256, problem.elements // tasks))
    if tasks > 1:
        o, j, outer = _for_threads(dims, item, o, j, outer, threads)
    builder = RowBuilder(o, j, outer, shifts)
    if o.contiguous(OUT, item):
        mode = move_mode(o, j, A, item)
    else:
        mode = na.MOVE_SCATTER if o.contiguous(A, item) else na.MOVE_ELEMENTS
    _source(builder, item, mode)
    for operand in (OUT, A):
        builder.words[na.N_OUT_J + operand] = builder.vector(j.offsets(operand))
        if mode not in (na.MOVE_RUN, na.MOVE_FILL):
            builder.words[na.N_OUT_O + operand] = builder.vector(o.offsets(operand))
    return (builder.row(min(tasks, builder.boxes), nbytes),)


def _for_threads(
    dims: list[Dim], item: int, o: Group, j: Group, outer: list[Dim], threads: int
) -> tuple[Group, Group, list[Dim]]:
    """The same boxes for threads each of which writes rows of its own: they go from box to box as the output lies. Pieces of J
    are equal, if there is a length of half to all of what a thread would have; else its chunks are as many for one thread as
    for the other, where that is what they share. Both leave 16 rows at least."""
    count, outside = j.chunks[0], prod(d[0] for d in outer)
    # Chunks are walked first. Pieces that are all equal are a loop, which is the slowest one where the output has it so.
    most = min(j.count, j.total // threads) if count > 1 and outer else 0
    rows = next((n for n in range(most, max(LEAST_ROWS, most // 2) - 1, -1) if j.total % n == 0), 0)
    if not rows and outside % threads and count % threads:
        rows = -(-j.total // (-(-count // threads) * threads))
    if rows >= LEAST_ROWS:
        o, j, outer = choose(dims, [item, item], o.count * rows)
    return o, j, sorted(outer, key=by_output)


def _source(builder: RowBuilder, item: int, mode: int) -> None:
    builder.words[na.N_A_MODE] = na.STAGED + mode
    builder.words[na.N_A_RUN] = move_run(mode, builder.o, builder.j, A, item)
    builder.kernels |= {abi.FN: "nest_copy", na.N_A_MOVE: f"nest_move_{item}"}


def widen(dims: list[Dim], item: int) -> tuple[list[Dim], int]:
    """Neighbours in both operands of a copy are moved as one larger element."""
    while dims and item < WIDEST and dims[0][0] % 2 == 0 and dims[0][1] == dims[0][2] == item:
        item *= 2
        dims[0] = (dims[0][0] // 2, item, item, 0)
        if dims[0][0] == 1:
            del dims[0]
    return dims, item


# -- past the caches -----------------------------------------------------------------------------------------------
def _lower_large(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> tuple[Row, ...]:
    if dims[0][2] == item and dims[0][0] * item >= LONG_ROW:
        return (_lower_rows(dims, item, shifts, tasks, nbytes),)
    rows = [_lower_boxes(dims, item, shifts, tasks, nbytes), *lower_strips(dims, item, shifts, tasks, nbytes)]
    rows += lower_lines(dims, item, shifts, tasks, nbytes)
    what = reduce(or_, [row.words.get(na.N_STRIPS, 0) for row in rows])
    for row in rows:  # each knows what the others write
        row.words[na.N_STRIPS] = what
    return tuple(rows)


def _lower_boxes(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> Row:
    box, fetched = choose_boxes(dims, item)
    inside = box.staged()
    runs = chain(inside, OUT, item)
    o, j, mode = box.sides()
    outer, row, step = box.order(tasks)
    entries = box.total or prod(d[0] for d in o) * box.shared[0]
    along = Group(dims=tuple(o), total=entries, chunks=ONE if row else box.shared)
    size, chunks = box.chunks or (0, ONE)
    builder = RowBuilder(along, _group(j, size, (*chunks[:3], LINE * box.runs)), outer, shifts)
    _source(builder, item, mode)
    words = builder.words
    read = _fetch(builder, inside, item) if fetched else {}
    from_o, from_j = (group.mapped(lambda d: read.get(d, d)) for group in (builder.o, builder.j))
    words[na.N_A_O], words[na.N_A_J] = (builder.vector(group.offsets(A)) for group in (from_o, from_j))
    words[na.N_A_RUN] = run_of(from_j, A, item)
    words[na.N_OUT_J] = builder.vector(builder.j.offsets(SCRATCH))
    carried = LINE if box.shared != ONE else 0
    room = sum((d[0] - 1) * d[1 + SCRATCH] for d in inside) + item
    if not fetched:
        room = max(room, _rows(builder, box, o, j, item))
    words[na.N_OUT_STAGE] = carried + builder.reserve(carried + room)
    words[na.N_OWN], words[na.N_OWN_ROW], words[na.N_OWN_STEP] = box.shared[1], row, step
    if box.shared != ONE:
        words[na.N_OWN_PLACE] = builder.reserve(LINE * box.runs * step)
    _stream(builder, item, prod(d[0] for d in without(runs, o)), _group(without(j, runs)), SCRATCH)
    if cores.here().asks_for_rows(item * prod(d[0] for d in chain(inside, A, item))):
        _ahead(builder, inside, item, na.RUNS_AHEAD if fetched else None)
    strips = (builder.j.chunks, *outer) if box.shared != ONE and not row else ()
    words[na.N_COMING] = _coming(builder, item, strips)
    return builder.row(min(tasks, builder.boxes), nbytes)


def _rows(builder: RowBuilder, box: Boxes, o: list[Dim], j: list[Dim], item: int) -> int:
    """Words of lines that are put together from rows: those of tiles, in scratch, and such as are adjacent in the input, which
    are read there. Returns the bytes of rows in scratch."""
    words, mode, nbytes = builder.words, builder.words[na.N_A_MODE] - na.STAGED, item * prod(d[0] for d in o)
    joined = without(chain(box.staged(), OUT, item), o)
    tiles = mode == na.MOVE_TILE
    if not (tiles or mode == na.MOVE_RUN) or nbytes < ROW_BYTES and not box.dense or joined and box.shared[1] % nbytes:
        return 0
    words[na.N_OWN_ROWS] = box.shared[1] // nbytes if joined else 1
    order = [*joined, *without(j, joined)]
    if not tiles:
        words[na.N_ROWS] = builder.vector(_group(order).offsets(A))
        return 0
    places, room = _apart(j, nbytes, SCRATCH)
    words[na.N_ROWS_J] = builder.vector(_group(places.values()).offsets(SCRATCH))
    words[na.N_ROWS] = builder.vector(_group(places[dim] for dim in order).offsets(SCRATCH))
    if box.dense:
        room = max(room, _dense(builder, prod(d[0] for d in joined), nbytes, item))
    return room


def _dense(builder: RowBuilder, joined: int, nbytes: int, item: int) -> int:
    """Words of runs of ``joined`` rows of ``nbytes`` that are where they will be in lines of the output; bytes of one. No turn has
    entries of J of two runs of the input."""
    words, tile = builder.words, max(2, LINE // item)
    builder.kernels[na.N_DENSE] = f"nest_dense_{item}"
    words[na.N_TURN] = tile * -(-DENSE_TURN // (tile * nbytes)) if words[na.N_A_RUN] % joined == 0 else joined
    return joined * nbytes + 2 * LINE


def _apart(loops: Iterable[Dim], nbytes: int, operand: int) -> tuple[dict[Dim, Dim], int]:
    """``loops`` over rows of ``nbytes``, with strides of the ``operand`` that set them an odd number of lines apart, so that they
    fall into different cache sets; bytes of all of them."""
    at, placed = (-(-nbytes // LINE) | 1) * LINE, {}
    for dim in loops:
        placed[dim] = (*dim[: 1 + operand], at, *dim[2 + operand :])
        at *= dim[0]
    return placed, at


def _coming(builder: RowBuilder, item: int, strips: Iterable[Dim]) -> int:
    """Which byte of a whole tile's rows tiles ask for, from 1 on; 0: there are none. Where boxes along the output follow
    each other, ``strips`` are the loops over these; if the next strip continues the rows of one, it finds their first lines,
    which both have, in cache."""
    run = item * builder.words[na.N_A_RUN]
    moved = builder.words[na.N_A_MODE] == na.STAGED + na.MOVE_TILE and item >= na.COMING_BYTES
    if not moved or min(item * builder.o.count, run) < LINE:
        return 0
    following = next((d for d in strips if d[0] > 1), ONE)
    return LINE if 0 < abs(following[1 + A]) <= run else 1


def _fetch(builder: RowBuilder, inside: list[Dim], item: int) -> dict[Dim, Dim]:
    """Words of the copy of a box's runs; the loops ``inside`` that go from run to run, as they lie there."""
    run, begins = chain(inside, A, item), starts(inside, item)
    nbytes = item * prod(d[0] for d in run)
    placed, room = _apart(sorted(without(inside, run), key=lambda d: abs(d[1 + A])), nbytes, A)
    pitch = room // begins.size
    builder.words |= {
        na.N_FETCH: begins.size,
        na.N_FETCH_RUNS: builder.vector(begins),
        na.N_FETCH_BYTES: nbytes,
        na.N_FETCH_PITCH: pitch,
        na.N_FETCH_PLACE: builder.reserve(room),
    }
    return placed


def _lower_rows(dims: list[Dim], item: int, shifts: Dim, tasks: int, nbytes: int) -> Row:
    """Long rows of both operands."""
    o, j, outer = choose_rows(dims, [item, item], BOX_BYTES // item)
    builder = RowBuilder(o, j, outer, shifts)
    builder.kernels[abi.FN] = "nest_copy"
    _stream(builder, item, 1, j, A)
    _ahead(builder, [*o.dims, *j.dims], item)
    return builder.row(min(tasks, builder.boxes), nbytes)


def _stream(builder: RowBuilder, item: int, joined: int, runs: Group, source: int) -> None:
    builder.words[na.N_A_WIDE] = item.bit_length() - 1
    builder.words[na.N_JOINED] = joined
    builder.words[na.N_RUNS_OUT] = builder.vector(runs.offsets(OUT))
    builder.words[na.N_RUNS_A] = builder.vector(runs.offsets(source))


def _ahead(builder: RowBuilder, inside: list[Dim], item: int, most: int | None = None) -> None:
    """What is asked for a box early: each line of each run of the input, of ``most`` runs at most, but what lies before
    its first whole 64 bytes from the end: the box before has asked for that line, and asking twice costs as much as a
    line."""
    run = chain(inside, A, item)  # may be cut short: what continues it is another run
    nbytes = item * prod(d[0] for d in run)
    within = np.arange(nbytes - 1, -1, -LINE)[::-1]
    lines = max(1, item * prod(d[0] for d in inside) // LINE)
    points = (starts(inside, item)[:most, None] + within).ravel()
    beside = max(1, round(points.size / lines))
    builder.words[na.N_AHEAD] = builder.vector(np.append(points, np.repeat(points[-1:], -points.size % beside)))
    builder.words[na.N_AHEAD_COUNT] = points.size + -points.size % beside
    builder.words[na.N_AHEAD_LINE] = beside


def _group(dims: Iterable[Dim], size: int = 0, chunks: Dim = ONE) -> Group:
    """``size``: entries of the last loop in all ``chunks``, if there are some."""
    dims = tuple(dims)
    return Group(dims=dims, total=prod(d[0] for d in dims) // (dims[-1][0] if size else 1) * (size or 1), chunks=chunks)
