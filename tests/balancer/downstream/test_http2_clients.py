"""HTTP/2 from clients: messages in both directions, what the worker gets, errors, and the ends of streams."""

from __future__ import annotations

import asyncio

import pytest

from balancer.http.h1.client import OWN_NAME
from balancer.http.h2.events import NO_ERROR
from tests.support.frames import PREFACE
from tests.support.http2_client import fields, http2_client
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, response

MIB = 1 << 20


async def test_a_worker_gets_what_the_same_request_in_http11_would_give(stage: Stage) -> None:
    """The head differs in the case of names and in the version of Via (RFC 9110 § 7.6.3)."""
    worker = await stage.serve_worker(response(), headers={"internal": ["x-secret"]})
    client = await http2_client(stage)
    forged = [
        (name, b"1.2.3.4") for name in (b"x-forwarded-for", b"x_forwarded_for", b"x-secret", b"x-real-ip")
    ]
    answer = await client.ask((b"x-request-id", b"i"), (b"accept", b"*/*"), *forged, path=b"/a?b=1")
    assert (answer.status, answer.body) == (200, b"ok")
    lines = [b"%b: %b" % field for field in forged]
    await stage.ask(get(b"/a?b=1", b"x-request-id: i", b"accept: */*", *lines))
    first, second = worker.requests
    assert first.line == second.line == b"GET /a?b=1 HTTP/1.1"
    assert first.value(b"Via") == b"2 " + OWN_NAME
    assert second.value(b"Via") == b"1.1 " + OWN_NAME
    assert b"1.2.3.4" not in dict(first.fields).values()
    assert [pair for pair in first.fields if pair[0] != b"Via"] == [
        pair for pair in second.fields if pair[0] != b"Via"
    ]


@pytest.mark.parametrize("length", [True, False])
async def test_request_with_body(stage: Stage, length: bool) -> None:
    """With a length it is framed by it, otherwise in chunks."""
    worker = await stage.serve_worker(response())
    client = await http2_client(stage)
    of_length = ((b"content-length", b"3"),) if length else ()
    answer = await client.ask(*of_length, body=b"abc", method=b"POST")
    assert answer.status == 200
    (request,) = worker.requests
    assert request.body == b"abc"
    assert (request.value(b"Transfer-Encoding") is None) == length


async def test_response_in_chunks_with_trailers(stage: Stage) -> None:
    """Trailers reach the client, except those forbidden in trailers; a length is not required."""
    body = b"3\r\nabc\r\n0\r\nGrpc-Status: 0\r\nSet-Cookie: a\r\n\r\n"
    worker = await stage.worker(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: x\r\n\r\n" + body
    )
    await stage.serve(worker)
    answer = await (await http2_client(stage)).ask((b"te", b"trailers"))
    assert (answer.body, answer.trailers) == (b"abc", {b"grpc-status": b"0"})
    assert not {b"transfer-encoding", b"keep-alive", b"connection"} & {*answer.head}
    assert worker.requests[0].value(b"TE") == b"trailers"


async def test_request_trailers(stage: Stage) -> None:
    worker = await stage.serve_worker(response())
    client = await http2_client(stage)
    stream = client.begin(fields(method=b"POST"))
    client.engine.send_data(stream, b"abc", is_last=False)
    client.engine.send_trailers(stream, [(b"x-sum", b"1"), (b"host", b"evil")])
    client.flush()
    assert (await client.answer(stream)).status == 200
    assert worker.received.endswith(b"\r\n0\r\nx-sum: 1\r\n\r\n")


async def test_interim_responses(stage: Stage) -> None:
    """RFC 9110 § 15.2: 100 and 103 are passed on."""

    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    script = playing(Wire.head, interim, lambda wire: wire.exactly(3), response())
    await stage.serve(await stage.worker(script))
    client = await http2_client(stage)
    stream = client.begin(
        fields(b"/", (b"expect", b"100-continue"), (b"content-length", b"3"), method=b"POST")
    )
    await client.until(lambda: len(client.answers[stream].interim) == 2)
    client.send(stream, b"abc", is_last=True)
    answer = await client.answer(stream)
    assert answer.status == 200
    assert answer.interim == [{b":status": b"100"}, {b":status": b"103", b"link": b"</a>"}]


async def test_cookies_are_joined(stage: Stage) -> None:
    """RFC 9113 § 8.2.3."""
    worker = await stage.serve_worker(response())
    await (await http2_client(stage)).ask((b"cookie", b"a=1"), (b"accept", b"x"), (b"cookie", b"b=2"))
    assert worker.requests[0].values(b"Cookie") == [b"a=1; b=2"]


async def test_preface_in_pieces(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    client = await http2_client(stage)
    data = bytes(client.wire.received)
    wire = await stage.client()
    for byte in PREFACE:
        await wire.send(bytes((byte,)))
        await stage.turn(3)
    await wire.send(b"\0\0\0\4\0\0\0\0\0")
    assert (await wire.exactly(9))[3] == 4, data  # SETTINGS


async def test_preface_after_a_request_is_refused(stage: Stage) -> None:
    """A proxy in front that forwards the request PRI of one client must not give it the connection of others."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    assert (await client.ask(get())).status == 200
    assert (await client.ask(PREFACE)).status == 505


async def test_http2_can_be_disabled(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), http2={"enabled": False})
    assert (await stage.ask(PREFACE)).status == 505


# --- ends


@pytest.mark.parametrize("ends", [False, True])
async def test_an_early_answer_ends_the_request(stage: Stage, ends: bool) -> None:
    """RFC 9113 § 8.1: RST_STREAM with NO_ERROR asks the client to stop; what is on its way is dropped. A client that
    ends the request soon gets none."""
    script = playing(Wire.head, response(b"no", status=b"403 Forbidden"), Wire.closed)
    await stage.serve(await stage.worker(script))
    client = await http2_client(stage)
    stream = client.begin(fields(method=b"POST"))
    client.send(stream, b"abc")
    answer = await client.answer(stream)
    assert (answer.status, answer.body) == (403, b"no")
    stage.advance(1)
    await stage.turn(3)
    assert answer.reset is None
    if ends:
        client.send(stream, b"d", is_last=True)
    for _ in range(2):
        await stage.turn(3)
        stage.advance(1)
    if not ends:
        await client.until(lambda: answer.reset is not None)
    assert answer.reset == (None if ends else NO_ERROR)
    assert (await client.ask(path=b"/-/live")).status == 200


async def test_refused_worker_is_answered_502_on_its_stream(stage: Stage) -> None:
    await stage.serve(stage.dead_port())
    client = await http2_client(stage)
    answer = await client.ask()
    assert answer.status == 502
    assert answer.head[b"content-type"] == b"application/json"
    assert answer.head[b"date"].endswith(b" GMT")
    assert b"connection" not in answer.head
    assert (await client.ask(path=b"/-/live")).body == b'{"live": true}'


# --- back-pressure


async def test_a_slow_worker_withholds_the_window_of_its_stream_alone(stage: Stage) -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        head = await wire.head()
        if b"/slow" in head.line:
            wire.stop_reading()
            await go.wait()
        await wire.send(response())

    await stage.serve_worker(script)
    client = await http2_client(stage)
    stream = client.begin(fields(b"/slow", method=b"POST"))
    client.send(stream, b"x" * (32 * MIB))
    for _ in range(20):
        assert (await client.ask()).status == 200
    await stage.eventually(lambda: client.engine.unsent(stream) > 16 * MIB)
    go.set()


async def test_a_slow_reader_pauses_its_own_response(stage: Stage) -> None:
    size = 32 * MIB
    sent: list[int] = []

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if b"/big" not in request.line:
            await wire.send(response())
            return
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            await wire.send(b"y" * 65536)
            sent.append(65536)

    await stage.serve(await stage.worker(script))
    client = await http2_client(stage)
    client.is_slow = True
    stream = client.request(path=b"/big")
    answer = client.answers[stream]
    await client.until(lambda: answer.size == 262_144)  # the client's window
    for _ in range(20):
        assert (await client.ask()).status == 200
    assert sum(sent) < size / 2
    client.is_slow = False
    client.engine.acknowledge(stream, answer.size)
    client.flush()
    assert (await client.answer(stream)).size == size
