"""Packing steps of their own: a whole operand to panels in a buffer, for reuse by many tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Sequence

import numpy as np

from ..kernels.cpu import abi
from ..kernels.gemm import Operand, PackProblem, lower_pack
from ..kernels.cpu.units import LINE
from ..kernels.row import Row
from ..kernels.tiles import ITEMSIZE, PANEL_GAP
from ..machine_memory import block_bytes
from ..records import lazy, quick
from .operations import itemsize

PACK_BYTES = block_bytes(320 << 10, level=2)  # of packed A per task: stays in L2 beside the B panel and C
LEAST_BYTES = 16 << 10  # of packed A per task
LANE_ENTRIES = 1 << 16  # of the table of lanes, beyond which the batch is looped outside
PAST_BYTES = 16 << 20  # of the panels of all batches, from which on they are stored past the caches
GROUP = 16  # panels that the transposing path moves together


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSide:
    """A packing step and how its panels lie, in bytes: [outer][batch][panel][batch][turn of k].

    ``stride`` from panel to panel, ``batch_strides`` (of each loop over the batch) and ``outer_stride`` along those
    indices, ``turns``: offsets of the outer loop over k.
    """

    problem: PackProblem
    nbytes: int
    stride: int
    batch_strides: tuple[int, ...]
    outer_stride: int
    turns: np.ndarray

    @lazy
    def row(self) -> Row:
        """The row of the packing step, its operands nowhere yet."""
        return lower_pack(self.problem)


def pack_side(
    *,
    lanes: np.ndarray,
    valid: np.ndarray,
    batch: Sequence[np.ndarray],
    across: bool,
    tk: np.ndarray,
    tko: np.ndarray,
    source: str,
    dtype: str,
    mode: int,
    outer: np.ndarray,
    threads: int,
    parallel: bool,
) -> PackedSide:
    """Plans the packing of one side.

    ``lanes``: (panels, width) source offsets, ``valid``: (panels,), ``batch``: source offsets of the loops over the
    batch, slow to fast, ``tk``: of k, ``tko``: of an outer loop over k, ``outer``: of what was split off the side, all
    in bytes. ``across``: an operand whose fastest batch loop is contiguous is packed by transposing across it
    (PANEL_RUN): that loop enumerates panels fastest. ``source``: dtype of what is read, ``dtype``: of the panels.
    """
    panels, width = lanes.shape
    inside, entries = len(batch), lanes.size  # loops from ``inside`` on enumerate panels, the others run outside
    while inside and (entries * len(batch[inside - 1]) <= LANE_ENTRIES or (across and inside == len(batch))):
        inside -= 1
        entries *= len(batch[inside])
    turn = len(tk) * width * ITEMSIZE[dtype]
    size = step = _apart(len(tko) * turn)
    loops = [(tko, turn)]
    strides: list[int] = []
    for table in reversed(batch[inside:]):
        strides.append(step)
        step *= len(table)
    stride, step = step, step * panels
    for table in reversed(batch[:inside]):
        strides.append(step)
        loops.append((table, step))
        step *= len(table)
    loops.append((outer, step))
    turns = max(1, prod([len(table) for table, _ in loops]))
    fast = reduce(lambda slow, table: np.add.outer(slow, table).ravel(), batch[inside:], np.zeros(1, np.int64))
    every, counts = (lanes[:, None, :] + fast[None, :, None]).reshape(-1, width), np.repeat(valid, len(fast))
    nowhere = Operand(slot=0, offset=0)
    problem = PackProblem(
        source=source,
        dtype=dtype,
        width=width,
        src=nowhere,
        dst=nowhere,
        outer=tuple(_loop(table, step) for table, step in reversed(loops) if len(table) > 1),
        lanes=every.ravel(),
        valid=counts,
        tk=tk,
        stride=size,
        mode=kept_mode(mode, every, counts, itemsize(source)),
        block=_block(panels * len(fast), size, turns, threads, GROUP if mode == abi.PANEL_RUN else 1),
        past=mode in (abi.PANEL_RUN, abi.K_RUN) and step * len(outer) > PAST_BYTES,
        parallel=parallel,
    )
    return PackedSide(
        problem=problem,
        nbytes=step * len(outer),
        stride=stride,
        batch_strides=tuple(strides[::-1]),
        outer_stride=step,
        turns=np.arange(len(tko), dtype=np.int64) * turn,
    )


def kept_mode(mode: int, lanes: np.ndarray, valid: np.ndarray, item: int) -> int:
    """How an operand runs. Panels whose first lanes are adjacent have all lanes adjacent in PANEL_RUN, which looks at the
    first ones alone: where panels cut rows of several dimensions in different places, that may not be so.

    ``lanes``: (panels, width) offsets of elements of ``item`` bytes; ``valid``: lanes that exist in each panel.
    """
    if mode != abi.PANEL_RUN:
        return mode
    steps = lanes[1:] - lanes[:-1]
    follows = (steps[:, 0] == item) & (valid[1:] == valid[:-1])
    return mode if (steps[follows] == item).all() else abi.SCATTERED


def _apart(nbytes: int) -> int:
    """Distance of panels so large: each begins with a line, so that they can go past the caches; not whole pages, or all would
    fall into the same cache sets."""
    if nbytes < 2048:
        return nbytes
    lines = -(-nbytes // LINE) * LINE
    return lines + PANEL_GAP if lines % 1024 == 0 else lines


def _loop(table: np.ndarray, step: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """An outer loop of a packing step: offsets in the source, and ``step`` bytes from turn to turn in the copy."""
    copy = np.arange(len(table), dtype=np.int64) * step
    return len(table), table, copy, copy


def _block(panels: int, size: int, turns: int, threads: int, group: int) -> int:
    """Panels per task, whole transposed groups: of panels that do not stay in the second cache, a few tasks per thread; else
    one for each thread, ``turns`` of an outer loop counted, that has LEAST_BYTES."""
    nbytes = panels * size
    tasks = 4 * threads if nbytes > PACK_BYTES else min(threads, turns * nbytes // LEAST_BYTES) // turns
    share = -(-panels // max(1, tasks))
    return min(panels, -(-share // group) * group)
