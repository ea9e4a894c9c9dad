"""One end of an HTTP/2 connection (RFC 9113), independent of the balancer's engine: frames, windows and their checks.

It sends valid frames except for the damage that a plan states, and fails on a frame that the balancer must not send: on
a stream that is not open, or beyond the announced windows and limits.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

from hpack import Decoder

from tests.faultsim.reading import Violation
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import READ, End, Route
from tests.support.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    rst,
)

Fields = Iterable[tuple[bytes, bytes]]

WINDOW: Final = 65_535
"""Every window until SETTINGS change it (RFC 9113 § 6.9.2)."""

LARGEST: Final = 2**31 - 1
LONGEST_FRAME: Final = 16_384
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL = 0, 2, 7, 8


class Stream:
    """A stream. `window`: bytes that may be sent; `room`: bytes that may come, `owed` of them are not returned."""

    def __init__(self, number: int, window: int, room: int) -> None:
        self.id = number
        self.window = window
        self.room = room
        self.owed = 0
        self.is_withheld = False
        self.unsent: deque[bytes] = deque()
        self.is_last = False  # `unsent` ends the message,
        self.trailers: Fields | None = None  # or these do
        self.has_sent_all = self.has_ended = False


class StreamsEnd(End):
    """An end that speaks HTTP/2. `stream_window` and `most_streams` are what it announces."""

    def __init__(
        self,
        timeline: Timeline,
        route: Route,
        number: int,
        pace: float,
        stream_window: int,
        most_streams: int,
    ) -> None:
        super().__init__(timeline, route, number, pace)
        self.streams: dict[int, Stream] = {}
        self.most_of_peer = LARGEST  # streams at a time
        self.most_streams = most_streams
        self.is_agreed = False  # the balancer knows our settings
        self._stream_window = stream_window
        self._room = WINDOW if number % 4 == 0 else 1 << 24  # of the connection
        self._most_room = self._room
        self._window = self._initial = WINDOW
        self._ended: set[int] = set()  # streams that were reset from here
        self._decoder = Decoder()
        self._unread = b""
        self._outgoing = b""
        self._is_flush_due = False

    # --- for subclasses

    @abstractmethod
    def came_head(self, number: int, fields: dict[bytes, bytes], has_ended: bool) -> None:
        """Handle a head or trailers."""

    @abstractmethod
    def came_data(self, stream: Stream, data: bytes) -> None:
        """Handle bytes of a body."""

    @abstractmethod
    def came_end(self, stream: Stream) -> None:
        """Handle the end of a message."""

    @abstractmethod
    def came_reset(self, stream: Stream, code: int) -> None:
        """Handle the end of a stream by the balancer."""

    @abstractmethod
    def came_goaway(self, last: int, code: int) -> None:
        """Handle the balancer's announcement that it takes no streams above `last`."""

    # --- to the balancer

    def emit(self, data: bytes) -> None:
        """Send frames together with all others of this instant."""
        self._outgoing += data
        if not self._is_flush_due:
            self._is_flush_due = True
            self.timeline.after(0.0, self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        data, self._outgoing = self._outgoing, b""
        middle = len(data) // 2 if self._draws % 5 == 0 else 0  # frames are cut anywhere
        for part in (data[:middle], data[middle:]):
            for at in range(0, len(part), READ):
                self.send(part[at : at + READ])

    def leave(self) -> None:
        self._flush()
        super().leave()

    def announce(self, preface: bytes = b"") -> None:
        settings = struct.pack("!HIHI", 3, self.most_streams, 4, self._stream_window)
        self.emit(preface + frame(SETTINGS, settings))
        if self._room > WINDOW:
            self.emit(frame(WINDOW_UPDATE, struct.pack("!I", self._room - WINDOW)))

    def opened(self, stream: Stream) -> None:
        stream.window = self._initial
        stream.room = self._stream_window if self.is_agreed else WINDOW
        self.streams[stream.id] = stream

    def send_head(self, stream: Stream, fields: Fields, *, is_last: bool) -> None:
        flags = END_HEADERS | END_STREAM if is_last else END_HEADERS
        self.emit(frame(HEADERS, block(*fields), stream.id, flags))
        if is_last:
            self._sent_all(stream)

    def send_body(
        self, stream: Stream, data: bytes, *, is_last: bool, trailers: Fields | None = None
    ) -> None:
        """Send a part of a body as far as the windows allow, the rest later; the last part with `trailers`."""
        if self.streams.get(stream.id) is not stream or stream.has_sent_all:
            return
        if data:
            stream.unsent.append(data)
        stream.is_last, stream.trailers = is_last, trailers
        self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        unsent = stream.unsent
        while unsent:
            part = unsent[0]
            size = min(len(part), stream.window, self._window, LONGEST_FRAME)
            if size <= 0:
                return
            stream.window -= size
            self._window -= size
            if size < len(part):
                unsent[0] = part[size:]
            else:
                unsent.popleft()
            is_end = stream.is_last and not unsent and stream.trailers is None
            self.emit(frame(DATA, part[:size], stream.id, END_STREAM if is_end else 0))
            if is_end:
                self._sent_all(stream)
                return
        self._end(stream)

    def _end(self, stream: Stream) -> None:
        if stream.is_last and not stream.has_sent_all:
            if stream.trailers is not None:
                flags = END_HEADERS | END_STREAM
                self.emit(frame(HEADERS, block(*stream.trailers), stream.id, flags))
            else:
                self.emit(frame(DATA, b"", stream.id, END_STREAM))
            self._sent_all(stream)

    def _sent_all(self, stream: Stream) -> None:
        stream.has_sent_all = True
        self._close_if_done(stream)

    def _close_if_done(self, stream: Stream) -> None:
        if stream.has_sent_all and stream.has_ended and self.streams.pop(stream.id, None) is not None:
            self.closed(stream)

    def closed(self, stream: Stream) -> None:
        """A stream has ended in both directions, or was reset."""

    def drop(self, stream: Stream, code: int) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self._ended.add(stream.id)
            self.emit(rst(stream.id, code))
            self.closed(stream)

    def return_window(self, stream: Stream) -> None:
        """Return a stream's window when half of it is owed."""
        if stream.is_withheld or stream.has_ended or stream.owed * 2 < self._stream_window:
            return
        if self.streams.get(stream.id) is stream:
            size, stream.owed = stream.owed, 0
            stream.room += size
            self.emit(frame(WINDOW_UPDATE, struct.pack("!I", size), stream.id))

    def withhold(self, stream: Stream, seconds: float) -> None:
        """Return nothing of a stream's window for a while."""
        stream.is_withheld = True
        self.timeline.after(seconds, self._withhold_no_more, stream)

    def _withhold_no_more(self, stream: Stream) -> None:
        stream.is_withheld = False
        self.return_window(stream)

    # --- from the balancer

    def received(self, data: bytes) -> None:
        data = self._unread + data
        at = 0
        while len(data) >= at + 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) < at + 9 + size:
                break
            number = int.from_bytes(data[at + 5 : at + 9], "big")
            self._frame(data[at + 3], data[at + 4], number, data[at + 9 : at + 9 + size])
            at += 9 + size
            if self.is_over:
                return
        self._unread = data[at:]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(flags, number, payload)
        elif kind == HEADERS:
            if flags & ~END_STREAM != END_HEADERS:
                raise Violation(f"{self} got HEADERS with flags {flags}")
            self.came_head(number, self.fields_in(payload), bool(flags & END_STREAM))
        elif kind == WINDOW_UPDATE:
            self._window_update(number, int.from_bytes(payload, "big"))
        elif kind == SETTINGS:
            self._settings(flags, payload)
        elif kind == PING:
            if not flags & ACK:
                self.emit(frame(PING, payload, flags=ACK))
        elif kind == RST_STREAM:
            stream = self.streams.pop(number, None)
            if stream is not None:
                self.came_reset(stream, int.from_bytes(payload, "big"))
                self.closed(stream)
        elif kind == GOAWAY:
            last, code = struct.unpack("!II", payload[:8])
            self.came_goaway(last, code)
        else:
            raise Violation(f"{self} got a frame of kind {kind}")

    def fields_in(self, payload: bytes) -> dict[bytes, bytes]:
        return dict(self._decoder.decode(payload, raw=True))

    def _data(self, flags: int, number: int, data: bytes) -> None:
        size = len(data)
        self._room -= size
        if self._room < 0 or size > LONGEST_FRAME or flags & ~END_STREAM:
            raise Violation(f"{self} got {size} bytes, flags {flags}; the window was {self._room + size}")
        if self._room * 2 < self._most_room:
            self.emit(frame(WINDOW_UPDATE, struct.pack("!I", self._most_room - self._room)))
            self._room = self._most_room
        stream = self.open_stream(number)
        if stream is None:
            return
        stream.room -= size
        if stream.room < 0:
            raise Violation(f"{self} got {-stream.room} bytes beyond the window of stream {number}")
        stream.owed += size
        self.came_data(stream, data)
        if flags & END_STREAM:
            self.end_came(stream)
        else:
            self.return_window(stream)

    def open_stream(self, number: int) -> Stream | None:
        """The stream of a frame that needs an open one; None if it was reset from here meanwhile."""
        stream = self.streams.get(number)
        if (stream is None and number not in self._ended) or (stream is not None and stream.has_ended):
            raise Violation(f"{self} got a part of a message on stream {number}, which has ended")
        return stream

    def end_came(self, stream: Stream) -> None:
        """The balancer has ended its side of a stream."""
        stream.has_ended = True
        self.came_end(stream)
        self._close_if_done(stream)

    def _window_update(self, number: int, size: int) -> None:
        if not size:
            raise Violation(f"{self} got a WINDOW_UPDATE of 0")
        if not number:
            self._window += size
            streams = list(self.streams.values())
        else:
            streams = [self.streams[number]] if number in self.streams else []
            for stream in streams:
                stream.window += size
        if max([self._window, *(stream.window for stream in streams)]) > LARGEST:
            raise Violation(f"{self}: a window of more than {LARGEST} bytes")
        for stream in streams:
            self._pump(stream)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self.is_agreed = True
            for stream in self.streams.values():
                stream.room += self._stream_window - WINDOW
            return
        for at in range(0, len(payload), 6):
            name, value = struct.unpack("!HI", payload[at : at + 6])
            if name == 3:
                self.most_of_peer = value
            elif name == 4:
                for stream in self.streams.values():
                    stream.window += value - self._initial
                self._initial = value
        self.emit(frame(SETTINGS, flags=ACK))
        for stream in list(self.streams.values()):
            self._pump(stream)
