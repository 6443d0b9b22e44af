"""Products of corresponding elements, summed along rows that lie apart: one pass, not a matrix product."""

from dataclasses import replace

import numpy as np
import oracle
import pytest

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import registry, tiles
from einsum_engine.kernels.isa import active_isa
from einsum_engine.planners import joining
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.splitting import ROWS_BYTES, SumCut, pieces_of_a_line

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
    least = joining.CROSSED_BYTES if case.startswith("orders") else ROWS_BYTES
    large = sum(each.nbytes for each in arrays) >= least
    for threads in (1, 2, 3):
        call = engine.compile(expression, *arrays, threads=threads)
        families = [step.family for step in call.plan.steps]
        assert ("fused" in families) == (fused and large), families
        np.testing.assert_array_equal(call(*arrays), expected)
    views = [array[::-1, ..., ::-1] for array in arrays]
    expected = np.einsum(expression, *[each.astype(wide) for each in views]).astype(dtype)
    np.testing.assert_array_equal(engine.einsum(expression, *views), expected)


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("expression, sizes", [
    ("kb,kb->b", dict(k=300_000, b=4)),
    ("kb,kb->b", dict(k=150_000, b=3)),
    ("kcb,kcb->b", dict(k=90_000, c=5, b=2)),
    ("klmb,klmb->kb", dict(k=7, l=15_000, m=2, b=3)),
])  # fmt: skip
def test_rows_of_less_than_a_line_have_terms_beside_them(expression, sizes, dtype):
    """They are added by a step behind."""
    arrays = _operands(expression, dtype, sizes)
    wide = np.complex128 if dtype.startswith("complex") else np.int64
    expected = np.einsum(expression, *[each.astype(wide) for each in arrays]).astype(dtype)
    for threads in (1, 2):
        call = engine.compile(expression, *arrays, threads=threads)
        families = [step.family for step in call.plan.steps]
        if sum(each.nbytes for each in arrays) >= 1 << 20:
            short = sizes["b"] * arrays[0].itemsize < 64
            assert families[0] == "fused" and (families[-1] == "sum") == short, families
        np.testing.assert_array_equal(call(*arrays), expected)
    views = [array[::-1] for array in arrays]
    np.testing.assert_array_equal(engine.einsum(expression, *views), expected[::-1] if expression.endswith("kb") else expected)


@pytest.mark.parametrize("expression", ["abc,abc->bc", "bac,bac->bc", "abc,abc,abc->bc"])
def test_threads_share_sums_to_few_results(expression):
    """Each has results of its own, which lie as those of the plan: a further row adds them."""
    sizes = dict(a=3000, b=10, c=20)
    arrays = _operands(expression, "float64", sizes)
    call = engine.compile(expression, *arrays, threads=2)
    shared = expression.startswith("abc")
    assert [step.family for step in call.plan.steps] == ["fused"] * (1 + shared)
    np.testing.assert_array_equal(call(*arrays), np.einsum(expression, *arrays))


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_the_rows_that_add_them_are_in_warm_up(dtype):
    arrays = _operands("abc,abc->bc", dtype, dict(a=20_000, b=1, c=70))
    plan = engine.compile("abc,abc->bc", *arrays, threads=2).plan
    assert [step.family for step in plan.steps] == ["fused", "fused"]
    assert {name for step in plan.steps for name in step.args.kernels.values()} <= set(registry.kernel_names(active_isa()))


def test_without_fused_kernels_rows_are_not_cut():
    """As under a limit in bytes: another kernel would have more to write for nothing."""
    a, b = _operands("kb,kb->b", "float64", dict(k=300_000, b=4))
    plan = build_plan(replace(engine.compile("kb,kb->b", a, b, threads=1).plan.request, fuse=False))
    assert [step.family for step in plan.steps] == ["gemm"]
    out = np.empty(4)
    bind(plan).run([a, b], out)
    np.testing.assert_array_equal(out, np.einsum("kb,kb->b", a, b))


def test_pieces_of_a_line():
    def found(left, right, kept, **sizes):
        return pieces_of_a_line(dense_axes(left[::-1], sizes, 8), dense_axes(right[::-1], sizes, 8), kept, itemsize=8)

    assert found("kb", "kb", "b", k=1000, b=2) == SumCut((), 4, "k", 250, inner=True)
    assert found("klb", "klb", "b", k=1000, l=4, b=2) == SumCut(("l",), 1)
    assert found("klb", "klb", "b", k=1000, l=2, b=2) == SumCut(("l",), 2, "k", 500, inner=True)
    assert found("klb", "klb", "b", k=1000, l=5, b=2) == SumCut(("l",), 1)
    assert found("kb", "kb", "b", k=1009, b=2) is None, "a prime"
    assert found("kb", "kb", "b", k=1000, b=8) is None, "a line"
    assert found("bk", "bk", "b", k=1000, b=8) is None, "a dot product"
    assert found("kb", "bk", "b", k=1000, b=2) is None, "other orders"


@pytest.mark.parametrize("conj", [[0], [1], [0, 1]])
@pytest.mark.parametrize("dtype", tiles.COMPLEX)
def test_conjugated(dtype, conj):
    arrays = _operands("ab,ab->b", dtype, dict(a=3000, b=70))
    exact = [np.conj(array) if at in conj else array for at, array in enumerate(arrays)]
    found = engine.einsum("ab,ab->b", *arrays, conj=conj)
    np.testing.assert_array_equal(found, np.einsum("ab,ab->b", *exact))


def test_what_no_vector_holds_stays_a_product():
    """Rows of the result of less than a line that no terms make one, and small operands."""
    for shape in ((100_003, 4), (300, 100)):
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
