"""A request of our own on an idle connection, so that the worker goes on keeping it.

Rule of this file: it is nobody's request: it passes neither the router nor the counters of requests. Whatever the
answer says, it was one: only a connection that breaks, or is silent, has failed.
"""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import urlsplit

from balancer.errors import UpstreamError
from balancer.upstream.connection import Response, UpstreamConnection
from policies.routing.facts import Endpoint

BODY_LIMIT: Final = 65_536
"""Bytes of an answer that are read so that the connection can be kept."""


class HeartbeatOwner(Protocol):
    """Who is told how it ended."""

    def heartbeat_ended(self, heartbeat: Heartbeat, *, is_good: bool) -> None: ...


def heartbeat_request(endpoint: Endpoint, method: str, path: str) -> bytes:
    """The request to `endpoint`."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(endpoint.address).netloc}\r\n"
        "User-Agent: steelyard-heartbeat\r\nAccept: */*\r\n\r\n"
    ).encode()


class Heartbeat:
    """The sink of one response, which must have ended by `deadline`, in seconds."""

    def __init__(self, owner: HeartbeatOwner, upstream: UpstreamConnection, deadline: float) -> None:
        self._owner = owner
        self._size = 0
        self._is_over = False
        self.upstream = upstream
        self.deadline = deadline

    def end(self, *, is_good: bool) -> None:
        """It is over, one way or the other; the second time is none."""
        if self._is_over:
            return
        self._is_over = True
        self._owner.heartbeat_ended(self, is_good=is_good)
        if is_good:
            self.upstream.release()
        else:
            self.upstream.close()

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        self.end(is_good=True)

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self.end(is_good=False)

    def response_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > BODY_LIMIT:
            self.end(is_good=False)

    def response_paused(self) -> None:
        """There is more to come, or the deadline."""

    def response_ended(self, trailers: bytes) -> None:
        self.end(is_good=True)

    def response_failed(self, error: UpstreamError) -> None:
        self.end(is_good=False)

    def upstream_paused(self) -> None:
        """A request of some hundred bytes is taken in one go."""

    def upstream_resumed(self) -> None:
        """Nothing waits for it."""
