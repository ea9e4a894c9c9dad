"""HTTP/2 to workers: streams, limits, windows, GOAWAY and protocol errors; `test_transports.py` has what all share."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, GoAwayFrame, HeadersFrame

from balancer.errors import StreamRefused
from balancer.http.h2.limits import PING_AFTER
from balancer.upstream.internal_request import InternalRequest, InternalResult
from balancer.upstream.stream import UpstreamStream
from tests.support.certificates import Shelf
from tests.support.http2_client import headers_frame
from tests.support.scripted_transports import (
    MEBI,
    Http2,
    Play,
    echo,
    hello,
    hello_after,
    over_http2,
    sending,
    serve_frames,
    serve_over,
    serve_plays,
    values,
)
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, fault_of, get, post, response

# --- streams


async def test_one_connection_for_all_requests(stage: Stage) -> None:
    """Fifty concurrent requests on one connection, which is counted once."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, hello_after(gate))
    asking = [asyncio.ensure_future(stage.ask(get())) for _ in range(50)]
    await stage.eventually(lambda: len(plays) == 50)
    pool = stage.pool()
    assert (pool.leased, pool.idle, pool.counts.opened) == (1, 0, 1)
    gate.set()
    assert {answer.body for answer in await asyncio.gather(*asking)} == {b"hello"}
    assert (pool.leased, pool.idle, pool.counts.reused) == (0, 1, 49)


async def test_second_connection_when_the_first_is_full(stage: Stage) -> None:
    """MAX_CONCURRENT_STREAMS is respected; further requests use another connection."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, hello_after(gate, b"/wait"), streams=3)
    assert (await stage.ask(get())).body == b"hello"
    asking = [asyncio.ensure_future(stage.ask(get(b"/wait"))) for _ in range(7)]
    await stage.eventually(lambda: len(plays) == 8)
    assert stage.pool().counts.opened == 3
    gate.set()
    await asyncio.gather(*asking)
    assert (await stage.ask(get())).body == b"hello"
    assert stage.pool().counts.opened == 3
    assert stage.outcomes() == {"ok": 9}


async def test_late_stream_limit(stage: Stage) -> None:
    """Streams begun before the worker's SETTINGS are refused and sent again, POST too."""
    refused: set[bytes] = set()

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if play.peer is plays[0].peer and play.stream_id == 1:
            play.peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
        request = values(play.fields, b"x-request-id")[0]
        if play.peer is plays[0].peer and play.stream_id > 3 and request not in refused:
            refused.add(request)
            play.reset(ErrorCodes.REFUSED_STREAM)
        else:
            await echo(play)

    plays = await serve_plays(stage, script)
    answers = await asyncio.gather(*(stage.ask(post(b"x")) for _ in range(6)))
    assert {answer.status for answer in answers} == {200}
    assert stage.cluster.counts.retried == len(refused) > 0


async def test_disconnect_cancels_the_stream(stage: Stage) -> None:
    """By RST_STREAM (CANCEL); the connection and its other streams continue."""
    plays = await serve_plays(stage, hello_after(asyncio.Event(), b"/slow"))
    client = await stage.sending(get(b"/slow"))
    await stage.eventually(lambda: plays)
    client.reset()
    await stage.eventually(lambda: plays[0].reset_code == ErrorCodes.CANCEL)
    assert (await stage.ask(get())).body == b"hello"
    assert stage.pool().counts.opened == 1


async def test_early_response(stage: Stage) -> None:
    """The rest of the body is not sent, and the stream is cancelled."""
    plays = await serve_plays(stage, sending(413, length=0))
    client = await stage.client()
    client.write(post(MEBI * 8))
    assert (await client.response()).status == 413
    await stage.eventually(lambda: plays[0].reset_code == ErrorCodes.CANCEL)


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        (ErrorCodes.REFUSED_STREAM, "stream_refused", "REFUSED_STREAM"),
        (ErrorCodes.INTERNAL_ERROR, "connection_broken", "INTERNAL_ERROR"),
        (ErrorCodes.HTTP_1_1_REQUIRED, "connection_broken", "HTTP_1_1_REQUIRED"),
        (0x77, "connection_broken", "0x77"),
    ],
)
async def test_resets_by_code(stage: Stage, code: int, error: str, name: str) -> None:
    """Only REFUSED_STREAM is safe to retry; the detail of the 502 names the code."""

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        play.reset(code)

    plays = await serve_plays(stage, script)
    status, reason, detail = fault_of(await stage.ask(post(b"x")))
    assert (status, reason) == (502, error)
    assert name in detail
    assert len(plays) == (3 if error == "stream_refused" else 1)  # `retries` is 2
    assert stage.pool().counts.opened == 1


# --- GOAWAY


def has_begun(plays: list[Any], i: int) -> bool:
    return len(plays) > i


async def test_goaway_loses_no_request(stage: Stage) -> None:
    """Streams up to the last one that it names finish; later ones go to a new connection, POST too."""
    gate = asyncio.Event()

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if play.wire is plays[0].wire:
            if play.stream_id == 5:
                play.peer.writer.write(GoAwayFrame(0, last_stream_id=3, error_code=0).serialize())
            if play.stream_id >= 5:
                return
            await gate.wait()
        await echo(play)

    plays = await serve_plays(stage, script)
    clients = [await stage.client() for _ in range(5)]
    for i, client in enumerate(clients):
        await client.send(post(b"%d" % i))
        await stage.eventually(partial(has_begun, plays, i))
    assert [(await client.response()).body for client in clients[2:]] == [b"2", b"3", b"4"]
    gate.set()
    assert [(await client.response()).body for client in clients[:2]] == [b"0", b"1"]
    assert stage.pool().counts.opened == 2
    await stage.eventually(lambda: stage.pool().counts.closed == 1)
    assert stage.cluster.counts.retried >= 1
    assert stage.outcomes()["ok"] == 5


async def test_reason_of_a_goaway_is_the_workers(stage: Stage) -> None:
    """A flood that the worker sees is not told as one that the balancer has seen."""
    await serve_frames(stage, GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.ENHANCE_YOUR_CALM))
    detail = "the connection ended without this request (ENHANCE_YOUR_CALM)"
    assert fault_of(await stage.ask(get())) == (502, "stream_refused", detail)


async def test_connection_closed_between_lease_and_request(stage: Stage) -> None:
    """The request is reported as refused, so that it can be retried."""
    await serve_plays(stage, hello)
    assert (await stage.ask(get())).body == b"hello"
    upstream = stage.pool().lease()
    assert isinstance(upstream, UpstreamStream)
    upstream.connection.close()
    ended: asyncio.Future[InternalResult] = asyncio.get_running_loop().create_future()
    InternalRequest(get(), ended.set_result).send(upstream)
    assert isinstance((await asyncio.wait_for(ended, PATIENCE)).error, StreamRefused)


# --- windows


async def test_slow_client_blocks_only_its_stream(stage: Stage) -> None:
    """Other streams of the connection transfer megabytes meanwhile."""
    plays = await serve_plays(stage, sending(200, *[MEBI] * 8, length=len(MEBI) * 8))
    slow = await stage.sending(get(), receive_buffer=65_536)
    await slow.head()
    for _ in range(3):
        assert (await stage.ask(get())).body == MEBI * 8
    assert plays[0].written < len(MEBI) * 8
    assert stage.pool().counts.opened == 1
    for _ in range(8):
        assert await slow.exactly(len(MEBI)) == MEBI


# --- protocol errors


OK = (":status", "200")
CONTINUATIONS = [ContinuationFrame(1, b"\0\1a\1b" * 3000) for _ in range(200)]


def hpack_bomb() -> HeadersFrame:
    """A few kilobytes that decode to 30 MB of fields."""
    encoder = Encoder()
    first = encoder.encode([OK, ("x", "y" * 3000)])
    return HeadersFrame(1, first + encoder.encode([("x", "y" * 3000)]) * 10_000, flags=["END_HEADERS"])


@pytest.mark.parametrize(
    ("frames", "detail"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "too large frame size"),
        ((headers_frame(OK, flags=()), *CONTINUATIONS), ""),
        ((hpack_bomb(),), ""),
        ((headers_frame(("server", "x")),), "HTTP/2: "),
        ((headers_frame(OK, ("Server", "x")),), "HTTP/2: "),
        ((headers_frame(OK, ("connection", "close")),), "HTTP/2: "),
        ((headers_frame(OK, ("x", "a\r\nset-cookie: b")),), "HTTP/2: "),
        ((headers_frame((":status", "2x0")),), ""),
        ((headers_frame((":status", "101")),), ""),
        (
            (headers_frame(OK, ("content-length", "5")), DataFrame(1, b"four", flags=["END_STREAM"])),
            "HTTP/2: ",
        ),
        (
            (headers_frame(OK, ("content-length", "3")), DataFrame(1, b"four", flags=["END_STREAM"])),
            "HTTP/2: ",
        ),
        ((DataFrame(1, b"x"),), "HTTP/2: "),
        ((headers_frame(OK, ("x", "y" * 20_000), flags=()),), "frame"),
        ((b"\x00\x00\x05\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff\xff",), "HTTP/2: "),
        ((b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",), "too large frame size"),
        ((GoAwayFrame(0).serialize()[:9][:2] + b"\x00\x07\x00\x00\x00\x00\x00",), "FRAME_SIZE_ERROR"),
    ],
)
async def test_invalid_frames(stage: Stage, frames: tuple[Any, ...], detail: str) -> None:
    """A 502 with a one-line detail, counted as a reset; the next connection is new."""
    await serve_frames(stage, *frames)
    status, error, message = fault_of(await stage.ask(get()))
    assert (status, error) == (502, "malformed_response")
    assert detail in message
    assert stage.outcomes() == {"reset": 1}
    assert stage.cluster.counts.errors == {"malformed_response": 1}


async def test_other_streams_of_a_malformed_response(stage: Stage) -> None:
    """A malformed head ends its stream alone (RFC 9113 § 8.1.1)."""
    gate = asyncio.Event()

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if play.target == b"/good":
            await gate.wait()
        if play.target == b"/bad":
            play.peer.writer.write(headers_frame(("nothing", "x"), stream=play.stream_id).serialize())
            return
        await hello(play)

    plays = await serve_plays(stage, script)
    good = asyncio.ensure_future(stage.ask(get(b"/good")))
    await stage.eventually(lambda: plays)
    assert fault_of(await stage.ask(get(b"/bad")))[1] == "malformed_response"
    gate.set()
    assert (await good).body == b"hello"
    assert stage.pool().counts.opened == 1


async def test_other_streams_of_a_broken_connection(stage: Stage) -> None:
    """A header block that cannot be decoded ends the connection: its requests are broken off, and retried if that is
    safe."""

    async def script(play: Play) -> None:
        assert isinstance(play, Http2)
        if play.peer is not plays[0].peer:
            await hello(play)
        elif play.target == b"/bad":
            play.peer.writer.write(
                HeadersFrame(play.stream_id, b"\xff" * 5, flags=["END_HEADERS"]).serialize()
            )

    plays = await serve_plays(stage, script)
    good = asyncio.ensure_future(stage.ask(get(b"/good")))
    await stage.eventually(lambda: plays)
    assert fault_of(await stage.ask(get(b"/bad", method=b"POST")))[1] == "connection_broken"
    assert (await good).body == b"hello"
    assert stage.pool().counts.closed_by_error == 1


# --- age


async def test_ping_on_a_silent_connection(stage: Stage) -> None:
    """A worker that answers the PING keeps its connection."""
    await serve_plays(stage, hello, pool={"idle_timeout": 300})
    await stage.ask(get())
    for _ in range(4):
        stage.advance(PING_AFTER + 1)
        await stage.turn()
        await stage.eventually(lambda: stage.pool().idle == 1)
    assert stage.pool().counts.opened == 1


async def test_reload_changes_the_transport(stage: Stage) -> None:
    """Streams in flight finish on the old transport."""
    gate = asyncio.Event()
    plays = await serve_plays(stage, hello_after(gate))
    slow = asyncio.ensure_future(stage.ask(get()))
    await stage.eventually(lambda: plays)
    other = await stage.worker(response(b"native"))
    await stage.reload(endpoints=[{"id": "w0", "address": f"http://127.0.0.1:{other.port}"}])
    assert (await stage.ask(get())).body == b"native"
    gate.set()
    assert (await slow).body == b"hello"


# --- unsupported requests


async def test_connect_is_not_supported(stage: Stage) -> None:
    """501, and no outcome is counted against the endpoint."""
    await serve_plays(stage, hello, http={"allow": ["CONNECT"]})
    client = await stage.sending(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
    assert fault_of(await client.response())[:2] == (501, "not_carried")
    assert stage.outcomes() == {"abandoned": 1}


async def test_upgrade_is_removed(stage: Stage) -> None:
    """The worker gets an ordinary request."""
    plays = await serve_plays(stage, hello)
    fields = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
    assert (await stage.ask(get(b"/", *fields))).body == b"hello"
    assert {b"upgrade", b"connection"}.isdisjoint(name for name, _ in plays[0].fields)


# --- TLS


@pytest.mark.parametrize("offer", [["h2", "http/1.1"], ["h2"]])
async def test_alpn(stage: Stage, tmp_path: Path, offer: list[str]) -> None:
    """Over https the worker selects h2."""
    shelf = Shelf(tmp_path)
    context = shelf.worker("127.0.0.1")
    context.set_alpn_protocols(offer)
    plays: list[Any] = []
    await serve_over(stage, over_http2(echo, plays, tls=context), "http2", upstream_tls={"ca": str(shelf.ca)})
    for _ in range(3):
        assert (await stage.ask(post(MEBI))).body == MEBI
    assert stage.pool().counts.opened == 1


async def test_alpn_without_h2(stage: Stage, tmp_path: Path) -> None:
    """Nothing is sent; the status has the cause, which the client does not get."""
    shelf = Shelf(tmp_path)
    context = shelf.worker("127.0.0.1")
    context.set_alpn_protocols(["http/1.1"])
    worker = await stage.worker(response(), tls=context)
    address = f"https://127.0.0.1:{worker.port}"
    endpoints = [{"id": "w0", "address": address, "transport": "http2"}]
    await stage.serve(endpoints=endpoints, upstream_tls={"ca": str(shelf.ca)}, retries=0)
    assert fault_of(await stage.ask(post(b"")))[:2] == (502, "tls_failed")
    assert "ALPN" in (stage.pool().last_fault or "")
    assert worker.received == b""
