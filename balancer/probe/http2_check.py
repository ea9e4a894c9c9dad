"""Check for HTTP/2 support with one request over the HTTP/2 transport of the data path; every failure is a finding."""

from __future__ import annotations

import asyncio
from time import monotonic

from balancer.config.pool_limits import PoolLimits
from balancer.errors import ConnectFailed, UpstreamError
from balancer.probe.connection import ResponseReader
from balancer.probe.findings import Http2Findings
from balancer.probe.target import Target
from balancer.tls.contexts import UpstreamTls
from balancer.upstream.multiplexed_pool import MultiplexedPool
from balancer.upstream.pools import Pools
from balancer.upstream.request import UpstreamRequest

ANY_NUMBER = 1 << 31
"""Stream limit from which on it counts as unlimited (RFC 9113 § 6.5.2)."""


class RequestWaiter:
    """`LeaseWaiter` that sends its request as soon as it is connected.

    The connection may close a moment later, and only the owner of a request on it is notified.
    """

    def __init__(self, target: Target, method: str) -> None:
        self.hearing = ResponseReader()
        self._target = target
        self._method = method
        self._place: UpstreamRequest | None = None

    def connected(self, upstream: UpstreamRequest) -> None:
        self._place = upstream
        upstream.send(self._target.head(self._method), self.hearing, self._method.encode())

    def connect_failed(self, error: ConnectFailed) -> None:
        self.hearing.response_failed(error)

    def release(self) -> None:
        """Close the connection, if there is one."""
        if self._place is not None:
            self._place.close()


async def check_http2(target: Target, tls: UpstreamTls, method: str, timeout: float) -> Http2Findings:
    """Send one request in HTTP/2: over https by ALPN, over http with prior knowledge (RFC 9113 § 3)."""
    pools = Pools(monotonic(), PoolLimits(connect_timeout=timeout), tls=tls)
    pools.transports = {target.name: "http2"}
    pools.replace([target.endpoint])
    pool = pools.by_id[target.name]
    assert isinstance(pool, MultiplexedPool)
    wanted = RequestWaiter(target, method)
    pool.wait(wanted)
    try:
        async with asyncio.timeout(timeout):
            await wanted.hearing.over
    except TimeoutError:
        return Http2Findings(False, problem=f"no whole response within {timeout:g} s")
    except ConnectFailed as error:
        return Http2Findings(False, problem=error.inside)
    except UpstreamError as error:
        return Http2Findings(False, problem=str(error))
    finally:
        wanted.release()
        await pools.close()
    return Http2Findings(True, pool.stream_limit if 0 < pool.stream_limit < ANY_NUMBER else None)
