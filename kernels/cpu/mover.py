"""Moving elements of any size between memory and registers: copies, transposed blocks, widening on the way."""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

from llvmlite import ir

from ..isa import ISA
from .convert import Converter
from .emit import I8, I16, I32, I64, Fn, Val, Var, vector_type
from .storage import STORAGES

PART = 16  # bytes: what shuffles are cheapest within


class Mover:
    """Moves elements of ``item`` bytes without interpreting them: vectors of machine lanes, T elements at a time."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        self.f, self.item = f, item
        self.source_item = item  # bytes of an element where it is loaded
        self.masked = isa.masks and item >= 4
        self.unit = {1: I8, 2: I16, 4: I32, 8: I64, 16: I64}[item]
        self.group = 2 if item == 16 else 1  # machine lanes per element
        self.block = max(2, min(isa.vector_bits // (8 * item), 16))  # T
        self.halves = isa.vector_bits > 8 * PART and self.block * item == isa.vector_bits // 8

    def vector(self, elems: int) -> ir.Type:
        return vector_type(self.unit, elems * self.group)

    def load(self, addr: Val, elems: int = 1) -> Val:
        return self.f.load(self.vector(elems), addr)

    def store(self, value: Val, addr: Val) -> None:
        self.f.store(value, addr)

    def copy(self, src: Val, dst: Val, elems: int = 1) -> None:
        self.store(self.load(src, elems), dst)

    def collect(self, sources: list[Val], dst: Val) -> None:
        """Elements from anywhere to adjacent places."""
        for i, source in enumerate(sources):
            self.copy(source, dst + i * self.item)

    def copy_run(self, src: Val, dst: Val, count: Val, ahead: Val | None = None) -> None:
        """``count`` adjacent elements: whole vectors, then halves of a vector down to one element. As many bytes from
        ``ahead`` on are asked for early."""
        f, whole = self.f, count // self.block
        with f.range(0, whole) as i:
            shift = i * (self.block * self.source_item)
            if ahead is not None:
                f.prefetch(ahead + shift, locality=2)
            self.copy(src + shift, dst + i * (self.block * self.item), self.block)
        with f.if_((count & (self.block - 1)).ne(0)):
            done = Var(f, whole * self.block)
            elems = self.block // 2
            while elems:
                with f.if_((count & elems).ne(0)):
                    self.copy(src + done.get() * self.source_item, dst + done.get() * self.item, elems)
                    done.add(elems)
                elems //= 2

    def pieces(self, count: int) -> list[int]:
        """So many elements as whole vectors, then halves of a vector down to one element."""
        rest = [1 << bit for bit in reversed(range(self.block.bit_length() - 1)) if count >> bit & 1]
        return [self.block] * (count // self.block) + rest

    def zero_rows(self, dst: Val, count: Val, rows: Val, pitch: Val) -> None:
        """``count`` elements from ``dst`` on, and as many in each of the rows after it, ``pitch`` bytes apart."""
        f = self.f
        if not self.masked:
            zero = f.zero(self.vector(1))
            with f.range(0, rows) as row, f.range(0, count) as i:
                self.store(zero, dst + row * pitch + i * self.item)
            return
        zero = f.zero(self.vector(self.block))
        with f.range(0, count, self.block) as start:
            mask = f.lane_mask(f.min(count - start, self.block) * self.group, self.block * self.group)
            with f.range(0, rows) as row:
                f.store_masked(zero, dst + row * pitch + start * self.item, mask)

    @property
    def runs(self) -> tuple[int, ...]:
        """Lengths R of the blocks that are transposed, longest first."""
        return tuple(r for r in (self.block, self.block // 2, self.block // 4) if r >= 2)

    def join(self, parts: list[Val]) -> Val:
        """Vectors of equal length one after another, a power of two of them."""
        while len(parts) > 1:
            size = parts[0].v.type.count
            parts = [self.f.shuffle(a, b, list(range(2 * size))) for a, b in zip(parts[::2], parts[1::2])]
        return parts[0]

    def transpose(self, rows: list[Val]) -> list[Val]:
        """R vectors of R elements or more: each R x R square, in log2(R) stages of two-source shuffles."""
        if len(rows) == rows[0].v.type.count // self.group:
            return self._square(rows)
        distance = 1
        while distance < len(rows):
            rows = self._stage(rows, distance)
            distance *= 2
        return rows

    def last_rows(self, size: int, left: Val, part: Callable[[int], None], tile: Callable[[], None]) -> None:
        """Half of a tile's rows, or a quarter, where no more are left: half of the shuffles, or less."""

        def choose(few: list[int]) -> None:
            if not few:
                tile()
                return
            with self.f.if_else(left <= few[0]) as (then, otherwise):
                with then:
                    part(few[0])
                with otherwise:
                    choose(few[1:])

        choose([rows for rows in (size // 4, size // 2) if size == self.block and rows >= 2])

    def few_columns(self, rows: list[Val]) -> Iterator[Val]:
        """Columns of fewer rows than a vector has elements, which are parts of vectors."""
        vectors, count = self.transpose(rows), len(rows)
        for first in range(0, vectors[0].v.type.count // self.group, count):
            for vector in vectors:
                yield self._pair(vector, vector, list(range(first, first + count)))

    def weave(self, rows: list[Val]) -> list[Val]:
        """Vectors of T elements: the first elements of all rows, then the second ones, and so on.

        Rows that are a power of two are zipped with each other, and then together with the others."""
        size, unit = rows[0].v.type.count // self.group, 1
        parts = [[row] for row in rows]  # each has its elements in order, so many rows side by side
        while len(parts) % 2 == 0:
            parts = [self._zip(even, odd, size, unit) for even, odd in zip(parts[::2], parts[1::2])]
            unit *= 2
        count = len(parts)
        order = [(i // unit % count, i // unit // count * unit + i % unit) for i in range(count * size)]
        found = []
        for together in zip(*parts):
            found += [self._pick(together, order[at : at + size]) for at in range(0, count * size, size)]
        return found

    def _zip(self, even: list[Val], odd: list[Val], size: int, unit: int) -> list[Val]:
        """Units of both in turn, vector after vector."""
        order = [(i // unit % 2, i // unit // 2 * unit + i % unit) for i in range(2 * size)]
        return [self._pick(pair, order[at : at + size]) for pair in zip(even, odd) for at in (0, size)]

    def _pick(self, vectors: Sequence[Val], order: list[tuple[int, int]]) -> Val:
        """The elements (vector, place)."""
        found, size = vectors[0], len(order)
        for number, vector in enumerate(vectors[1:], 1):
            before = [place if number == 1 else i for i, (_, place) in enumerate(order)]
            found = self._pair(found, vector, [size + p if n == number else b for b, (n, p) in zip(before, order)])
        return found

    def square(self, size: int, load: Callable[[int, int, int], Val]) -> list[Val]:
        """`transpose` of ``size`` rows of as many elements; ``load(row, first, count)`` gives adjacent elements of one.

        Whole vectors are loaded by halves, each beside that of a row half a square away: a load puts it there without the
        unit that shuffles, which has a third or a quarter less to do.
        """
        if size != self.block or not self.halves:
            return self.transpose([load(row, 0, size) for row in range(size)])
        half = size // 2
        return [c for first in (0, half) for c in self.half_square(lambda row: load(row, first, half))]

    def half_square(self, load: Callable[[int], Val]) -> list[Val]:
        """Half of the columns of a `square` of whole vectors; ``load(row)`` gives what each row has of them."""
        half = self.block // 2
        return self._square_of_halves([self.join([load(row), load(row + half)]) for row in range(half)])

    def _square_of_halves(self, rows: list[Val]) -> list[Val]:
        """Transposes both halves of the vectors, which are squares."""
        size = len(rows)
        inside = min(size, max(1, PART // self.item))
        groups = [self._interleave(rows[i : i + inside], inside, 1) for i in range(0, size, inside)]
        if len(groups) == 1:
            return groups[0]
        columns = []
        for part in (0, inside):  # of 128 bits, two in each half
            lanes = [i % size // inside * 2 * size + i // size * size + part + i % inside for i in range(2 * size)]
            columns += [self._pair(a, b, lanes) for a, b in zip(*groups)]
        return columns

    def _stage(self, rows: list[Val], distance: int) -> list[Val]:
        size, out = rows[0].v.type.count // self.group, list(rows)
        low = [l if not l & distance else size + l - distance for l in range(size)]
        high = [l + distance if not l & distance else size + l for l in range(size)]
        for i in range(len(rows)):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                out[i] = self.f.shuffle(a, b, self._machine_lanes(low))
                out[i + distance] = self.f.shuffle(a, b, self._machine_lanes(high))
        return out

    def _square(self, rows: list[Val]) -> list[Val]:
        """R vectors of R elements: shuffles within parts of 128 bits, then of whole parts, for which hardware has
        faster instructions than for others."""
        size = len(rows)
        inside = min(size, PART // self.item)
        groups = [self._interleave(rows[i : i + inside], inside, 1) for i in range(0, size, inside)]
        columns = [self._deal([group[k] for group in groups], inside) for k in range(inside)]
        return [columns[k][part] for part in range(size // inside) for k in range(inside)]

    def _interleave(self, rows: list[Val], part: int, unit: int) -> list[Val]:
        """Transposes ``part`` rows within each part; units of so many elements are together already."""
        if unit == part:
            return rows
        found: list[Val] = []
        for half in (0, part // 2):
            lanes = self._lanes(rows, lambda i: half + i // (2 * unit) * unit + i % unit, lambda i: i // unit % 2, part)
            found += self._interleave([self._pair(a, b, lanes) for a, b in zip(rows[::2], rows[1::2])], part, 2 * unit)
        return found

    def _lanes(self, rows: list[Val], place, which, part: int) -> list[int]:
        size = rows[0].v.type.count // self.group
        return [which(i % part) * size + i // part * part + place(i % part) for i in range(size)]

    def _deal(self, rows: list[Val], part: int) -> list[Val]:
        """Transposes as many rows as have parts, part by part."""
        if len(rows) == 1:
            return rows
        size = rows[0].v.type.count // self.group
        found = []
        for first in (0, part):
            lanes = [first + i // part * 2 * part + i % part for i in range(size)]
            found.append(self._deal([self._pair(a, b, lanes) for a, b in zip(rows[::2], rows[1::2])], part))
        return [row for pair in zip(*found) for row in pair]

    def _pair(self, a: Val, b: Val, lanes: list[int]) -> Val:
        return self.f.shuffle(a, b, self._machine_lanes(lanes))

    def _machine_lanes(self, lanes: list[int]) -> list[int]:
        return [l * self.group + g for l in lanes for g in range(self.group)]


class Widener(Mover):
    """A `Mover` whose loads convert elements of dtype ``source`` to ``target``."""

    def __init__(self, f: Fn, source: str, target: str, isa: ISA):
        super().__init__(f, STORAGES[target].itemsize, isa)
        self.source_item = STORAGES[source].itemsize
        self.source, self.target, self.isa = source, target, isa

    def load(self, addr: Val, elems: int = 1) -> Val:
        converter = Converter(self.f, self.isa, elems)
        return self._widened(converter, converter.load(self.source, addr))

    def _widened(self, converter: Converter, value: Val) -> Val:
        return self.f.bitcast(converter.cast(value, self.source, self.target), self.vector(converter.w))

    def collect(self, sources: list[Val], dst: Val) -> None:
        """Converted together: one by one, halves would wait for each other, as loads into a part of a register do."""
        f, unit = self.f, ir.IntType(8 * self.source_item)
        if len(sources) == 1:
            self.copy(sources[0], dst)
            return
        together = f.zero(ir.VectorType(unit, len(sources)))
        for lane, source in enumerate(sources):
            together = f.insert(together, f.load(unit, source), lane)
        converter = Converter(f, self.isa, len(sources))
        self.store(self._widened(converter, f.bitcast(together, converter.type(self.source))), dst)


def mover_for(f: Fn | None, name: str, isa: ISA) -> Mover:
    """What ``pack_8`` (elements of so many bytes) or ``pack_float16_float32`` (from, to) moves elements with."""
    what = name.split("_")[1:]
    return Mover(f, int(what[0]), isa) if len(what) == 1 else Widener(f, *what, isa)
