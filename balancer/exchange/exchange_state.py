"""What the parts of an exchange share: its data, and the steps that they ask of it.

`Exchange` has the steps; docs/design.md shows its states and their transitions. Its attempts, call rules, hedging,
retries, bounds and observers know it by this interface.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from balancer.clients.client_usage import ClientUsage, PendingBytes
from balancer.cluster.cluster import Cluster
from balancer.errors import ConnectionCut, ForwardingError, UpstreamError
from balancer.exchange.buffering import KeptBody
from balancer.exchange.responder import Responder
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response
from balancer.upstream.pool import Pool
from balancer.upstream.request import RequestBody, ResponseSink
from policies.facts import NONE_TRIED, OutcomeKind
from policies.routing.assignment import Assignment

if TYPE_CHECKING:
    from balancer.exchange.attempt import Attempt


class State(Enum):
    """State of an exchange."""

    NEW = "new"
    """The head has come; earlier requests of the connection may not have been answered."""

    RECEIVING = "receiving"
    """Its body is received whole before an endpoint is asked (`buffering.py`)."""

    QUEUED = "queued"
    """Every endpoint is full: the request is in the wait queue."""

    ATTEMPTING = "attempting"
    """The request has an endpoint; the attempt has a state of its own."""

    ENDED = "ended"
    """Answered, cut, abandoned, or handed over to a tunnel."""


class End(Enum):
    """How an exchange ends."""

    WHOLE = "whole"
    """The whole response has been written."""

    ERROR = "error"
    """The client gets an error response: nothing of another one has been sent."""

    CUT = "cut"
    """A response that has started breaks off: the client must see that it is incomplete (RFC 9112 § 8)."""

    LEFT = "left"
    """The client's connection has ended."""

    TUNNEL = "tunnel"
    """The tunnel that had taken both connections over has closed."""


class AttemptState(Enum):
    """State of an attempt; it keeps its last one when its exchange ends."""

    CONNECTING = "connecting"
    """It waits for an upstream connection."""

    SENT = "sent"
    """The request has been sent, its body perhaps in part; no final response head has come."""

    BUFFERING = "buffering"
    """A short response is being received and kept back; the request can still be retried elsewhere."""

    STREAMING = "streaming"
    """The response is passed on as it comes: the client has seen its head."""


NEW: Final = State.NEW  # an attribute of an Enum is looked up anew each time


class CallRules:
    """What differs between kinds of calls, HTTP and gRPC (`call_rules.py`); abstract."""

    is_rpc = False
    """Whether the methods about heads and ends are to be called: HTTP needs them for statuses from `LEAST_BUSY` on."""

    @property
    @abstractmethod
    def deadline(self) -> float:
        """Instant at which the client stops waiting."""

    @abstractmethod
    def attempted(self, pool: Pool) -> UpstreamError | None:
        """Note that an attempt begins, for an upstream of `pool`; return an error if that carries no such call."""

    @abstractmethod
    def head_for_worker(self, head: bytes, now: float) -> bytes:
        """Return the head that is sent at `now`."""

    @abstractmethod
    def is_repeatable(self, exchange: ExchangeState) -> bool:
        """Return whether repeating the request has the same effect. Called only after a failure."""

    @abstractmethod
    def retries(
        self, exchange: ExchangeState, attempt: Attempt, response: Response, *, is_whole: bool
    ) -> bool:
        """Send a request whose response is a failure to another endpoint, where that is safe; return whether it goes
        there. `is_whole`: the response has come with its body."""

    @abstractmethod
    def check(self, exchange: ExchangeState, attempt: Attempt, now: float) -> None:
        """Enforce the timeouts of the worker; `now` is the cached time."""

    @abstractmethod
    def failed(self, error: ForwardingError) -> None:
        """Note the error that ends an attempt."""

    @abstractmethod
    def ended(self, attempt: Attempt, trailers: bytes) -> None:
        """Note that the response has ended; `trailers` is a block of fields or b""."""


class Race:
    """Two attempts at one request (`hedging.py`); abstract."""

    @abstractmethod
    def runner(self, attempt: Attempt) -> ResponseSink:
        """Return what receives the attempt's response instead of it."""

    @abstractmethod
    def failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Drop a failed attempt; the other continues alone."""

    @abstractmethod
    def end_other(self, attempt: Attempt, kind: OutcomeKind) -> None:
        """End hedging because the exchange ends; the attempt other than `attempt` ends with outcome `kind`."""


class ExchangeState:
    """A request and its current attempt, two while hedged; abstract."""

    # Not slots: most keep their defaults in most requests, and an attribute that is not set costs nothing.
    rules: CallRules
    state: State = NEW
    level = 0  # its priority, and the instant after which its response is useless: with admission control
    deadline = inf
    active_at = 0.0  # when request or response last made progress
    body_buffer: RequestBody | None = None  # None if it has no body
    kept: KeptBody | None = None  # the same, if the body is or was received whole before an endpoint is asked
    usage: ClientUsage | None = None  # of its client, while it counts there
    pending: PendingBytes | None = None  # its charge while it waits or its head is large
    race: Race | None = None  # while a hedged attempt runs beside the current one
    attempts = 0
    unsent = 0  # attempts that found no connection
    bytes_in = 0  # of its body
    last_attempt: Attempt | None = None  # None while the request waits for an endpoint

    def __init__(self, cluster: Cluster, downstream: Responder, request: Request) -> None:
        self.cluster = cluster
        self.downstream = downstream
        self.request = request
        self.is_complete = True  # the whole request has been received
        self.tried = NONE_TRIED  # endpoints that are not asked again

    # --- attempts

    @abstractmethod
    def attempt(self) -> None:
        """Pick an endpoint and lease an upstream connection, or join the wait queue."""

    @abstractmethod
    def new_attempt(self, assignment: Assignment) -> Attempt:
        """Return a new attempt at the assigned endpoint: the first one, a retry or a hedge."""

    @abstractmethod
    def attempt_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Retry a failed attempt where that is safe, else end the exchange."""

    @abstractmethod
    def repeat(self, attempt: Attempt, kind: OutcomeKind, *, is_clean: bool) -> None:
        """Ask another endpoint. The client sees nothing of a response: only a head, or a whole response already
        received, is discarded."""

    @abstractmethod
    def attempt_timed_out(self, attempt: Attempt) -> None:
        """Retry elsewhere after the attempt timeout; if that is not possible, wait on for this worker."""

    # --- hedging

    @abstractmethod
    def hedge(self) -> None:
        """Start a second attempt beside the first, if one is allowed."""

    @abstractmethod
    def hedged(self, race: Race, second: Attempt) -> None:
        """Note that a second attempt begins beside the current one."""

    @abstractmethod
    def continue_with(self, attempt: Attempt) -> None:
        """End hedging and continue with `attempt`."""

    @abstractmethod
    def end_hedging(self, kind: OutcomeKind) -> None:
        """End hedging; the attempt beside the current one ends with outcome `kind`."""

    # --- the end

    @abstractmethod
    def finish(
        self, end: End, kind: OutcomeKind, error: ForwardingError | None = None, now: float = 0.0
    ) -> None:
        """End the exchange. `kind` is the outcome of its attempt, if that has not been settled; `error` is what ends
        the exchange, None for a normal end."""

    @abstractmethod
    def tunnel_began(self, status: int) -> None:
        """End the exchange for the client's connection: a tunnel takes both connections over. The request counts as its
        client's until the tunnel has closed."""

    @abstractmethod
    def tunnel_ended(self, bytes_in: int, bytes_out: int, error: ConnectionCut | None) -> None:
        """Settle the exchange of a closed tunnel: bytes from and to the client, and why the balancer closed it."""
