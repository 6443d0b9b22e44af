"""Blocks of a product's operands, in cache, through a row function of `fused`: epilogues and prologues of products.

``void fused_tile(ctx, step, worker, o, block, n0, n1)`` has a row of the gemm family, outer index ``o`` of it, the block
of panels of a task and columns ``n0`` to ``n1``: a block of C, which is final. Operands are C, where the function reads it,
what it writes, and whatever else it reads; each is addressed by the sum of a base, a table for each outer loop, a table of
runs of lanes and a table of columns, as `fused_abi` says.

    for run of lanes in the block        a run: along it, each operand runs or is one element
      row(args)                          columns n0 to n1: loads, arithmetic, stores

``void fused_stage(ctx, step, worker, o, turn, k0, k1, block, l0, l1)`` makes a block of A or B in the scratch memory of the
worker: lanes (of B: columns) ``l0`` to ``l1``, which are block ``block`` of them, terms ``k0`` to ``k1`` of a turn of K. Runs
go along the lanes, or along k, as the operands of the map run. Then it is terms, or lanes, that are walked by each call:

    for run of lanes in the block        or: for run of terms from k0 on
      row(args)                          terms k0 to k1, or lanes l0 to l1

Both are compiled once, for all structures, and serve every tile of every dtype.
"""

from __future__ import annotations

from llvmlite import ir

from ..fused_structure import MAX_OPERANDS
from ..isa import ISA
from . import abi
from . import fused_abi as ua
from .emit import I64, Fn, Val, Var
from .stream import LINE

_LOOPS = 4  # outer loops of a gemm row
FIRST = 1024
AHEAD = 1 << 11  # elements of what is staged between asking for operands and their use


class _Block:
    """What both have in common; ``table``, ``row``: words of the step."""

    def __init__(self, f: Fn, table: int, row: int):
        self.f = f
        self.ctx, self.step, self.worker, self.outer = f.args[:4]
        self.table, self.function = f.word(self.step, table), f.word(self.step, row)
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

    def begin(self, first: Val) -> None:
        """Where operands start, their tables from entry ``first`` on, and their kinds."""
        f = self.f
        bases = f.word(self.ctx, abi.CTX_BASES)
        scratch = f.word(self.ctx, abi.CTX_SCRATCH) + f.word(self.ctx, abi.CTX_SCRATCH_STRIDE) * self.worker
        with f.range(0, self.count) as k:
            words = self.operand(k)
            slot = f.word(words, ua.T_SLOT)
            base = f.select(slot < 0, scratch, f.word(bases, f.max(slot, 0)))
            f.store(base + f.word(words, ua.T_OFFSET), self.at + k * 8)
            f.store(self.place(words, ua.T_COLUMNS) + first * 8, self.row(k, ua.R_TABLE))
            f.store(f.word(words, ua.T_KIND), self.row(k, ua.R_KIND))
        self._outer()

    def _outer(self) -> None:
        """Adds the offsets of the outer index; the last loop is the fastest."""
        f, rest = self.f, Var(self.f, self.outer)
        for level in reversed(range(_LOOPS)):
            count = f.word(self.step, abi.G_OUTER + 4 * level)
            with f.if_(count > 1):
                i = rest.get() % count
                rest.set(rest.get() // count)
                self.shift(ua.T_OUTER + level, i)

    def shift(self, word: int, entry: Val) -> None:
        """Adds an entry of a vector of each operand."""
        f = self.f
        with f.range(0, self.count) as k:
            cell = self.at + k * 8
            f.store(f.word(cell) + f.word(self.place(self.operand(k), word), entry), cell)

    def runs(self, block: Val, entries: Val) -> None:
        """All runs of a block, each with so many entries of the other table."""
        f = self.f
        head = {ua.R_J: entries, ua.R_MODE: f.i64(ua.MAP), ua.R_FIRST: f.i64(1), ua.R_APART: f.i64(0)}
        for word, value in (head | {ua.R_STREAM: f.word(self.table, ua.T_STREAM), ua.R_PERIOD: f.i64(0)}).items():
            f.store(value, self.args + 8 * word)
        first, lanes = self.place(self.table, ua.T_FIRST), self.place(self.table, ua.T_LANES)
        with f.range(f.word(first, block), f.word(first, block + 1)) as run:
            f.store(f.word(lanes, run), self.args + 8 * ua.R_O)
            with f.range(0, self.count) as k:
                start = f.word(self.place(self.operand(k), ua.T_RUNS), run)
                f.store(f.word(self.at, k) + start, self.row(k, ua.R_BASE))
            self.each(f.word(lanes, run), entries)

    def each(self, lanes: Val, entries: Val) -> None:
        """One run."""
        self.f.call(self.function, [self.args])


class _Stage(_Block):
    def each(self, lanes: Val, entries: Val) -> None:
        """A run, some entries at a time: the next ones are asked for before, as far as they come from memory."""
        f = self.f
        several = f.min(entries, f.i64(AHEAD) // lanes + 1)
        with f.range(0, entries, several) as start:
            here = f.min(several, entries - start)
            f.store(here, self.args + 8 * ua.R_J)
            with f.range(0, self.count) as k:
                table = self.row(k, ua.R_TABLE)
                nbytes = f.word(self.operand(k), ua.T_AHEAD) * lanes
                with f.if_(nbytes.ne(0)):
                    base, coming = f.word(self.row(k, ua.R_BASE)), f.word(table) + here * 8
                    with f.range(0, f.min(several, entries - start - here)) as j:
                        row = base + f.word(coming, j)
                        with f.range(0, f.min(nbytes, f.i64(FIRST)), LINE) as at:
                            f.prefetch(row + at, locality=2)
            f.call(self.function, [self.args])
            with f.range(0, self.count) as k:
                table = self.row(k, ua.R_TABLE)
                f.store(f.word(table) + here * 8, table)
        with f.range(0, self.count) as k:
            table = self.row(k, ua.R_TABLE)
            f.store(f.word(table) - entries * 8, table)


def build_tile(module: ir.Module, name: str, isa: ISA) -> None:
    f = Fn(module, name, [I64] * 7)
    block, n0, n1 = f.args[4:]
    tile = _Block(f, abi.TILE_TABLE, abi.TILE_ROW)
    tile.begin(n0)
    tile.runs(block, n1 - n0)
    with f.if_(f.word(tile.table, ua.T_STREAM).ne(0)):
        f.store_fence()
    f.ret()


def build_stage(module: ir.Module, name: str, isa: ISA) -> None:
    f = Fn(module, name, [I64] * 10)
    turn, k0, k1, block, l0, l1 = f.args[4:]
    stage = _Stage(f, abi.G_STAGE_TABLE, abi.G_STAGE_ROW)
    along_k = f.word(stage.table, ua.T_ALONG_K).ne(0)
    stage.begin(f.select(along_k, l0, k0))
    stage.shift(ua.T_TURNS, turn)
    number = f.select(along_k, k0 // f.word(stage.step, abi.G_KC), block)
    stage.runs(number, f.select(along_k, l1 - l0, k1 - k0))
    f.ret()
