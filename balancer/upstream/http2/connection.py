"""Upstream connection in HTTP/2 (RFC 9113), by ALPN or with prior knowledge.

The engine (`balancer/http/h2/engine.py`) implements the protocol; this module decides when to act, and maps events to
requests. Errors are those of an HTTP/1.1 connection: a stream that the worker has not processed may be retried whatever
its method, one that breaks off is a broken connection, and a protocol violation is a malformed response: of one request
if it concerns its stream; if it ends the connection, of the only request on it, while several are broken off.

Streams are notified when all of a read is parsed. A stream's window is withheld while its client is slow, so that only
that stream waits.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from balancer.config.schema.pool import PoolConfig
from balancer.errors import (
    ConnectionBroken,
    HeadTooLarge,
    MalformedResponse,
    StreamRefused,
    UnsupportedByTransport,
    UpstreamError,
    WorkerUntrusted,
)
from balancer.http.h1.field_list import FieldList, Fields, trailers_of
from balancer.http.h1.response_head import HEAD_LIMIT, ResponseHeads
from balancer.http.h2.client_engine import (
    CannotOpenStream,
    ClientEngine,
    error_of_reset,
    head_fields,
    response_head,
)
from balancer.http.h2.events import (
    CLOSED,
    DATA,
    GOAWAY,
    HEAD,
    INTERIM,
    NO_ERROR,
    OVERSIZED,
    PONG,
    RESET,
    SETTINGS,
    TRAILERS,
    Event,
)
from balancer.http.h2.limits import (
    FIELD_OVERHEAD,
    LAST_ID,
    MAX_STREAMS,
    PING_AFTER,
    PING_WAIT,
    TICK,
    WORKER_LIMITS,
)
from balancer.http.h2.sendable import UnsendableFields
from balancer.tls.contexts import ClientTls
from balancer.upstream.connection_counts import ERROR, US, WORKER, ended_by, local_address
from balancer.upstream.dial.dial import dial
from balancer.upstream.http2.pool import MultiplexedPool
from balancer.upstream.http2.stream import UpstreamHttp2Stream
from balancer.upstream.stream import ConnectionRecord, UpstreamStream
from balancer.upstream.unread import has_unread
from policies.facts import OutcomeKind

NO_FIELDS: Final[Any] = ()


class Http2Session(asyncio.Protocol):
    """An HTTP/2 upstream connection; implements `MultiplexedConnection`."""

    transport: asyncio.Transport

    def __init__(self, pool: MultiplexedPool, scheme: bytes) -> None:
        self.engine = ClientEngine(WORKER_LIMITS)
        self.heads = ResponseHeads()
        self.leased = 0
        self.life = ConnectionRecord()
        self.held: dict[UpstreamHttp2Stream, None] = {}  # streams whose sender is paused
        self._pool = pool
        self._scheme = scheme
        self._origin = "{}:{}".format(*pool.origin).encode()
        self.agreed: str | None = "h2"  # by ALPN, or prior knowledge
        self._streams: dict[int, UpstreamHttp2Stream] = {}
        self._touched: list[UpstreamHttp2Stream] = []  # streams with events in the read being parsed
        self._fields: Any = NO_FIELDS  # of the last final response,
        self._head = b""  # and these in HTTP/1.1
        self._limit = max(1, pool.stream_limit)  # one request asks again after a 0, which is for short times
        self._has_begun = self._is_leaving = self._is_gone = False
        self._blamed = -LAST_ID  # the last stream that the worker has named in a GOAWAY with an error
        self._reason = "the worker goes away"  # of requests that are refused here
        self._closing_side = US  # the side that is counted as closing the connection
        self._may_be_closed = False  # the kernel holds unread data, possibly a FIN
        self._has_new_limit = False  # set by the read being parsed
        self._is_reading = self._is_flush_due = False
        self._heard_at = self._ticked_at = pool.pools.now()
        self._pinged_at: float | None = None

    # --- MultiplexedConnection

    @property
    def room(self) -> int:
        if self._is_leaving or self._is_gone or self._may_be_closed:
            return 0
        return min(self._limit, MAX_STREAMS) - self.leased

    def begin(self, upstream_stream: UpstreamStream, outline: FieldList) -> UpstreamHttp2Stream:
        has_body = outline.length != 0
        stream_id = 0
        fault: UpstreamError | None = None
        try:
            if self._is_gone:  # closed between lease and begin: no event would ever report it
                raise CannotOpenStream
            fields = head_fields(outline, self._scheme, self._origin)
            most = self._pool.header_list
            if outline.size > most // 9 and _list_size(fields) > most:  # a field counts up to 33 for 4 bytes
                raise HeadTooLarge(f"the worker takes at most {most} bytes of head")
            stream_id = self.engine.request(fields, is_last=not has_body)
        except HeadTooLarge as error:
            fault = error
        except UnsendableFields as error:
            fault = UnsupportedByTransport(f"HTTP/2 cannot carry this request: {error}")
        except CannotOpenStream:
            self._is_leaving = True
            fault = StreamRefused("the connection has ended")
        stream = UpstreamHttp2Stream(self, upstream_stream, stream_id, has_body)
        if fault is not None:
            stream.is_over = True
            asyncio.get_running_loop().call_soon(upstream_stream.fail, fault)
            return stream
        self._streams[stream_id] = stream
        self.flush_soon()
        return stream

    def is_quiet(self) -> bool:
        if self.leased:
            return True
        self._may_be_closed = has_unread(self.transport)
        return not self._may_be_closed

    def retire(self) -> None:
        self._is_leaving = True
        if not self.leased:
            self.close()

    def close(self) -> None:
        if not self._is_gone:
            self.engine.terminate(NO_ERROR)
            self._lost(ConnectionBroken("the connection was closed"), self._closing_side)

    def prune(self, now: float, limits: PoolConfig) -> None:
        if now - self._ticked_at >= TICK:
            self._ticked_at = now
            self.engine.tick()
        if self.engine.is_worn:
            self.retire()
        elif self._pinged_at is not None:
            if now - self._pinged_at > PING_WAIT:
                self._pool.counts.heartbeats_failed += 1
                self._lost(ConnectionBroken(f"the worker has not answered a PING for {PING_WAIT:g} s"), ERROR)
        elif now - self._heard_at > PING_AFTER:
            self._pinged_at = now
            self._pool.counts.heartbeats += 1
            self.engine.ping(b"steelyrd")
            self.flush()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._scheme == b"https":
            self.agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
            if self.agreed != "h2":
                self._is_gone = True
                return
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._is_gone:
            return
        self._heard_at = self._pool.pools.now()
        if not self._has_begun:
            self._has_begun = True
            self._write()  # else the library would hold what SETTINGS leave no room for
            if data.startswith(b"HTTP/"):
                self._broken("the worker answers in HTTP/1, not in HTTP/2")
                return
        self._handle(self.engine.receive(data))

    def connection_lost(self, error: Exception | None) -> None:
        fault = ConnectionBroken(str(error) if error else "the worker closed the connection")
        self._lost(fault, ended_by(error))

    def pause_writing(self) -> None:
        self.engine.is_blocked = True

    def resume_writing(self) -> None:
        self.engine.is_blocked = False
        self.flush()
        self._handle(self.engine.events())

    # --- events

    def _handle(self, events: list[Event]) -> None:
        """Handle the events of a read, then notify the streams, then write what that has caused."""
        self._is_reading = True
        if self.engine.is_closed and events:
            self._reason = events[-1][2][1]
        for kind, stream_id, value, flag in events:
            stream = self._streams.get(stream_id)
            if stream is None:
                if kind >= SETTINGS:
                    self._on_connection_event(kind, stream_id, value, flag)
            elif kind == HEAD:
                self._on_head(stream, value, flag)
            elif kind == DATA:
                upstream_stream = stream.upstream_stream
                upstream_stream.receive_body(value)
                self._touch(stream)
                if flag:
                    self._end(stream, b"")
                elif value:
                    stream.took(len(value))
            elif kind >= SETTINGS:
                self._on_connection_event(kind, stream_id, value, flag)
            else:
                self._on_other(stream, kind, value, flag)
        self._is_reading = False
        touched = self._touched
        if touched:
            self._touched = []
            for stream in touched:
                stream.is_touched = False
                stream.upstream_stream.deliver()
        self.flush()
        if self._is_leaving and (not self.leased or self.engine.is_closed):
            self.close()
        elif self._may_be_closed or self._has_new_limit:
            self._may_be_closed = self._has_new_limit = False
            self._pool.serve()

    def _touch(self, stream: UpstreamHttp2Stream) -> None:
        if not stream.is_touched:
            stream.is_touched = True
            self._touched.append(stream)

    def _on_head(self, stream: UpstreamHttp2Stream, fields: Any, has_ended: bool) -> None:
        if fields == self._fields:
            head = self._head
        else:
            try:
                _, head = response_head(fields)
            except MalformedResponse as error:
                stream.upstream_stream.fail(error)
                return
            self._fields, self._head = fields, head
        stream.upstream_stream.receive_head(head)
        self._touch(stream)
        if has_ended:
            self._end(stream, b"")

    def _on_other(self, stream: UpstreamHttp2Stream, kind: int, value: Any, flag: bool) -> None:
        upstream_stream = stream.upstream_stream
        if kind == RESET:
            del self._streams[stream.id]
            stream.is_over = True
            fault = error_of_reset(value, flag, self._reason)
            upstream_stream.fail(self._blaming(fault) if self._is_blamed(stream) else fault)
            return
        if kind == OVERSIZED:
            upstream_stream.fail(MalformedResponse(f"more than {HEAD_LIMIT} bytes of head"))
            return
        try:
            if kind == INTERIM:
                upstream_stream.receive_head(response_head(value)[1])
                self._touch(stream)
            elif kind == TRAILERS:
                trailers = trailers_of(value)
                self._touch(stream)
                self._end(stream, trailers)
        except MalformedResponse as error:
            upstream_stream.fail(error)

    def _end(self, stream: UpstreamHttp2Stream, trailers: bytes) -> None:
        self._streams.pop(stream.id, None)
        stream.upstream_stream.receive_end(trailers)

    def _on_connection_event(self, kind: int, last_id: int, value: Any, by_worker: bool) -> None:
        if kind == SETTINGS:
            self._limit = self._pool.stream_limit = self.engine.stream_limit
            self._pool.header_list = self.engine.header_list
            self._has_new_limit = True
        elif kind == PONG:
            self._pinged_at = None
        elif kind == GOAWAY or (kind == CLOSED and by_worker):
            self._is_leaving, self._closing_side = True, WORKER  # what it has not processed is reset next
            if kind == GOAWAY and value != NO_ERROR:
                self._blamed = last_id
        elif kind == CLOSED:
            self._broken(value[1])

    # --- sending

    def reset(self, stream: UpstreamHttp2Stream, code: int) -> None:
        """Reset a stream whose response is no longer wanted."""
        self._streams.pop(stream.id, None)
        self.held.pop(stream, None)
        if not self._is_gone:
            self.engine.reset(stream.id, code)
            self.flush_soon()

    def flush_soon(self) -> None:
        """Flush in the next loop iteration, so that data of many streams is one write."""
        if not (self._is_flush_due or self._is_reading):
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what the engine has to send, and resume senders whose body has gone out."""
        self._is_flush_due = False
        self._write()
        if self.held:
            for stream in list(self.held):
                if stream.resume_sender():
                    self.held.pop(stream, None)

    def _write(self) -> None:
        if not (self._is_gone or self.engine.is_blocked):
            data = self.engine.data_to_send()
            if data:
                self.transport.write(data)

    # --- ends

    def _broken(self, reason: str) -> None:
        """Close the connection after a protocol violation of the worker."""
        if len(self._streams) == 1:
            self._lost(MalformedResponse(f"HTTP/2: {reason}"), ERROR)
        else:
            self._lost(ConnectionBroken(f"the worker violated HTTP/2 ({reason})"), ERROR)

    def _lost(self, error: UpstreamError, by: str) -> None:
        if self._is_gone:
            return
        if not self.transport.is_closing():
            self._write()  # a GOAWAY
        self._is_gone = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
        self._pool.connection_closed(self, by)
        streams, self._streams = self._streams, {}
        blame = self._blaming(type(error)(str(error)))
        self.held.clear()
        for stream in streams.values():
            stream.is_over = True
            stream.upstream_stream.fail(blame if self._is_blamed(stream) else error)

    def _blaming(self, error: UpstreamError) -> UpstreamError:
        """Return the error of a request for which the worker may have ended the connection. Alone there, it has: that
        is no evidence against the worker."""
        error.needs_own = True
        if self.life.is_taken:
            error.outcome = OutcomeKind.ABANDONED
        return error

    def _is_blamed(self, stream: UpstreamHttp2Stream) -> bool:
        """Whether the worker may have ended the connection for this stream: the last that it has taken, or the next."""
        return 0 <= stream.id - self._blamed <= 2


def _list_size(fields: Fields) -> int:
    """Return the size of a header list (RFC 9113 § 6.5.2)."""
    return sum(len(name) + len(value) + FIELD_OVERHEAD for name, value in fields)


async def open_session(pool: MultiplexedPool, tls: ClientTls | None) -> Http2Session:
    """Open a connection. Raises `ConnectFailed`, `ConnectTimeout`, or `WorkerUntrusted` if ALPN selects another
    protocol than h2."""
    scheme, timeout = b"http" if tls is None else b"https", pool.pools.settings.timeouts.connect
    session, phases = await dial(lambda: Http2Session(pool, scheme), pool.route, timeout, tls)
    if session.agreed != "h2":
        session.transport.abort()
        raise WorkerUntrusted(
            "the worker does not offer HTTP/2", f"ALPN: h2 was offered, the worker took {session.agreed}"
        )
    session.life = ConnectionRecord(phases, local_address(session.transport))
    return session
