"""Clients and workers that are strange but legal, in virtual time: none is taken for a flood."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pytest

from balancer.http.h2.client_engine import ClientEngine
from balancer.http.h2.engine import Engine
from balancer.http.h2.events import DATA
from balancer.http.h2.limits import WORKER_LIMITS, Http2Limits
from balancer.http.h2.server_engine import ServerEngine
from tests.support import frames
from tests.support.frames import END_HEADERS, PREFACE, block, frame, frames_of, head

Fields = tuple[tuple[bytes, bytes], ...]

GET: Final = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/"))
POST: Final = ((b":method", b"POST"), *GET[1:])
WEBSOCKET: Final = ((b":method", b"CONNECT"), (b":protocol", b"websocket"), *GET[1:])
OK: Final = [(b":status", b"200")]
PING: Final = frame(frames.PING, b"12345678")
STREAMS: Final = range(1, 51, 2)
HUNDRED: Final = range(1, 201, 2)
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


def server_of(fields: Fields, streams: range, initial_window: int, connection: int) -> ServerEngine:
    """A server that has begun to answer requests of these streams."""
    server = ServerEngine(Http2Limits(), connect=True)
    server.receive(PREFACE + frame(frames.SETTINGS, struct.pack("!HI", 4, initial_window)))
    if connection:
        server.receive(window(0, connection))
    server.data_to_send()
    for stream in streams:
        server.receive(head(stream, *fields, flags=END_HEADERS))
        server.respond(stream, OK, is_last=False)
    server.data_to_send()
    return server


def receive(engine: Engine, data: bytes) -> None:
    for kind, stream, value, _ in engine.receive(data):
        if kind == DATA:
            engine.acknowledge(stream, len(value))


def send(server: ServerEngine, data: bytes, streams: range = STREAMS) -> None:
    for stream in streams:
        server.send_data(stream, data, is_last=False)


def acknowledges_each_small_message(server: ServerEngine, second: int) -> None:
    """25 streams, 60 messages a second on each."""
    for _ in range(60):
        send(server, b"a small message")
        receive(server, updates(server.data_to_send()))


def streams_of_tiny_messages(server: ServerEngine, second: int) -> None:
    """gRPC in both directions, with a PING for what has come: it measures the bandwidth."""
    for _ in range(20):
        send(server, bytes(7))
        more = b"".join(frame(frames.DATA, bytes(7), stream) for stream in STREAMS)
        receive(server, updates(server.data_to_send()) + PING + more)


def acknowledges_late(server: ServerEngine, second: int) -> None:
    """Ten seconds of small messages at once, since it has slept."""
    if second % 10 == 0 and second:
        receive(server, b"".join(window(stream, 15) + window(0, 15) for stream in STREAMS) * 200)
    for _ in range(20):
        send(server, b"a small message")
        server.data_to_send()


def reads_by_a_small_window(server: ServerEngine, second: int) -> None:
    """64 bytes, on a fast network."""
    send(server, bytes(64_000), range(1, 2))
    while sent := server.data_to_send():
        receive(server, updates(sent))


def keeps_alive(server: ServerEngine, second: int) -> None:
    """A PING each ten seconds, for hours."""
    for at in range(20):
        receive(server, PING * (at % 10 == 0))
        server.data_to_send()
        server.tick()


def idle_websockets(server: ServerEngine, second: int) -> None:
    """A hundred, with a ping in each every 30 seconds."""
    if second % 30 == 0:
        receive(server, b"".join(frame(frames.DATA, bytes(6), stream) for stream in HUNDRED))
        send(server, bytes(2), HUNDRED)
        receive(server, updates(server.data_to_send()))


def browser_with_priorities(server: ServerEngine, second: int) -> None:
    """A tree of priorities first, then one for each page of a hundred requests and in each head, and a window for each
    frame of a response."""
    priority = [frame(frames.PRIORITY, b"\0\0\0\0\xc8", stream) for stream in range(1, 13, 2)]
    if second == 0:
        receive(server, b"".join(priority))
    for stream in range(13 + 100 * second, 113 + 100 * second, 2):
        known = frame(frames.HEADERS, b"\0\0\0\3\xc8" + block(*GET), stream, 0x25)
        receive(server, known + priority[1] * (stream % 200 == 1))
        server.respond(stream, OK, is_last=False)
        server.send_data(stream, bytes(20_000), is_last=True)
        receive(server, updates(server.data_to_send()))


Client = Callable[[ServerEngine, int], None]
CLIENTS: Final[dict[Client, tuple[Fields, range, int, int]]] = {
    acknowledges_each_small_message: (GET, STREAMS, 65_535, 0),
    streams_of_tiny_messages: (POST, STREAMS, 65_535, 0),
    acknowledges_late: (GET, STREAMS, 1 << 24, 1 << 24),
    reads_by_a_small_window: (GET, range(1, 2), 64, 0),
    keeps_alive: (GET, range(0), 65_535, 0),
    idle_websockets: (WEBSOCKET, HUNDRED, 65_535, 0),
    browser_with_priorities: (GET, range(0), 65_535, 0),
}
"""What a client does each second -> its requests, their streams, and its windows of a stream and of the connection."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", MINUTES)
@pytest.mark.parametrize("client", CLIENTS)
def test_strange_clients_are_served(client: Client, seconds: int) -> None:
    server = server_of(*CLIENTS[client])
    for second in range(seconds):
        client(server, second)
        server.tick()
    assert (server.is_closed, server.resets, server.unsent_in_all) == (False, 0, 0)


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
