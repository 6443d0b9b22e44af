"""A run of the benchmark as a whole: what is written and when, going on with it, figures beside what is asked."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bench_cases import Engine, case, numpy_peer, result_of, settings

import einsum_engine
from einsum_engine.bench import calls, cases, figures, limits, peers, plot, record, report, run
from einsum_engine.bench import scaling, session, startup, timing
from einsum_engine.errors import EngineValueError

ENTRY = {"family": "f", "name": "product", "expr": "ij,jk->ik", "shapes": [[4, 5], [5, 6]], "dtype": "int64"}


@pytest.fixture
def machine(monkeypatch):
    """A machine whose peaks need no measuring."""
    fake = SimpleNamespace(
        fma_peak=lambda dtype, threads, fresh: 1e9, copy_bandwidth=lambda nbytes, threads, fresh: 1e9
    )
    monkeypatch.setattr(limits, "_calibrate", lambda: fake)
    monkeypatch.setattr(limits, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(startup, "measure", lambda: {"cold": STARTUP, "warm": STARTUP})


STARTUP = {"import": 0.1, "first_call": 2.0, "second_call": 0.1, "total": 0.6}


@pytest.fixture
def request_of(tmp_path, machine):
    """Requests for a file of three cases, recorded in ``out.json``."""
    entries = [ENTRY, {**ENTRY, "name": "other", "dtype": "float32"}, {**ENTRY, "name": "last", "dtype": "float64"}]
    (tmp_path / "cases.json").write_text(json.dumps(entries))

    def make(**options):
        common = {"files": (str(tmp_path / "cases.json"),), "peers": ("numpy",), "threads": 1, "quick": True}
        return session.Request(**common | {"record": tmp_path / "out.json"} | options)

    return make


def test_a_run_prints_and_returns_everything(request_of, tmp_path, capsys):
    data, wrong = session.bench(request_of(only="product"), engine=Engine())
    printed = capsys.readouterr().out
    assert wrong == 0 and [each["name"] for each in data["cases"]] == ["product", "product full range"]
    assert "product full range" in printed and "PASS" in printed and "ratio = fastest peer / ours" in printed
    assert data["complete"] and data["threads"] == 1 and data["sessions"] == 1
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(data, allow_nan=False))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "no temporary file is left"
    pytest.importorskip("matplotlib")
    plot.plot_run(data, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


class Stopping(Engine):
    """An engine that is interrupted in the middle of a run."""

    def compile(self, expr, *shapes, dtypes, **options):
        if dtypes[0] == "float64":
            raise KeyboardInterrupt
        return super().compile(expr, *shapes, dtypes=dtypes, **options)


def test_a_run_that_is_cut_short_keeps_what_it_has_and_is_resumed(request_of, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        session.bench(request_of(), engine=Stopping())
    left = json.loads((tmp_path / "out.json").read_text())
    assert not left["complete"] and [each["name"] for each in left["cases"]] == [
        "product",
        "product full range",
        "other",
    ]

    engine = Engine()
    data, wrong = session.bench(request_of(resume=True), engine=engine)
    assert {dtype for _, _, dtypes, *_ in engine.compiled for dtype in dtypes} == {"float64"}, (
        "the rest is not run again"
    )
    assert wrong == 0 and data["complete"] and data["sessions"] == 2
    assert [each["name"] for each in data["cases"]] == ["product", "product full range", "other", "last"]
    assert data["cases"][:3] == left["cases"]
    assert data["summary"][0]["cases"] == 4


def test_a_run_is_not_resumed_under_other_settings(request_of, tmp_path):
    session.bench(request_of(only="other"), engine=Engine())
    for request, words in (
        (request_of(resume=True, quick=False), "measured with quick True, this run has False"),
        (request_of(resume=True, peers=()), r"measured with peers \['numpy'\], this run has \[\]"),
    ):
        with pytest.raises(EngineValueError, match=words):
            session.bench(request, engine=Engine())
    (tmp_path / "out.json").write_text("[]")
    with pytest.raises(EngineValueError, match="not the record of a run"):
        session.bench(request_of(resume=True), engine=Engine())
    (tmp_path / "out.json").unlink()
    data, _ = session.bench(request_of(resume=True, only="other"), engine=Engine())
    assert data["sessions"] == 1, "nothing there: a new run"


def test_a_failure_stays_when_a_run_is_resumed(request_of):
    wrong = Engine(lambda result: result + 1)
    _, failed = session.bench(request_of(only="other"), engine=wrong)
    data, again = session.bench(request_of(only="other", resume=True), engine=Engine())
    assert (failed, again) == (1, 1) and not data["cases"][0]["passed"]


def test_cases_are_chosen_by_family_name_and_dtype(request_of):
    def names(only):
        return [each.name for each in request_of(only=only).chosen_cases()]

    assert names("product") == ["product", "product full range"]
    assert names("^f (other|last) float32$") == ["other"]
    assert session.Request(only="tccg 0[12] .* float32").chosen_tables() == ()
    assert session.Request().chosen_tables() == cases.TABLES
    with pytest.raises(EngineValueError, match="no case matches 'nothing'"):
        session.bench(session.Request(families=("tccg",), only="nothing"))


def test_a_result_survives_the_file():
    roof = limits.Roof(1, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 1e9)
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), [numpy_peer()], settings(), roof)
    result.error = math.inf
    result.peers["slow"] = run.PeerResult(reason="not run: at least 9 s", at_least=9.0)
    data = json.loads(json.dumps(record.case_to_json(result), allow_nan=False))
    back = record.case_from_json(data)
    assert record.case_to_json(back) == data
    assert (back.case.expr, back.case.shapes, back.error) == (result.case.expr, result.case.shapes, math.inf)
    assert back.work == result.work and back.ratio == result.ratio


def test_of_an_external_case_names_and_figures_only_are_written(tmp_path):
    roof = limits.Roof(1, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 1e9)

    def as_text(external):
        each = case("xy,yz->xz", [(8, 9), (9, 10)], external=external)
        result = run.run_case(each, Engine(), [numpy_peer()], settings(), roof)
        result.peers["other"] = run.PeerResult(reason="cannot parse xy,yz->xz")
        return json.dumps(record.case_to_json(result), allow_nan=False)

    assert "xy,yz" not in as_text(True) and "shapes" not in as_text(True)
    assert "xy,yz->xz" in as_text(False)
    assert record.case_from_json(json.loads(as_text(True))).case.external


# --- figures beside what is asked ------------------------------------------------------------------------------


def test_a_figure_is_met_or_not():
    least = figures.Figure(table="t", name="n", value=0.9, unit="x", asked=1.0)
    assert (least.met, replace(least, value=1.0).met, replace(least, most=True).met) == (False, True, True)
    assert replace(least, value=None).met is None and replace(least, asked=None).met is None
    lines = report.figure_lines([least, replace(least, unit="%"), replace(least, unit="s", value=2e-6, most=True)])
    assert [line.split()[2:] for line in lines[1:]] == [
        ["0.90", "at", "least", "1.00", "NOT", "met"],
        ["90", "%", "at", "least", "100", "%", "NOT", "met"],
        ["2.00us", "at", "most", "1.00s", "met"],
    ]
    assert record.figure_from_json(record.figures_to_json([least])[0]) == least


def test_goals_take_means_and_worst_cases_of_their_families():
    results = [result_of("tccg_f32", 4.0, 0.5), result_of("tccg_f32", 1.0, 2.0), result_of("tccg_f64", 9.0)]
    found = {(each.table, each.name): each for each in figures.figures_of(results)}
    assert found["tccg, float32", "best peer / ours, geometric mean"].value == pytest.approx(2.0)
    assert found["tccg, float32", "best peer / ours, worst"].met
    assert found["tccg, float32", "share of the limit, geometric mean"].value == pytest.approx(math.sqrt(0.5))
    assert found["tccg, float64", "share of the limit, geometric mean"].value is None
    assert {table for table, _ in found} == {"tccg, float32", "tccg, float64"}


def test_what_is_asked_of_ratios_is_asked_with_out_too():
    results = [result_of("tccg_f32", 4.0, out=out, name=str(out)) for out in (2.0, 8.0, None)]
    found = {each.name: each for each in figures.figures_of(results)}
    mean, worst = (found[f"best peer / ours with out=, {each}"] for each in ("geometric mean", "worst"))
    assert (mean.value, mean.asked) == (pytest.approx(4.0), 1.8), "of those that were timed so"
    assert (worst.value, worst.asked) == (2.0, 1.0)


def test_every_pattern_of_a_goal_names_a_family_that_there_is():
    parts = {each.family for each in ALL} - {"gates"}  # of which nothing is asked
    own = [goal for goal in figures.GOALS if not goal.title.startswith("cases file")]
    inside = {goal.title: [each for each in ALL if goal.holds(run.CaseResult(case=each))] for goal in own}
    assert all(inside.values())
    covered = {each.family for found in inside.values() for each in found}
    assert parts == covered


ALL = cases.select(["thesis", "tccg", "permutations", "gemm", "gates"])


# --- tables without cases --------------------------------------------------------------------------------------


def short(threads=1):
    budget = timing.TimeBudget(seconds=0.01, least_rounds=1, most_rounds=1)
    return run.Settings(threads=threads, budget=budget, settle=lambda: None)


def test_calls_are_measured(machine, monkeypatch):
    monkeypatch.setattr(calls, "_UNTIMED", 1)
    monkeypatch.setattr(calls, "_TIMED", 2)
    found = {each.name: each for each in calls.measure(einsum_engine, short())}
    assert all(each.value is not None and each.table == cases.CALLS for each in found.values())
    assert found["2x2 by 2x2, np.einsum / compiled"].asked == 1.0
    assert found["network 2, planning of a step (19 steps)"].value > 0
    constants = [each for name, each in found.items() if name.endswith("call with constants / without")]
    assert len(constants) == len(calls._CONSTANT) and all(each.most and each.unit == "x" for each in constants)
    for options in ("order='F'", "alpha=2.0", "optimize=[(0, 1)]", "optimize='greedy'"):
        ratio = found[f"2x2 by 2x2 with {options}, np.einsum / compiled"]
        over = found[f"2x2 by 2x2 with {options}, einsum over compiled"]
        assert ratio.value > 0 and not ratio.most and over.asked == 1.5e-6
    variants = [each for name, each in found.items() if name.startswith("permuted variants")]
    assert len(variants) == 4 and all(each.value >= 1 and each.asked == 1.1 and each.most for each in variants)
    assert found["fresh process: from nothing to the first result, warm cache"].value == 0.6


def test_shapes_of_planned_networks_are_new_each_time():
    expr = "abcd,befg,cdjl,fhij,gikl->aehk"
    shapes = [calls._shapes(expr, size, number) for size in calls._SIZES for number in range(1, 13)]
    assert len(set(shapes)) == 12 * len(calls._SIZES) == 36
    assert all(np.einsum(expr, *map(np.ones, each), optimize=True).ndim == 4 for each in shapes[:2])


def test_planning_is_measured_in_bursts(monkeypatch):
    seconds = iter([9.0, 1.0] * calls._UNTIMED + [2.0, 1.0] * 9 + [9.0, 1.0] * calls._UNTIMED + [4.0, 3.0] * 9)
    monkeypatch.setattr(calls, "seconds_of", lambda make: (next(seconds), make()))
    planning = calls._Planning(name="four", expr="ab,bc,cd,de,ef->af")
    assert planning.burst(einsum_engine, short(), 4) == planning.burst(einsum_engine, short(), 3) == []
    step, new = planning.figures()
    assert (step.name, step.value, step.asked) == ("four, planning of a step (4 steps)", 3.0 / 4, 100e-6)
    assert (new.name, new.value) == ("four (5 operands) in a new shape, compile and first call", 3.0 + 2.0)


def test_threads_and_primes_are_measured(monkeypatch):
    monkeypatch.setattr(scaling, "_BOUND", (("ij,jk->ik", 64, "float32"),))
    monkeypatch.setattr(scaling, "_TCCG", ("none",))
    monkeypatch.setattr(scaling, "_PRIMES", {"float32": (61,), "int64": (61,)})
    monkeypatch.setattr(scaling, "_PRIMES_OF_K", {"complex64": (37,)})
    monkeypatch.setattr(scaling, "_EVEN", 32)
    loops = {n: SimpleNamespace(amount=amount, seconds=len, repeats=lambda seconds: 7) for n, amount in ((1, 1), (2, 3))}
    seconds = {"1": 8.0, "2": 5.0, "peak 1": 2.0, "peak 2": 3.0}

    def timed(candidates, settings):
        for each in candidates:
            each.samples.append(seconds.get(each.name, 1.0))

    monkeypatch.setattr(scaling, "_alternate", timed)
    found = scaling.measure(einsum_engine, short(threads=2), loops=lambda dtype, threads: loops[threads])
    assert [each.name for each in found[:5]] == [
        "ij,jk->ik 64 float32, 1 to 2 threads",
        "ij,jk->ik 64 float32, 1 to 2 threads, over the FMA peak's",
        "gemm 61 float32, GFLOP/s over those of 64",
        "gemm 61 int64, GFLOP/s over those of 64",
        "gemm 32 x 37 x 32 complex64, GFLOP/s over those of 32",
    ]
    gained, beside = found[:2]
    assert (gained.value, gained.asked) == (1.6, 1.8)
    assert beside.value == pytest.approx(1.6 / 2) and beside.asked is None, "three times as much in 3 seconds, not 2"
    assert all(each.value > 0 for each in found)
    assert [each.asked for each in found[2:]] == [0.9, 0.9, 0.9, 1.8, 0.9]
    assert found[4].value == pytest.approx(37 / 32), "as long for more"
    assert not any("threads" in each.name for each in scaling.measure(einsum_engine, short(threads=1)))


def test_primes_are_checked_in_every_kind_of_arithmetic():
    products = scaling.prime_products()
    assert {dtype for *_, dtype in products} == {"float32", "float64", "complex64", "int64"}
    assert len({name for name, *_ in products}) == len(products)
    for _, sizes, near, dtype in products:
        moved = [(size, other) for size, other in zip(sizes, near) if size != other]
        assert moved and all(size % each for size, _ in moved for each in range(2, size)) and all(other % 16 == 0 for other in near)
    alone = [dtype for _, (m, k, n), near, dtype in products if (m, n) == (near[0], near[2]) and k != near[1]]
    assert set(alone) == {dtype for *_, dtype in products}


def test_compute_bound_cases_are(machine):
    for each in scaling.bound_cases():
        expression = scaling_expression(each)
        assert 2 * expression.loop_size > 1e8 or each.expr == scaling._CHAIN


def scaling_expression(each):
    from einsum_engine.bench import steps

    return steps.parse(each.expr, each.shapes)


def test_tables_are_not_measured_again_when_resumed(request_of, tmp_path, monkeypatch):
    measured = []

    def table(name, value):
        def measure(running):
            measured.append(name)
            running.figures.append(figures.Figure(table=name, name="n", value=value, unit="x", asked=1.0))

        return measure

    monkeypatch.setattr(session, "_TABLES", {name: table(name, 2.0) for name in ("calls", "scaling")})
    session.bench(request_of(files=(), families=("calls",)), engine=Engine())
    data, _ = session.bench(request_of(files=(), families=("calls", "scaling"), resume=True), engine=Engine())
    assert measured == ["calls", "scaling"]
    assert [(each["table"], each["met"]) for each in data["figures"]] == [("calls", True), ("scaling", True)]


def test_every_table_has_a_measurement():
    assert set(session._TABLES) == set(cases.TABLES)
    assert {peer.name for peer in peers.PEERS} >= {name for each in ALL for name in each.peers or ()}
