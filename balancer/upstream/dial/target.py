"""Route to an endpoint: its resolved addresses, best address, TLS session and connect failures, for the next dial.

A route lives as long as its endpoint's pool. Apart from resolving a name, nothing here waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit

from balancer.config.schema.names import NamesConfig, RouteWatchConfig
from balancer.errors import ConnectFailed, WorkerUntrusted
from balancer.tls.resumption import Resumption
from balancer.upstream.dial.names import Names
from balancer.upstream.dial.phases import DialTimes
from balancer.upstream.dial.resolver import is_literal
from balancer.upstream.dial.route_watch import RouteBaselines, RouteWatch
from policies.facts import Endpoint


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
        self.watched = RouteBaselines(endpoint)
        self.now = routes.now
        self._routes = routes

    async def addresses(self) -> tuple[str, ...]:
        """Addresses of the endpoint, from the cache if possible. Raises `LookupFailed`."""
        return self._fixed or await self._routes.names.addresses(self.host)

    def opened(self, address: str, phases: DialTimes) -> None:
        """Record an opened connection: its address and connect phases."""
        self.best = address
        self._routes.watch.opened(self.watched, phases, self.now())

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
        self.watch.add(route.watched)
        if before is not None:
            self._leave(before)

    def drop(self, endpoint_id: str) -> None:
        """Remove the route of an endpoint."""
        self._leave(self.by_id.pop(endpoint_id))

    def _leave(self, route: NetworkRoute) -> None:
        self._hosts[route.host] -= 1
        if not self._hosts[route.host]:
            del self._hosts[route.host]
            self.names.forget(route.host)
        self.watch.remove(route.watched)

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
        await self.watch.close()
