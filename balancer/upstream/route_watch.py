"""The routes to the endpoints, watched: what connecting takes, TLS, and the networks that a name leads to.

Rule of this file: every connection that is opened is looked at; where none is for a while, the watch may open one of
its own and close it. What departs from the norm is one event: in the status, counted, and one line for whoever runs the
unit.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from balancer.errors import ConnectFailed
from balancer.log.output import complain
from balancer.upstream.connect_phases import Phases
from balancer.upstream.dial import dial
from balancer.upstream.route_baseline import Baseline, BaselineRules, Change
from policies.routing.facts import Endpoint

if TYPE_CHECKING:
    from balancer.upstream.route import Route

MOST_EVENTS = 50
"""That are kept for the status."""

AT_ONCE = 8
"""Connections of the watch's own under way."""

NETWORKS = 64
"""Networks that are remembered of each name: the last ones that it led to."""


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """How routes are watched. `every`: seconds without a connection after which the watch opens one; None: never.
    `timeout` is its own, in seconds."""

    is_enabled: bool = True
    rules: BaselineRules = field(default_factory=BaselineRules)
    every: float | None = None
    timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something about a route has changed. `who` is an endpoint, a region or a name, `number` tells events apart."""

    number: int
    at: float
    what: str
    who: str
    text: str


class Watched:
    """What the watch knows of one endpoint's route."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.trip = Baseline()
        self.tls = Baseline()
        self.looked_at: float | None = None  # the last connection, whoever opened it

    @property
    def is_departed(self) -> bool:
        """Whether connecting takes longer than it did."""
        return self.trip.is_departed


class RouteWatch:
    """All routes of one unit. `say` tells whoever runs it; `now` is the clock."""

    def __init__(
        self, plan: WatchPlan, now: Callable[[], float], say: Callable[[str], None] = complain
    ) -> None:
        self.plan = plan
        self.say = say
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.counts: Counter[str] = Counter()
        self.regions_departed: set[str] = set()
        self.connects = 0
        self.failed = 0
        self._now = now
        self._networks: dict[str, dict[str, None]] = {}  # by name, the one that was seen last at the end
        self._watched: dict[Watched, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def follow(self, watched: Iterable[Watched]) -> None:
        """These are the routes from now on."""
        self._watched = dict.fromkeys(watched)
        for region in sorted(self.regions_departed):
            self._judge_region(region, self._now())

    def add(self, watched: Watched) -> None:
        """One more route."""
        self._watched[watched] = None
        self._changed(watched.endpoint.region)

    def remove(self, watched: Watched) -> None:
        """One route less."""
        self._watched.pop(watched, None)
        self._changed(watched.endpoint.region)

    def _changed(self, region: str) -> None:
        if region in self.regions_departed:
            self._judge_region(region, self._now())

    def opened(self, watched: Watched, phases: Phases, now: float) -> None:
        """A connection stands, whoever asked for it."""
        watched.looked_at = now
        if not self.plan.is_enabled:
            return
        who = watched.endpoint.id
        has_changed = self._observe(watched.trip, phases.trip, "connect", who, now)
        if phases.handshake > 0:
            self._observe(watched.tls, phases.handshake, "tls", who, now)
        if has_changed:
            self._judge_region(watched.endpoint.region, now)

    def resolved(self, name: str, addresses: tuple[str, ...], now: float) -> None:
        """A name leads there; to no network where it led before is another route."""
        if not self.plan.is_enabled:
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
        """Connections of its own."""
        return len(self._tasks)

    def sweep(self, routes: Iterable[Route], now: float, room: int | None = None) -> None:
        """Call upon endpoints that nobody has connected to for a while, but with no more than `room` connections; None:
        any number. A visit can wait: it takes nobody's place."""
        every = self.plan.every
        if every is None or self._is_stopped or not self.plan.is_enabled:
            return
        most = AT_ONCE if room is None else min(AT_ONCE, self.under_way + room)
        for route in routes:
            if self.under_way >= most:
                return
            watched = route.watched
            if route.is_down:
                continue
            if watched.looked_at is None or now - watched.looked_at >= every:
                self._call_upon(route, now)

    def stop(self) -> list[asyncio.Task[None]]:
        """Call upon nobody any more; returns the tasks to wait for."""
        self._is_stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """Stop, and wait until nobody is being called upon."""
        tasks = self.stop()
        if tasks:
            await asyncio.wait(tasks)

    # --- connections of its own

    def _call_upon(self, route: Route, now: float) -> None:
        route.watched.looked_at = now
        self.connects += 1
        task = asyncio.get_running_loop().create_task(self._connect(route))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, route: Route) -> None:
        """TCP alone: TLS costs the worker more, and the trip tells the route."""
        try:
            visit, _ = await dial(Visit, route.host, route.port, self.plan.timeout, None, route)
        except ConnectFailed:
            self.failed += 1
        else:
            visit.leave()

    # --- what is found

    def _observe(self, baseline: Baseline, seconds: float, what: str, who: str, now: float) -> bool:
        norm = baseline.norm or 0.0
        change = baseline.observe(seconds, self.plan.rules, now)
        if change is not None:
            self._raise(f"{what}_{change.value}", who, _told(what, change, seconds, norm), now)
        return change is not None

    def _judge_region(self, region: str, now: float) -> None:
        """A region departs when all of several endpoints have: then it is the way there and none of them."""
        trips = [each.trip for each in self._watched if each.endpoint.region == region]
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
        self.events.append(Event(sum(self.counts.values()), now, what, who, text))
        self.say(f"watch: {who}: {text}")


class Visit(asyncio.Protocol):
    """A connection that asks for nothing."""

    _transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol."""
        self._transport = transport

    def leave(self) -> None:
        """It has told what it can."""
        if self._transport is not None:
            self._transport.close()


def network_of(address: str) -> str:
    """The /24 or /48 that an address is in: what one network is given, and the least that is routed by itself."""
    bare = address.partition("%")[0]
    return str(ip_network(f"{bare}/{48 if ip_address(bare).version == 6 else 24}", strict=False))


def _told(what: str, change: Change, seconds: float, norm: float) -> str:
    subject = "connecting" if what == "connect" else "its TLS handshake"
    now, usual = f"{seconds * 1000:.3g} ms", f"{norm * 1000:.3g} ms"
    if change is Change.DEPARTED:
        return f"{subject} takes {now} now, and took {usual}"
    if change is Change.RETURNED:
        return f"{subject} takes {now}, as usual again"
    return f"{subject} has taken {now} for so long that it is usual now"
