"""The families of functions: in all libraries, judging, the report, the record."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine.bench import cases, limits, program_cases, program_numpy, program_peers
from einsum_engine.bench import program_passes, programs, report, run, session, timing
from einsum_engine.errors import EngineValueError

PROGRAMS = program_cases.PROGRAMS
PEERS = {peer.name: peer for peer in program_peers.PROGRAM_PEERS}
# Of the functions in several shapes, each in its smallest for each axis.
SHORT = {
    (case.function, case.axis): case for case in sorted(PROGRAMS, key=lambda case: -np.prod(case.shape, dtype=int))
}
each_case = pytest.mark.parametrize("case", SHORT.values(), ids=lambda case: case.name)


def named(name):
    return next(case for case in PROGRAMS if case.name == name)


def short(threads=1):
    budget = timing.TimeBudget(seconds=0.01, least_rounds=1, most_rounds=1, deciding=0)
    return run.Settings(threads=threads, budget=budget, settle=lambda: None)


def roof():
    return limits.Roof(1, peak=lambda dtype, threads: 1e12, bandwidth=lambda nbytes, threads: 1e12)


def arguments(case):
    return program_numpy.arguments(case)


def measured(case, peers=("numpy",), passes=(), by=engine):
    return programs.run_program(case, by, [PEERS[name] for name in peers], short(), roof(), passes)


# -- the cases --------------------------------------------------------------------------------------------------------


def test_families_hold_what_was_asked_for():
    families = (cases.VIEWS, cases.WHOLE, cases.CHAINS, cases.REDUCTIONS)
    counts = {family: len(program_cases.programs((family,))) for family in families}
    assert counts == {"views": 12, "whole": 7, "chains": 48, "reductions": 36}
    assert len({case.key for case in PROGRAMS}) == len({case.name for case in PROGRAMS}) == len(PROGRAMS)


@each_case
def test_what_is_written_is_what_the_table_says(case):
    arrays = arguments(case)
    again = arguments(case)
    assert all(np.array_equal(one, other) and one.flags.c_contiguous for one, other in zip(arrays, again))
    assert {array.dtype for array in arrays} == {np.dtype(case.dtype)}
    program_numpy.function(case)(*again)
    changed = tuple(at for at, (one, other) in enumerate(zip(arrays, again)) if not np.array_equal(one, other))
    assert changed == case.written
    assert not case.large or sum(array.nbytes for array in arrays) > 4e6


@each_case
def test_calls_on_what_the_call_before_left_stay_bounded(case):
    arrays = list(arguments(case))
    for _ in range(8 if sum(array.nbytes for array in arrays) > 1e6 else 100):
        program_numpy.function(case)(*arrays)
    for at in case.written:
        size = np.abs(arrays[at])
        assert np.isfinite(size).all() and size.max() < 1e4
        assert size[size > 0].min() > 1e6 * np.finfo(case.dtype).tiny


@each_case
def test_traced_and_run_it_is_what_numpy_does(case):
    arrays = arguments(case)
    wanted = programs.reference(case, arrays)
    function = engine.jit(program_numpy.function(case))
    function.program(*arrays).check()
    _, _, error = programs.judged(PEERS["numpy"], function, case, arrays, wanted)
    assert error <= programs.bound_of(case)


@each_case
@pytest.mark.parametrize("name", ["torch", "torch-script", "jax", "jax-donated", "numexpr", "numba"])
def test_peers_do_what_numpy_does(case, name):
    pytest.importorskip(name if name in ("numexpr", "numba") else PEERS[name].needs)
    if case.family not in PEERS[name].families:
        pytest.skip("not a peer of this family")
    if PEERS[name].writers and not case.written:
        pytest.skip("nothing is written")
    arrays = arguments(case)
    made = PEERS[name].make(case, 1)
    calls, _, error = programs.judged(PEERS[name], made, case, arrays, programs.reference(case, arrays))
    assert error <= programs.bound_of(case)
    timing.time_calls(calls.candidate(name), 2)  # written arguments are carried from call to call


def test_torch_compile_does_what_numpy_does():
    pytest.importorskip("torch")
    case, peer = named("view_example"), PEERS["torch-compile"]
    try:
        made = peer.make(case, 1)
    except RuntimeError as error:
        pytest.skip(str(error))
    arrays = arguments(case)
    _, _, error = programs.judged(peer, made, case, arrays, programs.reference(case, arrays))
    assert error <= programs.bound_of(case)


# -- judging ----------------------------------------------------------------------------------------------------------


def test_errors_are_seen_in_every_array():
    right = [np.ones(3), np.array([2.0, 4.0])]
    assert programs.error_of(right, right) == 0
    assert programs.error_of([right[0], np.array([2.0, 3.0])], right) == 0.25
    for wrong in (right[:1], [right[0], right[1].astype("float32")], [right[0], np.array([np.nan, 4.0])]):
        assert programs.error_of(wrong, right) == float("inf")


def test_a_function_that_writes_too_little_fails_and_is_not_timed():
    class Forgetful:
        """Computes on copies, so that no argument is written."""

        def jit(self, function, passes=None):
            return lambda *arrays: function(*(array.copy() for array in arrays))

    result = measured(named("view_example"), by=Forgetful())
    assert not result.verdict.passed and result.seconds is None and result.peers == {}
    assert "error" in result.verdict.reason and report.failures([result]) == 1
    assert "FAIL" in programs.line(result, [PEERS["numpy"]], ())
    assert measured(named("offset2bbox"), by=Forgetful()).verdict.passed, "it writes no argument"


def test_what_cannot_be_traced_is_a_failure_with_its_reason():
    class Refusing:
        def jit(self, function, passes=None):
            def call(*arrays):
                raise EngineValueError("no such thing")

            return call

    result = measured(named("offset2bbox"), by=Refusing())
    assert "EngineValueError: no such thing" in result.verdict.reason


def test_a_peer_that_is_wrong_or_raises_does_not_count():
    def raising(case, threads):
        raise RuntimeError("cannot")

    wrong = replace(PEERS["numpy"], name="wrong", make=lambda case, threads: lambda source, offset: offset * 2)
    other = replace(PEERS["numpy"], name="raising", make=raising)
    peers = [PEERS["numpy"], wrong, other]
    result = programs.run_program(named("offset2bbox"), engine, peers, short(), roof())
    assert result.verdict.passed and result.best == "numpy" and result.peers["wrong"].seconds is None
    assert "wrong: error" in result.peers["wrong"].reason and "cannot" in result.peers["raising"].reason
    assert "RuntimeError" in programs.line(result, peers, ())


# -- measuring --------------------------------------------------------------------------------------------------------


def test_donating_is_for_functions_that_write():
    pytest.importorskip("jax")
    assert set(measured(named("view_example"), ["jax", "jax-donated"]).peers) == {"jax", "jax-donated"}
    assert set(measured(named("offset2bbox"), ["jax", "jax-donated"]).peers) == {"jax"}


def test_each_pass_is_a_column_of_whole():
    passes = engine.jit(abs).passes
    result = measured(named("coupled-cluster residual"), passes=passes)
    assert list(result.without) == [run.OURS, run.AGAIN, *passes]
    names = [figure.name for figure in programs.figures_of([result])]
    wanted = [(name, what) for name in passes for what in ("time", "bytes moved")]
    assert [f"without pass {name} / ours, {what}, geometric mean" for name, what in wanted] == names[3:]
    assert programs.header([], passes).count(" -") == len(passes)


@pytest.mark.parametrize("case", program_cases.programs((cases.WHOLE,)), ids=lambda case: case.name)
def test_a_plan_that_no_pass_changes_is_not_timed(case):
    arrays, passes = arguments(case), engine.jit(abs).passes
    jitted = programs._jitted(case, engine, passes)
    found = program_passes.measure(jitted, arrays, short())
    assert found[run.OURS].same and found[run.OURS].factor is None and found[run.AGAIN].factor > 0
    for name in passes:
        plan, ours = (jitted[each].plan(*arrays) for each in (name, run.OURS))
        assert found[name].steps == len(plan.steps) and found[name].moved == plan.bytes_moved
        assert found[name].same == (found[name].factor is None)
        if found[name].same:
            assert (plan.bytes_moved, plan.peak_bytes) == (ours.bytes_moved, ours.peak_bytes)
        else:
            assert jitted[name].program(*arrays) != jitted[run.OURS].program(*arrays) or name == "epilogues"


def test_cells_of_passes_stand_below_their_titles():
    ours = program_passes.Without(steps=110, moved=2_000_000, peak=9, same=True)
    found = {run.OURS: ours, run.AGAIN: replace(ours, same=False, factor=1.01), "dead": ours}
    found["views"] = replace(ours, same=False, factor=12.5, steps=132, moved=3_000_000)
    titles, cells = program_passes.header(["views", "dead"]), program_passes.cells(found, ["views", "dead"])
    assert titles.split() == ["plan", "again", "-views", "-dead"] and len(titles) == len(cells)
    assert cells.split() == ["110", "2.0MB", "1.01", "12.50", "132", "x1.50", "="]
    assert program_passes.header([]) == program_passes.cells({}, []) == ""
    assert program_passes.cells({}, ["views"]).split() == ["-"] * 3, "of a case that failed"


def test_a_pass_is_held_against_the_mean_of_ours(monkeypatch):
    slow = {run.OURS: 1.0, run.AGAIN: 3.0, "views": 4.0}

    def alternate(candidates, budget, settle):
        assert {each.name for each in candidates} == set(slow)
        assert len({id(array) for each in candidates for array in each.args}) == 1, "all on the same arguments"
        for each in candidates:
            each.samples = [slow[each.name] * load for load in (9.0, 4.0, 1.0)]

    monkeypatch.setattr(program_passes, "alternate", alternate)
    assert program_passes._factors(dict.fromkeys(slow), [np.ones(3)], short()) == {run.AGAIN: 3.0, "views": 2.0}


def test_large_ones_are_held_against_one_pass():
    result = measured(named("jacobi sweep"))
    assert (result.footprint, result.nbytes) == (2048**2 * 4, 2 * 2048**2 * 4)
    assert result.limit == result.nbytes / 1e12 and result.share is None, "too short a limit says nothing"
    slow = limits.Roof(1, peak=lambda dtype, threads: 1e12, bandwidth=lambda nbytes, threads: 1e6)
    programs.hold_against(result, slow)
    assert result.share == result.limit / result.seconds and result.void == ["numpy"]
    small = measured(named("view_example"))
    assert small.limit is small.copy_seconds is small.copy_share is None


@pytest.mark.parametrize("name, touched, times", [("jacobi sweep", 2048**2, 2), ("4 arithmetic 16 MB 64", 4 << 21, 1)])
def test_large_ones_are_held_against_copies_inside_as_many_bytes(name, touched, times, monkeypatch):
    copied, compared = [], []

    def copies_of(array, by, threads):
        assert by is engine and threads == 1
        copied.append(array)
        return [timing.Candidate(name=f"copy {n}", function=time.sleep, args=(n * 1e-3,)) for n in (2, 1)]

    def compare(candidates, always, **more):
        compared.append((candidates, always))
        for each in candidates:
            each.samples.append({"copy 1": 0.5, "copy 2": 0.7}.get(each.name, 2.0))

    monkeypatch.setattr(programs, "copies", copies_of)
    monkeypatch.setattr(programs, "compare", compare)
    result = measured(named(name))
    assert 2 * copied[0].size == touched and copied[0].dtype == result.case.dtype
    assert result.nbytes == 2 * copied[0].nbytes * times
    (candidates, always) = compared[0]
    assert [each.name for each in candidates] == [run.OURS, run.AGAIN, "numpy", "copy 2", "copy 1"]
    assert set(always) == {run.OURS, run.AGAIN}
    assert (result.copy_seconds, result.copy_share) == (0.5 * times, 0.25 * times)
    assert f" {25 * times} % " in programs.line(result, [], ()) and " copy " in programs.header([], ())
    data = json.loads(json.dumps(programs.to_json(result)))
    assert data["copy_share"] == 0.25 * times and programs.from_json(data).copy_share == 0.25 * times


def test_means_beside_what_is_asked():
    def result(name, eager, best, share):
        peers = {"torch": run.PeerResult(seconds=eager), "jax": run.PeerResult(seconds=best)}
        return programs.ProgramResult(case=named(name), seconds=1.0, peers=peers, share=share, copy_seconds=share)

    found = programs.figures_of([result("jacobi sweep", 18.0, 4.0, 0.9), result("lstm cell", 2.0, 1.0, None)])
    assert [(figure.value, figure.met) for figure in found] == [
        (pytest.approx(6.0), True),
        (pytest.approx(2.0), True),
        (1.0, None),
        (pytest.approx(0.9), None),
        (0.9, True),
        (pytest.approx(0.9), None),
        (0.9, True),
    ]
    assert [figure.asked for figure in found] == [4.0, 1.5, None, None, 0.7, None, 0.7]
    assert {figure.table for figure in found} == {"views"}
    chains = programs.figures_of([result("4 arithmetic 16 MB 64", 2.0, 2.0, 0.7)])
    assert {figure.name: (figure.asked, figure.met) for figure in chains[3:]} == {
        "share of one pass over the bytes, large arrays, geometric mean": (None, None),
        "share of one pass over the bytes, large arrays, worst": (None, None),
        "share of a copy beside it, large arrays, geometric mean": (None, None),
        "share of a copy beside it, large arrays, worst": (0.75, False),
    }


def test_a_result_survives_the_file():
    case = named("jacobi sweep")
    result = programs.ProgramResult(case=case, seconds=1.0, again=1.1, nbytes=3, footprint=2)
    result.error, result.bound, result.void = float("inf"), 0.1, ["jax"]
    result.without = {"dead": program_passes.Without(steps=2, moved=9, peak=5, same=False, factor=1.5)}
    result.peers = {"jax": run.PeerResult(seconds=0.5, samples=3, error=float("nan")), "torch": run.PeerResult()}
    data = json.loads(json.dumps(programs.to_json(result), allow_nan=False))
    again = programs.from_json(data)
    assert programs.to_json(again) == programs.to_json(result) and again.case == case
    assert data["ratio"] == 0.5 and data["best"] == "jax" and data["key"] == case.key
    assert again.without == result.without


# -- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_reports_a_line_for_each_case_and_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run.Settings, "quick", lambda threads: short())
    fixed = {"families": ("views", "whole"), "peers": ("numpy",), "threads": 1, "quick": True}
    path = tmp_path / "out.json"
    data, wrong = session.bench(session.Request(**fixed, only="lstm|tebd, norm", record=path))
    printed = capsys.readouterr().out.splitlines()
    assert wrong == 0 and [each["name"] for each in data["programs"]] == ["lstm cell", "tebd, normalised"]
    assert all(sum(line.startswith(name) and "PASS" in line for line in printed) == 1 for name in ("lstm", "tebd,"))
    assert {each["table"] for each in data["figures"]} == {"views", "whole"}
    data, _ = session.bench(session.Request(**fixed, only="lstm|offset", record=path, resume=True))
    printed = capsys.readouterr().out
    assert [each["function"] for each in data["programs"]] == ["lstm_cell", "tebd", "offset2bbox"]
    assert "\nlstm" not in printed and "\noffset2bbox" in printed
    assert json.loads(path.read_text()) == json.loads(json.dumps(data))


def test_only_chooses_among_programs():
    chosen = session.Request(only="^views .* float64$")
    assert [case.name for case in chosen.chosen_programs()] == ["tebd gate sweep", "red-black sweep"]
    assert chosen.chosen_tables() == ("views",)
    assert session.Request(families=("whole",)).chosen_programs() == program_cases.programs(("whole",))
    assert session.Request(only="tebd", layouts=True).chosen_tables() == ()
    with pytest.raises(EngineValueError, match="no case matches 'lstm'"):
        session.bench(session.Request(families=("whole",), only="lstm"))


def test_peers_are_those_that_were_chosen():
    def names(*given, **more):
        return [peer.name for peer in program_peers.program_peers(*given, **more)]

    assert names(("torch", "tblis"), "views") == ["torch", "torch-script", "torch-compile"]
    assert names(("torch", "numpy"), "chains") == ["numpy", "numexpr", "numba", "torch", "torch-compile"]
    assert "torch-compile" not in names(("torch",), "whole", quick=True)
