"""The indexed family: elements, or runs of them, at places that index arrays name when the plan runs.

    dense[i, r] = indexed[x(i), r]        gather_<item>           copies bytes
    indexed[x(i), r] = dense[i, r]        scatter_<item>          of equal places the last counts
    indexed[x(i), r] += dense[i, r]       scatteradd_<dtype>      in the order of i

    for units of BLOCK entries of i
      offsets[i] = sum over index arrays of (x + size where x < 0, else x) * step
      for the rest of r
        for i in the unit
          run of r                        vectors where it is adjacent in both operands

Nothing is read or written at an index out of range: where one is met, a task tells the context, by the first one of the
first index array that has one, and ends; the walker ends with it. A scatter looks at all indices before it writes.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import indexed_abi as ia
from .convert import Converter
from .emit import I8, I16, I32, I64, Fn, Val, Var, size_of, vector_type
from .lanes import loop_offsets
from .storage import STORAGES

_INTS = {1: I8, 2: I16, 4: I32, 8: I64}


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``gather_<item>``, ``scatter_<item>`` or ``scatteradd_<dtype>``."""
    op, kind = name.split("_")
    _Indexed(module, name, isa, op, kind).emit()


class _Indexed:
    def __init__(self, module: ir.Module, name: str, isa: ISA, op: str, kind: str):
        self.module, self.name, self.isa, self.op = module, name, isa, op
        self.mover = _Add(isa, kind) if op == "scatteradd" else _Move(isa, int(kind), op == "gather")
        self.offsets, self.report = _build_offsets(module, isa), _build_report(module)

    def emit(self) -> None:
        f = Fn(self.module, self.name, [I64] * 4)
        ctx, step, task, _ = f.args
        bases = f.word(ctx, abi.CTX_BASES)
        out, a = (
            f.word(bases, f.word(step, slot)) + f.word(step, offset)
            for slot, offset in ((abi.OUT_SLOT, abi.OUT_OFFSET), (abi.A_SLOT, abi.A_OFFSET))
        )
        indexed, dense = (a, out) if self.op == "gather" else (out, a)
        units, rest = f.word(step, ia.I_UNITS), f.word(step, ia.I_REST_TOTAL)
        tasks = f.word(step, ia.I_REST_TASKS)
        first, start = (task // tasks) * f.word(step, ia.I_UNIT_SHARE), (task % tasks) * f.word(step, ia.I_REST_SHARE)
        last = f.min(first + f.word(step, ia.I_UNIT_SHARE), units)
        stop = f.min(start + f.word(step, ia.I_REST_SHARE), rest)
        places = f.stack(8 * ia.BLOCK)
        if self.op != "gather":
            with f.range(0, units) as unit:
                self._look_up(f, ctx, step, bases, unit, places)
        each = _build_rest(self.module, self.mover)
        with f.range(first, last) as unit:
            count, at = self._look_up(f, ctx, step, bases, unit, places)
            f.call(each, [step, places, count, indexed, dense + at, start, stop])
        f.ret()

    def _look_up(self, f: Fn, ctx: Val, step: Val, bases: Val, unit: Val, places: Val) -> tuple[Val, Val]:
        """Offsets of a unit's indices in the indexed operand; their number, and where the unit is in the dense one."""
        of_inner = f.ceil_div(f.word(step, ia.I_INNER), ia.BLOCK)
        outer, begin = unit // of_inner, (unit % of_inner) * ia.BLOCK
        count = f.min(f.i64(ia.BLOCK), f.word(step, ia.I_INNER) - begin)
        bad = f.call(self.offsets, [step, bases, outer, begin, count, places])
        with f.if_(bad.ne(0), likely=False):
            f.call(self.report, [ctx, step, bases])
            f.ret()
        at = begin * f.word(step, ia.I_DENSE) + _outer_offset(f, step, outer, f.i64(0))
        return count, at


def _outer_offset(f: Fn, step: Val, outer: Val, column: Val) -> Val:
    """What entry ``outer`` of the outer loops adds to operand ``column``: the dense one, then the index arrays."""
    rows = f.word(step, ia.I_TABLE) + f.word(step, ia.I_OUTER)
    width = f.word(step, ia.I_ARRAYS) + 2
    return loop_offsets(f, rows, f.word(step, ia.I_OUTER_RANK), width, outer, [column])[0]


def _build_offsets(module: ir.Module, isa: ISA) -> Fn:
    """``int64 offsets(step, bases, outer, begin, count, places)``: writes them, 0 stands for a bad one; not 0 where one
    is bad."""
    f = Fn(module, "offsets", [I64] * 6, I64, internal=True)
    step, bases, outer, begin, count, places = f.args
    table, lanes = f.word(step, ia.I_TABLE), isa.vector_bits // 64
    wide = vector_type(I64, lanes)
    bad, many = f.var(0), Var(f, f.zero(wide))
    with f.range(0, f.word(step, ia.I_ARRAYS)) as k:
        row = table + k * (8 * ia.X_WORDS)
        size, factor, stride = (f.word(row, word) for word in (ia.X_SIZE, ia.X_STEP, ia.X_INNER))
        source = f.word(bases, f.word(row, ia.X_SLOT)) + f.word(row, ia.X_OFFSET)
        source = source + begin * stride + _outer_offset(f, step, outer, k + 1)
        whole = f.select(stride.eq(8), count - count % lanes, f.i64(0))

        def part(ty: ir.Type, i: Val, total: Var) -> None:
            spread = (lambda x: f.splat(x, lanes)) if isinstance(ty, ir.VectorType) else (lambda x: x)
            index, n = f.load(ty, source + i * stride), spread(size)
            index = f.select(index < f.zero(ty), index + n, index)
            wrong = Val(f, f.b.icmp_unsigned(">=", index.v, n.v))
            total.set(total.get() | f.convert(wrong, "sext", ty))
            place, found = places + i * 8, f.select(wrong, f.zero(ty), index) * spread(factor)
            with f.if_else(k.eq(0)) as (new, more):
                with new:
                    f.store(found, place)
                with more:
                    f.store(f.load(ty, place) + found, place)

        with f.range(0, whole, lanes) as i:
            part(wide, i, many)
        with f.range(whole, count) as i:
            part(I64, i, bad)
    found = many.get()
    for lane in range(lanes):
        bad.set(bad.get() | (f.extract(found, lane) if lanes > 1 else found))
    f.ret(bad.get())
    return f


def _build_report(module: ir.Module) -> Fn:
    """``void report(ctx, step, bases)``: the context's words about the first bad index of the first array with one."""
    f = Fn(module, "report", [I64] * 3, internal=True)
    ctx, step, bases = f.args
    table = f.word(step, ia.I_TABLE)
    with f.range(0, f.word(step, ia.I_ARRAYS)) as k:
        row = table + k * (8 * ia.X_WORDS)
        size, stride = f.word(row, ia.X_SIZE), f.word(row, ia.X_INNER)
        with f.range(0, f.word(step, ia.I_OUTER_TOTAL)) as outer:
            source = f.word(bases, f.word(row, ia.X_SLOT)) + f.word(row, ia.X_OFFSET)
            source = source + _outer_offset(f, step, outer, k + 1)
            with f.range(0, f.word(step, ia.I_INNER)) as i:
                index = f.load(I64, source + i * stride)
                with f.if_((index < f.i64(0) - size) | (index >= size)):
                    axis = f.word(row, ia.X_AXIS)
                    for word, value in zip(
                        (abi.CTX_ERROR_VALUE, abi.CTX_ERROR_AXIS, abi.CTX_ERROR_SIZE), (index, axis, size)
                    ):
                        f.store(value, ctx + 8 * word)
                    f.atomic_store(abi.BAD_INDEX, ctx + 8 * abi.CTX_ERROR)
                    f.ret()
    f.ret()
    return f


def _build_rest(module: ir.Module, mover: "_Move | _Add") -> Fn:
    """``void each(step, places, count, indexed, dense, start, stop)``: a unit, at entries of the rest's loops."""
    f = Fn(module, "each", [I64] * 7, internal=True)
    step, places, count, indexed, dense, start, stop = f.args
    rank, run = f.word(step, ia.I_REST_RANK), f.word(step, ia.I_RUN)
    rows = f.word(step, ia.I_TABLE) + f.word(step, ia.I_REST)
    step_dense, step_run = f.word(step, ia.I_DENSE), (f.word(step, ia.I_RUN_INDEXED), f.word(step, ia.I_RUN_DENSE))
    with f.range(start, stop) as entry:
        left, ats = Var(f, entry), [Var(f, indexed), Var(f, dense)]
        with f.range(0, rank) as back:
            row = rows + (rank - 1 - back) * 24
            size = f.word(row)
            for column, at in enumerate(ats):
                at.add((left.get() % size) * f.word(row, column + 1))
            left.set(left.get() // size)
        x, d = (at.get() for at in ats)

        def pairs(first: Val, last: Val, body) -> None:
            with f.range(first, last) as i:
                body(x + f.word(places, i), d + i * step_dense)

        with f.if_else(run.eq(1)) as (single, longer):
            with single:
                whole = count - count % mover.together
                with f.range(0, whole, mover.together) as i:
                    mover.several(
                        f, [(x + f.word(places, i + n), d + (i + n) * step_dense) for n in range(mover.together)]
                    )
                pairs(whole, count, lambda p, q: mover.several(f, [(p, q)]))
            with longer:
                with f.if_else(f.word(step, ia.I_ADJACENT).ne(0)) as (adjacent, apart):
                    with adjacent:
                        pairs(f.i64(0), count, lambda p, q: mover.run(f, p, q, run))
                    with apart:

                        def elements(p: Val, q: Val) -> None:
                            with f.range(0, run) as r:
                                mover.several(f, [(p + r * step_run[0], q + r * step_run[1])])

                        pairs(f.i64(0), count, elements)
    f.ret()
    return f


class _Move:
    """Copies elements of ``item`` bytes: from the indexed operand (``out``) or to it."""

    def __init__(self, isa: ISA, item: int, out: bool):
        self.isa, self.item, self.out = isa, item, out
        self.type = _INTS.get(item) or ir.VectorType(I64, 2)
        self.together = 4 if out else 1  # places of a scatter may be equal

    def several(self, f: Fn, pairs: list[tuple[Val, Val]]) -> None:
        """Single elements; ``pairs``: places in the indexed and in the dense operand."""
        ways = [(p, q) if self.out else (q, p) for p, q in pairs]
        found = [f.load(self.type, source) for source, _ in ways]
        for value, (_, target) in zip(found, ways):
            f.store(value, target)

    def run(self, f: Fn, p: Val, q: Val, run: Val) -> None:
        """Adjacent elements: vectors, then halves of them by the binary digits of what is left."""
        source, target = (p, q) if self.out else (q, p)
        nbytes, vector = run * self.item, self.isa.vector_bits // 8
        self._vectors(f, source, target, nbytes, vector)
        done, size = Var(f, nbytes - nbytes % vector), vector // 2
        while size >= self.item:
            with f.if_((nbytes & size).ne(0)):
                ty = vector_type(I64, size // 8) if size > 8 else _INTS[size]
                f.store(f.load(ty, source + done.get()), target + done.get())
                done.add(size)
            size //= 2

    @staticmethod
    def _vectors(f: Fn, source: Val, target: Val, nbytes: Val, vector: int) -> None:
        ty = vector_type(I64, vector // 8)
        four = nbytes - nbytes % (4 * vector)
        with f.range(0, four, 4 * vector) as at:
            found = [f.load(ty, source + at + n * vector) for n in range(4)]
            for n, value in enumerate(found):
                f.store(value, target + at + n * vector)
        with f.range(four, nbytes - nbytes % vector, vector) as at:
            f.store(f.load(ty, source + at), target + at)


class _Add:
    """Adds elements of a dtype to the indexed operand, in the dtype that they are computed in."""

    together = 1

    def __init__(self, isa: ISA, dtype: str):
        self.isa, self.dtype, self.row = isa, dtype, STORAGES[dtype]

    def several(self, f: Fn, pairs: list[tuple[Val, Val]]) -> None:
        for p, q in pairs:
            self._add(f, 1, p, q)

    def run(self, f: Fn, p: Val, q: Val, run: Val) -> None:
        width = self.isa.vector_bits // (8 * size_of(_compute(self.row)))
        whole = run - run % width
        with f.range(0, whole, width) as r:
            self._add(f, width, p + r * self.row.itemsize, q + r * self.row.itemsize)
        with f.range(whole, run) as r:
            self._add(f, 1, p + r * self.row.itemsize, q + r * self.row.itemsize)

    def _add(self, f: Fn, width: int, p: Val, q: Val) -> None:
        c, name = Converter(f, self.isa, width), self.dtype
        old, new = (c.cast(c.load(name, at), name, self.row.compute) for at in (p, q))
        total = old | new if name == "bool" else old + new
        c.store(name, c.cast(total, self.row.compute, name), p)


def _compute(row) -> ir.Type:
    """Machine type of an element in which the dtype is computed; of both parts of a complex one together, as wide."""
    found = STORAGES[row.compute]
    return {8: I8, 16: I16, 32: I32, 64: I64}.get(found.bits * found.parts) or ir.VectorType(I64, 2)
