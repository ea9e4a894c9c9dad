"""Upstream transport over aiohttp's client, as a baseline to compare the native transport with.

aiohttp owns the connections. Its optional work is switched off: cookies, redirects, content decoding and header fields
of its own. Each request runs in a task.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from balancer.errors import (
    ConnectFailed,
    ConnectionBroken,
    ConnectTimeout,
    MalformedResponse,
    NameUnresolved,
    UpstreamError,
)
from balancer.http.h1.field_list import FieldList, head_of
from balancer.tls.contexts import ClientTls
from balancer.upstream.dial.dial import NAME_UNRESOLVED, kind_of, tls_failure
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.library.connection import LibraryConnection, LibraryStream, address_of
from balancer.upstream.library.pool import LibraryPool
from balancer.upstream.pool_context import PoolContext
from balancer.upstream.stream import MultiplexedConnection, UpstreamStream

DEFAULT_FIELDS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Header fields that aiohttp adds to a request that lacks them."""


class AiohttpClient:
    """aiohttp client session shared by all endpoints."""

    def __init__(self, limit: int | None, idle: float | None) -> None:
        """Open the session. `limit`: maximum number of connections, None: unlimited; `idle`: idle timeout in seconds,
        None: no connection is reused."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_opened)
        trace.on_connection_reuseconn.append(_reused)
        connector = aiohttp.TCPConnector(limit=limit or 0, keepalive_timeout=idle, force_close=idle is None)
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[trace],
            skip_auto_headers=DEFAULT_FIELDS,
            max_line_size=65_536,
            max_field_size=65_536,
        )

    async def close(self) -> None:
        """Close the session and all its connections."""
        await self.session.close()
        for _ in range(3):  # the transports close in later iterations of the loop
            await asyncio.sleep(0)


async def _opened(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.opened += 1


async def _reused(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.reused += 1


def error_of(error: BaseException) -> UpstreamError:
    """Convert an aiohttp error to an `UpstreamError`."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectTimeout(line)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return tls_failure(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return tls_failure(error.os_error)
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return NameUnresolved(NAME_UNRESOLVED, line)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectFailed(error.os_error.strerror or line, line, kind_of(error.os_error))
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return MalformedResponse(line)
    cause = error.__cause__
    if isinstance(error, aiohttp.ClientPayloadError) and isinstance(cause, HttpProcessingError):
        return MalformedResponse(" ".join(str(cause).split()))
    return ConnectionBroken(line)


class AiohttpCall(LibraryStream):
    """`Stream` of one request: a task that sends it and reads its response."""

    def __init__(self, connection: AiohttpConnection, stream: UpstreamStream, outline: FieldList) -> None:
        super().__init__(stream)
        self._connection = connection
        self._outline = outline
        self._more = asyncio.Event()  # set when the request's body has grown or ended
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._exchange()
        except asyncio.CancelledError:
            if asyncio.current_task() is self.task and not self.stream.is_closed:
                self.stream.fail(ConnectionBroken("the request was called off"))
            raise
        except MalformedResponse as error:
            self.stream.fail(error)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError, TimeoutError) as error:
            self.stream.fail(self._connection.pool.failed(error_of(error)))

    async def _exchange(self) -> None:
        connection, outline = self._connection, self._outline
        connect = connection.pool.pools.settings.timeouts.connect
        async with connection.client.session.request(
            outline.method.decode(),
            URL(f"{connection.origin}{outline.target.decode('latin-1')}", encoded=True),
            headers=_headers(outline),
            data=self._body() if outline.length else None,
            allow_redirects=False,
            ssl=connection.context,
            server_hostname=connection.server_name,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect),
            trace_request_ctx=connection.counts,
        ) as response:
            self.stream.receive_head(
                head_of(response.status, response.raw_headers, (response.reason or "").encode("latin-1"))
            )
            await self._read(response)
        self.stream.receive_end()
        self.stream.deliver()

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        async for piece in response.content.iter_any():
            self.stream.receive_body(piece)
            if not response.content.at_eof() or not self._may_read.is_set():
                self.stream.deliver()
                await self._may_read.wait()

    async def _body(self) -> AsyncIterator[bytes]:
        if any(name.lower() == b"expect" for name, _ in self._outline.fields):
            self.stream.receive_head(head_of(100, ()))
        while True:
            while self._pending:
                data = self._pending.popleft()
                self.unsent -= len(data)
                yield data
                self._drained()
            if self._is_ending:
                return
            self._more.clear()
            await self._more.wait()

    # --- Stream

    def _feed(self) -> None:
        self._more.set()

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def cancel(self) -> None:
        super().cancel()
        if asyncio.current_task() is not self.task:
            self.task.cancel()


def _headers(outline: FieldList) -> CIMultiDict[str]:
    """Header fields for aiohttp: Host first, then the others.

    A repeated name takes the spelling of its first occurrence; otherwise aiohttp sends only the last one. aiohttp
    encodes values as UTF-8, so other bytes beyond ASCII are lost. Expect is left out: it would wait for a 100 forever.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    if outline.authority:
        headers.add("Host", outline.authority.decode("latin-1"))
    spelled: dict[bytes, str] = {}
    for name, value in outline.fields:
        text = spelled.setdefault(name.lower(), name.decode("latin-1"))
        if text.lower() != "expect":
            headers.add(text, value.decode("utf-8", "replace"))
    return headers


class AiohttpConnection(LibraryConnection):
    """`MultiplexedConnection` that represents aiohttp's client for one endpoint."""

    def __init__(self, pool: LibraryPool, tls: ClientTls | None) -> None:
        super().__init__(pool)
        self.counts = pool.counts
        self.context: ssl.SSLContext | bool = True if tls is None else tls.context
        self.server_name = None if tls is None else tls.name
        self.origin = address_of(*pool.origin, tls)

    @property
    def client(self) -> AiohttpClient:
        """Shared client session, with or without connection reuse as the pool is configured."""
        return client_of(self.pool.pools, keeps_alive=self.pool.keeps_alive)

    def begin(self, stream: UpstreamStream, outline: FieldList) -> AiohttpCall:
        return AiohttpCall(self, stream, outline)


def client_of(pools: PoolContext, *, keeps_alive: bool) -> AiohttpClient:
    """Return the client session shared by all endpoints; create it on first use."""
    name = "aiohttp" if keeps_alive else "aiohttp, without reuse"
    client: AiohttpClient | None = pools.clients.get(name)
    if client is None:
        idle = pools.settings.pool.idle_timeout if keeps_alive else None
        client = pools.clients[name] = AiohttpClient(pools.limit, idle)
    return client


async def open_client(pool: MultiplexedPool, tls: ClientTls | None) -> MultiplexedConnection:
    """Return what represents aiohttp's client for the endpoint of a `LibraryPool`."""
    return AiohttpConnection(cast(LibraryPool, pool), tls)
