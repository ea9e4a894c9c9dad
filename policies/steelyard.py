"""Ours: the endpoint at which the request is expected to cost the pool least.

Rule of this file: one sum in seconds decides, over endpoints of all regions alike, and each of its parts is measured:

    connecting     what opening a connection takes of late, where none stands that the request could have
    fixed part     round trip and bare service, the floor of `latency.py`
    wait           what is in flight there × how long each takes there, × wait_price
    failures       what they cost × the share that failed
    − head start   of the home region

Between those of a region who cost about the same, fewer requests in flight per weight decide, then whose turn was
longest ago: that is known exactly. Where all are alike and seldom busy, that is round-robin, which nothing beats there.
Nobody publishes a policy that knows whether a connection is warm. A new one costs two or three round trips: from afar
that is more than any queue that a balancer would let grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Final

from policies.insight.explanation import ONLY_ONE, Trace
from policies.options import at_least, between
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Region, RequestFacts
from policies.two_choices import LESS_LOADED, relative_load

COSTS: Final = "costs"
"""What those who were drawn are expected to cost, region by region; the region of the least is gone to. Scores are
seconds."""

EXPLORED: Final = "explored"
"""One of whom nothing is known any more, to see what it is like now."""

CHOICES: Final = 8
"""Endpoints of the region gone to that are looked at. A region of so many or fewer is looked at whole.

Simulated, six workers of one slot at 70 % load: p99 129 ms with four, 121 with eight, which is all of them."""

SCOUTS: Final = 2
"""Endpoints that tell what a region costs."""

WAIT_PRICE: Final = 5.0
"""Seconds that one second of expected wait counts, because those who come later wait, too (see `region_aware.py`)."""

MARGIN: Final = 0.01
"""Seconds by which another region must be cheaper than home."""

EQUAL: Final = 0.05
"""Part of the cost by which endpoints of one region may differ and still count as equals. At 0 estimates are never
equal: four alike have a p99 of 57 ms instead of 50. At 0.15 twenty units that each see a twentieth of the traffic no
longer follow what latencies tell of the others (244 ms instead of 229)."""

EXPLORE: Final = 0.003
"""Share of requests at most that looks whether an endpoint of which nothing is known any more is still what it was.

A look costs a new connection, mostly, so where requests are few, more of them than this would be what p99 tells of."""


Costed = tuple[float, EndpointState]
"""An endpoint, and the seconds that one more request there costs."""


class Steelyard:
    """Least expected cost: connecting, distance, wait and failures, each as measured, over all regions at once.

    Two endpoints of every region say what it costs; up to `choices` of the cheapest are compared. `wait_price` weighs
    the wait that a request causes to others. Nobody states capacities or distances.
    """

    trace: Trace | None = None

    def __init__(
        self,
        rng: Random,
        *,
        choices: int = CHOICES,
        wait_price: float = WAIT_PRICE,
        margin: float = MARGIN,
        explore: float = EXPLORE,
    ) -> None:
        self._random: Callable[[], float] = rng.random
        self._choices = at_least(2, choices=choices)
        self._wait_price = at_least(0, wait_price=wait_price)
        self._margin = at_least(0, margin=margin)
        self._explore = between(0, 1, explore=explore)
        self._picked_at: dict[str, float] = {}

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """O(regions + choices)."""
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
        """Forget those who are gone."""
        members = {state.id for state in states}
        self._picked_at = {id_: at for id_, at in self._picked_at.items() if id_ in members}

    def _cheapest(self, home: Region | None, available: Available, now: float) -> EndpointState:
        regions = available.by_region
        if len(regions) == 1:
            return self._best_of(self._costs(available, self._choices, now), now)
        chosen, peers, least = available, list[Costed](), inf
        for region, members in regions.items():
            costs = self._costs(members, SCOUTS, now)
            cost = min(costs, key=_cost)[0] - (self._margin if region == home else 0.0)
            if cost < least:
                chosen, peers, least = members, costs, cost
        if len(chosen) > SCOUTS:
            peers = self._costs(chosen, self._choices, now)
        return self._best_of(peers, now)

    def _costs(self, members: list[EndpointState], most: int, now: float) -> list[Costed]:
        """Those of so many in a row at most, beginning anywhere: units side by side must not all begin alike."""
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
        """Of those who cost about as much as the least. Who that is in truth is noise; who has less to do is known, and
        between those whose turn was longest ago."""
        most = (1.0 + EQUAL) * min(costs, key=_cost)[0]
        equals = [state for cost, state in costs if cost <= most]
        if len(equals) == 1:
            return equals[0]
        if self.trace is not None:
            self.trace.note(LESS_LOADED, equals, [relative_load(state, now) for state in equals])
        last = self._picked_at.get
        return min(equals, key=lambda state: (relative_load(state, now), last(state.id, -inf)))


def expected_cost(state: EndpointState, now: float, wait_price: float) -> float:
    """Seconds that one more request there costs, those to come included."""
    cost = state.predicted_latency(now, wait_price)
    connections = state.connections
    if connections is not None and not connections.is_warm:
        cost += connections.connect_time
    return cost


def _cost(pair: Costed) -> float:
    return pair[0]
