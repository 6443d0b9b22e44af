"""Orders that are improved by parts: never worse, valid, within a limit, and the best ones of small networks."""

import pytest
from networks import check, random_network

from einsum_engine.planners.exact import Budget, best_connected_order
from einsum_engine.planners.objective import objective
from einsum_engine.planners.order import find_order
from einsum_engine.planners.problem import Problem
from einsum_engine.planners.searches import own_greedy
from einsum_engine.planners.subtrees import ENOUGH, improved_by_parts

# Two networks of the einsum thesis (figures 21 and 22), whose greedy orders cost 4 and 2 times the best one's.
TWENTY = (
    ("atuv,abuvL,bcwx,cdyzA,dewABC,efC,fgBD,ghD,hiE,ij,jtk,klxEFM,lmyGM,mouzN,ouHN,opG,pqI,qrJK,rs,sIK->LFHJ", 8),
    (
        "atXuv,abuvL,bcwX,cdyXzA,dewABC,efXC,fgBD,ghXD,hiE,iXj,jtk,klxEFM,lmyGM,mouzN,ouHYN,oYpG,pqXYI,qrJK,"
        "rYs,sIXK->LFYXHJ",
        4,
    ),
)


def problem_of(each, **options):
    terms, output, sizes = each
    return Problem.of(terms, output, sizes, **options)


def uniform(expr, size):
    inputs, _, output = expr.partition("->")
    sizes = {index: size for index in expr if index.isalpha()}
    return [tuple(term) for term in inputs.split(",")], tuple(output), sizes


@pytest.mark.parametrize("goal", ["flops", "time"])
@pytest.mark.parametrize("seed", range(6))
def test_no_order_gets_worse(seed, goal):
    each = random_network(seed, operands=12 + 8 * seed, indices=20 + 12 * seed)
    problem = problem_of(each, objective=objective(goal))
    start = own_greedy(problem)
    better = improved_by_parts(problem, start, Budget(5_000))
    assert better.cost <= start.cost == problem.found(start.ids).cost
    assert better.cost == problem.found(better.ids).cost
    if goal == "flops":
        check(each, find_order(*each, optimize=list(problem.path(better))))
    assert improved_by_parts(problem, start, Budget(5_000)) == better


@pytest.mark.parametrize("seed", range(8))
def test_a_network_that_is_one_part_gets_its_best_order(seed):
    each = random_network(seed, operands=8, indices=11)
    problem = problem_of(each)
    tree = best_connected_order(problem.terms, problem.output, problem.search_sizes)
    start = own_greedy(problem)
    better = improved_by_parts(problem, start, Budget())
    best = problem.found_tree(tree).cost
    assert better.cost == (best if best < ENOUGH * start.cost else start.cost)


@pytest.mark.parametrize("expr, size", TWENTY)
def test_twenty_operands_by_default(expr, size):
    each = uniform(expr, size)
    order, best = find_order(*each), find_order(*each, optimize="dp")
    check(each, order)
    assert order.flops == best.flops < own_greedy(problem_of(each)).flops / 1.3


def test_a_part_keeps_to_the_limit_and_a_spent_budget_ends_it():
    each = uniform(*TWENTY[0])
    start = own_greedy(problem_of(each))
    limit = find_order(*each, optimize="dp").largest - 1
    better = improved_by_parts(problem_of(each, limit=limit), start, Budget(100_000))
    free = improved_by_parts(problem_of(each), start, Budget(100_000))
    assert free.largest > limit
    assert better.largest <= max(limit, start.largest) and free.cost < better.cost
    assert improved_by_parts(problem_of(each), start, Budget(1)) is start
