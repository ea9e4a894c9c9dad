"""Responses that break off at the worker, over real sockets: the client gets what came, and sees that it is not all.

The clients read nothing before the worker has broken off, and then little at a time. The balancer's own send buffer is
short, so that a part of the response waits in the process.
"""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from balancer.http.h2.events import INTERNAL_ERROR
from balancer.http.h2.limits import Http2Limits
from tests.support.http2_client import http2_client
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing

SENT = bytes(range(256)) * 120
HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "length": HEAD + b"Content-Length: 90000\r\n\r\n" + SENT,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (len(SENT), SENT),
    "a part of a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b" % (len(SENT) + 1, SENT),
    "until close": HEAD + b"\r\n" + SENT,
}
"""What the worker sends."""

BREAKS = {"fin": Wire.leave, "rst": Wire.reset}
CASES = [(framing, how) for framing in ANSWERS for how in BREAKS if (framing, how) != ("until close", "fin")]


async def client_with_truncated_answer(stage: Stage, framing: str, how: str, request: bytes) -> Wire:
    """A client that has read nothing of a response that has broken off, part of which waits in the balancer."""
    go = asyncio.Event()
    await stage.serve(await stage.worker(playing(Wire.request, ANSWERS[framing], go, BREAKS[how])))
    client = await stage.client(receive_buffer=4096)
    await stage.eventually(lambda: stage.downstreams)
    (downstream,) = stage.downstreams
    sock = downstream.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await client.send(request)
    await stage.eventually(lambda: downstream.transport.get_write_buffer_size() > len(SENT) // 2)
    await stage.turn()
    go.set()
    await stage.eventually(lambda: stage.outcomes() == {"reset": 1})
    await stage.turn()
    return client


async def read_slowly(client: Wire) -> None:
    """Read up to the end, a little at a time."""
    while await client.some(1000):
        pass


def body_of(client: Wire) -> bytes:
    """The body of a response that may break off between or within chunks; without its end it has no last chunk."""
    head, _, body = bytes(client.received).partition(b"\r\n\r\n")
    if b"\r\nTransfer-Encoding: chunked" not in head:
        return body
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        assert re.fullmatch(rb"[1-9a-f][0-9a-f]*", size), size
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


@pytest.mark.parametrize(("framing", "how"), CASES)
async def test_slow_client_gets_all_that_came(stage: Stage, framing: str, how: str) -> None:
    """Then a FIN, short of the length or of the last chunk."""
    client = await client_with_truncated_answer(stage, framing, how, get())
    await read_slowly(client)
    assert body_of(client) == SENT
    assert stage.downstreams  # what it might still send is not answered by a reset
    client.leave()
    await stage.eventually(lambda: not stage.downstreams)


async def test_what_the_client_still_sends_destroys_nothing(stage: Stage) -> None:
    """Input that is not read when a connection closes would turn the FIN into a reset."""
    client = await client_with_truncated_answer(stage, "chunks", "rst", get())
    await client.send(get(b"/next"))
    await stage.turn()
    await read_slowly(client)
    assert body_of(client) == SENT


@pytest.mark.parametrize("framing", ["chunks", "until close"])
async def test_response_that_would_end_by_the_close_is_reset(stage: Stage, framing: str) -> None:
    """A client of HTTP/1.0 gets no chunks: a FIN would be the end of the whole."""
    client = await client_with_truncated_answer(stage, framing, "rst", get(version=b"HTTP/1.0"))
    with pytest.raises(ConnectionResetError):
        await read_slowly(client)


async def test_client_that_reads_nothing_is_reset(stage: Stage) -> None:
    """After `timeouts.body_idle`, as behind any other response."""
    client = await client_with_truncated_answer(stage, "length", "fin", get())
    idle = stage.cluster.timeouts.body_idle
    stage.advance(0.25)
    stage.advance(idle - 1.0)
    await stage.turn()
    assert stage.downstreams
    stage.advance(2.0)
    await stage.eventually(lambda: not stage.downstreams)
    with pytest.raises(ConnectionResetError):
        await read_slowly(client)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_stream_is_reset_behind_what_came(stage: Stage, framing: str, reads: bool) -> None:
    """HTTP/2: what waits for the client's window goes first, for at most `timeouts.body_idle` without progress."""
    go = asyncio.Event()
    await stage.serve(await stage.worker(playing(Wire.request, ANSWERS[framing], go, Wire.leave)))
    client = await http2_client(stage, Http2Limits(stream_window=5000))
    client.is_slow = True
    stream = client.request()
    answer = client.answers[stream]
    await client.until(lambda: answer.size == 5000)
    go.set()
    await stage.eventually(lambda: stage.outcomes() == {"reset": 1})
    await stage.turn()
    if reads:
        client.is_slow = False
        client.engine.acknowledge(stream, answer.size)
        client.flush()
    else:
        for seconds in (0.25, stage.cluster.timeouts.body_idle - 1.0, 2.0):
            assert answer.reset is None
            stage.advance(seconds)
    await client.answer(stream)
    assert (answer.body, answer.reset) == (SENT if reads else SENT[:5000], INTERNAL_ERROR)
    assert not answer.has_ended
    assert client.closed is None
