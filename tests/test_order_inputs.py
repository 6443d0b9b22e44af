"""What `find_order` is given besides a name: paths, objects of other packages, registered ones, memory limits."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NAMED, all_trees, check, lattice, network, networks, replay

from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.planners.order import (
    Order,
    find_order,
    leaner_orders,
    optimize_key,
    optimizers,
    register_optimizer,
    registry_version,
    unregister_optimizer,
)
from einsum_engine.planners.steps import check_path, to_positions, tree_to_ids


# ---- paths ---------------------------------------------------------------------------------------------------------


def test_false_is_left_to_right():
    order = find_order(*NAMED["chain"], optimize=False)
    assert order.path == ((0, 1), (0, 3), (0, 2), (0, 1))
    assert order == find_order(*NAMED["chain"], optimize="left-to-right")


@pytest.mark.parametrize("optimize", [True, "auto", None])
def test_default_is_auto(optimize):
    assert find_order(*NAMED["ring"], optimize=optimize) == find_order(*NAMED["ring"])


@pytest.mark.parametrize(
    "path, binary",
    [
        ([(0, 1), (0, 1), (0, 1), (0, 1)], ((0, 1), (0, 1), (0, 1), (0, 1))),
        (["einsum_path", (1, 0), (2, 3), (0, 1), (1, 0)], ((0, 1), (2, 3), (0, 1), (0, 1))),
        ([[0, 1], [0], [0, 1, 2], [0, 1]], None),
        ([(0, 1, 2, 3, 4)], None),
        (("einsum_path", (0, 1, 2), (0,), (1,), (0,), (0, 1, 2)), None),
        (((0,), (0,), (0,), (0,), (0,), (0, 1, 2, 3, 4)), None),
    ],
)
def test_explicit_paths(path, binary):
    order = find_order(*NAMED["chain"], optimize=path)
    check(NAMED["chain"], order)
    assert order.optimizer == "path"
    assert len(order.path) == 4 and all(len(step) == 2 for step in order.path)
    if binary:
        assert order.path == binary
    assert find_order(*NAMED["chain"], optimize=order) == order


def test_one_n_ary_step_is_planned_as_the_whole_is():
    for label in ("chain", "ring", "hyperedge summed", "batch"):
        terms = NAMED[label][0]
        assert find_order(*NAMED[label], optimize=[tuple(range(len(terms)))]).flops == find_order(*NAMED[label]).flops


def test_a_wide_n_ary_step():
    grid = lattice(6, 10)
    path = [tuple(range(0, 60, 2)), tuple(range(31))]
    check(grid, find_order(*grid, optimize=path))


def test_a_single_operand_takes_the_empty_path():
    for path in ([], [(0,)], ["einsum_path"], ["einsum_path", (0,)]):
        assert find_order(*NAMED["one"], optimize=path).path == ((0,),)


@pytest.mark.parametrize(
    "path, message",
    [
        ([(0, 1)], r"path \[\(0, 1\)\] does not fit 'ab,bc,cd->ad' with 3 operands: it leaves 2 tensors uncontracted"),
        ([(0, 1), (0, 2)], r"step 1, \(0, 2\), names position 2, but 2 tensors are left then, 0 to 1"),
        ([(0, 1), (0, -1)], r"step 1, \(0, -1\), names position -1"),
        ([(1, 1), (0, 1)], r"step 0, \(1, 1\), names a position twice"),
        ([(), (0, 1, 2)], r"step 0 is empty"),
        ([(0, 1), "ab"], r"step 1 is 'ab', not a tuple of operand positions"),
        ([(0, 1.5), (0, 1)], r"step 0 is \(0, 1.5\), not a tuple"),
        ([0, 1], r"step 0 is 0, not a tuple"),
        ([], r"it leaves 3 tensors uncontracted"),
        (["einsum_path", (0, 1), (0, 1), (0, 1)], r"step 2, \(0, 1\), names position 1, but 1 tensors are left"),
    ],
)
def test_a_path_that_does_not_fit(path, message):
    with pytest.raises(EngineValueError, match=message):
        find_order(*network("ab,bc,cd->ad"), optimize=path)


def test_messages_name_the_users_expression():
    with pytest.raises(EngineValueError, match="does not fit '...a,a' with 3"):
        find_order(*network("ab,bc,cd->ad"), optimize=[(0, 1)], text="...a,a")
    with pytest.raises(EngineValueError, match=r"does not fit '\{0\}\{100\},\{100\}\{7\}"):
        find_order(*NAMED["integers"], optimize=[(0, 1)])


def test_ids_and_positions_are_inverse():
    rng = random.Random(0)
    for count in range(2, 30):
        path = [tuple(sorted(rng.sample(range(left), 2))) for left in range(count, 1, -1)]
        assert to_positions(check_path(path, count, ""), count) == tuple(path)


def test_an_order_is_frozen():
    order = find_order(*NAMED["ring"])
    assert isinstance(order, Order) and hash(order) == hash(find_order(*NAMED["ring"]))
    with pytest.raises(AttributeError):
        order.flops = 1


# ---- objects of other packages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "label", ["pair", "nine", "hyperedge summed", "forty", "integers", "long names", "disconnected"]
)
def test_paths_of_opt_einsum_and_cotengra_come_back(label):
    opt_einsum, cotengra = pytest.importorskip("opt_einsum"), pytest.importorskip("cotengra")
    terms, output, sizes = each = NAMED[label]
    own = find_order(*each)
    symbol = {index: opt_einsum.get_symbol(n) for n, index in enumerate(sizes)}
    inputs = [tuple(symbol[index] for index in term) for term in terms]
    result, named = tuple(symbol[index] for index in output), {symbol[index]: size for index, size in sizes.items()}
    eq = ",".join(map("".join, inputs)) + "->" + "".join(result)
    shapes = [tuple(sizes[index] for index in term) for term in terms]

    path, info = opt_einsum.contract_path(eq, *shapes, shapes=True, optimize=list(own.path))
    assert tuple(path) == own.path and info.opt_cost == own.flops and info.largest_intermediate == own.largest
    tree = cotengra.ContractionTree.from_path(inputs, result, named, path=own.path)
    assert find_order(*each, optimize=tree).flops == own.flops

    for theirs in (
        opt_einsum.contract_path(eq, *shapes, shapes=True, optimize="greedy", memory_limit=50)[0],
        opt_einsum.contract_path(eq, *shapes, shapes=True, optimize="auto")[0],
        cotengra.array_contract_path(inputs, result, named, optimize="greedy"),
        cotengra.array_contract_tree(inputs, result, named, optimize="greedy"),
        opt_einsum.RandomGreedy(max_repeats=2),
        opt_einsum.DynamicProgramming(minimize="size") if len(terms) < 12 else opt_einsum.RandomGreedy(max_repeats=1),
        opt_einsum.paths.greedy,
        cotengra.HyperOptimizer(methods=["greedy"], max_repeats=2, parallel=False),
        cotengra.ReusableHyperOptimizer(methods=["greedy"], max_repeats=2, parallel=False, directory=None),
        cotengra.GreedyOptimizer(),
    ):
        check(each, find_order(*each, optimize=theirs), theirs)


def test_a_sliced_tree_runs_unsliced_with_a_warning():
    cotengra = pytest.importorskip("cotengra")
    inputs, output, sizes = network("ab,bc,cd,da->")
    tree = cotengra.array_contract_tree(inputs, output, sizes, optimize="greedy")
    tree.remove_ind_("b")
    with pytest.warns(UserWarning, match="'ab,bc,cd,da->' slices 1 indices: slicing is not available yet.* 9 elements"):
        order = find_order(inputs, output, sizes, optimize=tree)
    assert order.optimizer == "ContractionTree (unsliced)"
    check((inputs, output, sizes), order)


def test_a_tree_of_another_expression():
    cotengra = pytest.importorskip("cotengra")
    tree = cotengra.array_contract_tree(*network("ab,bc,cd->ad"), optimize="greedy")
    with pytest.raises(EngineValueError, match="ContractionTree of 3 operands, but 'ab,bc,cd,de,ef->af' has 5"):
        find_order(*NAMED["chain"], optimize=tree)


class Searcher:
    """cotengra's interface: `search` alone."""

    def search(self, inputs, output, size_dict):
        self.seen = (inputs, output, size_dict)
        return [(0, 1)] * (len(inputs) - 1)


def last_first(inputs, output, size_dict, memory_limit=None):
    assert all(isinstance(term, frozenset) for term in (*inputs, output))
    last_first.limit = memory_limit
    return [(n - 2, n - 1) for n in range(len(inputs), 1, -1)]


def test_objects_see_the_users_letters():
    searcher = Searcher()
    check(NAMED["chain"], find_order(*NAMED["chain"], optimize=searcher))
    assert searcher.seen == (tuple(NAMED["chain"][0]), NAMED["chain"][1], NAMED["chain"][2])
    find_order(*NAMED["long names"], optimize=searcher)
    assert all(len(index) == 1 for term in searcher.seen[0] for index in term)


def test_functions_get_the_memory_limit():
    order = find_order(*NAMED["chain"], optimize=last_first, memory_limit=500)
    assert last_first.limit == 500 and order.optimizer == "last_first"
    assert order.path == ((3, 4), (2, 3), (1, 2), (0, 1))
    three = find_order(*NAMED["chain"], optimize=lambda inputs, output, sizes: [(0, 1, 2, 3, 4)])
    assert three.flops == find_order(*NAMED["chain"]).flops


@pytest.mark.parametrize(
    "optimize, error, message",
    [
        ("gredy", EngineValueError, "unknown optimiser 'gredy'; valid names are auto, auto-hq, .*, greedy, "),
        ("opt_einsum:gredy", EngineValueError, "optimize='opt_einsum:gredy': opt_einsum has no such name"),
        ("cotengra:gredy", EngineValueError, "optimize='cotengra:gredy': cotengra has no such preset"),
        (3, EngineTypeError, r"optimize=3 for 'ab,bc,cd,de,ef->af': expected True, False, a name, .* not int"),
        (Searcher, EngineTypeError, "not type; it is a class, give an instance"),
        (lambda inputs, output, sizes: None, EngineTypeError, "optimiser function returned None for 'ab,bc"),
        (lambda inputs, output, sizes: [(0, 9)], EngineValueError, "names position 9"),
    ],
)
def test_bad_optimize(optimize, error, message):
    with pytest.raises(error, match=message):
        find_order(*NAMED["chain"], optimize=optimize)


@pytest.mark.parametrize("each", [NAMED["one"], NAMED["pair"]])
def test_unknown_names_are_refused_where_nothing_is_searched(each):
    with pytest.raises(EngineValueError, match="unknown optimiser 'optimall'; valid names are auto"):
        find_order(*each, optimize="optimall")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cotengra", None)
    for name in ("hyper", "hyper-size", "cotengra-greedy", "cotengra:greedy"):
        with pytest.raises(EngineValueError, match=f"optimize='{name}' needs the package cotengra, which cannot be"):
            find_order(*NAMED["nine"], optimize=name)


# ---- registering ------------------------------------------------------------------------------------------------


def test_register_and_unregister():
    before = registry_version()
    row = register_optimizer("My Order", last_first)
    try:
        assert row in optimizers() and registry_version() == before + 1
        assert find_order(*NAMED["chain"], optimize="my_order").path == ((3, 4), (2, 3), (1, 2), (0, 1))
        with pytest.raises(EngineValueError, match="'MY-ORDER' is taken by the optimiser 'my-order'"):
            register_optimizer("MY-ORDER", last_first)
    finally:
        unregister_optimizer("my order")
    assert registry_version() == before + 2
    with pytest.raises(EngineValueError, match="unknown optimiser 'my-order'"):
        find_order(*NAMED["chain"], optimize="my-order")


@pytest.mark.parametrize(
    "name, function, error, message",
    [
        ("Greedy", last_first, EngineValueError, "'Greedy' is taken by the optimiser 'greedy'"),
        ("Dynamic Programming", last_first, EngineValueError, "is taken by the optimiser 'dp'"),
        (" ", last_first, EngineValueError, "' ' is no name"),
        ("a:b", last_first, EngineValueError, "'a:b' is no name"),
        (3, last_first, EngineTypeError, "the name 3 is a int, not a string"),
        ("new", 3, EngineTypeError, r"register_optimizer\('new'\): 3 is no function"),
        ("new", Searcher, EngineTypeError, "is no function"),
    ],
)
def test_registering_refuses(name, function, error, message):
    before = registry_version(), optimizers()
    with pytest.raises(error, match=message):
        register_optimizer(name, function)
    assert (registry_version(), optimizers()) == before


def test_built_in_rows_stay():
    with pytest.raises(EngineValueError, match="'auto' was not registered"):
        unregister_optimizer("auto")


def test_keys_for_caches():
    assert optimize_key("auto") == optimize_key("auto") != optimize_key("dp")
    assert optimize_key(True) == optimize_key(None) != optimize_key(False)
    assert optimize_key([(0, 1), [0, 1]]) == ((0, 1), (0, 1))
    assert optimize_key(("greedy", 100)) == ("greedy", 100)
    assert optimize_key(Searcher()) is None and optimize_key(last_first) is None
    before = optimize_key("auto")
    register_optimizer("for a key", last_first)
    unregister_optimizer("for a key")
    assert optimize_key("auto") != before


# ---- memory ------------------------------------------------------------------------------------------------------


def test_an_order_within_the_limit_is_found():
    each = network("ab,bc,cd,da->", a=100, b=2, c=100, d=2)
    free = find_order(*each, optimize=[(0, 1), (0, 1), (0, 1)])
    assert free.largest == 10_000
    held = find_order(*each, optimize=[(0, 1), (0, 1), (0, 1)], memory_limit=400)
    check(each, held)
    assert held.largest <= 400
    assert held.optimizer == "path (path had a largest intermediate of 10000 elements)" or "10000" in held.optimizer


@pytest.mark.parametrize("optimize", ["greedy", ("greedy", 7), (("greedy"), 7.0)])
def test_a_limit_that_no_order_meets_is_an_error_with_the_numbers(optimize):
    limit = 7 if optimize == "greedy" else None
    message = "memory_limit=7 elements cannot be met for 'abc,ade,bdf,cef->': any order has an intermediate of 81 elem"
    with pytest.raises(EngineValueError, match=message):
        find_order(*NAMED["complete"], optimize=optimize, memory_limit=limit)


def test_the_result_itself_counts():
    message = "memory_limit=8 elements cannot be met for 'ab,bc->ac': the result alone has 9"
    with pytest.raises(EngineValueError, match=message):
        find_order(*NAMED["pair"], memory_limit=8)
    assert find_order(*NAMED["pair"], memory_limit=9).largest == 9


@settings(max_examples=80, deadline=None)
@given(networks(least=2, most=6), st.integers(1, 60), st.sampled_from(["auto", "greedy", "left-to-right"]))
def test_limits_on_random_networks(each, limit, name):
    terms, output, sizes = each
    count = len(terms)
    trees = all_trees(tuple(range(count))) if count < 6 else ()
    paths = [to_positions(tree_to_ids(tree, count), count) for tree in trees]
    least = min((replay(terms, output, sizes, path)[1] for path in paths), default=None)
    try:
        order = find_order(*each, optimize=name, memory_limit=limit)
    except EngineValueError as error:
        assert f"memory_limit={limit} elements" in str(error)
        if least is not None and 0 not in sizes.values():
            assert least > limit and (f" {least} elements" in str(error) or "the result alone" in str(error))
    else:
        check(each, order)
        assert order.largest <= limit


def test_a_limit_on_a_large_network():
    grid = lattice(5, 8, size=4)
    free = find_order(*grid, optimize="greedy")
    limit = 4**6  # five bonds are cut by a sweep, one more inside it
    assert free.largest > limit
    order = find_order(*grid, optimize="greedy", memory_limit=limit)
    check(grid, order)
    assert order.largest <= limit
    with pytest.raises(EngineValueError, match=r"the leanest order found has an intermediate of \d+ elements"):
        find_order(*lattice(4, 4, size=4), optimize="greedy", memory_limit=20, max_time=2)


def test_leaner_orders_shrink():
    each = network("ab,bc,cd,de,ef,fa->", a=9, b=2, c=8, d=3, e=7, f=2)
    first = find_order(*each)
    found = list(leaner_orders(*each, below=first.largest - 1))
    assert [order.largest for order in found] == sorted((order.largest for order in found), reverse=True)
    for before, order in zip((first, *found), found):
        check(each, order)
        assert order.largest < before.largest and order.flops >= before.flops


@pytest.mark.parametrize("limit", [None, -1])
def test_no_limit(limit):
    assert find_order(*NAMED["nine"], memory_limit=limit) == find_order(*NAMED["nine"])


def test_max_input():
    each = network("ab,bc,cd,da->", a=100, b=2, c=100, d=2)
    assert find_order(*each, optimize=False, memory_limit="max_input").largest <= 200
    with pytest.raises(EngineValueError, match="memory_limit=36 elements cannot be met"):
        find_order(*NAMED["nine"], memory_limit="max_input")


@pytest.mark.parametrize(
    "limit, error", [(0, EngineValueError), (-2, EngineValueError), (1.5, EngineTypeError), ("8GiB", EngineTypeError)]
)
def test_bad_limits(limit, error):
    with pytest.raises(error, match="memory_limit="):
        find_order(*NAMED["nine"], memory_limit=limit)


def test_a_path_that_was_given_before_is_checked_again():
    terms, sizes = [("a", "b"), ("b", "c"), ("c", "d")], dict.fromkeys("abcd", 2)
    known = find_order(terms, ("a", "d"), sizes, optimize=[(0, 1), (0, 1)])
    assert find_order(terms, ("a", "d"), sizes, optimize=((1, 0), [1, 0])) == known
    for same in ([(0.0, 1), (0, 1)], [(0, True), (0, "1")]):
        with pytest.raises(EngineValueError, match="is .*, not a tuple of operand positions"):
            find_order(terms, ("a", "d"), sizes, optimize=same)
