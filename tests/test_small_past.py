"""Rows and terms that are written out, of results past the caches: whole lines, wherever they begin, and nothing beside them."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine.executor import bind
from einsum_engine.kernels import small
from einsum_engine.kernels.cpu import small_abi as sa
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.planners import unpacked
from einsum_engine.planners.build import build_plan

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)


def planned(isa, text, arrays, threads=1, conj=()):
    with made_anew():
        request = engine.compile(text, *arrays, conj=list(conj)).plan.request
        return build_plan(replace(request, isa=isa.name, threads=threads))


def values(rng, shape, dtype):
    found = rng.integers(-4, 5, shape).astype(dtype)
    if found.dtype.kind == "c":
        found.imag = rng.integers(-4, 5, shape)
    return found


def run_at(plan, arrays, shift):
    """Its result, ``shift`` bytes behind the beginning of a line, between canaries."""
    shape, dtype = plan.expr.output_shape, np.dtype(plan.dtype)
    nbytes = dtype.itemsize * int(np.prod(shape))
    memory = np.full(nbytes + 4 * LINE, 0xA5, np.uint8)
    start = LINE - memory.ctypes.data % LINE + shift
    out = memory[start : start + nbytes].view(dtype).reshape(shape)
    bind(plan).run(arrays, out)
    assert (memory[:start] == 0xA5).all() and (memory[start + nbytes :] == 0xA5).all()
    return out


@ISAS
@pytest.mark.parametrize("dtype", small.FIXED_DTYPES)
@pytest.mark.parametrize("size", small.FIXED)
@pytest.mark.parametrize("lines", [1, 3, 16])
def test_results_that_begin_with_lines_and_others(isa, dtype, size, lines, monkeypatch):
    monkeypatch.setattr(small, "FAR_BYTES", 0)
    monkeypatch.setattr(unpacked, "_GATE_BYTES", 0)
    rng, run = np.random.default_rng(lines), lines * LINE // np.dtype(dtype).itemsize
    for text, shapes in (("abc,bd->adc", ((7, size, run), (size, size))), ("ebc,ebd->edc", ((9, size, run), (9, size, size)))):
        arrays = [values(rng, shape, dtype) for shape in shapes]
        expected = oracle.einsum(text, *arrays, conj=[1]).value
        for threads in (1, 2):
            plan = planned(isa, text, arrays, threads, conj=[1])
            step = plan.steps[-1]
            if isa.vector_bits < 8 * LINE:
                assert step.family == "small" and step.args.words[sa.S_STREAM]
            for shift in (0, 32, arrays[0].itemsize):
                assert np.array_equal(run_at(plan, arrays, shift), expected)


@ISAS
def test_long_rows_are_cut_where_their_size_has_a_divisor(isa, monkeypatch):
    monkeypatch.setattr(small, "FAR_BYTES", 0)
    monkeypatch.setattr(unpacked, "_GATE_ROW", 512)
    rng = np.random.default_rng(0)
    for size in (40 * 128, 24 * 256, 5003, 2 * 5003, 16 * 3**6):
        arrays = [values(rng, (2, size), "float32"), values(rng, (2, 2), "float32")]
        plan = planned(isa, "bc,bd->dc", arrays)
        step = plan.steps[-1]
        assert isa.vector_bits >= 8 * LINE or (step.family == "small") == (size % 16 == 0)
        if step.family == "small":
            assert step.args.words[sa.S_N] * 4 <= 512 and step.args.words[sa.S_STREAM] and step.args.words[sa.S_AHEAD]
        assert np.array_equal(run_at(plan, arrays, 0), arrays[1].T @ arrays[0])


def test_what_is_not_whole_lines_apart_or_added_to_goes_through_the_caches(monkeypatch):
    isa = next((each for each in host_isas() if each.vector_bits < 8 * LINE), active_isa())
    item, row = 4, 4 * LINE
    steps = dict(t=9, t_strides=(0, 2 * row, 2 * row), m=2, m_strides=(8, row), n=row // item, k=2, k_strides=(item, row))
    place = small.Operand(slot=0, offset=0)
    p = small.SmallProblem(dtype="float32", a=place, b=place, c=place, **steps)
    assert not small.streams(p, isa), "it is in cache"
    monkeypatch.setattr(small, "FAR_BYTES", 0)
    assert small.streams(p, isa) == (isa.vector_bits < 8 * LINE)
    table = np.array([0, 9 * 2 * row + 32])
    for other in (
        replace(p, accumulate=True),
        replace(p, t_strides=(0, 2 * row, 2 * row + 32)),
        replace(p, m_strides=(8, row + 16)),
        replace(p, n=p.n + 4),
        replace(p, outer=((2, table, table, table),)),
    ):
        assert not small.streams(other, isa)
    far = replace(p, n=(small.NEXT_BYTES // 2) // item + 16)
    assert small.lower(p, isa).words[sa.S_AHEAD] == 2 * row and not small.lower(far, isa).words[sa.S_AHEAD]
