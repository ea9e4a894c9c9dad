"""Facts that go into a decision and come out of it.

Rule of this file: values only. Nothing here changes after it is made, and nothing here knows how it is
used. `RequestFacts` and `Outcome` are plain slotted classes rather than frozen dataclasses because one of each is
made per request: plain ones are built in a third of the time, and in a tenth where they are compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

Region = str
"""A place that workers share, such as "emea". Compared for equality only."""

NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a policy picks: identity, never state.

    `weight` is relative (> 0). `max_in_flight` is the most requests it may hold at once; None is unlimited.
    """

    id: str
    address: str
    region: Region
    weight: float = 1.0
    max_in_flight: int | None = None


class AdminState(Enum):
    """What the operator wants of an endpoint, whatever its health."""

    UP = "up"
    DRAINING = "draining"  # no new requests; it is still checked, so it can come back at once
    DOWN = "down"  # no new requests and no checks: it may be gone. What is in flight still finishes


class RequestFacts:
    """All that a policy may know of a request.

    `region` is where the request comes from (the client's, or the unit's home region), `key` what an
    affinity policy hashes, `attempt` counts from 0, `tried` holds the ids of the endpoints that already
    failed it.
    """

    __slots__ = ("attempt", "key", "method", "path", "region", "tried")

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        region: Region | None = None,
        key: str | None = None,
        attempt: int = 0,
        tried: frozenset[str] = NOBODY,
    ) -> None:
        self.method = method
        self.path = path
        self.region = region
        self.key = key
        self.attempt = attempt
        self.tried = tried


class OutcomeKind(Enum):
    """How an attempt ended, from the endpoint's point of view."""

    OK = "ok"
    ERROR_STATUS = "error_status"  # a 5xx that the worker itself sent
    REFUSED = "refused"  # no connection could be made
    TIMEOUT = "timeout"
    RESET = "reset"  # the connection broke, or what came was not HTTP
    ABANDONED = "abandoned"  # the client left: never blamed on the endpoint
    TUNNELLED = (
        "tunnelled"  # it became a tunnel: how long that lasts, and who ends it, says nothing of the endpoint
    )

    __hash__ = object.__hash__  # Enum's hashes the name in Python, and every settled request counts its kind

    @property
    def is_failure(self) -> bool:
        """Whether the endpoint is to blame."""
        return self not in (OutcomeKind.OK, OutcomeKind.ABANDONED, OutcomeKind.TUNNELLED)


class ReportedLoad(NamedTuple):
    """What a worker says of itself in its response headers; None where it is silent.

    `service_time` in seconds, `utilization` in 0..1.
    """

    in_flight: int | None = None
    service_time: float | None = None
    utilization: float | None = None


class Outcome:
    """What became of one attempt. Instants in seconds of the router's clock; None where it was never
    reached."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "ended_at",
        "first_byte_at",
        "kind",
        "reported_load",
        "sent_at",
        "status",
    )

    def __init__(
        self,
        kind: OutcomeKind,
        status: int | None,
        sent_at: float,
        first_byte_at: float | None,
        ended_at: float,
        bytes_in: int = 0,
        bytes_out: int = 0,
        reported_load: ReportedLoad | None = None,
    ) -> None:
        self.kind = kind
        self.status = status
        self.sent_at = sent_at
        self.first_byte_at = first_byte_at
        self.ended_at = ended_at
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.reported_load = reported_load
