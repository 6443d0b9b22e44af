"""Hadamard products that the product behind them makes for itself, block by block: prologues of einsums."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_cases import machine
from test_joining import DTYPES, operands

import einsum_engine as engine
from einsum_engine.kernels import prologue as tables
from einsum_engine.kernels import registry
from einsum_engine.kernels.cpu import abi, cores
from einsum_engine.kernels.isa import get, host_isas
from einsum_engine.planners import epilogue, joining, staging
from einsum_engine.planners.build import build_plan

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 0))
RANDOM = settings(
    max_examples=EXAMPLES or 80,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# the operands of an element-wise product, then that of the product which reads it; more of either behind them
FIRST = [(0, 1), (0, 1)]
TEXTS = {
    **dict.fromkeys(("ab,ab,bc->ac", "ab,ab,bc->ca", "ba,ba,bc->ac", "ba,ba,cb->ca", "ab,ba,bc->ac", "ba,ab,cb->ac"), FIRST),
    **dict.fromkeys(("ab,b,bc->ac", "ab,a,bc->ca", "a,ba,bc->ca", "aab,ab,bc->ac", "a,b,abc->c", "ab,ab,bc->c"), FIRST),
    **dict.fromkeys(("xab,xab,xbc->xac", "xab,ab,xbc->axc", "xba,ax,xbc->xca", "abk,kab,kbc->ac", "abk,ak,kbc->ac"), FIRST),
    **dict.fromkeys(("ab,ab,b,bc->ac", "ba,ab,ba,cb->ca"), [(0, 1), (0, 2), (0, 1)]),
    "ab,ab,bc,ac->ac": [(0, 1), (0, 2), (0, 1)],
    "ab,ab,bc,bc->ac": [(0, 1), (0, 1), (0, 1)],
    "ab,ab,bc,cd->ad": [(0, 1), (0, 2), (0, 1)],
}


def _always(patch):
    """Operands are made by products wherever that is right, however small and slow."""
    patch.setattr(joining, "EPILOGUE_GAIN", -1e9)
    patch.setattr(joining, "LEAST_EPILOGUE", -1e9)
    patch.setattr(joining, "LARGE_PROLOGUE", 0)
    for module in (staging, epilogue):
        patch.setattr(module, "_slower", lambda *args: "")


@pytest.fixture
def always(monkeypatch):
    _always(monkeypatch)


@cache
def names_of(isa):
    return set(registry.kernel_names(get(isa)))


def blocks_of(patch, nbytes):
    for name in ("STAGE_BYTES", "STRIP_BYTES", "OTHER_BYTES", "LONG_RUN"):
        patch.setattr(tables, name, nbytes)


def staged(plan):
    """For each product of the plan that makes an operand, which: 0 is the lanes side. Warm-up has all kernels."""
    assert all(names_of(plan.isa) >= set(step.args.kernels.values()) for step in plan.steps)
    return [step.args.words[abi.G_STAGED] for step in plan.steps if abi.G_STAGE in step.args.kernels]


def strided(array, kind):
    """The same values, lying otherwise."""
    if kind == "F":
        return np.array(array, order="F")
    if kind in ("backwards", "apart"):
        step = -2 if kind == "backwards" else 3
        memory = np.zeros([n * abs(step) for n in array.shape], array.dtype)
        view = memory[tuple(slice(None, None, step) for _ in array.shape)]
        view[...] = array
        return view
    return array


# -- what is computed --------------------------------------------------------------------------------------------------
@st.composite
def cases(draw):
    text = draw(st.sampled_from(sorted(TEXTS)))
    count = text.count(",") + 1
    return {
        "text": text,
        "dtype": draw(st.sampled_from(DTYPES)),
        "sizes": {i: draw(st.sampled_from((1, 2, 3, 5, 17))) for i in "abcdkx"},
        "conj": [at for at in range(count) if draw(st.sampled_from((0, 0, 0, 1)))],
        "lie": [draw(st.sampled_from(("C", "C", "F", "backwards", "apart"))) for _ in range(count)],
        "out": draw(st.sampled_from(("", "given", "strided"))),
        "threads": draw(st.sampled_from((1, 2))),
        "bytes": draw(st.sampled_from((1 << 8, 1 << 18))),
    }


@RANDOM
@given(case=cases())
def test_random_products(case):
    text, sizes = case["text"], case["sizes"]
    arrays = [strided(a, lie) for a, lie in zip(operands(text, sizes, case["dtype"]), case["lie"])]
    wanted = oracle.einsum(text, *arrays, conj=case["conj"])
    with pytest.MonkeyPatch.context() as patch:
        _always(patch)
        blocks_of(patch, case["bytes"])
        f = engine.compile(text, *arrays, conj=case["conj"], optimize=TEXTS[text], threads=case["threads"])
        staged(f.plan)
        out = None
        if case["out"]:
            out = strided(np.zeros(wanted.value.shape, case["dtype"]), "backwards" if case["out"] == "strided" else "C")
        for _ in range(2):
            result = f(*arrays) if out is None else f(*arrays, out=out)
            assert result.dtype == case["dtype"]
            oracle.check(result, wanted, context=case)


SIDES = {"ba,ba,bc->ca": abi.STAGED_A, "ab,ab,bc->ac": abi.STAGED_B, "xab,xab,xbc->xac": abi.STAGED_B}
SIZES = {"a": 70, "b": 150, "c": 17, "x": 3}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", [isa.name for isa in host_isas()])
@pytest.mark.parametrize("text", SIDES)
def test_every_side_on_every_instruction_set(text, isa, threads, always, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", isa)
    blocks_of(monkeypatch, 4096)
    for dtype in ("float32", "float64", "complex64", "complex128", "int32"):
        arrays = operands(text, SIZES, dtype)
        f = engine.compile(text, *arrays, threads=threads, optimize=FIRST)
        packed = any(step.family == "pack" and "c" not in step.expr.split()[-1] for step in f.plan.steps)  # by a step before
        assert len(staged(f.plan)) == (0 if packed and isa == "sse2" else 1), [step.expr for step in f.plan.steps]
        wanted = np.einsum(text, *arrays, optimize=["einsum_path", *FIRST])
        for _ in range(2):
            assert np.array_equal(f(*arrays), wanted)
        assert np.array_equal(engine.executor.run_reference(f.plan, arrays), wanted)


def test_the_same_array_twice(always):
    a, c = operands("ab,bc->ac", SIZES, "float64")
    for arrays in ((a, a, c), (a, a.copy(), c)):
        f = engine.compile("ab,ab,bc->ac", *arrays, optimize=FIRST, threads=1)
        assert staged(f.plan) == [abi.STAGED_B] and np.array_equal(f(*arrays), (a * a) @ c)


def test_conjugates_and_scaled_results(always):
    a, b, c = operands("ab,ab,bc->ac", SIZES, "complex128")
    f = engine.compile("ab,ab,bc->ac", a, b, c, conj=[1, 2], optimize=FIRST)
    assert staged(f.plan) and np.array_equal(f(a, b, c), (a * b.conj()) @ c.conj())
    f, out = engine.compile("ab,ab,bc->ac", a, b, c, alpha=2, beta=1, optimize=FIRST), np.ones((70, 17), complex)
    assert np.array_equal(f(a, b, c, out=out), 2 * ((a * b) @ c) + 1)


def test_not_a_number_and_infinity(always):
    a, b, c = np.ones((40, 60)), np.ones((40, 60)), np.ones((60, 7))
    a[1, 2], a[3, 4], b[3, 4], a[5, 6], b[7, 8] = np.nan, np.inf, 0.0, -np.inf, np.inf
    f = engine.compile("ab,ab,bc->ac", a, b, c, optimize=FIRST)
    with np.errstate(invalid="ignore"):
        wanted = (a * b) @ c
    assert staged(f.plan) and np.isnan(wanted[[1, 3]]).all() and np.isinf(wanted[[5, 7]]).all()
    assert np.array_equal(f(a, b, c), wanted, equal_nan=True)


def test_with_an_epilogue(always):
    a, b, c, d = operands("ab,ab,bc,ac->ac", SIZES, "float32")
    f = engine.compile("ab,ab,bc,ac->ac", a, b, c, d, optimize=TEXTS["ab,ab,bc,ac->ac"], threads=1)
    (step,) = [step for step in f.plan.steps if step.family == "gemm"]
    assert staged(f.plan) and abi.TILE in step.args.kernels and step.expr.count("mul") == 2
    for _ in range(2):
        assert np.array_equal(f(a, b, c, d), ((a * b) @ c) * d)
    assert np.array_equal(engine.executor.run_reference(f.plan, (a, b, c, d)), ((a * b) @ c) * d)


def test_within_a_function(always):
    """The einsum of a program, between maps that may be a prologue or an epilogue themselves."""
    a, b, c = (np.abs(x) + 1 for x in operands("ab,ab,bc->ac", SIZES, "float32"))
    jitted = engine.jit(lambda a, b, c: np.sqrt(np.einsum("ab,ab,bc->ac", a + 1, b, c * 2)))
    wanted = np.sqrt(((a + 1) * b) @ (c * 2))
    for _ in range(2):
        np.testing.assert_allclose(jitted(a, b, c), wanted, rtol=1e-5)
    assert staged_rows(jitted.plan(a, b, c))


def staged_rows(plan):
    return [step.expr for step in plan.steps if abi.G_STAGE in step.args.kernels]


def test_nothing_beside_the_operands_is_read(always, monkeypatch):
    blocks_of(monkeypatch, 4096)
    for text, side in SIDES.items():
        for flush in ("start", "end"):
            arrays = [oracle.place(a, flush) for a in operands(text, SIZES, "float32")]
            f = engine.compile(text, *arrays, optimize=FIRST, threads=1)
            assert staged(f.plan) == [side]
            assert np.array_equal(f(*arrays), np.einsum(text, *arrays, optimize=["einsum_path", *FIRST]))


# -- what stays a step -------------------------------------------------------------------------------------------------
def test_what_is_read_twice_stays(always):
    a, b, c = operands("ab,ab,bc->ac", SIZES, "float64")
    arrays, path = (a, b, c, a, b, c[:, :3].copy()), [(0, 1), (1, 2), (0, 2), (0, 1), (0, 1)]
    f = engine.compile("ab,ab,bc,ae,ae,ed->acd", *arrays, optimize=path)
    assert not staged(f.plan) and sum(step.family == "mul" for step in f.plan.steps) == 2
    assert np.array_equal(f(*arrays), ((a * b) @ c)[:, :, None] * ((a * b) @ arrays[-1])[:, None])


def test_constants_stay(always):
    a, b, c = operands("ab,ab,bc->ac", SIZES, "float64")
    f = engine.compile("ab,ab,bc->ac", a, b, c, constants=[0, 1], optimize=FIRST)
    assert not staged(f.plan) and np.array_equal(f(c), (a * b) @ c)
    f = engine.compile("ab,ab,bc->ac", a, b, c, constants=[0, 2], optimize=FIRST)
    assert np.array_equal(f(b), (a * b) @ c) and np.array_equal(f(-b), -(a * b) @ c)


def test_a_real_tensor_beside_complex_ones_stays(always):
    a, c = operands("ab,bc->ac", SIZES, "complex128")
    f = engine.compile("ab,ab,bc->ac", a, a.real.copy(), c, optimize=FIRST)
    assert not staged(f.plan) and np.array_equal(f(a, a.real.copy(), c), (a * a.real) @ c)


# -- decisions ---------------------------------------------------------------------------------------------------------
def plan_of(text, sizes, monkeypatch, core, dtype="float32"):
    """On a typical machine whose core is this one."""
    monkeypatch.setattr(cores, "here", lambda: core)
    arrays = [np.zeros([sizes[i] for i in term], dtype) for term in text.split("->")[0].split(",")]
    return build_plan(engine.compile(text, *arrays, threads=1).plan.request)


LARGE, INTEL = {"a": 2000, "b": 2000, "c": 16}, cores.MAKERS["GenuineIntel"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_a_large_product_is_never_there_as_a_whole(dtype, monkeypatch):
    for core in (cores.PLAIN, INTEL):
        plan = plan_of("ab,ab,bc->ac", LARGE, monkeypatch, core, dtype)
        assert staged(plan) == [abi.STAGED_B] and plan.steps[-1].expr == "mul + bc,ab->ac"
        two = build_plan(replace(plan.request, fuse=False))
        assert plan.arena_bytes < 2000 * 2000 <= two.arena_bytes
        assert dtype == "complex64" or plan.flops == two.flops
        item = np.dtype(dtype).itemsize
        assert plan.bytes_moved == two.bytes_moved - 2 * item * 2000 * 2000
        assert 1.1 * plan.seconds < two.seconds and "mul + bc,ab->ac" in engine.explain.explain(plan)


def test_on_the_lanes_side_it_depends_on_the_core(monkeypatch):
    assert staged(plan_of("ba,ba,bc->ca", LARGE, monkeypatch, INTEL)) == [abi.STAGED_A]
    assert staged(plan_of("ba,ba,bc->ca", LARGE, monkeypatch, cores.PLAIN)) == []


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("ab,ab,bc->ac", {"a": 300, "b": 300, "c": 16}),  # in cache
        ("ab,ba,bc->ac", LARGE),  # operands do not run together
        ("ab,ab,bc->ac", LARGE | {"c": 256}),  # packed by a step before
        ("ab,b,bc->ac", LARGE),  # the small ones are multiplied first
    ],
)
def test_what_would_not_be_faster_stays(text, sizes, monkeypatch):
    for core in (cores.PLAIN, INTEL):
        assert staged(plan_of(text, sizes, monkeypatch, core)) == []


@pytest.mark.skipif("avx512" not in [isa.name for isa in host_isas()], reason="others read it in place")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_operand_that_a_step_packs_is_a_step(threads):
    """Its lanes have no places any more where the product reads it: so on a core with two units."""
    text, sizes = "dae,cgabjf,hibcj->fgdjhei", dict(d=5, a=4, e=10, c=7, g=10, b=3, j=12, f=6, h=2, i=3)
    arrays = operands(text, sizes, "float32")
    with machine(float32=2.5):
        f = engine.compile(text, *arrays, threads=threads, optimize=[(0, 2), (0, 1)])
        assert [step.family for step in f.plan.steps] == ["mul", "pack", "gemm"] and not staged(f.plan)
        assert np.array_equal(f(*arrays), np.einsum(text, *arrays, optimize=["einsum_path", (0, 2), (0, 1)]))


def test_two_threads_have_a_wide_block_each(monkeypatch):
    """On the lanes side a block runs as far as there is one for each thread."""
    monkeypatch.setattr(cores, "here", lambda: INTEL)
    arrays = [np.zeros((2000, 2100), "float32")] * 2 + [np.zeros((2000, 4), "float32")]
    for threads in (1, 2, 4):
        plan = build_plan(engine.compile("ba,ba,bc->ca", *arrays, threads=threads).plan.request)
        (step,) = [step for step in plan.steps if step.family == "gemm"]
        assert staged(plan) == [abi.STAGED_A] and step.tasks == threads
