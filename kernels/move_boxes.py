"""The boxes of a permutation that does not fit in cache: how they are cut, what they cost, which are best.

They hold long runs of both the output and the input, and boxes along a run of the output leave each other what they have
of its last line. Costs are nanoseconds of one core whose memory is far; of the boxes for several lengths of runs, those
that should take least time are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod
from typing import Iterator

import numpy as np

from ..records import lazy
from .cpu import cores
from .cpu import nest_abi as na
from .cpu.units import LINE, PAGE
from .nest_boxes import OUT, A, Group, by_output, chain, tile_cut, without
from .nest_problem import Dim

# Bytes that the output and the input may run in a box; the best pair is chosen by cost.
LONG_OUT, LONG_IN = (256, 512, 1024, 4096), (64, 128, 256, 1024)
# Rows that are put where they are in lines of the output (`cpu.dense`): bytes of one, what the input may run besides, and
# nanoseconds of a run of it. As they are moved quickly, short runs are what is waited for.
DENSE_LEAST, DENSE_BYTES, DENSE_IN, DENSE_NEAR_NS = 16, na.DENSE_BYTES, (2048,), 4
BOX_BYTES = 32 << 10
# Bytes of a box, of its lines of the input and of scratch, and nanoseconds of each line beyond them: L1 holds both.
SPILT_NS = ((24 << 10, 2.1), (64 << 10, 2.0))
# Bytes that boxes may leave to others than the next: they wait in L2, beside lines that are asked for.
LEFT_BYTES = 160 << 10
# Nanoseconds: of a box, of a line that is written, of both ends of a run that are not whole lines, of leaving the last
# line of a run to another box, of a run of the input, of asking for a line where no line is written, of beginning a
# row, of loading a vector, of an element by itself, of leaving a page of the output unfinished, of a line that tiles
# write to scratch in two parts. Fitted to the times of 4800 boxes of the bench's permutations.
BOX_NS, WRITE_NS, END_NS, CARRY_NS, NEAR_NS, ASK_NS = 20, 3.5, 13, 3.6, 0.8, 2
ROW_NS, LOAD_NS, ELEMENT_NS, PAGE_NS, SPLIT_NS = 4, 0.2, 0.3, 15, 0.5
# Nanoseconds of a run of the input that is one line, where boxes do not go along the input.
LONE_NS = 1
# Nanoseconds of each line of such runs of the input as fall into the same set of the first cache, beyond those that it
# holds: bytes of a page apart.
L1_WAYS, CROWD_NS = 8, 2
# Bytes at which lines fall into the same set of the last cache, and lines that a set holds. Where more runs of the input
# fall together in a box, boxes have runs of so many bytes, which are copied before they are moved.
SETS_BYTES, WAYS = 1 << 20, 16
FETCHED_OUT, FETCHED_IN, FETCHED_BYTES = 512, 1024, 128 << 10
LONGER = 0.3  # what a piece as long as asked for counts, as a share of its elements
WASTE = 1.3  # elements that boxes move over those that there are, at most
ONE = (1, 0, 0, 0)


def choose_boxes(dims: list[Dim], item: int) -> tuple["Boxes", bool]:
    """The best boxes, and whether they are moved from a copy of their runs of the input."""
    box = best_boxes(dims, item)
    if box.together(SETS_BYTES) > WAYS and (other := _fetched_boxes(dims, item)):
        return other, True
    return box, False


def best_boxes(dims: list[Dim], item: int) -> "Boxes":
    """The boxes that should take least time, of those for several lengths of runs; many lengths lead to the same."""
    found: dict[tuple, Boxes] = {}
    for goals in product(LONG_OUT, LONG_IN):
        for boxes in _drafts(dims, item, *goals):
            found.setdefault(boxes.key, boxes)
    for goals in product(LONG_OUT, DENSE_IN if cores.here().dense_rows else ()):
        for boxes in _drafts(dims, item, *goals):
            if boxes.dense:
                found.setdefault(boxes.key, boxes)
    costs = {boxes: boxes.cost() for boxes in found.values()}
    best, least = None, inf
    for boxes in sorted(costs, key=costs.get):
        if best is not None and costs[boxes] >= least:
            break  # crowding, which takes longer to count, would only add to that
        cost = costs[boxes] + boxes.crowding()
        if best is None or cost < least:
            best, least = boxes, cost
    return best


def _drafts(dims: list[Dim], item: int, long_out: int, long_in: int) -> Iterator["Boxes"]:
    """Boxes with a smaller last one, and without where that makes a difference or is not possible; where rows of the
    input may crowd into few cache sets, boxes that do not continue each other's runs, too."""
    crowded = any(abs(d[1 + A]) % PAGE == 0 for d in dims)
    for ragged, along in product((True, False), (True, False) if crowded else (True,)):
        boxes = Boxes(dims, item, long_out, long_in, ragged, along)
        if boxes.total and not boxes.ends_along():
            boxes = Boxes(dims, item, long_out, long_in, ragged, along, whole_lines=False)
        if boxes.chunks or not ragged:
            yield boxes


def _fetched_boxes(dims: list[Dim], item: int) -> "Boxes | None":
    """Equal boxes of long runs of the input, whole lines each, to be moved from a copy of them; None: there are none."""
    for along in (True, False):
        box = Boxes(dims, item, FETCHED_OUT, FETCHED_IN, along=along, room=FETCHED_BYTES)
        run = item * prod(d[0] for d in chain(box.staged(), A, item))
        if not box.total and run >= FETCHED_IN // 4 and run % LINE == 0 and box.sides()[2] == na.MOVE_TILE:
            return box
    return None


def starts(inside: list[Dim], item: int) -> np.ndarray:
    """Where the runs of the input begin in a box."""
    rows = tuple(sorted(without(inside, chain(inside, A, item)), key=lambda d: abs(d[1 + A])))
    return Group(dims=rows, total=prod(d[0] for d in rows), chunks=ONE).offsets(A)


def _sides(runs: list[Dim], fast: list[Dim]) -> tuple[list[Dim], list[Dim], int]:
    """Loops along which a box is moved, O and first of J, and how; ``runs``, ``fast``: those along which the output
    and the input are contiguous."""
    if runs and fast and runs[0] == fast[0]:
        return runs[:1], fast[1:], na.MOVE_RUN
    if cut := tile_cut(runs, fast):
        return runs[: cut[0]], fast[: cut[1]], na.MOVE_TILE
    return runs, without(fast, runs), na.MOVE_GATHER


def _moving(o: list[Dim], first: list[Dim], mode: int, entries: int, item: int) -> float:
    """Nanoseconds to move a box to scratch, about."""
    along, across = (prod(d[0] for d in x) for x in (o, first))
    if mode == na.MOVE_RUN:
        return entries / along * (ROW_NS + along * item / LINE * LOAD_NS)
    if mode == na.MOVE_GATHER:
        return entries * ELEMENT_NS
    size = LINE // item
    while size > min(along, across):
        size //= 2
    tiles = -(-along // size) * -(-across // size) * (entries / (along * across))
    return tiles * size * size.bit_length() * LOAD_NS


@dataclass(eq=False)
class Boxes:
    """Equal boxes that cover the loops ``dims``, and hold runs of about ``long_out`` and ``long_in`` bytes. Those
    ``along`` a run continue it.

    ``parts``: entries that a box has of a loop; ``outer``: loops over boxes; ``shared``: the loop over boxes that
    continue each other's runs. What a box has of the last line of a run goes to the next of these through scratch, so
    that each line of the output is written whole.
    With ``whole_lines``, all but the last of them have whole lines, and the last one may be smaller: ``total`` are the
    entries of a run then. With ``ragged``, the input is cut into whole tiles, and the last box along it is smaller:
    ``chunks`` has the size of the loop and the loop over its pieces. ``room``: bytes of a box at most, if not `BOX_BYTES`.
    """

    dims: list[Dim]
    item: int
    long_out: int
    long_in: int
    ragged: bool = False
    along: bool = True
    room: int = 0
    chunks: tuple = ()
    parts: dict[Dim, int] = field(default_factory=dict)
    outer: list[Dim] = field(default_factory=list)
    shared: Dim = ONE
    total: int = 0
    whole_lines: bool = True

    def __post_init__(self) -> None:
        open_ends = {x: chain(self.dims, x, self.item) for x in (OUT, A)}
        goals = {OUT: self.long_out // self.item, A: self.long_in // self.item}
        while open_ends:
            reached = {x: self._reach(loops) for x, loops in open_ends.items()}
            x = min(reached, key=lambda x: reached[x][0] / goals[x])
            run, following = reached[x]
            need = goals[x] // run
            if need < 2 or following is None or not self._take(following, need, self._continued(following)):
                del open_ends[x]
        self._join_ends()
        self.outer += without(without(self.dims, self.parts), [self.shared])

    @property
    def key(self) -> tuple:
        """What tells boxes of the same loops apart."""
        return tuple(self.parts.items()), tuple(self.outer), self.shared, self.chunks

    def _reach(self, loops: list[Dim]) -> tuple[int, Dim | None]:
        """Entries along which the box is contiguous, and the loop that would make it longer."""
        run = 1
        for dim in loops:
            if dim not in self.parts:
                return run, dim
            run *= self.parts[dim]
            if self.parts[dim] < dim[0]:
                break
        return run, None

    def _take(self, dim: Dim, need: int, run: int) -> bool:
        """Take a loop into the box, or a piece of it; ``run``: entries of the output that it continues, or 0."""
        size, *strides = dim
        room = (self.room or BOX_BYTES) // self.item // prod(self.parts.values())
        if size <= min(room, 2 * need):
            self.parts[dim] = size
            return True
        limit, tile = min(room, need), max(1, LINE // self.item)
        if limit < 2:
            return False
        shared = run and self.along
        if shared and self.whole_lines and 0 < (part := whole_lines(size, limit, self.item * run)) <= room:
            self.parts[dim] = part
            self.shared = -(-size // part), *(part * s for s in strides)
            self.total = run * size if size % part else 0
            return True
        if self.ragged and not run and tile <= limit - limit % tile < size:
            self.parts[dim] = part = limit - limit % tile
            self.chunks = size, (-(-size // part), *(part * s for s in strides))
            return True
        found = pieces(size, limit, 1 if run else tile) or pieces(size, limit)
        if not found:
            if size <= room:
                self.parts[dim] = size
            return size <= room
        part, step = found
        self.parts[dim] = part
        over = ((size - part) // step + 1, *(step * s for s in strides))
        if shared and over[1] >= LINE:  # less may lie between two line boundaries: nothing is whole then
            self.shared = over
        else:
            self.outer.append(over)
        return True

    def _continued(self, dim: Dim) -> int:
        """Entries of a run of the output that the loop continues, or 0."""
        run, following = self._reach(chain(self.dims, OUT, self.item))
        return run if following == dim else 0

    def _join_ends(self) -> None:
        """Runs that end with whole loops are continued by the boxes of the loop that follows in the output."""
        if self.shared != ONE or not self.along:
            return
        inside = [(part, *dim[1:]) for dim, part in self.parts.items()]
        run = self.item * prod(d[0] for d in chain(inside, OUT, self.item))
        if run >= LINE:
            self.shared = next((d for d in self.dims if d[1 + OUT] == run and d not in self.parts), ONE)

    def _crowded(self) -> bool:
        """Boxes along a run follow each other, and the rows of the input that they read lie in the same few sets of the
        caches: what is left of their lines has to be read by later boxes, and will be gone."""
        along = [*chain(list(self.parts), OUT, self.item), *(d for d in self.dims if d == self.shared)]
        return self.shared != ONE and any(abs(d[1 + A]) % PAGE == 0 for d in along) and not self.order(1)[1]

    def cost(self) -> float:
        """Nanoseconds that all boxes take, about."""
        inside = self.staged()
        entries, boxes = prod(self.parts.values()), prod(d[0] for d in self.outer) * self.shared[0]
        if self.ragged and not self._ends_whole() or self.total and not self.ends_along() or self._crowded():
            return inf
        if self.chunks:
            boxes *= self.chunks[1][0]
        runs, fast = chain(inside, OUT, self.item), chain(inside, A, self.item)
        run, near = (prod(d[0] for d in x) for x in (runs, fast))
        ends = entries // run * (END_NS if self.shared == ONE else CARRY_NS)
        lines = entries * self.item / LINE
        asked = entries // near * -(-near * self.item // LINE)
        o, first, mode = _sides(runs, fast)
        scratch = 0 if mode == na.MOVE_RUN else entries * self.item  # adjacent rows do not go through it
        nbytes = scratch + (min(asked, lines) + 0.9 * entries / near) * LINE
        spilt = sum(ns * max(0.0, 1 - room / nbytes) for room, ns in SPILT_NS)
        if mode == na.MOVE_TILE and len(o) < len(runs) and prod(d[0] for d in o) * self.item % LINE:
            spilt += SPLIT_NS
        moved = _moving(o, first, mode, entries, self.item)
        lone = near * self.item <= LINE and not self.order(1)[1]
        each_run = DENSE_NEAR_NS if self.dense else NEAR_NS
        read = entries // near * (each_run + lone * LONE_NS) + max(0.0, asked - lines) * ASK_NS
        each = BOX_NS + lines * (WRITE_NS + spilt) + ends + read + moved
        left = PAGE / min(run * self.item * self.shared[0], PAGE) - 1
        return boxes * (each + entries * self.item / PAGE * left * PAGE_NS)

    def crowding(self) -> float:
        """Nanoseconds that all boxes wait for lines of runs of the input that push each other out of the first cache."""
        loops = (*self.outer, self.shared, *self.chunks[1:], *self.staged())
        lines = prod(d[0] for d in loops) * self.item / LINE
        return max(0.0, 1 - L1_WAYS / self.together(PAGE)) * CROWD_NS * lines

    def together(self, nbytes: int) -> int:
        """Runs of the input in a box that begin in the same sets of a cache, which lines so far apart share, at most."""
        return int(np.bincount(starts(self.staged(), self.item) % nbytes // LINE).max())

    def order(self, tasks: int) -> tuple[list[Dim], int, int]:
        """The loops over boxes other than the chunks of O and J, with strides of where boxes leave the ends of runs;
        the row of the odometer that counts boxes along a run; and how many boxes lie between two of these.

        Lines of the input are read while they are near: loops with short strides of the input come first. Where boxes
        along a run come later than others, all of these leave something: as long as it stays in cache.
        """
        outer = sorted(self.outer, key=lambda d: abs(d[1 + A]))
        if self.shared == ONE:
            return outer, 0, 1
        line, step, before = LINE * self.runs, self.chunks[1][0] if self.chunks else 1, []
        for dim in outer:
            if abs(dim[1 + A]) >= abs(self.shared[1 + A]) or line * step * dim[0] > LEFT_BYTES:
                break
            before.append((*dim[:3], line * step))
            step *= dim[0]
        boxes = step * self.shared[0] * prod(d[0] for d in outer[len(before) :])
        if step == 1 or line * step > LEFT_BYTES or boxes < step * tasks:
            return outer, 0, 1
        return [*before, self.shared, *outer[len(before) :]], 2 + len(before), step

    @property
    def runs(self) -> int:
        """Runs of the output in a box."""
        inside = self.staged()
        return prod(d[0] for d in without(inside, chain(inside, OUT, self.item)))

    def _ends_whole(self) -> bool:
        """A smaller last box is a box with fewer rows: what it is cut along ends J, and no run of the output has it."""
        o, j, mode = self.sides()
        return bool(
            self.chunks
            and mode == na.MOVE_TILE
            and self.chunks[1][1:] == tuple(j[-1][0] * stride for stride in j[-1][1:3]) + (0,)
            and len(o) == len(chain(self.staged(), OUT, self.item))
        )

    def ends_along(self) -> bool:
        """A smaller last box of a run has a shorter O: all of the run is O."""
        return len(self.sides()[0]) == len(chain(self.staged(), OUT, self.item))

    def sides(self) -> tuple[list[Dim], list[Dim], int]:
        """The loops of O and of J, and how the box is moved."""
        inside = self.staged()
        o, first, mode = _sides(chain(inside, OUT, self.item), chain(inside, A, self.item))
        return o, first + without(sorted(without(inside, o), key=by_output), first), mode

    @lazy
    def dense(self) -> bool:
        """Whether tiles put the rows of runs where they are in lines of the output."""
        o, j, mode = self.sides()
        joined, nbytes = without(chain(self.staged(), OUT, self.item), o), self.item * prod(d[0] for d in o)
        in_order = bool(joined) and mode == na.MOVE_TILE and j[: len(joined)] == joined
        return cores.here().dense_rows and in_order and DENSE_LEAST <= nbytes <= DENSE_BYTES

    def staged(self) -> list[Dim]:
        """The loops in a box; strides of b are those in scratch, where runs of the output do not share lines."""
        inside = sorted(((part, *dim[1:]) for dim, part in self.parts.items()), key=by_output)
        runs, at, placed = chain(inside, OUT, self.item), self.item, []
        for number, dim in enumerate(runs + without(inside, runs)):
            if number == len(runs):
                kept = LINE if self.shared != ONE else 0
                at = ((at + kept + LINE - 1) // LINE | 1) * LINE  # an odd number: rows fall into different cache sets
            placed.append((*dim[:3], at))
            at *= dim[0]
        return placed


def whole_lines(size: int, limit: int, nbytes: int) -> int:
    """Length of the pieces, about equal and about ``limit`` long, that a loop with so many bytes from one entry to the
    next is cut into, where each piece but the last has whole lines; 0: none is.

    >>> whole_lines(1000, 100, 4), whole_lines(60, 3, 84), whole_lines(60, 16, 84), whole_lines(5, 4, 128)
    (112, 0, 16, 3)
    """
    unit = LINE // gcd(LINE, nbytes)
    count = -(-size // max(unit, limit))
    part = -(-size // (count * unit)) * unit
    return part if part < size and part <= 2 * limit else 0


@lru_cache(maxsize=1024)
def pieces(size: int, limit: int, tile: int = 1) -> tuple[int, int] | None:
    """Length and distance of equal pieces that cover a loop and overlap by as little as makes them equal.

    They have half of ``limit`` to four times that, as long as little is moved in vain: twice, or in part of a tile.
    Returns None where much would be.

    >>> pieces(37, 16), pieces(128, 64), pieces(2000, 512), pieces(139, 16, tile=16), pieces(19, 2)
    ((10, 9), (32, 32), (250, 250), (31, 27), (7, 6))
    """
    best = None
    for count in range(max(2, size // (4 * limit)), min(size, -(-2 * size // limit)) + 1):
        step = size // count
        part = size - step * (count - 1)
        whole = -(-part // tile) * tile
        if part >= 2 and whole <= WASTE * step:
            best = min(best or (9.0, 0, 0), (whole / step + LONGER * part / limit, part, step))
    return best and best[1:]
