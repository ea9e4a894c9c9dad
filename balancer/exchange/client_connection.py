"""A client's connection as the process sees it, and what it has in common with each of its streams in HTTP/2.

The connections are in `downstream/`; an exchange uses a `Responder`, which a connection in HTTP/1.1 is itself.

Reading may be paused for several reasons at a time; it resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from balancer.errors import CLIENT_LEFT, ConnectionCut
from balancer.exchange.tunnel import reset

if TYPE_CHECKING:
    from balancer.exchange.client_usage import ClientUsage
    from balancer.exchange.cluster import Cluster
    from balancer.http.h1.client import Client

HELD_BY_BODY: Final = 1
"""The body buffer of the request being received is full."""

HELD_BY_PIPELINE: Final = 2
"""Pipelined requests wait for earlier responses."""

HELD_BY_UPGRADE: Final = 4
"""A pending upgrade has not been answered."""

HELD_BY_TURN: Final = 8
"""Expensive input waits for its turn (`turns.py`)."""

HELD_BY_REFUSAL: Final = 16
"""The client is refused HTTP/2, and learns it late."""


class ClientSide(asyncio.Protocol):
    """Base of connections and streams: back-pressure and abort. It is a class and not a `typing.Protocol`, because
    mypyc compiles calls of its methods to calls through a table."""

    __slots__ = (
        "_cluster",
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

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_held = 0  # the reasons why reading is paused
        self.is_write_paused = False  # the transport's write buffer is above its high-water mark
        self.idle_since = (
            cluster.now()
        )  # the last instant at which something was received or a response ended
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


class ClientConnection(Protocol):
    """What the process asks of each connection."""

    client: Client
    idle_since: float
    is_held: int
    is_write_paused: bool
    ends_late: bool  # the client has sent its FIN behind input that waits for its turn
    transport: asyncio.Transport
    usage: ClientUsage

    @property
    def answering(self) -> int:
        """Number of requests that are being answered."""

    def apply(self) -> None:
        """Apply a new runtime configuration to the requests that begin from now on."""

    def check(self, now: float) -> None: ...

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        """Close the connection if it has been idle for more than `longer_than` seconds. Returns whether it was
        closed."""

    def end_late_head(self, now: float, longer_than: float) -> bool:
        """Refuse a head that is not whole `longer_than` seconds after its first byte. Returns whether one was."""

    def take_turn(self, steps: int) -> int:
        """Take input that waits until it has cost `steps`, and wait again if there is more. Returns what it cost."""

    def hold(self, reason: int = HELD_BY_BODY) -> None: ...
    def unhold(self, reason: int = HELD_BY_BODY) -> None: ...
    def abort(self, error: ConnectionCut | None = None) -> None: ...
