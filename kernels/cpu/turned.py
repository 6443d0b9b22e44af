"""The K loop of a tile without repeating an element of B in all lanes: vectors of A times vectors of B, lane by lane.

Where no load repeats an element (`ISA.repeats`), each column of a tile costs a shuffle, and the units that shuffle are
those that multiply and add. Here a vector of A meets a vector of B, of as many columns as it has lanes, and then the same
with the lanes of one of them turned, by ``lane ^ r``: for each pair of vectors as many products as there are columns, and
the turned vector serves all vectors of the other side.

    product r, lane l      a[l ^ r] * b[l]     or     a[l] * b[l ^ r]

Every lane is an element of C: its terms are added in the order of k, as in `tile`, and after the loop lanes are put
where they belong. Parts of complex elements are columns of their own.
"""

from __future__ import annotations

from typing import Sequence

from .emit import Val, Var


def turned_side(mv: int, groups: int) -> str:
    """The operand whose vectors are turned: that with fewer of them."""
    return "a" if mv <= groups else "b"


class Turned:
    """The K loop of a `TileEmitter` whose columns, parts counted, fill vectors."""

    def __init__(self, tile):
        self.tile, self.f, self.spec, self.lanes = tile, tile.f, tile.spec, tile.lanes
        self.groups = tile.spec.nr * tile.parts // tile.lanes
        self.turns_a = turned_side(self.spec.mv, self.groups) == "a"

    def k_loop(self, a: Val, b: Val, klen: Val, tka: Val, mask_of, ahead: Val | None, beside) -> list[list[list[Val]]]:
        """As `TileEmitter.k_loop`, of a packed B."""
        f, tile, spec = self.f, self.tile, self.spec
        # by vector of A, group of columns, turn
        acc = [
            [[Var(f, f.zero(tile.vec)) for _ in range(self.lanes)] for _ in range(self.groups)] for _ in range(spec.mv)
        ]
        a_at, b_at = Var(f, a), Var(f, b)

        def term(k: Val) -> None:
            row = a_at.get() if spec.a_packed else a + f.word(tka, k)
            columns = b_at.get()
            tile.fetch_ahead(row, ahead)
            loads = ([(row, i) for i in range(spec.mv)], [(columns, g) for g in range(self.groups)])
            turned, others = loads if self.turns_a else loads[::-1]
            for t, place in enumerate(turned):
                first = self._load(place, mask_of, self.turns_a)
                second = self._turn(first, 1)
                for r in range(0, self.lanes, 2):
                    if r:
                        step = r ^ (r - 2)
                        first, second = self._turn(first, step), self._turn(second, step)
                    for o, other in enumerate(others):
                        at = acc[t][o] if self.turns_a else acc[o][t]
                        vector = self._load(other, mask_of, not self.turns_a)
                        for slot, lanes in ((at[r], first), (at[r + 1], second)):
                            slot.set(lanes * vector + slot.get())
            if spec.a_packed:
                a_at.add(tile.mr * tile.item)
            b_at.add(spec.nr * tile.item)

        tile.terms(klen, beside, term)
        return self._columns([[[turn.get() for turn in group] for group in line] for line in acc])

    def _load(self, place: tuple[Val, int], mask_of, lanes_side: bool) -> Val:
        address, index = place
        if lanes_side and mask_of is not None:
            return self.tile.load_a(address, index, mask_of)
        # Volatile: read again for each pair of turns. Kept between them, vectors would be more than there are registers.
        return self.f.load(self.tile.vec, address + index * self.tile.vector_bytes, volatile=True)

    def _turn(self, vector: Val, by: int) -> Val:
        return self.f.shuffle(vector, vector, [lane ^ by for lane in range(self.lanes)])

    def _columns(self, acc) -> list[list[list[Val]]]:
        """acc[part][i][j], whose lanes are those of A."""
        parts = self.tile.parts
        columns = [[self._column(line, j) for j in range(self.spec.nr * parts)] for line in acc]
        return [[line[part::parts] for line in columns] for part in range(parts)]

    def _column(self, line: Sequence[Sequence[Val]], column: int) -> Val:
        """Lane m is in product ``m ^ c``, in lane c where A is turned, else m; c: place of the column in its group."""
        group, c = line[column // self.lanes], column % self.lanes
        return self._gather([(group[m ^ c], c if self.turns_a else m) for m in range(self.lanes)])

    def _gather(self, lanes: Sequence[tuple[Val, int]]) -> Val:
        """A vector of these lanes of vectors, by halves."""
        f, half = self.f, len(lanes) // 2
        if half == 1:
            (x, i), (y, j) = lanes
            return f.shuffle(x, y, [i, self.lanes + j] * (self.lanes // 2))
        low, high = self._gather(lanes[:half]), self._gather(lanes[half:])
        return f.shuffle(low, high, [*range(half), *range(self.lanes + half, self.lanes + 2 * half)])
