"""The public calls: what goes beyond np.einsum, compiled objects, tensordot and transpose, caches, names."""

import subprocess
import sys
import threading
from importlib.util import find_spec

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import api, contractor
from einsum_engine.explain import is_reference
from einsum_engine.lru import BoundedCache
from einsum_engine.memory import memory_total, parse_memory_limit

RNG = np.random.default_rng(0)


def random(*shape, dtype="float64"):
    real = RNG.standard_normal(shape)
    return (real + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)


@pytest.fixture
def plans(monkeypatch):
    """The requests that were planned."""
    made = []
    build = contractor.build_plan

    def counted(request):
        made.append(request)
        return build(request)

    monkeypatch.setattr(contractor, "build_plan", counted)
    engine.clear_cache()
    return made


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
    with pytest.raises(engine.EngineValueError, match="beta=2 adds to out="):
        engine.einsum("ij,jk->ik", a, a, beta=2)
    assert (out == 1).all()


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
def test_conj(dtype):
    a, b, c = random(3, 4, dtype=dtype), random(4, 5, dtype=dtype), random(5, 3, dtype=dtype)
    for conj in ((), 0, (1,), (0, 1), [2, 0], (0, 1, 2)):
        chosen = (conj,) if isinstance(conj, int) else tuple(conj)
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
        *(["einsum_path", (0, 2), (0, 1)], [(0, 1, 2)], np.True_, ("greedy", 1000)),
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
    assert engine.compile(expression, *shapes, memory_limit="90%").plan.peak_bytes < memory_total()


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


# ---- compile -----------------------------------------------------------------------------------------------------


def test_compile_from_arrays_shapes_and_lists():
    a, b = random(3, 4), random(4, 5)
    for f in (
        engine.compile("ij,jk->ik", a, b),
        engine.compile("ij,jk->ik", (3, 4), (4, 5)),
        engine.compile("ij,jk->ik", [3, 4], b),
        engine.compile(a, [0, 1], b, [1, 2], [0, 2]),
        engine.compile((3, 4), [0, 1], (4, 5), [1, 2]),
        engine.compile("ij,jk->ik", a, b, backend="cpu", copy=True, order="C", dtype=None),
    ):
        for _ in range(3):
            assert np.allclose(f(a, b), a @ b)
        assert repr(f).startswith("<Compiled '") and "float64[3, 4]" in repr(f)


def test_dtypes_of_shapes():
    f = engine.compile("ij,jk->ik", (3, 4), (4, 5), dtypes="float32")
    assert f.plan.dtype == "float32"
    f = engine.compile("ij,jk->ik", (3, 4), (4, 5), dtypes=[np.float32, "complex64"])
    assert f.plan.dtype == "complex64"
    assert engine.compile("ij,jk->ik", (3, 4), (4, 5), dtypes="bfloat16").plan.dtype == "bfloat16"
    with pytest.raises(engine.EngineValueError, match="dtypes names 1 dtypes, 'ij,jk->ik' has 2 operands"):
        engine.compile("ij,jk->ik", (3, 4), (4, 5), dtypes=["float32"])
    with pytest.raises(engine.EngineTypeError, match="operand 0 of 'ij->i' has dtype float64, but dtypes says float32"):
        engine.compile("ij->i", random(2, 3), dtypes=["float32"])


def test_results_are_fresh():
    a = random(3, 3)
    for expression in ("ij->ji", "ij->ij", "ii->i"):
        f = engine.compile(expression, a)
        result = f(a)
        assert not np.shares_memory(result, a) and not np.shares_memory(result, f(a))
        assert np.array_equal(result, np.einsum(expression, a)) and result.flags.c_contiguous
    assert type(engine.compile("ij->", a)(a)) is np.float64


def test_compiled_out_alpha_beta():
    a, b = random(3, 4), random(4, 5)
    f = engine.compile("ij,jk->ik", a, b)
    out = np.full((3, 5), np.nan)
    assert f(a, b, out=out) is out and np.allclose(out, a @ b)
    f(a, b, out=out, alpha=2, beta=-1)
    assert np.allclose(out, a @ b)
    assert np.allclose(f(a, b, alpha=3), 3 * (a @ b))
    g = engine.compile("ij,jk->ik", a, b, alpha=2, beta=1)
    g(a, b, out=out)
    assert np.allclose(out, 3 * (a @ b))
    assert np.allclose(engine.compile("ij,jk->ik", a, b, alpha=2)(a, b), 2 * (a @ b))


def test_other_strides_and_dtypes_are_planned_once(plans):
    a, b = random(6, 7), random(7, 5)
    f = engine.compile("ij,jk->ik", a, b)
    assert len(plans) == 1
    for _ in range(3):
        assert np.allclose(f(np.asfortranarray(a), b), a @ b)
    assert len(plans) == 2
    wide = random(12, 14)
    for _ in range(3):
        assert np.allclose(f(wide[::2, ::2], b), wide[::2, ::2] @ b)
        assert f(a.astype("f4"), b.astype("f4")).dtype == np.float32
    assert len(plans) == 4
    f(a, b)
    assert len(plans) == 4


def test_einsum_plans_once(plans):
    a, b = random(6, 7), random(7, 5)
    for _ in range(5):
        engine.einsum("ij,jk->ik", a, b)
        engine.einsum("ij,jk->ik", a, b, threads=1)
        engine.tensordot(a, b, axes=([1], [0]))
        engine.einsum(a, [0, 1], b, [1, 2])
    assert len(plans) == 4
    engine.clear_cache()
    engine.einsum("ij,jk->ik", a, b)
    assert len(plans) == 5


def test_same_subscripts_with_other_shapes():
    arrays = [(random(n, n + 1), random(n + 1, 3)) for n in range(2, 9)]
    for _ in range(3):
        for a, b in arrays:
            assert np.allclose(engine.einsum("ij,jk->ik", a, b), a @ b)
            assert np.allclose(engine.einsum("ij,jk->ik", a.astype("f4"), b), a.astype("f4") @ b)
            assert np.allclose(engine.einsum("ij,jk->ik", a[::-1], b), a[::-1] @ b)


def test_constants_by_position_and_by_dict():
    a, b, c = random(3, 4), random(4, 5), random(5, 6)
    expected = a @ b @ c
    for f in (
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=[1]),
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=1),
        engine.compile("ij,jk,kl->il", (3, 4), (4, 5), (5, 6), constants={1: b}),
    ):
        for _ in range(3):
            assert np.allclose(f(a, c), expected)
        with pytest.raises(engine.EngineValueError, match=r"takes 2 arrays, 3 were given \(operands 1 are constants\)"):
            f(a, b, c)
    f = engine.compile("ij,jk->ik", (3, 4), b.copy(), constants=[1])
    saved = b.copy()
    b[...] = 0
    assert np.allclose(f(a), a @ saved)
    g = engine.compile("ij,jk->ik", a, saved, constants=[0, 1])
    a2 = a.copy()
    a[...] = 0
    assert np.allclose(g(), a2 @ saved)
    h = engine.compile("ij,jk->ik", (3, 4), saved[:, ::-1].astype(">f4"), constants=[1])
    assert np.allclose(h(a2), a2 @ saved[:, ::-1], atol=1e-4)


def test_bad_constants():
    a = random(3, 4)
    with pytest.raises(engine.EngineTypeError, match="operand 1 of 'ij,jk->ik' is a constant: give the array"):
        engine.compile("ij,jk->ik", a, (4, 5), constants=[1])
    with pytest.raises(engine.EngineValueError, match="constants names operand 2 of 'ij,jk->ik', which has 2"):
        engine.compile("ij,jk->ik", a, (4, 5), constants=[2])
    with pytest.raises(engine.EngineValueError, match=r"has shape \(4, 5\), but its constant has \(3, 4\)"):
        engine.compile("ij,jk->ik", (3, 4), (4, 5), constants={1: a})
    with pytest.raises(engine.EngineTypeError, match="expected positions"):
        engine.compile("ij,jk->ik", a, a.T, constants=["b"])


def test_compiled_errors():
    a, b = random(3, 4), random(4, 5)
    f = engine.compile("ij,jk->ik", a, b)
    out = np.full((3, 5), 7.0)
    for arguments, options, message in (
        ((a,), {}, "takes 2 arrays, 1 were given"),
        ((a, b, b), {}, "takes 2 arrays, 3 were given"),
        ((a, b[:, :4]), {}, r"operand 1 of 'ij,jk->ik' has size 4 in axis 1 \(index 'k'\), but was compiled for 5"),
        ((a[None], b), {}, r"has 3 axes, shape \(1, 3, 4\), but was compiled for shape \(3, 4\)"),
        ((a, b), {"out": out.T}, r"shape \(5, 3\)"),
        ((a[:1], b), {"out": out}, "compiled for 3"),
    ):
        with pytest.raises(engine.EngineValueError, match=message):
            f(*arguments, **options)
    with pytest.raises(engine.EngineTypeError, match="cast"):
        f(a, b, out=np.zeros((3, 5), int))
    with pytest.raises(engine.EngineTypeError, match="operand 0 .*<U1"):
        f(np.full((3, 4), "a"), b)
    with pytest.raises(engine.EngineValueError, match="backend='gpu': there is cpu"):
        engine.compile("ij->i", a, backend="gpu")
    with pytest.raises(TypeError):
        f(a, b, outt=out)
    assert (out == 7).all()


def test_plan_and_explain():
    arrays = [random(20, 30), random(30, 40), random(40, 10)]
    f = engine.compile("ab,bc,cd->da", *arrays)
    plan = f.plan
    assert plan.flops == sum(step.flops for step in f.steps) > 0
    assert plan.peak_bytes == plan.output_bytes + plan.arena_bytes + plan.table_bytes
    assert plan.output_bytes == 20 * 10 * 8 and plan.bytes_moved > 0
    assert not any(map(is_reference, f.steps))
    text = f.explain()
    assert text.splitlines()[0].startswith("'ab,bc,cd->da' -> float64[10, 20], ")
    for step in f.steps:
        assert step.expr in text and step.kernel in text
    assert "K[b=30]" in text or "K[c=40]" in text
    assert f"peak bytes {plan.peak_bytes} = output 1600 + arena" in text
    assert "REFERENCE" not in text


def test_explain_marks_reference_kernels():
    from dataclasses import replace

    from einsum_engine.explain import explain

    plan = engine.compile("ab,bc->ac", (20, 30), (30, 40)).plan
    slow = replace(plan, steps=tuple(replace(step, kernel="gemm_reference") for step in plan.steps))
    assert "gemm_reference REFERENCE" in explain(slow)
    assert f"{len(plan.steps)} steps run by a reference kernel" in explain(slow)


def test_debug_prints_plans(monkeypatch, capsys):
    monkeypatch.setenv("EINSUM_ENGINE_DEBUG", "1")
    engine.compile("ab,bc->ac", (3, 4), (4, 5))
    assert "peak bytes" in capsys.readouterr().err


# ---- tensordot, transpose ------------------------------------------------------------------------------------------

TENSORDOTS = [
    *(((3, 4), (4, 5), 1), ((3, 4), (3, 4), 2), ((2, 3), (4, 5), 0), ((3, 4, 5), (4, 3, 2), ([1, 0], [0, 1]))),
    *(((3, 4, 5), (4, 3, 2), ((0, 1), (1, 0))), ((3, 4), (5, 4), (1, 1)), ((3, 4), (5, 4), ([-1], [-1]))),
    *(((2, 3), (4,), ((), ())), ((), (3,), 0), ((), (), 0), ((3,), (3,), 1), ((3, 4), (4, 5), (np.array([1]), [0]))),
    *(((0, 3), (3, 2), 1), ((3, 0), (0, 2), 1), ((3, 4), (4, 5), np.int64(1))),
]


@pytest.mark.parametrize("left, right, axes", TENSORDOTS, ids=str)
def test_tensordot(left, right, axes):
    for dtypes in (("float64", "float64"), ("int8", "int8"), ("float32", "complex64"), ("bool", "bool")):
        a, b = (np.abs(random(*shape) * 2).astype(dtype) for shape, dtype in zip((left, right), dtypes))
        expected = np.tensordot(a, b, axes)
        for result in (engine.tensordot(a, b, axes), engine.tensordot(a, b, axes=axes), engine.tensordot(a, b, axes)):
            assert type(result) is np.ndarray and result.dtype == expected.dtype
            assert result.shape == expected.shape and np.allclose(result, expected)


@pytest.mark.parametrize(
    "left, right, axes, message",
    [
        ((3, 4), (5, 6), 1, "axis 1 of operand 0 has size 4, axis 0 of operand 1 has 5"),
        ((3, 1), (5, 6), 1, "axis 1 of operand 0 has size 1, axis 0 of operand 1 has 5"),
        ((3, 4), (4, 5), 3, "axes=3"),
        ((3, 4), (4, 5), ([0, 1], [0]), "2 axes of operand 0 meet 1"),
        ((3, 4), (4, 5), ([2], [0]), r"operand 0 of shape \(3, 4\) has no axis 2"),
        ((3, 3), (3, 3), ([0, 0], [0, 1]), "twice"),
        ((3, 4), (4, 5), "ab", "axes='ab'"),
    ],
)
def test_tensordot_errors(left, right, axes, message):
    with pytest.raises(engine.EngineError, match=message):
        engine.tensordot(np.ones(left), np.ones(right), axes)


def test_transpose():
    a = random(2, 3, 4)
    for axes in (None, (0, 1, 2), (2, 0, 1), [1, 2, 0], (-1, 0, 1)):
        result = engine.transpose(a, axes)
        assert np.array_equal(result, np.transpose(a, axes)) and np.shares_memory(result, a)
    assert engine.transpose([[1, 2], [3, 4]]).tolist() == [[1, 3], [2, 4]]
    with pytest.raises(engine.EngineValueError, match=r"axes=\(0, 0, 1\) of an array of shape \(2, 3, 4\)"):
        engine.transpose(a, (0, 0, 1))


# ---- arrays of other libraries -------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch():
    import torch

    a, b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)
    close = lambda x, y: torch.allclose(x, y, rtol=1e-4, atol=1e-5)  # noqa: E731
    for _ in range(3):
        result = engine.einsum("ij,jk->ik", a, b)
        assert isinstance(result, torch.Tensor) and close(result, a @ b)
        assert close(engine.einsum("ij,jk->ik", a.conj(), b), a.conj() @ b)
        assert close(engine.einsum("ij,jk->ik", a.conj(), b, conj=(0, 1)), a @ b.conj())
        assert close(engine.tensordot(a.conj(), b, 1), a.conj() @ b)
    f = engine.compile("ij,jk->ik", a, b)
    assert close(f(a, b), a @ b) and close(f(a.mH.mT, b), a.conj() @ b)
    out = torch.zeros(3, 5, dtype=torch.complex64)
    assert f(a, b, out=out) is out and close(out, a @ b)
    assert engine.einsum("ij,ij->", a, a).shape == () and isinstance(engine.einsum("ij,ij->", a, a), torch.Tensor)
    assert engine.transpose(torch.ones(2, 3), (1, 0)).shape == (3, 2)
    half = torch.ones(3, 3, dtype=torch.bfloat16)
    assert engine.einsum("ij,jk->ik", half, half).dtype == torch.bfloat16
    with pytest.raises(engine.EngineTypeError, match="requires grad"):
        engine.einsum("ij->i", torch.ones(2, 2, requires_grad=True))
    g = engine.compile("ij,jk->ik", (3, 4), b, dtypes=["complex64", None], constants=[1])
    assert close(g(a), a @ b)


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax():
    import jax
    import jax.numpy as jnp

    a, b = jnp.ones((3, 4)), jnp.arange(20.0).reshape(4, 5)
    result = engine.einsum("ij,jk->ik", a, b)
    assert isinstance(result, jax.Array) and jnp.allclose(result, a @ b)
    assert isinstance(engine.transpose(a, (1, 0)), jax.Array)
    with pytest.raises(engine.EngineTypeError, match="tracer"):
        jax.jit(lambda x: engine.einsum("ij,jk->ik", x, b))(a)
    with pytest.raises(engine.EngineTypeError, match="immutable"):
        engine.einsum("ij,jk->ik", a, b, out=jnp.zeros((3, 5)))


# ---- names, caches, threads ----------------------------------------------------------------------------------------


def test_public_names():
    for name in engine.__all__:
        assert getattr(engine, name) is not None and name in dir(engine)
    for name in engine.ARRAY_FUNCTIONS:
        assert callable(getattr(engine, name))
    assert engine.max(np.arange(4)) == 3 and engine.stack([np.ones(2), np.ones(2)]).shape == (2, 2)
    assert engine.log10(engine.abs(np.float64(-100))) == 2


@pytest.mark.parametrize("name", ["__torch_function__", "_private", "__wrapped__", "nothing", "where", "linalg", "asarray"])
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
    assert len(f._contractor._fresh) <= 2 * contractor.ROUTES


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
