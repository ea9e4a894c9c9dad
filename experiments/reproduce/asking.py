"""A caller's connection to a unit: one request at a time, awaited.

Rule of this file: a request fails with the connection or by its status, and both are counted alike; the next one goes
on a new connection. Instants are read from the monotonic clock next to the socket.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from balancer.upstream.connection import Response, UpstreamConnection, connect
from experiments.errors import FleetFailedError

CONNECT_TIMEOUT = 150.0
"""Seconds. Who comes behind a full backlog is let in when the kernel tries again, after 1, 3, 7, 15, 31, 63 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`took` seconds from sending to the last byte; `status` 0 where the connection broke. `service`: the seconds that
    the worker says it served."""

    status: int
    took: float
    service: float = 0.0

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 400


class Line:
    """One caller's. Owner of its connection."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._upstream: UpstreamConnection | None = None
        self.opened = 0

    async def ask(self, method: str = "GET", path: str = "/work", body: bytes = b"") -> Answer:
        """One request. Raises FleetFailedError where no connection can be made."""
        upstream = self._upstream
        if upstream is None:
            upstream = self._upstream = await self.open()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if body or method not in ("GET", "HEAD", "DELETE"):
            head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        hearing = Hearing()
        began_at = time.monotonic()
        upstream.send(f"{head}\r\n".encode() + body, hearing, method.encode())
        try:
            ended_at = await hearing.ended
        except asyncio.CancelledError:
            self.close()
            raise
        if not upstream.is_reusable:
            self.close()
        return Answer(hearing.status, ended_at - began_at, hearing.service)

    async def open(self) -> UpstreamConnection:
        """Raises FleetFailedError."""
        self.opened += 1
        try:
            return await connect(self, self._host, self._port, CONNECT_TIMEOUT)
        except Exception as error:  # whatever `connect` raises becomes an error of this room here
            raise FleetFailedError(f"no connection to {self._host}:{self._port}: {error}") from error

    def close(self) -> None:
        """Without ceremony."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()

    # --- ConnectionOwner

    def give_back(self, upstream: UpstreamConnection) -> None:
        """It is ours anyway."""

    def connection_closed(self, upstream: UpstreamConnection) -> None:
        if self._upstream is upstream:
            self._upstream = None


class Hearing:
    """The sink of one response. `ended` gives the instant of its last byte."""

    def __init__(self) -> None:
        self.status = 0
        self.service = 0.0
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def response_whole(self, response: Response, body: bytes) -> None:
        self.response_started(response)
        self.response_ended(b"")

    def response_started(self, response: Response) -> None:
        if response.status >= 200:
            self.status = response.status
            self.service = service_in(response.block)

    def response_ended(self, trailers: bytes) -> None:
        if not self.ended.done():
            self.ended.set_result(time.monotonic())

    def response_failed(self, error: Exception) -> None:
        self.status = 0
        self.response_ended(b"")

    def response_body(self, data: bytes) -> None: ...
    def response_paused(self) -> None: ...
    def upstream_paused(self) -> None: ...
    def upstream_resumed(self) -> None: ...


def service_in(block: bytes) -> float:
    """Seconds that a worker says it has served, 0 where it says nothing."""
    _, found, rest = block.lower().partition(b"\r\nx-worker-service-time:")
    return float(rest.partition(b"\r\n")[0]) if found else 0.0
