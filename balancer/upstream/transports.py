"""Upstream transports by name, except for the native one. A transport's library is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from balancer.tls.contexts import ClientTls
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.stream import MultiplexedConnection
from policies.facts import Endpoint

Adapter = Callable[[LibraryPool, ClientTls | None], MultiplexedConnection]
"""Makes the connection that stands for a library."""


def pool_of(endpoint: Endpoint, pools: PoolContext, transport: str) -> MultiplexedPool:
    """Create the pool of an endpoint with a transport other than the native one."""
    if transport == "curl":
        from balancer.upstream.library.curl import CurlConnection

        return LibraryPool(endpoint, pools, partial(_opened, CurlConnection), transport)
    if transport == "aiohttp":
        from balancer.upstream.library.aiohttp_client import AiohttpConnection

        return LibraryPool(endpoint, pools, partial(_opened, AiohttpConnection), transport)
    from balancer.upstream.http2.connection import open_session

    return MultiplexedPool(endpoint, pools, open_session)


async def _opened(adapter: Adapter, pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Return the adapter of a library for one endpoint."""
    return adapter(cast(LibraryPool, pool), tls)
