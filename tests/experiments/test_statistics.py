"""Measures of raw samples: known answers for hand-made columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.run_data import Kind, Run
from experiments.stats import measures

MakeRun = Callable[..., Run]


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


def test_the_row_counts_failures_and_measures_successes(make_run: MakeRun) -> None:
    """Times are of successes; the rate is successes over the whole span."""
    run = make_run([0.1, 0.3, 0.2, 4.97], kind=[Kind.OK, Kind.OK, Kind.OK, Kind.RESET])
    row = measures.statistics_row([run])
    assert (row.total, row.ok, row.ko, row.ko_percent) == (4, 3, 1, 25.0)
    assert (row.minimum, row.p50, row.maximum) == pytest.approx((0.1, 0.2, 0.3))
    assert row.rate == pytest.approx(3 / 5.0)
    assert row.mean == pytest.approx(0.2)


def test_a_run_without_any_success_has_a_row(make_run: MakeRun) -> None:
    """Counts are right and times are nan."""
    row = measures.statistics_row([make_run([0.1, 0.1], kind=[Kind.RESET, Kind.REFUSED])])
    assert (row.ok, row.ko, row.rate) == (0, 2, 0.0)
    assert np.isnan(row.p99)


def test_failures_count_as_the_deadline(make_run: MakeRun) -> None:
    """A reset after 1 ms is as slow as a timeout."""
    run = make_run([0.1, 0.001], kind=[Kind.OK, Kind.RESET], timeout=5.0)
    assert measures.deadline_mapped(run).tolist() == pytest.approx([0.1, 5.0])


def test_goodput_counts_timely_successes(make_run: MakeRun) -> None:
    """One of four is both successful and within the objective."""
    run = make_run([0.1, 0.9, 0.1, 0.1], kind=[Kind.OK, Kind.OK, Kind.RESET, Kind.TIMEOUT])
    assert measures.goodput([run], slo=0.5) == 0.25


def test_errors_are_counted_by_kind(make_run: MakeRun) -> None:
    """Kinds that did not occur are not listed."""
    run = make_run([0.1, 0.1, 0.1], kind=[Kind.OK, Kind.TIMEOUT, Kind.TIMEOUT])
    assert measures.errors_by_kind([run]) == {"timeout": 2}


def test_shares_of_workers(make_run: MakeRun) -> None:
    """A request without an answer belongs to no worker."""
    run = make_run([0.1, 0.1, 0.1])
    run.samples.worker[2] = -1
    assert measures.share_per_worker([run]) == {"emea-0": 1.0}


def test_a_late_generator_makes_the_run_invalid(make_run: MakeRun) -> None:
    """More than 1 ms at p99, with the number."""
    run = make_run([0.1], lag_p99=0.0042, achieved_rate=100.0, offered_rate=100.0)
    assert measures.validity(run.facts, run.samples) == ("generator lag p99 4.20 ms exceeds 1 ms",)


def test_an_open_loop_that_falls_behind_is_invalid(make_run: MakeRun) -> None:
    """Under 99 % of the offered rate; exactly 99 % is allowed."""
    late = make_run([0.1], achieved_rate=98.9, offered_rate=100.0)
    just = make_run([0.1], achieved_rate=99.0, offered_rate=100.0)
    assert "98.9 % of 100.0/s offered" in measures.validity(late.facts, late.samples)[0]
    assert measures.validity(just.facts, just.samples) == ()


def test_a_closed_loop_has_no_offered_rate_but_a_lag(make_run: MakeRun) -> None:
    run = make_run([0.1], mode="closed", batch=1, achieved_rate=1.0, lag_p99=0.0005)
    assert measures.validity(run.facts, run.samples) == ()
    lagging = make_run([0.1], mode="closed", batch=1, lag_p99=0.002)
    assert len(measures.validity(lagging.facts, lagging.samples)) == 1


def test_an_interrupted_run_is_invalid(make_run: MakeRun) -> None:
    """The reason has the planned and the actual number of requests."""
    run = make_run([0.1, 0.1], requests=10)
    assert measures.validity(run.facts, run.samples)[0] == "interrupted: 2 of 10 requests were sent"
