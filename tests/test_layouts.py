"""The layout solver: its drafts compute the same, and the one that it takes is the one of least predicted time."""

import itertools
import math
import pickle
from string import ascii_letters

import networks
import numpy as np
import oracle
import pytest
from plan_cases import operands, plan, run

import einsum_engine as engine
from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.planners import layouts
from einsum_engine.planners.layouts import LayoutSolver
from einsum_engine.planners.request import LAYOUTS

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
    monkeypatch.setattr(layouts, "SMALL_SECONDS", 0.0)  # and there is no second draft of the whole


def _arrays(shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]  # every product is exact


@pytest.mark.parametrize("expression, shapes", CHAINS, ids=lambda x: x if isinstance(x, str) else "")
def test_every_draft_computes_the_same(expression, shapes, every_operation_is_worth_it, monkeypatch):
    """Each operation drawn up in its n-th way, for all n."""
    arrays = _arrays(shapes)
    expected = np.einsum(expression, *arrays, optimize=True)
    ways = set()
    for number in range(8):
        original = LayoutSolver._orientations

        def nth(self, operation, out, number=number):
            found = list(original(self, operation, out))
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

        def one(self, operation, out):
            return iter([chosen.setdefault(id(operation), next(taken))])

        with monkeypatch.context() as patched:
            patched.setattr(LayoutSolver, "_orientations", one)
            return _predicted(expression, shapes)

    solved = _predicted(expression, shapes)
    every = [layouts.Orientation(flip=flip, near=near) for flip in (False, True) for near in range(3)]
    every += [layouts.Orientation(flip=flip, merged=True) for flip in (False, True)]
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
    original = LayoutSolver._draft
    monkeypatch.setattr(LayoutSolver, "_draft", lambda *args: drawn.append(1) or original(*args))
    letters = [chr(0x100 + i) for i in range(62)]
    chain = ",".join(a + b for a, b in zip(letters, letters[1:])) + "->" + letters[0] + letters[-1]
    engine.compile(chain, *[(40, 40)] * 61, threads=1)
    assert len(drawn) <= 61 + layouts.EVALUATIONS + 6
    drawn.clear()
    monkeypatch.setattr(layouts, "WORTH_SECONDS", 1.0)
    engine.compile(chain, *[(41, 41)] * 61, threads=1)
    assert len(drawn) == 60


def test_products_of_operands_are_drawn_up_with_lanes_on_either_side(monkeypatch):
    """From 20 microseconds on, however long the plan: two drafts are no search. What reads a free operand has one then."""
    monkeypatch.setattr(layouts, "FLIP_MOST", 0.0)
    monkeypatch.setattr(layouts, "SMALL_SECONDS", 0.0)
    drawn = []
    original = LayoutSolver._draft

    def noted(self, operation, orientation):
        drawn.append((len(operation.output.term), orientation.flip))
        return original(self, operation, orientation)

    monkeypatch.setattr(LayoutSolver, "_draft", noted)
    arrays = _arrays([(8,) * 5, (8,) * 6, (8, 8, 8)])
    call = engine.compile("grwas,fdwsar,dgf->a", *arrays, threads=1, optimize=[(0, 1), (0, 1)])
    assert drawn == [(1, False), (4, False), (4, True)]
    np.testing.assert_array_equal(call(*arrays), np.einsum("grwas,fdwsar,dgf->a", *arrays, optimize=True))
    drawn.clear()
    engine.compile("ij,jk->ik", (8, 8), (8, 8), threads=1)
    assert drawn == [(2, False)]


# the second product reads a result of operands of the network, the last product runs along the output
TWENTY = (
    "atXuv,abuvL,bcwX,cdyXzA,dewABC,efXC,fgBD,ghXD,hiE,iXj,jtk,klxEFM,lmyGM,mouzN,ouHYN,oYpG,pqXYI,qrJK,rYs,sIXK->LFYXHJ"
)
SHORT_NETWORKS = [("abczef,reabq,oza,abqsa,feabo->asrbc", 8), ("kgopn,eqah,image,mjdbn,dhk,qoj->bip", 4), (TWENTY, 4)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("expression, size", SHORT_NETWORKS, ids=["diagonal", "six", "twenty"])
def test_short_products_are_drawn_up_with_lanes_on_either_side(expression, size, dtype, monkeypatch):
    """What takes microseconds is weighed as long products are, where it is a twentieth of the network; another draft is
    taken only where it saves more than predictions are off by."""
    arrays = _arrays([(size,) * len(term) for term in expression.partition("->")[0].split(",")], dtype)
    arrays = [np.sign(array) for array in arrays]

    def plan_with(**constants):
        with monkeypatch.context() as patched:
            for name, value in constants.items():
                patched.setattr(layouts, name, value)
            return engine.compile(expression, *arrays, threads=1)

    def steps(call):
        return [(step.kernel, step.layouts, step.dims) for step in call.plan.steps]

    monkeypatch.setattr(layouts, "SMALL_SECONDS", 0.0)  # a second draft of the whole might take the place of either
    once, call, unsure = plan_with(FLIP_MOST=0.0), plan_with(), plan_with(SURE_SHARE=1e9)
    assert steps(once) == steps(unsure)
    assert sum(step.seconds for step in call.plan.steps) <= sum(step.seconds for step in once.plan.steps)
    if dtype == "float32" and expression != TWENTY:  # of that one no other draft saves enough
        assert steps(call) != steps(once)
    found, expected = call(*arrays), once(*arrays)
    assert np.abs(found - expected).max() <= 100 * np.finfo(dtype).eps * np.abs(expected).max()


def test_what_reads_a_long_product_is_drawn_up_with_it(monkeypatch):
    """The reader, short itself, says how the long one has to write; what reads the reader has one draft."""
    monkeypatch.setattr(layouts, "WORTH_SHARE", 0.0)
    drawn = {}
    original = LayoutSolver._draft

    def noted(self, operation, orientation):
        drawn.setdefault("".join(sorted(map(str, operation.output.term))), set()).add(orientation)
        return original(self, operation, orientation)

    monkeypatch.setattr(LayoutSolver, "_draft", noted)
    arrays = _arrays([(300, 2000), (2000, 1500), (1500, 8), (8, 30)])
    call = engine.compile("ab,bc,cd,de->ae", *arrays, threads=1, optimize=[(0, 1), (0, 2), (0, 1)])
    last, reader, long = drawn.values()  # consumers come first
    assert sum(each.merged for each in reader) == 1  # the long operand is the lanes side of one of the two
    assert len(long) > 1 and len(reader) == 6 + 1 and last == {layouts.AS_OUTPUT}
    np.testing.assert_array_equal(call(*arrays), np.linalg.multi_dot(arrays))


# -- policies ------------------------------------------------------------------------------------------------------
DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "int8", "int32", "int64", "uint16", "bool")


def _random(seed, dtypes, largest=13):
    """A network of random structure, sizes and order of indices; its operands are small whole numbers."""
    terms, output, _ = networks.random_network(seed, operands=3 + seed % 4, indices=6 + seed % 3)
    rng = np.random.default_rng(seed)
    sizes = {index: int(rng.choice((1, 2, 3, 4, 8, largest))) for index in range(10)}
    terms = [tuple(int(i) for i in rng.permutation(np.array(term, int))) for term in terms]
    kinds = [str(rng.choice(dtypes)) for _ in terms]
    arrays = [oracle.random(rng, [sizes[i] for i in term], kind, exact=True) for term, kind in zip(terms, kinds)]
    arrays = [array / array.dtype.type(8) if array.dtype == "float16" else array for array in arrays]  # no overflow
    return terms, output, arrays


def _check(terms, output, arrays, policy, **options):
    pairs = [item for array, term in zip(arrays, terms) for item in (array, list(term))]
    call = engine.compile(*pairs, list(output), layouts=policy, **options)
    result = np.result_type(*arrays)
    wide = [array.astype({"f": "f8", "c": "c16"}.get(result.kind, result)) for array in arrays]
    pairs = [item for array, term in zip(wide, terms) for item in (array, list(term))]
    expected = np.einsum(*pairs, list(output), optimize=True)
    actual = np.asarray(call(*arrays))
    assert actual.dtype == result and np.all(np.isfinite(expected))
    bound = 8 * np.finfo(result).eps * float(np.max(np.abs(expected), initial=0)) if result.kind in "fc" else 0
    np.testing.assert_allclose(actual.astype(wide[0].dtype), expected, rtol=0, atol=bound)
    return call


@pytest.mark.parametrize("policy", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_policy_computes_the_same_on_random_networks(dtype, policy):
    for seed in range(8):
        _check(*_random(seed, (dtype,)), policy, threads=1 + seed % 2)


@pytest.mark.parametrize("policy", LAYOUTS)
@pytest.mark.parametrize(
    "dtypes", [("float32", "float64"), ("float64", "complex128"), ("int8", "int64"), ("float16", "float32")]
)
def test_every_policy_computes_the_same_on_mixed_dtypes(dtypes, policy):
    for seed in range(8, 13):
        _check(*_random(seed, dtypes), policy, threads=1)


@pytest.mark.parametrize("policy", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_every_policy_computes_the_same_where_operations_are_large(dtype, policy):
    for expression, shapes in CHAINS:
        arrays = _arrays(shapes, dtype)
        terms, output = expression.split("->")
        numbered = [tuple(map(ascii_letters.index, term)) for term in (*terms.split(","), output)]
        _check(numbered[:-1], numbered[-1], arrays, policy, threads=2)


def _intermediates(policy):
    """Layouts of the intermediates of a chain whose products are made right to left."""
    shapes = [(24, 8, 48), (48, 8, 40), (40, 6, 4), (4, 56)]
    plan = engine.compile("axb,byc,czd,de->eazxy", *shapes, layouts=policy, threads=1).plan
    return [buffer.layout for buffer in plan.buffers if buffer.kind == "arena"]


def test_each_policy_has_its_layouts():
    found = {policy: _intermediates(policy) for policy in LAYOUTS}
    assert {layout.describe() for layout in found["natural"]} == {"C"}
    assert {layout.kind for layout in found["merged"]} == {"strided"}
    assert {layout.describe() for layout in found["merged"]} != {"C"}
    assert "fbl" in {layout.kind for layout in found["panels"]}
    assert len({tuple(each) for each in found.values()}) >= 3


def test_panels_are_taken_also_where_rows_would_do():
    """One panel of lanes in plain rows is what the planner takes by itself."""
    shapes = [(8, 5, 64), (64, 5, 16), (16, 6)]
    kinds = {}
    for policy in ("merged", "panels", "nested"):
        plan = engine.compile("axb,bxc,cd->da", *shapes, layouts=policy, threads=1, optimize=False).plan
        kinds[policy] = [buffer.layout.kind for buffer in plan.buffers if buffer.kind == "arena"]
    assert kinds == {"merged": ["strided"], "panels": ["fbl"], "nested": ["fbl"]}  # all of K is one block


def test_a_policy_is_an_option_of_compile_that_is_stored(tmp_path):
    made = engine.compile(*NETWORK[:1], *NETWORK[1], layouts="natural", threads=1)
    made.save(tmp_path / "plan.json")
    other = engine.compile(*NETWORK[:1], *NETWORK[1], threads=1)
    assert engine.load(tmp_path / "plan.json").plan == pickle.loads(pickle.dumps(made)).plan == made.plan != other.plan
    with pytest.raises(EngineValueError, match="layouts='best': there are solve, natural, merged, panels, nested"):
        engine.compile("ij,jk->ik", (2, 3), (3, 4), layouts="best")
    with pytest.raises(EngineTypeError, match="einsum\\(\\) has no option 'layouts'"):
        engine.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4)), layouts="natural")


def _plan_of(policy, chain, monkeypatch, tiny, small):
    monkeypatch.setattr(layouts, "TINY_SECONDS", tiny)
    monkeypatch.setattr(layouts, "SMALL_SECONDS", small)
    arrays = _arrays(chain[1])
    call = engine.compile(chain[0], *arrays, layouts=policy, threads=1)
    np.testing.assert_array_equal(call(*arrays), np.einsum(chain[0], *arrays, optimize=True))
    return call.plan.buffers, call.plan.steps


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0])
def test_a_tiny_plan_has_natural_order(chain, monkeypatch):
    natural = _plan_of("natural", chain, monkeypatch, 0, 0)
    assert _plan_of("solve", chain, monkeypatch, 1, 0) == natural


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0])
def test_a_small_plan_is_the_better_of_two(chain, monkeypatch):
    """The one of less predicted time, whole: nothing of the other one is left behind."""
    natural, solved = (_plan_of(policy, chain, monkeypatch, 0, 0) for policy in ("natural", "solve"))
    assert natural != solved
    times = {}
    drafts = LayoutSolver._drafts

    def timed(self, most=math.inf):
        found = drafts(self, most)  # given up where it takes longer than the first already
        times[self.policy] = sum(draft.seconds for _, draft in found)
        return found

    monkeypatch.setattr(LayoutSolver, "_drafts", timed)
    monkeypatch.setattr(layouts, "NATURAL_SHARE", 0.0)
    taken = _plan_of("solve", chain, monkeypatch, 0, 1)
    assert set(times) == {"solve", "natural"}
    assert taken == (natural if times["natural"] < times["solve"] else solved)


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "complex128"), ("float16",), ("int8", "int64")])
@pytest.mark.parametrize("tiny, small", [(0, 0), (1, 0), (0, 1)])
def test_casts_and_small_plans(dtypes, tiny, small, monkeypatch):
    monkeypatch.setattr(layouts, "TINY_SECONDS", tiny)
    monkeypatch.setattr(layouts, "SMALL_SECONDS", small)
    for seed in range(20, 26):
        _check(*_random(seed, dtypes), "solve", threads=1)


@pytest.mark.parametrize("text", ["abx,bc->ac", "xab,bc->ac", "axb,bc->ac", "ab,ab,bc->ac", "ab,b,bc->ca"])
def test_what_streams_an_operand_is_written_as_that_lies(text):
    """A sum or a product before a GEMM goes along its operand; in the GEMM's own order each element would be far from the
    next: `xab,bc->ac` of 4 x 4096 x 1024 and 8 columns took 131 ms, and 6 so."""
    sizes = {"a": 160, "b": 90, "c": 20, "x": 3}
    arrays = [np.random.default_rng(0).standard_normal([sizes[i] for i in term]) for term in text.split("->")[0].split(",")]
    f = engine.compile(text, *arrays, threads=1, optimize=[(0, 1), (0, 1)] if text.count(",") == 2 else True)
    (middle,) = [buffer for buffer in f.plan.buffers if buffer.kind == "arena"]
    strides = {axis.index: axis.stride for axis in middle.layout.axes}
    assert (strides["a"], strides["b"]) == (90 * 8, 8)
    np.testing.assert_allclose(f(*arrays), np.einsum(text, *arrays, optimize=True))


def test_a_product_of_elements_costs_more_across_its_output():
    """For each operand that runs along another index, and for short runs of the output."""
    shapes = [(64, 96), (64, 96)]
    along, both = (_predicted(text, shapes) for text in ("ab,ab->ab", "ab,ab->ba"))
    across = _predicted("ab,ba->ab", [(64, 96), (96, 64)])
    assert along < across < both
    assert _predicted("ab,ab->ab", [(2048, 3)] * 2) > along


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_product_of_elements_reads_what_lies_as_its_producer_writes(dtype, every_operation_is_worth_it, monkeypatch):
    """In the order of the result, or with the indices of either side of its producer fastest."""
    equation, path = "arv,qv,aq->aqr", [(0, 1), (0, 1)]
    arrays = operands(equation, dict(a=6, r=2, v=2, q=37), dtype)
    for name in ("TINY_SECONDS", "SMALL_SECONDS"):
        monkeypatch.setattr(layouts, name, 0)
    original, orders = LayoutSolver._orientations, []
    for number in range(3):
        drafts = []

        def nth(self, operation, out, number=number, drafts=drafts):
            found = list(original(self, operation, out))
            drafts.append((operation.kind, len(found)))
            return iter(found[number:][:1] if operation.kind == "mul" else found)

        monkeypatch.setattr(LayoutSolver, "_orientations", nth)
        made = plan(equation, arrays, optimize=path)
        oracle.check(run(made, arrays), oracle.einsum(equation, *arrays))
        assert ("mul", 3) in drafts
        axes = made.buffers[made.steps[-2].output].layout.axes
        orders.append([axis.index for axis in sorted(axes, key=lambda axis: axis.stride)])
    assert orders == [list("rqa"), list("raq"), list("qra")]
