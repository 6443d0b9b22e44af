"""Maps that are the epilogue of a product: what they compute, where they lie, and where they stay steps."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_calls import assert_like_numpy

import einsum_engine as engine
from einsum_engine import executor
from einsum_engine.kernels import epilogue as tables
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import epilogue, programs

RANDOM = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
RNG = np.random.default_rng(0)


def array(*shape, dtype="float32"):
    """Small whole numbers: sums and products of them are exact in every order."""
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    found = RNG.integers(0 if dtype.startswith("u") else -3, 4, shape).astype(dtype)
    return found + 1j * RNG.integers(-2, 3, shape) if dtype.startswith("complex") else found


@pytest.fixture
def always(monkeypatch):
    """Epilogues wherever they are right, however slow."""
    monkeypatch.setattr(epilogue, "_slower", lambda *args: "")


@pytest.fixture
def whys(monkeypatch):
    """What was decided about each contraction and the map behind it."""
    found = []

    def asking(*args):
        found.append(epilogue.epilogue(*args))
        return found[-1]

    monkeypatch.setattr(programs, "epilogue", asking)
    return found


def fused(jitted, *arrays) -> list[bool]:
    """For each product of the plan, whether it has an epilogue."""
    return [abi.TILE in step.args.words | step.args.kernels for step in jitted.plan(*arrays).steps if step.family == "gemm"]


def check(function, *arrays, steps=1, exact=True):
    """Runs a function three times like NumPy; its plan has one product, with an epilogue, and so many steps."""
    jitted = assert_like_numpy(function, *arrays, **({"rtol": 0} if exact else {}))
    plan = jitted.plan(*arrays)
    assert fused(jitted, *arrays) == [True], [step.expr for step in plan.steps]
    assert len([step for step in plan.steps if step.family != "pack"]) == steps
    return plan


# -- what is computed --------------------------------------------------------------------------------------------------
SIZES = (1, 2, 7, 16, 33, 65)
DTYPES = ("float32", "float64", "int32", "int16", "uint8", "int64", "complex64", "complex128", "bool")
TERMS = ("mk,kn->mn", "km,nk->mn", "mk,nk->nm", "amk,kn->amn", "mk,akn->nam", "bmk,bkn->bmn", "amk,kbn->mnab", "mk,kn,n->mn")


@st.composite
def cases(draw):
    """Terms and sizes, dtype, which dimensions operands beside the product have and how they lie, what is done."""
    terms = draw(st.sampled_from(TERMS))
    most = 65 if len(terms) < 11 else 16
    kept = st.tuples(*(st.booleans() for _ in terms.split("->")[1]))
    return {
        "terms": terms,
        "sizes": {i: draw(st.sampled_from([n for n in SIZES if n <= most])) for i in "abkmn"},
        "dtype": draw(st.sampled_from(DTYPES)),
        "beside": draw(st.lists(st.tuples(kept, st.booleans()), max_size=3)),
        "twice": draw(st.booleans()),
        "wider": draw(st.booleans()),
        "threads": draw(st.sampled_from(("1", "2"))),
        "scratch": draw(st.booleans()),
    }


def drawn(case):
    """The function of a case, and its arguments."""
    sizes, dtype, (terms, output) = case["sizes"], case["dtype"], case["terms"].split("->")
    arrays = [array(*(sizes[i] for i in term), dtype=dtype) for term in terms.split(",")]
    count = len(arrays)
    for kept, transposed in case["beside"]:
        shape = [sizes[i] if has else 1 for i, has in zip(output, kept)]
        arrays.append(array(*shape[::-1], dtype=dtype).T if transposed else array(*shape, dtype=dtype))

    def function(*arrays):
        c = np.einsum(case["terms"], *arrays[:count])
        found = c if dtype == "bool" else c * c
        for other in arrays[count:]:
            found = np.add(found, other)
        found = found.astype("complex128" if dtype.startswith("complex") else "float64") if case["wider"] else found
        return (found, c.sum(0)) if case["twice"] else found

    return function, arrays


@RANDOM
@given(case=cases())
def test_random_maps_of_products(case):
    function, arrays = drawn(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSUM_ENGINE_NUM_THREADS", case["threads"])
        patch.setattr(epilogue, "_slower", lambda *args: "")
        if case["scratch"]:
            patch.setattr(epilogue, "STREAM_BYTES", 0)
        jitted = engine.jit(function)
        wanted = jitted.program(*arrays).eval(*arrays)
        for _ in range(2):
            found = jitted(*arrays)
            for one, two in zip(found if case["twice"] else [found], wanted):
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("stream", [0, 1 << 40])
def test_several_blocks_of_everything(threads, stream, always, monkeypatch):
    """More than one block of K, of panels and of columns, and outer loops; C in memory and in scratch memory."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    monkeypatch.setattr(epilogue, "STREAM_BYTES", stream)
    x, w, b, r = array(150, 900), array(900, 260), array(260), array(150, 260)
    check(lambda x, w, b, r: (x @ w + b) * 2 - r, x, w, b, r)
    t, v, d = array(3, 5, 9, 40, dtype="float64"), array(9, 40, 6, 40, dtype="float64"), array(5, 1, 40, dtype="float64")
    check(lambda t, v, d: np.einsum("ijcd,cdab->ijab", t, v) * 2 + d[None], t, v, d)
    x, w = array(4, 70, 40), array(4, 40, 90)
    check(lambda x, w: np.maximum(np.einsum("bik,bkj->bij", x, w), 0), x, w)


def test_functions_and_their_bits(always):
    """The row function is that of a step of its own, and so is every bit."""
    x, w, b = RNG.standard_normal((40, 30)), RNG.standard_normal((30, 50)), RNG.standard_normal(50)
    function = lambda x, w, b: np.tanh(x @ w + b)  # noqa: E731
    one, two = engine.jit(function), engine.jit(function, passes=[name for name in engine.jit(abs).passes if name != "epilogues"])
    assert np.array_equal(one(x, w, b), two(x, w, b))
    assert fused(one, x, w, b) == [True] and fused(two, x, w, b) == [False]


def test_a_wrong_table_is_seen(always, monkeypatch):
    """The checks above would catch an epilogue that takes a wrong column, or none."""
    x, w, b = array(40, 30), array(30, 50), np.arange(50, dtype="float32")
    along, last = tables.EpilogueTables._along, 2
    turned = lambda self, which, number: along(self, which, number)[:: -1 if number == last else 1]  # noqa: E731
    monkeypatch.setattr(tables.EpilogueTables, "_along", turned)
    with pytest.raises(AssertionError):
        assert_like_numpy(lambda x, w, b: x @ w + b, x, w, b)


# -- edges -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (1, 5, 40), (40, 5, 1)])
def test_few_elements(shape, always):
    m, k, n = shape
    assert_like_numpy(lambda x, w, b: np.exp(x @ w) + b, array(m, k), array(k, n), array(n))


def test_results_used_twice(always):
    """C is stored where somebody else reads it, or where it is a result."""
    x, w, v = array(20, 30), array(30, 40), array(40, 50)

    def both(x, w):
        c = x @ w
        return c + 1, c

    def chain(x, w, v):
        c = x @ w
        return np.abs(c) - 1, c @ v

    check(both, x, w)
    jitted = assert_like_numpy(chain, x, w, v)
    assert sorted(fused(jitted, x, w, v)) == [False, True]


def test_chains_of_products(always):
    x, w, v = array(20, 30), array(30, 40), array(40, 50)
    jitted = assert_like_numpy(lambda x, w, v: np.maximum(x @ w, 0) @ v - 1, x, w, v)
    assert fused(jitted, x, w, v) == [True, True]


def test_transposed_and_reshaped_results(always):
    x, w, b = array(12, 30), array(30, 40), array(12)
    check(lambda x, w, b: (x @ w).T + b, x, w, b)
    check(lambda x, w: (x @ w).reshape(3, 4, 40) * 2, x, w)
    assert_like_numpy(lambda x, w: (x @ w).reshape(16, 30) * 2, x, w)


# -- memory ------------------------------------------------------------------------------------------------------------
def test_in_place(always):
    x, w, r = array(40, 30), array(30, 50), array(40, 50)

    def accumulated(x, w, r):
        r += x @ w
        return r

    plan = check(accumulated, x, w, r)
    assert plan.output_bytes == 0

    def twice(x, w):
        y = x @ w
        y += 1
        return y

    check(twice, x, w)


def test_what_the_product_reads_is_not_written_early(always, whys):
    """x is written over: a task that writes its block first would spoil the rows that others read."""
    x, w = array(64, 64), array(64, 64)

    def step(x, w):
        x[...] = x @ w + 1
        return x

    jitted = assert_like_numpy(step, x, w)
    assert fused(jitted, x, w) == [False] and whys == []

    def other(x, w):
        y = x @ w
        x[:] = 0
        return y + x

    assert_like_numpy(other, x, w)


def test_a_map_that_reads_other_blocks_stays_a_step(always):
    x, w = array(64, 64), array(64, 64)

    def symmetric(x, w):
        c = x @ w
        return c + c.T

    jitted = assert_like_numpy(symmetric, x, w)
    assert fused(jitted, x, w) == [False]


def test_what_nobody_reads_is_not_stored(always, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    x, w = array(100, 30), array(30, 200)
    jitted = assert_like_numpy(lambda x, w: (x @ w).astype("float64"), x, w)
    plan = jitted.plan(x, w)
    assert plan.arena_bytes < 100 * 200 * 4 and fused(jitted, x, w) == [True]
    (step,) = [step for step in plan.steps if step.family == "gemm"]
    assert step.args.words[abi.OUT_SLOT] == tables.SCRATCH
    assert step.bytes_moved == x.nbytes + w.nbytes + 100 * 200 * 8


@pytest.mark.parametrize("threads", ["1", "2"])
def test_scratch_memory_is_as_large_as_it_is_said_to_be(threads, always, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    frames = []

    def fresh(frame):
        frames.append(np.full(frame._nbytes + 64 + 4096, 0xA5, np.uint8))
        return frames[-1]

    monkeypatch.setattr(executor._Frame, "_fresh", fresh)
    x, w = array(130, 300), array(300, 210)
    check(lambda x, w: (x @ w).astype("float64") * 2, x, w)
    assert frames and all((memory[-4096:] == 0xA5).all() for memory in frames)


# -- decisions ---------------------------------------------------------------------------------------------------------
def test_short_runs_stay_a_step(whys):
    x, w, d = array(9, 24, 300), array(300, 24, 9), array(9, 24, 24, 9).transpose(3, 1, 2, 0)
    jitted = assert_like_numpy(lambda x, w, d: np.einsum("iak,kbj->iabj", x, w) + d, x, w, d)
    assert whys == ["operands run along few lanes together"] and fused(jitted, x, w, d) == [False]


def test_other_families_stay_a_step(whys):
    x, w = array(1000), array(1000)
    assert_like_numpy(lambda x, w: np.einsum("a,a->", x, w) * 2, x, w)
    assert whys == ["the result is not that of a GEMM"]


def test_explain_shows_the_step_with_its_work(always):
    x, w, b = array(64, 32), array(32, 64), array(64)
    jitted = engine.jit(lambda x, w, b: np.tanh(x @ w + b))
    assert "ij,jk->ik + add tanh" in jitted.explain(x, w, b)
    (step,) = jitted.plan(x, w, b).steps
    assert step.flops == 2 * 64 * 32 * 64 + 2 * 64 * 64
    assert step.bytes_moved == x.nbytes + w.nbytes + b.nbytes + 64 * 64 * 4


def test_digits_of_sums_that_carry_are_not_sums_of_digits():
    """A dimension of 6 as 3 x 2: entries 3 and 1 are (1, 1) and (0, 1), and their sum is (2, 0)."""
    found = tables.digits(np.array([12, 4, 16]), (3, 2), (8, 4))
    assert found.tolist() == [[1, 0, 2], [1, 1, 0]]
