"""How a GEMM is cut into tasks: over outer loops, panels and columns, and which blocks of them go through caches."""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple

import numpy as np

from ..kernels.cpu.units import LINE
from ..machine_memory import block_bytes
from .packing import PACK_BYTES
from .shares import LATE
from .splitting import TASKS_PER_THREAD

NEAR_BYTES = 512 << 10  # of B that a core keeps; more comes from the shared cache again for each block of A
AGAIN_BYTES = 20 << 10  # of packed A that is computed with while such a B comes
TASK_SECONDS = 3e-7  # to begin a task
LINE_SECONDS = 5e-8  # that a line of C takes from one core to another
READ_COLUMNS = 3  # that are computed while a task reads a panel in place for the first time
MOST_GRAIN = 32  # panels of a long run that are packed together
MOST_PACKED = 1280 << 10  # of them: with more, L2 has no room
WIDE_BYTES = block_bytes(720 << 10, level=2)  # of packed A beside such a B: as much as L2 has room for


def gemm_blocks(
    *,
    outer: int,
    panels: int,
    columns: int,
    nr: int,
    panel_bytes: int,
    column_bytes: int,
    grain: int,
    threads: int,
    most_columns: int = 0,
    goes_on: bool = False,
    packed_columns: int = 0,
    in_turns: bool = False,
    brief: tuple[float, np.ndarray] | None = None,
) -> tuple[int, int, int]:
    """Outer indices, panels and columns per task: packed A in L2, several tasks a thread.

    ``panel_bytes``: of one packed panel and one block of K; ``column_bytes``: of all columns of B that are packed before,
    and one block of K; ``grain``: panels that are packed together; ``threads``:
    1 where the work is too little to be shared; ``most_columns``: that a task may pack, 0 where tasks do not pack B.
    Tasks that do have all panels. ``goes_on``: lines of A are shared by panels and those of the next outer index: a task
    takes few panels and many outer indices, so that it finds in L2 what it left of a line. ``packed_columns``: that are
    computed while a task packs a panel, 0 where it packs none. ``in_turns``: outer indices are a batch whose turns ask for the
    next one, if a task has all of a turn. ``brief``: where threads share a moment's work, how many seconds one of them takes,
    and of each panel but the last one whether it has lines of C in common with the next.
    """
    if most_columns:
        wanted = TASKS_PER_THREAD * threads if threads > 1 else 1
        pieces = max(-(-columns // most_columns), min(-(-wanted // outer), columns // nr), 1)
        share = outer if threads == 1 else max(1, outer // (2 * TASKS_PER_THREAD * threads))
        return share, panels, -(-(-(-columns // pieces)) // nr) * nr
    if goes_on:
        pieces = -(-TASKS_PER_THREAD * threads // -(-panels // grain)) if threads > 1 else 1
        return max(1, outer // pieces), min(panels, grain), columns
    again = AGAIN_BYTES if column_bytes > NEAR_BYTES else 0
    whole = in_turns and outer > 1 and panels * panel_bytes <= WIDE_BYTES
    panel_block = _rounded(panels if whole else most_panels(panel_bytes, column_bytes), grain, panels)
    if threads == 1:
        return outer, panel_block, columns
    wanted = TASKS_PER_THREAD * threads
    tasks = -(-panels // panel_block)
    if outer >= wanted:
        return max(1, outer // (2 * wanted)), panel_block, columns
    if brief is not None:
        cut = Brief(outer, panels, panel_block, columns, nr, grain, threads, packed_columns or READ_COLUMNS)
        return 1, *cut.tasks(*brief)
    if tasks * outer < wanted:
        panel_block = _rounded(_shares(panels, outer, wanted), grain, panels)
    panel_block = _balanced(panel_block, grain, panels, outer, threads, again / panel_bytes)
    tasks = -(-panels // panel_block)
    column_block = columns
    if tasks * outer < wanted and columns > 2 * nr:
        most = min(-(-wanted // (tasks * outer)), -(-columns // nr))
        column_block = _columns_of_a_task(
            columns, nr, most, packed_columns, lambda pieces: -(-tasks * outer * pieces // threads)
        )
    return 1, panel_block, column_block


class Brief(NamedTuple):
    """A product that threads share for a moment; the numbers are those of `gemm_blocks`, ``packed`` also where A is read.
    ``most``: panels that a task may have."""

    outer: int
    panels: int
    most: int
    columns: int
    nr: int
    grain: int
    threads: int
    packed: int

    def tasks(self, alone: float, shared: np.ndarray) -> tuple[int, int]:
        """Panels and columns of each task: as many tasks as have the threads done first. One thread takes ``alone`` seconds.
        Panels that have lines of C in common (``shared``, of each with the next) are not cheap to cut: each such line goes
        from one core to the other.

        >>> square = Brief(outer=1, panels=7, most=7, columns=103, nr=8, grain=1, threads=2, packed=26)
        >>> square.tasks(3e-5, np.full(6, True)), square.tasks(3e-5, np.full(6, False))
        ((7, 56), (4, 103))
        """
        ways = dict.fromkeys(self._ways())  # many threads have the same ones several times
        common = {block: bool(shared[block - 1 :: block].any()) for block, _ in ways}
        return min(ways, key=lambda way: self._seconds(*way, alone, common[way[0]]))

    def _ways(self) -> Iterator[tuple[int, int]]:
        for pieces in range(1, min(-(-self.columns // self.nr), 2 * self.threads) + 1):
            width = min(-(-(-(-self.columns // pieces)) // self.nr) * self.nr, self.columns)
            wanted = (-(-each * self.threads // (self.outer * pieces)) for each in (1, 2, 4))
            least = -(-self.panels // self.most)
            for rows in sorted({least, *[max(least, min(self.panels, each)) for each in wanted]}):
                yield _rounded(-(-self.panels // rows), self.grain, self.panels), width

    def _seconds(self, block: int, width: int, alone: float, common: bool) -> float:
        """Until the thread that has most tasks of so many panels and columns is done; ``common``: tasks share lines of C."""
        count = self.outer * -(-self.panels // block) * -(-self.columns // width)
        part = block * (-(-width // self.nr) * self.nr + self.packed) / (self.outer * self.panels * self.columns)
        return -(-count // self.threads) * (alone * part + TASK_SECONDS + LINE_SECONDS * width * common)


def most_panels(panel_bytes: int, column_bytes: int) -> int:
    """Panels that a task may pack; the numbers of bytes are those of `gemm_blocks`."""
    return max(1, (WIDE_BYTES if column_bytes > NEAR_BYTES else PACK_BYTES) // panel_bytes)


def grain_of(run: int, panel_bytes: int, block: int, item: int) -> int:
    """Panels along a run of A that are packed together: all of a short one, of a long one as many blocks of so many, which are
    transposed at a time, as L2 has room for beside what they are read from; pieces of two lines, where it has room at all.

    >>> grain_of(60, 27648, 8, 8), grain_of(144, 9216, 8, 8), grain_of(144, 27648, 8, 8), grain_of(144, 49152, 8, 8)
    (60, 32, 24, 16)
    >>> grain_of(144, 32768, 16, 4), grain_of(144, 49152, 16, 4)
    (32, 16)
    """
    if run < 2 * MOST_GRAIN:
        return run
    fitting = WIDE_BYTES // panel_bytes
    least = 2 * LINE // item if MOST_GRAIN * panel_bytes <= MOST_PACKED else 0
    return max(MOST_GRAIN // 2, min(MOST_GRAIN, max(least, fitting - fitting % block)))


def _shares(panels: int, outer: int, wanted: int) -> int:
    """Panels in each of as many tasks as are wanted, or somewhat more.

    >>> _shares(61, 1, 8), _shares(12, 1, 8), _shares(3, 1, 8)
    (8, 1, 1)
    """
    least = max(1, panels * outer // wanted)
    return least + 1 if -(-panels // (least + 1)) * outer >= wanted else least


def _columns_of_a_task(columns: int, nr: int, most: int, packed: int, turns: Callable[[int], int]) -> int:
    """Columns of each task, whole tiles, in as many pieces up to ``most`` as have the threads done first. Tasks of each
    piece pack their panels again, which takes as long as ``packed`` columns; ``turns``: how many tasks the thread that
    has most takes in turn.

    >>> [_columns_of_a_task(512, 8, 8, packed, lambda pieces: pieces) for packed in (0, 26, 500)]
    [64, 256, 512]
    """

    def width(pieces: int) -> int:
        return -(-(-(-columns // pieces)) // nr) * nr

    def seconds(pieces: int) -> float:
        return (turns(pieces) + LATE) * (packed + width(pieces))

    return width(min(range(most, 0, -1), key=seconds))


def _balanced(block: int, grain: int, panels: int, outer: int, threads: int, again: float = 0.0) -> int:
    """The block, or a smaller one down to a third of it, with which the last threads are done first; each block takes
    as much longer as ``again`` panels do.

    >>> _balanced(3, 1, 32, 1, 2), _balanced(3, 1, 36, 1, 2), _balanced(7, 1, 61, 1, 2), _balanced(6, 1, 43, 1, 2, 0.3)
    (2, 3, 4, 6)
    """

    def longest(size: int) -> float:
        """Panels of the thread that has most."""
        return -(-(-(-panels // size) * outer) // threads) * (size + again)

    smaller = range(block, max(grain, -(-block // 3)) - 1, -grain)
    return min(smaller, key=lambda size: (longest(size), -size), default=block)


def _rounded(block: int, grain: int, panels: int) -> int:
    """Block size near ``block`` in whole grains, evened out over the panels."""
    block = min(panels, max(grain, block - block % grain))
    even = -(-panels // -(-panels // block))
    return min(panels, -(-even // grain) * grain)
