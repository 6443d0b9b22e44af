"""``fused_tile``: takes a block of C, final and in cache, through a row function of `fused`: the epilogue of a product.

``void fused_tile(ctx, step, worker, o, block, n0, n1)`` has a row of the gemm family, outer index ``o`` of it, the block
of panels of a task and columns ``n0`` to ``n1``. Operands are C, where the tile function reads it, what it writes, and
whatever else it reads; each is addressed by the sum of a base, a table for each outer loop, a table of runs of lanes and
a table of columns, as `fused_abi` says.

    for run of lanes in the block        a run: along it, each operand runs or is one element
      row(args)                          columns n0 to n1: loads, arithmetic, stores

It is compiled once, for all structures, and serves every tile of every dtype.
"""

from __future__ import annotations

from llvmlite import ir

from ..fused_structure import MAX_OPERANDS
from ..isa import ISA
from . import abi
from . import fused_abi as ua
from .emit import I64, Fn, Val, Var

_LOOPS = 4  # outer loops of a gemm row


class _Tile:
    def __init__(self, f: Fn):
        self.f = f
        self.ctx, self.step, self.worker, self.outer, self.block, self.n0, self.n1 = f.args
        self.table = f.word(self.step, abi.TILE_TABLE)
        self.count = f.word(self.table, ua.T_OPERANDS)
        self.at = f.stack(8 * MAX_OPERANDS)
        self.args = f.stack(8 * (ua.R_OPERANDS + ua.R_WORDS * MAX_OPERANDS))

    def place(self, words: Val, word: int) -> Val:
        """Address of a vector whose place is in a word."""
        return self.table + self.f.word(words, word)

    def operand(self, k: Val) -> Val:
        return self.table + (k * ua.T_WORDS + ua.T_HEAD) * 8

    def row(self, k: Val, word: int) -> Val:
        """Address of a word of an operand of the row function."""
        return self.args + (k * ua.R_WORDS + (ua.R_OPERANDS + word)) * 8

    def emit(self) -> None:
        f = self.f
        self._start()
        self._outer()
        head = {ua.R_J: self.n1 - self.n0, ua.R_MODE: f.i64(ua.MAP), ua.R_FIRST: f.i64(1), ua.R_APART: f.i64(0)}
        for word, value in (head | {ua.R_STREAM: f.word(self.table, ua.T_STREAM)}).items():
            f.store(value, self.args + 8 * word)
        first, lanes = self.place(self.table, ua.T_FIRST), self.place(self.table, ua.T_LANES)
        with f.range(f.word(first, self.block), f.word(first, self.block + 1)) as run:
            f.store(f.word(lanes, run), self.args + 8 * ua.R_O)
            with f.range(0, self.count) as k:
                start = f.word(self.place(self.operand(k), ua.T_RUNS), run)
                f.store(f.word(self.at, k) + start, self.row(k, ua.R_BASE))
            f.call(f.word(self.step, abi.TILE_ROW), [self.args])
        with f.if_(f.word(self.table, ua.T_STREAM).ne(0)):
            f.store_fence()
        f.ret()

    def _start(self) -> None:
        """Where operands start, their tables of columns and their kinds."""
        f = self.f
        bases = f.word(self.ctx, abi.CTX_BASES)
        scratch = f.word(self.ctx, abi.CTX_SCRATCH) + f.word(self.ctx, abi.CTX_SCRATCH_STRIDE) * self.worker
        with f.range(0, self.count) as k:
            words = self.operand(k)
            slot = f.word(words, ua.T_SLOT)
            base = f.select(slot < 0, scratch, f.word(bases, f.max(slot, 0)))
            f.store(base + f.word(words, ua.T_OFFSET), self.at + k * 8)
            f.store(self.place(words, ua.T_COLUMNS) + self.n0 * 8, self.row(k, ua.R_TABLE))
            f.store(f.word(words, ua.T_KIND), self.row(k, ua.R_KIND))

    def _outer(self) -> None:
        """Adds the offsets of the outer index; the last loop is the fastest."""
        f, rest = self.f, Var(self.f, self.outer)
        for level in reversed(range(_LOOPS)):
            count = f.word(self.step, abi.G_OUTER + 4 * level)
            with f.if_(count > 1):
                i = rest.get() % count
                rest.set(rest.get() // count)
                with f.range(0, self.count) as k:
                    cell = self.at + k * 8
                    offset = f.word(self.place(self.operand(k), ua.T_OUTER + level), i)
                    f.store(f.word(cell) + offset, cell)


def build_tile(module: ir.Module, name: str, isa: ISA) -> None:
    _Tile(Fn(module, name, [I64] * 7)).emit()
