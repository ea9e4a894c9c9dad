"""Check for HTTP/2 support with one request over the HTTP/2 transport of the data path; every failure is a finding."""

from __future__ import annotations

import asyncio
from time import monotonic

from balancer.config.schema.pool_limits import PoolLimits
from balancer.errors import ConnectFailed
from balancer.tls.contexts import UpstreamTls
from balancer.tools.probe.connection import probe_request
from balancer.tools.probe.findings import Http2Findings
from balancer.tools.probe.target import ProbeTarget
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.pools import Pools

ANY_NUMBER = 1 << 31
"""Stream limit from which on it counts as unlimited (RFC 9113 § 6.5.2)."""


async def check_http2(target: ProbeTarget, tls: UpstreamTls, method: str, timeout: float) -> Http2Findings:
    """Send one request in HTTP/2: over https by ALPN, over http with prior knowledge (RFC 9113 § 3)."""
    pools = Pools(monotonic(), PoolLimits(connect_timeout=timeout), tls=tls)
    pools.transports = {target.name: "http2"}
    pools.replace([target.endpoint])
    pool = pools.by_id[target.name]
    assert isinstance(pool, MultiplexedPool)
    request, result = probe_request(target, method)
    request.lease(pool, needs_new=True)
    try:
        async with asyncio.timeout(timeout):
            error = (await result).error
    except TimeoutError:
        return Http2Findings(False, problem=f"no whole response within {timeout:g} s")
    finally:
        request.cancel()
        await pools.close()
    if error is not None:
        return Http2Findings(False, problem=error.inside if isinstance(error, ConnectFailed) else str(error))
    return Http2Findings(True, pool.stream_limit if 0 < pool.stream_limit < ANY_NUMBER else None)
