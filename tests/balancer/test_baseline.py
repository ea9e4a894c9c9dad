"""When a route departs from what is usual: pure arithmetic over observations and the times of them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from balancer.upstream.route_baseline import Baseline, BaselineRules, Change

RULES = BaselineRules()
USUAL = 0.090


def learned(value: float = USUAL) -> Baseline:
    """One that knows what is usual, by observations every ten seconds up to 0."""
    baseline = Baseline()
    for turn in range(-9, 1):
        assert baseline.observe(value, RULES, turn * 10.0) is None
    return baseline


def changes(baseline: Baseline, values: Iterable[float], every: float = 10.0) -> list[tuple[float, Change]]:
    """When each change was seen; the first value comes after one period."""
    seen = (
        (turn * every, baseline.observe(value, RULES, turn * every)) for turn, value in enumerate(values, 1)
    )
    return [(at, change) for at, change in seen if change is not None]


def test_the_first_norm_is_a_median() -> None:
    """The first connection meets cold caches, and another a lost packet."""
    baseline = Baseline()
    for turn, value in enumerate((0.9, 0.1, 0.11, 1.1, 0.09)):
        assert baseline.norm is None
        baseline.observe(value, RULES, float(turn))
    assert (baseline.norm, baseline.last) == (0.11, 0.09)


def test_twice_as_long_for_a_minute_is_a_departure() -> None:
    """Not before."""
    assert changes(learned(), [USUAL * 2] * 8) == [(70.0, Change.DEPARTED)]
    assert changes(learned(), [USUAL * 1.99] * 100) == []


@pytest.mark.parametrize(("factor", "at"), [(2.5, 60.0), (4, 50.0), (8, 50.0), (100, 50.0)])
def test_further_is_sooner(factor: float, at: float) -> None:
    """Eight times as long is noticed within a minute, by five connections."""
    assert changes(learned(), [USUAL * factor] * 8) == [(at, Change.DEPARTED)]


def test_one_quick_connection_is_enough_to_doubt() -> None:
    """Lost packets make some slow; a detour makes all slow."""
    assert changes(learned(), [USUAL * 8, USUAL * 8, USUAL] * 50) == []


def test_some_milliseconds_are_none() -> None:
    """Next door twice as long is nothing that anybody would notice."""
    assert changes(learned(0.0003), [0.005] * 50) == []
    assert changes(learned(0.0003), [0.0054] * 50) != []


def test_back_to_usual() -> None:
    """For a minute, too; the norm has not moved meanwhile."""
    baseline = learned()
    assert changes(baseline, [USUAL * 8] * 20) == [(50.0, Change.DEPARTED)]
    assert baseline.is_departed
    assert baseline.norm == pytest.approx(USUAL)
    back = [baseline.observe(USUAL, RULES, 210.0 + turn * 10) for turn in range(7)]
    assert back == [None] * 6 + [Change.RETURNED]
    assert not baseline.is_departed


def test_what_lasts_is_usual() -> None:
    """An hour later; then the old way is merely quicker."""
    baseline = learned()
    assert changes(baseline, [USUAL * 8] * 400) == [(50.0, Change.DEPARTED), (3650.0, Change.SETTLED)]
    assert baseline.norm == pytest.approx(USUAL * 8)


def test_a_slow_drift_is_followed() -> None:
    """Four times as long by the end of two days, and never twice the norm."""
    baseline, count = learned(), 6 * 60 * 48
    assert changes(baseline, [USUAL * 4 ** (turn / count) for turn in range(count)]) == []
    assert baseline.norm == pytest.approx(USUAL * 4, rel=0.05)


def test_noise_is_no_departure() -> None:
    """A day of jitter with a packet lost in every tenth handshake (a second more, RFC 6298)."""
    rng = Random(7)
    noise = [USUAL * rng.uniform(0.9, 1.6) + (rng.random() < 0.1) for _ in range(8640)]
    assert changes(learned(), noise) == []


def test_four_connections_prove_nothing() -> None:
    """However far apart."""
    assert changes(learned(), [USUAL * 8] * 4, every=3600.0) == []
