"""Pick the endpoint of least expected cost: the compiled part of `policy.py`, which explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, exp, inf, pi, sqrt
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import Overloaded
from policies.facts import Outcome, OutcomeKind, Region, RequestFacts
from policies.insight.explanation import ONLY_ONE, Trace
from policies.overload.shedding import (
    DEEP_WAIT,
    LONG_WAIT,
    MIN_QUEUED,
    MIN_QUEUED_SOON,
    PERIOD,
    QUEUED_PART,
    SHORT_WAIT,
    UNBOUNDED_WAIT,
    WATCH,
    Shedding,
)
from policies.selection.trials import EXPLORED, Trials
from policies.selection.two_choices import LESS_LOADED, relative_load
from policies.stats.latency import FORGET_AFTER
from policies.stats.resets import RetriedResets
from policies.stats.service import EndpointService
from policies.stats.usual_service import RegionService
from policies.steelyard.congestion import QUEUE, Congestion

_OK: Final = OutcomeKind.OK
_ABANDONED: Final = OutcomeKind.ABANDONED
_TIMEOUT: Final = OutcomeKind.TIMEOUT
_RESET: Final = OutcomeKind.RESET

COSTS: Final = "costs"
"""Reason: the expected costs of the endpoints compared, in seconds; the region of the least is chosen."""

CHOICES: Final = 16
"""Endpoints of each region that are compared. A region of so many or fewer is compared completely.

Simulated, 60 random scenarios, p99 relative to the best, geometric mean: 1.133 with four, 1.053 with eight, 1.027 with
16, and no less with 32 or 64."""

CERTAIN_DEVIATIONS: Final = 3.0
"""Standard deviations beyond which a normal variable is as good as its mean."""

ROOT_TWO: Final = sqrt(2.0)
ROOT_TWO_PI: Final = sqrt(2.0 * pi)

WAIT_PRICE: Final = 3.0
"""Cost in seconds of one second of expected wait, because later requests wait, too (see
`algorithms/region_aware.py`)."""

OCCUPANCY_PRICE: Final = 2.0
"""Cost in seconds of one second of usual service, besides the service itself: it occupies the endpoint for later
requests, which distance does not. A present slowdown counts once, because it ends before they come.

Simulated, 120 random scenarios, p99 relative to the best, geometric mean: 1.032, and 1.035 where the present service
counts. In a region that has become four times slower 28 to 51 % of the requests stay instead of 4 % (a clairvoyant
policy leaves 31 to 59 %)."""

RISK_PRICE: Final = 2.0
"""Cost in seconds of one second of standard deviation of service: of two endpoints with the same expected latency, the
one whose service varies less has the lower p99.

Simulated: in the scenarios `region-brownout` and `known-speeds` p99 is 10 and 4 % lower than with 0, on 200 random
scenarios the same."""

MARGIN: Final = 0.01
"""Seconds by which another region must be cheaper than home."""

EQUAL_COST: Final = 0.05
"""Relative difference in cost within which endpoints of one region count as equal."""

NO_ROOM: Final = 5.0
"""Seconds that one more request costs than may be in flight at an endpoint that is new or has recovered."""

NEW_ROOM: Final = 2.0
"""Requests that may be in flight at a new endpoint."""

HERD: Final = 3
"""Requests of other balancers that are assumed to come to an endpoint with each own one where those rise suddenly: what
makes one balancer send more makes others send more, and none sees it before answers take longer.

Simulated, 400 random scenarios, geometric mean of p99: 0.9970 [0.9940, 1.0000] of that with 0; 23 scenarios with the
greatest losses 0.892 [0.793, 1.004]."""

HANGING_COST: Final = 0.4
"""What a request that hangs costs, as a part of what a failure costs: it may still be answered.

Simulated, 100 random scenarios in which requests hang, geometric mean of p99: 0.980 [0.945, 1.017] of that with 0;
0.986 with 1."""

RESET_PRICE: Final = 3.0
"""Cost in seconds of one second until a connection broke, where the request is retried: the client waits for it, and it
occupied the endpoint. Simulated, 52 random scenarios in which endpoints break connections, geometric mean of p99: 0.981
[0.960, 1.001] of that where each costs as much as a failure that is passed on."""

FULL_STATUS: Final = 503
"""Status with which a worker rejects a request because its queue is full."""

FULL_RATIO: Final = 1.5
"""Requests in flight, as a multiple of the concurrency, above which status 503 means a full queue and no failure."""

REJECTION: Final = 100.0
"""Seconds that a request costs which the endpoint or the policy will probably reject: more than it waits elsewhere."""

SAME_ABANDON_S: Final = 0.001
"""Seconds within which requests that clients give up count as one: a client that closes a connection with a hundred
requests leaves all of them at once, for whatever reason, while many clients that wait in a queue leave one by one."""

FULL_FOR: Final = 5.0
"""Seconds after a rejection for which failures cost nothing: most of them were rejections, and to charge them sends the
traffic to the next endpoint, whose queue then fills up."""

UNTRIED_SERVICE_S: Final = 0.05
"""Assumed service time in seconds where no endpoint of a region has answered."""

UNTRIED_ROOM: Final = 16.0
"""Requests that an endpoint of mean weight is assumed to serve at a time where none of its region has answered."""

UNTRIED_DISTANCE_S: Final = 0.1
"""Assumed distance in seconds of a region other than home to which no connection was opened."""


class LeastCost:
    """Picks among `available`; see `Steelyard`. `random` returns numbers from 0 to 1."""

    def __init__(
        self,
        random: Callable[[], float],
        choices: int,
        wait_price: float,
        margin: float,
        explore: float,
        sheds: bool,
    ) -> None:
        self.trace: Trace | None = None
        self._random = random
        self._choices = choices
        self._wait_price = wait_price
        self._margin = margin
        self._sheds = sheds
        self._regions: dict[Region, RegionService] = {}
        self._services: dict[str, EndpointService] = {}  # always this one, which `_trials` reads
        self._trials = Trials(self._services, explore, random())
        self._shedding = Shedding()
        self._left_at = -inf  # when a client gave up last
        self._congestion = Congestion()
        self._retried = RetriedResets()
        self._least = 0.0  # the cost of the cheapest endpoint at the last comparison: what a retry costs
        self._mean_weight = 1.0

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick an endpoint in O(regions × choices). Raises Overloaded."""
        self._shedding.requests += 1
        if facts.attempt:
            self._count_retry(facts)
        state = self._choose(facts, available, now)
        service = self._service(state)
        until = self._shedding.until
        if now < until:
            if self._would_wait(state, SHORT_WAIT, now):
                raise Overloaded()
        elif now < until + WATCH and self._has_long_queue(state, service, available, now):
            self._shedding.begin(now)
        service.picked_at = now
        if not state.in_flight:
            service.advance(state.waited(now), 0, state.overtaken.stuck, state.elsewhere, 0, now)
        return state

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Learn from the outcome of a request."""
        service = self._service(state)
        is_answer = outcome.kind is _OK
        if is_answer and now < self._shedding.until:
            self._shedding.answered(outcome.sent_at, now)
        if is_answer and service.is_busy(now):
            return
        if outcome.kind is _TIMEOUT or outcome.kind is _ABANDONED:
            self._count_given_up(state, service, outcome, now)
        service.advance(
            state.waited(now), state.awaiting + 1, state.overtaken.stuck, state.elsewhere, int(is_answer), now
        )
        if is_answer:
            first = outcome.first_byte_at
            latency = (outcome.ended_at if first is None else first) - outcome.sent_at
            met = max(1, state.latency.last_ahead + 1 - service.stuck)
            service.learn(latency, met, round_trip(state, 0.0), now)
            if service.slow_since is None:
                self._trials.answered(state, now)
                return
        elif outcome.status == FULL_STATUS and state.in_flight > FULL_RATIO * service.region.concurrency:
            service.reject(state.in_flight, now)
            self._count_lost(state, UNBOUNDED_WAIT, now)
            return
        elif outcome.kind is _RESET:
            service.fail(now)
            service.resets.reset(outcome.ended_at - outcome.sent_at)
            self._retried.count_reset()
        elif outcome.kind.is_failure:
            service.fail(now)
            service.resets.fail()
        else:
            return
        self._trials.suspect(state, service)

    def _count_retry(self, facts: RequestFacts) -> None:
        """Count the retry of a request on a connection that broke."""
        for id_ in facts.tried:
            service = self._services.get(id_)
            if service is not None and service.resets.is_open:
                service.resets.is_open = False
                self._retried.count_retry()

    def _count_given_up(
        self, state: EndpointState, service: EndpointService, outcome: Outcome, now: float
    ) -> None:
        """Count a request ended by its client or by a timeout as lost in a queue, unless its answer had begun,
        requests that took longer have succeeded, or none that took nearly as long, or the endpoint has answered none
        since."""
        age, has_begun = outcome.ended_at - outcome.sent_at, outcome.first_byte_at is not None
        longest = state.overtaken.longest
        if has_begun or not (QUEUED_PART * age <= longest <= age and service.answered_at > outcome.sent_at):
            return
        if outcome.kind is _ABANDONED:
            is_one_client, self._left_at = now - self._left_at < SAME_ABANDON_S, now
            if is_one_client:
                return
        self._count_lost(state, DEEP_WAIT, now)

    def _count_lost(self, state: EndpointState, least: float, now: float) -> None:
        """Count a failed request as lost in a queue, if there is one of `least` services or more."""
        if self._sheds and self._would_wait(state, least, now):
            self._shedding.lose(now)

    def _has_long_queue(
        self, state: EndpointState, service: EndpointService, available: Available, now: float
    ) -> bool:
        """Return whether one more request would wait for long at the cheapest endpoint, behind more than by chance."""
        if not self._would_wait(state, LONG_WAIT, now):
            return False
        slots = sum(
            len(members) * self._service(members[0]).region.concurrency
            for members in available.by_region.values()
        )
        least = max(LONG_WAIT, MIN_QUEUED / slots)
        if now < self._shedding.until + PERIOD:
            least = min(least, max(DEEP_WAIT, MIN_QUEUED_SOON / slots))
        return self._would_wait(state, least, now)

    def _would_wait(self, state: EndpointState, services: float, now: float) -> bool:
        """Return whether one more request is expected to wait there for so many service times or more."""
        service = self._service(state)
        if not service.seconds:
            return False
        count, concurrency = in_service(state, service), service.region.concurrency
        seconds = service.present_seconds(state.waited(now), state.awaiting, state.elsewhere, now)
        return expected_wait(count, seconds, service.distance, concurrency) >= services * seconds

    def doubts(self, state: EndpointState) -> bool:
        """Whether the endpoint is suspected to be slow, or has failed and not answered since."""
        return state.id in self._trials.bad

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        """Forget removed endpoints, and those that have moved to another region."""
        if states:
            self._mean_weight = sum(state.weight for state in states) / len(states)
        kept = {state.id: state for state in states}
        self._trials.keep(kept)
        before = dict(self._services)
        self._services.clear()
        for region in self._regions.values():
            region.members.clear()
        for state in states:
            service = before.get(state.id)
            if service is not None and service.region is self._regions.get(state.region):
                self._services[state.id] = service
                service.region.members.append(service)

    def _service(self, state: EndpointState) -> EndpointService:
        service = self._services.get(state.id)
        if service is None:
            region = self._regions.get(state.region)
            if region is None:
                region = self._regions[state.region] = RegionService()
            service = self._services[state.id] = EndpointService(region)
        return service

    def _choose(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        size = len(available)
        if size == 1:
            if self.trace is not None:
                self.trace.note(ONLY_ONE, available)
            return available[0]
        explored = self._trials.take(available, now)
        if explored is not None:
            if self.trace is not None:
                self.trace.note(EXPLORED, (explored,))
            return explored
        return self._cheapest(facts.region, available, now)

    def _cheapest(self, home: Region | None, available: Available, now: float) -> EndpointState:
        """Return the least loaded of those that cost about as much as the cheapest, then the one picked longest ago.

        Up to `choices` consecutive members of each region are compared, from a random start, which differs per
        balancer. Differences of estimated cost below EQUAL_COST are noise; loads and pick times are exact."""
        drawn, services = list[EndpointState](), list[EndpointService]()
        least, cheapest, sheds = inf, available[0], now < self._shedding.until
        for members in available.by_region.values():
            size = len(members)
            at = int(self._random() * size)
            for _ in range(min(size, self._choices)):
                state = members[at]
                at = at + 1 if at + 1 < size else 0
                service = self._service(state)
                cost = self._cost(state, service, home, now)
                if sheds and self._would_wait(state, SHORT_WAIT, now):
                    cost += REJECTION
                service.cost = cost
                drawn.append(state)
                services.append(service)
                if cost < least:
                    least, cheapest = cost, state
        self._least = least
        service = self._service(cheapest)
        self._congestion.update(service.wait > QUEUE * service.seconds, now)
        if self.trace is not None:
            self.trace.note(COSTS, drawn, [service.cost for service in services])
        region, most = cheapest.region, least + EQUAL_COST * least
        if region == home:
            most += EQUAL_COST * self._margin  # relative to the cost without it
        least_load = longest_ago = inf
        for i in range(len(drawn)):
            state, service = drawn[i], services[i]
            if service.cost <= most and state.region == region:
                load = relative_load(state, now) if state.latency.failures else state.in_flight / state.weight
                picked_at = service.picked_at
                if load < least_load or (load == least_load and picked_at < longest_ago):
                    cheapest, least_load, longest_ago = state, load, picked_at
        if self.trace is not None:
            compared = zip(drawn, services, strict=True)
            equals = [state for state, service in compared if service.cost <= most and state.region == region]
            if len(equals) > 1:
                self.trace.note(LESS_LOADED, equals, [relative_load(state, now) for state in equals])
        return cheapest

    def _cost(self, state: EndpointState, service: EndpointService, home: Region | None, now: float) -> float:
        """Return the seconds that one more request there costs, including the wait of later requests."""
        region, in_flight, room = service.region, in_service(state, service), service.room
        seconds, distance = service.seconds, service.distance
        cost = -self._margin if state.region == home else 0.0
        if seconds:
            seconds = service.present_seconds(state.waited(now), state.awaiting, state.elsewhere, now)
        else:
            distance = round_trip(state, 0.0 if home is None or state.region == home else UNTRIED_DISTANCE_S)
            if region.sums.samples:
                seconds, room = exp(region.log_mean) * region.mean_factor, NEW_ROOM
        if seconds:
            cost += distance + seconds + RISK_PRICE * region.deviation * seconds
            cost += OCCUPANCY_PRICE * (service.seconds or seconds)
            cost += self._wait_price * service.pause
            sudden = service.sudden(state.in_flight - state.overtaken.stuck, now) if in_flight > 1 else 0
            wait = expected_wait(in_flight + HERD * sudden, seconds, distance, region.concurrency)
            cost += self._wait_price * self._congestion.price * region.certainty * wait
            service.wait = wait
            if in_flight >= room:
                cost += NO_ROOM
            if in_flight >= service.limit(now):
                cost += REJECTION
        else:
            service.wait = 0.0
            cost += distance
            if in_flight or state.region != home:
                age = now - state.busy_since if in_flight else 0.0
                cost += (1.0 + OCCUPANCY_PRICE) * max(UNTRIED_SERVICE_S, age)
                room = UNTRIED_ROOM * state.weight / self._mean_weight
                cost += self._wait_price * UNTRIED_SERVICE_S * max(0.0, in_flight / room - 1.0)
        connections = state.connections
        if connections is not None and not connections.has_idle:
            cost += connections.connect_time
        latency = state.latency
        if latency.failures and now - service.rejected_at > FULL_FOR:
            resets = service.resets
            price = self._retried.price(resets, latency.charge, RESET_PRICE * resets.seconds + self._least)
            cost += price * self._failure_share(state, now)
        hanging = state.overtaken.hanging
        if hanging:
            cost += HANGING_COST * latency.charge * hanging / (hanging + latency.successes)
        return cost

    def _failure_share(self, state: EndpointState, now: float) -> float:
        """Return the failure share of recent requests. One that has not succeeded since its last failure gets no
        request without penalty other than its trials, which are a part of all requests; after a success the share is
        `failure_penalty`."""
        if state.id in self._trials.bad and now - state.latency.measured_at < FORGET_AFTER:
            return state.latency.failure_share
        return state.failure_penalty(now)


def in_service(state: EndpointState, service: EndpointService) -> int:
    """Return the requests in flight there that wait or are served: all but those that hang."""
    stuck = state.overtaken.stuck
    if not stuck:
        return state.in_flight
    return state.in_flight - max(0, stuck + 1 - int(service.region.concurrency))  # fewer may be in service


def expected_wait(in_flight: int, seconds: float, distance: float, concurrency: float) -> float:
    """Return the seconds that one more request is expected to wait behind `in_flight` others.

    Those others are at the endpoint or on their way to or from it. How many are there is binomial, each with a
    probability of service / (service + distance), about normal; those beyond `concurrency` wait. Where the endpoint is
    saturated, the way holds no more than it serves in that time.
    """
    if not in_flight:
        return 0.0
    share = seconds / (seconds + distance)
    mean = max(in_flight * share, in_flight - concurrency * distance / seconds)
    beyond, deviation = mean + 1.0 - concurrency, sqrt(in_flight * share * (1.0 - share))
    if beyond <= -CERTAIN_DEVIATIONS * deviation:
        return 0.0
    if beyond < CERTAIN_DEVIATIONS * deviation:  # the mean of the positive part of a normal variable
        z = beyond / deviation
        beyond = deviation * exp(-0.5 * z * z) / ROOT_TWO_PI + 0.5 * beyond * (1.0 + erf(z / ROOT_TWO))
    return beyond * seconds / concurrency


def round_trip(state: EndpointState, unknown: float) -> float:
    """Return the seconds that a handshake with the endpoint took, else `unknown`."""
    connections = state.connections
    trip = connections.round_trip if connections is not None else 0.0
    return trip if trip else unknown
