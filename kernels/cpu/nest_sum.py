"""Task function of the sums over a nest: out[o] (+)= sum over r of a[o, r].

    for box of outputs               O entries, an accumulator each
      total = 0
      for box of summed entries      Q x L of them: L adjacent in a, Q others
        part = 0
        add the box to part          SUM_COLUMNS: rows along o, eight at once; SUM_ROWS: runs along l; else staged
        total += part
      out (+)= total

The two levels and the trees within keep the error of a float sum far below the bound of adding one by one. The order
of additions depends on the plan alone.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import nest_abi as na
from .convert import Converter
from .emit import I64, Fn, Val, Var
from .nest_frame import A, OUT, Arithmetic, Box, Frame, Odometer, Stage, emit_row, row_width
from .storage import STORAGES

_GROUP = 8  # rows added in a tree
_RUNS = 4  # vector accumulators of a run


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
        self.total, self.part = frame.scratch(na.N_B_STAGE), frame.scratch(na.N_B_STAGE)
        self.part = self.part + frame.word(na.N_O) * self.item
        self.r_counters = f.stack(8 * 72)
        self.stage = Stage(frame, OUT)
        boxes, summed = frame.word(na.N_BOXES), frame.word(na.N_R_BOXES)
        stride = frame.word(na.N_TASK_STRIDE)
        shares = [Var(f, v) for v in (f.i64(0), boxes, f.i64(0), summed)]
        with f.if_else(stride.ne(0)) as (shared, own):
            with shared:
                which = (2, 3), frame.share(summed)
                self._set(shares, which)
            with own:
                which = (0, 1), frame.share(boxes)
                self._set(shares, which)
        first, last, self.r_first, self.r_last = (v.get() for v in shares)
        self.shift = stride * frame.task
        frame.boxes(first, last, self._box)

    @staticmethod
    def _set(shares: list[Var], which) -> None:
        for index, value in zip(*which, strict=True):
            shares[index].set(value)

    def _box(self, box: Box) -> None:
        f, frame = self.f, self.frame
        out, a = box.at[0] + self.shift, Var(f, box.at[1])
        self._zero(self.total, box.no)
        table = frame.vector(na.N_R_TABLE)
        odometer = Odometer(f, table, frame.word(na.N_R_RANK), self.r_counters, [a], [2])
        odometer.start(self.r_first)
        with f.range(self.r_first, self.r_last) as index:
            nl = self._extent(na.N_L, 0)
            nq = self._extent(na.N_Q, 1)
            self._zero(self.part, box.no)
            self._add_box(a.get(), box.no, nq, nl)
            self._add_parts(box.no)
            with f.if_(index + 1 < self.r_last):
                odometer.advance()
        self._finish(out, box)

    def _extent(self, word: int, digit: int) -> Val:
        f, count = self.f, self.frame.word(word)
        return f.min(count, self.frame.word(word + 1) - f.word(self.r_counters, digit) * count)

    # -- accumulators ----------------------------------------------------------------------------------------
    def _zero(self, buffer: Val, count: Val) -> None:
        f = self.f

        def body(w: int, i: Val, mask: Val | None) -> None:
            c = Converter(f, self.isa, w)
            c.store(self.compute, f.zero(c.type(self.compute)), buffer + i * self.item, mask=mask)

        emit_row(f, self.isa, self.width, count, body, unroll=1)

    def _add_parts(self, count: Val) -> None:
        f = self.f

        def body(w: int, i: Val, mask: Val | None) -> None:
            c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
            total, part = (c.load(self.compute, b + i * self.item, mask=mask) for b in (self.total, self.part))
            c.store(self.compute, op.add(total, part), self.total + i * self.item, mask=mask)

        emit_row(f, self.isa, self.width, count, body, unroll=1)

    def _finish(self, out: Val, box: Box) -> None:
        f, item = self.f, STORAGES[self.target].itemsize
        adds = (self.frame.word(na.N_FLAGS) & na.ADD_OUT).ne(0)
        base = self.stage.enter(out, box.no, f.i64(1), read=adds)
        to = base + f.word(self.stage.table)

        def loop(add: bool) -> None:
            def body(w: int, i: Val, mask: Val | None) -> None:
                c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
                value = c.load(self.compute, self.total + i * self.item, mask=mask)
                if add:
                    old = c.load(self.target, to + i * item, mask=mask)
                    value = op.add(c.cast(old, self.target, self.compute), value)
                c.store(self.target, c.cast(value, self.compute, self.target), to + i * item, mask=mask)

            emit_row(f, self.isa, self.width, box.no, body, unroll=1)

        with f.if_else(adds) as (then, otherwise):
            with then:
                loop(True)
            with otherwise:
                loop(False)
        self.stage.leave(out, base, box.no, f.i64(1))

    # -- one box ---------------------------------------------------------------------------------------------
    def _add_box(self, a: Val, no: Val, nq: Val, nl: Val) -> None:
        f, frame = self.f, self.frame
        vector_o, vector_q = frame.vector(na.N_A_O), frame.vector(na.N_A_Q)
        with f.if_else(self.mode.eq(na.SUM_ROWS)) as (rows, others):
            with rows:
                self._rows(a, vector_o, vector_q, no, nq, nl)
            with others:
                base, table = Var(f, a), Var(f, vector_q)
                with f.if_(self.mode.ne(na.SUM_COLUMNS)):
                    buffer, staged = frame.scratch(na.N_A_STAGE), frame.vector(na.N_A_J)
                    along, across = (vector_o, no), (vector_q, nq)
                    by_rows = self.mode.eq(na.SUM_STAGED_ROWS)
                    first = [f.select(by_rows, x, y) for x, y in zip(across, along, strict=True)]
                    second = [f.select(by_rows, x, y) for x, y in zip(along, across, strict=True)]
                    kind, run = frame.word(na.N_A_MODE) - na.STAGED, frame.word(na.N_A_RUN)
                    zero = f.i64(0)
                    args = [buffer, a, first[1], second[1], zero, first[0], staged, second[0], kind, run]
                    f.call(frame.word(na.N_A_MOVE), args)
                    base.set(buffer)
                    table.set(staged)
                with f.if_else(self.mode.eq(na.SUM_STAGED_ROWS)) as (then, otherwise):
                    with then:
                        # staged [o][q]: one run of q for each o
                        self._rows(base.get(), table.get(), frame.vector(na.N_A_FAR), no, f.i64(1), nq)
                    with otherwise:
                        self._columns(base.get(), table.get(), no, nq)

    def _value(self, c: Converter, at: Val, mask: Val | None) -> Val:
        value = c.cast(c.load(self.source, at, mask=mask), self.source, self.compute)
        if STORAGES[self.compute].parts == 2:
            value = c.flip(value, c.imaginary_signs(self.compute, self.conjugate))
        return value

    def _columns(self, a: Val, table: Val, no: Val, nq: Val) -> None:
        """Rows along o: eight are added in a tree, then to the accumulators."""
        f = self.f
        done = f.var(0)
        for group in (_GROUP, 1):
            with f.range(done.get(), nq - (group - 1), group) as q:
                rows = [a + f.word(table, q + k) for k in range(group)]
                self._add_rows(rows, no)
                done.set(q + group)

    def _add_rows(self, rows: list[Val], no: Val) -> None:
        f = self.f

        def body(w: int, i: Val, mask: Val | None) -> None:
            c, op = Converter(f, self.isa, w), Arithmetic(f, self.isa, self.compute, w)
            values = [self._value(c, row + i * self.item_a, mask) for row in rows]
            while len(values) > 1:
                values = [op.add(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
            at = self.part + i * self.item
            c.store(self.compute, op.add(c.load(self.compute, at, mask=mask), values[0]), at, mask=mask)

        emit_row(f, self.isa, self.width, no, body, unroll=1)

    def _rows(self, a: Val, vector_o: Val, vector_q: Val, no: Val, nq: Val, nl: Val) -> None:
        """Runs along l, into four vectors; their lanes are added at the end."""
        f, width = self.f, self.width
        wide, one = Converter(f, self.isa, width), Converter(f, self.isa, 1)
        add, add_one = Arithmetic(f, self.isa, self.compute, width), Arithmetic(f, self.isa, self.compute, 1)
        with f.range(0, no) as o:
            sums = [Var(f, f.zero(wide.type(self.compute))) for _ in range(_RUNS)]
            rest = Var(f, f.zero(one.type(self.compute)))
            with f.range(0, nq) as q:
                run = a + f.word(vector_o, o) + f.word(vector_q, q)
                self._run(run, nl, sums, rest, add, add_one)
            values = [v.get() for v in sums]
            vector = add.add(add.add(values[0], values[1]), add.add(values[2], values[3]))
            total = add_one.add(self._across(vector), rest.get())
            at = self.part + o * self.item
            one.store(self.compute, add_one.add(one.load(self.compute, at), total), at)

    def _run(self, run: Val, count: Val, sums: list[Var], rest: Var, add: Arithmetic, add_one: Arithmetic) -> None:
        f, width = self.f, self.width
        done = f.var(0)
        for vectors in (_RUNS, 1) if width > 1 else (_RUNS,):
            step = vectors * width
            with f.range(done.get(), count - (step - 1), step) as i:
                for k in range(vectors):
                    value = self._value(Converter(f, self.isa, width), run + (i + k * width) * self.item_a, None)
                    sums[k].set(add.add(sums[k].get(), value))
                done.set(i + step)
        with f.range(done.get(), count) as i:
            value = self._value(Converter(f, self.isa, 1), run + i * self.item_a, None)
            rest.set(add_one.add(rest.get(), value))

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
