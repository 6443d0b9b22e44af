"""How the equations of a program become steps: order, memory, blocks, contractions of contractions."""

import random

import numpy as np
import pytest
from program_calls import assert_like_numpy

import einsum_engine as engine
from einsum_engine.avals import Aval
from einsum_engine.ir import Builder, Literal
from einsum_engine.kernels.cpu import fused_abi
from einsum_engine.planners import blocking, fusion, late, over, regions
from einsum_engine.planners import programs as program_plans
from einsum_engine.planners.chains import chained
from einsum_engine.planners.fusion import Schedule
from einsum_engine.planners.groups import FusedGroup
from einsum_engine.profiler import ProfiledPlan
from einsum_engine.program_route import make_route
from einsum_engine.views import View


# -- orders that matter ------------------------------------------------------------------------------------------------
def shifted(x, y):
    x[1:] = x[:-1]
    return x[0] + y[0]


def read_before_written(x, y):
    """The write has to wait for a step that it does not depend on."""
    p = y[1:] * 3
    t = x.T + p.sum()
    x[1:] = y[1:] + 1
    return t


def read_turned(x, y):
    """The write is at other points than the read, so they are no one step."""
    t = x[:-1] * 2
    x[1:] = y[1:] + 1
    return t


def two_versions(x, y):
    z = x * 2
    z[0] = 5
    return z, x[0] + z[0]


def stored_twice(x, y):
    """What is left at the first place would be written over while it is read for the second."""
    z = x[:-1] * 2
    x[:-1] = z
    x[1:] = z
    y[1:] = y[:-1]
    y[:-1] += y[1:]
    y[1:] = y[:-1]
    return x[0] + y[0]


def stored_where_it_is_reversed(x, y):
    z = np.tanh(x[::-1])
    x[...] = z
    x[:, 1:] = z[:, 1:]
    x[::-1] = z
    return x + y


def old_part_is_a_later_result(x, y):
    """What replaces all of x is stored while a part of x, a later result, is still to be copied."""
    old = x[0]
    x += 1
    y[...] = np.tanh(x @ y)
    return y.copy(), x.copy(), old


def old_part_is_another_operand(x, y):
    """What replaces all of x is stored for an equation that also reads what x was."""
    old, z = x[::-1].copy(), x * 2
    x[...] = z
    z[:4] = old[:4]
    w = y + y
    y[...] = w
    return np.einsum("ij,jk->ik", w, old), z


def old_part_is_added_where_indices_say(x, y):
    old, z = x[::-1].copy(), x * 2
    x[...] = z
    np.add.at(z, [0, 0, 1], old[:3])
    return z


HAZARDS = [
    shifted,
    read_before_written,
    read_turned,
    two_versions,
    stored_twice,
    stored_where_it_is_reversed,
    old_part_is_a_later_result,
    old_part_is_another_operand,
    old_part_is_added_where_indices_say,
]


def check_hazards():
    for function in HAZARDS:
        x, y = np.random.default_rng(0).random((2, 64, 64))
        assert_like_numpy(function, x, y)
    old_version_is_kept()


def old_version_is_kept():
    """A program that returns two versions of one value, which no function of NumPy traces to."""
    build = Builder()
    x = build.input(Aval((4,), np.dtype(float)))
    (y,) = build.emit("einsum", (x, x), subscripts="a,a->a")
    (z,) = build.emit("assign", (y, Literal.of(7, float)), view=View((2,), (2,), 1))
    program = build.finish([x], [z, y])
    route = make_route(program, (), ((8,),), "two versions")
    given = np.arange(4.0)
    for wanted, found in zip(program.eval(given), route.run([given]), strict=True):
        assert np.array_equal(wanted, found)


def test_orders_that_matter():
    check_hazards()


def test_what_is_computed_twice_reads_nothing_that_is_written():
    """A large product of a large operand is computed where it is stored, but not over its operand's other elements."""

    def body(x, y):
        x[...] = x[::-1] * 2
        y[1:] = y[:-1] + 1
        return x[0] * y[0]

    x, y = np.random.default_rng(0).random((2, 130, 130))
    assert_like_numpy(body, x, y)


@pytest.mark.parametrize(
    "owner, name, wrong",
    [
        (Schedule, "overwritable", lambda self, place, target, now=False: True),
        (Schedule, "aside", lambda self, atom: atom),
        (fusion, "_touches", lambda step, target: False),
        (FusedGroup, "may_write", lambda self, place: True),
    ],
)
def test_wrong_schedules_are_found(owner, name, wrong, monkeypatch):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        check_hazards()


# -- blocks ------------------------------------------------------------------------------------------------------------
def scaled(x):
    y = x * x.sum(-1, keepdims=True)
    return y - y.max(-1, keepdims=True), y.sum(1)


def turned(x):
    y = x * x.sum(-1, keepdims=True)
    return np.exp(y.T * 1e-3) + x, y


@pytest.fixture
def several_steps(monkeypatch):
    """Rows stay too long for a kernel that goes over each as often as it takes."""
    monkeypatch.setattr(over, "LONGEST", 0)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_large_steps_are_worked_through_in_blocks(threads, several_steps, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    x = np.random.default_rng(0).integers(-3, 4, (1003, 1003)).astype(float)
    jitted = assert_like_numpy(scaled, x)
    shared = [step for step in jitted.plan(x).steps if step.family == "control"]
    steps = [step for step in jitted.plan(x).steps if step.family != "control"]
    count = steps[0].block[1]
    assert [step.expr for step in shared] == ([f"{count} blocks, then {len(steps) + 1}"] if threads == "2" else [])
    assert {step.depth for step in steps} == {len(shared)} and count % int(threads) == 0
    assert count > 8 and len(steps) == count * sum(step.block[0] == 0 for step in steps)
    assert [step.block[0] for step in steps] == sorted(step.block[0] for step in steps)
    assert f"1 of {count} blocks" in jitted.explain(x) and len(jitted.explain(x).splitlines()) < 60
    assert {step.block for step in assert_like_numpy(turned, x).plan(x).steps} != {(0, 1)}


@pytest.mark.parametrize("threads", ["2", "3"])
def test_blocks_that_threads_share(threads, several_steps, monkeypatch):
    """The same bits as on one thread, whatever is around the blocks, measured or not; in a loop, too."""

    def body(x):
        def turn(state):
            x, left = state
            y = x - x.max(-1, keepdims=True)
            return y * y.min(-1, keepdims=True), left - 1

        x = engine.while_loop(lambda state: state[1] > 0, turn, (x, np.int64(2)))[0]
        return x, x.sum(0), np.sort(x[0])

    x = np.random.default_rng(0).random((2001, 300))
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    wanted = engine.jit(body)(x)
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    jitted = engine.jit(body)
    plan = jitted.plan(x)
    assert [step.kernel for step in plan.steps].count("blocks") == 1
    for _ in range(5):
        assert all(np.array_equal(one, other) for one, other in zip(jitted(x)[::2], wanted[::2]))
    profiled = ProfiledPlan(plan)
    out = [np.empty(shape, dtype) for dtype, shape in plan.expr.results]
    profiled.run([x, *jitted._last.routes.values()[0].consts, *out[1:]], out[0])
    assert np.array_equal(out[0], wanted[0])
    times = profiled.profile.steps
    assert all(time.seconds > 0 for step, time in zip(plan.steps, times) if step.block[1] > 1)


def test_threads_share_no_blocks_that_leave_much_between_steps(several_steps, monkeypatch):
    """``y`` is folded to a block; blocks at the same time would have to have all of it."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")

    def body(x):
        y = np.exp(x - x.max(-1, keepdims=True))
        return (y / y.sum(-1, keepdims=True)).max(-1)

    x = np.random.default_rng(0).random((2001, 601))
    plan = engine.jit(body).plan(x)
    assert all(step.block[1] > 1 and step.family == "fused" for step in plan.steps)
    assert plan.arena_bytes < x.nbytes / 2


def one_behind(x, y):
    x[1:] += y[:-1]
    x[:-1] *= y[1:]
    return y[0] * 2


def several_behind_from_the_end(x, y):
    x[-4::-1] += y[3:]
    x[:2:-1] *= y[:-3]
    return y[0] * 2


def behind_another(x, y):
    y[1:] = x[1:] * 2
    x[:-1] = y[:-1] + y[:-1].max(-1, keepdims=True)
    return y[0] * 2


@pytest.mark.parametrize("body", [one_behind, several_behind_from_the_end, behind_another])
def test_threads_share_no_blocks_whose_rows_lie_in_the_blocks_of_others(body, several_steps, monkeypatch):
    """The steps go through the rows in order, but a row of one block is a row of the one before to another step."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")
    x, y = np.random.default_rng(0).integers(-9, 9, (2, 1500, 1000)).astype(float)
    for _ in range(5):
        plan = assert_like_numpy(body, x.copy(), y.copy()).plan(x.copy(), y.copy())
    assert "blocks" not in [step.kernel for step in plan.steps] and plan.steps[0].block[1] > 1


def jacobi(x, y):
    x[1:-1, 1:-1] = x[:-2, 1:-1] + x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    return y[0] * 2


def red_black(x, y):
    for row, column in ((1, 1), (2, 2), (1, 2), (2, 1)):
        above, below = x[row - 1 : -2 : 2, column:-1:2], x[row + 1 :: 2, column:-1:2]
        x[row:-1:2, column:-1:2] = 2 * x[row:-1:2, column:-1:2] - above[:31] + below[:31]
    return y[0] * 2


def backwards(x, y):
    z = x[::-1] * 2
    x[2:] = x[:-2] + y[2:]
    y[::-1] = y + z
    x[:-3] -= y[3:]
    return y[0] * 2


SWEEPS = [jacobi, red_black, backwards]


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_steps_that_touch_rows_beside_their_own_stay_behind(rows, monkeypatch):
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda run, *_: rows)
    for body in SWEEPS:
        x, y = np.random.default_rng(0).integers(-9, 9, (2, 64, 64))
        steps = assert_like_numpy(body, x, y).plan(x, y).steps
        assert body is backwards or max(step.block[1] for step in steps) > 3


def test_blocks_in_the_order_of_rows_are_found_wrong(monkeypatch):
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda run, *_: 2)
    monkeypatch.setattr(program_plans, "lags", lambda run, rows: [0] * len(run))
    for body in (jacobi, red_black):
        with pytest.raises(AssertionError):
            assert_like_numpy(body, *np.random.default_rng(0).integers(-9, 9, (2, 64, 64)))


def test_blocks_of_rows_that_are_none_are_found_wrong(monkeypatch):
    monkeypatch.setattr(blocking, "_distances", lambda run: {})
    with pytest.raises(AssertionError):
        assert_like_numpy(turned, np.random.default_rng(0).random((1003, 1003)))


def test_memory_between_steps_holds_a_few_blocks(monkeypatch):
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda run, *_: 4)
    x, y = np.random.default_rng(0).integers(-9, 9, (2, 64, 64))
    plan = assert_like_numpy(jacobi, x, y).plan(x, y)
    assert plan.arena_bytes < x.nbytes / 4


LATE = (fused_abi.U_LATE, fused_abi.U_NEAR)


# -- rows stored late --------------------------------------------------------------------------------------------------
def beside(x, y):
    x[1:, 2:] = x[:-1, :-2] * 2 - y[1:, 2:]
    return y[0] * 2


def whole_rows(x, y):
    x[1:-1] = x[2:] - x[:-2] + y[1:-1] * x[1:-1]
    return y[0] * 2


def two_away(x, y):
    x[2:] = x[:-2] + y[2:]
    return y[0] * 2


@pytest.fixture
def long_rows(monkeypatch):
    """Arrays of 64 x 64 are as large and their rows as long as those that are stored late."""
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda *run: 4)
    monkeypatch.setattr(late, "SHORTEST", 0)
    monkeypatch.setattr(late, "FEWEST", 3)
    monkeypatch.setattr(late, "share", lambda nbytes, threads: 4 * threads if threads > 1 else 1)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_rows_are_stored_after_the_next_one_is_computed(threads, long_rows, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    for body in (jacobi, beside, whole_rows):
        x, y = np.random.default_rng(0).integers(-9, 9, (2, 64, 64))
        jitted = assert_like_numpy(body, x, y)
        steps = [step for step in jitted.plan(x, y).steps if step.flops or step.expr == "copy"]
        late_ones = [step for step in steps if set(LATE) & {w for w, value in step.args.words.items() if value}]
        assert len(late_ones) == 1 and len(steps) < 10 and all(step.block == (0, 1) for step in steps)
        assert threads != "1" or "copy" not in [step.expr for step in steps]
    x, y = np.random.default_rng(0).integers(-9, 9, (2, 64, 64))
    steps = assert_like_numpy(two_away, x, y).plan(x, y).steps
    assert not any(step.args.words.get(word) for step in steps for word in LATE)


def test_rows_that_are_stored_too_early_are_found_wrong(long_rows, monkeypatch):
    monkeypatch.setattr(late, "_near", lambda *arguments: True)
    with pytest.raises(AssertionError):
        assert_like_numpy(two_away, *np.random.default_rng(0).integers(-9, 9, (2, 64, 64)))


# -- einsums -----------------------------------------------------------------------------------------------------------
def test_products_between_maps():
    def body(x, w):
        y = np.exp(-(x @ w))
        return y @ y.transpose(0, 2, 1) + 1, np.tensordot(y, w, 1) * 2, np.einsum("abc,cd,ad->ab", y, w, x[:, 0])

    x, w = np.random.default_rng(0).random((2, 4, 3)), np.random.default_rng(1).random((3, 3))
    families = [step.family for step in assert_like_numpy(body, x, w).plan(x, w).steps]
    assert len([family for family in families if family != "fused"]) >= 5 and "fused" in families


def random_einsums(seed):
    """A function of einsums of einsums over indices of size 3 and 1, and its arguments."""
    rng = random.Random(seed)
    ranks, lines = [rng.choice((1, 2, 3)) for _ in range(3)], []
    for _ in range(rng.choice((2, 3, 5))):
        read = [len(ranks) - 1 - rng.choice((0, 0, 1, 2)) for _ in range(rng.choice((1, 2, 2)))]
        terms = ["".join(rng.choice("abcd") for _ in range(ranks[at])) for at in read]
        kept = [index for index in sorted(set("".join(terms))) if rng.random() < 0.6][:3]
        rng.shuffle(kept)
        lines.append((f"{','.join(terms)}->{''.join(kept)}", read))
        ranks.append(len(kept))

    def body(*values):
        values = list(values)
        for subscripts, read in lines:
            values.append(np.einsum(subscripts, *(values[at] for at in read)))
        return values[-1] if seed % 2 else (values[-1], values[second])

    second = rng.randrange(3, len(ranks))  # returned as well: it stays a value of its own
    shapes = [tuple(rng.choice((3, 3, 3, 1)) if seed % 3 == 0 else 3 for _ in range(rank)) for rank in ranks[:3]]
    return body, [np.random.default_rng(at).integers(-2, 3, shape) for at, shape in enumerate(shapes)]


def test_einsums_of_einsums(monkeypatch):
    together = []
    monkeypatch.setattr(regions, "chained", lambda program: together.append(chained(program)) or together[-1])
    for seed in range(200):
        body, arrays = random_einsums(seed)
        try:
            wanted = body(*arrays)
        except ValueError:
            continue  # NumPy does not broadcast between the axes of one operand
        found = engine.jit(body)(*arrays)
        pairs = [(wanted, found)] if seed % 2 else list(zip(wanted, found, strict=True))
        assert all(np.array_equal(one, two) for one, two in pairs), seed
    assert sum(bool(orders) for _, orders in together) > 50


def test_nothing_is_read_behind_a_write_by_a_longer_contraction():
    def body(x, y, z):
        p = x @ y
        x[...] = 0
        return p @ z

    x, y, z = np.random.default_rng(0).random((3, 4, 4))
    jitted = assert_like_numpy(body, x, y, z)
    assert len([step for step in jitted.plan(x, y, z).steps if step.family != "fused"]) == 2


def test_what_lies_between_products_is_laid_out_by_the_solver():
    arrays = [np.random.rand(300, 300) for _ in range(4)]
    plan = engine.jit(lambda w, x, y, z: np.einsum("ki,kl->li", np.einsum("ij,jk->ki", w @ x, y), z)).plan(*arrays)
    assert "fbl" in {buffer.layout.kind for buffer in plan.buffers if buffer.kind == "arena"}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_functions_run_in_one_step(dtype):
    """NumPy's functions, fused, where they run a program as a whole no longer."""

    def functions(x, y):
        angle = np.arctan(x) * y if x.dtype.kind == "c" else np.arctan2(x, y) + np.cbrt(x) + np.logaddexp2(x, y)
        return np.log2(angle + 3) - np.arcsinh(y) * np.cosh(x), np.log(x) ** 3 + np.sin(y), np.sign(x) + np.log10(x + 2)

    rng = np.random.default_rng(5)
    x, y = ((rng.random((3, 70)) + 0.5).astype(dtype) for _ in range(2))
    if x.dtype.kind == "c":
        x = x + (1j * y.real).astype(dtype)
    jitted = engine.jit(functions)
    assert [step.family for step in jitted.plan(x, y).steps] == ["fused"]
    for got, wanted in zip(jitted(x, y), functions(x, y), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_extremes_of_complex_numbers(dtype):
    """By real part, then by imaginary part; infinite parts and NaN too."""
    rng = np.random.default_rng(3)
    x = (rng.integers(-1, 2, (40, 50)) + 1j * rng.integers(-9, 10, (40, 50))).astype(dtype)
    x[0], x[1, 7] = complex(-np.inf, -5), complex(0, np.nan)
    for function in (np.max, np.min, np.argmax, np.argmin):
        for axis in (0, 1):
            jitted = engine.jit(lambda x: function(x, axis=axis))
            assert jitted.plan(x) is not None
            np.testing.assert_array_equal(jitted(x), function(x, axis=axis))


@pytest.mark.parametrize("size", [0, 3, 48])
def test_products_of_float16_have_epilogues(size):
    """The product is rounded before the map sees it, as NumPy does."""
    rng = np.random.default_rng(size)
    x, w, b = ((rng.random(shape) - 0.5).astype("f2") for shape in ((size, 32), (32, 40), (40,)))
    layer = engine.jit(lambda x, w, b: np.maximum(x @ w + b, 0))
    if size == 48:
        assert layer.plan(x, w, b).steps[-1].expr == "ij,jk->ik + cast add max"
    found, wanted = layer(x, w, b), np.maximum((x.astype("f4") @ w.astype("f4")).astype("f2") + b, 0)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)
