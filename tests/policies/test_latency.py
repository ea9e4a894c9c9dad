"""What is predicted of an endpoint: from its own past, in proportion to what is on its way, never from a
failure."""

from __future__ import annotations

from math import isfinite

import pytest

from policies import Endpoint, EndpointState, Outcome, OutcomeKind
from policies.endpoint.latency_prior import LatencyPrior
from policies.stats.latency import FAILURE_COST, FORGET_AFTER


def state(name: str = "a", region: str = "here", latency_prior: LatencyPrior | None = None) -> EndpointState:
    """A fresh one."""
    return EndpointState(Endpoint(name, "http://x", region), latency_prior=latency_prior)


def answer(
    s: EndpointState, latency: float, now: float, ahead: int = 0, kind: OutcomeKind = OutcomeKind.OK
) -> None:
    """Let one request end at `now`."""
    s.count(Outcome(kind, 200, now - latency, None, now), ahead)


def test_an_idle_endpoint_is_predicted_its_floor() -> None:
    """All answers alike: no wait, whatever the price of waiting."""
    s = state()
    for i in range(10):
        answer(s, 0.35, float(i) / 10)
    assert s.predicted_latency(1.0) == pytest.approx(0.35)
    assert s.predicted_latency(1.0, wait_price=8) == pytest.approx(0.35)


def test_the_wait_grows_with_what_is_in_flight_and_the_floor_does_not() -> None:
    """Half a second of round trip is not doubled by twice as much on the wire; the wait grows by (3 + 2)/(1 + 2)."""
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


def test_a_burst_is_priced_before_its_wait_is_seen() -> None:
    """Far more in flight than ever came back at once costs, even though every answer so far was quick."""
    s = state()
    answer(s, 0.1, 0.0, ahead=1)
    s.in_flight, s.busy_since = 6, 0.0
    assert s.predicted_latency(0.01) == pytest.approx(0.1)
    s.in_flight = 50
    assert s.predicted_latency(0.01) > 1.0


def test_latency_is_taken_to_the_first_byte() -> None:
    """A long download is not the worker's slowness; the histogram, for people, holds all of it."""
    s = state()
    s.count(Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 60.0), 0)
    assert s.latency.floor == 0.1
    assert s.histogram.total == 60.0


def test_a_silent_endpoint_is_at_least_as_slow_as_its_silence() -> None:
    """A hung worker is seen before anything times out."""
    s = state()
    answer(s, 0.1, 1.0)
    s.in_flight, s.busy_since = 1, 1.0
    assert s.predicted_latency(3.0) >= 2.0
    s.in_flight = 0
    assert s.predicted_latency(3.0) == pytest.approx(0.1)


def test_a_failure_is_dearer_than_any_success() -> None:
    """However fast it came: a share of failures f costs f times the charge."""
    s = state()
    answer(s, 0.1, 1.0)
    answer(s, 0.001, 1.0, kind=OutcomeKind.RESET)
    assert s.predicted_latency(1.0) == pytest.approx(0.1 + FAILURE_COST / 2)


def test_a_slow_endpoint_is_charged_by_its_own_measure() -> None:
    """Where successes take 20 s, a failure costs no less."""
    s = state()
    for i in range(10):
        answer(s, 20.0, float(i))
    answer(s, 0.001, 9.0, kind=OutcomeKind.REFUSED)
    assert s.latency.charge == pytest.approx(20.0, rel=0.05)


def test_failures_are_forgiven() -> None:
    """They fade among the successes that follow."""
    s = state()
    answer(s, 0.001, 0.0, kind=OutcomeKind.ERROR_STATUS)
    for i in range(100):
        answer(s, 0.1, i / 10)
    assert s.predicted_latency(10.0) < 0.2


def test_an_abandoned_request_teaches_nothing() -> None:
    """The client left: neither blame nor praise."""
    s = state()
    answer(s, 30.0, 30.0, kind=OutcomeKind.ABANDONED)
    assert not s.is_measured(30.0)
    assert s.outcomes[OutcomeKind.ABANDONED] == 1


def test_answers_of_the_same_instant_all_count() -> None:
    """Two endings in one turn of the loop weigh the same, and none is lost."""
    s = state()
    answer(s, 0.1, 1.0)
    answer(s, 0.3, 1.0)
    assert s.predicted_latency(1.0) == pytest.approx(0.2)


def test_the_unmeasured_are_seeded_by_their_peers() -> None:
    """By the median of their region; by everyone's where the region is unknown; by a guess where all is."""
    latency_prior = LatencyPrior()
    near, far, new, newest = (
        state(i, r, latency_prior) for i, r in (("n", "x"), ("f", "y"), ("2", "y"), ("3", "z"))
    )
    latency_prior.states = [near, far, new, newest]
    assert new.predicted_latency(0.0) == LatencyPrior.GUESS
    answer(near, 0.2, 1.0)
    answer(far, 0.6, 1.0)
    assert new.predicted_latency(1.0) == pytest.approx(0.6)
    assert newest.predicted_latency(1.0) == pytest.approx(0.4)


def test_the_unmeasured_get_one_trial_at_a_time() -> None:
    """While the trial is out, another request there is dearer than anywhere; its price stays finite."""
    s = state()
    s.in_flight = 1
    assert s.predicted_latency(0.0) > FAILURE_COST
    s.in_flight = 100
    assert isfinite(s.predicted_latency(0.0))


def test_the_stale_are_tried_again_in_hope() -> None:
    """Ten seconds after its last answer a slow or failing endpoint is hoped to be what it was at best."""
    s = state()
    answer(s, 0.1, 0.0)
    answer(s, 3.0, 3.0)
    answer(s, 0.001, 3.0, kind=OutcomeKind.RESET)
    assert s.predicted_latency(4.0) > 1.0
    assert s.predicted_latency(3.1 + FORGET_AFTER) == pytest.approx(0.1)


def test_one_answer_after_a_silence_outweighs_the_past() -> None:
    """What was measured before the facts went stale is forgotten, however much of it there was."""
    s = state()
    for i in range(1000):
        answer(s, 3.0, i / 1000)
    answer(s, 0.1, 20.0)
    assert s.predicted_latency(20.0) == pytest.approx(0.1)


def test_only_failures_leave_hope_and_charge() -> None:
    """Nothing but failures tells no latency: what is usual, plus what failing costs."""
    s = state()
    answer(s, 0.001, 1.0, kind=OutcomeKind.REFUSED)
    assert s.predicted_latency(1.0) == pytest.approx(LatencyPrior.GUESS + FAILURE_COST)
