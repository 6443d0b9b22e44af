"""What the benchmark holds times against: limits of a run, and limits of a moment."""

import json
import time
from types import SimpleNamespace

import pytest

from bench_cases import Engine, case, numpy_peer, result_of, settings
from einsum_engine.bench import figures, limits, record, report, run, steps, timing
from einsum_engine.kernels import calibrate


def test_limit_is_the_larger_of_arithmetic_and_traffic():
    roof = limits.Roof(2, peak=lambda dtype, threads: threads * 1e9, bandwidth=lambda nbytes, threads: threads * 1e9)
    (product,) = steps.walk(steps.parse("ij,jk->ik", [(100, 100), (100, 100)]), [(0, 1)])
    assert roof.limit(limits.work_of([product], "float32", 4), "float32") == pytest.approx(2e6 / 2e9)
    assert roof.limit(limits.work_of([product], "complex64", 8), "complex64") == pytest.approx(8e6 / 2e9)
    (outer,) = steps.walk(steps.parse("i,j->ij", [(1000,), (1000,)]), [(0, 1)])
    assert roof.limit(limits.work_of([outer], "float32", 4), "float32") == pytest.approx(4 * 1_002_000 / 2e9)
    both = limits.work_of([product, outer], "float32", 4)
    assert roof.limit(both, "float32") == pytest.approx(2e6 / 2e9 + 4 * 1_002_000 / 2e9)


def test_roof_measures_each_peak_and_footprint_once():
    asked = []
    roof = limits.Roof(
        1,
        peak=lambda dtype, threads: asked.append(dtype) or 1.0,
        bandwidth=lambda nbytes, threads: asked.append(nbytes) or 1.0,
    )
    for dtype in ("complex128", "float64", "bfloat16", "uint16", "int16"):
        roof.peak(dtype)
    roof.bandwidth(1 << 20)
    roof.bandwidth((1 << 20) + 10)
    assert asked == ["float64", "float32", "int16", 1 << 20]


class Drifting:
    """Stands in for a machine whose rates change: the next of a list at each measurement, then the last."""

    def __init__(self, *rates):
        self.rates, self.count = list(rates), 0

    def __call__(self, what, threads):
        self.count += 1
        return self.rates.pop(0) if len(self.rates) > 1 else self.rates[0]


def test_the_largest_of_several_measurements_counts():
    peak, bandwidth = Drifting(2e9, 5e9, 3e9), Drifting(4e9, 1e9)
    roof = limits.Roof(1, peak=peak, bandwidth=bandwidth)
    arithmetic, traffic = [(10**9, 8)], [(8, 10**9)]
    assert roof.limit(arithmetic, "float32") == 0.5
    roof.again(arithmetic, "float32")
    assert roof.limit(arithmetic, "float32") == 0.2
    roof.again(arithmetic, "float32")
    assert roof.limit(arithmetic, "float32") == 0.2 and peak.count == 3
    before = bandwidth.count
    roof.limit(traffic, "float32")
    roof.again(traffic, "float32")
    assert bandwidth.count == before + 2 and peak.count == 3, "what does not bound the work is left alone"


def test_a_peak_is_measured_several_times_at_the_start_and_again_after_a_while():
    peak, now, pauses = Drifting(1e9, 4e9, 2e9), [0.0], []
    roof = limits.Roof(1, peak=peak, bandwidth=lambda nbytes, threads: 1e12, clock=lambda: now[0])
    roof.prime(["float32", "complex64"], pause=pauses.append)
    assert roof.peaks == {"float32": 4e9} and peak.count == len(pauses) + 1 > 3
    before = peak.count
    roof.refresh([(10**9, 8)], "float32")
    assert peak.count == before
    now[0] = 1e4
    roof.refresh([(10**9, 8)], "float32")
    assert peak.count == before + 1


def test_roof_includes_an_earlier_part_of_the_run():
    roof = limits.Roof(1, peak=lambda dtype, threads: 2e9, bandwidth=lambda nbytes, threads: 1e9)
    roof.peak("float32")
    roof.include({"float32": 3e9, "float64": 1e9}, {"1048576": 7e9})
    assert roof.peaks == {"float32": 3e9, "float64": 1e9} and roof.bandwidth(1 << 20) == 7e9


def test_roof_measures_afresh(monkeypatch):
    fake = SimpleNamespace(
        fma_peak=lambda dtype, threads, fresh: 3.0 if fresh else 1.0,
        copy_bandwidth=lambda nbytes, threads, fresh: 5.0 if fresh else 1.0,
    )
    monkeypatch.setattr(limits, "_calibrate", lambda: fake)
    assert (limits.Roof(1).peak("float32"), limits.Roof(1).bandwidth(4096)) == (3.0, 5.0)


def test_short_limits_give_no_share_and_void_nothing():
    assert limits.share(49e-6, 100e-6) is None and not limits.voids(49e-6, 1e-9)
    assert limits.share(100e-6, 200e-6) == 0.5
    assert not limits.voids(100e-6, 99e-6) and limits.voids(100e-6, 90e-6)


# --- the limit of a moment --------------------------------------------------------------------------------------


class Machine:
    """Stands in for `kernels.calibrate`: loops that take as long as ``slow`` says, and note what they did."""

    def __init__(self):
        self.slow, self.done = 1.0, []

    def loops(self, bound, amount, rate):
        def seconds(repeats):
            self.done.append((bound, repeats * amount))
            return self.slow * repeats * amount / rate

        return SimpleNamespace(amount=amount, seconds=seconds)

    def multiply_adds(self, dtype, threads):
        return self.loops((dtype, threads), 100, 1e9)

    def copies(self, nbytes, threads):
        return self.loops((nbytes, threads), nbytes, 2e9)


@pytest.fixture
def machine(monkeypatch):
    stand_in = Machine()
    monkeypatch.setattr(limits, "_calibrate", lambda: stand_in)
    return stand_in


def roof_of_two(threads=2):
    return limits.Roof(threads, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 2e9)


def test_the_limit_of_a_moment_runs_what_bounds_each_step(machine):
    work = [(10**6, 8), (5 * 10**5, 8), (8, 1 << 20), (8, 1 << 20)]
    roof = roof_of_two()
    now = limits.LimitNow(roof, work, "complex64")
    assert now() == pytest.approx(roof.limit(work, "complex64"))
    done = dict(machine.done)
    assert set(done) == {("float32", 2), (1 << 20, 2)}
    seconds = done["float32", 2] / 1e9 + done[1 << 20, 2] / 2e9
    assert seconds == pytest.approx(timing.SAMPLE_SECONDS, rel=0.1), "as long as a sample of calls"
    assert done["float32", 2] / 1e9 / seconds == pytest.approx(1.5e-3 / now(), rel=0.1), "each for its part"


def test_the_limit_of_a_moment_follows_the_machine(machine):
    now = limits.LimitNow(roof_of_two(), [(10**6, 8), (8, 10**6)], "float64")
    quiet = now()
    machine.slow = 2.0
    assert now() == pytest.approx(2 * quiet)


def test_a_small_part_of_a_limit_is_not_run(machine):
    work = [(10**6, 8), (8, 4096)]
    roof = roof_of_two()
    now = limits.LimitNow(roof, work, "float32")
    assert now() == pytest.approx(roof.limit(work, "float32")) and {what for what, _ in machine.done} == {("float32", 2)}


def test_a_long_limit_runs_each_loop_once(machine):
    now = limits.LimitNow(roof_of_two(), [(8, 1 << 28)], "float32")
    assert now() == pytest.approx((1 << 28) / 2e9) and machine.done == [((1 << 28, 2), 1 << 28)]


def test_parts_of_a_limit_add_up():
    roof = roof_of_two()
    work = [(10**6, 8), (8, 10**6), (3, 1010000), (0, 0), (10**5, 8)]
    parts = roof.parts(work, "complex128")
    assert sum(seconds for _, seconds in parts.values()) == pytest.approx(roof.limit(work, "complex128"))
    assert {bound: amount for bound, (amount, _) in parts.items()} == {
        "float64": 1100000,
        limits._footprint(10**6): 2010000,
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kind", "what"), [("multiply_adds", "float64"), ("copies", 1 << 18)])
def test_loops_run_in_a_thread_each_and_say_how_long(kind, what, threads):
    loops, repeated = getattr(calibrate, kind)(what, threads), []
    one = getattr(calibrate, kind)(what, 1)
    assert len(loops.calls) == threads and loops.amount == (threads * one.amount if kind == "multiply_adds" else what)
    assert loops.seconds(3) > 0
    noted = [lambda repeats: repeated.append(repeats)] * threads
    assert calibrate.Loops(calls=noted, amount=1).seconds(3) >= 0 and repeated == [3] * threads


def test_each_sample_lies_between_two_limits():
    order = []
    candidate = timing.Candidate(name="ours", function=lambda: order.append("ours"), calls=1)
    reached = iter([1.0, 3.0, 5.0, 7.0, 9.0])

    def limit():
        order.append("limit")
        return next(reached)

    def sampled(each):
        each.samples.append(2.0)
        order.append("ours")

    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_probe", lambda each, settle: settle())
        patch.setattr(timing, "_sample", sampled)
        part = timing.against(candidate, limit, budget=budget, settle=lambda: order.append("settle"))
    assert order == ["settle", "limit", *["ours", "limit"] * 3]
    assert part == 2.0, "means 2, 4 and 6 over 2 seconds each: the median"


def test_long_calls_are_held_against_the_limit_as_often_as_asked():
    candidate = timing.Candidate(name="ours", function=lambda: time.sleep(0.011))
    budget = timing.TimeBudget(seconds=0.0, least_rounds=2, most_rounds=9)
    assert 0 < timing.against(candidate, lambda: 0.011, budget=budget, settle=list) <= 1
    assert len(candidate.samples) == 1 + 2


def test_a_case_whose_limit_is_long_enough_has_both_shares(machine):
    slow = limits.Roof(1, peak=lambda dtype, threads: 1e6, bandwidth=lambda nbytes, threads: 1e12)
    one = case("ij,jk->ik", [(8, 9), (9, 10)])
    result = run.run_case(one, Engine(), [numpy_peer()], settings(), slow)
    assert result.share is not None and result.share_beside > 0
    data = json.loads(json.dumps(record.case_to_json(result)))
    assert record.case_from_json(data).share_beside == result.share_beside
    short = limits.Roof(1, peak=lambda dtype, threads: 1e12, bandwidth=lambda nbytes, threads: 1e12)
    assert run.run_case(one, Engine(), [numpy_peer()], settings(), short).share_beside is None


def test_what_is_asked_of_a_share_is_asked_of_both():
    results = [result_of("tccg_f32", 2.0, share=0.5, name=str(n)) for n in range(2)]
    for result, part in zip(results, (0.9, 2.0)):
        result.share_beside = part
    found = {figure.name: figure for figure in figures.figures_of(results)}
    assert not found["share of the limit, geometric mean"].met
    beside = found["share of the limit in alternation, geometric mean"]
    assert beside.value == pytest.approx(0.9**0.5) and beside.met, "a share over 1 counts as 1"
    assert report.summarise(results)[0].share_beside == beside.value
    title, row = report.summary_lines(results)[:2]
    assert "now" in title.split() and "95 %" in row


def test_the_limit_of_a_moment_runs_the_loops_of_the_peak(monkeypatch, tmp_path):
    """On the loops themselves, with a clock in which a repetition of all threads takes a microsecond. What it makes of
    them is not to be remembered beside the figures of this machine."""
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "_known", {})
    monkeypatch.setattr(calibrate, "_run", lambda calls, repeats: 1e-6 * repeats * len(calls))
    one = case("ij,jk->ik", [(256, 256), (256, 256)])
    work = limits.work_of(steps.walk(steps.parse(one.expr, one.shapes), [(0, 1)]), "float32", 4)
    roof = limits.Roof(2, bandwidth=lambda nbytes, threads: 1e15)
    now = limits.LimitNow(roof, work, "float32")
    repetitions = 2 * 256**3 / calibrate.multiply_adds("float32", 2).amount
    assert now() == pytest.approx(2e-6 * repetitions) == pytest.approx(roof.limit(work, "float32"))
