"""Pick the endpoint of least expected cost: the compiled part of `policy.py`, which explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.latency_prior import GUESS
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, Region, RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace
from policies.overload.shedding import DEEP_WAIT, LONG_WAIT, SHORT_WAIT, UNBOUNDED_WAIT, WATCH, Shedding
from policies.selection.two_choices import LESS_LOADED, relative_load
from policies.stats.latency import FAILURE_COST, FORGET_AFTER, GRAIN
from policies.steelyard.costs import REJECTION_S, Prices, expected_wait
from policies.steelyard.estimate import Estimate
from policies.steelyard.service_time import RegionService, Shape, lend_concurrency

_OK: Final = OutcomeKind.OK

EXPLORED: Final = "explored"
"""Reason: an endpoint whose measurements are stale, to measure it again."""

EXPLORE: Final = 0.003
"""Largest share of requests that goes to an endpoint whose measurements are stale, to measure it again.

Such a request mostly opens a new connection, so at low request rates a larger share would dominate the p99."""

DOUBTED: Final = 0.2
"""Logarithm of the slowdown, beyond chance, from which an endpoint is doubted: slower than usual by a fifth."""

COSTS: Final = "costs"
"""Reason: the expected costs of the endpoints compared, in seconds; the region of the least is chosen."""

CHOICES: Final = 16
"""Endpoints of each region that are compared. A region of so many or fewer is compared completely.

Simulated, 60 random scenarios, p99 relative to the best, geometric mean: 1.133 with four, 1.053 with eight, 1.027 with
16, and no less with 32 or 64."""

EQUAL_COST: Final = 0.06
"""Relative difference in cost within which endpoints of one region count as equal."""

NEW_ROOM: Final = 2.0
"""Requests that may be in flight at a new endpoint."""

FULL_RATIO: Final = 1.5
"""Requests in flight, as a multiple of the concurrency, above which a rejection means a full queue and no failure."""

UNTRIED_SERVICE_S: Final = 0.05
"""Assumed service time in seconds where no endpoint of a region has answered."""

UNTRIED_ROOM: Final = 16.0
"""Requests that an endpoint of mean weight is assumed to serve at a time where none of its region has answered."""

LEAST_ROOM: Final = 1e-200
"""Requests of room of an endpoint whose weight beside others is 0 as a number."""


class LeastCost:
    """Picks among `available`; see `Steelyard`. `random` returns numbers from 0 to 1."""

    def __init__(
        self, random: Callable[[], float], choices: int, prices: Prices, explore: float, sheds: bool
    ) -> None:
        self.trace: Trace | None = None
        self._random = random
        self._choices = choices
        self._prices = prices
        self._shape, self._regions = Shape(), dict[Region, RegionService]()
        self._estimates: dict[str, Estimate] = {}
        # Marks the estimates of these members: another policy may have left its own at a state.
        self._owner = object()
        self._explore, self._explorations = explore, random()
        self._shedding = Shedding() if sheds else None
        self._mean_weight, self._lent_at, self._served_at = 1.0, -inf, -inf

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(regions × choices). Raises Overloaded."""
        state, shedding = self._choose(facts, available, now), self._shedding
        if shedding is not None:
            shedding.requests += 1
            if now < shedding.until + WATCH:
                wait = self._services_waited(state, now)
                if now >= shedding.until and wait >= LONG_WAIT:  # one that seems fast may have a queue
                    wait = min([self._services_waited(other, now) for other in available])
                shedding.admit(wait, self._slots(available), now)
        estimate = self._estimate(state)
        estimate.picked_at = now
        if not state.in_flight:
            estimate.advance(state, state.waited(now), 0, now)
        return state

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Learn from the outcome of a request."""
        estimate, shedding = self._estimate(state), self._shedding
        is_answer = outcome.kind is _OK
        if shedding is not None and (not is_answer or now < shedding.until):
            longest = state.overtaken.longest
            if (
                shedding.observe(outcome, longest, estimate.answered_at, now)
                and self._services_waited(state, now) >= DEEP_WAIT
            ):
                shedding.lose(now)
        if is_answer and now - estimate.answered_at < GRAIN and not estimate.has_failed:
            estimate.counted += 1  # that it came is enough to know
            return
        estimate.advance(state, state.waited(now), int(is_answer), now)
        if is_answer and not self._shows_service(outcome):
            estimate.decline(now)
        elif is_answer:
            met = max(1, state.latency.last_ahead + 1 - estimate.stuck)
            first = outcome.first_byte_at
            latency = (outcome.ended_at if first is None else first) - outcome.sent_at
            estimate.answer(latency, met, round_trip(state, 0.0), now)
            if now - self._lent_at > 1.0:
                self._lent_at = now
                lend_concurrency(self._regions.values())
        elif outcome.is_busy and state.in_flight > FULL_RATIO * estimate.region.concurrency:
            estimate.reject(state.in_flight, now)
            if shedding is not None and self._services_waited(state, now) >= UNBOUNDED_WAIT:
                shedding.lose(now)
        elif outcome.kind.is_failure:
            estimate.has_failed = True

    def _shows_service(self, outcome: Outcome) -> bool:
        """Whether an answer shows how long requests are served: a 4xx does not, unless nothing else has come for
        FORGET_AFTER. A worker that is set up wrongly answers 404 at once, and would attract the traffic."""
        if not outcome.is_client_error or self._served_at == -inf:
            self._served_at = outcome.ended_at
        return not outcome.is_client_error or outcome.ended_at - self._served_at >= FORGET_AFTER

    def _services_waited(self, state: EndpointState, now: float) -> float:
        """Return the expected wait of one more request there in service times; 0 where nothing is known of it."""
        estimate = self._estimate(state)
        if not estimate.samples:
            return 0.0
        self._weigh(state, estimate, False, 0.0, now)
        return estimate.costs.services_waited

    def _slots(self, available: Available) -> float:
        """Return how many requests the endpoints serve at a time."""
        return sum(
            len(members) * self._estimate(members[0]).region.concurrency
            for members in available.regions.values()
        )

    def doubts(self, state: EndpointState) -> bool:
        """Whether the endpoint is slower than usual beyond chance, or has failed and not answered since."""
        known = self._estimates.get(state.id)
        return known is not None and (known.has_failed or known.slower > DOUBTED)

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Forget removed endpoints, and those that have moved to another region."""
        if states:
            self._mean_weight = sum(state.weight for state in states) / len(states)
        before, self._estimates = self._estimates, {}
        self._owner = object()
        for region in self._regions.values():
            region.members.clear()
        for state in states:
            estimate = before.get(state.id)
            if estimate is not None and estimate.region is self._regions.get(state.region):
                self._estimates[state.id] = estimate
                estimate.region.members.append(estimate)

    def _estimate(self, state: EndpointState) -> Estimate:
        known = state.estimate
        if isinstance(known, Estimate) and known.owner is self._owner:
            return known
        estimate = self._estimates.get(state.id)
        if estimate is None:
            region = self._regions.get(state.region)
            if region is None:
                region = self._regions[state.region] = RegionService(self._shape)
            estimate = self._estimates[state.id] = Estimate(region)
            region.members.append(estimate)
        estimate.owner, state.estimate = self._owner, estimate
        return estimate

    def _choose(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        size = len(available)
        if size == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        explored = self._stale(available, now)
        if explored is not None:
            if self.trace is not None:
                self.trace.note(EXPLORED, (explored,))
            return explored
        return self._cheapest(facts.region, available, now)

    def _stale(self, available: Available, now: float) -> EndpointState | None:
        """Count a request, and return the endpoint to measure again with it, if that is due."""
        self._explorations += self._explore
        if self._explorations < 1.0:
            return None
        self._explorations = 0.0
        stale = [state for state in available if not state.in_flight and not state.is_measured(now)]
        return min(stale, key=lambda state: state.latency.measured_at) if stale else None

    def _cheapest(self, home: Region | None, available: Available, now: float) -> EndpointState:
        """Return the least loaded of those that cost about as much as the cheapest, then the one picked longest ago.

        Up to `choices` consecutive members of each region are compared, from a random start, which differs per
        balancer. Differences of estimated cost below EQUAL_COST are noise; loads and pick times are exact."""
        estimates, drawn, nearest = list[Estimate](), list[EndpointState](), list[EndpointState]()
        trace, choices = self.trace, self._choices
        cheapest: EndpointState | None = None
        least, first = inf, 0
        sheds = self._shedding is not None and now < self._shedding.until
        for its in available.regions.values():
            members: list[EndpointState] = its
            size, begin = len(members), len(estimates)
            start = int(self._random() * size)
            compared = members[start : start + choices]
            if len(compared) < choices and start:
                compared += members[: min(start, choices - len(compared))]
            is_home = members[0].region == home
            unknown = 0.0 if home is None or is_home else GUESS
            for state in compared:
                estimate = self._estimate(state)
                cost = self._weigh(state, estimate, is_home, unknown, now)
                if sheds and estimate.costs.services_waited >= SHORT_WAIT:
                    estimate.costs.room += REJECTION_S
                    estimate.costs.total = cost = cost + REJECTION_S
                if cost < least or cheapest is None:
                    least, cheapest, costs = cost, state, estimate.costs
                    first, nearest = begin, compared
                estimates.append(estimate)
                if trace is not None:
                    drawn.append(state)
        assert cheapest is not None
        if trace is not None:
            found = [estimate.costs for estimate in estimates]
            trace.note(COSTS, drawn, [each.total for each in found], [each.parts() for each in found])
        most = least + EQUAL_COST * max(0.0, least - costs.margin - costs.price)  # they are no estimates
        least_load = longest_ago = inf
        for state in nearest:
            estimate = estimates[first]
            first += 1
            if estimate.costs.total <= most:
                load = relative_load(state, now) if state.latency.failures else state.in_flight / state.weight
                if load < least_load or (load == least_load and estimate.picked_at < longest_ago):
                    cheapest, least_load, longest_ago = state, load, estimate.picked_at
        if trace is not None:
            equals = [state for state in nearest if self._estimate(state).costs.total <= most]
            if len(equals) > 1:
                trace.note(LESS_LOADED, equals, [relative_load(state, now) for state in equals])
        return cheapest

    def _weigh(
        self, state: EndpointState, estimate: Estimate, is_home: bool, unknown: float, now: float
    ) -> float:
        """Update the endpoint's costs by what one more request there costs; return their total in seconds.

        Its distance counts `unknown` seconds if it has never been measured."""
        costs, prices, region = estimate.costs, self._prices, estimate.region
        distance, seconds = estimate.distance, estimate.seconds
        in_flight, stuck = state.in_flight, state.overtaken.stuck
        if stuck:  # all wait or are served but those that hang, of which fewer may be in service
            in_flight -= max(0, stuck + 1 - int(region.concurrency))
        costs.margin = -prices.margin if is_home else 0.0
        costs.price = prices.regions.get(state.region, 0.0) if prices.regions else 0.0
        costs.room = costs.failure = costs.risk = 0.0
        connections = state.connections
        costs.connect = 0.0 if connections is None or connections.has_idle else connections.connect_time
        if estimate.samples:
            slower = estimate.slowdown(state.waited(now), state.elsewhere, now)
            seconds *= exp(slower)
            if estimate.full < inf and not estimate.has_room(in_flight, now):
                costs.room = REJECTION_S
            room = inf
        else:
            distance = round_trip(state, unknown)
            seconds = region.unmeasured()
            room = NEW_ROOM
        if seconds:
            costs.service = seconds
            costs.wait = expected_wait(in_flight, seconds, distance, region.concurrency)
            variance = min(1.0, region.shape.variation) * seconds * seconds
            costs.risk = prices.risk(costs.connect + distance, seconds + costs.wait, variance)
            costs.occupancy = prices.later * (seconds / region.concurrency + costs.wait)
            if in_flight >= room:
                costs.room += FAILURE_COST
        else:
            costs.service = costs.wait = costs.occupancy = 0.0
            if in_flight or not is_home:
                # Since when requests of others wait there is unknown.
                age = now - state.busy_since if state.in_flight_here else 0.0
                costs.service = max(UNTRIED_SERVICE_S, age)
                room = UNTRIED_ROOM * state.weight / self._mean_weight + LEAST_ROOM
                costs.wait = UNTRIED_SERVICE_S * max(0.0, in_flight / room - 1.0)
                costs.occupancy = prices.later * (costs.service + costs.wait)
        costs.distance = distance
        latency = state.latency
        if latency.failures and not estimate.is_full(now):
            costs.failure = latency.charge * state.failure_penalty(now)
        costs.total = (
            costs.connect + costs.distance + costs.service + costs.wait + costs.occupancy
            + costs.risk + costs.failure + costs.room + costs.price + costs.margin
        )  # fmt: skip
        return costs.total


def round_trip(state: EndpointState, unknown: float) -> float:
    """Return the seconds that a handshake with the endpoint took, else `unknown`."""
    connections = state.connections
    trip = connections.round_trip if connections is not None else 0.0
    return trip if trip else unknown
