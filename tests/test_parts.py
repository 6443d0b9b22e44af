"""Contractions with one long dimension between short ones: planned in parts, so that no table grows with a tensor."""

import math

import numpy as np
import oracle
import pytest

import einsum_engine as engine

PRIME = 8209  # no divisor: 8192 and 17
LONG = 16384
# expression and sizes: L is the long dimension
CASES = {
    "rows": ("Lk,kn->Ln", dict(k=3, n=5)),
    "columns": ("mk,kL->mL", dict(k=3, m=4)),
    "sum": ("mL,Ln->mn", dict(m=5, n=3)),
    "sum along both": ("mL,nL->mn", dict(m=5, n=3)),
    "sum of a transposed": ("Lm,nL->nm", dict(m=5, n=6)),
    "rows of a matrix": ("Lk,k->L", dict(k=6)),
    "columns of a matrix": ("kL,k->L", dict(k=6)),
    "rows in pairs": ("Lk,Lk->L", dict(k=6)),
    "batch": ("Lmk,Lkn->Lmn", dict(m=3, n=2, k=4)),
    "batch last": ("mkL,knL->mnL", dict(m=3, n=2, k=4)),
    "batch, scattered": ("Lmk,nLk->nLm", dict(m=3, n=2, k=4)),
    "batch and rows": ("bLk,bk->bL", dict(b=3, k=4)),
    "two batches": ("Lbmk,bLkn->Lbmn", dict(b=2, m=2, n=3, k=2)),
    "rows that join": ("Lak,kn->Lan", dict(a=3, k=2, n=3)),
    "chain": ("Lj,jk,kl->Ll", dict(j=3, k=4, l=2)),
    "chain, transposed": ("jL,jk,kl->lL", dict(j=3, k=4, l=2)),
    "two sums": ("aLm,Lan->mn", dict(a=2, m=3, n=2)),
}


def _operands(expression: str, sizes: dict[str, int], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    terms = expression.partition("->")[0].split(",")
    return [oracle.random(rng, [sizes[letter] for letter in term], dtype, exact=True) for term in terms]


@pytest.mark.parametrize("length", [PRIME, LONG, PRIME + 1])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int16"])
@pytest.mark.parametrize("case", CASES)
def test_results(case, dtype, length):
    """Sums are of few bits: exact in any order."""
    expression, sizes = CASES[case]
    arrays = _operands(expression, {**sizes, "L": length}, dtype)
    expected = np.einsum(expression, *arrays)
    for threads in (1, 3):
        f = engine.compile(expression, *arrays, threads=threads, optimize=False)
        assert np.array_equal(f(*arrays), expected)
    views = [array[tuple(slice(None, None, -1) for _ in array.shape)] for array in arrays]
    assert np.array_equal(engine.einsum(expression, *views), np.einsum(expression, *views))
    if dtype == "complex64":
        conjugated = np.einsum(expression, arrays[0].conj(), *arrays[1:])
        assert np.array_equal(engine.einsum(expression, *arrays, conj=[0]), conjugated)
    out = np.ones_like(expected)
    engine.einsum(expression, *arrays, out=out, alpha=2, beta=3)
    assert np.array_equal(out, (2 * expected + 3).astype(dtype))


@pytest.mark.parametrize("length", [PRIME, LONG])
def test_a_real_operand_beside_a_complex_one(length):
    a, b = _operands("Lk,kn->Ln", dict(L=length, k=3, n=5), "float64")
    assert np.array_equal(engine.einsum("Lk,kn->Ln", a, b + 2j * b), np.einsum("Lk,kn->Ln", a, b + 2j * b))
    assert np.array_equal(engine.einsum("Lk,kn->nL", a + 1j * a, b), np.einsum("Lk,kn->nL", a + 1j * a, b))


@pytest.mark.parametrize("length", [999983, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_tables(case, length):
    expression, sizes = CASES[case]
    sizes = {**sizes, "L": length}
    inputs, output = expression.split("->")
    shapes = [[sizes[letter] for letter in term] for term in inputs.split(",")]
    plan = engine.compile(expression, *shapes, threads=2, optimize=False).plan
    addressed = 8 * sum(math.prod(shape) for shape in [*shapes, [sizes[letter] for letter in output]])
    assert plan.table_bytes < 0.01 * addressed
    short = engine.compile(expression, *[[min(size, 4096) for size in shape] for shape in shapes], optimize=False)
    assert plan.flops * 4096 == pytest.approx(short.plan.flops * length)


@pytest.mark.parametrize("expression", ["i,i->", "i->"])
def test_work_that_is_shared_between_threads_is_counted_once(expression):
    """A second step adds up what each thread has summed."""
    shapes = [(1 << 21,)] * (expression.count(",") + 1)
    shared, alone = (engine.compile(expression, *shapes, threads=threads).plan for threads in (2, 1))
    assert len(shared.steps) == 2 and len(alone.steps) == 1
    assert (shared.flops, shared.bytes_moved) == (alone.flops, alone.bytes_moved)


def test_parts_name_their_own_sizes():
    steps = engine.compile("mk,kn->mn", (PRIME, 4), (4, 4)).plan.steps
    assert [dict(step.dims["M"])["m"] for step in steps] == [8192, 17]
    assert [step.flops for step in steps] == [2 * 16 * 8192, 2 * 16 * 17]
    whole = engine.compile("mk,kn->mn", (PRIME, 400), (400, 400)).plan.steps
    assert [dict(step.dims["M"])["m"] for step in whole if step.family == "gemm"] == [PRIME]
