"""Departures of a route from its usual connect time: pure arithmetic over observations and their times."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from balancer.config.schema.names import RouteWatchConfig
from balancer.upstream.dial.route_watch import Baseline, BaselineChange

CONFIG = RouteWatchConfig()
USUAL = 0.090


def learned(value: float = USUAL) -> Baseline:
    """A baseline that has learned `value` from observations every ten seconds up to 0."""
    baseline = Baseline()
    for turn in range(-9, 1):
        assert baseline.observe(value, CONFIG, turn * 10.0) is None
    return baseline


def changes(
    baseline: Baseline, values: Iterable[float], every: float = 10.0
) -> list[tuple[float, BaselineChange]]:
    """Times and kinds of the changes; the first value comes after one period."""
    seen = (
        (turn * every, baseline.observe(value, CONFIG, turn * every)) for turn, value in enumerate(values, 1)
    )
    return [(at, change) for at, change in seen if change is not None]


def test_first_norm_is_the_median() -> None:
    """The first connections may meet cold caches or a lost packet."""
    baseline = Baseline()
    for turn, value in enumerate((0.9, 0.1, 0.11, 1.1, 0.09)):
        assert baseline.norm is None
        baseline.observe(value, CONFIG, float(turn))
    assert (baseline.norm, baseline.last) == (0.11, 0.09)


def test_double_time_for_a_minute_is_a_departure() -> None:
    """Not before a minute, and not below twice the usual time."""
    assert changes(learned(), [USUAL * 2] * 8) == [(70.0, BaselineChange.DEPARTED)]
    assert changes(learned(), [USUAL * 1.99] * 100) == []


@pytest.mark.parametrize(("factor", "at"), [(2.5, 60.0), (4, 50.0), (8, 50.0), (100, 50.0)])
def test_larger_departures_are_detected_sooner(factor: float, at: float) -> None:
    """Eight times the usual time is detected within a minute, by five connections."""
    assert changes(learned(), [USUAL * factor] * 8) == [(at, BaselineChange.DEPARTED)]


def test_one_quick_connection_prevents_a_departure() -> None:
    """Lost packets make some connections slow, a detour makes all slow."""
    assert changes(learned(), [USUAL * 8, USUAL * 8, USUAL] * 50) == []


def test_small_absolute_differences_are_ignored() -> None:
    """Twice a very short connect time is irrelevant."""
    assert changes(learned(0.0003), [0.005] * 50) == []
    assert changes(learned(0.0003), [0.0054] * 50) != []


def test_return_to_the_norm() -> None:
    """It also takes a minute; the norm stays as it was meanwhile."""
    baseline = learned()
    assert changes(baseline, [USUAL * 8] * 20) == [(50.0, BaselineChange.DEPARTED)]
    assert baseline.is_departed
    assert baseline.norm == pytest.approx(USUAL)
    back = [baseline.observe(USUAL, CONFIG, 210.0 + turn * 10) for turn in range(7)]
    assert back == [None] * 6 + [BaselineChange.RETURNED]
    assert not baseline.is_departed


def test_lasting_departure_becomes_the_norm() -> None:
    """After an hour the new time is the norm."""
    baseline = learned()
    assert changes(baseline, [USUAL * 8] * 400) == [
        (50.0, BaselineChange.DEPARTED),
        (3650.0, BaselineChange.SETTLED),
    ]
    assert baseline.norm == pytest.approx(USUAL * 8)


def test_slow_drift_is_no_departure() -> None:
    """Four times as long after two days, but never twice the norm at that time."""
    baseline, count = learned(), 6 * 60 * 48
    assert changes(baseline, [USUAL * 4 ** (turn / count) for turn in range(count)]) == []
    assert baseline.norm == pytest.approx(USUAL * 4, rel=0.05)


def test_noise_is_no_departure() -> None:
    """A day of jitter with a packet lost in every tenth handshake (a second more, RFC 6298)."""
    rng = Random(7)
    noise = [USUAL * rng.uniform(0.9, 1.6) + (rng.random() < 0.1) for _ in range(8640)]
    assert changes(learned(), noise) == []


def test_four_connections_are_not_enough() -> None:
    assert changes(learned(), [USUAL * 8] * 4, every=3600.0) == []
