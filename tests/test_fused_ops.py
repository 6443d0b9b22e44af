"""Every scalar operation of fused kernels on every dtype, instruction set and way to lie in memory, against NumPy."""

from importlib.util import find_spec

import fused_case
import numpy as np
import oracle
import pytest
import strided

from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.fused_reference import evaluate
from einsum_engine.kernels.isa import host_isas

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
# By how many ulp results may differ from NumPy's, where they may; `test_mathlib` has the bounds of our errors
NEAR = {"tanh": 6}
COMPLEX_NEAR = {"mul": 4, "div": 8, "abs": 2, "sqrt": 4, "sign": 4, "pow": 100}
COMPLEX_NEAR |= {"log1p": 2000}  # NumPy adds 1 first; our error is in `test_mathcomplex`
FINITE, ORDINARY = ("mul", "div", "abs", "eq"), ("pow", "expm1", "log1p")  # complex arguments that are compared
CLASSES = ["run", "one", "strided", "backwards", "unaligned"]
CASTS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
CASTS += ["int8", "uint16", "int32", "uint64", "bool"]


def specials(dtype: str) -> np.ndarray:
    """Values at the borders of a dtype."""
    if dtype == "bool":
        return np.array([False, True])
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        numbers = [limits.min, limits.min + 1, -7, -2, -1, 0, 1, 2, 3, 10, 63, limits.max]
        return np.array([n for n in numbers if limits.min <= n <= limits.max], kind)
    part = np.dtype(kind.char.lower()) if kind.kind == "c" else kind
    limits = np.finfo(part)
    numbers = [0.0, -0.0, 1, -1, 0.5, -1.5, 2.5, 3, -7, np.inf, -np.inf, np.nan]
    numbers += [limits.max, limits.tiny, limits.tiny / 8, 1e6]
    reals = np.array(numbers, part)
    if kind.kind == "f":
        return reals
    return (reals[:11, None] + 1j * reals[None, :9]).ravel().astype(kind)


def operands(rng, dtypes: tuple[str, ...], count: int) -> list[np.ndarray]:
    """Random and special values; all pairs of special ones for two operands."""
    arrays = []
    grid = np.meshgrid(*(specials(d) for d in dtypes), indexing="ij")
    for dtype, corner in zip(dtypes, grid, strict=True):
        values = np.concatenate([corner.ravel(), oracle.random(rng, (count,), dtype)])
        arrays.append(values)
    return arrays


def limits(op: str, dtype: str) -> object:
    """Which arguments of an operation `inside` leaves out."""
    if dtype in fs.COMPLEX:
        return next((names for names in (FINITE, ORDINARY) if op in names), None)
    return op == "pow" and np.dtype(dtype).kind == "i"


def inside(op: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arguments for which NumPy says what the result is."""
    what = limits(op, arrays[0].dtype.name)
    if what is True:
        return [arrays[0], np.abs(arrays[1]) % 9]
    if what is FINITE:
        # of infinite and huge complex numbers compilers make different things
        keep = np.all([np.isfinite(a) & (np.abs(a.real) < 1e30) & (np.abs(a.imag) < 1e30) for a in arrays], axis=0)
        return [a[keep] for a in arrays]
    if what is ORDINARY:
        # NumPy's formulas lose small numbers, and its versions differ in powers of 0
        keep = np.all([np.isfinite(a) & (np.abs(a) < 1e3) for a in arrays], axis=0)
        return [a[keep & (np.abs(arrays[0]) > 1e-3)] for a in arrays]
    return arrays


def close(got: np.ndarray, expected: np.ndarray, ulp: float, what: object) -> None:
    """Equal, NaN too, or ``ulp`` units in the last place apart."""
    assert got.dtype == expected.dtype, what
    if got.dtype.kind == "c":
        # the parts of a product cancel: what counts is the size of the whole
        size = np.spacing(np.maximum(np.abs(expected.real), np.abs(expected.imag)))
        for x, y in ((got.real, expected.real), (got.imag, expected.imag)):
            _close(x, y, ulp, what, size)
    elif got.dtype.kind == "f":
        with np.errstate(all="ignore"):
            _close(got, expected, ulp, what, np.spacing(np.abs(expected)))
        zero = (expected == 0) & (got == 0)
        # which of two zeros is the larger one NumPy leaves open
        assert set(what) & {"max", "min"} or np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero])), what
    else:
        np.testing.assert_array_equal(got, expected, err_msg=str(what))


def _close(got, expected, ulp, what, size) -> None:
    with np.errstate(all="ignore"):
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        near = np.abs(got - expected) <= ulp * size
    bad = np.flatnonzero(~(same | near))
    assert not len(bad), f"{what}: {len(bad)} wrong, first at {bad[0]}: {got[bad[0]]!r}, expected {expected[bad[0]]!r}"


def groups() -> list:
    """Operations on a dtype that take the same arguments, some at a time: they share a kernel, which takes as long to compile as
    two or three alone. `test_mathlib` has kernels of one."""
    found = {}
    for op, row in fs.SCALARS.items():
        for dtype in row.dtypes:
            found.setdefault((dtype, row.arity, op in fused_case.EXACT, limits(op, dtype)), []).append(op)
    chunks = [(key, ops[first : first + 6]) for key, ops in found.items() for first in range(0, len(ops), 6)]
    return [pytest.param(key[0], ops, id=f"{key[0]}-{'-'.join(ops)}") for key, ops in chunks]


OUTER = {isa.name for isa in (host_isas()[0], host_isas()[-1])}


@ISAS
@pytest.mark.parametrize("dtype, ops", groups())
def test_values(isa, dtype, ops):
    exact = ops[0] in fused_case.EXACT
    if isa.name not in OUTER and not exact and dtype in fs.FLOATS + fs.COMPLEX:
        pytest.skip("functions of real numbers are in test_mathlib, complex ones are made of them: two sets do")
    arity = fs.SCALARS[ops[0]].arity
    arrays = inside(ops[0], operands(np.random.default_rng(3), (dtype,) * arity, 200))
    g = fs.Graph((dtype,) * arity)
    structure = g.structure(*[g.op(op, *range(arity)) for op in ops])
    got = [np.empty(arrays[0].shape, stored) for stored in structure.stored[: len(ops)]]
    fused_case.run(isa, structure, got, arrays)
    for op, result, expected in zip(ops, got, evaluate(structure, arrays), strict=True):
        ulp = 0 if exact or dtype not in fs.FLOATS + fs.COMPLEX else NEAR.get(op, 4)
        if dtype in fs.COMPLEX:
            ulp = COMPLEX_NEAR.get(op, 0 if exact else 8)
        close(result, expected, ulp, (isa.name, op, dtype))


def test_every_operation_is_in_one_group():
    tested = [(op, dtype) for dtype, ops in (group.values for group in groups()) for op in ops]
    assert sorted(tested) == sorted((op, dtype) for op, row in fs.SCALARS.items() for dtype in row.dtypes)
    for dtype, ops in (group.values for group in groups()):
        arrays = operands(np.random.default_rng(3), (dtype,) * fs.SCALARS[ops[0]].arity, 20)
        first, *others = (inside(op, arrays) for op in ops)
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for other in others for a, b in zip(first, other))


@ISAS
@pytest.mark.parametrize("targets", [CASTS[:6], CASTS[6:]], ids=["inexact", "exact"])
@pytest.mark.parametrize("source", CASTS)
def test_casts(isa, source, targets):
    if source == "bfloat16":
        pytest.importorskip("ml_dtypes")
    targets = [target for target in targets if target != "bfloat16" or find_spec("ml_dtypes")]
    values = oracle.random(np.random.default_rng(5), (67,), "float64") * 30
    if source.startswith("uint") or source == "bool":
        values = np.abs(values)
    for unsigned in sorted({target.startswith("uint") for target in targets}):
        found = [target for target in targets if target.startswith("uint") == unsigned]
        given = np.abs(values) if unsigned else values
        g = fs.Graph(("float64",))
        start = g.cast(0, source)
        structure = g.structure(*[g.cast(start, target) for target in found])
        expected = evaluate(structure, [given])
        got = [np.empty(each.shape, each.dtype) for each in expected]
        fused_case.run(isa, structure, got, [given])
        for target, *both in zip(found, got, expected, strict=True):
            np.testing.assert_array_equal(*both, err_msg=target)


@ISAS
def test_bytes_of_a_bool_that_are_neither_0_nor_1_are_true(isa):
    """All triples of some bytes; no two have a bit in common but 255 with each."""
    grid = np.stack(np.meshgrid(*[np.array([0, 1, 2, 128, 255], "uint8")] * 3)).reshape(3, -1)
    g = fs.Graph(("bool",) * 3)
    both = g.op("and", 0, 1)
    structure = g.structure(g.op("and", both, 2), g.cast(both, "float32"))
    every, cast = np.zeros(125, bool), np.zeros(125, "float32")
    fused_case.run(isa, structure, [every, cast], [row.copy().view(bool) for row in grid])
    np.testing.assert_array_equal(every.view("uint8"), (grid != 0).all(axis=0))
    np.testing.assert_array_equal(cast, (grid[:2] != 0).all(axis=0))


def lay(rng, values: np.ndarray, how: str) -> strided.Strided:
    """One loop over ``values`` in guarded memory, in one of the `CLASSES`."""
    item, count = values.itemsize, min(1, len(values)) if how == "one" else len(values)
    step = {"run": item, "one": item, "strided": 3 * item, "backwards": -item, "unaligned": item}[how]
    nbytes = max(count - 1, 0) * abs(step) + item + (how == "unaligned") if count else 0
    memory = oracle.guarded(nbytes, str(rng.choice(["start", "end"])))
    memory[:] = strided.CANARY
    start = (count - 1) * item if how == "backwards" and count else int(how == "unaligned" and count > 0)
    view = np.ndarray((count,), values.dtype, memory.data if nbytes else bytearray(1), start if count else 0, (step,))
    view[...] = values[:count]
    return strided.Strided(memory=memory, start=start, view=view)


@ISAS
@pytest.mark.parametrize("how", CLASSES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 31, 67, 131])
@pytest.mark.parametrize("dtypes", [("float32",), ("complex128", "bool"), ("int8", "float64"), ("uint16",)], ids=str)
def test_places(isa, how, count, dtypes):
    """A sum of two operands, cast to each dtype: inputs one way, outputs another."""
    rng = np.random.default_rng(count)
    g = fs.Graph((dtypes[0], dtypes[0]))
    total = g.op("add", 0, 1)
    structure = g.structure(*(g.cast(total, d) for d in dtypes))
    values = [oracle.random(rng, (count,), dtypes[0]) for _ in range(2)]
    inputs = [lay(rng, values[0], how), lay(rng, values[1], "run")]
    expected = evaluate(structure, [x.view for x in inputs])
    if how == "one":
        how = "strided"
    outputs = [lay(rng, np.zeros_like(e), how) for e in expected]
    around = [x.copy() for x in outputs]
    fused_case.run(isa, structure, [x.view for x in outputs], [x.view for x in inputs])
    for got, value, other in zip(outputs, expected, around, strict=True):
        other.view[...] = value
        strided.same_bytes(got, other, (isa.name, how, count))
