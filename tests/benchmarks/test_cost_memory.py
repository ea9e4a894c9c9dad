"""Memory per idle connection: the reading of a process, idle connections, and the limit of open files."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.cost.runs import idle, proportional_bytes
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.descriptors import allow_descriptors
from experiments.platform.instant_worker import InstantConnection
from experiments.platform.ports import free_ports

pytestmark = pytest.mark.skipif(not cpu_time.is_known_here(), reason="memory is read on Linux only")

ALLOCATING_PROGRAM = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(b"x") * int(line))
    print("done", flush=True)
"""


class CountingConnection(InstantConnection):
    """Connection of the minimal worker; `open_now` and `closed` count over all connections."""

    open_now = 0
    closed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        CountingConnection.open_now += 1

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        CountingConnection.open_now -= 1
        CountingConnection.closed += 1


@asynccontextmanager
async def counting_worker() -> AsyncIterator[int]:
    """Run the minimal worker with fresh counts; yields its port."""
    CountingConnection.open_now = CountingConnection.closed = 0
    port = next(free_ports(1))
    server = await asyncio.get_running_loop().create_server(CountingConnection, "127.0.0.1", port)
    yield port
    server.close()


def test_growth_of_a_process_is_read() -> None:
    """A process that allocates 32 MiB grows by 32 MiB, within 5 %."""
    with subprocess.Popen(
        [sys.executable, "-c", ALLOCATING_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sizes = []
        for size in (1, 32 * 1024 * 1024):
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            process.stdout.readline()
            sizes.append(proportional_bytes(process.pid))
        process.stdin.close()
    assert sizes[1] - sizes[0] == pytest.approx(32 * 1024 * 1024, rel=0.05)


async def test_idle_connections_stay_open() -> None:
    """All connections are open at the same time, after a response on each."""
    async with counting_worker() as port, idle(port, 50):
        assert (CountingConnection.open_now, CountingConnection.closed) == (50, 0)


async def test_refused_connection_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="got no answer"):
        async with idle(1, 1):
            pass


def test_limit_of_open_files() -> None:
    """A sufficient limit is unchanged; a limit above the hard limit is an error."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_descriptors(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    if os.geteuid() != 0 and before[1] != resource.RLIM_INFINITY:
        with pytest.raises(FleetFailedError, match="open files are needed"):
            allow_descriptors(before[1] + 1)
