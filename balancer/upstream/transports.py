"""Which transport an endpoint's requests take, by name.

Rule of this file: a transport's library is loaded when an endpoint first asks for it, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.upstream.multiplexed_pool import MultiplexedPool

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.pools import Pools
    from balancer.upstream.stream import MultiplexedConnection
    from policies.routing.facts import Endpoint


async def open_http2(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """A connection that speaks HTTP/2."""
    from balancer.http2.dial import open_session

    return await open_session(pool, tls)


async def open_curl(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """What of libcurl is for one endpoint."""
    from balancer.upstream.curl import CurlConnection

    return CurlConnection(pool, tls)


async def open_aiohttp(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """What of aiohttp's client is for one endpoint."""
    from balancer.upstream.aiohttp_client import AiohttpConnection

    return AiohttpConnection(pool, tls)


OPENERS = {"http2": open_http2, "curl": open_curl, "aiohttp": open_aiohttp}


def pool_of(endpoint: Endpoint, pools: Pools, transport: str) -> MultiplexedPool:
    """A pool for an endpoint whose transport is not the native one."""
    return MultiplexedPool(endpoint, pools, transport, OPENERS[transport])
