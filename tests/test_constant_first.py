"""Orders of which calls have less to do, because what never changes is contracted first."""

import string

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.planners.constant_first import NOTE, constants_first
from einsum_engine.planners.order import find_order
from einsum_engine.planners.steps import check_path, walk

RNG = np.random.default_rng(0)


def chain(count: int, size: int = 3) -> tuple[str, list[np.ndarray]]:
    letters = string.ascii_letters[: count + 1]
    text = ",".join(map("".join, zip(letters, letters[1:]))) + f"->{letters[0]}{letters[-1]}"
    return text, [RNG.integers(-1, 2, (size, size)).astype(float) for _ in range(count)]


def steps_of_a_call(f) -> int:
    return sum(not step.once for step in f.steps)


def work_of_a_call(terms, output, sizes, path, constants) -> int:
    """Flops of the steps that do not read constants alone."""
    fixed, work = set(constants), 0
    for number, step in enumerate(walk(terms, output, sizes, check_path(path, len(terms), "")), len(terms)):
        if fixed.issuperset(step.ids):
            fixed.add(number)
        else:
            work += step.flops
    return work


@pytest.mark.parametrize("variables,steps", [([0], 1), ([11], 1), ([5], 2), ([2, 8], 4), ([0, 11], 2)])
@pytest.mark.parametrize("minimize", ["flops", "time"])
def test_a_chain_has_few_steps_in_a_call(variables, steps, minimize):
    text, arrays = chain(12)
    constants = [number for number in range(12) if number not in variables]
    f = engine.compile(text, *arrays, constants=constants, minimize=minimize)
    assert steps_of_a_call(f) <= steps and f._contractor.order.optimizer == "auto" + NOTE
    expected = np.linalg.multi_dot(arrays)
    for _ in range(3):
        assert np.array_equal(f(*[arrays[number] for number in variables]), expected)


@pytest.mark.parametrize("optimize", [False, "left-to-right", [(0, 1), (0, 2), (0, 1)]])
def test_an_order_that_was_given_stays(optimize):
    text, arrays = chain(4)
    plain = engine.compile(text, *arrays, optimize=optimize)
    f = engine.compile(text, *arrays, constants=[1, 2, 3], optimize=optimize)
    assert f.plan.path == plain.plan.path
    assert np.array_equal(f(arrays[0]), np.linalg.multi_dot(arrays))


@pytest.mark.parametrize(
    "text,sizes",
    [
        ("ab,bc,cd->ad", dict(a=1, b=1000, c=4, d=1000)),  # the product of the constants is large
        ("ab,bc,cd->ad", dict(a=1, b=2000, c=2000, d=2000)),  # it is not, but takes longer than it saves in many calls
        ("ab,cd,de->abe", dict(a=4, b=5, c=3, d=3, e=3)),  # a product of constants that nothing changes
    ],
)
def test_it_is_taken_where_calls_become_cheaper(text, sizes):
    inputs, output = text.split("->")
    terms, constants = [tuple(term) for term in inputs.split(",")], (1, 2)
    order = find_order(terms, tuple(output), sizes)
    found = constants_first(order, terms, tuple(output), sizes, constants, optimize="auto", limited=False)
    assert found is order


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed):
    """Never more work in a call, never a larger intermediate than an operand or than before; the same result."""
    rng = np.random.default_rng(seed)
    letters = "abcdefgh"
    sizes = {letter: int(rng.integers(1, 5)) for letter in letters}
    terms = [tuple(rng.choice(list(letters), int(rng.integers(1, 4)), replace=False)) for _ in range(int(rng.integers(3, 8)))]
    used = sorted(set().union(*terms))
    output = tuple(used[: int(rng.integers(0, 3))])
    constants = tuple(sorted(rng.choice(len(terms), int(rng.integers(1, len(terms))), replace=False).tolist()))
    order = find_order(terms, output, sizes)
    found = constants_first(order, terms, output, sizes, constants, optimize="auto", limited=False)
    before, after = (work_of_a_call(terms, output, sizes, each.path, constants) for each in (order, found))
    assert after <= before
    assert found.largest <= max(order.largest, *(np.prod([sizes[i] for i in term]) for term in terms))
    text = ",".join(map("".join, terms)) + "->" + "".join(output)
    arrays = [rng.integers(-2, 3, [sizes[i] for i in term]).astype(float) for term in terms]
    f = engine.compile(text, *arrays, constants=list(constants))
    given = [array for number, array in enumerate(arrays) if number not in constants]
    assert np.array_equal(f(*given), np.einsum(text, *arrays))


def test_limits_hold():
    text, arrays = chain(6)
    f = engine.compile(text, *arrays, constants=[0, 1, 3, 4, 5], memory_limit=9)
    assert f._contractor.order.largest <= 9
    vectors = "ab,bc,cd,d->a"
    f = engine.compile(vectors, *arrays[:3], np.ones(3), constants=[0, 1, 2], memory_limit=3)
    assert f._contractor.order.largest == 3 and NOTE not in f._contractor.order.optimizer


def test_stored_with_the_object(tmp_path):
    text, arrays = chain(8)
    f = engine.compile(text, *arrays, constants=[0, 1, 2, 4, 5, 6, 7])
    f.save(tmp_path / "plan.json")
    g = engine.load(tmp_path / "plan.json")
    assert g.plan.path == f.plan.path and np.array_equal(g(arrays[3]), f(arrays[3]))
