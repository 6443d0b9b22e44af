"""What the task functions of the nest family are made of: the frame around boxes, staging, rows, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import nest_abi as na
from .emit import I1, Fn, Val, Var
from .storage import STORAGES
from .stream import LINE

OUT, A, B = 0, 1, 2
_SLOTS = (abi.OUT_SLOT, abi.A_SLOT, abi.B_SLOT)
_OFFSETS = (abi.OUT_OFFSET, abi.A_OFFSET, abi.B_OFFSET)
MAX_RANK = 72
BOXES_AHEAD = 3  # how far what is asked for early is from what is moved
ROW = 4 * 8  # bytes of a row of the odometer


class Frame:
    """What all task functions of the family share: words, operand addresses, tables, the loop over boxes."""

    def __init__(self, f: Fn, operands: tuple[int, ...]):
        self.f, self.operands = f, operands
        self.ctx, self.step, self.task, self.worker = f.args[:4]
        self.table = self.word(na.N_TABLE)
        self.counters = f.stack(8 * MAX_RANK)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def operand(self, which: int) -> Val:
        """Address of the operand's first element."""
        f = self.f
        bases = f.word(self.ctx, abi.CTX_BASES)
        start = f.word(bases, self.word(_SLOTS[which])) + self.word(_OFFSETS[which])
        return start + self.word(na.N_OUT_BASE + which)

    def vector(self, word: int) -> Val:
        """Address of an offset vector."""
        return self.table + self.word(word)

    def scratch(self, word: int) -> Val:
        f = self.f
        start = f.word(self.ctx, abi.CTX_SCRATCH) + f.word(self.ctx, abi.CTX_SCRATCH_STRIDE) * self.worker
        return start + self.word(word)

    def share(self, total: Val) -> tuple[Val, Val]:
        """First and last (exclusive) of this task's share of ``total`` things."""
        tasks = self.word(abi.NTASKS)
        f, first, last = self.f, self.f.var(0), Var(self.f, total)
        with f.if_(tasks > 1):
            first.set(self.task * total // tasks)
            last.set((self.task + 1) * total // tasks)
        return first.get(), last.get()

    def boxes(
        self, first: Val, last: Val, body, after=None, carry: Carry | None = None, distance: Val | None = None
    ) -> None:
        """``body(box)`` for each box; ``box.at[i]`` is the address of operand ``operands[i]``.

        ``after(box)`` comes next. Where it does, ``box.coming`` is the address of the last operand ``distance`` boxes on
        (that of the last box, if there are fewer).
        """
        f = self.f
        at = [Var(f, self.operand(which)) for which in self.operands]
        columns = [1 + which for which in self.operands]
        carry = carry or Carry(start=f.i64(0), row=f.i64(0), step=f.i64(1))
        if after:
            at.append(Var(f, carry.start))
            columns.append(1 + B)
        odometer = Odometer(f, self.table, self.word(na.N_RANK), self.counters, at, columns)
        odometer.start(first)
        if after:
            scout = self._scout(f.min(first + distance, f.max(last - 1, first)))
        with f.range(first, last) as index:
            chunk, chunks = f.word(self.counters, carry.row), f.word(self.table + carry.row * ROW)
            no = self.extent(na.N_O, na.N_O_TOTAL, chunk)
            nj = self.extent(na.N_J, na.N_J_TOTAL, f.word(self.counters, 1))
            goes_on = (index - carry.step >= first) & (chunk > 0), (index + carry.step < last) & (chunk + 1 < chunks)
            here = [v.get() for v in at]
            coming = scout.at[0].get() if after else here[-1]
            box = Box(at=here, no=no, nj=nj, begun=goes_on[0], unfinished=goes_on[1], coming=coming)
            body(box)
            if after:
                after(box)
                with f.if_(index + distance + 1 < last):
                    scout.advance()
            with f.if_(index + 1 < last):
                odometer.advance()

    def _scout(self, flat: Val) -> Odometer:
        """An odometer of the last operand alone, at the box of that number."""
        f, which = self.f, self.operands[-1]
        at, counters = Var(f, self.operand(which)), f.stack(8 * MAX_RANK)
        scout = Odometer(f, self.table, self.word(na.N_RANK), counters, [at], [1 + which])
        scout.start(flat)
        return scout

    def extent(self, size: int, total: int, chunk: Val) -> Val:
        count = self.word(size)
        return self.f.min(count, self.word(total) - chunk * count)


@dataclass(frozen=True, kw_only=True)
class Carry:
    """What boxes leave to each other: ``row`` of the odometer counts the chunks of O, ``step`` boxes lie between one
    and the next, and the memory for it begins at ``start``."""

    start: Val
    row: Val
    step: Val


@dataclass(frozen=True, kw_only=True)
class Box:
    """``begun``, ``unfinished``: the box before, and the one after, is of the same task and has the chunk of O before,
    and after, this one's. ``coming``: where a box to come has the last operand, in `Frame.boxes` with ``after``."""

    at: list[Val]
    no: Val
    nj: Val
    begun: Val
    unfinished: Val
    coming: Val


class Odometer:
    """Nested loops of any depth over a table of (size, strides...) rows, the first row fastest."""

    def __init__(self, f: Fn, table: Val, rank: Val, counters: Val, at: list[Var], columns: list[int], row: int = ROW):
        self.f, self.table, self.rank, self.counters = f, table, rank, counters
        self.at, self.columns, self.row = at, columns, row

    def start(self, flat: Val) -> None:
        """Go to the ``flat``-th position."""
        f, rest = self.f, Var(self.f, flat)
        with f.range(0, self.rank) as r:
            digit, at = f.var(0), self.table + r * self.row
            with f.if_(rest.get() > 0):
                size = f.word(at)
                digit.set(rest.get() % size)
                rest.set(rest.get() // size)
                self._shift(at, digit.get())
            f.store(digit.get(), self.counters + r * 8)

    def advance(self) -> None:
        f, r = self.f, self.f.var(0)
        with f.while_() as leave:
            leave(r.get() >= self.rank)
            at, slot = self.table + r.get() * self.row, self.counters + r.get() * 8
            digit, last = f.word(slot), f.word(at) - 1
            more = digit < last
            self._shift(at, f.select(more, f.i64(1), f.i64(0) - last))
            f.store(f.select(more, digit + 1, f.i64(0)), slot)
            leave(more)
            r.add(1)

    def _shift(self, at: Val, count: Val) -> None:
        for var, column in zip(self.at, self.columns, strict=True):
            var.add(self.f.word(at, column) * count)


class Stage:
    """One operand of a box: read and written in place where it runs along O, else through scratch.

    After `enter`, rows lie at ``address + table[j]``.
    """

    def __init__(self, frame: Frame, which: int):
        self.frame, self.which, self.f = frame, which, frame.f
        self.mode = frame.word(na.N_OUT_MODE + which)
        self.staged = self.mode >= na.STAGED
        self.table = frame.vector(na.N_OUT_J + which)

    def enter(self, at: Val, no: Val, nj: Val, *, read: bool | Val = True) -> Val:
        """Address to work at; ``read``: what the operand holds is needed."""
        f, address = self.f, Var(self.f, at)
        with f.if_(self.staged):
            buffer = self.frame.scratch(na.N_OUT_STAGE + self.which)
            address.set(buffer)
            if read is not False:
                rows = f.select(self._word(na.N_OUT_ROWS).ne(0), nj, f.i64(1))
                # An output is scattered on the way back: gathered on the way here.
                mode = self.mode - na.STAGED if self.which != OUT else f.i64(na.MOVE_GATHER)
                wanted = read if isinstance(read, Val) else f.const(I1, 1)
                with f.if_(wanted):
                    self._move(buffer, at, no, rows, f.i64(0), self._far_o(), self.table, self._far_j(), mode)
        return address.get()

    def leave(self, at: Val, address: Val, no: Val, nj: Val) -> None:
        """Write an output back."""
        with self.f.if_(self.staged):
            self._scatter(at, address, no, nj)

    def leave_turned(self, at: Val, address: Val, no: Val, nj: Val, along: Val) -> None:
        """Write an output back that may run along J, by tiles; ``along``: offset vector of its copy along O."""
        f = self.f
        with f.if_(self.staged), f.if_else(self.mode.eq(na.STAGED + na.MOVE_TILE)) as (tiles, otherwise):
            with tiles:
                args = [nj, no, f.i64(0), self.table, self._far_o(), along, f.i64(na.MOVE_TILE), self._word(na.N_OUT_RUN)]
                f.call(self._word(na.N_OUT_MOVE), [at, address, *args])
            with otherwise:
                self._scatter(at, address, no, nj)

    def _scatter(self, at: Val, address: Val, no: Val, nj: Val) -> None:
        mode = self.mode - na.STAGED
        self._move(at, address, no, nj, self._far_o(), self.f.i64(0), self._far_j(), self.table, mode)

    def _move(self, dst: Val, src: Val, no: Val, *args: Val) -> None:
        no = no >> self._word(na.N_OUT_WIDE)
        self.f.call(self._word(na.N_OUT_MOVE), [dst, src, no, *args, self._word(na.N_OUT_RUN)])

    def _word(self, word: int) -> Val:
        return self.frame.word(word + self.which)

    def _far_o(self) -> Val:
        return self.frame.vector(na.N_OUT_O + self.which)

    def _far_j(self) -> Val:
        return self.frame.vector(na.N_OUT_FAR + self.which)


def emit_row(f: Fn, isa: ISA, width: int, count: Val, body, unroll: int = 4) -> None:
    """``body(w, i, mask)`` handles elements i .. i+w-1 (where the mask is set, if there is one) of ``count``."""
    done = f.var(0)
    for w in (width * unroll, width) if unroll > 1 else (width,):
        with f.range(done.get(), count - (w - 1), w) as i:
            for k in range(0, w, width):
                body(width, i + k, None)
            done.set(i + w)
    if width == 1:
        return
    if isa.masks:
        with f.if_(done.get() < count):
            body(width, done.get(), count_mask(f, count - done.get(), width))
        return
    w = width // 2
    while w:
        with f.if_((count & w).ne(0)):
            body(w, done.get(), None)
            done.add(w)
        w //= 2


def emit_row_past(f: Fn, isa: ISA, width: int, item: int, to: Val, count: Val, body) -> None:
    """`emit_row` where ``count`` elements of ``item`` bytes are written from ``to`` on, past the caches from the first
    line boundary on: ``body(w, i, past)``."""
    before = (f.i64(0) - to) & (LINE - 1)
    done = f.var(0)
    with f.if_((before % item).eq(0)):
        done.set(f.min(before // item, count))
    with f.range(0, done.get()) as i:
        body(1, i, False)
    step = max(LINE // item, width)
    with f.if_(((to + done.get() * item) & (LINE - 1)).eq(0)):
        with f.range(done.get(), count - (step - 1), step) as i:
            for k in range(0, step, width):
                body(width, i + k, True)
            done.set(i + step)
    with f.range(done.get(), count) as i:
        body(1, i, False)


def count_mask(f: Fn, count: Val, width: int) -> Val:
    """Mask with the first ``count < width`` lanes set."""
    bits = (f.i64(1) << count) - 1
    if width < 64:
        bits = f.convert(bits, "trunc", ir.IntType(width))
    return f.bitcast(bits, ir.VectorType(I1, width))


class Arithmetic:
    """Multiply and add ``w`` elements of a compute dtype."""

    def __init__(self, f: Fn, isa: ISA, dtype: str, w: int):
        self.f, self.isa, self.dtype, self.w = f, isa, dtype, w
        self.complex = STORAGES[dtype].parts == 2
        self.floating = STORAGES[dtype].floating

    def add(self, x: Val, y: Val) -> Val:
        return x | y if self.dtype == "bool" else x + y

    def mul(self, x: Val, y: Val) -> Val:
        if self.dtype == "bool":
            return x & y
        return self._complex_mul(x, y) if self.complex else x * y

    def mul_add(self, x: Val, y: Val, z: Val) -> Val:
        if self.floating and not self.complex and self.isa.fma:
            return self.f.fma(x, y, z)
        return self.add(self.mul(x, y), z)

    def _complex_mul(self, x: Val, y: Val) -> Val:
        """re(x) * y + (-im(x), im(x)) * swap(y)."""
        f, lanes = self.f, range(2 * self.w)
        re = f.shuffle(x, x, [l & ~1 for l in lanes])
        im = f.shuffle(x, x, [l | 1 for l in lanes])
        swapped = f.shuffle(y, y, [l ^ 1 for l in lanes])
        cross = im * swapped
        even = f.vector(I1, [l % 2 == 0 for l in lanes])
        negated = Val(f, f.b.fneg(cross.v))
        cross = f.select(even, negated, cross)
        return f.fma(re, y, cross) if self.isa.fma else re * y + cross


def row_width(isa: ISA, names: tuple[str, ...]) -> int:
    """Elements handled at once: the widest of the dtypes fills a register."""
    return max(1, isa.vector_bits // 8 // max(STORAGES[name].itemsize for name in names))
