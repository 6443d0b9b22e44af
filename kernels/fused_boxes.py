"""The boxes of fused maps: along which loops, how operands reach scratch, and what that takes."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Iterator, Sequence

from .cpu import fused_abi as ua
from .cpu import nest_abi as na
from .cpu.units import LINE
from .nest_boxes import GATHERED, LONG_ROW, Group, by_output, choose, choose_rows, take, without
from .nest_problem import Dim
from .nest_rows import WIDEST, move_mode, move_run

STAGED_BYTES = 24 << 10  # of a box, so that what is staged stays in the L1 cache
REPEATED_BYTES = 24 << 10  # of a row, whose repeated parts stay there for the rows that follow
REUSED = 6  # such rows at least
_APART = {na.MOVE_GATHER: na.MOVE_APART, na.MOVE_SCATTER: na.MOVE_SPREAD}  # where elements are few bytes apart
VECTOR = 64  # bytes

# cycles, about
ROW, ROW_OPERAND = 15, 4  # of beginning a row, and of each of its operands
BOX = 60  # of beginning a box, and of each move
SPILT = 1.3  # factor, where what is staged does not stay in the L1 cache; tiles are no larger than is best for them
FAR = 2  # factor of an entry by itself that has a cache line of its own
MOVES = {  # of an entry that is moved
    na.MOVE_RUN: 0.15,
    na.MOVE_FILL: 0.15,
    na.MOVE_REPEAT: 0.15,
    na.MOVE_SEVERAL: 0.2,
    na.MOVE_WEAVE: 0.3,
    na.MOVE_TILE: 0.4,
    na.MOVE_APART: 0.4,
    na.MOVE_SPREAD: 0.5,
    na.MOVE_GATHER: 1.2,
    na.MOVE_SCATTER: 1.5,
}


@lru_cache(maxsize=1024)
def choose_map(
    dims: tuple[Dim, ...], items: tuple[int, ...], outputs: int, price: int, budget: int, held: frozenset[int] = frozenset()
) -> tuple[Group, Group, list[Dim]]:
    """O, J and the loops left over: as a nest has them, or with O along the fastest loops of any operand, whichever
    takes least by `boxed_cost`. ``price``: about how many cycles the arithmetic on a vector takes; ``held``: operands of
    which rows keep some vectors in registers, so that the rest of them takes no room in the L1 cache."""
    first = choose(list(dims), list(items), budget)
    if all(first[0].contiguous(x, item) or first[0].constant(x) for x, item in enumerate(items)):
        if first[0].count >= LONG_ROW:
            longer = _longer(dims, items, outputs, budget)
            return min((first, *longer), key=lambda each: boxed_cost(each[0], each[1], items, outputs, price))
    entries = max(LINE, min(budget, STAGED_BYTES // sum(item for x, item in enumerate(items) if x not in held)))
    orders: dict[tuple[Dim, ...], None] = {}  # loops, the fastest of an operand first
    for x in range(len(items)):
        mine = sorted((d for d in dims if d[1 + x]), key=lambda d: abs(d[1 + x]))
        orders[(*mine, *without(dims, mine))] = None
    found = [first]
    for order in orders:
        for along in dict.fromkeys((order, order[:1])):  # elements may be evenly apart along the first loop alone
            o, left = take(along, min(entries, GATHERED))
            j, outer = take(sorted([*left, *order[len(along) :]], key=by_output), max(1, entries // o.count))
            found.append((o, j, outer))
        o, left = take(order, entries)
        if not any(_moved(o, x, item, x < outputs) and any(d[1 + x] for d in left) for x, item in enumerate(items)):
            rows = -(-budget // o.count)  # rounded up: else there is one box more than tasks, for what is left of each
            found.append((o, *take(sorted(left, key=by_output), max(1, min(GATHERED, rows)))))
    return min(found, key=lambda each: boxed_cost(each[0], each[1], items, outputs, price))


def _longer(
    dims: Sequence[Dim], items: Sequence[int], outputs: int, budget: int
) -> Iterator[tuple[Group, Group, list[Dim]]]:
    """Rows of several entries of the second loop, if outputs are adjacent there and some inputs are repeated: these are
    moved once for all rows that the second loop makes."""
    if len(dims) < 2 or any(dims[1][1 + x] != dims[0][0] * item for x, item in enumerate(items[:outputs])):
        return
    o, left = take(dims[:2], min(budget, REPEATED_BYTES // sum(items), dims[0][0] * dims[1][0] // REUSED))
    if len(o.dims) < 2 or o.count * items[0] < ua.LONG_ROW:
        return
    if all(o.contiguous(x, item) or (x >= outputs and _repeated(o, x, item)) for x, item in enumerate(items)):
        j, left = take(left, max(1, min(GATHERED, budget // o.count)))
        yield o, j, [*left, *dims[2:]]


def _moved(o: Group, number: int, item: int, output: bool) -> bool:
    return not (o.contiguous(number, item) or (not output and o.constant(number)))


def choose_apart(
    dims: Sequence[Dim], items: Sequence[int], outputs: int, budget: int
) -> tuple[Group, Group, list[Dim]] | None:
    """O, J and the loops left over, where along the first loop elements are two apart in all operands that run along
    it, outputs among them; else None."""
    size, *strides = dims[0]
    steps = [stride / item for stride, item in zip(strides, items, strict=True)]
    if size < LONG_ROW or any(step != 2 and (step or x < outputs) for x, step in enumerate(steps)):
        return None
    return choose_rows(list(dims), [2 * item for item in items], budget)


def movement(o: Group, j: Group, number: int, item: int, output: bool) -> tuple[int, int, int]:
    """Mode of an operand's move, how many neighbours are moved as one element (2**), and `fused_abi.O_RUN`."""
    mode = na.MOVE_SCATTER if output else move_mode(o, j, number, item)
    wide, run = 0, move_run(mode, o, j, number, item)
    repeated = _repeated(o, number, item) if mode == na.MOVE_GATHER else 0
    if mode not in _APART:
        return mode, wide, run
    divisible = gcd(o.dims[0][0], o.total)  # also the end of a loop that is cut itself
    while item << wide < WIDEST and divisible % (2 << wide) == 0 and o.dims[0][1 + number] == item:
        wide += 1
    if repeated:
        return na.MOVE_REPEAT, wide, repeated >> wide
    step = _step(o, number, item, wide)
    if step in [steps * (item << wide) for steps in na.STEPS]:
        return _APART[mode], wide, step
    return mode, wide, run


def _repeated(o: Group, number: int, item: int) -> int:
    """The entries that are adjacent, where all others along a group repeat them; else 0."""
    count = 1
    for at, (size, *strides) in enumerate(o.dims):
        if strides[number] != item * count:
            return count if at and not any(dim[1 + number] for dim in o.dims[at:]) else 0
        count *= size
    return 0


def repeats(o: Group, number: int, item: int) -> int:
    """The entries along a group after which an operand repeats itself, 1 where it is one element; 0: it does not."""
    return 1 if o.constant(number) else _repeated(o, number, item)


def _step(o: Group, number: int, item: int, wide: int) -> int:
    """The distance of neighbours (of so many that are moved as one), where it is the same for all; else 0."""
    moving = [(dim[0], dim[1 + number]) for dim in o.dims]
    if wide:
        moving[0] = moving[0][0] >> wide, item << wide
    moving = [(size, stride) for size, stride in moving if size > 1]
    for (size, stride), (_, following) in zip(moving, moving[1:]):
        if following != size * stride:
            return 0
    return moving[0][1] if moving else 0


def boxed_cost(o: Group, j: Group, items: Sequence[int], outputs: int, price: float) -> float:
    """Cycles for each entry of a box of a map; ``price``: of the arithmetic on a vector."""
    vectors = -(-o.count * max(items) // VECTOR)
    cost = (ROW + ROW_OPERAND * len(items) + vectors * (price + len(items))) / o.count
    cost += BOX / (o.count * j.count)
    staged = 0
    for number, item in enumerate(items):
        output = number < outputs
        if not _moved(o, number, item, output):
            continue
        mode, wide, _ = movement(o, j, number, item, output)
        rows = 1 if output or j.varies(number) else 1 / j.count
        staged += round(item * o.count * j.count * rows) if mode != na.MOVE_TILE else 0
        far = mode in _APART and min(abs(dim[1 + number]) for dim in o.dims) >= LINE
        moved = MOVES[mode] / (1 << wide if mode != na.MOVE_REPEAT else 1) * (FAR if far else 1)
        rows /= 1 if o.chunks[1 + number] or output else o.chunks[0]  # it stays in scratch from chunk to chunk
        cost += rows * (moved + ROW / o.count + BOX / (o.count * j.count))
    return cost * (SPILT if staged > 2 * STAGED_BYTES else 1)
