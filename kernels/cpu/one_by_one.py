"""A step of K, column by column: each is repeated in all lanes, multiplied by the rows and added.

A tile has nearly as many sums as there are registers: what it loads of a term has one register for the lanes of each row, and one
for a column. Where columns lie anywhere, LLVM would rather load all of them first, to be rid of their addresses, and keeps in
memory what finds no register then: columns, or sums in all loops of the tile (docs/performance.md#registers-in-place).
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from ..tiles import registers_needed
from .emit import Fn, Val, Var, size_of

FREE = 6  # registers, with which nothing is kept in memory; loads that come early are of use then


def is_tight(isa: ISA, dtype: str, needed: int) -> bool:
    """Whether a loop that needs so many registers leaves too few for loads that come early. Products of integers are instructions
    of their own: waiting for their sums costs more than keeping some in memory."""
    return isa.fma and dtype.startswith(("float", "complex")) and needed > isa.registers - FREE


def multiply(tile, acc: list[list[list[Var]]], rows: list[Val], columns: list[Val]) -> None:
    """Adds to ``acc[part][i][j]`` of a `tile.TileEmitter` the product of ``rows[i]`` and what is at ``columns[j]``."""
    spec = tile.spec
    tight = not spec.b_packed and is_tight(tile.isa, spec.dtype, registers_needed(tile.isa, spec.dtype, (spec.mv, spec.nr)))
    for j, column in enumerate(columns):
        for part in range(tile.parts):
            wide = tile.repeated(column + part * size_of(tile.real))
            for i, row in enumerate(rows):
                slot = acc[part][i][j]
                total = tile.fma(row, wide, slot.get())
                slot.set(done_first(tile.f, total) if tight else total)


def done_first(f: Fn, value: Val) -> Val:
    """``value``, which is there before anything is read that is read behind it. No instruction."""
    register = "v" if f.module.triple.startswith("x86") else "w"
    same = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", f"={register},0,~{{memory}}", side_effect=True)
    return Val(f, f.b.call(same, [value.v]))
