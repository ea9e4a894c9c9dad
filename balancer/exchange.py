"""One client request, whatever it takes: route, lease, send, relay, retry, settle.

Rule of this file: nothing here awaits. Every step is called by the event that makes it possible, an assignment
is settled exactly once, and the connection goes back to its pool exactly once. What is kept of a request's
body is kept only as long as the request could still be sent to another endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from balancer.applicant import Applicant
from balancer.chunks import chunk, last_chunk
from balancer.errors import (
    ConnectFailed,
    ConnectionBroken,
    ForwardingError,
    MalformedResponse,
    RequestOverdue,
    RequestRejected,
    ResponseTimeout,
    UpstreamError,
)
from balancer.fields import Framing
from balancer.request_head import Request
from balancer.response_head import Response, outgoing_response
from balancer.tunnel import Tunnel
from balancer.upgrades import is_taken
from balancer.upstream import Upstream
from policies.errors import NoEndpointAvailable
from policies.facts import NOBODY, Outcome, OutcomeKind, RequestFacts
from policies.router import Assignment

if TYPE_CHECKING:
    from balancer.downstream import Downstream
    from balancer.unit import Unit

IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))  # RFC 9110 § 9.2.2

OK: Final = OutcomeKind.OK
ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS
ABANDONED: Final = OutcomeKind.ABANDONED
TUNNELLED: Final = OutcomeKind.TUNNELLED
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE


class Exchange(Applicant):
    """A request and its response. `is_finished`: nothing more will happen to it."""

    # Not slots: most of these keep their defaults in most requests, and what is not set costs nothing.
    is_finished = False
    _assignment: Assignment | None = None
    _upstream: Upstream | None = None
    _attempts = 0
    _started_at = 0.0
    _sent_at = 0.0
    _active_at = 0.0
    _body: list[bytes] | None = None  # framed, for sending and for sending again
    _body_size = 0
    _unsent = 0  # of it, at the last look
    _is_spent = False  # some of the body is gone, or a response has begun: it cannot be sent again
    _bytes_in = 0
    _bytes_out = 0
    _status = 0
    _first_byte_at: float | None = None
    _to_client: Framing
    _out: list[bytes]  # of a response that has started, from one read: one write, one system call
    _client_stays = True

    def __init__(self, unit: Unit, downstream: Downstream, request: Request) -> None:
        self._unit = unit
        self._downstream = downstream
        self._request = request
        self._is_complete = not request.fields.has_body  # the request has come in whole
        self._tried = NOBODY

    # --- the request

    def request_body(self, data: bytes) -> None:
        """Bytes of the body, without framing."""
        self._bytes_in += len(data)
        self._active_at = self._unit.coarse_now
        self._send_body(chunk(data) if self._request.fields.framing is CHUNKED else data)

    def request_ended(self, trailers: bytes) -> None:
        """The request has come in whole."""
        self._is_complete = True
        if self._request.fields.framing is CHUNKED:
            self._send_body(last_chunk(trailers))

    def _send_body(self, data: bytes) -> None:
        if self.is_finished:
            return
        if not self._is_spent:
            self._body = self._body or []
            self._body.append(data)
            self._body_size += len(data)
        if self._upstream is not None:
            self._upstream.write(data)
            self._bound_body()
        elif self._body_size > self._unit.limits.buffer:
            self._downstream.hold()

    def _bound_body(self) -> None:
        """A long body is streamed, not kept for a second attempt."""
        if self._body_size > self._unit.limits.buffer:
            self._spend()

    def _spend(self) -> None:
        self._body = None
        self._is_spent = True

    # --- an attempt

    def attempt(self) -> None:
        """Choose an endpoint and a connection to it."""
        unit, request = self._unit, self._request
        method, target = request.method, request.target
        key = None if unit.stickiness is None else unit.stickiness.key(request)
        facts = RequestFacts(
            method.decode(), target.decode("latin-1"), unit.home_region, key, self._attempts, self._tried
        )
        try:
            self._assignment = assignment = unit.router.route(facts)
        except NoEndpointAvailable:
            self._wait_for_room()
            return
        self._sent_at = assignment.routed_at
        pool = unit.pools.by_id[assignment.state.id]
        if self._attempts:
            pool.open(self)
            return
        upstream = pool.lease() if method in IDEMPOTENT else pool.lease_quiet()
        if upstream is None:
            pool.wait(self)
        else:
            self._send(upstream)

    def start(self) -> None:
        """It is this request's turn on its connection."""
        self._started_at = self._unit.coarse_now
        if self._unit.gate is None or self._is_let_in(self._unit.gate):
            self.attempt()

    def connected(self, upstream: Upstream) -> None:
        """Lessee: here is the connection that was waited for."""
        if self.is_finished or self._assignment is None:
            upstream.release()
        else:
            self._sent_at = self._unit.now()
            self._send(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        """Lessee: there will be no connection."""
        if not self.is_finished:
            self._attempt_failed(error)

    def _send(self, upstream: Upstream) -> None:
        request, downstream = self._request, self._downstream
        self._upstream = upstream
        self._active_at = self._unit.coarse_now
        if self._body is None:
            upstream.send(request.head, self, request.method)
        else:  # one write: two would be two packets, and two wake-ups of the worker
            upstream.send(b"".join([request.head, *self._body]), self, request.method)
            self._bound_body()
            downstream.unhold()
        if downstream.is_write_paused:
            upstream.pause_reading()

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        request, unit = self._request, self._unit
        fields = request.fields
        if not (fields.keep_alive and self._is_complete and unit.keeps_clients) or fields.is_http10:
            self.response_started(response)
            self.response_body(body)
            self.response_ended(b"")
            return
        # What follows comes to the same, with half the work and one look at the clock.
        status, block = response.status, response.block
        if unit.edits is not None:
            block = unit.edits.block_of(response, request, self._downstream.client, self._assignment)
        if not response.has_date:
            block += unit.date_line
        downstream = self._downstream
        downstream.write(b"".join((response.line, block, b"\r\n", body)))
        self._status = status
        self._bytes_out = len(body)
        self._first_byte_at = now = unit.now()
        self._release(is_clean=True)
        self._settle(OK if status < 500 else ERROR_STATUS, now)
        self.is_finished = True
        downstream.turn_ended(stays=True)

    def response_started(self, response: Response) -> None:
        status, request = response.status, self._request
        unit, fields = self._unit, request.fields
        self._client_stays = fields.keep_alive and self._is_complete and unit.keeps_clients
        if unit.edits is not None:
            response = unit.edits.of(response, request, self._downstream.client, self._assignment)
        if status == 101 or (200 <= status < 300 and request.method == b"CONNECT"):
            self._switch(response)
            return
        head, framing = outgoing_response(
            response, request.method == b"HEAD", fields.is_http10, self._client_stays, unit.date_line
        )
        if status < 200:  # RFC 9110 § 15.2: 1xx are passed on, but not to an HTTP/1.0 client
            self._active_at = unit.coarse_now
            if not fields.is_http10:
                self._downstream.write(head)
            return
        self._to_client = framing
        self._first_byte_at = unit.now()
        self._status = status
        self._spend()
        self._out = [head]

    def _switch(self, response: Response) -> None:
        """From here on there are bytes, not messages: leave them to a tunnel."""
        offer, upstream = self._downstream.offer, self._upstream
        if offer is None or upstream is None or not is_taken(self._request, response):
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
            return
        self._first_byte_at, self._status = self._unit.now(), response.status
        self._upstream, self.is_finished = None, True
        Tunnel(self._unit.tunnels, offer, upstream, self.tunnel_ended).begin(response)

    def tunnel_ended(self, bytes_in: int, bytes_out: int) -> None:
        """What the request became is over, and this many bytes passed from and to the client."""
        self._bytes_in, self._bytes_out = bytes_in, bytes_out
        self._settle(TUNNELLED, self._unit.now())

    def response_body(self, data: bytes) -> None:
        self._bytes_out += len(data)
        self._active_at = self._unit.coarse_now
        self._out.append(chunk(data) if self._to_client is CHUNKED else data)

    def response_paused(self) -> None:
        if self._status and self._out:
            self._downstream.write(b"".join(self._out))
            self._out.clear()

    def response_ended(self, trailers: bytes) -> None:
        if self._to_client is CHUNKED:
            self._out.append(last_chunk(trailers))
        self._downstream.write(b"".join(self._out))
        self._release(is_clean=self._is_complete)
        self._settle(OK if self._status < 500 else ERROR_STATUS, self._unit.now())
        self._finish(self._client_stays and self._is_complete and self._to_client is not UNTIL_CLOSE)

    def response_failed(self, error: UpstreamError) -> None:
        self._release(is_clean=False)
        if self._status:
            self._settle(error.outcome, self._unit.now())
            self._cut(error)
        else:
            self._attempt_failed(error)

    def upstream_paused(self) -> None:
        self._downstream.hold()

    def upstream_resumed(self) -> None:
        self._downstream.unhold()

    def pause_response(self) -> None:
        """The client cannot keep up: let the worker wait."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_response(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._active_at = self._unit.coarse_now
            self._upstream.resume_reading()

    # --- ends

    def abandon(self) -> None:
        """The client left. Not the endpoint's fault, and nothing for the next request to inherit."""
        if self.is_finished:
            return
        self.is_finished = True
        self._unit.counts.abandoned += 1
        self._leave_queue()
        self._release(is_clean=False)
        self._settle(ABANDONED, self._unit.now())

    def reject(self, error: RequestRejected) -> None:
        """The client's message will never be whole: the worker must not take it for one."""
        self._end_with(error, ABANDONED)

    def check(self, now: float) -> None:
        """The sweep: has the worker, or the queue, had its time? `now` is coarse."""
        timeouts = self._unit.timeouts
        waited = now - self._active_at
        if timeouts.total is not None and not self.is_finished and now - self._started_at > timeouts.total:
            self._overdue(timeouts.total)
            return
        if self._upstream is None:
            self._check_wait(now)
        elif self._status:
            if waited > timeouts.body_idle and not self._downstream.is_write_paused:
                self.response_failed(ResponseTimeout(f"the response stalled for {timeouts.body_idle:g} s"))
        elif self._is_complete and waited > timeouts.first_byte:
            self.response_failed(ResponseTimeout(f"no response within {timeouts.first_byte:g} s"))
        elif self._downstream.is_held:
            self._check_worker_reads(now)

    def _check_worker_reads(self, now: float) -> None:
        """Of a worker that is slow to take a body, something must have been taken within its time."""
        upstream, body_idle = self._upstream, self._unit.timeouts.body_idle
        unsent = upstream.transport.get_write_buffer_size() if upstream is not None else 0
        if unsent != self._unsent:
            self._unsent, self._active_at = unsent, now
        elif now - self._active_at > body_idle:
            self.response_failed(ResponseTimeout(f"the worker took nothing of the body for {body_idle:g} s"))

    def _overdue(self, total: float) -> None:
        """The request has had its time, wherever it was spent."""
        error = RequestOverdue(f"not answered in full within {total:g} s")
        self._end_with(error, error.outcome)

    def _end_with(self, error: ForwardingError, kind: OutcomeKind) -> None:
        self._release(is_clean=False)
        self._settle(kind, self._unit.now())
        if self._status:
            self._cut(error)
        else:
            self._answer(error)

    def _attempt_failed(self, error: UpstreamError) -> None:
        """Try once more where that is safe (RFC 9110 § 9.2.2), else tell the client."""
        assignment = self._assignment
        self._settle(error.outcome, self._unit.now())
        if assignment is not None and self._may_retry(error):
            self._attempts += 1
            self._tried |= {assignment.state.id}
            self._unit.counts.retried += 1
            self.attempt()
        else:
            self._answer(error)

    def _may_retry(self, error: UpstreamError) -> bool:
        if self._attempts >= self._unit.retries or self._is_spent:
            return False
        was_not_sent = isinstance(error, ConnectFailed)
        is_repeatable = self._request.method in IDEMPOTENT and isinstance(error, ConnectionBroken)
        return was_not_sent or is_repeatable

    def _release(self, *, is_clean: bool) -> None:
        """Part from the connection: back to its pool, or closed."""
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        if is_clean:
            upstream.release()
        else:
            upstream.close()
        if self._downstream.is_held:
            self._downstream.unhold()

    def _settle(self, kind: OutcomeKind, now: float) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            status = self._status or None
            outcome = Outcome(
                kind, status, self._sent_at, self._first_byte_at, now, self._bytes_in, self._bytes_out
            )
            self._unit.router.settle(assignment, outcome)

    def _answer(self, error: ForwardingError) -> None:
        """Nothing of a response went down yet: say what happened in our own words."""
        self._leave_queue()
        self._unit.counts.count_error(error)
        stays = self._request.fields.keep_alive and self._is_complete and self._unit.keeps_clients
        is_head = self._request.method == b"HEAD"
        self._downstream.write_error(error, self._request.id, stays=stays, is_head=is_head)
        self._finish(stays)

    def _cut(self, error: ForwardingError) -> None:
        """A response that began and cannot end: the client must see that it is not whole (RFC 9112 § 8)."""
        self._unit.counts.count_error(error)
        self.is_finished = True
        self._downstream.abort()

    def _finish(self, stays: bool) -> None:
        self.is_finished = True
        self._downstream.turn_ended(stays)
