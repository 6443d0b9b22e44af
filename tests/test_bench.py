"""The benchmark judges others, so it is judged here: timing, statistics, peers, whole runs, pictures.

No test asserts a time.
"""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from einsum_engine.bench import cases, check, limits, machine, peers, plot, report, run, session, startup, steps, timing
from einsum_engine.bench.threads import available_cpus, equal_threads
from einsum_engine.errors import EngineError, EngineTypeError, EngineValueError

SOME_PATHS = {2: ((0, 1),), 3: ((0, 1), (0, 1))}


def case(expr, shapes, dtype="float32", name="case", family="family", **options):
    return cases.Case(family=family, name=name, expr=expr, shapes=tuple(map(tuple, shapes)), dtype=dtype, **options)


class Engine:
    """Stands in for the public API: contracts with NumPy, optionally wrongly."""

    def __init__(self, spoil=lambda result: result):
        self.spoil = spoil
        self.compiled = []

    def compile(self, expr, *shapes, dtypes, threads, optimize=None):
        self.compiled.append((expr, shapes, tuple(dtypes), threads, optimize))
        path = SOME_PATHS.get(len(shapes), ((0,),)) if optimize is None else optimize
        step = SimpleNamespace(kernel="gemm", family="gemm")
        plan = SimpleNamespace(path=tuple(path), flops=1, bytes_moved=2, peak_bytes=3, steps=(step,))
        return _Compiled(expr, plan, self.spoil)


class _Compiled:
    def __init__(self, expr, plan, spoil):
        self.expr, self.plan, self.spoil = expr, plan, spoil

    def __call__(self, *arrays, out=None):
        result = self.spoil(np.array(np.einsum(self.expr, *arrays), order="C"))
        if out is None:
            return result
        out[...] = result
        return out


@pytest.fixture
def roof():
    return limits.Roof(1, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 1e9)


def settings(**options):
    budget = timing.TimeBudget(seconds=0.01, least_rounds=1, most_rounds=2)
    return run.Settings(threads=1, budget=budget, settle=lambda: None, **options)


def numpy_peer():
    return next(peer for peer in peers.PEERS if peer.name == "numpy")


# --- timing and statistics -------------------------------------------------------------------------------------


def test_compare_alternates_and_samples_everyone():
    calls = []
    candidates = [
        timing.Candidate(name=name, function=lambda name=name: calls.append(name)) for name in ("a", "b", "c")
    ]
    budget = timing.TimeBudget(seconds=0.0, least_rounds=3, most_rounds=3)
    timing.compare(candidates, always=("a",), budget=budget, settle=lambda: calls.append("settle"))
    assert all(len(each.samples) >= 1 and each.median > 0 for each in candidates)
    assert len(candidates[0].samples) == 4
    order = [name for number, name in enumerate(calls) if name != "settle" and calls[number - 1] == "settle"]
    assert order[:3] == ["a", "b", "c"] and calls.count("settle") >= 6


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    candidate = timing.Candidate(name="nothing", function=lambda: None)
    timing.compare([candidate], budget=timing.TimeBudget(seconds=0.0, least_rounds=1, most_rounds=1), settle=list)
    assert candidate.calls > 100


def test_medians_ignore_one_outlier():
    assert timing.Candidate(name="x", function=print, samples=[1.0, 100.0, 1.1]).median == 1.1


def test_wait_until_idle_returns():
    assert timing.wait_until_idle() in (True, False)


def result_of(family, ratio, share=None, passed=True, out=None, name="n"):
    each = run.CaseResult(case=case("i->i", [(2,)], family=family, name=name), seconds=1.0, again=1.1)
    each.peers = {"numpy": run.PeerResult(seconds=ratio, out_seconds=out)}
    each.best, each.share, each.out_seconds = "numpy", share, 1.0
    each.verdict = check.Verdict(passed=passed, reason="" if passed else "because")
    return each


def test_summary_has_geometric_mean_and_worst_case():
    results = [result_of("f", 4.0, 0.5), result_of("f", 1.0, 2.0, name="slow"), result_of("g", 3.0, passed=False)]
    first, second = report.summarise(results)
    assert (first.title, first.cases, first.passed) == ("f", 2, 2)
    assert first.ratio == pytest.approx(2.0) and (first.worst, first.worst_case) == (1.0, "slow float32")
    assert first.share == pytest.approx(math.sqrt(0.5)), "a share over 1 counts as 1"
    assert (second.passed, second.share, second.shares) == (0, None, 0)
    assert first.noise == pytest.approx(1.1)
    assert report.failures(results) == 1


def test_rollups_sum_up_families():
    results = [result_of("thesis_networks_small", 2.0), result_of("thesis_ordinary_small_f64", 8.0)]
    rows = {row.title: row for row in report.summarise(results)}
    assert rows["thesis, small sizes"].ratio == pytest.approx(4.0)
    assert "thesis, large sizes" not in rows


def test_geometric_mean_of_nothing_is_nothing():
    assert report.geometric_mean([]) is None


def test_ratio_with_out_is_against_the_fastest_with_out():
    each = result_of("f", 2.0, out=3.0)
    each.peers["tblis"] = run.PeerResult(seconds=5.0, out_seconds=1.5)
    assert (each.ratio, each.out_ratio) == (2.0, 1.5)


# --- peers -----------------------------------------------------------------------------------------------------


def task(expr="ij,jk,kl->il", shapes=((4, 5), (5, 6), (6, 3)), dtype="float32"):
    each = case(expr, shapes, dtype)
    expression = steps.parse(expr, each.shapes)
    path = SOME_PATHS.get(len(shapes), ((0,),))
    return peers.Task(expression=expression, arrays=tuple(cases.operands(each)), path=path, dtype=dtype)


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_peer_is_right_fresh_and_contiguous(peer, dtype):
    if peer.missing():
        pytest.skip(f"{peer.missing()} is not installed")
    assert peer.versions()
    for expr, shapes in (("ij,jk,kl->li", ((4, 5), (5, 6), (6, 3))), ("ijk->kij", ((2, 3, 4),))):
        asked = task(expr, shapes, dtype)
        for call in peer.calls(asked):
            result = call.to_numpy(call.function(*map(call.convert, asked.arrays)))
            assert np.allclose(result, np.einsum(expr, *asked.arrays), atol=1e-4)
            assert result.flags.c_contiguous and not any(np.may_share_memory(result, each) for each in asked.arrays)
            if call.with_out:
                out = np.zeros(asked.expression.output_shape, dtype=dtype)
                call.with_out(out)(*call.args)
                assert np.allclose(out, result)


def test_a_peer_says_why_it_cannot():
    tblis = next(peer for peer in peers.PEERS if peer.name == "tblis")
    with pytest.raises(peers.Unsupported, match="no int64"):
        tblis.calls(task(dtype="int64"))
    huge = task("ab,cd,ef,gh->ah", ((99, 99),) * 4)
    with pytest.raises(peers.Unsupported, match="one loop of 9.2e.15 iterations over 4 operands"):
        numpy_peer().calls(huge)


def test_own_path_is_left_out_where_it_costs_far_more(monkeypatch):
    monkeypatch.setattr(peers, "_MOST_COST_RATIO", 2)
    bad = peers.Peer(
        name="bad",
        modules=("numpy",),
        prepare=peers._numpy_optimized,
        find_path=lambda task: ((0, 2), (0, 1)),
    )
    shapes = ((50, 2), (2, 2), (2, 50))
    assert [call.variant for call in bad.calls(task(shapes=shapes))] == ["our path"]
    good = peers.Peer(name="good", modules=("numpy",), prepare=bad.prepare, find_path=lambda task: ((1, 2), (0, 1)))
    assert [call.variant for call in good.calls(task(shapes=shapes))] == ["own path", "our path"]
    reverse = replace(task(shapes=shapes), path=((0, 2), (0, 1)))
    assert [call.variant for call in good.calls(reverse)] == ["own path"]
    same = peers.Peer(name="same", modules=("numpy",), prepare=bad.prepare, find_path=lambda task: ((1, 0), (1, 0)))
    assert [call.variant for call in same.calls(task(shapes=shapes))] == ["both paths"]


def test_binary_steps_drops_steps_of_one_operand():
    assert peers.binary_steps([(0,), (1, 2), (0, 1)], 3) == ((0, 2), (0, 1))


def test_choose_names_unknown_and_missing_peers(monkeypatch):
    assert [peer.name for peer in peers.choose(["numpy", "numpy"])[0]] == ["numpy"]
    with pytest.raises(EngineValueError, match="unknown peer 'matlab'; peers: numpy, numpy-optimize"):
        peers.choose(["matlab"])
    absent = peers.Peer(name="absent", modules=("no_such_module",), prepare=peers._numpy_plain)
    monkeypatch.setattr(peers, "PEERS", (absent,))
    assert peers.choose(None) == ([], ["absent: left out, no_such_module is not installed"])


# --- a whole run -----------------------------------------------------------------------------------------------


def test_run_case_fills_everything(roof):
    engine = Engine()
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), engine, [numpy_peer()], settings(), roof)
    assert result.verdict.passed, result.verdict.reason
    assert result.best == "numpy" and result.ratio > 0 and result.out_ratio > 0 and result.noise >= 1
    assert set(result.planning) == {"with_search", "path_given", "first_call"}
    assert result.plan == {"flops": 1, "bytes_moved": 2, "peak_bytes": 3, "kernels": ["gemm"]}
    assert result.limit == pytest.approx(1440 / 1e9) and result.share is None
    assert engine.compiled[0] == ("ij,jk->ik", ((8, 9), (9, 10)), ("float32", "float32"), 1, None)
    assert engine.compiled[1][-1] == [(0, 1)], "planned once more with the path given"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
@pytest.mark.parametrize("expr", ["ij,jk->ik", "ij,jk->"])
def test_a_wrong_engine_fails(roof, dtype, expr):
    def spoil(result):
        result = np.array(result)
        result.flat[-1] += np.asarray(1, dtype=result.dtype)
        return result

    result = run.run_case(case(expr, [(8, 9), (9, 10)], dtype), Engine(spoil), [numpy_peer()], settings(), roof)
    assert not result.verdict.passed
    assert report.verdict(result).startswith("FAIL (")


def test_an_engine_that_raises_fails_with_its_message(roof):
    def refuse(result):
        raise EngineError("no such thing")

    result = run.run_case(case("ij->i", [(2, 3)]), Engine(refuse), [numpy_peer()], settings(), roof)
    assert result.verdict == check.Verdict(passed=False, reason="EngineError: no such thing")
    assert result.ratio is None and "FAIL" in report.line(result, ["numpy"])


def test_a_result_that_is_a_view_or_not_contiguous_fails(roof):
    spoilt = [(lambda result: np.asfortranarray(result), "not C-contiguous")]
    for spoil, message in spoilt:
        result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(spoil), [], settings(), roof)
        assert not result.verdict.passed and message in result.verdict.reason
    view = run._fresh(check.Finding(error=0.0, everywhere=0.0), arrays := np.ones(3), [arrays])
    assert view.complaint == "the result shares memory with an operand"


def test_a_wrong_peer_does_not_count(roof):
    wrong = peers.Peer(
        name="wrong",
        modules=("numpy",),
        prepare=lambda task, path: peers.Call(function=lambda *a: np.zeros((8, 10), "float32"), args=task.arrays),
    )
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), [wrong, numpy_peer()], settings(), roof)
    assert result.best == "numpy" and result.peers["wrong"].reason.startswith("wrong: error")


def test_a_peer_above_the_limit_voids_the_run():
    slow = limits.Roof(1, peak=lambda dtype, threads: 1.0, bandwidth=lambda nbytes, threads: 1.0)
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), [numpy_peer()], settings(), slow)
    assert result.void == ["numpy"] and "VOID: numpy above the limit" in report.verdict(result)
    assert report.failures([result]) == 1


def test_a_reference_kernel_is_marked(roof):
    engine = Engine()
    original = engine.compile

    def compile_marked(*args, **options):
        compiled = original(*args, **options)
        compiled.plan.steps[0].kernel = "gemm_reference"
        return compiled

    engine.compile = compile_marked
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), engine, [], settings(), roof)
    assert result.marks == ["reference kernel"]


def test_run_kernels_measures_every_row_beside_its_peak():
    rows = [("gemm_float32_2x8", "float32", (2, 8)), ("gemm_float32_1x8", "float32", (1, 8))]
    peaks = iter([1e9, 1e9, 1e9, 1e9, 2e9, 1e9])
    fake = SimpleNamespace(
        microkernel_rows=lambda: rows,
        microkernel_rate=lambda name, threads: threads * 5e8,
        fma_peak=lambda dtype, threads, fresh: next(peaks) if fresh else 0.0,
    )
    results = run.run_kernels(fake, 2)
    assert [(each.name, each.tile, each.share) for each in results] == [
        ("gemm_float32_2x8", (2, 8), 0.5),
        ("gemm_float32_1x8", (1, 8), 0.5),
    ]
    assert "50.0 % of the FMA peak" in report.kernel_line(results[0])
    assert len(report.kernel_summary_lines(results)) == 1


def test_json_of_an_external_case_has_name_and_figures_only(roof):
    def as_text(external):
        each = case("xy,yz->xz", [(8, 9), (9, 10)], external=external)
        result = run.run_case(each, Engine(), [numpy_peer()], settings(), roof)
        result.peers["other"] = run.PeerResult(reason="cannot parse xy,yz->xz")
        data = report.to_json([result], machine={"cpu": "x"}, threads=1, roof=roof)
        return data, json.dumps(data, allow_nan=False)

    data, text = as_text(external=True)
    assert "xy,yz" not in text and "shapes" not in text and data["cases"][0]["ratio"] > 0
    _, text = as_text(external=False)
    assert "xy,yz->xz" in text


def test_machine_says_nothing_about_host_user_or_path():
    import getpass
    import platform

    facts = machine.describe()
    text = json.dumps(facts)
    assert {"cpu", "isa", "cores", "caches", "versions", "commit"} <= set(facts)
    assert "/" not in text.replace(facts["cpu"], "")
    for secret in (platform.node(), getpass.getuser()):
        assert len(secret) < 4 or secret not in text


def test_machine_reads_caches(tmp_path):
    for number, (level, kind, size) in enumerate([(1, "Data", "32K"), (1, "Instruction", "32K"), (2, "Unified", "1M")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert machine.caches(tmp_path) == [
        {"level": 1, "kind": "Data", "bytes": 32768},
        {"level": 2, "kind": "Unified", "bytes": 1048576},
    ]


def test_equal_threads_restores_what_it_changes(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("NPROC", raising=False)
    import os

    before = available_cpus()
    with equal_threads(1):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["NPROC"] == "1"
        assert available_cpus() == 1 or not hasattr(os, "sched_getaffinity")
    assert os.environ["OMP_NUM_THREADS"] == "7" and "NPROC" not in os.environ and available_cpus() == before


def test_session_runs_a_request(tmp_path, monkeypatch, capsys):
    entry = {"family": "f", "name": "product", "expr": "ij,jk->ik", "shapes": [[4, 5], [5, 6]], "dtype": "int64"}
    (tmp_path / "cases.json").write_text(json.dumps([entry]))
    fake = SimpleNamespace(
        fma_peak=lambda dtype, threads, fresh: 1e9, copy_bandwidth=lambda nbytes, threads, fresh: 1e9
    )
    monkeypatch.setattr(limits, "_calibrate", lambda: fake)
    request = session.Request(files=(str(tmp_path / "cases.json"),), peers=("numpy",), threads=1, quick=True)
    data, wrong = session.bench(request, engine=Engine())
    printed = capsys.readouterr().out
    assert wrong == 0 and [each["name"] for each in data["cases"]] == ["product", "product full range"]
    assert "product full range" in printed and "PASS" in printed and "ratio = fastest peer / ours" in printed
    assert json.loads(json.dumps(data, allow_nan=False))["threads"] == 1
    plot.plot_run(data, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_session_refuses_a_filter_that_leaves_nothing():
    with pytest.raises(EngineValueError, match="no case matches 'nothing'"):
        session.bench(session.Request(families=("tccg",), match="nothing"))


def test_startup_reports_a_process_that_fails(monkeypatch):
    monkeypatch.setattr(startup, "_PROBE", "raise SystemExit('broken')")
    with pytest.raises(EngineError, match="a fresh process failed: broken"):
        startup.measure()


def test_startup_gives_cold_and_warm(monkeypatch):
    times = {"import": 1, "first_call": 2, "second_call": 3, "total": 4}
    monkeypatch.setattr(startup, "_PROBE", f"print('{json.dumps(times)}')")
    times = startup.measure()
    assert set(times) == {"cold", "warm"} and times["cold"]["first_call"] == 2
    assert report.startup_lines(times)[0].startswith("fresh process, cold kernel cache: import 1.00s")
    assert report.startup_lines(times)[0].endswith("to the first result 4.00s")


# --- pictures --------------------------------------------------------------------------------------------------


def test_tree_is_drawn_without_crossing_edges(tmp_path):
    expression = steps.parse("ab,bc,cd,de->ae", [(2, 2)] * 4)
    walked = steps.walk(expression, [(0, 2), (0, 1), (0, 1)])
    places, edges = plot._layout(walked, 4)
    assert len(places) == 7 and len(edges) == 6
    assert all(places[child][0] < places[parent][0] for child, parent in edges)
    assert len({height for depth, height in places if depth == 0}) == 4
    pytest.importorskip("matplotlib")
    plot.plot_tree(walked, expression.terms, tmp_path / "tree.png")
    assert (tmp_path / "tree.png").stat().st_size > 1000


def test_profiles_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    each = report.case_to_json(result_of("f", 2.0))
    each["profile"] = [{"kernel": 1.0, "packing": 0.5}, {"kernel": 2.0, "unpacking": 0.1}]
    data = {"cases": [each], "machine": {"cpu": "x"}, "threads": 1}
    plot.plot_run(data, tmp_path / "run.svg")
    assert "unpacking" in (tmp_path / "run.svg").read_text()
    with pytest.raises(EngineError, match="run.nothing"):
        plot.plot_run(data, tmp_path / "run.nothing")
