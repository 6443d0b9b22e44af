"""Rows of fused kernels whose elements depend on all of their row: softmax, layer norm, log-sum-exp.

    for rows, several at a time                 one by one where they are long
      for each pass                             `fused_over.passes`
        for vectors of the rows
          inputs, and what an earlier pass kept; arithmetic
          combine with the accumulators, or store
        the numbers that are known from now on  in one vector for several rows

A row that is one vector or a part of it stays in registers: it has no passes and no loop. Reading a longer one again
takes it from L1, where a step of its own for each pass would read all rows, from the cache that they fit. Each pass
waits for all of the one before: several rows give the processor something to do in the meantime, and what combines
the lanes of one vector combines those of several together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from ..fused_over import LONG_ROW, TOGETHER, passes, price
from ..fused_structure import FLOATS, LONG, Node
from . import cores
from . import fused_abi as ua
from .convert import Converter
from .emit import Val, Var
from .fused_ops import Ops
from .fused_rows import BoxRows, Kernel
from .quotient import inverse, quotient
from .storage import STORAGES
from .stream import LINE

_NEAR_ROW = 8 << 10  # bytes, up to which the next row comes into L1, beside this one, what is kept of it and its results


@dataclass(frozen=True)
class _Slot:
    """A vector of a turn: of which row, and how many elements behind the first one."""

    row: int
    shift: int = 0


class OverRows(BoxRows):
    """All rows. Inputs run along them or are one element there; an output runs or is one number for each row."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.p, self.s, self.first = passes(kernel.s), kernel.s, len(kernel.s.inputs)
        self.one_lane, self.size = Ops(self.f, kernel.isa, 1), STORAGES[self.s.stored[0]].itemsize
        self.several = min(TOGETHER, kernel.w)
        nbytes = kernel.no * self.size
        self.keep = self.f.word(kernel.args, ua.R_KEEP)
        self.pitch = (nbytes + (LINE - 1)) & ~(LINE - 1)
        self.short, self.long = nbytes <= LONG_ROW, nbytes > _NEAR_ROW
        self.past = kernel.past & (nbytes & (LINE - 1)).eq(0)
        for base, out in zip(self.bases, kernel.s.outputs):
            if out.value not in self.p.numbers:
                self.past = self.past & (base & (LINE - 1)).eq(0)
        self.divisors = self._divisors()
        nbytes = self.several * kernel.w * self.size
        self.slots = [self.f.stack(nbytes) for _ in self.s.inputs]

    def _divisors(self) -> dict[int, str]:
        """The numbers that all elements of a row are divided by, and their dtypes, where products take less time."""
        if not cores.here().slow_divider:
            return {}
        nodes = [node for value, node in enumerate(self.s.nodes, self.first) if value not in self.p.numbers]
        return {n.args[1]: n.dtype for n in nodes if n.op == "div" and n.dtype in FLOATS and n.args[1] in self.p.numbers}

    def emit(self) -> None:
        f, k, done = self.f, self.k, self.f.var(0)
        end = f.select(self.short, k.nj, f.i64(0))

        def several(mask: Val | None = None) -> None:
            with f.range(0, end - (self.several - 1), self.several) as j:
                rows = _Rows(self, [j + number for number in range(self.several)])
                if mask is None:
                    rows.in_passes()
                else:
                    rows.in_registers(mask)
                done.set(j + self.several)

        if self.several > 1 and k.isa.masks:
            with f.if_else(k.no <= k.w) as (one, more):
                with one:
                    several(k.mask(f.min(k.no, k.w)))
                with more:
                    several()
        elif self.several > 1:
            several()
        with f.range(done.get(), k.nj) as j:
            _Rows(self, [j]).in_passes()

    def places(self, row: int, at: list[Val]) -> list[tuple[Val, Val]]:
        """Of the inputs of a row: where they are, and 0 where that is one vector of the same element, else -1."""
        f, k, found = self.f, self.k, []
        for number, dtype in enumerate(self.s.inputs):
            place, one = Var(f, at[k.outputs + number]), self.one[k.outputs + number]
            with f.if_(one):
                raw, slot = Converter(f, k.isa, 1).load(dtype, place.get()), self.slots[number] + row * k.w * self.size
                f.store(k.ops.converter.splat(raw), slot)
                place.set(slot)
            found.append((place.get(), f.select(one, f.i64(0), f.i64(-1))))
        return found


class _Rows:
    """Some rows. ``numbers``: the values that are one number for each of them, as far as they are known: vectors, of
    which each row has as many lanes."""

    def __init__(self, rows: OverRows, numbers: list[Val]):
        self.rows, self.f, self.k, self.s, self.p = rows, rows.f, rows.k, rows.s, rows.p
        self.count, self.w, self.ops, self.one = len(numbers), rows.k.w, rows.k.ops, rows.one_lane
        self.j, self.at = numbers[0], [rows.at(j) for j in numbers]
        self.inputs = [rows.places(row, each) for row, each in enumerate(self.at)]
        self.outputs = [each[: rows.k.outputs] for each in self.at]
        self.coming: list[dict[int, Val]] = []
        self.numbers: dict[int, Val] = {}
        self.divisors = rows.divisors if self.count == 1 else {}  # a test for quotients of several rows takes what it saves
        self.inverses: dict[int, Val] = {}
        self._know(0)

    # -- numbers
    def _know(self, level: int) -> None:
        """What is known after so many passes, but for reductions, which are there."""
        for value, node in enumerate(self.s.nodes, self.rows.first):
            if value in self.p.numbers and self.p.known[value] == level and node.op != "over":
                args = [self.numbers[a] for a in node.args]
                self.numbers[value] = self.ops.apply(node, args, [self.s.dtype(a) for a in node.args])
        for value, dtype in self.divisors.items():
            if self.p.known[value] == level:
                self.inverses[value] = inverse(self.ops.floats(dtype), self.numbers[value])

    def _results(self) -> None:
        """Outputs that are one number."""
        for number, out in enumerate(self.s.outputs):
            if out.value in self.p.numbers:
                for row in range(self.count):
                    value = self.lane(self.numbers[out.value], row)
                    self.one.store(self.s.dtype(out.value), value, self.outputs[row][number])

    def lane(self, value: Val, row: int) -> Val:
        """The number of a row."""
        return self.f.extract(value, row * self.w // self.count) if self.w > 1 else value

    def _reductions(self, level: int) -> list[tuple[int, Node]]:
        """Those that are known after this pass, by value."""
        nodes = enumerate(self.s.nodes, self.rows.first)
        return [(value, node) for value, node in nodes if node.op == "over" and self.p.known[value] == level + 1]

    # -- rows that come
    def _coming(self) -> list[dict[int, Val]]:
        """Of each row, where the inputs of the first pass, by number, begin in one that comes: the next, or of short ones
        so many further. Rows of a box are taken to be as far apart as the next two, and in a box of one to follow each
        other."""
        f, k, rows, found = self.f, self.k, self.rows, []
        nbytes, last = k.no * rows.size, f.min(self.j + 1, k.nj - 1)
        further = f.i64(1) if self.count == 1 else f.i64(cores.here().ahead) // f.max(nbytes, 1)
        for number in self.p.computed[0]:
            if number < rows.first:
                table = rows.tables[k.outputs + number]
                step = f.word(table, last) - f.word(table, f.max(last - 1, 0))
                found.append((number, f.select(k.nj > 1, step, nbytes) * further))
        return [{number: each[k.outputs + number] + step for number, step in found} for each in self.at]

    def _asking(self, level: int) -> tuple[int | None, int | None]:
        """Where a pass asks for rows that come to, if it does (2: L2, 3: L1): of long rows and of others, which wait in L1
        for the row after this one, so that nothing should be stored meanwhile."""
        there = bool(self.coming and self.coming[0])
        far = there and self.count == 1 and level == self.p.dearest
        return 2 if far else None, 3 if there and level == self.p.between else None

    def _ask(self, i: Val, slots: list[_Slot], locality: int) -> None:
        """For what rows that come have where these vectors are."""
        for slot in slots:
            for number, at in self.coming[slot.row].items():
                _, step = self.inputs[slot.row][number]
                self.f.prefetch(at + ((i + slot.shift) & step) * self.rows.size, locality=locality)

    # -- passes
    def in_registers(self, mask: Val) -> None:
        """Rows of one vector, or of the part of it that ``mask`` says."""
        chunks = self._chunks([_Slot(row) for row in range(self.count)], range(len(self.p.wanted)))
        values: list[dict[int, Val]] = [{} for _ in chunks]
        for level in range(len(self.p.wanted)):
            totals = self._accumulators(level, self.count, self.ops)
            for chunk, known in zip(chunks, values):
                self._part(level, self.f.i64(0), chunk, totals, mask, known)
            self._finish(level, totals)
        self._results()

    def in_passes(self) -> None:
        if cores.here().ahead:
            self.coming = self._coming()
        for level in range(len(self.p.wanted)):
            self._pass(level)
        self._results()

    def _pass(self, level: int) -> None:
        """Vectors of all rows side by side, or several of one row, then one by one; at last the part of one that is
        left, or its elements."""
        f, k, w, done = self.f, self.k, self.w, self.f.var(0)
        rows = [_Slot(row) for row in range(self.count)]
        turns = [(rows, w)]
        if self.count == 1:
            turns.insert(0, ([_Slot(0, number * w) for number in range(TOGETHER)], TOGETHER * w))
        totals = self._accumulators(level, len(turns[0][0]), self.ops)

        def loops(locality: int | None) -> None:
            for slots, step in turns:
                with f.range(done.get(), k.no - (step - 1), step) as i:
                    if locality is not None:
                        self._ask(i, slots, locality)
                    for chunk in self._chunks(slots, [level]):
                        self._part(level, i, chunk, totals)
                    done.set(i + step)

        far, near = self._asking(level)
        if self.count > 1 or far == near:
            loops(near)
        else:
            with f.if_else(self.rows.long) as (long, other):
                with long:
                    loops(far)
                with other:
                    loops(near)
        if k.isa.masks and w > 1:
            with f.if_(done.get() < k.no):
                for chunk in self._chunks(rows, [level]):
                    self._part(level, done.get(), chunk, totals, k.mask(k.no - done.get()))
        elif w > 1:
            rest = self._accumulators(level, self.count, self.one)
            with f.range(done.get(), k.no) as i:
                for slot in rows:
                    self._part(level, i, {slot.row: slot}, rest, ops=self.one)
            for value, node in self._reductions(level):
                for total, one in zip(totals[value], rest[value]):
                    first = self.one.combine(node.value, node.dtype, f.extract(total.get(), 0), one.get())
                    total.set(f.insert(total.get(), first, 0))
        self._finish(level, totals)

    def _chunks(self, slots: list[_Slot], levels: Iterable[int]) -> list[dict[int, _Slot]]:
        """Slots, by number, whose instructions go in turn: two where functions are long, all where quotients are products."""
        values = {value for level in levels for value in self.p.computed[level]}
        long = any(price(self.s, value) >= LONG for value in values)
        multiplied = any(self._is_multiplied(value) for value in values)
        numbered, size = list(enumerate(slots)), 2 if long else TOGETHER if multiplied else 1
        return [dict(numbered[at : at + size]) for at in range(0, len(slots), size)]

    def _accumulators(self, level: int, count: int, ops: Ops) -> dict[int, list[Var]]:
        """By reduction, for each slot."""
        reductions = self._reductions(level)
        return {v: [Var(self.f, ops.identity(n.value, n.dtype)) for _ in range(count)] for v, n in reductions}

    def _finish(self, level: int, totals: dict[int, list[Var]]) -> None:
        """The numbers that are known from now on."""
        for value, node in self._reductions(level):
            parts = [total.get() for total in totals[value]]
            while len(parts) > self.count:
                both = zip(parts[::2], parts[1::2], strict=True)
                parts = [self.ops.combine(node.value, node.dtype, low, high) for low, high in both]
            self.numbers[value] = self._across(node, parts)
        self._know(level + 1)

    def _across(self, node: Node, parts: list[Val]) -> Val:
        """The lanes of each vector combined, in all lanes of its row: halves of two vectors at a time become one."""
        f, w, lanes = self.f, self.w, self.w

        def combine(a: Val, b: Val, low: list[int], high: list[int]) -> Val:
            return self.ops.combine(node.value, node.dtype, f.shuffle(a, b, low), f.shuffle(a, b, high))

        while len(parts) > 1:
            half = lanes // 2
            low = [start + lane for start in range(0, 2 * w, lanes) for lane in range(half)]
            parts = [combine(a, b, low, [at + half for at in low]) for a, b in zip(parts[::2], parts[1::2])]
            lanes = half
        (value,) = parts
        while lanes > 1:
            lanes //= 2
            value = combine(value, value, list(range(w)), [lane ^ lanes for lane in range(w)])
        return value

    # -- vectors
    def _part(
        self,
        level: int,
        i: Val,
        chunk: dict[int, _Slot],
        totals: dict[int, list[Var]],
        mask: Val | None = None,
        known: dict[int, Val] | None = None,
        ops: Ops | None = None,
    ) -> None:
        """What a pass does with these vectors, from element i on. ``known``: values that are in registers; ``ops``: of
        one element."""
        part = _Part(self, i, chunk, mask, ops or Ops(self.f, self.k.isa, len(chunk) * self.w))
        values = {} if known is None else known
        for value in self.p.computed[level]:
            if value not in values:
                kept = known is None and value in self.p.loaded[level]
                values[value] = part.kept(value) if kept else self._computed(part.ops, values, value, part)
                if known is None and value in self.p.kept and not kept:
                    part.keep(value, values[value])
        for value, node in self._reductions(level):
            given = self._value(part, values, node.args[0])
            for number, one in zip(chunk, part.split(given)):
                part.gather(node, one, totals[value][number])
        if level + 1 == len(self.p.wanted):
            for number, out in enumerate(self.s.outputs):
                if out.value not in self.p.numbers:
                    part.store(number, values[out.value])

    def _computed(self, ops: Ops, values: dict[int, Val], value: int, part: _Part) -> Val:
        if value < self.rows.first:
            return part.input(value)
        node = self.s.nodes[value - self.rows.first]
        args = [self._value(part, values, a) for a in node.args]
        if self._is_multiplied(value):
            return quotient(ops.floats(node.dtype), *args, part.repeated(self.inverses[node.args[1]]), finite=False)
        return ops.apply(node, args, [self.s.dtype(a) for a in node.args])

    def _is_multiplied(self, value: int) -> bool:
        """A quotient whose divisor is one number of a row, as a value of elements."""
        node = self.s.nodes[value - self.rows.first] if value >= self.rows.first else None
        return node is not None and node.op == "div" and node.args[1] in self.divisors

    def _value(self, part: _Part, values: dict[int, Val], value: int) -> Val:
        """In vectors; a number is repeated."""
        return values[value] if value in values else part.repeated(self.numbers[value])


class _Part:
    """The vectors of some slots, from element i on, side by side; of them what ``mask`` says, or with ``ops`` of one
    lane one element."""

    def __init__(self, rows: _Rows, i: Val, chunk: dict[int, _Slot], mask: Val | None, ops: Ops):
        self.rows, self.over, self.f, self.k = rows, rows.rows, rows.f, rows.k
        self.i, self.slots, self.mask, self.ops = i, list(chunk.values()), mask, ops
        self.w = ops.w // len(chunk)
        self.each = ops if len(chunk) == 1 else self.k.ops

    def split(self, value: Val) -> list[Val]:
        """The vectors of the slots."""
        if len(self.slots) == 1:
            return [value]
        return [self.f.shuffle(value, value, range(at, at + self.w)) for at in range(0, self.ops.w, self.w)]

    def repeated(self, number: Val) -> Val:
        """A number of each row in all lanes of it."""
        lanes = [slot.row * self.rows.w // self.rows.count for slot in self.slots for _ in range(self.w)]
        return self.f.shuffle(number, number, lanes) if self.ops.w > 1 else self.rows.lane(number, self.slots[0].row)

    def input(self, number: int) -> Val:
        parts = []
        for slot in self.slots:
            place, step = self.rows.inputs[slot.row][number]
            at = place + ((self.i + slot.shift) & step) * self.over.size
            parts.append(self.each.load(self.over.s.inputs[number], at, self.mask))
        return self.f.joined(parts)

    def _kept(self, value: int, slot: _Slot) -> Val:
        """Where a row's value is kept."""
        kept = self.over.p.kept
        row = self.over.pitch * (slot.row * len(kept) + kept.index(value))
        return self.over.keep + row + (self.i + slot.shift) * self.over.size

    def kept(self, value: int) -> Val:
        dtype = self.over.s.dtype(value)
        return self.f.joined([self.each.load(dtype, self._kept(value, slot), self.mask) for slot in self.slots])

    def keep(self, value: int, vector: Val) -> None:
        for slot, part in zip(self.slots, self.split(vector)):
            self.each.store(self.over.s.dtype(value), part, self._kept(value, slot), self.mask)

    def gather(self, node: Node, value: Val, total: Var) -> None:
        """Combine the vector of a slot with its accumulator."""
        if self.mask is not None:
            value = self.each.select(self.mask, value, self.each.identity(node.value, node.dtype))
        total.set(self.each.combine(node.value, node.dtype, value, total.get()))

    def store(self, number: int, vector: Val) -> None:
        """Elements of an output, past the caches where all rows are whole lines of what does not fit there."""
        dtype = self.over.s.stored[number]
        for slot, value in zip(self.slots, self.split(vector)):
            at = self.rows.outputs[slot.row][number] + (self.i + slot.shift) * self.over.size
            if self.w * self.over.size != LINE:
                self.each.store(dtype, value, at, self.mask)
                continue
            with self.f.if_else(self.over.past) as (then, otherwise):
                with then:
                    self.each.store(dtype, value, at, past=True)
                with otherwise:
                    self.each.store(dtype, value, at, self.mask)
