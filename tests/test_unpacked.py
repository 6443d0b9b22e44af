"""Which family a product gets that is read in place: what is asked first, of single indices, misses none."""

import random
from collections import Counter

import numpy as np
import plan_cases
import pytest

from einsum_engine.kernels.batched import lower
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.tiles import ITEMSIZE
from einsum_engine.planners import unpacked
from einsum_engine.planners.contraction import Laid, asked
from einsum_engine.planners.layout import dense_axes

SIZES = (1, 2, 2, 3, 4, 4, 5, 8, 16, 17, 64)


def drawn(rng, dtype):
    """A product of known layouts, each in some order of its indices, or with gaps."""
    kinds = [rng.choice("bmmnnkk") for _ in range(rng.randint(2, 6))]
    sizes = {f"{kind}{number}": rng.choice(SIZES) for number, kind in enumerate(kinds)}
    if rng.random() < 0.3:  # a gate: few numbers, applied to all of a large operand
        sizes = {index: size if index[0] == "b" else min(size, 2) for index, size in sizes.items()} | {"n9": 4096}
    terms = [tuple(i for i in sizes if i[0] in kinds) for kinds in ("bmk", "bnk", "bmn")]
    item = ITEMSIZE[dtype]
    orders = [rng.sample(term, len(term)) for term in terms]
    axes = [dense_axes(order, sizes, item * rng.choice((1, 1, 1, 1, 2))) for order in orders]
    question = asked(tuple(terms), (dtype, "", ""), (False, False), (False, False), (True, True, False, False))
    return Laid(question, sizes, *axes).contraction


def everything(c):
    """What `unpacked._asks` finds where it does not look at strides."""
    products = ["columns", "rows", "lanes", "beside"] if c.batch or unpacked.is_gate(c) or unpacked.is_tall(c) else []
    return [*products, *(["run", "order"] if c.k else [])]


def said(choice):
    """A choice, or that there is none, in what can be compared."""
    if choice is None:
        return None
    return choice.row, None if choice.copied is None else (choice.copied.copy, choice.copied.nbytes)


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int8"])
def test_what_is_asked_first_misses_no_family(monkeypatch, isa, dtype):
    rng, found, copied = random.Random(f"{isa.name} {dtype}"), Counter(), Counter()
    for _ in range(800):
        c = drawn(rng, dtype)
        quick = unpacked.choose(c, isa)
        with monkeypatch.context() as patched:
            patched.setattr(unpacked, "_asks", everything)
            slow = unpacked.choose(c, isa)
        assert said(quick) == said(slow), c
        if quick is not None:
            found[quick.row.name, quick.row.exchanged] += 1
            copied[quick.row.name] += quick.copied is not None
    assert copied["dot"], "a vector is copied in the order of the rows"
    assert {name for name, _ in found} >= {"dot", "batched", "small"} and ("small", True) in found, found


@pytest.mark.parametrize("text", ["yxmka,xykna->yxmna", "xykna,yxmka->yxmna"])
def test_a_batched_product_goes_through_its_largest_tensor_in_order(text, monkeypatch):
    """So that lines and pages which turns have in common are there."""
    lowered = []
    monkeypatch.setattr(unpacked.batched_family, "lower", lambda p, *how: lowered.append(p) or lower(p, *how))
    arrays = plan_cases.operands(text, dict(y=3, x=4, m=2, k=5, n=9, a=64), "float32")
    with plan_cases.made_anew():
        made = plan_cases.plan(text, arrays)
    assert np.array_equal(plan_cases.run(made, arrays), np.einsum(text, *arrays))
    (p,) = lowered
    tables = [table for count, *tables in p.outer for table in tables[int(p.n > p.m) : int(p.n > p.m) + 1]]
    assert tables and all((np.diff(table) > 0).all() for table in tables)
