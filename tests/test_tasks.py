"""What each task of a product writes, which products are shared between threads, and how."""

from itertools import product

import numpy as np
import oracle
import pytest
from plan_cases import made_anew, operands, plan, request, run, typical

from einsum_engine import cost
from einsum_engine.kernels import gemm as gemm_family
from einsum_engine.kernels import isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.gemm import GemmProblem
from einsum_engine.kernels.isa import ISA, active_isa, host_isas
from einsum_engine.kernels.loops import outer_offsets
from einsum_engine.planners import gemm
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.gemm_tables import GemmTables
from einsum_engine.planners.tasks import Brief


@pytest.fixture
def lowered(monkeypatch):
    """The problems of products, as they get into plans that are made anew."""
    problems: list[GemmProblem] = []

    def noted(problem: GemmProblem):
        problems.append(problem)
        return gemm_family.lower(problem)

    monkeypatch.setattr(gemm, "lower", noted)
    with made_anew():
        yield problems


def _lines_of_tasks(p: GemmProblem) -> list[set[int]]:
    """The lines of C that each task of a product writes, C beginning with a line."""
    outer = outer_offsets(p.outer, 2)
    rows = [lanes[:valid] for lanes, valid in zip(p.tm_c.reshape(p.panels, p.mr), p.valid)]
    found = []
    for o, m, n in product(*map(range, p.tasks)):
        panels = np.concatenate(rows[m * p.blocks[1] : (m + 1) * p.blocks[1]])
        parts = outer[o * p.blocks[0] : (o + 1) * p.blocks[0]], panels, p.tn_c[n * p.blocks[2] : (n + 1) * p.blocks[2]]
        offsets = np.add.outer(np.add.outer(parts[0], parts[1]), parts[2])
        found.append(set((offsets.ravel() // LINE).tolist()))
    return found


# a batch that is fastest in the result, alone, with a slower one, and second to the columns
BATCHES = [
    ("abxcd,cdxjl->jlabx", dict(a=8, b=8, x=8, c=8, d=8, j=7, l=8)),  # a larger one would be turned round
    ("bamxk,banxk->bamnx", dict(a=5, b=4, x=2, m=24, n=40, k=64)),
    ("xmk,xkn->mxn", dict(x=16, m=96, n=4, k=96)),
]


@pytest.mark.parametrize("equation, sizes", BATCHES, ids=[equation for equation, _ in BATCHES])
def test_no_line_of_a_result_is_written_by_two_tasks(equation, sizes, lowered):
    """A line that two cores write goes from one to the other with each store."""
    arrays = operands(equation, sizes, "float32")
    made = plan(equation, arrays, threads=2)
    assert lowered, "no matrix product"
    for problem in lowered:
        tasks = _lines_of_tasks(problem)
        assert problem.parallel and len(tasks) > 1
        assert sum(map(len, tasks)) == len(set().union(*tasks))
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))


def test_without_the_rule_lines_have_several_writers(lowered, monkeypatch):
    """The test above would find it."""
    monkeypatch.setattr(gemm._Planner, "_in_one_line", lambda self: 1)
    equation, sizes = BATCHES[0]
    plan(equation, operands(equation, sizes, "float32"), threads=2)
    tasks = _lines_of_tasks(lowered[-1])
    assert sum(map(len, tasks)) > 2 * len(set().union(*tasks))


@pytest.mark.parametrize(
    "equation, sizes, shared",
    [
        ("bmk,bkn->mbn", dict(b=80, m=30, n=48, k=3), True),  # a sixth of it is arithmetic
        ("mk,kn->mn", dict(m=32, n=32, k=32), False),
        ("mk,kn->mn", dict(m=100, n=100, k=100), True),
    ],
)
def test_what_moves_counts_for_sharing(equation, sizes, shared, lowered):
    arrays = operands(equation, sizes, "float32")
    made = plan(equation, arrays, threads=2)
    assert [problem.parallel for problem in lowered] == [shared]
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))


@pytest.mark.parametrize("size, sharing", [(120, abi.IN_BANDS), (1500, abi.IN_TURN)])
def test_equal_tasks_go_in_bands_and_unequal_ones_in_turn(size, sharing, lowered):
    """What a thread wrote in one call it writes in the next one, too; shares are in the order in which they are taken."""
    plan("mk,kn->mn", [np.zeros((size, size), "float32")] * 2, threads=2)
    (problem,) = lowered
    assert bool(problem.shares) == (sharing == abi.IN_TURN)
    assert gemm_family.lower(problem).words[abi.PARALLEL] == sharing


# -- what is measured decides ------------------------------------------------------------------------------------------
FAMILIES = {
    "gemm": ("mk,kn->mn", dict(m=64, n=64, k=64)),
    "dot": ("mk,k->m", dict(m=600, k=300)),
    "batched": ("kb,knb->nb", dict(b=3000, n=5, k=5)),
    "small": ("bmk,bkn->bmn", dict(b=3000, m=4, n=4, k=4)),
    "copy": ("ab->ba", dict(a=250, b=200)),
    "sum": ("abc->ac", dict(a=50, b=40, c=30)),
    "mul": ("ab,ab->ba", dict(a=200, b=150)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_how_long_threads_need_to_meet_decides_what_they_share(family):
    equation, sizes = FAMILIES[family]
    arrays = operands(equation, sizes, "float64")
    asked = request(equation, arrays, threads=2)
    found = []
    for factor in (0.1, 1000):
        made = build_plan(asked, typical(active_isa(), meeting_seconds=factor))
        found.append([(step.family, bool(step.args.packed.parallel)) for step in made.steps if step.family == family])
        oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))
    assert found == [[(family, True)], [(family, False)]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_predicted_for_as_many_threads_as_it_has_tasks(family):
    equation, sizes = FAMILIES[family]
    arrays, machine, found = operands(equation, sizes, "float64"), typical(active_isa(), meeting_seconds=0.1), []
    for threads in (1, 64):
        (step,) = build_plan(request(equation, arrays, threads=threads), machine).steps
        found.append(step.seconds - machine.step_seconds - (machine.meeting_seconds if step.tasks > 1 and threads > 1 else 0))
    assert 1 <= step.tasks and found[0] / found[1] <= 1.5 * step.tasks


def test_a_faster_core_does_alone_what_a_slower_one_shares():
    arrays = operands("mk,kn->mn", dict(m=64, n=64, k=64), "float64")
    shared = [
        build_plan(request("mk,kn->mn", arrays, threads=2), typical(active_isa(), peak=factor, cache_bandwidth=100))
        for factor in (0.1, 10)
    ]
    assert [bool(made.steps[-1].args.packed.parallel) for made in shared] == [True, False]


def test_more_threads_share_what_saves_them_as_much():
    """Of 4 µs two threads save each other 2, sixteen 3.75."""
    machine = typical(active_isa())
    assert not machine.is_shared(6.5 * machine.meeting_seconds, 2) and machine.is_shared(6.5 * machine.meeting_seconds, 16)
    assert not machine.is_shared(1.0, 1)


# -- moments -----------------------------------------------------------------------------------------------------------
def brief(row: ISA) -> cost.Machine:
    """A machine so slow that its threads share small products."""
    return typical(row, peak=0.05, meeting_seconds=0.05, cache_bandwidth=0.1)


@pytest.mark.parametrize("row", host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", sorted(tiles.ITEMSIZE))
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,nk->mn", "bmk,bkn->bmn", "mxk,kny->xmyn"])
def test_a_product_of_a_moment_is_right(equation, threads, dtype, row):
    arrays = operands(equation, dict(b=3, m=23, n=29, k=37, x=2, y=3), dtype)
    made = build_plan(request(equation, arrays, threads=threads, isa=row.name), brief(row))
    assert any(step.args.packed.parallel for step in made.steps)
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))


@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn"])
@pytest.mark.parametrize("size", [64, 103, 112])
def test_threads_share_a_product_of_a_moment_in_one_step(equation, size):
    """No step packs for all of them, and each has one task, of columns."""
    arrays = [np.zeros((size, size))] * 2
    (step,) = build_plan(request(equation, arrays, threads=2, isa="avx512"), typical(isa.get("avx512"))).steps
    assert step.family == "gemm" and step.tasks == 2 and step.layouts[-2:].count("direct") >= 1


def test_columns_at_distances_of_whole_pages_and_constants_are_packed():
    """The first share cache sets; a copy of the others is made once."""
    machine = typical(isa.get("avx512"))
    asked = request("mk,nk->mn", [np.zeros((96, 512))] * 2, threads=2, isa="avx512")
    assert [step.family for step in build_plan(asked, machine).steps] == ["pack", "gemm"]
    square = [np.zeros((103, 103))] * 2
    constant = request("mk,kn->mn", square, threads=2, isa="avx512", constants=(0,))
    assert "pack" in [step.family for step in build_plan(constant, machine).steps]


def test_panels_are_cut_where_they_share_no_lines():
    """Of rows as long as two panels a task has whole ones."""
    square = Brief(outer=1, panels=8, most=8, columns=100, nr=8, grain=1, threads=2, packed=26)
    apart, side_by_side = np.full(7, False), np.full(7, True)
    assert square.tasks(1e-5, apart) == (4, 100) and square.tasks(1e-5, side_by_side) == (8, 56)
    assert square.tasks(1e-3, side_by_side) == (4, 100)  # what is packed twice takes longer than lines
    assert square._replace(most=3).tasks(1e-3, side_by_side)[0] <= 3
    assert square._replace(outer=5).tasks(1e-4, apart) == (4, 100)  # ten tasks, not five


def test_each_way_to_cut_is_weighed_once(monkeypatch):
    """Planning for many threads goes through the same ones again and again else."""
    weighed, seconds = [], Brief._seconds
    monkeypatch.setattr(Brief, "_seconds", lambda self, *way: weighed.append(way[:2]) or seconds(self, *way))
    brief = Brief(outer=1, panels=32, most=32, columns=512, nr=8, grain=1, threads=64, packed=26)
    assert brief.tasks(3e-5, np.full(31, True)) in weighed
    assert len(weighed) == len(set(weighed)) < len(list(brief._ways())) / 3


@pytest.mark.parametrize(
    "equation, sizes, expected",
    [
        ("nk,mk->nm", dict(n=50, m=64, k=40), [True] * 7),
        ("nk,abk->anb", dict(n=20, a=3, b=32, k=40), [*[True, True, True, False] * 2, True, True, True]),  # runs of four panels
    ],
)
def test_panels_that_lie_side_by_side(equation, sizes, expected, monkeypatch):
    """Within a run of C, not from one run to the next; columns that are the lanes instead lie apart."""
    found, share_lines = [], GemmTables.share_lines
    monkeypatch.setattr(GemmTables, "share_lines", lambda self: found.append(share_lines(self)) or found[-1])
    with made_anew():
        asked = request(equation, operands(equation, sizes, "float64"), threads=2, isa="avx2")
        build_plan(asked, brief(isa.get("avx2")))
    along, across = found  # lanes on either side
    assert along.tolist() == expected and across.size and not across.any()
