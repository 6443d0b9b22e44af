"""Task function of the sums over a nest: out[o] (+)= sum over r of a[o, r].

    for box of outputs               J rows of O entries, an accumulator each
      for box of summed entries      Q x L of them: L adjacent in a, Q others
        for j                        part = sum of the box: SUM_COLUMNS: rows along o, eight at once; SUM_ROWS: runs
                                     along l, of eight o at once where they are short; else staged so that one of
                                     them can be done
        total += part                the first part is written to total, and total is out where it can be
      out (+)= total               turned round where the output runs along j

The two levels and the trees within keep the error of a float sum far below the bound of adding one by one. The order
of additions depends on the plan alone.
"""

from __future__ import annotations

from typing import Callable

from llvmlite import ir

from ..isa import ISA
from . import nest_abi as na
from .convert import Converter
from .emit import I1, I64, Fn, Val, Var
from .fold import fold
from .nest_frame import MAX_RANK, OUT, A, Arithmetic, Box, Frame, Odometer, Stage, count_mask, emit_row, row_width
from .storage import STORAGES

_GROUP = 8  # rows added in a tree
_RUNS = 4  # vector accumulators of a run
_TOGETHER = 8  # rows whose elements are added at once
_CHAIN = 16  # rows, or pairs of them, added one after the other


def build_sum(module: ir.Module, name: str, source: str, target: str, isa: ISA) -> None:
    """Sums in the compute dtype of ``target``."""
    f = Fn(module, name, [I64] * 4)
    SumNest(Frame(f, (OUT, A)), source, target, isa).emit()
    f.ret()


class SumNest:
    def __init__(self, frame: Frame, source: str, target: str, isa: ISA):
        self.frame, self.f, self.isa = frame, frame.f, isa
        self.source, self.target, self.compute = source, target, STORAGES[target].compute
        self.item_a, self.item = STORAGES[source].itemsize, STORAGES[self.compute].itemsize
        self.width = row_width(isa, (source, self.compute))
        self.conjugate = frame.word(na.N_FLAGS) & na.CONJ_A
        self.mode = frame.word(na.N_R_MODE)

    def emit(self) -> None:
        f, frame = self.f, self.frame
        self.stage = Stage(frame, OUT)
        self.acc_rows, self.a_rows = frame.vector(na.N_B_J), frame.vector(na.N_A_J)
        self.total = frame.scratch(na.N_B_STAGE)
        self.part = self.total + frame.word(na.N_O) * frame.word(na.N_J) * self.item
        self.adds = (frame.word(na.N_FLAGS) & na.ADD_OUT).ne(0)
        self.in_place = f.const(I1, 0)
        if self.target == self.compute:
            kept = self.adds | self.stage.staged
            self.in_place = kept.eq(0)
        self.r_counters = f.stack(8 * MAX_RANK)
        first, last, self.r_first, self.r_last = self._shares()
        self.shift = frame.word(na.N_TASK_STRIDE) * frame.task
        frame.boxes(first, last, self._box)

    def _shares(self) -> tuple[Val, ...]:
        """Boxes of outputs and boxes of summed entries of this task; tasks divide either."""
        f, frame = self.f, self.frame
        boxes, summed = frame.word(na.N_BOXES), frame.word(na.N_R_BOXES)
        shared = frame.word(na.N_TASK_STRIDE).ne(0)
        first, last = frame.share(f.select(shared, summed, boxes))
        zero = f.i64(0)
        return (
            f.select(shared, zero, first),
            f.select(shared, boxes, last),
            f.select(shared, first, zero),
            f.select(shared, last, summed),
        )

    def _box(self, box: Box) -> None:
        f, frame = self.f, self.frame
        out, a = box.at[0] + self.shift, Var(f, box.at[1])
        total = f.select(self.in_place, out, self.total)
        rows = f.select(self.in_place, self.stage.table, self.acc_rows)
        table = frame.vector(na.N_R_TABLE)
        odometer = Odometer(f, table, frame.word(na.N_R_RANK), self.r_counters, [a], [2])
        odometer.start(self.r_first)
        with f.if_(self.r_first >= self.r_last):
            self._zero(total, rows, box)
        with f.range(self.r_first, self.r_last) as index:
            nl, nq = self._extent(na.N_L, 0), self._extent(na.N_Q, 1)
            begins = index.eq(self.r_first)
            to, to_rows = f.select(begins, total, self.part), f.select(begins, rows, self.acc_rows)
            with f.range(0, box.nj) as j:
                self._sum_box(a.get() + f.word(self.a_rows, j), to + f.word(to_rows, j), box.no, nq, nl)
            with f.if_(begins.eq(0)):
                self._add_parts(total, rows, box)
            with f.if_(index + 1 < self.r_last):
                odometer.advance()
        with f.if_(self.in_place.eq(0)):
            self._finish(out, box)

    def _extent(self, word: int, digit: int) -> Val:
        f, count = self.f, self.frame.word(word)
        return f.min(count, self.frame.word(word + 1) - f.word(self.r_counters, digit) * count)

    # -- accumulators ----------------------------------------------------------------------------------------
    def _zero(self, total: Val, rows: Val, box: Box) -> None:
        f = self.f
        with f.range(0, box.nj) as j:
            at = total + f.word(rows, j)

            def body(w: int, i: Val, mask: Val | None) -> None:
                c = Converter(f, self.isa, w)
                c.store(self.compute, f.zero(c.type(self.compute)), at + i * self.item, mask=mask)

            emit_row(f, self.isa, self.width, box.no, body, unroll=1)

    def _add_parts(self, total: Val, rows: Val, box: Box) -> None:
        f = self.f
        with f.range(0, box.nj) as j:
            at, part = total + f.word(rows, j), self.part + f.word(self.acc_rows, j)

            def body(w: int, i: Val, mask: Val | None) -> None:
                c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
                x, y = (c.load(self.compute, b + i * self.item, mask=mask) for b in (at, part))
                c.store(self.compute, op.add(x, y), at + i * self.item, mask=mask)

            emit_row(f, self.isa, self.width, box.no, body, unroll=1)

    def _finish(self, out: Val, box: Box) -> None:
        f, item = self.f, STORAGES[self.target].itemsize
        base = self.stage.enter(out, box.no, box.nj, read=self.adds)

        def loop(add: bool, source: Val, to: Val) -> None:
            def body(w: int, i: Val, mask: Val | None) -> None:
                c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
                value = c.load(self.compute, source + i * self.item, mask=mask)
                if add:
                    old = c.load(self.target, to + i * item, mask=mask)
                    value = op.add(c.cast(old, self.target, self.compute), value)
                c.store(self.target, c.cast(value, self.compute, self.target), to + i * item, mask=mask)

            emit_row(f, self.isa, self.width, box.no, body, unroll=1)

        with f.range(0, box.nj) as j:
            source, to = self.total + f.word(self.acc_rows, j), base + f.word(self.stage.table, j)
            with f.if_else(self.adds) as (then, otherwise):
                with then:
                    loop(True, source, to)
                with otherwise:
                    loop(False, source, to)
        self.stage.leave_turned(out, base, box.no, box.nj, self.frame.vector(na.N_B_O))

    # -- one row of outputs, one box of summed entries -------------------------------------------------------
    def _sum_box(self, a: Val, to: Val, no: Val, nq: Val, nl: Val) -> None:
        f, frame = self.f, self.frame
        vector_o, vector_q = frame.vector(na.N_A_O), frame.vector(na.N_A_Q)
        base, table, runs = Var(f, a), Var(f, vector_q), Var(f, vector_o)
        nq, nl = Var(f, nq), Var(f, nl)
        by_rows = self.mode.eq(na.SUM_ROWS) | self.mode.eq(na.SUM_STAGED_ROWS)
        with f.if_(self.mode >= na.SUM_STAGED_COLUMNS):
            buffer, staged = frame.scratch(na.N_A_STAGE), frame.vector(na.N_B_FAR)
            along = [f.select(by_rows, x, y) for x, y in ((vector_q, vector_o), (nq.get(), no))]
            across = [f.select(by_rows, x, y) for x, y in ((vector_o, vector_q), (no, nq.get()))]
            kind, run, zero = frame.word(na.N_A_MODE) - na.STAGED, frame.word(na.N_A_RUN), f.i64(0)
            count = along[1] >> frame.word(na.N_A_WIDE)
            args = [buffer, a, count, across[1], zero, along[0], staged, across[0], kind, run]
            f.call(frame.word(na.N_A_MOVE), args)
            base.set(buffer)
            table.set(staged)
            # by rows: staged [o][q], so that q is the run, and the only one
            nl.set(f.select(by_rows, nq.get(), nl.get()))
            nq.set(f.select(by_rows, f.i64(1), nq.get()))
            runs.set(f.select(by_rows, staged, runs.get()))
        with f.if_else(by_rows) as (then, otherwise):
            with then:
                self._rows(base.get(), to, runs.get(), table.get(), no, nq.get(), nl.get())
            with otherwise:
                self._columns(base.get(), to, table.get(), no, nq.get())

    def _value(self, c: Converter, at: Val, mask: Val | None) -> Val:
        value = c.cast(c.load(self.source, at, mask=mask), self.source, self.compute)
        if STORAGES[self.compute].parts == 2:
            value = c.flip(value, c.imaginary_signs(self.compute, self.conjugate))
        return value

    def _columns(self, a: Val, to: Val, table: Val, no: Val, nq: Val) -> None:
        """Rows along o: eight are added in a tree, then to the accumulators."""
        f = self.f
        done = f.var(0)
        with f.if_((self.frame.word(na.N_FLAGS) & na.IN_ORDER).ne(0)):
            self._in_order(a, to, table, no, nq)
            done.set(nq)
        for group in (_GROUP, 4, 2, 1):
            with f.range(done.get(), nq - (group - 1), group) as q:
                rows = [a + f.word(table, q + k) for k in range(group)]
                ahead = []
                if group == _GROUP:
                    # Rows are short pieces of memory, which hardware does not foresee.
                    ahead = [a + f.word(table, f.min(q + group + k, nq - 1)) for k in range(group)]
                self._add_rows(rows, ahead, to, no, q.eq(0))
                done.set(q + group)

    def _add_rows(self, rows: list[Val], ahead: list[Val], to: Val, no: Val, first: Val) -> None:
        f = self.f

        def body(w: int, i: Val, mask: Val | None) -> None:
            c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
            for row in ahead:
                f.prefetch(row + i * self.item_a, locality=2)
            values = [self._value(c, row + i * self.item_a, mask) for row in rows]
            while len(values) > 1:
                values = [op.add(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
            at = to + i * self.item
            old = c.load(self.compute, at, mask=mask)
            old = f.select(first, f.zero(old.type), old)
            c.store(self.compute, op.add(old, values[0]), at, mask=mask)

        emit_row(f, self.isa, self.width, no, body, unroll=1)

    def _in_order(self, a: Val, to: Val, table: Val, no: Val, nq: Val) -> None:
        """Rows along o that are adjacent, from memory: two halves at the same time, the rows of each one after the other,
        which hardware foresees. `_CHAIN` rows of both are added in a row of their own, and that to the accumulators.
        Nothing is asked for early: with two reads for each store, a processor has many lines in view."""
        f = self.f
        chain = self.part + self.frame.word(na.N_O) * self.frame.word(na.N_J) * self.item
        half = nq // 2
        with f.range(0, half) as q:
            rows = [a + f.word(table, at) for at in (q, half + q)]
            begins, ends = (q & (_CHAIN - 1)).eq(0), ((q + 1) & (_CHAIN - 1)).eq(0) | (q + 1).eq(half)

            def pass_over(sources: list[Val], target: Val) -> None:
                def body(w: int, i: Val, mask: Val | None) -> None:
                    c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
                    value = op.add(*(self._value(c, row + i * self.item_a, mask) for row in rows))
                    for source in sources:
                        value = op.add(c.load(self.compute, source + i * self.item, mask=mask), value)
                    c.store(self.compute, value, target + i * self.item, mask=mask)

                emit_row(f, self.isa, self.width, no, body, unroll=2)

            with f.if_else(ends) as (last, goes_on):
                with goes_on, f.if_else(begins) as (first, later):
                    with first:
                        pass_over([], chain)
                    with later:
                        pass_over([chain], chain)
                with last, f.if_else(q < _CHAIN) as (only, later):
                    with only, f.if_else(begins) as (alone, several):
                        with alone:
                            pass_over([], to)
                        with several:
                            pass_over([chain], to)
                    with later, f.if_else(begins) as (alone, several):
                        with alone:
                            pass_over([to], to)
                        with several:
                            pass_over([chain, to], to)
        with f.if_((nq & 1).ne(0)):
            self._add_rows([a + f.word(table, nq - 1)], [], to, no, half.eq(0))

    def _rows(self, a: Val, to: Val, vector_o: Val, vector_q: Val, no: Val, nq: Val, nl: Val) -> None:
        """Runs along l, in vectors whose lanes are added at the end; in the order in which they lie in memory."""
        f = self.f
        with f.if_else((self.frame.word(na.N_FLAGS) & na.RUNS_ACROSS).ne(0)) as (then, otherwise):
            with then:
                self._rows_across(a, to, vector_o, vector_q, no, nq, nl)
            with otherwise:
                done = f.var(0)
                if self.width > 1:
                    with f.if_((self.frame.word(na.N_FLAGS) & na.SHORT_RUNS).ne(0)):
                        self._rows_together(a, to, vector_o, vector_q, no, nq, nl, done)
                with f.range(done.get(), no) as o:
                    sums = self._accumulators()
                    with f.range(0, nq) as q:
                        self._run(a + f.word(vector_o, o) + f.word(vector_q, q), nl, sums)
                    self._store_total(self._tree(sums), to, o)

    def _rows_together(
        self, a: Val, to: Val, vector_o: Val, vector_q: Val, no: Val, nq: Val, nl: Val, done: Var
    ) -> None:
        """A vector for each of several entries of O, whose elements are added at once."""
        f, width, parts = self.f, self.width, STORAGES[self.compute].parts
        count = _TOGETHER
        c, add = Converter(f, self.isa, width), Arithmetic(f, self.isa, self.compute, width).add
        whole, rest = nl // width, nl % width
        with f.range(0, no - (count - 1), count) as o:
            rows = [a + f.word(vector_o, o + k) for k in range(count)]
            sums = [Var(f, f.zero(c.type(self.compute))) for _ in rows]

            def take(w: int, shift: Val, mask: Val | None = None) -> None:
                for row, total in zip(rows, sums):
                    value = self._value(Converter(f, self.isa, w), row + shift, mask)
                    total.set(add(total.get(), self._padded(value, w)))

            with f.range(0, nq) as q:
                shift = f.word(vector_q, q)
                with f.range(0, whole) as i:
                    take(width, shift + i * (width * self.item_a))
                self._rest(rest, lambda w, at, mask: take(w, shift + (whole * width + at) * self.item_a, mask))
            folded = fold(f, add, [total.get() for total in sums], width, parts)
            each = count // len(folded)
            for k, value in enumerate(folded):
                value = value if each == width else f.shuffle(value, value, range(each * parts))
                Converter(f, self.isa, each).store(self.compute, value, to + (o + k * each) * self.item)
            done.set(o + count)

    def _rest(self, rest: Val, take: Callable[[int, Val, Val | None], None]) -> None:
        """Less than a vector: through a mask, or in pieces that halve."""
        f, w = self.f, self.width // 2
        if self.isa.masks and w:
            with f.if_(rest > 0):
                take(self.width, f.i64(0), count_mask(f, rest, self.width))
            return
        done = f.var(0)
        while w:
            with f.if_((rest & w).ne(0)):
                take(w, done.get(), None)
                done.add(w)
            w //= 2

    def _rows_across(self, a: Val, to: Val, vector_o: Val, vector_q: Val, no: Val, nq: Val, nl: Val) -> None:
        """A vector in memory for each o, because runs that follow each other belong to different ones."""
        f, buffer, pitch = self.f, self.frame.scratch(na.N_A_STAGE), self.isa.vector_bits // 8
        wide, add = Converter(f, self.isa, self.width), Arithmetic(f, self.isa, self.compute, self.width)
        with f.range(0, nq) as q:
            with f.range(0, no) as o:
                sums, at = self._accumulators(), buffer + o * pitch
                self._run(a + f.word(vector_o, o) + f.word(vector_q, q), nl, sums)
                old = wide.load(self.compute, at)
                old = f.select(q.eq(0), f.zero(old.type), old)
                wide.store(self.compute, add.add(old, self._tree(sums)), at)
        with f.range(0, no) as o:
            self._store_total(wide.load(self.compute, buffer + o * pitch), to, o)

    def _accumulators(self) -> list[Var]:
        ty = Converter(self.f, self.isa, self.width).type(self.compute)
        return [Var(self.f, self.f.zero(ty)) for _ in range(_RUNS)]

    def _tree(self, sums: list[Var]) -> Val:
        add, values = Arithmetic(self.f, self.isa, self.compute, self.width), [v.get() for v in sums]
        while len(values) > 1:
            values = [add.add(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def _store_total(self, vector: Val, to: Val, o: Val) -> None:
        Converter(self.f, self.isa, 1).store(self.compute, self._across(vector), to + o * self.item)

    def _run(self, run: Val, count: Val, sums: list[Var]) -> None:
        """Adds ``count`` adjacent elements."""
        f, width = self.f, self.width
        add, done = Arithmetic(f, self.isa, self.compute, width), f.var(0)

        def take(which: int, w: int, at: Val, mask: Val | None = None) -> None:
            value = self._padded(self._value(Converter(f, self.isa, w), run + at * self.item_a, mask), w)
            sums[which].set(add.add(sums[which].get(), value))

        for vectors in (_RUNS, 1):
            step = vectors * width
            with f.range(done.get(), count - (step - 1), step) as i:
                for k in range(vectors):
                    take(k, width, i + k * width)
                done.set(i + step)
        start = done.get()
        self._rest(count - start, lambda w, at, mask: take(w % _RUNS, w, start + at, mask))

    def _padded(self, value: Val, w: int) -> Val:
        """``w`` elements in a whole vector, the others 0."""
        f, parts = self.f, STORAGES[self.compute].parts
        if w == self.width:
            return value
        zero = f.zero(Converter(f, self.isa, self.width).type(self.compute))
        if w * parts == 1:
            return f.insert(zero, value, 0)
        lanes = range(self.width * parts)
        return f.shuffle(value, f.zero(value.type), [l if l < w * parts else w * parts for l in lanes])

    def _across(self, vector: Val) -> Val:
        """Sum of the elements of a vector, by halves."""
        f, w, parts = self.f, self.width, STORAGES[self.compute].parts
        while w > 1:
            w //= 2
            lanes = w * parts
            low, high = (f.shuffle(vector, vector, range(k * lanes, (k + 1) * lanes)) for k in (0, 1))
            vector = Arithmetic(f, self.isa, self.compute, w).add(low, high)
        if parts == 1 and isinstance(vector.type, ir.VectorType):
            return f.extract(vector, 0)
        return vector
