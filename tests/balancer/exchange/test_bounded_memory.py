"""Memory that a client can occupy by not reading: bounded in bytes for every framing of the response."""

from __future__ import annotations

import asyncio
import socket

import pytest

from balancer.config.schema.limits import READ
from balancer.upstream.bounded_reader import LONGEST_READ
from balancer.upstream.request import next_size
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, response

MIB = 1 << 20
SIZE = 64 * MIB
FRAMING = 1024
"""A head and chunk sizes."""

HEADS = {
    "length": response(b"")[:-5] + b"%d\r\n\r\n" % SIZE,
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "until close": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("framing", HEADS)
@pytest.mark.parametrize("buffer", [1024, 65_536, 200_000])
async def test_stalled_client_holds_one_buffer(stage: Stage, framing: str, buffer: int) -> None:
    """Of 64 MiB at most `limits.buffer` is held, or the first read where that is more."""
    most = 0
    taken = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        wire.write(HEADS[framing])
        piece = b"x" * MIB
        for _ in range(SIZE // MIB):
            wire.write(b"%x\r\n%b\r\n" % (MIB, piece) if framing == "chunked" else piece)
        await taken.wait()
        wire.reset()

    worker = await stage.serve_worker(script, limits={"buffer": buffer})
    client = await stage.sending(get(), receive_buffer=4096)
    await stage.eventually(lambda: worker.connections and worker.connections[0].unsent)
    left = -1
    while left != worker.connections[0].unsent:  # until it stands still
        left = worker.connections[0].unsent
        for _ in range(200):
            await stage.turn(1)
            most = max(most, *(one.transport.get_write_buffer_size() for one in stage.downstreams))
    assert left > SIZE // 2
    assert [one.is_write_paused for one in stage.downstreams] == [True]
    assert 0 < most <= max(buffer, LONGEST_READ) + FRAMING
    client.reset()
    taken.set()


async def test_client_that_stalls_after_quick_reads_holds_one_read(stage: Stage) -> None:
    """Reads grow while a client reads at once; after it stops at most one read of the largest size is held."""
    taken = asyncio.Event()
    answers = response(b"x" * (8 * MIB)), HEADS["length"] + b"x" * SIZE
    script = playing(Wire.request, answers[0], Wire.request, answers[1], taken, Wire.reset)
    worker = await stage.serve_worker(script)
    client = await stage.sending(get())
    assert len((await client.response()).body) == 8 * MIB
    (downstream,) = stage.downstreams
    await client.send(get())
    await stage.eventually(lambda: downstream.is_write_paused)
    left = held = -1
    while (left, held) != (worker.connections[0].unsent, downstream.transport.get_write_buffer_size()):
        left, held = worker.connections[0].unsent, downstream.transport.get_write_buffer_size()
        await stage.turn(200)
    assert left > SIZE // 2
    assert 0 < held <= LONGEST_READ + FRAMING
    client.reset()
    taken.set()


async def test_client_that_stalls_after_quick_small_chunks_gets_small_reads(stage: Stage) -> None:
    """Chunks that are each passed on at once let reads grow; those that fill the client's buffer shrink them, so that
    the next read is as short as that for any slow client."""
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    grown = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        wire.write(HEADS["chunked"])
        for _ in range(20):
            wire.write(chunk)
            await stage.turn(20)
        await grown.wait()
        while not downstream.is_write_paused:
            wire.write(chunk)
            await stage.turn(4)
        await wire.closed()

    await stage.serve_worker(script)
    client = await stage.sending(get(), receive_buffer=4096)
    await client.head()
    (downstream,) = stage.downstreams
    for _ in range(20):
        await client.exactly(len(chunk))
    assert downstream.client.read_size == LONGEST_READ
    client.stop_reading()
    grown.set()
    await stage.eventually(lambda: downstream.is_write_paused)
    assert downstream.client.read_size == READ
    client.reset()


def test_read_size_follows_the_write_buffer() -> None:
    size, sizes = READ, []
    for unsent in (0, 0, 0, 0, 1, 1, 1, 1, 0):
        size = next_size(size, unsent)
        sizes.append(size)
    assert sizes == [65_536, 131_072, 256_000, 256_000, 128_000, 64_000, READ, READ, 65_536]


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="not on this system")
async def test_kernel_send_buffer_is_limited(stage: Stage) -> None:
    """Inherited from the listening socket."""
    await stage.serve(await stage.worker(response(b"x")))
    await stage.sending(get())
    await stage.eventually(lambda: stage.downstreams)
    (downstream,) = stage.downstreams
    sock = downstream.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == stage.cluster.limits.buffer
