"""Memory per idle client connection after one request on it, in bytes.

Growth of the proxy's proportional set size (PSS), in which shared pages are divided among their users. The kernel's
socket buffers are the same for every proxy and are not included.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from benchmarks.cost.plan import Plan, Run
from benchmarks.harness.descriptors import allow_descriptors
from benchmarks.harness.peer_files import SMALL
from benchmarks.harness.peers import Peer, Site
from benchmarks.harness.serving import serving
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time

AT_ONCE = 32
"""Connections that send at the same time; a small number keeps upstream connections few."""

REHEARSAL = 200
"""Connections opened and closed before the first reading, so that one-time allocations are done."""

SETTLE = 0.6
"""Seconds to wait for periodic cleanups."""

SPARE_DESCRIPTORS = 200


async def memory(plan: Plan, peer: Peer, site: Site, run: Run) -> Run:
    """One run with a fresh process. Raises `FleetFailedError`."""
    allow_descriptors(plan.connections + SPARE_DESCRIPTORS)
    async with serving(peer.name, peer.argv(site), site.port, plan.case, plan.proxy_core) as child:
        async with idle(site.port, REHEARSAL):
            pass
        before = await held(child.pid)
        async with idle(site.port, plan.connections):
            after = await held(child.pid)
    return replace(run, figure=(after - before) / plan.connections, requests=plan.connections)


async def held(pid: int) -> int:
    """PSS in bytes of a process and its descendants after settling. Raises `FleetFailedError`."""
    await asyncio.sleep(SETTLE)
    try:
        return sum(proportional_bytes(one) for one in (pid, *cpu_time.descendants(pid)))
    except OSError as error:
        raise FleetFailedError(f"the memory of process {pid} cannot be read: {error.strerror}") from None


def proportional_bytes(pid: int) -> int:
    """PSS of one process in bytes (proc(5), smaps_rollup). Raises `OSError`."""
    lines = (cpu_time.PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@asynccontextmanager
async def idle(port: int, count: int) -> AsyncIterator[None]:
    """Hold `count` connections with one response each; closed on exit. Raises `FleetFailedError`."""
    writers: list[StreamWriter] = []
    try:
        while len(writers) < count:
            batch = min(AT_ONCE, count - len(writers))
            writers += await asyncio.gather(*(connected(port) for _ in range(batch)))
        yield
    finally:
        for writer in writers:
            writer.close()


async def connected(port: int) -> StreamWriter:
    """Open a connection and complete one request on it. Raises `FleetFailedError`."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(SMALL.encode()), 10.0)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
        raise FleetFailedError(f"a connection got no answer: {error!r}") from None
    return writer
