"""Quotients by divisors whose inverse is known: the bits of a division, whatever is divided by what."""

import fused_case
import numpy as np
import oracle
import pytest

import einsum_engine as engine
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import codegen, fused_price, generators
from einsum_engine.kernels.cpu import fused_abi as ua
from einsum_engine.kernels.fused import lower
from einsum_engine.kernels.isa import ISAS, host_isas

HOST = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])
PRECISION = {"float32": 24, "float64": 53}


def divided(dtype, reduce=""):
    """x / d of two inputs, with the inverse of d as a third."""
    g = fs.Graph((dtype,) * 3)
    return g.structure((g.op("quotient", 0, 1, 2), reduce))


def inverse(isa, d):
    return fused_case.apply(isa, "inverse", d)


def same(one, other):
    """Bit by bit, but for which NaN it is."""
    kind = f"u{one.itemsize}"
    wrong = (one.view(kind) != other.view(kind)) & ~(np.isnan(one) & np.isnan(other))
    assert not wrong.any(), (np.argwhere(wrong)[:3], one[wrong][:3], other[wrong][:3])


def check(isa, x, d, out=None):
    """x / d through the inverse of d, into ``out``, has the bits of NumPy's."""
    out = np.empty_like(x) if out is None else out
    fused_case.run(isa, divided(x.dtype.name), [out], [x, d, inverse(isa, d)])
    with np.errstate(all="ignore"):
        same(out, x / d)


def any_bits(rng, dtype, count):
    """Numbers of all sizes, with zeros, denormals, infinities and NaN among them."""
    kind = f"u{np.dtype(dtype).itemsize}"
    found = rng.integers(0, np.iinfo(kind).max, count, kind, endpoint=True).view(dtype)
    rare = [0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal, 1.0, -1.0]
    return np.where(rng.random(count) < 0.3, rng.choice(np.array(rare, dtype), count), found)


def borders(dtype):
    """Divisors around the least and the largest that have a finite inverse, and others."""
    info = np.finfo(dtype)
    found = [np.nextafter(np.array(d, dtype), np.array(to, dtype)) for d in fs.DIVISORS[info.bits] for to in (0, d, np.inf)]
    found += [0.0, info.smallest_subnormal, info.tiny, info.max, np.inf, np.nan, 1.0, 1 / 3, 3.0, 1 + info.eps, 2 - info.eps]
    return np.array([*found, *(-d for d in found)], dtype)


@HOST
@FLOATS
def test_all_sizes_by_all_divisors(isa, dtype):
    """Rows of one divisor each, some of which have nothing that is to be divided."""
    rng = np.random.default_rng(7)
    d = np.concatenate([borders(dtype), any_bits(rng, dtype, 40), np.abs(rng.standard_normal(40)).astype(dtype)])[:, None]
    for x in (any_bits(rng, dtype, d.size * 333), rng.standard_normal(d.size * 333).astype(dtype)):
        check(isa, x.reshape(d.size, 333), d)


@HOST
@FLOATS
def test_one_element_that_is_to_be_divided_among_others(isa, dtype):
    """In any lane of what has one test, beside zeros of both signs."""
    info, lanes = np.finfo(dtype), 4 * isa.vector_bits // np.finfo(dtype).bits
    for rare in (info.max, -info.max, info.smallest_subnormal, -info.tiny * 3, np.inf, -np.inf, np.nan):
        x = np.ones((lanes, 2 * lanes), dtype)
        x[:, ::3], x[:, 1::3] = 0.0, -0.0
        x[np.arange(lanes), np.arange(lanes)] = rare
        for divisor in (0.3, 1e-3, 7.0, -3.0):
            check(isa, x, np.full((lanes, 1), divisor, dtype))


def hard(rng, dtype, count):
    """Pairs of significands whose quotient is so close to the middle of two numbers that an error of the last step of
    more than what the theorem allows would round it wrongly: x * 2**shift = middle * d + n, with a small n."""
    p = PRECISION[dtype]
    pairs = []
    while len(pairs) < count:
        d = int(rng.integers(2 ** (p - 1), 2**p)) | 1
        d = 2**p - 1 - 2 * len(pairs) if len(pairs) % 3 == 0 else d
        for shift in (p, p + 1):
            for n in (-3, -2, -1, 1, 2, 3):
                middle = -n * pow(d, -1, 2**shift) % 2**shift
                middle += 2**shift if middle < 2**p else 0
                x = (middle * d + n) >> shift
                if middle % 2 and middle < 2 ** (p + 1) and 2 ** (p - 1) <= x < 2**p:
                    pairs.append((x, d))
    return (np.array(each, np.float64).astype(dtype) for each in zip(*pairs))


@HOST
@FLOATS
def test_quotients_next_to_the_middle_of_two_numbers(isa, dtype):
    x, d = hard(np.random.default_rng(5), dtype, 3000)
    x = np.ascontiguousarray(np.broadcast_to(x[:, None], (len(x), 4 * isa.vector_bits // 32)))
    check(isa, x, np.ascontiguousarray(d[:, None]))


@HOST
@FLOATS
@pytest.mark.parametrize("shift", [0, 8])
def test_rows_of_all_lengths_at_the_end_of_memory(isa, dtype, shift):
    rng, item = np.random.default_rng(1), np.dtype(dtype).itemsize
    for n in (1, 3, 17, 63, 64, 65, 100, 511, 1200):
        x, out = (np.ndarray((3, n), dtype, oracle.guarded(3 * n * item + shift).data, shift) for _ in "xo")
        d = np.ndarray((3, 1), dtype, oracle.guarded(3 * item).data)
        x[:], d[:] = rng.standard_normal((3, n)), rng.random((3, 1)) + 0.5
        check(isa, x, d, out)


@HOST
@FLOATS
def test_divisors_that_run(isa, dtype):
    """No plan has them; what divides is right all the same."""
    x, d = np.random.default_rng(2).standard_normal((2, 5, 700)).astype(dtype)
    for divisor in (d, d[:1], d[0, 0].reshape(1, 1)):
        check(isa, x, divisor)


@HOST
@FLOATS
@pytest.mark.parametrize("period", [1, 2, 3, 4, 5, 6, 8, 12, 24, 48])
def test_divisors_that_repeat_themselves(isa, dtype, period):
    """Of all sizes and in all places of a vector, in rows of all lengths; none, or one, has no inverse."""
    rng = np.random.default_rng(period)
    for count in (7, 40, 331, 1000):
        x = rng.standard_normal((3, count, period)).astype(dtype)
        x[1] = any_bits(rng, dtype, count * period).reshape(count, period)
        x[2] *= rng.random(x[2].shape) < 0.5
        d = (rng.random((1, 1, period)) + 0.5).astype(dtype)
        check(isa, x, d)
        x[1] = x[0]
        for divisor in borders(dtype):
            d[0, 0, -1] = divisor
            check(isa, x[1:2], d)


@FLOATS
@pytest.mark.parametrize("shape, divisor, period", [
    ((3000, 3), (1, 3), 3),
    ((10, 1000), (10, 1), 1),
    ((10, 1000), (10, 1000), 0),
    ((3000, 5), (1, 5), 5),
])  # fmt: skip
def test_what_a_step_says_of_its_divisors(dtype, shape, divisor, period):
    x, d = np.ones(shape, dtype), np.ones(divisor, dtype)
    (row,) = lower(fused_case.problem_of(divided(dtype), [x], [x, d, d]))
    assert row.words[ua.U_PERIOD] == period


@HOST
@FLOATS
@pytest.mark.parametrize("shift", [0, 8])
def test_divisors_that_repeat_themselves_at_the_end_of_memory(isa, dtype, shift):
    """In place and not; rows are long enough to be written by lines, and to begin within one."""
    rng, item = np.random.default_rng(6), np.dtype(dtype).itemsize
    for count in (1, 20, 363, 500, 5000):
        x, out = (np.ndarray((count, 3), dtype, oracle.guarded(3 * count * item + shift).data, shift) for _ in "xo")
        d = np.ndarray((1, 3), dtype, oracle.guarded(3 * item).data)
        x[:], d[:] = rng.standard_normal((count, 3)), rng.random((1, 3)) + 0.5
        check(isa, x, d, out)
        fused_case.run(isa, divided(dtype), [x], [x, d, inverse(isa, d)])
        same(x, out)


@HOST
@FLOATS
@pytest.mark.parametrize("axis", [0, 1])
def test_reduced_quotients_have_the_bits_of_divided_ones(isa, dtype, axis):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((37, 1100)).astype(dtype)
    d = (rng.random((37, 1)) + 0.5).astype(dtype)
    found, wanted = np.empty((2, 37 if axis else 1, 1 if axis else 1100), dtype)
    fused_case.run(isa, divided(dtype, "sum"), [found], [x, d, inverse(isa, d)])
    fused_case.run(isa, fused_case.single("div", (dtype,) * 2, "sum"), [wanted], [x, d])
    same(found, wanted)


@HOST
@FLOATS
def test_quotients_beside_other_inputs_and_functions(isa, dtype):
    """Other inputs that run, or are one element; a function of two vectors in turn; two quotients."""
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 4, 900)).astype(dtype)
    m, d = rng.standard_normal((4, 1)).astype(dtype), (rng.random((4, 1)) + 0.5).astype(dtype)
    for op in ("sub", "exp"):
        g, h = fs.Graph((dtype,) * 5), fs.Graph((dtype,) * 5)
        top, plain = (each.op(*((op, 0, 2) if op == "sub" else (op, 0))) for each in (g, h))
        both = g.op("mul", g.op("quotient", top, 3, 4), g.op("quotient", 1, 3, 4))
        other = h.op("mul", h.op("div", plain, 3), h.op("div", 1, 3))
        found, wanted = np.empty((2, *x.shape), dtype)
        fused_case.run(isa, g.structure(both), [found], [x, y, m, d, inverse(isa, d)])
        fused_case.run(isa, h.structure(other), [wanted], [x, y, m, d, inverse(isa, d)])
        same(found, wanted)


@HOST
@FLOATS
def test_inverses_that_are_computed_beside_quotients(isa, dtype):
    """No plan has them, and rows cannot look at them before they begin: all are divided."""
    g = fs.Graph((dtype,) * 2)
    structure = g.structure(g.op("quotient", 0, 1, g.op("inverse", 1)))
    x, d = np.random.default_rng(8).standard_normal((40, 900)).astype(dtype), borders(dtype)[:40, None]
    out = np.empty_like(x[: len(d)])
    fused_case.run(isa, structure, [out], [x[: len(d)], d])
    with np.errstate(all="ignore"):
        same(out, x[: len(d)] / d)


@FLOATS
def test_several_vectors_have_one_test_where_there_are_fused_products(dtype):
    structure = divided(dtype)
    for isa in ISAS.values():
        assert fused_price.vectors_at_once(structure, isa) == (4 if isa.fma else 1)
    text = codegen.assembly(generators.build(fs.name(structure), ISAS["sse2"]), ISAS["sse2"])
    assert "divp" in text and "mulp" not in text


def test_quotients_are_of_floats_of_one_dtype():
    for dtypes in (("int32",) * 3, ("float32", "float32", "float64"), ("complex64",) * 3, ("float32",) * 2):
        with pytest.raises(engine.EngineValueError):
            fs.result_dtype("quotient", dtypes)


# -- plans -------------------------------------------------------------------------------------------------------------
def over(x, d):
    return x / d


@pytest.mark.parametrize(
    "shape, divisor, dtype, wanted",
    [
        ((20000,), (), "float32", True),
        ((20000,), (), "float64", True),
        ((5000,), (), "float32", False),  # little is divided
        ((20000,), (), "float16", False),
        ((100, 200, 3), (3,), "float32", True),
        ((100, 200, 3), (3,), "float64", True),
        ((20, 500, 4), (20, 1, 4), "float32", True),
        ((20, 500, 24), (24,), "float32", True),
        ((20, 500, 24), (24,), "float64", False),  # three vectors do not hold it
        ((20, 500, 5), (5,), "float32", False),  # nor whole numbers of it
        ((500, 20, 3), (500, 1, 3), "float32", False),  # rows are short
        ((20, 500, 3), (500, 3), "float32", False),
        ((20000,), (1,), "float64", True),
        ((100, 600), (100, 1), "float64", True),
        ((10, 30, 600), (30, 1), "float64", True),
        ((100, 600), (600,), "float64", False),  # it runs along what is divided
        ((1000, 100), (1000, 1), "float64", False),  # rows are short
        ((2000,), (), "float64", False),  # little is divided
        ((100, 600), (100, 600), "float64", False),
        ((20000,), (), "complex64", False),
    ],
)
def test_what_is_divided_by_an_inverse(shape, divisor, dtype, wanted):
    rng = np.random.default_rng(0)
    x, d = (np.asarray(rng.random(each) + 0.5).astype(dtype) for each in (shape, divisor))
    jitted = engine.jit(over)
    texts = [step.expr for step in jitted.plan(x, d).steps]
    assert texts == ["inverse", "quotient"] if wanted else "quotient" not in " ".join(texts)
    if dtype in PRECISION:
        same(jitted(x, d), x / d)


@pytest.mark.parametrize("number, wanted", [(1.5, "quotient"), (-1.5, "div"), (0.0, "div"), (1e300, "div"), (3, "quotient")])
def test_numbers_of_the_program(number, wanted):
    x = np.random.default_rng(0).standard_normal(20000)
    jitted = engine.jit(lambda x: x / number)
    assert [step.expr for step in jitted.plan(x).steps] == [wanted]
    with np.errstate(all="ignore"):
        same(jitted(x), x / np.float64(number))


def test_an_inverse_is_made_before_the_step_that_divides():
    """So what is divided is computed in that step, and one inverse serves all divisions by the same value."""

    def body(x, y, d):
        x -= 1
        x /= d
        return (y + 1) / d

    x, y = np.random.default_rng(0).standard_normal((2, 30, 1000))
    d = np.random.default_rng(1).random((30, 1)) + 0.5
    wanted = (x - 1) / d
    jitted = engine.jit(body)
    texts = [step.expr for step in jitted.plan(x, y, d).steps]
    assert texts[0] == "inverse" and sum("inverse" in text for text in texts) == 1 and "div" not in " ".join(texts)
    assert any(text.startswith("sub quotient") for text in texts), texts
    same(jitted(x, y, d), (y + 1) / d)
    same(x, wanted)


@pytest.mark.parametrize("shape", [(), (300, 1), (1, 3), (1, 1)])
def test_quotients_of_products(shape):
    """As epilogues of products, or as steps of their own."""
    rng = np.random.default_rng(9)
    for dtype in FLOATS.args[1]:
        a, b = rng.standard_normal((300, 40)).astype(dtype), rng.standard_normal((40, 900)).astype(dtype)
        d = np.array(rng.random(shape) + 0.5).astype(dtype)
        jitted = engine.jit(lambda a, b, d: ((a @ b).reshape(300, 300, 3) if d.shape == (1, 3) else a @ b) / d)
        wanted = a @ b / (np.tile(d, 300) if d.shape == (1, 3) else d)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(jitted(a, b, d).reshape(300, 900), wanted, rtol=40 * eps, atol=100 * eps)


def test_what_is_divided_beside_long_functions():
    """Nobody makes an inverse for it."""
    x = np.random.default_rng(0).standard_normal(20000)
    assert [step.expr for step in engine.jit(lambda x, d: np.exp(x) / d).plan(x, x[:1]).steps] == ["exp div"]


def test_rows_that_are_gone_over_several_times_are_divided():
    def norm(x):
        c = x - x.mean(-1, keepdims=True)
        return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)

    x = np.random.default_rng(0).standard_normal((64, 512))
    (step,) = engine.jit(norm).plan(x).steps
    assert "quotient" not in step.expr and "div" in step.expr
    np.testing.assert_allclose(engine.jit(norm)(x), norm(x), rtol=1e-12, atol=1e-12)
