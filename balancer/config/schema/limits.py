"""The tables [timeouts] and [limits] of the configuration."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from balancer.config.schema.section import Seconds, Section

READ: Final = 32_768
"""Read size in bytes for a slow or new receiver."""


class Timeouts(Section):
    """Timeouts in seconds. One sweep enforces them, so each may expire up to half a second late."""

    connect: Seconds = Field(default=2.0, description="seconds for the TCP and TLS handshakes with a worker")
    first_byte: Seconds = Field(
        default=25.0,
        description="seconds from the sent request to the response's first byte; below the 30 s of Heroku's router",
    )
    attempt: Seconds | None = Field(
        default=None,
        description="as first_byte, while a retry at another endpoint is possible. None: first_byte only",
    )
    body_idle: Seconds = Field(
        default=60.0, description="seconds without progress of a response or of a request body"
    )
    head: Seconds = Field(
        default=10.0,
        description="seconds for a request head from its first byte, and for PROXY header and TLS handshake before it",
    )
    request_idle: Seconds = Field(default=30.0, description="seconds between two pieces of a request body")
    keep_alive: Seconds = Field(
        default=95.0,
        description="seconds that an idle client connection is kept; above the 90 s of Heroku's router",
    )
    queue: Seconds = Field(default=30.0, description="maximum seconds in the wait queue")
    total: Seconds | None = Field(
        default=None,
        description="maximum seconds from a request's head to the last byte of its response. None: no limit",
    )
    tunnel_idle: Seconds = Field(
        default=3600.0,
        description="seconds without a byte in either direction of a tunnel (a WebSocket, for example); pings count",
    )
    linger: Seconds = Field(
        default=2.0,
        description="seconds of reading on after the last response, so that a TCP reset does not destroy it",
    )
    shutdown: Seconds = Field(
        default=25.0,
        description="seconds for requests in flight after SIGTERM; Heroku sends SIGKILL after 30 s",
    )


class Limits(Section):
    """Limits on memory and file descriptors; sizes in bytes."""

    queue: int = Field(default=10_000, ge=0, description="maximum requests in the wait queue")
    in_flight: int | None = Field(
        default=None,
        ge=1,
        description="maximum requests in flight at all endpoints; more wait in the queue. None: no limit",
    )
    client_requests: int = Field(
        default=10_000,
        ge=1,
        description="maximum requests of one client address, of IPv6 one /64, in flight and waiting; otherwise 429",
    )
    pending: int = Field(
        default=33_554_432,
        ge=1_000_000,
        description="maximum bytes of requests that wait, and of large heads in flight, per process; otherwise 503",
    )
    head: int = Field(
        default=32_768, ge=1024, le=1 << 20, description="maximum bytes of a request head, otherwise 431"
    )
    fields: int = Field(
        default=100, ge=8, le=10_000, description="maximum fields of a request head, otherwise 431"
    )
    target: int = Field(
        default=8_192, ge=64, le=1 << 20, description="maximum bytes of a request target, otherwise 414"
    )
    body: int | None = Field(
        default=None, ge=0, description="maximum bytes of a request body, otherwise 413. None: no limit"
    )
    buffer: int = Field(
        default=65_536,
        ge=1024,
        le=1 << 26,
        description="maximum bytes of a body buffered for a slow reader, per connection and direction",
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        description="maximum client connections; more wait in the kernel. None: derived from RLIMIT_NOFILE",
    )

    @property
    def high_water(self) -> int:
        """Bytes in a client's transport beyond which the response is paused: one more read makes it `buffer`."""
        return max(0, self.buffer - READ)
