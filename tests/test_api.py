"""The public calls: what `einsum` does beyond np.einsum, its options, names, caches, threads."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import api, contractor
from einsum_engine.lru import BoundedCache
from einsum_engine.machine_memory import total
from einsum_engine.memory import parse_memory_limit

RNG = np.random.default_rng(0)


def random(*shape, dtype="float64"):
    real = RNG.standard_normal(shape)
    return (real + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)


# ---- einsum beyond NumPy -----------------------------------------------------------------------------------------


def test_repeated_output_index():
    a = random(3)
    assert np.array_equal(engine.einsum("i->ii", a), np.diag(a))
    b, c = random(2, 3), random(3, 4)
    product = b @ c
    result = engine.einsum("ij,jk->kiik", b, c)
    expected = np.zeros((4, 2, 2, 4))
    for i in range(2):
        for k in range(4):
            expected[k, i, i, k] = product[i, k]
    assert np.allclose(result, expected) and result.flags.c_contiguous
    out = np.ones((3, 3))
    engine.einsum("i->ii", a, out=out, alpha=2, beta=10)
    assert np.allclose(out, 10 + 2 * np.diag(a))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32", "uint8", "float16"])
def test_alpha_and_beta(dtype):
    a, b = random(5, 6, dtype="float64") * 3, random(6, 4) * 3
    a, b = a.astype(dtype, casting="unsafe"), b.astype(dtype, casting="unsafe")
    product = engine.einsum("ij,jk->ik", a, b)
    alpha, beta = (2, 3) if np.dtype(dtype).kind in "iu" else (0.5, -2)
    start = np.arange(20).reshape(5, 4).astype(dtype)
    tolerance = 1e-2 if dtype == "float16" else 1e-5
    for make in (np.copy, np.asfortranarray, lambda x: np.stack([x, x], axis=-1)[..., 0]):
        out = make(start)
        assert engine.einsum("ij,jk->ik", a, b, out=out, alpha=alpha, beta=beta) is out
        expected = np.asarray(alpha, dtype) * product + np.asarray(beta, dtype) * start
        assert np.allclose(out, expected, rtol=tolerance, atol=tolerance * 10), (out, expected)
    assert np.allclose(engine.einsum("ij,jk->ik", a, b, alpha=alpha), np.asarray(alpha, dtype) * product, tolerance)


def test_beta_zero_never_reads_out():
    a = random(4, 4)
    for expression in ("ij,jk->ik", "ij,ij->ij", "ij,kj->", "ij,kl->ijkl"):
        shape = np.shape(np.einsum(expression, a, a))
        out = np.full(shape, np.nan)
        engine.einsum(expression, a, a, out=out, alpha=2.0, beta=0.0)
        assert np.allclose(out, 2 * np.einsum(expression, a, a))


def test_factors_that_do_not_fit():
    a = np.ones((2, 2), int)
    out = np.ones((2, 2), int)
    with pytest.raises(engine.EngineTypeError, match="alpha=0.5 does not fit dtype int64"):
        engine.einsum("ij,jk->ik", a, a, out=out, alpha=0.5)
    with pytest.raises(engine.EngineTypeError, match="beta=1j does not fit dtype float64"):
        engine.einsum("ij,jk->ik", a * 1.0, a, out=out * 1.0, beta=1j)
    with pytest.raises(engine.EngineTypeError, match="alpha='x': expected a number"):
        engine.einsum("ij,jk->ik", a, a, alpha="x")
    for text in (np.str_("2"), np.bytes_(b"2"), np.array("2"), np.datetime64("2020"), np.timedelta64(2, "s")):
        with pytest.raises(engine.EngineTypeError, match="beta=.*: expected a number, not (str|bytes|datetime|timedelta)"):
            engine.einsum("ij,jk->ik", a, a, out=out, beta=text)
    with pytest.raises(engine.EngineValueError, match="beta=2 adds to out="):
        engine.einsum("ij,jk->ik", a, a, beta=2)
    assert (out == 1).all()


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
def test_conj(dtype):
    a, b, c = random(3, 4, dtype=dtype), random(4, 5, dtype=dtype), random(5, 3, dtype=dtype)
    for conj in ((), 0, (1,), (0, 1), [2, 0], (0, 1, 2), np.array(1), np.array([0, 1])):
        chosen = (conj,) if np.ndim(conj) == 0 else tuple(conj)
        x, y, z = (np.conj(v) if position in chosen else v for position, v in enumerate((a, b, c)))
        assert np.allclose(engine.einsum("ij,jk,kl->il", a, b, c, conj=conj), x @ y @ z, rtol=1e-4)
        if max(chosen, default=0) < 2:
            assert np.allclose(engine.einsum("ij,jk->ik", a, b, conj=conj), x @ y, rtol=1e-4)
    assert np.allclose(engine.einsum("ij->ji", a, conj=0), np.conj(a).T)
    assert np.allclose(engine.einsum("ij->i", a, conj=0), np.conj(a).sum(1), rtol=1e-4)
    with pytest.raises(engine.EngineValueError, match="conj names operand 2, but 'ij,jk->ik' has 2"):
        engine.einsum("ij,jk->ik", a, b, conj=2)


def test_strict():
    a, b = random(3, 1), random(4, 5)
    assert engine.einsum("ij,jk->ik", a, b).shape == (3, 5)
    with pytest.raises(engine.EngineValueError, match="index 'j' is 1 in operand 0 axis 1 but 4 in operand 1 axis 0"):
        engine.einsum("ij,jk->ik", a, b, strict=True)
    assert engine.einsum("...i,...i->...", random(1, 4), random(3, 4), strict=True).shape == (3,)


def test_accumulate():
    a = np.full(8, 10, np.int8)
    assert engine.einsum("i,i->", a, a) == 32
    wide = engine.einsum("i,i->", a, a, accumulate="int64")
    assert wide == 800 and wide.dtype == np.int64
    assert engine.einsum("i,i->", a, a, accumulate="int16", dtype="int8") == 32
    x = (1e8 * np.array([1, -1]).repeat(500)[RNG.permutation(1000)] + RNG.random(1000)).astype(np.float32)
    exact = x.astype(float).sum()
    narrow, wide = engine.einsum("i->", x), engine.einsum("i->", x, accumulate="float64")
    assert wide.dtype == np.float32 and wide == np.float32(exact) and narrow.dtype == np.float32
    m = random(30, 40, dtype="float32")
    result = engine.einsum("ij,kj->ik", m, m, accumulate="float64")
    assert result.dtype == np.float32 and np.array_equal(result, (m.astype(float) @ m.T.astype(float)).astype("f4"))
    with pytest.raises(engine.EngineTypeError, match="accumulate=float32 does not hold every value of .*float64"):
        engine.einsum("i->", x.astype(float), accumulate="float32")


def test_any_letters_and_many_indices():
    a = random(3, 4)
    assert np.allclose(engine.einsum("äβ,βж->äж", a, a.T), a @ a.T)
    names = "".join(chr(0x4E00 + number) for number in range(70))
    vectors = [random(2) for _ in names]
    result = engine.einsum(",".join(names) + "->" + names[3], *vectors)
    others = np.prod([vector.sum() for position, vector in enumerate(vectors) if position != 3])
    assert np.allclose(result, vectors[3] * others)


def test_a_thousand_operands():
    matrices = [random(3, 3) / 1.7 for _ in range(1000)]
    terms = ",".join(chr(0x4E00 + n) + chr(0x4E01 + n) for n in range(1000))
    expected = np.eye(3)
    for matrix in matrices:
        expected = expected @ matrix
    result = engine.einsum(f"{terms}->{chr(0x4E00)}{chr(0x4E00 + 1000)}", *matrices, optimize="greedy")
    assert np.allclose(result, expected)


def test_longdouble_along_a_path():
    operands = [random(3, 3).astype(np.longdouble) for _ in range(5)]
    result = engine.einsum("ab,bc,cd,de,ef->fa", *operands, conj=1, alpha=2)
    expected = 2 * np.einsum("ab,bc,cd,de,ef->fa", *operands)
    assert result.dtype == np.longdouble and np.allclose(result.astype(float), expected.astype(float))
    assert result.flags.c_contiguous


@pytest.mark.parametrize(
    "optimize",
    [
        *(True, False, None, "auto", "optimal", "dp", "greedy", "random-greedy", [(0, 1), (0, 1)], ((1, 2), (0, 1))),
        *(["einsum_path", (0, 2), (0, 1)], [(0, 1, 2)], np.True_, ("greedy", 1000), np.array([(1, 2), (0, 1)])),
    ],
    ids=str,
)
def test_optimize(optimize):
    a, b, c = random(3, 4), random(4, 5), random(5, 6)
    assert np.allclose(engine.einsum("ij,jk,kl->il", a, b, c, optimize=optimize), a @ b @ c)
    assert engine.compile("ij,jk,kl->il", a, b, c, optimize=optimize).plan.flops > 0


def test_optimiser_objects():
    oe, ctg = pytest.importorskip("opt_einsum"), pytest.importorskip("cotengra")
    a, b, c = random(3, 4), random(4, 5), random(5, 6)
    tree = ctg.einsum_tree("ij,jk,kl->il", a.shape, b.shape, c.shape)
    for optimize in (oe.RandomGreedy(max_repeats=4), ctg.GreedyOptimizer(), tree, oe.paths.greedy):
        for _ in range(2):
            assert np.allclose(engine.einsum("ij,jk,kl->il", a, b, c, optimize=optimize), a @ b @ c)


@pytest.mark.parametrize(
    "optimize, message",
    [
        ("nope", "unknown optimiser 'nope'; valid names are auto"),
        ([(0, 5), (0, 1)], "path"),
        ([(0, 1)], "path"),
        (object(), "optimize=.*object"),
    ],
)
def test_bad_optimize(optimize, message):
    a = random(3, 3)
    for call in (engine.einsum, engine.compile):
        with pytest.raises(engine.EngineError, match=message):
            call("ij,jk,kl->il", a, a, a, optimize=optimize)
    with pytest.raises(engine.EngineError):
        engine.einsum("ij->ji", a, optimize="nope")


# ---- memory limits -----------------------------------------------------------------------------------------------


def test_memory_limit_in_elements():
    shapes = [(2, 30), (30, 30), (30, 2)]
    expression = "ab,bc,cd->ad"
    f = engine.compile(expression, *shapes, memory_limit=60)
    assert f.plan.path
    with pytest.raises(engine.EngineValueError, match="memory_limit=10 elements cannot be met .* 60"):
        engine.compile(expression, *shapes, memory_limit=10)
    assert engine.compile(expression, *shapes, memory_limit=-1).plan.path
    assert engine.compile(expression, *shapes, memory_limit="max_input").plan.path


def test_memory_limit_in_bytes():
    shapes = [(400, 2), (2, 400), (400, 2)]
    expression = "ab,bc,cd->ad"
    wasteful = engine.compile(expression, *shapes, optimize=[(0, 1), (0, 1)])
    assert wasteful.plan.peak_bytes > 400 * 400 * 8
    frugal = engine.compile(expression, *shapes, optimize="left-to-right", memory_limit="500KiB")
    assert frugal.plan.peak_bytes <= 500 * 1024
    arrays = [random(*shape) for shape in shapes]
    assert np.allclose(frugal(*arrays), wasteful(*arrays))
    with pytest.raises(engine.EngineValueError, match="memory_limit='1kB' is 1000 bytes, .* needs [0-9]+ bytes"):
        engine.compile(expression, *shapes, memory_limit="1kB")
    with pytest.raises(engine.EngineValueError, match="500KiB"):
        engine.compile(expression, *shapes, optimize=[(0, 1), (0, 1)], memory_limit="500KiB")
    assert engine.compile(expression, *shapes, memory_limit="90%").plan.peak_bytes < total()


@pytest.mark.parametrize("bad", ["", "8 XB", "-3%", 0, -2, 1.5, True, []])
def test_bad_memory_limit(bad):
    with pytest.raises(engine.EngineError, match="memory_limit="):
        parse_memory_limit(bad)


@pytest.mark.parametrize("size", [1 << 23, 1 << 31])
def test_out_of_memory_names_the_bytes(size):
    a = np.broadcast_to(np.ones(1), (size,))
    with pytest.raises(MemoryError, match=f"{8 * size * size} bytes") as caught:
        engine.einsum("i,j->ij", a, a)
    assert isinstance(caught.value, engine.EngineMemoryError)


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": "two"}, TypeError, "threads='two'"),
        ({"max_time": -1}, ValueError, "max_time=-1"),
        ({"max_time": "long"}, TypeError, "max_time='long'"),
        ({"copy": 1}, TypeError, "copy=1"),
        ({"strict": "yes"}, TypeError, "strict='yes'"),
        ({"conj": "a"}, TypeError, "conj='a'"),
        ({"conj": -1}, ValueError, "-1 is negative"),
        ({"order": 3}, TypeError, "order=3"),
        ({"dtype": "U3"}, TypeError, "U3"),
        ({"accumulate": "nonsense"}, TypeError, "accumulate='nonsense'"),
        ({"speling": 1}, TypeError, "no option 'speling'; its options are accumulate, alpha, .*threads"),
    ],
)
def test_bad_options(options, kind, message):
    a = random(3, 3)
    for call in (engine.einsum, engine.compile):
        with pytest.raises(kind, match=message) as caught:
            call("ij,jk->ik", a, a, **options)
        assert isinstance(caught.value, engine.EngineError)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    a, b = random(200, 300), random(300, 100)
    f = engine.compile("ij,jk->ik", a, b, threads=threads)
    assert f.plan.threads <= threads and np.allclose(f(a, b), a @ b)


def test_max_time():
    shapes = [(2, 2)] * 12
    expression = ",".join(f"{chr(97 + n)}{chr(98 + n)}" for n in range(12))
    assert engine.compile(expression, *shapes, optimize="optimal", max_time=0.05).plan.path


# ---- names, caches, threads ----------------------------------------------------------------------------------------


def test_public_names():
    for name in engine.__all__:
        assert getattr(engine, name) is not None and name in dir(engine)
    for name in engine.ARRAY_FUNCTIONS:
        assert callable(getattr(engine, name))
    assert engine.max(np.arange(4)) == 3 and engine.stack([np.ones(2), np.ones(2)]).shape == (2, 2)
    assert engine.log10(engine.abs(np.float64(-100))) == 2


@pytest.mark.parametrize("name", ["__torch_function__", "_private", "__wrapped__", "nothing", "argsort", "linalg"])
def test_other_names_are_attribute_errors(name):
    with pytest.raises(AttributeError, match=f"module 'einsum_engine' has no attribute '{name}'"):
        getattr(engine, name)


def test_einsum_does_not_load_planners_it_does_not_need():
    code = (
        "import numpy as np, sys, einsum_engine as e\n"
        "a = np.ones((3, 4)); e.einsum('ij,kj->ik', a, a); e.einsum('ij->j', a)\n"
        "print(*sorted({'numba', 'opt_einsum', 'cotengra', 'autoray', 'torch', 'jax', 'tqdm'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_caches_have_no_entries_in_common():
    full, other = BoundedCache(1), BoundedCache(1)
    for number in range(1, 4):
        full.put(number, number)
    assert other.values() == [] and other.get(2) is None and full.values() == [2, 3]
    full.clear()
    assert full.values() == BoundedCache(1).values() == []


def test_caches_are_bounded():
    cache = BoundedCache(3)
    for number in range(100):
        cache.put(number, str(number))
        assert cache.get(number) == str(number) and len(cache) <= 6
        cache.get(0) or cache.put(0, "0")
    assert cache.get(0) == "0" and cache.get(50) is None
    a = random(2, 2)
    for number in range(200):
        engine.einsum(f"{chr(0x4E00 + number)}x->x", a)
    assert len(api._contractors) <= 2 * api.CONTRACTORS
    f = engine.compile("ij->j", (3, 4))
    wide = random(3 * 300, 4 * 2)
    for step in range(1, 300):
        f(wide[: 3 * step : step, ::2])
    assert len(f._contractor._routes) <= 2 * contractor.ROUTES


def test_registering_an_optimiser_is_seen():
    name = "test-last-two-first"

    def last_two_first(inputs, output, sizes, memory_limit=None):
        return [(count - 2, count - 1) for count in range(len(inputs), 1, -1)]

    a = random(3, 3)
    with pytest.raises(engine.EngineValueError, match="unknown optimiser"):
        engine.einsum("ij,jk,kl->il", a, a, a, optimize=name)
    engine.register_optimizer(name, last_two_first)
    assert np.allclose(engine.einsum("ij,jk,kl->il", a, a, a, optimize=name), a @ a @ a)
    assert engine.compile("ij,jk,kl->il", a, a, a, optimize=name).plan.path[0] == (1, 2)


def test_calls_from_several_threads():
    a, b = random(16, 16), random(16, 16)
    f = engine.compile("ij,jk->ik", a, b)
    engine.clear_cache()
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x, n = rng.random((16, 16)), int(rng.integers(2, 9))
            y = rng.random((16, n))
            if not np.allclose(f(x, b), x @ b) or not np.allclose(engine.einsum("ij,jk->ik", x, y), x @ y):
                wrong.append(seed)
            if not np.allclose(f(x.T, b), x.T @ b):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_same_subscripts_with_other_shapes():
    arrays = [(random(n, n + 1), random(n + 1, 3)) for n in range(2, 9)]
    for _ in range(3):
        for a, b in arrays:
            assert np.allclose(engine.einsum("ij,jk->ik", a, b), a @ b)
            assert np.allclose(engine.einsum("ij,jk->ik", a.astype("f4"), b), a.astype("f4") @ b)
            assert np.allclose(engine.einsum("ij,jk->ik", a[::-1], b), a[::-1] @ b)
