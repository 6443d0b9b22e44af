"""Where the time of a case goes: measured beside the timed calls, kept in the record, drawn like the thesis's figures."""

import json

import numpy as np
import pytest
from bench_cases import Engine, case, numpy_peer, result_of, settings

import einsum_engine
from einsum_engine import cli
from einsum_engine.bench import cases, limits, plot, profiles, record, run, session
from einsum_engine.errors import EngineError

SPLIT = [{"kernel": 1.0, "packing": 0.5, "unpacking": 0.0}, {"kernel": 2.0, "packing": 0.0, "unpacking": 0.5}]


def figure_24d():
    (found,) = [each for each in cases.select(["thesis_general_large"]) if each.name == "general 2 (figure 24)"]
    return found


def test_the_call_of_median_time_is_kept():
    # the stand-in says that call n took n seconds, half of it packing; the first one is not counted
    compiled = Engine().compile("ij,jk->ik", (2, 3), (3, 4), dtypes=["float32"] * 2, threads=1, profile=True)
    found = profiles.measure(compiled, (np.ones((2, 3)), np.ones((3, 4))))
    calls = compiled.profiles[0][1].calls
    middle = (2 + calls) // 2
    assert calls == 1 + profiles._CALLS and found == [{"kernel": middle / 2, "packing": middle / 2, "unpacking": 0.0}]


def test_long_calls_are_few(monkeypatch):
    monkeypatch.setattr(profiles, "_SECONDS", 0.0)
    compiled = Engine().compile("i->", (2,), dtypes=["float32"], threads=1, profile=True)
    profiles.measure(compiled, (np.ones(2),))
    assert compiled.profiles[0][1].calls == 2


def test_our_engine_is_split(machine_free_roof):
    result = run.run_case(case("km,nk->nm", [(60, 70), (80, 60)]), einsum_engine, [numpy_peer()], settings(), machine_free_roof)
    assert result.verdict.passed and len(result.profile) == len(result.plan["kernels"])
    assert all(set(step) == set(profiles.PARTS) and min(step.values()) >= 0 for step in result.profile)
    assert sum(profiles.shares(result.profile).values()) == pytest.approx(1)


def test_a_case_without_kernels_has_no_profile(machine_free_roof):
    result = run.run_case(case("i,i->i", [(3,), (3,)], "longdouble"), einsum_engine, [], settings(), machine_free_roof)
    assert result.profile == []


@pytest.fixture
def machine_free_roof():
    return limits.Roof(1, peak=lambda dtype, threads: 1e9, bandwidth=lambda nbytes, threads: 1e9)


def test_the_record_keeps_it():
    each = result_of("f", 2.0)
    each.profile = SPLIT
    data = json.loads(json.dumps(record.case_to_json(each)))
    assert record.case_from_json(data).profile == SPLIT
    del data["profile"]
    assert record.case_from_json(data).profile == [], "records of earlier runs have none"


def test_the_thesis_case_24d_is_in_the_bench_and_drawn(tmp_path):
    each = figure_24d()
    assert each.expr == "abczef,reabq,oza,abqsa,feabo->asrbc" and set(sum(each.shapes, ())) == {8}
    shapes = each.shapes
    compiled = einsum_engine.compile(each.expr, *shapes, dtypes=each.dtype, threads=1, profile=True)
    split = profiles.measure(compiled, cases.operands(each))
    shares = profiles.shares(split)
    assert shares["kernel"] > 0 and shares["packing"] > 0 and shares["unpacking"] > 0

    pytest.importorskip("matplotlib")
    data = {"cases": [], "machine": {"cpu": "x"}, "threads": 1}
    for name, profile in (("general 2 (figure 24)", split), ("nothing measured", []), ("other", SPLIT)):
        result = result_of("thesis_general_large", 2.0, name=name)
        result.profile = profile
        data["cases"].append(record.case_to_json(result))
    plot.plot_run(data, tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    for words in ("thesis_general_large: general 2 (figure 24)", "75 / 12 / 12", *profiles.PARTS):
        assert words in text
    assert "thesis_general_large: nothing measured" not in text


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_run(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    seen = []
    monkeypatch.setattr(session, "bench", lambda request: seen.append(request))
    for name in ("run.nothing", "run"):
        assert cli.main(["bench", "gates", "--plot", str(tmp_path / name)]) == 2
        assert f"{name}: a picture ends in one of " in capsys.readouterr().err
    assert not seen


def test_profiles_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    each = record.case_to_json(result_of("f", 2.0))
    each["profile"] = [{"kernel": 1.0, "packing": 0.5}, {"kernel": 2.0, "unpacking": 0.1}]
    data = {"cases": [each], "machine": {"cpu": "x"}, "threads": 1}
    plot.plot_run(data, tmp_path / "run.svg")
    assert all(words in (tmp_path / "run.svg").read_text() for words in ("unpacking", "fastest peer", "x, 1 threads"))
    without_peers = {**data, "cases": [{**each, "ratio": None}]}
    plot.plot_run(without_peers, tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert "unpacking" in text and "fastest peer" not in text and "x, 1 threads" in text
    with pytest.raises(EngineError, match="run.nothing"):
        plot.plot_run(data, tmp_path / "run.nothing")
