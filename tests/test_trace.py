"""Functions traced by `jit` against the same functions run by NumPy, and what tracing refuses."""

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import nnfunctions as nn

A = np.arange(12.0).reshape(3, 4) / 5
I = np.arange(12, dtype="i4").reshape(3, 4)  # noqa: E741
B = np.arange(4, dtype="u1")
C = A + 1j * A.T.reshape(3, 4)


def assert_same(wanted, found):
    if isinstance(wanted, (tuple, list)):
        assert type(wanted) is type(found) and len(wanted) == len(found)
        for one, two in zip(wanted, found):
            assert_same(one, two)
        return
    if isinstance(wanted, dict):
        assert list(wanted) == list(found)
        return assert_same(list(wanted.values()), list(found.values()))
    assert type(wanted) is type(found) and np.shape(wanted) == np.shape(found)
    if isinstance(wanted, (np.ndarray, np.generic)):
        assert wanted.dtype == found.dtype
        # a product of float16 is rounded once here, by NumPy after each factor
        rtol = {"float16": 2**-10, "float32": 1e-6, "complex64": 1e-6}.get(wanted.dtype.name, 1e-13)
        np.testing.assert_allclose(found, wanted, rtol=rtol)
    else:
        assert wanted == found


def assert_traced(function, *arrays):
    """The jitted function gives what NumPy gives, and leaves its arguments as NumPy does."""
    eager, given = ([x.copy() if isinstance(x, np.ndarray) else x for x in arrays] for _ in range(2))
    jitted = engine.jit(function)
    with np.errstate(all="ignore"):
        assert_same(function(*eager), jitted(*given))
    assert_same(eager, given)
    jitted.program(*given).check()
    return jitted


ELEMENTWISE = {
    "operators": lambda a: (a + 1, 2 - a, a * a, a / 3, 7 // (a + 1), a % 2, a**2, 2**a, -a, +a, abs(a), divmod(a, 2)),
    "comparisons": lambda a: (a < 1, a >= 2, a == 1, a != 1, (a > 1) & (a < 2), ~(a > 1)),
    "ufuncs": lambda a: (np.exp(a), np.log1p(a), np.sqrt(a), np.tanh(a), np.rint(a), np.square(a), np.fabs(a)),
    "weak": lambda a: (a + True, a * np.float32(2), a * 2.5, a + np.int8(1), np.add(a, 1j)),
    "dtype": lambda a: (np.add(a, 1, dtype="f4"), a.astype("i8"), np.sum(a, dtype="c16")),
    "choice": lambda a: (np.where(a > 1, a, 0), np.clip(a, 0.5, 1), np.maximum(a, 1), np.isnan(a), a.clip(max=1)),
    "round": lambda a: (a.round(), np.round(a, 1), a.real, a.imag, a.conj(), np.logaddexp(a, 1)),
    "powers": lambda a: (a**0.5, a**-1, a**2.0, a**3, a**0, a.sum() ** 2, (a - 1) ** 2, 2.0**a),
    "outer": lambda a: (np.multiply.outer(a[0], a[1]), np.add.reduce(a), np.maximum.reduce(a, axis=None)),
}
REDUCTIONS = {
    "sums": lambda a: (a.sum(), a.sum(0), a.sum((0, 1), keepdims=True), np.prod(a, -1), a.mean(), np.mean(a, 1)),
    "spread": lambda a: (a.var(), a.std(0, ddof=1), np.linalg.norm(a), np.linalg.norm(a, axis=1)),
    "order": lambda a: (a.max(), a.min(1), a.argmax(), a.argmin(0), np.argmax(a, 1, keepdims=True), a.any(), a.all(0)),
    "count": lambda a: (np.count_nonzero(a, axis=0), np.sort(a, 0), np.argsort(-a), a.argsort(0)),
}
SHAPES = {
    "views": lambda a: (a.T, a[::-1], a.reshape(2, 6), a.ravel(), a[:, None], a.swapaxes(0, 1), np.moveaxis(a, 0, -1)),
    "more views": lambda a: (
        a[..., 1],
        a[1, 2],
        a[-1],
        a.diagonal(),
        np.expand_dims(a, 0),
        a[:1].squeeze(),
        np.flip(a),
    ),
    "joins": lambda a: (np.concatenate([a, a[:1]]), np.stack([a, a], 1), np.vstack([a, a[0]]), np.hstack([a, a])),
    "parts": lambda a: (np.split(a, 2, 1), np.split(a, [1]), np.roll(a, 1), np.roll(a, (1, -1), (0, 1)), np.pad(a, 1)),
    "made": lambda a: (np.zeros_like(a), np.ones_like(a, dtype="f4"), np.full_like(a, 3), np.tril(a), np.triu(a, 1)),
    "repeated": lambda a: (np.tile(a, 2), np.tile(a[0], (3, 2)), np.repeat(a, 2, 0), np.repeat(a, 3), np.diff(a, 2)),
    "at least": lambda a: (np.atleast_1d(a.sum()), np.atleast_2d(a[0]), *np.atleast_1d(a, a[0, 0])),
    "at least 3": lambda a: (np.atleast_3d(a, a[0], a[0, 0], a[None]), np.atleast_3d(a.T)),
    "view": lambda a: (a.view(), a[1:].T.view(), a.view(a.dtype)[0]),
    "diag": lambda a: (np.diag(a[0]), np.diag(a), np.trace(a), np.broadcast_to(a[0], (2, 4)).sum(0)),
    "fortran": lambda a: (a.reshape(6, 2, order="F"), a.flatten(), a.ravel("F"), np.copy(a), a.T.copy().ravel()),
    "about": lambda a: (len(a), a.shape, a.ndim, a.size, a.nbytes, np.shape(a), [row.sum() for row in a]),
}
INDICES = {
    "arrays": lambda a: (a[[0, 2]], a[:, [1, 1]], a[[0, 1], [1, 2]], a[[0, 1], :, None], a[np.array([[0], [1]]), 1]),
    "take": lambda a: (np.take(a, [1], 0), a.take(5), np.take_along_axis(a, np.argsort(a, 1), 1), a[None, [0], 1:]),
    "traced": lambda a: (a[a[0, :2].astype(int)], a[a.argmax(0) * 0 - 1], a[a[0].argmin()], a[1:, a[0].argmin()]),
    "mask": lambda a: (a[np.array([True, False, True])], a[:, np.array([True, False, True, True])]),
}
PRODUCTS = {
    "matmul": lambda a: (a @ a.T, a @ a[0], a[0] @ a[0], np.matmul(a[None], a.T), np.dot(a, a.T), np.vdot(a, a)),
    "einsum": lambda a: (np.einsum("ij,kj->ik", a, a), np.einsum("ij->j", a), np.einsum("...j,j", a, a[0])),
    "tensordot": lambda a: (
        np.tensordot(a, a, ([0, 1], [0, 1])),
        np.tensordot(a, a.T, 1),
        np.outer(a, a),
        np.inner(a, a),
    ),
}


@pytest.mark.parametrize("function", [*ELEMENTWISE.values(), *REDUCTIONS.values(), *SHAPES.values()])
def test_functions_of_one_array(function):
    assert_traced(function, A)


@pytest.mark.parametrize("function", [*INDICES.values(), *PRODUCTS.values()])
def test_indices_and_products(function):
    assert_traced(function, A)
    assert_traced(function, A.T.copy().T)


@pytest.mark.parametrize("x", [I, B, C, A.astype("f4"), A.astype("f2"), I > 3], ids=lambda x: str(x.dtype))
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_dtypes_are_numpy_s(x):
    def function(x, y):
        found = [x + x, x * 2, x * 1.5, x / 2, x.sum(), x.mean(), x.prod(0), x * y, y / x, x == 1, x.astype("f8")]
        return found + ([x // 2, x > 300, x <= -1, x**2] if x.dtype.kind in "iu" else [])

    assert_traced(function, x, A.reshape(-1)[: x.shape[-1]])


# -- in place ----------------------------------------------------------------------------------------------------------
def view_example(a):
    """Of the RFC."""
    b, c = a[1, :], a[2, :]
    d = b + c
    c += 2
    return a + d


def aliases(a):
    row, corner, flat = a[1], a[:2, :2], a.reshape(-1)
    flat[5] = 50
    corner *= 2
    a[1:, ::-2] += row[::2]
    np.add(a[0], 1, out=a[2])
    a.T[0] = -1
    return row.sum(), corner, a[::2]


def by_index(a):
    a[[0, 2]] += 1
    a[:, np.array([1, 1])] = a[:, :2] * 2
    np.add.at(a, ([0, 0], [1, 1]), 1.0)
    a[a > 3] = 0
    a[0, [0, 1]] -= a[1, :2]
    return a.copy()


def at_traced_places(a, i):
    row = a[i]
    row += 1
    a[i, 1:] *= 2
    row[0] = 9
    a[i] = row * 2
    a[0, i] += 5
    return row, a[i, i]


def scalars(a):
    s = total = a.sum()
    s += 1
    first = a[0, 0]
    a[0, 0] = 7
    first *= 2
    zero = a[0, 0, ...]
    zero += 1
    return s, total, first, zero


def with_out(a):
    np.add(a, 1, out=a, where=a > 1)
    np.divmod(a[0], 2, out=(a[1], a[2]))
    a **= 2
    a[0] **= 0.5
    np.sum(a, 0, out=a[1])
    np.copyto(a[0], a[1], where=a[0] > 2)
    a[1:] -= np.clip(a[1:], 0, 1, out=a[:2])
    a.sort(0)
    a[0].fill(3)


@pytest.mark.parametrize("function", [view_example, aliases, by_index, scalars, with_out])
def test_in_place(function):
    assert_traced(function, A)
    assert_traced(function, np.asfortranarray(A))


@pytest.mark.parametrize("i", [0, 2, -1])
def test_writes_at_traced_places(i):
    assert_traced(at_traced_places, A, np.int64(i))


def test_view_example_has_one_access_a_read_and_one_assign():
    jitted = assert_traced(view_example, A)
    assert [eqn.op for eqn in jitted.program(A).eqns] == ["access", "access", "add", "add", "assign", "add"]
    text = jitted.explain()
    for word in ("view root0", "copy root0", "access", "assign", "test_trace.py:"):
        assert word in text


def shift(a, b):
    a[1:] += b[:-1]
    return a.sum()


@pytest.mark.parametrize("pick", [
    lambda x: (x, x),
    lambda x: (x[:4], x[2:6]),
    lambda x: (x[:6:2], x[1::2]),
    lambda x: (x[:3], x[3:6]),
    lambda x: (x[::-1], x),
    lambda x: (x[5:1:-1], x[:4]),
])  # fmt: skip
def test_arguments_that_share_memory(pick):
    eager, given = np.arange(7.0), np.arange(7.0)
    jitted = engine.jit(shift)
    for _ in range(2):
        assert shift(*pick(eager)) == jitted(*pick(given))
        assert np.array_equal(eager, given)
    assert jitted(np.ones(3), np.ones(3)) == 5


def write_a_row(a):
    a[0] = 5
    return a.sum(), a[1:], a.T * 1


def add_neighbours(a):
    a[1:] += a[:-1]
    return a * 1


def add_to_all(a):
    b = a.T
    b += 1
    b[...] = a.T * 2
    return b


def write_in_a_loop(a):
    def body(i):
        a[1, 1:] += a[2, :-1]
        return i + 1

    return engine.while_loop(lambda i: i < 3, body, np.int64(0)), a.sum(0)


@pytest.mark.parametrize("function", [write_a_row, add_neighbours, add_to_all, write_in_a_loop])
@pytest.mark.parametrize("shape, strides", [((4, 3), (0, 1)), ((6, 3), (1, 1)), ((3, 4), (2, 1)), ((3, 3, 3), (2, 0, 1))])
@pytest.mark.parametrize("dtype", ["f8", "i2", "c8"])
def test_an_argument_whose_elements_share_memory(function, shape, strides, dtype):
    def made():
        memory = np.arange(12).astype(dtype)
        return np.lib.stride_tricks.as_strided(memory, shape, [n * memory.itemsize for n in strides])

    jitted = engine.jit(function)
    for _ in range(2):  # the second call would begin with the entry
        eager, given = made(), made()
        assert_same(function(eager), jitted(given))
        assert_same(eager, given)
    apart = np.arange(float(np.prod(shape))).reshape(shape)
    assert_same(function(apart.copy()), jitted(apart.copy()))


@pytest.mark.parametrize("write", [
    lambda a: a.__setitem__([0], 5),
    lambda a: a.__setitem__(a > 3, 5),
    lambda a: a.__setitem__(a > 3, a[a > 3] + 1),
    lambda a: np.add.at(a, [0, 1], 1),
    lambda a: np.add(a, 1, out=a, where=a > 3),
    lambda a: np.copyto(a, 1, where=a > 3),
    lambda a: np.putmask(a, a > 3, 1),
    lambda a: a.__setitem__(a[0, 0].astype(int), 5),
])  # fmt: skip
def test_some_elements_of_those_that_share_memory_are_not_written(write):
    with pytest.raises(engine.EngineValueError, match="share memory: some of them cannot be written alone"):
        engine.jit(write)(np.lib.stride_tricks.as_strided(np.arange(9.0), (3, 3), (8, 8)))


def test_results_of_arguments_that_share_memory():
    def function(a, b):
        a += 1
        return b, a[1:], b[::-1]

    x = np.arange(6.0)
    first, second = x[:4], x[2:]
    whole, part, back = engine.jit(function)(first, second)
    assert whole is second and np.array_equal(part, x[1:4]) and np.array_equal(back, x[:1:-1])
    part[2] = 99
    assert x[3] == back[2] == whole[1] == 99 and engine.jit(function)(first, x[4:])[1] is not first


def test_arguments_that_share_bytes_only_are_refused():
    x = np.zeros(4)
    with pytest.raises(
        engine.EngineValueError, match="arguments 0 and 1 share memory, but not as elements of one array"
    ):
        engine.jit(shift)(x, x.view("i4")[:4])
    rows = np.zeros(6, [("flag", "i1"), ("value", "f8")])["value"]
    with pytest.raises(engine.EngineValueError, match=r"0 and 1 share .* strides of \(9,\) and \(9,\) bytes"):
        engine.jit(shift)(rows, rows)


def test_results_share_memory_as_numpy_s_do():
    x = A.copy()
    whole, part, fresh, one, two = engine.jit(lambda a: (a, a[1:].T, a + 1, *(lambda c: (c, c[1:]))(a * 2)))(x)
    assert whole is x and np.shares_memory(part, x) and not np.shares_memory(fresh, x)
    assert np.array_equal(part, x[1:].T) and np.shares_memory(one, two) and np.array_equal(one[1:], two)
    part[0] = 5
    assert (x[1:, 0] == 5).all()


def test_read_only_arguments():
    x = A.copy()
    x.flags.writeable = False
    with pytest.raises(engine.EngineValueError, match="array argument 0 is read-only"):
        engine.jit(view_example)(x)
    assert not engine.jit(lambda a: a[1:])(x).flags.writeable


def test_byte_swapped_arguments():
    eager, given = A.astype(">f8"), A.astype(">f8")
    assert np.array_equal(engine.jit(view_example)(given), view_example(eager))
    assert np.array_equal(eager, given) and given.dtype == ">f8"


# -- structure, cache --------------------------------------------------------------------------------------------------
def test_nested_arguments_and_results():
    def function(x, scale=1, *, table):
        return {"sum": x[0] + table["b"], "rest": (x[1] * scale, None, "text")}

    found = engine.jit(function)((A, B), scale=2, table={"b": A})
    assert_same([A + A, (B * 2, None, "text")], [found["sum"], found["rest"]])


def test_a_program_per_shape_dtype_and_fixed_argument():
    traced = []

    @engine.jit
    def function(x, n=1):
        traced.append((x.shape, x.dtype, n))
        return x + n

    for x, n in [(A, 1), (A + 1, 1), (A, 2), (A, 1.0), (A, True), (A.astype("f4"), 1), (A[:2], 1), (A, 1)]:
        assert_same(x + n, function(x, n))
    assert len(traced) == 6


def test_the_one_used_longest_ago_is_dropped_with_one_warning():
    traced = []

    @engine.jit(cache=2)
    def function(x):
        traced.append(len(x))
        return x + 1

    with pytest.warns(UserWarning, match="more than 2 combinations of shapes, dtypes"):
        for n in (1, 2, 1, 3):
            function(np.zeros(n))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(np.zeros(1))
        function(np.zeros(2))
    assert traced == [1, 2, 3, 2]


def test_traces_are_equal():
    one, two = (engine.jit(aliases).program(A) for _ in range(2))
    assert one == two and hash(one) == hash(two) and one.show() == two.show()


def test_jitted_functions_and_methods_nest():
    inner = engine.jit(lambda x: x * 2)

    class Model:
        @engine.jit
        def call(self, x):
            return inner(x) + 1

    assert_same(A * 2 + 1, Model().call(A))


def test_threads_trace_at_the_same_time():
    def function(a, n):
        for _ in range(n):
            a[1:] += a[:-1] * 0.5
        return a.sum()

    jitted, counts = engine.jit(function), [1, 5, 9, 13] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: jitted(A.copy(), n), counts))
    assert_same([function(A.copy(), n) for n in counts], found)


def test_constants_are_held_once():
    table = np.arange(4.0)
    program = engine.jit(lambda a: (a + table) * table).program(A)
    assert len(program.consts) == 1
    assert_same((A + table) * table, engine.jit(lambda a: (a + table) * table)(A))


def test_import_stays_light():
    script = "import einsum_engine, sys; print(*[m for m in sys.modules if m.startswith('einsum_engine.')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["einsum_engine.errors", "einsum_engine.version"]


# -- windows -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps, padding, dilations", [(1, 0, 1), (2, 1, 1), (1, ((0, 2), (1, 0)), 2)])
def test_convolution(steps, padding, dilations):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((4, 3, 3, 2))
    jitted = assert_traced(lambda x, w: nn.convolution(x, w, steps, padding, dilations), x, w)
    assert {eqn.op for eqn in jitted.program(x, w).eqns} <= {"pad", "access", "einsum"}
    found = jitted(x, w)
    pairs = padding if isinstance(padding, tuple) else ((padding, padding),) * 2
    padded = np.pad(x, ((0, 0), (0, 0), *pairs))
    for n, k, s, t in [(0, 0, 0, 0), (1, 3, 1, 2), (1, 2, found.shape[2] - 1, found.shape[3] - 1)]:
        total = sum(
            padded[n, c, s * steps + u * dilations, t * steps + v * dilations] * w[k, c, u, v]
            for c, u, v in np.ndindex(3, 3, 2)
        )
        assert np.isclose(found[n, k, s, t], total)


def test_pooling():
    x = np.random.default_rng(1).standard_normal((1, 2, 6, 6))
    jitted = assert_traced(lambda x: (nn.max_pool(x, 2), nn.mean_pool(x, 3, 1, 1), nn.max_pool(x, (2, 3), 1, 1)), x)
    assert np.array_equal(jitted(x)[0], x.reshape(1, 2, 3, 2, 3, 2).max((3, 5)))


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f4"])
def test_nothing_in_the_padding_is_the_largest(dtype):
    x = np.zeros((1, 1, 3, 3), dtype) if dtype == "?" else -np.ones((1, 1, 3, 3)).astype(dtype)
    found = assert_traced(lambda x: nn.max_pool(x, 2, padding=1), x)(x)
    assert found.dtype == x.dtype and (found == x[0, 0, 0, 0]).all()
