"""Arguments that NumPy refuses: traced functions raise the same builtin error, with operation, line and shapes."""

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.errors import EngineAxisError, EngineError

A = np.arange(12.0).reshape(3, 4) / 4 - 1

WRONG = """
np.delete(a, 99)                    np.delete(a, 9, axis=0)             np.zeros_like(a, dtype="zz")
a.astype("zz")                      np.sum(a, dtype="zz")               np.array_split(a, 0)
np.array_split(a, -1)               np.sum(a, initial="x")              np.sum(a, axis="x")
np.sum(a, axis=1.5)                 np.sum(a, where=a)                  np.mean(a, axis=7)
np.max(a, axis=(0, 0))              np.max(a[:0])                       np.argmax(a[:0])
np.reshape(a, "x")                  np.reshape(a, (5,))                 np.broadcast_to(a, (2,))
np.repeat(a, -1)                    np.pad(a, -1)                       np.moveaxis(a, 0, 7)
np.transpose(a, (0, 0))             np.squeeze(a, 0)                    np.expand_dims(a, 9)
np.flip(a, 9)                       np.take(a, 99)                      np.take(a, 1, mode="x")
np.sort(a, 9)                       np.sort(a, kind="x")                np.argsort(a, kind="x")
np.sort(a, order="x")               np.concatenate([a, a], axis=9)      np.concatenate([a, a[0]])
np.stack([a, a[0]])                 np.stack([a], axis=9)               np.hstack([a, a[0]])
np.dot(a, a)                        np.matmul(a, a)                     np.tensordot(a, a, ([0], [5]))
np.einsum("ij,jk", a)               np.einsum("ij->k", a)               np.trace(a, axis1=7)
np.diagonal(a, 0, 0, 0)             np.diag(a[None])                    np.convolve(a[0], a)
np.convolve(a[0], a[1], "x")        np.interp(a, [0, 1], [1])           np.interp(a, [], [])
np.clip(a, 0, 1, max=3)             np.diff(a, n=-1)                    np.diff(a, axis=9)
np.median(a, 9)                     np.quantile(a, 2)                   np.searchsorted(a[0], 1, "x")
np.linspace(a[0], a[1], -1)         np.meshgrid(a[0], indexing="x")     np.select([a > 0], [a, a])
np.resize(a, (-1, 2))               np.unstack(a, axis=9)               np.roll(a, 1, axis=9)
np.rot90(a, axes=(0, 9))            np.vander(a)                        np.gradient(a, axis=9)
np.cumsum(a, axis=9)                np.cumulative_sum(a)                np.isposinf(a * 1j)
np.add(a, a, dtype="i4")            np.add(a, [1, 2])                   np.left_shift(a, 1)
np.add.reduceat(a, [9])             np.add.reduce(a, axis=9)            np.hypot.reduce(a, axis=9)
np.linalg.multi_dot([a])            np.linalg.matrix_power(a, 2)        np.vsplit(a, [1.5])
np.copyto(a, 1, where=a)            np.put(a, 99, 1)                    np.take_along_axis(a, a, 0)
np.add(a, a, casting="no", out=b)   np.sum(a, axis=0, out=a)            np.nanmean(a, axis=0, out=b[0])
a["x"]                              a[1.5]                              a[9]
a[0, 0, 0]                          a[::0]                              a[..., ...]
a.sum(axis=9)                       a.transpose(0, 5)                   a.reshape(7)
a.astype("i4", casting="safe")      a.sort(9)                           del a[0]
np.full((2, "x"), 1, like=a)        np.eye("x", like=a)
"""
CALLS = [call.strip() for line in WRONG.strip().splitlines() for call in line.split("   ") if call.strip()]


def function_of(call):
    names = {"np": np}
    exec(f"def f(a, b):\n    {call}", names)
    return names["f"]


@pytest.mark.parametrize("call", CALLS)
def test_what_numpy_refuses(call):
    f = function_of(call)
    with pytest.raises((TypeError, ValueError, IndexError)) as theirs:
        f(A.copy(), A.astype("i4"))
    with pytest.raises((TypeError, ValueError, IndexError)) as ours:
        engine.jit(f)(A.copy(), A.astype("i4"))
    kinds = [kind for kind in (TypeError, ValueError, IndexError) if isinstance(theirs.value, kind)]
    assert isinstance(ours.value, EngineError) and all(isinstance(ours.value, kind) for kind in kinds), str(ours.value)
    message = str(ours.value)
    assert "<string>:2" in message and (" (operands " in message or "like=a" in call), message


def test_a_wrong_axis_is_numpys_kind_of_error():
    with pytest.raises(EngineAxisError, match=r"np\.sum, .*: axis 2 is out of bounds for 2 axes, shape \(3, 4\)") as caught:
        engine.jit(lambda a: np.sum(a, axis=2))(A)
    assert isinstance(caught.value, (ValueError, IndexError)) and isinstance(caught.value, ValueError)


def test_errors_of_the_users_own_code_stay_as_they_are():
    def wrong(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$") as caught:
        engine.jit(lambda a: np.piecewise(a, [a > 0], [wrong, 0]))(A)
    assert type(caught.value) is ValueError


SHOWN = {
    "structures": (lambda a: engine.cond(a[0, 0] > 0, lambda: (a, None), lambda: a), r"structures: \(\.\.\., None\) and \.\.\."),
    "table": (lambda a: np.arange(3)[a.argmax()], r"np\.asarray\(table, like=i\)\[i\] takes from an array that is not traced"),
    "tables": (lambda a: np.arange(3)[a.astype(int)], r"np\.asarray\(table, like=i\)\[i\] takes from an array that is not"),
    "counts": (lambda a: np.repeat(a, a.astype(int)), r"np\.repeat takes counts that are no traced arrays"),
    "shape of out": (lambda a: np.sum(a, 0, out=a), r"np\.sum, .*: out= has shape \(3, 4\), the result has shape \(4,\)"),
    "dtype of out": (
        lambda a: np.dot(a, a[0], out=np.zeros_like(a[0, :3], dtype="f4")),
        r"np\.dot, .*: out= has dtype float32, the result has float64: they must be the same",
    ),
    "order of out": (
        lambda a: np.dot(a, a.T, out=np.zeros_like(a[:, :3]).T),
        r"np\.dot, .*: out= does not lie in C order in memory, which a product of matrices needs",
    ),
    "cast to out": (
        lambda a: np.einsum("ij->j", a, out=np.zeros_like(a[0], dtype="f4")),
        r"np\.einsum, .*: cannot cast the result from float64 to float32 with rule 'safe'",
    ),
    "two for one": (lambda a: np.add.reduce(a, out=(a, a)), "out"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_messages(name):
    function, text = SHOWN[name]
    with pytest.raises((TypeError, ValueError, IndexError), match=text):
        engine.jit(function)(A)


def test_counts_of_repeat():
    for counts in (2, np.int64(3), [2], [1, 0, 2], np.array([3, 1, 0])):
        wanted = np.repeat(A, counts, axis=0)
        np.testing.assert_array_equal(engine.jit(lambda a, n=counts: np.repeat(a, n, axis=0))(A), wanted)


def test_branches_that_return_nothing():
    @engine.jit
    def f(a):
        engine.cond(a.sum() > 0, lambda: a.__setitem__(0, 1.0), lambda: a.__setitem__(1, 2.0))
        return engine.cond(a[0, 0] > 0, lambda: (a[0], None), lambda: (a[1], None))

    found, nothing = f(a := A.copy())
    assert nothing is None
    np.testing.assert_array_equal(found, a[0] if a[0, 0] > 0 else a[1])
    assert (a[0] == 1).all() if A.sum() > 0 else (a[1] == 2).all()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_at_the_edges_of_what_functions_are_for(dtype):
    """No elements, one element, infinite knots, zero divided by: NumPy's results and dtypes."""
    x = np.array([[0, 1, 2, 3], [-1, 2, 5, 0]], dtype)
    functions = [
        lambda x: (np.median(x[:, :0]), np.median(x[:0], 0), np.median(x[:, :0], 1, keepdims=True)),
        lambda x: [np.logaddexp.reduce(x[:n], axis=0) for n in range(3)],
        lambda x: [np.hypot.reduce(x[:n], axis=0) for n in range(3)],
        lambda x: np.interp(x, [0, 1, 2, 3], [1, np.inf, 2, np.nan]),
        lambda x: np.interp(x, [-1, 2, np.inf], [1, 2, 2]),
        lambda x: (np.correlate(x[0] > 1, x[1] > 1), np.correlate(x[0] > 1, x[1, :3] > 1, "full")),
        lambda x: (np.reciprocal(x * 1j), (x * 1j) ** -1, np.reciprocal(x[0, 0] * 1j)),
    ]
    for number, f in enumerate(functions):
        with np.errstate(all="ignore"):
            wanted, found = f(x), engine.jit(f)(x)
        pairs = [(wanted, found)] if isinstance(wanted, np.ndarray) else zip(wanted, found, strict=True)
        for one, two in pairs:
            assert two.dtype == one.dtype and type(two) is type(one), (number, one, two)
            np.testing.assert_allclose(two, one, rtol=1e-6, err_msg=str(number))


def test_one_random_number_is_a_scalar_traced_or_not():
    key = engine.random_key(3)
    for draw in (engine.random_bits, engine.random_uniform, engine.random_normal):
        one, two = draw(key, ()), engine.jit(lambda key, draw=draw: draw(key, ()))(key)
        assert type(one) is type(two) and one == two
    with pytest.raises(TypeError, match="random_uniform, .*: the result has dtype zz, which has no meaning"):
        engine.random_uniform(key, 3, "zz")
