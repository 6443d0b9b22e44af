"""Errors of the functions that fused kernels are made of, in units in the last place, against extended precision."""

from decimal import Decimal, localcontext
from functools import lru_cache

import fused_case
import numpy as np
import pytest

from einsum_engine.kernels.cpu.mathconst import HALF_EXPS, HALF_EXPS_BESIDE, SIXTEENTHS, SIXTEENTHS_SHIFT
from einsum_engine.kernels.cpu.mathpieces import TANH_64
from einsum_engine.kernels.fused_reference import OWN, special
from einsum_engine.kernels.fused_structure import SCALARS
from einsum_engine.kernels.isa import host_isas

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
# Largest error in ulp, somewhat above what 2 million arguments show; of those that are not here: 2
BOUNDS = {"exp": 1.1, "expm1": 1.3, "log": 0.9, "log1p": 0.9, "sin": 0.9, "cos": 0.9, "tan": 1.6, "tanh": 1.4}
BOUNDS |= {"sigmoid": 2.0, "erf": 1.4, "sqrt": 0.5, "rsqrt": 1.5, "pow": 1.1}
BOUNDS |= {"exp2": 1.1, "log2": 0.9, "log10": 0.9, "sinh": 1.7, "cosh": 1.6, "cbrt": 0.6, "hypot": 1.2}
BOUNDS |= {"arcsin": 1.2, "arccos": 1.2, "arctan": 1.8, "arctan2": 1.7, "arcsinh": 1.0, "arccosh": 1.0, "arctanh": 1.0}
# What NumPy's bits are taken for is tested in `test_fused_ops`, but for the roots
FUNCTIONS = [n for n, row in SCALARS.items() if "float64" in row.dtypes and n not in fused_case.EXACT - {"sqrt"}]
UNARY = [name for name in FUNCTIONS if SCALARS[name].arity == 1 and name != "abs"]
BINARY = [name for name in FUNCTIONS if SCALARS[name].arity == 2]
WIDE = np.longdouble
EXTENDED = np.finfo(WIDE).nmant >= 63
NEEDS_EXTENDED = pytest.mark.skipif(not EXTENDED, reason="long double is no wider than double here")
FLOATS = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=NEEDS_EXTENDED)])


@pytest.fixture(autouse=True)
def own_functions(monkeypatch):
    """Those of a library are tested in `test_svml`."""
    monkeypatch.setenv("EINSUM_ENGINE_SVML", "0")


def arguments(rng, dtype: str, count: int = 20_000) -> np.ndarray:
    """All bit patterns at random, several scales, dense around special places, multiples of pi/2, borders."""
    kind = np.dtype(dtype)
    limits, whole = np.finfo(kind), np.dtype(f"uint{8 * kind.itemsize}")
    parts = [rng.integers(0, np.iinfo(whole).max, count, whole, endpoint=True).view(kind)]
    parts += [rng.standard_normal(count) * scale for scale in (1e-3, 1, 20, 300, 1e5, 1e8)]
    dense = ((-2, 2), (-0.4, 0.4), (0.5, 2), (-20, 20), (-110, 100), (-750, 720))
    parts += [np.linspace(low, high, count) for low, high in dense]
    parts += [np.arange(1, count) * (np.pi / 2), 1 + rng.standard_normal(count) * 1e-6]
    parts += [1 + 2.0 ** rng.uniform(-52, 3, count)]
    parts += [2.0 ** rng.uniform(-149, 127, count)]
    borders = [0.0, np.inf, np.nan, limits.tiny, limits.smallest_subnormal, limits.max, 1, 0.5, 2, np.pi / 2, np.pi]
    borders += [88.72284, 103.97, 709.782712893384, 745.1332191019412, 22, 11, 6, 5.92, 4, 9.01, 18.4, 1e5, 1e6]
    parts += [borders, np.negative(borders)]
    with np.errstate(all="ignore"):
        return np.concatenate([np.asarray(part).astype(kind) for part in parts])


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """In ulp of the exact value; infinite where one is NaN or infinite and the other is not that, or a zero's sign is
    wrong."""
    with np.errstate(all="ignore"):
        near = exact.astype(got.dtype)
        finite = np.isfinite(got) & np.isfinite(near)
        same = (got == near) | (np.isnan(got) & np.isnan(near))
        size = np.abs(got.astype(WIDE) - exact) / np.spacing(np.abs(near)).astype(WIDE)
    result = np.where(finite, size.astype(float), np.where(same, 0, np.inf))
    result[(got == 0) & (near == 0) & (np.signbit(got) != np.signbit(near))] = np.inf
    return result


def check(got: np.ndarray, exact: np.ndarray, bound: float, arguments: tuple, what: object) -> None:
    found = errors(got, exact)
    worst = int(found.argmax())
    told = ", ".join(repr(a[worst]) for a in arguments)
    assert found[worst] <= bound, f"{what}({told}): {got[worst]!r}, exact {exact[worst]!r}: {found[worst]:.2f} ulp"


@lru_cache(maxsize=None)
def exact_values(dtype, op):
    with np.errstate(all="ignore"):
        wide = arguments(np.random.default_rng(11), dtype).astype(WIDE)
        return special(op, wide) if op in OWN else getattr(np, op)(wide)


@ISAS
@FLOATS
@pytest.mark.parametrize("op", UNARY)
def test_functions(isa, dtype, op):
    x, exact = arguments(np.random.default_rng(11), dtype), exact_values(dtype, op)
    check(fused_case.apply(isa, op, x), exact, BOUNDS.get(op, 2.0), (x,), (isa.name, dtype, op))


@pytest.mark.parametrize("bits, bound", [(32, 0.5), (64, 0.115)])
def test_powers_that_are_looked_up(bits, bound):
    """Each is as near to its float as `mathconst` says; answers to 40 digits."""
    with localcontext(prec=40):
        for n, power in enumerate(SIXTEENTHS[bits]):
            rounded = np.dtype(f"float{bits}").type(power)
            exact = Decimal(2) ** (Decimal(n) / 16) * Decimal(SIXTEENTHS_SHIFT[bits]).exp()
            assert abs(Decimal(float(rounded)) - exact) <= Decimal(bound) * Decimal(float(np.spacing(rounded)))


def test_half_exps():
    """To a thousandth of an ulp, of floats; answers to 40 digits."""
    with localcontext(prec=40):
        for n, (half, beside) in enumerate(zip(HALF_EXPS, HALF_EXPS_BESIDE, strict=True)):
            start = Decimal(2).ln() * n / 16
            x = float(start + Decimal(beside))
            assert abs(Decimal(x) - start - Decimal(beside)) <= Decimal(2) ** -53 * abs(Decimal(beside))
            assert abs(Decimal(half) - Decimal(x).exp() / 2) <= Decimal("0.001") * Decimal(float(np.spacing(half)))


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_that_are_exact(isa, dtype):
    """Though the table of float64 has no 1."""
    limits = np.finfo(dtype)
    tiny = limits.smallest_subnormal
    zeros = np.array([0.0, -0.0, tiny, -tiny, limits.tiny, limits.eps / 8, -limits.eps / 8] * 8, dtype)
    assert (fused_case.apply(isa, "exp", zeros) == 1).all()
    assert (fused_case.apply(isa, "exp2", zeros) == 1).all()
    assert (fused_case.apply(isa, "cosh", zeros) == 1).all()
    whole = np.arange(limits.minexp - limits.nmant, limits.maxexp).astype(dtype)
    assert (fused_case.apply(isa, "exp2", whole) == np.ldexp(1.0, whole.astype(int))).all()


def test_points_of_tanh():
    """Each value is that of its point to two thousandths of its last place; answers to 60 digits."""
    with localcontext(prec=60):
        for point, value in TANH_64.rows:
            square = (2 * Decimal(point)).exp()
            exact = (square - 1) / (square + 1)
            assert abs(Decimal(value) - exact) <= Decimal("0.002") * Decimal(np.spacing(value))


@NEEDS_EXTENDED
@ISAS
def test_tanh_of_float64_where_pieces_meet(isa):
    """Beside each end of a piece and each point, on both sides."""
    first = np.float64(TANH_64.shift).view(np.int64)
    ends = (first + (np.arange(1, 16) << 50)).view(np.float64) - TANH_64.shift
    middle = np.concatenate([ends, [TANH_64.most], [point for point, _ in TANH_64.rows[1:]]])
    x = np.concatenate([middle + n * np.spacing(middle) for n in range(-20, 21)])
    for sign in (1, -1):
        found = fused_case.apply(isa, "tanh", sign * x)
        check(found, np.tanh((sign * x).astype(WIDE)), BOUNDS["tanh"], (sign * x,), isa.name)


@ISAS
@pytest.mark.parametrize("dtype, last, end", [("float32", 9.5, 9.2), ("float64", 25, 19.1)])
def test_tanh_near_one(isa, dtype, last, end):
    """It ends at 1, not short of it, and is never more."""
    kind = np.dtype(dtype)
    low, high = (kind.type(x).view(f"int{8 * kind.itemsize}") for x in (4, last))
    bits = np.arange(low, high, 7 if dtype == "float32" else (high - low) // 1_000_000)
    x = np.concatenate([bits.astype(low.dtype).view(kind), np.array([30, 1e10, np.finfo(kind).max, np.inf], kind)])
    for sign in (1, -1):
        found = sign * fused_case.apply(isa, "tanh", kind.type(sign) * x)
        if dtype == "float32" or EXTENDED:
            check(found, np.tanh(x.astype(WIDE)), BOUNDS["tanh"], (x,), isa.name)
        assert (found[x >= end] == 1).all() and (found <= 1).all()


@lru_cache(maxsize=None)
def pairs(dtype):
    rng = np.random.default_rng(12)
    x = arguments(rng, dtype, 4000)
    y = rng.permutation(x)
    small = (rng.standard_normal(len(x)) * 5).astype(dtype)
    borders = np.array(
        [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e30, -1e30, 2.5, 1e-40], dtype
    )
    grid = [side.ravel() for side in np.meshgrid(borders, borders)]
    with np.errstate(all="ignore"):
        x = np.concatenate([x, x, np.abs(x), np.exp(small), grid[0]])
        y = np.concatenate([y, np.round(y), small, (small * 30).astype(dtype), grid[1]])
        beside = (x * np.exp(rng.standard_normal(len(x)))).astype(dtype)
        return np.concatenate([x, x]), np.concatenate([y, beside])


@lru_cache(maxsize=None)
def exact_pairs(dtype, op):
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        return (np.power if op == "pow" else getattr(np, op))(x.astype(WIDE), y.astype(WIDE))


@ISAS
@FLOATS
@pytest.mark.parametrize("op", BINARY)
def test_functions_of_two(isa, dtype, op):
    (x, y), exact = pairs(dtype), exact_pairs(dtype, op)
    check(fused_case.apply(isa, op, x, y), exact, BOUNDS.get(op, 2.0), (x, y), (isa.name, dtype, op))


@ISAS
def test_large_arguments(isa):
    """Among them the float64 that is nearest to a multiple of pi/2; answers to 20 digits from mpmath."""
    x = np.array([6381956970095103.0 * 2.0**797, 1e22, np.finfo(float).max])
    sin = np.array([1.0, -0.85220084976718880177, 0.0049619547891840617905])
    cos = np.array([-4.6871659242546276111e-19, 0.5232147853951389455, -0.99998768942655993746])
    for op, exact in (("sin", sin), ("cos", cos), ("tan", sin / cos)):
        for sign in (1, -1):
            got = fused_case.apply(isa, op, sign * x)
            np.testing.assert_allclose(got, exact if op == "cos" else sign * exact, rtol=5e-16)
    assert np.isnan(fused_case.apply(isa, "sin", np.array([np.inf, -np.inf, np.nan]))).all()
