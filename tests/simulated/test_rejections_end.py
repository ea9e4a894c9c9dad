"""Shedding ends after a short overload: pools of 1 to 64 slots, loads, bursts, distances and balancers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from experiments.stats.samples import Samples

SERVICE = 0.05
ENDS = 20.0
"""Seconds after which the burst has ended."""

QUIET = ENDS + 30.0

POOLS = [(1, 1), (4, 1), (1, 4), (16, 1), (4, 4), (1, 16), (16, 4), (64, 1)]
"""Workers, and slots of each."""


def run(
    pool: tuple[int, int], load: float, burst: float, seed: int = 1,
    *, duration: float = 90.0, balancers: int = 1, rtt: float = 0.002,
) -> Samples:  # fmt: skip
    """Samples of a run; `load` and `burst` are relative to the capacity."""
    workers, slots = pool
    rates = {"rate": load * workers * slots / SERVICE, "peak": burst * workers * slots / SERVICE}
    arrivals = {"mode": "open", "arrivals": "burst", "start": 5.0, "lasts": 15.0, "duration": duration}
    home = {"name": "home", "workers": workers, "slots": slots, "rtt": rtt, "service": "exponential:50ms"}
    names = {"name": "pool", "question": "Do rejections end?", "baseline": "sheds", "home_region": "home"}
    numbers = {"slo": 0.5, "timeout": 5.0, "warmup": 20, "blocks": 1, "balancers": balancers}
    tables = {
        "load": arrivals | rates,
        "entries": [{"label": "sheds", "policy": "steelyard"}],
        "regions": [home],
    }
    scenario = Scenario.model_validate(names | numbers | tables)
    return simulate(scenario, scenario.entries[0], 0, 0, seed).samples


def rejected(samples: Samples, since: float, until: float = 1e9) -> int:
    """Requests answered 503, of those sent in this time."""
    is_within = (samples.scheduled_at >= since) & (samples.scheduled_at < until)
    return int(((samples.status == 503) & is_within).sum())


SHORT = [((4, 1), 0.75, 2.0, True), ((1, 4), 0.75, 2.0, True), ((4, 1), 0.9, 2.0, True)]
MANY = product(POOLS, (0.5, 0.6, 0.75, 0.85, 0.9), (1.5, 2.0, 4.0), [False])


@pytest.mark.parametrize(
    ("pool", "load", "burst", "is_short"),
    [*SHORT, *(pytest.param(*one, marks=pytest.mark.second_tier) for one in MANY)],
)
def test_no_request_is_rejected_half_a_minute_after_a_burst(
    pool: tuple[int, int], load: float, burst: float, is_short: bool
) -> None:
    samples = run(pool, load, burst, duration=75.0 if is_short else 90.0)
    assert rejected(samples, 0.0, ENDS) > 0 or not is_short
    assert rejected(samples, QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.parametrize("other", [{"balancers": 4}, {"rtt": 0.1}], ids=["four balancers", "far"])
@pytest.mark.parametrize("load", [0.75, 0.9])
def test_it_is_so_for_balancers_that_share_nothing_and_from_afar(load: float, other: dict[str, Any]) -> None:
    assert rejected(run((4, 4), load, 2.0, **other), QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.parametrize("pool", [(4, 1), (4, 4), (16, 4)])
def test_above_capacity_rejections_go_on(pool: tuple[int, int]) -> None:
    """In each ten seconds, and nearly all others are answered in time."""
    samples = run(pool, 1.3, 1.3, duration=60.0)
    assert all(rejected(samples, at, at + 10.0) for at in (20.0, 30.0, 40.0, 50.0))
    late = (samples.scheduled_at >= 20.0) & (samples.kind == 0)
    assert (samples.ended_at[late] - samples.scheduled_at[late] <= 0.5).mean() > 0.95


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("pool", "load", "seed"), [((4, 1), 1.2, 1), ((1, 4), 3.0, 15010), ((1, 1), 3.0, 15001)]
)
def test_above_capacity_most_of_it_is_used(pool: tuple[int, int], load: float, seed: int) -> None:
    """Also after workers have served requests whose clients had left for a long time."""
    samples = run(pool, load, load * 1.0001, seed, duration=100.0)
    late = samples.scheduled_at >= 60.0
    assert load * (samples.kind == 0)[late].mean() > 0.8
