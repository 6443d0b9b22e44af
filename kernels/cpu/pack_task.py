"""The packing step: an operand that many tasks read goes to panels before, by the pack function that tasks call, too."""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from .emit import I64, Fn, Var


def build_pack_task(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function of a packing step of its own: operand A goes to panels in the output buffer.

    One task packs a range of panels of one flat outer index (`abi.G_OUTER`, tables A and C), by the pack function at
    `abi.G_PACK`.
    """
    f = Fn(module, name, [I64] * 4)
    ctx, step, task, _ = f.args
    bases = f.word(ctx, abi.CTX_BASES)
    src = Var(f, f.word(bases, f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET))
    dst = Var(f, f.word(bases, f.word(step, abi.OUT_SLOT)) + f.word(step, abi.OUT_OFFSET))
    shares, block = f.word(step, abi.G_PANEL_TASKS), f.word(step, abi.G_PANEL_BLOCK)
    p0, rest = (task % shares) * block, Var(f, task // shares)
    for level in reversed(range(4)):
        at = abi.G_OUTER + 4 * level
        count = f.word(step, at)
        with f.if_(count > 1):
            i = rest.get() % count
            rest.set(rest.get() // count)
            src.add(f.word(f.word(step, at + 1), i))
            dst.add(f.word(f.word(step, at + 3), i))
    width, stride = f.word(step, abi.G_N), f.word(step, abi.G_A_STRIDE)
    args = {
        abi.P_DST: dst.get() + p0 * stride,
        abi.P_SRC: src.get(),
        abi.P_PANELS: f.min(block, f.word(step, abi.G_PANELS) - p0),
        abi.P_WIDTH: width,
        abi.P_LANES: f.word(step, abi.G_TM_A) + p0 * width * 8,
        abi.P_VALID: f.word(step, abi.G_VALID) + p0 * 8,
        abi.P_K: f.word(step, abi.G_K),
        abi.P_TK: f.word(step, abi.G_TK_A),
        abi.P_MODE: f.word(step, abi.G_PACK_MODE),
        abi.P_STRIDE: stride,
    }
    stack = f.stack(8 * abi.P_WORDS)
    for index, value in args.items():
        f.store(value, stack + 8 * index)
    f.call(f.word(step, abi.G_PACK), [stack])
    with f.if_((f.word(step, abi.G_PACK_MODE) & abi.PACK_PAST).ne(0)):
        f.store_fence()
    f.ret()
