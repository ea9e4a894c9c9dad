"""Forwarding over real sockets: what arrives at the worker, and what comes back."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.stage import Stage
from tests.support.wire import (
    answering,
    answering_after,
    get,
    post_chunked,
    response,
)


async def test_request_and_response(stage: Stage) -> None:
    """Target, fields and body in both directions."""
    worker = await stage.worker(response(b"hello", b"X-Worker: 1", b"Set-Cookie: a", b"Set-Cookie: b"))
    await stage.serve(worker)
    answer = await stage.ask(get(b"/a?b=c", b"X-Client: 2"))
    assert (answer.line, answer.body) == (b"HTTP/1.1 200 OK", b"hello")
    assert answer.value(b"X-Worker") == b"1"
    assert answer.values(b"Set-Cookie") == [b"a", b"b"]
    request = worker.requests[0]
    assert request.line == b"GET /a?b=c HTTP/1.1"
    assert request.value(b"X-Client") == b"2"
    assert request.value(b"X-Forwarded-For") == b"127.0.0.1"
    assert stage.outcomes() == {"ok": 1}


# --- connections


async def test_both_connections_are_kept_alive(stage: Stage) -> None:
    """Ten requests of one client use one worker connection."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    for _ in range(10):
        assert (await client.ask(get())).body == b"ok"
    assert len(worker.connections) == 1
    assert (stage.pool().counts.opened, stage.pool().counts.reused) == (1, 9)


@pytest.mark.parametrize(
    "last",
    [
        response(b"ok", b"Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_connection_announced_as_closing_is_not_reused(stage: Stage, last: bytes) -> None:
    """Such a connection is not leased again, even if the worker has not closed it yet."""
    worker = await stage.worker(last)
    await stage.serve(worker)
    client = await stage.client()
    for _ in range(3):
        answer = await client.ask(get())
        assert (answer.body, answer.value(b"Connection")) == (b"ok", None)
    assert len(worker.connections) == 3
    assert stage.pool().idle == 0


# --- order

echo = answering(lambda request: response(request.line + b"|" + request.body))


async def test_pipelined_requests_are_sent_one_at_a_time(stage: Stage) -> None:
    """The second request reaches a worker only after the first response."""
    go = asyncio.Event()
    workers = [await stage.worker(answering_after(go)), await stage.worker(answering_after(go))]
    await stage.serve(*workers)
    client = await stage.client()
    await client.send(get(b"/1") * 5)
    await stage.eventually(lambda: workers[0].requests or workers[1].requests)
    await stage.turn()
    assert len(workers[0].requests + workers[1].requests) == 1
    go.set()
    assert [(await client.response()).status for _ in range(5)] == [200] * 5


async def test_thousand_pipelined_requests(stage: Stage) -> None:
    """A thousand requests in one write get a thousand responses."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    client.write(get() * 1000)
    for _ in range(1000):
        assert (await client.response()).status == 200
    assert len(worker.connections) == 1


# --- connections that are kept whatever the response says


@pytest.mark.parametrize(
    ("method", "head", "connections"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", 1),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 1),
        (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n", 2),  # it might have been until close, so it is not used again
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n", 1),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", 1),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\n\r\n", 1),
    ],
)
async def test_response_without_a_body(stage: Stage, method: bytes, head: bytes, connections: int) -> None:
    """It ends with its head, and the next request follows on the same connection."""
    script = answering(lambda request: head if b" /first " in request.line else response(b"body"))
    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client()
    answer = await client.ask(get(b"/first", method=method), to_head=True)
    assert answer.line == head.partition(b"\r\n")[0]
    assert (await client.ask(get())).body == b"body"
    assert len(worker.connections) == connections


async def test_upgrade_to_http2_is_removed(stage: Stage) -> None:
    """RFC 9110 § 7.8: forwarded without the Upgrade field, body included, also byte by byte."""
    worker = await stage.worker(echo)
    await stage.serve(worker)
    client = await stage.client()
    fields = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    offer = post_chunked(b"pay", b"load").replace(b"\r\n\r\n", fields, 1)
    await client.send(offer)
    for byte in offer + get(b"/next"):
        await client.send(bytes((byte,)))
        await stage.turn(2)
    bodies = [(await client.response()).body.partition(b"|")[2] for _ in range(3)]
    assert bodies == [b"payload", b"payload", b""]
    for request in worker.requests:
        assert {b"upgrade", b"connection", b"http2-settings"}.isdisjoint(request.names)
