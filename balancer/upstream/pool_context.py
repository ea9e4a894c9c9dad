"""Context of connection pools: what those of a cluster share, and the limit on their total number of connections."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.tls.contexts import ClientTls, UpstreamTls
from balancer.upstream.dial.target import Routes
from policies.facts import Endpoint

if TYPE_CHECKING:
    from balancer.upstream.pool import Pool

MOST_CHECKS = 16
"""Connections that no request gets, at most an eighth: health checks and probes always have theirs. They are short, and
spread over their interval."""


class PoolContext:
    """What connection pools share.

    `settings`: those of the cluster. `limit`: maximum number of connections of the `group`, which are the contexts of
    all clusters that share it; None: unlimited. `now`: clock in seconds; `cached_time`: cached time, that of the last
    sweep. `configs` by endpoint id have its transport, its TLS settings, and whether its connections are reused; one
    without has the native one, the settings of the cluster, and reuses them.
    """

    def __init__(
        self,
        cached_time: float,
        settings: ClusterSettings,
        limit: int | None = None,
        tls: UpstreamTls | None = None,
        *,
        routes: Routes | None = None,
        seed: int | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.cached_time = cached_time
        self.now = now
        self.rng = Random(seed)
        self.settings = settings
        self.limit = limit
        self.tls = tls or UpstreamTls()
        self.routes = routes or Routes()
        self.configs: dict[str, EndpointConfig] = {}
        self.clients: dict[str, Any] = {}  # of libraries, by transport: all endpoints share one
        self.open_connections = 0
        self.is_full = False  # a connection for one more request would take a descriptor that is not there
        self.on_room: Callable[[], None] | None = None  # called when one was closed while `is_short`
        self.is_short = False  # a request waits for a descriptor
        self.by_id: dict[str, Pool] = {}
        self._retired: dict[Pool, None] = {}  # with connections still open
        self.group: list[PoolContext] = [self]

    @property
    def room(self) -> int | None:
        """Number of connections that may still be opened, but for checks; None: unlimited."""
        if self.limit is None:
            return None
        in_use = sum(pools.open_connections + pools.routes.watch.under_way for pools in self.group)
        return max(0, self.limit - min(MOST_CHECKS, self.limit // 8) - in_use)

    def tls_of(self, endpoint: Endpoint, alpn: str) -> ClientTls | None:
        """Return the TLS settings of an endpoint, None if its address is plain http."""
        config = self.configs.get(endpoint.id)
        return self.tls.of(endpoint.address, alpn, None if config is None else config.tls)

    def count_opened(self) -> None:
        """Count a connection that is being opened."""
        self.open_connections += 1
        self._note_full()

    def count_closed(self) -> None:
        """Count a connection that was closed, and report it to those whose requests wait for a descriptor."""
        self.open_connections -= 1
        if self.limit is None:
            return
        self._note_full()
        for pools in self.group:
            if pools.is_short and pools.on_room is not None:
                pools.on_room()

    def _note_full(self) -> None:
        is_full = self.room == 0
        if is_full is not self.is_full:
            for pools in self.group:
                pools.is_full = is_full

    def may_lease(self, pool: Pool) -> bool:
        """Return whether a request may take a connection of `pool` although `is_full`: it shares one, or an idle one
        can be closed for it."""
        is_shared = pool.is_multiplexed and (pool.has_idle or pool.opening > 0)
        return is_shared or any(each.idle for pools in self.group for each in pools.by_id.values())

    def leaves_room(self, number: int) -> bool:
        """Return whether `number` more connections could be opened, for which idle ones may be closed."""
        room = self.room
        return room is None or room >= number or self.free >= number

    @property
    def free(self) -> int:
        """Number of requests that would get a connection now, where there is a limit."""
        return (self.room or 0) + sum(pool.idle for pools in self.group for pool in pools.by_id.values())

    def make_room(self) -> None:
        """At the limit, close the oldest idle connection of the pool that has most of them."""
        if self.room != 0:
            return
        every = (pool for pools in self.group for pool in pools.by_id.values())
        fullest = max(every, key=lambda pool: pool.idle)
        if fullest.idle:
            fullest.close_oldest()
