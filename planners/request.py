"""What a plan is made for: the expression, how the operands lie in memory, and the options that change the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..records import quick


class NotLowered(Exception):
    """What a program has and no plan can do; the text says which primitive it is, and why."""


# How intermediates are laid out. ``solve``: as the layout solver predicts to be fastest. The others are what it is held
# against. ``natural``: C order of the indices as the expression names them; ``merged``: the matrix that the consumer
# reads, [batch][k][lanes], in plain strides; ``panels``: fixed blocks wherever a product writes what lanes read; ``nested``:
# those in blocks of K, where there are several.
LAYOUTS = ("solve", "natural", "merged", "panels", "nested")


@quick
@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Hashable request for one plan.

    ``dtypes``: NumPy names (``bfloat16`` too), native byte order unless the operand is in ``byteswapped``;
    ``strides``: bytes per operand axis; ``out_strides``: bytes per output axis, None for a fresh result in C order
    (a repeated output index addresses a diagonal); ``dtype``: of the result; ``accumulate``: dtype in which sums are
    kept, None for the default; ``conj``: operand positions; ``scaled``: the call passes alpha and beta;
    ``order``: an `order.Order`; ``constants``: operand positions whose values never change; ``layouts``: one of
    `LAYOUTS`; ``same``: for each operand the first position that is the same array (memory, shape, strides and dtype),
    empty where each is another one. In the request of a plan it is empty unless the plan makes use of it. ``fuse``:
    whether operations become others that may keep more values at a time (`joining`, `shared_lines`).
    """

    expr: Any
    dtypes: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...]
    out_strides: tuple[int, ...] | None
    dtype: str
    accumulate: str | None = None
    conj: tuple[int, ...] = ()
    scaled: bool = False
    threads: int = 1
    isa: str
    order: Any
    constants: tuple[int, ...] = ()
    byteswapped: tuple[int, ...] = ()
    layouts: str = "solve"
    same: tuple[int, ...] = ()
    fuse: bool = True
