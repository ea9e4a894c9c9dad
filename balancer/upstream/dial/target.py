"""Route to an endpoint: its resolved addresses, best address, TLS session and connect failures, for the next dial.

A route lives as long as its endpoint's pool. Apart from resolving a name, nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from urllib.parse import urlsplit

from balancer.config.schema.names import NamesConfig, RouteWatchConfig
from balancer.errors import ConnectFailed, WorkerUntrusted
from balancer.tls.resumption import Resumption
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.resolver import LookupFailed, is_literal, lookup_of
from balancer.upstream.dial.route_watch import Baseline, RouteWatch
from policies.facts import Endpoint

MAX_LOOKUPS = 16
"""Maximum number of concurrent lookups; with a thousand names at the start, the others queue."""

OnAnswer = Callable[[str, tuple[str, ...], float], None]
"""Callback for each answer: name, addresses, time in seconds."""


@dataclass(slots=True)
class NameCounts:
    """Totals since the start. Requests for addresses: `fresh` and `stale` were answered from the cache, `waited` waited
    for a lookup, `refused` failed at once because of a cached failure. Lookups: `answered` and `failed`."""

    fresh: int = 0
    stale: int = 0
    waited: int = 0
    refused: int = 0
    answered: int = 0
    failed: int = 0


class CacheState(Enum):
    """State of a cached name when its addresses are requested."""

    FRESH = "fresh"
    STALE = "stale"  # usable, to be refreshed
    FAILED = "failed"  # cached failure, too early for a new lookup
    UNKNOWN = "unknown"  # needs a lookup before use


class CachedName:
    """Cache entry of one name. `hosts`: addresses of the last answer; `fault`: reason of the last lookup's failure,
    None if it succeeded."""

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = ()
        self.fault: str | None = None
        self.answered_at: float | None = None
        self._fresh_until = 0.0
        self._due_at = float("-inf")

    def answered(self, hosts: tuple[str, ...], ttl: float, config: NamesConfig, now: float) -> None:
        """Store an answer with its TTL in seconds."""
        self.hosts, self.fault, self.answered_at = hosts, None, now
        self._fresh_until = self._due_at = now + min(max(ttl, config.min_ttl), config.max_ttl)

    def failed(self, fault: str, config: NamesConfig, now: float) -> None:
        """Store a failed lookup; the addresses of the last answer are kept."""
        self.fault = fault
        self._due_at = now + config.negative_ttl

    def worth(self, config: NamesConfig, now: float) -> CacheState:
        """State of the entry at `now`."""
        if self.hosts and now < self._fresh_until:
            return CacheState.FRESH
        if self.hosts and now < self._fresh_until + config.max_stale:
            return CacheState.STALE
        return CacheState.FAILED if self.fault is not None and not self.is_due(now) else CacheState.UNKNOWN

    def is_due(self, now: float) -> bool:
        """Whether a new lookup should start."""
        return now >= self._due_at

    def age(self, now: float) -> float | None:
        """Seconds since the last answer; None if there was none."""
        return None if self.answered_at is None else now - self.answered_at


class Names:
    """Cache of the names of all endpoints, refreshed in the background, so that no request waits for a name that was
    resolved before. `now`: clock in seconds.

    The sweep starts lookups, at most one at a time per name. A request starts one only for a name that was never
    resolved or whose answer is too old to serve stale; concurrent requests for it share the lookup. A fresh answer is
    used; a stale one is also used while a lookup is in progress or fails (serve-stale, RFC 8767). A failure is cached,
    too, so that a name that does not resolve is not looked up for every request (negative caching, RFC 2308).
    """

    def __init__(
        self, config: NamesConfig, now: Callable[[], float], on_answer: OnAnswer | None = None
    ) -> None:
        self.apply(config)
        self.counts = NameCounts()
        self.known: dict[str, CachedName] = {}
        self._now = now
        self._on_answer = on_answer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MAX_LOOKUPS)

    def apply(self, config: NamesConfig) -> None:
        """Apply a configuration; cached names are kept."""
        self.config, self.look = config, lookup_of(config)

    @property
    def is_looking(self) -> bool:
        """Whether a lookup is in progress."""
        return bool(self._tasks)

    def add(self, host: str) -> None:
        """Add the host of an endpoint."""
        if not is_literal(host):
            self.known.setdefault(host, CachedName())

    def forget(self, host: str) -> None:
        """Drop a host that no endpoint uses any more."""
        self.known.pop(host, None)
        if host in self._tasks:
            self._tasks[host].cancel()

    def sweep(self, now: float) -> None:
        if not self.config.prefetch:
            return
        for host, known in self.known.items():
            if known.is_due(now):
                self._start(host, known)

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Addresses of `host`, from the cache if possible. Raises `LookupFailed`."""
        if is_literal(host):
            return (host,)
        known = self.known.get(host) or CachedName()  # of a removed endpoint: not kept
        worth = known.worth(self.config, self._now())
        if worth is CacheState.FRESH:
            self.counts.fresh += 1
        elif worth is CacheState.STALE:
            self.counts.stale += 1
            if not self.config.prefetch and known.is_due(self._now()):
                self._start(host, known)
        elif worth is CacheState.FAILED:
            self.counts.refused += 1
            raise LookupFailed(known.fault or "")
        else:
            self.counts.waited += 1
            await self._answer(host, known)
        return known.hosts

    async def settled(self) -> None:
        """Wait for all lookups in progress."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Cancel all lookups and wait for them to end."""
        for task in self._tasks.values():
            task.cancel()
        await self.settled()

    async def _answer(self, host: str, known: CachedName) -> None:
        """Wait for a lookup of `host`, starting it if necessary.

        Cancelling the wait does not cancel the lookup, which others may share. The answer is used whatever its TTL.
        Raises `LookupFailed`.
        """
        look = self._start(host, known)
        await asyncio.wait([look])
        if look.cancelled() or look.exception() is not None or known.fault is not None:
            raise LookupFailed(known.fault or f"{host}: the look-up was given up")

    def _start(self, host: str, known: CachedName) -> asyncio.Task[None]:
        task = self._tasks.get(host)
        if task is None:
            task = self._tasks[host] = asyncio.get_running_loop().create_task(self._look(host, known))
            task.add_done_callback(lambda done: self._ended(host, done))
        return task

    def _ended(self, host: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(host) is task:
            del self._tasks[host]

    async def _look(self, host: str, known: CachedName) -> None:
        try:
            async with self._places:
                found = await self.look(host)
        except LookupFailed as error:
            self.counts.failed += 1
            known.failed(str(error), self.config, self._now())
            return
        self.counts.answered += 1
        known.answered(found.hosts, found.ttl, self.config, self._now())
        if self._on_answer is not None:
            self._on_answer(host, found.hosts, self._now())


class NetworkRoute:
    """Route to one endpoint. `best`: address of the last successful connect. `faults`: connect failures by kind.
    `is_down`: the endpoint is in maintenance, so no connection is opened ahead of need or by the route watch."""

    def __init__(self, endpoint: Endpoint, routes: Routes) -> None:
        url = urlsplit(endpoint.address)
        self.endpoint = endpoint
        self.host = url.hostname or url.path  # of a Unix socket
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self._fixed = (self.host,) if is_literal(self.host) else ()
        self.best: str | None = None
        self.is_down = False
        self.faults: Counter[str] = Counter()
        self.resumption = Resumption()
        self.trip = Baseline()  # of its TCP connects
        self.tls = Baseline()  # of its handshakes
        self.connected_at: float | None = None  # time of the last connect, by a pool or the watch
        self.now = routes.now
        self._routes = routes

    async def addresses(self) -> tuple[str, ...]:
        """Addresses of the endpoint, from the cache if possible. Raises `LookupFailed`."""
        return self._fixed or await self._routes.names.addresses(self.host)

    def opened(self, address: str, phases: DialTimes) -> None:
        """Record an opened connection: its address and connect phases."""
        self.best = address
        self._routes.watch.opened(self, phases, self.now())

    def failed(self, error: ConnectFailed) -> None:
        """Record a failed connect by kind; a TLS failure also drops the TLS session."""
        self.faults[error.kind] += 1
        if isinstance(error, WorkerUntrusted):
            self.resumption.forget()


class Routes:
    """Routes to all endpoints by id, with their names and the route watch. `now`: clock in seconds."""

    def __init__(
        self,
        names: NamesConfig | None = None,
        watch: RouteWatchConfig | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.now = now
        self.watch = RouteWatch(watch or RouteWatchConfig(), now)
        self.names = Names(names or NamesConfig(), now, self.watch.resolved)
        self.by_id: dict[str, NetworkRoute] = {}
        self._hosts: Counter[str] = Counter()  # number of routes by host

    def put(self, route: NetworkRoute) -> None:
        """Add a route, replacing the one that its endpoint had."""
        before = self.by_id.get(route.endpoint.id)
        self.by_id[route.endpoint.id] = route
        self._hosts[route.host] += 1
        self.names.add(route.host)
        self.watch.add(route)
        if before is not None:
            self._leave(before)

    def drop(self, endpoint_id: str) -> None:
        self._leave(self.by_id.pop(endpoint_id))

    def _leave(self, route: NetworkRoute) -> None:
        self._hosts[route.host] -= 1
        if not self._hosts[route.host]:
            del self._hosts[route.host]
            self.names.forget(route.host)
        self.watch.remove(route)

    def apply(self, names: NamesConfig, watch: RouteWatchConfig) -> None:
        """Apply a configuration; learned state is kept."""
        self.names.apply(names)
        self.watch.config = watch

    def sweep(self, now: float, room: int | None = None) -> None:
        """Start the name lookups and route-watch connects that are due at `now`. `room`: number of connections that may
        still be opened, None: unlimited."""
        self.names.sweep(now)
        self.watch.sweep(self.by_id.values(), now, room)

    async def close(self) -> None:
        """Stop name lookups and the route watch, and wait for pending ones to end."""
        await self.names.close()
        await asyncio.gather(*self.watch.stop(), return_exceptions=True)
