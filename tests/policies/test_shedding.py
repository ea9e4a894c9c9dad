"""Who is refused first: each level by its own thresholds."""

from __future__ import annotations

import pytest

from policies.overload.admission import Level, Pressure, excess, is_refused

BULK = Level("bulk", queue=0.25, in_flight=0.9)


@pytest.mark.parametrize(
    ("waiting", "in_flight", "refused"),
    [(0, 0, False), (24, 0, False), (25, 0, True), (100, 0, True), (0, 89, False), (0, 90, True)],
)
def test_thresholds(waiting: int, in_flight: int, refused: bool) -> None:
    """At a quarter of a queue of 100, or at nine tenths of 100 places."""
    assert is_refused(BULK, Pressure(waiting, 100, in_flight, 100)) == refused


def test_a_level_without_thresholds_is_never_refused() -> None:
    """Not before everything is full, which is for others to say."""
    assert not is_refused(Level("critical"), Pressure(100, 100, 100, 100))


def test_where_nobody_has_stated_a_capacity_only_the_queue_counts() -> None:
    assert not is_refused(BULK, Pressure(0, 100, 10**6))


def test_an_empty_queue_refuses_nobody() -> None:
    """However small it is."""
    assert not is_refused(BULK, Pressure(0, 0, 5))
    assert not is_refused(BULK, Pressure(0, 1, 5))


def test_how_many_are_too_many() -> None:
    assert excess(BULK, Pressure(24, 100, 0)) == 0
    assert excess(BULK, Pressure(30, 100, 0)) == 6
