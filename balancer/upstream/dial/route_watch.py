"""Route watch: detects when connects or TLS handshakes become slower, or a name leads to another network.

Every opened connection is observed. Where none is opened for a while, the watch may open one of its own and close it.
Each change is an event, which is counted, kept for the status and logged in one line.

A departure from the usual duration requires every observation of a period to be too high, that is, their minimum, so a
packet lost now and then never causes one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address, ip_network
from math import exp
from statistics import median
from typing import TYPE_CHECKING

from balancer.config.schema.names import RouteWatchConfig
from balancer.errors import ConnectFailed
from balancer.log.output import complain
from balancer.syntax.printable import with_digits
from balancer.upstream.dial.dial import dial
from balancer.upstream.dial.phases import DialTimes

if TYPE_CHECKING:
    from balancer.upstream.dial.target import NetworkRoute


INITIAL_OBSERVATIONS = 5
"""Number of observations whose median is the initial baseline; the very first one meets cold caches."""

MIN_OBSERVATIONS = 5
"""Minimum number of observations for a change, whatever the time they span. Where one packet in ten is lost, so many in
a row are lost once in eleven days, with one connection per ten seconds."""

MAX_WEIGHT = 0.2
"""Maximum weight of one observation, however long ago the previous one was."""

MEMORY_S = 600.0
"""Time constant with which the baseline follows observations."""

SETTLING_S = 3600.0
"""Time after which a departure becomes the baseline."""


class BaselineChange(Enum):
    """Change of state that an observation causes."""

    DEPARTED = "departed"
    RETURNED = "returned"
    SETTLED = "settled"  # departed for so long that it becomes the baseline


class Baseline:
    """Baseline of one measure of one route, in seconds. `norm`: the baseline, None while it is being learned. `last`:
    last observation, None before the first.

    A departure is at least `factor` times the baseline and `minimum` above it for `duration`; half of that time
    suffices at twice the distance.
    """

    def __init__(self) -> None:
        self.norm: float | None = None
        self.last: float | None = None
        self.is_departed = False
        self._first: list[float] = []
        self._at = 0.0  # time of the last observation
        self._turned_at = 0.0  # time of the first observation across the bound
        self._turned = 0  # consecutive observations across the bound
        self._departed_at = 0.0
        self._lowest = 0.0  # lowest observation since then

    def observe(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        """Record one observation in seconds; returns the change that it causes, if any."""
        before, self._at = self._at, now
        self.last = value
        if self.norm is None:
            self._learn(value)
            return None
        is_high = value >= self.norm * config.factor and value >= self.norm + config.minimum
        if is_high != self.is_departed:
            return self._observe_crossing(value, config, now)
        self._turned = 0
        if self.is_departed:
            return self._observe_departed(value, config, now)
        self.norm += (value - self.norm) * min(1 - exp(-(now - before) / MEMORY_S), MAX_WEIGHT)
        return None

    def _learn(self, value: float) -> None:
        self._first.append(value)
        if len(self._first) == INITIAL_OBSERVATIONS:
            self.norm = median(self._first)
            self._first.clear()

    def _observe_crossing(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        if not self._turned:
            self._turned_at = now
            self._lowest = value
        self._turned += 1
        self._lowest = min(self._lowest, value)
        if self._turned < MIN_OBSERVATIONS or now - self._turned_at < self._needed(config):
            return None
        self._turned = 0
        self.is_departed = not self.is_departed
        self._departed_at = now
        return BaselineChange.DEPARTED if self.is_departed else BaselineChange.RETURNED

    def _needed(self, config: RouteWatchConfig) -> float:
        """Seconds that a change must last: fewer the further the observations depart, as chance then explains them
        less."""
        assert self.norm is not None
        return config.duration * (1.0 if self.is_departed else config.factor * self.norm / self._lowest)

    def _observe_departed(self, value: float, config: RouteWatchConfig, now: float) -> BaselineChange | None:
        self._lowest = min(self._lowest, value)
        if now - self._departed_at < SETTLING_S:
            return None
        self.norm, self.is_departed = self._lowest, False
        return BaselineChange.SETTLED


MOST_EVENTS = 50
"""Number of events that are kept for the status."""

MAX_CONNECTS = 8
"""Maximum number of concurrent connects by the watch."""

NETWORKS = 64
"""Number of networks remembered per name, the most recent ones."""

CONNECT_TIMEOUT_S = 2.0
"""Timeout of a connect by the watch."""


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """Change of a route. `who`: an endpoint id, region or name; `number`: sequence number."""

    number: int
    at: float
    what: str
    who: str
    text: str


class RouteWatch:
    """Watch of all routes. `say`: writes a line to the log; `now`: clock in seconds."""

    def __init__(
        self, config: RouteWatchConfig, now: Callable[[], float], say: Callable[[str], None] = complain
    ) -> None:
        self.config = config
        self.say = say
        self.events: deque[RouteEvent] = deque(maxlen=MOST_EVENTS)
        self.counts: Counter[str] = Counter()
        self.regions_departed: set[str] = set()
        self.connects = 0
        self.failed = 0
        self._now = now
        self._networks: dict[str, dict[str, None]] = {}  # by name, most recent last
        self._routes: dict[NetworkRoute, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def add(self, route: NetworkRoute) -> None:
        """Watch one more route; judges its region again if departed."""
        self._routes[route] = None
        self._changed(route.endpoint.region)

    def remove(self, route: NetworkRoute) -> None:
        """Stop watching a route; judges its region again if departed."""
        self._routes.pop(route, None)
        self._changed(route.endpoint.region)

    def _changed(self, region: str) -> None:
        if region in self.regions_departed:
            self._judge_region(region, self._now())

    def opened(self, route: NetworkRoute, phases: DialTimes, now: float) -> None:
        """Record the connect phases of an opened connection."""
        route.connected_at = now
        if not self.config.enabled:
            return
        who = route.endpoint.id
        has_changed = self._observe(route.trip, phases.trip, "connect", who, now)
        if phases.handshake > 0:
            self._observe(route.tls, phases.handshake, "tls", who, now)
        if has_changed:
            self._judge_region(route.endpoint.region, now)

    def resolved(self, name: str, addresses: tuple[str, ...], now: float) -> None:
        """Record the addresses of a name; raises an event if none is in a network seen before."""
        if not self.config.enabled:
            return
        known = self._networks.setdefault(name, {})
        found = dict.fromkeys(network_of(address) for address in addresses)
        if known and not any(network in known for network in found):
            before = ", ".join(list(known)[-3:])
            self._raise("network", name, f"it leads to {', '.join(found)} now, and led to {before}", now)
        for network in found:
            known.pop(network, None)
            known[network] = None
        while len(known) > NETWORKS:
            del known[next(iter(known))]

    @property
    def under_way(self) -> int:
        """Number of connects by the watch in progress."""
        return len(self._tasks)

    def sweep(self, routes: Iterable[NetworkRoute], now: float, room: int | None = None) -> None:
        """Connect to endpoints without a recent connection, with at most `room` connections; None: unlimited.

        The watch never closes an idle connection to make room.
        """
        every = self.config.interval
        if every is None or self._is_stopped or not self.config.enabled:
            return
        most = MAX_CONNECTS if room is None else min(MAX_CONNECTS, self.under_way + room)
        for route in routes:
            if self.under_way >= most:
                return
            is_due = route.connected_at is None or now - route.connected_at >= every
            if is_due and not route.is_down:
                self._start_connect(route, now)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel the watch's connects and start no more; returns the tasks to wait for."""
        self._is_stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    # --- connects by the watch

    def _start_connect(self, route: NetworkRoute, now: float) -> None:
        route.connected_at = now
        self.connects += 1
        task = asyncio.get_running_loop().create_task(self._connect(route))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, route: NetworkRoute) -> None:
        """Connect TCP only: the round trip characterizes the route, and TLS would cost the worker more."""
        try:
            await dial(WatchConnection, route, CONNECT_TIMEOUT_S)
        except ConnectFailed:
            self.failed += 1

    # --- events

    def _observe(self, baseline: Baseline, seconds: float, what: str, who: str, now: float) -> bool:
        norm = baseline.norm or 0.0
        change = baseline.observe(seconds, self.config, now)
        if change is not None:
            self._raise(f"{what}_{change.value}", who, _told(what, change, seconds, norm), now)
        return change is not None

    def _judge_region(self, region: str, now: float) -> None:
        """Mark a region as departed if all of its endpoints are, and there are several: the common path is then the
        cause."""
        trips = [each.trip for each in self._routes if each.endpoint.region == region]
        known = [trip for trip in trips if trip.norm is not None]
        is_away = len(known) > 1 and all(trip.is_departed for trip in known)
        if is_away and region not in self.regions_departed:
            self.regions_departed.add(region)
            self._raise(
                "region_departed", region, f"connecting takes longer to all {len(known)} endpoints", now
            )
        elif region in self.regions_departed and not any(trip.is_departed for trip in known):
            self.regions_departed.discard(region)
            self._raise("region_returned", region, "connecting takes as long as it did", now)

    def _raise(self, what: str, who: str, text: str, now: float) -> None:
        self.counts[what] += 1
        self.events.append(RouteEvent(sum(self.counts.values()), now, what, who, text))
        self.say(f"watch: {who}: {text}")


class WatchConnection(asyncio.Protocol):
    """Connection of the watch, which sends no request and is closed once it is open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def network_of(address: str) -> str:
    """The /24 or /48 network of an address: the usual size of an assignment, and the smallest that is routed on its
    own."""
    bare = address.partition("%")[0]
    return str(ip_network(f"{bare}/{48 if ip_address(bare).version == 6 else 24}", strict=False))


def _told(what: str, change: BaselineChange, seconds: float, norm: float) -> str:
    subject = "connecting" if what == "connect" else "its TLS handshake"
    now, usual = f"{with_digits(seconds * 1000, 3)} ms", f"{with_digits(norm * 1000, 3)} ms"
    if change is BaselineChange.DEPARTED:
        return f"{subject} takes {now} now, and took {usual}"
    if change is BaselineChange.RETURNED:
        return f"{subject} takes {now}, as usual again"
    return f"{subject} has taken {now} for so long that it is usual now"
