"""What each task of a product writes, which products are shared between threads, and how."""

from itertools import product

import numpy as np
import oracle
import pytest
from plan_cases import made_anew, operands, plan, run

from einsum_engine.kernels import gemm as gemm_family
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.gemm import GemmProblem
from einsum_engine.kernels.loops import outer_offsets
from einsum_engine.planners import gemm


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
        ("mk,kn->mn", dict(m=60, n=60, k=60), False),
        ("mk,kn->mn", dict(m=100, n=100, k=100), True),
    ],
)
def test_what_moves_counts_for_sharing(equation, sizes, shared, lowered):
    arrays = operands(equation, sizes, "float32")
    made = plan(equation, arrays, threads=2)
    assert [problem.parallel for problem in lowered] == [shared]
    oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))


@pytest.mark.parametrize("size, sharing", [(200, abi.IN_BANDS), (1500, abi.IN_TURN)])
def test_equal_tasks_go_in_bands_and_unequal_ones_in_turn(size, sharing, lowered):
    """What a thread wrote in one call it writes in the next one, too; shares are in the order in which they are taken."""
    plan("mk,kn->mn", [np.zeros((size, size), "float32")] * 2, threads=2)
    (problem,) = lowered
    assert bool(problem.shares) == (sharing == abi.IN_TURN)
    assert gemm_family.lower(problem).words[abi.PARALLEL] == sharing
