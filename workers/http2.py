"""HTTP/2 server in front of the worker's application: frames by the h2 library, one `Stream` per request.

Connections end as HTTP/2 requires. GOAWAY names the last stream that is answered; later ones are refused in a way that
allows a retry (RFC 9113 §§ 6.8, 8.7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from h2.settings import Settings as H2Settings
from hyperframe.frame import GoAwayFrame

from workers.connection_closing import reset
from workers.settings import Settings
from workers.stream import Stream

ProtocolFactory = Callable[[], asyncio.Protocol]
PREFACE = b"PRI * HTTP/2.0"
WINDOW = 1 << 20
"""Flow-control window in bytes, per stream and per connection: the window of the link."""

FIRST_WINDOW = 65_535  # RFC 9113 § 6.9.2


class Http2Connection(asyncio.Protocol):
    """HTTP/2 connection of one client. `serve` makes the application's protocol for each stream."""

    def __init__(self, serve: ProtocolFactory, settings: Settings, rng: Random) -> None:
        self._serve = serve
        self._settings = settings
        self._rng = rng
        span = settings.max_requests_per_connection
        self._most = None if span is None else rng.randint(*span)
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = H2Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_streams,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 16,
            },
        )
        self._streams: dict[int, Stream] = {}
        self._begun = self._last = 0
        self._is_leaving = self._is_full = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW - FIRST_WINDOW)
        self.flush()
        self._rest()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:  # h2 has prepared a GOAWAY with the error
            self.flush()
            self.transport.close()
            return
        for event in events:
            self._meet(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_leaving = True
        self._stir()
        for stream in list(self._streams.values()):
            stream.lose(exc)
        self._streams.clear()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._pump_all()

    # ── called by streams ────────────────────────────────────────────────────────────────────────────────

    def room(self, number: int) -> int:
        """Return how many bytes a stream may send in one frame now; 0 or less if none."""
        if self._is_full or self._is_over:
            return 0
        return min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)

    def send_head(self, number: int, fields: list[tuple[bytes, bytes]], is_whole: bool) -> None:
        """Send the header of a response, in a packet of its own if so configured."""
        if number in self._streams and not self._is_over:
            self._h2.send_headers(number, fields, end_stream=is_whole)
            if self._settings.split_head:
                self.flush()
            if is_whole:
                self._finish(number)

    def send_data(self, number: int, data: bytes, is_last: bool) -> None:
        """Send a part of a response, no longer than `room` allows."""
        if number in self._streams and not self._is_over:
            self._h2.send_data(number, data, end_stream=is_last)
            if is_last:
                self._finish(number)

    def acknowledge(self, number: int, size: int) -> None:
        """Acknowledge `size` bytes of a request body, which reopens the window."""
        if not self._is_over:
            self._h2.acknowledge_received_data(size, number)
            self.flush()

    def break_off(self, number: int) -> None:
        """Reset a stream that ends without a response."""
        self._refuse(number, ErrorCodes.INTERNAL_ERROR)

    def flush(self) -> None:
        """Write all prepared frames, in one write."""
        if data := self._h2.data_to_send():
            self.transport.write(data)

    def abort(self) -> None:
        """Reset the connection, and with it every stream."""
        reset(self.transport)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Close gracefully: send GOAWAY, answer active streams, close."""
        if not self._is_leaving:
            self._is_leaving = True
            frame = GoAwayFrame(last_stream_id=self._last, error_code=ErrorCodes.NO_ERROR)
            # Built by hand: h2 takes its own GOAWAY for the end and would send no response after it.
            self.flush()
            self.transport.write(frame.serialize())
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._is_leaving and not self._streams:
            self._stir()
            self.transport.close()

    @property
    def _is_over(self) -> bool:
        return self.transport.is_closing() or self._h2.state_machine.state is ConnectionState.CLOSED

    # ── received frames ──────────────────────────────────────────────────────────────────────────────────

    def _meet(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                self._take(event)
            case StreamEnded(stream_id=int() as number) if number in self._streams:
                self._streams[number].arrive_end()
            case StreamReset(stream_id=int() as number) if number in self._streams:
                self._streams.pop(number).lose()
                self._rest()
            case WindowUpdated() | RemoteSettingsChanged():
                self._pump_all()
            case ConnectionTerminated():
                self._is_leaving = True
                self.transport.close()

    def _begin(self, event: RequestReceived) -> None:
        number = event.stream_id
        assert number is not None
        if self._is_leaving:
            self._refuse(number, ErrorCodes.REFUSED_STREAM)
            return
        self._stir()
        self._begun += 1
        self._last = number
        stream = self._streams[number] = Stream(self, number, self._serve())
        try:
            stream.begin(event.headers or (), event.stream_ended is not None)
        except KeyError:  # CONNECT, which a worker does not support
            self._refuse(number, ErrorCodes.PROTOCOL_ERROR)
            return
        if self._begun == self._most:
            self.leave()

    def _take(self, event: DataReceived) -> None:
        number, size = event.stream_id, event.flow_controlled_length or 0
        assert number is not None
        if number in self._streams:
            self._streams[number].arrive(event.data or b"", size)
        else:  # answered or refused before the body was complete
            self.acknowledge(number, size)

    def _refuse(self, number: int, code: ErrorCodes) -> None:
        if not self._is_over:
            self._h2.reset_stream(number, code)
            self.flush()
        self._finish(number)

    def _finish(self, number: int) -> None:
        self._streams.pop(number, None)
        self.flush()
        self._close_when_done()
        self._rest()

    def _pump_all(self) -> None:
        for stream in list(self._streams.values()):
            stream.pump()
        self.flush()

    # ── idle timeout ─────────────────────────────────────────────────────────────────────────────────────

    def _rest(self) -> None:
        """Start the idle timeout, configured or drawn, if no stream is active."""
        if self._streams or self._is_leaving or self._is_over:
            return
        self._stir()
        loop, drawn = asyncio.get_running_loop(), self._settings.close_idle
        if drawn is not None and self._begun:
            self._idle = loop.call_later(self._rng.uniform(*drawn), self.transport.close)
        else:
            self._idle = loop.call_later(self._settings.keep_alive, self.leave)

    def _stir(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
