"""Stream of a client's HTTP/2 connection: the client connection of one exchange.

Data of the request is acknowledged once it has been passed on, so a slow worker withholds the window of its stream
alone. What waits of the response in the engine pauses reading from the worker of this stream alone.
"""

from __future__ import annotations

import asyncio
from typing import Final

from balancer.clients.client_usage import HELD_BY_BODY
from balancer.cluster.cluster import Cluster
from balancer.config.schema.limits import READ
from balancer.downstream.http2.open_streams import CROWD, OpenStreams, own_message
from balancer.downstream.http2.stream_transport import NO_TRANSPORT, AdminTransport, StreamTransport
from balancer.errors import ClientStalled, ConnectionCut, RequestRejected, StreamReset, body_too_large
from balancer.exchange.responder import RequestHandler, Responder
from balancer.exchange.tunnel import PendingUpgrade
from balancer.http.grpc.call import GrpcCall
from balancer.http.grpc.status import head_for, trailers_for
from balancer.http.h1.chunks import passing_trailers
from balancer.http.h1.field_list import Fields, fields_of
from balancer.http.h1.fields import without
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response
from balancer.http.h1.upgrades import accepts_websocket
from balancer.http.h2.events import CANCEL, INTERNAL_ERROR, NO_ERROR
from balancer.http.h2.sendable import sendable
from balancer.upstream.bounded_reader import LONGEST_READ

SHORT_BYTES: Final = 16_384
"""Bytes of a response that are sent at once, whatever the client does: they wait in the engine without being watched.
Streams that wait for the client's window count as open, so `http2.max_streams` limits their number."""

OF_HANDSHAKE: Final = (b"connection", b"upgrade", b"sec-websocket-accept")


class Http2Stream(Responder):
    """A stream. `expects_body`: the request has not ended. `is_long`: a part of the response may wait for the
    client. `cut_code`: the code by which it is reset behind a response that breaks off, NO_ERROR if none does."""

    def __init__(self, cluster: Cluster, connection: OpenStreams, stream_id: int) -> None:
        super().__init__(cluster, connection.idle_since)
        self.is_stream = True
        self.client = connection.client
        self.usage = connection.usage
        self._connection = connection
        self.id = stream_id
        self._handler: RequestHandler | None = None
        self._tunnel: StreamTransport | None = (
            None  # in place of the handler's methods, for what may be a tunnel
        )
        self._body_limit: int | None = None
        self._received = 0
        self._withheld = 0  # bytes of the request that are not acknowledged
        self._seen_unsent = 0
        self._is_detached = False  # the admin application answers
        self._fields: Fields | None = None  # head of the response that has begun, until it is sent
        self._takes_trailers = True  # the response that has begun has a body
        self._read_size = READ  # bytes per read from the worker
        self.expects_body = False
        self.is_long = False
        self.cut_code = NO_ERROR

    @property
    def unsent(self) -> int:
        """Bytes of the response that wait for the client."""
        return self._connection.engine.unsent(self.id)

    # --- the request

    def begin_call(self, request: Request) -> None:
        """Begin an RPC of gRPC. Raises `RequestRejected` for a malformed timeout."""
        self.call = call = GrpcCall(self._cluster.counts.rpcs, self._cluster.now())
        call.read_timeout(request.raw)

    def expect(self, handler: RequestHandler, request: Request, limit: int | None, has_ended: bool) -> None:
        """Expect the rest of a request, which `handler` answers: a body of at most `limit` bytes; `has_ended` if there
        is none.
        """
        self._handler = handler
        self._body_limit = limit
        self.expects_body = request.fields.has_body and not has_ended
        if self.expects_body:
            self.idle_since = self._cluster.now()

    def refuse(self, handler: RequestHandler, has_ended: bool) -> None:
        """Answer by `handler` and read no more of the request."""
        self._handler = handler
        self.expects_body = not has_ended
        self.idle_since = self._cluster.now()
        handler.start()

    def start(self) -> None:
        if self._handler is not None:
            self._handler.start()

    def await_upgrade(self) -> None:
        """Hold the data that follows a request with an upgrade offer until the offer is answered."""
        if self._handler is not None:
            self.transport = self._tunnel = StreamTransport(self)
            self.pending_upgrade = PendingUpgrade(self, None, b"")

    def data(self, data: bytes, has_ended: bool) -> None:
        """Take bytes of the request's body; `has_ended` if they are the last."""
        size = len(data)
        if self._tunnel is not None:
            if data:
                self._tunnel.arrived(data)
        elif self._handler is not None and self.expects_body:
            self.idle_since = self._cluster.now()
            self._received += size
            limit = self._body_limit
            if limit is not None and self._received > limit:
                self.reject_body(limit)
                return
            if size:
                self._handler.request_body(data)
        if has_ended:
            self.ended(b"")
        elif self.is_held:
            self._withheld += size
        else:
            self._connection.engine.acknowledge(self.id, size)

    def ended(self, trailers: bytes) -> None:
        """Take the end of the request; `trailers` is a block of fields or b""."""
        if self._tunnel is not None:
            self._tunnel.ended()
        elif self._handler is not None and self.expects_body:
            self.expects_body = False
            self._handler.request_ended(trailers)

    def reject_body(self, limit: int) -> None:
        """Reject the request, whose body has or announces more than `limit` bytes."""
        self._connection.count_fault()
        self._reject(body_too_large(limit))

    def _reject(self, error: RequestRejected) -> None:
        if self._handler is not None:
            self._handler.reject(error)

    def hold(self, reason: int = HELD_BY_BODY) -> None:
        self.is_held |= reason

    def unhold(self, reason: int = HELD_BY_BODY) -> None:
        if self.is_held:
            self.idle_since = self._cluster.now()  # while it was held, the client could send nothing
        self.is_held &= ~reason
        if self._withheld and not self.is_held:
            size, self._withheld = self._withheld, 0
            self._connection.engine.acknowledge(self.id, size)
            self._connection.flush_soon()

    # --- the response

    @property
    def is_crowded(self) -> bool:
        return self._connection.answering > CROWD

    @property
    def first_read_size(self) -> int:
        return READ if self.is_crowded else self.client.read_size

    def respond_whole(
        self, request: Request, response: Response, fields: bytes, body: bytes, is_complete: bool
    ) -> bool:
        self.send(self._final_fields(response, fields), body, is_last=True)
        return True

    def begin_response(self, request: Request, response: Response, fields: bytes, is_complete: bool) -> bool:
        self._fields = self._final_fields(response, fields)
        self._takes_trailers = request.method != b"HEAD" and not response.is_bodiless
        self._read_size = READ
        return True

    def send_part(self, pieces: list[bytes]) -> int:
        answering = self._connection.answering
        longest = LONGEST_READ if answering <= CROWD else max(READ, CROWD * LONGEST_READ // answering)
        size = max(READ, self._read_size // 2) if self.unsent else min(2 * self._read_size, longest)
        self._read_size = size
        self.send(self._take_fields(), b"".join(pieces), is_last=False)
        return size

    def end_response(self, pieces: list[bytes], trailers: bytes) -> None:
        passing = passing_trailers(trailers) if self._takes_trailers else b""
        self.send(self._take_fields(), b"".join(pieces), is_last=not passing)
        if passing:
            self._connection.engine.send_trailers(self.id, fields_of(passing))

    def send_interim(self, response: Response, fields: bytes) -> None:
        self._send_interim(self.heads_of(response.status, fields))

    def accepts_switch(self, request: Request, response: Response) -> bool:
        return response.status != 101 or accepts_websocket(request.head, response.block)

    def heads_of(self, status: int, block: bytes) -> Fields:
        """Return a response's head as fields. Raises `MalformedResponse` for what HTTP/2 does not allow."""
        return self._connection.response_heads.fields_of(status, block)

    def _final_fields(self, response: Response, block: bytes) -> Fields:
        return self.heads_of(response.status, block if response.has_date else block + self._process.date_line)

    def _take_fields(self) -> Fields | None:
        fields, self._fields = self._fields, None
        return fields

    def _send_interim(self, head: Fields) -> None:
        self._connection.engine.interim(self.id, head)
        self._connection.flush_soon()

    def send(self, head: Fields | None, data: bytes, *, is_last: bool) -> None:
        """Send a part of a response; the last one goes out when the exchange ends, which follows."""
        connection = self._connection
        if head is not None and len(data) <= SHORT_BYTES:
            connection.engine.respond_checked(self.id, head, data, is_last=is_last)
        else:
            if head is not None:
                connection.engine.respond_checked(self.id, head, b"", is_last=False)
            if data or is_last:
                connection.engine.send_data(self.id, data, is_last=is_last)
        if not is_last:
            self.is_long = True
            connection.watch(self)
        elif len(data) > SHORT_BYTES:
            self.is_long = True

    def respond(self, response: bytes) -> int:
        status, block, body = own_message(response)
        if self.pending_upgrade is not None and 200 <= status < 300:
            status = 501  # this is no tunnel
        head = self.heads_of(status, block)
        if status < 200:
            self._send_interim(head)
        else:
            self.send(head, body, is_last=True)
        return status

    def write_error(self, answer: ErrorAnswer) -> None:
        if self.call is None:
            super().write_error(answer)
        else:
            self.call.failed(answer.error)
            block = b"\r\n" + self._process.date_line
            added = sendable(fields_of(block if answer.edit is None else answer.edit(block)))
            self.send(head_for(answer.error, answer.request_id) + added, b"", is_last=True)

    def hand_over(self, handler: RequestHandler) -> None:
        self._handler = handler

    def exchange_ended(self, stays: bool, now: float = 0.0) -> None:
        """End the stream with its response; what the client still sends of the request is not read."""
        self._handler = None
        if self.expects_body:
            self._connection.engine.discard(self.id)
        self._let_go()
        self._connection.stream_ended(self, now)

    def _let_go(self) -> None:
        """Let go of a tunnel or a declined upgrade, which refer to this."""
        if self._tunnel is not None:
            self.pending_upgrade = self._tunnel = None
            self.transport = NO_TRANSPORT

    def _taken_over_by(self) -> StreamTransport | None:
        """Return the transport of the tunnel or admin application that has the stream; None while the handler answers,
        as it does after a declined upgrade."""
        return self._tunnel if self.pending_upgrade is None else None

    def note_pressure(self, high: int) -> bool:
        """Pause or resume the response by what waits for the client. Returns whether it is to be looked at again."""
        unsent, transport = self.unsent, self._taken_over_by()
        if self.is_write_paused:
            if unsent > high // 4:
                return True
            self.is_write_paused = False
            self.uncharge()
            if transport is not None:
                transport.get_protocol().resume_writing()
            elif self._handler is not None:
                self._handler.resume_response()
        elif unsent > high:
            self.is_write_paused, self._seen_unsent = True, unsent
            self.idle_since = self._cluster.now()
            if transport is not None:
                transport.get_protocol().pause_writing()
            elif self._handler is not None:
                self._handler.pause_response()
            return True
        return False

    # --- tunnels

    def begin_tunnel(self, response: Response, fields: bytes, early: bytes) -> None:
        """Answer 200, which accepts a CONNECT of either kind (RFC 8441 § 5)."""
        self.pending_upgrade = None
        self.send(self.heads_of(200, without(OF_HANDSHAKE, fields)), early, is_last=False)

    def detach(self) -> asyncio.Transport:
        """Return a transport for the admin application, which answers the request in HTTP/1.1."""
        self._is_detached = True
        self.call = None
        self.transport = self._tunnel = AdminTransport(self)
        return self._tunnel

    # --- ends

    def check(self, now: float) -> None:
        timeouts, call = self._cluster.timeouts, self.call
        if self._is_detached and self._process.is_draining:  # the live page would never end
            self.reset(CANCEL)
        elif call is not None and now > call.deadline:
            if self._handler is not None:
                self._handler.reject(call.overdue())
        elif self.is_write_paused and self._taken_over_by() is None:
            self.check_reader(now)
        elif (
            call is None
            and self.expects_body
            and not self.is_held
            and now - self.idle_since > timeouts.request_idle
        ):
            self._connection.count_fault()
            self._reject(RequestRejected(408, "body_timeout", f"no body for {timeouts.request_idle:g} s"))
        elif self._handler is not None:
            self._handler.check(now)

    def check_reader(self, now: float) -> None:
        """Reset the stream of a client that has taken nothing of the response for the idle timeout; while the transport
        is full, nothing of any stream."""
        unsent, connection = self.unsent, self._connection
        is_full = connection.is_write_paused
        seen = unsent + (connection.transport.get_write_buffer_size() if is_full else 0)
        if seen != self._seen_unsent or not unsent:
            self._seen_unsent, self.idle_since = seen, now
            self.uncharge(unsent)
        elif now - self.idle_since > self._cluster.timeouts.body_idle:
            self.abort(ClientStalled(self._cluster.timeouts.body_idle))

    def abort(self, error: ConnectionCut | None = None) -> None:
        """Reset the stream at once, so that the client sees a truncated response."""
        if error is not None:
            self.cut_by = error
        self.reset(INTERNAL_ERROR)

    def cut(self, pieces: list[bytes]) -> None:
        """Reset the stream once the client has taken what was sent of the response; an RPC that has failed gets its
        status."""
        fault = self.call.fault if self.call is not None else None
        if pieces:
            self.send(self._take_fields(), b"".join(pieces), is_last=False)
        if self.call is not None and fault is not None:
            self.call.failed(fault)
        if self.call is None or fault is None or isinstance(fault, StreamReset):
            code = fault.code if isinstance(fault, StreamReset) else 0
            self.cut_code = code or INTERNAL_ERROR
            self.is_long, self.expects_body = True, False
        elif self.is_long:
            self.send(None, b"", is_last=False)
            self._connection.engine.send_trailers(self.id, trailers_for(fault))
        else:  # the worker's head has not been sent
            self.send(head_for(fault), b"", is_last=True)
        self.exchange_ended(False)

    def reset(self, code: int = CANCEL) -> None:
        """Reset the stream, and abandon the request if it is being answered."""
        self._connection.engine.reset(self.id, code)
        self._connection.flush_soon()
        self.lost(None)

    def lost(self, error: Exception | None) -> None:
        """Handle the end of the stream by a reset or with its connection."""
        self._connection.forget(self)
        if self._tunnel is not None:
            self._tunnel.lost(error or ConnectionResetError("the client has reset the stream"))
            self._let_go()
        else:
            self.connection_lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.abandon(self.cut_by)

    # --- for its transport

    def end_tunnel(self) -> None:
        """End the direction towards the client."""
        self.send(None, b"", is_last=True)
        self._connection.flush_soon()

    def finish(self) -> None:
        """Read nothing more of the client."""
        self._let_go()
        self._connection.engine.discard(self.id)
        self._connection.stream_ended(self, 0.0)
