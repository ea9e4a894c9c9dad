"""Price of a wait while the load exceeds the capacity."""

from __future__ import annotations

import pytest

from policies.steelyard.congestion import FALL_RATIO, MAX_ADDITION, MAX_GAP_S, Congestion


def after(congestion: Congestion, has_queue: bool, begin: float, seconds: float) -> float:
    """The price after so many seconds with ten comparisons each."""
    for step in range(1, round(10 * seconds) + 1):
        congestion.update(has_queue, begin + step / 10)
    return congestion.price


def test_price_rises_with_the_time_for_which_there_is_a_queue_and_falls_faster() -> None:
    congestion = Congestion()
    congestion.update(False, 0.0)
    assert after(congestion, True, 0.0, 2.0) == pytest.approx(3.0)
    assert after(congestion, True, 2.0, 10.0) == 1.0 + MAX_ADDITION
    assert after(congestion, False, 12.0, 1.0) == pytest.approx(1.0 + MAX_ADDITION - FALL_RATIO)
    assert after(congestion, False, 13.0, 1.0) == 1.0


def test_time_without_requests_hardly_counts() -> None:
    congestion = Congestion()
    congestion.update(False, 0.0)
    congestion.update(True, 3600.0)
    assert congestion.price == 1.0 + MAX_GAP_S
