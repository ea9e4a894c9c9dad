"""The costs that docs/policies.md works out by hand, compared with those of the policy."""

from __future__ import annotations

from math import inf, log

import pytest

from policies import EndpointState
from policies.algorithms.region_aware import MARGIN
from policies.facts import Endpoint
from policies.steelyard.costs import DEVIATIONS, LOAD, Prices
from policies.steelyard.least_cost import LeastCost
from tests.support.documentation import cells_of
from tests.support.steelyard_routers import Connections

WORKED = cells_of("docs/policies.md", "| in flight | distance | usual service | slower |")


@pytest.mark.parametrize("row", WORKED, ids=" ".join)
def test_the_policy_agrees_with_the_costs_worked_out_by_hand(row: list[str]) -> None:
    """In each state of the table, the cost of one more request is within 1 % of that in the table."""
    in_flight, distance, usual, slower, slots, variation, connect, failed, cost = (
        float(row[i]) for i in (0, 1, 2, 3, 4, 5, 6, 7, 10)
    )
    kind, _, deadline = row[9].partition(" ")
    prices = Prices(
        DEVIATIONS if kind == "tail" else 0.0,
        float(deadline) / 1e3 if deadline else inf,
        LOAD,
        MARGIN,
        {},
    )
    policy = LeastCost(lambda: 0.5, 16, prices, 0.0, sheds=False)
    state = EndpointState(Endpoint("one", "one:80", row[8]))
    now = 100.0
    estimate = policy._estimate(state)
    region = estimate.region
    region.samples = estimate.samples = 1e3
    region.mean = log(usual / 1e3)
    region.concurrency, region.shape.variation = slots, variation
    estimate.seconds, estimate.distance = usual / 1e3, distance / 1e3
    estimate.pace.advance(slower * 1e9, 1_000_000_000, now)
    state.connections = Connections(not connect, connect_time=connect / 1e3)
    state.in_flight = int(in_flight)
    if failed:
        state.latency.successes, state.latency.failures = 99.0, 99.0 * failed / (1.0 - failed)
        state.latency.measured_at = state.latency.failed_at = now
    is_home = state.region == "home"
    assert policy._weigh(state, estimate, is_home, 0.0, now) * 1e3 == pytest.approx(cost, rel=0.01)
    assert sum(estimate.costs.parts().values()) == pytest.approx(estimate.costs.total)


def test_there_are_twenty() -> None:
    """The table has twenty states, of every objective."""
    assert len(WORKED) == 20
    assert {row[9].split()[0] for row in WORKED} == {"tail", "mean", "deadline"}
