"""Back-pressure and abort of a client, common to its HTTP/1.1 connection and to each of its HTTP/2 streams.

The connections are in `downstream/`; an exchange uses a `Responder`, which a connection in HTTP/1.1 is itself.
Reading may be paused for several reasons at a time; it resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from balancer.clients.client_connection import HELD_BY_BODY
from balancer.clients.client_usage import ClientUsage
from balancer.cluster.cluster import Cluster
from balancer.errors import CLIENT_LEFT, ConnectionCut
from balancer.exchange.reset import reset
from balancer.http.h1.client import Client


class ClientSide(asyncio.Protocol):
    """Base of connections and streams: back-pressure and abort. It is a class and not a `typing.Protocol`, because
    mypyc compiles calls of its methods to calls through a table."""

    __slots__ = (
        "_cluster",
        "_process",
        "client",
        "cut_by",
        "idle_since",
        "is_held",
        "is_write_paused",
        "transport",
        "usage",
    )

    client: Client
    usage: ClientUsage
    """Record of the client, which all its connections share."""

    transport: asyncio.Transport

    def __init__(self, cluster: Cluster, now: float) -> None:
        self._cluster = cluster
        self._process = cluster.process
        self.is_held = 0  # the reasons why reading is paused
        self.is_write_paused = False  # the transport's write buffer is above its high-water mark
        self.idle_since = now  # the last instant at which something was received or a response ended
        self.cut_by: ConnectionCut = CLIENT_LEFT

    @abstractmethod
    def check(self, now: float) -> None:
        """Enforce the timeouts of the client and of its exchange; `now` is the cached time."""

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def hold(self, reason: int = HELD_BY_BODY) -> None:
        """Pause reading, and record `reason` until `unhold` removes it."""
        if not self.is_held and not self.transport.is_closing():
            self.transport.pause_reading()
        self.is_held |= reason

    def unhold(self, reason: int = HELD_BY_BODY) -> None:
        """Remove `reason`; reading resumes if it was the last."""
        was_held, self.is_held = self.is_held, self.is_held & ~reason
        if was_held and not self.is_held and not self.transport.is_closing():
            self.idle_since = self._cluster.now()  # while it was held, it could send nothing
            self.transport.resume_reading()

    def abort(self, error: ConnectionCut | None = None) -> None:
        """Close the connection by RST, so that the client sees a truncated response: a FIN may be the regular end of a
        body. `error` is why the requests being answered end; None if they have ended, or end because the client left.
        """
        if error is not None:
            self.cut_by = error
        reset(self.transport)
