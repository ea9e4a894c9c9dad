"""Request/response exchange: one request, from its head to the last byte of its response.

An exchange routes the request, leases an upstream connection, sends the request, passes the response to the client, and
retries or hedges where that is safe. Nothing here awaits: every step is called by the event that makes it possible.
docs/design.md shows the states and their transitions.

Parts with rules of their own are separate: `attempt.py` (assignment and connection of one attempt), `body_buffer.py`
(request body kept for retries), `retries.py`, `hedged_attempts.py`, `wait_queue.py`, `admission.py`, `tunnel.py`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, cast

from balancer.errors import (
    ConnectFailed,
    ConnectionBroken,
    ForwardingError,
    MalformedResponse,
    RequestOverdue,
    RequestRejected,
    ResponseTimeout,
    Unserved,
    UpstreamError,
)
from balancer.exchange.attempt import Attempt
from balancer.exchange.body_buffer import BodyBuffer
from balancer.exchange.client_connection import HELD_BY_BODY
from balancer.exchange.retries import IDEMPOTENT, has_other
from balancer.exchange.state import State
from balancer.exchange.tunnel import Tunnel
from balancer.exchange.wait_queue import Waiter
from balancer.http1.chunks import chunk, last_chunk
from balancer.http1.fields import Framing
from balancer.http1.load_report import reported_load
from balancer.http1.request_head import Request
from balancer.http1.response_head import Response, outgoing_head
from balancer.http1.upgrades import is_taken
from balancer.upstream.bounded_reader import next_size
from balancer.upstream.pool import Pool
from balancer.upstream.request import UpstreamRequest
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import NONE_TRIED, OutcomeKind, RequestFacts
from policies.overload.wait_queue import Ticket

if TYPE_CHECKING:
    from balancer.exchange.admission import Admission
    from balancer.exchange.client_connection import ClientConnection
    from balancer.exchange.hedged_attempts import HedgeRace
    from balancer.exchange.proxy import Proxy


# Module constants, because an imported name or an attribute of a class is looked up anew each time.
NEW: Final = State.NEW
QUEUED: Final = State.QUEUED
CONNECTING: Final = State.CONNECTING
SENT: Final = State.SENT
BUFFERING: Final = State.BUFFERING
STREAMING: Final = State.STREAMING
ENDED: Final = State.ENDED
UNANSWERED: Final = (QUEUED, CONNECTING, SENT)
OK: Final = OutcomeKind.OK
ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS
ABANDONED: Final = OutcomeKind.ABANDONED
TUNNELLED: Final = OutcomeKind.TUNNELLED
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE
REPEATABLE: Final = IDEMPOTENT

BUFFERED_RESPONSE: Final = 16_384
"""Bytes of a body up to which a response of known length is buffered whole and sent to the client in one write.

Many workers write head and body separately, and one may fail in between. As long as the client has seen nothing, the
request can be retried elsewhere. A longer body is worth streaming, and would cost memory. A response is buffered until
the next sweep at most, so the head of a slow worker is delayed by a quarter of a second, once.
"""


class Exchange:
    """A request and its current attempt; two attempts while it is hedged.

    It is the `RequestHandler` of its downstream connection, the `ResponseSink` of its upstream connection, and a
    `Waiter` of the wait queue: `level` is its priority level and `deadline` the instant after which its response is
    useless, where admission control is on; `queued_at` is when it first entered the queue, `ticket` its current ticket.
    """

    # Not slots: most keep their defaults in most requests, and an attribute that is not set costs nothing.
    state: State = NEW
    level = 0
    deadline = inf
    queued_at = 0.0
    ticket: Ticket[Waiter] | None = None
    _attempt: Attempt | None = None  # the latest one; None while the request waits for an endpoint
    _attempts = 0  # attempts so far
    _race: HedgeRace | None = None  # while a hedged attempt runs beside `_attempt`
    _needs_fresh = False  # the next attempt opens a new connection, so as not to meet a second stale one
    _waits_for_worker = False  # no other endpoint may be tried: a slow worker has all the remaining time
    _started_at = 0.0
    _active_at = 0.0
    _body_buffer: BodyBuffer | None = None
    _unsent = 0  # unsent bytes of the request body at the last sweep
    _has_sent_interim = False  # a worker's interim response has been sent to the client
    _bytes_in = 0
    _bytes_out = 0
    _status = 0  # of the final response, 0 before it
    _to_client: Framing
    _out: list[bytes]  # response data of one read: one write, one system call
    _client_stays = True  # the downstream connection is kept alive after the response

    def __init__(self, proxy: Proxy, downstream: ClientConnection, request: Request) -> None:
        self._proxy = proxy
        self._downstream = downstream
        self._request = request
        self._is_complete = True  # the whole request has been received
        self._tried = NONE_TRIED
        if request.fields.has_body:
            self._is_complete = False
            self._body_buffer = BodyBuffer(proxy.retries.body)

    # --- the request

    @property
    def head(self) -> bytes:
        """Return the request head as received."""
        return self._request.raw

    def start(self) -> None:
        """Start the exchange: all earlier requests of the connection have been answered."""
        self._started_at = self._proxy.cached_time
        if self._proxy.admission is None or self._is_admitted(self._proxy.admission):
            self.attempt()

    def _is_admitted(self, admission: Admission) -> bool:
        """Return whether admission control accepts the request; if not, send the error response."""
        try:
            self.level, self.deadline = admission.admit(self._request.fields.stated)
        except ForwardingError as error:
            self._answer(error)
            return False
        return True

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
        kept, upstream = self._body_buffer, self._upstream
        if self.state is ENDED or kept is None:
            return
        kept.add(data)
        if upstream is not None:
            upstream.write(data)
            kept.sent()
        elif kept.size > self._proxy.limits.buffer:
            self._downstream.hold()

    # --- an attempt

    def attempt(self) -> None:
        """Pick an endpoint and lease an upstream connection, or join the wait queue."""
        proxy, request = self._proxy, self._request
        method, target = request.method, request.target
        # GET is the common case, and decoding costs more than comparing.
        name = "GET" if method == b"GET" else method.decode()
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
        except Overloaded:
            self._answer(proxy.queue.overloaded(self))
            return
        except NoEndpointAvailable:
            self._join_queue()
            return
        self._attempt = attempt = Attempt(self, assignment, proxy.canary)
        self.state = CONNECTING
        if explaining is not None:
            attempt.why = explaining.line
        self._attempts += 1
        is_idempotent = method in REPEATABLE
        hedges = proxy.hedges if is_idempotent and self._is_complete and self._attempts == 1 else None
        if hedges is not None:
            hedges.watch(attempt)
        pool = proxy.pools.by_id[assignment.state.id]
        if self._needs_fresh:
            pool.open(attempt)
            return
        self.lease(attempt, pool, is_idempotent)
        if hedges is not None and proxy.router.doubts(assignment.state):
            hedges.hedge(attempt)

    def lease(self, attempt: Attempt, pool: Pool, is_idempotent: bool) -> None:
        """Send the request on an idle connection of the endpoint, or wait for a new one."""
        upstream = pool.lease() if is_idempotent else pool.lease_quiet()
        if upstream is None:
            pool.wait(attempt)
        else:
            self._send(attempt, upstream)

    def connected(self, attempt: Attempt, upstream: UpstreamRequest) -> None:
        """Send the request on the upstream connection that the attempt has waited for."""
        attempt.sent_at = self._proxy.now()
        self._send(attempt, upstream)

    def connect_failed(self, attempt: Attempt, error: ConnectFailed) -> None:
        """Handle a failure to open an upstream connection."""
        if self._race is not None:
            self._race.failed(self._race.runner(attempt), error)
        else:
            self._attempt_failed(attempt, error)

    def _send(self, attempt: Attempt, upstream: UpstreamRequest) -> None:
        request, downstream, kept = self._request, self._downstream, self._body_buffer
        attempt.upstream = upstream
        if attempt is self._attempt:
            self.state = SENT
        if upstream.read_size and upstream.read_size != downstream.client.read_size:
            upstream.set_read_size(downstream.client.read_size)
        self._active_at = self._proxy.cached_time
        sink = self if self._race is None else self._race.runner(attempt)
        if kept is None:
            upstream.send(request.head, sink, request.method)
        else:
            downstream.unhold()  # before the write, whose back-pressure must take precedence
            upstream.send(kept.behind(request.head), sink, request.method)
            kept.sent()
        if downstream.is_write_paused:
            upstream.pause_reading()

    @property
    def _upstream(self) -> UpstreamRequest | None:
        return self._attempt.upstream if self._attempt is not None else None

    # --- the wait queue (`Waiter`)

    def _join_queue(self) -> None:
        proxy = self._proxy
        self.queued_at = self.queued_at or proxy.now()
        try:
            proxy.queue.join(self)
        except ForwardingError as error:
            self._answer(error)
        else:
            self.state = QUEUED

    def decline(self, error: Unserved) -> None:
        """Reject the request after it waited in vain."""
        self._answer(error)

    # --- hedging

    def may_hedge(self, late: Attempt) -> bool:
        """Return whether the request may be hedged: sent once, complete, repeatable, nothing sent to the client yet."""
        downstream, kept = self._downstream, self._body_buffer
        is_sent = self._is_complete and not downstream.is_held and downstream.pending_upgrade is None
        is_repeatable = kept is None or not kept.is_spent
        is_waited_for = self._attempt is late and not (self._has_sent_interim or downstream.is_write_paused)
        return is_sent and is_repeatable and is_waited_for and self._attempts == 1

    def hedged(self, race: HedgeRace, second: Attempt) -> None:
        """Note that a second attempt begins beside the current one."""
        self._attempts += 1
        self._tried |= {cast(Attempt, self._attempt).assignment.state.id, second.assignment.state.id}
        self._race = race

    def continue_with(self, attempt: Attempt) -> None:
        """End hedging and continue with `attempt`."""
        self._attempt = attempt
        self._race = None
        self.state = CONNECTING
        if attempt.upstream is not None:
            self.state = SENT
            if self._downstream.is_write_paused:
                attempt.upstream.pause_reading()

    def _end_hedging(self, kind: OutcomeKind) -> None:
        """End hedging; the other attempt ends with outcome `kind`."""
        race, self._race = self._race, None
        if race is not None:
            race.end_other(cast(Attempt, self._attempt), kind)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        """Pass on a final response of known length that came in one read: one write, one reading of the clock."""
        if response.status >= 500 and self._retries_status(response.status, is_whole=True):
            return
        now = self._proxy.now()
        head = self._final_head(response, now)
        self._bytes_out = len(body)
        self._downstream.write(head + body)
        self._complete(now)

    def response_started(self, response: Response) -> None:
        """Pass on a response head, interim or final."""
        status, request = response.status, self._request
        if status >= 500 and self._retries_status(status, is_whole=False):
            return
        if status == 101 or (200 <= status < 300 and request.method == b"CONNECT"):
            self._switch(response)
            return
        if status < 200:
            self._send_interim(response)
            return
        head = self._final_head(response, self._proxy.now())
        self._out = [head]
        if (
            self._to_client is LENGTH
            and response.length <= BUFFERED_RESPONSE
            and self._is_complete
            and self._proxy.retries.limit > 0
            and request.method in REPEATABLE
        ):
            self.state = BUFFERING
            return
        self.state = STREAMING
        if self._body_buffer is not None:
            self._body_buffer.spend()

    def _final_head(self, response: Response, now: float) -> bytes:
        """Return the response head for the client; note its status, its framing and whether the client stays."""
        request, proxy, attempt = self._request, self._proxy, cast(Attempt, self._attempt)
        fields, block = request.fields, response.block
        if proxy.reads_load or proxy.edits is not None or attempt.why:
            block = self._fields_of(response, attempt)
        self._client_stays = fields.keep_alive and self._is_complete and proxy.keeps_alive
        head, self._to_client = outgoing_head(
            response, block, request.method == b"HEAD", fields.is_http10, self._client_stays, proxy.date_line
        )
        self._status = response.status
        attempt.first_byte_at = now
        attempt.assignment.answered(now)
        return head

    def _fields_of(self, response: Response, attempt: Attempt) -> bytes:
        """Return the response's fields as the client may see them; read the worker's load report."""
        proxy, fields = self._proxy, response.block
        if proxy.reads_load:
            attempt.load = reported_load(fields)
        if proxy.edits is not None:
            fields = proxy.edits.fields_of(
                response, self._request, self._downstream.client, attempt.assignment
            )
        return fields + attempt.why if attempt.why and response.status >= 200 else fields

    def _send_interim(self, response: Response) -> None:
        """Pass on a 1xx response (RFC 9110 § 15.2), but not to an HTTP/1.0 client."""
        self._active_at = self._proxy.cached_time
        fields = self._fields_of(response, cast(Attempt, self._attempt))
        if not self._request.fields.is_http10:
            self._has_sent_interim = True
            self._downstream.write(response.line + fields + b"\r\n")

    def _retries_status(self, status: int, *, is_whole: bool) -> bool:
        """Retry a response whose status is in `retries.statuses`; return whether the request goes elsewhere.

        The client sees nothing of the response: only a head, or a whole response already received, is discarded.
        """
        attempt = cast(Attempt, self._attempt)
        if status not in self._proxy.retries.statuses or not self._may_repeat(attempt, needs_other=True):
            return False
        self._release(is_clean=is_whole and self._is_complete)
        attempt.settle(self._proxy.router, ERROR_STATUS, status, self._proxy.now(), self._bytes_in)
        self._retry(attempt, needs_fresh=False)
        return True

    def response_body(self, data: bytes) -> None:
        """Collect bytes of the response body, without framing; `response_paused` sends them."""
        self._bytes_out += len(data)
        self._active_at = self._proxy.cached_time
        self._out.append(chunk(data) if self._to_client is CHUNKED else data)

    def response_paused(self) -> None:
        """Send what a read has brought, and adapt the size of the next read to the client's pace."""
        if self.state is STREAMING and self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._downstream.write(data)
            downstream = self._downstream
            self._set_read_size(next_size(downstream.client.read_size, downstream.transport))

    def _set_read_size(self, size: int) -> None:
        self._downstream.client.read_size = size
        upstream = self._upstream
        if upstream is not None and upstream.read_size != size:
            upstream.set_read_size(size)

    def _stop_buffering(self) -> None:
        """Stop buffering the response: send what has come, and stream the rest."""
        self.state = STREAMING
        if self._body_buffer is not None:
            self._body_buffer.spend()
        self.response_paused()

    def response_ended(self, trailers: bytes) -> None:
        """Send the rest of the response and end the exchange; `trailers` is a block of fields or b""."""
        if self._to_client is CHUNKED:
            self._out.append(last_chunk(trailers))
        self._downstream.write(b"".join(self._out))
        self._complete(self._proxy.now())

    def response_failed(self, error: UpstreamError) -> None:
        """Handle a response that breaks off: retry, answer with an error, or cut it."""
        self._end_hedging(error.outcome)
        self._release(is_clean=False)
        if self.state is STREAMING:
            self._settle(error.outcome, self._proxy.now())
            self._cut(error)
        else:
            self._discard_buffered()
            self._attempt_failed(cast(Attempt, self._attempt), error)

    def _discard_buffered(self) -> None:
        """Discard a buffered response that will not complete, as if it had not started."""
        if self.state is BUFFERING:
            self.state = SENT
            self._status = self._bytes_out = 0
            self._out = []

    # --- tunnels

    def _switch(self, response: Response) -> None:
        """Switch protocols: hand both connections to a tunnel."""
        pending, attempt = self._downstream.pending_upgrade, cast(Attempt, self._attempt)
        upstream, proxy = attempt.upstream, self._proxy
        if pending is None or upstream is None or not is_taken(self._request, response):
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
            return
        fields = self._fields_of(response, attempt)
        now = attempt.first_byte_at = proxy.now()
        self._status = response.status
        attempt.assignment.answered(now)
        proxy.counts.responses[response.status] += 1
        attempt.upstream, self.state = None, ENDED
        Tunnel(proxy.tunnels, pending, upstream, self.tunnel_ended).begin(response, fields)

    def tunnel_ended(self, bytes_in: int, bytes_out: int) -> None:
        """Settle the exchange of a tunnel that has closed; arguments are the bytes from and to the client."""
        self._bytes_in, self._bytes_out = bytes_in, bytes_out
        self._settle(TUNNELLED, self._proxy.now())

    # --- back-pressure

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

    def upstream_paused(self) -> None:
        self._downstream.hold()

    def upstream_resumed(self) -> None:
        self._downstream.unhold()

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

    # --- timeouts

    def check(self, now: float) -> None:
        """Enforce the timeouts of the worker and of the wait queue; `now` is the cached time."""
        timeouts, state = self._proxy.timeouts, self.state
        waited = now - self._active_at
        if self._downstream.has_ended and self._may_ask:
            self._downstream.ask()
        if timeouts.total is not None and state is not ENDED and now - self._started_at > timeouts.total:
            self._overdue(timeouts.total)
        elif state is QUEUED:
            self._proxy.queue.check(self, now)
        elif state is SENT:
            self._check_worker(waited, now)
        elif state is STREAMING or state is BUFFERING:
            if state is BUFFERING and waited > 0:
                self._stop_buffering()
            if waited > timeouts.body_idle and not self._downstream.is_write_paused:
                self.response_failed(ResponseTimeout(f"the response stalled for {timeouts.body_idle:g} s"))

    @property
    def _may_ask(self) -> bool:
        """Whether an interim response may be sent: not to HTTP/1.0, nor after an upgrade offer or a response's head."""
        if self._request.fields.is_http10 or self._downstream.pending_upgrade is not None:
            return False
        return self.state in UNANSWERED

    def _check_worker(self, waited: float, now: float) -> None:
        """Enforce the timeouts of a worker that has not sent a response head; `waited` is in seconds."""
        timeouts = self._proxy.timeouts
        if self._is_complete and waited > timeouts.first_byte:
            self.response_failed(ResponseTimeout(f"no response within {timeouts.first_byte:g} s"))
        elif self._is_complete and timeouts.attempt is not None and waited > timeouts.attempt:
            self._attempt_timed_out()
        elif self._downstream.is_held & HELD_BY_BODY:
            self._check_worker_reads(now)

    def _attempt_timed_out(self) -> None:
        """Retry elsewhere after the attempt timeout; if that is not possible, wait on for this worker."""
        attempt = cast(Attempt, self._attempt)
        if self._waits_for_worker or self._race is not None:
            return
        if not self._may_repeat(attempt, needs_other=True):
            self._waits_for_worker = True
        else:
            self._release(is_clean=False)
            self._settle(ResponseTimeout.outcome, self._proxy.now())
            self._retry(attempt, needs_fresh=False)

    def _check_worker_reads(self, now: float) -> None:
        """Fail the response if the worker has taken none of the request body within the idle timeout."""
        upstream, body_idle = self._upstream, self._proxy.timeouts.body_idle
        unsent = upstream.unsent if upstream is not None else 0
        if unsent != self._unsent:
            self._unsent, self._active_at = unsent, now
        elif now - self._active_at > body_idle:
            self.response_failed(ResponseTimeout(f"the worker took nothing of the body for {body_idle:g} s"))

    # --- ends of the exchange

    def _complete(self, now: float) -> None:
        """End the exchange after the whole response has been written."""
        attempt, downstream = cast(Attempt, self._attempt), self._downstream
        attempt.release(is_clean=self._is_complete)
        if downstream.is_held:
            downstream.unhold()
        status = self._status
        kind = OK if status < 500 else ERROR_STATUS
        self._proxy.counts.responses[status] += 1
        attempt.settle(self._proxy.router, kind, status, now, self._bytes_in, self._bytes_out)
        self.state = ENDED
        downstream.exchange_ended(
            self._client_stays and self._is_complete and self._to_client is not UNTIL_CLOSE
        )

    def abandon(self) -> None:
        """Abandon the exchange because the client disconnected; the endpoint is not charged with a failure."""
        if self.state is ENDED:
            return
        self._leave_queue()
        self._proxy.counts.abandoned += 1
        if self.state is STREAMING:
            self._proxy.counts.responses[self._status] += 1
        self._end_hedging(ABANDONED)
        self._release(is_clean=False)
        self._discard_buffered()
        self.state = ENDED
        self._settle(ABANDONED, self._proxy.now())

    def reject(self, error: RequestRejected) -> None:
        """Reject a request whose body is malformed or incomplete; the worker must not take it for complete."""
        self._end_with(error, ABANDONED)

    def _overdue(self, total: float) -> None:
        """End the exchange after its total timeout."""
        error = RequestOverdue(f"not answered in full within {total:g} s")
        self._end_with(error, error.outcome)

    def _end_with(self, error: ForwardingError, kind: OutcomeKind) -> None:
        self._end_hedging(kind)
        self._release(is_clean=False)
        self._settle(kind, self._proxy.now())
        if self.state is STREAMING:
            self._cut(error)
        else:
            self._discard_buffered()
            self._answer(error)

    def _answer(self, error: ForwardingError) -> None:
        """Send an error response; nothing of a response has been sent to the client."""
        self._leave_queue()
        self._proxy.counts.count_error(error)
        stays = self._request.fields.keep_alive and self._is_complete and self._proxy.keeps_alive
        is_head = self._request.method == b"HEAD"
        self._downstream.write_error(error, self._request.id, stays=stays, is_head=is_head)
        # A body may have been received whole, and held the client, before an endpoint could take it.
        if stays and self._downstream.is_held:
            self._downstream.unhold()
        self.state = ENDED
        self._downstream.exchange_ended(stays)

    def _leave_queue(self) -> None:
        if self.state is QUEUED:
            self._proxy.queue.leave(self)

    def _cut(self, error: ForwardingError) -> None:
        """Abort a response that has started: the client must see that it is incomplete (RFC 9112 § 8)."""
        self._proxy.counts.count_error(error)
        self._proxy.counts.responses[self._status] += 1
        self.state = ENDED
        self._downstream.abort()
