"""Base of what belongs to a client: its connection, and each stream of one in HTTP/2. Back-pressure, turns and abort.

The connections are in `downstream/`; an exchange uses a `Responder`. This is a base class and not a `typing.Protocol`,
because mypyc compiles calls of its methods to calls through a table.

Reading may be paused for several reasons at a time; it resumes when the last of them is gone.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

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


class ClientConnection(asyncio.Protocol):
    """What belongs to a client; abstract. A stream belongs to its connection, so `apply`, `close_if_idle` and
    `end_late_head` are not called for it."""

    __slots__ = (
        "_cluster",
        "client",
        "cut_by",
        "ends_late",
        "head_at",
        "idle_since",
        "is_held",
        "is_write_paused",
        "transport",
        "usage",
        "write",
    )

    client: Client
    usage: ClientUsage
    """Record of the client, which all its connections share."""

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Write to the client: the transport's own method, to save a call."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_held = 0  # the reasons why reading is paused
        self.is_write_paused = False  # the transport's write buffer is above its high-water mark
        self.ends_late = False  # the client has sent its FIN behind input that waits for its turn
        self.head_at = 0.0  # when the first byte of a head came, if the head came in pieces
        self.idle_since = (
            cluster.now()
        )  # the last instant at which something was received or a response ended
        self.cut_by: ConnectionCut = CLIENT_LEFT

    @property
    @abstractmethod
    def answering(self) -> int:
        """Number of requests that are being answered."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Enforce the timeouts of the client and of its exchange; `now` is the cached time."""

    def apply(self) -> None:
        """Apply a new runtime configuration to the requests that begin from now on."""
        raise NotImplementedError

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        """Close the connection if it has been idle for more than `longer_than` seconds. Returns whether it was
        closed."""
        raise NotImplementedError

    def end_late_head(self, now: float, longer_than: float) -> bool:
        """Refuse a head that is not whole `longer_than` seconds after its first byte. Returns whether one was."""
        return False

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

    def wait_turn(self) -> None:
        """Read nothing more until the input that has been read had its turns."""
        self.hold(HELD_BY_TURN)
        self._cluster.turns.wait(self)

    def take_turn(self, steps: int) -> int:
        """Take input that waits until it has cost `steps`, and wait again if there is more. Returns what it cost."""
        raise NotImplementedError

    def end_turns(self) -> None:
        """Read again, after all input has been taken; the client's FIN was behind it."""
        self.unhold(HELD_BY_TURN)
        if self.ends_late:
            self.ends_late = False
            protocol = cast(asyncio.Protocol, self.transport.get_protocol())  # another one after `detach`
            if not protocol.eof_received():
                self.transport.close()

    def abort(self, error: ConnectionCut | None = None) -> None:
        """Close the connection by RST, so that the client sees a truncated response: a FIN may be the regular end of a
        body. `error` is why the requests being answered end; None if they have ended, or end because the client left.
        """
        if error is not None:
            self.cut_by = error
        reset(self.transport)
