"""What is predicted of operands whose lines push each other out of the caches, and what is chosen by it."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plan_cases import made_anew, typical

import einsum_engine as engine
from einsum_engine import cost
from einsum_engine.executor import bind
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.gemm import Operand
from einsum_engine.kernels.isa import active_isa, get, host_isas
from einsum_engine.kernels.small import SmallProblem
from einsum_engine.plan import Axis
from einsum_engine.planners import cache_sets, unpacked_cost
from einsum_engine.planners.build import build_plan
from einsum_engine.planners.cache_sets import BEYOND, line_cycles
from einsum_engine.planners.contraction import BinaryContraction
from einsum_engine.planners.gemm import plan_gemm
from einsum_engine.planners.gemm_cost import product_seconds
from einsum_engine.planners.sides import OUT, Dim
from einsum_engine.planners.unpacked import UnpackedPlan
from einsum_engine.planners.unpacked_cost import unpacked_seconds

CACHES = {1: 32 << 10, 2: 512 << 10}  # both with 8 lines in a set


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    """Of one size, whatever the machine has."""
    monkeypatch.setattr(cache_sets, "cache_of_level", CACHES.__getitem__)


def _lines(steps) -> set[int]:
    places = itertools.product(*(range(0, size * step, step) if step else (0,) for size, step in steps))
    return {sum(place) // 64 for place in places}


def _stays(lines, level) -> bool:
    """Whether no set of a cache has more than 8 of the lines."""
    period = CACHES[level] // 8
    return max(Counter(line % (period // 64) for line in lines).values()) <= 8


def test_lines_and_sets_of_dense_operands_are_counted_as_they_lie():
    """Some dimensions of a dense operand, all of powers of two, against a count of the lines in each set."""
    seen = Counter()
    for seed in range(300):
        draw = random.Random(seed)
        sizes = [draw.choice((2, 4, 8, 16)) for _ in range(draw.randint(4, 8))]
        strides = [4 * int(np.prod(sizes[at + 1 :])) for at in range(len(sizes))]
        steps = [step for step in zip(sizes, strides) if draw.random() < 0.6]
        lines = _lines(steps)
        if len(lines) > 4096:
            continue
        assert cache_sets._lines(steps, 4) == len(lines), (seed, steps)
        stays = any(_stays(lines, level) for level in (1, 2))
        assert cache_sets._stay(steps, 4) == stays, (seed, steps)
        seen[stays] += 1
    assert min(seen[True], seen[False]) > 10


def test_products_wait_for_lines_that_are_gone():
    """512 lines in 32 sets, whether the next product has the same ones or others; not where as many lie anywhere, nor in
    other caches, nor where a product reads most of each line."""
    columns, terms = (64, 16384), (8, 2048)
    assert line_cycles([columns, terms], (64, 4), item=4) == 512 * BEYOND
    assert line_cycles([columns, terms], (64, 64), item=4) == 512 * BEYOND
    assert line_cycles([columns, terms], None, item=4) == 512 * BEYOND
    assert line_cycles([(64, 16384 + 64), terms], (64, 4), item=4) == 0.0
    assert line_cycles([columns, terms, (16, 4)], (64, 4), item=4) == 0.0
    assert line_cycles([(8, 16384), terms], (64, 4), item=4) == 0.0


def test_turns_that_come_to_other_lines_need_those_of_all_turns():
    """64 lines, eight in each set that they have: as many of another turn do not fit beside them."""
    product = [(32, 65536), (2, 64)]
    assert line_cycles(product[1:], (32, 65536), item=4) == 2 * BEYOND
    assert line_cycles(product[1:], (8, 65536), item=4) == 0.0
    assert line_cycles(product[1:], (32, 4), item=4) == 0.0


def test_more_lines_than_the_second_cache_has_are_left_to_other_numbers(monkeypatch):
    steps = [(64, 65536), (128, 4096)]
    assert line_cycles(steps, None, item=4) == 64 * 128 * BEYOND
    assert line_cycles([*steps, (2, 64)], None, item=4) == 0.0
    monkeypatch.setattr(cache_sets, "cache_of_level", lambda level: 0)  # what the system does not tell
    assert line_cycles(steps, None, item=4) == 0.0


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("more, waits", [(0, 512 * BEYOND), (16, 0.0)])
def test_panels_wait_for_such_a_b_that_is_read_in_place(more, waits, isa):
    """Its batch runs along lines, columns lie at whole pages, and a line further apart in the second case."""
    sizes = dict(b=64, m=16, n=64, k=8)
    steps = {"left": dict(m=1, k=16, b=128), "right": dict(b=1, k=512, n=4096 + more), "out": dict(m=1, n=16, b=1024)}
    axes = {key: {i: Axis.strided(i, sizes[i], 4 * n) for i, n in found.items()} for key, found in steps.items()}
    c = BinaryContraction(dtype="float32", sizes=sizes, batch=("b",), m=("m",), n=("n",), k=("k",), **axes)
    work = plan_gemm(c, isa, threads=1, machine=typical(isa)).work
    assert work.in_place and work.waits_b == waits
    seconds = [product_seconds(work._replace(waits_b=w), isa, typical(isa)) for w in (0.0, 1.0, 2.0)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0], rel=1e-3) and seconds[1] > seconds[0]


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_products_that_wait_are_fused_ones(dtype, isa, monkeypatch):
    """Each reads 128 elements, a page apart; where that costs nothing they are done one by one."""
    expression, sizes = "aebcd,adce->cedb", dict(a=32, b=4, c=8, d=32, e=16)
    terms = expression.partition("->")[0].split(",")
    arrays = [np.random.default_rng(0).integers(-3, 4, [sizes[i] for i in term]).astype(dtype) for term in terms]
    request = replace(engine.compile(expression, *arrays, threads=1).plan.request, isa=isa.name)
    families = {}
    for beyond in (0.0, 1e3):
        monkeypatch.setattr(cache_sets, "BEYOND", beyond)
        with made_anew():
            plan = build_plan(request)
        families[beyond] = [step.family for step in plan.steps]
        out = np.empty([sizes[i] for i in "cedb"], dtype)
        bind(plan).run(arrays, out)
        np.testing.assert_array_equal(out, np.einsum(expression, *arrays))
    assert families[1e3] == ["fused"]
    if isa.name == "avx2":
        assert families[0.0] == ["small"]


def test_products_that_wait_take_no_less_than_those_that_do_not(monkeypatch):
    """Long rows that are read once, from memory, by products of a few terms each."""
    isa = active_isa()
    b = Operand(slot=0, offset=0)
    strides = {"t_strides": (16384, 1016, 1016), "m_strides": (8192, 508), "k_strides": (4096, 508)}
    problem = SmallProblem(dtype="float32", a=b, b=b, c=b, t=8192, m=2, n=127, k=2, **strides)
    plan = UnpackedPlan(family="small", problem=problem, isa=isa, threads=1)
    assert unpacked_seconds(plan, isa, typical(isa)) is None  # a roofline has it
    monkeypatch.setattr(unpacked_cost, "small_waits", lambda *_: 1e-9)
    nbytes = 8192 * (2 * 2 + 2 * 2 * 127) * 4
    seconds = unpacked_seconds(plan, isa, typical(isa))
    assert seconds >= cost.seconds(problem.flops, nbytes, "float32", typical(isa)) > 0
    monkeypatch.setattr(unpacked_cost, "small_waits", lambda *_: 1e3)
    assert unpacked_seconds(plan, isa, typical(isa)) > 2 * seconds


def test_columns_that_lie_apart_in_pages_are_those_before_the_first_that_does_not():
    narrow, wide = get("avx2"), get("avx512")

    def apart(*steps, isa=narrow, terms=2):
        dims = [Dim((number,), size, {OUT: step}, {}) for number, (size, step) in enumerate(steps)]
        return cache_sets.columns_apart(dims, isa, terms)

    assert [apart((100, step)) for step in (512, 1024, 2048, 4096, 12288)] == [8, 4, 2, 1, 1]
    assert apart((100, 1920)) == apart((100, 4096 + 64)) == cache_sets.ANY, "far more than a tile has"
    assert apart((100, 16)) == apart((3, 1024)) == apart() == cache_sets.ANY
    assert apart((2, 1024), (50, 4096)) == 2 and apart((2, 1024), (50, 2048)) == 4
    assert apart((100, 4096), isa=wide) == apart((100, 4096), terms=33) == cache_sets.ANY
    assert apart((100, 2048), terms=32) == 2


@pytest.mark.parametrize("isa", [row for row in host_isas() if row.vector_bits < 512], ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_large_results_of_few_terms_have_tiles_whose_columns_lie_apart(isa, dtype):
    """Where none do, or tiles of two would be parts of lines, they go through the caches."""
    item, real = np.dtype(dtype).itemsize, dtype.startswith("float")
    for step, most in ((960, None), (1024, 4), (2048, 2), (4096, None)):
        shapes = (2, step // item), (2, (12 << 20) // step)
        with made_anew():
            request = engine.compile("vo,vi->io", *shapes, dtypes=dtype).plan.request
            plan = build_plan(replace(request, isa=isa.name, threads=1), typical(isa))
        problem = plan.steps[-1].args
        columns = plan.steps[-1].tile[1]
        assert problem.words[abi.G_STREAM] == (step == 960 or columns <= 4096 // step), step
        assert not (real and most) or columns <= most
        rng = np.random.default_rng(0)
        arrays = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
        out = np.empty((shapes[1][1], shapes[0][1]), dtype)
        bind(plan).run(arrays, out)
        assert np.array_equal(out, arrays[1].T @ arrays[0])
