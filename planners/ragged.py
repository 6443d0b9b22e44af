"""Runs of C that end within a line, of an A that is packed along another dimension.

Panels that are packed together are adjacent in A, and lie far apart in C. If tiles took them in that order, each would
store parts of lines at both ends of its columns, where a run of C begins or ends within a line; such a store waits for
the line. So as many panels as a task packs at a time are whole runs of C, and tiles go along these: what one has of a line
waits for the next (`kernels.cpu.carry`).
"""

from __future__ import annotations

from math import prod
from typing import Iterable

import numpy as np

from ..kernels.cpu.units import LINE
from .packing import PACK_BYTES
from .sides import OUT, Panels, total

LEAST_RUN = 8  # panels that are packed together, adjacent in A


def turn_of(panels: Panels, item: int, panel_bytes: int) -> tuple[int, int]:
    """Panels of a run of C, times panels adjacent in A, that are packed together; (0, 0) where order makes no difference,
    or too few would be adjacent. Where that does not divide their number, the last group has fewer."""
    cut, run = panels.cut, panels.run_last
    if cut is None or run is None or panels.lanes or panels.cuts < 2:
        return 0, 0
    length = cut.size * item
    if cut.stride(OUT) != item or run.stride(OUT) != length or length % LINE == 0:
        return 0, 0
    most = PACK_BYTES // (panels.cuts * panel_bytes)
    beside = next((size for size in range(min(most, run.size), LEAST_RUN - 1, -1) if run.size % size == 0), 0)
    if not beside and most >= LEAST_RUN and total(panels.rest) == 1:
        beside = -(-run.size // -(-run.size // most))  # the last group has fewer
    return (panels.cuts, beside) if beside >= LEAST_RUN else (0, 0)


def in_turn(panels: Panels, turn: tuple[int, int]) -> np.ndarray:
    """Numbers of the panels, (rest, cuts, run), group after group."""
    (cuts, beside), run = turn, panels.run_last.size
    numbers = np.arange(panels.count).reshape(total(panels.rest), cuts, run)
    groups = [numbers[..., first : first + beside] for first in range(0, run, beside)]
    return np.concatenate([group[rest].ravel() for rest in range(len(numbers)) for group in groups])


def whole_groups(turn: tuple[int, int], ends: Iterable[int], panels: int) -> bool:
    """Whether tasks that begin and end at these panels have whole groups."""
    return all(end % prod(turn) == 0 or end == panels for end in ends)
