"""Measured calls: the same results, times that add up, parts where they belong. No test asserts how long anything takes."""

import pickle
import threading
import time

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.explain import explain
from einsum_engine.kernels import registry, tiles
from einsum_engine.kernels.cpu import codegen, generators
from einsum_engine.kernels.isa import ISAS, active_isa
from einsum_engine.profile import PARTS, Profile, StepTime, part_of

# figure 24 (d) of the thesis, with the smallest size of its two
NETWORK = "abczef,reabq,oza,abqsa,feabo->asrbc"
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint16", "bool")


def operands(expr, size, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(size,) * len(term) for term in expr.partition("->")[0].split(",")]
    if np.dtype(dtype).kind == "c":
        return [(rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype) for s in shapes]
    low = 0 if np.dtype(dtype).kind == "u" else -3
    return [rng.integers(low, 4, s).astype(dtype) for s in shapes]


def compiled(expr, arrays, **options):
    """The ordinary object and the measured one."""
    return engine.compile(expr, *arrays, **options), engine.compile(expr, *arrays, profile=True, **options)


def only(f):
    ((plan, profile),) = f.profiles
    return plan, profile


# --- results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expr, size", [("ij,jk->ik", 33), ("km,nk->nm", 70), (NETWORK, 3), ("mkb,nbk->bmn", 9)])
def test_results_are_those_of_ordinary_calls(dtype, expr, size):
    arrays = operands(expr, size, dtype)
    plain, measured = compiled(expr, arrays)
    for _ in range(2):
        assert np.array_equal(plain(*arrays), measured(*arrays))
    assert only(measured)[1].calls == 2


@pytest.mark.parametrize("mode", ["pp", "pd", "dp", "dd"])
def test_every_isa_has_counting_kernels(mode):
    for isa in ISAS.values():
        for dtype in ("float32", "complex128", "bool"):
            mv, nr = tiles.tiles(isa, dtype)[0]
            name = f"gemm_{dtype}_{mv}x{nr}_{mode}{tiles.TIMED}"
            assert codegen.compile_object(generators.build(name, isa), isa)
            assert name not in registry.kernel_names(isa), "warm-up leaves them to those who profile"


def test_ordinary_kernels_read_no_clock():
    isa = active_isa()
    mv, nr = tiles.tiles(isa, "float32")[0]
    plain = codegen.assembly(generators.build(f"gemm_float32_{mv}x{nr}_pp", isa), isa)
    timed = codegen.assembly(generators.build(f"gemm_float32_{mv}x{nr}_pp{tiles.TIMED}", isa), isa)
    clock = "rdtsc" if isa.triple.startswith("x86") else "cntvct_el0"
    assert clock not in plain.lower() and clock in timed.lower()


def test_alpha_and_beta_add_once():
    a, b = operands("ij,jk->ik", 40, "float64")
    plain, measured = compiled("ij,jk->ik", [a, b])
    out, again = np.ones((40, 40)), np.ones((40, 40))
    for _ in range(3):
        plain(a, b, out=out, alpha=2.0, beta=0.5)
        measured(a, b, out=again, alpha=2.0, beta=0.5)
    assert np.array_equal(out, again)


def test_out_that_is_an_operand_is_read_before_it_is_written():
    a, b = operands("ij,jk->ik", 40, "float64")
    wanted = a @ b
    _, measured = compiled("ij,jk->ik", [a, b])
    assert np.allclose(measured(a, b, out=a), wanted)


def test_constants_stay():
    expr = "ij,jk,kl->il"
    a, b, c = operands(expr, 24, "float64")
    measured = engine.compile(expr, (24, 24), b, c, constants=[1, 2], profile=True)
    assert np.allclose(measured(a), a @ b @ c) and np.allclose(measured(a + 1), (a + 1) @ b @ c)
    plan, profile = only(measured)
    once = [step.number for step in plan.steps if step.once]
    assert once and all(not profile.steps[number].seconds for number in once)
    assert any(step.seconds for step in profile.steps)


def test_other_strides_conjugates_and_diagonals_count_too():
    a, b = operands("ij,jk->ik", 30, "complex64")
    measured = engine.compile("ij,jk->ik", a, b, profile=True)
    assert np.allclose(measured(a, b), a @ b) and np.allclose(measured(a.T, b), a.T @ b)
    measured(a, b, out=np.empty_like(a))
    assert [profile.calls for _, profile in measured.profiles] == [1, 1, 1]
    assert measured.explain().count("mean of 1 call:") == 3
    spread = engine.compile("ij,ji->ii", a, b, profile=True)
    assert np.allclose(np.diag(spread(a, b)), np.einsum("ij,ji->i", a, b)) and only(spread)[1].calls == 1


def test_what_no_kernel_runs_has_no_profile():
    nothing = engine.compile("ij,jk->ik", (3, 0), (0, 4), profile=True)
    assert not nothing(np.ones((3, 0)), np.ones((0, 4))).any() and nothing.profiles == ()
    objects = np.array([[1, 2], [3, 4]], object)
    handed = engine.compile("ij,jk->ik", objects, objects, profile=True)
    assert (handed(objects, objects) == objects @ objects).all() and handed.profiles == ()


# --- times -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("expr, size", [("ij,jk->ik", 200), (NETWORK, 6), ("abcd->dcba", 12), ("mkb,nbk->bmn", 40)])
def test_parts_add_up_to_less_than_the_calls_took(expr, size, threads):
    arrays = operands(expr, size, "float32")
    measured = engine.compile(expr, *arrays, threads=threads, profile=True)
    start = time.perf_counter()
    for _ in range(3):
        measured(*arrays)
    wall = time.perf_counter() - start
    plan, profile = only(measured)
    assert len(profile.steps) == len(plan.steps) and profile.calls == 3
    for step in profile.steps:
        assert step.seconds > 0 and all(getattr(step, part) >= 0 for part in PARTS)
    assert 0 < profile.seconds <= wall
    assert sum(map(profile.share, PARTS)) == pytest.approx(1)


def test_packing_is_seen_where_a_task_packs_and_where_a_step_does():
    # K runs along neither side of the output here: both operands are packed
    arrays = operands("km,nk->nm", 500, "float32")
    _, profile = measure("km,nk->nm", arrays)
    assert profile.share("packing") > 0 and profile.share("unpacking") > 0 and profile.share("kernel") > 0
    for expr, size in (("km,nk->nm", 300), (NETWORK, 8)):
        plan, profile = measure(expr, operands(expr, size, "float32"))
        packed = {step.number for step in plan.steps if "pack" in " ".join(step.layouts) and step.family == "gemm"}
        packed |= {step.number for step in plan.steps if step.family == "pack"}
        assert packed and all(profile.steps[number].packing > 0 for number in packed)


def measure(expr, arrays, **options):
    f = engine.compile(expr, *arrays, profile=True, **options)
    f(*arrays)
    return only(f)


@pytest.mark.parametrize("expr", ["abc->cab", "abc->b", "abc,abc->abc", "ij->"])
def test_a_plan_without_contraction_is_all_kernel(expr):
    plan, profile = measure(expr, operands(expr, 20, "float32"))
    assert not {step.family for step in plan.steps} & {"gemm", "dot", "batched", "small"}
    assert profile.share("kernel") == 1 and not profile.share("packing") and not profile.share("unpacking")


def test_steps_that_only_move_belong_to_the_contraction_beside_them():
    plan = engine.compile("ij,jk->ik", (40, 40), (40, 40), dtypes="float16", threads=1).plan
    parts = {step.family: part_of(step, plan.steps) for step in plan.steps}
    assert parts["gemm"] == "kernel" and parts["copy"] == "unpacking", "the result is rounded"
    swapped = [np.ones((50, 50), ">f4")] * 2
    plan = engine.compile("ij,jk->ik", *swapped, threads=1).plan
    assert [part_of(step, plan.steps) for step in plan.steps if step.family == "copy"] == ["packing"] * 2
    lone = engine.compile("abc->cab", (9, 9, 9)).plan
    assert [part_of(step, lone.steps) for step in lone.steps] == ["kernel"]


def test_threads_may_call_at_the_same_time():
    arrays = operands(NETWORK, 4, "float64")
    plain, measured = compiled(NETWORK, arrays, threads=2)
    wanted, wrong = plain(*arrays), []

    def call():
        for _ in range(20):
            if not np.array_equal(measured(*arrays), wanted):
                wrong.append(1)

    workers = [threading.Thread(target=call) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong and only(measured)[1].calls == 80


# --- what is shown and kept --------------------------------------------------------------------------------------


def test_explain_has_the_columns_after_a_call():
    arrays = operands("ij,jk->ik", 100, "float32")
    plain, measured = compiled("ij,jk->ik", arrays)
    assert measured.explain() == plain.explain() and "measured" not in plain.explain()
    for calls in ("1 call:", "2 calls:"):
        measured(*arrays)
        lines = measured.explain().splitlines()
        assert lines[2].split()[-5:] == ["predicted", "measured", *PARTS]
        assert [line for line in lines if line.startswith("measured ") and f"mean of {calls} kernel " in line]
    plain(*arrays)
    assert plain.profiles == () and "measured" not in plain.explain()


def test_explain_shows_means_and_leaves_out_what_did_not_run():
    plan = engine.compile("ij,jk,kl->il", *[(40, 40)] * 3, threads=1).plan
    first = StepTime(kernel=0.002, packing=0.004, unpacking=0.002)
    profile = Profile(calls=2, steps=(first, *[StepTime()] * (len(plan.steps) - 1)))
    lines = explain(plan, profile).splitlines()
    assert lines[3].endswith("4ms     1ms      2ms        1ms") and lines[4].split()[-4:] == ["-"] * 4
    assert "measured 4ms, mean of 2 calls: kernel 25.0 %, packing 50.0 %, unpacking 25.0 %" in lines


def test_profiles_are_sums_that_can_be_taken_apart():
    steps = [StepTime(kernel=1.0, packing=2.0), StepTime(unpacking=3.0)]
    plan = engine.compile("ij,jk,kl->il", *[(3, 3)] * 3).plan
    once = Profile.nothing(plan).with_call(steps)
    twice = once.with_call(steps)
    assert twice.calls == 2 and twice.seconds == 12 and twice.mean() == once and twice.since(once) == once
    assert [once.share(part) for part in PARTS] == [1 / 6, 2 / 6, 3 / 6]
    assert Profile.nothing(plan).share("kernel") == 0 == Profile.nothing(plan).mean().seconds


def test_stored_objects_measure_again_from_nothing(tmp_path):
    arrays = operands("ij,jk->ik", 20, "float64")
    _, measured = compiled("ij,jk->ik", arrays)
    wanted = measured(*arrays)
    measured.save(tmp_path / "plan.json")
    for other in (pickle.loads(pickle.dumps(measured)), engine.load(tmp_path / "plan.json")):
        assert other.profiles == () and np.array_equal(other(*arrays), wanted)
        assert only(other)[1].calls == 1
    assert only(measured)[1].calls == 1


def test_einsum_does_not_take_it():
    with pytest.raises(EngineTypeError, match="einsum.. has no option 'profile'"):
        engine.einsum("ij->", np.ones((2, 2)), profile=True)
    with pytest.raises(EngineTypeError, match="profile='yes': expected True or False"):
        engine.compile("ij->", (2, 2), profile="yes")


# --- functions of NumPy ------------------------------------------------------------------------------------------


def update(x, w):
    """Writes an argument from what it held: done twice, it would be another result."""
    y = np.tanh(x[:, 1:] @ w)
    x[:, :-1] += y
    x *= 2
    return y.sum(axis=0), x[0]


def counted_up(x, w):
    def body(state):
        turn, row = state
        x[turn] += row
        return turn + 1, row @ w

    return engine.while_loop(lambda state: state[0] < len(x), body, (np.int64(0), x[0] + 1))[1]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "function, width, dtype",
    [(update, 69, "float32"), (update, 69, "complex128"), (counted_up, 70, "float64"), (counted_up, 70, "int64")],
)
def test_measured_functions_write_their_arguments_once(function, width, dtype, threads):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((40, 70), (width, width)))
    plain, measured = (engine.jit(function, threads=threads, profile=flag) for flag in (False, True))
    wide = np.zeros((40, 140), dtype)
    for given in (lambda: x.copy(), lambda: np.asfortranarray(x), lambda: wide[::-1, ::-2]):
        one, two = given(), given().copy(order="K")
        one[...] = two[...] = x
        for _ in range(3):
            assert all(np.array_equal(a, b) for a, b in zip(plain(one, w), measured(two, w), strict=True))
            assert np.array_equal(one, two)
    assert plain.profiles == () and sum(profile.calls for _, profile in measured.profiles) == 9
    for plan, profile in measured.profiles:
        assert plan.threads == threads and len(profile.steps) == len(plan.steps)
        working = [time for step, time in zip(plan.steps, profile.steps) if step.family != "control"]
        assert all(time.seconds > 0 for time in working)


def test_arguments_that_overlap_are_measured():
    def shift(a, b):
        a += b
        return b.sum()

    measured = engine.jit(shift, profile=True)
    memory, wanted = np.arange(9.0), np.arange(9.0)
    assert measured(memory[1:], memory[:-1]) == shift(wanted[1:], wanted[:-1])
    assert np.array_equal(memory, wanted) and measured.profiles[0][1].calls == 1


def test_explain_of_a_function_has_the_columns_after_a_call():
    x, w = np.ones((40, 70)), np.ones((69, 69))
    measured = engine.jit(update, profile=True)
    assert measured.explain(x, w) == engine.jit(update).explain(x, w)
    for calls in ("1 call:", "2 calls:"):
        measured(x, w)
        lines = measured.explain().splitlines()
        assert [line.split()[-5:] for line in lines if line.startswith("step")] == [["predicted", "measured", *PARTS]]
        assert [line for line in lines if line.startswith("measured ") and f"mean of {calls} kernel " in line]


def test_a_call_that_fails_is_not_counted():
    measured = engine.jit(lambda x, at: (x * 2)[at] + 1, profile=True)
    x = np.ones(4)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        measured(x, np.array([0, 9]))
    assert measured.profiles == ()
    assert (measured(x, np.array([0, 3])) == 3).all() and only(measured)[1].calls == 1


def test_a_function_without_a_plan_has_no_profile():
    measured = engine.jit(lambda x: np.sort(x) + 1, profile=True)
    assert measured(np.array([2j, 1j]))[0] == 1 + 1j and measured.profiles == ()
    assert "no plan" in measured.explain()


def test_options_of_functions_are_checked():
    with pytest.raises(EngineTypeError, match="profile='yes': expected True or False"):
        engine.jit(update, profile="yes")
    with pytest.raises(EngineTypeError, match="threads='two': expected an integer"):
        engine.jit(update, threads="two")
    with pytest.raises(EngineValueError, match="threads=0: expected at least 1"):
        engine.jit(threads=0)(update)


def test_threads_of_a_function(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "3")
    x, w = np.ones((40, 70)), np.ones((69, 69))
    assert [engine.jit(update, threads=threads).plan(x, w).threads for threads in (None, 1, 2)] == [3, 1, 2]


def test_options_are_those_of_the_outermost_function():
    inner = engine.jit(update, threads=1, passes=())
    outer = engine.jit(inner, threads=2, profile=True)
    x, w = np.ones((40, 70)), np.ones((69, 69))
    outer(x, w)
    assert only(outer)[0].threads == 2 and inner.profiles == ()
    assert inner.plan(x, w).threads == 1 and outer.program(x, w) != inner.program(x, w)
