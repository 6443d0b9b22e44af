"""Plans of programs: what they compute, in how many native calls, in how much memory, and what has none."""

import random
import warnings

import numpy as np
import pytest
from program_calls import assert_like_numpy, copy_of
from random_programs import check_case, draw_case, make_inputs, replay, run_line

import einsum_engine as engine
from einsum_engine import executor, program_route
from einsum_engine.ir import Program
from einsum_engine.planners import programs as program_plans

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, scale, shift):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + shift


def view_example(a):
    b, c = a[1], a[2]
    d = b + c
    c += 2
    return a + d


def contracted(x, w):
    y = np.einsum("ab,cb->ac", np.tanh(x), w) + x.sum(1, keepdims=True)
    return y * 2, np.einsum("ab,ab->", y, y)


def looped(x):
    y = np.tanh(x)

    def body(state):
        turn, z = state
        return turn + 1, engine.cond(turn > 1, lambda: z @ y, lambda: z[::-1] + y)

    return engine.while_loop(lambda state: state[0] < 4, body, (np.int64(0), x))[1]


def _array(shape, dtype, seed=0):
    found = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 7, shape).astype(dtype)
    return found + 1j * found[::-1] if dtype.startswith("complex") else found


# -- the native call ---------------------------------------------------------------------------------------------------
@pytest.fixture
def calls(monkeypatch):
    """Counts what runs: walks from Python, and programs run by NumPy."""
    counted = {"walks": 0, "evals": 0}
    run_rows, evaluate = executor.NativePlan._run_rows, Program.eval

    def counting_rows(self, frame, table):
        counted["walks"] += 1
        run_rows(self, frame, table)

    def counting_eval(self, *arrays):
        counted["evals"] += 1
        return evaluate(self, *arrays)

    monkeypatch.setattr(executor.NativePlan, "_run_rows", counting_rows)
    monkeypatch.setattr(Program, "eval", counting_eval)
    return counted


@pytest.mark.parametrize(
    "function, shapes",
    [(softmax, [(5, 6)]), (view_example, [(3, 4)]), (contracted, [(5, 6), (7, 6)]), (looped, [(4, 4)])],
)
def test_a_call_is_one_native_call(calls, function, shapes):
    arrays = [np.random.default_rng(at).random(shape) for at, shape in enumerate(shapes)]
    jitted, entered = engine.jit(function), []
    for number in range(4):
        jitted(*arrays)
        # the walker called from Python, or by the native entry, whose name is that of einsum's
        assert calls == {"walks": min(number + 1, 1), "evals": 0}
        entered.append(len(jitted._quick))
    assert entered == [0, 1, 1, 1]
    route = jitted._last.routes.values()[0]
    assert type(route.entry).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize("dtype", "? i1 u2 i4 i8 u8 f2 f4 f8 >f4 c8 c16".split())
def test_calls_with_a_constant_begin_with_the_entry(calls, dtype):
    x, constant = np.random.rand(4, 6), np.arange(6).astype(dtype)
    jitted = engine.jit(lambda x: x * constant)
    assert all(np.array_equal(jitted(x), x * constant) for _ in range(4))
    assert calls == {"walks": 1, "evals": 0} and len(jitted._quick) == 1


def test_the_count_sees_what_has_no_plan(calls):
    engine.jit(np.sort)(np.random.rand(4) + 1j)
    assert calls == {"walks": 0, "evals": 1}


def test_the_entry_is_not_used_for_other_arrays():
    jitted = engine.jit(lambda x: (x + x) * x)
    for x in (np.random.rand(6), np.random.rand(6), np.random.rand(5), np.arange(6), np.random.rand(12)[::2], [1]):
        x = np.asarray(x)
        for _ in range(3):
            assert np.array_equal(jitted(x), (x + x) * x)
    assert len(jitted._quick) == 5  # one of the calls was a repetition
    with pytest.raises(TypeError):
        jitted(np.random.rand(6), np.random.rand(6))


def test_a_read_only_argument_is_not_written_by_the_entry():
    @engine.jit
    def write(a):
        a += 1
        return a * 2

    a = np.zeros(4)
    for _ in range(3):
        write(a)
    assert write._quick and (a == 3).all()
    a.flags.writeable = False
    with pytest.raises(engine.EngineError):
        write(a)
    assert (a == 3).all()


# -- random programs -----
SEEDS = 300
UNPLANNED = ("take", "put")


def dense_case(seed):
    """A random program of what plans can do, that returns all it makes: nothing in it is dead."""
    rng = random.Random(seed)
    case = draw_case(lambda options: rng.choice([option for option in options if option not in UNPLANNED]))
    values = make_inputs(case["inputs"])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for line in case["lines"]:
            run_line(line, values)
    return {**case, "returned": list(range(len(values)))}


def check_cases(seeds):
    for seed in seeds:
        case = dense_case(seed)
        try:
            check_case(case)
        except Exception as error:
            error.add_note(f"replay with: {replay(case)}")
            raise


# -- what is computed --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", ["1", "2"])
def test_random_programs(threads, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    made = []
    build = program_plans.build_program
    counted = lambda *args: made.append(build(*args)) or made[-1]  # noqa: E731
    monkeypatch.setattr("einsum_engine.program_route.build_program", counted)
    check_cases(range(SEEDS))
    assert len(made) > 2 * SEEDS // 3 and {plan.threads for plan in made} == {int(threads)}
    assert sum(len(plan.steps) for plan in made) > len(made)


# -- kinds of arrays ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    x, y = _array((3, 5), dtype), _array((5,), dtype, 1)

    def body(x, y):
        z = x + y
        z[1:] = z[:-1]
        return z * y, np.einsum("ab,b->a", z, y) + 0, np.where(z != 0, y, z)

    assert_like_numpy(body, x, y, rtol=1e-2 if dtype == "float16" else 1e-6)


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    jitted = engine.jit(lambda x: x * x - x)
    assert jitted.plan(x) is not None and (jitted(x) == x * x - x).all()


VIEWS = {
    "transposed": lambda x: x.T.copy().T,
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "one row": lambda x: np.broadcast_to(x[0], x.shape),
    "byteswapped": lambda x: x.astype(">f8"),
    "unaligned": lambda x: np.frombuffer(bytearray(b"0" + x.tobytes()), np.uint8)[1:].view("f8").reshape(x.shape),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("function", [softmax, view_example])
def test_strides(function, name):
    x = VIEWS[name](np.random.default_rng(0).random((4, 6)))
    if function is view_example and not x.flags.writeable:
        pytest.skip("NumPy does not write a broadcast either")
    jitted = engine.jit(function)
    for _ in range(3):
        eager, given = x.copy(), copy_of(x) if name != "unaligned" else x
        wanted, found = function(eager), jitted(given)
        np.testing.assert_allclose(found, wanted)
        np.testing.assert_allclose(given, eager)
    assert jitted.plan(x) is not None


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (3, 0), (0, 3)])
def test_few_elements(shape):
    x = np.full(shape, 2.0)

    def body(x):
        y = np.multiply(x, 3, out=np.empty_like(x))
        y[...] += 1
        return y, np.sum(x, axis=-1) if x.ndim else x + 0, np.sum(y), np.concatenate([y.reshape(-1), x.reshape(-1)])

    assert_like_numpy(body, x)


def test_padding_and_joining():
    def body(x):
        return np.pad(x, ((1, 0), (2, 3)), constant_values=7), np.concatenate([x, x * 2, x[:, ::-1]], 1)

    assert_like_numpy(body, np.random.default_rng(0).random((3, 4)))


def test_arguments_that_overlap():
    def body(x, y):
        x[1:] += y[:-1]
        return x * y

    jitted = engine.jit(body)
    for _ in range(3):
        one, two = np.arange(8.0), np.arange(8.0)
        wanted, found = body(one[1:6], one[2:7]), jitted(two[1:6], two[2:7])
        assert np.array_equal(wanted, found) and np.array_equal(one, two)


def test_arguments_are_exchanged():
    def body(x, y):
        old = x.copy()
        x[...] = y
        y[...] = old

    jitted = engine.jit(body)
    x, y = np.zeros(3), np.ones(3)
    for turn in range(4):
        jitted(x, y)
        assert (x == (turn + 1) % 2).all() and (y == turn % 2).all()


def test_what_is_not_written_does_not_change():
    x = np.random.default_rng(0).random((4, 5))
    before = x.copy()

    def body(x):
        y = x.copy()
        y[1] = 0
        z = x.reshape(-1)[2:] * 1
        z *= 2
        return y, z, x[1:] - x[:-1]

    assert_like_numpy(body, x)
    engine.jit(body)(x)
    assert np.array_equal(x, before)


def test_long_chains_are_cut():
    def body(x):
        for turn in range(100):
            x = np.sin(x) + turn * x
        return x

    jitted = assert_like_numpy(body, np.linspace(-1, 1, 50), rtol=1e-4)
    assert 2 < len(jitted.plan(np.linspace(-1, 1, 50)).steps) < 20


# -- steps and memory --------------------------------------------------------------------------------------------------
def test_the_steps_of_softmax_and_layer_norm():
    """Of few rows; more are one step (test_over)."""
    x, row = np.random.rand(7, 700).astype("f4"), np.random.rand(700).astype("f4")
    texts = [step.expr for step in engine.jit(softmax).plan(x).steps]
    assert texts == ["reduce_max", "sub exp sum", "div"]
    texts = [step.expr for step in engine.jit(layer_norm).plan(x, row, row).steps]
    assert texts == ["sum", "div", "sub mul sum", "div add sqrt", "sub div mul add"]  # x - mean is not stored


def test_maps_of_different_operands_are_one_step_where_another_joins_them():
    a, b, c = np.random.default_rng(0).random((3, 5000))

    def joined(a, b, c):
        return np.sqrt(a * a + b) * np.exp(-c) + a

    def written_between(a, b, c):
        first = np.sqrt(a)
        c[:] = a[0] + b
        return first * np.exp(-c)

    (step,) = engine.jit(joined).plan(a, b, c).steps
    assert step.expr.endswith("(7)") and np.allclose(engine.jit(joined)(a, b, c), joined(a, b, c))
    wanted = written_between(a, b, c.copy())
    assert np.allclose(engine.jit(written_between)(a, b, c), wanted) and np.allclose(c, a[0] + b)


def test_a_chain_of_steps_works_in_the_memory_of_its_result():
    plan = engine.jit(softmax).plan(np.random.rand(64, 512))
    (result,) = (buffer for buffer in plan.buffers if buffer.name == "out")
    exp = next(buffer for buffer in plan.buffers if buffer.nbytes == result.nbytes and buffer.name != "in0")
    assert (exp.slot, exp.offset) == (result.slot, result.offset) and plan.arena_bytes < exp.nbytes


def test_a_write_in_place_writes_its_part():
    def body(a):
        a[3:5] += 1

    plan = engine.jit(body).plan(np.zeros((1000, 100)))
    (step,) = plan.steps
    assert step.bytes_moved == 2 * 2 * 100 * 8 and plan.output_bytes == plan.arena_bytes == 0


def test_arguments_that_are_written_whole_are_written_at_once():
    def body(a, b):
        a += b
        np.multiply(a, 2, out=b)
        return a.sum()

    a, b = np.random.default_rng(0).random((2, 4, 5))
    plan = assert_like_numpy(body, a, b).plan(a, b)
    assert [step.expr for step in plan.steps] == ["add mul", "sum"] and plan.arena_bytes == 0


@pytest.mark.parametrize(
    "function, shapes",
    [(softmax, [(33, 65)]), (contracted, [(40, 50), (30, 50)]), (view_example, [(5, 9)]), (looped, [(33, 33)])],
)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_peak_bytes(function, shapes, threads, monkeypatch):
    """The arena that a call gets is as large as the plan says, and nothing is written behind it."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    behind, frames = 4096, []

    def fresh(frame):
        memory = np.full(frame._nbytes + 64 + behind, 0xA5, np.uint8)
        frames.append((frame, memory))
        return memory

    monkeypatch.setattr(executor._Frame, "_fresh", fresh)
    jitted = engine.jit(function)
    arrays = [np.random.default_rng(at).random(shape) for at, shape in enumerate(shapes)]
    plan = jitted.plan(*arrays)
    found = jitted(*arrays)
    results = found if isinstance(found, tuple) else (found,)
    assert plan.output_bytes == sum(np.asarray(result).nbytes for result in results)
    assert plan.peak_bytes == plan.output_bytes + plan.arena_bytes + plan.table_bytes
    ((frame, memory),) = frames
    assert frame._nbytes == plan.arena_bytes
    start = int(frame.bases[len(plan.expr.inputs) + 1]) - memory.ctypes.data
    assert (memory[start + plan.arena_bytes :] == 0xA5).all() and (memory[:start] == 0xA5).all()


# -- what has no plan --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function, arrays, why",
    [
        (np.sort, [np.zeros(4, "c8")], "no kernel for sort of complex64"),
        (np.argsort, [np.ones((2, 4), "c16")], "no kernel for argsort of complex128"),
        (lambda x: np.nextafter(x, 2 * x), [np.ones(4, "f2")], "no kernel for nextafter of float16"),
    ],
)
def test_what_has_no_plan_says_why_and_is_right(function, arrays, why):
    jitted = engine.jit(function)
    assert jitted.plan(*arrays) is None
    text = jitted.explain(*arrays)
    assert "no plan: %" in text and why in text.split("no plan: ")[1]
    assert np.array_equal(jitted(*arrays), function(*arrays))


def test_explain_shows_the_steps():
    text = engine.jit(softmax).explain(np.random.rand(4, 5))
    assert "sub exp sum" in text and "fused fused_run" in text and "peak bytes" in text


@pytest.mark.parametrize("stride, alone", [(4, False), (-4, False), (8, True), (-8, True), (12, True), (0, False)])
def test_elements_that_share_bytes_are_not_written_in_place(stride, alone):
    memory = np.zeros(200, np.uint8)
    array = np.ndarray((5,), np.float64, memory, 80, (stride,))
    assert program_route.injective(array) == alone

    def increment(a):
        a += 1
        return a.sum()

    assert engine.jit(increment)(array) == 5.0


# -- parts of one array ------------------------------------------------------------------------------------------------
def interleaved(x, y):
    """Four writes of every fourth column."""
    boxes = np.zeros_like(x)
    half = np.exp(x[:, 2::4]) * y[:, None]
    boxes[:, 0::4] = x[:, 0::4] - half
    boxes[:, 1::4] = x[:, 1::4] * y[:, None]
    boxes[:, 2::4] = x[:, 0::4] + half
    boxes[:, 3::4] = x[:, 3::4] + boxes[:, 1::4]
    return boxes


def joined_and_written(x, y):
    """What a concatenate joins is read again, and written over."""
    boxes = np.concatenate((x[:, :40] * 2, x[:, 40:] + y[:, None]), axis=1)
    boxes[:, :40] -= boxes[:, 40:] / 2
    boxes[:, 40:] += boxes[:, :40]
    return boxes


def turned_and_written(x, y):
    """A copy of which nothing is left."""
    found = x.reshape(50, 2, 80).transpose(2, 0, 1).copy()
    found[:40] = np.tanh(found[:40])
    found[40:] = found[40:] * 3
    return found


def copied_and_written(x, y):
    scaled = x.copy()
    scaled[:, 0::2] /= 3
    scaled[:, 1::2] *= 2
    return scaled


@pytest.mark.parametrize("body", [interleaved, joined_and_written, turned_and_written, copied_and_written])
def test_parts_of_an_array_are_written_by_the_steps_that_compute_them(body):
    x, y = np.random.default_rng(0).random((100, 80)), np.arange(100.0)
    plan = assert_like_numpy(body, x, y).plan(x, y)
    assert len(plan.steps) <= 2 and "copy" not in {step.expr for step in plan.steps}
    assert {buffer.name for buffer in plan.buffers if buffer.kind == "arena"} == set()


def test_colours_of_a_grid_are_written_in_two_steps():
    def body(u):
        u[1:-1:2] = u[:-2:2] + u[2::2]
        u[2:-1:2] += u[1:-2:2] * 2
        return u[0] * 2

    u = np.random.default_rng(0).random((101, 90))
    steps = assert_like_numpy(body, u).plan(u).steps
    assert [step.expr for step in steps if step.expr == "copy"] == [] and len(steps) <= 3


def test_values_that_are_written_over_while_they_are_needed_have_memory_of_their_own():
    """The array is not copied for them."""

    def body(u):
        first = (u[:-2:2] + u[2::2]) * 0.5
        u[1:-1:2] = first
        u[2:-1:2] += first[:-1] + u[3::2]
        second = (u[:-2:2] + u[2::2]) * 0.5
        u[1:-1:2] = second
        return np.abs(second - first).max()

    u = np.random.default_rng(0).random((201, 30))
    assert "copy" not in {step.expr for step in assert_like_numpy(body, u).plan(u).steps}


def test_what_is_computed_again_does_not_read_what_it_writes():
    def body(u):
        first = u[1:-1] * 2 + u[:-2]
        u[1:-1] = first
        return np.abs(u[2:] - first[::-1])

    assert_like_numpy(body, np.random.default_rng(0).random((200, 30)))


@pytest.mark.parametrize(
    "name, shape, axis",
    [
        ("sum", (5000, 2, 2), (1, 2)),
        ("prod", (2, 9000), 0),
        ("max", (5000, 3), 1),
        ("min", (3, 5000), 0),
        ("any", (5000, 3), 1),
        ("all", (5000, 3), 1),
    ],
)
def test_reductions_of_a_few_entries_are_maps(name, shape, axis):
    for dtype in (bool, np.int32, np.float32):
        x = np.random.default_rng(0).integers(-2, 3, shape).astype(dtype)
        (step,) = assert_like_numpy(lambda x: getattr(np, name)(x, axis=axis), x).plan(x).steps
        same = dtype is np.float32 and name not in ("any", "all")
        assert not same or not step.dims["K"], step
