"""HTTP/2 connection without I/O (RFC 9113): bytes in, events out; messages in, bytes out.

A session of the library (`library.py`) does the frames. What it leaves to its user is done here: limits on floods,
streams that are reset in the read that began them, windows of ended streams, the fields of outgoing messages, and turns
of concurrent bodies (`bodies.py`).

    for kind, stream_id, value, flag in engine.receive(data): …      (`events.py`)
    transport.write(engine.data_to_send())                           once after each read, not after each message

Calls for a stream that has ended do nothing, because the peer can end it at any time. Bodies are kept here until the
peer's window takes them: `unsent`. `tick` is called every `TICK` seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, cast

from balancer.http.h1.body import SMALL_BYTES
from balancer.http.h2.bodies import Bodies
from balancer.http.h2.events import (
    CLOSED,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEAD,
    INTERIM,
    INTERNAL_ERROR,
    OUTPUT,
    OVERSIZED,
    PONG,
    PROTOCOL_ERROR,
    RESET,
    SETTINGS,
    STREAM_CLOSED,
    TRAILERS,
    Event,
    join_data,
    name_of,
)
from balancer.http.h2.library import DenialOfService, LibraryError, Session
from balancer.http.h2.limits import (
    ASSUMED_STREAMS,
    BYTES_PER_FRAME,
    FRAMES_PER_HEAD,
    FRAMES_PER_PART,
    LAST_ID,
    LEAVING,
    LONGEST_FRAME,
    LOST_LIMIT,
    MOST_ALLOWED,
    PIECE,
    UNLIMITED,
    WINDOW,
    Http2Limits,
)
from balancer.http.h2.sendable import sendable


class Engine:
    """What both roles have in common; abstract.

    `is_closed`: the connection is over; only `data_to_send` is left. `is_blocked`, set by the owner: the transport's
    buffer is full, so nothing is framed for it meanwhile. `is_leaving`: a GOAWAY has been sent or received. `resets`:
    streams that ended early by the peer's reset or fault, ever. `stream_limit`: MAX_CONCURRENT_STREAMS of the peer.
    `header_list`: MAX_HEADER_LIST_SIZE. `has_connect`: it takes extended CONNECT (RFC 8441).
    """

    def __init__(self, is_server: bool, limits: Http2Limits, settings: dict[int, int]) -> None:
        self.is_closed = False
        self.is_blocked = False
        self.is_leaving = False
        self.resets = 0
        self.stream_limit = ASSUMED_STREAMS
        self.header_list = UNLIMITED
        self.has_connect = False
        self._is_server = is_server
        self._limits = limits
        self._has_settings = False
        self._farewell = -1  # code of the peer's GOAWAY
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._reset: set[int] = set()  # streams that this read has ended early
        self._open: dict[int, int] = {}  # streams that the peer has not ended -> bytes not acknowledged yet
        # answered streams whose request is dropped as it comes -> ticks since the last of it, and in all
        self._unwanted: dict[int, list[int]] = {}
        self._last_id = 0  # highest stream id of the peer
        self._own_resets: set[int] = set()  # streams that are being reset from here
        self._recent_resets = 0
        self._idle_frames = 0  # below 0: those that progress allows in advance
        self._sent = self._parts = 0  # of bodies, what has been sent when progress was counted
        self._small_data = 0  # events in this read
        self._lost = 0  # bytes of the connection's window that may be lost
        settings |= {4: limits.stream_window, 6: limits.header_list}
        self._session: Any = Session(is_server, limits, settings, WINDOW)
        self._bodies = Bodies(self._session)
        # bound, because each call would look the method up
        self._receive: Callable[[bytes | memoryview, bool], list[Any]] = self._session.receive
        self._send: Callable[[int | None], bytes] = self._session.send

    # --- from the peer

    def receive(self, data: bytes) -> list[Event]:
        """Parse bytes of the peer; return the events that they cause, in order.

        A stream that a client begins and resets within `data` is not reported.
        """
        if len(data) > PIECE:
            self._feed_in_pieces(data)
        else:
            self._feed(data)
        if self.is_closed and self._is_server:
            self._events = self._events[-1:]
        elif self._reset:
            reset, self._reset = self._reset, set()
            self._settle_resets(reset)
        events, self._events = self._events, []
        small, self._small_data = self._small_data, 0
        return join_data(events) if small > 1 else events

    def events(self) -> list[Event]:
        """Return events that sending has caused: ask after `data_to_send` when the transport is no longer blocked, and
        while the connection `is_leaving`."""
        return self.receive(b"")

    def _feed_in_pieces(self, data: bytes) -> None:
        """Feed a long read so that no more answers to PING and SETTINGS pile up than are sent between the pieces, and a
        flood costs no more than a piece.
        """
        view = memoryview(data)
        for at in range(0, len(data), PIECE):
            self._feed(view[at : at + PIECE])
            if self.is_closed or not self._session.wants_read:  # it has ended
                return

    def _feed(self, data: bytes | memoryview) -> None:
        if self.is_closed:
            return
        session = self._session
        fault = None
        try:
            # What it sends at once reports the streams that this read has broken.
            events = self._receive(data, not self.is_blocked)
        except LibraryError as error:
            fault = error.with_traceback(None)  # which would keep the read until a garbage collection
            events = session.events()
        reset = self._reset
        for event in events:
            kind, stream_id, value, flag = cast(Event, event)
            if kind in (HEAD, OVERSIZED):
                self._on_head(stream_id, flag)
                self._events.append(event)
            elif kind == DATA:
                self._on_data(event, stream_id, value, flag)
            elif kind == STREAM_CLOSED:
                if (value or flag) and stream_id not in reset:
                    reset.add(stream_id)
                    self._count_lost(stream_id)
                    self._events.append((RESET, stream_id, value or INTERNAL_ERROR, False))
                    if not flag and stream_id not in self._own_resets:
                        self.count_fault()
                self._own_resets.discard(stream_id)
                self._forget(stream_id)
                self._bodies.waiting.pop(stream_id, None)
            elif kind == RESET:
                self.count_fault()
                reset.add(stream_id)
                self._events.append(event)
            elif kind == OUTPUT:
                self._out.append(value)
            else:
                self._on_other(event, kind, stream_id, value)
        if fault is not None:
            self._fail(fault)
        elif self._is_flood():
            self.terminate(ENHANCE_YOUR_CALM, self._flood_in_words())

    def _on_head(self, stream_id: int, has_ended: bool) -> None:
        self._idle_frames -= FRAMES_PER_HEAD
        if self._is_server:
            self._last_id = stream_id
            if not has_ended:
                self._open[stream_id] = 0
        elif has_ended:
            self._open.pop(stream_id, None)

    def _on_data(self, event: Any, stream_id: int, data: bytes, has_ended: bool) -> None:
        owed = self._open.get(stream_id)
        if owed is None:
            self._return(stream_id, len(data))  # of a stream that was reset from here meanwhile
            return
        if len(data) < SMALL_BYTES:
            self._small_data += 1
        if data:
            self._idle_frames -= 1
        elif not has_ended:
            self._idle_frames += 1
            return  # it says nothing, and may come before the head of the response
        owed += len(data)
        unwanted = self._unwanted.get(stream_id)
        if has_ended:
            del self._open[stream_id]
            self._return(stream_id, owed)
        elif unwanted is not None:
            unwanted[0] = 0
            self._return(stream_id, len(data))
        else:
            self._open[stream_id] = owed
        if unwanted is None:
            self._events.append(event)

    def _on_other(self, event: Any, kind: int, stream_id: int, value: Any) -> None:
        self._idle_frames += 1
        if kind == TRAILERS:
            self._forget(stream_id)
            self._events.append(event)
        elif kind == INTERIM:
            self._events.append(event)
        elif kind == SETTINGS:
            self._on_settings(value)
            self._events.append((SETTINGS, 0, None, False))
        elif kind == PONG:
            if value == LEAVING and self.is_leaving:
                self._send_goaway()
            else:
                self._events.append(event)
        elif kind == GOAWAY:
            self.is_leaving, self._farewell = True, value
            self._events.append(event)
        elif kind == CLOSED:
            code, debug_data = value
            reason, by_peer = debug_data.decode("ascii", "replace"), code == self._farewell
            if code == ENHANCE_YOUR_CALM and not (reason or by_peer):
                reason = self._flood_in_words()
            self._close(code, reason, by_peer=by_peer)

    def _send_goaway(self) -> None:
        try:
            self._session.goaway()
        except LibraryError:  # the same read has ended the connection
            return

    def _on_settings(self, settings: Any) -> None:
        if not self._has_settings:
            self._has_settings, self.stream_limit = True, UNLIMITED
        self.stream_limit = settings.get(3, self.stream_limit)
        self.header_list = settings.get(6, self.header_list)
        self.has_connect = settings.get(8, self.has_connect) == 1

    def _forget(self, stream_id: int) -> None:
        """Return the window of a stream that the peer has ended: what is withheld would be lost to the connection."""
        owed = self._open.pop(stream_id, 0)
        if owed:
            self._return(stream_id, owed)
        if self._unwanted:
            self._unwanted.pop(stream_id, None)

    def _count_lost(self, stream_id: int) -> None:
        """Count the window of a part of a frame, which the library does not return after a reset."""
        if stream_id in self._open:
            self._lost += LONGEST_FRAME

    @abstractmethod
    def _settle_resets(self, reset: set[int]) -> None:
        """Change the events of a read that has ended the streams `reset` early."""

    # --- limits

    def _is_flood(self) -> bool:
        limits = self._limits
        if self._recent_resets > limits.resets and self._is_server:
            return True
        if self._idle_frames <= limits.idle_frames:
            return False
        bodies = self._bodies
        sent, parts = bodies.given - self._session.queued_in_all, bodies.parts
        self._idle_frames -= (parts - self._parts) * FRAMES_PER_PART + (sent - self._sent) // BYTES_PER_FRAME
        self._sent, self._parts = sent, parts
        return self._idle_frames > limits.idle_frames

    def _flood_in_words(self) -> str:
        if self._is_server and self._recent_resets > self._limits.resets:
            return f"more than {self._limits.resets} streams reset at once, or ended by the client's fault"
        return f"more than {self._limits.idle_frames} frames without progress in a second"

    def tick(self) -> None:
        """Begin the limits on floods anew."""
        self._idle_frames = min(0, max(self._idle_frames, -MOST_ALLOWED * self._limits.idle_frames))
        self._recent_resets = max(0, self._recent_resets - self._limits.resets_per_tick)

    def count_fault(self) -> None:
        """Count a stream that has ended early by the peer's reset, or by its fault (CVE-2023-44487, CVE-2025-8671)."""
        self._recent_resets += 1
        self.resets += 1

    @property
    def resets_left(self) -> int:
        """Resets that are allowed at once now."""
        return max(0, self._limits.resets - self._recent_resets)

    @property
    def has_many_resets(self) -> bool:
        """Whether the peer has its part in what the resets of many connections are together."""
        return self._recent_resets * 10 > self._limits.resets

    @property
    def is_worn(self) -> bool:
        """Whether the connection should be replaced: few stream ids are left, or much of its window is lost."""
        return self._last_id > LAST_ID or self._lost > LOST_LIMIT

    # --- to the peer

    def data_to_send(self, limit: int | None = None) -> bytes:
        """Return all bytes for the transport, or about `limit` of them."""
        out = self._out
        if not self.is_closed:
            try:
                data = self._send(limit)
                if self._bodies.waiting and (limit is None or len(data) < limit):
                    data += self._bodies.take_turns(limit)
            except LibraryError as error:
                self._fail(error)
                data = b""
            if not out:
                return data
            out.append(data)
        made = b"".join(out)
        out.clear()
        return made

    def send_data(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        """Send a part of a body, as the peer's windows allow, in turns with the bodies of other streams."""
        if not self.is_closed:
            self._bodies.send(stream_id, data, is_last)

    def send_trailers(self, stream_id: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """End a message with trailers. Raises `UnsendableFields`."""
        made = sendable(fields)
        if not self.is_closed:
            self._bodies.send_trailers(stream_id, made)

    def unsent(self, stream_id: int) -> int:
        """Return how many bytes of a body wait for the peer's window, or to be framed."""
        return self._bodies.unsent(stream_id)

    @property
    def has_answers(self) -> bool:
        """Whether `receive` has made bytes for the peer."""
        return bool(self._out)

    @property
    def unsent_in_all(self) -> int:
        """Bytes of all bodies that wait for the peer's windows, or to be framed."""
        size: int = self._session.queued_in_all
        return size + self._bodies.waiting_size if self._bodies.waiting else size

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Return window: `size` received bytes of a body have been passed on. Withhold it while the reader is slow."""
        owed = self._open.get(stream_id, 0)  # of an ended stream all has been returned
        if owed:
            size = min(size, owed)
            self._open[stream_id] = owed - size
            self._return(stream_id, size)

    def _return(self, stream_id: int, size: int) -> None:
        if size and not self.is_closed:
            try:
                self._session.acknowledge(stream_id, size)
            except LibraryError:
                return

    def reset(self, stream_id: int, code: int) -> None:
        """Reset a stream. It has no further events but RESET, which may be on its way."""
        if self.is_closed:
            return
        self._count_lost(stream_id)
        self._forget(stream_id)
        self._bodies.waiting.pop(stream_id, None)
        try:
            if self._is_server:
                self._session.stream_window(stream_id)  # raises an error if the stream is no more
                self._own_resets.add(stream_id)
            self._session.reset(stream_id, code)
        except LibraryError:
            return

    def ping(self, data: bytes) -> None:
        """Send a PING of eight bytes; the answer is a PONG."""
        if not self.is_closed:
            self._session.ping(data)

    def terminate(self, code: int, reason: str = "") -> None:
        """End the connection at once with GOAWAY; its CLOSED event has `reason`."""
        if self.is_closed:
            return
        try:
            self._session.terminate(code)
            self._out.append(self._session.send())
        except LibraryError:
            self._out.append(self._goaway(code))
        self._close(code, reason)

    def _fail(self, error: Exception) -> None:
        """Close after an error that has destroyed the library's state; it leaves the GOAWAY to us."""
        if self.is_closed:
            return
        code = ENHANCE_YOUR_CALM if isinstance(error, DenialOfService) else PROTOCOL_ERROR
        self._out.append(self._goaway(code))
        self._close(code, str(error).removeprefix("HTTP/2 engine error: "))

    def _close(self, code: int, reason: str, *, by_peer: bool = False) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._events.append((CLOSED, 0, (code, reason or name_of(code)), by_peer))

    def _goaway(self, code: int) -> bytes:
        last_id = self._last_id if self._is_server else 0
        return b"\0\0\x08\x07\0\0\0\0\0" + last_id.to_bytes(4, "big") + code.to_bytes(4, "big")
