"""The guard family: a step that fails where a bool is true, and with it the call.

if a: the error G_CODE, see `kernels.failures`        guard
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from . import guard_abi as ga
from .emit import I8, I64, Fn


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function ``guard``."""
    f = Fn(module, name, [I64] * 4)
    ctx, step, _, _ = f.args
    at = f.word(f.word(ctx, abi.CTX_BASES), f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET)
    with f.if_(f.load(I8, at).ne(0), likely=False):
        f.store(f.word(step, ga.G_CODE), ctx + 8 * abi.CTX_ERROR)
    f.ret()
