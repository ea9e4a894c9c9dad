"""A server of HTTP/2 by the library h2, whose requests are answered as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes, Settings

from tests.support.wire import Wire


@dataclass
class Request:
    """A request as the server gets it."""

    fields: dict[str, str]
    body: bytes = b""


Respond = Callable[[H2Connection, int, Request], bytes]
"""Answers the request of a stream, which is complete; returns what else is sent: h2 reads nothing after its GOAWAY."""


def ok(connection: H2Connection, stream: int, request: Request) -> bytes:
    connection.send_headers(stream, [(":status", "200"), ("content-length", "2")])
    connection.send_data(stream, b"ok", end_stream=True)
    return b""


@dataclass
class Http2Server:
    """Handles connections by `serve`; connections are counted, `resets` has the streams reset."""

    respond: Respond = ok
    streams: int = 100
    window: int = 65_535

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.resets: asyncio.Queue[int] = asyncio.Queue()

    async def serve(self, wire: Wire) -> None:
        self.connections += 1
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        limits = {
            SettingCodes.MAX_CONCURRENT_STREAMS: self.streams,
            SettingCodes.INITIAL_WINDOW_SIZE: self.window,
        }
        connection.local_settings = Settings(client=False, initial_values=limits)
        connection.initiate_connection()
        open_streams: dict[int, Request] = {}
        wire.write(connection.data_to_send())
        while data := await wire.some():
            further = b""
            for event in connection.receive_data(data):
                further += self._take(connection, open_streams, event)
            wire.write(connection.data_to_send() + further)

    def _take(self, connection: H2Connection, streams: dict[int, Request], event: Event) -> bytes:
        if isinstance(event, RequestReceived):
            assert event.headers is not None
            pairs = [(str(name), str(value)) for name, value in event.headers]
            streams[event.stream_id or 0] = Request(dict(pairs))
        elif isinstance(event, DataReceived):
            streams[event.stream_id or 0].body += event.data or b""
            connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, StreamEnded):
            self.requests.append(streams.pop(event.stream_id or 0))
            return self.respond(connection, event.stream_id or 0, self.requests[-1])
        elif isinstance(event, StreamReset):
            streams.pop(event.stream_id or 0, None)
            self.resets.put_nowait(event.stream_id or 0)
        return b""
