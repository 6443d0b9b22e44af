"""Row functions of fused kernels: one for each structure, the same for all shapes.

``void row(args)`` computes ``no x nj`` entries; `fused_abi` has the words of ``args``. For each j, operand k lies at its
base plus its offset along J, and runs along o or is one element there:

    for j
      until all of o is done
        whole vectors                several at a time where the structure is light
        one vector, or a part of it  by mask where the ISA has masks, else through copies on the stack

Results of reductions (`fused_abi.ROWS`: one for each j; `COLUMNS`: one for each o) are combined in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from llvmlite import ir

from ..fused_structure import Structure, find, goes_apart
from ..isa import ISA
from . import cores
from . import fused_abi as ua
from . import nest_abi as na
from .convert import Converter
from .emit import I1, I8, I16, I32, I64, Fn, Val, Var, vector_type
from .fused_checkered import CheckeredRows
from .fused_frame import build_run
from .fused_near import NearRows
from .fused_ops import Ops, Value
from .fused_over import OverRows
from .fused_price import HEAVY, cost, goes_in_pairs, unroll, vectors_at_once, width
from .fused_rows import ApartRows, PlainRows, RowOperand, RowPart, ShortRows, add_parts, joined, parts_of
from .fused_tile import build_stage, build_tile
from .quotient import PERIOD, Periodic
from .storage import STORAGES
from .stream import LINE

_GROUP = 4  # rows
_SHORT = 4  # vectors, up to which a row is short where nothing is reduced
_INTS = {1: I8, 2: I16, 4: I32, 8: I64}


class RowFunction:
    """Emits one row function."""

    def __init__(self, f: Fn, structure: Structure, isa: ISA):
        self.f, self.s, self.isa = f, structure, isa
        self.w = width(structure, isa)
        self.ops = Ops(f, isa, self.w)
        price = self.price = cost(structure)
        self.unroll = unroll(price)
        many = self.many = vectors_at_once(structure, isa)
        self.wide = Ops(f, isa, many * self.w) if many > 1 else None
        if goes_in_pairs(structure) and isa.schedule:
            f.schedule_for(isa.schedule)
        self.args = f.args[0]
        self.no, self.nj = f.word(self.args, ua.R_O), f.word(self.args, ua.R_J)
        self.first = f.word(self.args, ua.R_FIRST).ne(0)
        self.past = f.word(self.args, ua.R_STREAM).ne(0)
        columns = f.word(self.args, ua.R_MODE).eq(ua.COLUMNS)
        self.parts = columns & f.word(self.args, ua.R_PARTS).ne(0)
        self.outputs = len(structure.outputs)
        self.divisors = {self.outputs + number for number in structure.divisors}  # and inverses, by operand
        self.holds = self._holds()
        self.slots = [f.stack(self.w * STORAGES[name].itemsize) for name in structure.stored]

    def _holds(self) -> Val:
        """Divisors are one element along o, or repeat themselves after a whole part of the vectors that are kept."""
        f, one, period = self.f, self.f.const(I1, 1), self.f.word(self.args, ua.R_PERIOD)
        for number in self.divisors:
            one = one & f.word(self.args, ua.R_OPERANDS + ua.R_WORDS * number + ua.R_KIND).eq(na.BROADCAST)
        return one | (period.ne(0) & (f.i64(PERIOD * self.w) % f.max(period, 1)).eq(0))

    def emit(self) -> None:
        f = self.f
        special = OverRows if self.s.over_rows else NearRows if self.s.near else None
        special = CheckeredRows if self.s.points else special
        if special:
            special(self).emit()
        elif self.s.reduces:
            with f.if_else(f.word(self.args, ua.R_MODE).eq(ua.ROWS)) as (rows, columns):
                with rows:
                    self._loop(ua.ROWS)
                with columns:
                    self._columns()
        else:
            self._loop(ua.MAP)
        f.ret()

    def _loop(self, mode: int) -> None:
        f, done = self.f, self.f.var(0)
        if goes_apart(self.s):
            with f.if_(f.word(self.args, ua.R_APART).ne(0)):
                ApartRows(self).emit()
                done.set(self.nj)
        with f.if_(done.get() < self.nj):
            self._short(mode, done)
        with f.range(done.get(), self.nj) as j:
            _Row(self, mode, j).emit()

    def _short(self, mode: int, done: Var) -> None:
        """Rows that are not long, where the instruction set has masks."""
        f = self.f
        if not self.isa.masks or self.w == 1 or self.price >= HEAVY:
            return
        few = (self.unroll - 1 if mode == ua.ROWS else _SHORT) * self.w
        with f.if_else(self.no <= self.w) as (one, more):
            with one:
                ShortRows(self, mode).emit(single=True)
                done.set(self.nj)
            with more:
                if few > self.w:
                    with f.if_(self.no <= few):
                        ShortRows(self, mode).emit(single=False)
                        done.set(self.nj)
                if not self.s.reduces and not self.divisors:
                    with f.if_((done.get() < self.nj) & self._is_plain()):
                        PlainRows(self).emit()
                        done.set(self.nj)

    def _is_plain(self) -> Val:
        """All inputs run along rows that are not long, in cache."""
        f = self.f
        kinds = [f.word(self.args, ua.R_OPERANDS + ua.R_WORDS * n + ua.R_KIND) for n in range(len(self.s.stored))]
        plain = (self.no * STORAGES[self.s.stored[0]].itemsize < ua.LONG_ROW) & self.past.eq(0)
        for kind in kinds[self.outputs :]:
            plain = plain & kind.ne(na.BROADCAST)
        return plain

    def mask(self, count: Val) -> Val:
        """The first ``count`` lanes, of which there is at least one."""
        f, w = self.f, self.w
        if w == 1:
            return f.const(I1, 1)
        bits = f.i64(-1) >> (f.i64(64) - count)
        return f.bitcast(bits if w == 64 else f.convert(bits, "trunc", ir.IntType(w)), vector_type(I1, w))

    def _columns(self) -> None:
        """Light structures combine several rows before they touch the results, but for those whose divisors are one
        element of a row: it has one place for all rows."""
        f, done = self.f, self.f.var(0)
        if self.unroll > 1 and all(out.reduce for out in self.s.outputs) and not self.divisors:
            together = f.select(f.word(self.args, ua.R_MODE).eq(ua.COLUMNS), self.nj, f.i64(0))
            with f.range(0, together - (_GROUP - 1), _GROUP) as j:
                start = _emit_group([_Row(self, ua.COLUMNS, j + n) for n in range(_GROUP)])
                with f.range(j, j + _GROUP) as one:
                    _Row(self, ua.COLUMNS, one).emit(start)
                done.set(j + _GROUP)
        with f.range(done.get(), self.nj) as j:
            _Row(self, ua.COLUMNS, j).emit()
        with f.if_(self.parts):
            add_parts(self)

    def compute(self, values: list[Value], ops: Ops | None = None, s: Structure | None = None) -> None:
        """Appends the values of all nodes to those of the inputs; ``ops``: of another width; ``s``: of another structure."""
        ops, s = ops or self.ops, s or self.s
        for node in s.nodes:
            args, dtypes = [values[a] for a in node.args], [s.dtype(a) for a in node.args]
            values.append(ops.apply(node, args, dtypes))

    def combine(self, number: int, value: Value, at: Val) -> None:
        """Combine one value with a result of a row, unless that is not there yet."""
        one, out = Ops(self.f, self.isa, 1), self.s.outputs[number]
        dtype = self.s.dtype(out.value)
        old = one.select(self.first, one.identity(out.reduce, dtype), one.load(dtype, at))
        one.store(dtype, one.combine(out.reduce, dtype, old, value), at)


class _Row:
    def __init__(self, kernel: RowFunction, mode: int, j: Val):
        self.k, self.f, self.s, self.ops, self.w = kernel, kernel.f, kernel.s, kernel.ops, kernel.w
        self.isa, self.mode = kernel.isa, mode
        self.fresh = kernel.first
        if mode == ua.COLUMNS:  # and where the problem reduces nothing
            self.fresh = (kernel.first | kernel.parts) & (j.eq(0) | self.f.word(kernel.args, ua.R_MODE).eq(ua.MAP))
        self.operands = [self._operand(number, name, j) for number, name in enumerate(self.s.stored)]
        self.totals: dict[tuple[int, int], list[Var]] = {}
        if mode == ua.ROWS:
            for number, out in enumerate(self.s.outputs):
                if out.reduce:
                    start = self.ops.identity(out.reduce, self.s.dtype(out.value))
                    for lane in range(kernel.unroll):
                        self.totals[number, lane] = [Var(self.f, part) for part in parts_of(start)]

    def _operand(self, number: int, dtype: str, j: Val) -> RowOperand:
        """An input that is one element is repeated in a vector of its own."""
        f, words = self.f, self.k.args + 8 * (ua.R_OPERANDS + ua.R_WORDS * number)
        at = f.word(words, ua.R_BASE) + f.word(f.word(words, ua.R_TABLE), j)
        if number < self.k.outputs:
            return RowOperand(dtype=dtype, at=at, step=f.i64(-1))
        one, place = f.word(words, ua.R_KIND).eq(na.BROADCAST), Var(f, at)
        with f.if_(one):
            raw = Converter(f, self.isa, 1).load(dtype, at)
            f.store(self.ops.converter.splat(raw), self.k.slots[number])
            place.set(self.k.slots[number])
        return RowOperand(dtype=dtype, at=place.get(), step=f.select(one, f.i64(0), f.i64(-1)))

    # -- the loop over o -------------------------------------------------------------------------------------
    def emit(self, start: Val | int = 0) -> None:
        """All elements from ``start`` on."""
        f, done = self.f, self.f.var(start)
        past, head = self._head()
        runs = self.runs()
        with f.while_() as leave:
            leave(done.get() >= self.k.no)
            if self.k.unroll > 1:
                self._whole(done, runs, past, head)
            elif self.k.wide:
                with f.if_(runs & (done.get() >= head)):
                    self._together(done, self.k.no, past, plain=True)
            with f.if_(done.get() < self.k.no):
                self._single(done, past, head)
        if self.mode == ua.ROWS:
            self._finish()

    def runs(self) -> Val:
        """All inputs but divisors run along o."""
        runs = self.operands[0].step
        for number, operand in enumerate(self.operands[self.k.outputs :], self.k.outputs):
            runs = runs if number in self.k.divisors else runs & operand.step
        return runs.ne(0)

    def _held(self, start: Val) -> tuple[dict[int, Periodic], Val]:
        """Divisors and their inverses from this element on, if they repeat themselves; whether all are finite."""
        found, finite = {}, self.f.const(I1, 1)
        for number in sorted(self.k.divisors):
            name, parts = self.operands[number].dtype, [RowPart(i=start + n * self.w) for n in range(PERIOD)]
            found[number] = Periodic(self.f, [self.ops.load(name, self._at(number, part, False)) for part in parts])
            if number - self.k.outputs in self.s.inverses:
                finite = finite & found[number].finite(self.ops.floats(name))
        return found, finite

    def _head(self) -> tuple[Val, Val]:
        """Whether vectors go past the caches, and how many elements come before the first aligned one."""
        f, w, outs = self.f, self.w, self.operands[: self.k.outputs]
        item = outs[0].item
        before = (f.i64(0) - outs[0].at) & (LINE - 1)
        if self.s.reduces or any(w * out.item & (w * out.item - 1) for out in outs):
            return f.const(I1, 0), f.i64(0)
        head, whole = before // item, (before % item).eq(0)
        past = self.k.past & whole
        for out in outs:
            past = past & ((out.at + head * out.item) & (w * out.item - 1)).eq(0)
        # a store across two lines takes as long as two
        return past, f.select(past | (whole & (self.k.no * item >= ua.LONG_ROW)), head, f.i64(0))

    def _whole(self, done: Var, runs: Val, past: Val, head: Val) -> None:
        """As many vectors as there are, ``unroll`` at a time, and what is left of these one by one."""
        f, step = self.f, self.w * self.k.unroll
        end = f.select(done.get() >= head, self.k.no, f.i64(0))

        def loop(steps: bool, past: bool) -> None:
            if self.k.wide:
                self._together(done, end, past, plain=not steps)
            if self.k.divisors or not self.k.wide:
                with f.range(done.get(), end - (step - 1), step) as i:
                    for lane in range(self.k.unroll):
                        self._part(RowPart(i=i + lane * self.w, lane=lane, past=past), plain=not steps)
                    done.set(i + step)
            if not past:  # short rows have many of these
                with f.range(done.get(), end - (self.w - 1), self.w) as i:
                    self._part(RowPart(i=i), plain=not steps)
                    done.set(i + self.w)

        def either(steps: bool) -> None:
            if self.s.reduces:
                return loop(steps, False)
            with f.if_else(past) as (then, otherwise):
                with then:
                    loop(steps, True)
                with otherwise:
                    loop(steps, False)

        with f.if_else(runs) as (then, otherwise):
            with then:
                either(False)
            with otherwise:
                either(True)

    def _single(self, done: Var, past: Val, head: Val) -> None:
        """The next vector, or the part of it that exists."""
        f, i = self.f, done.get()
        count = f.min(self.k.no - i, self.w)
        count = f.select((i < head), f.min(count, head - i), count)
        if self.isa.masks:
            mask = self.k.mask(count)
            if self.k.unroll == 1 and not self.s.reduces:
                # a heavy structure has this loop alone
                whole = past & count.eq(self.w) & (i >= head)
                self._part(RowPart(i=i, mask=mask), past=whole)
            else:
                self._part(RowPart(i=i, mask=mask))
        else:
            self._copied(i, count, past & (i >= head))
        done.set(i + count)

    def _copied(self, i: Val, count: Val, past: Val) -> None:
        """Part of a vector lies on the stack while it is computed."""
        f, part = self.f, count < self.w
        places = []
        for number, (operand, slot) in enumerate(zip(self.operands, self.k.slots, strict=True)):
            at = operand.at + (i & operand.step) * operand.item
            place = Var(f, at)
            with f.if_(part & operand.step.ne(0)):
                place.set(slot)
                if self._is_read(number):
                    self._elements(slot, at, count, operand.item)
            places.append(place)
        mask = f.lane_mask(count, self.w) if self.w > 1 and self.s.reduces else None
        at = [place.get() for place in places]
        self._part(RowPart(i=i, mask=mask, places=at), past=past & count.eq(self.w))
        with f.if_(part):
            for number, (operand, slot) in enumerate(zip(self.operands[: self.k.outputs], self.k.slots)):
                if not (self.mode == ua.ROWS and self.s.outputs[number].reduce):
                    self._elements(operand.at + i * operand.item, slot, count, operand.item)

    def _is_read(self, number: int) -> bool:
        """An input but an inverse, as single vectors are divided, or what results along o are combined with."""
        if number >= self.k.outputs:
            return number - self.k.outputs not in self.s.inverses
        return self.mode == ua.COLUMNS and bool(self.s.outputs[number].reduce)

    def _elements(self, dst: Val, src: Val, count: Val, item: int) -> None:
        f, unit = self.f, min(item, 8)
        with f.range(0, count * (item // unit)) as n:
            f.store(f.load(_INTS[unit], src + n * unit), dst + n * unit)

    # -- elements --------------------------------------------------------------------------------------------
    def _part(self, part: RowPart, *, plain: bool = False, past: Val | None = None) -> None:
        """Loads, arithmetic and stores of a vector; ``plain``: all inputs but divisors run along o. ``past``,
        where it is given, decides at run time."""
        load_mask = part.mask if part.places is None else None
        at = [self._at(number, part, plain) for number in range(len(self.operands))]
        self._ask(at, part.lane, part.past if past is None else past)
        values = self.values(at[self.k.outputs :], load_mask)
        self._keep(dict(enumerate(values)), at, part, load_mask, past)

    def _keep(
        self, values: dict[int, Value], at: list[Val], part: RowPart, load_mask: Val | None, past: Val | None
    ) -> None:
        """Store the outputs among the values at these addresses, or combine them with what is there."""
        f, s, ops = self.f, self.s, self.ops
        for number, out in enumerate(s.outputs):
            dtype, value = s.dtype(out.value), values[out.value]
            if out.reduce and self.mode == ua.ROWS:
                self._gather(number, value, part)
            elif out.reduce:
                self.add_to(number, value, at[number], load_mask)
            elif past is None or self.w * self.operands[number].item % 16:
                ops.store(dtype, value, at[number], load_mask, past=part.past and self._can_stream(number))
            else:
                with f.if_else(past) as (then, otherwise):
                    with then:
                        ops.store(dtype, value, at[number], past=True)
                    with otherwise:
                        ops.store(dtype, value, at[number], load_mask)

    def _together(self, done: Var, end: Val, past: bool | Val, plain: bool) -> None:
        """Whole vectors up to ``end``, several at a time; none where divisors do not repeat themselves or have no inverse."""
        f, step = self.f, self.k.many * self.w
        least = max(step, PERIOD * self.w) if self.k.divisors else step
        with f.if_(self.k.holds & (done.get() + least <= end)):
            divisors, finite = self._held(done.get())
            with f.if_(finite), f.range(done.get(), end - (step - 1), step) as i:
                self._several(i, past, plain, divisors)
                done.set(i + step)

    def _several(self, i: Val, past: bool | Val, plain: bool, divisors: dict[int, Periodic]) -> None:
        """Vectors from i on, each instruction of all in turn. ``past`` as in `RowPart`, or decided at run time."""
        f, s, w, wide = self.f, self.s, self.w, self.k.wide
        assert wide is not None
        parts = [RowPart(i=i + lane * w, lane=lane) for lane in range(self.k.many)]
        at = [[self._at(number, part, plain) for number in range(len(self.operands))] for part in parts]
        for lane, places in enumerate(at):
            self._ask(places, lane, past)
        values: list[Value] = []
        for number, name in enumerate(s.inputs, self.k.outputs):
            if number in divisors:
                values.append(divisors[number].following(self.k.many))
                continue
            if plain:
                values.append(wide.load(name, at[0][number]))
                continue
            values.append(f.joined([self.ops.load(name, places[number]) for places in at]))
        self.k.compute(values, wide)

        def keep(past: bool) -> None:
            for lane, part in enumerate(parts):
                lanes = range(lane * w, (lane + 1) * w)
                own = {out.value: f.shuffle(values[out.value], values[out.value], lanes) for out in s.outputs}
                self._keep(own, at[lane], replace(part, past=past), None, None)

        if isinstance(past, bool):
            keep(past)
            return
        with f.if_else(past) as (then, otherwise):
            with then:
                keep(True)
            with otherwise:
                keep(False)

    def _ask(self, at: list[Val], lane: int, past: bool | Val) -> None:
        """For the lines that come, of inputs as large as results that go past the caches. Where it is known at run time
        alone that they do not, for those that are loaded: what lies behind a short row is nobody's."""
        f, ahead = self.f, cores.here().ahead
        if past is False or not ahead:
            return
        further = f.i64(ahead) if past is True else f.select(past, f.i64(ahead), f.i64(0))
        for number, address in enumerate(at[self.k.outputs :], self.k.outputs):
            before = lane * self.w * self.operands[number].item  # by earlier lanes of the turn
            if number not in self.k.divisors and before % LINE == 0:
                f.prefetch(address + further)

    def values(self, at: list[Val], mask: Val | None = None) -> list[Value]:
        """Of the inputs, at these addresses, and of all nodes."""
        s, ops = self.s, self.ops
        values = [ops.load(name, address, mask) for name, address in zip(s.inputs, at, strict=True)]
        self.k.compute(values)
        return values

    def add_to(self, number: int, value: Value, at: Val, mask: Val | None = None) -> None:
        """Combine a vector with results along o, unless these are not there yet."""
        out, ops = self.s.outputs[number], self.ops
        dtype = self.s.dtype(out.value)
        old = ops.select(self._every(self.fresh), ops.identity(out.reduce, dtype), ops.load(dtype, at, mask))
        ops.store(dtype, ops.combine(out.reduce, dtype, old, value), at, mask)

    def _can_stream(self, number: int) -> bool:
        return self.w * self.operands[number].item % 16 == 0

    def _at(self, number: int, part: RowPart, plain: bool) -> Val:
        operand = self.operands[number]
        if part.places is not None:
            return part.places[number]
        if number < self.k.outputs or (plain and number not in self.k.divisors):
            return operand.at + part.i * operand.item
        return operand.at + (part.i & operand.step) * operand.item

    def _every(self, bit: Val) -> Val:
        return self.f.splat(bit, self.w)

    # -- reductions ------------------------------------------------------------------------------------------
    def _gather(self, number: int, value: Value, part: RowPart) -> None:
        """Combine a vector with its accumulators."""
        out, ops = self.s.outputs[number], self.ops
        dtype = self.s.dtype(out.value)
        if part.mask is not None:
            value = ops.select(part.mask, value, ops.identity(out.reduce, dtype))
        total = self.totals[number, part.lane]
        old = joined([var.get() for var in total])
        for var, new in zip(total, parts_of(ops.combine(out.reduce, dtype, value, old)), strict=True):
            var.set(new)

    def _finish(self) -> None:
        """One result for the row."""
        for number, out in enumerate(self.s.outputs):
            if not out.reduce:
                continue
            dtype = self.s.dtype(out.value)
            combine: Callable = self.ops.combine
            totals = [joined([v.get() for v in self.totals[number, lane]]) for lane in range(self.k.unroll)]
            while len(totals) > 1:
                totals = [combine(out.reduce, dtype, a, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
            self.k.combine(number, self.ops.across(out.reduce, dtype, totals[0]), self.operands[number].at)


def _emit_group(rows: list[_Row]) -> Val:
    """Whole vectors of rows that are combined with the same results; how many elements that makes."""
    first = rows[0]
    f, w, s, outputs = first.f, first.w, first.s, first.k.outputs
    done = f.var(0)
    with f.range(0, f.select(first.runs(), first.k.no, f.i64(0)) - (w - 1), w) as i:
        values = [row.values([x.at + i * x.item for x in row.operands[outputs:]]) for row in rows]
        for number, out in enumerate(s.outputs):
            parts = [value[out.value] for value in values]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [first.ops.combine(out.reduce, s.dtype(out.value), *pair) for pair in pairs]
            first.add_to(number, parts[0], first.operands[number].at + i * first.operands[number].item)
        done.set(i + w)
    return done.get()


COMMON = {"fused_run": build_run, "fused_tile": build_tile, "fused_stage": build_stage}  # of all structures


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """One of `COMMON`, or the row function of the structure that is called ``name``."""
    if name in COMMON:
        COMMON[name](module, name, isa)
        return
    f = Fn(module, name, [I64])
    RowFunction(f, find(name), isa).emit()
