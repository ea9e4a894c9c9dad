"""A run as plain data: requests, responses, and faults with their times.

No behaviour. Parts are independent, so that a failing plan can be made smaller. Durations in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Damage = tuple[str, str]
"""Stage and kind."""


@dataclass(slots=True)
class Reply:
    """A worker's response: `framing` is "length", "chunked" or "close"."""

    status: int = 200
    framing: str = "length"
    size: int = 0
    pieces: int = 1
    gap: float = 0.0
    service: float = 0.0
    has_interim: bool = False
    closes: bool = False
    is_early: bool = False  # sent before the request's body is complete


@dataclass(slots=True)
class PlannedRequest:
    """One request. `worker_damage` is for its first, second … arrival at a worker."""

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

    @property
    def is_idempotent(self) -> bool:
        return self.method != b"POST"

    def __repr__(self) -> str:
        return f"{self.method.decode()} /{self.number}"


@dataclass(slots=True)
class PlannedClient:
    """A client: it connects as often as needed to send all its requests, up to `depth` of them pipelined."""

    number: int
    starts: float
    depth: int
    room: int
    pace: float
    requests: list[PlannedRequest]


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
    """A run. `hosts` are the regions of workers, one each; the first of them are endpoints at the start. `is_calm`:
    nothing goes wrong, so every request gets its response."""

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

    @property
    def requests(self) -> list[PlannedRequest]:
        return [request for client in self.clients for request in client.requests]
