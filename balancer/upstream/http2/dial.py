"""Open an HTTP/2 upstream connection; over TLS, ALPN must agree on h2.

Every failure is a `ConnectFailed`.
"""

from __future__ import annotations

from balancer.errors import WorkerUntrusted
from balancer.tls.contexts import ClientTls
from balancer.upstream.connection_info import local_address
from balancer.upstream.dial.dial import dial
from balancer.upstream.http2.connection import Http2Session
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.stream import ConnectionRecord


async def open_session(pool: MultiplexedPool, tls: ClientTls | None) -> Http2Session:
    """Open a connection. Raises `ConnectFailed`, `ConnectTimeout`, or `WorkerUntrusted` if ALPN selects another
    protocol."""
    host, port = pool.origin
    scheme, timeout = b"http" if tls is None else b"https", pool.pools.limits.connect_timeout
    session, phases = await dial(lambda: Http2Session(pool, scheme), host, port, timeout, tls, pool.route)
    if session.agreed != "h2":
        session.transport.abort()
        raise WorkerUntrusted(
            "the worker does not offer HTTP/2", f"ALPN: h2 was offered, the worker took {session.agreed}"
        )
    session.life = ConnectionRecord(phases, local_address(session.transport))
    return session
