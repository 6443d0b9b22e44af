"""Rows whose elements depend on all of their row, in one step (`Structure.over_rows`): softmax, layer norm."""

import fused_case
import numpy as np
import oracle
import pytest
from program_calls import assert_like_numpy

import einsum_engine as engine
from einsum_engine.errors import EngineValueError
from einsum_engine.kernels import fused, launch
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.fused_over import passes
from einsum_engine.kernels.fused_reference import evaluate
from einsum_engine.kernels.isa import host_isas

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])
LENGTHS = (1, 2, 7, 8, 15, 16, 17, 33, 64, 65, 300)


def softmax_structure(dtype):
    """Of a row times one element of each; its log-sum-exp, too, and the largest."""
    g = fs.Graph((dtype,) * 2)
    x = g.op("mul", 0, 1)
    top = g.over(x, "max")
    e = g.op("exp", g.op("sub", x, top))
    total = g.over(e, "sum")
    return g.structure(g.op("div", e, total), g.op("add", g.op("log", total), top), top)


def norm_structure(dtype):
    """(x - min) / sqrt(sum of squares), times a row, plus its square: light passes, nothing kept."""
    g = fs.Graph((dtype,) * 2)
    d = g.op("sub", 0, g.over(0, "min"))
    scaled = g.op("mul", d, g.op("sqrt", g.over(g.op("mul", d, d), "sum")))
    return g.structure(g.op("add", g.op("mul", scaled, 1), g.op("mul", scaled, scaled)), d)


def prod_structure(dtype):
    """Reductions of what was compared, and of a number."""
    g = fs.Graph((dtype,))
    one = g.const(1, dtype)
    bounded = g.op("max", g.op("min", 0, g.const(1.1, dtype)), g.const(0.9, dtype))
    positive = g.op("select", g.op("gt", 0, g.over(0, "min")), bounded, one)
    count = g.over(one, "sum")
    return g.structure(g.op("mul", positive, g.over(positive, "prod")), count)


def run(isa, structure, outputs, inputs, threads=1):
    """Arrays have rows along their last axis; of size 1 where they are one element, or one number, of each."""
    arrays = [*outputs, *inputs]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    strides = [[s if n == size else 0 for s, n, size in zip(a.strides, a.shape, shape, strict=True)] for a in arrays]
    for number, each in enumerate(strides):
        if shape[-1] == 1 and number >= len(outputs):
            each[-1] = 0
    order = (len(shape) - 1, *range(len(shape) - 1))
    dims = tuple((shape[axis], *(s[axis] for s in strides)) for axis in order)
    operands = tuple(fused.Operand(slot=slot, offset=0) for slot in range(len(arrays)))
    rows = fused.lower(fused.FusedProblem(structure=structure, dims=dims, operands=operands), threads)
    launch.run(rows, [a.__array_interface__["data"][0] for a in arrays], isa)
    return rows


def check(isa, structure, inputs, rows, length, flush, threads=1):
    """Operands end, or begin, with memory that must not be touched; the oracle computes in more bits."""
    dtype = inputs[0].dtype
    wanted = evaluate(structure, [a.astype(np.longdouble) for a in inputs], (len(rows),))
    single = [out.value in passes(structure).numbers for out in structure.outputs]
    outputs = [oracle.place(np.full((*rows, 1 if one else length), 99, dtype), flush) for one in single]
    run(isa, structure, outputs, [oracle.place(a, flush) for a in inputs], threads)
    for out, value, one in zip(outputs, wanted, single, strict=True):
        value = value[..., :1] if one else value
        np.testing.assert_allclose(out, value, rtol=0, atol=16 * np.finfo(dtype).eps * np.abs(value).max())


def evaluate_structure(structure, inputs):
    return evaluate(structure, inputs, (inputs[0].ndim - 1,))


@ISAS
@FLOATS
@pytest.mark.parametrize("flush", ["end", "start"])
@pytest.mark.parametrize("make", [softmax_structure, norm_structure, prod_structure])
def test_rows_of_all_lengths(isa, dtype, flush, make):
    rng, structure = np.random.default_rng(7), make(dtype)
    for length in LENGTHS:
        for count in (1, 3, 4, 9):
            x = rng.standard_normal((count, length)).astype(dtype)
            other = rng.uniform(0.5, 1.5, (count, 1) if make is softmax_structure else (1, length)).astype(dtype)
            inputs = [x, other][: len(structure.inputs)]
            check(isa, structure, inputs, (count,), length, flush)


@ISAS
@FLOATS
@pytest.mark.parametrize("length", [5, 16, 100])
def test_rows_of_more_than_one_loop_that_do_not_follow_each_other(isa, dtype, length):
    rng, structure = np.random.default_rng(length), softmax_structure(dtype)
    whole = rng.standard_normal((6, 50, 2, length + 3)).astype(dtype)
    x, scale = whole[::-2, :, 0, 1 : length + 1], rng.uniform(0.5, 1.5, (1, 50, 1)).astype(dtype)
    shape = (3, 50, length)
    check(isa, structure, [x, np.broadcast_to(scale, (3, 50, 1))], shape[:-1], length, "end", threads=2)


@ISAS
@FLOATS
@pytest.mark.parametrize("shift", [0, 16, 40, 56])
def test_what_is_staged_of_long_rows_ends_before_what_is_kept(isa, dtype, shift):
    """Staged rows begin in their line where the output does, so the last one ends up to a line later."""
    structure, size = softmax_structure(dtype), np.dtype(dtype).itemsize
    for nbytes in (4096, 4416 - size, 4416, 5000):
        x = np.asfortranarray(np.random.default_rng(nbytes).standard_normal((3, nbytes // size)).astype(dtype))
        ones, memory = np.ones((3, 1), dtype), np.zeros(x.nbytes + 128, np.uint8)
        out = np.ndarray(x.shape, dtype, memory, -memory.ctypes.data % 64 + shift)
        run(isa, structure, [out, *(np.empty((3, 1), dtype) for _ in "ab")], [x, ones])
        wanted = evaluate_structure(structure, [x.astype(np.longdouble), ones])[0]
        np.testing.assert_allclose(out, wanted, rtol=16 * np.finfo(dtype).eps)


@ISAS
@FLOATS
@pytest.mark.parametrize("length", [16, 24, 64, 128, 136])
def test_past_the_caches(isa, dtype, length, monkeypatch):
    """Rows of whole lines, and others, of outputs that begin with a line or do not."""
    monkeypatch.setattr(fused, "STREAM_BYTES", 0)
    structure, rng = softmax_structure(dtype), np.random.default_rng(length)
    x, scale = rng.standard_normal((11, length)).astype(dtype), np.ones((11, 1), dtype)
    wanted = evaluate_structure(structure, [x.astype(np.longdouble), scale])[0]
    for shift in (0, 16):
        memory = np.zeros(x.nbytes + 256, np.uint8)
        start = -memory.ctypes.data % 64 + shift
        out = memory[start : start + x.nbytes].view(dtype).reshape(x.shape)
        run(isa, structure, [out, *(np.empty((11, 1), dtype) for _ in "ab")], [x, scale])
        np.testing.assert_allclose(out, wanted, rtol=16 * np.finfo(dtype).eps)
        assert not memory[:start].any() and not memory[start + x.nbytes :].any()


@ISAS
@FLOATS
def test_nan_and_infinities_stay_in_their_row(isa, dtype):
    structure = softmax_structure(dtype)
    for length in (9, 16, 40, 200):
        x = np.random.default_rng(length).standard_normal((12, length)).astype(dtype)
        x[1, 3], x[5, length - 1], x[6, 0], x[8, 2] = np.nan, np.inf, -np.inf, np.finfo(dtype).max
        out, total, top = np.empty_like(x), *(np.empty((12, 1), dtype) for _ in "ab")
        run(isa, structure, [out, total, top], [x, np.ones((12, 1), dtype)])
        with np.errstate(all="ignore"):
            wanted = evaluate_structure(structure, [x, np.ones((12, 1), dtype)])
        assert np.isnan(out[[1, 5]]).all() and np.isnan(top[1]) and np.isinf(top[5]) and out[6, 0] == 0
        for found, value in zip((out, total, top), (wanted[0], wanted[1][:, :1], wanted[2][:, :1])):
            np.testing.assert_allclose(found, value, rtol=32 * np.finfo(dtype).eps)


def test_structures_over_rows_are_text_and_are_checked():
    for make in (softmax_structure, norm_structure, prod_structure):
        structure = make("float32")
        assert structure.over_rows and fs.parse(structure.text()) == structure
    assert not fused_case.single("exp", ("float32",)).over_rows
    with pytest.raises(EngineValueError, match="no reduction 'mean' of float32"):
        fs.Graph(("float32",)).structure(0) and fs.Structure(
            inputs=("float32",),
            nodes=(fs.Node(op="over", args=(0,), dtype="float32", value="mean"),),
            outputs=(fs.Output(value=1),),
        )


def test_a_value_is_kept_where_it_takes_long_and_is_computed_again_where_not():
    assert len(passes(softmax_structure("float32")).kept) == 1 and passes(norm_structure("float32")).kept == ()


# -- programs ---------------------------------------------------------------------------------------------------------


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def normed(x, scale, shift):
    d = x - x.mean(axis=-1, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


def log_sum_exp(x):
    high = x.max(axis=-1, keepdims=True)
    return np.log(np.exp(x - high).sum(axis=-1)) + high[..., 0]


def with_its_parts(x):
    """What lies between is a result, too."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    total = e.sum(axis=-1, keepdims=True)
    return e, total, e / total


def written_over(x):
    x[...] = softmax(x)
    return x.sum()


def steps(function, *arrays):
    return [step.expr for step in engine.jit(function).plan(*arrays).steps]


def drawn(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@FLOATS
@pytest.mark.parametrize("shape", [(8, 8), (9, 16), (50, 33), (3, 5, 64), (40, 700), (2000, 300)])
def test_programs_are_like_numpy(dtype, shape):
    x, row = drawn(*shape, dtype=dtype), drawn(shape[-1], dtype=dtype)
    for function, *more in ((softmax,), (normed, row, row), (log_sum_exp,), (with_its_parts,), (written_over,)):
        assert_like_numpy(function, x.copy(), *more)


def test_one_step_for_all_that_needs_elements():
    x, row = drawn(64, 64), drawn(64)
    assert steps(softmax, x) == ["reduce_max sub exp sum div"]
    (step,) = engine.jit(normed).plan(x, row, row).steps
    assert step.expr.startswith("sum div sub mul")
    assert steps(log_sum_exp, x) == ["reduce_max sub exp sum", "log add"], "a function of numbers is vectors of them"
    assert steps(softmax, drawn(4, 5, 64)) == ["reduce_max sub exp sum div"]
    assert engine.jit(softmax).plan(x).arena_bytes < x.nbytes // 4, "kept rows, not all of them"


def test_results_between_are_stored_besides():
    assert steps(with_its_parts, drawn(64, 32)) == ["reduce_max sub exp sum div"]


@pytest.mark.parametrize(
    "x",
    [
        drawn(7, 512),
        drawn(512, 7),
        drawn(8, 1 << 15),
        drawn(64, 512).T,
        drawn(64, 512)[:, ::2],
        drawn(64, 64, dtype="complex64"),
    ],
    ids=["few rows", "few elements", "long rows", "columns", "every second", "complex"],
)
def test_what_stays_several_steps(x):
    assert len(steps(normed, x, x[0], x[0])) > 1
    assert_like_numpy(normed, x, x[0].copy(), x[0].copy())


def test_reductions_over_the_first_axis_stay_several_steps():
    x = drawn(64, 512)
    assert len(steps(lambda x: x / x.sum(axis=0), x)) > 1


def test_long_functions_of_long_rows_are_one_step_where_no_cache_has_them():
    apart = steps(softmax, drawn(64, 512))  # with the inverses of the sums
    assert len(apart) == 4 and len(steps(softmax, drawn(4096, 512))) == 1


def test_functions_of_numbers_of_short_rows_stay_steps():
    def scaled(x):
        return x * np.exp(x.sum(axis=-1, keepdims=True))

    assert len(steps(scaled, drawn(64, 16))) > 1 and len(steps(scaled, drawn(64, 512))) == 1
    assert_like_numpy(scaled, drawn(64, 16) / 16)


def test_what_is_written_between_is_read():
    """A part of the rows is written between two passes."""

    def body(x):
        top = x.max(axis=-1, keepdims=True)
        x[3:9] = 2
        e = x - top
        return e / e.sum(axis=-1, keepdims=True)

    assert_like_numpy(body, drawn(32, 64))


@FLOATS
def test_truth_values_of_a_row(dtype):
    def body(x):
        bad = np.isnan(x).any(axis=-1, keepdims=True)
        large = (x > -9).all(axis=-1, keepdims=True)
        return np.where(bad, 0, np.where(large, x, x - x.max(axis=-1, keepdims=True)))

    for length in (16, 20, 300):
        x = drawn(13, length, dtype=dtype)
        x[[2, 7], 5], x[4, length - 1] = np.nan, -10
        assert len(steps(body, x)) == 1
        assert_like_numpy(body, x)
