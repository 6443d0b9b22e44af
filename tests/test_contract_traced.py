"""Contractions of traced arrays: `einsum`, `tensordot`, compiled ones and those of other libraries in a jitted function,
and the program that a compiled contraction is."""

import random

import cotengra as ctg
import numpy as np
import opt_einsum as oe
import pytest
from random_cases import draw_case
from test_slices import TRAIN, TRAIN_SIZES
from test_strands import chain

import einsum_engine as engine
from einsum_engine import measured
from einsum_engine.kernels import isa
from einsum_engine.planners.programs import ProgramRequest, build_program

RNG = np.random.default_rng(7)
A, B, C = (RNG.standard_normal(shape) for shape in ((3, 4), (4, 5), (5, 6)))
Z = A + 1j * A[::-1]


def subscripts(function, *arrays):
    return [eqn.named["subscripts"] for eqn in engine.jit(function).program(*arrays).eqns if eqn.op == "einsum"]


# -- in a traced function ---------------------------------------------------------------------------------------------
CALLS = {
    "einsum": (lambda a, b: engine.einsum("ij,jk->ik", a, b), ["ij,jk->ik"]),
    "implicit": (lambda a, b: engine.einsum("ij,jk", a, b), ["ij,jk->ik"]),
    "ellipsis": (lambda a, b: engine.einsum("...j,jk->...k", a, b), ["aj,jk->ak"]),
    "interleaved": (lambda a, b: engine.einsum(a, [5, 70], b, [70, 6], [6, 5]), ["ab,bc->ca"]),
    "tensordot": (lambda a, b: engine.tensordot(a, b, 1), ["ab,bc->ac"]),
    "compiled": (engine.compile("ij,jk->ik", (3, 4), (4, 5)), ["ij,jk->ik"]),
    "constant": (lambda a, b: engine.einsum("ij,jk,l->ikl", a, b, np.ones(2)), ["ij,jk,l->ikl"]),
    "a path": (
        lambda a, b: engine.einsum("ij,jk,k->i", a, b, C[:, 0], optimize=[(1, 2), (0, 1)]),
        ["jk,k->j", "ij,j->i"],
    ),
    "from left to right": (
        lambda a, b: engine.einsum("ij,jk,k->i", a, b, C[:, 0], optimize=False),
        ["ij,jk->ik", "k,ik->i"],
    ),
    "fortran": (lambda a, b: engine.einsum("ij,jk->ik", a, b, order="F"), ["ij,jk->ki"]),
    "repeated": (lambda a, b: engine.einsum("ij,jk->ii", a, b), ["ij,jk->i"]),
    "np.einsum": (lambda a, b: np.einsum("ij,jk", a, b, optimize=True), ["ij,jk->ik"]),
    "np.einsum, a path": (
        lambda a, b: np.einsum("ij,jk,k->i", a, b, C[:, 0], optimize=["einsum_path", (1, 2), (0, 1)]),
        ["jk,k->j", "ij,j->i"],
    ),
    "np.einsum, lists": (lambda a, b: np.einsum(a, [0, 1], b, [1, 2]), ["ab,bc->ac"]),
    "opt_einsum": (lambda a, b: oe.contract("ij,jk->ik", a, b), ["ab,ca->bc"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_contractions_are_equations(name):
    function, wanted = CALLS[name]
    assert subscripts(function, A, B) == wanted
    found, expected = engine.jit(function)(A, B), function(A, B)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-13)
    assert engine.jit(function).plan(A, B) is not None


def test_options_are_kept():
    f = engine.compile(
        "ij,jk->ik", (3, 4), (4, 5), dtypes="complex64", conj=[0], alpha=2, beta=1j, accumulate="complex128"
    )
    a, b, out = Z.astype("c8"), B.astype("c8"), np.ones((3, 5), "c8")

    @engine.jit
    def step(a, b, out):
        engine.einsum("ij,jk->ik", a, b, conj=[0], alpha=2, beta=1j, accumulate="complex128", out=out)
        return f(a, b, out=out.copy(), beta=0)

    expected = out.copy()
    f(a, b, out=expected)
    assert np.allclose(step(a, b, out), f(a, b, out=np.empty_like(out), beta=0), rtol=1e-6)
    assert np.allclose(out, expected, rtol=1e-6)
    assert engine.jit(lambda a: engine.einsum("ij->i", a, dtype="f4", casting="same_kind"))(A).dtype == np.float32


def test_diagonals_and_transposes_are_views_that_can_be_written():
    def zero_diagonal(a, einsum):
        einsum("ii->i", a)[:] = 0
        einsum("ij->ji", a)[0] += 1
        return einsum("iij->ji", a.reshape(3, 3, 1)).sum()

    for einsum in (np.einsum, engine.einsum):
        x, y = RNG.standard_normal((2, 3, 3))
        y[:] = x
        assert np.isclose(engine.jit(lambda a: zero_diagonal(a, einsum))(x), zero_diagonal(y, np.einsum))
        assert np.array_equal(x, y) and not x.diagonal().all()


def test_a_compiled_contraction_returns_no_view():
    f, x = engine.compile("ij->ji", (3, 4)), A.copy()
    assert not np.shares_memory(engine.jit(lambda a: f(a))(x), x)


@pytest.mark.parametrize("seed", range(40))
def test_random_contractions_are_those_outside(seed):
    case = draw_case(random.Random(900 + seed).choice, dtypes=("float32", "float64", "complex64", "int64", "bool"))
    arrays = [np.array(operand.make()) for operand in case.operands]
    text = f"{','.join(case.inputs)}->{case.output}"
    found, expected = engine.jit(lambda *x: engine.einsum(text, *x))(*arrays), engine.einsum(text, *arrays, copy=True)
    assert found.dtype == expected.dtype and np.shape(found) == np.shape(expected)
    if expected.dtype.kind in "biu":
        assert np.array_equal(found, expected), case.replay
    else:
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        terms = max(1, int(np.prod([max(1, n) for x in arrays for n in x.shape])))
        assert np.allclose(found, expected, rtol=0, atol=scale * terms**0.5 * 8 * np.finfo(expected.dtype).eps), (
            case.replay
        )


def test_more_than_52_indices_and_many_operands():
    count = 60
    terms = [(i, i + 1) for i in range(count)]
    arrays = [RNG.standard_normal((2, 2)) / 2 for _ in terms]

    def chain(*x):
        return engine.einsum(*(part for pair in zip(x, terms) for part in pair), (0, count))

    program = engine.jit(chain).program(*arrays)
    expected = np.linalg.multi_dot(arrays)
    assert np.allclose(engine.jit(chain)(*arrays), expected) and np.allclose(program.eval(*arrays)[0], expected)


def test_contraction_trees_of_cotengra_are_traced():
    tree = ctg.array_contract_tree(["ij", "jk", "kl"], "il", {"i": 3, "j": 4, "k": 5, "l": 6})
    expected = A @ B @ C
    contract = engine.jit(lambda *x: np.tanh(engine.einsum("ij,jk,kl->il", *x, optimize=tree)))
    assert np.allclose(contract(A, B, C), np.tanh(expected)) and len(contract.program(A, B, C).eqns) == 3


def test_a_tensor_network_of_quimb_is_traced():
    qtn = pytest.importorskip("quimb.tensor")

    def normed(a, b):
        network = qtn.TensorNetwork([qtn.Tensor(a, "ij"), qtn.Tensor(b, "jk"), qtn.Tensor(a, "kl")])
        data = network.contract(output_inds=("i", "l")).data
        return data / np.sqrt((data * data).sum())

    a, b = RNG.random((4, 5)), RNG.random((5, 4))
    program = engine.jit(normed).program(a, b)
    assert [eqn.op for eqn in program.eqns][:2] == ["einsum", "einsum"]
    assert np.allclose(engine.jit(normed)(a, b), normed(a, b)) and engine.jit(normed).plan(a, b) is not None


# -- errors -----------------------------------------------------------------------------------------------------------
WRONG = {
    "threads": (
        lambda a, b: engine.einsum("ij,jk", a, b, threads=1),
        "threads=1 for 'ij,jk': not supported in a traced",
    ),
    "memory_limit": (
        lambda a, b: engine.einsum("ij,jk", a, b, memory_limit=9),
        "memory_limit=.* for 'ij,jk': not supp",
    ),
    "order": (
        lambda a, b: engine.einsum("ij,jk", a, b, order="A"),
        "order='A' for 'ij,jk': a traced function knows C, F",
    ),
    "sizes": (
        lambda a, b: engine.einsum("ij,kj", a, b),
        "index 'j' is 4 in operand 0 axis 1 but 5 in operand 1 axis 1",
    ),
    "out": (lambda a, b: engine.einsum("ij,jk", a, b, out=np.empty((3, 5))), "out= is an array that is not traced"),
    "axes": (lambda a, b: engine.tensordot(a, b, 3), "tensordot: axes=3, but the operands have shapes"),
    "count": (lambda a, b: engine.compile("ij,jk", A, B)(a), "'ij,jk' takes 2 arrays, 1 were given"),
    "shape": (lambda a, b: engine.compile("ij,jk", A, B)(a.T, b), "'ij,jk' has size 4 in axis 0 .* compiled for 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_contractions_are_errors(name):
    function, message = WRONG[name]
    with pytest.raises((engine.EngineTypeError, engine.EngineValueError), match=message):
        engine.jit(function)(A, B)


# -- a compiled contraction as a program ------------------------------------------------------------------------------
PROGRAMS = {
    "product": ("ij,jk->ik", (A, B)),
    "chain": ("ij,jk,kl->il", (A, B, C)),
    "batch": ("bij,bjk->bik", (RNG.random((2, 8, 9)), RNG.random((2, 9, 8)))),
    "ring": ("abc,cde,efa->bdf", tuple(RNG.random((8, 8, 8)) for _ in range(3))),
    "large": ("abc,cd->abd", (RNG.random((30, 40, 50), dtype="f4"), RNG.random((50, 60), dtype="f4"))),
    "dot": ("ij,j->i", (RNG.random((100, 100)), RNG.random(100))),
    "sum": ("ijk->ik", (RNG.random((9, 8, 7)),)),
    "slices": (TRAIN, [RNG.random([TRAIN_SIZES[i] for i in term]) for term in TRAIN.split("->")[0].split(",")]),
    "strands": chain(12, 400, 2)[:2],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of_a_contraction_has_its_plan(name, threads):
    text, arrays = PROGRAMS[name]
    compiled = engine.compile(text, *arrays, threads=threads)
    program = compiled.program.check()
    assert [eqn.op for eqn in program.eqns] == ["einsum"]
    if len(arrays) < 4:  # NumPy's meaning of a longer one is a loop over all of its indices
        assert np.allclose(program.eval(*arrays)[0], compiled(*arrays))
    strides = tuple(array.strides for array in arrays)
    request = ProgramRequest(program=program, strides=strides, isa=isa.active_isa().name, threads=threads)
    plan = build_program(request, measured.machine(isa.active_isa()))
    assert steps_of(plan) == steps_of(compiled.plan)
    assert (max(step.depth for step in plan.steps) > 0) == (name == "slices" or (name, threads) == ("strands", 2))
    function = engine.jit(lambda *given: engine.einsum(text, *given), threads=threads)
    assert steps_of(function.plan(*arrays)) == steps_of(compiled.plan)
    assert np.array_equal(function(*arrays), compiled(*arrays))


def steps_of(plan):
    return [
        (s.kernel, s.tile, s.dims, s.flops, s.bytes_moved, s.tasks, s.depth, s.block, s.seconds) for s in plan.steps
    ]


def test_programs_have_constants_and_factors():
    f = engine.compile("ij,jk->ik", A, B, constants=[1], alpha=3, beta=2, threads=1)
    out = np.ones((3, 5))
    program = f.program
    assert [var.shape for var in program.inputs] == [(3, 4), (3, 5)] and len(program.consts) == 1
    expected = out.copy()
    f(A, out=expected)
    assert np.allclose(program.eval(A, out)[0], expected)
