"""Maps of an operand that the product makes block by block: what they compute, what they may read, and where they pay."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import place
from program_calls import assert_like_numpy
from test_epilogue import DTYPES, SIZES, array

import einsum_engine as engine
from einsum_engine import executor
from einsum_engine.kernels import prologue as tables
from einsum_engine.kernels.cpu import abi, cores
from einsum_engine.kernels.isa import get, host_isas
from einsum_engine.planners import epilogue, programs, staging

RANDOM = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
RNG = np.random.default_rng(0)


def wherever_right(patch):
    patch.setattr(programs, "worth_a_look", lambda *args: True)
    patch.setattr(programs, "narrow", lambda *args: True)
    patch.setattr(staging, "_slower", lambda *args: "")


@pytest.fixture
def always(monkeypatch):
    """Operands are staged wherever that is right, however slow."""
    wherever_right(monkeypatch)


@pytest.fixture
def short(monkeypatch):
    """Several blocks of terms, lanes and columns of everything."""
    for name, value in {"STAGE_BYTES": 4096, "STRIP_BYTES": 2048, "OTHER_BYTES": 8192, "LONG_RUN": 256}.items():
        monkeypatch.setattr(tables, name, value)


def staged(jitted, *arrays) -> list[int]:
    """For each product of the plan that stages an operand, which one: 0 is the lanes side."""
    rows = [step.args for step in jitted.plan(*arrays).steps if step.family == "gemm"]
    return [row.words[abi.G_STAGED] for row in rows if abi.G_STAGE in row.kernels]


def check(function, *arrays, side=None, exact=True):
    """Runs a function three times like NumPy; its plan has one product, with a staged operand, and no map before."""
    jitted = assert_like_numpy(function, *arrays, **({"rtol": 0} if exact else {}))
    plan, found = jitted.plan(*arrays), staged(jitted, *arrays)
    assert len(found) == 1 and side in (None, found[0]), [step.expr for step in plan.steps]
    assert not any(step.family == "fused" for step in plan.steps)
    return plan


# -- what is computed --------------------------------------------------------------------------------------------------
TERMS = ("mk,kn->mn", "km,nk->mn", "mk,nk->nm", "mk,kn->nm", "amk,kn->amn", "mk,akn->nam", "bmk,bkn->bmn", "amk,kbn->mnab")


@st.composite
def cases(draw):
    """Terms and sizes, dtype, which operand is mapped, what the map reads besides and how that lies."""
    terms = draw(st.sampled_from(TERMS))
    most = 65 if len(terms) < 11 else 16
    which = draw(st.integers(0, 1))
    kept = st.tuples(*(st.booleans() for _ in terms.split("->")[0].split(",")[which]))
    return {
        "terms": terms,
        "sizes": {i: draw(st.sampled_from([n for n in SIZES if n <= most])) for i in "abkmn"},
        "dtype": draw(st.sampled_from(DTYPES)),
        "which": which,
        "beside": draw(st.lists(st.tuples(kept, st.booleans()), max_size=3)),
        "from": draw(st.sampled_from(["", "int8", "float16"])),
        "then": draw(st.booleans()),
        "threads": draw(st.sampled_from(("1", "2"))),
        "bytes": draw(st.sampled_from((1 << 11, 1 << 18))),
    }


def drawn(case):
    """The function of a case, and its arguments."""
    sizes, dtype, which = case["sizes"], case["dtype"], case["which"]
    terms, output = case["terms"].split("->")
    terms = terms.split(",")
    narrow = case["from"] if dtype in ("float32", "float64", "complex64", "complex128") else ""
    arrays = [array(*(sizes[i] for i in term), dtype=dtype) for term in terms]
    if narrow:
        arrays[which] = array(*(sizes[i] for i in terms[which]), dtype=narrow)
    for kept, transposed in case["beside"]:
        shape = [sizes[i] if has else 1 for i, has in zip(terms[which], kept)]
        arrays.append(array(*shape[::-1], dtype=dtype).T if transposed else array(*shape, dtype=dtype))

    def function(*arrays):
        operands, others = list(arrays[:2]), arrays[2:]
        found = operands[which].astype(dtype) if narrow else operands[which]
        found = ~found if dtype == "bool" else found * 2
        for other in others:
            found = np.add(found, other)
        operands[which] = found
        c = np.einsum(case["terms"], *operands)
        return c + c if case["then"] else c

    return function, arrays


@RANDOM
@given(case=cases())
def test_random_maps_of_operands(case):
    function, arrays = drawn(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSUM_ENGINE_NUM_THREADS", case["threads"])
        wherever_right(patch)
        for name in ("STAGE_BYTES", "STRIP_BYTES", "OTHER_BYTES"):
            patch.setattr(tables, name, case["bytes"])
        jitted = engine.jit(function)
        (wanted,) = jitted.program(*arrays).eval(*arrays)
        for _ in range(2):
            found = jitted(*arrays)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def check_apart(function, *arrays):
    """A function whose product reads, on this instruction set, what the map left in memory."""
    jitted = assert_like_numpy(function, *arrays, rtol=0)
    assert [step.family for step in jitted.plan(*arrays).steps if step.family in ("fused", "gemm")] == ["fused", "gemm"]
    assert staged(jitted, *arrays) == []


KINDS = {
    "lanes": ("mk,kn->mn", 1, abi.STAGED_A),
    "columns along k": ("nk,km->nm", 0, abi.STAGED_B),
    "columns along columns": ("kn,km->nm", 0, abi.STAGED_B),
    "batch": ("bnk,bkm->bnm", 0, abi.STAGED_B),
}
DIMS = {"m": 70, "n": 17, "k": 150, "b": 3}


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("isa", [isa.name for isa in host_isas()])
@pytest.mark.parametrize("kind", KINDS)
def test_every_side_on_every_instruction_set(kind, isa, threads, always, short, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    monkeypatch.setenv("EINSUM_ENGINE_ISA", isa)
    terms, which, side = KINDS[kind]
    inputs = terms.split("->")[0].split(",")
    first, second = (array(*(DIMS[i] for i in term)) for term in inputs)
    row = array(*(DIMS[i] for i in inputs[which][-1:]))

    def function(x, y, row):
        operands = [x, y]
        operands[which] = np.where(operands[which] > 0, operands[which] * 2 - row, 1)
        return np.einsum(terms, *operands)

    check(function, first, second, row, side=side)


@pytest.mark.parametrize("isa", [isa.name for isa in host_isas()])
def test_turns_of_a_long_sum(isa, always, short, common, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", isa)
    x, w = array(7, 90, 200), array(90, 200, 20)
    check(lambda x, w: np.einsum("ak,akn->n", x, w * 2 + 1), x[0].copy(), w, side=abi.STAGED_A)
    left = lambda x, w: np.einsum("mak,akn->mn", x * 2 + 1, w)  # noqa: E731
    check(left, x, w[..., :16].copy(), side=abi.STAGED_B)
    check(left, x, w, side=abi.STAGED_B)


def test_functions_and_their_bits(always):
    """The row function is that of a step of its own: with one block of terms, so is every bit."""
    x, w = RNG.standard_normal((9, 30)), RNG.standard_normal((30, 50))
    function = lambda x, w: x @ np.exp(w)  # noqa: E731
    one, two = engine.jit(function), engine.jit(function, passes=("views",))
    assert np.array_equal(one(x, w), two(x, w))
    assert staged(one, x, w) == [abi.STAGED_A] and staged(two, x, w) == []


def test_narrow_dtypes(always):
    """What is widened on the way; bfloat16 is none of NumPy's."""
    x, scale = array(9, 40), array(60)
    for dtype in ("int8", "uint8", "int16", "float16", "bool"):
        check(lambda x, w, s: x @ (w.astype("float32") * s), x, array(40, 60, dtype=dtype), scale, side=abi.STAGED_A)
    check(lambda x, w: x @ w.astype("float64"), x.astype("float64"), array(40, 60), side=abi.STAGED_A)


def test_not_a_number_and_infinity(always):
    x, w = np.ones((5, 30), "float32"), np.zeros((30, 50), "float32")
    w[3, 7], w[4, 9], w[5, 11] = np.nan, np.inf, -np.inf
    check(lambda x, w: x @ np.exp(w), x, w, exact=False)


def test_with_an_epilogue(always, short, monkeypatch):
    monkeypatch.setattr(epilogue, "_slower", lambda *args: "")
    x, w, b = array(41, 150), array(150, 70), array(70)
    for function in (lambda x, w, b: np.abs((x * 2) @ w) + b, lambda x, w, b: (x @ (w * 2) + b).astype("float64")):
        plan = check(function, x, w, b)
        assert [abi.TILE in step.args.kernels for step in plan.steps if step.family == "gemm"] == [True]


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (1, 5, 40), (40, 5, 1)])
def test_few_elements(shape, always):
    m, k, n = shape
    assert_like_numpy(lambda x, w: (x * 2) @ w, array(m, k), array(k, n))
    assert_like_numpy(lambda x, w: x @ (w * 2), array(m, k), array(k, n))


def test_a_wrong_table_is_seen(always, monkeypatch):
    along = tables.StageTables._along
    monkeypatch.setattr(tables.StageTables, "_along", lambda self, which, number: along(self, which, number)[::-1])
    with pytest.raises(AssertionError):
        assert_like_numpy(lambda x, w, row: x @ (w * row), array(9, 30), array(30, 50), np.arange(50, dtype="float32"))


# -- memory ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flush", ["start", "end"])
def test_nothing_beside_the_operands_is_read(flush, always, short):
    """Against pages that must not be touched; what is asked for early is no read."""
    function = engine.jit(lambda x, w, s: np.einsum("mk,kn->mn", x, w.astype("float32") * s))
    other = engine.jit(lambda x, w, s: np.einsum("mk,kn->mn", x.astype("float32") * s[: x.shape[1]], w))
    x, w, s = array(17, 45), array(45, 70, dtype="int8"), array(70)
    arrays = [place(each, flush) for each in (x, w, s)]
    np.testing.assert_array_equal(function(*arrays), x @ (w * s))
    assert staged(function, *arrays) == [abi.STAGED_A]
    arrays = [place(each, flush) for each in (x.astype("int8"), w.astype("float32"), s)]
    np.testing.assert_array_equal(other(*arrays), (x * s[:45]) @ w)
    assert staged(other, *arrays) == [abi.STAGED_B]


@pytest.mark.parametrize("isa", [isa.name for isa in host_isas()])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_scratch_memory_is_as_large_as_it_is_said_to_be(threads, isa, always, common, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    monkeypatch.setenv("EINSUM_ENGINE_ISA", isa)
    frames = []

    def fresh(frame):
        frames.append(np.full(frame._nbytes + 64 + 4096, 0xA5, np.uint8))
        return frames[-1]

    monkeypatch.setattr(executor._Frame, "_fresh", fresh)
    right, left = lambda x, w: x @ (w * 2 + 1), lambda x, w: (x * 2 + 1) @ w
    for m, k, n in ((9, 300, 210), (300, 310, 9), (300, 310, 8)):
        x, w = array(m, k), array(k, n)
        check(right, x, w)
        if isa == "sse2" and n == 9:  # lanes of few elements: along the other side, which reads what the map left
            check_apart(left, x, w)
        else:
            check(left, x, w)
    assert frames and all((memory[-4096:] == 0xA5).all() for memory in frames)


def test_the_operand_is_never_there_as_a_whole(always, short, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    x, w = array(9, 300), array(300, 400)
    plan = check(lambda x, w: x @ (w * 2), x, w)
    assert plan.arena_bytes < w.nbytes / 4
    (step,) = [step for step in plan.steps if step.family == "gemm"]
    assert step.bytes_moved == x.nbytes + w.nbytes + 9 * 400 * 4 and "staged" in step.layouts
    assert step.flops == 2 * 9 * 300 * 400 + 2 * w.size  # a constant counts, as in a step of its own


def test_what_the_map_reads_is_not_written_early(always):
    """The product, or its epilogue, writes what the map still reads for other blocks."""
    x, w = array(64, 64), array(64, 64)

    def over(x, w):
        x[...] = (x * 2) @ w
        return x

    def added(x, w):
        x += np.abs(x) @ w
        return x

    def half(x, w):
        x[:32] = (x[32:] * 2) @ w
        return x

    for function in (over, added):
        jitted = assert_like_numpy(function, x, w)
        assert staged(jitted, x, w) == []
    assert len(staged(assert_like_numpy(half, x, w), x, w)) == 1


def test_what_others_read_is_there_as_a_whole(always):
    def returned(x, w):
        y = x * 2
        return y, y @ w

    def squared(x, w):
        y = x * 2
        return y @ y

    def loop(x, w):
        return engine.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, (s[1] * 2) @ w), (np.int64(0), x))[1]

    for function in (returned, squared, loop):
        assert_like_numpy(function, array(30, 30), array(30, 30))
    assert staged(engine.jit(returned), array(30, 30), array(30, 30)) == []


# -- decisions ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def common(monkeypatch):
    """One thread of a common machine: what is decided depends on bandwidths."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")


@pytest.fixture(params=[cores.PLAIN, *cores.MAKERS.values()], ids=["plain", *cores.MAKERS])
def core(request, common, monkeypatch):
    """And of its core."""
    monkeypatch.setattr(cores, "here", lambda: request.param)
    return request.param


def weights(x, w, scale):
    return x @ (w.astype("float32") * scale)


def test_weights_of_a_byte_are_widened_by_the_product(core):
    w, scale = np.zeros((2048, 2048), "int8"), np.zeros(2048, "float32")
    for rows in (1, 8, 64):
        assert staged(engine.jit(weights), np.zeros((rows, 2048), "float32"), w, scale) == [abi.STAGED_A]
    assert "cast mul + ij,jk->ik" in engine.jit(weights).explain(np.zeros((8, 2048), "float32"), w, scale)
    small = np.zeros((64, 64), "int8"), np.zeros(64, "float32")
    assert staged(engine.jit(weights), np.zeros((8, 64), "float32"), *small) == []


def test_wide_operands_stay_steps_with_many_columns_and_mostly_on_the_lanes_side(core):
    x, w = np.zeros((8, 2048), "float32"), np.zeros((2048, 2048), "float32")
    found = [] if core is cores.PLAIN else [abi.STAGED_A]
    assert staged(engine.jit(lambda x, w: x @ np.exp(w)), x, w) == found
    left = engine.jit(lambda a, b: np.exp(a) @ b)
    assert staged(left, w[:1024, :1024].copy(), w[:1024, :8].copy()) == [abi.STAGED_B]
    assert staged(left, w[:1024, :1024].copy(), w[:1024, :128].copy()) == []


def test_without_epilogues_there_are_no_prologues(always):
    assert staged(engine.jit(lambda x, w: x @ (w * 2), passes=("views",)), array(9, 30), array(30, 50)) == []
