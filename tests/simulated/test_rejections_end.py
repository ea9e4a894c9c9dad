"""Shedding ends after a short overload: pools of 1 to 64 slots, loads, bursts, distances and balancers."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.scenario.files import load_scenario
from experiments.simulator.run import simulate
from experiments.stats.samples import Samples

TEMPLATE = """
name = "pool"
question = "Do rejections end?"
baseline = "sheds"
home_region = "home"
slo = 0.5
timeout = 5.0
warmup = 20
blocks = 1
balancers = {balancers}

[load]
mode = "open"
arrivals = "burst"
rate = {rate}
peak = {peak}
start = 5.0
lasts = 15.0
duration = {duration}

[[entries]]
label = "sheds"
policy = "steelyard"

[[regions]]
name = "home"
workers = {workers}
slots = {slots}
rtt = {rtt}
service = "exponential:50ms"
"""

SERVICE = 0.05
ENDS = 20.0
"""Seconds after which the burst has ended."""

QUIET = ENDS + 30.0

POOLS = [(1, 1), (4, 1), (1, 4), (16, 1), (4, 4), (1, 16), (16, 4), (64, 1)]
"""Workers, and slots of each."""


def run(
    tmp_path: Path, pool: tuple[int, int], load: float, burst: float, seed: int = 1, **other: float
) -> Samples:
    """Samples of a run; `load` and `burst` are relative to the capacity."""
    workers, slots = pool
    capacity = workers * slots / SERVICE
    numbers = {"balancers": 1, "rtt": 0.002, "duration": 90.0} | other
    path = tmp_path / "pool.toml"
    path.write_text(
        TEMPLATE.format(rate=load * capacity, peak=burst * capacity, workers=workers, slots=slots, **numbers)
    )
    scenario = load_scenario(str(path))
    return simulate(scenario, scenario.entries[0], 0, 0, seed).samples


def rejected(samples: Samples, since: float, until: float = 1e9) -> int:
    """Requests answered 503, of those sent in this time."""
    return int(
        ((samples.status == 503) & (samples.scheduled_at >= since) & (samples.scheduled_at < until)).sum()
    )


@pytest.mark.parametrize(("pool", "load"), [((4, 1), 0.75), ((1, 4), 0.75), ((4, 1), 0.9)])
def test_no_request_is_rejected_half_a_minute_after_a_burst(
    tmp_path: Path, pool: tuple[int, int], load: float
) -> None:
    samples = run(tmp_path, pool, load, 2.0, duration=75.0)
    assert rejected(samples, 0.0, ENDS) > 0
    assert rejected(samples, QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.parametrize("burst", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("load", [0.5, 0.6, 0.75, 0.85, 0.9])
@pytest.mark.parametrize("pool", POOLS)
def test_no_request_is_rejected_half_a_minute_after_any_burst(
    tmp_path: Path, pool: tuple[int, int], load: float, burst: float
) -> None:
    assert rejected(run(tmp_path, pool, load, burst), QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.parametrize("other", [{"balancers": 4}, {"rtt": 0.1}], ids=["four balancers", "far"])
@pytest.mark.parametrize("load", [0.75, 0.9])
def test_it_is_so_for_balancers_that_share_nothing_and_from_afar(
    tmp_path: Path, load: float, other: dict[str, float]
) -> None:
    assert rejected(run(tmp_path, (4, 4), load, 2.0, 1, **other), QUIET) == 0


@pytest.mark.second_tier
@pytest.mark.parametrize("pool", [(4, 1), (4, 4), (16, 4)])
def test_above_capacity_rejections_go_on(tmp_path: Path, pool: tuple[int, int]) -> None:
    """In each ten seconds, and nearly all others are answered in time."""
    samples = run(tmp_path, pool, 1.3, 1.3, duration=60.0)
    assert all(rejected(samples, at, at + 10.0) for at in (20.0, 30.0, 40.0, 50.0))
    late = (samples.scheduled_at >= 20.0) & (samples.kind == 0)
    assert (samples.ended_at[late] - samples.scheduled_at[late] <= 0.5).mean() > 0.95


@pytest.mark.second_tier
@pytest.mark.parametrize("seed", [1, 2])
def test_just_above_the_capacity_of_a_small_pool_most_is_answered_in_time(tmp_path: Path, seed: int) -> None:
    """Shedding that has ended by chance begins again before requests fail: within seven services."""
    samples = run(tmp_path, (4, 1), 1.05, 2.0, seed, duration=110.0)
    late = samples.scheduled_at >= ENDS
    answered = (samples.kind == 0) & (samples.ended_at - samples.scheduled_at <= 7 * SERVICE)
    assert answered[late].mean() > 0.6
