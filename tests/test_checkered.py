"""Two maps over the colours of a checkerboard in one pass (`Structure.points`)."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from program_calls import assert_like_numpy

from einsum_engine.kernels import fused, launch
from einsum_engine.kernels import fused_structure as fs
from einsum_engine.kernels.cpu import fused_abi
from einsum_engine.kernels.isa import host_isas
from einsum_engine.planners import checkered
from einsum_engine.planners import programs as program_plans

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
LONG = 20  # operations, with which a pair of rows is computed at a time
FIVE = ((-1, 0), (1, 0), (0, -1), (0, 1))
# (row, element, stage) of each output, and what all of them read
BOARDS = {
    "usual": (((0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1)), FIVE),
    "shifted": (((0, 0, 0), (1, -1, 0), (0, -1, 1), (1, 0, 1)), FIVE),
    "above": (((0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 2, 1)), ((-1, 0), (0, -1), (0, 1))),
    "along": (((0, 0, 0), (1, 1, 0), (0, -1, 1), (1, 2, 1)), ((0, 1), (0, -1))),
}


def weighted(dtype: str, near, factor: int) -> fs.Structure:
    g = fs.Graph((dtype,) * len(near))
    total = 0
    for number in range(1, len(near)):
        total = g.op("add", g.op("mul", total, g.const(factor, dtype)), number)
    for _ in range(LONG if dtype == "int32" else 0):
        total = g.op("sub", total, g.const(1, dtype))
    return replace(g.structure(total), near=near)


def structure_of(board, dtype: str) -> fs.Structure:
    spots, near = board
    first, *others = (
        fs.Point(row=row, element=e, stage=stage, structure=weighted(dtype, near, n + 2))
        for n, (row, e, stage) in enumerate(spots)
    )
    return replace(first.structure, points=tuple(others))


def write(x, start, size, spot, near, factor, pairs) -> None:
    """One output for some pairs of rows, with NumPy."""

    def view(row, e):
        rows = [start[0] + 2 * pair + row for pair in pairs]
        return x[rows[0] : rows[-1] + 1 : 2, start[1] + e : start[1] + e + 2 * size - 1 : 2]

    total = view(spot[0] + near[0][0], spot[1] + near[0][1])
    for row, e in near[1:]:
        total = total * x.dtype.type(factor) + view(spot[0] + row, spot[1] + e)
    view(*spot[:2])[...] = total - LONG * (x.dtype == "int32")


def assert_swept(isa, board, dtype: str, size: int, pairs: int, skip: int, side: str, wider: int = 0) -> None:
    """``size`` elements of each output in so many pairs of rows, in an array that has exactly the elements that are read,
    or ``wider`` rows; it begins ``skip`` elements behind the guarded page, or ends at one."""
    spots, near = board
    structure, item = structure_of(board, dtype), np.dtype(dtype).itemsize
    places = [e + along for _, e, _ in spots for _, along in (*near, (0, 0))]
    low, high = min(places), max(places)
    # a row above and below, where they are read
    top, bottom = (int(any(down == which for down, _ in near)) for which in (-1, 1))
    shape = 2 * pairs + top + bottom, high - low + 2 * size - 1 + wider
    rng = np.random.default_rng(size)
    memory = oracle.guarded((shape[0] * shape[1] + skip) * item, side)[skip * item :]
    x = memory.view(dtype).reshape(shape)
    x[...] = rng.integers(0, 9, shape)
    start, expected = (top, -low), x.copy()
    for n, spot in enumerate(spots):
        write(expected, start, size, spot, near, n + 2, range(pairs))
    down, many = x.strides[0], structure.operands
    problem = fused.FusedProblem(
        structure=structure,
        dims=((size, *[2 * item] * many), (pairs, *[2 * down] * many)),
        operands=tuple(fused.Operand(slot=0, offset=top * down - low * item) for _ in range(many)),
        late=True,
    )
    launch.run(fused.lower(problem), [memory.ctypes.data], isa)
    np.testing.assert_array_equal(x, expected)


@ISAS
@pytest.mark.parametrize("name", BOARDS)
def test_two_colours_in_one_pass(isa, name):
    """The array has exactly the elements that are read."""
    spots, near = BOARDS[name]
    low = min(e + along for _, e, _ in spots for _, along in (*near, (0, 0)))
    for dtype in ("float64", "int32"):
        structure = structure_of(BOARDS[name], dtype)
        assert fs.goes_checkered(structure) and fs.parse(structure.text()) == structure
        for number, size in enumerate((1, 2, 7, 8, 9, 16, 25, 40, 77)):
            # the first element that is written begins a vector, or lies anywhere, up to the end of what may be read
            skip = (64 // np.dtype(dtype).itemsize + low) * (number % 3 == 0)
            side = "start" if number % 3 < 2 else "end"
            assert_swept(isa, BOARDS[name], dtype, size, (1, 2, 3, 6)[number % 4], skip, side, 5 * (number % 2))


@ISAS
@pytest.mark.parametrize("name", BOARDS)
def test_any_lane_may_have_the_first_element(isa, name):
    """Even lanes and odd ones."""
    for dtype, lanes in (("float64", 8), ("int32", 16)):
        for lane in range(lanes):
            for size, pairs in ((3, 2), (17, 3), (40, 5)):
                assert_swept(isa, BOARDS[name], dtype, size, pairs, lane, "start", lane % 3)


def test_what_is_no_checkerboard():
    spots, near = BOARDS["usual"]
    for other, reads in (
        (((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)), near),  # reads, above, what its stage writes
        (spots, (*near, (1, 1))),
        (((0, 0, 0), (1, 1, 0), (0, 2, 1), (1, 0, 1)), near),  # both write the same
        (((0, 0, 0), (1, 1, 0), (0, 1, 1), (2, 0, 1)), near),
        (spots, (*near[:3], (0, 3))),
    ):
        assert not fs.goes_checkered(structure_of((other, reads), "float64"))
    assert not fs.goes_checkered(structure_of((spots, near), "complex64"))


# -- in programs -------------------------------------------------------------------------------------------------------
def red_black(u, f, order=((1, 1), (2, 2), (1, 2), (2, 1))):
    rows, columns = u.shape
    for row, column in order:
        u[row : rows - 1 : 2, column : columns - 1 : 2] = 0.25 * row * (
            u[row - 1 : rows - 2 : 2, column : columns - 1 : 2]
            + u[row + 1 : rows : 2, column : columns - 1 : 2]
            - u[row : rows - 1 : 2, column - 1 : columns - 2 : 2]
            + u[row : rows - 1 : 2, column + 1 : columns : 2]
        )
    return f[0] * 2


def black_red(u, f):
    return red_black(u, f, ((2, 1), (1, 2), (2, 2), (1, 1)))


def by_rows(u, f):
    """Colours are columns: the second row is written from the first."""
    return red_black(u, f, ((1, 1), (2, 1), (1, 2), (2, 2)))


@pytest.mark.parametrize("threads", ["1", "2", "3"])
@pytest.mark.parametrize("shape", [(42, 50), (70, 36), (141, 150), (142, 151), (135, 143), (143, 150)], ids=str)
@pytest.mark.parametrize("body, once", [(red_black, True), (black_red, True), (by_rows, False)])
def test_programs_go_through_both_colours_at_once(body, once, shape, threads, monkeypatch):
    """Also where a colour has one element more in some rows than in others, or one row more than the other colour."""
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", threads)
    monkeypatch.setattr(program_plans, "rows_of_a_block", lambda *run: 4)
    monkeypatch.setattr(checkered, "SHORTEST", 64)
    monkeypatch.setattr(checkered, "share", lambda nbytes, threads: 8 if threads > 1 else 1)
    rng = np.random.default_rng(1)
    for dtype in ("float64", "float32"):
        u, f = rng.random((2, *shape)).astype(dtype)
        u[5, 7], u[9, 3], u[20, 11], u[30, 0] = np.nan, np.inf, -0.0, 5e-324
        steps = assert_like_numpy(body, u, f).plan(u, f).steps
        found = [step for step in steps if step.args is not None and step.args.words.get(fused_abi.U_NEAR)]
        assert len(found) == once
