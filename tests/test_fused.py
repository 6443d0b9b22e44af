"""Random structures over random strided loops, with reductions, on every instruction set that this machine runs."""

import itertools

import fused_case
import numpy as np
import oracle
import pytest
import strided
from hypothesis import HealthCheck, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from einsum_engine.errors import EngineValueError
from einsum_engine.kernels import diskcache, fused, launch
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import fused_abi, library, nest_abi
from einsum_engine.kernels.fused_reference import evaluate
from einsum_engine.kernels.isa import active_isa, host_isas

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
# each new structure is compiled, which takes some 50 ms
RANDOM = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
SHAPES = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = ["float32", "float64", "int8", "int32", "uint16", "int64", "complex64", "bool"]
# exact on whole numbers of moderate size
EXACT = {
    1: ["neg", "abs", "sign", "floor", "real", "conj", "not", "invert", "isnan"],
    2: ["add", "sub", "mul", "min", "max", "eq", "lt", "ge", "and", "xor", "floordiv", "mod"],
}


@st.composite
def structures(draw) -> fs.Structure:
    """Up to 12 operations that have no rounding error on small whole numbers."""
    inputs = tuple(draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4)))
    g = fs.Graph(inputs)
    depth = [1] * len(inputs)  # of multiplications, so that floats stay exact

    def value(number: int, level: int) -> int:
        if number == len(depth):
            depth.append(level)
        return number

    for _ in range(draw(st.integers(1, 12))):
        a = draw(st.integers(0, len(depth) - 1))
        kind = draw(st.sampled_from(["op", "op", "op", "cast", "select", "const"]))
        if kind == "const":
            value(g.const(draw(st.integers(0, 5)), g.dtype(a)), 1)
        elif kind == "cast":
            target = draw(st.sampled_from(DTYPES))
            if "uint" not in target:  # of negative floats C says nothing
                value(g.cast(a, target), depth[a])
        else:
            _operation(draw, g, depth, value, a, kind)
    outputs = draw(st.lists(st.integers(0, len(depth) - 1), min_size=1, max_size=3, unique=True))
    return g.structure(*outputs)


def _operation(draw, g: fs.Graph, depth, value, a: int, kind: str) -> None:
    dtype = g.dtype(a)
    same = [n for n in range(len(depth)) if g.dtype(n) == dtype]
    if kind == "select":
        conditions = [n for n in range(len(depth)) if g.dtype(n) == "bool"]
        if conditions:
            b = draw(st.sampled_from(same))
            value(g.op("select", draw(st.sampled_from(conditions)), a, b), max(depth[a], depth[b]))
        return
    arity = draw(st.integers(1, 2))
    ops = [op for op in EXACT[arity] if dtype in fs.SCALARS[op].dtypes]
    if not ops:
        return
    op, b = draw(st.sampled_from(ops)), draw(st.sampled_from(same))
    level = depth[a] + depth[b] if op == "mul" else max(depth[a], depth[b]) + 1
    if level <= 6:
        value(g.op(op, *(a, b)[:arity]), level)


def arrays_of(rng, structure: fs.Structure, shape, reduced=()) -> tuple[list, list]:
    """Outputs and inputs in guarded memory; an input may be broadcast along an axis."""
    inputs = []
    for name in structure.inputs:
        mine = [1 if rng.random() < 0.2 else size for size in shape]
        fixed = [len(shape) - 1] if shape and rng.random() < 0.6 else []
        x = strided.make(rng, mine, name, fixed=fixed, exact=True)
        x = strided.Strided(memory=x.memory, start=x.start, view=x.view.view(name))
        if name != "bool" and np.dtype(name).kind == "u":
            x.view[...] = x.view & 7
        inputs.append(x)
    outputs = []
    for out in structure.outputs:
        mine = [1 if out.reduce and axis in reduced else size for axis, size in enumerate(shape)]
        fixed = [len(shape) - 1] if shape and rng.random() < 0.6 else []
        x = strided.make(rng, mine, structure.dtype(out.value), fixed=fixed)
        outputs.append(strided.Strided(memory=x.memory, start=x.start, view=x.view.view(structure.dtype(out.value))))
    return outputs, inputs


def check(isa, structure, seed: int, shape, reduced=(), threads=1, near=False) -> None:
    if currently_in_test_context():
        note(f"replay: check(get({isa.name!r}), fs.parse({structure.text()!r}), {seed}, {shape}, {reduced}, {threads})")
    rng = np.random.default_rng(seed)
    outputs, inputs = arrays_of(rng, structure, shape, reduced)
    full = [np.broadcast_to(x.view, shape) for x in inputs]
    expected = evaluate(structure, [*full, np.zeros(shape, np.int8)][: max(1, len(full))], reduced)
    after = [x.copy() for x in outputs]
    problem = problem_of(structure, outputs, inputs, shape)
    room = oracle.guarded(fused.temp_bytes(problem, threads))
    temp = fused.Operand(slot=structure.operands, offset=0) if len(room) else None
    rows = fused.lower(problem, threads, temp)
    bases = [x.memory.ctypes.data + x.start if x.memory.size else 0 for x in (*outputs, *inputs)]
    launch.run(rows, [*bases, room.ctypes.data], isa)
    for got, value, other in zip(outputs, expected, after, strict=True):
        if near and got.view.dtype.kind in "fc":
            np.testing.assert_allclose(got.view, value, rtol=1e-5 if got.view.dtype.itemsize == 4 else 1e-13)
            continue
        other.view[...] = value
        strided.same_bytes(got, other, structure.text())


def problem_of(structure, outputs, inputs, shape) -> fused.FusedProblem:
    views = [x.view for x in (*outputs, *inputs)]
    strides = [[0 if n == 1 else s for n, s in zip(v.shape, v.strides, strict=True)] for v in views]
    dims = tuple((size, *(s[axis] for s in strides)) for axis, size in enumerate(shape))
    operands = tuple(fused.Operand(slot=slot, offset=0) for slot in range(len(views)))
    return fused.FusedProblem(structure=structure, dims=dims, operands=operands)


SIZES = st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 17, 33, 67, 131]), max_size=4).filter(
    lambda s: np.prod(s) < 20_000
)


@ISAS
@RANDOM
@given(structure=structures(), seed=st.integers(0, 99), shape=SIZES, threads=st.sampled_from([1, 3]))
def test_random_structures(isa, structure, seed, shape, threads):
    with np.errstate(all="ignore"):
        check(isa, structure, seed, tuple(shape), (), threads)


def fixed_structure() -> fs.Structure:
    """Three dtypes, two results."""
    g = fs.Graph(("float32", "float64", "int8"))
    wide = g.op("add", g.cast(0, "float64"), g.op("mul", 1, g.cast(2, "float64")))
    return g.structure(wide, g.op("lt", 2, g.const(1, "int8")))


@ISAS
@SHAPES
@given(seed=st.integers(0, 9999), shape=SIZES, threads=st.sampled_from([1, 4]))
def test_random_shapes(isa, seed, shape, threads):
    check(isa, fixed_structure(), seed, tuple(shape), (), threads)


@ISAS
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "float64", "complex128"])
def test_elements_that_are_few_apart(isa, dtype):
    """Every n-th element of guarded memory, from its first to its last; what lies between stays as it is."""
    g = fs.Graph((dtype,))
    structure, item = g.structure(g.op("add", 0, 0)), np.dtype(dtype).itemsize
    every = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, -1), (-1, 1), (2, -2), (-3, 3))
    for (to, step), size in itertools.product(every, (1, 2, 16, 17, 31, 130)):
        count = (size - 1) * abs(step) + 1
        memory = [oracle.guarded(count * item) for _ in range(2)]
        out, x = (each.view(dtype) for each in memory)
        x[:], out[:] = np.arange(count) % 50, np.arange(count) % 3
        wanted = out.copy()
        wanted[::to] = 2 * x[::step]
        dims = ((size, to * item, step * item),)
        starts = enumerate((to, step))
        operands = tuple(fused.Operand(slot=n, offset=(count - 1) * item * (by < 0)) for n, by in starts)
        problem = fused.FusedProblem(structure=structure, dims=dims, operands=operands)
        launch.run(fused.lower(problem), [each.ctypes.data for each in memory], isa)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("apart, modes", [(-1, [0, 8]), (2, [9, 8]), (4, [9, 8]), (5, [7, 5])])
def test_elements_that_are_few_apart_move_as_vectors(apart, modes):
    for op, found in (("exp", modes), ("neg", [0, 0] if apart == 2 else modes)):
        g = fs.Graph(("float32",))
        problem = fused.FusedProblem(
            structure=g.structure(g.op(op, 0)),
            dims=((1000, 4 * abs(apart), 4 * apart),),
            operands=tuple(fused.Operand(slot=slot, offset=0) for slot in range(2)),
        )
        (row,) = fused.lower(problem)
        table = row.tables[fused_abi.U_TABLE][: 2 * fused_abi.O_WORDS].reshape(2, -1)
        assert table[:, fused_abi.O_MODE].tolist() == found
        assert row.words[fused_abi.U_APART] == (found == [0, 0])


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128"])
def test_rows_of_elements_that_are_two_apart(isa, dtype):
    """Two outputs between each other, in place, beside what is one element in a row."""
    g = fs.Graph((dtype, dtype, dtype))
    structure = g.structure(g.op("sub", g.op("mul", 0, 1), 2), g.op("add", 2, 1))
    rng = np.random.default_rng(0)
    for size in (16, 17, 31, 40, 65, 300):
        x, one = rng.integers(-9, 9, (3, 2 * size)).astype(dtype), rng.integers(-9, 9, (3, 1)).astype(dtype)
        even, odd = x[:, ::2], x[:, 1::2]
        expected = even * odd - one, one + odd
        (row,) = fused_case.run(isa, structure, [even, odd], [even, odd, one])
        assert row.words[fused_abi.U_APART]
        np.testing.assert_array_equal(even, expected[0])
        np.testing.assert_array_equal(odd, expected[1])


@ISAS
@pytest.mark.parametrize("shift", [0, 4, 16, 2])
def test_what_is_staged_lies_in_its_lines_as_the_output(isa, shift):
    """Of long rows, whose first elements are a part of a vector; 2 bytes: no element is aligned."""
    g, n = fs.Graph(("float32",) * 2), 5003
    structure = g.structure(g.op("mul", 0, 1))
    memory = oracle.guarded(3 * n * 4 + shift)
    x = np.ndarray((n, 3), "f", memory.data, shift)
    x[:], factor = np.arange(3 * n).reshape(n, 3) % 100, np.array([[1, 2, 3]], "f")
    expected = x * factor
    (row,) = fused_case.run(isa, structure, [x], [x, factor])
    assert row.words[fused_abi.U_ALIGN]
    np.testing.assert_array_equal(x, expected)


@ISAS
@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("width, rows", [(17, 1901), (20, 1901), (100, 331)])
def test_short_rows_are_put_together(isa, dtype, width, rows):
    """What does not move along the second loop is repeated in scratch, once for each entry of the third."""
    g, item, op = fs.Graph((dtype,) * 3), np.dtype(dtype).itemsize, "xor" if dtype == "bool" else "add"
    structure = g.structure(g.op(op, g.op(op, 0, 1), 2))
    shapes = (3, rows, width), (3, 1, width), (1, rows, width)
    rng = np.random.default_rng(0)
    x, each, every = (np.ndarray(s, dtype, oracle.guarded(int(np.prod(s)) * item).data) for s in shapes)
    for array in (x, each, every):
        array[:] = rng.integers(0, 2 if dtype == "bool" else 99, array.shape)
    out = np.ndarray(x.shape, dtype, oracle.guarded(x.nbytes).data)
    (row,) = fused_case.run(isa, structure, [out], [x, each, every])
    modes = row.tables[fused_abi.U_TABLE][: 4 * fused_abi.O_WORDS].reshape(4, -1)[:, fused_abi.O_MODE]
    assert modes.tolist() == [0, 0, nest_abi.STAGED + nest_abi.MOVE_REPEAT, 0]
    np.testing.assert_array_equal(out, x ^ each ^ every if dtype == "bool" else x + each + every)


def test_short_rows_are_put_together_where_that_pays():
    """What is repeated is used by several rows; outputs go on from row to row."""
    g = fs.Graph(("float32", "float32"))
    operands = tuple(fused.Operand(slot=slot, offset=0) for slot in range(3))
    for rows, gap, longer in ((400, 0, True), (80, 0, False), (400, 4, False)):
        dims = ((65, 4, 4, 4), (rows, 260 + gap, 260 + gap, 0))
        (row,) = fused.lower(fused.FusedProblem(structure=g.structure(g.op("mul", 0, 1)), dims=dims, operands=operands))
        assert (row.words[fused_abi.U_O] > 65) == longer


@ISAS
@pytest.mark.parametrize("columns", [1, 7, 70, 1030])
def test_rows_that_are_stored_late(isa, columns):
    """Each row is what the rows around it were; three tasks leave the rows between theirs as they are."""
    g = fs.Graph(("float64",) * 3)
    structure = g.structure(g.op("sub", g.op("add", 0, 1), 2))
    pitch = 8 * (columns + 2)
    for height, tasks in ((3, 1), (12, 1), (10, 3)):
        rows = height - 2 if tasks == 1 else 2
        memory = oracle.guarded(height * pitch)
        x = memory.view(np.float64).reshape(height, -1)
        x[:] = np.random.default_rng(0).integers(-9, 9, x.shape)
        expected = x.copy()
        inner = [row for row in range(1, height - 1) if tasks == 1 or row % 3]
        expected[inner, 1:-1] = [x[row - 1, 1:-1] + x[row + 1, 1:-1] - x[row, 2:] for row in inner]
        starts = (pitch + 8, 8, 2 * pitch + 8, pitch + 16)
        dims = [(columns, 8, 8, 8, 8), (rows, *(pitch,) * 4)] + [(tasks, *(3 * pitch,) * 4)] * (tasks > 1)
        problem = fused.FusedProblem(
            structure=structure,
            dims=tuple(dims),
            operands=tuple(fused.Operand(slot=0, offset=start) for start in starts),
            late=True,
        )
        launch.run(fused.lower(problem, tasks), [memory.ctypes.data], isa)
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    "dims",
    [
        ((2, 4, 4, 4), (4000, 16, 16, 0)),  # pairs of four, beside a row of two
        ((2, 4, 1444, 1444), (361, 340, 4, 4), (3, 122740, 122740, 0)),  # channels come last
    ],
)
def test_rows_of_few_entries_are_none(dims):
    """O is a longer loop than the fastest one of the output."""
    g = fs.Graph(("float32", "float32"))
    problem = fused.FusedProblem(
        structure=g.structure(g.op("add", 0, 1)),
        dims=dims,
        operands=tuple(fused.Operand(slot=slot, offset=0) for slot in range(3)),
    )
    (row,) = fused.lower(problem)
    assert row.words[fused_abi.U_O] > 100


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int16", "bool"])
def test_short_rows(isa, dtype):
    """Rows of less than a vector to a few of them, stored and reduced; what is read may be one element in a row."""
    g = fs.Graph((dtype, dtype))
    value, kind = (g.op("and", 0, 1), "any") if dtype == "bool" else (g.op("add", 0, 1), "sum")
    mapped, both = g.structure(value), g.structure(value, (value, kind))
    for seed, length in enumerate((1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65)):
        check(isa, mapped, seed, (9, length))
        check(isa, both, seed, (9, length), (1,))


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_nan_anywhere_in_a_short_row(isa, dtype, reduce):
    for length in (3, 8, 16, 40):
        x = np.random.default_rng(length).standard_normal((length + 1, length)).astype(dtype)
        x[np.arange(length), np.arange(length)] = np.nan
        out = np.empty((length + 1, 1), dtype)
        fused_case.run(isa, fused_case.single("", (dtype,), reduce), [out], [x])
        assert np.isnan(out[:length]).all() and out[length] == getattr(x[length], reduce)()


@ISAS
def test_nan_in_reductions(isa):
    x = np.ones((5, 67))
    x[2, 66] = np.nan
    for reduce in ("max", "min", "sum"):
        for axis in (0, 1):
            structure = fused_case.single("", ("float64",), reduce)
            shape = (1, 67) if axis == 0 else (5, 1)
            out = np.empty(shape)
            fused_case.run(isa, structure, [out], [x])
            assert np.array_equal(np.isnan(out), np.isnan(x.sum(axis, keepdims=True)))


@ISAS
def test_a_reduction_of_nothing_is_its_identity(isa):
    for reduce, dtype, expected in (
        ("sum", "float32", 0),
        ("prod", "int8", 1),
        ("all", "bool", True),
        ("any", "bool", False),
    ):
        out = np.empty((3, 1), dtype)
        out[...] = not expected
        fused_case.run(isa, fused_case.single("", (dtype,), reduce), [out], [np.empty((3, 0), dtype)])
        assert np.array_equal(out, np.full((3, 1), expected))
    with pytest.raises(EngineValueError, match="max of no elements"):
        fused_case.run(isa, fused_case.single("", ("int8",), "max"), [np.empty((3, 1), "i1")], [np.empty((3, 0), "i1")])


@ISAS
@pytest.mark.parametrize("shift", [0, 4, 16, 2])
@pytest.mark.parametrize("op", ["add", "pow"])
def test_past_the_caches(isa, shift, op, monkeypatch):
    """Light structures and heavy ones; 2 bytes: no element is aligned."""
    monkeypatch.setattr(fused, "STREAM_BYTES", 0)
    rng = np.random.default_rng(0)
    a, b = rng.random(1033).astype("f"), rng.integers(0, 3, 1033).astype("f")
    memory = oracle.guarded(1033 * 4 + shift)
    out = np.ndarray((1033,), "f", memory.data, shift)
    (row,) = fused_case.run(isa, fused_case.single(op, ("float32",) * 2), [out], [a, b])
    assert row.words[fused_abi.U_STREAM]
    expected = a + b if op == "add" else a.astype(float) ** b
    np.testing.assert_allclose(out, expected, rtol=1e-6 if op == "pow" else 0)


@ISAS
@pytest.mark.parametrize("op", ["mul", "pow"])
def test_in_place(isa, op):
    x = np.random.default_rng(0).integers(1, 9, (67, 33)).astype(float)[:, ::2]
    expected = x * x if op == "mul" else x**x
    fused_case.run(isa, fused_case.single(op, ("float64",) * 2), [x], [x, x])
    np.testing.assert_allclose(x, expected, rtol=1e-15)


def test_nothing_is_compiled_for_a_shape():
    structure = fixed_structure()
    names = set()
    for shape in ((1,), (7, 5), (131, 2, 3), (1000,)):
        rng = np.random.default_rng(0)
        outputs, inputs = arrays_of(rng, structure, shape)
        for row in fused.lower(problem_of(structure, outputs, inputs, shape)):
            names |= {name for name in row.kernels.values() if name.startswith("fused")}
    assert names == {"fused_run", fs.name(structure)}


def test_another_process_finds_the_structure_of_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    structure = fixed_structure()
    kernel = fs.name(structure)
    library.store(kernel, active_isa())
    monkeypatch.setattr(fs, "_known", {})
    fs.name.cache_clear()
    assert fs.find(kernel) == structure
    monkeypatch.setattr(fs, "_known", {})
    path = tmp_path / "kernels" / "structures" / f"{kernel}.txt"
    diskcache.write(path, b"float32; -> 0")  # whole, but not the structure of that name
    with pytest.raises(KeyError, match="no structure is known"):
        fs.find(kernel)


def test_values_that_no_output_needs_are_left_out():
    g = fs.Graph(("float32", "float32"))
    g.op("exp", 0)
    structure = g.structure((g.op("mul", 1, g.op("neg", 0)), "sum"))
    assert structure.text() == "float32 float32; neg 0 float32; mul 1 2 float32; -> sum 3"


@given(structure=structures())
@settings(max_examples=100, deadline=None)
def test_the_text_of_a_structure_gives_it_back(structure):
    assert fs.parse(structure.text()) == structure
    assert hash(fs.parse(structure.text())) == hash(structure)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda g: g.op("exp", 2), "exp takes 1 of one of float32, float64, complex64, complex128, not .int8."),
        (lambda g: g.op("add", 0, 1), "add takes 2 of one of .* not .float32, float64."),
        (lambda g: g.op("nothing", 0), "'nothing' is none of exp"),
        (lambda g: g.op("select", 0, 1, 1), "select takes .bool, T, T., not .float32, float64, float64."),
        (lambda g: g.structure((2, "any")), "output 0: no reduction 'any' of int8"),
        (lambda g: g.structure(9), "output 0 is value 9, which does not exist"),
        (lambda g: g.structure(), "at least one output"),
        (lambda g: g.cast(0, "float128"), "to 'float128'"),
    ],
)
def test_mistakes_in_structures_are_named(make, message):
    with pytest.raises(EngineValueError, match=message):
        make(fs.Graph(("float32", "float64", "int8")))


def test_mistakes_in_problems_are_named():
    structure = fused_case.single("exp", ("float32",))
    places = (fused.Operand(slot=0, offset=0),) * 2
    with pytest.raises(EngineValueError, match="output 0 has stride 0 in loop 0 of size 5"):
        fused.FusedProblem(structure=structure, dims=((5, 0, 4),), operands=places)
    with pytest.raises(EngineValueError, match="loop 0 has 1 strides for 2 operands"):
        fused.FusedProblem(structure=structure, dims=((5, 4),), operands=places)
    with pytest.raises(EngineValueError, match="1 operands for a structure of 2"):
        fused.FusedProblem(structure=structure, dims=((5, 4, 4),), operands=places[:1])
