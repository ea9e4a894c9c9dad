"""Measured runs: warm-up, connections opened in advance, demand, and reasons for invalidity."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.measured.runner import demand_of, faults
from experiments.scenario.files import load_scenario
from experiments.scenario.places import first_connections, warm_requests
from experiments.scenario.scenario import Region
from experiments.simulator.run import OVERHEAD, simulate


def test_many_fallback_picks_make_a_run_invalid() -> None:
    """More than a stalled machine explains; the policy's fault is quoted."""
    assert faults({"policy": {"fallback_picks": 3, "routed": 500, "last_fault": "KeyError"}}) == (
        "the policy failed 3 of 500 times and was stood in for: KeyError",
    )
    assert faults({"policy": {"fallback_picks": 1, "routed": 500, "last_fault": "took over 5 ms"}}) == ()
    assert faults({"policy": {"fallback_picks": 0, "routed": 500, "last_fault": None}}) == ()
    assert faults({}) == ()


def test_number_of_connections_opened_before_the_load() -> None:
    """The batch of a closed loop; for an open one what rate and round trip keep in flight."""
    regions, steady = load_scenario("regions"), load_scenario("steady")
    by_label = {entry.label: entry for entry in regions.entries}
    assert first_connections(regions, by_label["random"]) == 100
    assert first_connections(regions, by_label["random (batch 10)"]) == 10
    assert first_connections(steady, steady.entries[0]) == round(180 * 0.58)


def test_the_warm_up_reaches_every_connection() -> None:
    """At least two requests for each that will be in flight, and the scenario's number per worker."""
    regions = load_scenario("regions")
    entry = regions.entries[0]
    assert warm_requests(regions, entry) == 300
    assert warm_requests(regions.quickened(), entry) == 200


@pytest.mark.parametrize("time_scale", [1.0, 0.5])
def test_demand_is_equal_in_measured_and_simulated_runs(time_scale: float) -> None:
    """With a slot for every request and no distance, what a simulated request takes beside the balancer's own time is
    what a measured one would say."""
    scenario = load_scenario("homogeneous")
    region = {"name": "here", "workers": 2, "rtt": 0.0, "service": "exponential:20ms", "slots": 200}
    regions = (Region.model_validate(region),)
    scenario = scenario.model_copy(update={"regions": regions, "time_scale": time_scale})
    count = 5000
    load = scenario.load.model_copy(update={"rate": 500.0, "duration": 10.0})
    scenario = scenario.model_copy(update={"load": load})
    demand = [float(text) for text in demand_of(scenario, scenario.entries[0], 7, count)]
    latency = simulate(scenario, scenario.entries[0], 0, 0, 7).samples.latency
    np.testing.assert_allclose(latency - OVERHEAD, demand, atol=1e-8)
    assert np.mean(demand) == pytest.approx(0.02 * time_scale, rel=0.05)


def test_a_request_carries_its_demand_for_each_service_profile() -> None:
    """Regions of equal service share one, and the draws do not depend on the entry."""
    scenario = load_scenario("steady")
    far = scenario.regions[2].model_copy(update={"service": "fixed:50ms"})
    scenario = scenario.model_copy(update={"regions": (*scenario.regions[:2], far)})
    demand = demand_of(scenario, scenario.entries[0], 7, 3)
    assert demand == demand_of(scenario, scenario.entries[1], 7, 3)
    assert [text.split(b",")[1] for text in demand] == [b"0.050000000"] * 3
    assert all(0.019 <= float(text.split(b",")[0]) <= 0.021 for text in demand)
