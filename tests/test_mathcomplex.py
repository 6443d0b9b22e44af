"""Functions of complex numbers: errors against extended precision, special values and branch cuts against NumPy."""

import fused_case
import numpy as np
import pytest
from test_mathlib import NEEDS_EXTENDED, WIDE

from einsum_engine.kernels.fused_structure import COMPLEX, SCALARS
from einsum_engine.kernels.isa import host_isas

# The widest and the narrowest instruction set: what differs between sets is in the real functions
ISAS = pytest.mark.parametrize("isa", sorted({host_isas()[0], host_isas()[-1]}, key=str), ids=lambda isa: isa.name)
# Largest distance from the exact result in ulp of its larger part, above what 400,000 arguments show; of others: 4
BOUNDS = {"exp": 2.9, "log": 2.4, "log2": 2.6, "sinh": 3.2, "cosh": 3.2, "sin": 3.2, "cos": 3.2, "sqrt": 2.6}
BOUNDS |= {"exp2": 3.2, "expm1": 3.6, "log1p": 2.9, "tanh": 4.6, "tan": 4.6, "log10": 4.5, "arctanh": 3.2, "arctan": 3.2}
FUNCTIONS = [n for n, row in SCALARS.items() if n == "sqrt" or n not in fused_case.EXACT]
FUNCTIONS = [n for n in FUNCTIONS if SCALARS[n].arity == 1 and n != "abs" and set(COMPLEX) <= set(SCALARS[n].dtypes)]
# With these, NumPy has formulas of its own instead of the standard's special values
OWN_FORMULA = ("expm1", "log1p", "exp2", "log2", "log10")


def arguments(dtype: str, count: int = 5000) -> np.ndarray:
    """All directions at several sizes, near the unit circle and near 1, parts of very different sizes."""
    rng, most = np.random.default_rng(7), 30 if dtype == "complex64" else 280
    turn = np.exp(2j * np.pi * rng.random(count))
    parts = [scale * (rng.standard_normal(count) + 1j * rng.standard_normal(count)) for scale in (1e-3, 1, 20, 300)]
    parts += [10.0 ** rng.uniform(-most, most, count) * turn, (1 + rng.standard_normal(count) * 1e-6) * turn]
    parts += [1 + 10.0 ** rng.uniform(-10, 0, count) * turn]
    for most in (3, most):
        sizes = 10.0 ** rng.uniform(-most, most, (2, count)) * rng.choice([-1, 1], (2, count))
        parts.append(sizes[0] + 1j * sizes[1])
    return np.concatenate(parts).astype(dtype)


def exact(op: str, z: np.ndarray) -> np.ndarray:
    """In extended precision; small logarithms of 1 + z by their squares."""
    wide = z.astype(np.clongdouble)
    if op != "log1p":
        return getattr(np, op)(wide)
    x, y = wide.real, wide.imag
    found = np.log(wide + 1)
    return np.where(np.abs(wide) < 0.5, np.log1p(x * (2 + x) + y * y) / 2 + 1j * np.arctan2(y, 1 + x), found)


@ISAS
@pytest.mark.parametrize("dtype", ["complex64", pytest.param("complex128", marks=NEEDS_EXTENDED)])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_accuracy(isa, dtype, op):
    z = arguments(dtype)
    if op in OWN_FORMULA:
        z = z[(np.abs(z.imag) < 30) & (np.abs(z) > 1e-30)]
    with np.errstate(all="ignore"):
        wanted, got = exact(op, z), fused_case.apply(isa, op, z)
        size = np.maximum(np.abs(wanted.real), np.abs(wanted.imag)).astype(got.real.dtype)
        usual = np.isfinite(size)
        error = np.abs(got - wanted)[usual] / np.spacing(size[usual]).astype(WIDE)
    worst = int(error.argmax())
    told = f"{op}({z[usual][worst]!r}) = {got[usual][worst]!r}, not {wanted[usual][worst]!r}: {error[worst]:.2f} ulp"
    assert error[worst] <= BOUNDS.get(op, 4.0), told
    assert not np.isfinite(got[~usual]).all() or not len(got[~usual]), "a result that overflows is finite"


def grid(dtype: str) -> np.ndarray:
    """All pairs of special parts."""
    parts = np.array([0, -0.0, 1, -1, 0.5, -2, 3, -30, 800, np.inf, -np.inf, np.nan])
    z = np.empty((len(parts),) * 2, dtype)
    z.real, z.imag = parts[:, None], parts
    return z.ravel()


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Equal with the sign of zero, both NaN, or a few ulp apart."""
    near = np.abs(x - y) <= 8 * np.spacing(np.abs(y))
    return np.where(np.isnan(y), np.isnan(x), ((x == y) | near) & (np.signbit(x) == np.signbit(y)))


@ISAS
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", [name for name in FUNCTIONS if name not in OWN_FORMULA])
def test_special_values(isa, dtype, op):
    """Signs of zeros choose the side of a branch cut. Beside a NaN, the standard leaves signs open."""
    z = grid(dtype)
    with np.errstate(all="ignore"):
        got, wanted = fused_case.apply(isa, op, z), getattr(np, op)(z)
        right = same(got.real, wanted.real) & same(got.imag, wanted.imag)
        open_sign = np.isnan(wanted.real) | np.isnan(wanted.imag)
        right |= open_sign & same(np.abs(got.real), np.abs(wanted.real)) & same(np.abs(got.imag), np.abs(wanted.imag))
    bad = np.flatnonzero(~right)
    assert not len(bad), [(z[n], got[n], wanted[n]) for n in bad[:5]]


@pytest.mark.parametrize("dtype", COMPLEX)
def test_logarithms_are_accurate_part_by_part(dtype):
    """Near the unit circle the real part is small."""
    z = arguments(dtype)
    got, wanted = fused_case.apply(host_isas()[0], "log", z), np.log(z.astype(np.clongdouble))
    near = wanted.real.astype(got.real.dtype)
    assert (np.abs(got.real - wanted.real) <= 2.5 * np.spacing(np.abs(near))).all()


@ISAS
@pytest.mark.parametrize("dtype", ["complex64", pytest.param("complex128", marks=NEEDS_EXTENDED)])
def test_powers_of_two_turn_by_large_angles(isa, dtype):
    """As far as two floats of log(2) say which angle it is; beyond, the size is right."""
    most = 1e6 if dtype == "complex64" else 1e3
    y = 10.0 ** np.random.default_rng(5).uniform(0, np.log10(most), 3000)
    z = (np.random.default_rng(6).uniform(-3, 3, y.size) + 1j * y).astype(dtype)
    got, wide = fused_case.apply(isa, "exp2", z), z.astype(np.clongdouble)
    wanted = np.exp2(wide.real) * np.exp(1j * (wide.imag * np.log(np.longdouble(2))))
    assert (np.abs(got - wanted) <= 6 * np.spacing(np.abs(wanted).astype(got.real.dtype))).all()
    far = np.array([0.5 + 1e17j, 2 - 3e25j, 1e30j]).astype(dtype)
    np.testing.assert_allclose(np.abs(fused_case.apply(isa, "exp2", far)), np.exp2(far.real), rtol=1e-6)


@ISAS
def test_logarithms_of_what_overflows_when_it_is_doubled(isa):
    z = np.array([1e308 + 1e308j, -1e308 + 3j, 1.7e308 - 1.7e308j, 1e308j])
    np.testing.assert_allclose(fused_case.apply(isa, "log1p", z), np.log(z), rtol=1e-14)


def test_order_and_sign():
    z = grid("complex128")
    a, b = (side.ravel() for side in np.meshgrid(z, z))
    isa = host_isas()[0]
    for op, name in (("lt", "less"), ("ge", "greater_equal"), ("max", "maximum"), ("min", "minimum")):
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(a, b)
        np.testing.assert_array_equal(fused_case.apply(isa, op, a, b), wanted, err_msg=op)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(fused_case.apply(isa, "sign", z), np.sign(z), rtol=1e-15)
