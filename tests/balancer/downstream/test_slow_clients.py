"""A thousand slow clients before a balancer process with buffering: worker connections, memory, and the bound.

Slow means as slow as possible: clients go on only when the test lets them, so that nothing depends on time. The worker
counts its connections itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from balancer.downstream.descriptor_limit import descriptor_limit
from tests.support.programs import PATIENCE, Program, Start, memory
from tests.support.wire import Message, ScriptedWorker, Wire, answering, get, post, response

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


def answer(request: Message) -> bytes:
    """`RESPONSE` to GET /response, and its verdict to an upload."""
    if request.line.startswith(b"POST"):
        return response(b"whole" if request.body == UPLOAD else b"damaged")
    return response(RESPONSE if request.line.startswith(b"GET /response ") else b"ok")


@pytest.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(answering(answer)) as worker:
        yield worker


class Scene:
    """A balancer process, its worker, and the slow clients."""

    def __init__(self, program: Program, pid: int, worker: ScriptedWorker) -> None:
        self.program = program
        self.pid = pid
        self.worker = worker
        self.uploads: list[Wire] = []
        self.readers: list[Wire] = []
        self.base = 0  # memory before the slow clients have come

    @property
    def peak(self) -> int:
        return memory(self.pid, "VmHWM")

    @property
    def summary(self) -> str:
        megabytes = f"{self.base / MIB:.0f} MiB at the start and {self.peak / MIB:.0f} MiB at most"
        return f"{self.worker.peak} worker connections, memory {megabytes}"

    async def begin(self, *, is_kept: bool) -> None:
        """Each upload sends its first piece, each reader asks and reads the head; with `is_kept`, the next ones ask
        when the worker is free."""
        size = len(UPLOAD) // PIECES
        for _ in range(CLIENTS // TOGETHER):
            some = await self._clients()
            self.uploads += some
            await asyncio.gather(*(client.send(post(UPLOAD)[: -len(UPLOAD)]) for client in some))
            await asyncio.gather(*(client.send(UPLOAD[:size]) for client in some))
        for _ in range(CLIENTS // TOGETHER):
            some = await self._clients()
            self.readers += some
            await asyncio.gather(*(client.send(get(b"/response")) for client in some))
            await asyncio.gather(*(client.head() for client in some))
            async with asyncio.timeout(PATIENCE):
                while is_kept and (await self.program.status())["endpoints"][0]["in_flight"]:
                    pass

    async def _clients(self) -> list[Wire]:
        return await asyncio.gather(*(self.program.client(receive_buffer=4096) for _ in range(TOGETHER)))

    async def go_on(self, number: int) -> None:
        """Each upload sends piece `number`, the last one but for its last byte; each reader reads 4 KiB."""
        size = len(UPLOAD) // PIECES
        piece = UPLOAD[number * size : (number + 1) * size]
        for upload in self.uploads:
            await upload.send(piece[:-1] if number == PIECES - 1 else piece)
        for reader in self.readers:
            await reader.exactly(4 * KIB)

    async def end(self) -> None:
        """Finish everything; every byte must be right."""
        for some in together(self.uploads):
            await asyncio.gather(*(client.send(UPLOAD[-1:]) for client in some))
            assert {(await client.response()).body for client in some} == {b"whole"}
        for some in together(self.readers):
            left = (len(RESPONSE) - len(body_of(reader)) for reader in some)
            await asyncio.gather(*(reader.exactly(size) for reader, size in zip(some, left, strict=True)))
            assert {body_of(reader) for reader in some} == {RESPONSE}

    async def ask_normally(self) -> None:
        """A client that is not slow is served as ever."""
        client = await self.program.client()
        for _ in range(20):
            assert (await client.ask(get())).body == b"ok"
        await client.close()

    def close(self) -> None:
        for client in (*self.uploads, *self.readers):
            client.reset()


def body_of(reader: Wire) -> bytes:
    """What a reader has got of its response."""
    return bytes(reader.received).partition(b"\r\n\r\n")[2]


def together(clients: list[Wire]) -> Iterable[list[Wire]]:
    return (clients[at : at + TOGETHER] for at in range(0, len(clients), TOGETHER))


async def scene_of(start: Start, worker: ScriptedWorker, folder: Path, total: int) -> Scene:
    """Start a balancer that keeps `total` bytes, 0: buffering is off."""
    buffering = f"[buffering]\nrequest = {MIB}\nresponse = {MIB}\ntotal = {total}\n" if total else ""
    path = folder / "balancer.toml"
    path.write_text(
        f'listen = "127.0.0.1:0"\n[[endpoints]]\nid = "w"\naddress = "{worker.url}"\n'
        f"[limits]\nbuffer = {BUFFER}\n{buffering}"
    )
    program = await start("--policy", "random", "--config", str(path))
    scene = Scene(program, (await program.status())["pid"], worker)
    await scene.ask_normally()
    scene.base = memory(scene.pid, "VmRSS")
    return scene


async def test_slow_clients_hold_no_worker_connections(
    start: Start, worker: ScriptedWorker, tmp_path: Path
) -> None:
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
        assert worker.peak <= MOST_CONNECTIONS
        await scene.end()
        assert worker.peak <= MOST_CONNECTIONS
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


async def test_beyond_the_bound_bodies_are_streamed(
    start: Start, worker: ScriptedWorker, tmp_path: Path
) -> None:
    """A tenth of the memory that these clients would need: beyond it they take what they take without buffering, and
    nothing fails."""
    peaks = []
    for total in (0, 32 * MIB):
        scene = await scene_of(start, worker, tmp_path, total)
        worker.peak = 0
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
                assert worker.peak > 2 * CLIENTS
            peaks.append(scene.peak - scene.base)
        finally:
            scene.close()
    streamed, bounded = peaks
    assert bounded <= streamed + 32 * MIB + MARGIN // 2
