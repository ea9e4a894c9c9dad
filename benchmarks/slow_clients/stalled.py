"""Memory cost of a stalled reader: a response of 1 GiB, of which the client reads nothing.

The worker runs in this process; the growth of the proxy's resident memory is measured.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.cases import CASES
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import Peer
from benchmarks.harness.serving import READY_WITHIN, serving, status_line
from benchmarks.slow_clients.runs import memory_of
from experiments.errors import FleetFailedError
from experiments.platform.ports import free_ports
from experiments.platform.session import BoundVerdict

SIZE = 1 << 30
PIECE = bytes(1 << 16)
BOUND = 2 << 20
STANDS_STILL = 1.0
"""Seconds without a byte read from the worker after which the transfer counts as stalled."""

WARM_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class Stalled:
    """Bytes by which the proxy's memory grew, and bytes that the worker sent."""

    peer: str
    growth: int
    taken: int

    @property
    def verdict(self) -> BoundVerdict:
        return BoundVerdict(
            self.peer,
            f"a stalled reader of 1 GiB costs less than {BOUND // 1024} KiB",
            self.growth < BOUND,
            f"{self.growth / 1024:.0f} KiB, of {self.taken / 1024:.0f} KiB taken from the worker",
        )


class StalledWorker:
    """Worker that answers `/1g` with up to 1 GiB and everything else with an empty body."""

    def __init__(self) -> None:
        self.taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            is_large = head.startswith(b"GET /1g ")
            size = SIZE if is_large else 0
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
            while self.taken < size:
                writer.write(PIECE)
                await writer.drain()
                self.taken += len(PIECE)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the connection was cut
        finally:
            writer.close()


async def stalled(peer: Peer, folder: Path, core: int) -> Stalled:
    """Measure one proxy. Raises `FleetFailedError`."""
    worker = StalledWorker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    site = Site(next(free_ports(1)), (server.sockets[0].getsockname()[1],), folder)
    try:
        async with serving(peer.name, peer.argv(site), site.port, CASES["get"], core) as child:
            for _ in range(WARM_REQUESTS):
                await status_line(site.port, "/")
            before = memory_of(child.pid)
            with socket.create_connection(("127.0.0.1", site.port)) as client:
                client.sendall(b"GET /1g HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                await standstill(worker)
                growth = memory_of(child.pid) - before
    finally:
        server.close()
    return Stalled(peer.name, growth, worker.taken)


async def standstill(worker: StalledWorker) -> None:
    """Wait until the worker sends nothing more. Raises `FleetFailedError` after `READY_WITHIN` seconds."""
    before = -1
    try:
        async with asyncio.timeout(READY_WITHIN):
            while not worker.taken or before != worker.taken:
                before = worker.taken
                await asyncio.sleep(STANDS_STILL)
    except TimeoutError:
        raise FleetFailedError(f"the response did not stand still within {READY_WITHIN:g} s") from None
