"""`out=`, `dtype=` and `casting=` of functions that are traced: what NumPy computes in, what it refuses."""

import numpy as np
import pytest

import einsum_engine as engine

DTYPES = ("f4", "f8", "c8", "i1", "i4", "i8", "?")
VALUES = np.array([[0.5, 2.5, 3.25], [2.5, 0.75, 100.0], [0.5, 1.5, 0.5]])
ARRAYS = {name: VALUES.astype(name) for name in DTYPES}

# Name -> function of an array of shape (3, 3) and its argument out=.
WITH_OUT = {
    "sum": lambda x, out: np.sum(x, axis=0, out=out),
    "sum of all": lambda x, out: np.sum(x, out=out),
    "sum, axes kept": lambda x, out: np.sum(x, axis=1, keepdims=True, out=out),
    "sum in float32": lambda x, out: np.sum(x, axis=0, dtype="f4", out=out),
    "sum from a number": lambda x, out: np.sum(x, axis=0, initial=2, out=out),
    "sum method": lambda x, out: x.sum(1, None, out),
    "add.reduce": lambda x, out: np.add.reduce(x, axis=1, out=out),
    "prod": lambda x, out: np.prod(x, axis=0, out=out),
    "max": lambda x, out: np.max(x, axis=0, out=out),
    "min": lambda x, out: np.min(x, axis=1, out=out),
    "any": lambda x, out: np.any(x, axis=0, out=out),
    "argmax": lambda x, out: np.argmax(x, axis=0, out=out),
    "argmin of all": lambda x, out: np.argmin(x, out=out),
    "mean": lambda x, out: np.mean(x, axis=0, out=out),
    "var": lambda x, out: np.var(x, axis=0, ddof=1, out=out),
    "std": lambda x, out: np.std(x, axis=0, out=out),
    "nansum": lambda x, out: np.nansum(x, axis=0, out=out),
    "nanmax": lambda x, out: np.nanmax(x, axis=0, out=out),
    "cumsum": lambda x, out: np.cumsum(x, axis=1, out=out),
    "cumprod": lambda x, out: np.cumprod(x, axis=0, out=out),
    "cumulative_sum": lambda x, out: np.cumulative_sum(x, axis=0, out=out),
    "maximum.accumulate": lambda x, out: np.maximum.accumulate(x, axis=0, out=out),
    "hypot.reduce": lambda x, out: np.hypot.reduce(x, axis=0, out=out),
    "add.reduceat": lambda x, out: np.add.reduceat(x, [0, 1], axis=0, out=out),
    "trace": lambda x, out: np.trace(x, out=out),
    "median": lambda x, out: np.median(x, axis=0, out=out),
    "ptp": lambda x, out: np.ptp(x, axis=0, out=out),
    "einsum": lambda x, out: np.einsum("ij,jk->ik", x, x, out=out),
    "einsum of a sum": lambda x, out: np.einsum("ij->j", x, out=out),
    "einsum, any cast of one kind": lambda x, out: np.einsum("ij->j", x, out=out, casting="same_kind"),
    "dot": lambda x, out: np.dot(x, x, out=out),
    "dot with a number": lambda x, out: np.dot(x, 2, out=out),
    "multi_dot": lambda x, out: np.linalg.multi_dot([x, x, x], out=out),
    "matmul": lambda x, out: np.matmul(x, x, out=out),
    "outer": lambda x, out: np.outer(x, x, out=out),
    "take": lambda x, out: np.take(x, [2, 0], axis=0, out=out),
    "compress": lambda x, out: np.compress([1, 0, 1], x, axis=1, out=out),
    "concatenate": lambda x, out: np.concatenate([x, x], out=out),
    "concatenate, any cast": lambda x, out: np.concatenate([x, x], out=out, casting="unsafe"),
    "stack": lambda x, out: np.stack([x, x], out=out),
    "clip": lambda x, out: np.clip(x, 1, 2, out=out),
    "round": lambda x, out: np.round(x, 1, out=out),
    "rint": lambda x, out: np.rint(x, out=out),
    "add": lambda x, out: np.add(x, x, out=out),
    "add, any cast": lambda x, out: np.add(x, x, out=out, casting="unsafe"),
    "add, safe casts": lambda x, out: np.add(x, x, out=out, casting="safe"),
    "add in float32": lambda x, out: np.add(x, x, out, dtype="f4"),
    "add in integers": lambda x, out: np.add(x, x, out, dtype="i4", casting="unsafe"),
    "square in float32": lambda x, out: np.square(x, out, dtype="f4"),
    "matmul in float64": lambda x, out: np.matmul(x, x, out, dtype="f8"),
    "negative, no casts": lambda x, out: np.negative(x, out=out, casting="no"),
}
# (name, given dtype) that NumPy computes and a traced function refuses: complex numbers have no middle.
REFUSED = {("median", "c8")}


def outcome(function, x, shape, dtype):
    """The array that ``function`` has filled, or the class of builtin error that it raised."""
    out = np.full(shape, 7, dtype)
    with np.errstate(all="ignore"):
        try:
            found = function(x.copy(), out)
        except (TypeError, ValueError) as error:
            return TypeError if isinstance(error, TypeError) else ValueError
    assert found is out
    return out


def traced_outcome(function, x, shape, dtype):
    def run(x, out):
        assert function(x, out) is out
        return out

    return outcome(lambda x, out: engine.jit(run)(x, out), x, shape, dtype)


def result_shape(function):
    return np.shape(function(VALUES, None))


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_out_decides_the_dtype_as_in_numpy(name, target):
    """Every other pair of dtypes, those between them for the next function."""
    function = WITH_OUT[name]
    shape = result_shape(function)
    for given in DTYPES[(DTYPES.index(target) + list(WITH_OUT).index(name)) % 2 :: 2]:
        x = ARRAYS[given]
        wanted, found = outcome(function, x, shape, target), traced_outcome(function, x, shape, target)
        if (name, given) in REFUSED:
            assert found is TypeError
        elif isinstance(wanted, type) or isinstance(found, type):
            assert wanted is found, (given, wanted, found)
        else:
            single = {given, target} & {"f4", "c8"}
            np.testing.assert_allclose(found, wanted, rtol=3e-6 if single else 1e-12, err_msg=given)


@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_out_of_another_shape(name):
    function = WITH_OUT[name]
    shape = result_shape(function)
    for other in {(2, *shape), (*shape, 1), (5,), shape[1:]} - {shape}:
        wanted = outcome(function, ARRAYS["f8"], other, "f8")
        found = traced_outcome(function, ARRAYS["f8"], other, "f8")
        if isinstance(wanted, type) or isinstance(found, type):
            assert isinstance(found, type), (other, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-12, err_msg=str(other))
