"""Products of corresponding elements, summed along rows that lie apart: one pass, not a matrix product."""

import numpy as np
import oracle
import pytest

import einsum_engine as engine
from einsum_engine.kernels import tiles

SIZES = dict(a=60, b=50, c=64)
CASES = {  # expression, and whether other kernels take it
    "columns": ("abc,abc->c", True),
    "matrices": ("abc,abc->bc", True),
    "orders": ("abc,cab->b", True),
    "orders, of the fastest": ("abc,cab->c", True),
    "turned": ("ab,ba->a", True),
    "dots": ("abc,abc->a", False),
    "all": ("abc,abc->", False),
    "nothing summed": ("abc,abc->abc", False),
    "a matrix": ("abc,abd->cd", False),
}


def _operands(expression: str, dtype: str, sizes: dict[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    terms = expression.partition("->")[0].split(",")
    return [oracle.random(rng, [sizes[letter] for letter in term], dtype, exact=True) for term in terms]


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_results(case, dtype):
    expression, fused = CASES[case]
    sizes = {**SIZES, "d": 3}
    if len(expression) < 10:
        sizes |= dict(a=800, b=810)
    arrays = _operands(expression, dtype, sizes)
    wide = np.complex128 if dtype.startswith("complex") else np.int64
    expected = np.einsum(expression, *[each.astype(wide) for each in arrays]).astype(dtype)
    large = sum(each.nbytes for each in arrays) >= 1 << 20
    for threads in (1, 2, 3):
        call = engine.compile(expression, *arrays, threads=threads)
        families = [step.family for step in call.plan.steps]
        assert ("fused" in families) == (fused and large), families
        np.testing.assert_array_equal(call(*arrays), expected)
    views = [array[::-1, ..., ::-1] for array in arrays]
    expected = np.einsum(expression, *[each.astype(wide) for each in views]).astype(dtype)
    np.testing.assert_array_equal(engine.einsum(expression, *views), expected)


@pytest.mark.parametrize("conj", [[0], [1], [0, 1]])
@pytest.mark.parametrize("dtype", tiles.COMPLEX)
def test_conjugated(dtype, conj):
    arrays = _operands("ab,ab->b", dtype, dict(a=3000, b=70))
    exact = [np.conj(array) if at in conj else array for at, array in enumerate(arrays)]
    found = engine.einsum("ab,ab->b", *arrays, conj=conj)
    np.testing.assert_array_equal(found, np.einsum("ab,ab->b", *exact))


def test_what_no_vector_holds_stays_a_product():
    """Rows of the result of less than a line, and small operands."""
    for shape in ((100_000, 4), (300, 100)):
        call = engine.compile("ab,ab->b", shape, shape)
        assert "fused" not in [step.family for step in call.plan.steps]


def test_not_a_number_comes_through():
    a = np.ones((3000, 70))
    a[7, 3], a[9, 4], a[10, 5] = np.nan, np.inf, np.inf
    b = np.ones((3000, 70))
    b[10, 5] = 0
    found = engine.einsum("ab,ab->b", a, b)
    np.testing.assert_array_equal(np.isnan(found), np.isin(np.arange(70), [3, 5]))
    assert found[4] == np.inf and (np.delete(found, [3, 4, 5]) == 3000).all()
