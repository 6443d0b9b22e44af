"""Cutting a nest into boxes for its kernel: which loops become O, J (and L, Q of a sum), how operands run in them.

`cpu.nest_abi` describes what comes out. The rules:

- O is a run of the output. It is one loop where every operand is contiguous or broadcast along it; where one is not,
  O and J together hold the fastest loops of output and inputs, so that lines are used whole while they are cached,
  and that operand is *staged*: moved into scratch by tiles or elements, where it then runs along O.
- A loop that is too long for a box is cut into chunks, which a loop of the odometer counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Sequence

import numpy as np

from .cpu import abi, nest_abi as na
from .cpu.storage import STORAGES, canonical_pair, moves
from .nest_problem import Dim, NestProblem
from .row import Row

OUT, A, B = 0, 1, 2
SHORT_RUN = 4  # entries below which rows cost more than elements one by one
LONG_RUN = 16  # entries from which a run is summed in place
ROW_BYTES = 32 << 10  # of a direct box
TILE = 64  # entries of O and J in a box that is transposed by tiles
GATHERED = 512  # most entries of O or J in a box moved by elements
BOX = 4096  # entries in either
TASK_BYTES = 32 << 10  # smaller work stays in one task
TASKS_PER_THREAD = 4


@dataclass(frozen=True, kw_only=True)
class Group:
    """Loops walked inside a box, the first fastest; the last may be a chunk of a longer loop.

    ``total``: entries with all chunks; ``chunks``: the odometer's row that counts them.
    """

    dims: tuple[Dim, ...]
    total: int
    chunks: Dim

    @property
    def count(self) -> int:
        return prod(d[0] for d in self.dims)

    def offsets(self, operand: int) -> np.ndarray:
        """Bytes from the first entry to each."""
        offsets = np.zeros(1, np.int64)
        for dim in self.dims:
            offsets = (np.arange(dim[0], dtype=np.int64)[:, None] * dim[1 + operand] + offsets).ravel()
        return offsets

    def contiguous(self, operand: int, item: int) -> bool:
        run = item
        for dim in self.dims:
            if dim[1 + operand] != run:
                return False
            run *= dim[0]
        return True

    def constant(self, operand: int) -> bool:
        return not any(dim[1 + operand] for dim in self.dims)

    def varies(self, operand: int) -> bool:
        """The operand changes along the group or its chunks."""
        return any(dim[1 + operand] for dim in (*self.dims, self.chunks))


def take(dims: Sequence[Dim], limit: int) -> tuple[Group, list[Dim]]:
    """As many of the first loops as have at most ``limit`` entries together, then a chunk of the next."""
    taken: list[Dim] = []
    count, total, chunks = 1, 1, (1, 0, 0, 0)
    rest = list(dims)
    while rest and count * rest[0][0] <= limit:
        taken.append(rest.pop(0))
        count *= taken[-1][0]
    total = count
    part = limit // max(count, 1)
    if rest and part >= 2:
        size, *strides = rest.pop(0)
        pieces = -(-size // part)
        part = min(part, -(-(-(-size // pieces)) // 16) * 16)  # equal pieces, multiples of a vector
        taken.append((part, *strides))
        total = count * size
        chunks = (-(-size // part), *(part * s for s in strides))
    return Group(dims=tuple(taken), total=total, chunks=chunks), rest


class Table:
    """The int64 table of a row: offset vectors behind the odometer, found again by value."""

    def __init__(self, odometer: Sequence[Dim]):
        self.parts = [np.array(odometer, np.int64).ravel()]
        self.length = self.parts[0].size
        self._places: dict[bytes, int] = {}

    def add(self, vector: np.ndarray) -> int:
        """Place of a vector in bytes."""
        key = vector.tobytes()
        if key not in self._places:
            self._places[key] = 8 * self.length
            self.parts.append(vector)
            self.length += vector.size
        return self._places[key]

    def array(self) -> np.ndarray:
        return np.concatenate(self.parts)


class Scratch:
    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, nbytes: int) -> int:
        start = self.nbytes
        self.nbytes += -(-nbytes // 64) * 64
        return start


def share(nbytes: int, threads: int) -> int:
    """Tasks wanted for work on so many bytes."""
    return max(1, min(TASKS_PER_THREAD * threads, nbytes // TASK_BYTES)) if threads > 1 else 1


# -- element-wise --------------------------------------------------------------------------------------------------
def lower_elementwise(problem: NestProblem, shifts: Dim, threads: int) -> tuple[Row, tuple[str, str, str]]:
    """Row of a normalised copy or product, and what its operands are."""
    dims, items = list(problem.dims), [STORAGES[name].itemsize for name in problem.operands]
    tasks = share(problem.bytes, threads)
    plain = _is_move(problem)
    if plain:
        dims, items = _widen(dims, items[0])
    budget = max(256, problem.elements // tasks)
    o, j, outer = _choose(dims, items, budget)
    names = ("out", "a", "b" if problem.op == "mul" or problem.scaled else "")
    if problem.op == "mul" and o.constant(B) and not o.constant(A):
        problem, o, j, outer, items, shifts = _swapped(problem, o, j, outer, items, shifts)
        names = ("out", "b", "a")
    odometer = [o.chunks, j.chunks, *outer]
    boxes = prod(d[0] for d in odometer)
    words = _box_words(o, j, odometer, shifts)
    words[na.N_FLAGS] = _flags(problem)
    table, scratch, kernels = Table(odometer), Scratch(), {abi.FN: _kernel(problem, items[0], plain)}
    if plain:
        _copy_words(words, table, o, j, items)
    else:
        for operand in range(len(items)):
            _operand_words(words, kernels, table, scratch, operand, o, j, items[operand], problem.op)
    row = Row(
        words=words,
        tables={na.N_TABLE: table.array()},
        kernels=kernels,
        scratch=scratch.nbytes,
        tasks=min(tasks, boxes),
    )
    return row, names


def _is_move(problem: NestProblem) -> bool:
    """A copy that only moves bytes."""
    swapped = problem.swap_a and STORAGES[problem.a].bits > 8
    changes = swapped or problem.conj_a or problem.accumulate or problem.scaled
    return problem.op == "copy" and moves(problem.a, problem.out) and not changes


def _kernel(problem: NestProblem, item: int, plain: bool) -> str:
    if plain:
        return f"nest_copy_{item}"
    if problem.op == "mul":
        a, b, out = _source(problem.a, problem.out), _source(problem.b, problem.out), _target(problem.out)
        return f"nest_mul_{a}_{b}_{out}" + ("_add" if problem.accumulate else "")
    swap = "_swap" if problem.swap_a and STORAGES[problem.a].bits > 8 else ""
    if problem.scaled or problem.accumulate:
        return f"nest_axpby_{_source(problem.a, problem.out)}_{_target(problem.out)}{swap}"
    source, target = canonical_pair(problem.a, problem.out)
    return f"nest_cast_{source}_{target}{swap}"


def _source(name: str, out: str) -> str:
    """Dtype of an input as kernels are named by it: arithmetic is done in the compute dtype of the output."""
    return canonical_pair(name, STORAGES[out].compute)[0]


def _target(out: str) -> str:
    return out if STORAGES[out].floating else STORAGES[out].compute


def _flags(problem: NestProblem) -> int:
    add = problem.accumulate and not problem.scaled
    return na.CONJ_A * problem.conj_a | na.CONJ_B * problem.conj_b | na.ADD_OUT * add


def _widen(dims: list[Dim], item: int) -> tuple[list[Dim], list[int]]:
    """Neighbours in both operands are moved as one larger element."""
    while dims and item < 16 and dims[0][0] % 2 == 0 and dims[0][1] == dims[0][2] == item:
        item *= 2
        dims[0] = (dims[0][0] // 2, item, item, 0)
        if dims[0][0] == 1:
            del dims[0]
    return dims, [item, item]


def _swapped(problem, o, j, outer, items, shifts):
    """The product with its inputs exchanged."""
    def dim(d: Dim) -> Dim:
        return d[0], d[1], d[3], d[2]

    def group(g: Group) -> Group:
        return Group(dims=tuple(map(dim, g.dims)), total=g.total, chunks=dim(g.chunks))

    problem = replace(
        problem, a=problem.b, b=problem.a, conj_a=problem.conj_b, conj_b=problem.conj_a, dims=tuple(map(dim, problem.dims))
    )
    return problem, group(o), group(j), list(map(dim, outer)), [items[0], items[2], items[1]], dim(shifts)


def _choose(dims: list[Dim], items: list[int], budget: int) -> tuple[Group, Group, list[Dim]]:
    """O, J and the loops left over, of loops sorted by the output's strides."""
    if not dims or _direct(dims[0], items) and (dims[0][0] >= SHORT_RUN or len(dims) == 1):
        o, _ = take(dims[:1], min(budget, max(64, ROW_BYTES // max(items))))
        j, outer = take(dims[1:], max(1, min(512, budget // o.count)))
        return o, j, outer
    runs = _chain(dims, OUT, items[OUT])
    fast = next((c for x in range(1, len(items)) if _strided(dims[0], x, items) and (c := _chain(dims, x, items[x]))), [])
    if cut := _tile(runs, fast):
        runs, fast, length = runs[: cut[0]], fast[: cut[1]], TILE
    else:
        length = GATHERED
        runs = runs or dims
    o, left = take(runs, min(budget, length))
    rest = _without(dims, runs[: len(runs) - len(left)])
    first = [d for d in fast if d in rest]
    j, outer = take(first + _without(rest, first), max(1, min(length, min(BOX, budget) // o.count)))
    if cut and o.count * j.count < min(BOX, budget) // 2:
        o, _ = take(runs, min(BOX, budget) // j.count)  # the same loops, unless the last one can be longer
    return o, j, outer


def _direct(dim: Dim, items: list[int]) -> bool:
    return dim[1] == items[0] and not any(_strided(dim, x, items) for x in range(1, len(items)))


def _strided(dim: Dim, operand: int, items: list[int]) -> bool:
    return dim[1 + operand] not in (0, items[operand])


def _without(dims: Sequence[Dim], some: Sequence[Dim]) -> list[Dim]:
    return [d for d in dims if d not in some]


def _chain(dims: Sequence[Dim], operand: int, item: int) -> list[Dim]:
    """The loops along which an operand is contiguous, the fastest first, up to `GATHERED` entries."""
    by_stride = {d[1 + operand]: d for d in reversed(dims)}
    chain, count = [], 1
    while count < GATHERED and (dim := by_stride.get(item * count)) is not None:
        chain.append(dim)
        count *= dim[0]
    return chain


def _tile(runs: list[Dim], fast: list[Dim]) -> tuple[int, int] | None:
    """How many loops of the output's and an input's chain make O and J of the best tile; None: no tile is worth it.

    A loop in both chains can be in one of them only: it ends the other.
    """
    best, cut = (0, 0), None
    for m in range(1, len(runs) + 1):
        for n in range(1, len(fast) + 1):
            if any(d in runs[:m] for d in fast[:n]):
                break
            sides = [min(16, prod(d[0] for d in part)) for part in (runs[:m], fast[:n])]
            score = prod(sides), m + n
            if min(sides) >= SHORT_RUN and score > best:
                best, cut = score, (m, n)
    return cut


# -- words ---------------------------------------------------------------------------------------------------------
def _box_words(o: Group, j: Group, odometer: list[Dim], shifts: Dim) -> dict[int, int]:
    return {
        na.N_RANK: len(odometer),
        na.N_BOXES: prod(d[0] for d in odometer),
        na.N_OUT_BASE: shifts[1],
        na.N_A_BASE: shifts[2],
        na.N_B_BASE: shifts[3],
        na.N_O: o.count,
        na.N_O_TOTAL: o.total,
        na.N_J: j.count,
        na.N_J_TOTAL: j.total,
    }


def _move_mode(o: Group, j: Group, operand: int, item: int) -> int:
    """How an input reaches a place where it runs along O."""
    if o.contiguous(operand, item):
        return na.MOVE_RUN
    if o.constant(operand):
        return na.MOVE_FILL
    tiles = _run_of(j, operand, item) >= SHORT_RUN and o.count >= SHORT_RUN
    return na.MOVE_TILE if tiles else na.MOVE_GATHER


def _run_of(j: Group, operand: int, item: int) -> int:
    """Entries of J along which the operand is contiguous."""
    run = 1
    for dim in j.dims:
        if dim[1 + operand] != item * run:
            break
        run *= dim[0]
    return run


def _copy_words(words: dict, table: Table, o: Group, j: Group, items: list[int]) -> None:
    if o.contiguous(OUT, items[OUT]):
        mode = _move_mode(o, j, A, items[A])
    else:
        mode = na.MOVE_SCATTER if o.contiguous(A, items[A]) else na.MOVE_ELEMENTS
    words[na.N_A_MODE] = na.STAGED + mode
    words[na.N_A_RUN] = _run_of(j, A, items[A])
    for operand in (OUT, A):
        words[na.N_OUT_J + operand] = table.add(j.offsets(operand))
        needed = mode not in (na.MOVE_RUN, na.MOVE_FILL)
        words[na.N_OUT_O + operand] = table.add(o.offsets(operand)) if needed else 0


def _operand_words(words, kernels, table, scratch, operand, o: Group, j: Group, item: int, op: str) -> None:
    if o.contiguous(operand, item) or (op == "mul" and operand == A and o.constant(operand)):
        words[na.N_OUT_MODE + operand] = na.CONTIGUOUS if o.contiguous(operand, item) else na.BROADCAST
        words[na.N_OUT_J + operand] = table.add(j.offsets(operand))
        return
    varies = operand == OUT or j.varies(operand)
    mode = na.MOVE_SCATTER if operand == OUT else _move_mode(o, j, operand, item)
    rows = np.arange(j.count, dtype=np.int64) * (o.count * item if varies else 0)
    words[na.N_OUT_MODE + operand] = na.STAGED + mode
    words[na.N_OUT_O + operand] = table.add(o.offsets(operand))
    words[na.N_OUT_J + operand] = table.add(rows)
    words[na.N_OUT_FAR + operand] = table.add(j.offsets(operand))
    words[na.N_OUT_ROWS + operand] = int(varies)
    words[na.N_OUT_RUN + operand] = _run_of(j, operand, item)
    words[na.N_OUT_STAGE + operand] = scratch.add(o.count * item * (j.count if varies else 1))
    kernels[na.N_OUT_MOVE + operand] = f"nest_move_{item}"


# -- sum -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Partial:
    """Sums of shares, one per task, and the loops (tasks, outputs) that add them up."""

    dims: tuple[Dim, ...]
    nbytes: int


def lower_sum(problem: NestProblem, shifts: Dim, threads: int) -> tuple[Row, Partial | None]:
    """Row of a normalised sum; `Partial` where its tasks share the sums: then the row writes (tasks, outputs)."""
    kept, summed = [d for d in problem.dims if d[1]], [d for d in problem.dims if not d[1]]
    outputs, tasks = prod(d[0] for d in kept), share(problem.bytes, threads)
    compute = STORAGES[problem.out].compute
    # Few outputs: tasks divide what is summed.
    if tasks > 1 and outputs * 64 * tasks <= problem.elements:
        item, stride, dims, compact = STORAGES[compute].itemsize, STORAGES[compute].itemsize, [], []
        for size, out, a, _ in kept:
            compact.append((size, stride, a, 0))
            dims.append((size, out, stride, 0))
            stride *= size
        tasks = min(tasks, threads * 2)
        row = _sum_row(problem, compute, compact, summed, (0, 0, *shifts[2:]), tasks, stride)
        return row, Partial(dims=(*dims, (row.tasks, 0, stride, 0)), nbytes=row.tasks * outputs * item)
    return _sum_row(problem, problem.out, kept, summed, shifts, tasks, 0), None


def _sum_row(problem, out: str, kept: list[Dim], summed: list[Dim], shifts: Dim, tasks: int, task_stride: int) -> Row:
    items = [STORAGES[out].itemsize, STORAGES[problem.a].itemsize]
    item_part = STORAGES[STORAGES[out].compute].itemsize
    summed = sorted(summed, key=lambda d: abs(d[2]))
    mode, o, l, q, outer, r_outer = _sum_groups(kept, summed, items, problem.elements // tasks if task_stride else 1 << 40)
    none = Group(dims=(), total=1, chunks=(1, 0, 0, 0))
    odometer, inner = [o.chunks, none.chunks, *outer], [l.chunks, q.chunks, *r_outer]
    words = _box_words(o, none, odometer, shifts)
    r_boxes = prod(d[0] for d in inner)
    words |= {
        na.N_R_RANK: len(inner),
        na.N_R_BOXES: r_boxes,
        na.N_L: l.count,
        na.N_L_TOTAL: l.total,
        na.N_Q: q.count,
        na.N_Q_TOTAL: q.total,
        na.N_R_MODE: mode,
        na.N_TASK_STRIDE: task_stride,
        na.N_FLAGS: na.CONJ_A * problem.conj_a | na.ADD_OUT * (problem.accumulate and not task_stride),
    }
    table, scratch, kernels = Table(odometer), Scratch(), {abi.FN: f"nest_sum_{_source(problem.a, out)}_{_target(out)}"}
    words[na.N_R_TABLE] = table.add(np.array(inner, np.int64).ravel())
    words[na.N_B_STAGE] = scratch.add(2 * o.count * item_part)  # accumulators
    _operand_words(words, kernels, table, scratch, OUT, o, none, items[OUT], "sum")
    words[na.N_A_O] = table.add(o.offsets(A))
    words[na.N_A_Q] = table.add(q.offsets(A))
    if mode in (na.SUM_STAGED_COLUMNS, na.SUM_STAGED_ROWS):
        _stage_sum(words, kernels, table, scratch, mode, o, q, items[A])
    boxes = r_boxes if task_stride else words[na.N_BOXES]
    return Row(
        words=words,
        tables={na.N_TABLE: table.array()},
        kernels=kernels,
        scratch=scratch.nbytes,
        tasks=max(1, min(tasks, boxes)),
    )


def _sum_groups(kept: list[Dim], summed: list[Dim], items: list[int], budget: int):
    """``(mode, O, L, Q, outer kept loops, outer summed loops)``."""
    one = Group(dims=(), total=1, chunks=(1, 0, 0, 0))
    if kept and _direct(kept[0], items) and kept[0][2] and kept[0][0] >= 8:
        o, _ = take(kept[:1], max(64, 8192 // items[A]))
        q, r_outer = take(summed, min(512, max(16, budget // o.count)))
        return na.SUM_COLUMNS, o, one, q, kept[1:], r_outer
    run = _chain(kept, OUT, items[OUT]) or kept
    run_dim = next((d for d in summed if d[2] == items[A]), None)
    o, _ = take(run, 256)
    outer = _without(kept, run[: len(o.dims)])
    if run_dim is not None and run_dim[0] >= LONG_RUN:
        l, _ = take([run_dim], min(8192, max(64, budget // o.count)))
        others = [d for d in summed if d is not run_dim]
        q, r_outer = take(others, max(1, 8192 // l.count))
        return na.SUM_ROWS, o, l, q, outer, r_outer
    mode = na.SUM_STAGED_COLUMNS if o.total >= 8 else na.SUM_STAGED_ROWS
    q, r_outer = take(summed, min(max(16, 8192 // o.count), max(16, budget // o.count)))
    return mode, o, one, q, outer, r_outer


def _stage_sum(words, kernels, table, scratch, mode, o: Group, q: Group, item: int) -> None:
    along, across = (o, q) if mode == na.SUM_STAGED_COLUMNS else (q, o)
    words[na.N_A_MODE] = na.STAGED + _move_mode(along, across, A, item)
    words[na.N_A_RUN] = _run_of(across, A, item)
    words[na.N_A_J] = table.add(np.arange(across.count, dtype=np.int64) * (along.count * item))
    words[na.N_A_FAR] = table.add(np.zeros(1, np.int64))
    words[na.N_A_STAGE] = scratch.add(o.count * q.count * item)
    kernels[na.N_A_MOVE] = f"nest_move_{item}"
