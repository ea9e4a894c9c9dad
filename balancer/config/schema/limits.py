"""The tables [timeouts], [limits] and [buffering] of the configuration."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from balancer.config.schema.section import BufferSize, Count, Seconds, Section

READ: Final = 32_768
"""Read size in bytes for a slow or new receiver."""

RESPONSE_FIELDS: Final = 500
"""Maximum fields of a response's head."""


class Timeouts(Section):
    """Timeouts in seconds. One sweep enforces them, so each may expire up to half a second late."""

    connect: Seconds = Field(
        default=2.0,
        description="timeout of a connect to a worker: name lookup, TCP and TLS handshakes; then another endpoint is "
        "tried",
    )
    first_byte: Seconds = Field(
        default=25.0,
        description="longest time from the request sent to the first byte of the final response, then 504; interim "
        "responses (1xx) do not extend it; below the 30 s of Heroku's router",
    )
    attempt: Seconds | None = Field(
        default=None,
        description="as `first_byte`, but only while the request may go to another endpoint instead; see "
        "[Retries](#retries)",
    )
    body_idle: Seconds = Field(
        default=60.0, description="longest pause within a response body, on either side"
    )
    head: Seconds = Field(
        default=10.0,
        description="longest time for a request head, from its first byte; before it, from the connection on, for a "
        "PROXY header and the TLS handshake. At the client limit all of them give way to waiting clients "
        "after 3 s",
    )
    request_idle: Seconds = Field(default=30.0, description="longest pause within a request body")
    keep_alive: Seconds = Field(
        default=95.0,
        description="idle timeout of client connections; above the 90 s of Heroku's router",
    )
    queue: Seconds = Field(
        default=30.0,
        description="longest wait for an endpoint with room, then 503; see [Overload](#overload)",
    )
    total: Seconds | None = Field(
        default=None,
        description="longest time of a request, from its head to the last byte of the response, then 504 or the end "
        "of the connection",
    )
    tunnel_idle: Seconds = Field(
        default=3600.0,
        description="idle timeout of upgraded connections, such as WebSockets; a ping counts as traffic",
    )
    linger: Seconds = Field(
        default=2.0,
        description="time for which a closing connection is still read, so that the client receives the last response",
    )
    shutdown: Seconds = Field(
        default=25.0,
        description="grace period for requests in flight and tunnels after SIGTERM; Heroku kills after 30 s",
    )


class Limits(Section):
    """Limits on memory and file descriptors; sizes in bytes."""

    queue: int = Field(
        default=10_000, ge=0, description="requests | length of the wait queue; one more request gets 503"
    )
    in_flight: Count | None = Field(
        default=None,
        description="requests | limit of requests in flight at all endpoints; more wait in the queue",
    )
    client_requests: Count = Field(
        default=10_000,
        description="requests | limit of requests of one client, in flight and waiting; one more gets 429; see "
        "[Bounds of one client](#bounds-of-one-client)",
    )
    pending: int = Field(
        default=33_554_432,
        ge=1_000_000,
        description="bytes | limit of what requests that wait, and large heads in flight, take in a process; one more"
        " gets 503",
    )
    head: int = Field(
        default=32_768,
        ge=1024,
        le=1 << 20,
        description="bytes | largest request head, then 431; 1024 to 1 MiB. Over HTTP/2 a field has at most 64 KiB",
    )
    fields: int = Field(
        default=100,
        ge=8,
        le=10_000,
        description="number | largest number of header fields of a request, then 431",
    )
    target: int = Field(
        default=8_192, ge=64, le=1 << 20, description="bytes | longest request target, then 414"
    )
    body: int | None = Field(default=None, ge=0, description="bytes | largest request body, then 413")
    buffer: int = Field(
        default=65_536,
        ge=1024,
        le=1 << 26,
        description="bytes | buffered part of a body, per connection and direction, and of a request body that waits "
        "for an endpoint",
    )
    clients: Count | None = Field(
        default=None,
        description="connections | limit of client connections; more wait in the kernel. Default, and upper bound: "
        "what `RLIMIT_NOFILE` allows",
    )

    @property
    def high_water(self) -> int:
        """Bytes in a client's transport beyond which the response is paused: one more read makes it `buffer`."""
        return max(0, self.buffer - READ)


class BufferingLimits(Section):
    """Buffering, so that slow clients do not occupy worker connections; off by default."""

    request: BufferSize = Field(
        default=0,
        description="bytes | largest request body that is received whole before an endpoint is asked, at most 64 MiB;"
        " 0: off; see [Buffering](#buffering)",
    )
    response: BufferSize = Field(
        default=0,
        description="bytes | part of a response that is kept for a client that reads slowly, at most 64 MiB; 0: off",
    )
    total: int = Field(
        default=67_108_864,
        ge=1024,
        le=1 << 40,
        description="bytes | bound on everything that a process keeps; beyond it bodies are streamed",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, size in (("request", self.request), ("response", self.response)):
            if size > self.total:
                raise ValueError(f"total: must not be below {name} ({size}), got {self.total}")
        return self
