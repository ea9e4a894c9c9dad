"""A thousand slow clients before a balancer process with buffering: worker connections, memory, and the bound.

Slow means as slow as possible: clients go on only when the test lets them, so that nothing depends on time. The worker
counts its connections itself.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import cast

import pytest

from balancer.downstream.descriptor_limit import descriptor_limit
from tests.support.programs import PATIENCE, Program, Start, memory
from tests.support.wire import get, post

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
    pytest.mark.skipif(descriptor_limit() < 6000, reason="needs 6000 descriptors"),
]

KIB, MIB = 1 << 10, 1 << 20
CLIENTS = 500
"""Slow uploads, and as many slow readers."""

TOGETHER = 5
"""Slow clients that begin, or end, at a time."""

MOST_CONNECTIONS = 10
UPLOAD = bytes(range(256)) * 256
PIECES = 4
RESPONSE = bytes(range(256)) * 2048
BUFFER = 16 * KIB

MARGIN = 32 * MIB
"""Bytes of memory that are not the bodies themselves: a thousand connections with their requests, and the allocator's
part. The process itself takes some 64 MiB before."""


class Worker(asyncio.Protocol):
    """One connection of a worker, which answers GET /response with `RESPONSE` and an upload with its verdict."""

    open = 0
    peak = 0

    def __init__(self) -> None:
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        Worker.open += 1
        Worker.peak = max(Worker.peak, Worker.open)

    def connection_lost(self, error: Exception | None) -> None:
        Worker.open -= 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = bytes(self._received).partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"POST"):
            if len(body) < len(UPLOAD):
                return
            answer = b"whole" if body == UPLOAD else b"damaged"
        else:
            answer = RESPONSE if head.startswith(b"GET /response ") else b"ok"
        self._received.clear()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


@pytest.fixture
async def worker() -> AsyncIterator[int]:
    """The port of a worker. Its accept queue has room for all connections that may come while the test does not look:
    beyond it, the kernel answers with SYN cookies, and resets a connection whose second segment it gets instead of the
    first."""
    Worker.open = Worker.peak = 0
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", 0, backlog=4 * CLIENTS)
    yield server.sockets[0].getsockname()[1]
    server.close()


class SlowClient:
    """A connection on which every byte is sent and read by command; with a small receive buffer."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        self.received = bytearray()

    async def connect(self, port: int) -> None:
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read(self, size: int) -> None:
        """Read until `size` bytes have come in all."""
        while len(self.received) < size:
            await self._read_some(size - len(self.received))

    async def read_head(self) -> None:
        while b"\r\n\r\n" not in self.received:
            await self._read_some(64)

    async def _read_some(self, most: int) -> None:
        async with asyncio.timeout(PATIENCE):
            data = await asyncio.get_running_loop().sock_recv(self._socket, most)
        assert data, "the balancer has closed the connection"
        self.received += data

    async def body(self, size: int) -> bytes:
        """Read the rest of a response; return its body."""
        await self.read_head()
        head = self.received.index(b"\r\n\r\n") + 4
        await self.read(head + size)
        assert self.received.startswith(b"HTTP/1.1 200 OK\r\n")
        return bytes(self.received[head:])

    def close(self) -> None:
        self._socket.close()


class Scene:
    """A balancer process, its worker, and the slow clients."""

    def __init__(self, program: Program, pid: int) -> None:
        self.program = program
        self.pid = pid
        self.uploads = [SlowClient() for _ in range(CLIENTS)]
        self.readers = [SlowClient() for _ in range(CLIENTS)]
        self.base = 0  # memory before the slow clients have come

    @property
    def peak(self) -> int:
        return memory(self.pid, "VmHWM")

    @property
    def summary(self) -> str:
        megabytes = f"{self.base / MIB:.0f} MiB at the start and {self.peak / MIB:.0f} MiB at most"
        return f"{Worker.peak} worker connections, memory {megabytes}"

    async def begin(self, *, is_kept: bool) -> None:
        """Each upload sends its first piece, each reader asks and reads the head; with `is_kept`, the next ones ask
        when the worker is free."""
        size = len(UPLOAD) // PIECES
        for some in together(self.uploads):
            await asyncio.gather(*(client.connect(self.program.port) for client in some))
            await asyncio.gather(*(client.send(post(UPLOAD)[: -len(UPLOAD)]) for client in some))
            await asyncio.gather(*(client.send(UPLOAD[:size]) for client in some))
        for some in together(self.readers):
            await asyncio.gather(*(client.connect(self.program.port) for client in some))
            await asyncio.gather(*(client.send(get(b"/response")) for client in some))
            await asyncio.gather(*(client.read_head() for client in some))
            async with asyncio.timeout(PATIENCE):
                while is_kept and (await self.program.status())["endpoints"][0]["in_flight"]:
                    pass

    async def go_on(self, number: int) -> None:
        """Each upload sends piece `number`, the last one but for its last byte; each reader reads 4 KiB."""
        size = len(UPLOAD) // PIECES
        piece = UPLOAD[number * size : (number + 1) * size]
        for upload in self.uploads:
            await upload.send(piece[:-1] if number == PIECES - 1 else piece)
        for reader in self.readers:
            await reader.read(len(reader.received) + 4 * KIB)

    async def end(self) -> None:
        """Finish everything; every byte must be right."""
        for some in together(self.uploads):
            await asyncio.gather(*(client.send(UPLOAD[-1:]) for client in some))
            assert {await client.body(len(b"whole")) for client in some} == {b"whole"}
        for some in together(self.readers):
            assert set(await asyncio.gather(*(client.body(len(RESPONSE)) for client in some))) == {RESPONSE}

    async def ask_normally(self) -> None:
        """A client that is not slow is served as ever."""
        client = await self.program.client()
        for _ in range(20):
            assert (await client.ask(get())).body == b"ok"
        await client.close()

    def close(self) -> None:
        for client in (*self.uploads, *self.readers):
            client.close()


def together(clients: list[SlowClient]) -> Iterable[list[SlowClient]]:
    return (clients[at : at + TOGETHER] for at in range(0, len(clients), TOGETHER))


async def scene_of(start: Start, worker: int, folder: Path, total: int) -> Scene:
    """Start a balancer that keeps `total` bytes, 0: buffering is off."""
    buffering = f"[buffering]\nrequest = {MIB}\nresponse = {MIB}\ntotal = {total}\n" if total else ""
    path = folder / "balancer.toml"
    path.write_text(
        f'listen = "127.0.0.1:0"\n[[endpoints]]\nid = "w"\naddress = "http://127.0.0.1:{worker}"\n'
        f"[limits]\nbuffer = {BUFFER}\n{buffering}"
    )
    program = await start("--policy", "random", "--config", str(path))
    scene = Scene(program, (await program.status())["pid"])
    await scene.ask_normally()
    scene.base = memory(scene.pid, "VmRSS")
    return scene


async def test_slow_clients_hold_no_worker_connections(start: Start, worker: int, tmp_path: Path) -> None:
    """500 uploads and 500 readers beside a client that is served as ever: at most ten connections at the worker."""
    total = 288 * MIB
    scene = await scene_of(start, worker, tmp_path, total)
    try:
        await scene.begin(is_kept=True)
        for number in range(1, PIECES):
            await scene.ask_normally()
            await scene.go_on(number)
        await scene.ask_normally()
        status = await scene.program.status()
        kept = status["buffering"]["kept"]
        assert (status["in_flight"], status["endpoints"][0]["in_flight"]) == (CLIENTS, 0)
        assert 256 * MIB < kept <= total
        assert Worker.peak <= MOST_CONNECTIONS
        await scene.end()
        assert Worker.peak <= MOST_CONNECTIONS
        print(f"\n{scene.summary}, kept {kept / MIB:.0f} MiB", end="")
        assert scene.peak <= scene.base + total + MARGIN
        status = await scene.program.status()
        assert status["errors"] == {}
        assert status["buffering"] == {
            "kept": 0,
            "limit": total,
            "requests": CLIENTS,
            "responses": CLIENTS,
            "requests_streamed": 0,
            "responses_streamed": 0,
        }
    finally:
        scene.close()


async def test_beyond_the_bound_bodies_are_streamed(start: Start, worker: int, tmp_path: Path) -> None:
    """A tenth of the memory that these clients would need: beyond it they take what they take without buffering, and
    nothing fails."""
    peaks = []
    for total in (0, 32 * MIB):
        scene = await scene_of(start, worker, tmp_path, total)
        Worker.peak = 0
        try:
            await scene.begin(is_kept=False)
            for number in range(1, PIECES):
                await scene.ask_normally()
                await scene.go_on(number)
                status = await scene.program.status()
                if total:
                    assert total // 2 < status["buffering"]["kept"] <= total
            await scene.end()
            status = await scene.program.status()
            assert status["errors"] == {}
            print(f"\n{scene.summary}, {total / MIB:.0f} MiB allowed", end="")
            if total:
                assert status["buffering"]["kept"] == 0
                assert status["buffering"]["requests_streamed"] > CLIENTS // 2
                assert status["buffering"]["responses_streamed"] > CLIENTS // 2
            else:
                assert Worker.peak > 2 * CLIENTS
            peaks.append(scene.peak - scene.base)
        finally:
            scene.close()
    streamed, bounded = peaks
    assert bounded <= streamed + 32 * MIB + MARGIN // 2
