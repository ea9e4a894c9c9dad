"""A sum as it was some time ago."""

from __future__ import annotations

import pytest

from policies.steelyard.pace import STEP, DelayedSum


def test_a_sum_is_what_it_was() -> None:
    """Two per second, then ten: stored at least eight times within the delay, it is exact but for one step."""
    delayed, delay = DelayedSum(), 1.0

    def total(now: float) -> float:
        return 2.0 * now if now < 3.0 else 6.0 + 10.0 * (now - 3.0)

    for step in range(601):
        now = step / 100
        delayed.store(total(now), delay, now)
        before = delayed.before(total(now), delay, now)
        assert before == pytest.approx(total(max(0.0, now - delay)), abs=10.0 * STEP * delay)
    assert before == pytest.approx(26.0)


def test_without_a_delay_it_is_what_it_is() -> None:
    delayed = DelayedSum()
    delayed.store(1.0, 0.0, 1.0)
    assert delayed.before(5.0, 0.0, 2.0) == 5.0


def test_before_anything_is_stored_it_is_what_it_is() -> None:
    assert DelayedSum().before(5.0, 1.0, 2.0) == 5.0


def test_it_is_interpolated_after_a_long_time_without_a_call() -> None:
    delayed = DelayedSum()
    delayed.store(10.0, 1.0, 0.0)
    assert delayed.before(30.0, 1.0, 10.0) == pytest.approx(28.0)
