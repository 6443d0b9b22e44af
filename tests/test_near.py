"""Maps that are written over the rows that they read: each row is loaded once (`Structure.near`)."""

import numpy as np
import oracle
import pytest
from program_calls import assert_like_numpy

from einsum_engine.kernels import fused, launch
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import fused_abi
from einsum_engine.kernels.isa import host_isas
from einsum_engine.planners import late
from einsum_engine.planners import programs as program_plans

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
# where inputs lie, as (rows, elements) from what is written
PLACES = {
    "five points": ((-1, 0), (1, 0), (0, -1), (0, 1)),
    "nine points": tuple((row, e) for row in (-1, 0, 1) for e in (-1, 0, 1)),
    "above": ((-1, -1), (0, -2), None, (0, 0)),
    "below": ((1, 2), None, (0, 2)),
    "a row": ((0, -2), (0, 2), None),
    "itself": ((-1, 0), (0, 0)),
}


def structure_of(places, dtype: str) -> fs.Structure:
    """Weighted sum of the inputs: no two of them may be taken for each other."""
    g = fs.Graph((dtype,) * len(places))
    total = 0
    for number in range(1, len(places)):
        total = g.op("add", g.op("mul", total, g.const(3, dtype)), number)
    made = g.structure(total)
    return fs.Structure(inputs=made.inputs, nodes=made.nodes, outputs=made.outputs, near=places)


def check(isa, places, dtype: str, shape: tuple[int, int], gap: int, flush: str, one: bool = False) -> None:
    """A rectangle of an array in guarded memory, which has exactly the rows and elements that are read."""
    rows, columns = shape
    structure, shifts = structure_of(places, dtype), [place for place in places if place] + [(0, 0)]
    (top, bottom), (left, right) = ((min(0, *each), max(0, *each)) for each in zip(*shifts, strict=True))
    full = rows - top + bottom, columns - left + right + gap
    item = np.dtype(dtype).itemsize
    memory = oracle.guarded((full[0] * full[1] - gap) * item, flush)
    x = np.lib.stride_tricks.as_strided(memory.view(dtype), full, (full[1] * item, item))[:, : full[1] - gap]
    rng = np.random.default_rng(columns)
    x[...] = rng.integers(0, 9, x.shape)
    other = oracle.place(rng.integers(0, 9, (rows, 1 if one else columns)).astype(dtype), flush)
    before = x.copy()
    views = [before[row - top :, e - left :][:rows, :columns] for row, e in filter(None, places)]
    given = iter(views)
    inputs = [other if place is None else next(given) for place in places]
    wanted = inputs[0]
    for each in inputs[1:]:
        wanted = wanted * np.dtype(dtype).type(3) + each
    expected = before.copy()
    expected[-top:, -left:][:rows, :columns] = wanted
    down = full[1] * item
    target = -top * down - left * item
    strides = [other.strides if place is None else (down, item) for place in places]
    starts = [(1, 0) if place is None else (0, target + place[0] * down + place[1] * item) for place in places]
    along = [0 if one and place is None else item for place in places]
    problem = fused.FusedProblem(
        structure=structure,
        dims=((columns, item, *along), (rows, down, *(s[0] for s in strides))),
        operands=tuple(fused.Operand(slot=slot, offset=at) for slot, at in ((0, target), *starts)),
        late=True,
    )
    launch.run(fused.lower(problem), [memory.ctypes.data, other.ctypes.data], isa)
    np.testing.assert_array_equal(x, expected)


@ISAS
@pytest.mark.parametrize("name", PLACES)
def test_rows_over_rows_beside_them(isa, name):
    places = PLACES[name]
    for dtype in ("float32", "int64") if name != "five points" else ("float32", "float64", "int32", "uint64"):
        for number, columns in enumerate((2, 5, 15, 16, 17, 33, 64, 101)):
            for rows in (2, 9) if number % 2 else (3, 4):
                flush = ("start", "end")[number // 2 % 2]
                check(isa, places, dtype, (rows, columns), 3 * (number // 4), flush, one=rows == 3)


def test_structures_with_neighbours_have_a_text():
    for places in PLACES.values():
        structure = structure_of(places, "float32")
        assert fs.goes_near(structure) and fs.parse(structure.text()) == structure
    for places, dtype in (((0, 3), None), "float32"), (((1, 1), (0, 0)), "float32"), (((0, 0), (2, 0)), "float32"):
        assert not fs.goes_near(structure_of(places, dtype))
    for dtype in ("int8", "complex64"):
        assert not fs.goes_near(structure_of(PLACES["a row"], dtype))


# -- in programs -------------------------------------------------------------------------------------------------------
def poisson(u, f):
    u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - f[1:-1, 1:-1])
    return f[0] + 1


def smoothed(u, f):
    u[:, 2:-2] = (u[:, :-4] - 4 * u[:, 1:-3] + 6 * u[:, 2:-2] - 4 * u[:, 3:-1] + u[:, 4:]) * f[0, 0]
    return f[0] + 1


def moved(u, f):
    u[1:, 1:] = u[:-1, 1:] * 0.5 + f[:, 1:2][1:] + u[1:, :-1]
    return f[0] + 1


def heavy(u, f):
    """One row at a time."""
    u[1:-1, 1:] = np.tanh(u[:-2, 1:] - u[2:, :-1]) + np.sin(u[1:-1, :-1]) * f[1:-1, 1:]
    return f[0] + 1


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("body", [poisson, smoothed, moved, heavy])
def test_programs_load_each_row_once(body, threads, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda *run: 4)
    monkeypatch.setattr(late, "SHORTEST", 64)
    monkeypatch.setattr(late, "share", lambda nbytes, threads: 2 * threads if threads > 1 else 1)
    rng = np.random.default_rng(1)
    for shape in (40, 37), (67, 130):
        u, f = rng.random((2, *shape))
        u[5, 7], u[9, 3], u[20, 11] = np.nan, np.inf, -0.0
        steps = assert_like_numpy(body, u, f).plan(u, f).steps
        found = [step for step in steps if step.args is not None and step.args.words.get(fused_abi.U_NEAR)]
        assert len(found) == 1
