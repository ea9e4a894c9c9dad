"""Start processes that listen on a loopback port, and wait until they answer.

Only processes started here are stopped here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.cases import Case
from benchmarks.harness.certificates import client_context
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import Peer
from experiments.errors import FleetFailedError
from experiments.generator.client import NotConnected, open_connection
from experiments.generator.http2 import Http2Connection, Http2Owner
from experiments.platform import cpu_time, processes
from experiments.platform.processes import Child

READY_WITHIN = 20.0
LOOK_AGAIN = 0.05


@asynccontextmanager
async def serving(
    name: str, argv: list[str], port: int, case: Case, core: int | None
) -> AsyncIterator[Child]:
    """Start a process that answers the case's path on `port`; stopped on exit. Raises `FleetFailedError`.

    It is pinned to `core`; None: to none.
    """
    with cpu_time.pinned_to(core) if core is not None else nullcontext():
        child = await processes.start(name, argv)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(child.stop)
        await answering(child, port, case)
        yield child


async def answering(child: Child, port: int, case: Case) -> None:
    """Wait until it answers 200. Raises `FleetFailedError`."""
    give_up_at, last = time.monotonic() + READY_WITHIN, "nothing"
    while time.monotonic() < give_up_at:
        if not child.is_running:
            await asyncio.sleep(LOOK_AGAIN)  # wait for the rest of its standard error
            raise FleetFailedError(f"{child.name} ended before it was ready{child.tail}")
        asked = http2_answer(port) if case.streams else status_line(port, case.path, case.is_tls)
        last = await asked or last
        if " 200 " in last:
            return
        await asyncio.sleep(LOOK_AGAIN)
    raise FleetFailedError(f"{child.name} did not forward within {READY_WITHIN:g} s: {last}{child.tail}")


async def status_line(
    port: int, path: str, is_tls: bool = False, within: float = 1.0, admin_socket: str | None = None
) -> str:
    """Status line of the response to a GET on a new connection; empty if there is none `within` so many seconds."""
    try:
        async with asyncio.timeout(within):
            context = client_context() if is_tls else None
            if admin_socket is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            else:
                reader, writer = await asyncio.open_unix_connection(admin_socket)
            try:
                head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                return (await reader.readline()).decode("latin-1").strip()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


async def http2_answer(port: int) -> str:
    """A status line if the answer to the preface of HTTP/2 is a SETTINGS frame, otherwise empty."""
    try:
        connection = await open_connection(lambda: Http2Connection(Http2Owner()), "127.0.0.1", port, 1.0)
    except NotConnected:
        return ""
    connection.close()
    return "HTTP/2 200 "


def folder_in(folder: Path, name: str) -> Path:
    """Create a folder for the files of one process."""
    made = folder / name
    made.mkdir()
    return made


BLOCKS_PER_PROCESS = 5
"""Blocks for which a process is kept, so that runs can be short and the sides of a ratio are seconds apart. Then all
are restarted: a process keeps random properties, such as addresses, hash seeds and memory layout.
"""


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A running process of a peer and its port."""

    child: Child
    port: int

    def died(self) -> FleetFailedError:
        """Error to raise when its accounts can no longer be read."""
        return FleetFailedError(f"{self.child.name} died while it was measured{self.child.tail}")


class RunningPeers(dict[str, RunningPeer | FleetFailedError]):
    """Running processes by the peer's name, or why one has not started."""

    def of(self, peer: Peer) -> RunningPeer:
        """Process of a peer. Raises `FleetFailedError` if it has not started."""
        found = self[peer.name]
        if isinstance(found, FleetFailedError):
            raise found
        return found


@asynccontextmanager
async def running_peers(
    peers: Sequence[Peer], site: Callable[[Peer], Site], case: Case, core: int
) -> AsyncIterator[RunningPeers]:
    """Start all peers on one core; stopped on exit. One that fails to start has a reason instead."""
    found = RunningPeers()
    async with AsyncExitStack() as stack:
        for peer in peers:
            place = site(peer)
            started = serving(peer.name, peer.argv(place), place.port, case, core)
            try:
                found[peer.name] = RunningPeer(await stack.enter_async_context(started), place.port)
            except FleetFailedError as failure:
                found[peer.name] = failure
        yield found
