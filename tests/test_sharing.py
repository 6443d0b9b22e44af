"""Common subexpressions: what is contracted twice from the same arrays is computed once, and only then."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.executor import run_reference
from einsum_engine.planners.steps import to_positions

RNG = np.random.default_rng(0)
SQUARE = "ab,bc,ad,dc->ac"
HALVES = [(0, 1), (0, 1), (0, 1)]  # of four operands: the first two, the last two, both results
LETTERS = {2: "abcd", 3: "wxyz"}  # the indices of each size


def random(*shape, dtype="float64"):
    """Small integers: every order of summation gives the same numbers."""
    values = RNG.integers(-3, 4, shape)
    return (values + 1j * RNG.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def kernels(plan):
    """Steps that compute: packing is not one."""
    return [step for step in plan.steps if step.family not in ("pack", "copy")]


# ---- random expressions --------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    """Expression, arrays (some given several times), which of them are conjugated, and how to contract.

    The second half of the operands is often the first one under other indices.
    """
    dtype = draw(st.sampled_from(["float64", "complex64", "int32", "float32", "int8"]))
    shapes = draw(st.lists(st.lists(st.sampled_from([2, 3]), max_size=3), min_size=1, max_size=2))
    real = draw(st.booleans())
    pool = []
    for number, shape in enumerate(shapes):
        # A real operand beside complex ones is computed on in another way.
        mixed = real and number and np.dtype(dtype).kind == "c"
        pool.append(random(*shape, dtype="float32" if mixed else dtype))
    half = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=3))
    term = lambda array: [draw(st.sampled_from(LETTERS[size])) for size in array.shape]  # noqa: E731
    first = [term(pool[number]) for number in half]
    rename = {
        letter: other for letters in LETTERS.values() for letter, other in zip(letters, draw(st.permutations(letters)))
    }
    if draw(st.integers(0, 3)):
        second = [[rename[letter] for letter in each] for each in first]
    else:
        second = [term(pool[number]) for number in half]
    places = draw(st.permutations(range(len(half)))) if draw(st.booleans()) else range(len(half))
    second = [second[place] for place in places]
    arrays = [pool[number] for number in (*half, *(half[place] for place in places))]
    used = list(dict.fromkeys(letter for each in (*first, *second) for letter in each))
    output = draw(st.permutations(used))[: draw(st.integers(0, min(3, len(used))))]
    expression = ",".join("".join(each) for each in (*first, *second)) + "->" + "".join(output)
    conj = draw(st.sets(st.integers(0, len(arrays) - 1)))
    if draw(st.booleans()):
        conj = {n % len(half) for n in conj} | {n % len(half) + len(half) for n in conj}
    return expression, arrays, tuple(sorted(conj)), draw(st.sampled_from(["halves", "auto", False]))


def path_of(optimize, count):
    """Each half from left to right, then both; or what ``optimize`` is."""
    if optimize != "halves":
        return optimize
    half, ids, tops = count // 2, [], []
    for start in (0, half):
        top = start
        for operand in range(start + 1, start + half):
            ids.append((top, operand))
            top = count + len(ids) - 1
        tops.append(top)
    return list(to_positions([*ids, tuple(tops)], count))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(cases())
def test_random_expressions_with_repeated_operands(case):
    expression, arrays, conj, optimize = case
    optimize = path_of(optimize, len(arrays))
    others = [array.copy() for array in arrays]  # none is another one
    with_other_values = [np.flip(array).copy() for array in arrays]
    f = engine.compile(expression, *arrays, optimize=optimize, conj=conj, threads=1)
    plain = engine.compile(expression, *others, optimize=optimize, conj=conj, threads=1)
    assert f.plan.flops <= plain.plan.flops and len(f.steps) <= len(plain.steps)
    for operands in (arrays, others, with_other_values):
        answer = oracle.einsum(expression, *operands, conj=conj)
        for call in (f, plain, lambda *a: engine.einsum(expression, *a, optimize=optimize, conj=conj)):
            for _ in range(2):
                oracle.check(call(*operands), answer, context=case)
    oracle.check(run_reference(f.plan, arrays), oracle.einsum(expression, *arrays, conj=conj), context=case)


# ---- what is shared ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression, which, steps, alone",
    [
        (SQUARE, "abab", 2, 3),  # the same product under another summed index
        ("ab,bc,xy,yz->abcxyz", "abab", 2, 3),  # under other indices altogether: a view of it
        ("ab,bc,xy,yz->acxz", "abab", 2, 3),
        ("ab,bc,yz,xy->acxz", "abba", 2, 3),  # with its operands the other way round
        ("ab,bc,ad,dc->ac", "abac", 3, 3),
        ("ab,bc,cd,de->ae", "aaaa", 2, 3),  # a power: (aa)(aa)
        ("ab,bc,ac,cd->ad", "abab", 3, 3),  # not the same: the second product sums nothing
        ("ij,kl->ik", "aa", 2, 3),  # two equal sums
        ("ij,ki->jk", "aa", 1, 1),
    ],
)
def test_equal_steps_are_done_once(expression, which, steps, alone):
    arrays = {name: random(6, 6) for name in set(which)}
    operands = [arrays[name] for name in which]
    optimize = HALVES if len(which) == 4 else True
    f = engine.compile(expression, *operands, optimize=optimize, threads=1)
    plain = engine.compile(expression, *[array.shape for array in operands], optimize=optimize, threads=1)
    assert (len(kernels(f.plan)), len(kernels(plain.plan))) == (steps, alone)
    assert (f.plan.flops < plain.plan.flops) == (steps < alone)
    assert bool(f.plan.request.same) == (steps < alone)
    assert np.array_equal(f(*operands), np.einsum(expression, *operands))
    assert f.explain().count("M[") == sum(bool(step.dims["M"]) for step in f.steps)


def test_flops_and_steps_of_a_square():
    a, b = random(20, 30), random(30, 25)
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    product, square = 2 * 20 * 30 * 25, 20 * 25
    assert f.plan.flops == product + square
    assert engine.compile(SQUARE, a, b, a, b.copy(), optimize=HALVES).plan.flops == 2 * product + square
    assert f.explain().count("gemm_") == 1 and " ab,bc->ac " in f.explain()
    assert "ad,dc->ac" not in f.explain().partition("\n")[2]


def test_other_strides_of_the_same_memory_are_other_arrays():
    a = random(8, 8)
    f = engine.compile(SQUARE, a, a, a.T, a, optimize=HALVES)
    assert not f.plan.request.same or f.plan.flops == 2 * 2 * 8**3 + 64
    assert np.array_equal(f(a, a, a.T, a), np.einsum(SQUARE, a, a, a.T, a))


def test_conjugates_are_not_the_same():
    a, b = random(5, 5, dtype="complex128"), random(5, 5, dtype="complex128")
    for conj, shared in (((), True), ((0, 2), True), ((0, 1, 2, 3), True), ((0,), False), ((2, 3), False)):
        f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES, conj=conj)
        assert bool(f.plan.request.same) == shared
        operands = [x.conj() if n in conj else x for n, x in enumerate((a, b, a, b))]
        assert np.array_equal(f(a, b, a, b), np.einsum(SQUARE, *operands))


def test_conjugates_of_mixed_products_are_not_the_same():
    """A real operand times a complex one is conjugated by whoever reads it."""
    a, b = random(5, 5), random(5, 5, dtype="complex128")
    for conj, flops in (((), 1), ((1, 3), 1), ((3,), 2), ((1,), 2)):
        f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES, conj=conj)
        assert len([step for step in f.steps if step.family != "mul"]) == flops
        operands = [x.conj() if n in conj else x for n, x in enumerate((a, b, a, b))]
        assert np.array_equal(f(a, b, a, b), np.einsum(SQUARE, *operands))
        assert np.array_equal(run_reference(f.plan, (a, b, a, b)), np.einsum(SQUARE, *operands))


def test_large_products_with_splits_and_panels():
    """Long sums are cut into pieces, operands are packed, and what two steps read is laid out densely."""
    a, b, c = random(64, 65536), random(65536, 48), random(48, 96)
    path = [(0, 1), (0, 1), (1, 2), (0, 1)]
    f = engine.compile("ab,bc,ad,dc,ce->ae", a, b, a, b, c, optimize=path, threads=2)
    shapes = [array.shape for array in (a, b, a, b, c)]
    plain = engine.compile("ab,bc,ad,dc,ce->ae", *shapes, optimize=path, threads=2)
    assert f.plan.flops < 0.6 * plain.plan.flops
    assert np.array_equal(f(a, b, a, b, c), ((a @ b) * (a @ b)) @ c)


def test_a_shared_tensor_of_rank_three_with_its_producer_packed():
    x, y, z = random(40, 50, 60), random(60, 300), random(300, 4)
    operands = (x, y, x, y, z, z)
    path = [(0, 1), (0, 1), (0, 2), (0, 1), (0, 1)]
    f = engine.compile("ijk,kl,mno,op,lq,pq->ijmn", *operands, optimize=path, threads=2)
    left = np.einsum("ijk,kl,lq->ijq", x, y, z, optimize=True)
    assert np.array_equal(f(*operands), np.einsum("ijq,mnq->ijmn", left, left, optimize=True))
    assert [step.family for step in kernels(f.plan)].count("gemm") < 5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64", ">f8", "bool"])
def test_dtypes_that_are_converted(dtype):
    dtype = __import__("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    a, b = random(6, 7).astype(dtype), random(7, 5).astype(dtype)
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    expected = engine.compile(SQUARE, a, b, a.copy(), b.copy(), optimize=HALVES)
    assert f.plan.flops < expected.plan.flops
    assert np.array_equal(f(a, b, a, b), expected(a, b, a, b.copy()))


# ---- calls with other arrays ---------------------------------------------------------------------------------------


def test_a_plan_with_shared_steps_is_not_used_for_other_arrays():
    a, b, c, d = (random(6, 6) for _ in range(4))
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    for operands in ((a, b, c, d), (a, b, a, d), (c, d, c, d), (a, b, a[:], b), (a, b, a.copy(), b), (b, b, b, b)):
        for _ in range(3):
            assert np.array_equal(f(*operands), np.einsum(SQUARE, *operands))
            out = np.full((6, 6), np.nan)
            assert np.array_equal(f(*operands, out=out), np.einsum(SQUARE, *operands))
            assert np.array_equal(f(*operands, alpha=2), 2 * np.einsum(SQUARE, *operands))
            assert np.array_equal(engine.einsum(SQUARE, *operands), np.einsum(SQUARE, *operands))
            engine.einsum(SQUARE, *operands, out=out)
            assert np.array_equal(out, np.einsum(SQUARE, *operands))
    with pytest.raises(engine.EngineValueError, match="takes 4 arrays, 3 were given"):
        f(a, b, a)


def test_other_strides_and_dtypes_than_compiled_for():
    a, b = random(6, 6), random(6, 6)
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    for x, y in ((a.T, b), (a.astype("float32"), b.astype("float32")), (a[::-1], b)):
        assert np.array_equal(f(x, y, x, y), np.einsum(SQUARE, x, y, x, y))
        assert np.array_equal(f(x, y, x.copy(), y), np.einsum(SQUARE, x, y, x, y))


def test_einsum_finds_the_same_array_behind_two_views():
    a = random(128, 128)
    engine.clear_cache()
    contractor = engine.api._contractor(SQUARE, [a] * 4, engine.options.DEFAULT)
    assert contractor.same([a, a[:], a.view(), a.T]) == (0, 0, 0, 3)
    assert contractor.same([a, a.copy(), a.T, a.view("int64")]) == ()
    assert contractor.same([a, a[:], a.copy(), a.copy()]) == (0, 0, 2, 3)
    small = random(6, 6)  # only the objects are looked at
    contractor = engine.api._contractor(SQUARE, [small] * 4, engine.options.DEFAULT)
    assert contractor.same([small, a, small, a]) == (0, 1, 0, 1)
    assert contractor.same([small, a, small[:], a[:]]) == ()


def test_no_look_at_operands_that_cannot_be_the_same():
    shapes = [(2, 3), (3, 4), (4, 5)]
    contractor = engine.api._contractor("ab,bc,cd->ad", [random(*s) for s in shapes], engine.options.DEFAULT)
    assert contractor._alike == ()
    contractor = engine.api._contractor("ab,bc->ac", [random(3, 3)] * 2, engine.options.DEFAULT)
    assert contractor._alike == ()


def test_an_output_that_is_an_operand():
    a, b = random(6, 6), random(6, 6)
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    expected = np.einsum(SQUARE, a, b, a, b)
    assert np.array_equal(f(a, b, a, b, out=a), expected)


def test_tensors_of_other_libraries():
    """The same tensor given twice is one array, although each is wrapped anew."""
    torch = pytest.importorskip("torch")
    a, b = random(6, 6), random(6, 6)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    f = engine.compile(SQUARE, x, y, x, y, optimize=HALVES)
    assert f.plan.request.same == (0, 1, 0, 1)
    for operands in ((x, y, x, y), (x, y, y, x), (x, y, x.clone(), y)):
        result = f(*operands)
        assert type(result) is torch.Tensor
        assert np.array_equal(result, np.einsum(SQUARE, *[each.numpy() for each in operands]))
    lazy = (x + 1j * y).conj()
    values = lazy.resolve_conj().numpy()
    for operands in ((lazy, y, lazy, y), (lazy, y, lazy.resolve_conj(), y)):
        assert np.allclose(engine.einsum(SQUARE, *operands), np.einsum(SQUARE, values, b, values, b))


def test_repeated_output_index():
    a, b = random(4, 4), random(4, 4)
    f = engine.compile("ab,bc,ad,dc->aac", a, b, a, b, optimize=HALVES)
    for operands in ((a, b, a, b), (b, a, a, b)):
        assert np.array_equal(f(*operands)[range(4), range(4)], np.einsum(SQUARE, *operands))


# ---- constants -----------------------------------------------------------------------------------------------------


def test_equal_constants_are_one_array():
    """Constants are compared by content: they never change."""
    a, b, c = random(6, 6), random(6, 6), random(6, 3)
    expression, path = "ab,bc,ad,dc,ce->ae", [(0, 1), (0, 1), (1, 2), (0, 1)]
    constants = {0: a, 1: b, 2: a.copy(), 3: b.copy()}
    f = engine.compile(expression, *[(6, 6)] * 4, c, constants=constants, optimize=path)
    assert f.plan.flops == 2 * 6**3 + 6**2 + 2 * 6 * 6 * 3
    assert [step.once for step in kernels(f.plan)] == [True, True, False]
    expected = np.einsum(expression, a, b, a, b, c)
    for _ in range(3):
        assert np.array_equal(f(c), expected)
    a[:] = 0  # they were copied
    assert np.array_equal(f(c), expected)


def test_shared_by_a_constant_step_and_a_call():
    """What constants leave stays for the calls, also where a constant step reads it last."""
    a, b, c, d = random(6, 6), random(6, 6), random(6, 6), random(6, 6)
    expression = "ab,bc,de,ef,ca,gf,hg,hx->dcx"
    # The product of a and b; with c, at each call; under other indices with d twice, once; the rest.
    ids = [(0, 1), (8, 4), (2, 3), (10, 5), (11, 6), (12, 7), (9, 13)]
    fixed = {0: a, 1: b, 2: a, 3: b, 5: d, 6: d, 7: d}
    f = engine.compile(expression, *[(6, 6)] * 8, constants=fixed, optimize=list(to_positions(ids, 8)))
    assert [step.once for step in kernels(f.plan)] == [True, False, True, True, True, False]
    for _ in range(3):
        c = random(6, 6)
        assert np.array_equal(f(c), np.einsum(expression, a, b, a, b, c, d, d, d, optimize=True))


def test_constants_beside_a_repeated_variable():
    a, b = random(6, 6), random(6, 6)
    f = engine.compile(SQUARE, a, b, a, b, constants=[1, 3], optimize=HALVES)
    assert f.plan.flops == 2 * 6**3 + 36
    for x, y in ((a, a), (a, b), (b, b), (a, a)):
        for _ in range(3):
            assert np.array_equal(f(x, y), np.einsum(SQUARE, x, b, y, b))


# ---- stored objects, threads, limits ---------------------------------------------------------------------------------


def test_stored_objects_share_the_same_steps(tmp_path):
    a, b, c = random(6, 6), random(6, 6), random(6, 6)
    f = engine.compile(SQUARE, a, b, a, b, constants=[1, 3], optimize=HALVES)
    f.save(tmp_path / "plan.json")
    for g in (pickle.loads(pickle.dumps(f)), engine.load(tmp_path / "plan.json")):
        assert g.plan.flops == f.plan.flops and g.plan.request.same == (0, 1, 0, 1)
        assert np.array_equal(g(a, a), f(a, a)) and np.array_equal(g(a, c), np.einsum(SQUARE, a, b, c, b))


def test_threads_call_with_the_same_and_with_other_arrays():
    a, b = random(30, 30), random(30, 30)
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES)
    same, other = np.einsum(SQUARE, a, b, a, b, optimize=True), np.einsum(SQUARE, a, b, b, a, optimize=True)

    def work(number):
        for _ in range(100):
            assert np.array_equal(f(a, b, a, b), same) and np.array_equal(f(a, b, b, a), other)
            assert np.array_equal(engine.einsum(SQUARE, a, b, a, b, threads=1 + number % 2), same)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_profiles_have_each_plan_once():
    """A plan that shares nothing serves calls with the same and with other arrays: it has two keys."""
    a, b = random(6, 6), random(6, 6)
    f = engine.compile("ab,bc,cd->ad", a, a, a, profile=True)
    f(a, a, a), f(a, b, a), f(b, b, b)
    ((_, profile),) = f.profiles
    assert profile.calls == 3
    f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES, profile=True)
    assert np.array_equal(f(a, b, a, b), np.einsum(SQUARE, a, b, a, b))
    assert np.array_equal(f(a, b, b, b), np.einsum(SQUARE, a, b, b, b))
    assert sorted(len(kernels(plan)) for plan, _ in f.profiles) == [2, 3]


def test_memory_limit_that_sharing_would_break():
    """A shared result is kept for longer; where that is too much, it is computed twice."""
    a, b = random(64, 64), random(64, 64)
    plain = engine.compile(SQUARE, *[(64, 64)] * 4, optimize=HALVES)
    for limit in (plain.plan.peak_bytes, 10 * plain.plan.peak_bytes):
        f = engine.compile(SQUARE, a, b, a, b, optimize=HALVES, memory_limit=f"{limit}B")
        assert f.plan.peak_bytes <= limit
        assert np.array_equal(f(a, b, a, b), np.einsum(SQUARE, a, b, a, b, optimize=True))
