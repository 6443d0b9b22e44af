"""Random numbers of a plan are those of the definition in NumPy, bit for bit, on every instruction set."""

import numpy as np
import pytest
import strided

import einsum_engine as engine
from einsum_engine import op_numpy
from einsum_engine.kernels import launch, random
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.kernels.row import Operand


def check(isa, dtype, count, stream=1, threads=1) -> None:
    rng = np.random.default_rng(count)
    key = strided.make(rng, (2,), "int32")
    key.view[...] = rng.integers(-(2**31), 2**31, 2)
    words = key.view.view(np.uint32)
    out = strided.make(rng, (count,), dtype.replace("uint", "int"), fixed=[0])
    expected = out.copy()
    if dtype == "uint32":
        found = op_numpy.random_bits(words, shape=(count,), stream=stream)
    else:
        found = op_numpy.random_uniform(words, shape=(count,), dtype=np.dtype(dtype), stream=stream)
    expected.view[...] = found.view(out.view.dtype)
    operands = (Operand(slot=0, offset=out.start), Operand(slot=1, offset=key.start))
    problem = random.RandomProblem(
        dtype=dtype, count=count, stream=stream, key_step=key.view.strides[0], operands=operands
    )
    rows = problem.lower(threads)
    assert len(rows) == bool(count) and all(1 <= row.tasks <= 4 * threads for row in rows)
    launch.run(rows, [x.memory.ctypes.data if x.memory.size else 0 for x in (out, key)], isa)
    strided.same_bytes(out, expected, problem)


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", random.ITEMS)
def test_words_and_uniform_numbers(isa, dtype):
    for count in (0, 1, 3, 4, 7, 8, 15, 16, 31, 32, 33, 100):
        check(isa, dtype, count)
    check(isa, dtype, 65, stream=2**32 - 1)


@pytest.mark.parametrize("dtype", random.ITEMS)
def test_tasks_make_their_parts(dtype):
    check(active_isa(), dtype, 20_011, threads=3)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4, 5)])
def test_functions_have_plans(shape):
    key = engine.random_key(11)
    for make in (engine.random_bits, engine.random_uniform):
        jitted = engine.jit(lambda key: make(engine.random_key(key, 2), shape))
        assert jitted.plan(key) is not None
        assert np.array_equal(jitted(key), make(engine.random_key(key, 2), shape))
    for dtype in (np.float32, np.float64):
        jitted = engine.jit(lambda key: engine.random_normal(key, shape, dtype))
        assert jitted.plan(key) is not None
        found, wanted = jitted(key), engine.random_normal(key, shape, dtype)
        assert np.shape(found) == np.shape(wanted) and found.dtype == wanted.dtype
        # logarithm and cosine are our own; near the zeros of the cosine that is absolute
        np.testing.assert_allclose(found, wanted, rtol=8 * np.finfo(dtype).eps, atol=1e-15)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda key: engine.random_normal(3, 4), TypeError, r"a key is uint32\[2\], not int64\[\]"),
        (lambda key: engine.random_bits([1, 2], 4), TypeError, r"a key is uint32\[2\], not int64\[2\]"),
        (lambda key: engine.random_key("seven"), TypeError, "<U5"),
        (lambda key: engine.random_key(key, -1), ValueError, "index=-1: keys are counted from 0"),
        (lambda key: engine.random_uniform(key, (2, -3)), ValueError, r"shape \(2, -3\) has a negative size"),
        (lambda key: engine.random_uniform(key, 2.5), TypeError, "not iterable"),
        (lambda key: engine.random_normal(key, 3, "int64"), TypeError, "float32 or float64, not int64"),
    ],
)
def test_what_is_no_key_or_no_shape_is_refused(traced, make, error, text):
    with pytest.raises(error, match=text):
        (engine.jit(make) if traced else make)(engine.random_key(1))


def test_sizes_may_be_integers_of_numpy():
    key = engine.random_key(5)
    for size in (np.int64(3), (np.uint8(3),), [3]):
        for make in (lambda key: engine.random_bits(key, size), engine.jit(lambda key: engine.random_bits(key, size))):
            assert np.array_equal(make(key), engine.random_bits(key, 3))
