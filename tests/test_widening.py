"""Operands of a narrower dtype than is computed in: widened by packing where a GEMM packs, else by a step before."""

import numpy as np
import oracle
import pytest
from dense import kind_of, numpy_dtype
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_cases import QUICK_MEMORY, machine

import einsum_engine as engine
from einsum_engine.kernels import isa
from einsum_engine.planners import casts

# dtypes of two operands, with the one that is computed in
PAIRS = (
    *(("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32"), ("float16", "float32", "float32")),
    *(("bfloat16", "float64", "float64"), ("int16", "float32", "float32"), ("float64", "uint64", "float64")),
    *(("int8", "int64", "int64"), ("int32", "uint8", "int32"), ("bool", "int16", "int16")),
    *(("complex64", "complex128", "complex128"), ("complex64", "float16", "complex64")),
    *(("complex64", "float64", "complex128"), ("bfloat16", "complex128", "complex128")),
)
RANDOM = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
every_pair = pytest.mark.parametrize("left, right, compute", PAIRS)


def _random(rng, shape, name: str) -> np.ndarray:
    """Floats around 1; small integers, so that products with floats stay small."""
    values = oracle.random(rng, shape, numpy_dtype(name))
    return values % 5 if values.dtype.kind in "iu" else values


def _families(plan) -> list[str]:
    return [step.family for step in plan.steps]


def _check(got: np.ndarray, equation: str, arrays, compute: str, terms: int, conj=()) -> None:
    """Exact for integers, else within ``4 (K + 2) eps |A||B|`` and a rounding to the dtype of the result."""
    wide = {"i": np.int64, "f": np.float64, "c": np.complex128}[numpy_dtype(compute).kind]
    values = [array.astype(wide) for array in arrays]
    values = [value.conj() if position in conj else value for position, value in enumerate(values)]
    expected = np.einsum(equation, *values, optimize=True)
    if wide is np.int64:
        assert np.array_equal(got, expected.astype(got.dtype))
        return
    magnitude = np.einsum(equation, *map(abs, values), optimize=True)
    bound = 4 * (terms + 2) * np.finfo(compute).eps * magnitude
    if got.dtype.itemsize == 2:
        bound = bound + (2.0**-7 if got.dtype.kind == "V" else 2.0**-10) * abs(expected) + 2.0**-24
    wrong = ~(abs(got.astype(wide) - expected) <= bound)  # NaN is wrong
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"


# -- plans ---------------------------------------------------------------------------------------------------------
@every_pair
@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,nk->mn", "km,kn->nm", "bkm,nkb->bmn"])
def test_a_gemm_needs_no_cast(left, right, compute, equation):
    """Each operand is read once, in its own width; what is cast is the result of halves alone."""
    sizes = dict(m=130, k=140, n=150, b=3)
    shapes = [[sizes[letter] for letter in term] for term in equation.split("->")[0].split(",")]
    rng = np.random.default_rng(0)
    arrays = [_random(rng, shape, name) for shape, name in zip(shapes, (left, right))]
    f = engine.compile(equation, *arrays, threads=2)
    plan = f.plan
    halves = plan.dtype in ("float16", "bfloat16")
    assert plan.compute_dtype == compute and _families(plan).count("copy") == halves
    assert [step.family for step in plan.steps if step.family != "pack"] == ["gemm", *["copy"] * halves]
    read = [sum(number in step.inputs for step in plan.steps if step.family == "pack") for number in (0, 1)]
    assert max(read) <= 1
    _check(f(*arrays), equation, arrays, compute, sizes["k"])


def test_bytes_are_those_of_the_narrow_operand():
    """2 bytes an element are read where it is packed, 4 where its panels are."""
    m, k, n = 300, 200, 1000
    a, b = np.ones((m, k), np.float16), np.ones((k, n), np.float16)
    with machine(**QUICK_MEMORY):
        f = engine.compile("mk,kn->mn", a, b, threads=1)
    pack, gemm, cast = f.plan.steps
    assert (pack.kernel, pack.bytes_moved) == ("pack_float16_float32", m * k * (2 + 4))
    assert gemm.bytes_moved == m * k * 4 + k * n * 2 + m * n * 4
    assert cast.bytes_moved == m * n * (4 + 2)
    assert f.plan.bytes_moved == pack.bytes_moved + gemm.bytes_moved + cast.bytes_moved
    text = f.explain()
    assert "pack_float16_float32" in text and "panels pack:float16" in text
    assert "nest_cast_float16_float32" not in text
    few = engine.compile("mk,kn->mn", a[:120, :120], b[:120, :120], threads=1)
    gemm, cast = few.plan.steps
    assert gemm.bytes_moved == 120 * 120 * (2 + 2 + 4) and "pack:float16 pack:float16" in few.explain()


def test_small_operands_are_cast():
    """They are read in place after that; beside a large one too."""
    a, b = np.ones((70, 70), np.float16), np.ones((70, 7000), np.float16)
    assert _families(engine.compile("mk,nk->mn", a, a).plan) == ["copy", "copy", "gemm", "copy"]
    f = engine.compile("mk,kn->mn", a, b)
    kernels = [step.kernel for step in f.plan.steps]
    assert kernels.count("nest_cast_float16_float32") == 1 and "pack:float16" in f.explain()
    assert (f(a, b) == 70).all()


@pytest.mark.parametrize(
    "equation, shapes, family",
    [
        ("i,i->", [(500,)] * 2, "dot"),
        ("ij,j->i", [(30, 100), (100,)], "dot"),
        ("bij,bjk->bik", [(50, 4, 4)] * 2, "small"),
        ("ijb,jkb->ikb", [(3, 4, 64), (4, 5, 64)], "batched"),
        ("ij,ij->ij", [(30, 40)] * 2, "mul"),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_reads_in_place_keeps_the_cast(equation, shapes, family, dtype):
    rng = np.random.default_rng(1)
    arrays = [_random(rng, shape, dtype) for shape in shapes]
    # a cast keeps the order of its operand, whatever that is
    for operands in (arrays, [array[::-1] for array in arrays]):
        f = engine.compile(equation, *operands)
        assert _families(f.plan) == ["copy", "copy", family, "copy"]
        _check(f(*operands), equation, operands, "float32", 500)


def test_casts_that_packing_does_not_do():
    """Narrower dtypes and the other byte order."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 130, 130))
    f = engine.compile("ij,jk->ik", a, b, dtype="float32", casting="same_kind")
    assert _families(f.plan).count("copy") == 2
    _check(f(a, b), "ij,jk->ik", [a.astype("f4"), b.astype("f4")], "float32", 130)
    swapped = a.astype(">f2")
    f = engine.compile("ij,jk->ik", swapped, b.astype("f2"))
    assert _families(f.plan).count("copy") == 2
    _check(f(swapped, b.astype("f2")), "ij,jk->ik", [swapped, b.astype("f2")], "float32", 130)


@pytest.mark.parametrize("position", [0, 1])
def test_constants_are_widened_once(position):
    rng = np.random.default_rng(3)
    arrays = [_random(rng, (150, 150), "bfloat16") for _ in range(2)]
    f = engine.compile("ij,jk->ik", *arrays, constants=[position])
    packs = [step for step in f.plan.steps if step.family == "pack"]
    assert [step.once for step in packs if step.inputs == (position,)] == [True]
    assert f.plan.constant_bytes >= 150 * 150 * 4
    for _ in range(2):
        other = _random(rng, (150, 150), "bfloat16")
        operands = [arrays[0], other] if position == 0 else [other, arrays[1]]
        _check(f(other), "ij,jk->ik", operands, "float32", 150)


def test_a_sum_in_a_wider_integer():
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-128, 128, (100, 100), np.int8) for _ in range(2))
    f = engine.compile("ij,jk->ik", a, b, accumulate="int32")
    assert f.plan.compute_dtype == "int32" and "copy" not in _families(f.plan)
    assert np.array_equal(f(a, b), a.astype(np.int32) @ b.astype(np.int32))


def test_intermediates_are_kept_in_the_wide_dtype():
    """One rounding at the end: halves would lose 2048 + 1."""
    a = np.ones((20, 2049), np.float16)
    b, c = np.ones((2049, 130), np.float16), np.full((130, 140), 2.0**-7, np.float16)
    f = engine.compile("ij,jk,kl->il", a, b, c, optimize=False)
    assert _families(f.plan).count("copy") == 1
    assert (f(a, b, c) == np.float16(2049 * 130 / 128)).all()


# -- values --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ji,kj->ki"])
def test_special_values_reach_the_product(row, dtype, equation, monkeypatch):
    """Denormals exactly; NaN and infinities where float32 has them."""
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    kind, size = numpy_dtype(dtype), 128
    finite = 0x7C00 if dtype == "float16" else 0x7F80
    bits = np.random.default_rng(5).integers(0, finite, (size, size), np.uint16)
    bits[::2] %= 0x80  # denormals
    a = (bits | np.random.default_rng(6).integers(0, 2, bits.shape, np.uint16) << 15).view(kind)
    one = np.eye(size).astype(kind)
    f = engine.compile(equation, a, one)
    assert "copy" not in _families(f.plan)[:-1]
    assert np.array_equal(f(a, one), a)
    a = a.copy()
    a[3, 5], a[7, 7], a[20, 1], a[20, 2] = np.inf, np.nan, np.inf, -np.inf
    b = np.ones((size, size), kind)
    with np.errstate(all="ignore"):
        expected = np.einsum(equation, a.astype(np.float32), b.astype(np.float32))
        got = f(a, b).astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(expected)) and np.isnan(got).any()
    infinite = np.isinf(expected)
    assert infinite.any() and np.array_equal(got[infinite], expected[infinite])


@st.composite
def contractions(draw):
    """Two operands of several dtypes, axes in any order, reversed or with steps, flush against guard pages."""
    letters = "abcde"
    sizes = {letter: draw(st.integers(1, 40)) for letter in letters}
    sizes["e"] = draw(st.integers(1, 4))
    terms = [draw(st.permutations(["a", "c", "d", "e"])), draw(st.permutations(["b", "c", "d", "e"]))]
    terms = [[letter for letter in term if letter != "d" or draw(st.booleans())] for term in terms]
    left = [letter for letter in ("a", "b", "d", "e") if letter in terms[0] + terms[1]]
    output = draw(st.permutations([letter for letter in left if letter in "ab" or draw(st.booleans())]))
    left, right, compute = draw(st.sampled_from(PAIRS))
    if draw(st.booleans()):
        left, right = right, left
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    arrays = [_array(draw, rng, [sizes[letter] for letter in term], name) for term, name in zip(terms, (left, right))]
    equation = f"{''.join(terms[0])},{''.join(terms[1])}->{''.join(output)}"
    summed = [letter for letter in letters if letter in terms[0] + terms[1] and letter not in output]
    return equation, arrays, compute, int(np.prod([sizes[letter] for letter in summed]))


def _array(draw, rng, shape, name) -> np.ndarray:
    array = _random(rng, shape, name)
    order = draw(st.permutations(range(len(shape))))
    array = array.transpose(order).copy().transpose(np.argsort(order))
    for axis in range(len(shape)):
        at = (slice(None),) * axis
        change = draw(st.sampled_from(["", "", "", "reverse", "step"]))
        if change == "reverse":
            array = array[(*at, slice(None, None, -1))]
        elif change == "step":
            array = np.repeat(array, 2, axis)[(*at, slice(None, None, 2))]
    return oracle.place(array, draw(st.sampled_from(["start", "end"])))


@RANDOM
@given(
    case=contractions(),
    conj=st.sets(st.integers(0, 1)),
    row=st.sampled_from(isa.host_isas()),
    threads=st.integers(1, 2),
    small=st.sampled_from([0, 0, casts.SMALL_BYTES]),
)
def test_random_contractions(case, conj, row, threads, small):
    equation, arrays, compute, terms = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSUM_ENGINE_ISA", row.name)
        patch.setattr(casts, "SMALL_BYTES", small)
        engine.clear_cache()
        got = engine.einsum(equation, *arrays, conj=sorted(conj), threads=threads)
    wanted = np.result_type(*arrays)
    assert np.asarray(got).dtype == wanted and kind_of(wanted) in "ifc"
    _check(np.asarray(got), equation, arrays, compute, terms, conj if kind_of(wanted) == "c" else ())
