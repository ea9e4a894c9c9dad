"""Lifecycle of a worker: listen, detect the protocol, serve, drain.

async with Worker(settings) as worker:
    print(worker.url)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol, Self
from weakref import WeakSet

from aiohttp import web

from workers.alarm import DeadlineTimer
from workers.app import WorkerApp
from workers.connection_closing import reset
from workers.errors import CannotListen
from workers.fault_interface import Control
from workers.faults import Faults, Switchboard
from workers.http2 import PREFACE, WorkerHttp2Connection
from workers.link import Link
from workers.settings import Settings
from workers.tls import TlsConnection, contexts_of

ProtocolFactory = Callable[[], asyncio.Protocol]


class ProtocolDetection:
    """Factory of the protocols between the link and the worker's application, one per worker: TLS, and the version of
    HTTP by the first bytes. A layer that is not configured is not present. Raises CannotCertify.

        link ──▶ TlsConnection ──▶ FirstBytes ──▶ HTTP/1.1, aiohttp's
                                             └──▶ WorkerHttp2Connection ──▶ a WorkerStream per request ──▶ aiohttp's
    """

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


BACKLOG = 2048
"""Listen backlog: connections that the kernel keeps while the worker is busy; a thousand may arrive at once."""


class App(Protocol):
    """What a worker serves."""

    control: Control
    is_draining: bool

    def application(self) -> web.Application:
        """Return the aiohttp application."""


class Worker:
    """A worker, as an async context manager. Each instance has its own timer, link and application, and with it slots
    and generators.
    """

    def __init__(
        self,
        settings: Settings,
        make_app: Callable[[Settings, DeadlineTimer, Switchboard], App] = WorkerApp,
    ) -> None:
        self.settings = settings
        self._make_app = make_app
        self._port = settings.port
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """URL of the worker, without a trailing slash."""
        return f"{self._front.scheme}://{self.settings.host}:{self._port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen and serve. Raises CannotListen, CannotCertify."""
        self._front = ProtocolDetection(self.settings)
        loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(loop)
        self._link = Link(self._timer, self.settings.round_trip)
        self.switchboard = Switchboard(loop, Random(f"{self.settings.seed}:faults"))
        self.switchboard.subscribe(self._link.apply)
        self.app = self._make_app(self.settings, self._timer, self.switchboard)
        self._runner = web.AppRunner(
            self.app.application(),
            access_log=None,
            keepalive_timeout=self.settings.keep_alive,
            shutdown_timeout=self.settings.grace,
            handler_cancellation=True,  # a client that disconnects must not leave a hanging request behind
        )
        await self._runner.setup()
        if self.settings.starts_down:
            self.switchboard.put(Faults(down=True))
        else:
            await self._start_listening()
        self._door = loop.create_task(self._watch_listener())

    async def stop(self) -> None:
        """Stop listening, finish what is in flight within `grace`, and let the last bytes cross the link."""
        self._door.cancel()
        self.app.is_draining = True
        self.switchboard.heal()  # a hanging request would use up the grace period
        self._front.leave()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        await self._link.drain()
        self._timer.close()

    async def _watch_listener(self) -> None:
        """Close the listening socket while the fault `down` is active, and open it again afterwards."""
        while True:
            if self.switchboard.current.down and self._listener is not None:
                self._stop_listening(self._listener)
            elif not self.switchboard.current.down and self._listener is None:
                await self._listen()
            else:
                await self.switchboard.changed()

    async def _start_listening(self) -> None:
        """Start listening for the first time. Raises CannotListen, after all resources are freed."""
        try:
            await self._listen()
        except CannotListen:
            await self._runner.cleanup()
            self._timer.close()
            raise

    async def _listen(self) -> None:
        """Listen. Raises CannotListen; after port 0, the port that the kernel chose is kept."""
        host, server = self.settings.host, self._runner.server
        assert server is not None
        factory = self._link.before(self._front.before(server))
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(factory, host, self._port, backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            raise CannotListen(host, self._port, _reason(error)) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    def _stop_listening(self, listener: asyncio.Server) -> None:
        listener.close()
        self._listener = None
        self._front.reset()
        server = self._runner.server
        for connection in server.connections if server else ():
            if connection.transport not in self.app.control.peers:
                reset(connection.transport)


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) and number > 0 else str(error)
