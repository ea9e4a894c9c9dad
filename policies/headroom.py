"""How much room other regions have for what is forwarded to them.

Rule of this file: a report is old when it is read, and other balancers have read it, too. So it is smoothed; what one
has forwarded oneself since is counted on top; a region that has become tight stays so until it has clearly more room;
and who passes a region over does so by a chance that grows with its load, so that all who read the same do not do the
same.

Utilisation is what workers say of themselves (`ReportedLoad`). Of a region that says nothing nothing is known, and it
is never passed over: its price, which is learned from latency, has to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Outcome, Region
from policies.stats.load import Ewma

SMOOTHING: Final = 5.0
"""Seconds after which a report counts 1/e. Several round trips, so that a share that was moved shows before it is moved
again."""

BAND: Final = 0.1
"""How far below `full` a tight region's utilisation must fall. Workers' reports of a second differ by less."""

SPARE: Final = 4
"""Requests in flight that are no surge, whatever was usual."""

LEAST_ROOM: Final = 0.02
"""Of a region that is full: where all are, each still gets something."""


class Room:
    """One region: `in_flight` is what this balancer has there, `usual` the most that its reports speak for,
    `utilization` 0..1, `chance` that of being passed over, unless there is a surge."""

    __slots__ = ("_forwards", "_reports", "chance", "in_flight", "is_tight", "usual", "utilization")

    def __init__(self, smoothing: float) -> None:
        self._reports = Ewma(smoothing)
        self._forwards = Ewma(smoothing)
        self.in_flight = 0
        self.usual = 0.0
        self.utilization: float | None = None
        self.is_tight = False
        self.chance = 0.0

    def report(self, utilization: float, now: float) -> None:
        """A worker says how busy it is. What is in flight now is what it speaks for, or less."""
        self._reports.add(utilization, now)
        self._forwards.add(self.in_flight, now)

    def look(self, now: float, full: float) -> None:
        """Once a second: work out what picks go by."""
        self.utilization = self._reports.read(now)
        forwards = self._forwards.read(now) or 0.0
        self.usual = forwards + 2.0 * sqrt(forwards) + SPARE  # what chance alone brings
        if self.utilization is None:
            self.is_tight, self.chance = False, 0.0
            return
        self.is_tight = self.utilization > (full - BAND if self.is_tight else full)
        begins_at = full - BAND
        self.chance = (self.utilization - begins_at) / (1.0 - begins_at) if self.is_tight else 0.0

    @property
    def has_surge(self) -> bool:
        """Whether more is in flight than the reports speak for."""
        return self.in_flight > self.usual

    @property
    def expected(self) -> float:
        """Utilisation when all that is in flight has arrived, at worst: as if all load there were ours."""
        reported = self.utilization or 0.0
        return min(1.0, reported * self.in_flight / self.usual) if self.has_surge else reported


class Headroom:
    """The rooms of all regions. `full` is the utilisation above which a region has no room for others' load."""

    def __init__(self, full: float, smoothing: float) -> None:
        self._full = full
        self._smoothing = smoothing
        self._rooms: dict[Region, Room] = {}

    def of(self, region: Region) -> Room:
        """What is known of it."""
        room = self._rooms.get(region)
        if room is None:
            room = self._rooms[region] = Room(self._smoothing)
        return room

    def settled(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        """A request has come back, and with it perhaps a report."""
        room = self.of(state.region)
        report = outcome.reported_load
        if report is not None and report.utilization is not None:
            room.report(min(1.0, max(0.0, report.utilization)), now)
        room.in_flight -= 1

    def look(self, states: Sequence[EndpointState], now: float) -> None:
        """Count anew, and work out what picks go by."""
        for room in self._rooms.values():
            room.in_flight = 0
        for state in states:
            self.of(state.region).in_flight += state.in_flight
        for room in self._rooms.values():
            room.look(now, self._full)

    def chance(self, region: Region) -> float:
        """That a request from elsewhere passes the region over."""
        room = self.of(region)
        if room.utilization is None or not room.has_surge:
            return room.chance
        begins_at = self._full - BAND
        return max(0.0, (room.expected - begins_at) / (1.0 - begins_at))

    def weight(self, region: Region, members: Available) -> float:
        """Hosts × (1 − utilisation): how much it should get of what nobody has room for. O(n)."""
        utilization = self.of(region).utilization
        room = 1.0 - utilization if utilization is not None else 1.0 - self._full
        return sum(state.weight for state in members) * max(LEAST_ROOM, room)
