"""Buffering of short responses: they are held until complete or until the next sweep, so that a failure can be retried.

The first worker fails, the second one answers; assertions are on every byte that the client gets.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.exchange.attempt import BUFFERED_RESPONSE
from tests.support.stage import Stage
from tests.support.wire import Script, Wire, answering, get, post, response

SMALL = response(b"x" * 1000, b"X-From: first")
HEAD = SMALL[: -len(b"x" * 1000)]
OK = response(b"fine")


class PiecewiseWorker:
    """A worker that sends pieces of one response on demand, then reads on, resets or closes."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []

    async def __call__(self, wire: Wire) -> None:
        await wire.request()
        self.wires.append(wire)
        await wire.closed()

    async def send(self, stage: Stage, piece: bytes) -> None:
        """Send a piece, and let the balancer read it."""
        await stage.eventually(lambda: self.wires)
        await self.wires[-1].send(piece)
        await stage.turn()
        await stage.eventually(lambda: stage.cluster.router.in_flight)


async def client_with_partial_response(
    stage: Stage, first: PiecewiseWorker, request: bytes, piece: bytes, *others: Script, **settings: Any
) -> Wire:
    """A client whose response has begun with `piece`."""
    await stage.serve(await stage.worker(first), *[await stage.worker(other) for other in others], **settings)
    client = await stage.client()
    client.write(request)
    await first.send(stage, piece)
    return client


async def received_nothing(client: Wire) -> bool:
    """Whether the client has received no byte."""
    try:
        async with asyncio.timeout(0.02):
            await client.some()
    except TimeoutError:
        return not client.received
    return False


CUTS = {
    "in the head": HEAD[:30],
    "after the head": HEAD,
    "amid the body": SMALL[:-500],
    "before its last byte": SMALL[:-1],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("request_kind", ["GET", "PUT"])
@pytest.mark.parametrize("resets", [True, False])
async def test_truncated_response_is_retried(stage: Stage, cut: str, request_kind: str, resets: bool) -> None:
    """The client gets one complete response; a PUT is repeated with its whole body."""
    first = PiecewiseWorker()
    request = get() if request_kind == "GET" else post(b"body", method=b"PUT")
    client = await client_with_partial_response(stage, first, request, CUTS[cut], answering(OK))
    first.wires[0].reset() if resets else first.wires[0].cut()
    assert (await client.response()).body == b"fine"
    assert bytes(client.received).count(b"HTTP/1.1") == 1
    assert b"X-From" not in client.received
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {"ok": 1})
    assert stage.cluster.counts.retried == 1


async def test_complete_response_is_one_write(stage: Stage) -> None:
    """A head and a body in separate reads are forwarded in one write, unchanged."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(stage, first, get(), HEAD)
    assert await received_nothing(client)
    first.wires[0].write(SMALL[len(HEAD) :])
    assert (await client.response()).body == b"x" * 1000
    assert stage.outcomes() == {"ok": 1}


async def test_truncated_response_without_retries_is_502(stage: Stage) -> None:
    """Retries exhausted and nothing sent: the client gets an error and may continue."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(
        stage, first, get(), SMALL[:-500], answering(OK), retry={"share": 0.0, "per_second": 0.0}
    )
    first.wires[0].reset()
    assert (await client.response()).status == 502
    assert stage.cluster.counts.errors == {"connection_broken": 1}
    assert (await client.ask(get())).body == b"fine"


async def test_total_timeout_during_buffering(stage: Stage) -> None:
    """The total timeout expires between two sweeps: the partial response is dropped."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(stage, first, get(), HEAD, timeouts={"total": 0.2})
    stage.advance(0.3)
    assert (await client.response()).status == 504
    assert stage.outcomes() == {"timeout": 1}


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
NOT_BUFFERED = {
    "a POST": (post(b"body"), HEAD, b""),
    "a long one": (get(), response(b"x" * (BUFFERED_RESPONSE + 1))[:-BUFFERED_RESPONSE], b"x"),
    "chunks": (get(), CHUNKED + b"5\r\nhello\r\n", b"5\r\nhello\r\n"),
    "a part of a chunk": (get(), CHUNKED + b"9\r\nhello", b"5\r\nhello\r\n"),
    "server-sent events": (get(), EVENTS + b"data: 1\n\n", b"9\r\ndata: 1\n\n\r\n"),
}
"""A request, what the worker sends before it breaks off, and what the client gets behind the head."""


@pytest.mark.parametrize("kind", NOT_BUFFERED)
async def test_responses_that_are_not_buffered(stage: Stage, kind: str) -> None:
    """Forwarded as it arrives, truncated as the worker's, and not retried."""
    first = PiecewiseWorker()
    request, piece, _ = NOT_BUFFERED[kind]
    client = await client_with_partial_response(stage, first, request, piece, answering(OK))
    await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    assert await client.rest() == NOT_BUFFERED[kind][2]
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {})


async def test_no_buffering_without_retries(stage: Stage) -> None:
    """With `retries = 0` there is nothing to wait for."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(stage, first, get(), HEAD, retries=0)
    assert await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    await client.closed()


async def test_slow_response_is_forwarded_from_the_next_sweep(stage: Stage) -> None:
    """The buffered part is sent at the sweep, further pieces at once, and a truncation ends the response early."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(stage, first, get(), SMALL[:-500], answering(OK))
    assert await received_nothing(client)
    stage.advance(0.25)
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert await client.exactly(500) == b"x" * 500
    first.wires[0].write(b"yy")
    assert await client.exactly(2) == b"yy"
    first.wires[0].reset()
    assert await client.rest() == b""
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {})


async def test_forwarded_put_is_not_retried(stage: Stage) -> None:
    """The buffered request body is dropped when the response begins."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(
        stage, first, post(b"body", method=b"PUT"), HEAD, answering(OK)
    )
    stage.advance(0.25)
    await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    assert await client.rest() == b""
    assert stage.cluster.counts.retried == 0


async def test_client_disconnects_during_buffering(stage: Stage) -> None:
    """No outcome is counted against the endpoint, and nothing is retried."""
    first = PiecewiseWorker()
    client = await client_with_partial_response(stage, first, get(), SMALL[:-500], answering(OK))
    client.reset()
    await stage.eventually(lambda: stage.outcomes("w0"))
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"abandoned": 1}, {})


async def test_client_that_does_not_read(stage: Stage) -> None:
    """The held part is bounded, and is sent when the client reads."""
    first = answering(response(b"y" * 8_000_000), SMALL)
    await stage.serve(await stage.worker(first))
    client = await stage.client()
    client.write(get() + get())
    assert len((await client.response()).body) == 8_000_000
    assert (await client.response()).body == b"x" * 1000
    assert stage.outcomes() == {"ok": 2}
