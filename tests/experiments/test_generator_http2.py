"""HTTP/2 of the load generator against servers by the library h2, and its field coding against hpack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import numpy as np
import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Decoder, Encoder
from hyperframe.frame import GoAwayFrame, SettingsFrame

from experiments.generator.client import NotConnected, open_connection
from experiments.generator.http2 import Http2Connection, Http2Owner
from experiments.generator.http2_fields import header_block, status_in
from experiments.run_data import Kind
from experiments.service.runner import MOST_REFUSALS, ServiceGenerator
from experiments.service.target import Message, ServiceUnreachable, parse_target, reach
from tests.support import frames
from tests.support.http2_server import Http2Server, Request, Respond, ok
from tests.support.wire import Script, ScriptedWorker, Wire, playing

GET = Message("GET", (("X-Key", "a"),), b"")
Url = Callable[[Script], Awaitable[str]]


@pytest.fixture
async def url_of() -> AsyncIterator[Url]:
    """`await url_of(script)` serves on loopback and returns the URL."""
    async with AsyncExitStack() as servers:

        async def start(script: Script) -> str:
            server = await servers.enter_async_context(ScriptedWorker(script))
            return f"{server.url}/a?b=c"

        yield start


async def sent(
    url: str, count: int, most: int = 1, messages: Sequence[Message] = (GET,), timeout: float = 5.0
) -> list[Kind]:
    """Outcomes of `count` requests, two each millisecond, over at most `most` connections."""
    destination = await reach(parse_target(url), None, messages, 5.0, is_http2=True)
    generator = ServiceGenerator(destination, np.arange(count) / 2000, timeout, most)
    ledger = await generator.run(most)
    return [Kind(kind) for kind in ledger.kind]


async def test_requests_share_a_connection_within_the_limit_of_the_server(url_of: Url) -> None:
    held: list[tuple[H2Connection, int, Request]] = []

    def in_fours(connection: H2Connection, stream: int, request: Request) -> bytes:
        held.append((connection, stream, request))
        if len(held) == 4:
            for each in held:
                ok(*each)
            held.clear()
        return b""

    server = Http2Server(in_fours, streams=4)
    assert set(await sent(await url_of(server.serve), 40)) == {Kind.OK}
    assert server.connections == 2  # one to learn the address
    assert len(server.requests) == 40
    fields = server.requests[0].fields
    assert (fields[":method"], fields[":scheme"], fields[":path"]) == ("GET", "http", "/a?b=c")
    assert fields[":authority"].startswith("127.0.0.1:")
    assert (fields["x-key"], fields["user-agent"]) == ("a", "steelyard-load")


@pytest.mark.parametrize("window", [1000, 1_000_000])
async def test_bodies_keep_both_windows(url_of: Url, window: int) -> None:
    """h2 fails the connection at the first byte too many."""
    server = Http2Server(window=window)
    body = bytes(range(256)) * 500
    outcomes = await sent(await url_of(server.serve), 6, messages=[Message("POST", (), body)])
    assert set(outcomes) == {Kind.OK}
    assert [request.body for request in server.requests] == [body] * 6
    assert server.requests[0].fields["content-length"] == str(len(body))


def answered(*fields: tuple[str, str], interim: bool = False, trailers: bool = False) -> Respond:
    def respond(connection: H2Connection, stream: int, request: Request) -> bytes:
        if interim:
            connection.send_headers(stream, [(":status", "103"), ("link", "</a>")])
        connection.send_headers(stream, list(fields), end_stream=not trailers)
        if trailers:
            connection.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        return b""

    return respond


def reset(connection: H2Connection, stream: int, request: Request) -> bytes:
    connection.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
    return b""


def nothing(connection: H2Connection, stream: int, request: Request) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("respond", "kind"),
    [
        (answered((":status", "204")), Kind.OK),
        (answered((":status", "200"), ("x-a", "b"), interim=True, trailers=True), Kind.OK),
        (answered((":status", "503")), Kind.ERROR_STATUS),
        (answered((":status", "404")), Kind.ERROR_STATUS),
        (reset, Kind.RESET),
        (nothing, Kind.TIMEOUT),
    ],
)
async def test_answers_and_failures_count_as_what_they_are(url_of: Url, respond: Respond, kind: Kind) -> None:
    """A failed request costs no connection: the others on it go on."""
    server = Http2Server(respond)
    assert await sent(await url_of(server.serve), 8, timeout=0.2) == [kind] * 8
    assert server.connections == 2
    for _ in range(8 if kind is Kind.TIMEOUT else 0):
        await server.resets.get()
    assert server.resets.empty()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_requests_that_goaway_names_unprocessed_are_sent_again(url_of: Url, method: str) -> None:
    """The first connection gets four and processes three; the fourth does not fail, whatever its method."""
    held: list[tuple[H2Connection, int, Request]] = []

    def three(connection: H2Connection, stream: int, request: Request) -> bytes:
        held.append((connection, stream, request))
        if len(held) > 4:
            return ok(connection, stream, request)
        if len(held) < 4:
            return b""
        for each in held[:3]:
            ok(*each)
        return GoAwayFrame(0, last_stream_id=held[2][1]).serialize()

    server = Http2Server(three, streams=4)
    messages = [Message(method, (), b"")]
    assert await sent(await url_of(server.serve), 12, messages=messages) == [Kind.OK] * 12
    assert server.connections == 3
    assert len(server.requests) > 12


async def test_an_unprocessed_request_is_sent_again_several_times(url_of: Url) -> None:
    """RFC 9113 section 8.7: five connections in a row process nothing."""

    def later(connection: H2Connection, stream: int, request: Request) -> bytes:
        is_refused = server.connections < 7  # one to learn the address
        return GoAwayFrame(0).serialize() if is_refused else ok(connection, stream, request)

    server = Http2Server(later)
    assert await sent(await url_of(server.serve), 6, messages=[Message("POST", (), b"")]) == [Kind.OK] * 6


async def test_refused_streams_are_sent_again(url_of: Url) -> None:
    """Whatever their method, and on the same connection."""
    refused = set[int]()

    def mostly(connection: H2Connection, stream: int, request: Request) -> bytes:
        if len(server.requests) % 5:
            return ok(connection, stream, request)
        connection.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        refused.add(stream)
        return b""

    server = Http2Server(mostly)
    assert await sent(await url_of(server.serve), 40, messages=[Message("POST", (), b"")]) == [Kind.OK] * 40
    assert (len(refused), server.connections) == (len(server.requests) - 40, 2)


async def test_a_server_that_refuses_every_stream_gets_no_storm(url_of: Url) -> None:
    def refuse(connection: H2Connection, stream: int, request: Request) -> bytes:
        connection.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        return b""

    server = Http2Server(refuse)
    assert await sent(await url_of(server.serve), 4, timeout=60.0) == [Kind.REFUSED] * 4
    assert len(server.requests) == 4 * (1 + MOST_REFUSALS)


@pytest.mark.parametrize(("first", "then"), [(6, 2), (2, 6)])
async def test_later_limits_of_the_server_are_kept(url_of: Url, first: int, then: int) -> None:
    """h2 fails the connection at the first stream too many, once the limit is acknowledged."""
    held: list[tuple[H2Connection, int, Request]] = []

    def in_twos(connection: H2Connection, stream: int, request: Request) -> bytes:
        held.append((connection, stream, request))
        if len(held) % 2 == 0:
            for each in held[-2:]:
                ok(*each)
            if len(held) == 2:
                connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: then})
        return b""

    server = Http2Server(in_twos, streams=first)
    assert await sent(await url_of(server.serve), 40) == [Kind.OK] * 40


async def test_a_server_that_allows_no_request_at_first(url_of: Url) -> None:
    server = Http2Server()

    async def closed(wire: Wire) -> None:
        await wire.send(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 0}).serialize())
        await server.serve(wire)

    assert await sent(await url_of(closed), 4) == [Kind.OK] * 4


async def test_a_head_in_several_frames(url_of: Url) -> None:
    def split(connection: H2Connection, stream: int, request: Request) -> bytes:
        return frames.frame(frames.HEADERS, b"", stream, frames.END_STREAM) + frames.frame(
            frames.CONTINUATION, b"\x88", stream, frames.END_HEADERS
        )

    assert await sent(await url_of(Http2Server(split).serve), 4) == [Kind.OK] * 4


async def test_a_connection_that_breaks_fails_its_requests(url_of: Url) -> None:
    async def breaks(wire: Wire) -> None:
        connection = asyncio.ensure_future(Http2Server(nothing).serve(wire))
        await asyncio.sleep(0.05)
        connection.cancel()

    assert set(await sent(await url_of(breaks), 8)) == {Kind.RESET}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            playing(Wire.head, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
            "the server does not speak HTTP/2",
        ),
        (playing(Wire.head), "the server closed the connection instead of speaking HTTP/2"),
    ],
)
async def test_a_server_without_http2_is_one_line(url_of: Url, script: Script, words: str) -> None:
    with pytest.raises(ServiceUnreachable, match=f": {words}$"):
        await sent(await url_of(script), 1)


async def test_a_cancelled_connection_loses_no_socket(url_of: Url) -> None:
    """While it waits for the settings of a server that sends none."""
    ended = asyncio.Event()

    target = parse_target(await url_of(playing(Wire.closed, lambda _: ended.set())))
    host, port = target.authority.split(":")
    with pytest.raises(NotConnected, match=r"no connection within 0\.1 s"):
        await open_connection(lambda: Http2Connection(Http2Owner()), host, int(port), 0.1)
    await ended.wait()


async def test_a_server_that_allows_no_request_is_told_from_one_that_is_not_there(url_of: Url) -> None:
    async def closed(wire: Wire) -> None:
        await wire.send(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 0}).serialize())
        await wire.closed()

    host, port = parse_target(await url_of(closed)).authority.split(":")
    with pytest.raises(NotConnected, match=r"no request allowed within 0\.5 s"):
        await open_connection(lambda: Http2Connection(Http2Owner()), host, int(port), 0.5)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_each_status_is_read_as_an_encoder_writes_it(is_compressed: bool) -> None:
    """With an encoder that first makes its dynamic table as small as ours, and before."""
    for size in (None, 0):
        encoder = Encoder()
        for status in range(100, 600):
            if size is not None:
                encoder.header_table_size = 4096
                encoder.header_table_size = size
            block = encoder.encode([(":status", str(status)), ("server", "x")], huffman=is_compressed)
            if (
                block[0] < 0xBE or size == 0
            ):  # else an index of the dynamic table, which a table of size 0 excludes
                assert status_in(block) == status


@pytest.mark.parametrize("name", [b"\x09", b"\x1e", b"\0\7:status", b"\x40\x85\xb8\x84\x8d\x36\xa3"])
def test_a_status_whose_name_is_written_otherwise(name: bytes) -> None:
    """By another index of its name, or the name itself: legal, although no encoder does so."""
    assert status_in(name + b"\x03404") == 404


@pytest.mark.parametrize("block", [b"", b"\x20", b"\x3f\xff", b"\x48", b"\x48\x03", b"\x48\x03abc", b"\xbe"])
def test_a_block_without_a_status_has_none(block: bytes) -> None:
    assert status_in(block) == 0


@pytest.mark.parametrize("length", [0, 126, 127, 254, 255, 300, 20_000])
def test_a_request_is_decoded_as_given(length: int) -> None:
    fields = [("X-Long", "a" * length), ("Accept", "é")]
    for method in ("GET", "POST", "DELETE"):
        found = Decoder().decode(
            header_block(method, "https", "a.example", "/" + "p" * length, fields), raw=True
        )
        assert [(name, value) for name, value in found] == [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":path", b"/" + b"p" * length),
            (b":authority", b"a.example"),
            (b"x-long", b"a" * length),
            (b"accept", "é".encode("latin-1")),
        ]
