"""Short runs of an operand that is packed by transposing, as one with what goes on behind them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.planners import memo
from einsum_engine.planners.runs import chain, longer_run
from einsum_engine.planners.sides import LEFT, OUT, Dim


def rows(*dims: tuple[str, int, int, int]) -> list[Dim]:
    """Dimensions of rows: name, size, bytes of a step in A and in C."""
    return [Dim((name,), size, {LEFT: a, OUT: c}, {}) for name, size, a, c in dims]


def transposed(a: int, b: int, c: int, item: int = 4) -> list[Dim]:
    """Rows of A[a, b, c] in the order of C[c, b, a]."""
    return rows(("a", a, b * c * item, item), ("b", b, c * item, a * item), ("c", c, item, a * b * item))


@pytest.mark.parametrize(
    "sizes, found",
    [
        ((48, 20, 24), 48),  # 2 of b
        ((48, 20, 12), 48),
        ((48, 20, 20), 80),
        ((48, 40, 10), 80),
        ((48, 28, 20), 80),
    ],
)
def test_runs_end_with_blocks(sizes, found):
    dims = transposed(*sizes)
    longer, run = longer_run(dims, dims[2], 4, 16)
    assert run.size == found and run.stride(LEFT) == 4
    offsets = {(a, c) for dim in [run] for a, c in zip(dim.table(LEFT), dim.table(OUT))}
    assert offsets == {
        (4 * (b * sizes[2] + c), 4 * sizes[0] * (b + sizes[1] * c)) for b in range(found // sizes[2]) for c in range(sizes[2])
    }
    assert np.prod([dim.size for dim in longer]) == np.prod(sizes)
    assert longer[0] is dims[0]


@pytest.mark.parametrize(
    "dims, why",
    [
        (transposed(48, 20, 32), "whole blocks"),
        (transposed(48, 20, 68), "long"),
        (transposed(48, 7, 24), "no part of what is behind it makes whole blocks"),
        (rows(("a", 48, 4000, 4), ("c", 24, 4, 9600), ("b", 50, 200, 192)), "there is a gap behind it in A"),
        (rows(("a", 41, 9600, 4), ("c", 24, 4, 164), ("b", 20, 96, 3936)), "C goes on along it within a line"),
    ],
)
def test_runs_that_stay(dims, why):
    run = next(dim for dim in dims if dim.stride(LEFT) == 4)
    longer, found = longer_run(dims, run, 4, 16)
    assert found is run and longer == dims, why


def test_no_run():
    dims = transposed(48, 20, 24)
    assert longer_run(dims, None, 4, 16) == (dims, None)


def test_a_chain_takes_as_little_as_makes_whole_blocks():
    first, second = rows(("c", 12, 4, 4000), ("b", 32, 48, 400))
    found, rest = chain(first, [second], LEFT, OUT, 8)
    assert (found.size, [dim.size for dim in rest]) == (24, [16])
    assert rest[0].stride(LEFT) == 96 and rest[0].stride(OUT) == 800


EQUATIONS = ("afbce,df->edcba", "afbce,df->becda", "abcdef,gb->fgecda", "afce,df->edca", "abcde,fa->fecdb")


def check(equation: str, sizes: dict[str, int], dtype: str, threads: int) -> None:
    memo.forget()
    inputs, _ = equation.split("->")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]) for term in inputs.split(",")]
    want = np.einsum(equation, *arrays)
    got = engine.einsum(equation, *(array.astype(dtype) for array in arrays), threads=threads)
    assert (got == want).all(), (equation, sizes, dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_products_with_short_runs(equation, dtype, threads):
    check(equation, dict(a=18, b=6, c=10, d=20, e=12, f=12, g=9), dtype, threads)


@given(data=st.data())
def test_random_products_with_short_runs(data):
    sizes = {index: data.draw(st.integers(1, 26), label=index) for index in "abcdefg"}
    if np.prod(list(sizes.values()), dtype=float) > 1e7:
        sizes = {index: min(size, 9) for index, size in sizes.items()}
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    check(data.draw(st.sampled_from(EQUATIONS)), sizes, dtype, data.draw(st.integers(1, 2)))
