"""Pieces that lowerings and NumPy references of several families share: outer loops, elements at byte offsets."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from .gemm import ZERO

OUTER_WORD = 16  # where the outer loops start in a step
LEVELS = 4
# Multiplications of a task of what is `parallel`, that is, predicted to be shorter with another thread: they take 1 µs
# or more, which is what one more task costs.
SHARED_TERMS = 1 << 14
SHARES = 2  # tasks per thread

Problem = TypeVar("Problem", bound=Any)  # a `BatchedProblem` or a `DotProblem`
Loops = tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]


def outer_total(outer: Loops) -> int:
    """Iterations of all outer loops together."""
    return prod([count for count, *_ in outer])


def outer_words(outer: Loops) -> tuple[dict[int, int], dict[int, np.ndarray]]:
    """Words and tables of up to four loops ``(count, table_a, table_b, table_c)``; missing levels run once."""
    words, tables = {}, {}
    for level, (count, *operands) in enumerate(((1, ZERO, ZERO, ZERO),) * (LEVELS - len(outer)) + tuple(outer)):
        at = OUTER_WORD + 4 * level
        words[at] = count
        tables |= {at + 1 + i: table if len(table) else ZERO for i, table in enumerate(operands)}
    return words, tables


def outer_offsets(outer: Loops, operand: int) -> np.ndarray:
    """Offset of an operand (0: A, 1: B, 2: C) for each combination of the outer loops, the last fastest."""
    offsets = np.zeros(1, np.int64)
    for count, *tables in outer:
        offsets = np.add.outer(offsets, tables[operand][:count]).ravel()
    return offsets


def exchanged(problem: Problem) -> Problem:
    """The same product with the roles of A and B, and of M and N, exchanged."""
    p = problem
    return replace(
        p,
        a=p.b,
        b=p.a,
        outer=tuple((count, table_b, table_a, table_c) for count, table_a, table_b, table_c in p.outer),
        tm_a=p.tn_b,
        tm_c=p.tn_c,
        tn_b=p.tm_a,
        tn_c=p.tm_c,
        tk_a=p.tk_b,
        tk_b=p.tk_a,
        conj_a=p.conj_b,
        conj_b=p.conj_a,
    )


# -- references --------------------------------------------------------------------------------------------------
def element_dtype(dtype: str) -> np.dtype:
    """NumPy dtype of the stored elements of a kernel dtype."""
    return np.dtype(np.uint8 if dtype == "bool" else dtype)


def read(memory: np.ndarray, at: np.ndarray, dtype: str, conj: bool = False) -> np.ndarray:
    """Elements at byte offsets ``at`` of a uint8 array, as NumPy computes with them."""
    kind = element_dtype(dtype)
    values = memory[at[..., None] + np.arange(kind.itemsize)].view(kind)[..., 0]
    if dtype == "bool":
        return values.astype(bool)
    return values.conj() if conj else values


def write(memory: np.ndarray, at: np.ndarray, values: np.ndarray, dtype: str, accumulate: bool = False) -> None:
    """Stores elements at byte offsets, or adds them (bool: or) to what is there."""
    if accumulate:
        old = read(memory, at, dtype)
        values = values | old if dtype == "bool" else values + old
    kind = element_dtype(dtype)
    values = np.ascontiguousarray(values.astype(kind))
    memory[at[..., None] + np.arange(kind.itemsize)] = values[..., None].view(np.uint8)
