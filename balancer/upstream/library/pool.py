"""Pool of one endpoint whose connections a library opens, ages and counts: here it has an adapter to the library."""

from __future__ import annotations

from balancer.errors import ConnectFailed, UpstreamError
from balancer.tls.contexts import HTTP1
from balancer.upstream.connection_counts import US, ConnectionInfo
from balancer.upstream.http2.pool import MultiplexedPool, Opener
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.request import UpstreamRequest
from balancer.upstream.stream import MultiplexedConnection
from policies.facts import Endpoint


class LibraryPool(MultiplexedPool):
    """Requests to one endpoint by a library."""

    alpn = HTTP1
    carries_rpcs = False
    counts_reuse = False

    def __init__(self, endpoint: Endpoint, pools: PoolContext, opener: Opener, transport: str) -> None:
        super().__init__(endpoint, pools, opener)
        self.transport = transport

    def failed(self, error: UpstreamError) -> UpstreamError:
        """Record the error of a request if it is a failed connect; returns `error`."""
        if isinstance(error, ConnectFailed):
            self.connector.record_failed(error)
            self.route.failed(error)
        return error

    def lease_own(self) -> UpstreamRequest | None:
        return self.lease_quiet()

    def listed(self, most: int) -> list[ConnectionInfo]:
        return []

    def _set_lifetime(self, connection: MultiplexedConnection, elapsed: float) -> None:
        """Do nothing: the library ages its connections."""

    def _is_surplus(self, connection: MultiplexedConnection, now: float) -> bool:
        return False

    def _count_lost(self, connection: MultiplexedConnection, by: str = US) -> None:
        """Do nothing: the library counts its connections."""
