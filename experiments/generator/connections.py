"""Connection pool of the load generator for one address: kept alive, leased newest first, opened ahead of need.

As far as foreseeable, no request waits for a handshake, since that wait would be the load generator's own. A connection
is opened whenever fewer than `spare` are idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from experiments.generator.client import GeneratorConnection, GeneratorTls, NotConnected, connect

CONNECT_TIMEOUT = 10.0
"""Connect timeout in seconds. A loopback handshake takes microseconds; with a full backlog it may take longer."""

Ready = Callable[[GeneratorConnection], bool]
"""Takes a connection; returns False if it does not need one any more."""

Refused = Callable[[], None]


class Connections:
    """Pool of all connections to `host`:`port`, at most `most` at a time; None: any number.

    A request that finds as many waits for one of them.
    """

    def __init__(
        self, host: str, port: int, spare: int, tls: GeneratorTls | None = None, most: int | None = None
    ) -> None:
        self._host, self._port, self._spare = host, port, spare
        self._tls = tls
        self._most = most
        self._idle: list[GeneratorConnection] = []
        self._waiting: deque[tuple[Ready, Refused]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._all: set[GeneratorConnection] = set()

    async def open(self, count: int) -> None:
        """Open `count` idle connections before the run. Raises `NotConnected` when one fails; the others stay."""
        opened = await asyncio.gather(
            *(connect(self, self._host, self._port, CONNECT_TIMEOUT, self._tls) for _ in range(count)),
            return_exceptions=True,
        )
        kept = [connection for connection in opened if isinstance(connection, GeneratorConnection)]
        self._all.update(kept)
        self._idle += kept
        for failure in opened:
            if isinstance(failure, BaseException):
                raise failure

    def lease(self, ready: Ready, refused: Refused) -> None:
        """Call `ready` with a connection, at once if one is idle; call `refused` when none can be opened."""
        if self._idle:
            connection = self._idle.pop()
            if len(self._idle) + len(self._opening) < self._spare:
                self._open_one()
            ready(connection)
        else:
            self._waiting.append((ready, refused))
            self._open_one()

    def lease_new(self, ready: Ready, refused: Refused) -> None:
        """Call `ready` with a connection that is opened now, or with the first that becomes free before it is open."""
        self._waiting.appendleft((ready, refused))
        self._open_one()

    def give_back(self, connection: GeneratorConnection) -> None:
        """Return a connection after a request: pass it to a waiter, keep it idle, or close it."""
        if connection.is_reusable:
            self._offer(connection)
        else:
            connection.close()

    def connection_closed(self, connection: GeneratorConnection) -> None:
        """Remove a closed connection from the pool."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
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
            connection = await connect(self, self._host, self._port, CONNECT_TIMEOUT, self._tls)
        self._opening -= {asyncio.current_task()}  # which opens no connection any more
        if connection is not None:
            self._all.add(connection)
            self._offer(connection)
            return
        if self._waiting:
            self._waiting.popleft()[1]()
        if self._waiting and self._most is not None:
            self._open_one()

    def _offer(self, connection: GeneratorConnection) -> None:
        """Pass a connection to the first waiter that still needs one, or keep it idle."""
        while self._waiting:
            if self._waiting.popleft()[0](connection):
                return
        self._idle.append(connection)
