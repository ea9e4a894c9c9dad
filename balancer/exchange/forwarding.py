"""Forwarding of a request: route, lease an upstream connection, send, retry or hedge.

Every step is called by the event that makes it possible. `attempt.py` holds an attempt's assignment and connection,
`body_buffer.py` the buffered body, `retries.py` the retry rules. `exchange.py` handles the response and the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from balancer.errors import ConnectFailed, ConnectionBroken, MalformedResponse, UpstreamError
from balancer.exchange.applicant import WaitingExchange
from balancer.exchange.attempt import Attempt
from balancer.exchange.body_buffer import BodyBuffer
from balancer.exchange.hedged_attempts import HedgedExchange, HedgeRace
from balancer.exchange.retries import IDEMPOTENT, has_other
from balancer.http1.chunks import chunk, last_chunk
from balancer.http1.fields import Framing
from balancer.http1.request_head import Request
from balancer.upstream.request import ResponseSink
from balancer.upstream.request import UpstreamRequest as UpstreamConnection
from policies.errors import NoEndpointAvailable
from policies.routing.facts import NOBODY, OutcomeKind, RequestFacts

if TYPE_CHECKING:
    from balancer.downstream.connection import DownstreamConnection
    from balancer.proxy import Proxy
    from policies.overload.hedging import Hedging

CHUNKED: Final = Framing.CHUNKED
REPEATABLE: Final = IDEMPOTENT
"""A module constant, because an imported name is looked up anew each time."""


class ForwardedExchange(WaitingExchange):
    """A request and its current attempt; two attempts while it is hedged.

    `is_finished`: the exchange is over.
    """

    # Not slots: most keep their defaults in most requests, and an attribute that is not set costs nothing.
    is_finished = False
    _attempt: Attempt | None = None  # the latest one; None while the request waits for an endpoint
    _attempts = 0  # attempts so far
    _race: HedgeRace | None = None  # while a hedged attempt runs beside `_attempt`
    _needs_fresh = False  # the next attempt opens a new connection, so as not to meet a second stale one
    _started_at = 0.0
    _active_at = 0.0
    _body_buffer: BodyBuffer | None = None
    _has_sent_interim = False  # an interim response has been sent to the client
    _bytes_in = 0
    _bytes_out = 0
    _status = 0

    def __init__(self, proxy: Proxy, downstream: DownstreamConnection, request: Request) -> None:
        self._proxy = proxy
        self._downstream = downstream
        self._request = request
        self._is_complete = True  # the whole request has been received
        self._tried = NOBODY
        if request.fields.has_body:
            self._is_complete = False
            self._body_buffer = BodyBuffer(proxy.retries.body)

    # --- the request

    @property
    def head(self) -> bytes:
        """Return the request head as received (`Turn`)."""
        return self._request.raw

    def request_body(self, data: bytes) -> None:
        """Forward bytes of the request body, without framing."""
        self._bytes_in += len(data)
        self._active_at = self._proxy.cached_time
        self._send_body(chunk(data) if self._request.fields.framing is CHUNKED else data)

    def request_ended(self, trailers: bytes) -> None:
        """End the request; `trailers` is a block of fields or b""."""
        self._is_complete = True
        if self._request.fields.framing is CHUNKED:
            self._send_body(last_chunk(trailers))

    def _send_body(self, data: bytes) -> None:
        kept, attempt = self._body_buffer, self._attempt
        if self.is_finished or kept is None:
            return
        kept.add(data)
        if attempt is not None and attempt.upstream is not None:
            attempt.upstream.write(data)
            kept.sent()
        elif kept.size > self._proxy.limits.buffer:
            self._downstream.hold()

    # --- an attempt

    def start(self) -> None:
        """Start the exchange: all earlier requests of the connection have been answered."""
        self._started_at = self._proxy.cached_time
        if self._proxy.gate is None or self._is_admitted(self._proxy.gate):
            self.attempt()

    def attempt(self) -> None:
        """Pick an endpoint and lease an upstream connection, or join the wait queue."""
        proxy, request = self._proxy, self._request
        method, target = request.method, request.target
        name = (
            "GET" if method == b"GET" else method.decode()
        )  # the common case; decoding costs more than comparing
        key = None if proxy.key_of is None else proxy.key_of(request, self._downstream.client)
        facts = RequestFacts(
            name, target.decode("latin-1"), proxy.home_region, key, self._attempts, self._tried
        )
        explaining = proxy.explaining
        try:
            assignment = (
                proxy.router.route(facts)
                if explaining is None
                else explaining.route(facts, request, self._downstream.client)
            )
        except NoEndpointAvailable:
            self._wait_for_room()
            return
        self._attempt = attempt = Attempt(self, assignment)
        if proxy.canary is not None:
            attempt.arm = proxy.canary.take()
        if explaining is not None:
            attempt.why = explaining.line
        self._attempts += 1
        is_idempotent = method in REPEATABLE
        if proxy.hedges is not None and is_idempotent and self._is_complete and self._attempts == 1:
            proxy.hedges.watch(attempt)
        pool = proxy.pools.by_id[assignment.state.id]
        if self._needs_fresh:
            pool.open(attempt)
            return
        upstream = pool.lease() if is_idempotent else pool.lease_quiet()
        if upstream is None:
            pool.wait(attempt)
        else:
            self._send(attempt, upstream)

    def connected(self, attempt: Attempt, upstream: UpstreamConnection) -> None:
        """Send the request on the upstream connection that the attempt has waited for."""
        attempt.sent_at = self._proxy.now()
        self._send(attempt, upstream)

    def connect_failed(self, attempt: Attempt, error: ConnectFailed) -> None:
        """Handle a failure to open an upstream connection."""
        if self._race is not None:
            self._race.failed(self._race.runner(attempt), error)
        else:
            self._attempt_failed(attempt, error)

    def _send(self, attempt: Attempt, upstream: UpstreamConnection) -> None:
        request, downstream, kept = self._request, self._downstream, self._body_buffer
        attempt.upstream = upstream
        if upstream.read_size and upstream.read_size != downstream.client.read_size:
            upstream.set_read_size(downstream.client.read_size)
        self._active_at = self._proxy.cached_time
        sink = cast(ResponseSink, self) if self._race is None else self._race.runner(attempt)
        if kept is None:
            upstream.send(request.head, sink, request.method)
        else:
            downstream.unhold()  # before the write, whose back-pressure must take precedence
            upstream.send(kept.behind(request.head), sink, request.method)
            kept.sent()
        if downstream.is_write_paused:
            upstream.pause_reading()

    # --- two attempts

    def hedge(self, late: Attempt, hedging: Hedging) -> None:
        """Start a hedged attempt at another endpoint, if one is allowed; the first response wins."""
        proxy, available = self._proxy, self._proxy.router.available
        others = hedging.others(late.assignment.state, available) if self._may_hedge(late) else []
        if not others or not proxy.router.has_room or not hedging.take(proxy.now()):
            return
        wanted = {state.id for state in others}
        avoided = frozenset(state.id for state in available if state.id not in wanted)
        facts = late.assignment.facts
        second = Attempt(self, proxy.router.route(
            RequestFacts(facts.method, facts.path, facts.region, facts.key, self._attempts, avoided)
        ))  # fmt: skip
        if proxy.canary is not None:
            second.arm = proxy.canary.take()
        self._attempts += 1
        self._tried |= {late.assignment.state.id, second.assignment.state.id}
        self._race = HedgeRace(proxy, cast(HedgedExchange, self), late, second)
        proxy.counts.hedged += 1
        pool = proxy.pools.by_id[second.assignment.state.id]
        upstream = pool.lease()
        if upstream is None:
            pool.wait(second)
        else:
            self._send(second, upstream)

    def _may_hedge(self, late: Attempt) -> bool:
        """Return whether the request may be hedged: complete, repeatable, and nothing sent to the client yet."""
        downstream, kept = self._downstream, self._body_buffer
        is_sent = self._is_complete and not downstream.is_held and downstream.offer is None
        is_repeatable = kept is None or not kept.is_spent
        is_waited_for = self._attempt is late and not (self._has_sent_interim or downstream.is_write_paused)
        return is_sent and is_repeatable and is_waited_for and self._race is None

    def continue_with(self, attempt: Attempt) -> None:
        """End hedging and continue with `attempt`."""
        self._attempt = attempt
        self._race = None
        if attempt.upstream is not None and self._downstream.is_write_paused:
            attempt.upstream.pause_reading()

    def _end_hedging(self, kind: OutcomeKind) -> None:
        """End hedging; the other attempt ends with outcome `kind`."""
        race, self._race = self._race, None
        if race is not None:
            race.end_other(cast(Attempt, self._attempt), kind)

    # --- flow

    def pause_response(self) -> None:
        """Apply the client's back-pressure: stop reading from the worker."""
        upstream = self._upstream
        if upstream is not None:
            upstream.pause_reading()

    def resume_response(self) -> None:
        """Resume reading from the worker after the client has caught up."""
        upstream = self._upstream
        if upstream is not None:
            self._active_at = self._proxy.cached_time
            upstream.resume_reading()

    @property
    def _upstream(self) -> UpstreamConnection | None:
        return self._attempt.upstream if self._attempt is not None else None

    # --- ends of an attempt

    def _attempt_failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """Retry a failed attempt where that is safe (RFC 9110 § 9.2.2), else send an error response."""
        self._settle(error.outcome, self._proxy.now())
        if isinstance(error, ConnectFailed):
            may_retry = self._has_another_try(attempt, needs_other=False)
        elif isinstance(error, MalformedResponse):  # the same endpoint would send the same
            may_retry = self._may_repeat(attempt, needs_other=True)
        else:
            may_retry = isinstance(error, ConnectionBroken) and self._may_repeat(attempt, needs_other=False)
        if may_retry:
            self._retry(attempt, needs_fresh=True)
        else:
            self._answer(error)

    def _retry(self, attempt: Attempt, *, needs_fresh: bool) -> None:
        self._tried |= {attempt.assignment.state.id}
        self._attempt = None
        self._needs_fresh = needs_fresh
        self._proxy.counts.retried += 1
        self.attempt()

    def _has_another_try(self, attempt: Attempt, *, needs_other: bool) -> bool:
        """Return whether another attempt is possible.

        The endpoint that failed is tried again only if no other is available, and only once.
        """
        retries, kept = self._proxy.retries, self._body_buffer
        if self._attempts > retries.limit or (kept is not None and kept.is_spent):
            return False
        tried = self._tried | {attempt.assignment.state.id}
        return (self._attempts == 1 and not needs_other) or has_other(self._proxy.router.available, tried)

    def _may_repeat(self, attempt: Attempt, *, needs_other: bool) -> bool:
        """Return whether a request that a worker may have received can be retried; draws on the retry budget."""
        proxy = self._proxy
        return (
            self._has_another_try(attempt, needs_other=needs_other)
            and proxy.retries.is_repeatable(self._request)
            and proxy.retries.budget.take(proxy.counts.requests, proxy.now())
        )

    def _release(self, *, is_clean: bool) -> None:
        """Give up the upstream connection: return it to its pool if `is_clean`, else close it."""
        if self._upstream is None:
            return
        cast(Attempt, self._attempt).release(is_clean)
        if self._downstream.is_held:
            self._downstream.unhold()

    def _settle(self, kind: OutcomeKind, now: float) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.settle(
                self._proxy.router, kind, self._status or None, now, self._bytes_in, self._bytes_out
            )
