"""Heartbeat: a request on an idle connection that resets the worker's idle timeout.

It bypasses the router and the request counters. Any complete response counts as success, whatever its status; only a
broken connection, a missed deadline, a 101 or a body over `BODY_LIMIT` is a failure.
"""

from __future__ import annotations

from typing import Final, Protocol
from urllib.parse import urlsplit

from balancer.errors import UpstreamError
from balancer.upstream.connection import Response, UpstreamConnection
from policies.facts import Endpoint

BODY_LIMIT: Final = 65_536
"""Bytes of a response that are read so that the connection can be kept."""


class HeartbeatOwner(Protocol):
    """Receiver of a heartbeat's result; `Preconnect` implements it."""

    def heartbeat_ended(self, heartbeat: Heartbeat, *, is_good: bool) -> None: ...


def heartbeat_request(endpoint: Endpoint, method: str, path: str) -> bytes:
    """Heartbeat request to `endpoint`, as bytes of HTTP/1.1."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(endpoint.address).netloc}\r\n"
        "User-Agent: steelyard-heartbeat\r\nAccept: */*\r\n\r\n"
    ).encode()


class Heartbeat:
    """Response sink of one heartbeat, which must end by `deadline`, in seconds."""

    def __init__(self, owner: HeartbeatOwner, upstream: UpstreamConnection, deadline: float) -> None:
        self._owner = owner
        self._size = 0
        self._is_over = False
        self.upstream = upstream
        self.deadline = deadline

    def end(self, *, is_good: bool) -> None:
        """End the heartbeat: release the connection on success, else close it. Further calls do nothing."""
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
        """Do nothing: more of the response, or the deadline, will follow."""

    def response_ended(self, trailers: bytes) -> None:
        self.end(is_good=True)

    def response_failed(self, error: UpstreamError) -> None:
        self.end(is_good=False)

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is written at once."""

    def upstream_resumed(self) -> None:
        """Do nothing: the request has no body to resume."""
