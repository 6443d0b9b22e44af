"""What calls of jitted functions cost: the figures, and the process that a new function is measured in."""

import sys

import numpy as np
import pytest
from bench_cases import settings

import einsum_engine as engine
from einsum_engine.bench import program_calls, startup
from einsum_engine.errors import EngineError


def test_figures_of_small_and_longer_calls():
    found = {figure.name: figure for figure in program_calls.calls(engine, settings())}
    values = list(found.values())
    assert [figure.unit for figure in values] == ["s", "x", "%", "x"]
    assert all(figure.value > 0 for figure in values)
    assert values[2].name.endswith("a call with one row over it") and values[2].most
    assert values[3].name.startswith("native calls") and values[3].value == 1 and values[3].met


@pytest.mark.parametrize(
    "function, wanted", [(lambda x: x, 0), (lambda x: (abs(x), len([x])), 2), (lambda x: [abs(i) for i in range(x)], 5)]
)
def test_native_calls_are_counted(function, wanted):
    assert program_calls.native_calls(function, (5,)) == wanted and sys.getprofile() is None


def test_a_function_without_a_plan_makes_more_calls():
    jitted, x = engine.jit(np.sort), np.array([2j, 1])
    jitted(x)
    assert program_calls.native_calls(jitted, (x,)) > 1


def test_layer_norm_is_one():
    x = np.random.default_rng(0).random((5, 16))
    found = program_calls.layer_norm(x, np.ones(16), np.zeros(16))
    assert np.allclose(found.mean(-1), 0, atol=1e-12) and np.allclose(found.std(-1), 1, atol=1e-3)


def test_a_new_function_is_timed_with_kernels_new_and_on_disk():
    cold, warm = program_calls.new_function()
    assert (cold.asked, warm.asked) == (1.5, 0.02) and cold.name != warm.name
    assert cold.value > 0 and warm.value > 0


def test_a_process_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(startup, "_FUNCTION_PROBE", "raise SystemExit('broken')")
    with pytest.raises(EngineError, match="a fresh process failed: broken"):
        startup.measure_function(3)
