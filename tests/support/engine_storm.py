"""Storms against the HTTP/2 engine: frames and bytes of an unruly peer between calls of the owner, and the invariants
that hold after each.

A storm is plain bytes, as in `storm.py`: events in a row, each 0xFE, a letter of `EVENTS`, and a payload up to the next
0xFE. What the peer sends is read at the next call of the owner, or at a `g`, so that one read may hold many frames.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from hpack import Encoder

from balancer.http.h1.body import SMALL_BYTES
from balancer.http.h2.client_engine import CannotOpenStream, ClientEngine
from balancer.http.h2.engine import Engine
from balancer.http.h2.events import CANCEL, CLOSED, DATA, HEAD, INTERIM, OVERSIZED, RESET, TRAILERS
from balancer.http.h2.events import Event as EngineEvent
from balancer.http.h2.limits import Http2Limits
from balancer.http.h2.sendable import UnsendableFields
from balancer.http.h2.server_engine import ServerEngine
from tests.support import frames
from tests.support.frames import PREFACE, block, frame, frames_of
from tests.support.storm import Event

LIMITS = Http2Limits(
    streams=5, stream_window=3000, header_list=500, idle_frames=20, resets=5, resets_per_tick=1
)
INITIAL_WINDOW = 65_535

GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/"))
OK = ((b":status", b"200"),)
HEADS: tuple[tuple[tuple[bytes, bytes], ...], ...] = (
    *(GET, OK, ((b":method", b"POST"), *GET[1:]), ((b":method", b"HEAD"), *GET[1:]), ((b":status", b"103"),)),
    ((b":method", b"CONNECT"), (b":authority", b"a:1")),
    ((b":method", b"CONNECT"), (b":protocol", b"websocket"), *GET[1:]),
    *((*GET, (b"content-length", b"5")), (*OK, (b"content-length", b"5")), ((b":status", b"204"),)),
    *((*GET, (b"x", b"y" * 600)), (*OK, (b"x", b"y" * 600)), ((b"a", b"trailer"),), (*GET, *GET), ()),
    (*GET, (b"connection", b"close")),
    (*OK, (b"x", b"a\r\nb: c")),
    (*GET, (b"Upper", b"x")),
    (*GET, (b"", b"")),
    *((*GET, (b"transfer-encoding", b"chunked")), (*GET, (b"te", b"trailers")), (*GET, (b"x", b" padded "))),
)
"""Header lists of the peer and of the owner, legal or not in their place."""

_is_name = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch


class EngineStorm:
    """An engine under a list of events; `side` is the unruly side: "c" for a server's client, "w" for a worker."""

    def __init__(self, side: str) -> None:
        self.is_server = side == "c"
        self.engine: Engine = ServerEngine(LIMITS, connect=True) if self.is_server else ClientEngine(LIMITS)
        self._coming = bytearray()  # from the peer, not read yet
        self._encoder = Encoder()
        self._out = bytearray(self.engine.data_to_send())
        self._owed: dict[
            int, int
        ] = {}  # streams whose head was reported, and which have not ended -> bytes received
        self._asked: set[int] = set()  # the client's streams without a head
        self._over: set[int] = set()  # streams that were reset, from here or by an event
        self._known: set[int] = set()
        self._latest = 1  # stream that was begun last
        self._next = 1  # of the peer
        self._is_bytewise = self._has_closed = False

    def run(self, events: list[Event]) -> None:
        """Run the events; check the invariants after each, and the final ones at the end."""
        first = (
            b""
            if events[:1] == [("n", b"")]
            else (PREFACE if self.is_server else b"") + frame(frames.SETTINGS)
        )
        self._coming += first
        for letter, payload in events:
            act = self.EVENTS.get(letter)
            if act is not None:
                act(self, payload)
        self.engine.is_blocked = False
        self._read()
        self._flush()
        self._hear(self.engine.events())
        self._out += self.engine.data_to_send()  # those events may have ended the connection
        if self._has_closed:
            assert self.engine.receive(PREFACE) == []
            assert self.engine.data_to_send() == b""
        self._check_output()

    def _stream(self, number: int) -> int:
        """Stream id of a payload's byte; 15 is the stream that was begun last."""
        return self._latest if number % 16 == 15 else number % 16

    # --- the peer

    def _send_bytes(self, payload: bytes) -> None:
        self._coming += payload

    def _send_frame(self, payload: bytes) -> None:
        """Kind, flags, stream and the frame's payload."""
        kind, flags, stream, *rest = (*payload[:3], *bytes(3 - len(payload[:3])), *payload[3:])
        self._coming += frame(kind, bytes(rest), self._stream(stream), flags)

    def _send_head(self, payload: bytes) -> None:
        """Stream (0: of a client a new one), index of a header list, what is unusual of the flags, and how often; from
        128 on it refers to fields that were sent before (RFC 7541 § 2.3.2)."""
        stream, index, flags, times = (*payload[:4], *bytes(4 - len(payload[:4])))
        fields = HEADS[index % len(HEADS)]
        for _ in range(1 + times % 12):
            number = self._stream(stream or 15)
            if self.is_server and not stream:
                number = self._latest = self._next
                self._next += 2
            made = self._encoder.encode(fields, huffman=False) if times & 128 else block(*fields)
            self._coming += frame(frames.HEADERS, made, number, flags ^ 5)

    def _send_number(self, payload: bytes) -> None:
        """Kind, stream and index of a number that is tender somewhere."""
        kind, stream, index = (*payload[:3], *bytes(3 - len(payload[:3])))
        number = (0, 1, 1000, 2**14, 2**16, 2**30, 2**31 - 1, 2**32 - 1)[index % 8]
        if kind % 4 == 0:
            self._coming += frame(frames.WINDOW_UPDATE, struct.pack("!I", number), self._stream(stream))
        elif kind % 4 == 1:
            self._coming += frame(frames.SETTINGS, struct.pack("!HI", stream % 10, number))
        elif kind % 4 == 2:
            self._coming += frame(frames.GOAWAY, struct.pack("!II", number & 0x7FFFFFFF, stream % 15))
        else:
            self._coming += frames.rst(self._stream(stream), number)

    def _repeat(self, payload: bytes) -> None:
        """Repeat what is about to be read."""
        if len(self._coming) < 2000:
            self._coming *= 2 + (payload[0] % 30 if payload else 0)

    # --- the owner

    def _read(self, payload: bytes = b"") -> None:
        data, self._coming = bytes(self._coming), bytearray()
        for piece in [data[i : i + 1] for i in range(len(data))] if self._is_bytewise else [data]:
            self._hear(self.engine.receive(piece))

    def _flush(self, payload: bytes = b"") -> None:
        if not self.engine.is_blocked:
            self._out += self.engine.data_to_send()
            self._hear(self.engine.events())

    def _begin(self, payload: bytes) -> None:
        """Answer a stream, or ask on a new one."""
        self._read()
        stream, index, is_last = (*payload[:3], *bytes(3 - len(payload[:3])))
        fields = HEADS[index % len(HEADS)] if index else (OK if self.is_server else GET)
        try:
            if isinstance(self.engine, ServerEngine):
                self.engine.respond(self._stream(stream) or 1, fields, is_last=is_last % 2 == 1)
            elif isinstance(self.engine, ClientEngine):
                number = self.engine.request(fields, is_last=is_last % 2 == 1)
                assert number not in self._known
                self._known.add(number)
                self._asked.add(number)
                self._latest = number
        except (UnsendableFields, CannotOpenStream):
            pass

    def _send_data(self, payload: bytes) -> None:
        self._read()
        stream, size, is_last = (*payload[:3], *bytes(3 - len(payload[:3])))
        stream = self._stream(stream) or 1
        before = self.engine.unsent(stream)
        self.engine.send_data(stream, bytes(size * 300), is_last=is_last % 2 == 1)
        assert self.engine.unsent(stream) in (before, before + size * 300)

    def _send_trailers(self, payload: bytes) -> None:
        self._read()
        stream, index = (*payload[:2], *bytes(2 - len(payload[:2])))
        try:
            if isinstance(self.engine, ServerEngine) and index % 2:
                self.engine.interim(self._stream(stream) or 1, HEADS[index % len(HEADS)])
            else:
                self.engine.send_trailers(self._stream(stream) or 1, HEADS[index % len(HEADS)])
        except UnsendableFields:
            pass

    def _acknowledge(self, payload: bytes) -> None:
        self._read()
        for stream, owed in self._owed.items():
            self.engine.acknowledge(stream, owed)
            self._owed[stream] = 0

    def _reset(self, payload: bytes) -> None:
        self._read()
        stream = self._stream(payload[0]) or 1 if payload else self._latest
        if stream in self._known:
            self.engine.reset(stream, CANCEL)
            self._end(stream)

    def _discard(self, payload: bytes) -> None:
        self._read()
        stream = self._stream(payload[0]) or 1 if payload else self._latest
        if isinstance(self.engine, ServerEngine) and stream in self._owed:
            self.engine.send_data(stream, b"", is_last=True)
            self.engine.discard(stream)
            self._end(stream)

    def _leave(self, payload: bytes) -> None:
        self._read()
        if isinstance(self.engine, ServerEngine):
            self.engine.leave()
        self.engine.ping(b"12345678")

    def _tick(self, payload: bytes) -> None:
        self._read()
        self.engine.tick()

    def _terminate(self, payload: bytes) -> None:
        self._read()
        self.engine.terminate(payload[0] % 14 if payload else 0)

    def _block(self, payload: bytes) -> None:
        self._read()
        self.engine.is_blocked = not self.engine.is_blocked
        self._flush()

    def _read_bytewise(self, payload: bytes) -> None:
        self._is_bytewise = True

    # --- invariants

    def _end(self, stream: int) -> None:
        self._over.add(stream)
        self._asked.discard(stream)
        self._owed.pop(stream, None)

    def _hear(self, events: list[EngineEvent]) -> None:
        begun = {stream for kind, stream, *_ in events if kind in (HEAD, OVERSIZED)}
        for kind, stream, value, flag in events:
            assert not self._has_closed, "an event after CLOSED"
            if kind == CLOSED:
                self._has_closed = True
                code, reason = value
                assert reason
                assert isinstance(code, int)
                assert not self.is_server or len(events) == 1, "requests of a read that ended the connection"
            elif kind == RESET:
                assert not (self.is_server and stream in begun), "a stream begun and reset in one read"
                self._end(stream)
            elif kind < RESET and stream not in self._over:
                self._hear_message(kind, stream, value, flag)
        short = [stream for kind, stream, value, _ in events if kind == DATA and len(value) < SMALL_BYTES]
        assert len(short) == len(set(short)), "small frames of one read that are not one event"
        self._check_limits()
        assert self.engine.is_closed or not self._has_closed
        assert self.engine.is_closed == self._has_closed or not events

    def _check_limits(self) -> None:
        """What an open connection has done stays within the limits on floods."""
        engine = self.engine
        if not engine.is_closed:
            assert engine._idle_frames <= LIMITS.idle_frames
            assert not self.is_server or engine._recent_resets <= LIMITS.resets
        assert len(engine._own_resets) <= LIMITS.streams

    def _hear_message(self, kind: int, stream: int, value: Any, flag: bool) -> None:
        if kind in (HEAD, OVERSIZED):
            size = sum(len(name) + len(text) + 32 for name, text in value)
            assert (kind == OVERSIZED) == (size > LIMITS.header_list)
            if self.is_server:
                assert stream % 2 == 1
                assert stream not in self._known
                self._known.add(stream)
                assert len(self._owed) < LIMITS.streams
            else:
                assert stream in self._asked
                self._asked.remove(stream)
            if not flag:
                self._owed[stream] = 0
        elif kind == INTERIM:
            assert stream in self._asked
        else:
            assert stream in self._owed, "a part of a message outside of it"
            if kind == DATA:
                self._owed[stream] += len(value)
                # Until the peer acknowledges our SETTINGS, the window is the initial one (RFC 9113 § 6.9.3).
                assert self._owed[stream] <= max(LIMITS.stream_window, INITIAL_WINDOW)
            if flag:
                del self._owed[stream]
        if kind != DATA:
            assert kind in (HEAD, OVERSIZED, INTERIM, TRAILERS)
            for name, text in value:
                assert _is_name(name), name
                assert _is_value(text), text
                assert name not in (b"connection", b"transfer-encoding", b"upgrade")

    def _check_output(self) -> None:
        """Everything sent is whole frames of the allowed size, and GOAWAY is among them if this side ended it."""
        at = 0 if self.is_server else len(PREFACE)
        size = at
        kinds = []
        for kind, _, _, payload in frames_of(self._out[at:]):
            size += 9 + len(payload)
            assert len(payload) <= 16_384
            kinds.append(kind)
        assert size == len(self._out)
        assert kinds[0] == frames.SETTINGS

    EVENTS: ClassVar[dict[str, Callable[[EngineStorm, bytes], None]]] = {
        "b": _send_bytes,
        "f": _send_frame,
        "h": _send_head,
        "w": _send_number,
        "R": _repeat,
        "g": _read,
        "o": _flush,
        "r": _begin,
        "d": _send_data,
        "t": _send_trailers,
        "a": _acknowledge,
        "x": _reset,
        "u": _discard,
        "l": _leave,
        "k": _tick,
        "z": _terminate,
        "q": _block,
        "e": _read_bytewise,
    }
