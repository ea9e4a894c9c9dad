"""What will happen in a run, as plain data: who asks what, what is answered, and what goes wrong when.

Rule of this file: no behaviour. Whatever is taken out of a plan leaves the rest as it was, so a plan can be made
smaller while it still shows what is wrong. Durations in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Damage = tuple[str, str]
"""At which stage, and what."""


@dataclass(slots=True)
class Reply:
    """What a worker answers: `framing` is "length", "chunked" or "close"."""

    status: int = 200
    framing: str = "length"
    size: int = 0
    pieces: int = 1
    gap: float = 0.0
    service: float = 0.0
    has_interim: bool = False
    closes: bool = False
    is_early: bool = False  # does not wait for the request's body


@dataclass(slots=True)
class Ask:
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
class Caller:
    """A client: it connects as often as it must until it has asked all. `depth`: how many it sends ahead."""

    number: int
    starts: float
    depth: int
    room: int
    pace: float
    asks: list[Ask]


@dataclass(slots=True)
class Fault:
    """Something that befalls workers, the way to them, or the unit, from `at` for `lasts`."""

    at: float
    lasts: float
    kind: str
    hosts: tuple[int, ...] = ()
    detail: Any = None

    def __repr__(self) -> str:
        detail = f" {self.detail}" if self.detail else ""
        return f"{self.kind}{detail} of {','.join(map(str, self.hosts)) or 'the unit'} for {self.lasts:.3f} s"


@dataclass(slots=True)
class Plan:
    """A run. `hosts` are regions of workers, one each, the first of them being endpoints at the start. `is_calm`:
    nothing goes wrong, so that everybody gets what was asked for."""

    seed: int
    settings: dict[str, Any]
    hosts: list[str]
    grain: float
    delays: dict[str, float]  # of each region, one way
    idle_closes: dict[int, float]  # after how long a host closes an idle connection
    callers: list[Caller]
    faults: list[Fault]
    stops_at: float | None = None
    is_logged: bool = False
    probes: int = 3
    upstream_limit: int | None = None
    is_calm: bool = False

    @property
    def asks(self) -> list[Ask]:
        return [ask for caller in self.callers for ask in caller.asks]
