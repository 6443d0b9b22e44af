"""Slices of an index that a whole network shares: all steps for some of its entries, then for the next ones."""

import string
from dataclasses import replace

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import made_anew
from slice_cases import DTYPES, RANDOM, anew  # noqa: F401
from slice_cases import check_exact, check_strands, machine, operands, request_of, run, sliced, strands_of
from stored import check_storage

import einsum_engine as engine
from einsum_engine.executor import bind, run_reference
from einsum_engine.kernels.isa import active_isa, get, host_isas
from einsum_engine.planners import beside, slices
from einsum_engine.planners.build import build_plan

# A chain of matrices and vectors evaluated for many points, from its left end on.
TRAIN = "va,bv,awc,bw,cxd,bx,dye,by,ezf,bz,fAg,bA,gBh,bB,hC,bC->b"
TRAIN_SIZES = dict.fromkeys("acdefgh", 16) | dict.fromkeys("vwxyzABC", 4) | dict(b=4000)


@pytest.fixture
def always(monkeypatch):
    _always(monkeypatch)


def _always(patch):
    """Slices wherever an index is shared, short ones as well."""
    patch.setattr(slices, "GAIN", -1e9)
    patch.setattr(slices, "LEAST", 2)
    for module in (slices, beside):
        patch.setattr(module, "BATCH_LENGTH", 2)


def evaluated(arrays):
    """`TRAIN`, site by site."""
    sites = [np.einsum("awc,bw->bac", m, v) for m, v in zip(arrays[2:-2:2], arrays[3:-2:2])]
    found = np.einsum("va,bv->ba", *arrays[:2])
    for site in sites:
        found = np.einsum("ba,bac->bc", found, site)
    return np.einsum("ba,av,bv->b", found, *arrays[-2:])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_evaluated_for_many_points(threads):
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    f = engine.compile(TRAIN, *arrays, threads=threads)
    assert sliced(f.plan) >= 3 and "blocks" in f.explain()
    check_strands(f.plan)
    result = f(*arrays)
    wanted = evaluated(arrays)
    assert np.array_equal(result, wanted)
    for _ in range(20):
        assert np.array_equal(f(*arrays), wanted)


def test_intermediates_are_those_of_a_slice(monkeypatch):
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    request = request_of(TRAIN, arrays, "auto")
    plan = build_plan(request)
    monkeypatch.setattr(slices, "GAIN", 1e9)
    whole = build_plan(request)
    assert sliced(whole) == 1 and plan.arena_bytes < whole.arena_bytes / 3
    assert plan.flops >= whole.flops and plan.output_bytes == whole.output_bytes == 4000 * 8
    assert plan.expr == whole.expr and plan.request == whole.request and plan.path == whole.path


def test_less_gain_is_asked_where_the_second_cache_is_small(monkeypatch):
    """A network that is predicted to gain 0.24 of its time, on a machine that is the same in both plans."""
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    request = request_of(TRAIN, arrays, "auto", isa="avx2")
    found = []
    for cache in (512 << 10, 2 << 20):
        monkeypatch.setattr(slices, "GAIN", slices.least_gain(cache))
        found.append(sliced(build_plan(request, machine(get("avx2"), 256 << 10))))
    assert found[0] > 1 and found[1] == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_steps_of_slices_are_measured(threads):
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    f = engine.compile(TRAIN, *arrays, threads=threads, profile=True)
    wanted = evaluated(arrays)
    assert np.array_equal(f(*arrays), wanted)
    ((plan, profile),) = f.profiles
    assert sliced(plan) >= 3
    for step in plan.steps:
        assert profile.steps[step.number].seconds > 0 or step.kernel == "blocks"


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_instruction_set(always, dtype, isa):
    text, sizes = "va,bv,awc,bw,cx,bx->b", dict(b=53, a=3, c=5, v=2, w=3, x=2)
    arrays = operands(text, sizes, dtype)
    path = [(0, 1), (0, 4), (0, 1), (0, 2), (0, 1)]
    wanted = oracle.einsum(text, *arrays).value
    for threads in (1, 2, 3):
        plan = build_plan(request_of(text, arrays, path, threads, isa=isa.name), machine(isa))
        assert sliced(plan) >= 2
        check_strands(plan)
        assert np.array_equal(run(plan, arrays).astype(object), wanted)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_jitted_function_that_is_one_contraction(always, monkeypatch, threads):
    """It has slices, too, and its storage table says where values are while these are computed."""
    monkeypatch.setattr("einsum_engine.measured.machine", machine)
    text, sizes = "va,bv,awc,bw,cx,bx->b", dict(b=53, a=3, c=5, v=2, w=3, x=2)
    arrays = operands(text, sizes, "int64")
    path = [(0, 1), (0, 4), (0, 1), (0, 2), (0, 1)]
    function = engine.jit(lambda *given: engine.einsum(text, *given, optimize=path), threads=threads)
    assert sliced(function.plan(*arrays)) >= 2
    check_strands(function.plan(*arrays))
    assert np.array_equal(function(*arrays), oracle.einsum(text, *arrays).value)
    table = check_storage(function, *arrays)
    last = len(function.plan(*arrays).steps) - 1
    assert f"to {last}" in table.show()


@pytest.mark.parametrize("size", [31, 32, 33, 40, 47, 64, 65, 97])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_slices_that_end_early_and_those_that_fit(always, size, threads):
    """No two strands write the same entry."""
    text, path = "bij,bjk,bkl,l->bil", [(0, 1), (0, 2), (0, 1)]
    arrays = operands(text, dict(b=size, i=3, j=4, k=5, l=2), "int64")
    plan = build_plan(request_of(text, arrays, path, threads), machine(active_isa()))
    count = sliced(plan)
    assert count >= 2
    found = strands_of(plan)
    if size % -(-size // count):
        assert len({step.block[0] for step in found[-1]}) >= 2, "the last two have entries in common"
    assert np.array_equal(run(plan, arrays), np.einsum(text, *arrays))


@pytest.mark.parametrize("flush", ["start", "end"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_nothing_outside_operands_is_touched(always, dtype, flush):
    text, sizes = "vab,bv,awc,bw,cx,xb->bc", dict(b=45, a=3, c=5, v=2, w=3, x=2)
    path = [(0, 1), (0, 4), (0, 1), (0, 2), (0, 1)]
    arrays = [oracle.place(array, flush) for array in operands(text, sizes, dtype)]
    for threads in (1, 2):
        plan = build_plan(request_of(text, arrays, path, threads), machine(active_isa()))
        assert sliced(plan) >= 2
        out = oracle.place(np.zeros((45, 5), dtype), flush)
        bind(plan).run(arrays, out)
        assert np.array_equal(out, np.einsum(text, *arrays))


def test_results_in_any_order_and_operands_with_any_strides(always):
    text, path = "bij,bjk,kbl,l->lbi", [(0, 1), (0, 2), (0, 1)]
    sizes = dict(b=50, i=3, j=4, k=5, l=2)
    arrays = operands(text, sizes, "float64")
    arrays[0] = arrays[0][::-1]
    arrays[1] = np.asfortranarray(arrays[1])
    arrays[2] = np.repeat(arrays[2], 2, axis=1)[:, ::2]
    wanted = np.einsum(text, *arrays)
    for strides in (None, np.empty((2, 50, 3), order="F").strides, np.empty((2, 100, 6)).strides):
        request = request_of(text, arrays, path, 2, out_strides=strides)
        plan = build_plan(request, machine(active_isa()))
        assert sliced(plan) >= 2
        memory = np.empty(2 * 100 * 6)
        out = np.ndarray((2, 50, 3), np.float64, memory, 0, strides)
        bind(plan).run(arrays, out)
        assert np.array_equal(out, wanted)
        assert np.array_equal(run_reference(plan, arrays), wanted)


def test_an_operand_that_has_one_entry_of_it_is_read_for_all(always):
    text = "bij,bjk,bkl,bl->bi"
    arrays = operands(text, dict(b=40, i=3, j=4, k=5, l=2), "int32")
    arrays[1] = arrays[1][:1]
    plan = build_plan(request_of(text, arrays, [(0, 1), (0, 2), (0, 1)]), machine(active_isa()))
    assert sliced(plan) >= 2
    arrays[1] = np.repeat(arrays[1], 40, 0)
    assert np.array_equal(run(plan, [arrays[0], arrays[1][:1], *arrays[2:]]), np.einsum(text, *arrays))


@pytest.mark.parametrize(
    "text", ["bij,bjk,bkl,l->il", "ij,jk,kl,lb->ib"], ids=["summed", "no batch"]
)
def test_an_index_that_is_summed_or_of_one_operand_is_not_cut(always, text):
    sizes = dict(b=40, i=3, j=4, k=5, l=2)
    arrays = operands(text, sizes, "int64")
    plan = build_plan(request_of(text, arrays, [(0, 1), (0, 2), (0, 1)]), machine(active_isa()))
    assert sliced(plan) == 1


def test_what_keeps_more_or_adds_to_its_result_has_none():
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    request = request_of(TRAIN, arrays, "auto")
    assert sliced(build_plan(request)) >= 3
    for more in (dict(constants=(0,)), dict(scaled=True), dict(layouts="natural"), dict(fuse=False)):
        assert sliced(build_plan(replace(request, **more))) == 1, more
    for size in (300, 1500):
        few = operands(TRAIN, TRAIN_SIZES | dict(b=size), "float64")
        assert sliced(build_plan(request_of(TRAIN, few, "auto"))) == 1


def test_slices_of_threads_are_short_enough_for_somebody_to_look_up(monkeypatch):
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    monkeypatch.setattr(slices, "MOST_SECONDS", 1e-6)
    assert sliced(build_plan(request_of(TRAIN, arrays, "auto", 2))) == 1
    assert sliced(build_plan(request_of(TRAIN, arrays, "auto", 1))) >= 3


def test_under_a_limit_in_bytes():
    arrays = operands(TRAIN, TRAIN_SIZES, "float64")
    f = engine.compile(TRAIN, *arrays, threads=1)
    limited = engine.compile(TRAIN, *arrays, threads=1, memory_limit=f.plan.peak_bytes)
    assert limited.plan.peak_bytes <= f.plan.peak_bytes
    assert np.array_equal(limited(*arrays), f(*arrays))


@st.composite
def networks(draw):
    """A random network of which some operands have the index b, and so has the result."""
    count = draw(st.integers(3, 7))
    letters = string.ascii_letters[2 : 2 + draw(st.integers(3, 7))]
    sizes = {letter: draw(st.integers(1, 4)) for letter in letters} | {"b": draw(st.integers(17, 60))}
    terms = []
    for _ in range(count):
        term = list(draw(st.permutations(letters))[: draw(st.integers(0, 3))])
        if draw(st.integers(0, 2)) or not term:
            term.insert(draw(st.integers(0, len(term))), "b")
        terms.append("".join(term))
    terms[0] = terms[0] if "b" in terms[0] else "b" + terms[0]
    seen = dict.fromkeys("".join(terms).replace("b", ""))
    output = [letter for letter in seen if draw(st.booleans())][:3]
    output.insert(draw(st.integers(0, len(output))), "b")
    return f"{','.join(terms)}->{''.join(output)}", sizes


@RANDOM
@given(network=networks(), dtype=st.sampled_from(("float64", "complex64", "int32", "float16")), threads=st.integers(1, 3))
def test_random_networks(network, dtype, threads):
    text, sizes = network
    arrays = operands(text, sizes, dtype, seed=3)
    with pytest.MonkeyPatch.context() as patch, made_anew():
        _always(patch)
        request = request_of(text, arrays, "greedy", threads)
        plan = build_plan(request, machine(active_isa(), 1 << 9))
        if sliced(plan) > 1:
            check_strands(plan)
        out = run(plan, arrays)
    check_exact(out, text, arrays, plan)
