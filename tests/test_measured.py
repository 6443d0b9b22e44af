"""The constants of the cost model: measured once, stored, damaged, absent, switched off; what plans do with them."""

import os
import pickle
import random
import subprocess
import sys
from typing import ContextManager

import numpy as np
import pytest
import random_cases
import random_programs
from plan_cases import machine, request

import einsum_engine as engine
from einsum_engine import cost, measured
from einsum_engine.kernels import diskcache, isa
from einsum_engine.kernels.cpu import pool
from einsum_engine.planners.build import build_plan
from einsum_engine.serialize import plan_hash

ISA = isa.active_isa()
TYPICAL = cost.typical_machine(ISA.name, ISA.vector_bits, ISA.fma)
CONSTANTS = {"float32": 1.5, "float64": 0.75, "cache_bandwidth": 2.0, "memory_bandwidth": 1.25}
CONSTANTS |= {"in_flight": 2.0, "step_seconds": 0.5, "call_seconds": 2.0, "meeting_seconds": 3.0}


def times_typical(factors) -> dict[str, float]:
    """Constants that are so many times the typical ones."""
    return {name: f * (TYPICAL.peak.get(name) or getattr(TYPICAL, name)) for name, f in factors.items()}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EINSUM_ENGINE_MEASURE", raising=False)
    monkeypatch.setattr(measured, "_known", {})
    engine.clear_cache()
    yield tmp_path / "cache"
    engine.clear_cache()


@pytest.fixture
def count(monkeypatch):
    """Measuring takes no time, and is counted."""
    calls = []
    monkeypatch.setattr(measured, "_measure", lambda row: calls.append(row) or times_typical(CONSTANTS))
    return calls


def fresh():
    """The machine as a new process finds it."""
    measured._known.clear()
    return measured.machine(ISA)


def test_what_is_measured_is_plausible():
    """Other programs may stop all runs of a loop, but not five times over."""
    assert any(plausible(measured._measure(ISA)) for _ in range(5))


def plausible(found: dict[str, float]) -> bool:
    assert set(found) == set(cost.CONSTANTS)
    rates = [found[name] for name in cost.CONSTANTS if not name.endswith(("seconds", "in_flight"))]
    costs = [found[name] for name in ("step_seconds", "call_seconds", "meeting_seconds")]
    return all(1e6 < rate < 1e14 for rate in rates) and max(costs) < 1e-3 and 0.5 < found["in_flight"] < 100


def test_constants_are_measured_once_and_then_read(count):
    first = measured.machine(ISA)
    assert first.measured and first.isa == ISA.name
    assert fresh() == first == measured.machine(ISA) and len(count) == 1
    assert first.peak["float32"] == first.peak["complex64"] == pytest.approx(1.5 * TYPICAL.peak["float32"])
    assert first.peak["complex128"] == pytest.approx(0.75 * TYPICAL.peak["float64"])
    assert first.peak["int32"] == pytest.approx(1.5 * TYPICAL.peak["int32"])
    assert first.call_seconds == pytest.approx(2 * TYPICAL.call_seconds) and first.in_flight == 2 * TYPICAL.in_flight
    assert first.meeting_seconds == pytest.approx(3 * TYPICAL.meeting_seconds)


def test_nonsense_stays_within_a_factor(monkeypatch):
    wild = dict.fromkeys(CONSTANTS, 1e6) | {"float64": 1e-6, "step_seconds": 1e-6}
    monkeypatch.setattr(measured, "_measure", lambda row: times_typical(wild))
    found = measured.machine(ISA)
    assert found.peak["float32"] == 4 * TYPICAL.peak["float32"] and found.peak["float64"] == TYPICAL.peak["float64"] / 4
    assert found.step_seconds == TYPICAL.step_seconds / 4 and found.call_seconds == 4 * TYPICAL.call_seconds
    assert found.memory_bandwidth == 4 * TYPICAL.memory_bandwidth


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")


@pytest.mark.parametrize("alone, shared, found", [(1e-5, 7e-6, 2e-6), (1e-5, 9.5e-6, None), (1e-5, 2e-5, None), (1e-5, 4e-6, 1e-9)])
def test_two_threads_of_which_one_was_busy_have_not_met(alone, shared, found, two, monkeypatch):
    """A busy minute at the first plan would keep threads from sharing ever after, and there is nothing that it tells."""
    taken = iter([alone, shared])
    monkeypatch.setattr(measured, "_best", lambda call, calls: next(taken))
    assert measured._meeting(ISA) == pytest.approx(TYPICAL.meeting_seconds if found is None else found)


def test_a_thread_that_cannot_be_started_is_a_typical_one(two, monkeypatch):
    """Not an error: a plan for one thread is made after measuring, too."""

    def cannot(self, workers):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "_pool", None)
    monkeypatch.setattr(pool.Pool, "grow", cannot)
    assert measured._meeting(ISA) == TYPICAL.meeting_seconds
    assert measured.machine(ISA).measured
    assert engine.einsum("ab,bc->ac", np.ones((2, 3)), np.ones((3, 4)), threads=1)[0, 0] == 3


@pytest.mark.parametrize("found, units", [(7.3, 2), (4.4, 1), (5.9, 1), (8.9, 2), (1.6, 1), (1e9, 4)])
def test_multiply_adds_in_flight_are_those_of_whole_units(found, units):
    """Of a core with one unit; what is far off is believed within a factor of four."""
    typical = cost.typical_machine("avx512", 512, True)
    constants = {name: typical.peak.get(name) or getattr(typical, name) for name in cost.CONSTANTS}
    made = cost.measured_machine(typical, constants | {"in_flight": found})
    assert typical.in_flight == cost.LATENCY and made.in_flight == units * cost.LATENCY


@pytest.mark.parametrize("damage", ["empty", "cut", "changed"])
def test_a_damaged_file_is_measured_anew(count, damage):
    first = measured.machine(ISA)
    path = measured._file(ISA)
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[:-3], "changed": data[:-2] + b"9\n"}[damage])
    assert fresh() == first and len(count) == 2
    assert path.read_bytes() == data


@pytest.mark.parametrize("body", [b"float32 1e9\n", b"\xff\n", b"a b c\n", b"float32 -1\n", b"float32 nan\n"])
def test_a_whole_file_without_the_constants_is_none(count, body):
    good = measured._text(times_typical(CONSTANTS))
    assert measured._parsed(good) == times_typical(CONSTANTS)
    broken = body if b"float32 -" not in body and b"nan" not in body else body + b"".join(good.splitlines(True)[1:])
    assert measured._parsed(broken) is None
    diskcache.write(measured._file(ISA), broken)
    assert measured.machine(ISA) == TYPICAL


def test_a_folder_that_cannot_be_made_is_a_typical_machine(count, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path / "file"))
    assert measured.machine(ISA) == TYPICAL and not count


def test_a_folder_that_is_read_only_is_a_typical_machine(count, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert measured.machine(ISA) == TYPICAL and not count
    monkeypatch.undo()


def test_a_disk_that_is_full_is_a_typical_machine(count, monkeypatch):
    def full(*args, **more):
        raise OSError("no space left on device")

    monkeypatch.setattr(diskcache, "write_whole", full)
    assert measured.machine(ISA) == TYPICAL and len(count) == 1


def test_it_can_be_switched_off(count, monkeypatch, folder):
    monkeypatch.setenv("EINSUM_ENGINE_MEASURE", "0")
    assert measured.machine(ISA) == TYPICAL and not count and not folder.exists()


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_each_instruction_set_has_its_constants(count, row):
    found = measured.machine(row)
    assert found.measured and found.isa == row.name and count == [row]
    assert measured._file(row).name.startswith(row.name + "-")


PROGRAM = """
import time
from einsum_engine import measured
from einsum_engine.kernels.isa import active_isa
measured._measure = lambda isa: time.sleep(0.2) or dict.fromkeys(measured.CONSTANTS, float({number}))
import einsum_engine as engine, numpy as np
plan = engine.compile("ij,jk->ik", (300, 300), (300, 300), threads=1).plan
print(measured.machine(active_isa()), plan.seconds)
"""


def test_processes_that_measure_at_once_agree():
    programs = [PROGRAM.format(number=f"1.{number}e10") for number in range(4)]
    started = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) for text in programs]
    printed = {process.communicate(timeout=120)[0] for process in started}
    assert len(printed) == 1 and b"measured=True" in printed.pop()


# -- plans ---------------------------------------------------------------------------------------------------------
EQUATION, SHAPES = "abc,cde,efb->adf", [(20, 8, 30), (30, 8, 20), (20, 16, 8)]


def test_predicted_times_follow_the_constants(count):
    slow = engine.compile("ij,jk->ik", (600, 600), (600, 600), threads=1)
    predicted = slow.plan.seconds
    assert slow.plan.call_seconds == pytest.approx(2 * TYPICAL.call_seconds)
    assert f"of it the call {TYPICAL.call_seconds * 2 * 1e9:.0f}ns" in slow.explain()
    assert predicted == pytest.approx(slow.plan.call_seconds + sum(step.seconds for step in slow.steps))
    asked = request("ij,jk->ik", [np.ones((600, 600))] * 2)
    assert build_plan(asked, fresh()).seconds == pytest.approx(predicted)
    assert build_plan(asked, TYPICAL).seconds < predicted, "the peak of float64 is lower by a quarter"
    assert build_plan(asked).seconds == build_plan(asked, TYPICAL).seconds


def test_the_same_machine_gives_the_same_plan(count):
    asked = request(EQUATION, [np.ones(shape) for shape in SHAPES])
    first, second = (build_plan(asked, fresh()) for _ in range(2))
    assert first == second and plan_hash(first) == plan_hash(second)


def test_a_stored_plan_brings_its_constants_along(monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "_measure", lambda row: times_typical(CONSTANTS))
    made = engine.compile(EQUATION, *SHAPES, threads=1)
    text, pickled, predicted = made.to_json(), pickle.dumps(made), made.plan.seconds
    monkeypatch.setattr(measured, "_measure", lambda row: times_typical(dict.fromkeys(CONSTANTS, 3.0)))
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path / "elsewhere"))
    measured._known.clear()
    (tmp_path / "plan.json").write_text(text)
    for loaded in (engine.load(tmp_path / "plan.json"), pickle.loads(pickled)):
        assert loaded.plan == made.plan and loaded.plan.seconds == predicted
    assert engine.compile(EQUATION, *SHAPES, threads=1).plan.seconds != predicted


def test_switching_changes_what_einsum_plans_with(count, monkeypatch):
    a = np.ones((30, 30))
    engine.einsum("ij,jk->ik", a, a)
    assert len(count) == 1
    monkeypatch.setenv("EINSUM_ENGINE_MEASURE", "0")
    assert engine.compile("ij,jk->ik", a, a).plan.call_seconds == TYPICAL.call_seconds


# -- results -------------------------------------------------------------------------------------------------------
def drawn(seed: int) -> ContextManager[None]:
    """Constants anywhere within what is believed."""
    rng = random.Random(seed)
    return machine(**{name: cost.WITHIN ** rng.uniform(-1, 1) for name in cost.CONSTANTS})


@pytest.mark.parametrize("seed", range(4))
def test_results_are_right_whatever_is_measured(seed):
    with drawn(seed):
        for number in range(30):
            random_cases.run(random_cases.draw_case(random.Random(f"{seed} {number}").choice))
        random_programs.check_many(range(30 * seed, 30 * seed + 30))


def test_what_is_measured_decides():
    """Else the test before this one would be of one machine."""
    found = set()
    for seed in range(4):
        with drawn(seed):
            plan = engine.compile("mk,kn->mn", (130, 140), (140, 150), dtypes="float16", threads=1).plan
        found.add(tuple(step.family for step in plan.steps))
    assert found == {("gemm",), ("gemm", "copy")}  # sums of halves go to the result at once, or through memory
