"""Measures of raw samples, and the tables of them: known answers for hand-made columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.entry_tables import DIGITS, Column, statistics_table, tail_table
from experiments.results.directory import Campaign, Results
from experiments.run_data import Kind
from experiments.scenario.files import load_scenario
from experiments.stats import measures
from experiments.verdict.summary import summarise
from tests.support.runs import hand_made


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 50.0), (75, 75.0), (99, 99.0), (99.9, 100.0), (100, 100.0)]
)
def test_percentile_is_an_observed_value(percent: float, expected: float) -> None:
    """Of 1…100 the p-th percentile is p itself."""
    assert measures.percentile(np.arange(1.0, 101.0), percent) == expected


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200), st.floats(0, 100))
def test_enough_values_lie_at_or_below_a_percentile(values: list[float], percent: float) -> None:
    """At least `percent` % of the values are at most the percentile, and it is one of them."""
    found = measures.percentile(np.array(values), percent)
    assert found in values
    assert np.mean(np.array(values) <= found) >= percent / 100 - 1e-9


@pytest.mark.parametrize(
    ("count", "percent", "few"),
    [(10_000, 99.0, False), (9_999, 99.0, True), (200, 50.0, False), (199, 50.0, True)],
)
def test_a_quantile_needs_a_hundred_samples_beyond_it(count: int, percent: float, few: bool) -> None:
    assert measures.has_few_beyond(count, percent) is few


def test_the_columns_of_both_tables() -> None:
    """Head and text of each: times are of successes, here 0.1 ms to 2 s; the time scale is a half."""
    latency = [*np.arange(1, 20_001) / 1e4, *[4.97] * 400]
    kind = [Kind.OK] * 20_000 + [Kind.RESET] * 400
    runs = [hand_made(latency, kind, 0.004, label=label) for label in ("random", "random (batch 10)")]
    scenario = load_scenario("regions").model_copy(update={"slo": 0.5, "time_scale": 0.5})
    campaign = Campaign(scenario=scenario, command="", started_at="", versions={}, machine="", plan=())
    summary = summarise(Results(Path(), campaign, tuple(runs)))
    assert "Service time runs from" in tail_table(summary).note
    statistics, tail = (
        ", ".join(f"{head} {cell.text}" for head, cell in zip(table.columns, table.rows[0], strict=True))
        for table in (statistics_table(summary), tail_table(summary))
    )
    assert statistics == (
        "entry random, total 20400, OK 20000, KO 400, % KO 1.96, req/s 95.7, min 0.10, 50th 1000, 75th 1500, "
        "95th 1900, 99th 1980, max 2000, mean 1000, std dev 577"
    )
    assert tail == (
        "entry random, load batch 100, total time s 208.96, p90 ms 1800, p99.9 ms 1998, p99 with KO ms 5000, "
        "service p50 ms 996, service p99 ms 1976, within 250 ms % 12.3, errors by kind reset 400"
    )


def test_a_run_without_any_success_has_a_row() -> None:
    """Counts are right and times are nan."""
    row = measures.statistics_row([hand_made([0.1, 0.1], kind=[Kind.RESET, Kind.REFUSED])])
    assert (row.ok, row.ko, row.rate) == (0, 2, 0.0)
    assert np.isnan(row.p99)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_value_that_is_not_finite_is_a_dash(value: float) -> None:
    assert Column("x", "a measure", lambda _: value, form=DIGITS).cell(None).text == "–"


def test_goodput_counts_timely_successes() -> None:
    """One of four is both successful and within the objective."""
    run = hand_made([0.1, 0.9, 0.1, 0.1], kind=[Kind.OK, Kind.OK, Kind.RESET, Kind.TIMEOUT])
    assert measures.goodput([run], slo=0.5) == 0.25


def test_shares_of_workers() -> None:
    """A request without an answer belongs to no worker."""
    run = hand_made([0.1, 0.1, 0.1])
    run.samples.worker[2] = -1
    assert measures.share_per_worker([run]) == {"emea-0": 1.0}


@pytest.mark.parametrize(
    ("lag", "latency", "reasons"),
    [
        (0.0, 0.1, ()),
        (0.020, 0.1, ()),
        (0.0249, 0.1, ()),
        (0.026, 0.1, ("mean latency, 50 % allowed", "p99 latency, 50 % allowed")),
        (0.001, 0.003, ("mean latency, 50 % allowed", "p99 latency, 50 % allowed")),
        (0.001, 0.020, ()),
        ([0.0] * 980 + [0.2] * 20, [0.05] * 980 + [0.25] * 20, ("p99 latency, 50 % allowed",)),
        ([0.0] * 980 + [0.2] * 20, [0.05] * 960 + [0.5] * 20 + [0.25] * 20, ()),
        ([0.1] * 980 + [0.0] * 20, [0.12] * 980 + [2.0] * 20, ("mean latency, 50 % allowed",)),
    ],
    ids=[
        "none", "a fifth", "nearly a quarter", "more", "1 ms of 3", "1 ms of 20",
        "p99 alone", "other requests are the p99", "mean alone",
    ],
)  # fmt: skip
def test_lag_is_judged_by_the_latency_that_it_may_be(
    lag: float | list[float], latency: float | list[float], reasons: tuple[str, ...]
) -> None:
    """A run is invalid if the generator's lag, counted twice, may be more than half of its mean or p99."""
    run = hand_made([latency] * 1000 if isinstance(latency, float) else latency)
    late = replace(run.samples, sent_at=run.samples.scheduled_at + np.array(lag))
    found = measures.validity(run.facts, late)
    assert [reason.split("of the ")[1] for reason in found] == list(reasons)
    assert all(reason.startswith("generator lag may be ") for reason in found)


@given(st.lists(st.tuples(st.floats(0.001, 9.0), st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=40))
def test_more_lag_never_makes_a_run_valid(rows: list[tuple[float, float, float]]) -> None:
    """Whatever the latencies are, and however the lag is spread over the requests."""
    run = hand_made([max(latency, lag + more) for latency, lag, more in rows] * 30)
    less, more = (
        replace(run.samples, sent_at=run.samples.scheduled_at + np.array(lags * 30))
        for lags in ([lag for _, lag, _ in rows], [lag + more for _, lag, more in rows])
    )
    assert len(measures.validity(run.facts, less)) <= len(measures.validity(run.facts, more))


def test_lag_of_a_request_that_timed_out_counts() -> None:
    """It may have timed out because it was sent late; one that was never sent has no lag."""
    run = hand_made([5.0] * 10, kind=[Kind.TIMEOUT] * 10, sent_late=4.0)
    assert measures.validity(run.facts, run.samples) == (
        "generator lag may be 100 % of the mean latency, 50 % allowed",
    )
    never = replace(run.samples, sent_at=run.samples.sent_at * np.nan)
    assert measures.validity(run.facts, never) == ()


def test_an_open_loop_that_falls_behind_is_invalid() -> None:
    """Under 99 % of the offered rate; exactly 99 % is allowed."""
    late = hand_made([0.1], achieved_rate=98.9, offered_rate=100.0)
    just = hand_made([0.1], achieved_rate=99.0, offered_rate=100.0)
    assert "98.9 % of 100.0/s offered" in measures.validity(late.facts, late.samples)[0]
    assert measures.validity(just.facts, just.samples) == ()


def test_a_closed_loop_has_no_offered_rate_but_a_lag() -> None:
    run = hand_made([0.1], mode="closed", batch=1, achieved_rate=1.0, sent_late=0.0005)
    assert measures.validity(run.facts, run.samples) == ()
    lagging = hand_made([0.1], mode="closed", batch=1, sent_late=0.06)
    assert len(measures.validity(lagging.facts, lagging.samples)) == 1


def test_an_interrupted_run_is_invalid() -> None:
    """The reason has the planned and the actual number of requests."""
    run = hand_made([0.1, 0.1], requests=10)
    assert measures.validity(run.facts, run.samples)[0] == "interrupted: 2 of 10 requests were sent"


def test_throughput_of_an_open_loop_is_over_the_time_of_its_load() -> None:
    """A request in a second is one per second, however soon it was answered; a late answer prolongs the run."""
    assert measures.throughput([hand_made([0.007], offered_rate=1.0)]) == 1.0
    assert measures.throughput([hand_made([4.0], offered_rate=1.0)]) == 0.25
    assert measures.throughput([hand_made([0.005])]) == pytest.approx(200.0)
