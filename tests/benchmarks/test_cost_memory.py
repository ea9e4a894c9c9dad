"""Memory per connection: what is read, what stands open meanwhile, and what cannot be had."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys

import pytest

from benchmarks.cost.memory import idle, proportional_bytes
from benchmarks.harness.descriptors import allow_descriptors
from benchmarks.harness.worker import Connection
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.ports import free_ports

pytestmark = pytest.mark.skipif(not cpu_time.is_known_here(), reason="memory is read on Linux only")

HOARDER = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(b"x") * int(line))
    print("done", flush=True)
"""


def test_what_a_process_keeps_is_seen() -> None:
    """32 MiB more are 32 MiB more, to a few pages."""
    with subprocess.Popen(
        [sys.executable, "-c", HOARDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = []
        for size in (1, 32 * 1024 * 1024):
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            process.stdout.readline()
            seen.append(proportional_bytes(process.pid))
        process.stdin.close()
    assert seen[1] - seen[0] == pytest.approx(32 * 1024 * 1024, rel=0.05)


async def test_idle_connections_have_had_an_answer_and_stand() -> None:
    """Each asks once; all stand inside."""
    made: list[Connection] = []

    def connection() -> Connection:
        made.append(Connection())
        return made[-1]

    port = next(free_ports(1))
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port)
    async with idle(port, 50):
        assert len(made) == 50
        assert not any(one._transport.is_closing() for one in made)
    server.close()


async def test_a_refused_connection_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="got no answer"):
        async with idle(1, 1):
            pass


def test_descriptors_beyond_the_hard_limit_are_an_error() -> None:
    """Said in words, with the limit; what is enough already is left as it is."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_descriptors(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    if os.geteuid() != 0 and before[1] != resource.RLIM_INFINITY:
        with pytest.raises(FleetFailedError, match="open files are needed"):
            allow_descriptors(before[1] + 1)
