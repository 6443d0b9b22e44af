"""Sums along lines that a batch shares: when lanes run along them, and that the result is right."""

import numpy as np
import oracle
import plan_cases
import pytest
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine.kernels import isa, tiles
from einsum_engine.planners import beside, shared_lines
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.shared_lines import lanes_of_sum

SIZES = dict(g=2, r=4, w=6, a=16, s=4, f=7, d=8)
PRODUCT = "grwas,fdwsar->gafd"
LANES = ["copy", "batched", "sum"]


@pytest.fixture
def small_is_large(monkeypatch):
    """The same plans for tensors that the oracle is done with soon."""
    monkeypatch.setattr(shared_lines, "LEAST_BYTES", 1 << 11)
    monkeypatch.setattr(beside, "LEAST_BYTES", 1 << 11)
    with made_anew():
        yield


def summed(small, large, kept, dtype="float32", row="avx512", **changed):
    sizes = dict(g=8, r=8, w=8, a=8, s=8, f=8, d=8, x=2) | changed
    item = tiles.ITEMSIZE[dtype]
    return lanes_of_sum(dense_axes(small[::-1], sizes, item), dense_axes(large[::-1], sizes, item), kept, dtype, isa.get(row))


def operands(expression, dtype, sizes=SIZES):
    return plan_cases.operands(expression, sizes, dtype, exact=False)


def check(expression, arrays, conj=(), **options):
    f = engine.compile(expression, *arrays, conj=conj, **options)
    oracle.check(f(*arrays), oracle.einsum(expression, *arrays, conj=conj), context=f.explain())
    return [step.family for step in f.plan.steps]


def test_half_lines_that_the_batch_completes():
    assert summed("grwas", "fdwsar", "gafd") == ("r",)
    assert summed("grwas", "fdwsar", "gafd", "float64", r=4) == ("r",)
    assert summed("grwas", "fdwsar", "gafd", row="avx2") == summed("gwasr", "fdwsar", "gafd") == ("r",)
    assert summed("gxrwas", "fdwsaxr", "gafd", r=4) == ("x", "r")[::-1]


@pytest.mark.parametrize(
    "why, given",
    {
        "whole lines": ("grwas", "fdwsar", "gafd", dict(r=16)),
        "more than half of them": ("grwas", "fdwsar", "gafd", dict(r=10)),
        "less than a line with the batch": ("grwas", "fdwsar", "gafd", dict(r=2, a=4, w=64)),
        "columns behind the sum": ("grwas", "fwsadr", "gafd", {}),
        "a batch that is fastest": ("grwas", "fdwsra", "gafd", {}),
        "columns that are fastest": ("grwas", "fwsard", "gafd", {}),
        "no batch": ("grws", "fdwsr", "gfd", dict(f=64)),
        "both run along the sum, a vector each": ("gwasr", "fdwsar", "gafd", dict(row="avx2")),
        "little of it": ("grwas", "fdwsar", "gafd", dict(g=1, w=2, s=2, d=2, f=7)),
        "operands of one size": ("grwas", "fdwsar", "gafd", dict(g=64)),
        "few terms for each lane": ("grwas", "fdwsar", "gafd", dict(s=4)),
        "more rows than stay in cache": ("grwas", "fdwsar", "gafd", dict(g=16, s=16, f=64)),
    }.items(),
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_not_along_the_sum(why, given):
    small, large, kept, sizes = given
    assert summed(small, large, kept, **sizes) == (), why


def test_complex_products_have_more_arithmetic_for_each_byte():
    assert summed("grwas", "fdwsar", "gafd", "complex64", r=4, a=16) == ()
    assert summed("grwas", "fdwsar", "gafd", "complex64", r=4, a=16, g=4) == ("r",)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.usefixtures("small_is_large")
def test_results(dtype, threads):
    sizes = SIZES | dict(r=2 if dtype == "complex128" else 4, s=8)
    assert check(PRODUCT, operands(PRODUCT, dtype, sizes), threads=threads) == LANES


@pytest.mark.parametrize("name", [each.name for each in isa.host_isas()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
@pytest.mark.usefixtures("small_is_large")
def test_instruction_sets(monkeypatch, name, dtype):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", name)
    check(PRODUCT, operands(PRODUCT, dtype))


@pytest.mark.parametrize(
    "expression", ["fdwsar,grwas->gafd", "grwas,fdwsar->dagf", "gwas,fdwsaxr->gafd", "xgrwas,fdwsaxr->agfd"]
)
@pytest.mark.usefixtures("small_is_large")
def test_orders(expression):
    kept = {i for term in expression.split("->")[0].split(",") for i in term}
    check(expression, operands(expression, "float32", {i: (SIZES | dict(x=2, r=2))[i] for i in kept}))


@pytest.mark.parametrize("sizes", [dict(r=3, a=11), dict(r=5, a=7, g=1), dict(r=7, a=5, f=13, g=1), dict(r=2, a=31)])
@pytest.mark.usefixtures("small_is_large")
def test_lanes_that_fill_no_vectors(sizes):
    arrays = operands(PRODUCT, "float32", SIZES | sizes)
    assert check(PRODUCT, arrays) == LANES


@pytest.mark.parametrize("conj", [(0,), (1,), (0, 1)])
@pytest.mark.usefixtures("small_is_large")
def test_conjugated(conj):
    assert check(PRODUCT, operands(PRODUCT, "complex64", SIZES | dict(s=8)), conj=conj) == LANES


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.usefixtures("small_is_large")
def test_dot_products_in_short_runs(monkeypatch, row, dtype):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    sizes = dict(a=3, b=2, c=9, z=11, e=7, f=3, o=5)
    lanes = ["batched", "sum"] if row.vector_bits == 512 else []
    known, free = "abczef,abzef->abce", "abczef,oz,feabo->abce"  # the free operand lies as the large one does
    assert check(known, operands(known, dtype, sizes))[-2:] == lanes or not lanes
    assert check(free, operands(free, dtype, sizes))[-2:] == lanes or not lanes


@pytest.mark.usefixtures("small_is_large")
def test_in_a_network_and_into_other_memory():
    network = "grwas,fdwsar,dgf->ag"
    arrays = operands(network, "float32")
    assert check(network, arrays)[:3] == LANES
    x, y = operands(PRODUCT, "float32")
    out = np.full((16, 2, 8, 7), np.nan, np.float32).transpose(1, 0, 3, 2)
    engine.einsum(PRODUCT, x, y, out=out)
    oracle.check(out, oracle.einsum(PRODUCT, x, y))
    for order in (x[:, :, :, ::-1], y[..., ::-1]), (x[:, :, ::2], y[:, :, ::2]):
        check(PRODUCT, list(order))


@pytest.mark.usefixtures("small_is_large")
def test_a_limit_in_bytes_and_other_layouts_turn_it_off():
    arrays = operands(PRODUCT, "float32", dict(g=5, r=8, w=10, a=10, s=10, f=4, d=10))  # of which it takes more memory
    free = engine.compile(PRODUCT, *arrays).plan
    least = engine.compile(PRODUCT, *arrays, layouts="natural").plan
    assert [step.family for step in free.steps] == LANES and "batched" not in {step.family for step in least.steps}
    assert "batched" not in check(PRODUCT, arrays, memory_limit=f"{free.peak_bytes - 1}B")


def test_the_size_that_it_was_measured_with():
    sizes = dict.fromkeys("grwasfd", 8)
    assert check(PRODUCT, operands(PRODUCT, "float32", sizes)) == LANES
