"""Upstream connection in HTTP/2 (RFC 9113), by ALPN or with prior knowledge.

The library h2 implements the protocol; this module decides when to act, and maps events to requests. Errors are those
of an HTTP/1.1 connection: a stream that the worker has not processed may be retried whatever its method, one that
breaks off is a broken connection, and a protocol violation is a malformed response: of one request if it occurred on
its stream, of all requests of the connection if it occurred on stream 0.

A read is cut into frames; streams are notified when all of it is parsed. The connection's window is returned at once,
because nothing is buffered at that level; a stream's window is withheld while its client is slow, so that only that
stream waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, StreamClosedError

from balancer.errors import (
    ConnectionBroken,
    MalformedResponse,
    StreamRefused,
    UnsupportedByTransport,
    UpstreamError,
)
from balancer.http1.field_list import FieldList, trailers_of
from balancer.http1.response_head import ResponseHeads
from balancer.http2.frames import GOAWAY, Frames, GoAway, goaway_of
from balancer.http2.settings import (
    ANSWER_BUFFER_LIMIT,
    ASSUMED,
    LAST_ID,
    MOST,
    PING_AFTER,
    PING_WAIT,
    WINDOW,
    error_of_reset,
    has_unread,
    head_fields,
    line_of,
    name_of,
    new_connection,
    response_head,
)
from balancer.upstream.connection_counts import ERROR, US, WORKER, ended_by
from balancer.upstream.http2_stream import Http2Stream
from balancer.upstream.stream import ConnectionRecord

if TYPE_CHECKING:
    from balancer.config.pool_limits import PoolLimits
    from balancer.upstream.multiplexed_pool import MultiplexedPool
    from balancer.upstream.stream import UpstreamStream


class Http2Session(asyncio.Protocol):
    """An HTTP/2 upstream connection; implements `MultiplexedConnection`."""

    is_library = False
    transport: asyncio.Transport

    def __init__(self, pool: MultiplexedPool, scheme: bytes) -> None:
        self.heads = ResponseHeads()
        self.leased = 0
        self.life = ConnectionRecord()
        self._pool = pool
        self._scheme = scheme
        self.agreed: str | None = "h2"  # by ALPN, or prior knowledge
        self._h2 = new_connection()
        self._frames = Frames()
        self._streams: dict[int, Http2Stream] = {}
        self._touched: dict[Http2Stream, None] = {}  # streams with events in the read being parsed
        self._limit = pool.stream_limit or ASSUMED
        self._used = 0  # bytes of the connection's window not returned yet
        self._is_leaving = self._is_gone = False
        self._closing_side = US  # the side that is counted as closing the connection
        self._may_be_closed = False  # the kernel holds unread data, possibly a FIN
        self._is_blocked = False  # the transport's write buffer is full
        self._unasked = 0  # bytes written in response to reads while blocked
        self._has_more_room = self._has_new_limit = False  # set by the read being parsed
        self._is_reading = self._is_flush_due = False
        self._heard_at = pool.pools.cached_time
        self._pinged_at: float | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            ResponseReceived: self._on_head,
            InformationalResponseReceived: self._on_head,
            DataReceived: self._on_data,
            TrailersReceived: self._on_trailers,
            StreamEnded: self._on_end,
            StreamReset: self._on_reset,
            WindowUpdated: self._on_window,
            RemoteSettingsChanged: self._on_settings,
            PingAckReceived: self._on_pong,
        }

    # --- MultiplexedConnection

    @property
    def room(self) -> int:
        if self._is_leaving or self._is_gone or self._may_be_closed:
            return 0
        return min(self._limit, MOST) - self.leased

    def begin(self, upstream_stream: UpstreamStream, outline: FieldList) -> Http2Stream:
        stream_id = self._h2.get_next_available_stream_id()
        if stream_id > LAST_ID:
            self._is_leaving = True
        has_body = outline.length != 0
        stream = Http2Stream(self, upstream_stream, stream_id, has_body=has_body)
        if self._is_gone:  # closed between lease and begin: no event would ever report it
            stream.over()
            asyncio.get_running_loop().call_soon(
                upstream_stream.fail, StreamRefused("the connection has ended")
            )
            return stream
        try:
            self._h2.send_headers(
                stream_id, head_fields(outline, self._scheme, self._pool.origin), end_stream=not has_body
            )
        except H2Error as error:
            stream.over()
            fault = UnsupportedByTransport(f"HTTP/2 cannot carry this request: {line_of(error)}")
            asyncio.get_running_loop().call_soon(upstream_stream.fail, fault)
            return stream
        self._streams[stream_id] = stream
        self._flush_soon()
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
            self._h2.close_connection()
            self._flush()
            self._lost(ConnectionBroken("the connection was closed"), self._closing_side)

    def prune(self, now: float, limits: PoolLimits) -> None:
        self._frames.idle = 0
        if self._pinged_at is not None:
            if now - self._pinged_at > PING_WAIT:
                self._pool.counts.heartbeats_failed += 1
                self._lost(ConnectionBroken(f"the worker has not answered a PING for {PING_WAIT:g} s"), ERROR)
        elif now - self._heard_at > PING_AFTER:
            self._pinged_at = now
            self._pool.counts.heartbeats += 1
            self._h2.ping(b"steelyrd")
            self._flush()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._scheme == b"https":
            self.agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
            if self.agreed != "h2":
                self._is_gone = True
                return
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW - 65_535)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._is_gone:
            return
        self._heard_at, self._is_reading = self._pool.pools.cached_time, True
        at = 0
        try:
            for frame in self._frames.feed(data):
                at = frame.stream_id
                if frame.kind == GOAWAY:
                    self._on_goaway(goaway_of(frame))
                    continue
                for event in self._h2.receive_data(frame.data):
                    handler = self._handlers.get(type(event))
                    if handler is not None:
                        handler(event)
        except (H2Error, MalformedResponse) as error:
            self._broken(line_of(error), at)
        finally:
            self._is_reading = False
        self._tell()
        if self._has_more_room:
            self._has_more_room = False
            self._pump_all()
        self._flush(is_answer=True)
        if self._may_be_closed or self._has_new_limit:
            self._may_be_closed = self._has_new_limit = False
            self._pool.room_changed()

    def connection_lost(self, error: Exception | None) -> None:
        fault = ConnectionBroken(str(error) if error else "the worker closed the connection")
        self._lost(fault, ended_by(error))

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._unasked = 0
        self._pump_all()

    # --- events

    def _tell(self) -> None:
        touched, self._touched = self._touched, {}
        for stream in touched:
            stream.upstream_stream.deliver()

    def _on_head(self, event: ResponseReceived | InformationalResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        try:
            status, head = response_head(event.headers)
        except MalformedResponse as error:
            stream.upstream_stream.fail(error)
            return
        if status >= 200:
            self._frames.idle = 0
        stream.upstream_stream.receive_head(head)
        self._touched[stream] = None

    def _on_data(self, event: DataReceived) -> None:
        size, stream = event.flow_controlled_length, self._streams.get(event.stream_id)
        self._used += size
        if self._used >= WINDOW // 4:
            self.give_window(None, self._used)
            self._used = 0
        if stream is None:
            return
        if event.data:
            self._frames.idle = 0
        stream.upstream_stream.receive_body(bytes(event.data))
        self._touched[stream] = None
        if size and event.stream_ended is None:
            stream.took(size)

    def _on_trailers(self, event: TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        try:
            trailers = trailers_of(event.headers)
        except MalformedResponse as error:
            stream.upstream_stream.fail(error)
            return
        self._end(stream, trailers)

    def _on_end(self, event: StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            self._end(stream, b"")

    def _end(self, stream: Http2Stream, trailers: bytes) -> None:
        del self._streams[stream.id]
        stream.upstream_stream.receive_end(trailers)
        self._touched[stream] = None

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._streams.pop(event.stream_id, None)
        if stream is None or not event.remote_reset:
            return
        stream.over()
        stream.upstream_stream.fail(error_of_reset(event.error_code))

    def _on_goaway(self, farewell: GoAway) -> None:
        """Handle GOAWAY (§ 6.8): no new streams; those up to the last one that it names are still answered."""
        self._is_leaving, self._closing_side = True, WORKER
        unseen = [stream for stream in self._streams.values() if stream.id > farewell.last]
        for stream in unseen:
            del self._streams[stream.id]
            stream.over()
            stream.upstream_stream.fail(StreamRefused(f"the worker goes away ({name_of(farewell.code)})"))
        if not self.leased:
            self.close()

    def _on_window(self, event: WindowUpdated) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None:
            self.pump(stream)
        elif not event.stream_id:
            self._has_more_room = True

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        self._limit = self._pool.stream_limit = self._h2.remote_settings.max_concurrent_streams
        self._has_more_room = self._has_new_limit = True

    def _on_pong(self, event: PingAckReceived) -> None:
        self._pinged_at = None

    # --- sending

    def pump(self, stream: Http2Stream) -> None:
        """Send as much of a stream's request body as the windows and the transport take."""
        while self._push(stream):
            pass

    def _pump_all(self) -> None:
        """Send for all waiting streams in turns, a frame each, so that no body blocks another."""
        waiting = [stream for stream in self._streams.values() if stream.is_waiting]
        while waiting:
            waiting = [stream for stream in waiting if self._push(stream)]

    def _push(self, stream: Http2Stream) -> bool:
        if self._is_blocked or self._is_gone or not stream.is_waiting:
            return False
        window = self._h2.local_flow_control_window(stream.id)
        if not stream.next_frame(min(window, self._h2.max_outbound_frame_size)):
            return False
        self._frames.idle = 0
        self._flush_soon()
        stream.went_out()
        return True

    def send_data(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        self._h2.send_data(stream_id, data, end_stream=is_last)

    def send_trailers(self, stream_id: int, fields: list[tuple[bytes, bytes]]) -> None:
        """Send trailers, which end the request."""
        self._h2.send_headers(stream_id, fields, end_stream=True)

    def give_window(self, stream_id: int | None, size: int) -> None:
        """Return window: allow the worker `size` more bytes on a stream, or on the connection (None)."""
        if not self._is_gone:
            try:
                self._h2.increment_flow_control_window(size, stream_id)
            except (H2Error, KeyError):  # the stream has ended meanwhile
                return
            self._flush_soon()

    def reset(self, stream: Http2Stream) -> None:
        """Reset a stream whose response is no longer wanted (CANCEL)."""
        self._streams.pop(stream.id, None)
        if not self._is_gone:
            try:
                self._h2.reset_stream(stream.id, ErrorCodes.CANCEL)
            except StreamClosedError:
                return
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush in the next loop iteration, so that data of many streams is one write."""
        if not (self._is_flush_due or self._is_reading):
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self, *, is_answer: bool = False) -> None:
        """Write what h2 has to send.

        Back-pressure cannot be applied to answers to what has been read (`is_answer`), so these are limited here.
        """
        self._is_flush_due = False
        data = self._h2.data_to_send()
        if not data or self._is_gone:
            return
        self.transport.write(data)
        if is_answer and self._is_blocked:
            self._unasked += len(data)
            if self._unasked > ANSWER_BUFFER_LIMIT:
                self._lost(ConnectionBroken("the worker does not read what it is answered"), ERROR)

    # --- ends

    def _broken(self, fault: str, stream_id: int) -> None:
        """Close the connection after a protocol violation on a stream, or on the connection (0)."""
        self._flush()  # sends the GOAWAY of the library
        error = MalformedResponse(f"HTTP/2: {fault}")
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            self._lost(error, ERROR)
            return
        stream.over()
        stream.upstream_stream.fail(error)
        self._lost(ConnectionBroken("another response on the connection was malformed"), ERROR)

    def _lost(self, error: UpstreamError, by: str) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
        self._pool.connection_closed(self, by)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.over()
            stream.upstream_stream.fail(error)
