"""How long and how much: the bounds that the data path keeps, as plain values.

Rule of this file: what each bounds stands in `sections.py`, with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.upstream.bounded_reader import READ


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None: no bound."""

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
    """Bytes, but for the numbers of `fields`, `queue`, `in_flight` and `clients`; None: no bound."""

    head: int = 32_768
    fields: int = 100
    target: int = 8_192
    body: int | None = None
    buffer: int = 65_536
    queue: int = 10_000
    in_flight: int | None = None
    clients: int | None = None

    @property
    def high_water(self) -> int:
        """Bytes beyond which a client's transport pauses the response: one read more is `buffer`."""
        return max(0, self.buffer - READ)
