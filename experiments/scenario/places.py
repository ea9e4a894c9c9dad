"""The workers of a scenario: their names, regions, service-time profiles and connection set-up. Pure."""

from __future__ import annotations

from experiments.run_data import Place
from experiments.scenario.scenario import Entry, Scenario
from workers.service import Profile, parse_profile

TLS = {2: "1.3", 3: "1.2"}
"""Connection set-up round trips -> TLS version that a worker speaks to take as many."""


def places_of(scenario: Scenario) -> tuple[Place, ...]:
    """Worker and region name of every worker of the scenario, region by region."""
    pairs = zip(scenario.workers, scenario.numbered_workers, strict=True)
    return tuple(Place(worker=worker, region=region.name) for worker, (region, _) in pairs)


def profiles_of(scenario: Scenario) -> list[Profile]:
    """Distinct service-time profiles of the scenario's workers in measured seconds, in order of appearance."""
    found = (parse_profile(region.service).scaled(scenario.time_scale) for region in scenario.regions)
    return list(dict.fromkeys(found))


def warm_requests(scenario: Scenario, entry: Entry) -> int:
    """Warm-up requests sent through the balancer: at least two for each that will be outstanding.

    The first opens the connections that a burst needs, the second those that a slow region needs when slots of the fast
    ones are already free again.
    """
    return max(scenario.warmup * len(scenario.workers), 2 * first_connections(scenario, entry))


def first_connections(scenario: Scenario, entry: Entry) -> int:
    """Connections to open before the run: the batch, or the concurrency of the open loop by Little's law."""
    load = scenario.load_of(entry)
    if load.mode == "closed":
        return min(load.batch, load.planned)
    slowest = max(region.rtt for region in scenario.regions)
    return min(load.planned, max(8, round(load.mean_rate * slowest)))
