"""One row of the step table before it has addresses: what a family's lowering returns to the executor."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from ..records import lazy, quick
from .cpu import abi

_POOLED = 4096  # entries of an offset vector that is put beside others
_WORDS = struct.Struct(f"{abi.STEP_WORDS}q")


class Operand(NamedTuple):
    """Where an operand of a row starts: slot of the base address and byte offset."""

    slot: int
    offset: int


_SPARE = bytes(8)  # a row without tables has a pool, too
Place = tuple[int, int]  # an `Operand`, or the same without its name


def operand_words(out: Place, a: Place, b: Place | None = None) -> dict[int, int]:
    """The words of a row that say where its operands are."""
    words = {abi.OUT_SLOT: out[0], abi.OUT_OFFSET: out[1], abi.A_SLOT: a[0], abi.A_OFFSET: a[1]}
    if b is not None:
        words[abi.B_SLOT], words[abi.B_OFFSET] = b
    return words


class Packed(NamedTuple):
    """A row as it lies in memory, but for its operands and kernels: ``words`` has the addresses of its offset vectors.
    Short ones lie in ``pool``, one after the other. ``parallel``: whether threads may share it."""

    words: bytes
    pool: bytearray
    parallel: bool


@quick
@dataclass(frozen=True, kw_only=True)
class Row:
    """``words``: plain int64 words by position (`cpu.abi`); ``tables``: offset vectors (contiguous int64, in bytes)
    whose address goes into a word; ``kernels``: names of compiled functions whose address goes into a word (``FN``
    included); ``scratch``: bytes per worker; ``tasks``: independent shares. Steps may have one row with operands at
    different places (`plan.Step.places`)."""

    words: Mapping[int, int]
    tables: Mapping[int, np.ndarray] = field(default_factory=dict)
    kernels: Mapping[int, str] = field(default_factory=dict)
    scratch: int = 0
    tasks: int = 1

    @lazy
    def packed(self) -> Packed:
        """What the executor lays out. It is the same for the row with operands at other places."""
        tables = self.tables.values()
        pool, starts = _pooled(list(dict(zip(map(id, tables), tables)).values()))
        words = [0] * abi.STEP_WORDS
        for word, value in self.words.items():
            words[word] = value
        for word, table in self.tables.items():
            words[word] = starts[id(table)]
        words[abi.NTASKS] = self.tasks
        return Packed(_WORDS.pack(*words), pool, words[abi.PARALLEL] != 0)

    @lazy
    def nbytes(self) -> int:
        """Of the row and its tables."""
        return 8 * abi.STEP_WORDS + sum([table.nbytes for table in self.tables.values()])


def blocks_row(starts: Sequence[int], target: int, parallel: int = abi.IN_TURN) -> Row:
    """A row whose tasks are blocks of the rows behind it: ``starts`` has the first row of each block, counted from this
    one, and the row behind the last; ``target``: the row to go to; ``parallel``: `abi.IN_BANDS` where blocks are parts
    of arrays."""
    words = {abi.KIND: abi.BLOCKS, abi.NEXT: target, abi.PARALLEL: parallel}
    tables = {abi.BLOCK_STARTS: np.array(starts, np.int64)}
    return Row(words=words, tables=tables, kernels={abi.FN: "blocks"}, tasks=len(starts) - 1)


def _pooled(tables: list[np.ndarray]) -> tuple[bytearray, dict[int, int]]:
    """Short tables one behind the other, and the address of each table by its id."""
    short = tables
    if max(map(len, tables), default=0) > _POOLED:
        short = [table for table in tables if len(table) <= _POOLED]
    # Their bytes are joined: a NumPy call takes longer than all that there is to do for a small product.
    pool = bytearray().join([*short, _SPARE])
    first = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    starts = dict(zip(map(id, short), accumulate([table.nbytes for table in short], initial=first)))
    if len(short) < len(tables):
        starts |= {id(t): t.__array_interface__["data"][0] for t in tables if len(t) > _POOLED}
    return pool, starts
