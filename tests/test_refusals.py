"""What tracing refuses: each error names the operation, the line of the user, and shapes."""

import pickle
import re

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import nnfunctions as nn

A = np.arange(12.0).reshape(3, 4) / 5


def loop(a):
    while a.sum() > 0:
        a = a - 1
    return a


kept = []
ERRORS = {
    "if": (lambda a: a if a.sum() > 0 else -a, TypeError, ["bool() of a traced bool[]", "engine.cond", "engine.where"]),
    "while": (loop, TypeError, ["engine.while_loop"]),
    "int": (lambda a: int(a[0, 0]), TypeError, ["int() of a traced float64[]"]),
    "float": (lambda a: float(a.sum()), TypeError, ["float() of a traced float64[]"]),
    "range": (lambda a: list(range(a.argmax())), TypeError, ["int() of a traced int64[]"]),
    "item": (lambda a: a.sum().item(), TypeError, ["item() of a traced"]),
    "array": (lambda a: np.array([a.sum(), 1]), TypeError, ["of a traced float64[]"]),
    "len": (lambda a: len(a.sum()), TypeError, ["len() of a traced scalar"]),
    "function": (lambda a: np.linalg.svd(a), TypeError, ["np.linalg.svd", "not supported", "operands float64[3,4]"]),
    "ufunc": (lambda a: np.frexp(a), TypeError, ["np.frexp is not supported"]),
    "method": (lambda a: np.subtract.accumulate(a), TypeError, ["np.subtract.accumulate is not supported"]),
    "argument": (lambda a: np.var(a, where=a > 0), TypeError, ["np.var", "unexpected keyword argument 'where'"]),
    "take": (lambda a: np.take(a, 5, 0), IndexError, ["np.take, ", "index 5 is out of bounds for axis 0 with size 3"]),
    "along": (
        lambda a: np.take_along_axis(a, np.array([[7]]), 1),
        IndexError,
        ["np.take_along_axis, ", "index 7 is out of bounds for axis 1 with size 4 of shape (3, 4)"],
    ),
    "engine.einsum": (
        lambda a: engine.einsum("ab,bc", a, a),
        ValueError,
        ["einsum, ", "index 'b' is 4 in operand 0 axis 1 but 3", "operands float64[3,4], float64[3,4]"],
    ),
    "tensordot": (lambda a: engine.tensordot(a, a, 1), ValueError, ["tensordot, ", "(operands float64[3,4], float64[3,4])"]),
    "compiled": (
        lambda a: engine.compile("ab,bc", (3, 4), (4, 3))(a, a),
        ValueError,
        ["compiled einsum, ", "(operands float64[3,4], float64[3,4])"],
    ),
    "convolution": (lambda a: nn.convolution(a, a), ValueError, ["convolution, ", "ranks or channels differ"]),
    "pooling": (lambda a: nn.max_pool(a, 2), ValueError, ["max_pool, ", "shape (3, 4) has no axes of space"]),
    "sizes of windows": (lambda a: nn.mean_pool(a[None], (2, 2)), ValueError, ["mean_pool, ", "each of 1 axes of space"]),
    "index": (lambda a: a[5], IndexError, ["index 5 is out of bounds for axis 0 with size 3 of shape (3, 4)"]),
    "indices": (lambda a: a[:, [0, 9]], IndexError, ["index 9 is out of bounds for axis 1 with size 4"]),
    "too many": (lambda a: a[0, 0, 0], IndexError, ["3 indices for 2 axes of shape (3, 4)"]),
    "float index": (lambda a: a[1.5], IndexError, ["1.5 is no index"]),
    "mask": (lambda a: a[a > 1], TypeError, ["a traced mask as index", "engine.where"]),
    "slice": (lambda a: a[: a.argmax()], TypeError, ["a slice with a traced bound"]),
    "broadcast": (lambda a: np.broadcast_to(a, (2, 3, 4)).__setitem__(0, 1), ValueError, ["broadcast view"]),
    "diagonal": (lambda a: a.diagonal().__iadd__(1), ValueError, ["read-only"]),
    "windows": (lambda a: nn.windows(a, (2, 2)).__setitem__(0, 1), ValueError, ["windows are read-only"]),
    "scalar": (lambda a: np.add(a.sum(), 1, out=a.sum()), ValueError, ["a scalar cannot be written in place"]),
    "casting": (lambda a: a.astype(int).__itruediv__(2), TypeError, ["cannot cast the result from float64 to int64"]),
    "shapes": (lambda a: a + a.T, ValueError, ["np.add", "shapes (3, 4), (4, 3) do not broadcast"]),
    "matmul": (lambda a: a @ a, ValueError, ["matmul of shapes (3, 4) and (3, 4)"]),
    "out": (lambda a: np.add(a, 1, out=np.zeros((3, 4))), TypeError, ["out= is an array that is not traced"]),
    "dtype": (lambda a: a.astype("M8[s]"), TypeError, ["datetime64[s], which has no meaning in a program"]),
    "strings": (lambda a: a + np.array(["x"]), TypeError, ["no meaning"]),
    "value": (lambda a: a.__setitem__(0, np.ones(3)), ValueError, ["shape (3,) does not broadcast to shape (4,)"]),
    "reshape": (lambda a: a.reshape(5, -1), ValueError, ["cannot reshape 12 elements"]),
    "kept": (lambda a: [kept.append(a), kept[0] + 1] and (_ for _ in ()).throw(KeyError), KeyError, []),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_operation_line_and_shapes(name):
    function, error, texts = ERRORS[name]
    with pytest.raises(error) as caught:
        engine.jit(function)(A.copy())
    text = str(caught.value)
    assert [part for part in texts if part not in text] == []
    if texts:
        assert isinstance(caught.value, engine.EngineError) and f", {__file__}:" in text
        assert re.search(r"\[[\d,]*\]", text), "no shape"


def test_arguments_that_are_refused():
    with pytest.raises(engine.EngineTypeError, match="argument 0 has type MaskedArray: only plain arrays are traced"):
        engine.jit(lambda a: a)(np.ma.masked_array([1, 2]))
    with pytest.raises(engine.EngineTypeError, match="argument 0 has type Foreign: arrays of NumPy are traced"):
        engine.jit(lambda a: a)(type("Foreign", (), {"__dlpack__": None})())
    with pytest.raises(engine.EngineTypeError, match="argument 0 has dtype <U1, which has no meaning in a program"):
        engine.jit(lambda a: a)(np.array(["x"]))
    with pytest.raises(engine.EngineTypeError, match="argument 1 has type set"):
        engine.jit(lambda a, b: a)(A, {1})


@pytest.mark.parametrize(
    "given", [np.array([None]), np.array(["x", "y"]), np.ma.masked_array([1, 2]), np.array(1j, "c32")]
)
def test_arguments_that_are_refused_are_named_with_the_call(given):
    with pytest.raises(engine.EngineTypeError) as caught:
        engine.jit(loop)(given)
    text, shape = str(caught.value), ",".join(map(str, given.shape))
    assert text.startswith(f"call of loop, {__file__}:") and f"[{shape}])" in text


def test_operations_in_operations_are_named_by_the_one_that_was_written():
    with pytest.raises(engine.EngineError, match=r"^np.median, [^ ]*: .* \(operands complex128\[3,4\]\)$"):
        engine.jit(lambda a: np.median(a + 1j))(A)
    with pytest.raises(engine.EngineError, match=r"^np.subtract, [^ ]*: .* \(operands bool\[3,4\], bool\[3,4\]\)$"):
        engine.jit(lambda a: engine.cond(True, lambda: (a > 1) - (a > 2), lambda: a))(A)


def test_errors_are_pickled():
    with pytest.raises(engine.EngineError) as caught:
        engine.jit(lambda a: a + a.T)(A)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value)


def test_a_traced_array_outlives_its_function_in_vain():
    leaked = []
    engine.jit(lambda a: leaked.append(a) or a + 1)(A)
    with pytest.raises(engine.EngineTypeError, match="used outside the function that is traced"):
        leaked[0] + 1
    with pytest.raises(engine.EngineTypeError, match="after its function .* had returned"):
        engine.jit(lambda a: a + leaked[0])(A)
