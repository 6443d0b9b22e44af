"""Slices of an index of the result, one for each thread."""

import string
from dataclasses import replace

import numpy as np
import oracle
import plan_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import made_anew
from slice_cases import DTYPES, RANDOM, anew  # noqa: F401
from slice_cases import check_exact, check_strands, machine, operands, request_of, run, sliced, strands_of

import einsum_engine as engine
from einsum_engine.executor import bind, run_reference
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.planners import thread_slices
from einsum_engine.planners.build import PlanBuilder, build_plan

# Figure 22 of the thesis, whose operands have a and b in common; no step of it takes long.
NETWORK = "abczef,reaqb,oz,abqsa,feabo->asrbc"
SIZES = dict.fromkeys("abczefrqos", 8)
PATH = [(2, 4), (0, 3), (0, 1), (0, 1)]
CHAIN = "ij,jk,kl,lm->im"
CHAIN_PATH = [(0, 1), (0, 2), (0, 1)]


@pytest.fixture
def always(monkeypatch):
    _always(monkeypatch)


def _always(patch):
    """Slices wherever the result has an index that can be cut."""
    patch.setattr(thread_slices, "_is_short", lambda *given: False)
    for name, value in (("LEAST_SECONDS", 0.0), ("GAIN", -1e9), ("GAIN_RATE", 0.0), ("MOST_OUTSIDE", 1.0)):
        patch.setattr(thread_slices, name, value)


def plan_of(text, arrays, path, threads=2, **more):
    isa = active_isa()
    return build_plan(request_of(text, arrays, path, threads, **more), machine(isa, 1 << 20))


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32"])
def test_threads_share_a_network_of_short_steps(dtype, threads):
    arrays = operands(NETWORK, SIZES, dtype)
    plan = plan_of(NETWORK, arrays, PATH, threads)
    assert sliced(plan) == {2: 2, 3: 2, 4: 4}[threads] and len(strands_of(plan)) == sliced(plan)
    check_strands(plan)
    assert not [step for step in plan.steps if not step.depth and step.kernel != "blocks"], "all have the index"
    wanted = np.einsum(NETWORK, *(x.astype(np.int64) for x in map(np.real, arrays)), optimize=True)
    assert np.array_equal(run(plan, arrays), wanted)


@pytest.mark.parametrize(
    "text, sizes, index",
    [
        (NETWORK, SIZES, "a"),  # of all operands but one, slowest in the result
        ("aij,jk,akl,lm->mia", dict(a=16, i=64, j=32, k=32, l=32, m=64), "m"),  # a is fastest in the result: lines of it
        ("ij,jk,kl,lm->im", dict(i=64, j=64, k=64, l=64, m=2), "i"),
    ],
)
def test_the_index_that_moves_least(always, text, sizes, index):
    arrays = operands(text, sizes, "float32")
    path = PATH if text == NETWORK else CHAIN_PATH
    here = machine(active_isa(), 1 << 20)
    listed = PlanBuilder(request_of(text, arrays, path, 2), here).list
    listed.build()
    found = thread_slices.find_thread_slices(listed, here)
    assert found.index == index and found.starts == (0, sizes[index] // 2) and found.strands == (1, 1)


def test_one_thread_has_none_and_short_networks_have_none():
    arrays = operands(NETWORK, SIZES, "float32")
    assert sliced(plan_of(NETWORK, arrays, PATH, 1)) == 1
    few = operands(NETWORK, dict.fromkeys(SIZES, 4), "float32")
    assert sliced(plan_of(NETWORK, few, PATH)) == 1


def test_long_steps_are_shared_as_they_are():
    """Each step takes milliseconds: nothing is gained by doing all of them for half of the rows."""
    arrays = operands(CHAIN, dict.fromkeys("ijklm", 1000), "float32")
    assert sliced(plan_of(CHAIN, arrays, CHAIN_PATH)) == 1


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_instruction_set(always, dtype, isa):
    text, sizes = "aij,jk,akl,lm->aim", dict(a=12, i=3, j=5, k=4, l=2, m=9)
    arrays = operands(text, sizes, dtype)
    wanted = oracle.einsum(text, *arrays).value
    for threads in (2, 3):
        plan = build_plan(request_of(text, arrays, CHAIN_PATH, threads, isa=isa.name), machine(isa))
        assert sliced(plan) >= 2
        check_strands(plan)
        assert np.array_equal(run(plan, arrays).astype(object), wanted)


@pytest.mark.parametrize("size, count", [(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (6, 3), (8, 4), (9, 3), (10, 2)])
def test_slices_are_equal_and_have_two_entries_at_least(always, size, count):
    """Two strands that had an entry in common would write the same bytes. Only i can be cut."""
    arrays = operands(CHAIN, dict(i=size, j=4, k=3, l=5, m=7), "int64")
    plan = plan_of(CHAIN, arrays, CHAIN_PATH, 4)
    assert sliced(plan) == count
    assert np.array_equal(run(plan, arrays), np.linalg.multi_dot(arrays))


def test_no_two_threads_write_a_line(always):
    """Rows of the result have 7 elements of 8 bytes: two entries of i are more than a line, two of m are not."""
    for text, count in (("ij,jk,kl,lm->im", 2), ("ij,jk,kl,lm->mi", 1)):
        arrays = operands(text, dict(i=4, j=4, k=3, l=5, m=7), "int64")
        plan = plan_of(text, arrays, CHAIN_PATH)
        assert sliced(plan) == count
        assert np.array_equal(run(plan, arrays), np.einsum(text, *arrays))


def test_results_in_any_order_and_operands_with_any_strides(always):
    text, sizes = "bij,bjk,kbl,l->lbi", dict(b=8, i=6, j=4, k=5, l=2)
    arrays = operands(text, sizes, "float64")
    arrays[0], arrays[1] = arrays[0][::-1], np.asfortranarray(arrays[1])
    arrays[2] = np.repeat(arrays[2], 2, axis=1)[:, ::2]
    wanted = np.einsum(text, *arrays)
    for strides in (None, np.empty((2, 8, 6), order="F").strides, np.empty((2, 16, 12)).strides):
        plan = plan_of(text, arrays, CHAIN_PATH, out_strides=strides)
        assert sliced(plan) >= 2
        out = np.ndarray((2, 8, 6), np.float64, np.empty(2 * 16 * 12), 0, strides)
        bind(plan).run(arrays, out)
        assert np.array_equal(out, wanted) and np.array_equal(run_reference(plan, arrays), wanted)


@pytest.mark.parametrize("flush", ["start", "end"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_nothing_outside_operands_is_touched(always, dtype, flush):
    text, sizes = "aij,jk,akl,lm->aim", dict(a=12, i=3, j=5, k=4, l=2, m=9)
    arrays = [oracle.place(array, flush) for array in operands(text, sizes, dtype)]
    plan = plan_of(text, arrays, CHAIN_PATH)
    assert sliced(plan) >= 2
    out = oracle.place(np.zeros((12, 3, 9), dtype), flush)
    bind(plan).run(arrays, out)
    assert np.array_equal(out, np.einsum(text, *arrays))


def test_a_diagonal_and_an_operand_that_has_one_entry():
    text, sizes = "aij,ajk,kla,la->ial", dict(a=8, i=4, j=5, k=3, l=16)
    with pytest.MonkeyPatch.context() as patch:
        _always(patch)
        arrays = operands(text, sizes, "int64")
        whole = operands("aaij", sizes, "int64")
        arrays[1] = arrays[1][:1]
        text = "aaij,ajk,kla,la->ial"
        plan = plan_of(text, [*whole, *arrays[1:]], CHAIN_PATH)
        assert sliced(plan) >= 2
        given = [whole[0], np.repeat(arrays[1], 8, 0), *arrays[2:]]
        assert np.array_equal(run(plan, [*whole, *arrays[1:]]), np.einsum(text, *given))


def test_what_keeps_more_or_adds_to_its_result_has_none(always):
    arrays = operands(NETWORK, SIZES, "float32")
    request = request_of(NETWORK, arrays, PATH, 2)
    assert sliced(build_plan(request)) >= 2
    for more in (dict(constants=(0,)), dict(scaled=True), dict(layouts="natural"), dict(fuse=False)):
        assert sliced(build_plan(replace(request, **more))) == 1, more


def test_strands_are_short_enough_for_somebody_to_look_up(always, monkeypatch):
    arrays = operands(NETWORK, SIZES, "float32")
    monkeypatch.setattr(thread_slices, "MOST_SECONDS", 1e-9)
    assert sliced(plan_of(NETWORK, arrays, PATH)) == 1


def test_calls_are_repeated_and_measured():
    arrays = operands(NETWORK, SIZES, "float32")
    wanted = np.einsum(NETWORK, *arrays, optimize=True)
    with plan_cases.machine():
        f = engine.compile(NETWORK, *arrays, optimize=PATH, threads=2, profile=True)
        for _ in range(20):
            assert np.array_equal(f(*arrays), wanted)
        ((plan, profile),) = f.profiles
    assert sliced(plan) == 2
    assert all(profile.steps[step.number].seconds > 0 for step in plan.steps if step.depth)


@st.composite
def networks(draw):
    count = draw(st.integers(2, 6))
    letters = string.ascii_letters[: draw(st.integers(3, 8))]
    sizes = {letter: draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for letter in letters}
    terms = ["".join(draw(st.permutations(letters))[: draw(st.integers(1, 4))]) for _ in range(count)]
    seen = dict.fromkeys("".join(terms))
    output = draw(st.permutations([letter for letter in seen if draw(st.booleans())]))[:4]
    return f"{','.join(terms)}->{''.join(output)}", sizes


@RANDOM
@given(network=networks(), dtype=st.sampled_from(("float64", "complex64", "int32", "float16")), threads=st.integers(2, 4))
def test_random_networks(network, dtype, threads):
    text, sizes = network
    arrays = operands(text, sizes, dtype, seed=3)
    with pytest.MonkeyPatch.context() as patch, made_anew():
        _always(patch)
        plan = build_plan(request_of(text, arrays, "greedy", threads), machine(active_isa()))
        if sliced(plan) > 1:
            check_strands(plan)
        out = run(plan, arrays)
    check_exact(out, text, arrays, plan)
