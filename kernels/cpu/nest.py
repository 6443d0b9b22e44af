"""Task functions over N-dimensional strided iteration spaces: copy, conversion, scaled addition, product.

    for box of this task             odometer over chunks of O, chunks of J and all other dimensions
      stage operands                 those that do not run along O: moved into scratch, where they do
      for j in box                   a row
        for o in box                 vectors
          out = op(a, b)
      unstage the output

`nest_abi` holds the words; `move` the staging, which is all there is to a copy. Element-wise rows may work in place
(an input that is the output, with the same strides).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from . import cores, strips
from . import nest_abi as na
from .composed import Composer, composes
from .convert import Converter
from .dense import box_arguments, build_dense, stores_dense
from .emit import F64, I1, I64, Fn, Val, Var, vector_type
from .move import build_move
from .stream import LINE, stream, stream_lines
from .nest_frame import BOXES_AHEAD, OUT, A, Arithmetic, B, Box, Carry, Frame, Stage, emit_row, emit_row_past, row_width
from .nest_sum import build_sum
from .storage import STORAGES
from .strips_gathered import Gathered
from .strips_joined import Joined
from .strips_lines import Lines
from .strips_short import Short
from .strips_whole import Whole


def build_copy(module: ir.Module, name: str, isa: ISA) -> None:
    """out = a by the move function of N_A_MOVE; N_A_MODE is STAGED + its mode.

    Nothing is done where strips write this output (N_STRIPS). Where N_FETCH is set, runs of a are copied to scratch first.
    Where N_JOINED is set, the move is to scratch, in the order of the output, and runs are streamed from there; where
    N_ROWS is, too, their lines are put together from rows, if this ISA can.
    """
    f = Fn(module, name, [I64] * 4)
    frame = Frame(f, (OUT, A))
    out_o, a_o, out_j, a_j = (frame.vector(w) for w in (na.N_OUT_O, na.N_A_O, na.N_OUT_J, na.N_A_J))
    move, mode, run = (frame.word(w) for w in (na.N_A_MOVE, na.N_A_MODE, na.N_A_RUN))
    streamed, scratch = frame.word(na.N_JOINED).ne(0), frame.scratch(na.N_OUT_STAGE)

    carry = Carry(start=frame.scratch(na.N_OWN_PLACE), row=frame.word(na.N_OWN_ROW), step=frame.word(na.N_OWN_STEP))
    apart, fetched = frame.word(na.N_OWN_STEP) > 1, frame.word(na.N_FETCH).ne(0)
    narrow = isa.vector_bits < 8 * LINE
    tiles_ask = f.const(I1, int(narrow or cores.here().tiles_ask)) & streamed & fetched.eq(0)
    tiles_ask = tiles_ask & frame.word(na.N_COMING).ne(0)
    rows = f.const(I1, int(composes(isa))) & streamed & frame.word(na.N_ROWS).ne(0)
    padded = frame.word(na.N_ROWS_J)
    dense = frame.word(na.N_TURN).ne(0) & rows & f.const(I1, int(stores_dense(isa)))

    def body(box: Box) -> None:
        if not composes(isa):
            boxed(box)
            return
        with f.if_else(rows) as (then, otherwise):
            with then, f.if_(padded.ne(0) & dense.eq(0)):
                places = [out_o, a_o, frame.table + padded, a_j]
                f.call(move, [scratch, box.at[1], box.no, box.nj, *places, f.i64(na.MOVE_PADDED), run])
            with otherwise:
                boxed(box)

    def boxed(box: Box) -> None:
        out, a, _ = box.at
        target, source = f.select(streamed, scratch, out), Var(f, a)
        with f.if_(fetched):
            source.set(_fetch(frame, a))
        with f.if_(apart & box.begun):
            _take_over(frame, box, scratch)
        with f.if_(move.ne(0)):
            how = f.select(tiles_ask, f.i64(na.MOVE_COMING), mode - na.STAGED)
            first = f.select(tiles_ask, box.coming - a + (frame.word(na.N_COMING) - 1), out_o)
            f.call(move, [target, source.get(), box.no, box.nj, first, a_o, out_j, a_j, how, run])

    def after(box: Box) -> None:
        if composes(isa):
            with f.if_(rows):
                composed(box)
        with f.if_(streamed & rows.eq(0)):
            a = box.at[1]
            wanted = box.coming.ne(a) & tiles_ask.eq(0)
            _stream_runs(frame, isa, box, f.select(move.ne(0), scratch, a), Ahead(frame, box.coming, wanted))

    def composed(box: Box) -> None:
        if not stores_dense(isa):
            composed_rows(box)
            return
        with f.if_else(dense) as (then, otherwise):
            with then:
                f.call(frame.word(na.N_DENSE), box_arguments(f, box))
            with otherwise:
                composed_rows(box)

    def composed_rows(box: Box) -> None:
        a, by_lines = box.at[1], padded.ne(0)
        ahead = Ahead(frame, box.coming, box.coming.ne(a))
        Composer(frame, box, f.select(by_lines, scratch, a), by_lines, ahead.some).emit()
        ahead.rest()

    distance = f.select(fetched, f.i64(1), f.i64(BOXES_AHEAD))
    first, last = frame.share(frame.word(na.N_BOXES))
    item = f.i64(1) << frame.word(na.N_A_WIDE)
    frame.boxes(first, f.select(strips.fits(frame, item, isa), first, last), body, after, carry, distance)
    f.store_fence()
    f.ret()


def _fetch(frame: Frame, a: Val) -> Val:
    """Address of a copy of the runs of a box in scratch: runs that fall into few cache sets do not stay in cache until
    tiles have read them, so each is read at once, a few runs after it was asked for."""
    f, line = frame.f, vector_type(I64, LINE // 8)
    count, nbytes, runs = frame.word(na.N_FETCH), frame.word(na.N_FETCH_BYTES), frame.vector(na.N_FETCH_RUNS)
    place = frame.scratch(na.N_FETCH_PLACE)
    with f.range(0, count) as r:
        src, coming = (a + f.word(runs, at) for at in (r, f.min(r + na.RUNS_AHEAD, count - 1)))
        dst = place + r * frame.word(na.N_FETCH_PITCH)
        f.prefetch(coming, locality=2)
        with f.range(0, nbytes, LINE) as i:
            f.prefetch(coming + i + (LINE - 1), locality=2)
            f.store(f.load(line, src + i), dst + i)
    return place


class Ahead:
    """Asks for the source of a box that is to come, a few bytes at a time."""

    def __init__(self, frame: Frame, source: Val, wanted: Val):
        self.f, self.source = frame.f, source
        self.table, self.step = frame.vector(na.N_AHEAD), frame.word(na.N_AHEAD_LINE)
        self.count = self.f.select(wanted, frame.word(na.N_AHEAD_COUNT), self.f.i64(0))
        self.done = self.f.var(0)

    def some(self) -> None:
        with self.f.if_(self.done.get() < self.count):
            self._until(self.done.get() + self.step)

    def rest(self) -> None:
        self._until(self.count)

    def _until(self, end: Val) -> None:
        with self.f.range(self.done.get(), end) as i:
            self.f.prefetch(self.source + self.f.word(self.table, i), locality=2)
        self.done.set(end)


def _stream_runs(frame: Frame, isa: ISA, box: Box, source: Val, ahead: Ahead) -> None:
    """Runs of the output, whole lines past the caches; beside them the source of a box to come is asked for.

    Reading it while it is moved would cost more: tiles wait for what they load, stores past the caches for nothing. On
    some cores (`cores.Core.tiles_ask`), and where a line takes several stores, tiles ask for it, nothing is asked for here.
    Where boxes continue each other's runs, N_OWN bytes of a run are a box's own. What of them is behind the last line
    boundary is left to the next box, which finds it in the line before its own bytes in scratch.
    """
    f, out = frame.f, box.at[0]
    joined, own = frame.word(na.N_JOINED), frame.word(na.N_OWN)
    far, near = frame.vector(na.N_RUNS_OUT), frame.vector(na.N_RUNS_A)
    nbytes = (box.no * joined) << frame.word(na.N_A_WIDE)
    begun, unfinished = own.ne(0) & box.begun, own.ne(0) & box.unfinished
    line, apart = vector_type(I64, LINE // 8), frame.word(na.N_OWN_STEP) > 1
    with f.range(0, box.nj // joined) as r:
        dst, src = out + f.word(far, r), source + f.word(near, r)
        over = dst & (LINE - 1)
        last = f.select(unfinished, own - ((over + own) & (LINE - 1)), nbytes)
        with f.if_else(begun & unfinished) as (inside, otherwise):
            with inside:
                stream_lines(f, isa, dst - over, src - over, last + over, ahead.some)
            with otherwise:
                stream(f, isa, dst, src, f.select(begun, f.i64(0) - over, f.i64(0)), last, ahead.some)
        with f.if_(unfinished):
            f.store(f.load(line, src + own - LINE), f.select(apart, box.at[2] + r * LINE, src - LINE))
    ahead.rest()


def _take_over(frame: Frame, box: Box, scratch: Val) -> None:
    """What earlier boxes have left, in the lines before the rows in scratch: before the move, so that it is stored when
    it is loaded."""
    f, near = frame.f, frame.vector(na.N_RUNS_A)
    line = vector_type(I64, LINE // 8)
    with f.range(0, box.nj // frame.word(na.N_JOINED)) as r:
        f.store(f.load(line, box.at[2] + r * LINE), scratch + f.word(near, r) - LINE)


def build_cast(module: ir.Module, name: str, source: str, target: str, swap: bool, isa: ISA) -> None:
    """out = cast(a), conjugated if CONJ_A; ``swap``: the bytes of a's elements are in the other order."""
    f = Fn(module, name, [I64] * 4)
    frame = Frame(f, (OUT, A))
    conjugate = frame.word(na.N_FLAGS) & na.CONJ_A
    io, ia = STORAGES[target].itemsize, STORAGES[source].itemsize

    width, paired = row_width(isa, (source, target)), STORAGES[target].parts == 2
    # before all loops, as whatever is the same in them: nothing moves it there later
    wide = Converter(f, isa, width).imaginary_signs(target, conjugate) if paired else None

    def rows(out: Val, a: Val, no: Val) -> None:
        def body(w: int, i: Val, mask: Val | None) -> None:
            c = Converter(f, isa, w)
            value = c.cast(c.load(source, a + i * ia, swap=swap, mask=mask), source, target)
            if paired:
                value = c.flip(value, wide if w == width else c.imaginary_signs(target, conjugate))
            c.store(target, value, out + i * io, mask=mask)

        emit_row(f, isa, width, no, body)

    _elementwise(frame, rows)


def build_mul(module: ir.Module, name: str, a: str, b: str, out: str, add: bool, isa: ISA) -> None:
    """out (+)= a * b; a may be one element per row, b is contiguous."""
    f = Fn(module, name, [I64] * 4)
    frame = Frame(f, (OUT, A, B))
    compute = STORAGES[out].compute
    flags = frame.word(na.N_FLAGS)
    io, ia, ib = (STORAGES[n].itemsize for n in (out, a, b))
    broadcast = frame.word(na.N_A_MODE).eq(na.BROADCAST)

    def get(c: Converter, dtype: str, at: Val, flag: int, mask: Val | None) -> Val:
        value = c.cast(c.load(dtype, at, mask=mask), dtype, compute)
        if STORAGES[dtype].parts == 2 and STORAGES[compute].parts == 2:
            value = c.flip(value, wide[flag] if c.w == width else c.imaginary_signs(compute, flags & flag))
        return value

    width, paired = row_width(isa, (a, b, out, compute)), STORAGES[compute].parts == 2
    whole = Converter(f, isa, width)
    wide = {flag: whole.imaginary_signs(compute, flags & flag) for flag in (na.CONJ_A, na.CONJ_B) if paired}

    def rows(to: Val, x: Val, y: Val, no: Val) -> None:
        def loop(first) -> None:
            def body(w: int, i: Val, mask: Val | None = None, past: bool = False) -> None:
                c, op = Converter(f, isa, w), Arithmetic(f, isa, compute, w)
                left, right = first(c, i, mask), get(c, b, y + i * ib, na.CONJ_B, mask)
                if add:
                    old = c.cast(c.load(out, to + i * io, mask=mask), out, compute)
                    value = op.mul_add(left, right, old)
                else:
                    value = op.mul(left, right)
                c.store(out, c.cast(value, compute, out), to + i * io, mask=mask, past=past)

            if add:
                emit_row(f, isa, width, no, body)
                return
            with f.if_else((flags & na.STREAM).ne(0)) as (then, otherwise):
                with then:
                    emit_row_past(f, isa, width, io, to, no, lambda w, i, past: body(w, i, past=past))
                with otherwise:
                    emit_row(f, isa, width, no, body)

        with f.if_else(broadcast) as (then, otherwise):
            with then:
                one = get(Converter(f, isa, 1), a, x, na.CONJ_A, None)
                loop(lambda c, i, mask: c.splat(one))
            with otherwise:
                loop(lambda c, i, mask: get(c, a, x + i * ia, na.CONJ_A, mask))

    _elementwise(frame, rows, read_out=add, fence=not add)


def _elementwise(frame: Frame, rows, read_out: bool | Val = False, fence: bool = False) -> None:
    """Stage the operands of each box, run ``rows(addresses..., no)`` for each j, unstage the output."""
    f = frame.f
    stages = [Stage(frame, which) for which in frame.operands]

    def body(box: Box) -> None:
        bases = [
            stage.enter(at, box.no, box.nj, read=read_out if stage.which == OUT else True)
            for stage, at in zip(stages, box.at, strict=True)
        ]
        with f.range(0, box.nj) as j:
            rows(*(base + f.word(stage.table, j) for stage, base in zip(stages, bases, strict=True)), box.no)
        stages[0].leave(box.at[0], bases[0], box.no, box.nj)

    frame.boxes(*frame.share(frame.word(na.N_BOXES)), body)
    if fence:
        f.store_fence()
    f.ret()


def build_axpby(module: ir.Module, name: str, source: str, target: str, swap: bool, isa: ISA) -> None:
    """out = alpha * cast(a) + beta * out in the compute dtype of out, which is not read where beta is 0.

    Operand b holds four float64: re(alpha), im(alpha), re(beta), im(beta). With ADD_OUT both are 1 and b is not read.
    """
    f = Fn(module, name, [I64] * 4)
    frame = Frame(f, (OUT, A))
    compute = STORAGES[target].compute
    io, ia = STORAGES[target].itemsize, STORAGES[source].itemsize
    conjugate = frame.word(na.N_FLAGS) & na.CONJ_A
    alpha, beta = _scalars(frame)
    needed = beta.real.ne(0.0) | beta.imag.ne(0.0)
    width = row_width(isa, (source, target, compute))

    def rows(out: Val, a: Val, no: Val) -> None:
        def loop(read: bool, complex_scalars: bool) -> None:
            def body(w: int, i: Val, mask: Val | None) -> None:
                c, op = Converter(f, isa, w), Arithmetic(f, isa, compute, w)
                value = c.cast(c.load(source, a + i * ia, swap=swap, mask=mask), source, compute)
                if op.complex:
                    value = c.flip(value, c.imaginary_signs(compute, conjugate))
                value = alpha.times(c, op, value, complex_scalars)
                if read is not False:
                    old = c.cast(c.load(target, out + i * io, mask=mask), target, compute)
                    value = op.add(value, beta.times(c, op, old, complex_scalars))
                c.store(target, c.cast(value, compute, target), out + i * io, mask=mask)

            emit_row(f, isa, width, no, body, unroll=2)

        def both(read: bool) -> None:
            if STORAGES[compute].parts == 1:
                loop(read, False)
                return
            with f.if_else(alpha.imag.ne(0.0) | beta.imag.ne(0.0)) as (then, otherwise):
                with then:
                    loop(read, True)
                with otherwise:
                    loop(read, False)

        with f.if_else(needed) as (then, otherwise):
            with then:
                both(True)
            with otherwise:
                both(False)

    _elementwise(frame, rows, read_out=needed)


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """alpha or beta: two float64."""

    f: Fn
    real: Val
    imag: Val

    def times(self, c: Converter, op: Arithmetic, value: Val, with_imag: bool) -> Val:
        """The product; a scalar without imaginary part scales both parts, which is exact for 1."""
        one = Converter(self.f, op.isa, 1)
        part = {"complex64": "float32", "complex128": "float64"}.get(op.dtype, op.dtype)
        real = one.cast(self.real, "float64", part)
        if not op.complex:
            return op.mul(self.f.splat(real, c.w), value)
        if not with_imag:
            return value * self.f.splat(real, 2 * c.w)
        imag = one.cast(self.imag, "float64", part)
        pair = self.f.insert(one.interleave(real), imag, 1)
        return op.mul(c.splat(pair), value)


def _scalars(frame: Frame) -> tuple[Scalar, Scalar]:
    f = frame.f
    values = [Var(f, f.const(F64, x)) for x in (1.0, 0.0, 1.0, 0.0)]
    with f.if_((frame.word(na.N_FLAGS) & na.ADD_OUT).eq(0)):
        address = frame.operand(B)
        for i, value in enumerate(values):
            value.set(f.load(F64, address + 8 * i))
    real_a, imag_a, real_b, imag_b = (v.get() for v in values)
    return Scalar(f=f, real=real_a, imag=imag_a), Scalar(f=f, real=real_b, imag=imag_b)


def _build_strips(module: ir.Module, name: str, what: str, item: int, isa: ISA) -> None:
    """A copy in strips of a kind, where these write the output."""
    f = Fn(module, name, [I64] * 4)
    kind = _strips_of(what, isa)
    if kind is not None:
        made = kind(f, item, isa)
        whole = strips.whole(made.frame, f.i64(item), isa)
        with f.if_(whole if kind in (Whole, Lines) else strips.fits(made.frame, f.i64(item), isa) & whole.eq(0)):
            made.emit()
    f.store_fence()
    f.ret()


def _strips_of(what: str, isa: ISA) -> type[strips.Strips] | None:
    """``strips``; ``short``: of runs that are written at once, where runs are joined; ``whole``: of runs that are whole lines,
    and ``lines`` of rows that are, where a vector is one. None: these write nothing."""
    if what in ("whole", "lines"):
        return {"whole": Whole, "lines": Lines}[what] if strips.shifts_lines(isa) else None
    if strips.joins_runs(isa):
        return Short if what == "short" else Joined
    return None if what == "short" else strips.Shifted if strips.shifts_lines(isa) else Gathered


# -- names ---------------------------------------------------------------------------------------------------------
def build(module: ir.Module, name: str, isa: ISA) -> None:
    """The kernel called ``name``: ``nest_copy``, ``nest_move_<item>``, ``nest_strips_<item>``, ``nest_short_<item>``,
    ``nest_whole_<item>``, ``nest_lines``, ``nest_dense_<item>``, or ``nest_<what>_<dtypes>[_swap | _add]``."""
    _, what, *rest = name.split("_")
    last = rest[-1] if rest else ""
    if what == "move":
        build_move(module, name, int(last), isa)
    elif what in ("strips", "short", "whole"):
        _build_strips(module, name, what, int(last), isa)
    elif what == "lines":
        _build_strips(module, name, what, strips.LANE, isa)
    elif what == "dense":
        build_dense(module, name, int(last), isa)
    elif what == "copy":
        build_copy(module, name, isa)
    elif what == "cast":
        build_cast(module, name, rest[0], rest[1], last == "swap", isa)
    elif what == "axpby":
        build_axpby(module, name, rest[0], rest[1], last == "swap", isa)
    elif what == "mul":
        build_mul(module, name, rest[0], rest[1], rest[2], last == "add", isa)
    elif what == "sum":
        build_sum(module, name, rest[0], rest[1], isa)
    else:
        raise KeyError(f"no nest kernel {name!r}")
