"""Protocols between the link and the worker's application: TLS, and HTTP version detection from the first bytes.

A layer that is not configured is not present. A worker of plain HTTP/1.1 has the application's own protocol.

    link ──▶ TlsConnection ──▶ FirstBytes ──▶ HTTP/1.1, aiohttp's
                                         └──▶ Http2Connection ──▶ a Stream for each request ──▶ aiohttp's
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from weakref import WeakSet

from workers.http2 import PREFACE, WorkerHttp2Connection
from workers.security import contexts_of
from workers.settings import Settings
from workers.tls import TlsConnection

ProtocolFactory = Callable[[], asyncio.Protocol]


class ProtocolDetection:
    """Factory of the protocol layers, one per worker. Raises CannotCertify."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._contexts = contexts_of(settings)
        self._rng = Random(f"{settings.seed}:close")
        self._connections: WeakSet[WorkerHttp2Connection] = WeakSet()

    @property
    def scheme(self) -> str:
        return "http" if self._contexts is None else "https"

    def before(self, serve: ProtocolFactory) -> ProtocolFactory:
        """Return a factory that puts the configured layers before the protocols that `serve` makes."""
        spoken = serve
        if self._settings.http == "2":
            spoken = partial(FirstBytes, serve, partial(self._http2, serve), self._settings.keep_alive)
        contexts = self._contexts
        return spoken if contexts is None else lambda: TlsConnection(contexts, spoken())

    def leave(self) -> None:
        """Close all HTTP/2 connections gracefully: send GOAWAY, and close when active streams are done."""
        for connection in list(self._connections):
            connection.leave()

    def reset(self) -> None:
        """Reset all HTTP/2 connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def _http2(self, serve: ProtocolFactory) -> WorkerHttp2Connection:
        connection = WorkerHttp2Connection(serve, self._settings, self._rng)
        self._connections.add(connection)
        return connection


class FirstBytes(asyncio.Protocol):
    """Detects HTTP/2 by its preface (RFC 9113 § 3.4), else HTTP/1.1.

    A silent client is closed after `patience` seconds.
    """

    def __init__(self, http1: ProtocolFactory, http2: ProtocolFactory, patience: float) -> None:
        self._http1 = http1
        self._http2 = http2
        self._patience = patience
        self._first = b""
        self._protocol: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._giving_up = asyncio.get_running_loop().call_later(self._patience, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.data_received(data)
            return
        self._first += data
        if len(self._first) >= len(PREFACE) or not PREFACE.startswith(self._first):
            self._giving_up.cancel()
            self._protocol = (self._http2 if self._first.startswith(PREFACE) else self._http1)()
            self._protocol.connection_made(self._transport)
            self._protocol.data_received(self._first)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._protocol is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._giving_up.cancel()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()
