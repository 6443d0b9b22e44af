"""The benchmark judges others, so it is judged here: statistics, peers, whole runs, pictures.

No test asserts a time.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from bench_cases import SOME_PATHS, Engine, case, numpy_peer, result_of, settings

from einsum_engine.bench import (
    cases,
    check,
    effort,
    figures,
    limits,
    machine,
    peers,
    plot,
    record,
    report,
    run,
    startup,
    steps,
)
from einsum_engine.bench.threads import available_cpus, equal_threads
from einsum_engine.errors import EngineError, EngineValueError


@pytest.fixture
def roof():
    return limits.Roof(1, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 1e9)


# --- statistics -------------------------------------------------------------------------------------------------


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
    assert figures.geometric_mean([]) is None


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
        for trial in peer.trials(asked):
            call = trial.call
            result = call.to_numpy(call.function(*map(call.convert, asked.arrays)))
            assert trial.seconds > 0 and np.array_equal(call.to_numpy(trial.result), result)
            assert np.allclose(result, np.einsum(expr, *asked.arrays), atol=1e-4)
            assert result.flags.c_contiguous and not any(np.may_share_memory(result, each) for each in asked.arrays)
            if call.with_out:
                out = np.zeros(asked.expression.output_shape, dtype=dtype)
                call.with_out(out)(*call.args)
                assert np.allclose(out, result)


def test_a_peer_says_why_it_cannot():
    tblis = next(peer for peer in peers.PEERS if peer.name == "tblis")
    with pytest.raises(peers.Unsupported, match="no int64"):
        list(tblis.trials(task(dtype="int64")))


def test_one_loop_that_takes_longer_than_there_is_patience_is_not_run():
    huge = replace(task("ab,cd,ef,gh->ah", ((99, 99),) * 4), patience=60.0)
    with pytest.raises(peers.TooSlow, match="not run: at least [0-9.e+]+ s") as caught:
        list(numpy_peer().trials(huge))
    assert caught.value.seconds > 1e4, "9.2e15 iterations"
    by_batch = replace(task("mkb,nbk->bmn", ((70, 70, 70),) * 2), patience=0.0)
    opt_einsum = next(peer for peer in peers.PEERS if peer.name == "opt_einsum")
    with pytest.raises(peers.TooSlow):
        list(opt_einsum.trials(by_batch))
    assert [trial.call.variant for trial in opt_einsum.trials(replace(by_batch, patience=math.inf))] == ["own path"]
    product = replace(task("mk,kn->mn", ((300, 300),) * 2), patience=0.0)
    assert len(list(opt_einsum.trials(product))) == 1, "a matrix product goes to BLAS"


def test_a_part_of_a_loop_keeps_the_inner_ones():
    sizes = effort.smaller_sizes(steps.parse("abk,kc->abc", [(50, 300, 400), (400, 500)]))
    assert sizes == {"a": 2, "b": 10, "k": 400, "c": 500}
    many = steps.parse(",".join("abcdefghijklmnopqrstuvwxyz") + "->", [(2,)] * 26)
    assert math.prod(effort.smaller_sizes(many).values()) <= effort._TRIAL


def test_torch_is_not_asked_to_copy_twice():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3)
    turned = peers._finisher(tensor.T, (tensor,))(tensor.T)
    assert turned.is_contiguous() and turned.data_ptr() != tensor.data_ptr()
    same = peers._finisher(tensor, (tensor,))(tensor)
    assert same.data_ptr() != tensor.data_ptr() and torch.equal(same, tensor)
    assert peers._finisher(tensor.clone(), (tensor,)) is None


def test_own_path_is_left_out_where_it_costs_far_more(monkeypatch):
    monkeypatch.setattr(peers, "_MOST_COST_RATIO", 2)
    bad = peers.Peer(
        name="bad",
        modules=("numpy",),
        prepare=peers._numpy_optimized,
        find_path=lambda task: ((0, 2), (0, 1)),
    )
    shapes = ((50, 2), (2, 2), (2, 50))
    assert [trial.call.variant for trial in bad.trials(task(shapes=shapes))] == ["our path"]
    good = peers.Peer(name="good", modules=("numpy",), prepare=bad.prepare, find_path=lambda task: ((1, 2), (0, 1)))
    assert [trial.call.variant for trial in good.trials(task(shapes=shapes))] == ["own path", "our path"]
    reverse = replace(task(shapes=shapes), path=((0, 2), (0, 1)))
    assert [trial.call.variant for trial in good.trials(reverse)] == ["own path"]
    same = peers.Peer(name="same", modules=("numpy",), prepare=bad.prepare, find_path=lambda task: ((1, 0), (1, 0)))
    assert [trial.call.variant for trial in same.trials(task(shapes=shapes))] == ["both paths"]


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
    assert (
        list(result.peers) == ["wrong", "numpy"]
        and result.best == "numpy"
        and result.peers["wrong"].reason.startswith("wrong: error")
    )


def test_a_peer_that_is_not_waited_for_is_reported_and_never_the_best(roof, monkeypatch):
    monkeypatch.setattr(peers, "least_loop_seconds", lambda expression, arrays: 77.0)
    others = [numpy_peer(), next(peer for peer in peers.PEERS if peer.name == "numpy-optimize")]
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), others, settings(), roof)
    assert result.best == "numpy-optimize" and result.peers["numpy"].at_least == 77.0
    assert result.peers["numpy"].reason == "not run: at least 77 s" and result.peers["numpy"].seconds is None
    assert ">77.0s" in report.line(result, ["numpy", "numpy-optimize"])
    assert record.case_to_json(result)["peers"]["numpy"] == {"at_least": 77.0, "reason": "not run: at least 77 s"}
    monkeypatch.setattr(peers, "least_loop_seconds", lambda expression, arrays: 1e12)
    alone = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), others[:1], settings(), roof)
    assert alone.best is None and alone.ratio is None and ">1e+12s" in report.line(alone, ["numpy"])
    monkeypatch.setattr(peers, "least_loop_seconds", lambda expression, arrays: 30.0)
    alone = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), others[:1], settings(), roof)
    assert alone.best == "numpy", "a minute of patience where there is nobody else"


def test_a_case_may_name_its_peers(roof):
    other = replace(numpy_peer(), name="other")
    each = case("ij,jk->ik", [(8, 9), (9, 10)], peers=("numpy",))
    assert list(run.run_case(each, Engine(), [other, numpy_peer()], settings(), roof).peers) == ["numpy"]


def test_limits_are_measured_again_before_a_run_is_void():
    rates = iter([1.0, 1.0, 1e9])
    roof = limits.Roof(1, peak=lambda dtype, threads: next(rates), bandwidth=lambda nbytes, threads: 1e12)
    result = run.run_case(case("ij,jk->ik", [(8, 9), (9, 10)]), Engine(), [numpy_peer()], settings(), roof)
    assert result.void == [] and result.limit == pytest.approx(1440 / 1e9), "the largest peak counts"
    rates = iter([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    roof = limits.Roof(1, peak=lambda dtype, threads: next(rates), bandwidth=lambda nbytes, threads: 1e12)
    results = run.run([case("ij,jk->ik", [(8, 9), (9, 10)])], Engine(), [numpy_peer()], settings(), roof)
    assert results[0].void == ["numpy"]
    roof.include({"float32": 1e9}, {})
    run.hold_against(results[0], roof)
    assert results[0].void == [], "a peak that is found later counts for the whole run"


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


def test_machine_says_nothing_about_host_user_or_path():
    import getpass
    import platform

    facts = machine.describe()
    text = json.dumps(facts)
    assert {"cpu", "isa", "widest_isa", "cores", "caches", "versions", "commit"} <= set(facts)
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


def test_startup_reports_a_process_that_fails(monkeypatch):
    monkeypatch.setattr(startup, "_PROBE", "raise SystemExit('broken')")
    with pytest.raises(EngineError, match="a fresh process failed: broken"):
        startup.measure()


def test_a_fresh_process_finds_the_installed_package(monkeypatch, tmp_path):
    """Also where the bench is called from within a folder that has one of its name, as a clone."""
    (tmp_path / "einsum_engine.py").write_text("raise SystemExit('not the package')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "_PROBE", "import einsum_engine.kernels, json; print(json.dumps({'import': 1}))")
    assert startup.measure() == {"cold": {"import": 1}, "warm": {"import": 1}}


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
