"""The ways to the endpoints: what a connection begins with, and what each leaves for the next one.

Rule of this file: nothing here waits but for a name, and nothing fails. A route belongs to one endpoint's pool and goes
with it, and all that was learned of it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

from balancer.errors import ConnectFailed, WorkerUntrusted
from balancer.tls.resumption import Resumption
from balancer.upstream.connect_phases import Phases
from balancer.upstream.lookup import is_literal
from balancer.upstream.names import Names, NamesPlan
from balancer.upstream.route_watch import RouteWatch, Watched, WatchPlan
from policies.routing.facts import Endpoint


@dataclass(frozen=True, slots=True)
class RoutesPlan:
    """What routes go by."""

    names: NamesPlan = field(default_factory=NamesPlan)
    watch: WatchPlan = field(default_factory=WatchPlan)


class Route:
    """The way to one endpoint. `best` is the address that answered last, `faults` count by kind what became of
    connections that could not be made. `is_down`: the operator wants nothing of it, so nobody connects unasked."""

    def __init__(self, endpoint: Endpoint, routes: Routes) -> None:
        url = urlsplit(endpoint.address)
        self.endpoint = endpoint
        self.host = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self._fixed = (self.host,) if is_literal(self.host) else ()
        self.best: str | None = None
        self.is_down = False
        self.faults: Counter[str] = Counter()
        self.resumption = Resumption()
        self.watched = Watched(endpoint)
        self.now = routes.now
        self._routes = routes

    async def addresses(self) -> tuple[str, ...]:
        """Where the endpoint is, at once if that is known. Raises `LookupFailed`."""
        return self._fixed or await self._routes.names.addresses(self.host)

    def opened(self, address: str, phases: Phases) -> None:
        """A connection stands."""
        self.best = address
        self._routes.watch.opened(self.watched, phases, self.now())

    def failed(self, error: ConnectFailed) -> None:
        """None could be made."""
        self.faults[error.kind] += 1
        if isinstance(error, WorkerUntrusted):
            self.resumption.forget()


class Routes:
    """All routes of one unit, the names that they need and who watches them. `now` is the clock."""

    def __init__(self, plan: RoutesPlan | None = None, now: Callable[[], float] = monotonic) -> None:
        plan = plan or RoutesPlan()
        self.now = now
        self.names = Names(plan.names, now, self._heard)
        self.watch = RouteWatch(plan.watch, now)
        self.by_id: dict[str, Route] = {}
        self._hosts: Counter[str] = Counter()  # of how many routes each is

    def follow(self, routes: Iterable[Route]) -> None:
        """These are the routes from now on."""
        self.by_id = {route.endpoint.id: route for route in routes}
        self._hosts = Counter(route.host for route in self.by_id.values())
        self.names.follow(route.host for route in self.by_id.values())
        self.watch.follow(route.watched for route in self.by_id.values())

    def put(self, route: Route) -> None:
        """Add this route, instead of the one that its endpoint had."""
        before = self.by_id.get(route.endpoint.id)
        self.by_id[route.endpoint.id] = route
        self._hosts[route.host] += 1
        self.names.add(route.host)
        self.watch.add(route.watched)
        if before is not None:
            self._leave(before)

    def drop(self, endpoint_id: str) -> None:
        """Remove the route of that endpoint."""
        self._leave(self.by_id.pop(endpoint_id))

    def _leave(self, route: Route) -> None:
        self._hosts[route.host] -= 1
        if not self._hosts[route.host]:
            del self._hosts[route.host]
            self.names.forget(route.host)
        self.watch.remove(route.watched)

    def use(self, plan: RoutesPlan) -> None:
        """Go by this plan from now on; what is known stays."""
        self.names.plan, self.watch.plan = plan.names, plan.watch

    def sweep(self, now: float, room: int | None = None) -> None:
        """Look up and call upon whatever is due. `now` is the sweep's, `room` for how many connections, None: any
        number."""
        self.names.sweep(now)
        self.watch.sweep(self.by_id.values(), now, room)

    async def close(self) -> None:
        """Nothing more is looked up or called upon."""
        await self.names.close()
        await self.watch.close()

    def _heard(self, host: str, addresses: tuple[str, ...], now: float) -> None:
        self.watch.resolved(host, addresses, now)
