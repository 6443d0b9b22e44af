"""Results lie in memory as NumPy's do, and share it: whether reshaping or writing them is a view depends on it."""

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.traced import inputs_of
from einsum_engine.trees import flatten

K = np.array([0, 2, 1])
PAIRS = np.arange(6).reshape(2, 3).T % 3
FUNCTIONS = {
    "where": lambda a: np.where(a > 0, a, a),
    "where of numbers": lambda a: np.where(a > 0, 1.0, 0.0),
    "where, a condition in C order": lambda a: np.where((a > 0).copy(), a, a),
    "zeros_like": lambda a: np.zeros_like(a) + 0,
    "ones_like": np.ones_like,
    "full_like": lambda a: np.full_like(a, 3),
    "sort": lambda a: np.sort(a, axis=0),
    "argsort": lambda a: np.argsort(a, axis=0),
    "concatenate": lambda a: np.concatenate([a, a]),
    "stack": lambda a: np.stack([a, a + 1]),
    "an index": lambda a: a[K],
    "an index of the second axis": lambda a: a[:, K],
    "an index of two dimensions": lambda a: a[PAIRS],
    "two indices": lambda a: a[K, K],
    "all indices": lambda a: a[PAIRS, PAIRS, 0 * PAIRS],
    "indices of a line": lambda a: a[:, 0, 0][PAIRS],
    "take": lambda a: np.take(a, K, axis=1),
    "ufunc": lambda a: np.negative(a),
    "sum": lambda a: a.sum(1),
    "running sums": lambda a: np.cumsum(a, axis=1),
    "delete": lambda a: np.delete(a, 1, axis=2),
    "real part": lambda a: (a + 1j).real * 1,
    "array": lambda a: np.array(a, like=a),
    **{
        f"{name}, order {order}": lambda a, make=make, order=order: make(a, order)
        for order in "CFAK"
        for name, make in {
            "copy": lambda a, order: a.copy(order),
            "np.copy": lambda a, order: np.copy(a, order),
            "astype": lambda a, order: a.astype("f8", order=order),
            "astype of the same": lambda a, order: a.astype("f4", order=order),
            "asarray": lambda a, order: np.asarray(a + 1, order=order, like=a),
            "zeros_like": lambda a, order: np.zeros_like(a, order=order),
            "full_like": lambda a, order: np.full_like(a, 2, order=order),
            "ones_like of another shape": lambda a, order: np.ones_like(a, order=order, shape=(5, 2, 4)),
        }.items()
    },
    **{
        f"{name}, order {order}": lambda a, make=make, order=order: make(a, order)
        for order in "CF"
        for name, make in {
            "zeros": lambda a, order: np.zeros(a.shape, order=order, like=a),
            "full": lambda a, order: np.full(a.shape, 2.0, order=order, like=a),
        }.items()
    },
}
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1))


@pytest.mark.parametrize("axes", ORDERS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_writing_to_a_reshaped_result_writes_what_numpy_writes(name, axes):
    """An array of three axes, in memory in the order ``axes``."""

    def written(a):
        found = FUNCTIONS[name](a)
        found.reshape(-1)[1::3] = 7
        found.reshape(found.shape[0], -1)[0] += 1
        return found

    base = np.random.default_rng(0).permutation(60).reshape([(4, 3, 5)[i] for i in axes]).astype("float32") - 30
    a = base.transpose(np.argsort(axes))
    assert a.shape == (4, 3, 5)
    np.testing.assert_array_equal(engine.jit(written)(a), written(a))


ONE = np.array(1)
PARTS = {
    "integer": lambda x, i: x[i],
    "dots behind": lambda x, i: x[i, ...],
    "dots in front": lambda x, i: x[..., i],
    "two": lambda x, i: x[i, i, ...] if x.ndim > 1 else x[..., i],
    "fixed": lambda x, i: x[ONE],
    "fixed beside": lambda x, i: x[ONE, ..., i] if x.ndim > 1 else x[ONE, ...],
    "number": lambda x, i: x[np.int64(1), ...],
}


@pytest.mark.parametrize("index", [np.int64(-1), np.array(1)], ids=["scalar", "array"])
@pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_parts_at_integers_and_arrays_of_rank_0(name, shape, index):
    """Views or copies, arrays or scalars, as NumPy's."""

    def written(x, i):
        part = PARTS[name](x, i)
        part += 1
        return part * 1, x.sum()

    def seen(x, i):
        part = PARTS[name](x, i)
        x[...] = 5
        return part

    for function in (written, seen):
        eager, given = (np.arange(float(np.prod(shape))).reshape(shape) for _ in range(2))
        wanted, found = function(eager, index), engine.jit(function)(given, index)
        for one, two in zip(wanted, found) if function is written else [(wanted, found)]:
            assert type(one) is type(two) and np.array_equal(one, two)
        assert np.array_equal(eager, given)


@pytest.mark.parametrize("index", [np.int64(-1), np.array(1), np.array([0, 2])], ids=["scalar", "array", "axis"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 2), (1, 3, 2)], ids=str)
def test_leading_axes_of_size_1_are_dropped_by_a_write(shape, index):
    x, y = np.zeros((3, 2)), np.arange(1.0, 1 + np.prod(shape)).reshape(shape)

    def at_the_end(x, i, y):
        x[..., i % 2] = y

    def in_front(x, i, y):
        x[i, ...] = y

    for function in (at_the_end, in_front):
        eager, given = x.copy(), x.copy()
        try:
            function(eager, index, y)
        except ValueError:
            with pytest.raises(engine.EngineValueError, match="broadcast"):
                engine.jit(function)(given, index, y)
            continue
        engine.jit(function)(given, index, y)
        assert np.array_equal(eager, given)


# -- reshapes that are views of memory in another order ----------------------------------------------------------------
REORDERED = {
    "read": lambda a: (a.T.reshape(-1) * 2, a),
    "written": lambda a: a.T.reshape(-1).__setitem__(slice(1, 7, 2), 0),
    "the array it comes from is written": lambda a: (a.T.reshape(-1), a.__setitem__(0, 5))[0] + 1,
    "a part of it is written": lambda a: (lambda flat: (flat[2:].__iadd__(1), flat.sum())[1])(a.T.reshape(-1)),
    "steps lead over a gap": lambda a: a.T[:, ::2].reshape(-1).__setitem__(slice(3, None), 3),
    "returned": lambda a: a.T.reshape(-1),
    "returned with another": lambda a: (a.T.reshape(-1), a[1:], a * 2),
    "in a branch": lambda a: engine.cond(
        a.sum() > 0, lambda: (a.T.reshape(-1).__setitem__(0, 7), a.sum())[1], lambda: a.min()
    ),
    "in a loop": lambda a: engine.while_loop(
        lambda i: i < 3, lambda i: (a.T.reshape(-1).__iadd__(1), i + 1)[1], np.int64(0)
    ),
}


@pytest.mark.parametrize("how", REORDERED)
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        lambda: np.arange(12.0).reshape(4, 3).T,
        lambda: np.arange(48.0).reshape(8, 6)[::2, ::2].T,
        lambda: np.arange(12.0).reshape(4, 3)[::-1, ::-1].T,
        lambda: np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
        lambda: np.arange(24.0).reshape(2, 3, 4).T,
        lambda: np.arange(12.0).astype(">f8").reshape(4, 3).T,
        lambda: np.arange(16).reshape(4, 4)[:, :3].T,
    ],
    ids=["Fortran", "steps", "reversed", "three axes", "three in Fortran order", "byte-swapped", "gaps"],
)
def test_reshape_of_another_order(how, computed, given):
    """Where NumPy's reshape is a view of memory that is not in C order, it is written and returned as one."""

    def function(a):
        b = a + 1 if computed else a  # which is laid out as a is
        found = REORDERED[how](b)
        return (found, b) if computed else found

    eager, memory = given(), given()
    wanted, found = function(eager), engine.jit(function)(memory)
    assert np.array_equal(eager, memory)
    for one, two in zip(flatten(wanted)[0], flatten(found)[0], strict=True):
        assert type(one) is type(two) and np.array_equal(one, two)
        assert getattr(one, "dtype", None) == getattr(two, "dtype", None)
    arrays = [[x for x in flatten(result)[0] if isinstance(x, np.ndarray)] for result in (wanted, found)]
    for k, (one, two) in enumerate(zip(*arrays, strict=True)):
        assert one.flags.writeable == two.flags.writeable
        assert np.shares_memory(one, eager) == np.shares_memory(two, memory), k
        for left, right in zip(arrays[0][:k], arrays[1][:k]):
            assert np.shares_memory(one, left) == np.shares_memory(two, right), k


def test_a_reshape_that_is_a_view_of_no_root():
    """Strides of a field are no multiples of its elements: NumPy's view can be read, but not written."""
    field = np.zeros((3, 4), [("value", "f8"), ("flag", "i4")])["value"].T
    field[...] = np.arange(12.0).reshape(4, 3)
    assert np.array_equal(engine.jit(lambda a: a.T.reshape(-1) + 1)(field), field.T.reshape(-1) + 1)
    with pytest.raises(engine.EngineValueError, match="NumPy would share its memory, which is not in C order"):
        engine.jit(lambda a: a.T.reshape(-1).__setitem__(0, 5.0))(field)


def test_a_function_is_traced_again_only_where_it_writes_or_returns_what_it_reshaped():
    given, calls = np.arange(12.0).reshape(4, 3).T, []

    def function(a, write):
        calls.append(write)
        flat = a.T.reshape(-1)
        if write:
            flat[0] = 1
        return flat.sum()

    jitted = engine.jit(function)
    for write in (False, True):
        assert jitted(given, write) == function(given, write) and jitted(given, write) == function(given, write)
    assert calls.count(False) == 1 + 2 and calls.count(True) == 2 + 2


@pytest.mark.parametrize("gap, step", [(0, 1), (1, 2)])
def test_what_is_written_in_the_order_of_memory_is_copied_only_where_it_has_gaps(gap, step):
    """Between its elements others may write at the same time."""
    memory = np.arange(4 * (3 + gap)).reshape(4, 3 + gap)
    eager, array = memory[:, :3].copy().T, memory[:, :3].T

    def function(a):
        a.T[:, ::step].reshape(-1)[...] += 1
        return a.T[:, ::step].reshape(-1)[::2] * 2

    jitted = engine.jit(function)
    traced, arrays = jitted._traced(*flatten(((array,), {})))
    assert traced.spans == (True,)
    assert np.shares_memory(inputs_of(traced, arrays)[0], memory) == (gap == 0)
    eager[::step] += 1
    assert np.array_equal(jitted(array), eager.T[:, ::step].reshape(-1)[::2] * 2)
    assert np.array_equal(array, eager) and (memory[:, 3:] == np.arange(4 * (3 + gap)).reshape(4, -1)[:, 3:]).all()
