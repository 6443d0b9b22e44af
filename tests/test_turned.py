"""Products whose result is turned round in a step of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.plan import Axis
from einsum_engine.planners.turned import as_it_lies, batch_inside, batch_outside, term_of_product

SIZES = dict(a=20, b=40, c=16, d=48, e=10, f=12, g=5)


def axes(term: str, sizes=SIZES, item: int = 8) -> dict[str, Axis]:
    strides = np.cumprod([item, *(sizes[i] for i in reversed(term))])[-2::-1]
    return {i: Axis.strided(i, sizes[i], int(stride)) for i, stride in zip(term, strides)}


def asked(equation: str, sizes=SIZES):
    """Axes of the operands and of the result."""
    inputs, out = equation.split("->")
    return [axes(term, sizes) for term in (*inputs.split(","), out)]


def written(term) -> str | None:
    return None if term is None else "".join(term)


@pytest.mark.parametrize(
    "equation, found",
    [
        ("abc,adc->bda", "abd"),  # a is the batch
        ("bac,cad->dba", "adb"),
        ("abfc,adgfc->bdgaf", "afbdg"),  # a and f are
        ("abc,adcg->bdag", None),  # behind a run of 40 bytes
        ("abc,adc->abd", None),
        ("abc,dc->bda", None),  # no batch
        ("ac,adc->da", None),  # no rows on one side
        ("bca,dca->bda", None),  # lanes run along it in both operands
        ("bca,adc->bda", "abd"),  # in one, and the other is no small one
        ("bcfeda,ag->bcfedga", None),  # a copy of the other is little
    ],
)
def test_which_products_have_the_batch_outside(equation, found):
    assert written(batch_outside(*asked(equation), 8)) == found


@pytest.mark.parametrize(
    "equation, sizes, found",
    [
        ("bah,hbda->bad", dict(a=64, b=20, d=40, h=2), "dba"),
        ("cah,hbdac->bcad", dict(a=64, b=20, c=10, d=40, h=2), "bdac"),
        ("cah,hbdac->bdac", dict(a=64, b=20, c=10, d=40, h=2), None),  # the result has it fastest
        ("cah,hbdca->badc", dict(a=64, b=20, c=10, d=40, h=2), "bdca"),
        ("cahe,hbdca->badce", dict(a=64, b=20, c=10, d=40, h=2, e=4), "bdeca"),
        ("cahe,hbdca->badce", dict(a=64, b=20, c=10, d=40, h=2, e=5), None),  # each element is used five times
        ("ch,hbdc->bcd", dict(b=160, c=3, d=160, h=2), None),  # three of a batch fill no half of a vector
        ("cah,hbdac->bcad", dict(a=8, b=20, c=10, d=10, h=2), None),  # 256 KB
    ],
)
def test_which_products_have_the_batch_inside(equation, sizes, found):
    found_term = written(batch_inside(*asked(equation, sizes), 8, 8))
    assert found_term == found


@pytest.mark.parametrize(
    "equation, sizes, found",
    [
        ("ihb,bhdf->ifd", dict(i=2, h=40, b=10, d=50, f=40), "idf"),
        ("ihb,bhdf->idf", dict(i=2, h=40, b=10, d=50, f=40), None),  # as it is
        ("ihb,bhdf->fdi", dict(i=2, h=40, b=10, d=50, f=40), None),  # the small operand has the fastest index
        ("ihb,bfdh->ifd", dict(i=2, h=40, b=10, d=50, f=40), None),  # the sum has that of the large one
        ("ihb,bhdf->ifd", dict(i=40, h=40, b=10, d=50, f=40), None),  # the result is no small one
        ("dhb,bhdf->fd", dict(h=40, b=10, d=50, f=40), None),  # a batch
    ],
)
def test_which_small_results_lie_as_the_large_operand(equation, sizes, found):
    assert written(as_it_lies(*asked(equation, sizes), 8)) == found


def test_sums_choose():
    """Where terms are many, how the result is stored matters little; where they are few, packing does."""
    equation = "abc,adc->bda"
    assert written(term_of_product(*asked(equation), 8, 8)) == "abd"
    assert term_of_product(*asked(equation, dict(SIZES, c=129)), 8, 8) is None
    assert term_of_product(*asked(equation, dict(SIZES, b=8)), 8, 8) is None  # 60 KB of results
    skewed = dict(i=2, h=40, b=10, d=50, f=40)
    assert written(term_of_product(*asked("ihb,bhdf->ifd", skewed), 8, 8)) == "idf"
    assert term_of_product(*asked("ihb,bhdf->ifd", dict(skewed, h=30)), 8, 8) is None


def operands(equation: str, sizes: dict[str, int], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]) for term in equation.split("->")[0].split(",")]
    if dtype.startswith("complex"):
        arrays = [x + 1j * rng.integers(-3, 4, x.shape) for x in arrays]
    return [x.astype(dtype) for x in arrays]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "int16"])
@pytest.mark.parametrize("equation", ["abc,adc->bda", "bac,cad->dba", "abfc,adgfc->bdgaf", "cah,hbdac->bcad", "cah,hbdca->badc"])
def test_products(equation, dtype, threads):
    sizes = SIZES if "h" not in equation else dict(a=64, b=20, c=10, d=40, h=2)
    arrays = operands(equation, sizes, dtype)
    f = engine.compile(equation, *(x.shape for x in arrays), dtypes=dtype, threads=threads)
    want = np.einsum(equation, *arrays)
    assert (f(*arrays) == want).all()
    assert dtype == "int16" or [step.family for step in f.plan.steps][-1] == "copy"
    out = np.full(want.shape[::-1], 7, want.dtype).transpose()[..., ::-1]  # other strides, and another plan
    assert f(*arrays, out=out) is out and (out == want).all()


def test_other_layouts_store_the_result_where_it_is():
    arrays = operands("abc,adc->bda", SIZES, "float64")
    for how in (dict(layouts="natural"), dict(layouts="merged")):
        f = engine.compile("abc,adc->bda", *(x.shape for x in arrays), **how)
        assert [step.family for step in f.plan.steps][-1] == "gemm"
        assert (f(*arrays) == np.einsum("abc,adc->bda", *arrays)).all()


def test_a_batch_of_large_matrices_runs_along_lanes():
    """What one vector of the batch needs of all three is more than L2 has: rows are looped over outside."""
    sizes = dict(d=24, h=20, i=12, f=16, b=20, a=3)
    arrays = operands("dhif,bahf->adbif", sizes, "float64")
    f = engine.compile("dhif,bahf->adbif", *(x.shape for x in arrays), threads=1)
    assert [step.family for step in f.plan.steps] == ["batched"]
    assert (f(*arrays) == np.einsum("dhif,bahf->adbif", *arrays, optimize=True)).all()


@given(data=st.data())
def test_random_batches(data):
    sizes = {i: data.draw(st.integers(1, 14), label=i) for i in "abcdef"}
    left, right = "".join(data.draw(st.permutations("abce"))), "".join(data.draw(st.permutations("abdf")))
    out = "".join(data.draw(st.permutations("abcdf")))
    equation = f"{left}e,{right}e->{out}" if "e" not in left else f"{left},{right}e->{out}"
    arrays = operands(equation, sizes, data.draw(st.sampled_from(["float32", "float64"])))
    got = engine.einsum(equation, *arrays, threads=data.draw(st.integers(1, 2)))
    assert (got == np.einsum(equation, *arrays, optimize=True)).all(), (equation, sizes)
