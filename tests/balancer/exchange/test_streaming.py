"""Streaming of bodies: back-pressure in both directions, early responses, disconnects."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, post, response

MIB = 1 << 20
CHUNKED_POST = get(b"/", b"Transfer-Encoding: chunked", method=b"POST")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def flow_until_stalled(stage: Stage, wires: list[Wire]) -> int:
    """Let data flow until it stalls; return the bytes left unsent at the senders."""
    before = -1
    while before != (now := sum(wire.unsent for wire in wires)):
        before = now
        await stage.turn(200)
    return now


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_back_pressure_on_the_worker(stage: Stage, is_chunked: bool) -> None:
    """A worker cannot send 16 MiB to a client that does not read: the balancer buffers a bounded part."""
    body = os.urandom(MIB) * 16
    done = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        if is_chunked:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            wire.write(head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        else:
            wire.write(response(body))
        await done.wait()

    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client(receive_buffer=4096)
    await client.send(get())
    await stage.eventually(lambda: worker.connections and worker.connections[0].unsent)
    assert await flow_until_stalled(stage, worker.connections) > 2 * MIB
    held = [downstream.transport.get_write_buffer_size() for downstream in stage.downstreams]
    assert max(held) < MIB
    assert [downstream.is_write_paused for downstream in stage.downstreams] == [True]
    head = await client.until(b"\r\n\r\n")
    assert b"200 OK" in head
    if is_chunked:
        while size := int(await client.until(b"\r\n"), 16):
            await client.exactly(size + 2)
        await client.exactly(2)
    else:
        assert digest(await client.exactly(len(body))) == digest(body)
    assert worker.connections[0].unsent == 0
    done.set()


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_back_pressure_on_the_client(stage: Stage, is_chunked: bool) -> None:
    """A client cannot send 16 MiB to a worker that does not read; once it reads, the whole body arrives."""
    body = os.urandom(MIB) * 16
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await go.wait()
        request = await wire.request()
        await wire.send(response(digest(request.body).encode()))

    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client()
    if is_chunked:
        client.write(CHUNKED_POST + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
    else:
        client.write(post(body))
    await stage.eventually(lambda: worker.connections and stage.pool().leased)
    assert await flow_until_stalled(stage, [client]) > 2 * MIB
    assert [bool(downstream.is_held) for downstream in stage.downstreams] == [True]
    go.set()
    assert (await client.response()).body == digest(body).encode()
    assert (await client.ask(get())).status == 200


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
    assert digest(received) == digest(body)
    assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"


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
    worker = await stage.worker(response(b"next"))
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: stage.pool().opening)
    next(iter(stage.downstreams)).abort()
    await stage.eventually(lambda: not stage.downstreams and not stage.pool().opening)
    assert repr(stage.pool()) == "<Pool w0 idle=1 leased=0 opening=0>"
    assert (await stage.ask(get())).body == b"next"
    assert stage.outcomes() == {"abandoned": 1, "ok": 1}
    assert len(worker.connections) == 1
