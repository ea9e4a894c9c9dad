"""Small responses whose end is still to come: nothing of them goes down before it is there, or has kept them waiting.

Rule of this file: the first worker has trouble and the second is well. What the client sees byte by byte counts.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.exchange.exchange import BUFFERED_RESPONSE
from tests.balancer.conftest import Script, Stage, Wire, answering, get, post, response

SMALL = response(b"x" * 1000, b"X-From: first")
HEAD = SMALL[: -len(b"x" * 1000)]
OK = response(b"fine")


class Apart:
    """A worker that sends pieces of one answer when it is told, then reads on, resets or closes."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []

    async def __call__(self, wire: Wire) -> None:
        await wire.request()
        self.wires.append(wire)
        await wire.closed()

    async def send(self, stage: Stage, piece: bytes) -> None:
        """Send it, and let the unit read it."""
        await stage.eventually(lambda: self.wires)
        await self.wires[-1].send(piece)
        await stage.turn()
        await stage.eventually(lambda: stage.proxy.router.in_flight)


async def begun(
    stage: Stage, first: Apart, request: bytes, piece: bytes, *others: Script, **settings: Any
) -> Wire:
    """A client whose answer has begun with `piece`."""
    await stage.serve(await stage.worker(first), *[await stage.worker(other) for other in others], **settings)
    client = await stage.client()
    client.write(request)
    await first.send(stage, piece)
    return client


async def nothing_came(client: Wire) -> bool:
    """Whether the client has not got a byte."""
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
async def test_an_answer_that_is_cut_short_comes_from_somebody_else(
    stage: Stage, cut: str, request_kind: str, resets: bool
) -> None:
    """The client gets one whole answer, and none of the first; a PUT with its whole body."""
    first = Apart()
    request = get() if request_kind == "GET" else post(b"body", method=b"PUT")
    client = await begun(stage, first, request, CUTS[cut], answering(OK))
    first.wires[0].reset() if resets else first.wires[0].cut()
    assert (await client.response()).body == b"fine"
    assert bytes(client.received).count(b"HTTP/1.1") == 1
    assert b"X-From" not in client.received
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {"ok": 1})
    assert stage.proxy.counts.retried == 1


async def test_who_is_well_costs_one_write(stage: Stage) -> None:
    """Head and body that come apart go down together, unchanged."""
    first = Apart()
    client = await begun(stage, first, get(), HEAD)
    assert await nothing_came(client)
    first.wires[0].write(SMALL[len(HEAD) :])
    assert (await client.response()).body == b"x" * 1000
    assert stage.outcomes() == {"ok": 1}


async def test_where_nobody_may_be_asked_it_is_502(stage: Stage) -> None:
    """Beyond the budget: but nothing has gone down, so the client is told, and may go on."""
    first = Apart()
    client = await begun(
        stage, first, get(), SMALL[:-500], answering(OK), retry={"share": 0.0, "per_second": 0.0}
    )
    first.wires[0].reset()
    assert (await client.response()).status == 502
    assert stage.proxy.counts.errors == {"connection_broken": 1}
    assert (await client.ask(get())).body == b"fine"


async def test_a_request_that_has_had_its_time_is_504(stage: Stage) -> None:
    """The time of the whole request is over between two sweeps: the answer that began is not mentioned."""
    first = Apart()
    client = await begun(stage, first, get(), HEAD, timeouts={"total": 0.2})
    stage.advance(0.3)
    assert (await client.response()).status == 504
    assert stage.outcomes() == {"timeout": 1}


NOT_KEPT = {
    "a POST": (post(b"body"), HEAD),
    "a long one": (get(), response(b"x" * (BUFFERED_RESPONSE + 1))[:-BUFFERED_RESPONSE]),
    "chunks": (get(), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    "server-sent events": (get(), b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"),
}


@pytest.mark.parametrize("kind", NOT_KEPT)
async def test_what_is_not_kept_back(stage: Stage, kind: str) -> None:
    """It goes down as it comes, is cut where the worker is, and nobody else is asked."""
    first = Apart()
    request, piece = NOT_KEPT[kind]
    client = await begun(stage, first, request, piece, answering(OK))
    await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {})


async def test_nothing_is_kept_back_where_nothing_is_repeated(stage: Stage) -> None:
    """`retries = 0`: then it would be for nothing."""
    first = Apart()
    client = await begun(stage, first, get(), HEAD, retries=0)
    assert await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    await client.closed()


async def test_who_dribbles_is_passed_on_from_the_next_sweep_on(stage: Stage) -> None:
    """What is there goes down at the sweep, every further piece at once; and cut off then is cut off."""
    first = Apart()
    client = await begun(stage, first, get(), SMALL[:-500], answering(OK))
    assert await nothing_came(client)
    stage.advance(0.25)
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert await client.exactly(500) == b"x" * 500
    first.wires[0].write(b"yy")
    assert await client.exactly(2) == b"yy"
    first.wires[0].reset()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"reset": 1}, {})


async def test_a_put_that_was_passed_on_is_not_repeated(stage: Stage) -> None:
    """What was kept of its body is given up with the answer's first byte."""
    first = Apart()
    client = await begun(stage, first, post(b"body", method=b"PUT"), HEAD, answering(OK))
    stage.advance(0.25)
    await client.until(b"\r\n\r\n")
    first.wires[0].reset()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert stage.proxy.counts.retried == 0


async def test_a_client_that_leaves_meanwhile(stage: Stage) -> None:
    """Nobody is to blame, and nothing is sent again."""
    first = Apart()
    client = await begun(stage, first, get(), SMALL[:-500], answering(OK))
    client.reset()
    await stage.eventually(lambda: stage.outcomes("w0"))
    assert (stage.outcomes("w0"), stage.outcomes("w1")) == ({"abandoned": 1}, {})


async def test_a_client_that_does_not_read(stage: Stage) -> None:
    """What is kept back is no more than its bound, and goes down when there is room."""
    first = answering(response(b"y" * 8_000_000), SMALL)
    await stage.serve(await stage.worker(first))
    client = await stage.client()
    client.write(get() + get())
    assert len((await client.response()).body) == 8_000_000
    assert (await client.response()).body == b"x" * 1000
    assert stage.outcomes() == {"ok": 2}
