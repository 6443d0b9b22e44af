"""A merged matrix instead of panels, for one intermediate: a draft of the layout solver like the others."""

from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from plan_cases import made_anew, operands, plan, run

import einsum_engine as engine
from einsum_engine import executor
from einsum_engine.dtypes import DTYPES, to_dtype
from einsum_engine.kernels import isa
from einsum_engine.planners import layouts, merged
from einsum_engine.planners.gemm_work import GemmWork
from einsum_engine.planners.layouts import LayoutSolver
from einsum_engine.planners.request import LAYOUTS

# The second product reads 11 x 9 x 3 lanes, which fill no panels of whole vectors, and a sum of 30 x 9.
EQUATION, PATH = "gafeb,bcad,cd->egf", [(0, 1), (0, 1)]
SIZES = dict(g=3, a=9, f=11, e=9, b=11, c=30, d=7)
PATH_OF_NUMPY = ["einsum_path", *PATH]
HALVES = {"float16": 2**-9, "bfloat16": 2**-6}  # and what a result may be off by, of the largest one
KERNEL_DTYPES = [name for name, row in DTYPES.items() if row.kind != "external"]


@pytest.fixture(autouse=True)
def every_operation_is_worth_it(monkeypatch):
    for name in ("WORTH_SECONDS", "WORTH_SHARE", "TINY_SECONDS", "SMALL_SECONDS"):
        monkeypatch.setattr(layouts, name, 0.0)
    with made_anew():
        yield


def _without(monkeypatch):
    """No operand is large enough for the draft."""
    monkeypatch.setattr(layouts, "LEAST_BYTES", 1 << 60)


def _intermediate(made):
    """The layout of what the first product writes."""
    layouts = [each.layout for each in made.buffers if each.kind == "arena" and each.layout is not None]
    (found,) = [each for each in layouts if {axis.index for axis in each.axes} == set("cdefg")]
    return found


def _solved(arrays, **more):
    """A plan, and the predicted seconds of the drafts that it takes."""
    found = []
    solve = LayoutSolver.solve
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LayoutSolver, "solve", lambda self: found.append(solve(self)) or found[-1])
        made = plan(EQUATION, arrays, optimize=PATH, **more)
    return made, found[0]


def _operands(dtype):
    if dtype not in HALVES:
        return operands(EQUATION, SIZES, dtype)
    pytest.importorskip("ml_dtypes")
    return [(array / 16).astype(to_dtype(dtype)) for array in operands(EQUATION, SIZES, "float32")]  # no overflow


def _check(arrays, *plans):
    """Against a count element by element; halves, whose intermediate is rounded, against NumPy in float64."""
    if plans[0].dtype not in HALVES:
        answer = oracle.einsum(EQUATION, *arrays)
        for made in plans:
            oracle.check(run(made, arrays), answer)
        return
    expected = np.einsum(EQUATION, *[array.astype("float64") for array in arrays], optimize=PATH_OF_NUMPY)
    for made in plans:
        out = np.empty(made.expr.output_shape, to_dtype(made.dtype))
        executor.bind(made).run(arrays, out)
        bound = HALVES[made.dtype] * np.abs(expected).max()
        np.testing.assert_allclose(out.astype("float64"), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_the_solver_takes_a_merged_matrix_where_it_is_predicted_to_be_faster(dtype, monkeypatch):
    """By itself, and for less time than with panels, which it takes without that draft."""
    if (isa.active_isa().name, dtype) == ("sse2", "complex128"):
        pytest.skip("a panel of two lanes has no rest")
    arrays = _operands(dtype)
    made, seconds = _solved(arrays)
    layout = _intermediate(made)
    assert layout.kind == "strided" and "panels" not in layout.describe()
    _without(monkeypatch)
    with made_anew():
        other, before = _solved(arrays)
    assert _intermediate(other).kind == "fbl"
    assert seconds < before
    _check(arrays, made, other)


def test_the_matrix_has_lanes_as_in_the_output_and_k_as_in_the_other_operand():
    """Rows of lanes, one behind the other, without gaps."""
    layout = _intermediate(_solved(operands(EQUATION, SIZES, "float64"))[0])
    strides = {axis.index: axis.stride // 8 for axis in layout.axes}
    assert strides == dict(f=1, g=11, e=33, d=297, c=297 * 7)


@pytest.mark.parametrize("policy", [each for each in LAYOUTS if each != "solve"])
def test_policies_stay_as_they_are(policy, monkeypatch):
    """Each draws up one way, which is no merged draft, and has the same plan without that."""
    drawn = []
    draft = LayoutSolver._draft
    monkeypatch.setattr(LayoutSolver, "_draft", lambda self, *asked: drawn.append(asked[1]) or draft(self, *asked))
    arrays = operands(EQUATION, SIZES, "float64")
    made, _ = _solved(arrays, layouts=policy)
    assert set(drawn) == {layouts.AS_OUTPUT}
    kinds = {"natural": "strided", "merged": "strided", "panels": "fbl", "nested": "fbl"}  # all of K is one block
    assert _intermediate(made).kind == kinds[policy]
    _without(monkeypatch)
    with made_anew():
        other, _ = _solved(arrays, layouts=policy)
    assert (other.buffers, other.steps) == (made.buffers, made.steps)


CHAINS = [
    (EQUATION, [tuple(SIZES[i] for i in term) for term in EQUATION.split("->")[0].split(",")]),
    ("ab,bc,cd,de->ae", [(300, 200), (200, 400), (400, 100), (100, 300)]),
    ("ab,bc,cd,de->ea", [(300, 200), (200, 400), (400, 10), (10, 300)]),
    ("bij,bjk,bkl->lbi", [(16, 48, 64), (16, 64, 32), (16, 32, 80)]),
]


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int32"])
@pytest.mark.parametrize("expression, shapes", CHAINS, ids=lambda x: x if isinstance(x, str) else "")
def test_merged_drafts_compute_the_same(expression, shapes, dtype, monkeypatch):
    """All operations that have one take it, with the lanes on the side that the output suggests, and on the other one."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]  # every product is exact
    expected = np.einsum(expression, *arrays, optimize=True)
    original, taken = LayoutSolver._orientations, []
    for flip in (False, True):

        def only(self, operation, out, flip=flip):
            found = list(original(self, operation, out))
            chosen = [each for each in found if each.merged and each.flip == flip]
            taken.extend(chosen)
            return iter(chosen or found)

        with monkeypatch.context() as patched, made_anew():
            patched.setattr(LayoutSolver, "_orientations", only)
            np.testing.assert_array_equal(engine.compile(expression, *arrays, threads=2, optimize=False)(*arrays), expected)
    assert taken


def test_small_operands_and_those_of_the_plan_have_no_such_draft():
    """A small one is asked for in rows anyway, and one that lies somewhere lies there."""
    drawn = []
    draft = LayoutSolver._draft
    for shapes in ([(64, 64)] * 3, [(500, 500)] * 2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LayoutSolver, "_draft", lambda self, *asked: drawn.append(asked[1]) or draft(self, *asked))
            engine.compile("ab,bc,cd->ad" if len(shapes) == 3 else "ab,bc->ac", *shapes, threads=1)
    assert len(drawn) > 3 and not any(each.merged for each in drawn)


# -- how rows come -------------------------------------------------------------------------------------------------


def _added(row, *, panels=512, columns=16, k=256, kc=0, packs=False, seconds=1.0):
    """What is added for panels of 16 elements of float64 in rows of ``row`` bytes."""
    work = GemmWork(
        **{name: None for name in GemmWork._fields}
        | dict(dtype="float64", mr=16, nr=8, outer=1, panels=panels, columns=columns, k=k, kc=kc or k)
        | dict(pack_modes=(0 if packs else None, None))
    )
    gemm = object.__new__(merged.GemmPlan)
    gemm.__dict__["work"] = work
    return merged.merged_seconds(SimpleNamespace(times=SimpleNamespace(total=seconds), part=SimpleNamespace(plan=gemm)), row)


def test_many_rows_from_beyond_the_cache_cost_more():
    assert _added(65552, k=8) == _added(4112, panels=16, k=256) == merged.UNSURE  # few of them, or in cache
    assert _added(65552) > merged.UNSURE


def test_rows_that_share_cache_sets_cost_most_and_again_for_each_tile_of_columns():
    apart, shared = _added(65552), _added(65536)
    assert shared > apart
    assert _added(65536, columns=64) > shared
    assert _added(65536, columns=64, packs=True) == _added(65536, columns=16, packs=True) < shared


def test_a_few_rows_at_once_from_memory_cost_less_than_panels_and_never_less_than_nothing():
    assert _added(65552, kc=merged.ROWS_AT_ONCE) == merged.UNSURE  # not from memory
    far = _added(65552, panels=4096, kc=merged.ROWS_AT_ONCE)
    assert far < merged.UNSURE
    assert _added(65552, panels=4096, kc=merged.ROWS_AT_ONCE, seconds=1e-9) == -1e-9
