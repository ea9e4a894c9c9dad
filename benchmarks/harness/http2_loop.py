"""Open loop over HTTP/2 in clear text: as `OpenLoop`, with one request at a time on each connection.

Frames are written and read by hand, so that a request costs as little as over HTTP/1.1.
"""

from __future__ import annotations

import socket

from benchmarks.harness.open_loop import FREE, OPENING, ConnectionSlot, OpenLoop
from experiments.generator.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST_WINDOW,
    PREFACE,
    RST_STREAM,
    frame,
    settings,
    window_update,
)
from experiments.run_data import Kind

BEGINNING = PREFACE + settings({}) + window_update(0, LARGEST_WINDOW // 2)
"""The window is more than a run receives."""

STATUS_200 = b"\x88"
"""The field `:status: 200` in the static table (RFC 7541), with which a response's header block begins."""


class Http2Slot(ConnectionSlot):
    """A connection; `send` takes the header block of a request."""

    __slots__ = ("has_failed", "stream")

    def take(self, sock: socket.socket, number: int) -> None:
        super().take(sock, number)
        self.stream = -1
        self.has_failed = False
        self.send = self._send  # type: ignore[assignment]  # the base has `sendall`, which also takes flags

    def _send(self, block: bytes) -> None:
        first = BEGINNING if self.stream < 0 else b""
        self.stream += 2
        self.has_failed = False
        self.sock.sendall(first + frame(HEADERS, END_STREAM | END_HEADERS, self.stream, block))


class Http2Loop(OpenLoop):
    """Open loop whose request is a header block."""

    slot = Http2Slot

    def _hear_piece(self, lane: ConnectionSlot, data: bytes, now: float) -> None:
        assert isinstance(lane, Http2Slot)
        if lane.number == OPENING:
            return self._go_down(lane)
        if not data:
            return self._end_broken(lane, Kind.RESET, now)
        lane.came += data
        at, has_ended = 0, False
        came = lane.came
        while len(came) >= at + 9 and len(came) >= (end := at + 9 + int.from_bytes(came[at : at + 3], "big")):
            kind, flags, stream = came[at + 3], came[at + 4], int.from_bytes(came[at + 5 : at + 9], "big")
            if kind == GOAWAY or (kind == RST_STREAM and stream == lane.stream):
                return self._end_broken(lane, Kind.RESET, now)
            if kind == HEADERS:
                lane.has_failed = came[at + 9 : at + 10] != STATUS_200
            if kind in (DATA, HEADERS) and flags & END_STREAM and stream == lane.stream:
                has_ended = True
            at = end
        lane.came = came[at:]
        if has_ended and lane.number != FREE:
            self._end(lane, Kind.ERROR_STATUS if lane.has_failed else Kind.OK, now)
        return None
