"""Clients and workers that are strange but legal, in virtual time: none is taken for a flood."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pytest

from balancer.http2.client_engine import ClientEngine
from balancer.http2.engine import Engine
from balancer.http2.events import DATA
from balancer.http2.limits import Limits
from balancer.http2.server_engine import ServerEngine
from balancer.http2.settings import WORKER_LIMITS
from tests.balancer import frames
from tests.balancer.frames import END_HEADERS, PREFACE, block, frame, frames_of, head

GET: Final = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/"))
POST: Final = ((b":method", b"POST"), *GET[1:])
WEBSOCKET: Final = ((b":method", b"CONNECT"), (b":protocol", b"websocket"), *GET[1:])
OK: Final = [(b":status", b"200")]
PING: Final = frame(frames.PING, b"12345678")
STREAMS: Final = range(1, 51, 2)
MINUTES: Final = [
    pytest.param(60, id="a minute"),
    pytest.param(1800, id="half an hour", marks=pytest.mark.second_tier),
]


def window(stream: int, size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, struct.pack("!I", size), stream)


def updates(sent: bytes) -> bytes:
    """WINDOW_UPDATE of the stream and of the connection for each frame DATA."""
    found = [(stream, len(data)) for kind, stream, _, data in frames_of(sent) if kind == frames.DATA and data]
    return b"".join(window(stream, size) + window(0, size) for stream, size in found)


def server_of(*, initial_window: int = 65_535, connection: int = 0) -> ServerEngine:
    server = ServerEngine(Limits(), connect=True)
    server.receive(PREFACE + frame(frames.SETTINGS, struct.pack("!HI", 4, initial_window)))
    if connection:
        server.receive(window(0, connection))
    server.data_to_send()
    return server


def begin(server: ServerEngine, *fields: tuple[bytes, bytes], streams: range = STREAMS) -> None:
    for stream in streams:
        server.receive(head(stream, *fields, flags=END_HEADERS))
        server.respond(stream, OK, is_last=False)
    server.data_to_send()


def receive(engine: Engine, data: bytes) -> None:
    for kind, stream, value, _ in engine.receive(data):
        if kind == DATA:
            engine.acknowledge(stream, len(value))


def acknowledges_each_small_message(seconds: int) -> ServerEngine:
    """25 streams, 60 messages a second on each."""
    server = server_of()
    begin(server, *GET)
    for _ in range(seconds):
        for _ in range(60):
            for stream in STREAMS:
                server.send_data(stream, b"a small message", is_last=False)
            receive(server, updates(server.data_to_send()))
        server.tick()
    assert not server.unsent_in_all
    return server


def streams_of_tiny_messages(seconds: int) -> ServerEngine:
    """gRPC in both directions, with a PING for what has come: it measures the bandwidth."""
    server = server_of()
    begin(server, *POST)
    for _ in range(seconds):
        for _ in range(20):
            for stream in STREAMS:
                server.send_data(stream, bytes(7), is_last=False)
            more = b"".join(frame(frames.DATA, bytes(7), stream) for stream in STREAMS)
            receive(server, updates(server.data_to_send()) + PING + more)
        server.tick()
    assert not server.unsent_in_all
    return server


def acknowledges_late(seconds: int) -> ServerEngine:
    """Ten seconds of small messages at once, since it has slept."""
    server = server_of(initial_window=1 << 24, connection=1 << 24)
    begin(server, *GET)
    for second in range(seconds):
        for _ in range(20):
            for stream in STREAMS:
                server.send_data(stream, b"a small message", is_last=False)
            server.data_to_send()
        server.tick()
        if second % 10 == 9:
            receive(server, b"".join(window(stream, 15) + window(0, 15) for stream in STREAMS) * 200)
    return server


def reads_by_a_small_window(seconds: int) -> ServerEngine:
    """64 bytes, on a fast network."""
    server = server_of(initial_window=64)
    begin(server, *GET, streams=range(1, 2))
    for _ in range(seconds):
        server.send_data(1, bytes(64_000), is_last=False)
        while sent := server.data_to_send():
            receive(server, updates(sent))
        server.tick()
    assert not server.unsent_in_all
    return server


def keeps_alive(seconds: int) -> ServerEngine:
    """A PING each ten seconds, for hours."""
    server = server_of()
    for second in range(seconds * 20):
        receive(server, PING * (second % 10 == 0))
        server.data_to_send()
        server.tick()
    return server


def idle_websockets(seconds: int) -> ServerEngine:
    """A hundred, with a ping in each every 30 seconds."""
    server, streams = server_of(), range(1, 201, 2)
    begin(server, *WEBSOCKET, streams=streams)
    for second in range(seconds):
        if second % 30 == 0:
            receive(server, b"".join(frame(frames.DATA, bytes(6), stream) for stream in streams))
            for stream in streams:
                server.send_data(stream, bytes(2), is_last=False)
            receive(server, updates(server.data_to_send()))
        server.tick()
    return server


def browser_with_priorities(seconds: int) -> ServerEngine:
    """A tree of priorities first, then one for each page of a hundred requests and in each head, and a window for each
    frame of a response."""
    server = server_of()
    priority = [frame(frames.PRIORITY, b"\0\0\0\0\xc8", stream) for stream in range(1, 13, 2)]
    receive(server, b"".join(priority))
    for stream in range(13, 13 + 100 * seconds, 2):
        known = frame(frames.HEADERS, b"\0\0\0\3\xc8" + block(*GET), stream, 0x25)
        receive(server, known + priority[1] * (stream % 200 == 1))
        server.respond(stream, OK, is_last=False)
        server.send_data(stream, bytes(20_000), is_last=True)
        receive(server, updates(server.data_to_send()))
        if stream % 100 == 1:
            server.tick()
    return server


CLIENTS: Final[tuple[Callable[[int], ServerEngine], ...]] = (
    acknowledges_each_small_message,
    streams_of_tiny_messages,
    acknowledges_late,
    reads_by_a_small_window,
    keeps_alive,
    idle_websockets,
    browser_with_priorities,
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", MINUTES)
@pytest.mark.parametrize("client", CLIENTS)
def test_strange_clients_are_served(client: Callable[[int], ServerEngine], seconds: int) -> None:
    server = client(seconds)
    assert not server.is_closed
    assert not server.resets


@pytest.mark.parametrize("size", [64, 1000])
def test_upload_to_a_worker_with_a_small_window(size: int) -> None:
    """A mebibyte in a second, with two updates for each frame."""
    client = ClientEngine(WORKER_LIMITS)
    client.receive(frame(frames.SETTINGS, struct.pack("!HI", 4, size)))
    stream = client.request(POST, is_last=False)
    client.send_data(stream, bytes(1 << 20), is_last=True)
    sent = 0
    while data := client.data_to_send():
        found = data[len(PREFACE) :] if data.startswith(PREFACE) else data
        sent += sum(len(payload) for kind, _, _, payload in frames_of(found) if kind == frames.DATA)
        receive(client, updates(found))
    assert (sent, client.is_closed) == (1 << 20, False)
