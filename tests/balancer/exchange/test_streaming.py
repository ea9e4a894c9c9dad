"""Streaming of bodies: both directions at once, early responses, clients that leave while a connection is opened."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.support.stage import Stage
from tests.support.wire import Wire, answering, get, playing, post, post_chunked, response

MIB = 1 << 20


async def test_simultaneous_bodies(stage: Stage) -> None:
    """The worker answers while it reads: neither direction waits for the other, and the connection is kept."""

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(50):
            data = await wire.exactly(10_000)
            await wire.send(b"%x\r\n%b\r\n" % (len(data), data))
        await wire.send(b"0\r\n\r\n")

    await stage.serve(await stage.worker(script))
    client = await stage.client()
    body = os.urandom(500_000)
    await client.send(get(b"/", b"Content-Length: 500000", method=b"POST"))
    received = b""
    await client.until(b"\r\n\r\n")
    for at in range(0, len(body), 10_000):
        await client.send(body[at : at + 10_000])
        while len(received) < at + 10_000:
            size = int(await client.until(b"\r\n"), 16)
            received += (await client.exactly(size + 2))[:-2]
    assert received == body
    assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"40\r\n" + b"x" * 64 + b"\r\n"
TWO = LONG + b"3F\r\n" + b"x" * 63 + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "passed", "data"),
    [
        (b"5\r\nhello\r\n", b"5\r\nhello\r\n", b"hello"),
        (TWO, TWO, b"x" * 127),
        (b"1\r\nx\r\n" * 20, b"14\r\n" + b"x" * 20 + b"\r\n", b"x" * 20),
        (b"0005\r\nhello\r\n", b"5\r\nhello\r\n", b"hello"),
        (b"5;name=value\r\nhello\r\n", b"5\r\nhello\r\n", b"hello"),
    ],
    ids=["one", "several", "small", "zeros", "extension"],
)
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_chunks_of_one_read(
    stage: Stage, sent: bytes, passed: bytes, data: bytes, version: bytes
) -> None:
    """They keep their framing unless there is more to it than their size; with the head, and behind it."""
    first, second = asyncio.Event(), asyncio.Event()
    script = playing(Wire.head, HEAD + sent, first, sent, second, b"0\r\n\r\n")
    await stage.serve(await stage.worker(script))
    client = await stage.sending(get(version=version))
    await client.head()
    body, end = (passed, b"0\r\n\r\n") if version == b"HTTP/1.1" else (data, b"")
    for event in (first, second):
        assert await client.exactly(len(body)) == body
        event.set()
    assert await client.exactly(len(end)) == end
    await stage.eventually(lambda: stage.outcomes() == {"ok": 1})


async def test_chunks_that_break_off_end_in_an_error(stage: Stage) -> None:
    """The client of a body that is cut between two chunks sees no end of it."""
    script = playing(Wire.head, HEAD + LONG, Wire.leave)
    await stage.serve(await stage.worker(script))
    client = await stage.sending(get())
    await client.head()
    assert await client.rest() == LONG
    assert stage.outcomes() == {"reset": 1}


async def test_early_response_closes_the_connection(stage: Stage) -> None:
    """413 before the body is read: the client gets the response although it keeps sending."""
    script = playing(Wire.head, response(b"too much", status=b"413 Content Too Large"), Wire.closed)
    await stage.serve(await stage.worker(script))
    client = await stage.client()
    client.write(post(b"x" * (8 * MIB)))
    answer = await client.response()
    assert (answer.status, answer.body) == (413, b"too much")
    assert answer.value(b"Connection") == b"close"
    assert await client.rest() == b""
    await stage.eventually(lambda: not client.unsent)
    assert stage.pool().idle == 0
    assert stage.outcomes() == {"ok": 1}


# --- disconnects


async def test_client_disconnects_while_dialling(stage: Stage) -> None:
    """The new connection goes to the pool for the next request."""
    worker = await stage.serve_worker(response(b"next"))
    await stage.sending(get())
    await stage.eventually(lambda: stage.pool().opening)
    next(iter(stage.downstreams)).abort()
    await stage.eventually(lambda: not stage.downstreams and not stage.pool().opening)
    assert repr(stage.pool()) == "<Pool w0 idle=1 leased=0 opening=0>"
    assert (await stage.ask(get())).body == b"next"
    assert stage.outcomes() == {"abandoned": 1, "ok": 1}
    assert len(worker.connections) == 1


async def test_an_answer_of_http10_says_nothing_of_later_requests(stage: Stage) -> None:
    """It may be one error of a proxy before the worker, which reads chunks."""
    answers = iter((b"HTTP/1.0 503 No\r\nContent-Length: 2\r\n\r\nno",))
    worker = await stage.serve_worker(answering(lambda _: next(answers, response())))
    assert (await stage.ask(get())).status == 503
    client = await stage.sending(post_chunked(b"abc")[:-5])
    await stage.eventually(lambda: len(worker.connections) == 2)
    assert (await client.ask(b"0\r\n\r\n")).status == 200
    assert (worker.requests[-1].body, worker.requests[-1].value(b"Transfer-Encoding")) == (b"abc", b"chunked")
