"""Products that are planned once for all names of their indices."""

import numpy as np
import oracle
import pytest
from plan_cases import typical
from hypothesis import given, settings
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine.kernels.gemm import lower
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.tiles import ITEMSIZE
from einsum_engine.planners import joined, layouts, memo
from einsum_engine.planners.contraction import Laid, asked
from einsum_engine.planners.gemm import plan_gemm
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.sides import fused_dims

LETTERS = "abcdefghij"


@pytest.fixture(autouse=True)
def fresh():
    memo.forget()


def drawn_up(monkeypatch) -> list:
    calls, plan_parts = [], memo.plan_parts
    monkeypatch.setattr(memo, "plan_parts", lambda *args: calls.append(args[0]) or plan_parts(*args))
    return calls


def test_other_names_find_the_same_plan(monkeypatch):
    calls = drawn_up(monkeypatch)
    first = engine.compile("abc,cd,bde->ae", (3, 4, 5), (5, 6), (4, 6, 7)).plan
    count = len(calls)
    assert count >= 2
    second = engine.compile("xyz,zu,yuv->xv", (3, 4, 5), (5, 6), (4, 6, 7)).plan
    assert len(calls) == count
    assert [step.kernel for step in first.steps] == [step.kernel for step in second.steps]
    assert [step.seconds for step in first.steps] == [step.seconds for step in second.steps]
    assert all(set(axis.index for axis in buffer.layout.axes) <= set("xyzuv") for buffer in second.buffers)


@pytest.mark.parametrize(
    "change",
    [
        {"dtypes": ["float64", "float64"]},
        {"threads": 2},
        {"conj": [0]},
        {"layouts": "panels"},
        {"layouts": "nested"},
        {"shapes": [(3, 4, 6), (6, 5)]},
        {"expr": "abc,cd->dab"},
        {"expr": "acb,cd->abd", "shapes": [(3, 5, 4), (5, 5)]},
    ],
    ids=str,
)
def test_what_a_plan_depends_on(monkeypatch, change):
    given = {"expr": "abc,cd->abd", "shapes": [(3, 4, 5), (5, 5)], "dtypes": ["complex64", "complex64"], "threads": 1}

    def plan(expr, shapes, **options):
        return engine.compile(expr, *shapes, **options)

    calls = drawn_up(monkeypatch)
    plan(**given)
    known = len(calls)
    plan(**given | change)
    assert len(calls) > known


def test_equal_steps_of_one_plan_have_their_own_memory(monkeypatch):
    """Packed copies of the constants of two equal products are kept in different places."""
    monkeypatch.setattr(joined, "epilogue", lambda *args: "the second product is to be as the first")
    expr, rng = "abc,cd,abg,gd->abd", np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in [(40, 30, 300), (300, 400)] * 2]
    compiled = engine.compile(expr, *arrays, constants=(1, 3), optimize=[(0, 1), (0, 1), (0, 1)])
    products = [step for step in compiled.plan.steps if step.family == "gemm"]
    assert products[0].args.tables is products[1].args.tables
    packed = [step.places[1] for step in compiled.plan.steps if step.family == "pack" and step.once]
    assert len(packed) == len(set(packed)) == 2
    for _ in range(2):
        np.testing.assert_allclose(compiled(*arrays[::2]), np.einsum(expr, *arrays, optimize=True), rtol=1e-9)


@pytest.mark.parametrize("row", host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "int8"])
@pytest.mark.parametrize(
    "first, second",
    {
        "rows": (("abk,kn->abn", (4, 5, 6), (6, 7)), ("mk,kn->mn", (20, 6), (6, 7))),
        "rows cut elsewhere": (("abk,kn->abn", (4, 5, 6), (6, 7)), ("abk,kn->abn", (5, 4, 6), (6, 7))),
        "columns": (("mk,kab->mab", (9, 6), (6, 4, 5)), ("mk,kab->mab", (9, 6), (6, 2, 10))),
        "terms": (("mkl,nkl->nm", (9, 3, 4), (7, 3, 4)), ("mk,nk->nm", (9, 12), (7, 12))),
        "all": (("abkl,cdkl->abcd", (2, 3, 4, 5), (3, 3, 4, 5)), ("mk,nk->mn", (6, 20), (9, 20))),
    }.values(),
    ids=str,
)
def test_products_that_are_one_when_fused_are_planned_once(monkeypatch, first, second, dtype, row):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    calls, found = drawn_up(monkeypatch), []
    for expr, *shapes in (first, second, first):
        arrays = [oracle.random(np.random.default_rng(0), shape, dtype) for shape in shapes]
        compiled = engine.compile(expr, *arrays)
        oracle.check(compiled(*arrays), oracle.einsum(expr, *arrays))
        found.append(compiled.plan)
    assert len(calls) == 1
    assert [step.kernel for step in found[0].steps] == [step.kernel for step in found[1].steps]
    assert all(step.dims == other.dims for step, other in zip(found[0].steps, found[2].steps))


@pytest.mark.parametrize(
    "first, second",
    {
        "no neighbours in the left operand": (("mk,kn->mn", (20, 6), (6, 7)), ("bak,kn->abn", (5, 4, 6), (6, 7))),
        "a batch, of which indices may be copied": (
            ("xmk,xkn->xmn", (3, 20, 6), (3, 6, 7)),
            ("xabk,xkn->xabn", (3, 4, 5, 6), (3, 6, 7)),
        ),
    }.values(),
    ids=str,
)
def test_products_that_are_another_when_fused_are_planned_anew(monkeypatch, first, second):
    calls = drawn_up(monkeypatch)
    for expr, *shapes in (first, second):
        arrays = [np.random.default_rng(0).standard_normal(shape) for shape in shapes]
        np.testing.assert_allclose(engine.compile(expr, *arrays)(*arrays), np.einsum(expr, *arrays), rtol=1e-9)
    assert len(calls) == 2


def test_products_of_operands_that_keep_their_shapes_are_found_by_their_objects(monkeypatch):
    """Only what reads the operand that has another size looks for its plan by numbers."""
    keys, look = [], memo._keys
    monkeypatch.setattr(memo, "_keys", lambda c, *args: keys.append(c.names) or look(c, *args))
    expr, rest = "ab,bc,cd,de->ae", [(4, 5), (5, 6), (6, 7)]
    path = [(2, 3), (1, 2), (0, 1)]
    first = engine.compile(expr, (3, 4), *rest, optimize=path).plan
    assert len(keys) == 3
    second = engine.compile(expr, (2, 4), *rest, optimize=path).plan
    assert len(keys) == 4 and set(keys[-1]) == set("abe")
    assert [step.dims for step in second.steps[:2]] == [step.dims for step in first.steps[:2]]


@pytest.mark.parametrize("batch", ["", "x"])
def test_products_met_under_their_names_are_not_looked_up_by_numbers(monkeypatch, batch):
    """Where they have fused dimensions: those of a batch have none. All are found again."""
    monkeypatch.setattr(layouts, "FLIP_MOST", 0.0)  # each is drawn up once
    numbers, key = [], memo._key
    calls = drawn_up(monkeypatch)
    monkeypatch.setattr(memo, "_key", lambda c, *args: numbers.append(c.names) or key(c, *args))
    shapes = ((2, 40, 30), (2, 30, 50)), ((3, 40, 30), (3, 30, 50)), ((2, 40, 30), (2, 30, 50))
    found = []
    for names in ("mkn", "mkn", "abc"):
        m, k, n = names
        left, right = shapes[len(found)]
        expr = f"{batch}{m}{k},{batch}{k}{n}->{batch}{m}{n}"
        arrays = [np.random.default_rng(0).standard_normal(each if batch else each[1:]) for each in (left, right)]
        if not batch and len(found) == 1:
            arrays[0] = arrays[0][:20]
        compiled = engine.compile(expr, *arrays)
        np.testing.assert_allclose(compiled(*arrays), np.einsum(expr, *arrays), rtol=1e-9)
        found.append(compiled.plan.steps)
    assert len(numbers) == (3 if batch else 2)
    assert len(calls) == 2 and found[0][0].args is found[2][0].args


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_renamed_networks(data):
    """The same network under permuted names, right after each other, gives the same numbers."""
    count = data.draw(st.integers(2, 5))
    terms = ["".join(data.draw(st.permutations(LETTERS))[: data.draw(st.integers(1, 3))]) for _ in range(count)]
    used = sorted(set("".join(terms)))
    output = "".join(letter for letter in used if data.draw(st.booleans()))
    sizes = {letter: data.draw(st.integers(1, 5)) for letter in used}
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]).astype(np.float64) for term in terms]
    expr = ",".join(terms) + "->" + output
    other = expr.translate(str.maketrans(LETTERS, "".join(data.draw(st.permutations(LETTERS)))))
    expected = np.einsum(expr, *arrays)
    for each in (expr, other):
        np.testing.assert_array_equal(engine.compile(each, *arrays)(*arrays), expected, err_msg=each)


@pytest.mark.parametrize("row", host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int8"])
@pytest.mark.parametrize("free", ["", "left", "right", "left right"])
@pytest.mark.parametrize("out", ["nba", "ban", "anb"])
def test_a_product_that_has_its_row_is_planned_again_for_its_problem(out, free, dtype, row):
    """What it was decided from is not kept. The other side has the lanes where the result ends with its index."""
    sizes, no, item = dict(a=3, b=14, k=50, n=37), (False, False), ITEMSIZE[dtype]
    c = asked((("a", "b", "k"), ("k", "n"), ("a", "b", "n")), (dtype, "", ""), no, no, (True, True, False, False))
    left, right = dense_axes("kba", sizes, item), dense_axes("nk", sizes, item)
    left, right = (None if side in free else axes for side, axes in (("left", left), ("right", right)))
    laid = Laid(c, sizes, left, right, dense_axes(out, sizes, item))
    first, plan = [plan_gemm(laid.contraction, row, 2, typical(row)) for _ in range(2)]
    rows = [lower(first.problem), plan.row]
    assert "drawn" in vars(first) and "drawn" not in vars(plan) and "places" not in vars(plan.asked)
    rows.append(lower(plan.problem))
    for each in rows[1:]:
        for field in ("words", "kernels", "scratch", "tasks"):
            assert getattr(each, field) == getattr(rows[0], field)
        assert each.tables.keys() == rows[0].tables.keys()
        assert all(np.array_equal(each.tables[word], table) for word, table in rows[0].tables.items())


def test_dimensions_follow_the_layouts():
    """A product that was planned, and is asked for again with other layouts, has the dimensions of those."""
    sizes, no = dict(a=3, b=4, k=5, n=6), (False, False)
    terms = ("a", "b", "k"), ("k", "n"), ("a", "b", "n")
    c = asked(terms, ("float64", "", ""), no, no, (True, True, False, False))
    right, out = dense_axes("nk", sizes, 8), dense_axes("nba", sizes, 8)
    fused = Laid(c, sizes, dense_axes("kba", sizes, 8), right, out).contraction
    assert [len(dims) for dims in fused.dims] == [len(fused.swapped.dims[i]) for i in (0, 2, 1, 3)] == [0, 1, 1, 1]
    apart = Laid(c, sizes, dense_axes("kab", sizes, 8), right, out).contraction
    assert [len(dims) for dims in apart.dims] == [len(apart.swapped.dims[i]) for i in (0, 2, 1, 3)] == [0, 2, 1, 1]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_numbers_of_fused_dimensions(data):
    """They are those of the dimensions that all planners fuse, whichever lie beside each other; an axis in blocks has none."""
    sizes = {i: data.draw(st.integers(1, 4)) for i in "abckmn"}

    def laid(indices):
        return dense_axes(data.draw(st.permutations(indices)), sizes, data.draw(st.sampled_from([4, 8])))

    no = (False, False)
    c = asked((tuple("abkm"), tuple("ckmn"), tuple("abcn")), ("float32", "", ""), no, no, (True, True, False, False))
    left, right, out = laid("abkm"), laid("ckmn"), laid("abcn")
    whole = Laid(c, sizes, left, right, out).contraction
    groups = (("ab", out, (left, out)), ("cn", out, (right, out)), ("km", left, (left, right)))
    for (names, places), (indices, by, tensors) in zip(whole.places, groups):
        order = sorted(indices, key=lambda i: -by[i].stride)  # stable
        dims = fused_dims(order, sizes, list(enumerate(tensors)))
        assert names == [dim.indices for dim in dims]
        assert places == tuple([(dim.size, *dim.strides.values()) for dim in dims])
    assert [[(dim.indices, dim.size) for dim in dims] for dims in whole.dims[1:]] == [
        [(names, size) for names, (size, *_) in zip(*each)] for each in whole.places
    ]
    exchanged = asked((tuple("ckmn"), tuple("abkm"), tuple("abcn")), ("float32", "", ""), no, no, (True, True, False, False))
    turned = Laid(exchanged, sizes, right, left, out).contraction
    assert whole.swapped_places == whole.swapped.places == turned.places
    assert turned.swapped_places == whole.places
    blocked = {**right, "k": right["k"]._replace(size=4, tile=2, outer=64)}
    assert Laid(c, {**sizes, "k": 4}, left, blocked, out).contraction.places is None
    assert Laid(c, sizes, None, right, out).contraction.places is None


def test_a_product_is_known_by_its_objects_and_by_what_is_decided():
    """Sizes count too: of a free operand nothing else tells them."""
    sizes, no = dict(a=3, k=5, n=6), (False, False)
    c = asked((("a", "k"), ("k", "n"), ("a", "n")), ("float64", "", ""), no, no, (True, True, False, False))
    out = dense_axes("na", sizes, 8)
    first = Laid(c, sizes, None, None, out)
    assert first.objects == Laid(c, dict(sizes), None, None, dense_axes("na", sizes, 8)).objects
    others = [
        Laid(c, {**sizes, "k": 6}, None, None, out),
        Laid(c, sizes, dense_axes("ka", sizes, 8), None, out),
        Laid(c, sizes, None, None, dense_axes("an", sizes, 8)),
        Laid(c, sizes, None, None, out, flip=True),
        Laid(c, sizes, None, None, out, across=True),
        Laid(c, sizes, None, None, out, near_left=frozenset("a")),
        Laid(c, sizes, None, None, out, near_right=frozenset("a")),
    ]
    assert len({first.objects, *[each.objects for each in others]}) == 1 + len(others)
    made = others[-1].contraction
    assert (made.lengths, made.near_right, made.left, made.out) == ((3, 6, 5), frozenset("a"), None, out)


@pytest.mark.parametrize("size", [2, 1, 0])
def test_axes_of_values_that_lie_alike_are_one_object(size):
    sizes = dict(a=3, b=size)
    assert dense_axes("ab", sizes, 8) is dense_axes(iter("ab"), {**sizes, "c": 7}, 8)
    assert dense_axes("ab", sizes, 8) is not dense_axes("ab", sizes, 4)
    places = {i: (axis.size, axis.stride) for i, axis in dense_axes("ba", sizes, 8).items()}
    assert places == dict(b=(size, 8), a=(3, 8 * size))


def test_what_is_remembered_is_bounded():
    for size in range(2, 2 + 3 * memo.REMEMBERED):
        engine.compile("ab,bc->ac", (size, 2), (2, 3))
    assert len(memo._known) <= 2 * memo.REMEMBERED
