"""A nest problem with memory around it: what its kernels must and must not write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import oracle
from hypothesis import strategies as st

from einsum_engine.dtypes import as_numpy
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.cpu.storage import STORAGES
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.launch import Launch
from einsum_engine.kernels.nest import NestProblem, lower, reference
from einsum_engine.kernels.row import Row

CANARY = 0xA5
MARGIN = 64
MOVED = ["int8", "float16", "float32", "complex64", "complex128"]


def extent(dims, operand: int, item: int) -> tuple[int, int]:
    """First and last (exclusive) byte, relative to the first element."""
    spans = [(d[0] - 1) * d[1 + operand] for d in dims if d[0]]
    return sum(min(0, s) for s in spans), sum(max(0, s) for s in spans) + item


def values(rng: np.random.Generator, dtype: np.dtype, count: int) -> np.ndarray:
    """Small whole numbers: exact in every dtype, and so are short sums and products of them."""
    whole = rng.integers(0 if dtype.kind in "ub" else -4, 5, count)
    if dtype.kind == "c":
        return (whole + 1j * rng.integers(-4, 5, count)).astype(dtype)
    return (whole % 2 if dtype.kind == "b" else whole).astype(dtype)


class Operand:
    """Memory of one operand: canaries everywhere but in its elements."""

    def __init__(self, rng, name: str, dims, operand: int, shift: int = 0, *, summed: bool, within: int | None = None):
        self.dtype = as_numpy(name)
        low, high = extent(dims, operand, self.dtype.itemsize)
        spare = 64 if within is None else 192  # memory of so many bytes need not begin with a line
        # Not the same around all operands: what is copied from around one to around another is seen.
        self.memory = np.full(high - low + 2 * MARGIN + spare, CANARY ^ operand, np.uint8)
        self.start = MARGIN - low + shift
        if within is not None:
            first = -self.memory.ctypes.data % 64
            self.memory = self.memory[first : first + len(self.memory) - 64]
            self.start += (within - self.start) % 64
        shape = tuple(d[0] for d in dims)  # an axis of stride 0 keeps its size, but the output's in a sum
        strides = tuple(d[1 + operand] if d[0] != 1 else 0 for d in dims)
        if summed:
            shape = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides))
        self.view = np.ndarray(shape, self.dtype, self.memory.data, self.start if all(shape) else 0, strides)
        self.view[...] = values(rng, self.dtype, self.view.size).reshape(self.view.shape)

    @property
    def address(self) -> int:
        return self.memory.ctypes.data + self.start


@dataclass
class Case:
    problem: NestProblem
    seed: int = 0
    threads: int = 1
    alpha: complex = 1
    beta: complex = 0
    shift: int = 0  # bytes by which operands are off alignment
    within: tuple[int | None, ...] = (None, None, None)  # where operands begin within a line, if that matters

    def operands(self) -> list[Operand]:
        rng = np.random.default_rng(self.seed)
        return [
            Operand(
                rng,
                name,
                self.problem.dims,
                i,
                self.shift * (i + 1),
                summed=i == 0 and self.problem.op == "sum",
                within=self.within[i],
            )
            for i, name in enumerate(self.problem.operands)
        ]

    def run(self, isa, operands) -> None:
        """Runs the rows; nothing is written past the temporary memory that they ask for."""
        lowered = lower(self.problem, self.threads)
        temp = np.full(lowered.temp_bytes + 64, CANARY, np.uint8)
        scalars = np.array([self.alpha.real, self.alpha.imag, self.beta.real, self.beta.imag], np.float64)
        places = {"out": operands[0].address, "a": operands[1].address, "temp": temp.ctypes.data, "": 0}
        places["b"] = scalars.ctypes.data if self.problem.scaled else operands[-1].address
        for row, names in zip(lowered.rows, lowered.operands, strict=True):
            words = {abi.OUT_SLOT: 0, abi.A_SLOT: 1, abi.B_SLOT: 2}
            Launch(replace(row, words={**row.words, **words}), [places[n] for n in names], isa)()
        assert (temp[len(temp) - 64 :] == CANARY).all(), "wrote past the temporary memory"

    def check(self, isa) -> None:
        """Runs the kernels and the reference: same bytes, inputs and canaries untouched."""
        expected, got = self.operands(), self.operands()
        reference(
            self.problem,
            *[e.view for e in expected],
            **({"alpha": self.alpha, "beta": self.beta} if self.problem.scaled else {}),
        )
        self.run(isa, got)
        for i, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            np.testing.assert_array_equal(mine.view, theirs.view, err_msg=f"operand {i} of {self}")
            mine.view[...] = theirs.view  # zeros may differ in sign
            assert mine.memory.tobytes() == theirs.memory.tobytes(), f"bytes around operand {i} of {self}"


def check_between_guards(problem: NestProblem, flush: tuple[str, str], isa, which: int = 0, within: int = 0) -> None:
    """Runs a copy, by row ``which`` of its rows, whose output and input lie against pages that must not be read or written; the
    output, if it begins so many bytes ``within`` a line, less than a line away from them."""
    dims, name = problem.dims, problem.out
    item = np.dtype(name).itemsize
    span = [item + sum((dim[0] - 1) * dim[1 + x] for dim in dims) for x in (0, 1)]
    memory, a = (oracle.guarded(size, side) for size, side in zip((span[0] + LINE * (within > 0), span[1]), flush))
    out = memory[within:][: span[0]]
    around = memory.copy()
    a[...] = np.random.default_rng(0).integers(0, 2, a.size)
    row = lower(problem, 2).rows[which]
    row.words.update({abi.OUT_SLOT: 0, abi.OUT_OFFSET: 0, abi.A_SLOT: 1, abi.A_OFFSET: 0})
    Launch(row, [out.ctypes.data, a.ctypes.data], isa)()
    sizes = [dim[0] for dim in dims]
    views = [np.ndarray(sizes, name, x.data, 0, [dim[1 + n] for dim in dims]) for n, x in enumerate((out, a))]
    np.testing.assert_array_equal(*views)
    out[...] = around[within:][: span[0]]
    assert (memory == around).all(), f"bytes around an output that begins {within} bytes within a line"


def written_by_tasks(problem: NestProblem, row: Row, tasks: int, isa) -> np.ndarray:
    """How many elements each of so many tasks of a copy's row writes; all of them write the whole output."""
    count = prod(dim[0] for dim in problem.dims)
    out, a = np.zeros(count, problem.out), np.ones(count, problem.a)
    words = {**row.words, abi.OUT_SLOT: 0, abi.OUT_OFFSET: 0, abi.A_SLOT: 1, abi.A_OFFSET: 0}
    launch = Launch(replace(row, words=words, tasks=tasks), [out.ctypes.data, a.ctypes.data], isa)
    written = [0]
    for task in range(tasks):
        launch.task(task)
        written.append(np.count_nonzero(out))
    assert written[-1] == count
    return np.diff(written)


# -- strategies ----------------------------------------------------------------------------------------------------
SIZES = st.sampled_from([1, 2, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 67])


@st.composite
def strides(draw, sizes, item: int, zeros: bool) -> list[int]:
    """Strides of an operand: loops in some order, gaps between them, some backwards, some 0."""
    order = draw(st.permutations(range(len(sizes))))
    result = [0] * len(sizes)
    step = item
    for loop in order:
        step += draw(st.sampled_from([0, 0, 0, 0, item, 1, 64]))
        if zeros and draw(st.integers(0, 5)) == 0:
            continue
        result[loop] = -step if draw(st.integers(0, 5)) == 0 else step
        step *= max(sizes[loop], 1)
    return result


@st.composite
def spaces(draw, items, *, summed: bool = False, limit: int = 30_000) -> tuple:
    """``dims`` of a nest over operands of the given item sizes."""
    sizes = draw(st.lists(SIZES, max_size=6))
    while np.prod(sizes, dtype=float) > limit:
        sizes.remove(max(sizes))
    if draw(st.integers(0, 20)) == 0:
        sizes.append(0)
    columns = [draw(strides(sizes, items[0], summed))]
    columns += [draw(strides(sizes, item, True)) for item in items[1:]]
    while len(columns) < 3:
        columns.append([0] * len(sizes))
    return tuple(zip(sizes, *columns, strict=True))


def item_of(name: str) -> int:
    return STORAGES[name].itemsize


def case_of(draw, problem: NestProblem) -> Case:
    seed, threads, shift = (draw(s) for s in (st.integers(0, 99), st.sampled_from([1, 3]), st.integers(0, 3)))
    return Case(problem, seed=seed, threads=threads, shift=shift)


@st.composite
def permutations(draw) -> Case:
    """Dense tensors, the input with gaps and backwards here and there."""
    name = draw(st.sampled_from(MOVED))
    item, sizes = item_of(name), draw(st.lists(st.sampled_from([2, 3, 4, 5, 8, 13, 16, 31, 67, 130, 300]), max_size=6))
    while np.prod(sizes, dtype=float) > 100_000:
        sizes[sizes.index(max(sizes))] = 2
    columns = []
    for gaps, order in ((0, range(len(sizes))), (item, draw(st.permutations(range(len(sizes)))))):
        step, column = item, [0] * len(sizes)
        for loop in order:
            column[loop] = step * (-1 if gaps and draw(st.integers(0, 9)) == 0 else 1)
            step = step * sizes[loop] + (gaps if draw(st.integers(0, 9)) == 0 else 0)
        columns.append(column)
    dims = tuple((size, out, a, 0) for size, out, a in zip(sizes, *columns, strict=True))
    return case_of(draw, NestProblem(op="copy", dims=dims, out=name, a=name))
