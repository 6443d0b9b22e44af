"""`minimize=`: orders of the least predicted time, in every search that knows it and in those of other packages."""

import pickle
from dataclasses import replace
from importlib.util import find_spec
from math import log2, prod

import cotengra
import numpy as np
import opt_einsum
import pytest
from hypothesis import assume, given, settings
from networks import NAMED, all_trees, check, networks, random_network

import einsum_engine as engine
from einsum_engine import cost, measured
from einsum_engine.measured import time_objective
from einsum_engine.planners.objective import MINIMIZE, TimeObjective
from einsum_engine.planners.order import find_order, optimizers
from einsum_engine.planners.steps import to_positions, tree_to_ids

GOAL = TimeObjective(dtype="float64", threads=1, isa="avx2")


def row_params(**wanted):
    found = []
    for row in optimizers():
        missing = bool(row.needs) and find_spec(row.needs) is None
        mark = pytest.mark.skipif(missing, reason=f"{row.needs} is not installed")
        if all(getattr(row, name) == value for name, value in wanted.items()):
            found.append(pytest.param(row, id=row.name, marks=mark))
    return found


# ---- an independent count ------------------------------------------------------------------------------------------


def volume(indices, sizes):
    return prod(sizes[index] for index in indices)


def nanoseconds(network, path, goal=GOAL):
    """Predicted time of a path, from the loops of its steps."""
    terms, output, sizes = network
    left = [set(term) for term in terms]
    size = {"float32": 4, "float64": 8, "complex128": 16}[goal.dtype]
    machine = cost.typical_machine("avx2", 256, True)
    total = 0.0

    def add(flops, elements):
        nonlocal total
        total += 1e9 * cost.seconds(flops, elements * size, goal.dtype, machine, goal.threads)

    def reduced(mine, keep):
        if mine <= keep:
            return mine
        add(volume(mine, sizes), volume(mine, sizes) + volume(mine & keep, sizes))
        return mine & keep

    if len(left) == 1:
        reduced(left[0], set(output))
        return total
    for low, high in path:
        b, a = left.pop(high), left.pop(low)
        wanted = set(output).union(*left)
        a, b = reduced(a, b | wanted), reduced(b, a | wanted)
        result = (a | b) & wanted
        points = volume(a | b, sizes)
        flops = points * (2 if (a | b) - result else 1)
        if goal.dtype == "complex128":
            flops = points * (8 if (a | b) - result else 6)
        out = volume(output if not left else result, sizes)
        add(flops, volume(a, sizes) + volume(b, sizes) + out)
        left.append(result)
    return total


def least(network, goal=GOAL):
    """The least predicted time of all trees."""
    count = len(network[0])
    paths = [to_positions(tree_to_ids(tree, count), count) for tree in all_trees(tuple(range(count)))]
    return min(nanoseconds(network, path, goal) for path in paths)


# ---- the searches of the table -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(networks(least=2, most=5))
def test_exact_searches_find_the_least_time_of_all_trees(network):
    assume(0 not in network[2].values())  # searches take 0 for 1, since others take logarithms
    expected = least(network)
    for name in ("auto", "auto-hq", "optimal"):
        order = find_order(*network, optimize=name, minimize=GOAL)
        check(network, order)
        assert nanoseconds(network, order.path) == pytest.approx(expected, rel=1e-9)


def test_the_dtype_counts():
    for seed in range(10):
        network = random_network(seed, 5, 7)
        for dtype in ("float32", "complex128"):
            goal = TimeObjective(dtype=dtype, threads=1, isa="avx2")
            order = find_order(*network, minimize=goal)
            assert nanoseconds(network, order.path, goal) == pytest.approx(least(network, goal), rel=1e-9)


def test_time_may_cost_flops():
    """Many small operands: what is read and written, and the steps, count."""
    found = 0
    for seed in range(40):
        network = random_network(seed, 6, 8)
        flops, time = (find_order(*network, optimize="optimal", minimize=goal) for goal in ("flops", GOAL))
        assert nanoseconds(network, time.path) <= nanoseconds(network, flops.path) * (1 + 1e-9)
        assert flops.flops <= time.flops
        found += flops.flops < time.flops
    assert found > 3


@pytest.mark.parametrize("row", row_params())
def test_every_optimizer_takes_it(row):
    for label in ("pair", "batch", "nine"):
        options = {"max_time": 0.5} if "hyper" in row.name else {}
        order = find_order(*NAMED[label], optimize=row.name, minimize="time", **options)
        check(NAMED[label], order, label)
        assert ("not by time" in order.optimizer) == (not row.timed and len(NAMED[label][0]) > 2)
        plain = find_order(*NAMED[label], optimize=row.name, minimize="flops", **options)
        assert "not by time" not in plain.optimizer
        if not row.timed and not options:
            assert order.path == plain.path


@pytest.mark.parametrize("row", row_params(timed=True, needs="", max_time="stops, best so far"))
def test_those_that_know_time_are_as_quick_as_by_flops(row):
    """Of the same candidates, or of all, the best by time is no slower than the best by flops."""
    for seed in range(5):
        # Up to 8 operands `auto` looks at all trees, too.
        network = random_network(seed, 8 if row.name == "auto" else 10, 13)
        flops, time = (find_order(*network, optimize=row.name, minimize=goal) for goal in ("flops", GOAL))
        check(network, time)
        assert nanoseconds(network, time.path) <= nanoseconds(network, flops.path) * (1 + 1e-9)


def test_dp_is_the_best_without_outer_products():
    for seed in range(5):
        network = random_network(seed, 8, 12)
        order = find_order(*network, optimize="dp", minimize=GOAL)
        flops = find_order(*network, optimize="dp")
        assert nanoseconds(network, order.path) <= nanoseconds(network, flops.path) * (1 + 1e-9)
        best = find_order(*network, optimize="optimal", minimize=GOAL)
        assert nanoseconds(network, best.path) <= nanoseconds(network, order.path) * (1 + 1e-9)


def test_limits_hold_with_it():
    network = random_network(3, 7, 9)
    limit = find_order(*network, optimize="hyper-size", max_time=0.5).largest
    order = find_order(*network, minimize="time", memory_limit=limit)
    assert order.largest <= limit
    check(network, order)


def test_sizes_beyond_floats():
    network = ([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")], ("a", "e"), dict.fromkeys("abcde", 10**120))
    for name in ("auto", "dp", "random-greedy"):
        check(network, find_order(*network, optimize=name, minimize="time"))


def test_n_ary_steps_are_cut_by_it():
    terms, output, sizes = random_network(1, 6, 8)
    order = find_order(terms, output, sizes, optimize=[tuple(range(6))], minimize=GOAL)
    assert nanoseconds((terms, output, sizes), order.path) == pytest.approx(least((terms, output, sizes)))


# ---- the objective in other packages ---------------------------------------------------------------------------------


def letters(network):
    terms, output, sizes = network
    names = {index: opt_einsum.get_symbol(n) for n, index in enumerate(sizes)}
    spelled = [tuple(dict.fromkeys(names[i] for i in term)) for term in terms]
    return spelled, tuple(names[i] for i in output), {names[i]: s for i, s in sizes.items()}


@pytest.mark.parametrize("seed", range(5))
def test_a_score_of_cotengra_is_the_time_of_its_tree(seed):
    network = letters(random_network(seed, 9, 12))
    search = cotengra.HyperOptimizer(
        methods=["greedy"], minimize=GOAL, max_repeats=8, parallel=False, optlib="random", on_trial_error="raise"
    )
    tree = search.search(*network)
    path = [tuple(sorted(step)) for step in tree.get_path()]
    assert 2 ** GOAL({"tree": tree}) == pytest.approx(nanoseconds(network, path), rel=0.5)
    assert min(search.scores) == pytest.approx(GOAL({"tree": tree}))


def test_refinements_of_cotengra_take_it():
    network = letters(random_network(2, 14, 20))
    search = cotengra.HyperOptimizer(
        methods=["greedy"],
        minimize=time_objective("complex64", threads=2),
        max_repeats=4,
        parallel=False,
        optlib="random",
        reconf_opts={"subtree_size": 4},
        slicing_opts={"target_slices": 4},
        on_trial_error="raise",
    )
    tree = search.search(*network)
    assert tree.nslices >= 4
    annealed = tree.simulated_anneal(minimize=GOAL, tsteps=3, numiter=3, seed=0)
    assert annealed.is_complete()
    assert tree.subtree_reconfigure(minimize=GOAL).is_complete()


def test_einsum_takes_an_optimizer_with_it():
    a, b, c = (np.random.default_rng(n).random((8, 8)) for n in range(3))
    search = cotengra.HyperOptimizer(minimize=engine.time_objective(), max_repeats=4, parallel=False, optlib="random")
    assert np.allclose(engine.einsum("ij,jk,kl->il", a, b, c, optimize=search), a @ b @ c)


# What of cotengra and opt_einsum takes an objective, and the error of what does not (docs/api.md has both).
QUICK = dict(methods=["greedy"], max_repeats=4, parallel=False, optlib="random", on_trial_error="raise")
BY_TIME = {
    "HyperOptimizer": lambda goal: cotengra.HyperOptimizer(minimize=goal, **QUICK),
    "ReusableHyperOptimizer": lambda goal: cotengra.ReusableHyperOptimizer(minimize=goal, **QUICK),
    "AutoOptimizer, large": lambda goal: cotengra.AutoOptimizer(minimize=goal, optimal_cutoff=0, **QUICK),
    "AutoHQOptimizer, large": lambda goal: cotengra.AutoHQOptimizer(minimize=goal, optimal_cutoff=0, **QUICK),
    "DynamicProgramming": lambda goal: opt_einsum.DynamicProgramming(minimize=goal),
}
NEARLY = {
    "OptimalOptimizer": lambda goal: cotengra.OptimalOptimizer(minimize=goal, accel=False),
    "AutoOptimizer": lambda goal: cotengra.AutoOptimizer(minimize=goal, **QUICK),
    "AutoHQOptimizer": lambda goal: cotengra.AutoHQOptimizer(minimize=goal, **QUICK),
}
REFUSED = {
    "BranchBound": (lambda goal: opt_einsum.BranchBound(minimize=goal), KeyError),
    "RandomGreedy": (lambda goal: opt_einsum.RandomGreedy(minimize=goal), ValueError),
}
REFINEMENTS = {
    "subtree_reconfigure": {},
    "subtree_reconfigure_forest": dict(num_trees=2, num_restarts=2, parallel=False),
    "simulated_anneal": dict(tsteps=2, numiter=2, seed=0),
    "parallel_temper": dict(tsteps=2, numiter=2, seed=0, parallel=False),
    "slice": dict(target_slices=2),
    "slice_and_reconfigure": dict(target_size=64),
    "slice_and_reconfigure_forest": dict(target_size=64, num_trees=2, parallel=False),
}


def ordered(search, network):
    """The path that an optimiser of either package finds, as the engine takes it from there."""
    terms, output, sizes = network
    order = find_order(terms, output, sizes, optimize=search)
    check(network, order)
    return order.path


@pytest.mark.filterwarnings("ignore:Couldn't import")
@pytest.mark.parametrize("name", BY_TIME)
def test_optimizers_of_others_go_by_it(name, monkeypatch):
    """They ask it for the time of what they find; a score of cotengra's is that of its tree, as is tested below."""
    network, asked, ask = letters(random_network(2, 8, 12)), [], TimeObjective.__call__

    def spy(goal, *trial):
        asked.append(goal)
        return ask(goal, *trial)

    monkeypatch.setattr(TimeObjective, "__call__", spy)
    ordered(BY_TIME[name](GOAL), network)
    assert asked and all(goal is GOAL for goal in asked)


@pytest.mark.filterwarnings("ignore:Couldn't import")
@pytest.mark.parametrize("name", NEARLY)
def test_exact_searches_of_cotengra_go_by_the_nearest_that_they_know(name):
    if "Auto" in name and find_spec("cotengrust"):
        pytest.skip("cotengrust takes text alone")
    for seed in range(5):
        network = letters(random_network(seed, 7, 9))
        near = GOAL.get_dynamic_programming_minimize()
        assert ordered(NEARLY[name](GOAL), network) == ordered(cotengra.OptimalOptimizer(minimize=near), network)


def test_the_nearest_is_a_name_and_a_factor_whatever_the_machine():
    for rate in (1e-3, 1.0, 1e15):
        slow = replace(cost.typical_machine("avx2", 256, True), memory_bandwidth=rate)
        name, factor = replace(GOAL, machine=slow).split("-")
        assert name == "limit" and float(factor) == pytest.approx(replace(GOAL, machine=slow).factor, abs=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_those_that_know_flops_and_size_alone_refuse_it(name):
    make, error = REFUSED[name]
    with pytest.raises(error):
        make(GOAL)


@pytest.mark.parametrize("name", REFINEMENTS)
def test_refinements_of_trees_take_it(name):
    tree = cotengra.HyperOptimizer(**QUICK).search(*letters(random_network(2, 14, 20)))
    assert getattr(tree, name)(minimize=GOAL, **REFINEMENTS[name]).is_complete()


@pytest.mark.parametrize("seed", range(8))
def test_dynamic_programming_of_opt_einsum_takes_it(seed):
    terms, output, sizes = network = letters(random_network(seed, 6, 9))
    search = opt_einsum.DynamicProgramming(minimize=GOAL, search_outer=True)
    path = search([frozenset(term) for term in terms], frozenset(output), sizes)
    if all(len(step) == 2 for step in path):
        path = [tuple(sorted(step)) for step in path]
    order = find_order(*network, optimize=path)
    assert nanoseconds(network, order.path) == pytest.approx(least(network), rel=1e-9)


# ---- the option ------------------------------------------------------------------------------------------------------


def test_einsum_compile_and_paths_take_the_option(tmp_path):
    arrays = [np.random.default_rng(n).random(shape) for n, shape in enumerate([(4, 9), (9, 3), (3, 50), (50, 2)])]
    expression = "ab,bc,cd,de->ae"
    expected = np.einsum(expression, *arrays, optimize=True)
    for minimize in (*MINIMIZE, None, engine.time_objective(threads=1)):
        for _ in range(3):
            assert np.allclose(engine.einsum(expression, *arrays, minimize=minimize), expected)
        f = engine.compile(expression, *arrays, minimize=minimize)
        path, info = engine.contract_path(expression, *arrays, minimize=minimize)
        assert np.allclose(f(*arrays), expected) and f.plan.path == tuple(path)
        assert np.allclose(pickle.loads(pickle.dumps(f))(*arrays), expected)
        f.save(tmp_path / "plan.json")
        assert engine.load(tmp_path / "plan.json").plan.path == f.plan.path


def test_the_order_is_that_of_the_operands_dtype(monkeypatch):
    seen = []
    find = engine.contractor.find_order

    def spy(*args, **options):
        seen.append(options["minimize"])
        return find(*args, **options)

    monkeypatch.setattr(engine.contractor, "find_order", spy)
    engine.clear_cache()
    for dtype, computed in (("complex64", "complex64"), ("float16", "float32"), ("uint8", "int8"), ("g", "float64")):
        arrays = [np.ones((3, 3), dtype)] * 3
        engine.einsum("ij,jk,kl->il", *arrays, minimize="time", threads=1)
        engine.compile("ij,jk,kl->il", *arrays, minimize="time", threads=1)
        assert [goal.dtype for goal in seen] == [computed] * 2 and seen[0].threads == 1
        seen.clear()


@pytest.mark.parametrize("bandwidth, path", [(0.25, ((0, 2), (0, 1))), (4.0, ((0, 1), (0, 1)))])
def test_orders_go_by_the_constants_of_this_machine(bandwidth, path, monkeypatch, tmp_path):
    """The first path has more flops and moves less: it is the quicker one unless memory is fast."""
    typical = cost.typical_machine("avx2", 256, True)
    constants = {name: typical.peak.get(name) or getattr(typical, name) for name in cost.CONSTANTS}
    constants |= {name: bandwidth * constants[name] for name in constants if name.endswith("bandwidth")}
    found = cost.measured_machine(typical, constants)
    monkeypatch.setattr(measured, "machine", lambda isa: found)
    engine.clear_cache()
    expression, shapes = "acd,bcd,ab->d", [(32, 32, 100), (8, 32, 100), (32, 8)]
    arrays = [np.ones(shape) for shape in shapes]
    goal = engine.time_objective(threads=1)
    assert goal.machine is found and goal != TimeObjective(dtype="float64", threads=1, isa=goal.isa)
    assert pickle.loads(pickle.dumps(goal)) == goal
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "1")
    for minimize in ("time", goal):
        assert engine.compile(expression, *arrays, minimize=minimize).plan.path == path
        assert tuple(engine.contract_path(expression, *shapes, shapes=True, minimize=minimize)[0]) == path
        assert tuple(engine.einsum_path(expression, *arrays, optimize="auto", minimize=minimize)[0][1:]) == path
    engine.clear_cache()


@pytest.mark.parametrize(
    "minimize, error", [("size", ValueError), ("TIME", ValueError), (3, TypeError), ([], TypeError)]
)
def test_other_values_are_refused(minimize, error):
    a = np.ones((2, 2))
    message = "expected 'flops' or 'time', or what time_objective\\(\\) returns"
    for call in (
        lambda: engine.einsum("ij,jk->ik", a, a, minimize=minimize),
        lambda: engine.compile("ij,jk->ik", a, a, minimize=minimize),
        lambda: engine.contract_path("ij,jk->ik", a, a, minimize=minimize),
        lambda: find_order([("a",), ("a",)], (), {"a": 2}, minimize=minimize),
    ):
        with pytest.raises(error, match=message) as caught:
            call()
        assert isinstance(caught.value, engine.EngineError)


def test_time_objective_is_a_value():
    assert time_objective("f4", threads=1) == time_objective(np.float32, threads=1)
    assert hash(time_objective()) == hash(time_objective("float64"))
    assert pickle.loads(pickle.dumps(GOAL)) == GOAL
    with pytest.raises(engine.EngineTypeError, match="dtype="):
        time_objective("no dtype")
    assert GOAL.alone(100, 10) >= 150 and log2(GOAL.pair(1, 1, 1, 1, False)) > 7
