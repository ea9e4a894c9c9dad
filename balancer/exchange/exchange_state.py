"""State of an exchange, and the interface that its attempts, rules and observers use.

`Exchange` has the steps; docs/design.md shows its states and their transitions. Its attempts, call rules, hedging and
observers know it by this interface. What it counts for its client, and when it is refused, is here.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from balancer.clients.client_usage import ClientUsage, PendingBytes
from balancer.cluster.cluster import Cluster
from balancer.errors import BytesExhausted, ConnectionCut, ForwardingError, TooManyRequests, UpstreamError
from balancer.exchange.buffering import KeptBody
from balancer.exchange.responder import Responder
from balancer.http.h1.request_head import Request
from balancer.rate_limits.request_source import client_of
from balancer.upstream.request import LARGEST_SHARED, RequestBody, ResponseSink
from policies.facts import NONE_TRIED, OutcomeKind
from policies.routing.assignment import Assignment

if TYPE_CHECKING:
    from balancer.exchange.attempt import Attempt
    from balancer.exchange.call_rules import HttpRules


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

LARGE_HEAD: Final = 4096
"""Bytes of a request head from which it is charged while its request is in flight, too. A smaller one takes less than
the connection to the worker."""

FREE_BODY: Final = 16_384
"""Bytes of a body that are not charged while its request is being sent: it lasts until a connection is open."""

REQUEST_SIZE: Final = 4096
"""Bytes that a request takes beside its head and body."""


def bytes_exhausted() -> BytesExhausted:
    """Return the error for a request whose bytes are beyond the bound."""
    return BytesExhausted("requests that wait take all the memory that this client may use")


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
    rules: HttpRules
    state: State = NEW
    level = 0  # its priority, with admission control
    deadline = inf  # instant after which its response is useless, with admission control
    active_at = 0.0  # when request or response last made progress
    body_buffer: RequestBody | None = None  # None if it has no body
    kept: KeptBody | None = None  # the same, if the body is or was received whole before an endpoint is asked
    usage: ClientUsage | None = None  # of its client, while it counts there
    counted_in: dict[ClientUsage, int] | None = None  # as well, where its cluster has a limit of its own
    pending: PendingBytes | None = None  # its charge while it waits or its head is large
    race: Race | None = None  # while a hedged attempt runs beside the current one
    attempts = 0
    needs_own = False  # no other request may share its connection
    unsent = 0  # attempts that found no connection, or were refused as busy
    bytes_in = 0  # of its body
    last_attempt: Attempt | None = None  # None while the request waits for an endpoint

    def __init__(self, cluster: Cluster, downstream: Responder, request: Request) -> None:
        self.cluster = cluster
        self.downstream = downstream
        self.request = request
        self.is_complete = True  # the whole request has been received
        self.tried = NONE_TRIED  # endpoints that are not asked again

    # --- bounds of its client (`client_usage.py`)

    def refusal(self, usage: ClientUsage, limit: int) -> ForwardingError | None:
        """Return the error for a request that is more than its client may have. An offer and a large head are
        counted."""
        request = self.request
        self.needs_own = len(request.raw) > LARGEST_SHARED
        is_offer = request.fields.is_offer
        usage.tunnels += is_offer
        number, own = usage.requests, self.cluster.own_requests
        if own is not None:
            self.counted_in, limit = own, self.cluster.limits.client_requests
            number = own[usage] = own.get(usage, 0) + 1
        if number > limit and not self.downstream.client.is_trusted:
            return TooManyRequests(f"{limit} requests of this client are not answered yet")
        if is_offer and usage.tunnels > 1 and not self.cluster.pools.leaves_room(usage.tunnels):
            return TooManyRequests(f"{usage.tunnels - 1} tunnels of this client leave no room for more")
        return bytes_exhausted() if len(request.raw) > LARGE_HEAD and not self.charge() else None

    def charge(self) -> bool:
        """Charge the bytes that the request takes, with its body. Returns False if they are beyond the bound of the
        process or of the client."""
        pending = self.pending
        if pending is None:
            cluster, client = self.cluster, self.downstream.client
            network = client_of(self.request, client, cluster.trusts)
            pending = self.pending = PendingBytes(cluster.process.usages, network)
        body = self.body_buffer
        size = self._size
        return pending.resize(size if body is None or self.kept is not None else size + body.size)

    def sent(self) -> None:
        """Note that the body, as far as it has come, was sent: what is charged from now on is a large head."""
        pending = self.pending
        if pending is None:
            return
        if len(self.request.raw) > LARGE_HEAD:
            pending.resize(min(pending.size, self._size))
        else:
            self.pending = None
            pending.close()

    def count_out(self) -> None:
        """Give back what the request took of its client's bounds."""
        usage = self.usage
        if usage is not None:
            self.usage = None
            usage.requests -= 1
            usage.tunnels -= self.request.fields.is_offer
            own, self.counted_in = self.counted_in, None
            if own is not None and (left := own.pop(usage) - 1):
                own[usage] = left
        if self.pending is not None:
            self.uncharge()

    def uncharge(self) -> None:
        """Give back the bytes of the request, whose head and body are not needed any more."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.close()

    @property
    def _size(self) -> int:
        return REQUEST_SIZE + 2 * len(self.request.raw)  # the head for the worker is as long

    # --- attempts

    @property
    def is_late(self) -> bool:
        """Whether no answer would come within the time that the client has stated."""
        return self.deadline < inf and self.cluster.now() >= self.deadline

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
