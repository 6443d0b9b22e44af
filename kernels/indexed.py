"""The indexed family on the Python side: gather and scatter as data, lowering to a row of the step table, reference.

    gather        dense[i, r] = indexed[x(i), r]
    scatter       indexed[x(i), r] = dense[i, r]
    scatter_add   indexed[x(i), r] += dense[i, r]

``x(i)`` are index arrays, one for each of some axes of the indexed operand; r runs over the other axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..dtypes import as_numpy
from .cpu import abi
from .cpu import indexed_abi as ia
from .cpu.storage import STORAGES
from .nest_problem import fuse
from .nest_rows import PARALLEL_BYTES, share
from .row import Operand, Row, operand_words

OPERATIONS = ("gather", "scatter", "scatter_add")
ITEMS = (1, 2, 4, 8, 16)
ADDED = tuple(name for name, row in STORAGES.items() if row.kind != "u")  # unsigned integers add as signed ones
SHORT = 16  # bytes: shorter runs are no loop of their own where there are indices enough
FEW = 8  # indices


@dataclass(frozen=True, kw_only=True)
class IndexArray:
    """Indices (int64) into an axis of ``size`` entries, ``step`` bytes apart in the indexed operand; ``axis``: what an
    error calls it."""

    size: int
    step: int
    axis: int = 0


@dataclass(frozen=True, kw_only=True)
class IndexedProblem:
    """``operands``: the output, the operand A, then the index arrays. ``loops``: over the indices, slowest first, in
    the order in which a scatter writes: ``(count, stride of the dense operand, stride of each index array ...)``.
    ``rest``: loops over what lies at each place, in any order: ``(count, stride of the indexed operand, of the dense
    one)``. The dense operand of a scatter and index arrays may have strides of 0. Strides are bytes.
    """

    op: str
    dtype: str
    arrays: tuple[IndexArray, ...]
    loops: tuple[tuple[int, ...], ...]
    rest: tuple[tuple[int, int, int], ...]
    operands: tuple[Operand, ...]

    @property
    def item(self) -> int:
        return STORAGES[self.dtype].itemsize

    @property
    def indices(self) -> int:
        """Places that are named."""
        return prod(loop[0] for loop in self.loops)

    @property
    def elements(self) -> int:
        return self.indices * prod(loop[0] for loop in self.rest)

    @property
    def flops(self) -> int:
        return self.elements if self.op == "scatter_add" else 0

    @property
    def bytes(self) -> int:
        return 2 * self.item * self.elements + 8 * len(self.arrays) * self.indices

    @property
    def text(self) -> str:
        """As `explain` shows it."""
        return self.op

    def placed(self, operands: tuple[Operand, ...]) -> "IndexedProblem":
        return replace(self, operands=operands)

    def lower(self, threads: int = 1) -> tuple[Row, ...]:
        return lower(self, threads)


def names() -> tuple[str, ...]:
    """All kernels that `lower` may name."""
    moves = [f"{op}_{item}" for op in ("gather", "scatter") for item in ITEMS]
    return (*moves, *(f"scatteradd_{dtype}" for dtype in ADDED))


def kernel_for(p: IndexedProblem) -> str:
    if p.op != "scatter_add":
        return f"{p.op}_{p.item}"
    row = STORAGES[p.dtype]
    return f"scatteradd_{f'int{row.bits}' if row.kind == 'u' else p.dtype}"


def lower(p: IndexedProblem, threads: int = 1) -> tuple[Row, ...]:
    """The row of the step table; none where no place is named. Indices are looked at even where nothing lies there."""
    if p.indices == 0:
        return ()
    loops = _in_order([loop for loop in p.loops if loop[0] > 1])
    inner = loops.pop() if loops else (1, *(0 for _ in (None, *p.arrays)))
    rest = sorted((loop for loop in p.rest if loop[0] != 1), key=lambda loop: (abs(loop[2]), abs(loop[1])))
    rest = fuse(rest)
    run = _run(p, rest, inner[0])
    rest = [loop for loop in rest if loop is not run][::-1]
    size, of_indexed, of_dense = run or (1, p.item, p.item)
    units = -(-inner[0] // ia.BLOCK) * prod(loop[0] for loop in loops)
    total = prod(loop[0] for loop in rest)
    unit_tasks, rest_tasks = _tasks(p, units, total, threads)
    heads = [
        (x.slot, x.offset, array.size, array.step, stride, array.axis)
        for x, array, stride in zip(p.operands[2:], p.arrays, inner[2:], strict=True)
    ]
    table = np.array([word for row in (*heads, *loops, *rest) for word in row], np.int64)
    outer = 8 * ia.X_WORDS * len(heads)
    words = {
        **operand_words(p.operands[0], p.operands[1]),
        abi.PARALLEL: abi.IN_BANDS * (unit_tasks * rest_tasks > 1 and p.bytes >= PARALLEL_BYTES),
        ia.I_ARRAYS: len(heads),
        ia.I_INNER: inner[0],
        ia.I_DENSE: inner[1],
        ia.I_OUTER: outer,
        ia.I_OUTER_RANK: len(loops),
        ia.I_OUTER_TOTAL: prod(loop[0] for loop in loops),
        ia.I_REST: outer + 8 * len(loops) * (2 + len(heads)),
        ia.I_REST_RANK: len(rest),
        ia.I_REST_TOTAL: total,
        ia.I_RUN: size,
        ia.I_RUN_INDEXED: of_indexed,
        ia.I_RUN_DENSE: of_dense,
        ia.I_UNITS: units,
        ia.I_UNIT_SHARE: -(-units // unit_tasks),
        ia.I_REST_SHARE: -(-total // rest_tasks) if total else 1,
        ia.I_REST_TASKS: rest_tasks,
        ia.I_ADJACENT: int(of_indexed == of_dense == p.item),
    }
    tasks = -(-units // words[ia.I_UNIT_SHARE]) * rest_tasks
    return (Row(words=words, tables={ia.I_TABLE: table}, kernels={abi.FN: kernel_for(p)}, tasks=tasks),)


def _in_order(loops: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Neighbours that continue each other in all operands made one."""
    found: list[tuple[int, ...]] = []
    for count, *strides in loops:
        if found and found[-1][1:] == tuple(count * stride for stride in strides):
            count *= found.pop()[0]
        found.append((count, *strides))
    return found


def _run(p: IndexedProblem, rest: list[tuple[int, int, int]], indices: int) -> tuple[int, int, int] | None:
    """The loop that is done at each place before the next place; None: single elements."""
    for loop in rest:
        if loop[1] == loop[2] == p.item and (loop[0] * p.item >= SHORT or indices < FEW):
            return loop
    return max(rest, default=None) if indices < FEW else None


def _tasks(p: IndexedProblem, units: int, rest: int, threads: int) -> tuple[int, int]:
    """Tasks along units and along the rest. Those of a scatter may not write the same place."""
    wanted = share(p.bytes, threads)
    if p.op == "gather" and units >= wanted:
        return wanted, 1
    tasks = max(1, min(wanted, rest))
    return 1, -(-rest // -(-rest // tasks)) if rest else 1


# -- reference ---------------------------------------------------------------------------------------------------
def reference(p: IndexedProblem, memory: dict[int, np.ndarray]) -> None:
    """What the row computes, element by element; ``memory[slot]``: the uint8 view that starts at the slot's base.

    IndexError where an index is out of range, with nothing written.
    """
    at = np.array([(0, *(0 for _ in p.arrays))], np.int64)
    for count, *strides in p.loops:
        at = (at[:, None] + np.arange(count)[:, None] * np.array(strides, np.int64)).reshape(-1, at.shape[1])
    offsets = np.zeros(len(at), np.int64)
    for column, (array, x) in enumerate(zip(p.arrays, p.operands[2:], strict=True), 1):
        found = [_read(memory[x.slot], x.offset + place, "int64") for place in at[:, column]]
        if wrong := [index for index in found if not -array.size <= index < array.size]:
            raise IndexError(f"index {wrong[0]} is out of bounds for axis {array.axis} with size {array.size}")
        offsets += np.array(found, np.int64) % max(array.size, 1) * array.step
    rest = np.zeros((1, 2), np.int64)
    for count, *strides in p.rest:
        rest = (rest[:, None] + np.arange(count)[:, None] * np.array(strides, np.int64)).reshape(-1, 2)
    gather = p.op == "gather"
    (indexed, dense) = p.operands[1::-1] if gather else p.operands[:2]
    for offset, start in zip(offsets, at[:, 0]):
        for more, far in rest:
            places = (
                (memory[indexed.slot], indexed.offset + offset + more),
                (memory[dense.slot], dense.offset + start + far),
            )
            value = _read(*places[0 if gather else 1], p.dtype)
            if p.op == "scatter_add":
                with np.errstate(over="ignore"):  # integers wrap around
                    value = (_read(*places[0], p.dtype) + value).astype(value.dtype)
            target, where = places[1 if gather else 0]
            target[where : where + p.item] = np.frombuffer(value.tobytes(), np.uint8)


def _read(memory: np.ndarray, at: int, dtype: str) -> np.generic:
    kind = as_numpy(dtype)
    return np.frombuffer(memory[at : at + kind.itemsize].tobytes(), kind)[0]
