"""Permutations beside copies: which cases have them, that they copy, what becomes of their times."""

import json

import numpy as np
import pytest
from bench_cases import Engine, case, numpy_peer, result_of, settings
from test_bench_programs import roof

import einsum_engine as engine
from einsum_engine.bench import cases, copies, figures, record, run

PERMUTED = cases.select(["permutations"])


def test_every_permutation_is_held_against_copies_and_nothing_else():
    assert all(each.copied for each in PERMUTED) and len(PERMUTED) == 114
    assert not any(each.copied for each in cases.select(["thesis", "tccg", "gemm", "gates"]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_copy_fills_its_memory(dtype):
    array = np.arange(1000, dtype=dtype).reshape(10, 100) + 1
    found = copies.copies(array, engine, 1)
    assert {"copy by einsum_engine", "copy by numpy"} <= {each.name for each in found}
    for each in found:
        each.function()
        assert each.first > 0 and each.measure
    outs = {name: memory_of(each.function) for name, each in ((one.name, one) for one in found)}
    assert all(np.array_equal(out.reshape(array.shape), array) for out in outs.values())
    assert not any(np.shares_memory(out, array) for out in outs.values())
    given = np.zeros((100, 10), dtype)
    for each in copies.copies(array, engine, 1, given):
        given.fill(0)
        each.function()
        assert np.array_equal(given.reshape(array.shape), array)


def memory_of(copy):
    """Where a copy writes to: ``out=``, the first argument of `numpy.copyto`, or the tensor whose method it is."""
    if "out" in copy.keywords:
        return copy.keywords["out"]
    return copy.args[0] if copy.func is np.copyto else copy.func.__self__.numpy()


@pytest.mark.parametrize("copied", [True, False])
def test_a_case_is_timed_beside_copies_where_it_says_so(copied):
    each = case("ab->ba", [(30, 40)], copied=copied)
    result = run.run_case(each, Engine(), [numpy_peer()], settings(), roof())
    assert result.verdict.passed
    assert (result.copy_seconds is not None) == (result.copy_share is not None) == copied
    data = json.loads(json.dumps(record.case_to_json(result)))
    assert data["copy_share"] == result.copy_share
    again = record.case_from_json(data)
    assert (again.copy_seconds, again.copy_share) == (result.copy_seconds, result.copy_share)


def test_what_is_asked_of_permutations_is_asked_beside_the_copy():
    results = [result_of("permutations_f32", 2.0, share=0.1, name=str(n)) for n in range(2)]
    for result, share in zip(results, (0.5, 2.0)):
        result.copy_share = share
    found = {figure.name: (figure.value, figure.met) for figure in figures.figures_of(results)}
    assert found == {
        "share of a copy beside it, geometric mean": (pytest.approx(0.5**0.5), False),
        "share of a copy beside it, worst": (0.5, False),
    }
