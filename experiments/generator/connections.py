"""Connection pool of the load generator for one address: kept alive, leased newest first, opened ahead of need.

As far as foreseeable, no request waits for a handshake, since that wait would be the load generator's own. A connection
is opened whenever fewer than `spare` requests could be sent at once. What is leased is a sender: a connection of
HTTP/1.1, or one of the places on a connection of HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest

from experiments.generator.client import (
    Connection,
    GeneratorConnection,
    GeneratorTls,
    NotConnected,
    Sender,
    open_connection,
)
from experiments.generator.http2 import Http2Connection, Http2Owner

CONNECT_TIMEOUT = 10.0
"""Connect timeout in seconds. A loopback handshake takes microseconds; with a full backlog it may take longer."""

Ready = Callable[[Sender], bool]
"""Takes a sender; returns False if it does not need one any more."""

Refused = Callable[[], None]


class Connections(Http2Owner):
    """Pool of all connections to `host`:`port`, at most `most` at a time; None: any number.

    A request that finds as many waits for one of them.
    """

    http1: type[GeneratorConnection] = GeneratorConnection
    """Connections over HTTP/1.1."""

    def __init__(
        self,
        host: str,
        port: int,
        spare: int,
        tls: GeneratorTls | None = None,
        most: int | None = None,
        is_http2: bool = False,
    ) -> None:
        self._host, self._port, self._spare = host, port, spare
        self._tls = tls
        self._most = most
        self._is_http2 = is_http2
        self._idle: list[Sender] = []
        self._waiting: deque[tuple[Ready, Refused]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._all: set[Connection] = set()

    async def open(self, count: int) -> None:
        """Open `count` idle connections before the run. Raises `NotConnected` when one fails; the others stay."""
        opened = await asyncio.gather(*(self._connect() for _ in range(count)), return_exceptions=True)
        kept = [one for one in opened if isinstance(one, Connection) and one.senders[0].is_reusable]
        self._all.update(kept)
        # Of several connections with several senders, the next request is on another one.
        for turn in zip_longest(*(connection.senders for connection in kept)):
            self._idle += [sender for sender in turn if sender is not None]
        for failure in opened:
            if isinstance(failure, BaseException):
                raise failure

    def lease(self, ready: Ready, refused: Refused) -> None:
        """Call `ready` with a sender, at once if one is idle; call `refused` when no connection can be opened."""
        if self._idle:
            sender = self._idle.pop()
            if len(self._idle) + len(self._opening) < self._spare:
                self._open_one()
            ready(sender)
        else:
            self._waiting.append((ready, refused))
            self._open_one()

    def lease_new(self, ready: Ready, refused: Refused) -> None:
        """Call `ready` with a sender of a connection opened now, or with the first that becomes free before that."""
        self._waiting.appendleft((ready, refused))
        self._open_one()

    def give_back(self, sender: Sender) -> None:
        """Return a sender after a request: pass it to a waiter, keep it idle, or close it."""
        if sender.is_reusable:
            self._offer(sender)
        else:
            sender.close()

    def connection_draining(self, connection: Connection) -> None:
        """Lease no sender of the connection any more."""
        for sender in connection.senders:
            if sender in self._idle:
                self._idle.remove(sender)

    def connection_closed(self, connection: Connection) -> None:
        """Remove a closed connection from the pool."""
        self._all.discard(connection)
        self.connection_draining(connection)
        if self._waiting and self._most is not None:
            self._open_one()  # for a request that waited because there were as many as allowed

    async def close(self) -> None:
        """Close all connections; requests in flight get no callback."""
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._all):
            connection.close()

    def _open_one(self) -> None:
        if self._most is not None and len(self._all) + len(self._opening) >= self._most:
            return
        task = asyncio.get_running_loop().create_task(self._opened())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _opened(self) -> None:
        connection = None
        with suppress(NotConnected):
            connection = await self._connect()
        self._opening -= {asyncio.current_task()}  # which opens no connection any more
        if connection is not None and connection.senders[0].is_reusable:
            self._all.add(connection)
            for sender in connection.senders:
                self._offer(sender)
            return
        if self._waiting:
            self._waiting.popleft()[1]()
        if self._waiting and self._most is not None:
            self._open_one()

    async def _connect(self) -> Connection:
        address = self._host, self._port, CONNECT_TIMEOUT, self._tls
        if self._is_http2:
            return await open_connection(lambda: Http2Connection(self), *address)
        return await open_connection(lambda: self.http1(self), *address)

    def _offer(self, sender: Sender) -> None:
        """Pass a sender to the first waiter that still needs one, or keep it idle."""
        while self._waiting:
            if self._waiting.popleft()[0](sender):
                return
        self._idle.append(sender)
