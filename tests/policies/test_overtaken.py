"""Requests that wait although many later ones were answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.overtaken import PATIENCE, RECENT_S, REPEATS, WINDOWS, Overtaken

LATENCY = 0.125
"""Seconds of a success, exact in binary."""


class Requests:
    """Requests to one endpoint, by number, and the time in seconds."""

    def __init__(self) -> None:
        self.overtaken = Overtaken()
        self.waiting: list[int] = []
        self.time = 0.0

    def send(self, count: int = 1) -> None:
        self.waiting += [self.overtaken.send() for _ in range(count)]

    def answer(self, position: int, latency: float = LATENCY, *, succeeds: bool = True) -> None:
        """Answer the waiting request at this position of the order in which they were sent."""
        number = self.waiting.pop(position)
        self.overtaken.answer(number)
        if succeeds:
            self.overtaken.succeed(number, len(self.waiting), latency, self.time)

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


def test_requests_that_wait_far_longer_than_any_success_hang() -> None:
    """Between PATIENCE and twice PATIENCE of the longest success, and the few requests until they count as stuck."""
    requests = Requests()
    requests.serve(5.0)
    requests.send(2)
    requests.serve(PATIENCE * LATENCY)
    assert requests.overtaken.hanging == 0
    requests.serve(PATIENCE * LATENCY + 16 * LATENCY)
    assert requests.overtaken.hanging == 2
    for left in (1, 0):
        requests.answer(0, succeeds=False)
        assert requests.overtaken.hanging == left


def test_longest_success_is_remembered_for_a_multiple_of_its_latency() -> None:
    requests = Requests()
    requests.send()
    requests.answer(0, latency=60.0)
    requests.send()
    requests.serve(2 * PATIENCE * 60.0 - 1.0)
    assert (requests.overtaken.hanging, requests.overtaken.longest) == (0, 60.0)
    requests.serve(2 * REPEATS * 60.0)
    assert (requests.overtaken.hanging, requests.overtaken.longest) == (1, LATENCY)


def test_longest_success_is_forgotten_after_a_time() -> None:
    requests = Requests()
    requests.serve(RECENT_S)
    requests.send()
    requests.answer(0, latency=2 * LATENCY)
    requests.serve(RECENT_S - 1.0)
    assert requests.overtaken.longest == 2 * LATENCY
    requests.serve(RECENT_S + 2.0)
    assert requests.overtaken.longest == LATENCY


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 1000)), max_size=300))
def test_requests_that_hang_are_stuck_and_wait(steps: list[tuple[int, bool, int]]) -> None:
    requests = Requests()
    for sent, succeeds, position in steps:
        requests.send(sent)
        if requests.waiting:
            requests.answer(position % len(requests.waiting), succeeds=succeeds)
        requests.time += LATENCY
        assert 0 <= requests.overtaken.hanging <= requests.overtaken.stuck <= len(requests.waiting)
    while requests.waiting:
        requests.answer(0)
    assert requests.overtaken.stuck == requests.overtaken.hanging == 0
