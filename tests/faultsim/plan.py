"""A run as plain data: requests, responses, and faults with their times.

No behaviour. Parts are independent, so that a failing plan can be made smaller. Durations in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Damage = tuple[str, str]
"""Stage and kind."""


@dataclass(slots=True)
class Reply:
    """A worker's response: `framing` is "length", "chunked" or "close"; `grpc_status` is that of an RPC."""

    status: int = 200
    framing: str = "length"
    size: int = 0
    pieces: int = 1
    gap: float = 0.0
    service: float = 0.0
    has_interim: bool = False
    closes: bool = False
    is_early: bool = False  # sent before the request's body is complete
    has_trailers: bool = False
    grpc_status: int = 0
    is_trailers_only: bool = False


@dataclass(slots=True)
class PlannedRequest:
    """One request. `worker_damage` is for its first, second … arrival at a worker, `stream_damage` where that is over
    HTTP/2. `is_repeatable`: an RPC that may be sent again; `deadline` is its timeout in milliseconds, 0 without one."""

    number: int
    method: bytes
    reply: Reply
    size: int = 0
    is_chunked: bool = False
    pieces: int = 1
    gap: float = 0.0
    think: float = 0.0
    is_http10: bool = False
    closes: bool = False
    client_damage: Damage | None = None
    worker_damage: tuple[Damage | None, ...] = ()
    stream_damage: tuple[Damage | None, ...] = ()
    has_trailers: bool = False
    is_rpc: bool = False
    is_repeatable: bool = False
    deadline: int = 0

    @property
    def is_idempotent(self) -> bool:
        return self.method != b"POST" or self.is_repeatable

    @property
    def sum(self) -> bytes:
        """The value of its trailer."""
        return b"%d" % (self.number * 31)

    def __repr__(self) -> str:
        return f"{self.method.decode()} /{self.number}"


@dataclass(slots=True)
class PlannedClient:
    """A client: it connects as often as needed to send all its requests, up to `depth` of them pipelined, or at a time
    over HTTP/2, with a `window` of so many bytes for each response."""

    number: int
    starts: float
    depth: int
    room: int
    pace: float
    requests: list[PlannedRequest]
    is_http2: bool = False
    window: int = 65_535


@dataclass(slots=True)
class Fault:
    """A fault of workers, of the route to them, or of the balancer, from `at` for `lasts` seconds."""

    at: float
    lasts: float
    kind: str
    hosts: tuple[int, ...] = ()
    detail: Any = None

    def __repr__(self) -> str:
        detail = f" {self.detail}" if self.detail else ""
        return f"{self.kind}{detail} of {','.join(map(str, self.hosts)) or 'the balancer'} for {self.lasts:.3f} s"


@dataclass(slots=True)
class Plan:
    """A run. `hosts` are the regions of workers, one each; the first of them are endpoints at the start. `http2_hosts`
    speak HTTP/2, with a window for each request, in bytes, and a number of requests at a time. `is_calm`: nothing goes
    wrong, so every request gets its response."""

    seed: int
    settings: dict[str, Any]
    hosts: list[str]
    grain: float
    delays: dict[str, float]  # of each region, one way
    idle_closes: dict[int, float]  # after how long a host closes an idle connection
    clients: list[PlannedClient]
    faults: list[Fault]
    stops_at: float | None = None
    is_logged: bool = False
    probes: int = 3
    upstream_limit: int | None = None
    is_calm: bool = False
    http2_hosts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def requests(self) -> list[PlannedRequest]:
        return [request for client in self.clients for request in client.requests]
