"""View tuples against NumPy's own views."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.views import View


def root(*shape):
    return np.arange(int(np.prod(shape))).reshape(shape)


def same(view, array, base):
    """Whether the view names the elements of ``array``, itself a view of ``base``, whose elements count from 0."""
    return view.shape == array.shape and np.array_equal(view.offsets(), array) and np.array_equal(view.of(base), array)


def test_sizes_may_be_numbers_of_numpy():
    view = View.whole(np.array([7, 11, 13]), 4)
    assert view == View.whole((7, 11, 13), 4) and {type(n) for n in (*view.shape, *view.strides)} == {int}


def test_worked_examples_of_the_rfc():
    a = View.whole((3, 4, 5))
    assert a.index((slice(None), slice(1, 4, 2), slice(None))) == View((3, 2, 5), (20, 10, 1), 5)
    assert a.index(1).index(2) == a.index((1, 2)) == View((5,), (1,), 30)


CHAINS = {
    "slices": (
        lambda x: x[1:, ::-2][..., 1::3],
        lambda v: v.index((slice(1, None), slice(None, None, -2))).index((..., slice(1, None, 3))),
    ),
    "transpose": (lambda x: x.transpose(2, 0, 1)[1], lambda v: v.transpose((2, 0, 1)).index(1)),
    "reversed": (lambda x: x.T[::-1], lambda v: v.transpose().index(slice(None, None, -1))),
    "new axis": (lambda x: x[:, None, 2], lambda v: v.index((slice(None), None, 2))),
    "expand": (lambda x: np.expand_dims(x, (0, -1)), lambda v: v.expand((0, -1))),
    "squeeze": (lambda x: x[:, :1].squeeze(1), lambda v: v.index((slice(None), slice(0, 1))).squeeze([1])),
    "diagonal": (lambda x: x.diagonal(1, 2, 0), lambda v: v.diagonal(1, 2, 0)),
    "diagonal below": (lambda x: x.diagonal(-1, 1, 2), lambda v: v.diagonal(-1, 1, 2)),
    "broadcast": (
        lambda x: np.broadcast_to(x[:, :1], (2, 3, 4, 5)),
        lambda v: v.index((slice(None), slice(0, 1))).broadcast((2, 3, 4, 5)),
    ),
    "reshape": (lambda x: x.reshape(6, 2, 5)[::2], lambda v: v.reshape((6, 2, 5)).index(slice(None, None, 2))),
    "reshape of a slice": (lambda x: x[1:].reshape(8, 5), lambda v: v.index(slice(1, None)).reshape((8, 5))),
    "windows": (
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 3), (1, 2))[:, ::2],
        lambda v: v.windows((1, 2), (2, 3), (2, 1), (1, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_views_of_the_root(name):
    array, view = CHAINS[name]
    base = root(3, 4, 5)
    assert same(view(View.whole(base.shape)), array(base), base)


def slices(size):
    bound = st.none() | st.integers(-size - 1, size + 1)
    return st.builds(slice, bound, bound, st.sampled_from((None, 1, 2, 3, -1, -2)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_composition_of_random_chains(data):
    base = root(*data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    array, view = base, View.whole(base.shape)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(("slice", "transpose", "reshape", "diagonal")))
        if kind == "slice":
            key = tuple(data.draw(slices(size)) for size in array.shape)
            array, view = array[key], view.index(key)
        elif kind == "transpose":
            axes = data.draw(st.permutations(range(array.ndim)))
            array, view = array.transpose(axes), view.transpose(axes)
        elif kind == "reshape":
            shape = data.draw(st.sampled_from([(array.size,), (array.size, 1), (1, array.size)]))
            if array.size == 0:
                continue
            reshaped, found = array.reshape(shape), view.reshape(shape)
            # A view exactly where NumPy makes one.
            assert (found is not None) == np.shares_memory(reshaped, base)
            if found is None:
                break
            array, view = reshaped, found
        elif array.ndim > 1:
            array, view = array.diagonal(), view.diagonal()
    assert same(view, array, base)
    assert view.injective() and view.fits(base.size)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_then_composes_or_says_that_it_cannot(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    outer = View.whole(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    outer = outer.index(tuple(data.draw(slices(size)) for size in outer.shape))
    if outer.size == 0:
        return
    inner = View.whole((outer.size,)).index(data.draw(slices(outer.size)))
    wanted = outer.offsets().reshape(-1)[inner.offsets()]
    found = outer.then(inner)
    if found is not None:
        assert np.array_equal(found.offsets(), wanted)
    elif wanted.size > 2:
        assert len(set(np.diff(wanted).tolist())) > 1, "the places have one stride: it is a view"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_overlap_is_exact(data):
    def any_view():
        rank = data.draw(st.integers(0, 3))
        shape = tuple(data.draw(st.integers(0, 4)) for _ in range(rank))
        strides = tuple(data.draw(st.integers(-9, 9)) for _ in range(rank))
        return View(shape, strides, 100 + data.draw(st.integers(0, 12)))

    one, two = any_view(), any_view()
    shared = set(one.offsets().reshape(-1).tolist()) & set(two.offsets().reshape(-1).tolist())
    assert one.overlaps(two) == bool(shared)
    assert one.injective() == (len(set(one.offsets().reshape(-1).tolist())) == one.size)


def any_slice(data, root):
    view = root.transpose(data.draw(st.permutations(range(root.ndim))))
    view = view.index(tuple(data.draw(slices(size)) for size in view.shape))
    flat = view.reshape((view.size,)) if data.draw(st.booleans()) else None
    return flat or view


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_view_within_another(data):
    root = View.whole(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    outer, inner = any_slice(data, root), any_slice(data, root)
    if data.draw(st.booleans()) and outer.size:
        inner = outer.then(any_slice(data, View.whole(outer.shape))) or inner
    places = inner.offsets().reshape(-1)
    assert outer.contains(inner) == bool(np.isin(places, outer.offsets()).all())
    found = inner.within(outer)
    if found is not None:
        assert np.array_equal(outer.offsets().reshape(-1)[found.offsets()], inner.offsets())
    elif outer.contains(inner) and inner.size > 1 and inner.ndim == 1:
        where = np.array([outer.offsets().reshape(-1).tolist().index(place) for place in places])
        assert len(set(np.diff(where).tolist())) > 1, "the elements have one stride: it is a view"


def test_canonical_views_are_equal_if_their_elements_are():
    assert View((1, 3), (7, 2), 4).canonical() == View((1, 3), (0, 2), 4).canonical()
    assert View((0, 3), (7, 2), 4).canonical() == View((0, 3), (1, 1), 0).canonical()
    assert View((3,), (2,), 4).canonical() != View((3,), (2,), 5).canonical()


def test_covers():
    a = View.whole((3, 4))
    assert a.covers(12) and a.transpose().covers(12) and a.index((slice(None, None, -1), slice(None))).covers(12)
    assert not a.index(slice(1, None)).covers(12) and not View((12,), (0,), 0).covers(12)


@pytest.mark.parametrize(
    "change, error, text",
    [
        (lambda v: v.index(3), IndexError, "index 3 is out of bounds for axis 0 with size 3 of shape (3, 4)"),
        (lambda v: v.index((0, 0, 0)), IndexError, "3 indices for 2 axes of shape (3, 4)"),
        (lambda v: v.index("a"), TypeError, "index 'a' of axis 0 is no integer"),
        (lambda v: v.transpose((0, 0)), ValueError, "name one axis twice"),
        (lambda v: v.squeeze([0]), ValueError, "axis 0 of shape (3, 4) has size 3, not 1"),
        (lambda v: v.broadcast((2, 4)), ValueError, "shape (3, 4) does not broadcast to (2, 4)"),
        (lambda v: v.windows([1], [5], [1], [1]), ValueError, "do not fit axis 1 of (3, 4)"),
        (lambda v: v.reshape((5,)), ValueError, "shape (3, 4) has 12 elements"),
        (lambda v: v.diagonal(0, 0, 2), IndexError, "axis 2 is out of bounds for 2 axes"),
    ],
)
def test_errors_name_axis_and_shape(change, error, text):
    with pytest.raises(error) as caught:
        change(View.whole((3, 4)))
    assert isinstance(caught.value, engine.EngineError) and text in str(caught.value)
