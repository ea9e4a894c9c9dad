"""Connection balancing between processes that accept from one listening socket."""

from __future__ import annotations

import pytest

from balancer.downstream.acceptor import ConnectionBalance
from balancer.sharing.shared_counters import SharedCounters


def processes(*clients: int | None) -> list[ConnectionBalance]:
    """Processes with these numbers of clients; None: the process does not accept."""
    counters = SharedCounters(len(clients), 4)
    each = [ConnectionBalance(counters, index) for index in range(len(clients))]
    for one, number in zip(each, clients, strict=True):
        if number is not None:
            one.note(number)
    return each


@pytest.mark.parametrize(
    ("clients", "other", "is_ahead"),
    [(0, 0, False), (4, 0, False), (5, 0, True), (100, 93, False), (100, 92, True), (2000, 1934, False)],
)
def test_tolerated_difference(clients: int, other: int, is_ahead: bool) -> None:
    """The tolerated difference grows with the number of clients."""
    assert processes(clients, other)[0].is_ahead(clients) == is_ahead


def test_process_that_does_not_accept_is_ignored() -> None:
    """A process that has not accepting, or has stopped."""
    accepting, silent = processes(50, None)
    assert not accepting.is_ahead(50)
    silent.note(0)
    assert accepting.is_ahead(50)
    silent.leave()
    assert not accepting.is_ahead(50)


def test_killed_process_is_ignored() -> None:
    counters = SharedCounters(2, 4)
    one, other = ConnectionBalance(counters, 0), ConnectionBalance(counters, 1)
    other.note(0)
    assert one.is_ahead(50)
    counters.pages[1].clear()
    assert not one.is_ahead(50)


def test_ahead_of_any_process() -> None:
    assert processes(50, 60, 10)[0].is_ahead(50)
    assert not processes(50, 60, 50)[0].is_ahead(50)
