"""The native entry: exact operands run at once, anything else is handed back, and nothing leaks."""

import gc
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import plan_cases
import pytest

import einsum_engine as engine
from einsum_engine import executor, fastcall, recycle

pytestmark = pytest.mark.skipif(not fastcall.available(), reason="the entry knows no such Python or NumPy")

CASES = {
    "vector": ("mk,k->m", dict(m=9, k=7)),
    "matrix": ("mk,kn->mn", dict(m=9, k=7, n=5)),
    "batched": ("bmk,bkn->bmn", dict(b=3, m=4, k=5, n=6)),
    "chain": ("ab,ca,dc->db", dict(a=8, b=9, c=10, d=11)),
    "scalar": ("mk,mk->", dict(m=6, k=7)),
}


def _entry(equation: str, sizes: dict, dtype: str = "float32", **more):
    operands = plan_cases.operands(equation, sizes, dtype)
    native = executor.bind(plan_cases.plan(equation, operands, **more))
    expected = np.einsum(equation, *operands)
    return native.entry, operands, expected


@pytest.fixture(params=CASES)
def case(request):
    return _entry(*CASES[request.param])


def _counts(objects) -> list[int]:
    return [sys.getrefcount(o) for o in objects]


def test_results(case):
    entry, operands, expected = case
    result = entry(*operands)
    assert type(result) is type(expected) and result.dtype == expected.dtype
    assert np.array_equal(result, expected)
    if result.shape:
        assert result.flags.c_contiguous and result.flags.owndata and result.flags.writeable and result.flags.aligned
        assert entry(*operands) is not result


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float64", "complex64", "complex128"])
def test_zero_dimensional_results_are_numpy_scalars(dtype):
    entry, operands, expected = _entry(*CASES["scalar"], dtype)
    result = entry(*operands)
    assert type(result) is np.dtype(dtype).type
    assert result == expected


class Sub(np.ndarray):
    pass


def _reversed(a: np.ndarray) -> np.ndarray:
    return a[tuple(slice(None, None, -1) for _ in a.shape)]


DEVIATIONS = {
    "dtype": lambda a: a.astype(np.float64),
    "integer dtype of the same width": lambda a: a.astype(np.int32),
    "byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "strides": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "negative strides": _reversed,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "longer": lambda a: np.concatenate([a, a]),
    "shorter": lambda a: a[:-1],
    "empty": lambda a: a[:0],
    "more dimensions": lambda a: a[None],
    "fewer dimensions": lambda a: a[0],
    "a dimension of one at the end": lambda a: a[..., None],
    "subclass": lambda a: a.view(Sub),
    "matrix or masked array": lambda a: np.ma.masked_array(a),
    "list": lambda a: a.tolist(),
    "number": lambda a: 1.0,
    "scalar": lambda a: np.float32(1),
    "None": lambda a: None,
    "type": lambda a: np.ndarray,
    "string": lambda a: "abc",
}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_any_deviation_is_handed_back(deviation, position):
    """In any operand; the entry works as before afterwards, and holds on to nothing."""
    entry, operands, expected = _entry(*CASES["matrix"])
    wrong = list(operands)
    wrong[position] = DEVIATIONS[deviation](operands[position])
    watched = [o for o in (*wrong, *operands, NotImplemented) if o is not None]  # None is counted by everybody
    before = _counts(watched)
    for _ in range(10):
        assert entry(*wrong) is NotImplemented
    assert _counts(watched) == before
    assert np.array_equal(entry(*operands), expected)


def test_any_other_number_of_operands_is_handed_back(case):
    entry, operands, expected = case
    for wrong in ([], operands[:-1], [*operands, operands[0]], operands * 50):
        assert entry(*wrong) is NotImplemented
    with pytest.raises(TypeError):
        entry(*operands[:-1], b=operands[-1])
    assert np.array_equal(entry(*operands), expected)


def test_other_contents_and_other_arrays_of_the_same_kind(case):
    entry, operands, expected = case
    assert np.array_equal(entry(*[a.copy() for a in operands]), expected)
    readonly = [a.copy() for a in operands]
    for array in readonly:
        array.flags.writeable = False
    assert np.array_equal(entry(*readonly), expected)
    assert np.array_equal(entry(*[-a for a in operands]), expected * (-1) ** len(operands))


def test_strided_operands_are_exact_too():
    """Made for views, the entry takes views of the same strides and no contiguous array."""
    equation, sizes = CASES["matrix"]
    a, b = plan_cases.operands(equation, sizes, "float32")
    wide = np.repeat(a, 3, 1)[:, ::3]
    views = [wide, _reversed(b)]
    entry = executor.bind(plan_cases.plan(equation, views)).entry
    assert np.array_equal(entry(*views), np.einsum(equation, *views))
    assert entry(a, b) is NotImplemented
    assert entry(wide, b) is NotImplemented


def test_no_reference_is_kept_or_lost(case):
    """Operands, their dtype, the result's dtype, NotImplemented, and the results themselves."""
    entry, operands, expected = case
    watched = [*operands, operands[0].dtype, NotImplemented, np.ndarray, entry]
    entry(*operands)
    before = _counts(watched)
    for _ in range(1000):
        entry(*operands)
        entry(*operands[:-1])
    assert _counts(watched) == before
    kept = [entry(*operands) for _ in range(100)]
    shift = 100 if expected.shape else 0  # arrays hold their dtype
    assert _counts(watched) == [n + (shift if o is operands[0].dtype else 0) for n, o in zip(before, watched)]
    assert set(_counts(kept)) == set(_counts([object() for _ in kept]))
    del kept
    assert _counts(watched) == before


def test_results_are_freed():
    entry, operands, _ = _entry("mk,kn->mn", dict(m=300, k=2, n=300))
    result = entry(*operands)
    gone = weakref.ref(result)
    del result
    assert gone() is None
    tracemalloc.start()
    try:
        entry(*operands)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            entry(*operands)
        assert tracemalloc.get_traced_memory()[0] - before < 360_000
        assert tracemalloc.get_traced_memory()[1] > 360_000  # results are seen at all
    finally:
        tracemalloc.stop()


def test_the_entry_is_freed_with_all_it_holds():
    entry, operands, _ = _entry(*CASES["chain"])
    entry(*operands)
    record = weakref.ref(entry.__self__)
    plan = weakref.ref(entry.__self__.keep[-1][1])
    del entry
    gc.collect()
    assert record() is None and plan() is None


def test_it_outlives_the_plan_that_made_it(case):
    entry, operands, expected = case
    gc.collect()
    spoil = [np.full(n, 255, np.uint8) for n in (100, 1000, 10000)]  # where freed memory would have been
    assert np.array_equal(entry(*operands), expected)
    del spoil


def test_no_memory_for_the_result_goes_the_general_way(monkeypatch):
    """2 ** 49 bytes from operands of one element each; a second call works the same."""
    monkeypatch.setattr(executor, "_KEPT_BYTES", 1 << 62)
    left = np.broadcast_to(np.float32(1), (1 << 31, 2))
    right = np.broadcast_to(np.float32(1), (1 << 16, 2))
    native = executor.bind(plan_cases.plan("mk,nk->nm", [left, right]))
    native._long = False  # it would take hours, but for the memory
    entry = native.entry
    before = _counts([left, right])
    for _ in range(2):
        assert entry(left, right) is NotImplemented
    assert _counts([left, right]) == before


WIDE = (
    ("ab,bc,cd->ad", dict(a=200, b=300, c=400, d=100)),
    ("ab,bc,cd->da", dict(a=100, b=310, c=600, d=90)),
)


def _wide(number: int):
    """An entry whose arena is larger than what plans have for themselves, its operands, the exact result."""
    equation, sizes = WIDE[number]
    operands = plan_cases.operands(equation, sizes, "float32", seed=number)
    native = executor.bind(plan_cases.plan(equation, operands))
    assert native.plan.arena_bytes > executor._KEPT_BYTES
    expected = np.einsum(equation, *[a.astype(np.int64) for a in operands], optimize=True)
    return native, native.entry, operands, expected


def test_plans_with_large_arenas_compute_in_the_common_one():
    cases = [_wide(number) for number in range(2)]
    for _ in range(3):
        for _, entry, operands, expected in cases:
            assert np.array_equal(entry(*operands), expected)
    common = recycle.common(1, "float32")
    assert not common.lock[0]
    common.lock[0] = 1  # another call is in it
    try:
        for native, entry, operands, expected in cases:
            assert entry(*operands) is NotImplemented
            out = np.empty(expected.shape, np.float32)
            native.run(operands, out)
            assert np.array_equal(out, expected)
    finally:
        common.lock[0] = 0
    assert all(entry(*operands) is not NotImplemented for _, entry, operands, _ in cases)


def test_no_common_arena_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ARENA_BYTES", "0")
    assert _wide(0)[1] is None
    monkeypatch.setenv("EINSUM_ENGINE_ARENA_BYTES", "64MiB")
    assert recycle.common(recycle.COMMON_BYTES, "other") is not None
    assert recycle.common(recycle.COMMON_BYTES + 1, "other") is None


def test_arenas_are_kept_where_results_are_not(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", "0")
    _, entry, operands, expected = _wide(0)
    assert np.array_equal(entry(*operands), expected)


def test_threads_with_plans_of_their_own_share_the_common_arena():
    cases, wrong, done = [_wide(number) for number in range(2)], [], [0, 0]

    def caller(number: int):
        _, entry, operands, expected = cases[number]
        for _ in range(300):
            result = entry(*operands)
            if result is not NotImplemented:
                done[number] += 1
                if not np.array_equal(result, expected):
                    wrong.append(number)

    callers = [threading.Thread(target=caller, args=(number,)) for number in (0, 1)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not wrong and sum(done) >= 300


def test_threads_share_an_entry():
    """While one thread is in it, it hands calls of the others back; what it returns is right."""
    entry, operands, expected = _entry("mk,kn->mn", dict(m=200, k=100, n=200))
    counts, wrong = [], []

    def caller():
        mine = 0
        for _ in range(200):
            result = entry(*operands)
            if result is not NotImplemented:
                mine += 1
                if not np.array_equal(result, expected):
                    wrong.append(result)
        counts.append(mine)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not wrong and sum(counts) >= 200
    assert entry(*operands) is not NotImplemented


def test_factors_are_those_of_the_entry():
    equation, sizes = CASES["matrix"]
    operands = plan_cases.operands(equation, sizes, "float32")
    expected = np.einsum(equation, *operands)
    native = executor.bind(plan_cases.plan(equation, operands, scaled=True))
    entries = {alpha: native.make_entry(alpha=alpha) for alpha in (1, 2.0, -0.5)}
    for alpha, entry in entries.items():
        assert np.allclose(entry(*operands), alpha * expected, rtol=1e-5)
    out = np.full(expected.shape, np.nan, np.float32)
    native = executor.bind(plan_cases.plan(equation, operands, scaled=True, out=out))
    assert np.allclose(native.make_entry(alpha=3.0)(*operands, out), 3 * expected, rtol=1e-5)
    assert np.allclose(native.make_entry(alpha=2.0, beta=-1.0)(*operands, out), -expected, rtol=1e-5)


def test_constants_are_no_arguments():
    """They are read where they lie, which the entry knows; what is left is checked as ever."""
    operands = plan_cases.operands(*CASES["chain"], "float32")
    expected = np.einsum(CASES["chain"][0], *operands)
    native = executor.bind(plan_cases.plan(CASES["chain"][0], operands))
    for constant in (0, 1, 2):
        entry = native.make_entry({constant: operands[constant].copy()})
        left = [array for position, array in enumerate(operands) if position != constant]
        before = _counts(left)
        gc.collect()
        for _ in range(3):
            assert np.array_equal(entry(*left), expected)
        assert _counts(left) == before
        assert entry(*operands) is NotImplemented and entry(left[0]) is NotImplemented
        assert entry(left[0], left[1].astype(np.float64)) is NotImplemented


def test_results_in_the_order_of_fortran():
    operands = plan_cases.operands("bmk,bkn->bmn", dict(b=3, m=4, k=5, n=6), "float64")
    expected = np.einsum("bmk,bkn->bmn", *operands)
    out = np.empty(expected.shape, order="F")
    native = executor.bind(plan_cases.plan("bmk,bkn->bmn", operands, out=out))
    result = native.make_entry(order="F")(*operands)
    assert result.flags.f_contiguous and result.flags.owndata and np.array_equal(result, expected)


def test_an_output_is_written_and_returned():
    """Where the plan was made for one it is the last argument; read-only or overlapping ones are not taken."""
    equation, sizes = CASES["matrix"]
    operands = plan_cases.operands(equation, sizes, "float32")
    out = np.zeros((sizes["m"], sizes["n"]), np.float32)
    entry = executor.bind(plan_cases.plan(equation, operands, out=out)).entry
    before = sys.getrefcount(out)
    result = entry(*operands, out)
    assert result is out and np.allclose(out, np.einsum(equation, *operands), rtol=1e-5)
    del result
    assert sys.getrefcount(out) == before
    assert entry(*operands) is NotImplemented
    assert entry(*operands, out.astype(np.float64)) is NotImplemented
    assert entry(*operands, np.zeros(out.shape[::-1], np.float32).T) is NotImplemented
    out.flags.writeable = False
    assert entry(*operands, out) is NotImplemented


def test_an_output_over_an_operand_is_not_taken():
    memory = np.zeros(200, np.float32)
    left, right = memory[:64].reshape(8, 8), np.ones((8, 8), np.float32)
    over, beside = memory[63:127].reshape(8, 8), memory[64:128].reshape(8, 8)
    entry = executor.bind(plan_cases.plan("mk,kn->mn", [left, right], out=beside)).entry
    assert entry(left, right, over) is NotImplemented
    assert entry(left, right, beside) is beside


def test_its_checks_of_the_array_struct_can_fail(monkeypatch):
    monkeypatch.setattr(fastcall.entry_abi, "STRIDES", fastcall.entry_abi.SHAPE)
    assert not fastcall.available.__wrapped__()


def test_arguments_are_written_by_the_entry_where_they_lie_apart():
    """One of several, with a result that is fixed or none; read-only ones and those that share memory are not taken."""

    @engine.jit
    def write(a, b):
        a += b
        return "done", None

    a, b = np.zeros(8), np.arange(8.0)
    for _ in range(3):
        assert write(a, b) == ("done", None)
    (quick, _), *_ = write._quick
    assert quick(a, b) == ("done", None) and (a == 4 * b).all()
    assert quick(a, a) is NotImplemented and quick(a) is NotImplemented and quick(a, list(b)) is NotImplemented
    x = np.arange(12.0)
    wanted = x.copy()
    wanted[:8] += wanted[4:].copy()
    assert write(x[:8], x[4:]) == ("done", None) and (x == wanted).all()
    b.flags.writeable = False
    assert quick(a, b) == ("done", None) and quick(b, a) is NotImplemented
def test_the_entry_writes_arguments_that_lie_apart():
    """Others share memory, or are read-only: they are written as NumPy would, or not at all."""

    def body(a, b, c):
        a += c[:4]
        b[...] = a * 2
        return (b + 1).sum(), None, b - c[1:]

    def check(a, b, c):
        mine, theirs = ([memory[at:to] for at, to in (a, b, c)] for memory in (np.arange(20.0), np.arange(20.0)))
        found, wanted = jitted(*mine), body(*theirs)
        assert found[0] == wanted[0] and found[1] is None and np.array_equal(found[2], wanted[2])
        assert all(np.array_equal(one, other) for one, other in zip(mine, theirs))

    jitted = engine.jit(body)
    for _ in range(4):
        check((0, 4), (4, 8), (8, 13))
    entry = jitted._quick[0][0]
    parts = [np.arange(20.0)[at:to] for at, to in ((0, 4), (4, 8), (8, 13))]
    assert entry(*parts) is not NotImplemented
    for starts in ((0, 3, 8), (0, 4, 7), (6, 10, 2), (0, 0, 9)):
        a, b, c = [(at, at + size) for at, size in zip(starts, (4, 4, 5))]
        memory = np.arange(20.0)
        assert entry(*(memory[at:to] for at, to in (a, b, c))) is NotImplemented
        assert np.array_equal(memory, np.arange(20))
        for _ in range(3):
            check(a, b, c)
    parts[1].flags.writeable = False
    assert entry(*parts) is NotImplemented
    with pytest.raises(engine.EngineError):
        jitted(*parts)


# -- of a compiled object ----------------------------------------------------------------------------------------------
def test_a_compiled_object_that_is_not_called_has_no_entry_and_is_freed_at_once(monkeypatch):
    made = []
    monkeypatch.setattr(fastcall, "make_entry", lambda **given: made.append(given))
    gc.disable()
    try:
        compiled = engine.compile("ij,jk->ik", (3, 4), (4, 5))
        assert compiled.plan.steps and compiled.explain() and not made
        gone = weakref.ref(compiled)
        del compiled
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("first", ["itself", "another dtype", "an output", "a factor"])
def test_whatever_the_first_call_is_later_ones_have_the_entry(first):
    x, y = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
    compiled, expected = engine.compile("ij,jk->ik", x, y), x @ y
    if first == "another dtype":
        assert np.array_equal(compiled(x.astype("f4"), y.astype("f4")), expected.astype("f4"))
    elif first == "an output":
        assert np.array_equal(compiled(x, y, out=np.empty((3, 5))), expected)
    elif first == "a factor":
        assert np.array_equal(compiled(x, y, alpha=2), 2 * expected)
    for _ in range(2):
        assert np.array_equal(compiled(x, y), expected)
    assert np.array_equal(compiled._entry(x, y), expected)


def test_threads_make_the_entry_of_a_compiled_object_together():
    x, y = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
    for _ in range(20):
        compiled, start, found = engine.compile("ij,jk->ik", x, y), threading.Barrier(4), []

        def call():
            start.wait()
            found.append(compiled(x, y))

        threads = [threading.Thread(target=call) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(found) == 4 and all(np.array_equal(each, x @ y) for each in found)


def test_entries_with_factors_share_the_common_arena():
    """One plan may have many of them, each of which would have an arena of its own."""
    equation, sizes = WIDE[0][0], dict(a=60, b=80, c=90, d=50)
    operands = plan_cases.operands(equation, sizes, "float32")
    native = executor.bind(plan_cases.plan(equation, operands, scaled=True))
    assert executor._SCALED_BYTES < native.plan.arena_bytes < executor._KEPT_BYTES
    entries = {alpha: native.make_entry(alpha=alpha) for alpha in (2.0, -3.0)}
    common, expected = recycle.common(1, "float32"), np.einsum(equation, *[a.astype(np.int64) for a in operands])
    for alpha, entry in entries.items():
        assert np.array_equal(entry(*operands), alpha * expected)
    common.lock[0] = 1
    try:
        assert all(entry(*operands) is NotImplemented for entry in entries.values())
    finally:
        common.lock[0] = 0
