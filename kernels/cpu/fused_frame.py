"""``fused_run``, the task function of every fused step: boxes, staging, and a call of the structure's row function.

    for box of kept loops of this task
      for box of reduced loops                   one where nothing is reduced
        stage inputs                             those that do not run along O: moved into scratch, where they do
        row(args)                                loads, arithmetic, stores: `fused`
        unstage what is stored beside results
      unstage other outputs

It is compiled once; operands are walked by loops over the step's table.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..fused_structure import MAX_OPERANDS
from ..isa import ISA
from . import abi
from . import fused_abi as ua
from . import nest_abi as na
from .emit import I64, Fn, Val
from .nest_frame import MAX_RANK
from .stream import LINE, stream


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """An odometer: rows in the table, digits in memory."""

    rows: Val
    rank: Val
    digits: Val


class _Run:
    def __init__(self, f: Fn, module: ir.Module, isa: ISA):
        self.f, self.isa = f, isa
        self.ctx, self.step, self.task, self.worker = f.args
        self.table, self.count = self.word(ua.U_TABLE), self.word(ua.U_OPERANDS)
        self.outputs, self.mode = self.word(ua.U_OUTPUTS), self.word(ua.U_MODE)
        self.at = f.stack(8 * MAX_OPERANDS)
        self.staged = f.stack(24 * MAX_OPERANDS)  # what scratch holds: address, entries of O and of J
        self.args = f.stack(8 * (ua.R_OPERANDS + ua.R_WORDS * MAX_OPERANDS))
        self.row_bytes = (self.count + 1) * 8
        kept, reduced = ((ua.U_KEPT, ua.U_KEPT_RANK), (ua.U_REDUCED, ua.U_REDUCED_RANK))
        self.kept, self.reduced = (
            _Walk(rows=self.table + self.word(place), rank=self.word(rank), digits=f.stack(8 * MAX_RANK))
            for place, rank in (kept, reduced)
        )
        self.shift, self.start, self.advance = _build_walk(module)

    def word(self, index: int) -> Val:
        return self.f.word(self.step, index)

    def operand(self, which: Val) -> Val:
        return self.table + which * (8 * ua.O_WORDS)

    def emit(self) -> None:
        f = self.f
        bases = f.word(self.ctx, abi.CTX_BASES)
        share, shared = self.word(ua.U_SHARE), self.word(ua.U_SHARED)
        with f.range(0, self.count) as k:
            words = self.operand(k)
            at = f.word(bases, f.word(words, ua.O_SLOT)) + f.word(words, ua.O_OFFSET)
            f.store(at + ((shared >> k) & 1) * (share * self.task), self.at + k * 8)
            f.store(f.i64(-1), self.staged + k * 24 + 8)
        same = {ua.R_MODE: self.mode, ua.R_STREAM: self.word(ua.U_STREAM), ua.R_APART: self.word(ua.U_APART)}
        same |= {ua.R_PERIOD: self.word(ua.U_PERIOD), ua.R_PARTS: self.word(ua.U_PARTS)}
        for word, value in same.items():
            f.store(value, self.args + 8 * word)
        kept, boxes = self.word(ua.U_KEPT_BOXES), self.word(ua.U_REDUCED_BOXES)
        first, last = self._part(kept, share.eq(0))
        begin, end = self._part(boxes, share.ne(0))
        self._call(self.start, self.kept, first)
        self._call(self.start, self.reduced, begin)
        # rows begin with a part of a vector, up to a line of the output: what is staged then has whole lines, too
        shift = self.word(ua.U_ALIGN) * (f.word(self.at) & (LINE - 1))
        scratch = f.word(self.ctx, abi.CTX_SCRATCH) + f.word(self.ctx, abi.CTX_SCRATCH_STRIDE) * self.worker
        self.scratch = scratch + shift
        f.store(scratch + self.word(ua.U_NEAR_STAGE), self.args + 8 * ua.R_KEEP)
        f.store(self.word(ua.U_NEAR), self.args + 8 * ua.R_DOWN)
        self.late = _Late(self, scratch)
        with f.range(first, last) as index:
            with f.range(begin, end) as turn:
                f.store(f.convert(turn.eq(begin), "zext", I64), self.args + 8 * ua.R_FIRST)
                self._box(turn + 1 >= end)
                with f.if_(boxes > 1):
                    self._call(self.advance, self.reduced)  # the last turn goes back to the start
            with f.if_(index + 1 < last):
                self._call(self.advance, self.kept)
        self.late.store()
        f.store_fence()
        f.ret()

    def _part(self, total: Val, shared: Val) -> tuple[Val, Val]:
        """This task's part of ``total`` boxes, or all."""
        f, tasks = self.f, self.word(abi.NTASKS)
        first = f.select(shared, self.task * total // tasks, f.i64(0))
        return first, f.select(shared, (self.task + 1) * total // tasks, total)

    def _call(self, function: Fn, walk: _Walk, *more: Val) -> None:
        self.f.call(function, [walk.rows, walk.rank, walk.digits, self.at, self.count, *more])

    def _extent(self, digit: int, size: int, total: int) -> Val:
        f, count = self.f, self.word(size)
        done = f.word(self.kept.digits, digit) + f.word(self.reduced.digits, digit)
        return f.min(count, self.word(total) - done * count)

    def _box(self, last: Val) -> None:
        f = self.f
        no = self._extent(0, ua.U_O, ua.U_O_TOTAL)
        nj = self._extent(1, ua.U_J, ua.U_J_TOTAL)
        f.store(no, self.args + 8 * ua.R_O)
        f.store(nj, self.args + 8 * ua.R_J)
        with f.range(0, self.count) as k:
            self._enter(k, no, nj)
        self.late.enter()
        f.call(self.word(ua.U_ROW), [self.args])
        self.late.leave()
        with f.range(0, self.outputs) as k:
            words = self.operand(k)
            mode = f.word(words, ua.O_MODE)
            done = (f.word(words, ua.O_ROWS).ne(0) & self.mode.ne(ua.MAP)) | last
            with f.if_((mode >= na.STAGED) & done):
                rows = f.select(f.word(words, ua.O_ROWS).ne(0), nj, f.i64(1))
                scratch = self.scratch + f.word(words, ua.O_STAGE)
                along = [self._vector(words, w) for w in (ua.O_ALONG_O, ua.O_FAR_J, ua.O_ALONG_J)]
                at = f.word(self.at, k)
                self._move(words, at, scratch, no, rows, along[0], f.i64(0), along[1], along[2])

    def _vector(self, words: Val, word: int) -> Val:
        return self.table + self.f.word(words, word)

    def _move(self, words: Val, dst: Val, src: Val, no: Val, *more: Val) -> None:
        f = self.f
        mode, run = f.word(words, ua.O_MODE) - na.STAGED, f.word(words, ua.O_RUN)
        function = f.word(self.step, f.word(words, ua.O_MOVE))
        f.call(function, [dst, src, no >> f.word(words, ua.O_WIDE), *more, mode, run])

    def _enter(self, k: Val, no: Val, nj: Val) -> None:
        """Words of an operand for the row function; an input that is staged is moved unless it is there already."""
        f, words, at = self.f, self.operand(k), self.f.word(self.at, k)
        row = self.args + (k * ua.R_WORDS + ua.R_OPERANDS) * 8
        mode, along = f.word(words, ua.O_MODE), self._vector(words, ua.O_ALONG_J)
        f.store(along, row + 8 * ua.R_TABLE)
        with f.if_else(mode < na.STAGED) as (direct, moved):
            with direct:
                f.store(at, row + 8 * ua.R_BASE)
                f.store(mode, row + 8 * ua.R_KIND)
            with moved:
                scratch = self.scratch + f.word(words, ua.O_STAGE)
                f.store(scratch, row + 8 * ua.R_BASE)
                f.store(f.i64(na.CONTIGUOUS), row + 8 * ua.R_KIND)
                with f.if_(k >= self.outputs):
                    self._fetch(k, words, at, scratch, no, nj, along)
        result = (k < self.outputs) & f.word(words, ua.O_ROWS).eq(0)
        with f.if_(self.word(ua.U_PARTS).ne(0) & result):
            f.store(f.word(row, ua.R_BASE), row + 8 * ua.R_TOTAL)
            f.store(self.scratch + f.word(words, ua.O_PART), row + 8 * ua.R_BASE)

    def _fetch(self, k: Val, words: Val, at: Val, scratch: Val, no: Val, nj: Val, along: Val) -> None:
        f, held = self.f, self.staged + k * 24
        rows = f.select(f.word(words, ua.O_ROWS).ne(0), nj, f.i64(1))
        same = f.word(held).eq(at) & (f.word(held, 1) >= no) & (f.word(held, 2) >= rows)
        with f.if_(same.eq(0)):
            vector, far = self._vector(words, ua.O_ALONG_O), self._vector(words, ua.O_FAR_J)
            self._move(words, scratch, at, no, rows, f.i64(0), vector, along, far)
            for number, value in enumerate((at, no, rows)):
                f.store(value, held + 8 * number)


class _Late:
    """The rows of one output, each in scratch until the next one is computed from what was where it belongs."""

    def __init__(self, run: _Run, scratch: Val):
        f = run.f
        self.run, self.f, self.nbytes = run, f, run.word(ua.U_LATE)
        self.first = scratch + run.word(ua.U_LATE_STAGE)
        self.dst, self.src, self.odd = f.var(0), f.var(0), f.var(0)

    def enter(self) -> None:
        """The row function writes to scratch, half a page from where the row belongs: loads there, which have the same
        place in a page as what is read beside it, would wait for stores here."""
        f = self.f
        with f.if_(self.nbytes.ne(0)):
            shift = (f.word(self.run.at) + ua.PAGE // 2) & (ua.PAGE - 1)
            place = self.first + self.odd.get() * self.run.word(ua.U_LATE_STRIDE)
            place = place + ((shift - place) & (ua.PAGE - 1))
            f.store(place, self.run.args + 8 * (ua.R_OPERANDS + ua.R_BASE))

    def leave(self) -> None:
        """The row before goes where it belongs."""
        f = self.f
        with f.if_(self.nbytes.ne(0)):
            self.store()
            self.dst.set(f.word(self.run.at))
            self.src.set(f.word(self.run.args + 8 * (ua.R_OPERANDS + ua.R_BASE)))
            self.odd.set(f.i64(1) - self.odd.get())

    def store(self) -> None:
        """What is in scratch, if anything."""
        f = self.f
        with f.if_(self.dst.get().ne(0)):
            stream(f, self.run.isa, self.dst.get(), self.src.get(), f.i64(0), self.nbytes, past=False)


def _build_walk(module: ir.Module) -> tuple[Fn, Fn, Fn]:
    """``shift(row, at, count, steps)``, ``start(odometer..., flat)`` and ``advance(odometer...)``."""
    shift = Fn(module, "shift", [I64] * 4, internal=True)
    row, at, count, steps = shift.args
    with shift.range(0, count) as k:
        shift.store(shift.word(at, k) + shift.word(row + 8, k) * steps, at + k * 8)
    shift.ret()

    f = Fn(module, "start", [I64] * 6, internal=True)
    rows, rank, digits, at, count, flat = f.args
    rest = f.var(flat)
    with f.range(0, rank) as r:
        row, digit = rows + r * ((count + 1) * 8), f.var(0)
        with f.if_(rest.get() > 0):
            size = f.word(row)
            digit.set(rest.get() % size)
            rest.set(rest.get() // size)
            f.call(shift, [row, at, count, digit.get()])
        f.store(digit.get(), digits + r * 8)
    f.ret()

    g = Fn(module, "advance", [I64] * 5, internal=True)
    rows, rank, digits, at, count = g.args
    r = g.var(0)
    with g.while_() as leave:
        leave(r.get() >= rank)
        row, slot = rows + r.get() * ((count + 1) * 8), digits + r.get() * 8
        digit, last = g.word(slot), g.word(row) - 1
        more = digit < last
        with g.if_(last > 0):
            g.call(shift, [row, at, count, g.select(more, g.i64(1), g.i64(0) - last)])
        g.store(g.select(more, digit + 1, g.i64(0)), slot)
        leave(more)
        r.add(1)
    g.ret()
    return shift, f, g


def build_run(module: ir.Module, name: str, isa: ISA) -> None:
    _Run(Fn(module, name, [I64] * 4), module, isa).emit()
