"""Chains of operations whose order makes no difference (`planners/regroup.py`)."""

import numpy as np
import pytest
from program_calls import assert_like_numpy

import einsum_engine as engine
from einsum_engine.planners.regroup import regrouped


def inside(x, top, left, bottom, right):
    rows, columns = np.arange(x.shape[0])[:, None, None], np.arange(x.shape[1])[:, None]
    x *= (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
    return x


def integers(i, j, k):
    i, j = i[:, None, None], j[:, None]
    return (i ^ j) ^ k * k, 3 * ((i + j) + 5 + k), np.maximum(i, np.maximum(j, k[0])), (k | 1) * i * j * i


def read_late(i, j, k):
    """A value that is written before the end of the chain."""
    first = i[:, None, None] & j[:, None]
    j[:] = 7
    return first & k[:, None]


def read_twice(i, j, k):
    both = i[:, None, None] | j[:, None]
    return both | k[:, None], both


def floats(i, j, k):
    return (i[:, None, None] * 0.1 + j[:, None] * 0.1) + k[:, None] * 0.1


def counted(function, *arrays) -> tuple[int, int]:
    """Elements that are computed, as it is written and regrouped."""
    program = engine.jit(function).program(*arrays)
    found = regrouped(program).check()
    return tuple(sum(var.aval.size for eqn in each.eqns for var in eqn.outputs) for each in (program, found))


def test_what_does_not_depend_on_all_loops_is_combined_before():
    rng = np.random.default_rng(0)
    x, bounds = rng.uniform(1, 2, (40, 50, 30)).astype("f"), rng.integers(0, 50, (4, 30))
    plan = assert_like_numpy(inside, x, *bounds).plan(x, *bounds)
    assert len(plan.steps[-1].inputs) == 3 and plan.steps[-1].expr == "bit_and cast mul"
    before, after = counted(inside, x, *bounds)
    assert before - after == 50 * 40 * 30 - 40 * 30


@pytest.mark.parametrize(
    "function, fewer", [(integers, True), (read_late, False), (read_twice, False), (floats, False)]
)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_the_bits_are_those_of_the_order_that_is_written(function, fewer, dtype):
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 2**63, (3, 40)).astype(dtype)
    before, after = counted(function, *arrays)
    assert (after < before) == fewer
    assert_like_numpy(function, *arrays, calls=2, rtol=0)
