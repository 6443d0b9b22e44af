"""Reductions in fused kernels: alone, beside what is stored, and shared by tasks."""

import fused_case
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fused import ISAS, SHAPES, SIZES, check

from einsum_engine.kernels import fused
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import fused_abi

REDUCED = [
    ("sum", "float32"),
    ("prod", "int8"),
    ("max", "float64"),
    ("min", "uint16"),
    ("any", "bool"),
    ("all", "bool"),
]
REDUCED += [("sum", "complex64"), ("sum", "int64"), ("max", "int32")]


@ISAS
@pytest.mark.parametrize("reduce, dtype", REDUCED)
@settings(SHAPES, max_examples=40)
@given(data=st.data(), seed=st.integers(0, 9999), shape=SIZES, threads=st.sampled_from([1, 4]))
def test_reductions(isa, reduce, dtype, data, seed, shape, threads):
    reduced = tuple(sorted(data.draw(st.sets(st.integers(0, max(0, len(shape) - 1))))) if shape else ())
    structure = fused_case.single("", (dtype,), reduce)
    check(isa, structure, seed, tuple(shape), reduced, threads)


@ISAS
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (1000, 3), (67, 131), (5, 9000), (9000, 5), (300, 200)])
def test_map_and_reductions_together(isa, axis, shape, threads):
    """What softmax does: exp(x - m) is stored, and its sum."""
    g = fs.Graph(("float32", "float32"))
    e = g.op("exp", g.op("sub", 0, 1))
    structure = g.structure(e, (e, "sum"), (0, "max"))
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype("f")
    m = x.max(axis, keepdims=True)
    out = [np.full(shape, np.nan, "f"), np.full_like(m, np.nan), np.full_like(m, np.nan)]
    rows = fused_case.run(isa, structure, out, [x, m], threads)
    assert rows[0].tasks > 1 or threads == 1 or min(shape) < 64 or x.size < 40_000
    exact = np.exp((x - m).astype(float))
    np.testing.assert_allclose(out[0], exact, rtol=4e-7)
    np.testing.assert_allclose(out[1], exact.sum(axis, keepdims=True), rtol=2e-6)
    np.testing.assert_array_equal(out[2], m)


@ISAS
@pytest.mark.parametrize("reduced, shape", [((0,), (100_003,)), ((0,), (9001, 67)), ((0, 2), (300, 5, 131))])
def test_tasks_share_a_reduction(isa, reduced, shape):
    """Two results at once, with partial results in guarded memory."""
    g = fs.Graph(("float32", "float32"))
    structure = g.structure((g.op("mul", 0, 1), "sum"), (0, "max"))
    check(isa, structure, 3, shape, reduced, threads=4)
    inputs = [np.ones(shape, "f") for _ in range(2)]
    outputs = [np.empty([1 if n in reduced else size for n, size in enumerate(shape)], "f") for _ in range(2)]
    problem = fused_case.problem_of(structure, outputs, inputs)
    assert fused.temp_bytes(problem, 1) == 0 < fused.temp_bytes(problem, 4)
    first, second = fused.lower(problem, 4, fused.Operand(slot=4, offset=0))
    assert first.tasks > 1 and first.words[fused_abi.U_SHARE] and second.tasks == 1


@ISAS
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("reduced, shape", [((0,), (100_003,)), ((0,), (9001, 67)), ((0, 2), (300, 5, 131)), ((0,), (12, 70_001))])
def test_tasks_that_share_a_reduction_store_their_own_parts(isa, reduced, shape, order):
    """What is stored lies beside partial results in the row, before them or after; only these are one for each task."""
    g = fs.Graph(("float32", "float32"))
    outputs = [(g.op("mul", 0, 1), "sum"), (0, "max"), g.op("sub", 0, 1)]
    structure = g.structure(*(outputs[n] for n in order))
    check(isa, structure, 3, shape, reduced, threads=4)
    kept = [1 if n in reduced else size for n, size in enumerate(shape)]
    made = [np.empty(shape if outputs[n] == outputs[2] else kept, "f") for n in order]
    problem = fused_case.problem_of(structure, made, [np.ones(shape, "f") for _ in range(2)])
    rows = fused.lower(problem, 4, fused.Operand(slot=5, offset=0))
    assert rows[0].tasks > 1 and len(rows) == (1 if 70_001 in shape else 2)  # so many results are a task's own anyway
