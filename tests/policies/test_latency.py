"""Predicted latency of an endpoint: from its own samples, in proportion to requests in flight; failures are charged."""

from __future__ import annotations

from math import isfinite

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind
from policies.endpoint.latency_prior import GUESS, LatencyPrior
from policies.stats.latency import FAILURE_COST, FORGET_AFTER


def state(name: str = "a", region: str = "here", latency_prior: LatencyPrior | None = None) -> EndpointState:
    return EndpointState(Endpoint(name, "http://x", region), latency_prior=latency_prior)


def answer(
    s: EndpointState, latency: float, now: float, ahead: int = 0, kind: OutcomeKind = OutcomeKind.OK
) -> None:
    s.count(Outcome(kind, 200, now - latency, None, now), ahead, 0)


def test_idle_endpoint_is_predicted_at_its_floor() -> None:
    """All latencies are equal: no wait, at any price of waiting."""
    s = state()
    for i in range(10):
        answer(s, 0.35, float(i) / 10)
    assert s.predicted_latency(1.0) == pytest.approx(0.35)
    assert s.predicted_latency(1.0, wait_price=8) == pytest.approx(0.35)


def test_wait_grows_with_requests_in_flight_and_the_floor_does_not() -> None:
    """A round trip of 0.5 s is not doubled by twice the requests; the wait grows by (3 + 2)/(1 + 2)."""
    s = state()
    answer(s, 0.50, 0.0, ahead=1)
    for i in range(2000):
        answer(s, 0.52, 0.1 + i / 1000, ahead=1)
    s.in_flight, s.busy_since = 1, 2.0
    at_usual = s.predicted_latency(2.1)
    s.in_flight = 3
    assert at_usual == pytest.approx(0.52, abs=1e-3)
    assert s.predicted_latency(2.1) == pytest.approx(0.50 + 0.02 * 5 / 3, abs=2e-3)
    assert s.predicted_latency(2.1, wait_price=8) == pytest.approx(0.50 + 8 * 0.02 * 5 / 3, abs=1e-2)


def test_burst_is_charged_before_its_wait_is_measured() -> None:
    """Requests in flight far beyond any number that was answered cost, although every response so far was quick."""
    s = state()
    answer(s, 0.1, 0.0, ahead=1)
    s.in_flight, s.busy_since = 6, 0.0
    assert s.predicted_latency(0.01) == pytest.approx(0.1)
    s.in_flight = 50
    assert s.predicted_latency(0.01) > 1.0


def test_latency_is_taken_to_the_first_byte() -> None:
    """A long download is no slowness of the worker; the histogram has the whole time."""
    s = state()
    s.count(Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 60.0), 0, 0)
    assert s.latency.floor == 0.1
    assert s.histogram.total == 60.0


def test_silence_is_a_lower_bound_of_latency() -> None:
    """A hanging worker is noticed before any timeout."""
    s = state()
    answer(s, 0.1, 1.0)
    s.in_flight, s.busy_since = 1, 1.0
    assert s.predicted_latency(3.0) >= 2.0
    s.in_flight = 0
    assert s.predicted_latency(3.0) == pytest.approx(0.1)


def test_failures_cost_more_than_successes() -> None:
    """However fast it fails: a share f of failures costs f times the charge."""
    s = state()
    answer(s, 0.1, 1.0)
    answer(s, 0.001, 1.0, kind=OutcomeKind.RESET)
    assert s.predicted_latency(1.0) == pytest.approx(0.1 + FAILURE_COST / 2)


def test_failure_charge_grows_with_the_latency_of_successes() -> None:
    """Where successes take 20 s, a failure costs no less."""
    s = state()
    for i in range(10):
        answer(s, 20.0, float(i))
    answer(s, 0.001, 9.0, kind=OutcomeKind.REFUSED)
    assert s.latency.charge == pytest.approx(20.0, rel=0.05)


def test_failures_fade_with_later_successes() -> None:
    s = state()
    answer(s, 0.001, 0.0, kind=OutcomeKind.ERROR_STATUS)
    for i in range(100):
        answer(s, 0.1, i / 10)
    assert s.predicted_latency(10.0) < 0.2


def test_abandoned_request_is_no_sample() -> None:
    s = state()
    answer(s, 30.0, 30.0, kind=OutcomeKind.ABANDONED)
    assert not s.is_measured(30.0)
    assert s.outcomes[OutcomeKind.ABANDONED] == 1


def test_samples_of_the_same_instant_all_count() -> None:
    """Two that end in the same loop iteration have the same weight."""
    s = state()
    answer(s, 0.1, 1.0)
    answer(s, 0.3, 1.0)
    assert s.predicted_latency(1.0) == pytest.approx(0.2)


def test_latency_prior_is_the_median_of_peers() -> None:
    """Of the region; of all where the region has none; a constant where nothing is measured."""
    latency_prior = LatencyPrior()
    near, far, new, newest = (
        state(i, r, latency_prior) for i, r in (("n", "x"), ("f", "y"), ("2", "y"), ("3", "z"))
    )
    latency_prior.states = [near, far, new, newest]
    assert new.predicted_latency(0.0) == GUESS
    answer(near, 0.2, 1.0)
    answer(far, 0.6, 1.0)
    assert new.predicted_latency(1.0) == pytest.approx(0.6)
    assert newest.predicted_latency(1.0) == pytest.approx(0.4)


def test_endpoint_without_measurements_gets_one_trial_at_a_time() -> None:
    """While the trial is in flight, a second request costs more than anywhere else; the cost stays finite."""
    s = state()
    s.in_flight = 1
    assert s.predicted_latency(0.0) > FAILURE_COST
    s.in_flight = 100
    assert isfinite(s.predicted_latency(0.0))


def test_stale_endpoint_is_predicted_at_its_floor() -> None:
    """Ten seconds after its last response a slow or failing endpoint is worth a trial."""
    s = state()
    answer(s, 0.1, 0.0)
    answer(s, 3.0, 3.0)
    answer(s, 0.001, 3.0, kind=OutcomeKind.RESET)
    assert s.predicted_latency(4.0) > 1.0
    assert s.predicted_latency(3.1 + FORGET_AFTER) == pytest.approx(0.1)


def test_first_sample_after_staleness_replaces_older_ones() -> None:
    """However many there were."""
    s = state()
    for i in range(1000):
        answer(s, 3.0, i / 1000)
    answer(s, 0.1, 20.0)
    assert s.predicted_latency(20.0) == pytest.approx(0.1)


def test_endpoint_with_failures_only_costs_prior_plus_charge() -> None:
    s = state()
    answer(s, 0.001, 1.0, kind=OutcomeKind.REFUSED)
    assert s.predicted_latency(1.0) == pytest.approx(GUESS + FAILURE_COST)
