"""Products that are planned once for all names of their indices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import memo

LETTERS = "abcdefghij"


@pytest.fixture(autouse=True)
def fresh():
    memo.forget()


def drawn_up(monkeypatch) -> list:
    calls, plan_parts = [], memo.plan_parts
    monkeypatch.setattr(memo, "plan_parts", lambda *args: calls.append(args[0]) or plan_parts(*args))
    return calls


def test_other_names_find_the_same_plan(monkeypatch):
    calls = drawn_up(monkeypatch)
    first = engine.compile("abc,cd,bde->ae", (3, 4, 5), (5, 6), (4, 6, 7)).plan
    count = len(calls)
    assert count >= 2
    second = engine.compile("xyz,zu,yuv->xv", (3, 4, 5), (5, 6), (4, 6, 7)).plan
    assert len(calls) == count
    assert [step.kernel for step in first.steps] == [step.kernel for step in second.steps]
    assert [step.seconds for step in first.steps] == [step.seconds for step in second.steps]
    assert all(set(axis.index for axis in buffer.layout.axes) <= set("xyzuv") for buffer in second.buffers)


@pytest.mark.parametrize(
    "change",
    [
        {"dtypes": ["float64", "float64"]},
        {"threads": 2},
        {"conj": [0]},
        {"layouts": "panels"},
        {"shapes": [(3, 4, 6), (6, 5)]},
        {"expr": "abc,cd->dab"},
        {"expr": "acb,cd->abd", "shapes": [(3, 5, 4), (5, 5)]},
    ],
    ids=str,
)
def test_what_a_plan_depends_on(monkeypatch, change):
    given = {"expr": "abc,cd->abd", "shapes": [(3, 4, 5), (5, 5)], "dtypes": ["complex64", "complex64"], "threads": 1}

    def plan(expr, shapes, **options):
        return engine.compile(expr, *shapes, **options)

    calls = drawn_up(monkeypatch)
    plan(**given)
    known = len(calls)
    plan(**given | change)
    assert len(calls) > known


def test_equal_steps_of_one_plan_have_their_own_memory():
    """Packed copies of the constants of two equal products are kept in different places."""
    expr, rng = "abc,cd,abg,gd->abd", np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in [(40, 30, 50), (50, 60), (40, 30, 50), (50, 60)]]
    compiled = engine.compile(expr, *arrays, constants=(1, 3), optimize=[(0, 1), (0, 1), (0, 1)])
    products = [step for step in compiled.plan.steps if step.family == "gemm"]
    assert products[0].args.tables is products[1].args.tables
    packed = [step.args.words[abi.OUT_OFFSET] for step in compiled.plan.steps if step.family == "pack"]
    assert len(packed) == len(set(packed)) == 2
    for _ in range(2):
        np.testing.assert_allclose(compiled(*arrays[::2]), np.einsum(expr, *arrays, optimize=True), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_renamed_networks(data):
    """The same network under permuted names, right after each other, gives the same numbers."""
    count = data.draw(st.integers(2, 5))
    terms = ["".join(data.draw(st.permutations(LETTERS))[: data.draw(st.integers(1, 3))]) for _ in range(count)]
    used = sorted(set("".join(terms)))
    output = "".join(letter for letter in used if data.draw(st.booleans()))
    sizes = {letter: data.draw(st.integers(1, 5)) for letter in used}
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]).astype(np.float64) for term in terms]
    expr = ",".join(terms) + "->" + output
    other = expr.translate(str.maketrans(LETTERS, "".join(data.draw(st.permutations(LETTERS)))))
    expected = np.einsum(expr, *arrays)
    for each in (expr, other):
        np.testing.assert_array_equal(engine.compile(each, *arrays)(*arrays), expected, err_msg=each)


def test_what_is_remembered_is_bounded():
    for size in range(2, 2 + 3 * memo.REMEMBERED):
        engine.compile("ab,bc->ac", (size, 2), (2, 3))
    assert len(memo._known) <= 2 * memo.REMEMBERED
