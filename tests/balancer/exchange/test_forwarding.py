"""Forwarding over real sockets: what arrives at the worker, and what comes back."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.stage import Stage
from tests.support.wire import (
    Message,
    answering,
    answering_after,
    get,
    post,
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


async def test_forwarded_for_of_a_trusted_peer(stage: Stage) -> None:
    """X-Forwarded-For of a trusted peer is extended."""
    worker = await stage.worker(response())
    await stage.serve(worker, trusted_proxies=["127.0.0.0/8"])
    await stage.ask(get(b"/", b"X-Forwarded-For: 192.0.2.1"))
    assert worker.requests[0].value(b"X-Forwarded-For") == b"192.0.2.1, 127.0.0.1"


async def test_request_ids_are_unique_and_kept(stage: Stage) -> None:
    """Generated unless the request has one."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    client = await stage.client()
    for request in (get(), get(), get(b"/", b"X-Request-ID: mine")):
        await client.ask(request)
    first, second, third = (request.value(b"X-Request-ID") for request in worker.requests)
    assert first != second
    assert third == b"mine"


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


async def test_clients_share_worker_connections(stage: Stage) -> None:
    """Requests of several clients reuse the idle connection."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    for _ in range(3):
        await stage.ask(get())
    assert len(worker.connections) == 1


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


def echoed(answers: list[Message]) -> list[bytes]:
    return [answer.body.partition(b"|")[2] for answer in answers]


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


# --- framing in both directions


def pieces_of(data: bytes, step: int | None = None) -> list[bytes]:
    step = step or len(data)
    return [data[i : i + step] for i in range(0, len(data), step)]


@pytest.mark.parametrize(
    ("fields", "length", "connections"),
    [
        ([b"Content-Length: 1234"], b"1234", 1),
        ([b"Transfer-Encoding: chunked"], None, 1),
        ([], None, 2),  # it might have been until close, so that connection is not used again
    ],
)
async def test_response_to_head(
    stage: Stage, fields: list[bytes], length: bytes | None, connections: int
) -> None:
    """The stated length is forwarded, and the next request follows on the same connection."""
    head = b"\r\n".join((b"HTTP/1.1 200 OK", *fields)) + b"\r\n\r\n"
    script = answering(lambda request: head if request.line.startswith(b"HEAD") else response(b"body"))
    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client()
    answer = await client.ask(get(method=b"HEAD"), to_head=True)
    assert answer.value(b"Content-Length") == length
    assert (await client.ask(get())).body == b"body"
    assert len(worker.connections) == connections


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_bodiless_statuses(stage: Stage, status: bytes) -> None:
    """204 and 304 end with their head, and a 304 may state a length."""
    first = b"HTTP/1.1 " + status + (b"\r\nContent-Length: 77" if status < b"204 ~" else b"") + b"\r\n\r\n"
    second = b"HTTP/1.1 " + status + b"\r\n\r\n"
    worker = await stage.worker(answering(first, second, response(b"body")))
    await stage.serve(worker)
    client = await stage.client()
    for _ in range(2):
        assert (await client.ask(get())).line == b"HTTP/1.1 " + status
    assert (await client.ask(get())).body == b"body"
    assert len(worker.connections) == 1


# --- interim responses, Expect, Upgrade

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")


@pytest.mark.parametrize(
    ("request_bytes", "body"),
    [
        (get(b"/", *H2C), b""),
        (post(b"payload", *H2C), b"payload"),
        (post(b"", *H2C), b""),
        (
            post_chunked(b"pay", b"load").replace(b"\r\n\r\n", b"\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n", 1),
            b"payload",
        ),
        (get(b"/", b"Connection: Upgrade", b"Upgrade: HTTP/2.0"), b""),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
async def test_upgrade_to_http2_is_removed(
    stage: Stage, request_bytes: bytes, body: bytes, step: int | None
) -> None:
    """RFC 9110 § 7.8: forwarded without the Upgrade field, body included."""
    worker = await stage.worker(echo)
    await stage.serve(worker)
    client = await stage.client()
    for piece in pieces_of(request_bytes + get(b"/next"), step):
        await client.send(piece)
        await stage.turn(2)
    answers = [await client.response(), await client.response()]
    assert echoed(answers) == [body, b""]
    assert answers[1].body.startswith(b"GET /next")
    offered = {b"upgrade", b"connection", b"http2-settings"}
    assert offered.isdisjoint(worker.requests[0].names)
