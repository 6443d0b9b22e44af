"""Every scalar operation of fused kernels on every dtype, instruction set and way to lie in memory, against NumPy."""

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


def inside(op: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arguments for which NumPy says what the result is."""
    if op == "pow" and arrays[0].dtype.kind in "i":
        return [arrays[0], np.abs(arrays[1]) % 9]
    if arrays[0].dtype.kind == "c" and op in ("mul", "div", "abs", "eq"):
        # of infinite and huge complex numbers compilers make different things
        keep = np.all([np.isfinite(a) & (np.abs(a.real) < 1e30) & (np.abs(a.imag) < 1e30) for a in arrays], axis=0)
        return [a[keep] for a in arrays]
    if arrays[0].dtype.kind == "c" and op in ("pow", "expm1", "log1p"):
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


OPERATIONS = [(op, dtype) for op, row in fs.SCALARS.items() for dtype in row.dtypes]
OUTER = {isa.name for isa in (host_isas()[0], host_isas()[-1])}


@ISAS
@pytest.mark.parametrize("op, dtype", OPERATIONS)
def test_values(isa, op, dtype):
    if isa.name not in OUTER and op not in fused_case.EXACT and dtype in fs.FLOATS + fs.COMPLEX:
        pytest.skip("functions of real numbers are in test_mathlib, those of complex ones are put together from them: two sets do")
    if isa.name not in OUTER and dtype.startswith("uint"):
        pytest.skip("one code for all sets but for how long vectors are: two sets do")
    rng = np.random.default_rng(3)
    arrays = inside(op, operands(rng, (dtype,) * fs.SCALARS[op].arity, 200))
    got = fused_case.apply(isa, op, *arrays)
    structure = fused_case.single(op, (dtype,) * len(arrays))
    (expected,) = evaluate(structure, arrays)
    ulp = 0 if dtype not in fs.FLOATS + fs.COMPLEX or op in fused_case.EXACT else NEAR.get(op, 4)
    if dtype in fs.COMPLEX:
        ulp = COMPLEX_NEAR.get(op, 0 if op in fused_case.EXACT else 8)
    close(got, expected, ulp, (isa.name, op, dtype))


@ISAS
@pytest.mark.parametrize("target", CASTS)
@pytest.mark.parametrize("source", CASTS)
def test_casts(isa, source, target):
    if "bfloat16" in (source, target):
        pytest.importorskip("ml_dtypes")
    if isa.name not in OUTER and not {source, target} & {"float16", "bfloat16", "uint64"}:
        pytest.skip("one instruction on each set: two sets do")
    rng = np.random.default_rng(5)
    values = oracle.random(rng, (67,), "float64") * 30
    if "uint" in source + target or source == "bool":
        values = np.abs(values)
    g = fs.Graph(("float64",))
    start = g.cast(0, source)
    structure = g.structure(g.cast(start, target))
    (expected,) = evaluate(structure, [values])
    got = np.empty(expected.shape, expected.dtype)
    fused_case.run(isa, structure, [got], [values])
    np.testing.assert_array_equal(got, expected)


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
