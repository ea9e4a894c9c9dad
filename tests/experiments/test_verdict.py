"""The verdict: which entry to run, in one sentence; or why that is not known, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Scenario
from experiments.service.plan import contestants_of, service_scenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, compare_pairs, inverted
from experiments.stats.run_summary import RunSummary, counted
from experiments.verdict.advice import remedy
from experiments.verdict.contest import Contest, contest_of
from experiments.verdict.disturbed import repetitions
from experiments.verdict.evidence import compared, evidence
from experiments.verdict.verdict import Verdict, conclude
from experiments.verdict.winner import losing_more
from tests.support.result_sets import LATE

LABELS = ("round-robin", "steelyard", "peak-ewma", "c3")


def scenario_of(labels: tuple[str, ...] = LABELS, measure: str = "p99") -> Scenario:
    """The packaged scenario `steady` with these entries and the A/A control."""
    scenario = load_scenario("steady")
    known = {entry.label: entry for entry in scenario.entries}
    template = known["round-robin"]
    entries = [
        known.get(label)
        or template.model_copy(
            update={"label": label, "policy": template.policy.model_copy(update={"name": label})}
        )
        for label in (*labels, "round-robin again")
    ]
    return scenario.model_copy(
        update={"entries": tuple(entries), "measure": measure, "baseline": "round-robin"}
    )


def runs_of(
    levels: Mapping[str, float],
    blocks: int = 8,
    noise: float = 0.01,
    failed: Mapping[str, int] | None = None,
    seed: int = 1,
    invalid: int = 0,
) -> list[RunSummary]:
    """A run of every label in every block: p99 `levels[label]` seconds with log-normal noise; half of it is the mean.

    The first `invalid` blocks are invalid.
    """
    rng = np.random.default_rng(seed)
    plain = RunSummary(0, 0, "", True, (), 1000, 0, 100.0, 0.0, 0.0, 0.0, 10.0, 100.0, 100.0, 0.0, 0.0)
    drawn = [
        (block, label, level * float(np.exp(rng.normal(0, noise))))
        for block in range(blocks)
        for label, level in {**levels, "round-robin again": levels["round-robin"]}.items()
    ]
    return [
        replace(
            plain,
            block=block,
            label=label,
            p50=value / 4,
            p99=value,
            mean=value / 2,
            ko=(lost := (failed or {}).get(label.removesuffix(" again"), 0)),
            goodput=1 - lost / 1000,
            valid=block >= invalid,
            invalid_reasons=(LATE,) if block < invalid else (),
        )
        for block, label, value in drawn
    ]


def verdict_of(runs: list[RunSummary], scenario: Scenario | None = None) -> Verdict:
    """The verdict as a report reaches it."""
    return conclude(evidence(contest_of(scenario or scenario_of(), "measured", runs), runs))


def p99_of(runs: list[RunSummary], scenario: Scenario) -> Comparison:
    """The comparison of the second entry with the baseline by p99."""
    found, _ = compared(contest_of(scenario, "measured", runs), runs)
    return next(one for one in found if one.measure == "p99")


PAIR = ("round-robin", "steelyard")


def two(has_control: bool = True, measure: str = "p99") -> Scenario:
    """The scenario with one entry beside the baseline."""
    scenario = scenario_of(PAIR, measure)
    return scenario if has_control else scenario.model_copy(update={"entries": scenario.entries[:2]})


def test_the_headline_names_the_winner_its_gain_and_the_runner_up() -> None:
    """25 % against the baseline and 6 % against the next, each with its interval."""
    verdict = verdict_of(
        runs_of({"round-robin": 0.4, "steelyard": 0.3, "peak-ewma": 0.32, "c3": 0.39}, noise=0.005)
    )
    assert verdict.winner == "steelyard"
    assert verdict.headline.replace("\u00a0", " ").startswith(
        "Run steelyard: the slowest 1 % of requests are 25 % faster than under round-robin"
    )
    assert " and 6." in verdict.headline
    assert "faster than under peak-ewma, the runner-up (" in verdict.headline
    assert verdict.advice == ""


def test_a_practically_equal_runner_up_is_called_so() -> None:
    """1 % apart with little noise."""
    verdict = verdict_of(runs_of({"round-robin": 0.4, "steelyard": 0.3, "peak-ewma": 0.303}, noise=0.003))
    assert verdict.winner == "steelyard"
    assert verdict.headline.endswith("; peak-ewma, the runner-up, is practically equal")
    assert "Practically equal to steelyard: peak-ewma." in verdict.sentences


def test_a_baseline_that_is_best_wins() -> None:
    """It is compared with the runner-up, which stands behind."""
    verdict = verdict_of(runs_of({"round-robin": 0.3, "steelyard": 0.4}))
    assert verdict.winner == "round-robin"
    assert verdict.headline.startswith("Run round-robin: the slowest 1 % of requests are 2")
    assert "faster than under steelyard, the runner-up" in verdict.headline


def test_nothing_is_recommended_where_all_are_equal() -> None:
    verdict = verdict_of(runs_of({"round-robin": 0.300, "steelyard": 0.299, "c3": 0.301}, noise=0.003))
    assert verdict.headline == "No policy beats round-robin; steelyard, the runner-up, is practically equal"


def test_a_difference_that_chance_may_explain_has_no_winner() -> None:
    """The advice names a number of blocks, at least twice as many."""
    scenario = two(has_control=False)
    verdict = verdict_of(runs_of({"round-robin": 0.4, "steelyard": 0.33}, noise=0.15, seed=5), scenario)
    assert (verdict.winner, verdict.has_verdict) == (None, True)
    assert verdict.headline.startswith("No winner: under steelyard, the slowest 1 % of requests are ")
    assert verdict.headline.endswith("which chance may explain")
    assert int(verdict.advice.rstrip(".").rsplit(" ", 1)[1]) >= 16


def test_undecided_has_one_wording_whichever_is_observed_better() -> None:
    """The same noise with either sign: which side it takes is chance."""
    scenario = two(has_control=False)
    wave = np.exp(0.2 * np.array([1, -1, 1, -1, 1, -1, 1, -1]))
    for level in (0.38, 0.42):
        runs = [
            replace(run, p99=level * wave[run.block] if run.label == "steelyard" else 0.4)
            for run in runs_of({"round-robin": 0.4, "steelyard": 0.4})
        ]
        verdict = verdict_of(runs, scenario)
        assert verdict.winner is None
        assert verdict.headline.startswith("No winner: under steelyard, the slowest 1 % of requests are 5.0")
        assert " faster and " in verdict.headline
        assert verdict.headline.endswith("which chance may explain")
        assert verdict.advice


def test_a_difference_within_the_noise_floor_has_no_winner() -> None:
    """The A/A control differs by 8 %, the entry by 7 %."""
    runs = runs_of({"round-robin": 0.4, "steelyard": 0.372}, noise=0.001)
    runs = [replace(run, p99=run.p99 * 1.08) if run.label == "round-robin again" else run for run in runs]
    verdict = verdict_of(runs, two())
    assert verdict.winner is None
    assert "no more than the laboratory's bias of" in verdict.headline


def test_an_entry_that_fails_more_requests_cannot_win() -> None:
    """Fastest by far, with 5 of 1000 requests failed in every block."""
    levels = {"round-robin": 0.4, "steelyard": 0.35, "c3": 0.1}
    verdict = verdict_of(runs_of(levels, failed={"c3": 5}))
    assert verdict.winner == "steelyard"
    assert any(
        line.startswith("Cannot win, because more requests fail")
        and "c3 (0.5 percentage points more)" in line
        for line in verdict.sentences
    )
    few = runs_of(levels, failed={"c3": 1})
    assert losing_more(contest_of(scenario_of(), "measured", few), few) == {}
    assert (
        "failed requests: 8 of 8\u202f000 (0.1\u00a0%) under c3, 0 of 8\u202f000" in verdict_of(few).headline
    )


@pytest.mark.parametrize(("share", "least", "most"), [(0.017, 0.0, 0.05), (0.04, 0.95, 1.0)])
def test_how_often_an_entry_is_said_to_fail_more(share: float, least: float, most: float) -> None:
    """Eight entries beside the baseline, which fail as often, but for one whose `share` fails."""
    rng, labels = np.random.default_rng(1), [f"e{number}" for number in range(9)]
    campaigns, shares = 1000, [0.017] * 8 + [share]
    contest = Contest("simulated", "mean", "mean", "e0", tuple(labels), tuple(labels))
    plain = replace(runs_of({"round-robin": 0.4}, blocks=1)[0], requests=1200)
    runs = [replace(plain, label=label, block=block) for block in range(8) for label in labels]
    said = 0
    for _ in range(campaigns):
        lost = rng.binomial(1200, shares, (8, 9)).ravel().tolist()
        found = losing_more(contest, [replace(run, ko=ko) for run, ko in zip(runs, lost, strict=True)])
        said += ("e8" in found) if share > 0.017 else bool(found)
    assert least <= said / campaigns <= most, said / campaigns


def test_an_oracle_cannot_win() -> None:
    """It knows what no balancer knows."""
    labels = ("round-robin", "steelyard", "oracle-least-work")
    runs = runs_of({"round-robin": 0.4, "steelyard": 0.3, "oracle-least-work": 0.2})
    assert verdict_of(runs, scenario_of(labels)).winner == "steelyard"


def at_the_deadline(*, more: float = 0.0, noise: float = 0.0) -> list[RunSummary]:
    """Runs in which 5 % fail under both entries, `more` (0..1) of the requests under round-robin, with noise."""
    rng = np.random.default_rng(3)
    levels = dict.fromkeys(("round-robin", "steelyard"), scenario_of().timeout)
    lost = {
        (run.label, run.block): 50 + round(1000 * rng.normal(more * (run.label != "steelyard"), noise))
        for run in runs_of(levels)
    }
    return [
        replace(run, ko=lost[run.label, run.block], goodput=1 - lost[run.label, run.block] / 1000)
        for run in runs_of(levels, noise=0.0)
    ]


def test_a_tail_at_the_deadline_is_not_equality() -> None:
    """More than 1 % fail under both, so every p99 is the deadline: the odds of a miss decide, and here they cannot."""
    scenario = two(has_control=False)
    runs = at_the_deadline(more=0.005, noise=0.012)
    one = p99_of(runs, scenario)
    assert (one.judged_by, one.standing) == ("goodput", "undecided")
    verdict = verdict_of(runs, scenario)
    assert verdict.winner is None
    assert verdict.headline.startswith("No winner: under steelyard, the odds of a late or failed answer are ")
    assert verdict.sentences[-1].startswith(
        "More than 1 % of the requests of steelyard, round-robin failed: "
    )
    assert re.search(
        r"goodput decides between them\. Answered in time: steelyard 9\d\.\d\d\s%", verdict.sentences[-1]
    )
    assert "in the odds of a late or failed answer" in " ".join(verdict.details)


def test_goodput_decides_where_the_tail_is_the_deadline() -> None:
    """Ahead with fewer misses, equal with the same number, and the order is that of the goodput."""
    scenario = two()
    verdict = verdict_of(at_the_deadline(more=0.03, noise=0.002), scenario)
    assert verdict.winner == "steelyard"
    headline = verdict.headline.replace("\u00a0", " ")
    assert headline.startswith("Run steelyard: the odds of a late or failed answer are ")
    assert "% lower than under round-robin, the runner-up" in headline
    assert [label for label, _ in verdict.order] == ["steelyard", "round-robin"]
    same = verdict_of(at_the_deadline(), scenario)
    assert same.headline.startswith(
        "No policy beats round-robin; steelyard, the runner-up, is practically equal"
    )


def test_goodput_decides_where_both_runs_of_the_baseline_fail() -> None:
    """Half of the blocks of each fail, never the same: the p99 decides, so nothing is said of a goodput that does."""
    failing = {"steelyard": range(8), "round-robin": range(4), "round-robin again": range(4, 8)}
    runs = [
        replace(run, p99=30.0, ko=50, goodput=0.95) if run.block in failing[run.label] else run
        for run in runs_of(dict.fromkeys(("round-robin", "steelyard"), 0.4))
    ]
    verdict = verdict_of(runs, two())
    assert p99_of(runs, two()).judged_by == "p99"
    assert verdict.sentences[-1].startswith("More than 1 % of the requests of steelyard failed: its p99 is ")


def test_a_tail_that_is_seldom_the_deadline_still_decides() -> None:
    """In three of eight blocks more than 1 % fail under both: the p99 decides, but shows no equality."""
    levels = dict.fromkeys(("round-robin", "steelyard"), 0.4)
    scenario = two()
    for better, standing in ((1.0, "undecided"), (0.5, "ahead")):
        runs = [
            replace(run, p99=scenario.timeout, ko=20)
            if run.block < 3
            else replace(run, p99=run.p99 * (better if run.label == "steelyard" else 1.0))
            for run in runs_of(levels, noise=0.001)
        ]
        one = p99_of(runs, scenario)
        assert (one.judged_by, one.standing) == ("p99", standing)


@pytest.mark.parametrize(
    ("blocks", "invalid", "headline", "advice"),
    [
        (1, 0, "No verdict: each ran once, 8 needed to tell a difference from chance", "--blocks 8"),
        (5, 0, "No verdict: each ran 5 times, 8 needed", "with --simulated that takes seconds"),
        (8, 3, "No verdict: 5 blocks valid, 8 are needed", "--patience"),
        (8, 8, "No verdict: the load generator was late in every block", "lower --rate"),
    ],
)
def test_without_a_verdict_it_says_why_and_what_to_do(
    blocks: int, invalid: int, headline: str, advice: str
) -> None:
    runs = runs_of({"round-robin": 0.4, "steelyard": 0.3}, blocks=blocks, invalid=invalid)
    verdict = verdict_of(runs, scenario_of().model_copy(update={"blocks": blocks}))
    assert (verdict.has_verdict, verdict.winner) == (False, None)
    assert verdict.headline.startswith(headline)
    assert advice in verdict.advice


def test_a_campaign_that_was_stopped_is_said_to_be_repeated() -> None:
    """As it is, where it has enough blocks; and not every entry ran as often as the others."""
    runs = [
        run
        for run in runs_of({"round-robin": 0.4, "steelyard": 0.3, "c3": 0.3}, blocks=2)
        if run.label != "c3" or run.block == 0
    ]
    verdict = verdict_of(runs)
    assert verdict.headline == "No verdict: each ran 1 to 2 times, 8 needed to tell a difference from chance"
    assert verdict.advice == "The command ended before its 8 blocks had run: repeat it."


def late(runs: list[RunSummary], label: str, blocks: range, **changes: Any) -> list[RunSummary]:
    """The runs, those of an entry in some blocks invalid because the generator was late."""
    return [
        replace(run, valid=False, invalid_reasons=(LATE,), **changes)
        if run.label == label and run.block in blocks
        else run
        for run in runs
    ]


def test_a_late_run_makes_its_block_invalid_for_all_entries() -> None:
    """Not only for the entry in whose run the generator was late, which may have caused it."""
    runs = late(runs_of({"round-robin": 0.4, "steelyard": 0.3, "c3": 0.35}, blocks=12), "c3", range(2))
    contest = contest_of(scenario_of(), "measured", runs)
    assert {one.interval.blocks for one in compared(contest, runs)[0]} == {10}
    assert verdict_of(runs).winner == "steelyard"
    assert {run.block for run in counted(runs)} == set(range(2, 12))


def test_late_runs_may_take_a_verdict_but_never_give_one() -> None:
    """Steelyard is 25 % faster in eight blocks, and much slower in four in which it made the generator late."""
    runs = runs_of({"round-robin": 0.4, "steelyard": 0.3}, blocks=12)
    scenario = two()
    assert verdict_of(late(runs, "steelyard", range(4), p99=0.31), scenario).winner == "steelyard"
    slow = verdict_of(late(runs, "steelyard", range(4), p99=4.0), scenario)
    assert slow.winner is None
    assert slow.headline.startswith("No winner: under steelyard")
    alike = runs_of({"round-robin": 0.4, "steelyard": 0.4}, blocks=12, noise=0.002)
    for late_p99, standing in ((0.4, "practically equal"), (4.0, "undecided")):
        assert p99_of(late(alike, "steelyard", range(4), p99=late_p99), scenario).standing == standing
    again = [replace(run, set_aside=1) for run in late(runs, "steelyard", range(4), p99=4.0) if run.block < 4]
    assert verdict_of([*runs, *again], scenario).winner is None
    assert repetitions([*runs, *again])[0] == f"block 1, attempt 1: steelyard: {LATE}"
    assert repetitions([*runs, *again])[4].endswith("repeated ones included: steelyard 4 of 16.")


def lagging(runs: list[RunSummary], lags: Mapping[str, float]) -> list[RunSummary]:
    """The runs, with a lag of so many seconds that each p99 may contain."""
    return [
        replace(run, without_lag={"p99": run.p99 - lags.get(run.label.removesuffix(" again"), 0.0)})
        for run in runs
    ]


@pytest.mark.parametrize(
    ("baseline", "entry", "lag_of_baseline", "lag_of_entry", "measured", "standing"),
    [
        (0.060, 0.040, 0.0, 0.0, "ahead", "ahead"),
        (0.060, 0.040, 0.010, 0.010, "ahead", "ahead"),
        (0.060, 0.040, 0.010, 0.0, "ahead", "ahead"),
        (0.060, 0.040, 0.021, 0.0, "ahead", "within the generator's lag"),
        (0.060, 0.040, 0.0, 0.020, "ahead", "ahead"),
        (0.060, 0.054, 0.006, 0.0, "ahead", "within the generator's lag"),
        (0.060, 0.054, 0.006, 0.006, "ahead", "ahead"),
        (0.040, 0.060, 0.0, 0.010, "behind", "behind"),
        (0.040, 0.060, 0.0, 0.021, "behind", "within the generator's lag"),
        (0.060, 0.060, 0.0, 0.001, "practically equal", "practically equal"),
        (0.060, 0.060, 0.0, 0.006, "practically equal", "within the generator's lag"),
        (0.060, 0.060, 0.020, 0.020, "practically equal", "practically equal"),
    ],
)
def test_what_lag_may_explain_is_not_claimed(
    baseline: float, entry: float, lag_of_baseline: float, lag_of_entry: float, measured: str, standing: str
) -> None:
    """Lag that is equal under both takes nothing: a difference of 20 ms is found on a machine that is 10 ms late."""
    levels = {"round-robin": baseline, "steelyard": entry}
    runs = runs_of(levels, noise=0.002)
    late = lagging(runs, {"round-robin": lag_of_baseline, "steelyard": lag_of_entry})
    assert [p99_of(each, two()).standing for each in (runs, late)] == [measured, standing]
    verdict = verdict_of(late, two())
    is_doubtful = standing == "within the generator's lag"
    assert verdict.headline.endswith(", which the load generator's lag may explain") is is_doubtful
    assert (verdict.winner == "steelyard") is (standing == "ahead")


@given(st.floats(0.5, 2.0), st.floats(0, 0.5), st.floats(0, 0.5))
def test_lag_never_gives_a_claim(ratio: float, of_baseline: float, of_entry: float) -> None:
    """Whatever it is under each, a standing is that of the latencies as measured, or none is claimed."""
    levels = {"round-robin": 0.05, "steelyard": 0.05 * ratio}
    runs = runs_of(levels, noise=0.01)
    late = lagging(runs, {"round-robin": 0.04 * of_baseline, "steelyard": 0.04 * ratio * of_entry})
    plain, shown = (p99_of(each, two()).standing for each in (runs, late))
    assert shown in (plain, "within the generator's lag")


def test_the_observed_order_agrees_with_the_ratios() -> None:
    """The entry that is run twice counts with both runs in either."""
    for seed in range(40):
        runs = runs_of({"round-robin": 0.4, "steelyard": 0.4}, noise=0.1, seed=seed)
        is_best = verdict_of(runs).order[0][0] == "steelyard"
        assert is_best is (p99_of(runs, two()).interval.ratio < 1), seed


def test_an_entry_that_is_invalid_by_its_own_fault_cannot_win() -> None:
    """The others keep their blocks, and the reason is given."""
    runs = runs_of({"round-robin": 0.4, "steelyard": 0.3, "c3": 0.1}, blocks=9)
    fault = "the policy failed 90 of 100 times and was stood in for: KeyError"
    runs = [
        replace(run, valid=False, invalid_reasons=(fault,), ko=9)
        if (run.label, run.block) == ("c3", 0)
        else run
        for run in runs
    ]
    verdict = verdict_of(runs)
    assert verdict.winner == "steelyard"
    assert "No request failed under any entry in valid runs." in verdict.sentences
    assert f"Cannot win, because a run is invalid by a fault of its own: c3 ({fault})." in verdict.sentences
    assert not any(line.startswith("Under c3, ") for line in verdict.sentences)
    contest = contest_of(scenario_of(), "measured", runs)
    blocks = {one.label: one.interval.blocks for one in compared(contest, runs)[0]}
    assert (blocks["steelyard"], blocks["c3"]) == (9, 8)
    assert remedy([LATE, fault], is_open=True) == (
        f"Runs are invalid: {fault}. Correct the policy; `python -m policies.contract` tests it in seconds."
    )


@pytest.mark.parametrize("blocks", [1, 8])
def test_nothing_answered_has_no_verdict(blocks: int) -> None:
    """Where all fail alike, more blocks do not help, and nothing is equal or has an order."""
    levels = dict.fromkeys(("round-robin", "steelyard"), 10.0)
    verdict = verdict_of(
        runs_of(levels, blocks=blocks, noise=0.0, failed=dict.fromkeys((*levels, "round-robin again"), 1000))
    )
    assert (verdict.has_verdict, verdict.details) == (False, ())
    assert verdict.headline == "No verdict: every request failed"
    assert "--blocks" not in verdict.advice
    (sentence,) = verdict.sentences
    assert sentence.startswith("Failed requests: round-robin ")
    assert sentence.count("000 (100\u00a0%)") == 2


def alone(blocks: int, **changes: Any) -> Verdict:
    """The verdict on one entry alone."""
    scenario = scenario_of(("round-robin",))
    scenario = scenario.model_copy(update={"entries": scenario.entries[:1]})
    runs = [run for run in runs_of({"round-robin": 0.4}, blocks=blocks) if run.label == "round-robin"]
    return verdict_of([replace(run, **changes) for run in runs], scenario)


def test_an_entry_alone_is_described() -> None:
    """Nothing is compared: rate, failures, median and tail, and what gives intervals."""
    verdict = alone(1, p50=0.1, p99=0.4)
    assert verdict.headline == (
        "round-robin: 100 answers per second, none of 1\u202f000 failed; half took at most 100 ms, 99 % at most 400 ms"
    )
    assert "--blocks 8 gives intervals" in verdict.advice
    assert "--policies A,B" in verdict.advice
    assert (verdict.has_verdict, verdict.sentences) == (False, ())


def test_an_entry_alone_has_intervals_over_its_runs() -> None:
    verdict = alone(8)
    found = re.search(r"99 % at most (\d+) ms \((\d+) ms to (\d+) ms\)$", verdict.headline)
    assert found is not None
    middle, low, high = map(int, found.groups())
    assert 390 < low < middle < high < 410
    assert "--blocks" not in verdict.advice


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ko": 1000}, "round-robin: all 1\u202f000 requests failed"),
        ({"ko": 20, "p99": 10.0}, "20 of 1\u202f000 (2\u00a0%) requests failed; half took at most 100 ms"),
        ({"ko": 20}, "98.0 answers per second, 20 of 1\u202f000 (2\u00a0%) requests failed"),
        ({"requests": 500}, "none of 500 failed; half took at most 100 ms, on average 200 ms"),
    ],
)
def test_an_entry_alone_that_fails_or_is_short(changes: dict[str, Any], said: str) -> None:
    steady = {"p50": 0.1, "mean": 0.2}
    assert said in alone(1, **{**steady, **changes}).headline


def test_an_entry_alone_that_fails_in_some_runs() -> None:
    """The median of those is the deadline: it is nothing that requests took, nor is a mean over the runs."""
    scenario = scenario_of(("round-robin",))
    scenario = scenario.model_copy(update={"entries": scenario.entries[:1]})
    failed: dict[str, Any] = {
        "ko": 1000,
        "p50": scenario.timeout,
        "p99": scenario.timeout,
        "mean": scenario.timeout,
    }
    runs = [replace(run, **failed if run.block else {}) for run in runs_of({"round-robin": 0.4}, blocks=3)]
    runs = [run for run in runs if run.label == "round-robin"]
    headline = verdict_of(runs, scenario).headline
    assert (
        headline
        == "round-robin: 33.3 answers per second, 2\u202f000 of 3\u202f000 (67\u00a0%) requests failed"
    )


def test_an_entry_alone_whose_runs_are_invalid_has_no_result() -> None:
    """It says why, and what helps."""
    verdict = alone(1, valid=False, invalid_reasons=(LATE,))
    assert verdict.headline == "No result: the load generator was late in every run, so their times are wrong"
    assert "close other programs, lower --rate" in verdict.advice
    stopped = alone(1, valid=False, invalid_reasons=("interrupted: 3 of 100 requests were sent",))
    assert stopped.headline == "No result: no run is valid"
    assert stopped.advice == "Runs are invalid: interrupted: 3 of 100 requests were sent. Repeat the command."


def test_a_service_is_not_advised_to_be_simulated() -> None:
    """`experiments load` cannot simulate a URL."""
    service = {"connections": 10}
    load = {"rate": 100.0, "duration": 10.0}
    both = service_scenario(
        contestants_of(["a=http://a/", "b=http://b/"]), load, service, timeout=10.0, blocks=1
    )
    runs = [
        replace(run, label={"round-robin": "a", "steelyard": "b"}[run.label])
        for run in runs_of({"round-robin": 0.4, "steelyard": 0.3}, blocks=1)
        if run.label != "round-robin again"
    ]
    assert verdict_of(runs, both).advice == "Repeat the command with --blocks 8 or more."
    one = service_scenario(contestants_of(["http://a/"]), load, service, timeout=10.0)
    assert "a second URL gives a comparison" in verdict_of([replace(runs[0], label="a")], one).advice


def test_runs_with_few_requests_are_judged_by_the_mean() -> None:
    """A p99 takes 1,000 requests in each run: with fewer it is compared nowhere, and the verdict says so."""
    levels = {"round-robin": 0.4, "steelyard": 0.3}
    runs = [replace(run, requests=999) for run in runs_of(levels)]
    contest = contest_of(scenario_of(), "measured", runs)
    assert {one.measure for one in compared(contest, runs)[0]} == {"throughput", "mean"}
    verdict = verdict_of(runs)
    assert verdict.headline.startswith("Run steelyard: the average request is 25")
    assert verdict.sentences[0] == (
        "The mean decides: a p99 takes 1\u202f000 requests in each run, and there were 999."
    )
    assert verdict.details[-1].startswith("Judged by mean latency, a failed request counting")


@pytest.mark.parametrize(
    ("better", "noise", "advice"),
    [
        (0.97, 0.1, "A difference below 5 % is too small to matter"),
        (0.85, 0.25, "The difference may show with about "),
        (0.92, 0.8, "Runs differ too much: more than 64 blocks would be needed to tell."),
    ],
)
def test_advice_about_a_doubtful_difference(better: float, noise: float, advice: str) -> None:
    """By its size and by the noise: more blocks only where they are affordable and the difference matters."""
    scenario = two(has_control=False)
    wave = np.exp(noise * np.array([1, -1, 1, -1, 1, -1, 1, -1]))
    runs = [
        replace(run, p99=0.4 * (better * wave[run.block] if run.label == "steelyard" else 1.0))
        for run in runs_of({"round-robin": 0.4, "steelyard": 0.4})
    ]
    verdict = verdict_of(runs, scenario)
    assert verdict.headline.startswith("No winner: under steelyard")
    assert verdict.advice.startswith(advice)
    simulated = conclude(evidence(contest_of(scenario, "simulated", runs), runs))
    assert simulated.advice == verdict.advice.replace(" or a quieter machine", "")
    replayed = [
        replace(run, parts={key: [1.0, 1.0] for key in ("p99", "mean", "throughput", GOODPUT)})
        for run in runs
    ]
    if better < 0.95:
        assert verdict_of(replayed, scenario).advice.startswith("More blocks would replay the same record")


def test_throughput_is_worded_as_a_rate() -> None:
    scenario = two(measure="throughput")
    runs = [
        replace(run, throughput=142.0 if run.label == "steelyard" else 100.0)
        for run in runs_of({"round-robin": 0.4, "steelyard": 0.4}, noise=0.0)
    ]
    headline = verdict_of(runs, scenario).headline.replace("\u00a0", " ")
    assert (
        headline
        == "Run steelyard: it completes 42 % more requests per second than round-robin, the runner-up"
    )


def test_large_factors_are_told_as_times() -> None:
    headline = verdict_of(runs_of({"round-robin": 0.4, "steelyard": 0.1}, noise=0.0)).headline
    assert "are 4.0 times as fast as under round-robin" in headline


def test_a_factor_to_an_entry_at_the_deadline_is_at_least_that() -> None:
    """5 % of the baseline's requests fail, so its p99 is whatever the deadline is configured to be."""
    runs = runs_of({"round-robin": 30.0, "steelyard": 0.3}, noise=0.0, failed={"round-robin": 50})
    verdict = verdict_of(runs)
    assert "are at least 100 times as fast as under round-robin" in verdict.headline
    assert "as failures make it the deadline under round-robin" in verdict.headline
    details = " ".join(verdict.details).replace("\u00a0", " ")
    assert "ahead: steelyard at most × 0.010 [0.010–0.010] (the deadline under round-robin)." in details
    assert verdict.sentences[-1].replace("\u00a0", " ") == (
        "More than 1 % of the requests of round-robin failed: its p99 is the deadline. Answered in time: "
        "round-robin 95.00 %."
    )


def test_a_comparison_seen_from_the_other_side() -> None:
    """Ratio and interval are reciprocal, and ahead becomes behind."""
    values = {"a": {n: 1.0 + n / 100 for n in range(8)}, "b": {n: 2.0 + n / 90 for n in range(8)}}
    (there,), _ = compare_pairs("p99", values, [("a", "b")])
    back = inverted(there)
    assert (back.label, back.baseline) == ("b", "a")
    assert (there.standing, back.standing) == ("ahead", "behind")
    assert back.interval.ratio == pytest.approx(1 / there.interval.ratio)
    assert back.interval.low == pytest.approx(1 / there.interval.high)
    assert inverted(back).interval.low == pytest.approx(there.interval.low)


@pytest.mark.second_tier
def test_a_runner_up_is_rarely_called_behind_by_chance() -> None:
    """Six equal entries in 300 campaigns: best and second best are chosen and compared by the same blocks."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        values = {f"e{n}": dict(enumerate(np.exp(rng.normal(0, 0.2, 8)))) for n in range(6)}
        order = sorted(values, key=lambda label: sum(map(np.log, values[label].values())))
        first = compare_pairs("p99", values, list(combinations(order, 2)))[0][0]
        wrong += first.standing == "ahead"
    assert wrong <= 15
