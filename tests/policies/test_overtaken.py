"""Requests that wait although many later ones were answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.overtaken import WINDOWS, Overtaken


class Requests:
    """Requests to one endpoint, by number."""

    def __init__(self) -> None:
        self.overtaken = Overtaken()
        self.waiting: list[int] = []

    def send(self, count: int = 1) -> None:
        self.waiting += [self.overtaken.send() for _ in range(count)]

    def answer(self, position: int, *, succeeds: bool = True) -> None:
        """Answer the waiting request at this position of the order in which they were sent."""
        number = self.waiting.pop(position)
        self.overtaken.answer(number)
        if succeeds:
            self.overtaken.succeed(number, len(self.waiting))


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


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 1000)), max_size=300))
def test_stuck_requests_are_among_those_that_wait(steps: list[tuple[int, bool, int]]) -> None:
    requests = Requests()
    for sent, succeeds, position in steps:
        requests.send(sent)
        if requests.waiting:
            requests.answer(position % len(requests.waiting), succeeds=succeeds)
        assert 0 <= requests.overtaken.stuck <= len(requests.waiting)
    while requests.waiting:
        requests.answer(0)
    assert requests.overtaken.stuck == 0
