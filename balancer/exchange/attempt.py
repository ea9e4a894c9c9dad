"""An attempt at a request by one endpoint: leases a connection, sends the request, passes the response on, is settled.

The exchange has picked the endpoint. It is called again when the attempt is complete or has failed, and decides what
follows. In between, the events of the upstream connection come here, and the response goes straight to the client.

An attempt is settled exactly once and gives up its connection exactly once, in any order of events. A settled attempt
has no reference to its exchange: a connection that becomes ready for it later returns to the pool.
"""

from __future__ import annotations

from typing import Final, cast

from balancer.clients.client_usage import Charge
from balancer.cluster.retry_rules import IDEMPOTENT, LEAST_BUSY
from balancer.config.schema.limits import BufferingLimits
from balancer.errors import (
    ConnectFailed,
    ForwardingError,
    MalformedResponse,
    UnsupportedByTransport,
    UpstreamError,
)
from balancer.exchange.exchange_state import AttemptState, End, ExchangeState
from balancer.exchange.responder import Responder
from balancer.exchange.routed_attempt import RoutedAttempt
from balancer.exchange.tunnel import Tunnel
from balancer.http.h1.fields import Framing
from balancer.http.h1.response_head import Response
from balancer.http.h1.upgrades import is_taken
from balancer.log.formats import NEW, REUSED
from balancer.upstream.request import ResponseSink, UpstreamRequest
from policies.facts import OutcomeKind, kind_of_answer

# Module constants, because an imported name or an attribute of a class is looked up anew each time.
CONNECTING: Final = AttemptState.CONNECTING
SENT: Final = AttemptState.SENT
BUFFERING: Final = AttemptState.BUFFERING
STREAMING: Final = AttemptState.STREAMING
WHOLE: Final = End.WHOLE
LENGTH: Final = Framing.LENGTH
REPEATABLE: Final = IDEMPOTENT
MAY_BE_BUSY: Final = LEAST_BUSY
ON_NEW: Final = NEW
ON_REUSED: Final = REUSED

BUFFERED_RESPONSE: Final = 16_384
"""Bytes of a body up to which a response of known length is buffered whole and sent to the client in one write.

Many workers write head and body separately, and one may fail in between. As long as the client has seen nothing, the
request can be retried elsewhere. A longer body is worth streaming, and would cost memory. A response is buffered until
the next sweep at most, so the head of a slow worker is delayed by a quarter of a second, once.
"""


class Attempt(RoutedAttempt):
    """An attempt at one endpoint; a hedged one has a `HedgedAttempt` for its `ResponseSink` until one has won."""

    exchange: ExchangeState | None = None  # None once no exchange waits for the attempt
    state: AttemptState = CONNECTING
    head = b""  # sent instead of the request's, unless it is b""
    client_stays = True  # the downstream connection is kept alive after the response
    was_refused = False  # the response was not taken over because of the bound on buffers
    added = b""  # lines of the response beside the worker's: of an authorisation, and of an explanation of the pick
    is_read = False  # there are such lines, or the fields of its response are edited or logged
    fields = b""  # of the response as they came, where they may be logged
    _unsent = 0  # unsent bytes of the request body at the last sweep
    _length = 0  # bytes of the response body, if it is streamed and their number is known
    _is_head_due = False  # the response's head has not been sent
    _out: list[bytes]  # body of the response that one read has brought: one write, one system call

    @property
    def is_awaiting(self) -> bool:
        """Whether an exchange waits for its response head."""
        return self.exchange is not None and self.first_byte_at is None

    # --- the upstream connection (`LeaseWaiter`)

    def connected(self, upstream: UpstreamRequest) -> None:
        """Send the request on the new connection, unless it has become late meanwhile."""
        exchange = self.exchange
        if exchange is None or exchange.race is not None or not exchange.is_late:
            super().connected(upstream)
            return
        upstream.release()
        error = self.cluster.queue.too_late(exchange.level, self.cluster.now())
        exchange.finish(End.ERROR, OutcomeKind.ABANDONED, error)

    def connect_failed(self, error: ConnectFailed) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if exchange.race is not None:
            exchange.race.failed(self, error)
        else:
            exchange.attempt_failed(self, error)

    def send(self, upstream: UpstreamRequest) -> None:
        exchange = cast(ExchangeState, self.exchange)
        request, downstream, kept = exchange.request, exchange.downstream, exchange.body_buffer
        self.upstream = upstream
        self.state = SENT
        self.connection = ON_REUSED if upstream.idle_since else ON_NEW
        if upstream.read_size or (downstream.is_stream and downstream.is_crowded):
            size = downstream.first_read_size
            if upstream.read_size != size:
                upstream.set_read_size(size)
        exchange.active_at = self.sent_at
        sink: ResponseSink = self if exchange.race is None else exchange.race.runner(self)
        head = self.head or request.head
        if self.assignment.endpoint.host:
            head = self.addressed(head, request.method)
        if exchange.rules.is_rpc:
            head = exchange.rules.head_for_worker(head, self.cluster.now())
        if kept is not None:
            downstream.unhold()  # before the write, whose back-pressure must take precedence
        upstream.send(head, sink, request.method, kept)
        if kept is not None:
            kept.sent()
            if exchange.pending is not None:
                exchange.sent()
        if downstream.is_write_paused:
            upstream.pause_reading()

    def upstream_paused(self) -> None:
        cast(ExchangeState, self.exchange).downstream.hold()

    def upstream_resumed(self) -> None:
        cast(ExchangeState, self.exchange).downstream.unhold()

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        """Pass on a final response of known length that came in one read: one write, one reading of the clock."""
        exchange = cast(ExchangeState, self.exchange)
        status, rules = response.status, exchange.rules
        if (status >= MAY_BE_BUSY or rules.is_rpc) and rules.retries(exchange, self, response, is_whole=True):
            return
        if exchange.downstream.pending_upgrade is not None and self._fails_to_switch(exchange, status):
            return
        now = exchange.active_at = self.cluster.now()
        if self.answer is not None:
            self.answer.whole(response, body, now)
            if self.answer.error is not None:
                self.response_failed(self.answer.error)
                return
        self.answered(status, now)
        self.client_stays = exchange.downstream.respond_whole(
            exchange.request, response, self._visible_fields(exchange, response), body, exchange.is_complete
        )
        self.bytes_out = len(body)
        if rules.is_rpc:
            rules.ended(self, b"")
        exchange.finish(WHOLE, kind_of_answer(status), None, now)

    def response_started(self, response: Response) -> None:
        """Pass on a response head, interim or final."""
        exchange, status = cast(ExchangeState, self.exchange), response.status
        request, rules = exchange.request, exchange.rules
        if (status >= MAY_BE_BUSY or rules.is_rpc) and rules.retries(
            exchange, self, response, is_whole=False
        ):
            return
        if status == 101 or (200 <= status < 300 and request.method == b"CONNECT"):
            self._switch(exchange, response)
            return
        if status < 200:
            self._send_interim(exchange, response)
            return
        if exchange.downstream.pending_upgrade is not None and self._fails_to_switch(exchange, status):
            return
        self.client_stays = exchange.downstream.begin_response(
            request, response, self._visible_fields(exchange, response), exchange.is_complete
        )
        exchange.active_at = self.cluster.now()
        self.answered(status, exchange.active_at)
        if self.answer is not None:
            self.answer.begin(response)
        self._out = []
        self._is_head_due = True
        self._length = response.length
        if (
            response.framing is LENGTH
            and not (response.is_bodiless or request.method == b"HEAD")
            and response.length <= BUFFERED_RESPONSE
            and exchange.is_complete
            and self.cluster.retries.limit > 0
            and request.method in REPEATABLE
        ):
            self.state = BUFFERING
            return
        self.state = STREAMING
        if exchange.body_buffer is not None:
            exchange.body_buffer.spend()

    def _visible_fields(self, exchange: ExchangeState, response: Response) -> bytes:
        """Return the fields of a final response as the client may see them, with the affinity cookie."""
        cluster, fields = self.cluster, response.block
        if cluster.reads_load or cluster.internal_fields is not None or self.is_read:
            fields = self._fields_of(exchange, response)
        if cluster.cookies is not None:
            client = exchange.downstream.client
            fields += cluster.cookies.cookie(exchange.request, client, self.assignment.state.id)
        return fields

    def _fields_of(self, exchange: ExchangeState, response: Response) -> bytes:
        """Return the response's fields as the client may see them; read the worker's load report."""
        cluster, fields = self.cluster, response.block
        if self.is_read:
            self.fields = fields
        if cluster.reads_load:
            self.read_load(response)
        if cluster.internal_fields is not None:
            fields = response.block_without(cluster.internal_fields)
        is_final = response.status >= 200 or response.status == 101
        return fields + self.added if self.added and is_final else fields

    def _send_interim(self, exchange: ExchangeState, response: Response) -> None:
        """Pass on a 1xx response (RFC 9110 § 15.2), but not to an HTTP/1.0 client. It extends no timeout."""
        fields = self._fields_of(exchange, response)
        if not exchange.request.fields.is_http10:
            exchange.downstream.send_interim(response, fields)

    def may_switch(self, response: Response) -> bool:
        exchange = cast(ExchangeState, self.exchange)
        is_pending = exchange.downstream.pending_upgrade is not None
        return is_pending and is_taken(exchange.request.fields.upgrade, response.block)

    def _fails_to_switch(self, exchange: ExchangeState, status: int) -> bool:
        """Fail instead of a 2xx that a client of HTTP/2 would take for the begin of its tunnel (RFC 8441 § 5)."""
        fails = exchange.downstream.is_stream and status < 300
        if fails:
            exchange.attempt_failed(
                self, UnsupportedByTransport(f"the worker answers a WebSocket by {status}")
            )
        return fails

    def _switch(self, exchange: ExchangeState, response: Response) -> None:
        """Switch protocols: hand both connections to a tunnel."""
        pending, upstream, cluster = exchange.downstream.pending_upgrade, self.upstream, self.cluster
        if pending is None or upstream is None:
            exchange.attempt_failed(self, MalformedResponse("a tunnel for a request without one"))
            return
        if not exchange.downstream.accepts_switch(exchange.request, response):
            exchange.attempt_failed(self, MalformedResponse("Sec-WebSocket-Accept does not match the key"))
            return
        fields = self._visible_fields(exchange, response)
        self.answered(response.status, cluster.now())
        self.upstream = None
        exchange.tunnel_began(response.status)
        Tunnel(cluster.tunnels, pending, upstream, exchange.tunnel_ended).begin(response, fields)

    def response_body(self, data: bytes) -> None:
        """Collect bytes of the response body, without framing; `response_paused` sends them."""
        exchange = cast(ExchangeState, self.exchange)
        self.bytes_out += len(data)
        exchange.active_at = self.cluster.now()
        self._out.append(data)
        if self.answer is not None:
            self.answer.came(data, exchange.active_at)

    def response_paused(self) -> None:
        """Send what a read has brought, and adapt the size of the next read to the client's pace."""
        if self.state is not STREAMING or not (self._out or self._is_head_due):
            return
        downstream = cast(ExchangeState, self.exchange).downstream
        self._sent_part(downstream, downstream.send_part(self._take_out()))

    def response_chunks(self, data: bytes, framed: bytes) -> None:
        """Send whole chunks as they came, to a client that gets chunks."""
        exchange = cast(ExchangeState, self.exchange)
        size = exchange.downstream.send_chunks(framed)
        if not size:
            self.response_body(data)
            self.response_paused()
            return
        self.bytes_out += len(data)
        exchange.active_at = self.cluster.now()
        if self.answer is not None:
            self.answer.came(data, exchange.active_at)
        self._sent_part(exchange.downstream, size)

    def _sent_part(self, downstream: Responder, size: int) -> None:
        """Note that all that has come was sent; the next read is one of `size` bytes."""
        upstream = self.upstream
        self._is_head_due = False
        if downstream.is_write_paused:
            self.pause()
        if upstream is not None and upstream.read_size != size:
            upstream.set_read_size(size)

    def _take_out(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def pause(self) -> None:
        """Stop reading from the worker while the client is slow, unless the response is taken over."""
        exchange, upstream, rules = self.exchange, self.upstream, self.cluster.buffering
        if exchange is None or upstream is None:
            return
        if rules is None or not self._is_taken_over(rules, exchange.downstream):
            upstream.pause_reading()

    def _is_taken_over(self, rules: BufferingLimits, downstream: Responder) -> bool:
        """Return whether the response is read on although its client is slow; charges what the client has not taken.

        One of known length is taken over once the rest of it can be kept: before that, its worker would not be free.
        """
        unsent = downstream.unsent
        if unsent + max(0, self._length - self.bytes_out) > rules.response:
            return False
        budget = self.cluster.process.buffer_budget
        charge = downstream.charge or Charge(budget)
        if charge.resize(unsent):
            downstream.charge = charge
            return True
        if not self.was_refused:
            self.was_refused = True
            budget.responses_streamed += 1
        return False

    def stop_buffering(self, exchange: ExchangeState) -> None:
        """Stop buffering the response: send what has come, and stream the rest."""
        self.state = STREAMING
        if exchange.body_buffer is not None:
            exchange.body_buffer.spend()
        self.response_paused()

    def discard_buffered(self) -> None:
        """Discard a buffered response that will not complete, as if it had not started."""
        if self.state is BUFFERING:
            self.state = SENT
            self.status = self.bytes_out = 0
            self._out = []

    def response_ended(self, trailers: bytes) -> None:
        """Send the rest of the response and end the exchange; `trailers` is a block of fields or b""."""
        exchange = cast(ExchangeState, self.exchange)
        if self.answer is not None:
            self.answer.end(self.cluster.now())
            if self.answer.error is not None:
                self.response_failed(self.answer.error)
                return
        visible = exchange.downstream.client.visible_trailers(trailers)
        if trailers and self.cluster.reads_load:
            self.load = self.cluster.reports.read(trailers) or self.load
        exchange.downstream.end_response(self._take_out(), visible)
        if exchange.rules.is_rpc:
            exchange.rules.ended(self, trailers)
        if exchange.downstream.charge is not None:
            exchange.downstream.charge.whole(exchange.downstream.unsent)
        exchange.finish(WHOLE, kind_of_answer(self.status))

    def cut(self, downstream: Responder) -> None:
        """End a response that breaks off so that the client sees it."""
        if 0 < self._length <= self.bytes_out:  # no byte is missing: its end would look complete
            downstream.abort()
        else:
            downstream.cut(self._take_out())

    def response_failed(self, error: UpstreamError) -> None:
        cast(ExchangeState, self.exchange).attempt_failed(self, error)

    def is_stalled(self, exchange: ExchangeState, now: float) -> bool:
        """Return whether the worker has taken nothing of the request body within the idle timeout."""
        unsent = self.upstream.unsent if self.upstream is not None else 0
        if unsent != self._unsent:
            self._unsent, exchange.active_at = unsent, now
        return now - exchange.active_at > self.cluster.timeouts.body_idle

    def has_last_event(self) -> bool:
        """Whether the last event of a stream has come, after which only the end of its body is missing."""
        answer = self.answer
        return answer is not None and self.state is STREAMING and answer.ends_early(self.cluster.now())

    def end(
        self,
        kind: OutcomeKind,
        error: ForwardingError | None = None,
        now: float = 0.0,
        *,
        is_clean: bool = False,
    ) -> None:
        """Give up the connection, to its pool if `is_clean`, and settle with outcome `kind`; `error` is the cause. A
        hedged attempt beside it ends, too. A repeated call does nothing."""
        exchange, upstream, bytes_in = self.exchange, self.upstream, 0
        if error is not None and self.span is not None:
            self.span.failed(error)
        if exchange is not None:
            self.exchange = None
            bytes_in = exchange.bytes_in
            if error is not None:
                exchange.rules.failed(error)
                exchange.unsent += isinstance(error, ConnectFailed) and error.is_prompt
            if exchange.race is not None:
                exchange.end_hedging(kind)
        self.release(is_clean)
        if exchange is not None and upstream is not None and exchange.downstream.is_held:
            exchange.downstream.unhold()
        if exchange is not None and kind is OutcomeKind.ABANDONED:
            self.left_at = exchange.downstream.ended_at
        self.settle(kind, now or self.cluster.now(), bytes_in)
