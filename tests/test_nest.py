"""Copies, products and sums over random strided nests, on every instruction set that this machine runs."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_case import Case, item_of, spaces

from einsum_engine.errors import EngineValueError
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

MOVED = ["int8", "float16", "float32", "complex64", "complex128"]
MULTIPLIED = ["float32", "complex64", "int8", "bool", "float16"]
SUMMED = ["float32", "complex128", "int16", "bool", "bfloat16"]
MIXED = [("float16", "float32"), ("complex64", "float64"), ("int8", "complex64")]


@st.composite
def copies(draw, dtypes) -> Case:
    a, out = draw(dtypes)
    dims = draw(spaces((item_of(out), item_of(a))))
    # the output of a copy has no loop of stride 0
    problem = NestProblem(op="copy", dims=dims, out=out, a=a)
    return Case(problem, seed=draw(st.integers(0, 99)), threads=draw(st.sampled_from([1, 3])), shift=draw(st.integers(0, 3)))


@ISAS
@RANDOM
@given(case=copies(st.sampled_from([(name, name) for name in MOVED])))
def test_copy(isa, case):
    case.check(isa)


@ISAS
@RANDOM
@given(case=copies(st.sampled_from(MIXED)))
def test_copy_converts(isa, case):
    case.check(isa)


@st.composite
def products(draw) -> Case:
    dtype = draw(st.sampled_from(MULTIPLIED))
    dims = draw(spaces((item_of(dtype),) * 3))
    flags = {name: draw(st.booleans()) for name in ("conj_a", "conj_b", "accumulate")}
    problem = NestProblem(op="mul", dims=dims, out=dtype, a=dtype, b=dtype, **flags)
    return Case(problem, seed=draw(st.integers(0, 99)), threads=draw(st.sampled_from([1, 3])), shift=draw(st.integers(0, 3)))


@ISAS
@RANDOM
@given(case=products())
def test_mul(isa, case):
    case.check(isa)


@st.composite
def sums(draw) -> Case:
    dtype = draw(st.sampled_from(SUMMED))
    dims = draw(spaces((item_of(dtype),) * 2, summed=True, limit=8_000))
    flags = {name: draw(st.booleans()) for name in ("conj_a", "accumulate")}
    problem = NestProblem(op="sum", dims=dims, out=dtype, a=dtype, **flags)
    return Case(problem, seed=draw(st.integers(0, 99)), threads=draw(st.sampled_from([1, 3])), shift=draw(st.integers(0, 3)))


@ISAS
@RANDOM
@given(case=sums())
def test_sum(isa, case):
    case.check(isa)
