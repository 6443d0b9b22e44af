"""How operands run as planners see it: panels whose first lanes are adjacent, but not all of them."""

import numpy as np
import oracle
import plan_cases
import pytest

import einsum_engine as engine
from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import packing
from einsum_engine.kernels.gemm import lower_pack
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.packing import kept_mode, pack_side

ITEM = 8


def _mode(first, within, valid=None, mode=abi.PANEL_RUN):
    """Of panels of three lanes, ``first`` and ``within`` in elements."""
    lanes = (np.array(first)[:, None] + np.array(within)) * ITEM
    return kept_mode(mode, lanes, np.array(valid or [3] * len(lanes)), ITEM)


@pytest.mark.parametrize(
    "why, kept, given",
    [
        ("all panels have the same lanes", True, ([0, 1, 2, 3], [[0, 8, 16]] * 4)),
        ("others begin elsewhere", True, ([0, 1, 20, 21], [[0, 8, 16]] * 2 + [[0, 8, -12]] * 2)),
        ("others begin where the first ones end", False, ([0, 1, 2, 3], [[0, 8, 16]] * 2 + [[0, 8, -12]] * 2)),
        ("they have fewer lanes", True, ([0, 1, 2, 3], [[0, 8, 16]] * 2 + [[0, 8, 8]] * 2, [3, 3, 2, 2])),
        ("one panel", True, ([0], [[0, 8, 16]])),
    ],
)
def test_panels_run_where_those_that_are_adjacent_are_alike(why, kept, given):
    assert _mode(*given) == (abi.PANEL_RUN if kept else abi.SCATTERED), why
    assert _mode(*given, mode=abi.K_RUN) == abi.K_RUN


@pytest.mark.parametrize(
    "panels, k, turns, threads, tasks",
    [
        (20, 50, 1, 2, 1), (20, 250, 1, 1, 1), (20, 250, 1, 2, 2), (20, 250, 1, 64, 7), (3, 250, 1, 2, 1), (80, 250, 1, 2, 8),
        (80, 250, 1, 1, 4), (20, 250, 3, 2, 3), (20, 250, 3, 8, 6),
    ],
)  # fmt: skip
def test_tasks_of_a_packing_step(panels, k, turns, threads, tasks, monkeypatch):
    """Panels of four lanes: 16 KB for each thread, as many as there are; a few for each of more than stays in the second cache."""
    monkeypatch.setattr(packing, "PACK_BYTES", 320 << 10)
    lanes, outer = (np.arange(panels)[:, None] * 4 + np.arange(4)) * k * ITEM, np.arange(turns) * panels * 4 * k * ITEM
    side = pack_side(
        lanes=lanes, valid=np.full(panels, 4), batch=(), across=False, tk=np.arange(k) * ITEM, tko=np.zeros(1, np.int64),
        source="float64", dtype="float64", mode=abi.K_RUN, outer=outer, threads=threads, parallel=True,
    )  # fmt: skip
    assert side.row.tasks == tasks


@pytest.mark.parametrize("lane, mode", [(18, abi.PANEL_RUN), (34, abi.SCATTERED)])
def test_a_packing_step_looks_at_all_panels(lane, mode):
    """Of a batch of two, side by side: the second pair of lanes begins behind the first ones."""
    packed = pack_side(
        lanes=np.array([[0, 16], [2, lane]]) * 2,
        valid=np.array([2, 2]),
        batch=[np.array([0, 2])],
        across=True,
        tk=np.array([0, 400]),
        tko=np.zeros(1, np.int64),
        source="float16",
        dtype="float32",
        mode=abi.PANEL_RUN,
        outer=np.zeros(1, np.int64),
        threads=1,
        parallel=False,
    )
    assert packed.problem.mode == mode


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int64"])
@pytest.mark.parametrize(
    "sizes",
    [
        dict(e=3, E=2, D=2, d=2, b=2, c=2, f=2, g=3, h=3, i=4),
        dict(e=2, E=3, D=4, d=3, b=2, c=2, f=2, g=4, h=3, i=4),
        dict(e=2, E=2, D=2, d=2, b=2, c=2, f=2, g=3, h=2, i=8),
    ],
)
def test_rows_of_several_dimensions_that_panels_cut_in_different_places(monkeypatch, row, dtype, sizes):
    """Of h, f and g, four at a time or so: the first of one panel may lie behind the first of another."""
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    text = "eEDd,bcdefghi->iDEgfhcb"
    rng = np.random.default_rng(0)
    arrays = [oracle.random(rng, [sizes[i] for i in term], dtype, True) for term in text.split("->")[0].split(",")]
    assert np.array_equal(engine.compile(text, *arrays, threads=1)(*arrays), np.einsum(text, *arrays))


@pytest.mark.parametrize("row", [isa.get("avx512"), *isa.host_isas()], ids=lambda row: row.name)
@pytest.mark.parametrize("text", ["grwas,fdwsar->rgafd", "grwas,fdwsar->agrfd", "fdwsar,grwas->rgafd"])
def test_panels_follow_each_other_as_in_the_operand(text, row):
    """Along a batch index that it runs along, wherever the result has that one."""
    arrays = plan_cases.operands(text, dict.fromkeys("grwasfdmkbn", 8), "float32")
    packed = []
    with plan_cases.made_anew(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "lower_pack", lambda problem: packed.append(problem) or lower_pack(problem))
        made = build_plan(plan_cases.request(text, arrays, isa=row.name), plan_cases.typical(row))
    if row in isa.host_isas():
        assert np.array_equal(plan_cases.run(made, arrays), np.einsum(text, *arrays))
    across = [problem.lanes[:: problem.width] for problem in packed if problem.mode == abi.PANEL_RUN]
    assert across
    for panels in across:
        assert (np.diff(panels[:8]) == 4).all()
