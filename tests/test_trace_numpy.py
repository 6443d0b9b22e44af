"""Functions that people write with NumPy, traced: values, dtypes, shapes and kinds of results are NumPy's."""

import copy

import numpy as np
import pytest
from test_trace import assert_traced

import einsum_engine as engine
from einsum_engine import traced
from einsum_engine.program_route import NoPlan

X = np.random.default_rng(1).random((4, 5)) * 8 - 3
DTYPES = {
    **{name: X.astype(name) for name in ("f8", "f4", "i4", "i8", "?")},
    "u1": (abs(X) * 20).astype("u1"),
    "c16": X + 1j * X[::-1],
    "F": np.asfortranarray(X),
}
REAL, NUMBERS, WHOLE = ("f8", "f4", "i4", "u1", "F"), ("f8", "f4", "i4", "u1", "c16", "F"), ("i4", "i8", "u1")
ALL = tuple(DTYPES)

# Name -> (dtypes, function of one array of shape (4, 5)).
FUNCTIONS = {
    "running sums": (ALL, lambda x: (np.cumsum(x, -1), x.cumsum(), np.cumprod(x[:2], 0), np.add.accumulate(x, axis=1))),
    "running extremes": (REAL, lambda x: (np.maximum.accumulate(x), np.minimum.accumulate(x, -1), x[:, :0].cumsum())),
    "running sums of one axis": (
        REAL,
        lambda x: (
            *(np.cumulative_sum(x[0]), np.cumulative_prod(x, axis=1)),
            np.cumulative_sum(x, axis=0, include_initial=True),
        ),
    ),
    "running sums without NaN": (NUMBERS, lambda x: (np.nancumsum(x / x[0], 1), np.nancumprod(x[:2]), np.nancumsum(x))),
    "spread": (
        NUMBERS,
        lambda x: (np.var(x, correction=1), np.std(x, 0, correction=2), np.var(x, 1, keepdims=True), x.std(ddof=1)),
    ),
    "those that hold": (
        ALL,
        lambda x: (np.compress([1, 0, 1], x, 0), np.compress([0, 1, 1], x), np.extract(np.eye(4, 5) > 0, x)),
    ),
    "among others": (ALL, lambda x: (np.isin(x, x[0]), np.isin(x[0, 0], [1, 0]), np.isin(x, [], invert=True))),
    "of other shapes": (
        ALL,
        lambda x: (
            *np.atleast_3d(x, x[0], x[0, 0], x[None]),
            *(np.resize(x, (3, 11)), np.resize(x, 4), np.resize(x[:0], 2)),
        ),
    ),
    "of other dtypes": (
        NUMBERS,
        lambda x: (np.astype(x, np.complex64), np.astype(x, x.dtype), np.astype(x, "c16", copy=False)),
    ),
    "places of triangles": (ALL, lambda x: (x[np.tril_indices_from(x)], x[np.triu_indices_from(x, 1)])),
    "halves exchanged": (
        ALL,
        lambda x: (np.fft.fftshift(x), np.fft.ifftshift(x), np.fft.fftshift(x, 1), np.fft.ifftshift(x, (0, -1))),
    ),
    "correlation": (
        NUMBERS,
        lambda x: [
            np.correlate(a, v, mode) for a, v in ((x[0], x[1, :4]), (x[0, :2], x[1])) for mode in ("full", "valid", "same")
        ],
    ),
    "trapezoid": (NUMBERS, lambda x: (np.trapezoid(x), np.trapezoid(x, dx=0.5, axis=0), np.trapezoid(x, x[0]))),
    "gradient": (NUMBERS, lambda x: (np.gradient(x), np.gradient(x, 2, 3, edge_order=2), np.gradient(x, 0.5, axis=1))),
    "gradient of coordinates": (
        ("f8", "i4"),
        lambda x: [np.gradient(x, np.arange(4) ** 2.0, axis=0, edge_order=order) for order in (1, 2)],
    ),
    "differences": (NUMBERS, lambda x: (np.diff(x, prepend=0), np.diff(x, axis=0, append=x[:1]), np.ediff1d(x))),
    "grids": (ALL, lambda x: (*np.meshgrid(x[0], x[:, 0]), *np.meshgrid(x[0], x[1], x[0, :2], indexing="ij"))),
    "sparse grids": (("f8",), lambda x: np.meshgrid(x[0], x[:, 0], sparse=True)),
    "made": (
        ALL,
        lambda x: (
            *(np.zeros(3, like=x), np.ones((2, 3), "f4", like=x), np.arange(4, like=x), np.full(2, 3, like=x)),
            *(np.array([x[0], x[1]], like=x), np.asarray([x[0, 0], 1.5], like=x), np.eye(3, like=x)),
        ),
    ),
    "linspace": (
        NUMBERS,
        lambda x: (np.linspace(x[0, 0], x[1, 1], 5), np.linspace(0, x[0], 4, False), np.linspace(0, x[0], 1)),
    ),
    "joins": (ALL, lambda x: (np.append(x, x), np.append(x[0], 1), np.column_stack([x, x[:, 0]]), np.dstack([x, x]))),
    "blocks": (ALL, lambda x: (np.block([[x, x], [x, x]]), np.block([x[0], x[1]]), np.kron(x[:2], x[:, :2]))),
    "cut": (ALL, lambda x: (np.delete(x, [0, 2], 1), np.insert(x, 1, 0, 0), np.array_split(x, 3))),
    "turned": (ALL, lambda x: (*(np.rot90(x, k) for k in range(-1, 3)), np.fliplr(x), np.flipud(x), np.rollaxis(x, 1))),
    "rolled": (ALL, lambda x: (np.roll(x, (1, -7), (0, 1)), np.roll(x, 2, 1), np.roll(x, 3), np.roll(x, 0, 0))),
    "padded": (ALL, lambda x: [np.pad(x, ((3, 1), (2, 7)), mode) for mode in ("edge", "wrap", "reflect", "symmetric")]),
    "means": (NUMBERS, lambda x: (np.average(x), np.average(x, 0, np.arange(4)), np.average(x, 1, returned=True))),
    "covariance": (NUMBERS, lambda x: (np.cov(x), np.cov(x, rowvar=False), np.cov(x[0], x[1]), np.corrcoef(x))),
    "order": (
        REAL,
        lambda x: (np.ptp(x, 0), np.median(x), np.median(x, 1, keepdims=True), np.quantile(x, 0.3, axis=0)),
    ),
    "places": (REAL, lambda x: (np.searchsorted(np.sort(x[0]), x, "right"), np.digitize(x, [-1.0, 0, 2]))),
    "interpolation": (
        REAL,
        lambda x: (np.interp(x, [-1, 0, 2.0], [0, 5, 1.0]), np.interp(x[0, 0], [0, 1], [2, 3], -9)),
    ),
    "filled": (ALL, lambda x: (np.fill_diagonal(x, 1), np.put(x, [1, 2], [0, 1]), np.putmask(x, x == 1, 0), x.copy())),
    "flat": (ALL, lambda x: (x.flat.__setitem__(slice(None, None, 6), 1), x.flat[::2], x.flat[3], len(x.flat))),
    "convolution": (NUMBERS, lambda x: [np.convolve(x[0], x[1, :4], mode) for mode in ("full", "same", "valid")]),
    "matrices": (
        NUMBERS,
        lambda x: (
            *(np.linalg.matrix_power(x[:4, :4], 3), np.linalg.tensordot(x, x)),
            np.linalg.multi_dot([x[:, 0], x, x[0]]),
        ),
    ),
    "vectors": (
        NUMBERS,
        lambda x: (np.cross(x[:, :3], x[::-1, :3]), np.linalg.cross(x[:, :3], x[:, 1:4]), np.vecdot(x, x[::-1])),
    ),
    "norms": (
        NUMBERS,
        lambda x: (
            *(np.linalg.norm(x[0], 1), np.linalg.norm(x, np.inf, axis=1), np.linalg.norm(x, "fro")),
            np.linalg.matrix_norm(x),
        ),
    ),
    "choices": (
        NUMBERS,
        lambda x: (np.select([x == 1, x != 0], [x, x * 2], 5), np.choose((x == 0).astype(int), [x, 1])),
    ),
    "pieces": (NUMBERS, lambda x: (np.piecewise(x, [x == 0, x != 0], [5, lambda v: v * 2]), np.polyval([1, 2], x))),
    "equal in value": (ALL, lambda x: [np.where(np.array_equiv(x, other), x, 3) for other in (x[:1], x, x * 1, [1, 2])]),
    "nan": (REAL, lambda x: (np.nansum(x), np.nanmax(x, 0), np.nanmean(x), np.nan_to_num(x), np.isclose(x, x[0]))),
    "complex": (
        ALL,
        lambda x: (np.isreal(x), np.iscomplexobj(x), np.angle(x) if x.dtype != np.uint8 else 0, x.imag + 1),
    ),
    "functions": (
        ("f8", "f4", "i4"),
        lambda x: (np.arctan2(x, 2), np.log2(abs(x) + 1), np.sinh(x), np.copysign(x, -1), np.logaddexp2(x, 1)),
    ),
    "functions of complex": (
        ("c16",),
        lambda x: (np.log(x + 1), np.arcsin(x), x ** (1 + 2j), x**3, np.sign(x), np.argmax(x), np.maximum(x, 1)),
    ),
    "expanded": (REAL, lambda x: (np.hypot(x, 2), np.fmax(x, 1), np.deg2rad(x), np.modf(x), np.float_power(abs(x), 2))),
    "vander": (NUMBERS, lambda x: (np.vander(x[0]), np.vander(x[0], 3, increasing=True), np.sinc(x.real), x**2)),
    "under a mask": (
        NUMBERS,
        lambda x: (
            np.sum(x, where=x != 0),
            np.mean(x, 0, where=x != 0),
            np.max(x.real, initial=2),
            np.sum(x, initial=3),
        ),
    ),
    "reductions": (WHOLE, lambda x: (np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x, 1), np.subtract.reduce(x))),
    "segments": (NUMBERS, lambda x: (np.add.reduceat(x, [0, 3, 1]), np.true_divide.reduce(x + 10, axis=1))),
    "clipped places": (ALL, lambda x: (np.take(x, [9, -9], 1, mode="clip"), np.take(x, [9, -9], 0, mode="wrap"))),
    "places along an axis": (
        ALL,
        lambda x: (
            np.take_along_axis(x, np.array([[0, -1]]), 1),
            np.take_along_axis(x, np.array([[3, 0, -1, 1, 0]]), 0),
            np.take_along_axis(x, np.array([7, -1]), None),
            np.put_along_axis(x, (x.real == 0).argmax(1, keepdims=True), x[:, :1] * 0 + 1, 1),
            np.put_along_axis(x, np.array([[0], [1], [2], [-1]]), 0, 1),
            np.put_along_axis(x, np.array([8, 1]), [0, 1], None),
            x.put([3, -4], 1),
            x.copy(),
        ),
    ),
    "running extremes turned": (REAL, lambda x: (np.cumsum(x.T, 1), np.maximum.accumulate(x.T, 1))),
    "spread in a dtype": (
        NUMBERS,
        lambda x: (np.var(x, 0, dtype="f8"), x.std(dtype="f4"), np.var(x, 1, "c16"), np.mean(x, 0, "f4")),
    ),
    "order along several axes": (
        ("f8", "i4", "u1", "F"),
        lambda x: (
            *(np.median(x, (0, 1)), np.median(x, (-1,), keepdims=True), np.median(x.reshape(2, 2, 5), axis=(2, 0))),
            np.quantile(x, [[0.2, 0.5], [0.7, 1.0]], axis=0),
            np.percentile(x.reshape(2, 2, 5), [[30, 60.0]], axis=(0, -1), keepdims=True),
        ),
    ),
    "filled with arrays": (
        ALL,
        lambda x: (np.full_like(x, x[0]), np.full_like(x, [[2]], shape=(2, 3)), np.full((2, 5), x[1], like=x)),
    ),
    "sorted in place": (REAL, lambda x: (x.sort(kind="stable"), x.copy(), x.sort(0, stable=True), x.copy())),
    "copies": (
        ALL,
        lambda x: [one.fill(1) or one for one in (copy.copy(x), copy.deepcopy(x), np.array(x, like=x))] + [x],
    ),
    "padded by axis": (ALL, lambda x: (np.pad(x, {0: 1, -1: (0, 2)}), np.pad(x, {1: (1, 0)}, "edge"))),
    "joined in a dtype": (
        NUMBERS,
        lambda x: (np.concatenate([x, x], dtype="c8"), np.vstack([x, x], dtype="i2", casting="unsafe")),
    ),
    "added at places": (
        ALL,
        lambda x: (np.add.at(x, [0, 0, 1], x[1]), np.add.at(x, (0, [1, 1]), x.dtype.type(3)), x.copy()),
    ),
    "powers of bool": (("?",), lambda x: (x**2, x**3, np.square(x), x**0.5)),
}


def test_what_nobody_knows_before_the_function_runs():
    with pytest.raises(engine.EngineTypeError, match="nobody knows how many"):
        engine.jit(lambda x: np.compress(x[0] > 0, x, 1))(X)
    with pytest.raises(engine.EngineValueError, match="two names of one number"):
        engine.jit(lambda x: np.var(x, ddof=1, correction=1))(X)
    with pytest.raises(engine.EngineValueError, match="2 axes"):
        engine.jit(lambda x: np.cumulative_sum(x))(X)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_numpy_s_for_each_dtype(name, monkeypatch):
    """The program, interpreted: kernels have tests of their own."""
    monkeypatch.setattr(traced, "make_route", lambda *args: NoPlan(why="asked for"))
    kinds, function = FUNCTIONS[name]
    for kind in kinds:
        assert_traced(function, DTYPES[kind])


def masked(a):
    """Elements under a mask go through element-wise work and back; the same comparison may be written twice."""
    a[a > 0.5] += 1
    a[a > 1.2] = a[a > 1.2] ** 2
    m = a < 0.3
    a[m] *= a.mean()
    b = np.zeros_like(a)
    b[m] = 2 * np.sqrt(abs(a[m])) - a.max()
    rows = a[:, 0] > 0
    a[rows] = a[rows] * np.float32(2)
    return b, a[m].sum(), a[m].mean(), (a[~m] > 1).any(), np.prod(a[m]), a[rows].sum()


def components(a):
    """The real part is a view: it sees what is written later."""
    part, c = a.real, a + 1
    a *= 2
    return part + 1, a.imag.T * 2, a.sum().real, abs(c.real)


def steps(a):
    return np.cumsum(a), np.pad(a, 1, "edge"), np.roll(a, (1, 2), (0, 1)), np.gradient(a)


@pytest.mark.parametrize("function, x", [(masked, X), (components, X + 1j), (steps, X), (steps, X[::2, ::-1])])
def test_with_a_plan(function, x):
    jitted = assert_traced(function, x)
    assert jitted.plan(x.copy()) is not None


def fill(a):
    out = np.zeros(3)
    out[0] = a.sum()
    return out


REFUSALS = {
    "result": (lambda a: a[a > 1], "a result", "a[mask] = b[mask] + 1"),
    "len": (lambda a: len(a[a > 1]), "len()", "depends on data"),
    "max": (lambda a: a[a > 1].max(), ".max", "depends on data"),
    "other mask": (lambda a: a.__setitem__(a > 1, a[a < 1]), "under another mask", "traced bool[4,5]"),
    "more elements": (lambda a: a[0] + a[a > 1], "np.add", "depends on data"),
    "fill": (fill, "float() of a traced float64[]", "np.zeros(..., like=x)"),
    "attribute": (lambda a: a.tobytes(), ".tobytes of a traced float64[4,5]", "not supported"),
    "format": (lambda a: f"{a.sum():.2f}", "unsupported format string", "not supported of a traced array"),
    "zeros": (lambda a: np.zeros(a[0, 0].astype(int)), "traced int64[]", "not supported of a traced array"),
    "round": (lambda a: round(a.sum()), "round() of a traced float64[]", "np.rint"),
    "foreign": (lambda a: a + type("Foreign", (), {"__dlpack__": None})(), "np.add", "an operand has type Foreign"),
    "component": (lambda a: (a + 1j).real.__setitem__(0, 1), "assignment to an index", "write the complex value"),
    "quantile": (lambda a: np.median(a + 1j), "np.median", "complex128 have no meaning"),
    "flag as an index": (lambda a: a[True], "True is no index of a traced array", "None adds an axis"),
    "cube of observations": (lambda a: np.cov(a[None]), "np.cov", "at most two axes"),
    "powers of a matrix": (lambda a: np.vander(a), "np.vander", "shape (4, 5)"),
    "view": (lambda a: a.view("i8"), ".view()", "operands float64[4,5]", "not supported"),
    "reshape": (lambda a: a.reshape(7), ".reshape()", "cannot reshape 20 elements into shape (7,)"),
    "shape of another": (lambda a: np.zeros_like(a, shape=-1), "np.zeros_like", "shape (-1,)"),
    "copyto": (lambda a: np.copyto(a.astype(int), 1.5), "np.copyto", "from float64 to int64 with casting rule"),
    "copyto flags": (lambda a: np.copyto(a > 0, 3), "np.copyto", "from int64 to bool"),
    "insert": (lambda a: np.insert(a.astype("u1"), 0, 300), "np.insert", "300 does not fit uint8"),
    "choose": (lambda a: np.choose(a, [a, a]), "np.choose", "integers, not float64"),
    "axes of places": (lambda a: np.put_along_axis(a, np.array([1]), 0, 1), "np.put_along_axis", "indices of shape (1,)"),
    "positive": (lambda a: +(a > 0), "np.positive", "no meaning for bool"),
    "order": (lambda a: np.add(a, a, order="F"), "np.add", "argument 'order'", "not supported"),
    "initial": (lambda a: np.fmax.reduce(a, initial=3), "np.fmax.reduce", "argument 'initial'", "not supported"),
    "axes": (lambda a: np.matmul(a, a, axes=[(0, 1), (1, 0), (0, 1)]), "np.matmul", "argument 'axes'"),
    "argument of a method": (lambda a: a.astype("f4", foo=1), ".astype()", "argument 'foo'", "not supported"),
    "join": (lambda a: np.concatenate([a, a], dtype="i1"), "np.concatenate", "from float64 to int8", "'same_kind'"),
    "stack": (lambda a: np.stack([a, a], dtype="f4", casting="safe"), "np.stack", "from float64 to float32", "'safe'"),
    "filled": (lambda a: np.full_like(a, [1, 2]), "np.full_like", "shape (2,) does not broadcast to (4, 5)"),
    "whole": (lambda a: np.add.at(a.astype("i4"), [0, 0], 0.5), "np.add.at", "sums of float64, each cast to int32"),
    "flags": (lambda a: np.add.at(a > 0, [0, 0], 1), "np.add.at", "sums of int64, each cast to bool"),
    "accumulate": (lambda a: np.subtract.accumulate(a), "np.subtract.accumulate", "operands float64[4,5]"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_operation_and_line(name):
    function, *texts = REFUSALS[name]
    with pytest.raises(engine.EngineError) as caught:
        engine.jit(function)(X.copy())
    assert [text for text in (*texts, f"{__file__}:") if text not in str(caught.value)] == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "f8"), ("f2", "i8"), ("i8", "f8"), ("u1", "i8")], ids=str)
def test_places_where_nan_comes_last(dtypes, side):
    pool = (-np.inf, -0.0, 1, 2, np.inf, np.nan, np.nan)
    x, y = (np.array([v for v in pool if np.isfinite(v) and v >= 0 or d[0] == "f"], d) for d in dtypes)
    for a in (x, x[:-2], x[-1:]):
        function = lambda a, y: (np.searchsorted(a, y, side), np.digitize(y, np.unique(x), side == "right"))  # noqa: E731
        pairs = zip(engine.jit(function)(a, y), function(a, y), strict=True)
        assert all(one.dtype == two.dtype and np.array_equal(one, two) for one, two in pairs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", "?"])
def test_middle_elements_beside_infinite_ones(dtype):
    pool = (-np.inf, np.inf, np.nan, -0.0, 1, 2, 3.5) if dtype[0] == "f" else (0, 1, 255, 3, 100)
    functions = (
        lambda x: (np.median(x), np.median(x, 0), np.median(x, 1, keepdims=True)),
        lambda x: [np.quantile(x, q, axis=1) for q in (0, 1, [0, 1], 0.0, 0.3)] if dtype != "?" else x,
    )
    for size in (1, 2, 3, 4, 5):
        x = np.random.default_rng(size).choice(pool, (40, size)).astype(dtype)
        for function in functions:
            for one, two in zip(engine.jit(function)(x), function(x), strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-3 if dtype == "f2" else 1e-6)
                assert one.dtype == two.dtype


@pytest.mark.parametrize("dtype", ["i1", "i8", "u1"])
@pytest.mark.parametrize("wrong", [2, 100, -1])
def test_an_entry_without_a_choice_is_an_error_of_the_call(wrong, dtype):
    chosen = engine.jit(lambda x: np.choose(x, [x * 2, x - 1]))
    index = np.array([0, 1, 1, 0], dtype)
    assert np.array_equal(chosen(index), chosen.function(index))
    index[2] = np.array(wrong).astype(dtype)
    with pytest.raises(ValueError, match="invalid entry"):
        chosen.function(index)
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 2"):
        chosen(index)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "i8", "f4"])
@pytest.mark.parametrize("bounds", [(-1, 300), (None, 2**70), (-(2**70), None), (2, 2**40), (-200, 1)], ids=str)
def test_bounds_that_no_element_reaches_do_not_clip(bounds, dtype):
    x = np.array([0, 1, 2, 5, 100], dtype)
    functions = lambda x: np.clip(x, *bounds), lambda x: x.clip(min=bounds[0], max=bounds[1])  # noqa: E731
    for function in functions:
        wanted, found = function(x), engine.jit(function)(x)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted) and not np.shares_memory(found, x)


def test_a_number_has_an_axis_for_argmax():
    found = engine.jit(lambda x: (np.argmax(x, keepdims=True), np.argmin(x, axis=0), np.argmax(x, axis=-1, keepdims=True)))
    wanted = found.function(np.float64(3))
    assert [(type(one), one) for one in found(np.float64(3))] == [(type(one), one) for one in wanted]


def test_the_order_of_a_number_has_an_axis():
    found = engine.jit(lambda x: np.argsort(x))(np.float64(3))
    assert found.shape == (1,) and found[0] == 0 and np.argsort(np.float64(3)).shape == (1,)


NUMBERS_AND_AXES = {
    "reductions": lambda x: (np.add.reduce(x), np.sum(x, axis=0, keepdims=True), np.max(x, axis=-1), x.all(axis=0)),
    "rounding": lambda x: (np.round(x), x.round(1)),
    "padding": lambda x: [np.pad(x, 0, mode) for mode in ("constant", "edge", "wrap", "reflect", "symmetric")],
    "contractions": lambda x: (np.einsum("...->", x), np.einsum("...->...", x), engine.einsum("->", x)),
    "products": lambda x: (np.vdot(x, x), np.allclose(x, x)),
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?", "c16"])
@pytest.mark.parametrize("name", NUMBERS_AND_AXES)
def test_numbers_are_reduced_rounded_and_padded_to_what_numpy_gives(name, dtype):
    function = NUMBERS_AND_AXES[name]
    for x in (np.dtype(dtype).type(1), np.array(1, dtype)):
        if dtype == "?" and name == "rounding":
            function = lambda x: (np.round(x),)  # noqa: E731  NumPy refuses decimals of bool
        wanted, found = function(x), engine.jit(function)(x)
        for one, two in zip(wanted, found, strict=True):
            assert one == two and np.shape(one) == np.shape(two)
            assert type(one) is type(two) or (type(one), type(two)) == (bool, np.bool)  # np.allclose is a traced bool


@pytest.mark.parametrize("dtype", ["f8", "i4", "?", "c16"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 3, 4)])
@pytest.mark.parametrize("way", ["ravel('C')", "ravel('F')", "T.ravel('F')", "conj()", "conjugate()"])
def test_memory_is_shared_where_numpy_shares_it(way, shape, order, dtype):
    def seen(x):
        return eval(f"x.{way}", {"x": x})

    def through(x):
        seen(x)[...] = 1

    def afterwards(x):
        y = seen(x)
        x[...] = 0
        return y

    for function in (through, afterwards):
        eager, given = (np.full(shape, 2, dtype, order=order) for _ in range(2))
        wanted, shares = function(eager), np.shares_memory(seen(eager), eager)
        try:
            found = engine.jit(function)(given)
        except engine.EngineError as error:  # no view of a root in C order has this one's elements in order
            assert "NumPy would share its memory" in str(error) and order == "F" and len(shape) > 1 and shares
            continue
        assert np.array_equal(eager, given)
        assert wanted is None or (np.array_equal(wanted, found) and np.shares_memory(found, given) == shares)


@pytest.mark.parametrize("mode", ["constant", "edge", "wrap", "reflect", "symmetric"])
@pytest.mark.parametrize("width", [0, 2])
def test_a_padded_array_is_in_the_order_of_the_array(width, mode):
    """What is written through `.reshape` shows it: of Fortran order it is a copy."""

    def written(x):
        y = np.pad(x, width, mode)
        y.reshape(-1)[1::2] += 1
        return y

    for x in (X, X.T, np.asfortranarray(X), X[::2], X[:, ::2].T, X[:, :1]):
        assert np.array_equal(engine.jit(written)(x), written(x))


MANY_AXES = {
    "maps": lambda x: (x + 1, x * x.T, np.where(x > 2, x, 0), np.maximum(x, x[..., :1])),
    "reductions": lambda x: (x.sum(3), x.max((0, -1)), x.T.sum(0), x.mean(-2)),
    "moved": lambda x: (np.roll(x, 1), np.concatenate((x, x), -1), x[..., np.array([1, 0])], x.T[::-1].copy()),
    "regions": lambda x: engine.cond(x.sum() > 0, lambda: x * 2, lambda: x),
    "written": lambda x: x.__setitem__((0, 0, 0), x[0, 0, 0] * 2),
}


@pytest.mark.parametrize("rank", [32, 33, 40, 63])
@pytest.mark.parametrize("name", MANY_AXES)
def test_as_many_axes_as_numpy_has(name, rank):
    x = np.arange(12.0).reshape((1,) * (rank - 3) + (2, 3, 2))
    assert_traced(MANY_AXES[name], x)
    assert engine.jit(MANY_AXES[name]).plan(x.copy()) is not None


def written_flat(x):
    x.flat[1::3] = x.flat[:4] * 2
    np.put(x, [0, 5, 7], x[1, :3])
    x.flat[2] = 9
    return x.sum()


def read_flat(x):
    """What is read in C order inside of a function keeps nobody from writing the array later."""
    y = x.T
    found = np.argmax(y), np.repeat(y, 2), np.vdot(y, y), np.cumsum(y), y.flat[3], np.take(y, [1, 2]), np.sort(y, None)
    x[1:] = x[:-1] + 1
    x.T[0] = 3
    return found


@pytest.mark.parametrize("function", [written_flat, read_flat])
def test_elements_in_c_order_of_arrays_in_any(function):
    whole = np.arange(48.0).reshape(6, 8)
    layouts = {
        "C": lambda x: x[:3, :4].copy(),
        "F": lambda x: x[:3, :4].copy(order="F"),
        "reversed": lambda x: x[:3, :4][::-1, ::-1],
        "steps": lambda x: x[::2, ::2],
        "columns": lambda x: x.T[:3, :4],
    }
    for layout in layouts.values():
        one, two = whole.copy(), whole.copy()
        eager, given = layout(one), layout(two)
        wanted, found = function(eager), engine.jit(function)(given)
        np.testing.assert_equal(found, wanted)
        np.testing.assert_array_equal(given, eager)
        np.testing.assert_array_equal(two, one)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_numbers_are_preferred_to_nan(dtype):
    """All that NaN may be in: either part of a complex number, either operand, both, a whole row."""
    parts = (np.nan, -np.inf, np.inf, -1.0, -0.0, 2.0)
    pool = np.array(parts) if dtype[0] == "f" else np.array([complex(x, y) for x in parts for y in parts])
    x, y = (a.astype(dtype) for a in np.meshgrid(pool, pool))
    x[2], y[3] = np.nan, y[3, ::-1]
    functions = (
        lambda x, y: (np.fmax(x, y), np.fmin(x, y)),
        lambda x, y: [f(z, axis=axis) for f in (np.nanmax, np.nanmin) for z in (x, y) for axis in (None, 0)],
        lambda x, y: [np.isnan(f(x, axis=1)) for f in (np.nanmax, np.nanmin)],
    )
    for function in functions:
        np.testing.assert_equal(engine.jit(function)(x, y), function(x, y))
