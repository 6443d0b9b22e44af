"""What `jit` makes is a function for those who look at it: methods, arguments, results, names."""

import gc
import inspect
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

import einsum_engine as engine

A = np.arange(12.0).reshape(3, 4)


class Model:
    scale = 2

    @engine.jit
    def call(self, x, shift=1):
        """Scales."""
        return x * self.scale + shift


def test_bound_methods_are_methods():
    model = Model()
    assert np.array_equal(model.call(A), A * 2 + 1)
    assert model.call == model.call and model.call.__self__ is model and model.call.__doc__ == "Scales."
    assert str(inspect.signature(model.call)) == "(x, shift=1)"
    assert "mul" in model.call.explain()


def test_only_functions_are_jitted():
    for wrong in (3, "f", A):
        with pytest.raises(TypeError, match=f"jit of a {type(wrong).__name__}: expected a function"):
            engine.jit(wrong)
    assert repr(engine.jit(np.sin)) == f"jit({np.sin!r})"


@dataclass
class Pair:
    first: object
    second: object


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


@pytest.mark.parametrize(
    "make",
    [lambda x: Pair(x, 1), lambda x: [Slots({"x": [x]})], lambda x: {1: (deque([x]),)}, lambda x: Slots(Pair(1, x))],
)
def test_results_that_hide_traced_arrays_are_refused(make):
    with pytest.raises(TypeError, match="the result is a (Pair|Slots|deque) that holds traced arrays: return these"):
        engine.jit(lambda x: make(x + 1))(A)


def test_results_that_can_be_read_once_are_refused():
    def rows(x):
        yield from x

    for function in (rows, lambda x: map(np.sin, x), lambda x: [iter([1, 2])]):
        with pytest.raises(TypeError, match="which can be gone through once: return a list"):
            engine.jit(function)(A)


def test_other_results_are_returned_as_they_are():
    kept = Pair(A, [1, "two", Slots(None)])
    jitted = engine.jit(lambda x: (kept, np.sin, Pair, x + 1, None, ...))
    for _ in range(2):
        found = jitted(A)
        assert found[0] is kept and found[1:3] == (np.sin, Pair) and found[4:] == (None, ...)


def test_slices_are_arguments():
    traced = []

    @engine.jit
    def part(x, *where):
        traced.append(where)
        return x[where] + 1

    for where in ((slice(1, None),), (slice(None), slice(0, 4, 2)), (slice(np.int64(1), None), 2), (slice(1, None),)):
        assert np.array_equal(part(A, *where), A[where] + 1)
    assert len(traced) == 3


@pytest.fixture
def counted_only():
    """Arrays die with their last reference: nobody looks for cycles."""
    gc.disable()
    yield
    gc.enable()


def swap(x):
    x += 1
    return x[1:], x.sum()


@pytest.mark.parametrize("function", [lambda x: x[1:], lambda x: (x.T.reshape(2, 2, 3), x + 1), swap])
def test_views_keep_their_arrays_no_longer_than_they_live(counted_only, function):
    jitted = engine.jit(function)
    for _ in range(3):
        array = A.copy()
        alive = weakref.ref(array)
        found = jitted(array)
        del array
        assert alive() is not None
        del found
        assert alive() is None


@dataclass(frozen=True)
class Setting:
    value: object


ALIKE = (1, True, 1.0, 1 + 0j)


@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, Setting, lambda v: frozenset([v]), lambda v: (v,), lambda v: Setting((Setting(v),)), lambda v: {v: 0}],
)
def test_fixed_arguments_that_are_equal_but_not_alike(wrap):
    """Each is traced for itself, and again for none of the same."""
    seen = []

    @engine.jit
    def f(x, fixed):
        seen.append(fixed)
        return x + 1

    for value in (*ALIKE, *ALIKE, 0.0, -0.0):
        f(A, wrap(value))
    assert repr(seen) == repr([wrap(value) for value in (*ALIKE, 0.0, -0.0)])


@pytest.mark.filterwarnings("ignore:.*was traced for more than")
def test_programs_that_calls_begin_with_are_not_those_that_are_dropped():
    seen = []

    @engine.jit(cache=2)
    def f(x):
        seen.append(len(x))
        return x + 1

    for size in (1, 1, 2, 2, *(1,) * 5, 3, 1, 1):
        f(np.ones(size))
        assert len(f._kept) <= 2 and {traced for _, traced in f._quick} <= set(f._kept.values())
    assert seen[:3] == [1, 2, 3] and len(seen) <= 4
