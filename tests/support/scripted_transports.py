"""Workers for tests whose scripts do not depend on the HTTP version.

A `Play` is one request with the means to answer it. `Http1` uses the parser of the tests, `Http2` uses h2 as a
server, so neither shares code with the balancer. Writes wait until the peer reads; `written` counts the bytes taken,
which shows back-pressure.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, SettingsFrame

from tests.support.frames import has_request
from tests.support.stage import Stage, endpoint
from tests.support.wire import ScriptedWorker, Wire

Fields = list[tuple[bytes, bytes]]


class Play(Protocol):
    """One request and its response. `fields` are in order of arrival, names in lower case, with Host."""

    method: bytes
    target: bytes
    fields: Fields
    written: int

    @property
    def wire(self) -> Wire: ...

    async def read(self) -> tuple[bytes, Fields]:
        """The whole body, and its trailers."""

    async def interim(self, status: int, *fields: tuple[bytes, bytes]) -> None: ...

    async def head(self, status: int, *fields: tuple[bytes, bytes], length: int | None = None) -> None:
        """Send the head; `length` None: the framing of the protocol marks the end."""

    async def data(self, data: bytes) -> None: ...

    async def end(self, *trailers: tuple[bytes, bytes]) -> None: ...

    def die(self) -> None:
        """Reset the connection."""


Script = Callable[[Play], Awaitable[None]]


def values(fields: Fields, name: bytes) -> list[bytes]:
    """All values of the field `name`, in order."""
    return [value for other, value in fields if other == name]


@dataclass
class Http1:
    """A `Play` over HTTP/1.1."""

    wire: Wire
    method: bytes
    target: bytes
    fields: Fields
    written: int = 0
    is_chunked: bool = False

    async def read(self) -> tuple[bytes, Fields]:
        if values(self.fields, b"transfer-encoding"):
            body, lines = await self.wire.chunks()
            trailers = (line.partition(b":") for line in lines)
            return body, [(name.lower(), value.strip()) for name, _, value in trailers]
        return await self.wire.exactly(int((values(self.fields, b"content-length") or [b"0"])[0])), []

    async def interim(self, status: int, *fields: tuple[bytes, bytes]) -> None:
        await self._lines(status, *fields)

    async def head(self, status: int, *fields: tuple[bytes, bytes], length: int | None = None) -> None:
        bodiless = status in (204, 304)
        self.is_chunked = length is None and not bodiless
        framing = (
            (b"Transfer-Encoding", b"chunked") if length is None else (b"Content-Length", b"%d" % length)
        )
        await self._lines(status, *fields, *(() if bodiless and length is None else (framing,)))

    async def _lines(self, status: int, *fields: tuple[bytes, bytes]) -> None:
        lines = b"".join(b"%b: %b\r\n" % pair for pair in fields)
        await self.wire.send(b"HTTP/1.1 %d Said So\r\n%b\r\n" % (status, lines))

    async def data(self, data: bytes) -> None:
        await self.wire.send(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)
        self.written += len(data)

    async def end(self, *trailers: tuple[bytes, bytes]) -> None:
        if self.is_chunked and self.method != b"HEAD":
            await self.wire.send(b"0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in trailers) + b"\r\n")

    def die(self) -> None:
        self.wire.reset()


def over_http1(script: Script, plays: list[Play]) -> ScriptedWorker:
    """A worker over HTTP/1.1, not started."""

    async def serve(wire: Wire) -> None:
        wire.patience = 50.0
        while True:
            head = await wire.head()
            method, target, _ = head.line.split(b" ")
            play = Http1(wire, method, target, [(name.lower(), value) for name, value in head.fields])
            plays.append(play)
            await script(play)

    return ScriptedWorker(serve)


@dataclass
class Http2:
    """A `Play` on a stream of HTTP/2."""

    peer: Http2Peer
    stream_id: int
    method: bytes
    target: bytes
    fields: Fields
    written: int = 0
    body: bytearray = field(default_factory=bytearray)
    trailers: Fields = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    reset_code: int | None = None
    is_reading: bool = False
    unread: int = 0

    @property
    def wire(self) -> Wire:
        return self.peer.wire

    async def read(self) -> tuple[bytes, Fields]:
        self.is_reading = True
        self.take(0)
        await self.ended.wait()
        return bytes(self.body), self.trailers

    def take(self, size: int) -> None:
        """Open the flow-control window again as far as the script reads."""
        self.unread += size
        if self.is_reading and self.unread:
            size, self.unread = self.unread, 0
            with suppress(Exception):
                self.peer.h2.acknowledge_received_data(size, self.stream_id)
            self.peer.flush()

    async def interim(self, status: int, *fields: tuple[bytes, bytes]) -> None:
        self._send(status, fields)

    async def head(self, status: int, *fields: tuple[bytes, bytes], length: int | None = None) -> None:
        extra = () if length is None else ((b"content-length", b"%d" % length),)
        self._send(status, (*fields, *extra))

    def _send(self, status: int, fields: tuple[tuple[bytes, bytes], ...]) -> None:
        pairs = [(name.lower(), value) for name, value in fields]
        self.peer.h2.send_headers(self.stream_id, [(b":status", b"%d" % status), *pairs])
        self.peer.flush()

    async def data(self, data: bytes) -> None:
        while data:
            room = min(self.peer.h2.local_flow_control_window(self.stream_id), 16_384)
            if room <= 0:
                self.has_room.clear()
                await self.has_room.wait()
                continue
            self.peer.h2.send_data(self.stream_id, data[:room])
            self.peer.flush()
            await self.peer.writer.drain()
            self.written += len(data[:room])
            data = data[room:]

    async def end(self, *trailers: tuple[bytes, bytes]) -> None:
        if trailers:
            self.peer.h2.send_headers(self.stream_id, [(n.lower(), v) for n, v in trailers], end_stream=True)
        else:
            self.peer.h2.end_stream(self.stream_id)
        self.peer.flush()

    def die(self) -> None:
        self.wire.reset()

    def reset(self, code: int) -> None:
        """Reset this stream."""
        self.peer.h2.reset_stream(self.stream_id, code)
        self.peer.flush()


class Http2Peer:
    """The worker's end of an HTTP/2 connection."""

    def __init__(self, wire: Wire, script: Script, plays: list[Play], streams: int | None) -> None:
        self.wire = wire
        self.writer = wire.writer
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.by_id: dict[int, Http2] = {}
        self._script, self._plays = script, plays
        self._streams = streams
        self._tasks: set[asyncio.Task[None]] = set()

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.writer.write(data)

    async def serve(self) -> None:
        if self._streams is not None:  # in the first SETTINGS, as in real servers
            most = {SettingCodes.MAX_CONCURRENT_STREAMS: self._streams}
            self.h2.local_settings = Settings(client=False, initial_values=most)
        self.h2.initiate_connection()
        self.flush()
        self.wire.patience = 50.0
        try:
            while data := await self.wire.some():
                for event in self.h2.receive_data(data):
                    self._on(event)
                self.flush()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on(self, event: object) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, DataReceived):
            play = self.by_id[event.stream_id]
            play.body += event.data
            play.take(event.flow_controlled_length)
        elif isinstance(event, TrailersReceived):
            self.by_id[event.stream_id].trailers = list(event.headers)
        elif isinstance(event, StreamEnded):
            self.by_id[event.stream_id].ended.set()
        elif isinstance(event, StreamReset):
            self.by_id[event.stream_id].reset_code = event.error_code
        if isinstance(event, WindowUpdated | ConnectionTerminated):
            for play in self.by_id.values():
                play.has_room.set()

    def _begin(self, event: RequestReceived) -> None:
        pseudo = {name: value for name, value in event.headers if name.startswith(b":")}
        fields = [(b"host", pseudo[b":authority"]), *(p for p in event.headers if p[0][:1] != b":")]
        play = Http2(self, event.stream_id, pseudo[b":method"], pseudo[b":path"], fields)
        self.by_id[event.stream_id] = play
        self._plays.append(play)
        task = asyncio.ensure_future(self._play(play))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, play: Http2) -> None:
        with suppress(ConnectionError):
            await self._script(play)


def over_http2(
    script: Script, plays: list[Play], streams: int | None = None, tls: ssl.SSLContext | None = None
) -> ScriptedWorker:
    """A worker over HTTP/2, not started; `streams` is its MAX_CONCURRENT_STREAMS."""

    async def serve(wire: Wire) -> None:
        peer = Http2Peer(wire, script, plays, streams)
        await peer.serve()

    return ScriptedWorker(serve, tls)


def over(transport: str, script: Script, plays: list[Play], streams: int | None = None) -> ScriptedWorker:
    """A worker for a transport, not started."""
    return over_http2(script, plays, streams) if transport == "http2" else over_http1(script, plays)


MEBI = bytes(range(256)) * 4096


@dataclass(frozen=True)
class KeptParts:
    """What of a message a transport keeps."""

    case: bool = True  # of field names
    reason: bool = True  # the worker's reason phrase
    trailers: bool = True  # of responses
    request_trailers: bool = True
    hints: bool = True  # interim responses
    octets: bool = True  # bytes beyond ASCII in field values
    repeats: bool = False  # the library repeats a request by itself if its worker dies
    bounded: int = 12_000_000  # bytes of a response that are taken for a client that does not read


KEEPS = {
    "native": KeptParts(),
    "http2": KeptParts(case=False, reason=False),
    "curl": KeptParts(request_trailers=False),
    "aiohttp": KeptParts(trailers=False, request_trailers=False, hints=False, octets=False, repeats=True),
}


TRANSPORTS = [
    pytest.param(
        name, marks=pytest.mark.skipif(find_spec("pycurl") is None, reason="pycurl is not installed")
    )
    if name == "curl"
    else name
    for name in KEEPS
]


async def serve_over(stage: Stage, worker: ScriptedWorker, transport: str, **settings: Any) -> None:
    """Start the worker and a server before it."""
    await stage.start(worker)
    await stage.serve(**{"endpoints": [endpoint(worker, transport=transport)], **settings})


async def hello(play: Play) -> None:
    """A response with the body "hello"."""
    await play.read()
    await play.head(200, length=5)
    if play.method != b"HEAD":
        await play.data(b"hello")
    await play.end()


def hello_after(gate: asyncio.Event, only: bytes = b"") -> Script:
    """The same once the gate is open; targets without `only` do not wait."""

    async def script(play: Play) -> None:
        if only in play.target:
            await gate.wait()
        await hello(play)

    return script


def sending(status: int, *pieces: bytes, fields: Fields | None = None, length: int | None = None) -> Script:
    """A response of these pieces, sent at once."""

    async def script(play: Play) -> None:
        await play.head(status, *(fields or ()), length=length)
        for piece in pieces:
            await play.data(piece)
        await play.end()

    return script


async def echo(play: Play) -> None:
    """A response with the request's body, and the names of its trailers in X-Trailers."""
    body, trailers = await play.read()
    await play.head(200, (b"X-Trailers", b",".join(name for name, _ in trailers)), length=len(body))
    await play.data(body)
    await play.end()


async def serve_plays(stage: Stage, script: Script, streams: int | None = None, **settings: Any) -> list[Any]:
    """Serve with a worker that runs `script`; return its plays as they begin."""
    plays: list[Play] = []
    await serve_over(stage, over_http2(script, plays, streams), "http2", **settings)
    return plays


async def serve_frames(stage: Stage, *frames: Frame | bytes, **settings: Any) -> ScriptedWorker:
    """Serve with a worker that answers each connection's first request with these frames."""

    async def script(wire: Wire) -> None:
        while not has_request(wire.received):
            await wire.some()
        data = [frame if isinstance(frame, bytes) else frame.serialize() for frame in frames]
        await wire.send(SettingsFrame(0).serialize() + b"".join(data))
        await wire.closed()

    worker = ScriptedWorker(script)
    await serve_over(stage, worker, "http2", **{"retries": 0, **settings})
    return worker
