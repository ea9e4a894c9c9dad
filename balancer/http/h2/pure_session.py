"""HTTP/2 session on the package ngh2 (libnghttp2): frames, header compression, states of streams, windows.

`compiled_session.pyx` is the same without the objects of that package in between. The engine uses either.
"""

from __future__ import annotations

from functools import cache

import ngh2

from balancer.http.h1.field_list import Fields
from balancer.http.h2.events import (
    CLOSED,
    DATA,
    GOAWAY,
    HEAD,
    INTERIM,
    OUTPUT,
    OVERSIZED,
    PONG,
    RESET,
    SETTINGS,
    STREAM_CLOSED,
    TRAILERS,
    Event,
)
from balancer.http.h2.limits import ACK_LIMIT, FIELD_OVERHEAD, HARD_LIMIT_RATIO, LARGEST_HEAD, Http2Limits

_WITHOUT_LIMIT = (1 << 40, 1 << 40)


@cache
def _configuration(limits: Http2Limits) -> ngh2.Configuration:
    hard = HARD_LIMIT_RATIO * limits.header_list
    return ngh2.Configuration(
        auto_window_update=False,
        max_send_header_block_length=LARGEST_HEAD,
        max_outbound_ack=ACK_LIMIT,
        max_continuations=limits.continuations,
        glitch_rate_limit=(limits.idle_frames, limits.idle_frames),  # PRIORITY and others that are no event
        stream_reset_rate_limit=_WITHOUT_LIMIT,  # counted by the engine, for the library's answer is INTERNAL_ERROR
        max_inbound_header_list_size=hard,
        max_inbound_header_count=hard // FIELD_OVERHEAD,
    )


class Session:
    """A connection's frames and states. All methods raise `ngh2.NGH2Error` for a stream or a session that has ended;
    that of `receive` and `send` has destroyed the session.

    `settings` are sent first, and `window` is that of the connection. Nothing is sent but by `send`.
    """

    def __init__(self, is_server: bool, limits: Http2Limits, settings: dict[int, int], window: int) -> None:
        role = ngh2.Role.SERVER if is_server else ngh2.Role.CLIENT
        self._advertised = limits.header_list
        self._connection = ngh2.Connection(role, _configuration(limits))
        self._connection.initiate_connection(settings)
        self._connection.set_local_window_size(window)

    # --- from the peer

    def receive(self, data: bytes | memoryview, sends: bool) -> list[Event]:
        """Parse bytes of the peer; return the events. If it `sends`, OUTPUT with what is to be sent comes first."""
        if data:
            self._connection.receive_data(data)
        made = self._connection.data_to_send(None) if sends and self._connection.want_write else b""
        return [(OUTPUT, 0, made, False), *self.events()] if made else self.events()

    def events(self) -> list[Event]:
        """Return the events since the last call, in order. STREAM_CLOSED is one, and those of kind 0 are frames that
        advance nothing; the value of SETTINGS is a dictionary."""
        return [self._event_of(event) for event in self._connection.events()]

    def _event_of(self, event: ngh2.Event) -> Event:
        match event:
            case ngh2.RequestReceived(stream_id, fields, has_ended) | ngh2.ResponseReceived(
                stream_id, fields, has_ended
            ):
                size = sum(len(name) + len(value) + FIELD_OVERHEAD for name, value in fields)
                return (HEAD if size <= self._advertised else OVERSIZED), stream_id, fields, has_ended
            case ngh2.DataReceived(stream_id, data, has_ended):
                return DATA, stream_id, data, has_ended
            case ngh2.StreamClosed(stream_id, code, error):
                return STREAM_CLOSED, stream_id, code, error is not None
            case ngh2.StreamReset(stream_id, code):
                return RESET, stream_id, code, True
            case ngh2.TrailersReceived(stream_id, fields):
                return TRAILERS, stream_id, fields, True
            case ngh2.InformationalResponseReceived(stream_id, fields):
                return INTERIM, stream_id, fields, False
            case ngh2.SettingsReceived(settings):
                return SETTINGS, 0, settings, False
            case ngh2.PingAcknowledged(data):
                return PONG, 0, data, False
            case ngh2.GoAwayReceived(last_id, code):
                return GOAWAY, last_id, code, False
            case ngh2.ConnectionClosed(code, reason):
                return CLOSED, 0, (code, reason), False
        return 0, 0, None, False

    @property
    def wants_read(self) -> bool:
        """Whether the peer may still send something."""
        return self._connection.want_read

    # --- to the peer

    def send(self, limit: int | None = None) -> bytes:
        """Return what is to be sent, all or about `limit` bytes."""
        return self._connection.data_to_send(limit)

    def request(self, fields: Fields, is_last: bool) -> int:
        """Begin a request; return its stream id."""
        return self._connection.send_request(fields, end_stream=is_last)

    def interim(self, stream_id: int, fields: Fields) -> None:
        """Send an interim response."""
        self._connection.send_informational_response(stream_id, fields)

    def respond(self, stream_id: int, fields: Fields, data: bytes, is_last: bool) -> None:
        """Send the head of a response and the first part of its body."""
        self._connection.send_response(stream_id, fields, end_stream=is_last and not data)
        if data:
            self._connection.send_data(stream_id, data, end_stream=is_last)

    def send_data(self, stream_id: int, data: bytes, is_last: bool) -> None:
        """Send a part of a body."""
        self._connection.send_data(stream_id, data, end_stream=is_last)

    def send_trailers(self, stream_id: int, fields: Fields) -> None:
        """End a message."""
        self._connection.send_trailers(stream_id, fields)

    def queued(self, stream_id: int) -> int:
        """Return how many bytes of a body are not framed yet."""
        return self._connection.queued_body_size(stream_id)

    @property
    def queued_in_all(self) -> int:
        """Bytes of all bodies that are not framed yet."""
        return self._connection.queued_body_size()

    @property
    def window(self) -> int:
        """Bytes that the peer still takes on the connection."""
        return self._connection.remote_window_size

    def stream_window(self, stream_id: int) -> int:
        """Return how many bytes the peer still takes of a stream."""
        return self._connection.stream_remote_window_size(stream_id)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Return window of a stream, and of the connection."""
        self._connection.acknowledge_received_data(size, stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM."""
        self._connection.reset_stream(stream_id, code)

    def ping(self, data: bytes) -> None:
        """Send a PING of eight bytes."""
        self._connection.ping(data)

    def announce_goaway(self) -> None:
        """Send a GOAWAY that names no stream (§ 6.8)."""
        self._connection.send_shutdown_notice()

    def goaway(self) -> None:
        """Send a GOAWAY that names the last stream."""
        self._connection.send_goaway()

    def terminate(self, code: int) -> None:
        """Send a GOAWAY, and take nothing more of the peer."""
        self._connection.terminate_connection(code)
