"""The check of the benchmark must accept what is right and reject what is wrong."""

import math

import numpy as np
import pytest
from bench_cases import SOME_PATHS, case

from einsum_engine.bench import cases, check, steps


# --- check -----------------------------------------------------------------------------------------------------

CHECKED = [
    ("ij,jk->ik", [(20, 30), (30, 10)]),
    ("aab,bc->ca", [(6, 6, 5), (5, 7)]),
    ("bij,bjk,kl->bl", [(3, 4, 5), (3, 5, 6), (6, 7)]),
    ("i,i->", [(40,), (40,)]),
    ("ij->ji", [(5, 6)]),
]
DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "int8", "uint16", "int64", "bool"]


def checked(expr, shapes, dtype):
    each = case(expr, shapes, dtype)
    arrays = cases.operands(each)
    path = SOME_PATHS.get(len(shapes), ((0,),))
    expression = steps.parse(expr, each.shapes)
    return check.make_reference(expression, path, arrays, dtype), np.asarray(np.einsum(expr, *arrays))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expr, shapes", CHECKED, ids=[expr for expr, _ in CHECKED])
def test_a_right_result_passes(expr, shapes, dtype):
    reference, result = checked(expr, shapes, dtype)
    finding = reference.judge(result)
    assert reference.verdict(finding, None).passed, reference.verdict(finding, None).reason
    assert reference.verdict(finding, finding).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expr, shapes", CHECKED, ids=[expr for expr, _ in CHECKED])
def test_one_wrong_component_fails(expr, shapes, dtype):
    reference, result = checked(expr, shapes, dtype)
    right, wrong = reference.judge(result), np.array(result)
    position = np.unravel_index(np.argmax(np.abs(wrong.astype(complex))), wrong.shape)
    wrong[position] = not wrong[position] if dtype == "bool" else wrong[position] / 2 + 1
    assert not reference.verdict(reference.judge(wrong), right).passed


def test_a_component_outside_the_sample_is_compared_too():
    reference, result = checked("ij,jk->ik", [(50, 40), (40, 50)], "float64")
    assert reference.sample and not reference.wide
    right, wrong = reference.judge(result), np.array(result)
    where = next(place for place in np.ndindex(wrong.shape) if place not in reference.sample)
    wrong[where] += 2e-14 * reference.scale[where]
    assert reference.judge(wrong).error == right.error, "the sample does not see it"
    assert "elsewhere" in reference.verdict(reference.judge(wrong), right).reason


@pytest.mark.parametrize("factor", [1 + 1e-3, math.nan, math.inf, -1])
def test_a_wrong_factor_fails(factor):
    reference, result = checked("ij,jk->ik", [(20, 30), (30, 10)], "float32")
    assert not reference.verdict(reference.judge(result * np.float32(factor)), None).passed


def test_lower_precision_fails_beside_a_better_peer():
    """Sums of products rounded to float16 are inside the a-priori bound for a long K, but not beside a peer."""
    reference, result = checked("ij,jk->ik", [(20, 4000), (4000, 10)], "float32")
    rough = (result * np.float32(1 + 1e-4)).astype(np.float32)
    assert reference.verdict(reference.judge(rough), None).passed
    verdict = reference.verdict(reference.judge(rough), reference.judge(result))
    assert not verdict.passed and "4 times the peer's" in verdict.reason


def test_wrong_shape_and_dtype_are_named():
    reference, result = checked("ij,jk->ik", [(20, 30), (30, 10)], "float32")
    for wrong, message in (
        (result.T, r"float32[10, 20] instead of float32[20, 10]"),
        (result.astype("float64"), r"float64[20, 10] instead of float32[20, 10]"),
    ):
        assert reference.verdict(reference.judge(wrong), None).reason == message


def test_bound_is_that_of_the_rule():
    reference, _ = checked("ij,jk->ik", [(20, 30), (30, 10)], "float32")
    assert reference.bound == 4 * 32 * np.finfo("float32").eps
    a, b = cases.operands(case("ij,jk->ik", [(20, 30), (30, 10)]))
    assert np.allclose(reference.scale, np.abs(a) @ np.abs(b))


def test_repeated_output_index_has_a_reference():
    reference, _ = checked_repeated()
    result = np.diag(np.arange(3.0))
    assert reference.values.shape == (3, 3) and not reference.verdict(reference.judge(result), None).passed
    assert reference.verdict(reference.judge(reference.values), None).passed


def checked_repeated():
    each = case("i->ii", [(3,)], "float64")
    arrays = cases.operands(each)
    return check.make_reference(steps.parse(each.expr, each.shapes), ((0,),), arrays, "float64"), arrays


def test_few_components_take_several_draws():
    assert check.draws(steps.parse("i,i->", [(9,), (9,)])) == 16
    assert check.draws(steps.parse("ij->i", [(8, 2)])) == 4
    assert check.draws(steps.parse("ij->ij", [(8, 8)])) == 1
    assert check.draws(steps.parse("ij->i", [(0, 8)])) == 1


# --- boxes: where a reference of everything would take too long -----------------------------------------------


def boxed(monkeypatch, expr, shapes, dtype, **bounds):
    for name, value in bounds.items():
        monkeypatch.setattr(check, name, value)
    return checked(expr, shapes, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
@pytest.mark.parametrize(
    "expr, shapes",
    [
        ("ij,jk->ki", [(70, 40), (40, 50)]),
        ("bij,bjk->bik", [(40, 30, 20), (1, 20, 33)]),
        ("iij,j->ij", [(40, 40, 30), (30,)]),
    ],
    ids=lambda value: str(value),
)
def test_a_box_judges_some_positions_of_each_axis(monkeypatch, dtype, expr, shapes):
    reference, result = boxed(monkeypatch, expr, shapes, dtype, _BOX_FLOPS=2e4, _BOX_INTEGERS=1e4, _BOX_ELEMENTS=2e3)
    assert reference.shape == result.shape and reference.values.size < result.size
    assert all(axis[0] == 0 and axis[-1] == size - 1 for axis, size in zip(reference.box, result.shape))
    right = reference.judge(result)
    assert reference.verdict(right, right).passed
    assert np.allclose(reference.values, result[np.ix_(*reference.box)], atol=1e-4)
    wrong = np.array(result)
    wrong[tuple(axis[1] for axis in reference.box)] += 3
    assert not reference.verdict(reference.judge(wrong), right).passed


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int32"])
def test_outside_the_box_a_peer_tells(monkeypatch, dtype):
    reference, result = boxed(monkeypatch, "ij,jk->ik", [(70, 40), (40, 50)], dtype, _BOX_ELEMENTS=2e3)
    other = result if dtype == "int32" else result * (1 + np.finfo(dtype).eps)
    assert reference.beside(result, other.astype(dtype)) is None
    wrong = np.array(result)
    outside = tuple(next(i for i in range(size) if i not in axis) for axis, size in zip(reference.box, result.shape))
    wrong[outside] += 2
    assert reference.judge(wrong) == reference.judge(result), "the box does not see it"
    assert "peer" in reference.beside(wrong, result)


def test_without_a_box_everything_is_judged():
    reference, result = checked("ij,jk->ik", [(20, 30), (30, 10)], "float32")
    assert reference.box is None and reference.beside(result, result * 2) is None


def test_what_is_summed_is_never_left_out(monkeypatch):
    reference, result = boxed(monkeypatch, "ij,jk->", [(70, 40), (40, 50)], "float32", _BOX_ELEMENTS=10)
    assert reference.box is None and reference.values.shape == ()
    reference, _ = checked("ij,jk->i", [(70, 40), (40, 50)], "float32")
    assert [len(axis) for axis in reference.box] == [check._SMALLEST_SIDE]


def test_largest_error_is_that_of_all_blocks(monkeypatch):
    monkeypatch.setattr(check, "_BLOCK", 7)
    values, result = np.ones((5, 6)), np.ones((5, 6))
    result[4, 5] = 1.5
    assert check._largest(result, values, np.full((5, 6), 2.0)) == 0.25
    assert check._largest(result, values, np.zeros((5, 6))) == math.inf
    assert check._largest(values, values, np.zeros((5, 6))) == 0
    result[0, 0] = math.nan
    assert check._largest(result, values, np.ones((5, 6))) == math.inf
