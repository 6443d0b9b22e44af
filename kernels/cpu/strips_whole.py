"""Strips of runs of the output that are whole lines, one or a few, each a strip: nothing is shifted, kept or stored in part.

    for box, and those beside it
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
    """The loop over the boxes of a task, whose O is one strip."""

    def _strip(self, out: Val, nj: Val, count: Val, begun: Val, ends: Val) -> None:
        self._tiles(nj, lambda j, vectors: self._lines(out, j, vectors))

    def _lines(self, out: Val, j: Val, vectors: list[Val]) -> None:
        to = out + self.f.word(self.across, j)
        for number, line in enumerate(vectors):
            self.f.stream(line, to + number * LINE)
