"""Rejected requests: one error response, a closed connection, nothing sent to a worker."""

from __future__ import annotations

import json

import pytest

from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, post, response

HOST = b"Host: a\r\n"


def head(line: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join((line, *fields)) + b"\r\n\r\n"


MALFORMED = {
    "not-http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 20, 400),
    "spaces": (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "http09": (b"GET /\r\n\r\n", 400),
    "bare-lf": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare-cr": (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "lf-in-fields": (b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
    "folded": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", 400),
    "space-before-colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "no-colon": (b"GET / HTTP/1.1\r\nHost a\r\n\r\n", 400),
    "empty-name": (b"GET / HTTP/1.1\r\n" + HOST + b": a\r\n\r\n", 400),
    "nul": (b"GET / HTTP/1.1\r\n" + HOST + b"X: \x00\r\n\r\n", 400),
    "nul-in-target": (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no-host": (head(b"GET / HTTP/1.1"), 400),
    "two-hosts": (head(b"GET / HTTP/1.1", b"Host: a", b"Host: a"), 400),
    "userinfo": (head(b"GET http://u@a/ HTTP/1.1", b"Host: a"), 400),
    "asterisk": (head(b"GET * HTTP/1.1", b"Host: a"), 400),
    "length-twice": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 1", b"Content-Length: 1"), 400),
    "length-list": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 1, 1"), 400),
    "length-sign": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: +1"), 400),
    "length-hex": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 0x1"), 400),
    "length-empty": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: "), 400),
    "length-huge": (head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: " + b"9" * 30), 400),
    "length-and-chunked": (
        head(b"POST / HTTP/1.1", b"Host: a", b"Content-Length: 5", b"Transfer-Encoding: chunked")
        + b"0\r\n\r\n",
        400,
    ),
    "chunked-and-length": (
        head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked", b"Content-Length: 5")
        + b"0\r\n\r\n",
        400,
    ),
    "chunked-twice": (
        head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        400,
    ),
    "chunked-10": (head(b"POST / HTTP/1.0", b"Host: a", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
    "coding": (head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: gzip, chunked"), 501),
    "not-chunked": (head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: xchunked"), 400),
    "chunked-tab": (head(b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding:\x0bchunked"), 400),
    "connect": (head(b"CONNECT a:80 HTTP/1.1", b"Host: a"), 405),
    "trace": (head(b"TRACE / HTTP/1.1", b"Host: a"), 405),
    "http12": (head(b"GET / HTTP/1.2", b"Host: a"), 505),
    "long-head": (head(b"GET / HTTP/1.1", b"Host: a", b"X: " + b"x" * 2000), 431),
    "long-target": (head(b"GET /" + b"x" * 2000 + b" HTTP/1.1", b"Host: a"), 431),
    "endless-head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2000, 431),
}
LENIENT = {"not-chunked": (400, 501), "chunked-tab": (400, 501), "http12": (400, 505)}


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_request_is_rejected(stage: Stage, name: str, step: int | None) -> None:
    """Fitting status, JSON with the reason, `Connection: close`; the worker gets no connection."""
    request, status = MALFORMED[name]
    worker = await stage.worker(response())
    await stage.serve(worker, limits={"head": 1024})
    client = await stage.client()
    for i in range(0, len(request), step or len(request)):
        client.write(request[i : i + (step or len(request))])
        if step:
            await stage.turn(1)
    answer = await client.response()
    assert answer.status in LENIENT.get(name, (status,))
    assert answer.value(b"Connection") == b"close"
    assert (answer.value(b"Allow") is not None) == (answer.status == 405)
    assert answer.value(b"Content-Type") == b"application/json"
    assert set(json.loads(answer.body)) == {"error", "detail", "request_id"}
    client.half_close()
    await client.closed()
    assert worker.connections == []


@pytest.mark.parametrize("name", ["not-http", "no-host", "two-hosts", "connect", "trace"])
async def test_malformed_request_after_a_valid_one_is_rejected(stage: Stage, name: str) -> None:
    """The valid request is answered first, and bytes after the malformed one are not read."""
    worker = await stage.worker(response(b"fine"))
    await stage.serve(worker, limits={"head": 1024})
    client = await stage.client()
    request, status = MALFORMED[name]
    await client.send(get(b"/good") + request + get(b"/ghost"))
    assert (await client.response()).body == b"fine"
    answer = await client.response()
    assert (answer.status, answer.value(b"Connection")) == (status, b"close")
    client.half_close()
    await client.closed()
    assert [request.line for request in worker.requests] == [b"GET /good HTTP/1.1"]


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nhelloXX", b"-1\r\n\r\n", b"5;\x00\r\nhello\r\n"])
@pytest.mark.parametrize("is_split", [True, False])
async def test_malformed_chunk_is_rejected(stage: Stage, body: bytes, is_split: bool) -> None:
    """400, and the worker gets no last chunk, so it cannot take the message for complete.

    If the first read contains the error, the worker gets nothing.
    """
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get(b"/", b"Transfer-Encoding: chunked", method=b"POST") + (b"" if is_split else body))
    if is_split:
        await stage.eventually(lambda: worker.connections)
        await client.send(body)
    answer = await client.response()
    assert (answer.status, json.loads(answer.body)["error"]) == (400, "malformed_body")
    client.half_close()
    await client.closed()
    await stage.turn()
    assert worker.requests == []
    assert b"\r\n0\r\n" not in worker.received
    assert stage.outcomes() == ({"abandoned": 1} if is_split else {})


async def test_malformed_chunk_of_a_pipelined_request_is_rejected_in_turn(stage: Stage) -> None:
    worker = await stage.worker(response(b"fine"))
    await stage.serve(worker)
    client = await stage.client()
    bad = get(b"/bad", b"Transfer-Encoding: chunked", method=b"POST") + b"zz\r\n"
    await client.send(get(b"/good") + bad)
    assert (await client.response()).body == b"fine"
    assert (await client.response()).status == 400
    client.half_close()
    await client.closed()
    assert [request.line for request in worker.requests] == [b"GET /good HTTP/1.1"]


async def test_malformed_chunk_after_response_head_resets_the_client(stage: Stage) -> None:
    """It is too late for a status."""
    await stage.serve(await stage.worker(playing(Wire.head, response(b"part of it")[:-6], Wire.closed)))
    client = await stage.client()
    await client.send(get(b"/", b"Transfer-Encoding: chunked", method=b"POST"))
    await client.until(b"part")
    await client.send(b"zz\r\n")
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_rejected_client_may_finish_sending(stage: Stage) -> None:
    """Closing at once would reset the connection and could destroy the response, so input is read and dropped."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    client.write(head(b"POST / HTTP/1.1", b"Content-Length: 4194304") + b"x" * (4 << 20))
    answer = await client.response()
    assert answer.status == 400
    assert await client.rest() == b""
    await stage.eventually(lambda: not client.unsent)
    assert len(stage.downstreams) == 1
    client.half_close()
    await stage.eventually(lambda: not stage.downstreams)
    assert worker.connections == []


async def test_lingering_connection_is_closed(stage: Stage) -> None:
    """After `timeouts.linger`."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    assert (await client.ask(MALFORMED["not-http"][0])).status == 400
    assert await client.rest() == b""
    stage.advance(1.9)
    assert len(stage.downstreams) == 1
    stage.advance(0.2)
    await stage.eventually(lambda: not stage.downstreams)


async def test_body_of_a_rejected_request_is_not_a_request(stage: Stage) -> None:
    """A classic smuggling attempt."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    smuggled = get(b"/smuggled")
    await client.send(head(b"TRACE / HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(smuggled)) + smuggled)
    assert (await client.response()).status == 405
    client.half_close()
    await client.closed()
    assert worker.connections == []


async def test_head_below_the_limit_is_forwarded(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), limits={"head": 1024})
    assert (await stage.ask(get(b"/", b"X: " + b"x" * 500))).status == 200
    assert (await stage.ask(post(b"x" * 4000))).status == 200
