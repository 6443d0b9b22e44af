"""Runs one row of the step table by itself: for calibration and tests. Plans go through the walker instead."""

from __future__ import annotations

import ctypes
from typing import Sequence

import numpy as np

from .failures import failure
from .isa import ISA
from .row import Row

_Task = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class Launch:
    """A row bound to base addresses. ``bases``: one address per slot, of memory that the caller keeps alive.

    Calling it runs all tasks, one after the other, in this thread with the GIL released.
    """

    def __init__(self, row: Row, bases: Sequence[int], isa: ISA):
        from .cpu import abi, library

        self._row = row
        self._step = np.zeros(abi.STEP_WORDS, np.int64)
        self._context = np.zeros(abi.CTX_WORDS, np.int64)
        self._bases = np.array(bases, np.int64)
        self._scratch = np.zeros(row.scratch + 64, np.uint8)
        self._tables = {word: np.ascontiguousarray(table, np.int64) for word, table in row.tables.items()}
        for word, value in row.words.items():
            self._step[word] = value
        for word, table in self._tables.items():
            self._step[word] = table.ctypes.data
        for word, name in row.kernels.items():
            self._step[word] = library.address(name, isa)
        self._step[abi.NTASKS] = row.tasks
        self._context[abi.CTX_BASES] = self._bases.ctypes.data
        self._context[abi.CTX_SCRATCH] = -(-self._scratch.ctypes.data // 64) * 64
        self._context[abi.CTX_THREADS] = 1
        self._task = _Task(int(self._step[abi.FN]))
        self._arguments = (self._context.ctypes.data, self._step.ctypes.data)

    def __call__(self) -> None:
        for task in range(self._row.tasks):
            self.task(task)
        if (error := failure(self._context)) is not None:
            raise error

    def task(self, number: int) -> None:
        """Runs one task."""
        self._task(*self._arguments, number, 0)


def run(rows: Sequence[Row], bases: Sequence[int], isa: ISA) -> None:
    """Runs ``rows`` in order."""
    for row in rows:
        Launch(row, bases, isa)()
