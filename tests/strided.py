"""Operands of any strides in guarded memory, for the tests of kernels that take offset vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np
import oracle

CANARY = 0xA5


@dataclass(frozen=True, kw_only=True, eq=False)
class Strided:
    """``memory``: guarded bytes, canaries where there is no element; ``start``: of element 0 ...; strides in bytes."""

    memory: np.ndarray
    start: int
    view: np.ndarray

    def table(self, axis: int) -> np.ndarray:
        """Byte offsets along an axis."""
        return np.arange(self.view.shape[axis], dtype=np.int64) * self.view.strides[axis]

    def copy(self) -> "Strided":
        """The same bytes in ordinary memory."""
        memory = self.memory.copy()
        view = np.ndarray(self.view.shape, self.view.dtype, memory.data, self.start, self.view.strides)
        return Strided(memory=memory, start=self.start, view=view)


def make(
    rng: np.random.Generator,
    shape: Sequence[int],
    dtype: str,
    *,
    fixed: Sequence[int] = (),
    zeros: bool = False,
    exact: bool = True,
) -> Strided:
    """Random elements under random strides: any order of axes, gaps of any bytes, some axes backwards.

    ``fixed``: axes that are contiguous, the last of them fastest. ``zeros``: an axis may have stride 0. ``exact``:
    whole numbers whose products and sums have no rounding error.
    """
    kind = np.dtype("uint8" if dtype == "bool" else dtype)
    strides, step = [0] * len(shape), kind.itemsize
    for axis in reversed(fixed):
        strides[axis] = step
        step *= max(shape[axis], 1)
    for axis in rng.permutation([a for a in range(len(shape)) if a not in fixed]):
        if zeros and rng.random() < 0.1:
            continue
        step += int(rng.choice([0, 0, 0, kind.itemsize, 1, 64]))
        strides[axis] = -step if rng.random() < 0.2 else step
        step *= max(shape[axis], 1)
    reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
    empty = 0 in shape
    low = 0 if empty else sum(min(0, r) for r in reach)
    high = 0 if empty else sum(max(0, r) for r in reach) + kind.itemsize
    memory = oracle.guarded(high - low, str(rng.choice(["start", "end"])))
    memory[:] = CANARY
    view = np.ndarray(tuple(shape), kind, memory.data if len(memory) else bytearray(1), -low, tuple(strides))
    view[...] = oracle.random(rng, tuple(shape), dtype, exact).astype(kind)
    return Strided(memory=memory, start=-low, view=view)


def same_as_reference(
    p: object, operands: Sequence[Strided], reference: Callable[..., Any], launch: Callable[[], Any]
) -> None:
    """``launch()`` leaves in ``operands`` what ``reference`` leaves in copies of the same bytes."""
    expected = [x.copy() for x in operands]
    reference(p, {slot: x.memory for slot, x in enumerate(expected)})
    launch()
    for got, want in zip(operands, expected):
        same_bytes(got, want, p)


def same_bytes(got: Strided, expected: Strided, what: object) -> None:
    """Elements are equal (0.0 and -0.0 are), and so is everything around them."""
    np.testing.assert_array_equal(got.view, expected.view, err_msg=str(what))
    around = [x.copy() for x in (got, expected)]
    for x in around:
        x.view[...] = 0
    assert around[0].memory.tobytes() == around[1].memory.tobytes(), f"bytes written outside the elements: {what}"
