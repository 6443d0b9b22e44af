"""`contract_path` and `einsum_path`: formats of opt_einsum and NumPy, costs, the printed table, messages."""

import re
from decimal import Decimal

import numpy as np
import opt_einsum
import pytest
from networks import replay

import einsum_engine as engine
from einsum_engine.errors import EngineTypeError, EngineValueError
from einsum_engine.expr import parse
from einsum_engine.planners.optimizers import optimizers
from einsum_engine.planners.paths import PathInfo, contract_path, einsum_path, search_terms

CASES = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk,kl->il", [(2, 30), (30, 4), (4, 50)]),
    ("ea,fb,abcd,gc,hd->efgh", [(10, 10), (10, 10), (10,) * 4, (10, 10), (10, 10)]),
    ("bac,bd,ce,def,fg->ag", [(4, 2, 5), (4, 3), (5, 6), (3, 6, 7), (7, 8)]),
    ("abc->ca", [(2, 3, 4)]),
    ("ab,ab,ab", [(3, 4)] * 3),
    (",ij,->ji", [(), (2, 3), ()]),
    ("a,b,c,d->abcd", [(2,), (3,), (4,), (5,)]),
]


@pytest.mark.parametrize("eq, shapes", CASES)
def test_costs_are_those_of_the_path(eq, shapes):
    path, info = contract_path(eq, *shapes, shapes=True)
    expr = parse(eq, shapes)
    flops, largest = replay(expr.inputs, expr.output, expr.sizes, path)
    assert (info.opt_cost, info.largest_intermediate) == (flops, largest)
    assert isinstance(path, list) and all(isinstance(step, tuple) for step in path) and info.path == path
    assert info.size_dict == expr.sizes and info.eq == expr.eq and info.indices == frozenset(expr.sizes)
    assert info.shapes == [tuple(shape) for shape in shapes]
    assert f"{info.input_subscripts}->{info.output_subscript}" == info.eq
    assert info.speedup == info.naive_cost / max(info.opt_cost, Decimal(1))
    assert len(info.scale_list) == len(info.size_list) == len(info.steps) == len(path)
    assert max(info.size_list) == largest and sum(step.flops for step in info.steps) == flops


@pytest.mark.parametrize("eq, shapes", [case for case in CASES if "->" in case[0] and case[0] != "abc->ca"])
def test_opt_einsum_prints_the_same_figures(eq, shapes):
    opt_einsum = pytest.importorskip("opt_einsum")
    path, info = contract_path(eq, *shapes, shapes=True, optimize="greedy")
    theirs, other = opt_einsum.contract_path(eq, *shapes, shapes=True, optimize=path)
    assert theirs == path
    assert other.opt_cost == info.opt_cost and other.largest_intermediate == info.largest_intermediate
    assert other.scale_list == info.scale_list and list(other.size_list) == info.size_list
    assert other.size_dict == info.size_dict and other.eq == info.eq
    if eq != "a,b,c,d->abcd" and not eq.startswith(","):
        assert other.naive_cost == info.naive_cost


@pytest.mark.parametrize("name", [row.name for row in optimizers() if not row.needs])
def test_every_optimizer(name):
    _, info = contract_path(*CASES[3][:1], *CASES[3][1], shapes=True, optimize=name)
    assert info.optimizer.startswith(name)


def test_numpy_takes_the_path():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in CASES[3][1]]
    for options in ({}, {"optimize": "optimal"}, {"optimize": False}, {"optimize": ("greedy", 10_000)}):
        path, text = einsum_path(CASES[3][0], *arrays, **options)
        assert path[0] == "einsum_path" and isinstance(text, str)
        assert np.allclose(np.einsum(CASES[3][0], *arrays, optimize=path), np.einsum(CASES[3][0], *arrays))
        assert einsum_path(CASES[3][0], *arrays, optimize=path)[0] == path


def test_einsum_path_is_greedy_by_default():
    eq, shapes = CASES[2]
    path, text = einsum_path(eq, *shapes, shapes=True)
    assert path[1:] == contract_path(eq, *shapes, shapes=True, optimize="greedy")[0]
    assert "optimizer  greedy" in text


def test_operands_may_be_arrays_lists_or_interleaved():
    by_shape = contract_path("ij,jk,kl", (2, 3), (3, 4), (4, 5), shapes=True)[0]
    arrays = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))
    assert contract_path("ij,jk,kl", *arrays)[0] == by_shape
    assert contract_path("ij,jk,kl", *(array.tolist() for array in arrays))[0] == by_shape
    pairs = [each for pair in zip(arrays, ([100, 0], [0, 7], [7, 3])) for each in pair]
    path, info = contract_path(*pairs, [100, 3])
    assert path == by_shape and sorted(info.size_dict.values()) == [2, 3, 4, 5]
    assert re.fullmatch(r"\w\w,\w\w,\w\w->\w\w", info.eq)


def test_broadcast_axes_cost_nothing():
    expr = parse("ij,jjk,...k->...i", [(5, 1), (7, 7, 2), (3, 2)])
    assert search_terms(expr) == (("i",), ("j", "k"), ("…0", "k"))
    with_ones = contract_path("ij,jk->ik", (5, 1), (7, 2), shapes=True)[1]
    assert with_ones.opt_cost == 7 * 2 + 5 * 2  # the sum over j, then an outer product


def test_ellipses_and_repeated_indices():
    path, info = contract_path("...ij,...jk,kk->...ik", (6, 2, 3), (4, 6, 3, 5), (5, 5), shapes=True)
    assert len(path) == 2 and info.largest_intermediate == 4 * 6 * 2 * 5 and info.shapes[2] == (5, 5)
    assert info.eq.count(",") == 2 and "." not in info.eq


def test_sizes_beyond_floats():
    count = 700
    eq = ",".join(chr(0x4E00 + i) + chr(0x4E01 + i) for i in range(count)) + "->"
    shapes = [(4, 4)] * count
    path, info = contract_path(eq, *shapes, shapes=True)
    assert info.naive_cost > Decimal(10) ** 400 and len(path) == count - 1
    assert "naive flops  " in str(info) and "speedup  " in str(info)


TABLE = """\
          expression  ij,jk,kl->il
           optimizer  auto
         naive flops  3.600e+4
          path flops  1280
             speedup  28.12
largest intermediate  100 elements
step  operands  indices  flops  elements  contraction  remaining
   0       0,1        3    480         8  ij,jk->ik    kl,ik->il
   1       0,1        3    800       100  kl,ik->il    il->il"""


def test_the_table():
    info = contract_path("ij,jk,kl->il", (2, 30), (30, 4), (4, 50), shapes=True)[1]
    assert str(info) == repr(info) == TABLE
    assert einsum_path("ij,jk,kl->il", (2, 30), (30, 4), (4, 50), shapes=True, optimize=True)[1] == TABLE


def test_the_table_of_many_operands_stays_narrow():
    shapes = [(2, 2)] * 60
    eq = ",".join(chr(0x4E00 + i) + chr(0x4E01 + i) for i in range(60))
    lines = str(contract_path(eq, *shapes, shapes=True)[1]).splitlines()
    assert len(lines) == 6 + 1 + 59 and max(map(len, lines)) < 200
    assert lines[7].endswith(" ...") and lines[-1].endswith(f"->{eq[0]}{eq[-1]}")


def test_options_are_checked():
    with pytest.raises(EngineTypeError, match=r"contract_path\(\) has no option 'optimise'; its options are max_time"):
        contract_path("ij,jk", (2, 3), (3, 4), shapes=True, optimise="auto")
    with pytest.raises(EngineTypeError, match="operand 1 is int, but shapes=True expects a tuple of sizes"):
        contract_path("ij,j", (2, 3), 3, shapes=True)
    with pytest.raises(EngineValueError, match="unknown optimiser 'fast'"):
        contract_path("ij,jk", (2, 3), (3, 4), shapes=True, optimize="fast")
    with pytest.raises(EngineValueError, match="index 'j' is 3 in operand 0 axis 1 but 4 in operand 1 axis 0"):
        contract_path("ij,jk", (2, 3), (4, 5), shapes=True)
    with pytest.raises(EngineValueError, match="path .* does not fit 'ij,jk->ki' with 2 operands"):
        contract_path("ij,jk->ki", (2, 3), (3, 5), shapes=True, optimize=[(0, 2)])
    with pytest.raises(EngineValueError, match="memory_limit=9 elements cannot be met for 'ij,jk': the result alone"):
        contract_path("ij,jk", (2, 3), (3, 5), shapes=True, memory_limit=9)
    with pytest.raises(EngineValueError, match="1 in operand 0 axis 1"):
        contract_path("ij,jk", (2, 1), (3, 5), shapes=True, strict=True)


def test_info_is_frozen():
    info = contract_path("ij,jk", (2, 3), (3, 5), shapes=True)[1]
    assert isinstance(info, PathInfo)
    with pytest.raises(AttributeError):
        info.path = []


@pytest.mark.parametrize("find", [engine.contract_path, engine.einsum_path, opt_einsum.contract_path, np.einsum_path])
def test_a_path_is_taken_with_what_it_costs(find):
    """As these functions return it."""
    eq, arrays = "ij,jk,kl->il", [np.ones(shape) for shape in ((3, 4), (4, 5), (5, 2))]
    found = find(eq, *arrays, optimize="greedy")
    steps = [step for step in found[0] if step != "einsum_path"]
    plans = [engine.compile(eq, *arrays, optimize=path).plan for path in (found, steps)]
    assert plans[0] == plans[1]
    assert np.array_equal(engine.einsum(eq, *arrays, optimize=found), np.full((3, 2), 20.0))
