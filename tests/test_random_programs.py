"""Random programs against NumPy run eagerly, and that the comparison can fail."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import check_case, check_many, compare, draw_case, replay

from einsum_engine import ir, op_numpy
from einsum_engine.ops import OPS
from einsum_engine.trace import Scope

CASES = 300


@settings(max_examples=CASES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs(data):
    case = draw_case(lambda options: data.draw(st.sampled_from(list(options))))
    try:
        check_case(case)
    except Exception as error:
        error.add_note(f"replay with: {replay(case)}")
        raise


def test_cases_from_seeds():
    """The same, without shrinking; most have several statements."""
    assert check_many(range(CASES)) > 3 * CASES


def test_a_forgotten_write_is_found(monkeypatch):
    monkeypatch.setattr(Scope, "update", lambda self, root, atom: None)
    with pytest.raises(AssertionError, match="NumPy has"):
        check_many(range(50))


def test_a_failure_says_how_to_run_it_alone(monkeypatch):
    monkeypatch.setattr(Scope, "update", lambda self, root, atom: None)
    with pytest.raises(AssertionError) as caught:
        check_many(range(50, 100))
    (note,) = caught.value.__notes__
    command, script, case = shlex.split(note.removeprefix("replay with: "))
    assert (command, script) == ("python", "tests/random_programs.py")
    with pytest.raises(AssertionError, match=re.escape(str(caught.value)[:40])):
        check_case(json.loads(case))


def test_a_wrong_view_is_found(monkeypatch):
    wrong = replace(OPS["access"], numpy=lambda root, view: op_numpy.access(root, view=view)[..., ::-1])
    monkeypatch.setattr(ir, "OPS", {**OPS, "access": wrong})
    with pytest.raises(AssertionError, match="NumPy has"):
        check_many(range(50))


@pytest.mark.parametrize(
    "wanted, found",
    [
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, "f4")),
        (np.zeros(2), np.array([0, 1e-3])),
        (np.float64(0), np.zeros(())),
    ],
)
def test_the_comparison_can_fail(wanted, found):
    with pytest.raises(AssertionError, match="NumPy has"):
        compare("x", wanted, found, False)
