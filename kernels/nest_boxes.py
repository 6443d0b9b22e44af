"""Cutting a nest into boxes for its kernel: which loops become O, J (and L, Q of a sum), how operands run in them.

`cpu.nest_abi` describes what comes out. The rules:

- O is a run of the output. It is one loop where every operand is contiguous or broadcast along it; where one is not,
  O and J together hold the fastest loops of output and inputs, so that lines are used whole while they are cached,
  and that operand is *staged*: moved into scratch by tiles or elements, where it then runs along O.
- A loop that is too long for a box is cut into chunks, which a loop of the odometer counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Callable, Sequence

import numpy as np

from ..machine_memory import block_bytes
from .cpu.units import LINE, PAGE
from .nest_problem import Dim

OUT, A, B = 0, 1, 2  # operands
SHORT_RUN = 4  # entries of the smallest tile
LONG_ROW = 16  # entries from which rows are the best there is
ROW_COST, MOVE_COST = 8, 1.2  # cycles: of beginning a row, of moving an entry by itself
ROW_BYTES = 32 << 10  # of a direct box
TILE = 64  # entries of O in a box that is transposed by tiles
TILE_ROWS = 128  # entries of J
FAR_BOX = 4096  # entries of both, where the tensors do not fit in cache together
GATHERED = 512  # most entries of O or J in a box moved by elements
BOX = 4096  # entries in either
CACHE_BYTES = block_bytes(256 << 10, level=2)  # of a core, that lines of an input find in it
PAGED = 8  # times as many bytes, where lines share few sets


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

    def mapped(self, exchange: Callable[[Dim], Dim]) -> "Group":
        """The same loops with other strides."""
        return Group(dims=tuple(map(exchange, self.dims)), total=self.total, chunks=exchange(self.chunks))

    def constant(self, operand: int) -> bool:
        return not any(dim[1 + operand] for dim in self.dims)

    def varies(self, operand: int) -> bool:
        """The operand changes along the group or its chunks."""
        return any(dim[0] > 1 and dim[1 + operand] for dim in (*self.dims, self.chunks))


def take(dims: Sequence[Dim], limit: int, step: int = 1, *, split: bool = True) -> tuple[Group, list[Dim]]:
    """As many of the first loops as have at most ``limit`` entries together, then a piece of the next; what is left.

    Where the pieces are equal (and ``split`` is set), counting them is one more loop, the first of those left. A piece
    has a multiple of ``step`` entries, if it has more.
    """
    taken: list[Dim] = []
    count, chunks = 1, (1, *(0 for _ in dims[0][1:])) if dims else (1, 0, 0, 0)
    rest = list(dims)
    while rest and count * rest[0][0] <= limit:
        taken.append(rest.pop(0))
        count *= taken[-1][0]
    total = count
    part = limit // max(count, 1)
    if rest and part >= 2:
        size, *strides = rest.pop(0)
        part = _part(size, part, step)
        pieces = (-(-size // part), *(part * s for s in strides))
        taken.append((part, *strides))
        if split and size % part == 0:
            rest.insert(0, pieces)
            total = count * part
        else:
            chunks, total = pieces, count * size
    return Group(dims=tuple(taken), total=total, chunks=chunks), rest


def _part(size: int, limit: int, step: int) -> int:
    """Length of the pieces that a loop is cut into: a divisor if there is one near the limit, else about equal ones."""
    step = step if limit >= step else 1
    for part in range(limit - limit % step, limit // 2, -step):
        if size % part == 0:
            return part
    pieces = -(-size // limit)
    whole = max(step, 16)  # a multiple of a vector
    return min(limit, -(-(-(-size // pieces)) // whole) * whole)


def choose(dims: list[Dim], items: list[int], budget: int, row: int = 0) -> tuple[Group, Group, list[Dim]]:
    """O, J and the loops left over, of loops sorted by the output's strides. ``row``: bytes of O that tiles should have of
    tensors that do not fit in cache together; 0: they do."""
    straight = not dims or direct(dims[0], items)
    if row and straight and (parts := _departing(dims, items)) is not None:
        return _choose_tile(dims, *parts, budget, row // items[OUT])
    if straight and (len(dims) <= 1 or dims[0][0] >= LONG_ROW):
        return choose_rows(dims, items, budget)
    runs = chain(dims, OUT, items[OUT])
    across = (chain(dims, x, items[x]) for x in range(1, len(items)) if _strided(dims[0], x, items))
    fast = next(filter(None, across), [])
    if cut := tile_cut(runs, fast):
        return _choose_tile(dims, runs[: cut[0]], fast[: cut[1]], budget, row // items[OUT])
    o, left = take(runs or dims, min(budget, GATHERED))
    rest = sorted(left + without(dims, runs or dims), key=by_output)
    first = [d for d in fast if d in rest]
    j, outer = take(first + without(rest, first), max(1, min(GATHERED, min(BOX, budget) // o.count)))
    if straight and ROW_COST / dims[0][0] < _staging_cost(o, j, items):
        return choose_rows(dims, items, budget)
    return o, j, outer


def _departing(dims: list[Dim], items: list[int]) -> tuple[list[Dim], list[Dim]] | None:
    """Loops of O and J, where the output and an input begin with the same run, up to two lines, and go on in different
    directions: rows of the output would come to the rest of an input's lines when these are gone from a core's cache
    (docs/performance-memory.md#departing)."""
    runs = chain(dims, OUT, items[OUT])
    for operand in range(1, len(items)):
        fast = chain(dims, operand, items[operand])
        same = next((i for i, (x, y) in enumerate(zip(runs, fast)) if x != y), 0)
        run = prod(d[0] for d in dims[:same])
        if not same or run * items[operand] > 2 * LINE:
            continue
        lines = prod(d[0] for d in dims[same : dims.index(fast[same])])
        paged = run < SHORT_RUN and runs[same][1 + operand] % PAGE == 0  # few sets; longer runs the next cache has still
        if LINE * lines * (PAGED if paged else 1) > CACHE_BYTES and (cut := tile_cut(runs[same:], fast[same:])):
            return runs[: same + cut[0]], fast[same : same + cut[1]]
    return None


def choose_rows(dims: list[Dim], items: list[int], budget: int):
    """`choose` where every operand runs along the first loop."""
    o, left = take(dims[:1], min(budget, max(64, ROW_BYTES // max(items))))
    j, outer = take(left + dims[1:], max(1, min(512, budget // o.count)))
    return o, j, outer


def _staging_cost(o: Group, j: Group, items: list[int]) -> float:
    """Cycles per entry of moving what does not run along O; next to none where it is moved once for all rows."""
    staged = [x for x in range(len(items)) if not o.contiguous(x, items[x])]
    return sum(MOVE_COST if j.varies(x) else MOVE_COST / j.count for x in staged)


def _choose_tile(dims: list[Dim], runs: list[Dim], fast: list[Dim], budget: int, row: int):
    """`choose` where the output is contiguous along ``runs`` and an input along ``fast``; ``row``: entries of O, or more."""
    o, left = take(runs, min(budget, max(TILE, row)), 16)
    rest = sorted(left + without(dims, runs), key=by_output)
    first = [d for d in fast if d in rest]
    j, outer = take(first + without(rest, first), max(1, min(FAR_BOX // o.count if row else TILE_ROWS, budget // o.count)), 16)
    return o, j, outer


def by_output(dim: Dim) -> int:
    return abs(dim[1])


def direct(dim: Dim, items: list[int]) -> bool:
    return dim[1] == items[0] and not any(_strided(dim, x, items) for x in range(1, len(items)))


def _strided(dim: Dim, operand: int, items: list[int]) -> bool:
    return dim[1 + operand] not in (0, items[operand])


def without(dims: Sequence[Dim], some: Sequence[Dim]) -> list[Dim]:
    return [d for d in dims if d not in some]


def chain(dims: Sequence[Dim], operand: int, item: int) -> list[Dim]:
    """The loops along which an operand is contiguous, the fastest first, up to `GATHERED` entries."""
    by_stride = {d[1 + operand]: d for d in reversed(dims)}
    found, count = [], 1
    while count < GATHERED and (dim := by_stride.get(item * count)) is not None:
        found.append(dim)
        count *= dim[0]
    return found


def tile_cut(runs: list[Dim], fast: list[Dim]) -> tuple[int, int] | None:
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


def run_of(j: Group, operand: int, item: int) -> int:
    """Entries of J along which the operand is contiguous."""
    run = 1
    for dim in j.dims:
        if dim[1 + operand] != item * run:
            break
        run *= dim[0]
    return run

