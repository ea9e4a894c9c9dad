"""Connection pool of the load generator for one address: kept alive, leased newest first, opened ahead of need.

As far as foreseeable, no request waits for a handshake, since that wait would be the load generator's own. A connection
is opened whenever fewer than `spare` are idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from balancer.upstream.connection import ConnectionOwner, Response, UpstreamConnection, connect
from experiments.errors import FleetFailedError

CONNECT_TIMEOUT = 10.0
"""Connect timeout in seconds. A loopback handshake takes microseconds; with a full backlog it may take longer."""

Ready = Callable[[UpstreamConnection], None]
Refused = Callable[[], None]


async def open_connection(owner: ConnectionOwner, host: str, port: int, timeout: float) -> UpstreamConnection:
    """Open a connection. Raises `FleetFailedError` for every failure."""
    try:
        return await connect(owner, host, port, timeout)
    except Exception as error:  # whatever `connect` raises
        raise FleetFailedError(f"no connection to {host}:{port}: {error}") from error


class BodyIgnored:
    """Base of the receivers of a response: ignores its body and back-pressure."""

    __slots__ = ()

    def response_whole(self, response: Response, body: bytes) -> None:
        self.response_started(response)
        self.response_ended(b"")

    def response_started(self, response: Response) -> None: ...
    def response_ended(self, trailers: bytes) -> None: ...
    def response_body(self, data: bytes) -> None: ...
    def response_paused(self) -> None: ...
    def upstream_paused(self) -> None: ...
    def upstream_resumed(self) -> None: ...


class Connections:
    """Pool of all connections to `host`:`port`."""

    def __init__(self, host: str, port: int, spare: int) -> None:
        self._host, self._port, self._spare = host, port, spare
        self._idle: list[UpstreamConnection] = []
        self._waiting: deque[tuple[Ready, Refused]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._all: set[UpstreamConnection] = set()

    async def open(self, count: int) -> None:
        """Open `count` idle connections before the run. Raises `FleetFailedError` when one fails."""
        opened = await asyncio.gather(
            *(open_connection(self, self._host, self._port, CONNECT_TIMEOUT) for _ in range(count))
        )
        self._all.update(opened)
        self._idle += opened

    def lease(self, ready: Ready, refused: Refused) -> None:
        """Call `ready` with a connection, at once if one is idle; call `refused` when none can be opened."""
        if self._idle:
            upstream = self._idle.pop()
            if len(self._idle) + len(self._opening) < self._spare:
                self._open_one()
            ready(upstream)
        else:
            self._waiting.append((ready, refused))
            self._open_one()

    def give_back(self, upstream: UpstreamConnection) -> None:
        """Return a connection after a request: pass it to a waiter, keep it idle, or close it."""
        if not upstream.is_reusable:
            upstream.close()
        elif self._waiting:
            self._waiting.popleft()[0](upstream)
        else:
            self._idle.append(upstream)

    def connection_closed(self, upstream: UpstreamConnection) -> None:
        """Remove a closed connection from the pool."""
        self._all.discard(upstream)
        if upstream in self._idle:
            self._idle.remove(upstream)

    async def close(self) -> None:
        """Close all connections; requests in flight get no callback."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for upstream in list(self._all):
            upstream.close()

    def _open_one(self) -> None:
        task = asyncio.get_running_loop().create_task(self._opened())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _opened(self) -> None:
        try:
            upstream = await open_connection(self, self._host, self._port, CONNECT_TIMEOUT)
        except FleetFailedError:
            if self._waiting:
                self._waiting.popleft()[1]()
            return
        self._all.add(upstream)
        if self._waiting:
            self._waiting.popleft()[0](upstream)
        else:
            self._idle.append(upstream)
