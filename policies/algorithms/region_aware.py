"""Region-aware routing: the home region first, others when home becomes more expensive.

Traffic leaves a region because of its load, before its health or its limits force it to. Strict preference keeps
sending into a saturated region (istio #50727); here every region has a price, and home gets a small discount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf, sqrt
from random import Random
from typing import Annotated, Final

from policies.algorithms.least_in_flight import LeastInFlight
from policies.algorithms.regions import PerRegion
from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, Region, RequestFacts
from policies.options import at_least, between
from policies.policy import PolicyMaker
from policies.selection.two_choices import draw_two
from policies.stats.load import Ewma

SMOOTHING: Final = 5.0
"""Seconds after which a report counts 1/e. Several round trips, so that a shift of load shows before the next one."""

BAND: Final = 0.1
"""How far below `full` a tight region's utilisation must fall. Workers' reports of one second differ by less."""

SPARE_REQUESTS: Final = 4
"""Requests in flight that are never a surge."""

LEAST_ROOM: Final = 0.02
"""Least headroom of a full region: where all are full, each still gets a share."""


class Room:
    """Headroom of one region.

    `in_flight` is what this balancer has there, `usual` the most that the reports account for, `utilization` is 0..1,
    `chance` the probability of being skipped, unless there is a surge."""

    def __init__(self, smoothing: float) -> None:
        self._reports = Ewma(smoothing)
        self._forwards = Ewma(smoothing)
        self.in_flight = 0
        self.usual = 0.0
        self.utilization: float | None = None
        self.is_tight = False
        self.chance = 0.0

    def report(self, utilization: float, now: float) -> None:
        """Add a reported utilisation, which accounts for at most the requests in flight now."""
        self._reports.add(utilization, now)
        self._forwards.add(self.in_flight, now)

    def look(self, now: float, full: float) -> None:
        """Update the values that picks use. Call once a second."""
        self.utilization = self._reports.read(now)
        forwards = self._forwards.read(now) or 0.0
        self.usual = forwards + 2.0 * sqrt(forwards) + SPARE_REQUESTS  # mean plus random variation
        if self.utilization is None:
            self.is_tight, self.chance = False, 0.0
            return
        self.is_tight = self.utilization > (full - BAND if self.is_tight else full)
        begins_at = full - BAND
        self.chance = (self.utilization - begins_at) / (1.0 - begins_at) if self.is_tight else 0.0

    @property
    def has_surge(self) -> bool:
        """Whether more is in flight than the reports account for."""
        return self.in_flight > self.usual

    @property
    def expected(self) -> float:
        """Upper bound of the utilisation after all arrivals: as if all load there were this balancer's."""
        reported = self.utilization or 0.0
        return min(1.0, reported * self.in_flight / self.usual) if self.has_surge else reported


class Headroom:
    """Headroom of all regions: how much load each can take from others.

    A report is out of date when it is read, and other balancers have read it, too. So reports are smoothed; requests
    forwarded since are added; a region that has become tight stays so until its utilisation has clearly fallen; and a
    region is skipped with a probability that grows with its load, so that balancers with the same report do not all do
    the same. Utilisation is what workers report (`ReportedLoad`). A region without reports is never skipped; its price,
    which is learned from latency, has to suffice.

    `full` is the utilisation above which a region takes no load from others."""

    def __init__(self, full: float, smoothing: float) -> None:
        self._full = full
        self._rooms: defaultdict[Region, Room] = defaultdict(partial(Room, smoothing))
        self._counted: dict[EndpointState, int] = {}

    def of(self, region: Region) -> Room:
        """Return the headroom of a region, created on first use."""
        return self._rooms[region]

    def count(self, state: EndpointState, in_flight: int) -> None:
        """Set the requests in flight at an endpoint, with those of other policies: a canary picks only some."""
        self.of(state.region).in_flight += in_flight - self._counted.get(state, 0)
        self._counted[state] = in_flight

    def settled(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Record the utilisation that the response of a finished request reports, and count the request out."""
        report = outcome.reported_load
        if report is not None and report.utilization is not None:
            self.of(state.region).report(min(1.0, max(0.0, report.utilization)), now)
        self.count(state, state.in_flight)

    def look(self, states: Sequence[EndpointState], now: float) -> None:
        """Recount the requests in flight, and update every region."""
        for room in self._rooms.values():
            room.in_flight = 0
        self._counted.clear()
        for state in states:
            self.count(state, state.in_flight)
        for room in self._rooms.values():
            room.look(now, self._full)

    def chance(self, region: Region) -> float:
        """Return the probability that a request from another region skips this one."""
        room = self.of(region)
        if room.utilization is None or not room.has_surge:
            return room.chance
        begins_at = self._full - BAND
        return max(0.0, (room.expected - begins_at) / (1.0 - begins_at))

    def weight(self, region: Region, members: Available) -> float:
        """Return hosts × (1 − utilisation): the region's share of load that no region has room for. O(n)."""
        utilization = self.of(region).utilization
        room = 1.0 - utilization if utilization is not None else 1.0 - self._full
        return sum(state.weight for state in members) * max(LEAST_ROOM, room)


HOME = "home"
"""Reason: the home region, the cheapest after its discount `margin`. Scores are prices after the discount."""

SPILLED_OVER = "spilled-over"
"""Reason: another region, because home is more expensive. Scores are prices after home's discount."""

CHEAPEST = "cheapest-region"
"""Reason: the cheapest region; the request has no home, or home has no available endpoint. Scores are prices."""

EXPLORED = "explored"
"""Reason: an endpoint whose measurements are stale, to measure it again."""

PASSED_ON = "passed-on"
"""Reason: the cheapest region that has room. Scores are the probabilities of being skipped for lack of it."""

BY_HEADROOM = "by-headroom"
"""Reason: no other region has room, so drawn by hosts × (1 − utilisation), which are the scores."""

FULL_UTILISATION = 0.9
"""Utilisation above which a region takes no load from others. Near saturation a few more requests are a long queue: at
0.9 it is nine requests, at 0.95 nineteen."""

MARGIN = 0.01
"""Seconds by which another region must be cheaper. Half a service time of the experiment: below that it is noise."""

WAIT_PRICE = 8.0
"""Cost in seconds of one second of expected wait.

At 1 every request minimizes its own latency only, and all regions end up equally slow (Wardrop's equilibrium): the near
ones saturate and round-robin is better. The cluster is served best when the wait is priced with its effect on all later
requests: W + λ·dW/dλ, which is W/(1 − ρ) for an M/M/1 queue, so eight times the wait at ρ = 0.88.

Simulated mean latency in ms, six workers of 50 req/s with round trips of 350, 450, 580 ms:

    wait_price                           1    3    5    8   10   12   round-robin
    service 19–21 ms   100 outstanding 500  486  468  459  457  456   481
                       60/s            381  382  382  382  382  385   481
                       180/s           499  455  444  440  441  443   482
                       240/s           612  511  490  483  478  478   486
    service            100 outstanding 544  509  502  500  506  505   496
    exponential,       60/s            398  396  398  408  412  412   481
    mean 20 ms         180/s           531  489  488  482  490  494   493
                       240/s           628  542  536  530  533  534   517

8 is within 3 % of the best price in every row. Where service varies, mean − floor holds service as well as wait: a high
price then spills early at low load, and near the cluster's capacity round-robin stays 1–3 % ahead.
"""

EXPLORE = 0.01
"""Largest share of requests that goes to an endpoint with stale measurements, as a price needs current ones."""

Margin = Annotated[float, "seconds by which another region must be cheaper", at_least(0)]
Explore = Annotated[
    float, "largest share of requests sent to endpoints without recent measurements", between(0, 1)
]


class RegionAware(PerRegion):
    """Home region first; spills over when home is full, unhealthy, or more expensive than another by a margin.

    The price of a region is that of its cheapest endpoint: fixed part + wait_price × expected wait + cost of failures.
    Within the region an inner policy picks (least in flight by default). A request without a home, or whose home has no
    available endpoint, goes to the cheapest region.

    Where workers report their utilisation, another region than home is skipped with a probability that grows from
    `full` on, and more so while more is in flight there than its reports account for: the load of a failed region goes
    to all that have room, not to the nearest until that one fails as well (cascading failure). Reports are smoothed
    over `smoothing` seconds.
    """

    reads_reports = True

    def __init__(
        self,
        rng: Random,
        *,
        inner: Annotated[PolicyMaker, "policy within a region: a name or a table"] = LeastInFlight,
        margin: Margin = MARGIN,
        wait_price: Annotated[float, "weight of one second of expected wait", at_least(0)] = WAIT_PRICE,
        explore: Explore = EXPLORE,
        full: Annotated[
            float,
            "reported utilisation above which another region than home is avoided; 1: never",
            between(0.2, 1),
        ] = FULL_UTILISATION,
        smoothing: Annotated[float, "time constant of the reports in seconds", at_least(0.1)] = SMOOTHING,
    ) -> None:
        super().__init__(inner, rng)
        self._random = rng.random
        self._margin = margin
        self._wait_price = wait_price
        self._explore = explore
        self._headroom = Headroom(full, smoothing)
        self._has_reports = False  # a utilisation has been reported; until then there is no need to count

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Pick a region by price, then an endpoint by the inner policy. O(regions)."""
        home, has_choice = facts.region, len(available.regions) > 1
        state = None
        if has_choice and self._random() < self._explore:
            state = self._stale(available, now)
        if state is None:
            region = self._cheapest(home, available, now)
            if self._has_reports and has_choice and region != home and self._is_passed_over(region):
                region = self._with_room(region, home, available, now)
            state = self.pick_in(region, facts, available, now)
        if self._has_reports:
            self._headroom.count(state, state.in_flight + 1)
        return state

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Record the utilisation that the worker reports."""
        report = outcome.reported_load
        if self._has_reports:
            self._headroom.settled(state, outcome, now)
        elif report is not None and report.utilization is not None:
            self._has_reports = True
            self._headroom.look(self._states, now)
        super().observe(state, outcome, now)

    def members_changed(self, states: Sequence[EndpointState], now: float) -> None:
        super().members_changed(states, now)
        if self._has_reports:
            self._headroom.look(states, now)

    def tick(self, now: float) -> None:
        super().tick(now)
        if self._has_reports:
            self._headroom.look(self._states, now)

    def _stale(self, available: Available, now: float) -> EndpointState | None:
        """Return an endpoint drawn at random if its measurements are stale and it is idle, else None."""
        state = available[int(self._random() * len(available))]
        if state.in_flight or state.is_measured(now):
            return None
        if self._trace is not None:
            self._trace.note(EXPLORED, (state,))
        return state

    def _is_passed_over(self, region: Region) -> bool:
        chance = self._headroom.chance(region)
        return chance > 0.0 and self._random() < chance

    def _with_room(self, cheapest: Region, home: Region | None, available: Available, now: float) -> Region:
        """Return the next cheapest region that is not skipped as well, else one drawn by headroom."""
        regions = available.regions
        others = [region for region in regions if region != cheapest]
        for region in sorted(others, key=lambda region: self._price(regions[region], now)):
            if region == home or not self._is_passed_over(region):
                if self._trace is not None:
                    self._trace.note(PASSED_ON, regions, map(self._headroom.chance, regions))
                return region
        weights = [self._headroom.weight(region, members) for region, members in regions.items()]
        if self._trace is not None:
            self._trace.note(BY_HEADROOM, regions, weights)
        return self._rng.choices(list(regions), weights)[0]

    def _cheapest(self, home: Region | None, available: Available, now: float) -> Region:
        regions = available.regions
        if len(regions) == 1:
            region = next(iter(regions))
            if self._trace is not None:
                self._trace.note(HOME if region == home else CHEAPEST, (region,))
            return region
        prices: list[float] | None = None if self._trace is None else []
        best, least = "", inf
        for region, members in regions.items():
            price = self._price(members, now)
            if region == home:
                price -= self._margin
            if prices is not None:
                prices.append(price)
            if price < least:
                best, least = region, price
        if self._trace is not None:
            reason = HOME if best == home else SPILLED_OVER if home in regions else CHEAPEST
            self._trace.note(reason, regions, prices or ())
        return best

    def _price(self, members: Available, now: float) -> float:
        """Return the lower price of two endpoints drawn at random: as good as a full scan, at constant cost."""
        price = self._wait_price
        size = len(members)
        if size == 1:
            return members[0].predicted_latency(now, price)
        first, second = (0, 1) if size == 2 else draw_two(size, self._random)
        one = members[first].predicted_latency(now, price)
        other = members[second].predicted_latency(now, price)
        return other if other < one else one
