"""Request/response exchange: pass the response to the client, and end the exchange.

Nothing here awaits: every step is called by the event that makes it possible, and every end passes one of the methods
below `ends`. `forwarding.py` routes and sends the request.
"""

from __future__ import annotations

from typing import Final, cast

from balancer.downstream.client_connection import HELD_BY_BODY
from balancer.errors import (
    ForwardingError,
    MalformedResponse,
    RequestOverdue,
    RequestRejected,
    ResponseTimeout,
    UpstreamError,
)
from balancer.exchange.attempt import Attempt
from balancer.exchange.forwarding import REPEATABLE, ForwardedExchange
from balancer.exchange.tunnel import Tunnel
from balancer.http1.chunks import chunk, last_chunk
from balancer.http1.fields import Framing
from balancer.http1.load_report import reported_load
from balancer.http1.response_head import Response, outgoing_response
from balancer.http1.upgrades import is_taken
from balancer.upstream.bounded_reader import next_size
from policies.routing.facts import OutcomeKind

OK: Final = OutcomeKind.OK
ERROR_STATUS: Final = OutcomeKind.ERROR_STATUS
ABANDONED: Final = OutcomeKind.ABANDONED
TUNNELLED: Final = OutcomeKind.TUNNELLED
LENGTH: Final = Framing.LENGTH
CHUNKED: Final = Framing.CHUNKED
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE

BUFFERED_RESPONSE: Final = 16_384
"""Bytes of a body up to which a response of known length is buffered whole and sent to the client in one write.

Many workers write head and body separately, and one may fail in between. As long as the client has seen nothing, the
request can be retried elsewhere. A longer body is worth streaming, and would cost memory. A response is buffered until
the next sweep at most, so the head of a slow worker is delayed by a quarter of a second, once.
"""


class Exchange(ForwardedExchange):
    """A request/response exchange; receives the response as a `ResponseSink`."""

    # Not slots: most keep their defaults in most requests, and an attribute that is not set costs nothing.
    _waits_for_worker = False  # no other endpoint may be tried: a slow worker has all the remaining time
    _unsent = 0  # unsent bytes of the request body at the last sweep
    _to_client: Framing
    _out: list[bytes]  # response data of one read: one write, one system call
    _client_stays = True
    _is_buffered = False  # a response has started and is buffered whole; it can still be retried elsewhere

    # --- ResponseSink

    def response_whole(self, response: Response, body: bytes) -> None:
        request, proxy = self._request, self._proxy
        fields, status = request.fields, response.status
        if status >= 500 and self._is_refused(status, is_whole=True):
            return
        if not (fields.keep_alive and self._is_complete and proxy.keeps_alive) or fields.is_http10:
            self._pass_on(response)
            self.response_body(body)
            self.response_ended(b"")
            return
        # Fast path: same result as the general path, at half the work and with one clock read.
        block = response.block
        attempt = cast(Attempt, self._attempt)
        if proxy.reads_load:
            attempt.load = reported_load(block)
        if proxy.edits is not None:
            block = proxy.edits.block_of(response, request, self._downstream.client, attempt.assignment)
        if attempt.why:
            block += attempt.why
        if not response.has_date:
            block += proxy.date_line
        downstream = self._downstream
        downstream.write(b"".join((response.line, block, b"\r\n", body)))
        self._status = status
        self._bytes_out = size = len(body)
        attempt.first_byte_at = now = proxy.now()
        attempt.release(is_clean=True)
        if downstream.is_held:
            downstream.unhold()
        kind = OK if status < 500 else ERROR_STATUS
        attempt.settle(proxy.router, kind, status, now, self._bytes_in, size)
        self.is_finished = True
        downstream.exchange_ended(stays=True)

    def response_started(self, response: Response) -> None:
        if response.status < 500 or not self._is_refused(response.status, is_whole=False):
            self._pass_on(response)

    def _is_refused(self, status: int, *, is_whole: bool) -> bool:
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

    def _pass_on(self, response: Response) -> None:
        """Send a response head, interim or final, to the client."""
        status, request = response.status, self._request
        proxy, fields = self._proxy, request.fields
        self._client_stays = fields.keep_alive and self._is_complete and proxy.keeps_alive
        if proxy.reads_load:
            cast(Attempt, self._attempt).load = reported_load(response.block)
        if proxy.edits is not None:
            response = proxy.edits.of(
                response, request, self._downstream.client, cast(Attempt, self._attempt).assignment
            )
        why = cast(Attempt, self._attempt).why
        if why and status >= 200:
            response = response.with_block(response.block + why)
        if status == 101 or (200 <= status < 300 and request.method == b"CONNECT"):
            self._switch(response)
            return
        head, framing = outgoing_response(
            response, request.method == b"HEAD", fields.is_http10, self._client_stays, proxy.date_line
        )
        if status < 200:  # RFC 9110 § 15.2: 1xx are passed on, but not to an HTTP/1.0 client
            self._active_at = proxy.cached_time
            if not fields.is_http10:
                self._has_sent_interim = True
                self._downstream.write(head)
            return
        self._to_client = framing
        cast(Attempt, self._attempt).first_byte_at = proxy.now()
        self._status = status
        self._out = [head]
        self._is_buffered = (
            framing is LENGTH
            and response.length <= BUFFERED_RESPONSE
            and self._is_complete
            and proxy.retries.limit > 0
            and request.method in REPEATABLE
        )
        if self._body_buffer is not None and not self._is_buffered:
            self._body_buffer.spend()

    def _switch(self, response: Response) -> None:
        """Switch protocols: hand both connections to a tunnel."""
        offer, attempt = self._downstream.offer, cast(Attempt, self._attempt)
        upstream = attempt.upstream
        if offer is None or upstream is None or not is_taken(self._request, response):
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
            return
        attempt.first_byte_at, self._status = self._proxy.now(), response.status
        attempt.upstream, self.is_finished = None, True
        Tunnel(self._proxy.tunnels, offer, upstream, self.tunnel_ended).begin(response)

    def tunnel_ended(self, bytes_in: int, bytes_out: int) -> None:
        """Settle the exchange of a tunnel that has closed; arguments are the bytes from and to the client."""
        self._bytes_in, self._bytes_out = bytes_in, bytes_out
        self._settle(TUNNELLED, self._proxy.now())

    def response_body(self, data: bytes) -> None:
        self._bytes_out += len(data)
        self._active_at = self._proxy.cached_time
        self._out.append(chunk(data) if self._to_client is CHUNKED else data)

    def response_paused(self) -> None:
        if self._status and self._out and not self._is_buffered:
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
        self._is_buffered = False
        if self._body_buffer is not None:
            self._body_buffer.spend()
        self.response_paused()

    def _discard_buffered(self) -> None:
        """Discard a buffered response that will not complete, as if it had not started."""
        if self._is_buffered:
            self._is_buffered = False
            self._status = self._bytes_out = 0
            self._out = []

    def response_ended(self, trailers: bytes) -> None:
        if self._to_client is CHUNKED:
            self._out.append(last_chunk(trailers))
        self._downstream.write(b"".join(self._out))
        self._release(is_clean=self._is_complete)
        self._settle(OK if self._status < 500 else ERROR_STATUS, self._proxy.now())
        self._finish(self._client_stays and self._is_complete and self._to_client is not UNTIL_CLOSE)

    def response_failed(self, error: UpstreamError) -> None:
        self._end_hedging(error.outcome)
        self._release(is_clean=False)
        self._discard_buffered()
        if self._status:
            self._settle(error.outcome, self._proxy.now())
            self._cut(error)
        else:
            self._attempt_failed(cast(Attempt, self._attempt), error)

    def upstream_paused(self) -> None:
        self._downstream.hold()

    def upstream_resumed(self) -> None:
        self._downstream.unhold()

    # --- ends

    def abandon(self) -> None:
        """Abandon the exchange because the client disconnected; the endpoint is not charged with a failure."""
        if self.is_finished:
            return
        self.is_finished = True
        self._proxy.counts.abandoned += 1
        self._leave_queue()
        self._end_hedging(ABANDONED)
        self._release(is_clean=False)
        self._discard_buffered()
        self._settle(ABANDONED, self._proxy.now())

    def reject(self, error: RequestRejected) -> None:
        """Reject a request whose body is malformed or incomplete; the worker must not take it for complete."""
        self._end_with(error, ABANDONED)

    def check(self, now: float) -> None:
        """Enforce the timeouts of the worker and of the wait queue; `now` is the cached time."""
        timeouts = self._proxy.timeouts
        waited = now - self._active_at
        if timeouts.total is not None and not self.is_finished and now - self._started_at > timeouts.total:
            self._overdue(timeouts.total)
            return
        if self._upstream is None:
            self._check_wait(now)
        elif self._status:
            if self._is_buffered and waited > 0:
                self._stop_buffering()
            if waited > timeouts.body_idle and not self._downstream.is_write_paused:
                self.response_failed(ResponseTimeout(f"the response stalled for {timeouts.body_idle:g} s"))
        elif self._is_complete and waited > timeouts.first_byte:
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

    def _overdue(self, total: float) -> None:
        """End the exchange after its total timeout."""
        error = RequestOverdue(f"not answered in full within {total:g} s")
        self._end_with(error, error.outcome)

    def _end_with(self, error: ForwardingError, kind: OutcomeKind) -> None:
        self._end_hedging(kind)
        self._release(is_clean=False)
        self._settle(kind, self._proxy.now())
        self._discard_buffered()
        if self._status:
            self._cut(error)
        else:
            self._answer(error)

    def _answer(self, error: ForwardingError) -> None:
        """Send an error response; nothing of a response has been sent to the client."""
        self._leave_queue()
        self._proxy.counts.count_error(error)
        stays = self._request.fields.keep_alive and self._is_complete and self._proxy.keeps_alive
        is_head = self._request.method == b"HEAD"
        self._downstream.write_error(error, self._request.id, stays=stays, is_head=is_head)
        if (
            stays and self._downstream.is_held
        ):  # held by a body that was complete before an endpoint could take it
            self._downstream.unhold()
        self._finish(stays)

    def _cut(self, error: ForwardingError) -> None:
        """Abort a response that has started: the client must see that it is incomplete (RFC 9112 § 8)."""
        self._proxy.counts.count_error(error)
        self.is_finished = True
        self._downstream.abort()

    def _finish(self, stays: bool) -> None:
        self.is_finished = True
        self._downstream.exchange_ended(stays)
