"""Requests by aiohttp's client: what a balancer made of an HTTP server and an HTTP client would use, to compare with.

Rule of this file: aiohttp keeps the connections and is asked to do as little as it can: no cookies, no redirects, no
decoding, no fields of its own. A request takes a task here, as it does wherever aiohttp's client is used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

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
from balancer.http1.field_list import FieldList, head_of
from balancer.http2.stream import HIGH, LOW
from balancer.upstream.dial import UNRESOLVED, kind_of, untrusted
from balancer.upstream.library_connection import LibraryConnection, address_of

if TYPE_CHECKING:
    from balancer.tls.contexts import ClientTls
    from balancer.upstream.multiplexed_pool import MultiplexedPool
    from balancer.upstream.pools import Pools
    from balancer.upstream.stream import UpstreamStream

ITS_OWN = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Fields that aiohttp adds where they are missing."""


class AiohttpClient:
    """One client session for all endpoints."""

    def __init__(self, limit: int | None, idle: float | None) -> None:
        """`limit`: connections at once, None: as many as are needed; `idle` in seconds, None: none is used again."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_opened)
        trace.on_connection_reuseconn.append(_reused)
        connector = aiohttp.TCPConnector(limit=limit or 0, keepalive_timeout=idle, force_close=idle is None)
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[trace],
            skip_auto_headers=ITS_OWN,
            max_line_size=65_536,
            max_field_size=65_536,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()
        for _ in range(3):  # it has only asked the transports to; they are gone when the loop has turned
            await asyncio.sleep(0)


async def _opened(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.opened += 1


async def _reused(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.reused += 1


def error_of(error: BaseException) -> UpstreamError:
    """aiohttp's error as one of ours."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectTimeout(line)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return untrusted(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return untrusted(error.os_error)
    if isinstance(error, ssl.SSLError):
        return untrusted(error)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return NameUnresolved(UNRESOLVED, line)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectFailed(error.os_error.strerror or line, line, kind_of(error.os_error))
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return MalformedResponse(line)
    cause = error.__cause__
    if isinstance(error, aiohttp.ClientPayloadError) and isinstance(cause, HttpProcessingError):
        return MalformedResponse(" ".join(str(cause).split()))
    return ConnectionBroken(line)


class AiohttpCall:
    """A `Stream`: a task that sends one request and reads its response."""

    def __init__(self, carrier: AiohttpConnection, errand: UpstreamStream, outline: FieldList) -> None:
        self.errand = errand
        self.unsent = 0
        self._carrier = carrier
        self._outline = outline
        self._pending: deque[bytes] = deque()
        self._is_ending = False
        self._is_held = False
        self._more = asyncio.Event()  # of the request's body
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._exchange()
        except asyncio.CancelledError:
            if asyncio.current_task() is self.task and not self.errand.is_closed:
                self.errand.fail(ConnectionBroken("the request was called off"))
            raise
        except MalformedResponse as error:
            self.errand.fail(error)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError, TimeoutError) as error:
            self.errand.fail(self._carrier.pool.library_failed(error_of(error)))

    async def _exchange(self) -> None:
        carrier, outline = self._carrier, self._outline
        async with carrier.client.session.request(
            outline.method.decode(),
            URL(f"{carrier.origin}{outline.target.decode('latin-1')}", encoded=True),
            headers=_headers(outline),
            data=self._body() if outline.length else None,
            allow_redirects=False,
            ssl=carrier.context,
            server_hostname=carrier.server_name,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=carrier.limits.connect_timeout),
            trace_request_ctx=carrier.counts,
        ) as response:
            self.errand.took_head(
                head_of(response.status, response.raw_headers, (response.reason or "").encode("latin-1"))
            )
            await self._read(response)
        self.errand.took_end()
        self.errand.tell()

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        async for piece in response.content.iter_any():
            self.errand.took_body(piece)
            if not response.content.at_eof() or not self._may_read.is_set():
                self.errand.tell()
                await self._may_read.wait()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            while self._pending:
                data = self._pending.popleft()
                self.unsent -= len(data)
                yield data
                self._went_out()
            if self._is_ending:
                return
            self._more.clear()
            await self._more.wait()

    def _went_out(self) -> None:
        if self._is_held and self.unsent <= LOW:
            self._is_held = False
            self.errand.resumed()

    # --- Stream

    def send(self, data: bytes) -> None:
        self._pending.append(data)
        self.unsent += len(data)
        self._more.set()
        if self.unsent > HIGH and not self._is_held:
            self._is_held = True
            self.errand.paused()

    def send_end(self, trailers: bytes) -> None:
        """Trailers are not passed on: aiohttp has no way to send them."""
        self._is_ending = True
        self._more.set()

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def cancel(self) -> None:
        self._pending.clear()
        self.unsent = 0
        if asyncio.current_task() is not self.task:
            self.task.cancel()


def _headers(outline: FieldList) -> CIMultiDict[str]:
    """Host first, then the others; a name that is repeated is spelled as the first time, or aiohttp keeps the last
    alone. Values are UTF-8 to it, so other bytes beyond ASCII are lost."""
    headers: CIMultiDict[str] = CIMultiDict()
    if outline.authority:
        headers.add("Host", outline.authority.decode("latin-1"))
    spelled: dict[bytes, str] = {}
    for name, value in outline.fields:
        text = spelled.setdefault(name.lower(), name.decode("latin-1"))
        headers.add(text, value.decode("utf-8", "replace"))
    return headers


class AiohttpConnection(LibraryConnection):
    """A `MultiplexedConnection`: what of aiohttp's client is for one endpoint."""

    def __init__(self, pool: MultiplexedPool, tls: ClientTls | None) -> None:
        super().__init__(pool)
        self.counts = pool.counts
        self.context: ssl.SSLContext | bool = True if tls is None else tls.context
        self.server_name = None if tls is None else tls.name
        self.origin = address_of(*pool.origin, tls)

    @property
    def client(self) -> AiohttpClient:
        """The one of all endpoints whose connections are kept, or are not."""
        return client_of(self.pool.pools, keeps_alive=self.pool.keeps_alive)

    def begin(self, errand: UpstreamStream, outline: FieldList) -> AiohttpCall:
        return AiohttpCall(self, errand, outline)


def client_of(pools: Pools, *, keeps_alive: bool) -> AiohttpClient:
    """The one of all such endpoints."""
    name = "aiohttp" if keeps_alive else "aiohttp, without reuse"
    client = pools.clients.get(name)
    if client is None:
        idle = pools.limits.idle if keeps_alive else None
        client = pools.clients[name] = AiohttpClient(pools.limit, idle)
    return cast(AiohttpClient, client)
