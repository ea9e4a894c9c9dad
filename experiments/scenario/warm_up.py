"""Warm-up size and initial connections of a run, the same for measured and simulated runs. Pure."""

from __future__ import annotations

from experiments.scenario.scenario import Entry, Scenario


def warm_requests(scenario: Scenario, entry: Entry) -> int:
    """Warm-up requests sent through the balancer: at least two for each that will be outstanding.

    The first opens the connections that a burst needs, the second those that a slow region needs when slots of the fast
    ones are already free again.
    """
    workers = sum(region.workers for region in scenario.regions)
    return max(scenario.warmup * workers, 2 * first_connections(scenario, entry))


def first_connections(scenario: Scenario, entry: Entry) -> int:
    """Connections to open before the run: the batch, or the concurrency of the open loop by Little's law."""
    load = scenario.load_of(entry)
    if load.mode == "closed":
        return min(load.batch, load.planned)
    slowest = max(region.rtt for region in scenario.regions)
    return min(load.planned, max(8, round(load.mean_rate * slowest)))
