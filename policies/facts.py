"""Immutable values that go into and come out of a routing decision.

`RequestFacts` and `Outcome` are plain slotted classes rather than frozen dataclasses because one of each is made per
request: plain ones are built in a third of the time, and in a tenth where they are compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from policies.prompts import Answer, Prompt

Region = str
"""A location that workers share, such as "emea". Compared for equality only."""

NONE_TRIED: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Configuration of one endpoint; it holds no state.

    `weight` is relative (> 0). `max_in_flight` is the most requests it may hold at once; None is unlimited.
    `round_trip` is its distance in seconds where handshakes do not show it, else 0. `host` is the Host of its requests,
    b"" that of the client. Those of a `priority` above the least are backups.
    """

    id: str
    address: str
    region: Region
    weight: float = 1.0
    max_in_flight: int | None = None
    round_trip: float = 0.0
    host: bytes = b""
    priority: int = 0


class AdminState(Enum):
    """Admin state of an endpoint (ready, drain, maintenance), independent of its health."""

    READY = "ready"
    DRAIN = "drain"  # no new requests; still checked, so it can return to ready at once
    MAINTENANCE = "maintenance"  # no new requests and no checks. Requests in flight finish


class RequestFacts:
    """Properties of a request that a policy may use.

    `region` is the request's origin (the client's region, or the proxy's home region), `key` what an affinity policy
    hashes, `attempt` counts from 0, `tried` holds the ids of the endpoints that already failed it. `prompt` is that of
    a request for inference, where the policy reads prompts. `level` is the priority of the endpoints on offer where
    several levels get requests, else None: a policy that takes turns keeps its place in each level.
    """

    __slots__ = ("attempt", "key", "level", "method", "path", "prompt", "region", "tried")

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        region: Region | None = None,
        key: str | None = None,
        attempt: int = 0,
        tried: frozenset[str] = NONE_TRIED,
        prompt: Prompt | None = None,
    ) -> None:
        self.level: int | None = None
        self.prompt = prompt
        self.method = method
        self.path = path
        self.region = region
        self.key = key
        self.attempt = attempt
        self.tried = tried

    def avoiding(self, ids: frozenset[str], level: int | None = None) -> RequestFacts:
        """Return the same facts with more `tried`: policies with tables of their own avoid these endpoints, too."""
        tried = self.tried | ids
        facts = RequestFacts(self.method, self.path, self.region, self.key, self.attempt, tried, self.prompt)
        facts.level = self.level if level is None else level
        return facts


class OutcomeKind(Enum):
    """How an attempt ended, from the endpoint's point of view."""

    OK = "ok"
    ERROR_STATUS = "error_status"  # a 5xx that the worker itself sent
    REFUSED = "refused"  # no connection could be made
    TIMEOUT = "timeout"
    BUSY = "busy"  # the worker refused it unprocessed, because it has enough others; no failure
    RESET = "reset"  # the connection broke, or what came was not HTTP
    ABANDONED = "abandoned"  # the client left: never counted as a failure of the endpoint
    TUNNELLED = "tunnelled"  # it became a tunnel: its duration and its end say nothing about the endpoint

    __hash__ = object.__hash__  # Enum's hashes the name in Python, and every settled request counts its kind

    @property
    def is_success(self) -> bool:
        """Whether it counts as a success of the endpoint."""
        return self in _SUCCESSES

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a failure of the endpoint. Some kinds are neither, so no part of a share of failures."""
        return self not in _SUCCESSES and self not in _NEITHER


_SUCCESSES: Final = (OutcomeKind.OK, OutcomeKind.TUNNELLED)
_NEITHER: Final = (OutcomeKind.BUSY, OutcomeKind.ABANDONED)
_OK: Final = OutcomeKind.OK
_BUSY: Final = OutcomeKind.BUSY
_ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS

BUSY_STATUS: Final = 503
"""Status by which a worker rejects a request, mostly because its queue is full."""


def kind_of_answer(status: int) -> OutcomeKind:
    """Return how an attempt ended to which the worker sent a whole response of this status."""
    return _OK if status < 500 else _ERROR_STATUS


class ReportedLoad(NamedTuple):
    """Load that a worker reports in its response headers or to a load probe; None where it reports nothing.

    `service_time` in seconds, `utilization` in 0..1. An inference server reports the requests that wait (`waiting`),
    the share of its KV cache in use (`kv_usage`, 0..1) and the tokens that it has room for (`kv_tokens`).
    """

    in_flight: int | None = None
    service_time: float | None = None
    utilization: float | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None


class Outcome:
    """Result of one attempt. Times are in seconds of the router's clock; None for a phase that was not reached.

    `ended_at` is when the client left, which may be noticed up to two sweeps later. `answer` is that to a request for
    inference, whose `prompt` is given with it.

    What it means is judged here alone, by `kind` and the properties below; each mechanism decides only what follows for
    itself. `docs/design.md` has a table of that.
    """

    __slots__ = (
        "answer",
        "bytes_in",
        "bytes_out",
        "ended_at",
        "first_byte_at",
        "kind",
        "prompt",
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
        prompt: Prompt | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.prompt = prompt
        self.answer = answer
        self.kind = kind
        self.status = status
        self.sent_at = sent_at
        self.first_byte_at = first_byte_at
        self.ended_at = ended_at
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.reported_load = reported_load

    @property
    def is_busy(self) -> bool:
        """Whether the worker rejected the request: its queue is full or, unless the kind says so, it may be broken."""
        return self.kind is _BUSY or (self.kind is _ERROR_STATUS and self.status == BUSY_STATUS)

    @property
    def is_client_error(self) -> bool:
        """Whether the worker answered 4xx, which may take less time than what it was asked for."""
        return self.kind is _OK and self.status is not None and self.status >= 400

    @property
    def is_unanswered(self) -> bool:
        """Whether it ended before a response, or within one of which the client has seen nothing."""
        return self.status is None and self.kind is not _ERROR_STATUS
