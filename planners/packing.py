"""Packing steps of their own: a whole operand to panels in a buffer, for reuse by many tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels.gemm import Operand, PackProblem
from ..kernels.tiles import PANEL_GAP

PACK_BYTES = 320 << 10  # of packed A per task: stays in L2 beside the B panel and C
GROUP = 16  # panels that the transposing path moves together


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSide:
    """A packing step and how its panels lie, in bytes: [outer][panel][batch][turn of k].

    ``stride`` from panel to panel, ``batch_stride`` and ``outer_stride`` along those indices, ``turns``: offsets of the
    outer loop over k.
    """

    problem: PackProblem
    nbytes: int
    stride: int
    batch_stride: int
    outer_stride: int
    turns: np.ndarray


def pack_side(
    *,
    lanes: np.ndarray,
    valid: np.ndarray,
    batch: np.ndarray,
    tk: np.ndarray,
    tko: np.ndarray,
    item: int,
    mode: int,
    outer: np.ndarray,
    threads: int,
    parallel: bool,
) -> PackedSide:
    """Plans the packing of one side.

    ``lanes``: (panels, width) source offsets, ``valid``: (panels,), ``batch``: source offsets of the batch index,
    ``tk``: of k, ``tko``: of an outer loop over k, ``outer``: of what was split off the side, all in bytes. The batch enumerates panels fastest, so that
    an operand whose batch is contiguous is packed by transposing across it (PANEL_RUN).
    """
    panels, width = lanes.shape
    turn = len(tk) * width * item
    count, size = len(batch), _apart(len(tko) * turn)
    outer_stride = panels * count * size
    loops = ()
    if len(outer) > 1:
        steps = np.arange(len(outer), dtype=np.int64) * outer_stride
        loops = ((len(outer), outer, steps, steps),)
    if len(tko) > 1:
        steps = np.arange(len(tko), dtype=np.int64) * turn
        loops = (*loops, (len(tko), tko, steps, steps))
    nowhere = Operand(slot=0, offset=0)
    problem = PackProblem(
        itemsize=item,
        width=width,
        src=nowhere,
        dst=nowhere,
        outer=loops,
        lanes=np.ascontiguousarray((lanes[:, None, :] + batch[None, :, None]).ravel()),
        valid=np.repeat(valid, count),
        tk=tk,
        stride=size,
        mode=mode,
        block=_block(panels * count, size, threads),
        parallel=parallel,
    )
    return PackedSide(
        problem=problem,
        nbytes=outer_stride * len(outer),
        stride=count * size,
        batch_stride=size,
        outer_stride=outer_stride,
        turns=np.arange(len(tko), dtype=np.int64) * turn,
    )


def _apart(nbytes: int) -> int:
    """Distance of panels so large: not whole pages, or all would fall into the same cache sets."""
    return nbytes + PANEL_GAP if nbytes >= 2048 and nbytes % 1024 == 0 else nbytes


def _block(panels: int, size: int, threads: int) -> int:
    """Panels per task: a few tasks per thread, whole transposed groups."""
    share = -(-panels // max(1, 4 * threads)) if panels * size > PACK_BYTES else panels
    return min(panels, -(-share // GROUP) * GROUP)
