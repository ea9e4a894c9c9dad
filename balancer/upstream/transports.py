"""Upstream transports by name, except for the native one. A transport's library is imported on first use."""

from __future__ import annotations

from typing import cast

from balancer.tls.contexts import ClientTls
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.stream import MultiplexedConnection
from policies.facts import Endpoint


async def open_http2(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Open an HTTP/2 connection, by ALPN or prior knowledge."""
    from balancer.upstream.http2.dial import open_session

    return await open_session(pool, tls)


async def open_curl(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Return the adapter of libcurl for one endpoint."""
    from balancer.upstream.library.curl import CurlConnection

    return CurlConnection(cast("LibraryPool", pool), tls)


async def open_aiohttp(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Return the adapter of aiohttp's client for one endpoint."""
    from balancer.upstream.library.aiohttp_client import AiohttpConnection

    return AiohttpConnection(cast("LibraryPool", pool), tls)


LIBRARIES = {"curl": open_curl, "aiohttp": open_aiohttp}


def pool_of(endpoint: Endpoint, pools: PoolContext, transport: str) -> MultiplexedPool:
    """Create the pool of an endpoint with a transport other than the native one."""
    opener = LIBRARIES.get(transport)
    if opener is None:
        return MultiplexedPool(endpoint, pools, open_http2)
    from balancer.upstream.library.pool import LibraryPool

    return LibraryPool(endpoint, pools, opener, transport)
