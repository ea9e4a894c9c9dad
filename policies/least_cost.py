"""Pick the endpoint of least expected cost: the compiled part of `steelyard.py`, which explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Region, RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace
from policies.two_choices import LESS_LOADED, relative_load

COSTS: Final = "costs"
"""Reason: the expected costs of the endpoints drawn, per region; the region of the least is chosen. Scores are
seconds."""

EXPLORED: Final = "explored"
"""Reason: an endpoint whose measurements are stale, to measure it again."""

CHOICES: Final = 8
"""Endpoints of the chosen region that are compared. A region of so many or fewer is compared completely.

Simulated, six workers of one slot at 70 % load: p99 129 ms with four, 121 with eight, which is all of them."""

REGION_SAMPLES: Final = 2
"""Endpoints that are sampled to estimate a region's cost."""

WAIT_PRICE: Final = 5.0
"""Cost in seconds of one second of expected wait, because later requests wait, too (see `region_aware.py`)."""

MARGIN: Final = 0.01
"""Seconds by which another region must be cheaper than home."""

EQUAL: Final = 0.05
"""Relative difference in cost within which endpoints of one region count as equal. At 0 estimates are never equal: four
alike have a p99 of 57 ms instead of 50. At 0.15 twenty balancers that each see a twentieth of the traffic no longer
react to latencies that the others cause (244 ms instead of 229)."""

EXPLORE: Final = 0.003
"""Largest share of requests that goes to an endpoint whose measurements are stale, to measure it again.

Such a request mostly opens a new connection, so at low request rates a larger share would dominate the p99."""


Costed = tuple[float, EndpointState]
"""The cost in seconds of one more request at an endpoint, and the endpoint."""


class LeastCost:
    """Picks among `available`; see `Steelyard`. `random` returns numbers from 0 to 1."""

    def __init__(
        self, random: Callable[[], float], choices: int, wait_price: float, margin: float, explore: float
    ) -> None:
        self.trace: Trace | None = None
        self._random = random
        self._choices = choices
        self._wait_price = wait_price
        self._margin = margin
        self._explore = explore
        self._picked_at: dict[str, float] = {}

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(regions + choices)."""
        size = len(available)
        if size == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        if self._random() < self._explore:
            stale = available[int(self._random() * size)]
            if not stale.in_flight and not stale.is_measured(now):
                if self.trace is not None:
                    self.trace.note(EXPLORED, (stale,))
                return stale
        state = self._cheapest(facts.region, available, now)
        self._picked_at[state.id] = now
        return state

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Forget the pick times of removed endpoints."""
        members = {state.id for state in states}
        self._picked_at = {id_: at for id_, at in self._picked_at.items() if id_ in members}

    def _cheapest(self, home: Region | None, available: Available, now: float) -> EndpointState:
        regions = available.by_region
        if len(regions) == 1:
            return self._best_of(self._costs(available, self._choices, now), now)
        chosen, peers, least = available, list[Costed](), inf
        for region, members in regions.items():
            costs = self._costs(members, REGION_SAMPLES, now)
            cost = min(costs, key=_cost)[0] - (self._margin if region == home else 0.0)
            if cost < least:
                chosen, peers, least = members, costs, cost
        if len(chosen) > REGION_SAMPLES:
            peers = self._costs(chosen, self._choices, now)
        return self._best_of(peers, now)

    def _costs(self, members: list[EndpointState], most: int, now: float) -> list[Costed]:
        """Return the costs of up to `most` consecutive members from a random start, which differs per balancer."""
        size = len(members)
        turn = int(self._random() * size)
        drawn = members[turn : turn + most]
        if len(drawn) < most:
            drawn += members[: min(turn, most - len(drawn))]
        price = self._wait_price
        costs = [(expected_cost(state, now, price), state) for state in drawn]
        if self.trace is not None:
            self.trace.note(COSTS, drawn, map(_cost, costs))
        return costs

    def _best_of(self, costs: list[Costed], now: float) -> EndpointState:
        """Return the least loaded of those that cost about as much as the cheapest, then the one picked longest ago.

        Differences of estimated cost below EQUAL are noise; loads and pick times are exact."""
        most = (1.0 + EQUAL) * min(costs, key=_cost)[0]
        equals = [state for cost, state in costs if cost <= most]
        if len(equals) == 1:
            return equals[0]
        if self.trace is not None:
            self.trace.note(LESS_LOADED, equals, [relative_load(state, now) for state in equals])
        last = self._picked_at.get
        return min(equals, key=lambda state: (relative_load(state, now), last(state.id, -inf)))


def expected_cost(state: EndpointState, now: float, wait_price: float) -> float:
    """Return the seconds that one more request there costs, including the wait of later requests."""
    cost = state.predicted_latency(now, wait_price)
    connections = state.connections
    if connections is not None and not connections.has_idle:
        cost += connections.connect_time
    return cost


def _cost(pair: Costed) -> float:
    return pair[0]
