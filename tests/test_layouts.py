"""The layout solver: its drafts compute the same, and the one that it takes is the one of least predicted time."""

import itertools

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.planners import layouts
from einsum_engine.planners.layouts import LayoutSolver

# lanes on the side that the output suggests would scatter the second product's result
NETWORK = "bxyzh,lmyGM,lxFMht->bzmGFtl", [(8, 8, 8, 8, 8), (2, 8, 8, 8, 8), (2, 8, 8, 8, 8, 8)]
CHAINS = [
    NETWORK,
    ("ab,bc,cd,de->ae", [(300, 200), (200, 400), (400, 100), (100, 300)]),
    ("aefg,behi,cfhj,dgij->abcd", [(6, 8, 4, 4), (6, 8, 4, 4), (10, 4, 4, 8), (10, 4, 4, 8)]),
    ("bij,bjk,bkl->lbi", [(16, 48, 64), (16, 64, 32), (16, 32, 80)]),
]


@pytest.fixture
def every_operation_is_worth_it(monkeypatch):
    monkeypatch.setattr(layouts, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(layouts, "WORTH_SHARE", 0.0)


def _arrays(shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]  # every product is exact


@pytest.mark.parametrize("expression, shapes", CHAINS, ids=lambda x: x if isinstance(x, str) else "")
def test_every_draft_computes_the_same(expression, shapes, every_operation_is_worth_it, monkeypatch):
    """Each operation drawn up in its n-th way, for all n."""
    arrays = _arrays(shapes)
    expected = np.einsum(expression, *arrays, optimize=True)
    ways = set()
    for number in range(6):
        original = LayoutSolver._orientations

        def nth(self, operation, number=number):
            found = list(original(self, operation))
            return iter(found[number % len(found) :][:1])

        with monkeypatch.context() as patched:
            patched.setattr(LayoutSolver, "_orientations", nth)
            call = engine.compile(expression, *arrays, threads=2)
        ways.add(tuple(step.layouts for step in call.plan.steps))
        np.testing.assert_array_equal(call(*arrays), expected)
    assert len(ways) > 1


def test_the_search_takes_what_exhaustion_takes(every_operation_is_worth_it, monkeypatch):
    """Dynamic programming finds the least sum over all ways to draw up a chain."""
    expression, shapes = CHAINS[1]

    def total_of(orientations):
        taken = iter(orientations)
        chosen = {}

        def one(self, operation):
            return iter([chosen.setdefault(id(operation), next(taken))])

        with monkeypatch.context() as patched:
            patched.setattr(LayoutSolver, "_orientations", one)
            return _predicted(expression, shapes)

    solved = _predicted(expression, shapes)
    every = [layouts.Orientation(flip=flip, near=near) for flip in (False, True) for near in range(3)]
    totals = [total_of(ways) for ways in itertools.product(every, repeat=3)]
    assert min(totals) == pytest.approx(solved)
    assert max(totals) > solved


def _predicted(expression, shapes):
    """Predicted seconds of the drafts that a plan takes."""
    found = []
    solve = LayoutSolver.solve
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LayoutSolver, "solve", lambda self: found.append(solve(self)))
        engine.compile(expression, *shapes, threads=1)
    return found[0]


def test_the_number_of_drafts_is_bounded(every_operation_is_worth_it, monkeypatch):
    drawn = []
    original = LayoutSolver._draw_up
    monkeypatch.setattr(LayoutSolver, "_draw_up", lambda *args: drawn.append(1) or original(*args))
    letters = [chr(0x100 + i) for i in range(62)]
    chain = ",".join(a + b for a, b in zip(letters, letters[1:])) + "->" + letters[0] + letters[-1]
    engine.compile(chain, *[(40, 40)] * 61, threads=1)
    assert len(drawn) <= 61 + layouts.EVALUATIONS + 6
    drawn.clear()
    monkeypatch.setattr(layouts, "WORTH_SECONDS", 1.0)
    engine.compile(chain, *[(41, 41)] * 61, threads=1)
    assert len(drawn) == 60
