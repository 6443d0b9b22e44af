"""Columns of a B that is read in place and lie side by side: the K loop that has one address for all, and who says so."""

from dataclasses import replace

import gemm_cases
import numpy as np
import pytest
from gemm_cases import Case, build, run, with_modes
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import drawn_operands, made_anew, plan
from plan_cases import run as run_plan

from einsum_engine.kernels import gemm, isa, tiles
from einsum_engine.kernels.cpu import abi

KERNELS = [
    pytest.param(row, dtype, tile, modes, id=f"{row.name}-{dtype}-{tile[0]}x{tile[1]}-{modes}")
    for row in isa.host_isas()
    for dtype in tiles.DTYPES
    for tile in tiles.tiles(row, dtype)
    if tiles.adjoins(row, dtype, tile)
    for modes in ("pd", "dd")
]
every_kernel = pytest.mark.parametrize("row, dtype, tile, modes", KERNELS)
wide = pytest.mark.skipif(all(row.vector_bits < 512 for row in isa.host_isas()), reason="tiles of 512 bits alone")


def _ready(row, dtype, tile, modes, *, n, k, flush=""):
    """A problem whose B has a row of all columns for each term, fenced at its ends where ``flush`` says so."""
    height = tile[0] * tiles.elements(row, dtype)
    case = Case(dtype=dtype, tile=tile, valid=(height, max(1, height - 1)), n=n, k=k, seed=n, flush=flush)
    case = with_modes(case, modes, "LANES_RUN", "K_RUN")
    ready = build(case, row)
    turned = replace(case, n=k, k=n)
    b_store, tables = gemm_cases._operand_b(turned, tiles.ITEMSIZE[dtype], tile[1], np.random.default_rng(k))
    problem = replace(ready.problem, tn_b=tables["tk_b"], tk_b=tables["tn_b"])
    return replace(ready, problem=problem, stores=(ready.stores[0], b_store, ready.stores[2]))


def _says(ready) -> bool:
    return bool(gemm.lower(ready.problem).words[abi.G_PACK_MODE] & abi.ADJACENT_B)


@every_kernel
def test_whole_tiles_and_the_rest(row, dtype, tile, modes):
    """Between pages that end the process: of the last columns no more is read than there is."""
    for n in (tile[1] - 1, tile[1], 2 * tile[1] + 1):
        for k in (1, 3, 21):
            for flush in ("start", "end"):
                ready = _ready(row, dtype, tile, modes, n=n, k=k, flush=flush)
                assert _says(ready) == (n >= tile[1])
                run(ready, row)


@every_kernel
def test_runs_of_columns(row, dtype, tile, modes):
    """A tile that has the end of one and the beginning of the next: forwards, or back to the first."""
    for first in (1, tile[1] - 1, tile[1], tile[1] + 3):
        ready = _ready(row, dtype, tile, modes, n=3 * tile[1], k=9)
        turned = replace(ready, problem=replace(ready.problem, tn_b=np.roll(ready.problem.tn_b, -first)))
        assert _says(turned)
        run(turned, row)


@wide
def test_short_runs_are_not_said_to_be_adjacent(monkeypatch):
    """A tile whose first and last column are as far apart as in a run, and others not: what is said of them counts."""
    row, tile = isa.get("avx512"), (2, 14)
    ready = _ready(row, "float64", tile, "dd", n=28, k=12)
    places = ready.problem.tn_b.copy()
    places[[3, 4]] = places[[4, 3]]
    shuffled = replace(ready, problem=replace(ready.problem, tn_b=places))
    assert not _says(shuffled)
    run(shuffled, row)
    monkeypatch.setattr(gemm, "_adjacent", lambda p: True)
    with pytest.raises(AssertionError, match="expected"):
        run(shuffled, row)


@wide
def test_a_last_tile_of_two_runs(monkeypatch):
    """Rows of two times eight columns: the last tile has ten, whose two runs are as far apart as what it lacks."""
    rng = np.random.default_rng(0)
    a, whole = rng.integers(-3, 4, (9, 8)).astype(float), rng.integers(-3, 4, (9, 5, 20)).astype(float)
    b = np.stack([whole[..., :8], whole[..., 12:]], axis=2)
    steps = (*whole.strides[:2], 12 * 8, 8)
    arrays = [a, np.lib.stride_tricks.as_strided(whole, b.shape, steps, writeable=False)]

    def made():
        found = plan("ka,kdcb->dcba", arrays, isa="avx512", threads=1)
        assert [step.kernel for step in found.steps] == ["gemm_float64_1x14_dd"]
        return found

    expected = np.einsum("ka,kdcb->dcba", a, b)
    np.testing.assert_array_equal(run_plan(made(), arrays), expected)
    with made_anew():
        monkeypatch.setattr(gemm, "_adjacent", lambda p: True)
        assert not np.array_equal(run_plan(made(), arrays), expected)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(-30, 14)), min_size=1, max_size=4))
def test_what_is_said_of_runs_is_so(runs):
    """Runs of so many columns, each so far behind the one before (0: it goes on with that): it is said to be so if some tile has
    adjacent columns, and none only seems to by its first and last one, which a last tile repeats."""
    nr, item, places, end = 14, 8, [], 0
    for count, gap in runs:
        places += [end + gap * item + item * i for i in range(count)]
        end = places[-1] + item
    ready = _ready(isa.get("avx512"), "float64", (2, nr), "dd", n=len(places), k=2)
    tiles_of_it = [places[n : n + nr] + [places[-1]] * (n + nr - len(places)) for n in range(0, len(places), nr)]
    seem = [found for found in tiles_of_it if found[-1] - found[0] == (nr - 1) * item]
    right = [found for found in seem if found == list(range(found[0], found[0] + nr * item, item))]
    problem = replace(ready.problem, tn_b=np.array(places, np.int64))
    assert _says(replace(ready, problem=problem)) == (bool(right) and right == seem)


EXPRESSIONS = ("ka,kb->ab", "ka,kb->ba", "kab,kc->abc", "ka,kcb->acb", "xka,xkb->xab", "kla,klbc->abc")


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.data())
def test_what_plans_say_is_so(data):
    """Where a plan says so, all columns of a tile are adjacent whose first and last one are as far apart as if they were."""
    text, arrays = drawn_operands(data, EXPRESSIONS)
    made = plan(text, arrays)
    for step in made.steps:
        if step.family == "gemm" and step.args.words[abi.G_PACK_MODE] & abi.ADJACENT_B:
            nr, item = step.tile[1], 4
            columns = step.args.tables[abi.G_TN_B]
            for n in range(0, len(columns) - nr + 1, nr):
                found = columns[n : n + nr]
                assert found[-1] - found[0] != (nr - 1) * item or (np.diff(found) == item).all()
    expected = np.einsum(text, *[array.astype(int) for array in arrays], optimize=True)
    np.testing.assert_array_equal(run_plan(made, arrays), expected)


@wide
@pytest.mark.parametrize("text, shapes, packs", [
    ("ka,kb->ab", ((6000, 52), (6000, 27)), False),  # 632 bytes of both in a term
    ("bka,bkc->ac", ((25, 357, 52), (25, 357, 27)), False),
    ("ka,kb->ab", ((6000, 150), (6000, 120)), True),  # more than 1280
    ("ak,kb->ab", ((150, 6000), (6000, 27)), True),  # lanes do not run
])  # fmt: skip
def test_short_rows_of_both_operands_are_read_where_they_are(text, shapes, packs):
    kernels = [step.kernel for step in plan(text, [np.empty(shape) for shape in shapes], isa="avx512", threads=1).steps]
    assert any(kernel.startswith("pack") or kernel.startswith("gemm") and "p" in kernel[-2:] for kernel in kernels) == packs
