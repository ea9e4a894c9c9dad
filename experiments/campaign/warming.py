"""How much is sent before a run, and over how many connections; the same for measured and simulated ones.

Rule of this file: arithmetic of a scenario, nothing else.
"""

from __future__ import annotations

from experiments.campaign.scenario import Entry, Scenario


def warm_requests(scenario: Scenario, entry: Entry) -> int:
    """Requests sent through the balancer before the run: at least two for each that will be outstanding.

    One would find the connections that a burst needs; the second finds those that a slow region needs when
    slots of the fast ones are already free again.
    """
    workers = sum(region.workers for region in scenario.regions)
    return max(scenario.warmup * workers, 2 * first_connections(scenario, entry))


def first_connections(scenario: Scenario, entry: Entry) -> int:
    """Connections to open before the run: the batch, or what Little's law expects of the open loop."""
    load = scenario.load_of(entry)
    if load.mode == "closed":
        return min(load.batch, load.planned)
    slowest = max(region.rtt for region in scenario.regions)
    return min(load.planned, max(8, round(load.mean_rate * slowest)))
