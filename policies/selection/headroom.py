"""Headroom of regions: how much load each region can take from others.

A report is out of date when it is read, and other balancers have read it, too. So reports are smoothed; requests
forwarded since are added; a region that has become tight stays so until its utilisation has clearly fallen; and a
region is skipped with a probability that grows with its load, so that balancers with the same report do not all do the
same.

Utilisation is what workers report (`ReportedLoad`). A region without reports is never skipped; its price, which is
learned from latency, has to suffice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, Region
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
    """Headroom of all regions. `full` is the utilisation above which a region takes no load from others."""

    def __init__(self, full: float, smoothing: float) -> None:
        self._full = full
        self._rooms: defaultdict[Region, Room] = defaultdict(partial(Room, smoothing))

    def of(self, region: Region) -> Room:
        """Return the headroom of a region, created on first use."""
        return self._rooms[region]

    def settled(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """Count a finished request out, and record the utilisation that its response reports."""
        room = self.of(state.region)
        report = outcome.reported_load
        if report is not None and report.utilization is not None:
            room.report(min(1.0, max(0.0, report.utilization)), now)
        room.in_flight -= 1

    def look(self, states: Sequence[EndpointState], now: float) -> None:
        """Recount the requests in flight, and update every region."""
        for room in self._rooms.values():
            room.in_flight = 0
        for state in states:
            self.of(state.region).in_flight += state.in_flight
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
