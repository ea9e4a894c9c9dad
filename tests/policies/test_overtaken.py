"""Requests that wait although many later ones were answered."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Endpoint, Outcome, OutcomeKind, RequestFacts, Router, registry
from policies.contract import ManualClock
from policies.endpoint import state
from policies.endpoint.overtaken import RECENT_S, REPEATS, WINDOWS, Overtaken
from tests.support.steelyard_routers import answer, endpoint, router

LATENCY = 0.125
"""Seconds of a success, exact in binary."""


class Requests:
    """Requests to one endpoint, by number, and the time in seconds."""

    def __init__(self) -> None:
        self.sent = 0
        self.waiting: list[int] = []
        self.time = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.overtaken = Overtaken(self.sent, len(self.waiting))

    def send(self, count: int = 1) -> None:
        self.waiting += range(self.sent + 1, self.sent + count + 1)
        self.sent += count

    def answer(self, position: int, latency: float = LATENCY, *, succeeds: bool = True) -> None:
        """Answer the waiting request at this position of the order in which they were sent."""
        number = self.waiting.pop(position)
        self.overtaken.answer(number)
        if succeeds:
            self.overtaken.succeed(number, self.sent, len(self.waiting), latency, self.time)

    def serve(self, seconds: float) -> None:
        """Answer others, one at a time, each after LATENCY."""
        for _ in range(round(seconds / LATENCY)):
            self.send()
            self.time += LATENCY
            self.answer(-1)


@pytest.mark.parametrize("in_flight", [1, 2, 5, 50])
def test_requests_answered_in_order_overtake_none(in_flight: int) -> None:
    requests = Requests()
    requests.send(in_flight)
    for _ in range(500):
        requests.answer(0)
        requests.send()
        assert requests.overtaken.stuck == 0


@pytest.mark.parametrize("hung", [1, 3, 20])
def test_requests_that_hang_are_found_and_forgotten_when_they_end(hung: int) -> None:
    requests = Requests()
    requests.send(hung)
    for _ in range(2 * (WINDOWS + 1) * (hung + 1)):
        requests.send()
        requests.answer(-1)
    assert requests.overtaken.stuck == hung
    for left in reversed(range(hung)):
        requests.answer(0, succeeds=False)
        assert requests.overtaken.stuck == left


def test_silence_overtakes_none() -> None:
    """As no later request has succeeded."""
    requests = Requests()
    requests.send()
    requests.answer(0)
    requests.send(100)
    for _ in range(50):
        requests.answer(-1, succeeds=False)
    assert requests.overtaken.stuck == 0


def test_longest_success_is_remembered_for_a_multiple_of_its_latency() -> None:
    requests = Requests()
    requests.send()
    requests.answer(0, latency=6.0)
    requests.serve(REPEATS * 6.0 - 1.0)
    assert requests.overtaken.longest == 6.0
    requests.serve(2 * REPEATS * 6.0)
    assert requests.overtaken.longest == LATENCY


def test_longest_success_is_forgotten_after_a_time() -> None:
    requests = Requests()
    requests.serve(RECENT_S)
    requests.send()
    requests.answer(0, latency=2 * LATENCY)
    requests.serve(RECENT_S - 1.0)
    assert requests.overtaken.longest == 2 * LATENCY
    requests.serve(RECENT_S + 2.0)
    assert requests.overtaken.longest == LATENCY


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 1000)), max_size=300),
    st.integers(0, 300),
)
def test_stuck_requests_wait(steps: list[tuple[int, bool, int]], begins_at: int) -> None:
    requests = Requests()
    for number, (sent, succeeds, position) in enumerate(steps):
        if number == begins_at:
            requests.begin()
        requests.send(sent)
        if requests.waiting:
            requests.answer(position % len(requests.waiting), succeeds=succeeds)
        requests.time += LATENCY
        assert 0 <= requests.overtaken.stuck <= len(requests.waiting)
    while requests.waiting:
        requests.answer(0)
    assert requests.overtaken.stuck == 0


def test_policies_that_do_not_read_it_do_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "Overtaken", None)
    names = ["round-robin", "random", "least-in-flight", "least-time", "peak-ewma"]
    for name in names:
        r = Router(
            [Endpoint("a", "http://a", "r")], registry.make(name, {}, Random(1)), ManualClock(), Random(1)
        )
        r.settle(r.route(RequestFacts()), Outcome(OutcomeKind.OK, 200, 0.0, 0.0, 0.0))
        assert r.find("a").successes == 1


def test_policy_that_reads_it_finds_requests_that_were_sent_before_it_was_installed() -> None:
    r, clock = router(endpoint("a"), endpoint("b"))
    steelyard, other = r.policy, registry.make("round-robin", {}, Random(1))
    only_a = RequestFacts(tried=frozenset({"b"}))
    hanging = [r.route(only_a) for _ in range(3)]
    for policy in (other, steelyard):
        r.set_policy(policy)
        for _ in range(30):
            answer(r, clock, "a", 0.02)
    assert r.find("a").overtaken.stuck == 3
    for left, assignment in enumerate(reversed(hanging), -2):
        r.settle(assignment, Outcome(OutcomeKind.ABANDONED, None, 0.0, None, clock.time))
        assert r.find("a").overtaken.stuck == -left
