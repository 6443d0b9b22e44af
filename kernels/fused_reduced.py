"""Cutting the loops of a reduction in a fused kernel into boxes: which of them are rows, which are combined.

- O is the loop along which most operands run. Where it is kept, a short one goes on with the next loop if all inputs do.
- J is of the other kind, so that a box has whole sums. The longest loop along which an input runs that does not run along O
  is among it, and tiles of that input are turned round.
- Where both of these loops are kept, a box has results along both, and each turn of the reduced loops adds to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import prod

from .cpu import fused_abi as ua
from .cpu import nest_abi as na
from .cpu.storage import STORAGES
from .cpu.units import LINE
from .fused_boxes import STAGED_BYTES, movement
from .fused_structure import Structure
from .nest_boxes import SHORT_RUN, Group, take, without

Dim = tuple[int, ...]  # size, bytes from one entry to the next in each operand: outputs, then inputs
BOX = 4096  # entries of O or J of a box
TURNED = 256  # entries of O where tiles of an operand are turned round, which stay in the L1 cache
CROSSED = 2  # times as large are boxes of results to which each turn adds: of smaller ones, rows of operands are shorter
BOX_SECONDS, ROW_SECONDS, BYTE_SECONDS = 20e-9, 4e-9, 0.03e-9  # of a box, of its rows (complex ones twice), of a byte of them
STAGED_SECONDS = {8: 0.25e-9, 16: 0.4e-9}  # of a staged entry of up to so many bytes, or of several that are moved as one,
MOVE_SECONDS = {na.MOVE_TILE: 0.06e-9, na.MOVE_SCATTER: 0.24e-9, na.MOVE_APART: 0.11e-9, na.MOVE_REPEAT: 0.0}  # or otherwise
SHORT_ROW = 16  # entries, of fewer of which rows are weighed against those along other loops
SHORT_COLUMNS = 32  # of fewer, those of several loops are a row together
STRIP = 256  # bytes of a row, at least, in a task that reduces columns


@dataclass(frozen=True, kw_only=True)
class ReducedBoxes:
    """``mode`` as in `fused_abi`: which of O and J is combined; ``inner``, ``outer``: reduced and kept loops around a box."""

    mode: int
    o: Group
    j: Group
    inner: list[Dim]
    outer: list[Dim]


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What there is to cut: ``items`` are the bytes of an element of each operand; ``shared``: tasks share the reduced boxes."""

    structure: Structure
    items: list[int]
    tasks: int
    threads: int
    shared: bool

    def cut(self, dims: list[Dim], reduced: list[Dim], budget: int) -> ReducedBoxes:
        kept = without(dims, reduced)
        runs = [self._going_on(d, kept) if d in kept else [d] for d in dims]
        run = max(runs, key=self._runs)
        found = self._boxes(run, kept, reduced, budget)
        if found.o.count >= SHORT_ROW or self.structure.divisors or not all(out.reduce for out in self.structure.outputs):
            return found
        longer = [other for other in runs if prod(d[0] for d in other) >= 2 * found.o.count]
        return min([found, *(self._boxes(other, kept, reduced, budget) for other in longer)], key=self.seconds)

    def _boxes(self, run: list[Dim], kept: list[Dim], reduced: list[Dim], budget: int) -> ReducedBoxes:
        """Of which O has the first of these loops, and the others as far as there is room."""
        o, rows = run[0], run[0] in reduced
        mine, others = (reduced, kept) if rows else (kept, reduced)
        others = sorted(others, key=lambda d: sum(map(abs, d[1:])))
        budget, most = self._entries(o, rows, budget), 4 * BOX
        turned, crossed = self._turned(o, others), None
        if turned is not None:
            others = [turned, *_less(others, [turned])]
            budget, most = min(budget, TURNED), STAGED_BYTES // max(self.items)
        elif not rows and (crossed := self._crossed(o, kept)) is not None:
            budget, most = min(budget, TURNED), CROSSED * STAGED_BYTES // max(self.items)
        group, left = take(run, budget)
        mine = left + _less(mine, run)
        most = max(1, min(512, most // group.count))
        if crossed is not None:
            results = prod(d[0] for d in kept) // group.count
            if self.tasks > 1 and results > most:  # boxes for each of them, or one whose turns they share
                most = min(most, max(results // self.tasks, SHORT_RUN))
            j, left = take([crossed], most)
            return ReducedBoxes(mode=ua.MAP, o=group, j=j, inner=reduced, outer=left + _less(mine, [crossed]))
        if rows and self.tasks > 1:  # a box of results for each task
            most = min(most, max(turned[0] if turned else 8, prod(d[0] for d in kept) // self.tasks))
        j, others = take(others, most)
        if rows:
            return ReducedBoxes(mode=ua.ROWS, o=group, j=j, inner=mine, outer=others)
        return ReducedBoxes(mode=ua.COLUMNS, o=group, j=j, inner=others, outer=mine)

    def seconds(self, cut: ReducedBoxes, vector_bits: int = 512) -> float:
        """Roughly what a reduction takes on one thread, with operands in cache: by its boxes, their rows, and what is moved to
        stage operands. Fitted to 2700 sums of products with AVX-512, whose logarithms are off by 0.3 (standard deviation)."""
        o, j, none = cut.o, cut.j, (0,) * (1 + len(self.items))
        reduced = [*[o.chunks][: cut.mode == ua.ROWS], *[j.chunks][: cut.mode == ua.COLUMNS], *cut.inner]
        kept = [*[o.chunks][: cut.mode != ua.ROWS], *[j.chunks][: cut.mode != ua.COLUMNS], *cut.outer]
        boxes, each = prod(d[0] for d in (*reduced, *kept)), prod(d[0] for d in kept)
        narrow, outputs = 512 / vector_bits, len(self.structure.outputs)
        row = ROW_SECONDS * STORAGES[self.structure.stored[0]].parts * min(narrow, 2)  # ends of rows by mask, or the stack
        total = boxes * (BOX_SECONDS + j.count * (row + BYTE_SECONDS * o.count * self.items[0] * narrow))
        for number, item in enumerate(self.items):
            output = number < outputs
            if o.contiguous(number, item) or o.constant(number) or output and cut.mode == ua.ROWS:
                continue
            mode, wide, _ = movement(o, j, number, item, output)
            turning = takewhile(lambda d: d[0] == 1 or not (*d, *none)[1 + number], (*reduced, *kept))
            times = each if output else boxes // prod(d[0] for d in turning)
            rows = j.count if j.varies(number) and not (output and cut.mode != ua.MAP) else 1
            total += MOVE_SECONDS.get(mode, STAGED_SECONDS[max(8, item)]) * times * rows * o.count / (1 << wide)
        return total

    def _entries(self, o: Dim, rows: bool, budget: int) -> int:
        """Entries of O in a box, at most."""
        if rows:
            # a row that is nowhere moved is read from its begin to its end
            return BOX if any(o[1 + n] not in (0, item) for n, item in enumerate(self.items)) else BOX * 4
        if self.tasks > 1 and not (self.shared or all(out.reduce for out in self.structure.outputs)):
            # what is stored is not shared by tasks: each has columns of its own
            return min(budget, BOX, max(STRIP // min(self.items), -(-o[0] // self.threads)))
        return min(budget, BOX)

    def _turned(self, o: Dim, others: list[Dim]) -> Dim | None:
        """The longest loop along which an input runs that does not run along O, so that tiles of it are turned round."""
        if o[0] < SHORT_RUN:
            return None
        across = [(n, item) for n, item in self._inputs() if o[n] not in (0, item)]
        runs = [d for d in others if d[0] >= SHORT_RUN and any(d[n] == item for n, item in across)]
        return max(runs, default=None)

    def _crossed(self, o: Dim, kept: list[Dim]) -> Dim | None:
        """The same of the kept loops, where all that is stored are results."""
        if not all(out.reduce for out in self.structure.outputs) or self.structure.divisors:
            return None
        return self._turned(o, _less(kept, [o]))

    def _going_on(self, o: Dim, kept: list[Dim]) -> list[Dim]:
        """A short loop, and those in which every input goes on where it has ended, or is one element still: results
        alone are put elsewhere."""
        run, count = [o], o[0]
        if o[0] >= SHORT_COLUMNS or any(o[n] not in (0, item) for n, item in self._inputs()):
            return run
        rest = _less(kept, [o])
        while more := [dim for dim in rest if all(dim[n] == o[n] * count for n, _ in self._inputs())]:
            rest.remove(more[0])
            if self.tasks > 1 and not self._lets_share(rest, count * more[0][0]):
                break
            run.append(more[0])
            count *= more[0][0]
        return run

    def _lets_share(self, rest: list[Dim], count: int) -> bool:
        """Whether tasks have lines of their own where a row has ``count`` entries of results and these loops are left, or share
        the turns of one box of results."""
        if not rest:
            return count <= BOX
        results = [n for n, out in enumerate(self.structure.outputs) if out.reduce]
        return max(abs(dim[1 + n]) for dim in rest for n in results) >= LINE

    def _runs(self, run: list[Dim]) -> tuple[float, int]:
        """How many operands run along a loop or do not move in it; results of reductions count less, divisors not: there
        are two of each, one element where it is fastest. And how long it is, with those behind it."""
        outputs, score, dim, count = len(self.structure.outputs), 0.0, run[0], prod(d[0] for d in run)
        for number, item in enumerate(self.items):
            if number - outputs in self.structure.divisors:
                continue
            result = number < outputs and self.structure.outputs[number].reduce
            if dim[1 + number] == item:
                score += 1.0 if not result else 0.25
            elif dim[1 + number] == 0:
                score += 0.5 if not result else 0.2
        return (score if count >= 8 else score * count / 8), count

    def _inputs(self) -> list[tuple[int, int]]:
        """Where each input has its stride in a loop, and how many bytes an element of it has."""
        return [(1 + n, item) for n, item in enumerate(self.items) if n >= len(self.structure.outputs)]


def _less(dims: list[Dim], some: list[Dim]) -> list[Dim]:
    """Loops without these, each of them once: others may be the same, where elements of an operand share memory."""
    rest = list(dims)
    for dim in some:
        rest.remove(dim)
    return rest
