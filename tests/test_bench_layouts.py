"""`bench --layouts`: candidates of one case, what is timed and what is not, the record and the printed table."""

import json
from dataclasses import replace

import pytest
from bench_cases import case, settings

import einsum_engine
from einsum_engine import cli
from einsum_engine.bench import layouts, session
from einsum_engine.errors import EngineValueError
from einsum_engine.planners.request import LAYOUTS

CHAIN = ("axb,byc,czd,de->eazxy", [(23, 12, 48), (48, 12, 40), (40, 12, 8), (8, 56)])


def chain(**options):
    return case(*CHAIN, name="chain", **options)


def result_of(natural, solve, *, family="f", **more):
    seconds = {"natural": natural, "merged": 2.0, "panels": solve, "nested": 3.0, "solve": solve}
    made = case(*CHAIN, family=family)
    return layouts.LayoutResult(case=made, seconds=seconds, predicted=seconds, same={"panels": "solve"}, **more)


def test_candidates_are_the_policies_of_compile():
    assert set(layouts.CANDIDATES) == set(LAYOUTS) and layouts.SOLVED in LAYOUTS


def test_every_candidate_is_timed_and_right():
    result = layouts.run_case(chain(), einsum_engine, settings())
    assert not result.wrong and not result.skipped
    assert set(result.seconds) == set(result.predicted) == set(LAYOUTS)
    assert all(value > 0 for value in (*result.seconds.values(), *result.predicted.values()))
    assert result.loss >= 1 and result.seconds[result.best] == min(result.seconds.values())
    assert all(result.seconds[name] == result.seconds[other] for name, other in result.same.items())


def test_equal_plans_are_timed_once():
    calls = []

    class Counting:
        def compile(self, *args, layouts, **options):
            made = einsum_engine.compile(*args, layouts="merged" if layouts == "panels" else layouts, **options)

            def call(*arrays):
                calls.append(layouts)
                return made(*arrays)

            call.plan = made.plan
            return call

    result = layouts.run_case(chain(), Counting(), settings())
    assert "panels" in result.same and "panels" not in calls and {"natural", "solve"} <= set(calls)
    assert result.seconds["panels"] == result.seconds[result.same["panels"]]


def test_what_has_nothing_to_compare_is_skipped_and_says_so():
    pair = layouts.run_case(case("ij,jk->ik", [(4, 5), (5, 6)]), einsum_engine, settings())
    assert pair.skipped == "no intermediates" and not pair.seconds and pair.best is pair.loss is None
    one = layouts.run_case(case("a,ab,b->", [(5,), (5, 7), (7,)]), einsum_engine, settings())
    assert one.skipped == "all candidates are one plan" and set(one.same) == set(LAYOUTS) - {"solve"}
    assert layouts.line(pair).endswith("skipped: no intermediates")


@pytest.mark.parametrize("external", [False, True])
def test_a_wrong_candidate_is_named(external):
    class Wrong:
        def compile(self, *args, layouts, **options):
            made = einsum_engine.compile(*args, layouts=layouts, **options)

            def call(*arrays):
                return made(*arrays) + (layouts == "natural")

            call.plan = made.plan
            return call

    result = layouts.run_case(chain(external=external), Wrong(), settings())
    assert len(result.wrong) == 1 and result.wrong[0].startswith("natural") and "FAIL (natural" in layouts.line(result)


def test_an_error_of_ours_fails_the_case_and_not_the_run():
    class Failing:
        def compile(self, *args, **options):
            raise EngineValueError("no plan for axb,byc")

    for external, words in ((False, "EngineValueError: no plan for axb,byc"), (True, "EngineValueError")):
        (result,) = layouts.run([chain(external=external)], Failing(), settings())
        assert result.wrong == [words] and not result.seconds
        json.dumps(layouts.to_json(result))


def test_the_pick_is_best_where_it_is_as_good():
    assert result_of(1.0, 1.0).best == "solve" and result_of(1.0, 1.0).loss == 1.0
    worse = result_of(1.0, 1.1)
    assert (worse.best, worse.loss) == ("natural", pytest.approx(1.1))


def test_summary_has_means_wins_and_near_picks():
    results = [result_of(1.0, 1.25), result_of(4.0, 1.0), result_of(1.0, 1.04, family="g")]
    skipped = layouts.LayoutResult(case=case("i->i", [(2,)]), skipped="no intermediates")
    lines = layouts.summary_lines([*results, skipped])
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["f"][:5] == ["2", "1.79", "1.79", "1.00", "2.68"]
    assert rows["f"][5:] == ["1", "0", "0", "0", "1", "1", "of", "2"]
    assert rows["g"][-3:] == ["1", "of", "1"] and rows["all"][-3:] == ["2", "of", "3"]
    assert lines[-1] == "1 skipped: no intermediates"


@pytest.mark.parametrize("external", [False, True])
def test_a_result_survives_the_file(external):
    result = layouts.run_case(chain(external=external), einsum_engine, settings())
    data = json.loads(json.dumps(layouts.to_json(result), allow_nan=False))
    assert layouts.to_json(layouts.from_json(data)) == data
    assert ("axb" in json.dumps(data)) is not external and ("shapes" in data) is not external
    assert data["best"] == result.best and data["loss"] == result.loss


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    """Requests for a file of a chain and a product, recorded in ``out.json``."""
    start = session._Run.start.__func__

    def quick(cls, *args):
        run = start(cls, *args)
        run.settings = settings()
        return run

    monkeypatch.setattr(session._Run, "start", classmethod(quick))
    common = {"family": "f", "dtype": "float32"}
    chain_entry = {"name": "chain", "expr": CHAIN[0], "shapes": CHAIN[1]}
    pair_entry = {"name": "pair", "expr": "ij,jk->ik", "shapes": [[4, 5], [5, 6]]}
    (tmp_path / "cases.json").write_text(json.dumps([common | chain_entry, common | pair_entry]))
    files = (str(tmp_path / "cases.json"),)
    return session.Request(files=files, threads=1, quick=True, record=tmp_path / "out.json", layouts=True)


def test_a_run_prints_and_records_and_is_resumed(request_of, tmp_path, capsys):
    data, wrong = session.bench(replace(request_of, only="chain"))
    assert wrong == 0 and data["complete"] and data["cases"] == [] and data["settings"]["peers"] == []
    data, wrong = session.bench(replace(request_of, resume=True))
    printed = capsys.readouterr().out
    assert wrong == 0 and [each["name"] for each in data["layouts"]] == ["chain", "pair"]
    assert "solve / best" in printed and "skipped: no intermediates" in printed and "1 of 2 cases were" in printed
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(data))
    with pytest.raises(EngineValueError, match="measured with layouts True, this run has False"):
        session.bench(replace(request_of, resume=True, layouts=False, peers=()))


def test_tables_without_cases_have_no_layouts():
    assert session.Request(layouts=True).chosen_tables() == ()


def test_the_command_line(monkeypatch, capsys, tmp_path):
    seen = []
    monkeypatch.setattr(session, "bench", lambda request: seen.append(request) or ({}, 0))
    assert cli.main(["bench", "thesis", "--layouts"]) == cli.main(["bench", "thesis"]) == 0
    assert [request.layouts for request in seen] == [True, False]
    for more in (["--peers", "numpy"], ["--plot", str(tmp_path / "x.png")]):
        assert cli.main(["bench", "--layouts", *more]) == 2
        assert f"there is nothing for {more[0]}" in capsys.readouterr().err
