"""How tiles are stored that are no whole columns of C, but where lanes that run are stored by mask.

Without masks whole vectors and halves leave from registers; all else through the stack, lanes that run as
vectors and then in pieces of powers of two, each at most once. A piece of whole columns lies in one vector that was stored there:
a load that needs two stores waits for both to reach the cache.
"""

from .emit import Val, Var, vector_type
from .tile import TileEmitter


class EdgeStores:
    """Emits the stores of tiles that wait, or whose last vectors wait, on the ``stack``."""

    def __init__(self, tile: TileEmitter, stack: Val) -> None:
        self.f, self.tile, self.stack = tile.f, tile, stack

    def prefixes(self, result, corner: Val, tnc: Val, valid: Val, acc: Val) -> None:
        """All columns, of whose lanes the first ``valid`` exist, adjacent in C: whole vectors from registers."""
        with self.f.if_else(acc.ne(0)) as (adds, otherwise):
            with adds:
                self._prefixes(result, corner, tnc, valid, True)
            with otherwise:
                self._prefixes(result, corner, tnc, valid, False)

    def _prefixes(self, result, corner: Val, tnc: Val, valid: Val, adds: bool) -> None:
        f, tile = self.f, self.tile
        columns = [corner + f.word(tnc, j) for j in range(tile.spec.nr)]
        for j, column in enumerate(columns):  # as lines of C lie: columns by turns took 1.2 times as long in a C from memory
            for i, vectors in enumerate(result):
                with f.if_(valid >= (i + 1) * tile.elems):
                    self._put(vectors[j], column + i * tile.vector_bytes, adds)
        for i, vectors in enumerate(result if tile.elems > 1 else ()):
            begin, at = i * tile.elems, i * tile.vector_bytes
            with f.if_((valid > begin) & (valid < begin + tile.elems)):
                self._part(vectors, [column + at for column in columns], (corner + at, tnc), valid - begin, adds)

    def _put(self, value: Val, at: Val, adds: bool) -> None:
        self.f.store(self.tile.add(self.f.load(value.type, at), value) if adds else value, at)

    def _part(self, vectors: list[Val], places: list[Val], table: tuple[Val, Val], count: Val, adds: bool) -> None:
        """The first ``count`` elements of a vector of each column, fewer than it has: half of them from registers."""
        f, tile = self.f, self.tile
        if tile.elems == 2:
            self._halves(vectors, places, adds)
            return
        with f.if_else(count.eq(tile.elems // 2)) as (half, otherwise):
            with half:
                self._halves(vectors, places, adds)
            with otherwise:
                for j, value in enumerate(vectors):
                    f.store(value, self.stack + j * tile.vector_bytes, align=tile.vector_bytes)
                corner, tnc = table
                with f.range(0, tile.spec.nr) as j:
                    self._pieces(self.stack + j * tile.vector_bytes, corner + f.word(tnc, j), count, f.i64(int(adds)))

    def _halves(self, vectors: list[Val], places: list[Val], adds: bool) -> None:
        for value, at in zip(vectors, places):
            self._put(self.f.shuffle(value, value, range(self.tile.lanes // 2)), at, adds)

    def spilled(self, c, tmc, tnc, valid, columns, run, acc, chunk) -> None:
        """Edges and scattered lanes, from the spilled tile. ``run``: lanes are contiguous in C."""
        f, tile = self.f, self.tile
        with f.if_else(run.ne(0)) as (then, otherwise):
            with then:
                with f.range(0, columns) as j:
                    self._run(self.stack + j * (tile.mr * tile.item), c + f.word(tnc, j), valid, acc)
            with otherwise:
                # Lanes that come in runs of ``chunk`` elements are moved as vectors and parts of them; 1: element by element.
                sizes = [size for size in (tile.elems, tile.elems // 2, tile.elems // 4) if size > 1]
                self._by_chunk(sizes, c, tmc, tnc, valid, columns, acc, chunk)

    def _by_chunk(self, sizes, c, tmc, tnc, valid, columns, acc, chunk) -> None:
        if not sizes:
            with self.f.if_else(chunk > 1) as (several, one):
                with several:
                    self._run_loop(c, tmc, tnc, valid, columns, acc, chunk)
                with one:
                    self._scatter_loop(1, c, tmc, tnc, valid, columns, acc)
            return
        with self.f.if_else(chunk.eq(sizes[0])) as (then, otherwise):
            with then:
                self._scatter_loop(sizes[0], c, tmc, tnc, valid, columns, acc)
            with otherwise:
                self._by_chunk(sizes[1:], c, tmc, tnc, valid, columns, acc, chunk)

    def _scatter_loop(self, size: int, c, tmc, tnc, valid, columns, acc) -> None:
        f, tile = self.f, self.tile
        ty = vector_type(tile.real, size * tile.parts)
        with f.range(0, columns) as j:
            column, source = c + f.word(tnc, j), self.stack + j * (tile.mr * tile.item)
            with f.range(0, valid, size) as l:
                self._move(ty, source + l * tile.item, column + f.word(tmc, l), acc)

    def _run_loop(self, c, tmc, tnc, valid, columns, acc, run: Val) -> None:
        """Runs of any length."""
        f, tile = self.f, self.tile
        with f.range(0, columns) as j:
            column, source = c + f.word(tnc, j), self.stack + j * (tile.mr * tile.item)
            with f.range(0, valid, run) as l:
                self._run(source + l * tile.item, column + f.word(tmc, l), run, acc)

    def _run(self, source: Val, to: Val, count: Val, acc: Val) -> None:
        """``count`` elements: whole vectors, then pieces."""
        f, tile = self.f, self.tile
        whole = count // tile.elems * tile.elems
        with f.range(0, whole, tile.elems) as l:
            self._move(tile.vec, source + l * tile.item, to + l * tile.item, acc)
        self._pieces(source + whole * tile.item, to + whole * tile.item, count - whole, acc)

    def _pieces(self, source: Val, to: Val, count: Val, acc: Val) -> None:
        """Fewer elements than a vector has."""
        f, tile = self.f, self.tile
        at = Var(f, f.i64(0))
        for size in [1 << n for n in reversed(range(tile.elems.bit_length() - 1))]:
            with f.if_((count & size).ne(0)):
                self._move(vector_type(tile.real, size * tile.parts), source + at.get(), to + at.get(), acc)
                at.add(size * tile.item)

    def _move(self, ty, source: Val, to: Val, acc: Val) -> None:
        f = self.f
        value = Var(f, f.load(ty, source))
        with f.if_(acc.ne(0)):
            value.set(self.tile.add(f.load(ty, to), value.get()))
        f.store(value.get(), to)
