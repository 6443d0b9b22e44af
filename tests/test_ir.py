"""Programs: printing, checking, equality, evaluation."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.avals import Aval
from einsum_engine.ir import Builder, Const, Eqn, Literal, Program, Var
from einsum_engine.views import View

F4 = np.dtype("float32")


def build(factor=2.0, where=""):
    make = Builder()
    x, y = (make.input(Aval((2, 3), F4)) for _ in range(2))
    c = make.const(np.arange(3, dtype=F4))
    (z,) = make.emit("mul", (x, c), where)
    (w,) = make.emit("add", (z, Literal.of(factor, F4)), where)
    (v,) = make.emit("access", (w,), where, view=View((3,), (1,), 3))
    (u,) = make.emit("assign", (y, v), where, view=View((3,), (1,), 0))
    return make.finish([x, y], [u, v])


TEXT = """\
program(%0: float32[2,3], %1: float32[2,3]) {
  %2: float32[3] = const [0.0, 1.0, 2.0]
  %3: float32[2,3] = mul %0 %2
  %4: float32[2,3] = add %3 2.0:float32
  %5: float32[3] = access %4 {view=([3],[1],3)}
  %6: float32[2,3] = assign %1 %5 {view=([3],[1],0)}
  return %6, %5
}"""


def test_show_is_golden():
    assert build().show() == str(build()) == TEXT
    assert "  # a.py:7" in build(where="a.py:7").show(where=True)


def test_equal_programs_are_equal_and_hash_alike():
    one, two = build(), build(where="elsewhere.py:3")
    assert one == two and hash(one) == hash(two) and one.check() is one
    assert one != build(3.0) and build(0.0) != build(-0.0) and build(np.nan) == build(np.nan)
    assert pickle.loads(pickle.dumps(one)) == one


def test_numbers_depend_on_order_only():
    make = Builder()
    make.const(np.ones(2))
    late = make.input(Aval((), F4))
    (out,) = make.emit("neg", (late,))
    program = make.finish([late], [out])
    assert [str(var) for var in (*program.inputs, program.consts[0][0], *program.outputs)] == ["%0", "%1", "%2"]


def test_eval_is_numpy_and_writes_nothing():
    x, y = np.ones((2, 3), F4), np.zeros((2, 3), F4)
    u, v = build().eval(x, y)
    assert v.tolist() == [2, 3, 4] and u.tolist() == [[2, 3, 4], [0, 0, 0]]
    assert not y.any() and u.flags.owndata and u.flags.c_contiguous
    v[:] = 0
    assert u[0].tolist() == [2, 3, 4]


def test_eval_of_nested_programs():
    def count(x, limit):
        def grow(s):
            return engine.cond(s[0] > 5, lambda: s * 3, lambda: s + 1)

        return engine.while_loop(lambda s: np.all(s < limit), grow, x)

    program = engine.jit(count).program(np.arange(2), np.int64(50)).check()
    assert [eqn.op for eqn in program.eqns] == ["while"]
    nested = dict(program.eqns[0].programs())
    assert [eqn.op for eqn in nested["body"].eqns][-1] == "cond" and "true = program(" in program.show()
    assert program.eval(np.arange(2), np.int64(50))[0].tolist() == [54, 63] == count(np.arange(2), 50).tolist()


@pytest.mark.parametrize("arrays, text", [
    ((np.ones((2, 3), F4),), "has 2 inputs, 1 arrays"),
    ((np.ones((2, 3)), np.ones((2, 3), F4)), "input 0 is float64[2,3], not float32[2,3]"),
])  # fmt: skip
def test_eval_refuses_other_inputs(arrays, text):
    with pytest.raises(engine.EngineError) as caught:
        build().eval(*arrays)
    assert text in str(caught.value)


def broken(at, **changes):
    program = build()
    eqns = list(program.eqns)
    eqns[at] = replace(eqns[at], **changes)
    return replace(program, eqns=tuple(eqns))


X, Y, C, Z, W, V, U = (
    Var(n, shape, F4) for n, shape in enumerate([(2, 3), (2, 3), (3,), (2, 3), (2, 3), (3,), (2, 3)])
)
WRONG = {
    "undefined": (lambda: broken(0, inputs=(U, C)), ["equation 0", "%6 is not defined before it is used"]),
    "other aval": (
        lambda: broken(1, inputs=(Var(3, (3,), F4), Literal.of(1, F4))),
        ["%3 is defined as float32[2,3], not float32[3]"],
    ),
    "twice": (lambda: broken(1, outputs=(Z,)), ["equation 1", "%3 is assigned a second time"]),
    "rule": (lambda: broken(2, outputs=(Var(5, (2,), F4),)), ["it has (float32[2]), the rule gives (float32[3])"]),
    "dtype": (
        lambda: broken(1, inputs=(Z, Literal.of(1, "int32"))),
        ["cast to float64, float64", "operands %3: float32[2,3], 1:int32: int32[]"],
    ),
    "view": (lambda: broken(2, params=(("view", View((9,), (1,), 0)),)), ["leaves the 6 elements of its root"]),
    "no view": (lambda: broken(2, params=(("view", (3,)),)), ["view (3,) is a tuple, not a View", "operands %4"]),
    "no parts": (lambda: broken(1, op="concatenate", inputs=(), params=(("axis", 0),)), ["no parts, whose shape"]),
    "negative": (
        lambda: broken(1, op="iota", inputs=(), params=(("size", -1), ("dtype", F4))),
        ["size -1 is negative"],
    ),
    "parameter": (lambda: broken(2, params=()), ["missing 1 required keyword-only argument: 'view'"]),
    "primitive": (lambda: broken(0, op="frobnicate"), ["there is no primitive 'frobnicate'"]),
    "operands": (lambda: broken(0, inputs=(X,)), ["mul takes 2 operands, not 1"]),
    "output": (lambda: replace(build(), outputs=(Var(9, (), F4),)), ["the output %9: float32[] is not defined"]),
    "inputs": (lambda: replace(build(), inputs=(X, X)), ["%0 is defined twice"]),
    "constant": (
        lambda: replace(build(), consts=((C, Const.of(np.ones(4, F4))),)),
        ["%2: float32[3] holds a constant float32[4]"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_names_equation_and_values(name):
    make, texts = WRONG[name]
    with pytest.raises(engine.EngineProgramError) as caught:
        make().check()
    assert [text for text in texts if text not in str(caught.value)] == []


def test_errors_show_the_neighbourhood():
    with pytest.raises(engine.EngineProgramError) as caught:
        broken(1, op="frobnicate", where="user.py:12").check()
    lines = str(caught.value).splitlines()
    assert lines[0] == "equation 1 (from user.py:12): there is no primitive 'frobnicate'"
    assert [line[:10] for line in lines[1:]] == ["      %3: ", "   -> %4: ", "      %5: ", "      %6: "]


def test_check_looks_into_programs():
    good = build()
    bad = broken(0, op="frobnicate")
    flag = Var(7, (), np.dtype(bool))
    eqn = Eqn("cond", (flag, X, Y), (Var(8, (2, 3), F4), Var(9, (3,), F4)), (("false", good), ("true", bad)))
    with pytest.raises(engine.EngineProgramError, match="program true: equation 0: there is no primitive"):
        Program((X, Y, flag), (), (eqn,)).check()
    fine = replace(eqn, params=(("false", good), ("true", good)))
    Program((X, Y, flag), fine.outputs, (fine,)).check()


def test_literals_keep_their_bits():
    assert Literal.of(-0.0, F4) != Literal.of(0.0, F4) and Literal.of(np.nan, F4) == Literal.of(np.nan, F4)
    assert str(Literal.of(3, "uint8")) == "3:uint8"
    with pytest.raises(engine.EngineValueError, match="the integer 300 does not fit uint8"):
        Literal.of(300, "uint8")
