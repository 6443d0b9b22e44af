"""The primitive table: every row is complete, and its columns agree with each other."""

import ast
import dataclasses
import inspect
import math

import numpy as np
import pytest

from einsum_engine import op_numpy
from einsum_engine.avals import Aval
from einsum_engine.errors import EngineError
from einsum_engine.ir import Builder
from einsum_engine.ops import INSTRUCTIONS, KINDS, OPS, Missing, Primitive
from einsum_engine.kernels.fused_structure import Graph
from einsum_engine.planners import scalars
from einsum_engine.planners.request import NotLowered
from einsum_engine.views import View

MAPS = [row for row in OPS.values() if row.kind == "map"]
DTYPES = ("bool", "uint8", "int32", "float32", "float64", "complex64")


def identity(dtype="float64"):
    build = Builder()
    x = build.input(Aval((2, 3), np.dtype(dtype)))
    return build.finish([x], [x])


def never():
    build = Builder()
    x = build.input(Aval((2, 3), np.dtype("float64")))
    return build.finish([x], build.emit("lt", build.emit("sum", (x,), axes=(0, 1)) * 2))


WHOLE = np.arange(6.0).reshape(2, 3)
KEY = np.array([1, 2], np.uint32)
PLACES = np.array([1, 0, -1])
# Row -> (operands, parameters) of a call: rules are compared with what NumPy gives.
CALLS = {
    "cast": ((WHOLE,), {"dtype": np.dtype("int32")}),
    "select": ((WHOLE > 2, WHOLE, np.float64(0)), {}),
    **{name: ((WHOLE,), {"axes": (0, 1)}) for name in ("sum", "prod", "any")},
    **{name: ((WHOLE,), {"axes": (1,)}) for name in ("reduce_max", "reduce_min", "all")},
    **{name: ((WHOLE,), {"axis": 1}) for name in ("argmax", "argmin", "sort", "argsort")},
    "einsum": ((WHOLE, WHOLE, np.ones(2)), {"subscripts": "ab,cb,c->ac"}),
    "access": ((WHOLE,), {"view": View((2,), (-2,), 4)}),
    "copy": ((WHOLE,), {}),
    "assign": ((WHOLE, np.float64(7)), {"view": View((2,), (-2,), 4)}),
    "gather": ((WHOLE, PLACES), {"axes": (1,)}),
    **{name: ((WHOLE, np.ones((3, 2)), PLACES), {"axes": (1,)}) for name in ("scatter", "scatter_add")},
    "concatenate": ((WHOLE, WHOLE[:, :1]), {"axis": 1}),
    "pad": ((WHOLE, np.float64(9)), {"widths": ((1, 0), (0, 2))}),
    "iota": ((), {"size": 4, "dtype": np.dtype("float32")}),
    "cond": ((np.True_, WHOLE), {"true": identity(), "false": identity()}),
    "while": ((WHOLE,), {"test": never(), "body": identity(), "carried": 1}),
    "random_bits": ((KEY,), {"shape": (3, 2)}),
    "random_uniform": ((KEY,), {"shape": (3, 2), "dtype": np.dtype("float32")}),
    "random_normal": ((KEY,), {"shape": (3, 2), "dtype": np.dtype("float64")}),
}


@pytest.mark.parametrize("name", OPS)
def test_no_cell_is_empty(name):
    row = OPS[name]
    assert row.name == name and row.kind in KINDS
    for field in dataclasses.fields(Primitive):
        cell = getattr(row, field.name)
        assert (cell is not None or field.name == "operands") and cell != ""
        if isinstance(cell, Missing):
            assert field.name == "cpu" and len(cell.why.split()) > 3


def test_the_issue_s_primitives_are_there():
    names = "einsum select exp log log1p expm1 sqrt rsqrt sin cos tan tanh sigmoid erf pow abs sign floor ceil round"
    names += " min max conj real imag cast sum prod reduce_max reduce_min argmax argmin any all access assign copy"
    names += " gather scatter scatter_add concatenate pad iota sort while cond random_bits random_uniform random_normal"
    assert set(names.split()) - OPS.keys() == set()


def test_every_function_of_op_numpy_says_what_it_means():
    for name, function in inspect.getmembers(op_numpy, inspect.isfunction):
        assert function.__module__ != op_numpy.__name__ or name.startswith("_") or function.__doc__, name


def samples(dtype):
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return np.array([True, False, True, False])
    if dtype.startswith("complex"):
        return (rng.standard_normal(8) + 1j * rng.standard_normal(8)).astype(dtype)
    found = np.array([1, 2, 3, 7, 1, 0, 5, 4], dtype)
    return found if dtype[0] in "ui" else np.concatenate([found / 3 - 1, [np.nan, np.inf, -np.inf, -0.0]]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [row for row in MAPS if row.name not in CALLS], ids=lambda row: row.name)
def test_maps_agree_with_their_rule_and_text(row, dtype):
    """The aval by the rule is what NumPy gives, and so is the value of the text for the kernel generator."""
    x = samples(dtype)
    operands = [x, np.roll(x, 1), x][: row.operands]
    try:
        (wanted,) = row.rule(*(Aval(x.shape, x.dtype) for x in operands))
    except EngineError:
        return
    with np.errstate(all="ignore"):
        found = row.numpy(*operands)
        names = dict(zip("abc", operands))
        text = found if isinstance(row.cpu, Missing) else eval(row.cpu, {"__builtins__": {}}, {**INSTRUCTIONS, **names})
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(np.asarray(text, found.dtype), found, rtol=1e-6)


@pytest.mark.parametrize("row", MAPS, ids=lambda row: row.name)
def test_every_map_takes_some_dtype(row):
    def takes(dtype):
        aval = Aval((2,), np.dtype(dtype))
        try:
            row.rule(*([aval] * row.operands))
        except EngineError:
            return False
        return True

    assert row.name in CALLS or any(takes(dtype) for dtype in DTYPES)


# Maps that NumPy runs, on these dtypes
NUMPY_ONLY = {("nextafter", "float16")}


@pytest.mark.parametrize("dtype", (*DTYPES, "int64", "float16", "complex128"))
@pytest.mark.parametrize("row", [row for row in MAPS if row.name not in CALLS], ids=lambda row: row.name)
def test_every_map_has_a_kernel(row, dtype):
    try:
        (wanted,) = row.rule(*[Aval((2,), np.dtype(dtype))] * row.operands)
    except EngineError:
        return
    graph = Graph((dtype,) * row.operands)
    if (row.name, dtype) in NUMPY_ONLY:
        with pytest.raises(NotLowered):
            scalars.apply(graph, row.name, list(range(row.operands)), wanted.dtype.name)
    else:
        value = scalars.apply(graph, row.name, list(range(row.operands)), wanted.dtype.name)
        assert graph.dtype(value) == wanted.dtype.name


@pytest.mark.parametrize("name", [row.name for row in OPS.values() if isinstance(row.cpu, str)])
def test_texts_use_operands_and_instructions_only(name):
    row = OPS[name]
    names = {node.id for node in ast.walk(ast.parse(row.cpu)) if isinstance(node, ast.Name)}
    operands = "ab" if row.kind in ("reduce", "index") else "abc"[: row.operands]
    assert names - INSTRUCTIONS.keys() <= set(operands)


def test_every_instruction_is_used():
    used = {
        n.id
        for row in OPS.values()
        if isinstance(row.cpu, str)
        for n in ast.walk(ast.parse(row.cpu))
        if hasattr(n, "id")
    }
    assert INSTRUCTIONS.keys() - used == set()


@pytest.mark.parametrize("name", [row.name for row in OPS.values() if row.kind != "map"])
def test_every_other_row_has_a_call(name):
    assert name in CALLS


@pytest.mark.parametrize("name", CALLS)
def test_rule_is_what_numpy_gives(name):
    operands, params = CALLS[name]
    before = [np.array(x) for x in operands]
    found = OPS[name].numpy(*operands, **params)
    found = found if isinstance(found, tuple) else (found,)
    wanted = OPS[name].rule(*(Aval(np.shape(x), np.asarray(x).dtype) for x in operands), **params)
    assert tuple(Aval(np.shape(x), np.asarray(x).dtype) for x in found) == wanted
    assert all(np.array_equal(one, two) for one, two in zip(before, operands)), "an operand was written"


def test_meanings_by_hand():
    def run(name):
        operands, params = CALLS[name]
        return np.asarray(OPS[name].numpy(*operands, **params)).tolist()

    assert run("access") == [4, 2]
    assert run("assign") == [[0, 1, 7], [3, 7, 5]]
    assert run("gather") == [[1, 4], [0, 3], [2, 5]]
    assert run("scatter_add") == [[1, 2, 3], [4, 5, 6]]
    assert run("pad") == [[9] * 5, [0, 1, 2, 9, 9], [3, 4, 5, 9, 9]]
    assert np.allclose(op_numpy.erf(np.array([0, 1, -np.inf])), [0, math.erf(1), -1])
    assert op_numpy.sigmoid(np.array([-1000.0, 0, 1000])).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(
    "counter, key, words",
    [
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (0xFFFFFFFF, 0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ],
)
def test_philox_known_answers(counter, key, words):
    """Of the Random123 distribution."""
    found = op_numpy.philox(np.full((1, 4), counter, np.uint32), np.full(2, key, np.uint32))
    assert " ".join(f"{word:08x}" for word in found[0]) == words


def test_random_numbers_have_the_moments_of_their_distribution():
    shape, key = (40_000,), np.array([3, 4], np.uint32)
    uniform = op_numpy.random_uniform(key, shape=shape, dtype=np.dtype("float32"))
    normal = op_numpy.random_normal(key, shape=shape, dtype=np.dtype("float64"))
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02 and abs((normal**3).mean()) < 0.1
    longer = op_numpy.random_bits(key, shape=(7,))
    assert op_numpy.random_bits(key, shape=(5,)).tolist() == longer[:5].tolist(), "counter-based: a prefix"


@pytest.mark.parametrize(
    "name, avals, params, text",
    [
        ("add", ("float32[2]", "float64[2]"), {}, "cast to float64, float64"),
        ("add", ("float32[2]", "float32[3]"), {}, "shapes (2,), (3,) do not broadcast"),
        ("bit_and", ("float32[2]", "float32[2]"), {}, "np.bitwise_and has no meaning for float32, float32"),
        ("erf", ("int32[2]",), {}, "dtype int32, not a real floating-point one"),
        ("reduce_max", ("float32[0]",), {"axes": (0,)}, "no element along axes (0,)"),
        ("sum", ("float32[2]",), {"axes": (1,)}, "axis 1 is out of bounds"),
        ("access", ("float32[4]",), {"view": View((3,), (2,), 0)}, "view ([3],[2],0) leaves the 4 elements"),
        ("assign", ("float32[4]", "float32[]"), {"view": View((3,), (0,), 0)}, "names an element twice"),
        ("assign", ("float32[4]", "int32[]"), {"view": View((3,), (1,), 0)}, "dtype int32 is written to dtype float32"),
        ("assign", ("float32[4]", "float32[2]"), {"view": View((3,), (1,), 0)}, "does not broadcast to shape (3,)"),
        ("gather", ("float32[4]", "float32[2]"), {"axes": (0,)}, "an index array has dtype float32"),
        ("concatenate", ("float32[4]", "float32[2,2]"), {"axis": 0}, "(4,) and (2, 2) differ beside axis 0"),
        ("random_bits", ("int64[2]",), {"shape": (3,)}, "a key is uint32[2], not int64[2]"),
        ("einsum", ("float32[2,3]", "float32[4]"), {"subscripts": "ab,b->a"}, "index 'b' is 3 in operand 0"),
    ],
)  # fmt: skip
def test_rules_refuse(name, avals, params, text):
    def aval(shown):
        dtype, shape = shown[:-1].split("[")
        return Aval(tuple(map(int, shape.split(","))) if shape else (), np.dtype(dtype))

    with pytest.raises(EngineError) as caught:
        OPS[name].rule(*map(aval, avals), **params)
    assert text in str(caught.value)
