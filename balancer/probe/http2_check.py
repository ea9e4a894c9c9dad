"""Whether a server speaks HTTP/2: one request by the unit's own transport, which is what would carry the others.

Rule of this file: nothing fails here; why it is not spoken is a finding.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from balancer.errors import ConnectFailed, UpstreamError
from balancer.probe.connection import Hearing
from balancer.probe.findings import Http2Findings
from balancer.probe.target import Target
from balancer.tls.contexts import UpstreamTls
from balancer.upstream.connection import UpstreamConnection
from balancer.upstream.multiplexed_pool import MultiplexedPool
from balancer.upstream.pool_limits import PoolLimits
from balancer.upstream.pools import Pools

ANY_NUMBER = 1 << 31
"""Streams from which on nobody has stated a number (RFC 9113 § 6.5.2)."""


class Wanted:
    """A `LeaseWaiter` that sends its request as soon as it has a connection: the connection may be gone a moment later,
    and only an owner of a request on it is notified."""

    def __init__(self, target: Target, method: str) -> None:
        self.hearing = Hearing()
        self._target = target
        self._method = method
        self._place: UpstreamConnection | None = None

    def connected(self, upstream: UpstreamConnection) -> None:
        self._place = upstream
        upstream.send(self._target.head(self._method), self.hearing, self._method.encode())

    def connect_failed(self, error: ConnectFailed) -> None:
        self.hearing.response_failed(error)

    def release(self) -> None:
        """It is over, whatever it was."""
        if self._place is not None:
            self._place.close()


async def asked_in_http2(target: Target, tls: UpstreamTls, method: str, timeout: float) -> Http2Findings:
    """Over https by ALPN, over http with prior knowledge (RFC 9113 § 3)."""
    pools = Pools(monotonic(), PoolLimits(connect_timeout=timeout), tls=tls)
    pools.transports = {target.name: "http2"}
    pools.replace([target.endpoint])
    pool = pools.by_id[target.name]
    assert isinstance(pool, MultiplexedPool)
    wanted = Wanted(target, method)
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
