"""`einsum` means what ``np.einsum(optimize=False)`` means: values, dtypes, views, order, casting, out=, errors."""

import itertools

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.dtypes import DTYPES

SIZES = dict(zip("abcdefghijklmnop", (3, 4, 2, 5, 1, 3, 2, 4, 6, 3, 5, 2, 4, 3, 2, 5)))

EXPRESSIONS = [
    *("a->a", "a->", "ab->ba", "ab->a", "ab->b", "ab->", "abc->cab", "abc->b", "abc->ca", "->"),
    *("aa->a", "aa->", "aba->ab", "aba->b", "aab->ba", "abab->ab", "abab->a", "abab->", "aaa->a"),
    *("a,a->", "a,a->a", "a,b->ab", "a,b->ba", "a,b->", "a,b->a", "ab,->ba", ",->", ",a->a"),
    *("ab,bc->ac", "ab,bc->ca", "ab,cb->ac", "ba,cb->ca", "ab,b->a", "ab,ab->", "ab,ab->ba", "ab,ba->ab"),
    *("abc,bcd->ad", "abc,dcb->da", "abcd,bd->ca", "abc,acd->abd", "abc,cda->bad", "iab,icb->aci", "abi,cbi->iac"),
    *("ab,cd->abcd", "ab,cd->dbca", "abc,abd->bcd", "abc,ade->", "abx,bcx->ac", "abc,d->bd", "aab,bc->ac"),
    "aab,bbc->ac",
    *("ab,bc,cd->ad", "ab,bc,cd->da", "ab,ac,ad->bcd", "ab,ab,ab->a", "a,b,c->cab", "ab,bc,ca->", "ab,c,cd,b->da"),
    *("abc,cd,de,bf->aef", "ab,bc,cd,de,ef->fa", "aeb,ed->abd", "ae,eb->ab", "ab,bc", "ba", "aa", "ab,ca", "ab,ab"),
    *("...,...->...", "...a,...b->...ab", "...ab,...bc->...ac", "a...,b...->...ab", "...a->...", "a...->...a"),
    "...a,a",
]


def shape_of(term, ellipsis):
    names = term.replace("...", "")
    shape = tuple(SIZES.get(name, 7) for name in names)
    if "..." not in term:
        return shape
    at = term.index("...")
    return shape[:at] + ellipsis + shape[at:]


def values(rng, shape, dtype, full=False):
    """Random values; of integers small ones, or of the full range."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if full else (max(info.min, -4), 4)
        return rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "O":
        box = np.empty(shape, object)
        box[...] = rng.integers(-9, 9, shape)
        return box
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def operands_for(expression, rng, dtype="float64", full=False, ellipsis=((2, 3), (3,), (2, 1))):
    terms = expression.partition("->")[0].split(",")
    shapes = [shape_of(term, ellipsis[number % len(ellipsis)]) for number, term in enumerate(terms)]
    return [values(rng, shape, dtype, full) for shape in shapes]


def wide(array):
    kinds = {"f": np.longdouble, "c": np.clongdouble}
    return array.astype(kinds.get(array.dtype.kind, array.dtype))


def assert_like_numpy(result, expression, operands, **options):
    """``result`` has the type, dtype and shape of NumPy's, and its values up to rounding."""
    expected = np.einsum(expression, *operands, optimize=False, **options)
    assert type(result) is type(expected), expression
    if np.ndim(expected) or isinstance(expected, np.generic):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape), expression
    kind = np.asarray(expected).dtype.kind
    if kind in "iubO":
        assert np.array_equal(result, expected), expression
        return
    exact = np.einsum(expression, *map(wide, operands), optimize=False)
    size = np.einsum(expression, *[abs(wide(operand)) for operand in operands], optimize=False)
    points = np.prod([2, *(SIZES.get(name, 7) for name in set(expression) if name.isalpha())], dtype=float)
    bound = 4 * points * np.finfo(np.asarray(expected).dtype).eps * size
    assert np.all(abs(result - exact) <= bound + np.finfo(np.asarray(expected).dtype).tiny), expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_float64(expression):
    operands = operands_for(expression, np.random.default_rng(0))
    assert_like_numpy(engine.einsum(expression, *operands), expression, operands)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_dtypes(dtype):
    rng = np.random.default_rng(1)
    for expression in ("ab,bc->ac", "abc,acd->abd", "ab,ab->", "a,b->ba", "ab->b", "abab->ab", "ab,bc,cd->da", "aa->"):
        for full in (False, True) if np.dtype(dtype).kind in "iu" else (False,):
            operands = operands_for(expression, rng, dtype, full)
            assert_like_numpy(engine.einsum(expression, *operands), expression, operands)


MIXED = [
    *(("float32", "float64"), ("float32", "complex64"), ("float64", "complex64"), ("int8", "float32")),
    ("bool", "int8"),
    *(("int32", "float32"), ("uint8", "int8"), ("uint64", "int64"), ("float16", "float32"), ("int16", "complex64")),
    *(("bool", "float64"), ("float16", "int8"), ("longdouble", "float32"), ("object", "int64")),
    ("complex128", "float32"),
]


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_mixed_dtypes(dtypes):
    rng = np.random.default_rng(2)
    for expression, (left, right) in itertools.product(("ab,bc->ac", "a,b->ab", "ab,ab->a"), (dtypes, dtypes[::-1])):
        shapes = [shape_of(term, ()) for term in expression.partition("->")[0].split(",")]
        operands = [values(rng, shapes[0], left), values(rng, shapes[1], right)]
        assert_like_numpy(engine.einsum(expression, *operands), expression, operands)


def test_interleaved_form():
    rng = np.random.default_rng(3)
    a, b = rng.random((2, 3, 4)), rng.random((4, 3))
    for call in (
        (a, [0, 1, 2], b, [2, 1], [0]),
        (a, [5, 1, 2], b, [2, 7]),
        (a, [Ellipsis, 1], b, [1, 0]),
        (a, [0, Ellipsis], [Ellipsis, 0]),
        (a, (np.int64(3), 1, 2)),
    ):
        assert np.allclose(engine.einsum(*call), np.einsum(*call, optimize=False))


def test_integers_are_sorted_by_value():
    a = np.arange(6.0).reshape(2, 3)
    assert engine.einsum(a, [100, 20]).shape == (3, 2)
    assert engine.einsum(a, [100, 20], a, [5, 20]).shape == (2, 2)
    assert engine.einsum(a, [-1, 20], a.T, [20, 1000000]).shape == (2, 2)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_lists_scalars_and_subclasses():
    assert engine.einsum("i,i->", [1, 2, 3], (4, 5, 6)) == 32
    assert engine.einsum(",->", 2, 3.5) == 7.0
    assert engine.einsum("i->", range(4)) == 6
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    result = engine.einsum("ij,jk->ik", matrix, matrix)
    assert type(result) is np.ndarray and np.array_equal(result, matrix @ matrix)
    assert engine.einsum(np.str_("ij->ji"), np.ones((2, 3))).shape == (3, 2)


# ---- views, scalars, memory order -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression", ["ab->ba", "ab->ab", "ab", "aa->a", "aba->ba", "abab->ba", "...a->a...", "a...->a...", "abc->acb"]
)
def test_views_are_those_of_numpy(expression):
    (a,) = operands_for(expression, np.random.default_rng(4), ellipsis=((2, 3),))
    for operand in (a, a[::-1], a.astype(">f8"), np.asfortranarray(a), a.astype(object)):
        for _ in range(3):
            result, expected = engine.einsum(expression, operand), np.einsum(expression, operand)
            assert np.shares_memory(result, operand)
            assert result.strides == expected.strides and result.dtype == expected.dtype
            assert result.__array_interface__["data"] == expected.__array_interface__["data"]
            assert result.flags.writeable
    result = engine.einsum(expression, a)
    result[...] = -1.0
    assert (np.einsum(expression, a) == -1.0).all()


def test_read_only_operand_gives_a_read_only_view():
    a = np.ones((3, 3))
    a.flags.writeable = False
    assert not engine.einsum("ij->ji", a).flags.writeable
    assert not engine.einsum("ii->i", a).flags.writeable
    assert engine.einsum("ij,jk->ik", a, a).flags.writeable


def test_views_beyond_the_letters_of_numpy():
    indices = [*range(100, 130), *range(100, 130)]
    a = np.arange(2.0 ** 2).reshape([2, *[1] * 29, 2, *[1] * 29])
    result = engine.einsum(a, indices, list(range(129, 99, -1)))
    assert result.shape == (*[1] * 29, 2) and np.array_equal(result.ravel(), [0.0, 3.0])
    assert np.shares_memory(result, a)


def test_copy_makes_it_fresh():
    a = np.arange(9.0).reshape(3, 3)
    for expression in ("ij->ji", "ij->ij", "ii->i"):
        result = engine.einsum(expression, a, copy=True)
        assert not np.shares_memory(result, a) and result.flags.c_contiguous
        assert np.array_equal(result, np.einsum(expression, a))


def test_dtype_is_honoured_where_numpy_returns_a_view():
    a = np.arange(6.0).reshape(2, 3)
    result = engine.einsum("ij->ji", a, dtype=complex)
    assert result.dtype == np.complex128 and not np.shares_memory(result, a) and np.array_equal(result, a.T)
    assert np.shares_memory(engine.einsum("ij->ji", a, dtype=float), a)
    with pytest.raises(TypeError, match="float64.*float32.*safe"):
        engine.einsum("ij->ji", a, dtype="float32")


def test_results_without_axes_are_scalars():
    a = np.arange(3.0)
    for result in (engine.einsum("i,i->", a, a), engine.einsum("i->", a), engine.einsum("->", np.array(2.0))):
        assert type(result) is np.float64
    assert type(engine.einsum("i->", np.array([1, 2], object))) is int
    out = np.zeros(())
    assert engine.einsum("i,i->", a, a, out=out) is out and out == 5.0


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "c"])
def test_memory_order(order):
    rng = np.random.default_rng(5)
    a, b = rng.random((3, 4)), rng.random((4, 5))
    fortran = np.asfortranarray
    for left, right in ((a, b), (fortran(a), fortran(b)), (fortran(a), b), (a[0], b), (a[:, ::-1], b)):
        expression = "ij,jk->ik" if left.ndim == 2 else "j,jk->jk"
        result = engine.einsum(expression, left, right, order=order)
        expected = np.einsum(expression, left, right, order=order, optimize=False)
        assert np.allclose(result, expected)
        assert order == "K" or result.strides == expected.strides


def test_default_order_is_c():
    a = np.asfortranarray(np.ones((3, 4)))
    assert engine.einsum("ij,jk->ik", a, a.T).flags.c_contiguous
    assert engine.einsum("ij,kl->iljk", a, a).flags.c_contiguous


# ---- dtype= and casting= -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
def test_dtype_and_casting(casting):
    rng = np.random.default_rng(6)
    names = ("bool", "int8", "uint8", "int32", "float32", "float64", "complex64")
    for left, right, wanted in itertools.product(names, ("int8", "float32", "complex64"), (*names, None)):
        a, b = values(rng, (3, 4), left), values(rng, (4, 2), right)
        options = {"dtype": wanted, "casting": casting}
        try:
            with np.errstate(all="ignore"):
                expected = np.einsum("ij,jk->ik", a, b, optimize=False, **options)
        except TypeError:
            with pytest.raises(TypeError, match="cast"):
                engine.einsum("ij,jk->ik", a, b, **options)
            continue
        result = engine.einsum("ij,jk->ik", a, b, **options)
        assert result.dtype == expected.dtype
        assert np.allclose(result, expected, atol=1e-5), (left, right, wanted)


def test_dtype_in_foreign_byte_order():
    a = np.arange(6.0).reshape(2, 3)
    result = engine.einsum("ij,kj->ik", a, a, dtype=">f8")
    assert result.dtype == np.dtype(">f8") and np.array_equal(result, a @ a.T)


def test_bool_is_or_of_ands():
    rng = np.random.default_rng(7)
    a, b = rng.random((9, 40)) < 0.1, rng.random((40, 7)) < 0.1
    expected = (a[:, :, None] & b[None]).any(axis=1)
    assert np.array_equal(engine.einsum("ij,jk->ik", a, b), expected) and expected.any() and not expected.all()


# ---- out= --------------------------------------------------------------------------------------------------------


def outs(shape, dtype):
    """Arrays of ``shape`` that lie in memory in many ways, with the memory around them."""
    shape, dtype = tuple(shape), np.dtype(dtype)
    plain = np.full(shape, 9, dtype)
    yield "C", plain, plain
    fortran = np.full(shape, 9, dtype, order="F")
    yield "F", fortran, fortran
    around = np.full([2 * size + 3 for size in shape], 9, dtype)
    yield "strided", around[(..., *[slice(1, 1 + 2 * size, 2) for size in shape])], around
    reverse = np.full(shape, 9, dtype)
    yield "negative", reverse[(..., *[slice(None, None, -1) for _ in shape])], reverse
    records = np.zeros(shape, [("a", "i1"), ("b", dtype), ("c", "i2")])
    yield "field", records["b"], records
    swapped = np.full(shape, 9, dtype.newbyteorder())
    yield "swapped", swapped, swapped


def test_out_of_any_strides():
    rng = np.random.default_rng(8)
    for dtype in ("float64", "float32", "complex64", "int32"):
        for expression in ("ab,bc->ac", "abc,cd->dab", "ab->b", "aa->a", "ab,cd->dbca", "ab,ab->"):
            operands = operands_for(expression, rng, dtype)
            expected = np.einsum(expression, *operands)
            for name, out, around in outs(np.shape(expected), dtype):
                before = around.copy()
                assert engine.einsum(expression, *operands, out=out) is out
                assert np.allclose(out, expected, rtol=1e-4), (dtype, expression, name)
                if out.ndim:
                    out[...] = 9 if name != "field" else 0
                    assert around.tobytes() == before.tobytes(), (dtype, expression, name)


@pytest.mark.parametrize("wider", ["int8", "int16", "int64", "float32", "float64", "complex128"])
def test_out_takes_part_in_the_dtype(wider):
    a = np.full(8, 10, np.int8)
    out, expected = np.zeros((), wider), np.zeros((), wider)
    np.einsum("i,i->", a, a, out=expected)
    engine.einsum("i,i->", a, a, out=out)
    assert out == expected == (32 if wider == "int8" else 800)


def test_out_and_casting():
    x = np.array([0.6, 1.6, 2.6])
    dtypes, castings = ("int64", "float32", "float64", "complex64"), ("safe", "same_kind", "unsafe")
    for dtype, casting in itertools.product(dtypes, castings):
        out, expected = np.zeros((), dtype), np.zeros((), dtype)
        try:
            np.einsum("i,i->", x, x, out=expected, casting=casting)
        except TypeError:
            with pytest.raises(TypeError, match=f"cannot be cast from .* to {dtype} .*{casting}"):
                engine.einsum("i,i->", x, x, out=out, casting=casting)
            assert out == 0
        else:
            engine.einsum("i,i->", x, x, out=out, casting=casting)
            assert np.allclose(out, expected)


def test_out_may_overlap_operands():
    rng = np.random.default_rng(9)
    a = rng.random((4, 4))
    for expression in ("ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,ji->ji"):
        x = a.copy()
        assert np.allclose(engine.einsum(expression, x, x, out=x), np.einsum(expression, a, a))
    x = a.copy()
    engine.einsum("ij->ji", x, out=x)
    assert np.array_equal(x, a.T)
    x = np.arange(6.0)
    engine.einsum("i->i", x[:-1], out=x[1:])
    assert np.array_equal(x, [0, 0, 1, 2, 3, 4])
    x = np.arange(5.0)
    engine.einsum("i,->i", x, x[1:2].reshape(()), out=x[::-1], alpha=2)
    assert np.array_equal(x, [8, 6, 4, 2, 0])


def test_out_whose_elements_share_memory():
    out = np.lib.stride_tricks.as_strided(np.zeros(2), (3, 2), (0, 8))
    engine.einsum("i,j->ij", np.ones(3), np.array([1.0, 2.0]), out=out)
    assert np.array_equal(out[0], [1, 2])


# ---- operands that lie in memory in other ways ---------------------------------------------------------------------


def layouts(array):
    """``array`` in other memory: the same values."""
    yield array
    yield np.asfortranarray(array)
    backwards = tuple(slice(None, None, -1) for _ in array.shape)
    yield array[backwards].copy()[backwards]
    yield array.astype(array.dtype.newbyteorder())
    read_only = array.copy()
    read_only.flags.writeable = False
    yield read_only
    records = np.zeros(array.shape, [("pad", "i1"), ("x", array.dtype)])
    records["x"] = array
    yield records["x"]
    unaligned = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    yield unaligned
    spread = np.zeros([3 * size for size in array.shape], array.dtype)
    spread[tuple(slice(1, None, 3) for _ in array.shape)] = array
    yield spread[tuple(slice(1, None, 3) for _ in array.shape)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int16", "float16", "bool"])
def test_operands_of_any_layout(dtype):
    rng = np.random.default_rng(10)
    for expression in ("ab,bc->ac", "ab,ab->b", "ab,cd->dbca", "aba,b->a"):
        first, second = operands_for(expression, rng, dtype)
        for a in layouts(first):
            assert_like_numpy(engine.einsum(expression, a, second), expression, (first, second))
        for b in layouts(second):
            assert_like_numpy(engine.einsum(expression, first, b), expression, (first, second))


def test_broadcast_operands():
    a = np.broadcast_to(np.arange(3.0), (4, 3))
    b = np.broadcast_to(np.float64(2), (3, 5))
    assert np.array_equal(engine.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
    assert np.array_equal(engine.einsum("ij->j", a), 4 * np.arange(3.0))


def test_size_one_broadcasts_as_in_numpy():
    rng = np.random.default_rng(11)
    for shapes in (((1, 4), (4, 5)), ((3, 1), (4, 5)), ((3, 4), (1, 5)), ((1, 1), (1, 1)), ((3, 1), (1, 5))):
        a, b = (rng.random(shape) for shape in shapes)
        for expression in ("ij,jk->ik", "ij,jk->ijk", "ij,jk->k", "ij,ij->ij" if shapes[0][1] in (1, 4) else "ij,jk"):
            try:
                expected = np.einsum(expression, a, b)
            except ValueError:
                with pytest.raises(ValueError):
                    engine.einsum(expression, a, b)
                continue
            assert np.allclose(engine.einsum(expression, a, b), expected) and expected.shape


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "object", "complex64"])
def test_size_zero(dtype):
    for expression, shapes in (
        ("ij,jk->ik", ((2, 0), (0, 3))),
        ("ij,jk->ik", ((0, 2), (2, 3))),
        ("i->", ((0,),)),
        ("ij->j", ((0, 3),)),
        ("ii->i", ((0, 0),)),
        ("ij,jk->ik", ((2, 0), (1, 3))),
        ("i,j->ij", ((0,), (3,))),
    ):
        operands = [np.ones(shape, dtype) for shape in shapes]
        result, expected = engine.einsum(expression, *operands), np.einsum(expression, *operands)
        assert np.shape(result) == np.shape(expected) and np.array_equal(result, expected)
        if dtype != "object":
            assert result.dtype == expected.dtype
        out = np.full(np.shape(expected), 1, dtype)
        engine.einsum(expression, *operands, out=out)
        assert np.array_equal(out, expected)


# ---- errors ----------------------------------------------------------------------------------------------------------

X = np.arange(6.0).reshape(2, 3)

BAD = [
    (("ij,jk->ik", X, X), {}, ValueError, "index 'j' is 3 in operand 0 axis 1 but 2 in operand 1 axis 0"),
    (("ij,jk->iz", X, X.T), {}, ValueError, "output index 'z' is in no operand of 'ij,jk->iz'"),
    (("ij,jk->ik", X), {}, ValueError, "number of operands for 'ij,jk->ik': 2 in the subscripts, 1 given"),
    (("ij->ik", X, X), {}, ValueError, "output index 'k'|1 terms but 2"),
    (("ijk", X), {}, ValueError, r"operand 0 of 'ijk' has rank 2, shape \(2, 3\).*rank 3"),
    (("i", X), {}, ValueError, "operand 0 of 'i' has rank 2"),
    (("ij..", X), {}, ValueError, "'.' that is not part of"),
    (("i$j", X), {}, ValueError, r"invalid subscript '\$'"),
    (("ij->i->j", X), {}, ValueError, "->"),
    (("",), {}, ValueError, "1 in the subscripts, 0 given"),
    ((), {}, ValueError, "needs subscripts and operands"),
    ((X, [0, 1.5]), {}, TypeError, "integer"),
    ((X, 3), {}, TypeError, "list of integers"),
    (("ii->i", X), {}, ValueError, "index 'i' is 2 in operand 0 axis 0 but 3 in operand 0 axis 1"),
    (("ij,jk->ik", X, X.T), {"foo": 1}, TypeError, "no option 'foo'; its options are accumulate, alpha"),
    (("ij,jk->ik", X, X.T), {"order": "Z"}, ValueError, "order='Z'"),
    (("ij,jk->ik", X, X.T), {"casting": "Z"}, ValueError, "casting='Z'"),
    (("ij,jk->ik", X, X.T), {"dtype": "f4"}, TypeError, "operand 0 cannot be cast from float64 to float32"),
    (("ij,jk->ik", X, X.T), {"dtype": "nonsense"}, TypeError, "nonsense"),
    (("ij,jk->ik", X, X.T), {"out": np.zeros((3, 3))}, ValueError, r"shape \(3, 3\), the result has \(2, 2\)"),
    (("ij,jk->ik", X, X.T), {"out": np.zeros((2, 2), "f4")}, TypeError, "float64.*float32"),
    (("ij,jk->ik", X, X.T), {"out": [1]}, TypeError, "out= of 'ij,jk->ik' is a list"),
    (("ij,jk->ik", X, X.T), {"out": np.broadcast_to(np.zeros(2), (2, 2))}, ValueError, "read-only"),
    (("ij,jk->ik", X, X.T), {"optimize": 3}, TypeError, "optimize=3"),
    (("i->", np.array(["a"])), {}, TypeError, "operand 0.*<U1"),
    (("i,i->i", np.array(["2020"], "M8[Y]"), np.ones(1)), {}, TypeError, r"datetime64\[Y\]"),
]


@pytest.mark.parametrize("arguments, options, kind, message", BAD, ids=range(len(BAD)))
def test_errors_are_those_of_numpy(arguments, options, kind, message):
    with pytest.raises(kind):
        np.einsum(*arguments, **{"optimize": False, **options})
    before = [np.copy(x) for x in arguments if isinstance(x, np.ndarray)]
    out = np.copy(options["out"]) if "out" in options else None
    with pytest.raises(kind, match=message) as caught:
        engine.einsum(*arguments, **options)
    assert isinstance(caught.value, engine.EngineError)
    assert all(np.array_equal(x, y) for x, y in zip(before, (x for x in arguments if isinstance(x, np.ndarray))))
    assert out is None or np.array_equal(out, options["out"])
