"""Strips of runs of the output that are whole lines: nothing is shifted, kept or stored in part.

    for strip of this task, and those beside it
      for tile in J
        load the rows, transpose   vectors along O
        for entry of J
          store its lines
"""

from __future__ import annotations

from .emit import Val
from .strips import Shifted
from .units import LINE


class Whole(Shifted):
    """The loop over the strips of a task, of which the last one of a run may be a line."""

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        with self.f.if_else(count > self.tile) as (all_of_them, one):
            with all_of_them:
                self._tiles(nj, lambda j, vectors: self._lines(out, j, vectors))
            with one:
                self._tiles(nj, lambda j, vectors: self._lines(out, j, vectors), 1)

    def _lines(self, out: Val, j: Val, vectors: list[Val]) -> None:
        to = out + self.f.word(self.across, j)
        for number, line in enumerate(vectors):
            self.f.stream(line, to + number * LINE)
