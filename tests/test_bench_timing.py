"""How the benchmark times: rounds, samples, who gets more of them, when it ends. No test asserts a time."""

import math
from dataclasses import replace

import pytest

from einsum_engine.bench import timing


def test_compare_alternates_and_samples_everyone():
    calls = []
    candidates = [
        timing.Candidate(name=name, function=lambda name=name: calls.append(name)) for name in ("a", "b", "c")
    ]
    budget = timing.TimeBudget(seconds=60.0, least_rounds=3, most_rounds=3, deciding=0)
    timing.compare(candidates, always=("a",), budget=budget, settle=lambda: calls.append("settle"))
    assert all(len(each.samples) >= 1 and each.median > 0 for each in candidates)
    assert len(candidates[0].samples) == 4
    order = [name for number, name in enumerate(calls) if name != "settle" and calls[number - 1] == "settle"]
    assert order[:3] == ["a", "b", "c"] and calls.count("settle") >= 6


def test_no_candidate_always_follows_the_same_one():
    calls, names = [], "abcd"
    candidates = [timing.Candidate(name=name, function=lambda name=name: calls.append(name)) for name in names]
    for each in candidates:
        each.samples.append(1.0)
    for number in range(12):
        timing._round(number, candidates, lambda: calls.append("|"))
    order = [each[0] for each in "".join(calls).split("|")[1:]]
    assert all(sorted(order[at : at + 4]) == list(names) for at in range(0, 48, 4))
    for name in names:
        assert {before for before, each in zip(order, order[1:]) if each == name} >= set(names) - {name}


def test_candidates_alternate_call_by_call(monkeypatch):
    order = []
    candidates = [timing.Candidate(name=name, function=order.append, args=(name,)) for name in "abc"]
    monkeypatch.setattr(timing, "_SHORT_SECONDS", 0.0)
    timing.alternate(candidates, timing.TimeBudget(seconds=0.0, least_rounds=12), settle=list)
    rounds = "".join(order)[-36:]
    assert all(sorted(rounds[at : at + 3]) == list("abc") for at in range(0, 36, 3))
    assert len({rounds[at : at + 3] for at in range(0, 36, 3)}) > 3
    assert all(len(each.samples) == 12 and each.calls == 1 for each in candidates)


def test_a_tenth_of_the_samples_is_below_the_low_one():
    candidate = timing.Candidate(name="a", function=len, samples=[float(n) for n in range(40, 0, -1)])
    assert candidate.low == 5.0 and replace(candidate, samples=[3.0, 2.0]).low == 2.0


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    candidate = timing.Candidate(name="nothing", function=lambda: None)
    timing.compare([candidate], budget=timing.TimeBudget(seconds=0.0, least_rounds=1, most_rounds=1), settle=list)
    assert candidate.calls > 100


def test_a_disturbed_probe_does_not_make_all_samples_short(monkeypatch):
    """Its few calls took long; from the first sample that takes less than half of what one should, there are more."""
    seconds, counts = iter([2 * timing.SAMPLE_SECONDS, 1e-4, 1e-4, 1e-4]), []
    monkeypatch.setattr(timing, "time_calls", lambda candidate, calls: counts.append(calls) or next(seconds))
    candidate = timing.Candidate(name="a", function=len)
    timing._probe(candidate, list)
    timing._sample(candidate)
    enough = int(timing.SAMPLE_SECONDS / 1e-4) + 1
    assert counts == [1, 1, 1, enough] and candidate.calls == enough
    assert candidate.samples == [2 * timing.SAMPLE_SECONDS, 1e-4]


def test_who_cannot_win_is_not_called_again():
    calls = []
    firsts = {"fast": 0.1, "slow": 2.0, "slower but short": 0.4, "second": 0.9}
    candidates = [
        timing.Candidate(name=name, function=lambda name=name: calls.append(name), first=first)
        for name, first in firsts.items()
    ]
    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=1, long=0.3)
    timing.compare(candidates, budget=budget, settle=list)
    assert candidates[1].samples == [2.0] and set(calls) == {"fast", "slower but short", "second"}


def test_earlier_calls_count_where_they_alone_use_the_budget_up():
    calls = []
    firsts = {"fast": 2.0, "unsure": 5.0, "slow": 7.0}
    candidates = [
        timing.Candidate(name=name, function=lambda name=name: calls.append(name), first=first)
        for name, first in firsts.items()
    ]
    timing.compare(candidates, budget=timing.TimeBudget(seconds=9.0, most_rounds=1), settle=list)
    assert [each.samples[0] for each in candidates] == [2.0, 5.0, 7.0]
    assert [len(each.samples) for each in candidates] == [2, 2, 1]


def test_long_comparisons_end_soon_after_their_budget():
    budget = timing.TimeBudget(seconds=2.0, least_rounds=5)
    assert [timing._is_over(rounds, 3.5, budget) for rounds in (1, 2)] == [False, True]
    assert [timing._is_over(rounds, 6.5, budget) for rounds in (0, 1)] == [False, True]
    assert [timing._is_over(rounds, 2.5, budget) for rounds in (4, 5)] == [False, True]
    assert not timing._is_over(9, 1.9, budget)


def test_close_candidates_get_more_samples(monkeypatch):
    times = {"ours": 2e-2, "near": 2.1e-2, "far": 5e-2}
    monkeypatch.setattr(timing, "time_calls", lambda candidate, calls: times[candidate.name])
    candidates = [timing.Candidate(name=name, function=list) for name in times]
    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=1, deciding=4)
    timing.compare(candidates, always=("ours",), budget=budget, settle=list)
    assert [len(each.samples) for each in candidates] == [4, 4, 2]
    assert timing._undecided(candidates, ("ours",), 4) == []
    assert timing._undecided(candidates, ("ours",), 5) == candidates[:2]
    assert timing._undecided(candidates[::2], ("ours",), 5) == timing._undecided(candidates, (), 5) == []


@pytest.mark.parametrize("again, rounds", [(2.05e-2, 2), (2.2e-2, 7)])
def test_what_differs_from_itself_gets_more_samples(again, rounds, monkeypatch):
    times = {"ours": 2e-2, "again": again, "near": 1e-2, "far": 5e-2}
    monkeypatch.setattr(timing, "time_calls", lambda candidate, calls: times[candidate.name])
    candidates = [timing.Candidate(name=name, function=list) for name in times]
    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=1, deciding=0, equalising=5)
    same = ("ours", "again")
    timing.compare(candidates, always=same, equal=same, budget=budget, settle=list)
    assert [len(each.samples) for each in candidates] == [rounds] * 3 + [2 if rounds == 2 else 3]


def test_more_samples_end_when_what_is_equal_is_equal(monkeypatch):
    monkeypatch.setattr(timing, "time_calls", lambda candidate, calls: 2e-2)
    candidates = [timing.Candidate(name=name, function=list) for name in ("ours", "again", "near")]
    candidates[1].samples += [5e-2, 5e-2]
    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=1, deciding=0, equalising=20)
    same = ("ours", "again")
    timing.compare(candidates, always=same, equal=same, budget=budget, settle=list)
    assert candidates[1].samples == [5e-2, 5e-2, 2e-2, 2e-2, 2e-2] and len(candidates[0].samples) == 3


@pytest.mark.parametrize("near, rounds", [(2.1e-2, 4), (1.0, 2)])
def test_what_others_are_held_against_is_nobodys_rival(near, rounds, monkeypatch):
    times = {"ours": 2e-2, "near": near, "copy": 1e-3}
    monkeypatch.setattr(timing, "time_calls", lambda candidate, calls: times[candidate.name])
    candidates = [timing.Candidate(name=name, function=list, measure=name == "copy") for name in times]
    budget = timing.TimeBudget(seconds=9.0, least_rounds=1, most_rounds=1, deciding=4)
    timing.compare(candidates, always=("ours",), budget=budget, settle=list)
    assert [len(each.samples) for each in candidates] == [rounds] * 3


def test_a_fraction_is_of_one_round(monkeypatch):
    """The machine is twice as slow in every second round; a third copy is never the fastest."""
    turns = {"ours": iter([2.0, 4.0] * 9), "a": iter([1.0, 2.0] * 9), "b": iter([1.2, 1.6] * 9), "slow": iter(())}

    def sample(candidate):
        candidate.samples.append(next(turns[candidate.name]))

    monkeypatch.setattr(timing, "_sample", sample)
    ours, *copies = (timing.Candidate(name=name, function=int, samples=[1.0 + (name == "slow")]) for name in turns)
    budget = timing.TimeBudget(seconds=0.0, least_rounds=5, most_rounds=9)
    assert timing.fraction(ours, copies, budget=budget, settle=lambda: None) == 0.5
    assert len(ours.samples) == 1 + 5 and len(copies[-1].samples) == 1


def test_memory_is_touched_once_a_second_at_most():
    warm = timing.WarmMemory(1 << 25)
    warm()
    touched = warm._touched
    warm()
    assert warm._touched == touched > 0
    few = timing.WarmMemory(1 << 10)
    few()
    assert few._touched == -math.inf


def test_medians_ignore_one_outlier():
    assert timing.Candidate(name="x", function=print, samples=[1.0, 100.0, 1.1]).median == 1.1


def test_wait_until_idle_returns():
    assert timing.wait_until_idle() in (True, False)
