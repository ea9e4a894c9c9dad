"""HTTP/2 server in front of the worker's application: frames by the library ngh2, one `WorkerStream` per request.

Connections end as HTTP/2 requires. GOAWAY names the last stream that is answered; later ones are ignored, and may be
sent again (RFC 9113 § 6.8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import cast

import ngh2

from workers.connection_closing import reset
from workers.settings import Settings
from workers.stream import WorkerStream

ProtocolFactory = Callable[[], asyncio.Protocol]
PREFACE = b"PRI * HTTP/2.0"
WINDOW = 1 << 20
"""Flow-control window in bytes, per stream and per connection: the window of the link."""


class WorkerHttp2Connection(asyncio.Protocol):
    """HTTP/2 connection of one client. `serve` makes the application's protocol for each stream."""

    def __init__(self, serve: ProtocolFactory, settings: Settings, rng: Random) -> None:
        self._serve = serve
        self._settings = settings
        self._rng = rng
        span = settings.max_requests_per_connection
        self._most = None if span is None else rng.randint(*span)
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, ngh2.Configuration(auto_window_update=False))
        self._streams: dict[int, WorkerStream] = {}
        self._begun = self._last = 0
        self._is_leaving = self._is_full = self._is_broken = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection(
            {
                ngh2.Setting.MAX_CONCURRENT_STREAMS: self._settings.max_streams,
                ngh2.Setting.INITIAL_WINDOW_SIZE: WINDOW,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: 1 << 16,
            }
        )
        self._h2.set_local_window_size(WINDOW)
        self.flush()
        self._rest()

    def data_received(self, data: bytes) -> None:
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error:
            self._is_broken = True
            self.transport.close()
            return
        self._meet_all()
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
        self.flush()

    # ── called by streams ────────────────────────────────────────────────────────────────────────────────

    def unsent(self, number: int) -> int:
        """Return how many bytes of a response wait for the client's window or for the transport."""
        return self._h2.queued_body_size(number)

    def send_head(self, number: int, fields: list[tuple[bytes, bytes]], is_whole: bool) -> None:
        """Send the header of a response, in a packet of its own if so configured."""
        with suppress(ngh2.NGH2Error):  # of a stream or connection that has ended
            self._h2.send_response(number, fields, end_stream=is_whole)
        if self._settings.split_head:
            self.flush()

    def send_data(self, number: int, data: bytes, is_last: bool) -> None:
        """Send a part of a response, as the client's window allows."""
        with suppress(ngh2.NGH2Error):
            self._h2.send_data(number, data, end_stream=is_last)

    def acknowledge(self, number: int, size: int) -> None:
        """Acknowledge `size` bytes of a request body, which reopens the window."""
        with suppress(ngh2.NGH2Error):
            self._h2.acknowledge_received_data(size, number)
        self.flush()

    def break_off(self, number: int) -> None:
        """Reset a stream that ends without a response."""
        self._reset(number, ngh2.ErrorCode.INTERNAL_ERROR)

    def flush(self) -> None:
        """Write all prepared frames, in one write."""
        if self._is_full or self._is_broken or self.transport.is_closing():
            return
        if data := self._h2.data_to_send():
            self.transport.write(data)
        self._meet_all()
        for stream in list(self._streams.values()):
            stream.update_backpressure()

    def abort(self) -> None:
        """Reset the connection, and with it every stream."""
        reset(self.transport)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Close gracefully: send GOAWAY, answer active streams, close."""
        if not self._is_leaving:
            self._is_leaving = True
            with suppress(ngh2.NGH2Error):
                self._h2.send_goaway(last_stream_id=self._last)
            self.flush()

    # ── received frames ──────────────────────────────────────────────────────────────────────────────────

    def _meet_all(self) -> None:
        for event in self._h2.events():
            self._meet(event)

    def _meet(self, event: ngh2.Event) -> None:
        match event:
            case ngh2.RequestReceived(number, fields, is_whole):
                self._begin(number, fields, is_whole)
            case ngh2.DataReceived(number, data, is_last):
                if number in self._streams:
                    self._streams[number].arrive(data)
                    if is_last:
                        self._streams[number].arrive_end()
            case ngh2.TrailersReceived(number) if number in self._streams:
                self._streams[number].arrive_end()
            case ngh2.StreamClosed(number, code) if number in self._streams:
                stream = self._streams.pop(number)
                if code:
                    stream.lose()
                self._rest()
            case ngh2.ConnectionClosed():  # by either side's GOAWAY, when all streams have ended
                self._is_leaving = self._is_broken = True
                self._stir()
                self.transport.close()

    def _begin(self, number: int, fields: tuple[ngh2.Header, ...], is_whole: bool) -> None:
        self._stir()
        self._begun += 1
        self._last = number
        stream = self._streams[number] = WorkerStream(self, number, self._serve())
        try:
            stream.begin(fields, is_whole)
        except KeyError:  # CONNECT, which a worker does not support
            self._reset(number, ngh2.ErrorCode.PROTOCOL_ERROR)
            return
        if self._begun == self._most:
            self.leave()

    def _reset(self, number: int, code: ngh2.ErrorCode) -> None:
        with suppress(ngh2.NGH2Error):
            self._h2.reset_stream(number, code)
        self.flush()

    # ── idle timeout ─────────────────────────────────────────────────────────────────────────────────────

    def _rest(self) -> None:
        """Start the idle timeout, configured or drawn, if no stream is active."""
        if self._streams or self._is_leaving or self.transport.is_closing():
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
