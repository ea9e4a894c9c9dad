"""The default policy: how soon traffic is where it was after a disturbance, and how even it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.scenario.events import Event
from experiments.scenario.files import load_scenario
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate

AT = 8.0


def home_share(
    *events: dict[str, Any], duration: float, target: str = "home", seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Times of all requests of all seeds, and whether each went to `target`: a region of six workers, or its first."""
    workers = {"workers": 6, "service": "exponential:20ms"}
    document: dict[str, Any] = {
        **{"name": "recovery", "question": "How soon does traffic return?", "baseline": "v"},
        **{"home_region": "home", "slo": 0.25, "timeout": 5.0, "blocks": 1, "events": events},
        "load": {"mode": "open", "rate": 120.0, "duration": duration},
        "entries": [{"label": "v", "policy": "steelyard"}],
        "regions": [{"name": "home", "rtt": 0.004} | workers, {"name": "far", "rtt": 0.08} | workers],
    }
    scenario = Scenario.model_validate(document)
    runs = [simulate(scenario, scenario.entries[0], 1, 0, seed).samples for seed in range(seeds)]
    picked = np.concatenate([run.worker for run in runs])
    return np.concatenate([run.sent_at for run in runs]), picked < 6 if target == "home" else picked == 0


def share(times: np.ndarray, inside: np.ndarray, start: float, stop: float) -> float:
    """Part of the requests of this time that went there."""
    return float(inside[(times >= start) & (times < stop)].mean())


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("target", "event", "lasts", "seeds"),
    [
        ("home", {"kind": "slow", "value": 4.0}, 7.0, 8),
        ("home", {"kind": "down"}, 6.0, 8),
        ("home-0", {"kind": "down"}, 6.0, 40),
        ("home-0", {"kind": "slow", "value": 8.0}, 7.0, 40),
    ],
)
def test_traffic_returns_within_two_seconds(
    target: str, event: dict[str, Any], lasts: float, seeds: int
) -> None:
    """Twenty requests per second and endpoint; the share of the third second is within 10 % of the former one."""
    end = AT + lasts
    whole = event | {"at": AT, "lasts": lasts, "target": target}
    times, inside = home_share(whole, duration=end + 4.0, target=target, seeds=seeds)
    before = share(times, inside, 3.0, AT)
    assert share(times, inside, AT + 3.0, end) < 0.6 * before
    assert share(times, inside, end + 2.0, end + 4.0) == pytest.approx(before, rel=0.1)


@pytest.mark.second_tier
def test_a_region_that_was_slow_is_not_taken_for_one_with_fewer_slots() -> None:
    """Workers serve two at a time. While they become slow, answers take the longer, the more are in flight, as if one
    were served at a time; with one in flight each, nothing would show the error afterwards."""
    scenario = load_scenario("region-brownout")
    entry = next(entry for entry in scenario.entries if entry.policy.name == "steelyard")
    runs = [simulate(scenario, entry, 1, 0, seed).samples for seed in range(8)]
    times = np.concatenate([run.sent_at for run in runs])
    at_home = np.concatenate([run.worker for run in runs]) < 3
    at = scenario.events[0].at
    end = at + (scenario.events[0].lasts or 0.0)
    before = share(times, at_home, 3.0, at)
    assert share(times, at_home, at + 3.0, end) < 0.3 * before
    assert share(times, at_home, end + 2.0, end + 4.0) == pytest.approx(before, rel=0.1)


def test_the_first_second_is_spent_at_home() -> None:
    """Nothing has been measured, and home has room: at least 95 % go there."""
    times, inside = home_share(duration=2.0, seeds=5)
    assert inside[times < 1.0].mean() >= 0.95


@pytest.mark.parametrize("policy", ["steelyard", "round-robin", "least-time"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.second_tier)])
def test_all_endpoints_have_requests_after_an_outage_of_all(policy: str, seed: int) -> None:
    """Six workers are down for eight seconds. From two seconds after their return each has requests in each ten
    seconds: none is ejected for failures of the outage."""
    scenario = load_scenario("homogeneous")
    region = scenario.regions[0].model_copy(update={"workers": 6})
    down = Event(at=10.0, lasts=8.0, target="here", kind="down")
    load = scenario.load.model_copy(update={"rate": 60.0, "duration": 50.0})
    entry = next(entry for entry in scenario.entries if entry.label == policy)
    update = {"regions": (region,), "load": load, "events": (down,), "entries": (entry,)}
    samples = simulate(scenario.model_copy(update=update), entry, 0, 0, seed).samples
    for start in (20.0, 30.0, 40.0):
        is_within = (samples.sent_at >= start) & (samples.sent_at < start + 10.0)
        assert set(samples.worker[is_within]) == set(range(6))


@pytest.mark.second_tier
@pytest.mark.parametrize(("workers", "slots", "rate"), [(3, 1, 150.0), (4, 4, 1000.0)])
def test_cheap_and_expensive_requests_do_not_upset_shares(workers: int, slots: int, rate: float) -> None:
    """Nine of ten requests take 1 ms, one 100 ms. Over 30,000 requests the shares are within 10 % of equal."""
    scenario = load_scenario("homogeneous")
    region = scenario.regions[0].model_copy(
        update={"workers": workers, "slots": slots, "service": "mixed:1ms,100ms,0.1"}
    )
    load = scenario.load.model_copy(update={"rate": rate, "duration": 30_000 / rate})
    entry = next(entry for entry in scenario.entries if entry.label == "steelyard")
    scenario = scenario.model_copy(update={"regions": (region,), "load": load, "entries": (entry,)})
    served = simulate(scenario, entry, 0, 0, 1).samples.worker
    shares = np.bincount(served, minlength=workers) * workers / len(served)
    assert len(served) == pytest.approx(30_000, rel=0.02)
    assert shares == pytest.approx(np.ones(workers), abs=0.1)
