"""A client's connection, as the process needs it. Its reading may be paused for several reasons at a time."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from balancer.clients.client_usage import ClientUsage
from balancer.errors import ConnectionCut
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
