"""`executor.run_reference`: what a user compares a plan with, whatever the plan's steps are."""

import numpy as np
import pytest
from plan_cases import operands

import einsum_engine as engine
from einsum_engine.executor import run_reference

# expression, sizes, family or word of a step that plans have for it
CASES = {
    "a copy for lanes along a batch": ("acb,bac,a->ba", dict(a=31, b=8, c=10), "copy"),
    "pieces of a summed index": ("fab,agbf,gafd->d", dict(a=7, b=16, d=100, f=3, g=31), "{g'}"),
    "a sum with a tail": ("ka,kb->ab", dict(k=100003, a=4, b=5), ""),
    "slices for threads": ("bc,cadb,b->bda", dict(a=64, b=7, c=150, d=2), ""),
    "sizes of one": ("afebih,hea,bfh->bh", dict(a=150, b=16, e=1, f=40, h=2, i=1), ""),
    "a diagonal": ("iij,jk->ik", dict(i=3, j=4, k=5), ""),
    "one operand": ("ijk->ki", dict(i=3, j=4, k=5), ""),
    "an outer product of three": ("i,j,k->kji", dict(i=3, j=1, k=5), ""),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["int64", "complex128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_reference_of_a_plan_is_right(name, dtype, threads):
    equation, sizes, word = CASES[name]
    arrays = operands(equation, sizes, dtype)
    f = engine.compile(equation, *arrays, threads=threads, conj=[0] if dtype[0] == "c" else ())
    if threads == 2 and dtype == "complex128":
        assert word in " ".join([f"{step.family} {step.expr}" for step in f.plan.steps])
    conjugated = [a.conj() if not n else a for n, a in enumerate(arrays)]
    wanted = np.einsum(equation, *conjugated, optimize=True)
    found = run_reference(f.plan, arrays)
    assert found.dtype == dtype and np.array_equal(found, wanted) and np.array_equal(f(*arrays), wanted)


@pytest.mark.parametrize("equation, sizes", [("ij,jk->ik", dict(i=3, j=0, k=4)), ("i->i", dict(i=0)), ("ab->", dict(a=0, b=2))])
def test_of_operands_without_elements_too(equation, sizes):
    arrays = operands(equation, sizes, "float32")
    f = engine.compile(equation, *arrays)
    found = run_reference(f.plan, arrays)
    wanted = np.einsum(equation, *arrays)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
    assert np.array_equal(found, f(*arrays))


def test_there_is_none_of_what_numpy_computes():
    arrays = operands("ij,jk->ik", dict(i=2, j=3, k=4), "float64")
    f = engine.compile("ij,jk->ik", *[array.astype("longdouble") for array in arrays])
    with pytest.raises(engine.errors.EngineTypeError, match="has no reference: NumPy computes it"):
        run_reference(f.plan, arrays)
