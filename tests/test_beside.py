"""Products along a batch that is fastest in a large operand: the copy of the small one, inherited orders, results."""

from dataclasses import replace

import numpy as np
import oracle
import plan_cases
import pytest
from plan_cases import QUICK_MEMORY, machine, made_anew

import einsum_engine as engine
from einsum_engine.kernels import isa, tiles
from einsum_engine.plan import Axis
from einsum_engine.planners import beside, memo
from einsum_engine.planners.contraction import BinaryContraction

SIZES = dict(a=2, b=32, e=2, f=3, p=4, w=5, i=2, o=3)
PRODUCT = "abef,fpewaib->pewaib"
CHAIN = "abef,fpewaib,beop->beoawi"


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """The same plans for tensors that the oracle is done with soon."""
    monkeypatch.setattr(beside, "LARGE_BYTES", 1 << 11)
    monkeypatch.setattr(beside, "LEAST_BYTES", 1 << 11)
    with made_anew():
        yield


def operands(expression, dtype, sizes=SIZES):
    return plan_cases.operands(expression, sizes, dtype, exact=False)


def kinds(f):
    return [step.family for step in f.plan.steps]


def check(expression, arrays, conj=(), **options):
    f = engine.compile(expression, *arrays, conj=conj, **options)
    oracle.check(f(*arrays), oracle.einsum(expression, *arrays, conj=conj), context=f.explain())
    return f


@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_small_operand_is_copied_and_the_large_one_read_in_place(dtype, threads):
    f = check(PRODUCT, operands(PRODUCT, dtype, SIZES), threads=threads)
    assert kinds(f) == ["copy", "batched"]
    copy, product = f.plan.steps
    assert copy.expr == "copy abef" and copy.flops == 0 and product.flops > 0
    assert f.plan.flops == product.flops


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_half_vectors_take_masks(row, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    half = SIZES | dict(b=row.vector_bits // 64)
    assert ("batched" in kinds(check(PRODUCT, operands(PRODUCT, "float32", half)))) == row.masks
    whole = SIZES | dict(b=row.vector_bits // 32)
    assert "batched" in kinds(check(PRODUCT, operands(PRODUCT, "float32", whole)))


def test_either_operand_may_be_the_small_one():
    swapped = "fpewaib,abef->pewaib"
    assert kinds(check(swapped, operands(swapped, "float32"))) == ["copy", "batched"]


@pytest.mark.parametrize("conj", [(0,), (1,), (0, 1)])
def test_conjugated(conj):
    arrays = operands(PRODUCT, "complex64")
    assert kinds(check(PRODUCT, arrays, conj=conj)) == ["copy", "batched"]


def test_a_real_operand_beside_a_complex_one():
    large, small = operands(PRODUCT, "complex64")[1], operands(PRODUCT, "float32")[0]
    check(PRODUCT, [small, large])
    check("fpewaib,abef->pewaib", [operands(PRODUCT, "float32")[1], operands(PRODUCT, "complex64")[0]])


@pytest.mark.parametrize("constant", [0, 1])
def test_constants(constant):
    arrays = operands(PRODUCT, "float32")
    answer = oracle.einsum(PRODUCT, *arrays)
    rest = [x for position, x in enumerate(arrays) if position != constant]
    f = engine.compile(PRODUCT, *arrays, constants={constant: arrays[constant]})
    for _ in range(2):
        oracle.check(f(*rest), answer)


def test_results_of_a_chain_lie_as_its_large_operand():
    f = check(CHAIN, operands(CHAIN, "float32"), optimize=[(0, 1), (0, 1)])
    assert kinds(f)[:2] == ["copy", "batched"]
    order = ["p", "e", "w", "a", "i", "b"]
    layout = next(b.layout for b in f.plan.buffers if b.name.startswith("t"))
    assert sorted(order, key=lambda i: -next(a.stride for a in layout.axes if a.index == i)) == order


@pytest.mark.parametrize("layouts", ["natural", "merged", "panels", "nested"])
def test_other_policies_inherit_nothing_and_agree(layouts):
    check(CHAIN, operands(CHAIN, "float32"), optimize=[(0, 1), (0, 1)], layouts=layouts)


def test_results_that_are_used_twice_agree():
    twice = "abef,fpewaib,abef,fpewaib->pewaib"
    arrays = operands(twice, "float64")
    arrays[2:] = arrays[:2]
    check(twice, arrays, optimize=[(0, 1), (0, 1), (0, 1)])


@pytest.mark.parametrize("k", [1, 4095, 4097, 8192])
def test_long_sums_and_no_rows(k):
    sizes = dict(b=16, k=k)
    check("bk,kb->b", operands("bk,kb->b", "float32", sizes))


@pytest.mark.parametrize("n", [(1,), (7, 31), (64, 64), (3, 61, 67), (4099,)])
def test_rows_that_are_looped_outside(n):
    letters = "wxyz"[: len(n)]
    expression = f"bmk,k{letters}b->m{letters}b"
    sizes = dict(zip(letters, n), b=9, m=2, k=5)
    check(expression, operands(expression, "float64", sizes))


def contraction(left="ab", right="fxab", out="fxab", sizes=None) -> BinaryContraction:
    sizes = sizes or dict(a=8, b=8, f=64, x=64)

    def axes(term):
        strides, step = {}, 4
        for i in reversed(term):
            strides[i], step = Axis.strided(i, sizes[i], step), step * sizes[i]
        return strides

    groups = {
        "batch": [i for i in left if i in right and i in out],
        "m": [i for i in left if i not in right],
        "n": [i for i in right if i not in left],
        "k": [i for i in left if i in right and i not in out],
    }
    groups = {name: tuple(indices) for name, indices in groups.items()}
    return BinaryContraction(dtype="float32", sizes=sizes, left=axes(left), right=axes(right), out=axes(out), **groups)


def test_nothing_is_copied_without_need_or_at_a_loss():
    assert beside.beside(contraction(left="ba")) is not None
    assert beside.beside(contraction(left="ab")) is None  # contiguous already
    assert beside.beside(contraction(left="ba", out="abfx")) is None  # the result is not
    assert beside.beside(contraction(left="ba", sizes=dict(a=8, b=8, f=2, x=2))) is None  # within the cache
    rows = contraction(left="mba", out="mfxab", sizes=dict(a=64, b=64, f=2, x=2, m=32))
    assert beside.beside(rows) is None  # not small


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64"])
@pytest.mark.parametrize(
    "expression, families",
    [
        ("fcadk,fdakc->fadc", ["copy", "batched"]),  # dot products of 5 terms
        ("fmcadk,fdakc->mfadc", ["copy", "batched"]),  # 3 rows
        ("fcdka,fdakc->fcda", ["copy", "batched"]),  # the other operand runs along the result
    ],
)
def test_an_operand_as_large_as_the_other_is_copied_where_products_are_tiny(expression, families, dtype):
    arrays = operands(expression, dtype, dict(f=2, c=17, a=16, d=7, k=5, m=3))
    f = check(expression, arrays, threads=1)
    assert kinds(f) == families


def test_the_copy_is_in_the_order_of_the_large_operand():
    found = beside.beside(contraction(left="mba", right="fxab", out="mfxab", sizes=dict(a=8, b=8, f=64, x=64, m=2)))
    strides = {i: axis.stride for i, axis in found.contraction.left.items()}
    assert strides == {"b": 4, "a": 32, "m": 256} and found.nbytes == 512
    assert set(found.copy.dims) == {(8, 4, 32, 0), (8, 32, 4, 0), (2, 256, 256, 0)}


def test_what_a_tile_reads_of_the_copy_lies_together():
    """Lanes, summed indices, rows; then the batch that is looped outside, in the order of the large operand."""
    sizes = dict(a=4, b=8, c=8, k=8, m=2, x=256)
    found = beside.beside(contraction(left="bkmca", right="kcaxb", out="mcaxb", sizes=sizes))
    assert {i: axis.stride for i, axis in found.contraction.left.items()} == dict(b=4, k=32, m=256, a=512, c=2048)


@pytest.mark.parametrize(
    "b, x, lanes, times",
    [(8, 64, 16, 2), (4, 64, 16, 4), (12, 64, 16, 4), (8, 6, 16, 1), (8, 8, 16, 2), (16, 64, 16, 1), (8, 64, 1, 1)],
)
def test_the_copy_is_repeated_where_the_batch_fills_no_vectors(b, x, lanes, times):
    c = contraction(left="ab", right="faxb", out="faxb", sizes=dict(a=4, b=b, f=64, x=x))
    c = replace(c, left={"a": Axis.strided("a", 4, 4), "b": Axis.strided("b", b, 16)})
    found = beside.beside(c, lanes)
    after = found.contraction
    assert found.nbytes == 16 * b * times
    assert np.prod([size for size, *_ in found.copy.dims]) == 4 * b * times
    if times > 1:
        assert after.sizes["x"] == x // times and after.sizes[beside.REPEATED] == times
        assert {axes[beside.REPEATED].stride for axes in (after.left, after.right, after.out)} == {4 * b}
        assert after.right["x"].stride == after.out["x"].stride == 4 * b * times


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
def test_results_with_a_repeated_copy(dtype):
    sizes = SIZES | dict(b=max(2, tiles.elements(isa.active_isa(), dtype) // 2), i=8, p=3, w=3)
    for expression in (CHAIN, "fpewaib,abef->pewaib"):
        check(expression, operands(expression, dtype, sizes), threads=2)


def test_a_sum_before_lies_as_it_is_read_and_is_copied():
    expression = "abcef,fpewaib->pewaib"
    f = check(expression, operands(expression, "float32", SIZES | {"c": 5}))
    assert kinds(f) == ["sum", "copy", "batched"]
    total = f.plan.buffers[f.plan.steps[0].output]
    assert [axis.index for axis in sorted(total.layout.axes, key=lambda axis: -axis.stride)] == list("abef")


def test_predictions_are_finite_and_grow_with_the_work():
    seconds = []
    for p in (8, 16, 32):
        f = engine.compile(PRODUCT, *operands(PRODUCT, "float32", SIZES | {"p": p}))
        seconds.append(f.plan.steps[-1].seconds)
    assert 0 < seconds[0] < seconds[1] < seconds[2] < 1


# A part of a tree tensor network, evaluated for a batch of 96 points: a vector for each of its open legs.
TREE = "zaop,bo,bp,xymn,bm,bn,qxw,wzc->bcayq"
TREE_PATH = [(0, 1), (0, 6), (0, 1), (0, 4), (1, 3), (1, 2), (0, 1)]
TREE_SIZES = dict(b=96, a=4, z=4, x=4, y=3, q=4, w=4, c=4, o=7, p=7, m=7, n=7)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_a_long_batch_of_many_products_may_be_fastest_between_them(dtype, monkeypatch):
    arrays = operands(TREE, dtype, TREE_SIZES)
    wanted = np.einsum(TREE, *arrays, optimize=["einsum_path", *TREE_PATH])
    plans = []
    for least in (64, 128):
        monkeypatch.setattr(beside, "BATCH_LENGTH", least)
        memo.forget()
        engine.clear_cache()
        f = engine.compile(TREE, *arrays, optimize=TREE_PATH, threads=1)
        np.testing.assert_allclose(f(*arrays), wanted, rtol=1e-4, atol=1e-4 * abs(wanted).max())
        plans.append(f.plan)
    fastest = [{fastest_index(b) for b in plan.buffers if b.kind == "arena"} for plan in plans]
    assert "b" in fastest[0] and plans[0].seconds <= plans[1].seconds


def fastest_index(buffer):
    linear = [axis for axis in buffer.layout.axes if axis.linear]
    return min(linear, key=lambda axis: abs(axis.stride)).index if linear else None


def test_a_batch_of_one_product_or_a_short_one_is_no_reason(monkeypatch):
    monkeypatch.setattr(beside, "BATCH_LENGTH", 1 << 20)
    short = engine.compile(TREE, *operands(TREE, "float32", TREE_SIZES), optimize=TREE_PATH, threads=1).plan
    monkeypatch.setattr(beside, "BATCH_LENGTH", 64)
    monkeypatch.setattr(beside, "BATCH_PRODUCTS", 5)
    memo.forget()
    few = engine.compile(TREE, *operands(TREE, "float32", TREE_SIZES), optimize=TREE_PATH, threads=1).plan
    assert [s.kernel for s in few.steps] == [s.kernel for s in short.steps] and few.seconds == short.seconds


@pytest.mark.parametrize("n, k", [(7, 7), (16, 7)])
def test_rows_that_small_products_gather_are_predicted_to_cost_more(n, k):
    def predicted(small):
        with machine(**QUICK_MEMORY):
            f = engine.compile(f"bk,{small}->bn", (500, k), tuple(dict(b=500, n=n, k=k)[i] for i in small), threads=1)
        assert f.plan.steps[-1].family == "small"
        return f.plan.steps[-1].seconds

    # 16 columns are two vectors of 8 lanes, from two gathers: 1.65, measured 1.5.
    least = 1.5 if n == 16 and isa.host_isas()[0].vector_bits < 512 else 2
    assert predicted("bnk") > least * predicted("bkn")
    assert predicted("bnk") < 1e-3
