"""Rows of fused kernels that need less than the general loop of `fused`: short ones, plain ones, and those whose
elements are two apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..fused_structure import Structure
from ..isa import ISA
from . import fused_abi as ua
from . import nest_abi as na
from .convert import Converter
from .emit import I1, Fn, Val, Var, vector_type
from .fused_ops import Ops, Value
from .storage import STORAGES


@dataclass(frozen=True, kw_only=True)
class RowOperand:
    """One operand in one row: ``at`` its first element; ``step``: -1 where it runs along o, 0 where it is one element."""

    dtype: str
    at: Val
    step: Val

    @property
    def item(self) -> int:
        return STORAGES[self.dtype].itemsize


@dataclass(frozen=True, kw_only=True)
class RowPart:
    """Elements i .. i + w - 1 of a row, those of ``mask`` (None: all); ``past``: the caches; ``lane``: which of the
    accumulators; ``places``: where the operands are instead of in the row."""

    i: Val
    mask: Val | None = None
    past: bool = False
    lane: int = 0
    places: list[Val] | None = None


class Kernel(Protocol):
    """The row function that rows belong to (`fused.RowFunction`)."""

    f: Fn
    s: Structure
    isa: ISA
    w: int  # elements of a vector
    unroll: int  # vectors, or rows, that are worth computing at once
    ops: Ops
    args: Val
    no: Val
    nj: Val
    outputs: int
    first: Val  # results are overwritten
    slots: list[Val]  # a vector on the stack for each operand

    def mask(self, count: Val) -> Val: ...

    def compute(self, values: list[Value], ops: Ops | None = None, s: Structure | None = None) -> None: ...

    def combine(self, number: int, value: Value, at: Val) -> None: ...


def parts_of(value: Value) -> list[Val]:
    return list(value) if isinstance(value, tuple) else [value]


def joined(parts: list[Val]) -> Value:
    return tuple(parts) if len(parts) == 2 else parts[0]


class BoxRows:
    """What rows have in common: the words of operands, read once. ``mode``: `fused_abi.ROWS`, `COLUMNS` or `MAP`."""

    def __init__(self, kernel: Kernel, mode: int = ua.MAP):
        f, self.k, self.f, self.mode = kernel.f, kernel, kernel.f, mode
        words = [kernel.args + 8 * (ua.R_OPERANDS + ua.R_WORDS * n) for n in range(len(kernel.s.stored))]
        self.bases = [f.word(at, ua.R_BASE) for at in words]
        self.tables = [f.word(at, ua.R_TABLE) for at in words]
        self.one = [f.word(at, ua.R_KIND).eq(na.BROADCAST) for at in words]

    def at(self, j: Val) -> list[Val]:
        """Where the operands of row j begin."""
        return [base + self.f.word(table, j) for base, table in zip(self.bases, self.tables, strict=True)]

    def item(self, number: int) -> int:
        return STORAGES[self.k.s.stored[number]].itemsize


def add_parts(kernel: Kernel) -> None:
    """Combine the results of this box with those of the boxes before it, if there are any."""
    f, w, args = kernel.f, kernel.w, kernel.args
    for number, out in enumerate(kernel.s.outputs):
        if not out.reduce:
            continue
        words, dtype = args + 8 * (ua.R_OPERANDS + ua.R_WORDS * number), kernel.s.dtype(out.value)
        part, total, item = f.word(words, ua.R_BASE), f.word(words, ua.R_TOTAL), STORAGES[kernel.s.stored[number]].itemsize
        done, fresh = f.var(0), f.splat(kernel.first, w)
        with f.range(0, kernel.no - (w - 1), w) as i:
            old = kernel.ops.load(dtype, total + i * item)
            old = kernel.ops.select(fresh, kernel.ops.identity(out.reduce, dtype), old)
            new = kernel.ops.load(dtype, part + i * item)
            kernel.ops.store(dtype, kernel.ops.combine(out.reduce, dtype, old, new), total + i * item)
            done.set(i + w)
        one = Ops(f, kernel.isa, 1)
        with f.range(done.get(), kernel.no) as i:
            kernel.combine(number, one.load(dtype, part + i * item), total + i * item)


class ShortRows(BoxRows):
    """All rows where each is a few vectors: one loop over o, by masks, and what rows have in common before the loop
    over j. For instruction sets with masks."""

    def __init__(self, kernel: Kernel, mode: int):
        super().__init__(kernel, mode)
        self.none = self.f.const(vector_type(I1, kernel.w), 0)

    def emit(self, single: bool) -> None:
        """``single``: a row is one vector or a part of it."""
        f, k, first = self.f, self.k, self.k.mask(self.f.min(self.k.no, self.k.w))
        with f.range(0, k.nj) as j:
            at = self.at(j)
            inputs = range(k.outputs, len(at))
            elements = [self._element(number, at[number]) for number in inputs]
            totals = {n: self._total(n) for n, out in enumerate(k.s.outputs) if out.reduce and self.mode == ua.ROWS}
            if single:
                self._vector(at, elements, totals, first)
            else:
                with f.range(0, k.no, k.w) as i:
                    here = [address + i * self.item(n) for n, address in enumerate(at)]
                    self._vector(here, elements, totals, k.mask(f.min(k.no - i, k.w)))
            for number, total in totals.items():
                out = k.s.outputs[number]
                value = k.ops.across(out.reduce, k.s.dtype(out.value), joined([var.get() for var in total]))
                k.combine(number, value, at[number])

    def _vector(self, at: list[Val], elements: list[Val], totals: dict[int, list[Var]], mask: Val) -> None:
        k = self.k
        values = [self._load(n, at[n], mask, element) for n, element in enumerate(elements, k.outputs)]
        k.compute(values)
        for number, out in enumerate(k.s.outputs):
            value, dtype = values[out.value], k.s.dtype(out.value)
            if number not in totals:
                k.ops.store(dtype, value, at[number], mask)
                continue
            value = k.ops.select(mask, value, k.ops.identity(out.reduce, dtype))
            new = k.ops.combine(out.reduce, dtype, value, joined([var.get() for var in totals[number]]))
            for var, part in zip(totals[number], parts_of(new), strict=True):
                var.set(part)

    def _total(self, number: int) -> list[Var]:
        out = self.k.s.outputs[number]
        return [Var(self.f, part) for part in parts_of(self.k.ops.identity(out.reduce, self.k.s.dtype(out.value)))]

    def _element(self, number: int, at: Val) -> Val:
        """The first element in all lanes."""
        return self.k.ops.converter.splat(Converter(self.f, self.k.isa, 1).load(self.k.s.stored[number], at))

    def _load(self, number: int, at: Val, mask: Val, element: Val) -> Value:
        """An input: a vector, or its one element."""
        k, dtype, one = self.k, self.k.s.stored[number], self.one[number]
        vector = k.ops.converter.load(dtype, at, mask=self.f.select(one, self.none, mask))
        return k.ops.unpack(dtype, self.f.select(one, element, vector))


class PlainRows(BoxRows):
    """Rows of a map of some vectors along which all operands run: nothing but addresses is found for each of them."""

    def emit(self) -> None:
        f, k = self.f, self.k
        rest = k.no % k.w
        whole, mask = k.no - rest, k.mask(rest)
        with f.range(0, k.nj) as j:
            at = self.at(j)
            with f.if_(rest.ne(0)):  # first: until a part of a vector is stored, what follows it cannot be loaded
                self._vector(at, whole, mask)
            with f.range(0, whole, k.w) as i:
                self._vector(at, i)

    def _vector(self, at: list[Val], i: Val, mask: Val | None = None) -> None:
        k = self.k
        here = [address + i * self.item(n) for n, address in enumerate(at)]
        values = [k.ops.load(name, here[n], mask) for n, name in enumerate(k.s.inputs, k.outputs)]
        k.compute(values)
        for number, out in enumerate(k.s.outputs):
            k.ops.store(k.s.dtype(out.value), values[out.value], here[number], mask)


class ApartRows(BoxRows):
    """Rows of a map whose elements are two apart, in all operands that run: vectors of what lies there, be it theirs or
    not, of which every second element is computed for nothing and not stored.

    A vector is stored after the next one is computed: what a store by mask covers cannot be loaded for some 20 cycles,
    whether it is written or not, and the next vectors of neighbours that a stencil reads begin there."""

    def emit(self) -> None:
        if not (self.k.isa.masks and self.k.w > 1):
            self._gathered()
            return
        f, k = self.f, self.k
        reach = k.no * 2 - 1
        rest = reach % k.w
        whole, mask = reach - rest, k.mask(rest)
        every = f.vector(I1, [int(lane % 2 == 0) for lane in range(k.w)])
        with f.range(0, k.nj) as j:
            at, steps = self._repeated(self.at(j))
            with f.if_(rest.ne(0)):
                self._store(self._computed(at, steps, whole, mask), at, whole, mask & every)
            with f.if_(whole > 0):
                held = [[Var(f, part) for part in parts_of(value)] for value in self._computed(at, steps, f.i64(0))]
                with f.range(k.w, whole, k.w) as i:
                    new = self._computed(at, steps, i)
                    self._store(self._held(held), at, i - k.w, every)
                    for variables, value in zip(held, new, strict=True):
                        for var, part in zip(variables, parts_of(value), strict=True):
                            var.set(part)
                self._store(self._held(held), at, whole - k.w, every)

    def _held(self, held: list[list[Var]]) -> list[Value]:
        return [joined([var.get() for var in variables]) for variables in held]

    def _repeated(self, at: list[Val]) -> tuple[list[Val], list[Val]]:
        """An input that is one element becomes a vector of its own; steps are 0 there, else -1."""
        f, k = self.f, self.k
        places = [Var(f, address) for address in at]
        for number, dtype in enumerate(k.s.inputs, k.outputs):
            with f.if_(self.one[number]):
                raw = Converter(f, k.isa, 1).load(dtype, at[number])
                f.store(k.ops.converter.splat(raw), k.slots[number])
                places[number].set(k.slots[number])
        steps = [f.select(one, f.i64(0), f.i64(-1)) for one in self.one]
        return [place.get() for place in places], steps

    def _computed(self, at: list[Val], steps: list[Val], i: Val, mask: Val | None = None) -> list[Value]:
        """What the outputs are for the vector at i."""
        k, values = self.k, []
        for number, dtype in enumerate(k.s.inputs, k.outputs):
            values.append(k.ops.load(dtype, at[number] + (i & steps[number]) * self.item(number), mask))
        k.compute(values)
        return [values[out.value] for out in k.s.outputs]

    def _store(self, values: list[Value], at: list[Val], i: Val, mask: Val) -> None:
        k = self.k
        for number, (out, value) in enumerate(zip(k.s.outputs, values, strict=True)):
            k.ops.store(k.s.dtype(out.value), value, at[number] + i * self.item(number), mask)

    def _gathered(self) -> None:
        """Where there are no masks: vectors of what is wanted alone, whose elements are stored one by one."""
        f, k = self.f, self.k
        with f.range(0, k.nj) as j:
            at, done = self.at(j), f.var(0)
            if k.w > 1:
                places, steps = self._repeated(at)
                with f.range(0, k.no - (k.w - 1), k.w) as o:
                    self._put(self._taken(places, steps, o * 2), at, o * 2)
                    done.set(o + k.w)
            self._elements(at, done.get())

    def _taken(self, at: list[Val], steps: list[Val], i: Val) -> list[Value]:
        """What the outputs are for every second element from i on. Even lanes are those of the first vector, odd ones of
        one that ends with the last element: nothing behind that is read, and one instruction brings them together."""
        f, k, values = self.f, self.k, []
        lanes = [lane + lane % 2 * k.w for lane in range(k.w)]
        for number, dtype in enumerate(k.s.inputs, k.outputs):
            pair = [at[number] + ((i + first) & steps[number]) * self.item(number) for first in (0, k.w - 1)]
            both = zip(*(parts_of(k.ops.load(dtype, place)) for place in pair), strict=True)
            values.append(joined([f.shuffle(low, high, lanes) for low, high in both]))
        k.compute(values)
        return [values[out.value] for out in k.s.outputs]

    def _put(self, values: list[Value], at: list[Val], i: Val) -> None:
        f, k, one = self.f, self.k, Ops(self.f, self.k.isa, 1)
        for number, (out, value) in enumerate(zip(k.s.outputs, values, strict=True)):
            for lane in range(k.w):
                element = joined([f.extract(part, lane) for part in parts_of(value)])
                place = at[number] + (i + lane + lane % 2 * (k.w - 1)) * self.item(number)
                one.store(k.s.dtype(out.value), element, place)

    def _elements(self, at: list[Val], first: Val) -> None:
        """One by one, from the first that is not there yet."""
        f, k, one = self.f, self.k, Ops(self.f, self.k.isa, 1)
        with f.range(first, k.no) as o:
            here = []
            for number, address in enumerate(at):
                step = f.select(self.one[number], f.i64(0), f.i64(2 * self.item(number)))
                here.append(address + o * step)
            values: list[Value] = [one.load(name, here[n]) for n, name in enumerate(k.s.inputs, k.outputs)]
            k.compute(values, one)
            for number, out in enumerate(k.s.outputs):
                one.store(k.s.dtype(out.value), values[out.value], here[number])
