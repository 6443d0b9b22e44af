"""Operations of an einsum that are one step: fused products and sums, and epilogues of products."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels import registry
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.isa import active_isa
from einsum_engine.planners import epilogue, joining
from einsum_engine.planners.build import build_plan

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 0))
RANDOM = settings(
    max_examples=EXAMPLES or 70,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "bool")
DTYPES += ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# hostile to planners, not to fused kernels: Hadamard, outer, sum, scaling, diagonal, and products between them
TEXTS = (
    *("ab,ab,ab->ab", "ab,b,a->ba", "i,ij,j->", "ab,ab,ab->a", "ab,ba,ab->b", "aab,b,ab->a", "aab,ab->ba", "a,b,c->cab"),
    *("ab,ab,ab,ab,ab->", "abc,ab,bc->a", "abc,ad,d->ac", "ij,jk,ik->ik", "ij,jk,ik->ki", "ij,jk,i,k->ik", "ij,jk,i->"),
    *("bij,bjk,bik,b->bik", "ij,jk,ik,kl,il->li", "ij,jk,kk->ik", "ab,a,->ab", "ab,cd,ab,cd->ac", "ab,ac,a,a->a"),
)


@pytest.fixture
def always(monkeypatch):
    """Joined is whatever can be, however slow."""
    _always(monkeypatch)


def _always(patch):
    for name in ("GAIN", "LEAST_GAIN", "EPILOGUE_GAIN", "LEAST_EPILOGUE"):
        patch.setattr(joining, name, -1e9)
    for name in ("RUN", "COLUMNS", "CROSSWISE"):
        patch.setattr(joining, name, 0)
    patch.setattr(epilogue, "_slower", lambda *args: "")


def operands(text, sizes, dtype, seed=0):
    """Small whole numbers; of float16 so few are not 0 that no sum is rounded."""
    rng = np.random.default_rng(seed)
    terms = text.split("->")[0].split(",")
    arrays = [oracle.random(rng, [sizes[i] for i in term], dtype, exact=True) for term in terms]
    return [np.sign(a) * (rng.random(a.shape) < 0.4).astype(dtype) if dtype == "float16" else a for a in arrays]


def joined(plan):
    """What the plan does in one step: fused steps, and products with an epilogue. Warm-up has all kernels."""
    assert all(registry_names() >= set(step.args.kernels.values()) for step in plan.steps)
    return [step.expr for step in plan.steps if step.family == "fused" or abi.TILE in step.args.kernels]


@cache
def registry_names():
    return set(registry.kernel_names(active_isa()))


def plan_of(text, shapes, dtype="float32", **options):
    """On a typical machine, whatever this one is."""
    arrays = [np.ones(shape, dtype) for shape in shapes]
    return build_plan(engine.compile(text, *arrays, threads=1, **options).plan.request)


# -- what is computed --------------------------------------------------------------------------------------------------
@st.composite
def cases(draw):
    text = draw(st.sampled_from(TEXTS))
    dtype = draw(st.sampled_from(DTYPES))
    count = text.count(",") + 1
    return {
        "text": text,
        "dtype": dtype,
        "sizes": {i: draw(st.sampled_from((1, 2, 3, 5))) for i in "abcdijkl"},
        "conj": [at for at in range(count) if draw(st.sampled_from((0, 0, 0, 1)))],
        "wider": draw(st.sampled_from((0, 0, 1))),
        "out": draw(st.sampled_from(("", "", "given", "alpha", "beta", "strided"))),
        "optimize": draw(st.sampled_from((True, False))),
        "threads": draw(st.sampled_from((1, 2))),
        "transposed": draw(st.booleans()),
    }


@RANDOM
@given(case=cases())
def test_random_products_and_sums(case):
    text, dtype = case["text"], case["dtype"]
    arrays = operands(text, case["sizes"], dtype)
    if case["wider"] and dtype in ("float32", "int8", "float16"):
        arrays[0] = arrays[0].astype({"float32": "float64", "int8": "int32", "float16": "float32"}[dtype])
    if case["transposed"]:
        arrays = [np.array(a, order="F") for a in arrays]
    wanted = oracle.einsum(text, *arrays, conj=case["conj"])
    with pytest.MonkeyPatch.context() as patch:
        _always(patch)
        f = engine.compile(text, *arrays, conj=case["conj"], optimize=case["optimize"], threads=case["threads"])
        kind = np.result_type(*arrays)
        out = None
        if case["out"]:
            shape = wanted.value.shape
            out = np.zeros([2 * n for n in shape], kind)[(..., *(slice(None, None, -2) for _ in shape))]
            out = out if case["out"] == "strided" else np.zeros(shape, kind)
        scaled = case["out"] in ("alpha", "beta") and kind != bool
        if scaled:
            start = oracle.random(np.random.default_rng(1), out.shape, kind.name, exact=True)
            out[...] = start
            f = engine.compile(text, *arrays, conj=case["conj"], threads=case["threads"], alpha=2, beta=1)
        joined(f.plan)
        result = f(*arrays) if out is None else f(*arrays, out=out)
        if scaled:
            result = ((np.asarray(result) - start) / 2).astype(kind) if kind.kind in "fc" else None
        assert result is None or result.dtype == kind
    if result is not None:
        oracle.check(result, wanted, context=case)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("conj", [(0,), (1,), (2,), (0, 1), (0, 2)])
def test_conjugates_are_joined(dtype, conj, always):
    sizes = dict(zip("ab", (5, 33)))
    for text in ("ab,b,a->ab", "ab,ab,ab->ab", "ab,ab,ab->a", "ab,ab,ab->b"):
        arrays = operands(text, sizes, dtype)
        f, wanted = engine.compile(text, *arrays, conj=conj), oracle.einsum(text, *arrays, conj=conj)
        assert len(joined(f.plan)) == 1, [step.expr for step in f.plan.steps]
        oracle.check(f(*arrays), wanted)
    arrays = operands("ij,jk,ik->ik", dict(zip("ijk", (20, 7, 18))), dtype)
    f = engine.compile("ij,jk,ik->ik", *arrays, conj=[2])
    assert joined(f.plan) == ["ij,jk->ik + conj mul"]
    oracle.check(f(*arrays), oracle.einsum("ij,jk,ik->ik", *arrays, conj=[2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_fused(dtype, always):
    sizes = dict(zip("abijk", (5, 33, 20, 7, 18)))
    for text in ("ab,ab,b->ab", "ab,a,ab->b", "ij,jk,ik->ik"):
        arrays = operands(text, sizes, dtype)
        f, wanted = engine.compile(text, *arrays), oracle.einsum(text, *arrays)
        assert joined(f.plan), [step.expr for step in f.plan.steps]
        for _ in range(2):
            oracle.check(f(*arrays), wanted)
        oracle.check(engine.executor.run_reference(f.plan, arrays), wanted)


def test_halves_are_rounded_once():
    """300 * 300 is no float16, and a thousandth of that is."""
    a, small = np.full((400, 300), 300, "float16"), np.full((400, 300), 2**-10, "float16")
    f = engine.compile("ab,ab,ab->ab", a, a, small)
    plan = build_plan(f.plan.request)
    assert [step.family for step in plan.steps] == ["fused"] and plan.arena_bytes < 300_000
    assert np.array_equal(f(a, a, small), np.full((400, 300), np.float16(90000 / 1024)))
    f = engine.compile("ab,ab->a", a, a)
    assert [step.family for step in build_plan(f.plan.request).steps] == ["fused", "copy"]
    assert np.isinf(f(a, a)).all() and (f(a, small) == np.float16(90000 / 1024)).all()


def test_values_that_are_not_numbers_stay_what_they_are(always):
    a = np.array([[np.inf, 0.0, np.nan], [1e-40, -0.0, 2.0]], "float32")
    b, c = np.array([0.0, 1.0, 1.0], "float32"), np.array([1.0, -1.0], "float32")
    with np.errstate(all="ignore"):
        assert np.array_equal(engine.einsum("ab,b,a->ab", a, b, c), a * b * c[:, None], equal_nan=True)
    assert np.signbit(engine.einsum("ab,b,a->ab", a, b, c)[1]).tolist() == [True, False, True]


# -- what is joined ----------------------------------------------------------------------------------------------------
N = 400
PLANS = {
    "ab,ab,ab->ab": ((N, N),) * 3,
    "ab,b,a->ab": ((N, N), (N,), (N,)),
    "ab,ab,ab->a": ((N, N),) * 3,
    "abc,ab,bc->abc": ((60, 60, 60), (60, 60), (60, 60)),
}


@pytest.mark.parametrize("text", PLANS)
def test_a_chain_is_one_step_that_touches_each_byte_once(text):
    shapes, (terms, output) = PLANS[text], text.split("->")
    plan = plan_of(text, shapes)
    (step,) = plan.steps
    assert step.family == "fused" and sorted(step.expr.split("->")[0].split(",")) == sorted(terms.split(","))
    result = np.prod([shapes[0]["abc".index(i)] for i in output])
    assert step.bytes_moved == 4 * (sum(map(np.prod, shapes)) + result)
    assert "fused fused_run" in engine.explain.explain(plan) and f"{step.expr} " in engine.explain.explain(plan)
    two = build_plan(replace(plan.request, fuse=False))
    assert len(two.steps) == 2 and two.seconds > 1.15 * plan.seconds and two.arena_bytes > plan.arena_bytes


def test_a_sum_whose_pieces_are_many_is_joined_where_it_has_them_anyway():
    """An outer product in front of it is never written: the sum goes down the columns of its operand either way."""
    shapes = (18, 27, 4, 55, 18), (4, 27, 55), (18, 18, 55)
    (step,) = plan_of("abced,cbe,dae->cbda", shapes, "float64").steps
    assert step.family == "fused" and len(step.inputs) == 3
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype("float64") for shape in shapes]
    np.testing.assert_array_equal(engine.einsum("abced,cbe,dae->cbda", *arrays), np.einsum("abced,cbe,dae->cbda", *arrays))


@pytest.mark.parametrize(
    "text, shapes, dtype",
    [
        ("ab,ab,ab->ab", ((8, 8),) * 3, "float32"),  # in the L1 cache
        ("i,ij,j->", ((N,), (N, N), (N,)), "float32"),  # next to nothing lies between the two
        ("a,b,c->abc", ((N,), (60,), (60,)), "int8"),  # what lies between is small
        ("ab,bc,cd->ad", ((N, N),) * 3, "float32"),
        ("ab,ba,ab->ab", ((150, 150),) * 3, "complex64"),  # across
        ("abc,abd,a->ab", ((N, 6, 60), (N, 6, 60), (N,)), "float32"),  # sums of which each has an index for itself
    ],
)
def test_what_would_not_be_faster_stays(text, shapes, dtype):
    assert not joined(plan_of(text, shapes, dtype))


def test_a_real_tensor_beside_complex_ones_stays():
    a, b = np.ones((N, N)), np.ones((N, N), "complex128")
    f = engine.compile("ab,ab,ab->ab", a, b, a, optimize=False, threads=1)
    assert not joined(build_plan(f.plan.request))
    assert np.array_equal(f(a, b * 1j, a), b * 1j)


def test_epilogues_of_products():
    arrays = np.ones((N, 16), "float32"), np.ones((16, N), "float32"), np.full((N, N), 3, "float32")
    f = engine.compile("ij,jk,ik->ik", *arrays, threads=1)
    plan = build_plan(f.plan.request)
    assert [step.expr for step in plan.steps if step.family != "pack"] == ["ij,jk->ik + mul"]
    assert "ij,jk->ik + mul" in engine.explain.explain(plan)
    two = build_plan(replace(plan.request, fuse=False))
    assert plan.arena_bytes + 4 * N * N <= two.arena_bytes and plan.bytes_moved == two.bytes_moved - 8 * N * N
    assert plan.flops == two.flops and two.seconds > plan.seconds
    assert (f(*arrays) == 48).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("short", [2, 4])
def test_operands_that_run_along_few_lanes_are_read_by_a_step(dtype, short):
    """Which repeats their entries in vectors, where an epilogue would be called for each."""
    shapes = (2, 100, short), (2, 150), (100, 150)
    x, w, d = ((np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype) for shape in shapes)
    f = engine.compile("kar,kb,ab->abr", x, w, d, optimize=[(0, 1), (0, 1)], threads=1)
    assert [step.family for step in build_plan(f.plan.request).steps if step.family != "pack"] == ["gemm", "mul"]
    assert np.array_equal(f(x, w, d), np.einsum("kar,kb,ab->abr", x, w, d))


def test_an_epilogue_narrows():
    a, b = np.ones((N, 16), "float16"), np.ones((16, N), "float16")
    plan = plan_of("ij,jk->ik", (a.shape, b.shape), "float16")
    assert plan.steps[-1].expr == "ij,jk->ik + cast" and plan.buffers[plan.steps[-1].output].dtype == "float16"
    assert (engine.einsum("ij,jk->ik", a, b) == 16).all()


def test_what_is_read_twice_is_not_joined(always):
    """Products that are computed once for two readers, as in `sharing`."""
    a, b, c = np.full((20, 20), 2.0), np.full((20, 20), 3.0), np.arange(20.0)
    f = engine.compile("ab,ab,ab,ab,a->b", a, b, a, b, c, optimize=[(0, 1), (0, 1), (1, 2), (0, 1)])
    assert np.array_equal(f(a, b, a, b, c), np.einsum("ab,ab,ab,ab,a->b", a, b, a, b, c))


def test_constants_are_not_joined_with_what_changes(always):
    a, b, c = (np.full((30, 30), n) for n in (2.0, 3.0, 5.0))
    f = engine.compile("ab,ab,ab->ab", a, b, c, constants=[0, 1], optimize=[(0, 1), (0, 1)])
    assert [step.once for step in f.plan.steps] == [True, False] and (f(c) == 30).all()


def test_a_limit_that_only_single_steps_meet(monkeypatch):
    """Fused, four products are there at a time beside the result; one after the other, three."""
    monkeypatch.setattr(joining, "LEAST_EPILOGUE", 1.0)
    n, text = 400, "ai,ib,aj,jb,ak,kb,al,lb->ab"
    arrays = [np.ones((n, 4) if at % 2 == 0 else (4, n)) for at in range(8)]
    path = [(0, 1), (0, 1), (4, 5), (0, 1), (2, 3), (0, 1), (0, 1)]
    free = engine.compile(text, *arrays, optimize=path, threads=1).plan
    assert joined(free) == ["ab,ab,ab,ab->ab"]
    single = build_plan(replace(free.request, fuse=False))
    assert free.peak_bytes > single.peak_bytes + 8 * n * n - 10_000
    f = engine.compile(text, *arrays, optimize=path, threads=1, memory_limit=f"{single.peak_bytes + 1000}B")
    assert not joined(f.plan) and f.plan.peak_bytes <= single.peak_bytes + 1000 and (f(*arrays) == 256).all()


def test_a_profile_shows_fused_steps():
    arrays = [np.ones((N, N), "float32")] * 3
    f = engine.compile("ab,bc,ac->ac", *arrays, threads=1, profile=True)
    g = engine.compile("ab,ab,ab->a", *[a.copy() for a in arrays], threads=1, profile=True)
    for each in (f, g):
        each(*arrays)
        ((plan, profile),) = each.profiles
        assert all(time.seconds > 0 for time in profile.steps) and "measured" in engine.explain.explain(plan, profile)


def test_functions_join_as_einsum_does():
    arrays = [np.ones((N, N), "float32"), np.ones(N, "float32"), np.full(N, 2, "float32")]
    jitted = engine.jit(lambda a, b, c: np.tanh(np.einsum("ab,b,a->ab", a, b, c)))
    assert (jitted(*arrays) == np.tanh(np.float32(2))).all()
    assert jitted.plan(*arrays).steps[0].family == "fused"
