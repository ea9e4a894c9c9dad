"""Which transport an endpoint's requests take, by name.

Rule of this file: a transport's library is loaded when an endpoint first asks for it, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.upstream.multiplexed_pool import SharedPool

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.pools import Pools
    from balancer.upstream.stream import Carrier
    from policies.routing.facts import Endpoint


async def open_http2(pool: SharedPool, tls: ClientTls | None) -> Carrier:
    """A connection that speaks HTTP/2."""
    from balancer.http2.dial import open_session

    return await open_session(pool, tls)


async def open_curl(pool: SharedPool, tls: ClientTls | None) -> Carrier:
    """What of libcurl is for one endpoint."""
    from balancer.upstream.curl import CurlCarrier

    return CurlCarrier(pool, tls)


async def open_aiohttp(pool: SharedPool, tls: ClientTls | None) -> Carrier:
    """What of aiohttp's client is for one endpoint."""
    from balancer.upstream.aiohttp_client import AiohttpCarrier

    return AiohttpCarrier(pool, tls)


OPENERS = {"http2": open_http2, "curl": open_curl, "aiohttp": open_aiohttp}


def pool_of(endpoint: Endpoint, pools: Pools, transport: str) -> SharedPool:
    """A pool for an endpoint whose transport is not the native one."""
    return SharedPool(endpoint, pools, transport, OPENERS[transport])
