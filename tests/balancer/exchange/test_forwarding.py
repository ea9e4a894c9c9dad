"""Forwarding over real sockets: what arrives at the worker, and what comes back."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage
from tests.support.wire import (
    answering,
    get,
    response,
)

# --- connections


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
    worker = await stage.serve_worker(last)
    client = await stage.client()
    for _ in range(3):
        answer = await client.ask(get())
        assert (answer.body, answer.value(b"Connection")) == (b"ok", None)
    assert len(worker.connections) == 3
    assert stage.pool().idle == 0


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
    worker = await stage.serve_worker(script)
    client = await stage.client()
    answer = await client.ask(get(b"/first", method=method), to_head=True)
    assert answer.line == head.partition(b"\r\n")[0]
    assert (await client.ask(get())).body == b"body"
    assert len(worker.connections) == connections
