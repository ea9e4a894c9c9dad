"""Admission control: each priority level is rejected by its own thresholds."""

from __future__ import annotations

import pytest

from policies.overload.admission import Level, Pressure, excess, is_refused

BULK = Level("bulk", queue=0.25, in_flight=0.9)


@pytest.mark.parametrize(
    ("waiting", "in_flight", "rejected"),
    [(0, 0, False), (24, 0, False), (25, 0, True), (100, 0, True), (0, 89, False), (0, 90, True)],
)
def test_level_is_rejected_at_its_thresholds(waiting: int, in_flight: int, rejected: bool) -> None:
    """A quarter of a queue of 100, or nine tenths of 100 requests in flight."""
    assert is_refused(BULK, Pressure(waiting, 100, in_flight, 100)) == rejected


def test_level_without_thresholds_is_never_rejected() -> None:
    assert not is_refused(Level("critical"), Pressure(100, 100, 100, 100))


def test_only_the_queue_counts_without_a_capacity() -> None:
    assert not is_refused(BULK, Pressure(0, 100, 10**6))


def test_empty_queue_never_rejects() -> None:
    """At any size."""
    assert not is_refused(BULK, Pressure(0, 0, 5))
    assert not is_refused(BULK, Pressure(0, 1, 5))


def test_excess() -> None:
    assert excess(BULK, Pressure(24, 100, 0)) == 0
    assert excess(BULK, Pressure(30, 100, 0)) == 6
