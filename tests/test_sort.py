"""Sorted lines and their order, on every instruction set: dtypes, lengths around those of the ways to sort, strides."""

import numpy as np
import pytest
import strided

from einsum_engine.dtypes import as_numpy
from einsum_engine.kernels import launch, sort
from einsum_engine.kernels.cpu import sort_abi
from einsum_engine.kernels.cpu.storage import STORAGES
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.kernels.row import Operand

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)


def values(rng, shape, dtype):
    """Any bits, many of them equal, with zeros of both signs and NaN."""
    kind = as_numpy(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    found = np.frombuffer(rng.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape).copy()
    found[rng.random(shape) < 0.3] = 0
    if STORAGES[dtype].floating:
        found[rng.random(shape) < 0.3] = -found.dtype.type(0)
        found[rng.random(shape) < 0.1] = np.nan
    return found


def check(isa, dtype, seed, count, lines, threads=1) -> None:
    rng = np.random.default_rng(seed)
    kind = as_numpy(dtype)
    for order in (False, True):
        x = strided.make(rng, (count, *lines), f"int{8 * kind.itemsize}")
        x.view.view(kind)[...] = values(rng, x.view.shape, dtype)
        out = strided.make(rng, (count, *lines), "int64" if order else f"int{8 * kind.itemsize}")
        expected, before = out.copy(), x.copy()
        with np.errstate(invalid="ignore"):  # signalling NaN
            given = x.view.view(kind).astype(np.float64 if kind.kind not in "iub" else kind)
        if order:
            expected.view[...] = np.argsort(given, axis=0, kind="stable")
        else:
            expected.view[...] = np.sort(given, axis=0).astype(kind).view(out.view.dtype)
        strides = [tuple(a.view.strides) for a in (x, out)]
        problem = sort.SortProblem(
            dtype=dtype,
            order=order,
            line=(count, strides[0][0], strides[1][0]),
            lines=tuple((n, strides[0][at], strides[1][at]) for at, n in enumerate(lines, 1)),
            operands=(Operand(slot=0, offset=out.start), Operand(slot=1, offset=x.start)),
        )
        rows = problem.lower(threads)
        launch.run(rows, [a.memory.ctypes.data if a.memory.size else 0 for a in (out, x)], isa)
        strided.same_bytes(x, before, problem)
        if not order and given.dtype.kind == "f":  # zeros are equal, whatever their sign, and so are NaN
            found, wanted = (a.view.view(kind).astype(float) for a in (out, expected))
            np.testing.assert_array_equal(found, wanted)
            expected.view[...] = out.view
        strided.same_bytes(out, expected, problem)


@ISAS
@pytest.mark.parametrize("dtype", sort.DTYPES)
def test_every_dtype(isa, dtype):
    for count in (1, 2, sort_abi.RUN + 1, 3 * sort_abi.RUN, 4 * sort_abi.RUN - 1):
        check(isa, dtype, count, count, [3])
    for count in (0, 31, 32, 33, 127, 128, 255, 256, 400):
        check(isa, dtype, count, count, [])


def test_lines_and_tasks():
    check(active_isa(), "float32", 1, 5, [2, 1, 3])
    check(active_isa(), "float32", 2, 5, [0])
    check(active_isa(), "int16", 3, 700, [6, 5], threads=3)


def test_digits_that_are_the_same_everywhere_are_left_out():
    for values_of in (np.zeros(500, np.int64), np.arange(500) % 3 << 40, -np.arange(500)):
        x, out = np.asarray(values_of, np.int64), np.empty(500, np.int64)
        operands = (Operand(slot=0, offset=0), Operand(slot=1, offset=0))
        problem = sort.SortProblem(dtype="int64", order=True, line=(500, 8, 8), lines=(), operands=operands)
        launch.run(problem.lower(), [out.ctypes.data, x.ctypes.data], active_isa())
        assert np.array_equal(out, np.argsort(x, kind="stable"))
