"""Downstream connection (HTTP/1.1): parse requests, answer them in order, close.

Each request gets a handler. Handlers answer in the order of their requests, even if pipelined (RFC 9112 § 9.3.2). Data
behind a request is parsed when that request has been answered and the client has taken the response. Until then it is
kept as bytes (`pipelined.py`) and reading pauses, so a client can occupy the memory of one read. Malformed input is
answered once, then the connection closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from balancer.clients.client_usage import HELD_BY_PIPELINE, HELD_BY_REFUSAL, HELD_BY_TURN
from balancer.cluster.cluster import Cluster
from balancer.downstream.dispatch import AdminExchanges, handler_of
from balancer.downstream.http1_responder import Http1Responder
from balancer.downstream.pipelined import PipelinedBytes
from balancer.errors import CLIENT_LEFT, BodyTooLarge, MalformedBody, RequestRejected, body_too_large
from balancer.exchange.exchange import Exchange
from balancer.exchange.responder import ClientSide, RequestHandler
from balancer.exchange.tunnel import PendingUpgrade
from balancer.http.h1.body import Body
from balancer.http.h1.client import HTTP11
from balancer.http.h1.request_head import Request
from balancer.http.h1.request_reader import RequestReader
from balancer.http.h2.reset_counts import REFUSED, refusal_delay
from balancer.routes.own_response import Refusal
from balancer.routes.table import RouteTable
from balancer.upstream.unread import has_unread

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"
"""Beginning of a connection in HTTP/2 (RFC 9113 § 3.4), which ends like a head."""


class Http1Connection(Http1Responder):
    """A client's HTTP/1.1 connection; the protocol of its transport."""

    def __init__(
        self,
        cluster: Cluster,
        admin_exchange: AdminExchanges,
        routes: RouteTable | None = None,
        begin_http2: Callable[[], ClientSide] | None = None,
    ) -> None:
        """`begin_http2` makes the protocol of a client that begins with HTTP/2; None: HTTP/2 is not spoken."""
        super().__init__(cluster)
        self._routes = routes
        self._begin_http2 = begin_http2
        self._admin_exchange = admin_exchange
        self._reader: RequestReader | None = None  # None: nothing more is read
        self._body: Body | None = None  # body reader of the request being received, once its head is complete
        self._unstarted: RequestHandler | None = None  # started at the end of the current read
        self._pipelined: PipelinedBytes | None = None  # None unless the client pipelines
        self.ends_late = False
        self._keeps_alive = True  # keep-alive after the request being received
        self.is_begun = False  # a request has come

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(transport, HTTP11)
        self.write = self.transport.write
        self._reader = RequestReader(self.client, self._cluster.limits, self._process.fresh_id)
        self.usage = self._process.connected(self, self.client.address)

    def apply(self) -> None:
        super().apply()
        if self._reader is not None:
            self._reader.apply(self.client, self._cluster.limits)

    def data_received(self, data: bytes) -> None:
        if self._reader is None:  # lingering close: input is dropped
            return
        if self._body is None:
            if self._answering is not None or self.is_write_paused or self._pipelined is not None:
                self._keep(data)
                return
            data = self._read_head(data)
        if data and self._body is not None:
            if not self._body.is_late:
                self._body.parts_left = self._process.turns.at_once
            data = self._read_body(data)
        if data:
            self._keep(data)
        if self._unstarted is not None:
            self._start_late()

    def take_turn(self, steps: int) -> int:
        body = self._body
        if body is None or self._reader is None:  # the rest of the body is not read
            self._process.turns.end(self)
            return 0
        body.parts_left = steps
        rest = self._read_body(b"")
        if rest:
            self._keep(rest)
        if not body.is_late:
            self._process.turns.end(self)
        return steps - body.parts_left

    def _start_late(self) -> None:
        handler, self._unstarted = self._unstarted, None
        if handler is not None:
            handler.start()

    def _keep(self, data: bytes) -> None:
        """Keep pipelined data until earlier requests are answered."""
        if self._pipelined is not None:
            self._pipelined.add(data)
        elif self._reader is not None:
            self._pipelined = PipelinedBytes(data, self._cluster.now())
            self.hold(HELD_BY_PIPELINE)
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Schedule `_read_ahead` for the next loop iteration: called directly, immediate answers would nest as deep as
        the client pipelines."""
        if self._may_begin:
            asyncio.get_running_loop().call_soon(self._read_ahead)

    @property
    def _may_begin(self) -> bool:
        return self._answering is None and not self.is_write_paused

    def _read_ahead(self) -> None:
        """Begin the next pipelined request, if its predecessor has been answered."""
        ahead, reader = self._pipelined, self._reader
        if ahead is None or reader is None or not self._may_begin:
            return
        self._pipelined = None  # restored below if anything is left
        self.came_at = ahead.since
        request = None
        try:
            request = ahead.next(reader)
            if request is not None:
                self.head_at = 0.0
                self._begin(self._cluster, request, reader)
        except RequestRejected as error:
            self._refuse(error, reader.head if request is None else request.raw)
        if request is None:
            if self._reader is not None and not ahead.is_empty:  # an incomplete head
                ahead.add(self._read_head(ahead.take_all()))
        elif request.fields.is_offer:
            self._hold_for_upgrade(reader, b"")
        while self._body is not None and not ahead.is_empty:
            data = ahead.take_all() if self._body.is_late else ahead.take()
            ahead.put_back(len(self._read_body(data)))
        self.came_at = 0.0
        if self._unstarted is not None:
            self._start_late()
        if self._reader is None or ahead.is_empty:
            self._ahead_is_read(ahead)
            return
        self._pipelined = ahead
        if self._answering is None:  # answered immediately
            self._go_on_soon()

    def _ahead_is_read(self, ahead: PipelinedBytes) -> None:
        """Finish reading pipelined data: resume reading, or give the rest to a pending upgrade."""
        if self.pending_upgrade is not None:
            self.pending_upgrade.take_over(ahead.take_all(), ahead.has_ended)
        self.unhold(HELD_BY_PIPELINE)
        if ahead.has_ended and self._reader is not None and not self.eof_received():
            self.transport.close()

    def _read_head(self, data: bytes) -> bytes:
        """Parse a request head. Returns the bytes that follow it."""
        reader = cast(RequestReader, self._reader)
        has_begun = bool(reader.head)
        request = None
        try:
            request = reader.read(data)
            if request is None:
                if not has_begun:  # the head timeout starts with its first byte
                    self.idle_since = self._cluster.now()
                    self.head_at = self.came_at or self._cluster.now()
                return b""
            if not has_begun:
                self.head_at = 0.0
            self._begin(self._cluster, request, reader)
        except RequestRejected as error:
            if not (reader.head.startswith(PREFACE) and self._switch_to_http2(reader.head + reader.rest)):
                self._refuse(error, reader.head if request is None else request.raw)
            return b""
        rest = reader.rest
        if rest:
            reader.rest = b""  # or that part of a body would be kept until the next request
        return self._hold_for_upgrade(reader, rest) if request.fields.is_offer else rest

    def _switch_to_http2(self, data: bytes) -> bool:
        """Continue in HTTP/2, if it is the first that the client says. Over TLS, ALPN has decided already."""
        if self._begin_http2 is None or self.is_begun or self.client.proto != b"http":
            return False
        process = self._process
        if process.resets and process.resets.refuses(self.client.address, process.now()):
            process.counts.http2_connections += 1
            self._reader = None
            self.hold(HELD_BY_REFUSAL)
            delay = refusal_delay(process.counts.http2_connections, self.usage.holders)
            asyncio.get_running_loop().call_later(delay, self._refuse_http2)
            return True
        protocol = self._begin_http2()
        protocol.accepted_from = self.accepted_from
        process.forget(self)
        process.counts.connections -= 1  # the same one
        self._reader = None
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(data)
        return True

    def _refuse_http2(self) -> None:
        """Refuse HTTP/2 without a session, which would cost more."""
        if not self.transport.is_closing():
            self._process.counts.http2_floods += 1
            self.transport.write(REFUSED)
            self.transport.close()

    def _hold_for_upgrade(self, reader: RequestReader, rest: bytes) -> bytes:
        """Hold the data behind a request with an upgrade offer until the offer is answered."""
        if not isinstance(self._answering, Exchange):  # answered immediately, or an admin request
            return rest
        self._reader = None
        self.pending_upgrade = PendingUpgrade(self, partial(self._resume_http, reader), rest)
        return b""

    def _resume_http(self, reader: RequestReader, early: bytes) -> None:
        """Resume HTTP after a declined upgrade; `early` is the data that followed the offer."""
        reader.apply(self.client, self._cluster.limits)
        self._reader = reader
        if early:
            self._keep(early)

    def _read_body(self, data: bytes) -> bytes:
        """Feed the request body. Returns the bytes that follow it."""
        body = cast(Body, self._body)
        self.idle_since = self._cluster.now()
        try:
            piece = body.feed(data)
        except BodyTooLarge as error:
            self._reject(RequestRejected(413, "body_too_large", str(error)))
            return b""
        except MalformedBody as error:
            self._reject(RequestRejected(400, "malformed_body", str(error)))
            return b""
        if piece and self._answering is not None:
            self._answering.request_body(piece)
        if body.is_ended:
            self._body = None
            if self._answering is not None:
                self._reader = self._reader if self._keeps_alive else None
                self._answering.request_ended(body.trailers)
        elif body.is_late:
            self._process.turns.wait(self)
        return body.rest

    def eof_received(self) -> bool:
        """Handle the client's FIN: it may half-close and still read, so finish the response, then close; unless its
        cluster takes it for the end of the client."""
        if self.is_held & HELD_BY_TURN:
            self.ends_late = True
            return True
        self.ended_at = self._cluster.now()
        if self._pipelined is not None:  # a paused TLS transport still reports its end
            self.has_ended = self._pipelined.has_ended = True
            return True
        if self._answering is None or self._body is not None or self._linger_until is not None:
            return False
        handler = self._answering
        if isinstance(handler, Exchange) and not handler.cluster.half_close:
            handler.abandon(CLIENT_LEFT)  # now: a close waits until all that was written is sent
            return False
        self._reader = None
        self.has_ended = True
        if isinstance(handler, Exchange):
            handler.client_ended(self.ended_at)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._process.forget(self)
        self._reader = self._pipelined = None
        handler, self._answering = self._answering, None
        if handler is not None:
            handler.abandon(self.cut_by)
        self.pending_upgrade = None  # which refers to this
        self.uncharge()
        self._process.client_left()

    def _taken(self) -> None:
        if self._pipelined is not None:
            self._go_on_soon()

    # --- requests

    def _begin(self, cluster: Cluster, request: Request, reader: RequestReader) -> None:
        """Begin a request whose head is complete, at `cluster` or at the one that its route leads to."""
        self.is_begun = True
        handler, limit = handler_of(cluster, self, request, self._admin_exchange, self._routes)
        has_body = request.fields.has_body
        if has_body:
            self._body = reader.body(request, limit)
            self._body.parts_left = self._process.turns.at_once
            self.idle_since = cluster.now()  # the wait for the body starts
            self._keeps_alive = request.fields.keep_alive
            self._answering = self._unstarted = handler  # sent with the body in this read
            if limit is not None and request.fields.length > limit:
                self._reject(body_too_large(limit))
            return
        if not request.fields.keep_alive:
            self._reader = None
        self._answering = handler
        handler.start()

    def exchange_ended(self, stays: bool, now: float = 0.0) -> None:
        self._answering = None
        self.idle_since = now or self._cluster.now()
        if not stays or self._reader is None:
            if self.pending_upgrade is None or not self.pending_upgrade.withdraw(stays):
                self._finish()
        elif self._pipelined is not None:
            asyncio.get_running_loop().call_soon(self._read_ahead)

    # --- ends

    def check(self, now: float) -> None:
        timeouts = self._cluster.timeouts
        quiet = now - self.idle_since
        if self._linger_until is not None:
            self._check_linger(now, quiet, self._linger_until)
        elif self.is_write_paused or self.transport.is_closing():
            self._check_reader(now, quiet)
        elif self._answering is None and self._reader is not None and self._reader.head:
            self.end_late_head(now, timeouts.head)
        elif self._answering is None:
            if quiet > self._process.idle_limit:
                self.close_if_idle(now, self._process.idle_limit)
        elif self._body is not None and not self.is_held and quiet > timeouts.request_idle:
            self._reject(RequestRejected(408, "body_timeout", f"no body for {timeouts.request_idle:g} s"))
        else:
            self._answering.check(now)

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        limit = longer_than if self.is_begun else max(longer_than, self._process.first_request)
        has_begun = self._reader is not None and bool(self._reader.head)
        is_busy = self._answering is not None or self._pipelined is not None or has_begun
        is_idle = not is_busy and self._linger_until is None
        return is_idle and now - self.idle_since > limit and self._close_idle()

    def end_late_head(self, now: float, longer_than: float) -> bool:
        reader = self._reader
        if reader is None or not reader.head or self._answering is not None:
            return False
        if now - self.idle_since <= longer_than:
            return False
        error = RequestRejected(408, "head_timeout", f"no whole head within {longer_than:g} s")
        self._refuse(error, reader.head)
        return True

    def _close_idle(self) -> bool:
        """Close an idle connection, unless a request has arrived. Returns whether it was closed.

        Closing with an unread request would give the client an error, without knowledge of whether the request was
        processed (RFC 9112 § 9.6).
        """
        if has_unread(self.transport):
            return False
        self.transport.close()
        return True

    def detach(self) -> asyncio.Transport:
        """Detach the transport, to be used with another protocol."""
        self._process.forget(self)
        self._answering = self._reader = self._pipelined = None
        self.is_held = 0
        self.transport.resume_reading()
        self._process.client_left()
        return self.transport

    def _finish(self) -> None:
        """Close; linger if the client may still be sending (RFC 9112 § 9.6)."""
        self._reader = self._pipelined = None
        may_be_sending = self._ignores_input or self._body is not None or self.is_held
        if not may_be_sending and self._linger_until is None:
            self.transport.close()
        elif not self.transport.is_closing():
            self._linger_until = self._cluster.now() + self._cluster.timeouts.linger
            self.unhold(self.is_held)
            self.transport.write_eof()

    def _refuse(self, error: RequestRejected, head: bytes) -> None:
        """Refuse unparsable or unacceptable input: respond with an error, then close."""
        self._reader = self._body = None
        self._ignores_input = True
        self._answering = refusal = Refusal(self._cluster, self, error, head, self._routes)
        refusal.start()

    def _reject(self, error: RequestRejected) -> None:
        """Reject the request being received because its body is malformed or overdue."""
        self._reader = self._body = self._unstarted = None
        self._ignores_input = True
        if self._answering is not None:
            self._answering.reject(error)
