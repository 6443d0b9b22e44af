"""Compiled objects: what they are made from, re-planning, constants, errors, plans and their tables."""

from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import contractor
from einsum_engine.explain import explain, is_reference

RNG = np.random.default_rng(0)


def random(*shape, dtype="float64"):
    real = RNG.standard_normal(shape)
    return (real + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)


@pytest.fixture
def plans(monkeypatch):
    """The requests that were planned."""
    made = []
    build = contractor.build_plan

    def counted(request, machine):
        made.append(request)
        return build(request, machine)

    monkeypatch.setattr(contractor, "build_plan", counted)
    engine.clear_cache()
    return made


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


def test_constants_by_position_and_by_dict():
    a, b, c = random(3, 4), random(4, 5), random(5, 6)
    expected = a @ b @ c
    for f in (
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=[1]),
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=1),
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=np.array([1])),
        engine.compile("ij,jk,kl->il", (3, 4), b, (5, 6), constants=np.array(1)),
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


def test_explain_marks_what_runs_once():
    b, c = random(200, 200), random(200, 200)
    f = engine.compile("ij,jk,kl->il", (30, 200), b, c, constants=[1, 2], optimize=[(1, 2), (0, 1)])
    once = [step for step in f.steps if step.once]
    assert once and sum(" once " in line for line in f.explain().splitlines()[:-2]) == len(once)
    assert f"(of it {f.plan.constant_bytes} made once from constants)" in f.explain()
    a = random(30, 200)
    assert np.allclose(f(a), a @ b @ c)


def test_explain_marks_reference_kernels():
    plan = engine.compile("ab,bc->ac", (20, 30), (30, 40)).plan
    slow = replace(plan, steps=tuple(replace(step, kernel="gemm_reference") for step in plan.steps))
    assert "gemm_reference REFERENCE" in explain(slow)
    assert f"{len(plan.steps)} steps run by a reference kernel" in explain(slow)


def test_debug_prints_plans(monkeypatch, capsys):
    monkeypatch.setenv("EINSUM_ENGINE_DEBUG", "1")
    engine.compile("ab,bc->ac", (3, 4), (4, 5))
    assert "peak bytes" in capsys.readouterr().err


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
