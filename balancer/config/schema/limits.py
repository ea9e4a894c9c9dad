"""Timeouts and limits of the data path as plain values; `sections.py` documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READ: Final = 32_768
"""Read size in bytes for a slow or new receiver."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; None: no bound."""

    head: float = 10.0
    request_idle: float = 30.0
    keep_alive: float = 95.0
    first_byte: float = 25.0
    body_idle: float = 60.0
    queue: float = 30.0
    linger: float = 2.0
    tunnel_idle: float = 3600.0
    total: float | None = None
    attempt: float | None = None
    shutdown: float = 25.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in bytes, except the numbers of `fields`, `queue`, `in_flight`, `client_requests` and `clients`; None: no
    bound."""

    head: int = 32_768
    fields: int = 100
    target: int = 8_192
    body: int | None = None
    buffer: int = 65_536
    queue: int = 10_000
    in_flight: int | None = None
    client_requests: int = 10_000
    pending: int = 33_554_432
    clients: int | None = None

    @property
    def high_water(self) -> int:
        """Bytes in a client's transport beyond which the response is paused: one more read makes it `buffer`."""
        return max(0, self.buffer - READ)


@dataclass(frozen=True, slots=True)
class BufferingLimits:
    """Bytes of a request body and of a response that are kept for a slow client, 0: none; `total`: for all clients."""

    request: int = 0
    response: int = 0
    total: int = 67_108_864
