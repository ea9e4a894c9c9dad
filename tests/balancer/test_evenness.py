"""Who takes the next client, of processes that accept from one queue."""

from __future__ import annotations

import pytest

from balancer.downstream.connection_balance import ConnectionBalance
from balancer.shared_counters import SharedCounters


def several(*clients: int | None) -> list[ConnectionBalance]:
    """Processes with so many clients; None of one that accepts nobody."""
    board = SharedCounters(len(clients), 4)
    each = [ConnectionBalance(board, index) for index in range(len(clients))]
    for one, number in zip(each, clients, strict=True):
        if number is not None:
            one.note(number)
    return each


@pytest.mark.parametrize(
    ("clients", "other", "is_ahead"),
    [(0, 0, False), (4, 0, False), (5, 0, True), (100, 93, False), (100, 92, True), (2000, 1934, False)],
)
def test_a_few_more_make_no_difference(clients: int, other: int, is_ahead: bool) -> None:
    """Among many, more of them."""
    assert several(clients, other)[0].is_ahead(clients) == is_ahead


def test_nobody_waits_for_a_process_that_accepts_nobody() -> None:
    """One that has not begun, has stopped, or was killed."""
    begun, silent = several(50, None)
    assert not begun.is_ahead(50)
    silent.note(0)
    assert begun.is_ahead(50)
    silent.leave()
    assert not begun.is_ahead(50)


def test_a_killed_process_is_not_waited_for() -> None:
    board = SharedCounters(2, 4)
    one, other = ConnectionBalance(board, 0), ConnectionBalance(board, 1)
    other.note(0)
    assert one.is_ahead(50)
    board.pages[1].clear()
    assert not one.is_ahead(50)


def test_one_that_has_fewer_is_enough() -> None:
    assert several(50, 60, 10)[0].is_ahead(50)
    assert not several(50, 60, 50)[0].is_ahead(50)
