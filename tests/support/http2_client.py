"""HTTP/2 client of the tests: the engine's client role on a wire of a stage, and raw frames beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hpack import Encoder
from hyperframe.frame import Frame, HeadersFrame

from balancer.http.h2.client_engine import ClientEngine
from balancer.http.h2.events import CLOSED, DATA, GOAWAY, HEAD, INTERIM, RESET, TRAILERS
from balancer.http.h2.limits import Http2Limits
from tests.support import frames
from tests.support.frames import PREFACE, frame, frames_of
from tests.support.stage import Stage
from tests.support.wire import Wire

Fields = tuple[tuple[bytes, bytes], ...]


def fields(path: bytes = b"/", *others: tuple[bytes, bytes], method: bytes = b"GET") -> Fields:
    return (
        (b":method", method),
        (b":scheme", b"http"),
        (b":authority", b"example.org"),
        (b":path", path),
        *others,
    )


@dataclass
class Answer:
    """What has come on a stream: `reset` is the code of RST_STREAM."""

    interim: list[dict[bytes, bytes]] = field(default_factory=list)
    head: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    has_ended: bool = False
    reset: int | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def status(self) -> int:
        return int(self.head.get(b":status", b"0"))


class Http2Client:
    """A client that acknowledges what it reads, unless `is_slow`."""

    def __init__(self, wire: Wire, limits: Http2Limits | None = None) -> None:
        self.wire = wire
        self.engine = ClientEngine(limits or Http2Limits())
        self.answers: dict[int, Answer] = {}
        self.goaways: list[tuple[int, int]] = []
        self.closed: tuple[int, str] | None = None
        self.is_slow = False
        self.flush()

    def flush(self) -> None:
        """Send what the engine has."""
        data = self.engine.data_to_send()
        if data:
            self.wire.write(data)

    def request(self, *others: tuple[bytes, bytes], body: bytes | None = None, **given: Any) -> int:
        """Begin a request, whole with `body`; return its stream."""
        stream = self.begin(fields(given.pop("path", b"/"), *others, **given), is_last=body is None)
        if body is not None:
            self.send(stream, body, is_last=True)
        return stream

    def begin(self, of_request: Fields, *, is_last: bool = False) -> int:
        stream = self.engine.request(of_request, is_last=is_last)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of a body."""
        self.engine.send_data(stream, data, is_last=is_last)
        self.flush()

    def handle(self, kind: int, stream: int, value: Any, flag: bool) -> None:
        """Take one event."""
        if kind == GOAWAY:
            self.goaways.append((stream, value))
        elif kind == CLOSED:
            self.closed = value
        answer = self.answers.get(stream)
        if answer is None:
            return
        if kind == INTERIM:
            answer.interim.append(dict(value))
        elif kind == HEAD:
            answer.head = dict(value)
        elif kind == DATA:
            answer.pieces.append(value)
            answer.size += len(value)
            if not self.is_slow:
                self.engine.acknowledge(stream, len(value))
        elif kind == TRAILERS:
            answer.trailers = dict(value)
        elif kind == RESET:
            answer.reset = value
        answer.has_ended |= flag and kind in (HEAD, DATA, TRAILERS)

    async def read(self) -> bool:
        """Handle one read; False at the end of the connection."""
        data = await self.wire.some()
        for kind, stream, value, flag in self.engine.receive(data):
            self.handle(kind, stream, value, flag)
        self.flush()
        return bool(data)

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until the condition holds."""
        while not condition():
            assert await self.read(), f"the connection ended: {self.closed}, {self.answers}"

    async def answer(self, stream: int) -> Answer:
        """Read until the stream has ended, in order or by a reset."""
        answer = self.answers[stream]
        await self.until(lambda: answer.has_ended or answer.reset is not None)
        return answer

    async def ask(self, *others: tuple[bytes, bytes], body: bytes | None = None, **given: Any) -> Answer:
        """Send a request and read its response."""
        return await self.answer(self.request(*others, body=body, **given))

    async def end(self) -> None:
        """Read until the connection has ended."""
        try:
            while await self.read():
                pass
        except ConnectionError:
            pass


async def http2_client(stage: Stage, limits: Http2Limits | None = None, **given: Any) -> Http2Client:
    """Connect to the stage's server."""
    return Http2Client(await stage.client(**given), limits)


class RawClient:
    """A client that sends frames as the test writes them; `seen` are those of the server."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._unread = b""
        self.seen: list[tuple[int, int, int, bytes]] = []

    async def send(self, data: bytes) -> None:
        await self.wire.send(data)

    async def until(self, kind: int, stream: int | None = None) -> tuple[int, bytes]:
        """Read until a frame of this kind and stream; return its flags and payload."""
        while True:
            for found, of, flags, payload in self.seen:
                if found == kind and stream in (None, of):
                    return flags, payload
            data = await self.wire.some()
            if not data:
                raise asyncio.IncompleteReadError(self._unread, None)
            self._take(data)

    async def end(self) -> None:
        """Read until the connection has ended."""
        try:
            while data := await self.wire.some():
                self._take(data)
        except ConnectionError:
            pass

    def _take(self, data: bytes) -> None:
        self._unread += data
        whole = 0
        while len(self._unread) >= whole + 9:
            size = 9 + int.from_bytes(self._unread[whole : whole + 3], "big")
            if len(self._unread) < whole + size:
                break
            whole += size
        self.seen += frames_of(self._unread[:whole])
        self._unread = self._unread[whole:]

    async def goaway(self) -> int:
        """Read until a GOAWAY; return its code."""
        _, payload = await self.until(frames.GOAWAY)
        return int.from_bytes(payload[4:8], "big")


async def raw_client(stage: Stage, **given: Any) -> RawClient:
    """Connect to the stage's server, and begin HTTP/2."""
    client = RawClient(await stage.client(**given))
    await client.send(PREFACE + frame(frames.SETTINGS))
    return client


def headers_frame(
    *fields: tuple[str, str], stream: int = 1, flags: tuple[str, ...] = ("END_HEADERS",)
) -> Frame:
    block = Encoder().encode([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields])
    return HeadersFrame(stream, block, flags=list(flags))


WEBSOCKET = (
    (b":method", b"CONNECT"),
    (b":protocol", b"websocket"),
    *fields(b"/chat")[1:],
    (b"sec-websocket-version", b"13"),
)


def accept_of(key: bytes) -> bytes:
    from base64 import b64encode
    from hashlib import sha1

    return b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
